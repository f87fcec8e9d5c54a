//! The Blob fields of a snapshot's schema.
//!
//! A Blob field is a leaf, wherever it lies beneath structs, lists and large lists (spec, "Table
//! Schema"). Plain binary columns are none.

use lance_core::datatypes::{Field, Schema};

use crate::error::{Error, Kind, Result};
use crate::tree::{Shape, Step};

/// One Blob field.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// Position of its top-level column among [`Leaves::columns`].
    pub column: usize,
    /// Its path, from the column down.
    pub path: Vec<Step>,
    /// Its field id, by which data files are found.
    pub field_id: i32,
    /// Its path for people: `scenes.clip`.
    pub display: String,
    /// Which layout its descriptors have.
    pub layout: Layout,
}

/// How a field's Blobs are described, as its schema says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Five children (spec, "Data File Schema").
    V2,
    /// Two children, of a marked binary field.
    Legacy,
}

/// Whether the crate finds no top-level column by this name (lance-core 14.0.2,
/// `datatypes/schema.rs:543`).
pub fn is_lost(name: &str) -> bool {
    name.is_empty() || name.contains('`')
}

/// All Blob fields of a snapshot.
#[derive(Clone, Debug, Default)]
pub struct Leaves {
    /// In schema order.
    pub fields: Vec<Leaf>,
    /// Their names, in the same order.
    pub shape: Shape,
    /// The top-level columns that hold them, each cut down to its Blob fields.
    pub columns: Vec<Schema>,
}

/// Whether the crate knows every type of a schema: it panics where it meets one that it does not.
///
/// # Errors
/// [`Kind::Table`], with the field and its type.
pub fn check_types(schema: &Schema) -> Result<()> {
    let is_unknown = |field: &&Field| {
        let is_made_of_others = !field.children.is_empty() || field.logical_type.is_struct();
        let known = || arrow_schema::DataType::try_from(&field.logical_type).is_ok();
        !is_made_of_others && !field.is_blob() && !known()
    };
    match schema.fields_pre_order().find(is_unknown) {
        None => Ok(()),
        Some(field) => {
            let text = format!("field {:?} is of the type {}", field.name, field.logical_type);
            Err(Error::new(Kind::Table, text).hint(
                "this program does not know that type; the version was written by a newer one, or is damaged",
            ))
        }
    }
}

impl Leaves {
    /// Whether one is a member of a struct.
    pub fn are_in_structs(&self) -> bool {
        let is_member = |step: &Step| matches!(step, Step::Field(_));
        self.fields.iter().any(|leaf| leaf.path.iter().skip(1).any(is_member))
    }

    /// Finds the Blob fields of a schema. `scanned` is the same schema by the names under which its
    /// columns are scanned.
    pub fn of(schema: &Schema, scanned: &Schema) -> Self {
        let mut found = Self::default();
        for field in &schema.fields {
            let first = found.fields.len();
            walk(
                field,
                &mut vec![Step::Field(field.name.clone())],
                found.columns.len(),
                &mut found.fields,
            );
            let ids: Vec<i32> = found.fields[first..].iter().map(|leaf| leaf.field_id).collect();
            if !ids.is_empty() {
                found.columns.push(scanned.project_by_ids(&ids, true));
            }
        }
        found.shape = Shape::new(found.fields.iter().map(|leaf| leaf.path.as_slice()));
        found
    }
}

fn walk(field: &Field, path: &mut Vec<Step>, column: usize, leaves: &mut Vec<Leaf>) {
    if field.is_blob() {
        let layout = if field.is_blob_v2() { Layout::V2 } else { Layout::Legacy };
        leaves.push(Leaf {
            column,
            path: path.clone(),
            field_id: field.id,
            display: display(path),
            layout,
        });
        return;
    }
    match field.data_type() {
        arrow_schema::DataType::Struct(_) => {
            for child in &field.children {
                path.push(Step::Field(child.name.clone()));
                walk(child, path, column, leaves);
                path.pop();
            }
        }
        arrow_schema::DataType::List(_) | arrow_schema::DataType::LargeList(_) => {
            path.push(Step::Element);
            for element in &field.children {
                walk(element, path, column, leaves);
            }
            path.pop();
        }
        _ => {}
    }
}

/// A field's path for people.
pub fn display(path: &[Step]) -> String {
    let names = path.iter().filter_map(|step| match step {
        Step::Field(name) => Some(name.as_str()),
        Step::Element => None,
    });
    names.collect::<Vec<_>>().join(".")
}
