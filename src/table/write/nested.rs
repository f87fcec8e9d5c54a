//! Vectors and maps: the nested types that hold no Blobs.

use std::sync::Arc;

use arrow_array::{ArrayRef, FixedSizeListArray, MapArray, StructArray};
use arrow_schema::{DataType, Field, FieldRef};

use super::columns::{Builder, nulls, offsets, with_type};
use super::level::{Cell, Level};
use crate::tree::Step;

/// How `row.json` calls the two halves of a map's entry, whatever the schema calls them.
const ENTRY: [&str; 2] = ["key", "value"];

impl<'a> Builder<'a> {
    /// Fixed size lists.
    pub fn vectors(
        &mut self,
        field: &Field,
        element: &FieldRef,
        width: i32,
        level: &Level<'_, 'a>,
    ) -> (FieldRef, ArrayRef) {
        let elements = usize::try_from(width).unwrap_or(0);
        let mut there = Vec::with_capacity(level.cells.len());
        let mut cells = Vec::with_capacity(level.cells.len() * elements);
        for (at, cell) in level.cells.iter().enumerate() {
            let json = self.array(level, at);
            if let Some(array) = json.filter(|array| array.len() != elements) {
                let text = format!("must have {elements} elements, not {}", array.len());
                self.fault(level, at, text);
            } else if cell.json.is_none() && !cell.masked && !field.is_nullable() {
                self.missing(level, at);
            }
            let json = json.filter(|array| array.len() == elements);
            cells.extend((0..elements).map(|index| {
                let element = json.map(|all| &all[index]).filter(|value| !value.is_null());
                Cell { parent: at, index, json: element, masked: json.is_none() }
            }));
            there.push(json.is_some());
        }
        let (element, values) = self.field(element, &level.below(Step::Element, cells));
        let built = with_type(field, DataType::FixedSizeList(element.clone(), width));
        let (nulls, len) = (nulls(there), level.cells.len());
        let array = FixedSizeListArray::try_new_with_length(element, width, values, nulls, len);
        self.checked(built, level, array)
    }

    /// Maps: arrays of objects with a key and a value.
    pub fn maps(
        &mut self,
        field: &Field,
        entries: &FieldRef,
        ordered: bool,
        level: &Level<'_, 'a>,
    ) -> (FieldRef, ArrayRef) {
        let DataType::Struct(columns) = entries.data_type() else {
            return self.refused(field, level, "is a map whose entries are no struct");
        };
        let mut there = Vec::with_capacity(level.cells.len());
        let mut lengths = Vec::with_capacity(level.cells.len());
        let mut cells = Vec::new();
        for (at, cell) in level.cells.iter().enumerate() {
            let json = self.array(level, at);
            if cell.json.is_none() && !cell.masked && !field.is_nullable() {
                self.missing(level, at);
            }
            let entries = json.into_iter().flatten().enumerate();
            cells.extend(entries.map(|(index, entry)| Cell {
                parent: at,
                index,
                json: Some(entry),
                masked: false,
            }));
            lengths.push(json.map_or(0, Vec::len));
            there.push(json.is_some());
        }
        let below = level.below(Step::Element, cells);
        let pairs = self.objects(&ENTRY, &below);
        let (columns, arrays) = self.members(columns, &ENTRY, &below, &pairs);
        let entries = Arc::new(with_type(entries, DataType::Struct(columns.clone())));
        let built = with_type(field, DataType::Map(entries.clone(), ordered));
        let array = offsets::<i32>(&lengths).and_then(|offsets| {
            let pairs = StructArray::try_new_with_length(columns, arrays, None, below.cells.len())?;
            MapArray::try_new(entries, offsets, pairs, nulls(there), ordered)
        });
        self.checked(built, level, array)
    }
}
