//! Cells: the values to be of one field, each knowing the cell above it.
//!
//! 1. A message names the element (`scenes[2].clip`), and a vector has thousands: a cell knows only
//!    its parent and its index, and names are put together when they are needed ([`Level::name`]).

use std::fmt::Write as _;

use serde_json::Value;

use crate::tree::Step;
use crate::units;

/// One value to be.
#[derive(Clone, Copy)]
pub struct Cell<'a> {
    /// The cell above, in the level above; in the topmost level, the row.
    pub parent: usize,
    /// Which element of the cell above it is, if that is a list.
    pub index: usize,
    /// What `row.json` says; `None` for null and for nothing.
    pub json: Option<&'a Value>,
    /// Whether something above it is null.
    pub masked: bool,
}

/// All cells of one field.
pub struct Level<'l, 'a> {
    above: Option<&'l Level<'l, 'a>>,
    /// The field.
    pub path: Vec<Step>,
    /// In row order, elements side by side.
    pub cells: Vec<Cell<'a>>,
}

impl<'l, 'a> Level<'l, 'a> {
    /// The cells of a top-level column, one for each row.
    pub fn top(column: &str, cells: Vec<Cell<'a>>) -> Self {
        Self { above: None, path: vec![Step::Field(column.to_owned())], cells }
    }

    /// The cells beneath these.
    pub fn below(&'l self, step: Step, cells: Vec<Cell<'a>>) -> Self {
        let mut path = self.path.clone();
        path.push(step);
        Self { above: Some(self), path, cells }
    }

    /// The row of a cell, and the indices of the lists above it, outermost first.
    pub fn place(&self, mut at: usize) -> (usize, Vec<u64>) {
        let mut level = self;
        let mut indices = Vec::new();
        loop {
            let cell = level.cells[at];
            if level.path.last() == Some(&Step::Element) {
                indices.push(units::u64_of(cell.index));
            }
            at = cell.parent;
            let Some(above) = level.above else { break };
            level = above;
        }
        indices.reverse();
        (at, indices)
    }

    /// A cell's row, and its name for people.
    pub fn name(&self, at: usize) -> (usize, String) {
        let (row, indices) = self.place(at);
        let mut indices = indices.iter();
        let mut name = String::new();
        for step in &self.path {
            match step {
                Step::Field(field) if name.is_empty() => name.push_str(field),
                Step::Field(field) => name.extend([".", field]),
                Step::Element => {
                    // Writing to a string does not fail.
                    let _ = write!(name, "[{}]", indices.next().copied().unwrap_or_default());
                }
            }
        }
        (row, name)
    }
}
