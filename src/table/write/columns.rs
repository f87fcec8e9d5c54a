//! Rows as columns: down the schema, one level of cells after another.
//!
//! 1. A cell may have JSON, files, or both: a list is as long as the longer of the two says, a struct
//!    with a file in it is there. Files are found by range in [`NewRow::blobs`], which is sorted by
//!    leaf and indices ([`Builder::files`]).
//! 2. All faults of all rows are told, so nothing stops at the first: a cell that is wrong becomes
//!    null, and an array that Arrow then refuses becomes one of nulls ([`Builder::checked`]).
//! 3. What is beneath a null struct or vector has places in Arrow all the same: such cells are
//!    [`Cell::masked`] and may be null where their field may not.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, GenericListArray, OffsetSizeTrait, StructArray, new_null_array,
};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Fields, Schema};
use lance::blob::BlobDescriptor;
use serde_json::{Map, Value};

use super::super::schema::{self, Layout, Leaves};
use super::level::{Cell, Level};
use super::{Fault, NewRow, Stored, blob, scalar, shown};
use crate::tree::{LeafIndex, LeafName, Step};
use crate::units;

/// How many elements a list may have beyond those in `row.json`: a file named `frames[4000000000]`
/// would ask for as many nulls.
const MAX_ELEMENTS: u64 = 1 << 20;

/// What the files of a row say of a cell.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Files {
    None,
    /// There are some; as a list, the cell has at least so many elements.
    Some(u64),
}

/// A row whose values are stored and described.
pub struct Row<'a> {
    /// [`NewRow::place`].
    pub place: &'a str,
    /// [`NewRow::json`].
    pub json: &'a Map<String, Value>,
    /// [`NewRow::blobs`], as the crate's writer takes them.
    pub blobs: BTreeMap<(LeafIndex, Vec<u64>), BlobDescriptor>,
}

impl<'a> Row<'a> {
    /// A new row.
    pub fn of(row: &'a NewRow) -> Self {
        let blob = |(key, stored): (&(LeafIndex, Vec<u64>), &Stored)| {
            (key.clone(), blob::descriptor(stored))
        };
        Self { place: &row.place, json: &row.json, blobs: row.blobs.iter().map(blob).collect() }
    }
}

/// How many faults are collected: a list of a million elements of a wrong type has a million, and
/// nobody reads them.
const FAULTS: usize = 10_000;

/// Makes columns of rows and collects what is wrong with them.
pub struct Builder<'a> {
    /// The rows.
    pub rows: &'a [Row<'a>],
    /// The Blob fields of the table.
    pub leaves: &'a Leaves,
    /// What was wrong so far.
    pub faults: Vec<Fault>,
}

/// Why a table with a Blob v1 column is not staged to: Managed values need the format 2.2, which
/// does not write those (lance 14.0.2, `L:dataset/write.rs:1933`).
const LEGACY: &str =
    "is a legacy Blob column: files can be put into tables whose Blob columns are all Blob v2";

impl<'a> Builder<'a> {
    /// Notes what the rows have and the table does not.
    pub fn unknown(&mut self, table: &Schema) {
        for row in self.rows {
            let known = |name: &str| table.column_with_name(name).is_some();
            for name in row.json.keys().filter(|name| !known(name)) {
                let names: Vec<_> = table.fields().iter().map(|f| f.name().as_str()).collect();
                let text = format!("is no column of the table; it has {}", names.join(", "));
                self.faults.push(Fault { place: row.place.to_owned(), field: name.clone(), text });
            }
            for (leaf, indices) in row.blobs.keys() {
                let lists = self.leaves.shape.leaf(*leaf).map(LeafName::lists);
                if lists != Some(indices.len()) {
                    let field = format!("{}{indices:?}", leaf.get());
                    let text = "is no Blob field of the table".to_owned();
                    self.faults.push(Fault { place: row.place.to_owned(), field, text });
                }
            }
        }
    }

    /// A top-level column of all rows, with the field it has in a batch that is to be written.
    pub fn column(&mut self, field: &Field) -> (FieldRef, ArrayRef) {
        let rows = self.rows;
        let cell = |(row, new): (usize, &'a Row<'a>)| {
            let json = new.json.get(field.name()).filter(|value| !value.is_null());
            Cell { parent: row, index: 0, json, masked: false }
        };
        let mut top = Level::top(field.name(), rows.iter().enumerate().map(cell).collect());
        for at in 0..top.cells.len() {
            if let Some(error) = top.cells[at].json.and_then(|value| unreadable(field, value)) {
                let text = format!("could not be read where row.json was copied from ({error})");
                self.fault(&top, at, text);
                top.cells[at] = Cell { json: None, masked: true, ..top.cells[at] };
            }
        }
        self.field(field, &top)
    }

    /// Notes that a cell is wrong.
    pub fn fault(&mut self, level: &Level<'_, 'a>, at: usize, text: impl Into<String>) {
        if self.faults.len() >= FAULTS {
            return;
        }
        let (row, field) = level.name(at);
        let place = self.rows[row].place.to_owned();
        self.faults.push(Fault { place, field, text: text.into() });
    }

    /// Notes a null that cannot be one.
    pub fn missing(&mut self, level: &Level<'_, 'a>, at: usize) {
        self.fault(level, at, "has no value and cannot be null: give it one");
    }

    /// A field that is wrong for every row, as nulls.
    pub fn refused(
        &mut self,
        field: &Field,
        level: &Level<'_, 'a>,
        text: &str,
    ) -> (FieldRef, ArrayRef) {
        let name = schema::display(&level.path);
        self.faults.push(Fault { place: String::new(), field: name, text: text.to_owned() });
        (Arc::new(field.clone()), new_null_array(field.data_type(), level.cells.len()))
    }

    /// The cells of one field.
    pub fn field(&mut self, field: &Field, level: &Level<'_, 'a>) -> (FieldRef, ArrayRef) {
        match self.leaf(&level.path) {
            Some((index, Layout::V2)) => return blob::column(self, field, level, index),
            Some((_, Layout::Legacy)) => return self.refused(field, level, LEGACY),
            None => {}
        }
        match field.data_type() {
            DataType::Struct(fields) => self.structs(field, fields, level),
            DataType::List(element) => self.lists::<i32>(field, element, level),
            DataType::LargeList(element) => self.lists::<i64>(field, element, level),
            DataType::FixedSizeList(element, width) => self.vectors(field, element, *width, level),
            DataType::Map(entries, ordered) => self.maps(field, entries, *ordered, level),
            // Keys come last: `super::dictionary`.
            DataType::Dictionary(_, value) => {
                self.field(&with_type(field, value.as_ref().clone()), level)
            }
            _ => scalar::column(self, field, level),
        }
    }

    fn leaf(&self, path: &[Step]) -> Option<(LeafIndex, Layout)> {
        let at = self.leaves.fields.iter().position(|leaf| leaf.path == path)?;
        Some((LeafIndex::new(units::u64_of(at)), self.leaves.fields[at].layout))
    }

    /// The Blob fields at or beneath a path.
    fn beneath(&self, path: &[Step]) -> Vec<(LeafIndex, usize)> {
        let all = self.leaves.shape.indexed().zip(&self.leaves.fields);
        let under = all.filter(|(_, leaf)| leaf.path.starts_with(path));
        under.map(|((index, name), _)| (index, name.lists())).collect()
    }

    fn files(&self, leaves: &[(LeafIndex, usize)], level: &Level<'_, 'a>, at: usize) -> Files {
        if leaves.is_empty() {
            return Files::None;
        }
        let (row, prefix) = level.place(at);
        let mut files = Files::None;
        for (leaf, lists) in leaves {
            let mut last = prefix.clone();
            last.resize((*lists).max(prefix.len()), u64::MAX);
            let range = (*leaf, prefix.clone())..=(*leaf, last);
            if let Some(((_, indices), _)) = self.rows[row].blobs.range(range).next_back() {
                let count = indices.get(prefix.len()).map_or(0, |index| index.saturating_add(1));
                files = Files::Some(match files {
                    Files::Some(before) => before.max(count),
                    Files::None => count,
                });
            }
        }
        files
    }

    /// An array as it is, or nulls where Arrow refuses it because of a fault that is noted.
    pub fn checked<A: Array + 'static>(
        &mut self,
        field: Field,
        level: &Level<'_, 'a>,
        array: Result<A, ArrowError>,
    ) -> (FieldRef, ArrayRef) {
        match array {
            Ok(array) => (Arc::new(field), Arc::new(array)),
            Err(error) if self.faults.is_empty() => {
                self.refused(&field, level, &format!("cannot be written: {error}"))
            }
            Err(_) => {
                let nulls = new_null_array(field.data_type(), level.cells.len());
                (Arc::new(field), nulls)
            }
        }
    }

    fn structs(
        &mut self,
        field: &Field,
        fields: &[FieldRef],
        level: &Level<'_, 'a>,
    ) -> (FieldRef, ArrayRef) {
        let names: Vec<&str> = fields.iter().map(|field| field.name().as_str()).collect();
        let there = self.objects(&names, level);
        for (at, (cell, there)) in level.cells.iter().zip(&there).enumerate() {
            if !there && cell.json.is_none() && !cell.masked && !field.is_nullable() {
                self.missing(level, at);
            }
        }
        let (fields, columns) = self.members(fields, &names, level, &there);
        let built = with_type(field, DataType::Struct(fields.clone()));
        let len = level.cells.len();
        let array = StructArray::try_new_with_length(fields, columns, nulls(there), len);
        self.checked(built, level, array)
    }

    /// Which cells are structs that are there, by their JSON or by a file in them.
    pub fn objects(&mut self, names: &[&str], level: &Level<'_, 'a>) -> Vec<bool> {
        let leaves = self.beneath(&level.path);
        let mut there = Vec::with_capacity(level.cells.len());
        for (at, cell) in level.cells.iter().enumerate() {
            let object = cell.json.and_then(Value::as_object);
            if let (Some(value), None) = (cell.json, object) {
                self.fault(level, at, format!("must be an object, not {}", shown(value)));
            }
            for member in object.into_iter().flat_map(Map::keys) {
                if !names.contains(&member.as_str()) {
                    let text = format!("has no member {member:?}; it has {}", names.join(", "));
                    self.fault(level, at, text);
                }
            }
            there.push(object.is_some() || self.files(&leaves, level, at) != Files::None);
        }
        there
    }

    /// The columns of a struct, whose members have these names in JSON.
    pub fn members(
        &mut self,
        fields: &[FieldRef],
        names: &[&str],
        level: &Level<'_, 'a>,
        there: &[bool],
    ) -> (Fields, Vec<ArrayRef>) {
        let mut built = Vec::with_capacity(fields.len());
        let mut columns = Vec::with_capacity(fields.len());
        for (child, name) in fields.iter().zip(names) {
            let cell = |(parent, cell): (usize, &Cell<'a>)| {
                let json = cell.json.and_then(|object| object.get(name));
                Cell {
                    parent,
                    index: 0,
                    json: json.filter(|v| !v.is_null()),
                    masked: !there[parent],
                }
            };
            let cells = level.cells.iter().enumerate().map(cell).collect();
            let (field, column) =
                self.field(child, &level.below(Step::Field(child.name().clone()), cells));
            built.push(field);
            columns.push(column);
        }
        (built.into(), columns)
    }

    /// The JSON elements of a cell; `None` where it has none or they are wrong.
    pub fn array(&mut self, level: &Level<'_, 'a>, at: usize) -> Option<&'a Vec<Value>> {
        let value = level.cells[at].json?;
        let array = value.as_array();
        if array.is_none() {
            self.fault(level, at, format!("must be an array, not {}", shown(value)));
        }
        array
    }

    /// The length of a list that has `len` elements in JSON and `count` by its files.
    fn longer(&mut self, level: &Level<'_, 'a>, at: usize, len: usize, count: u64) -> usize {
        if count.saturating_sub(units::u64_of(len)) > MAX_ELEMENTS {
            let text = format!(
                "has a file for element {}, and {len} elements in row.json: at most {MAX_ELEMENTS} can follow those",
                count - 1
            );
            self.fault(level, at, text);
            return len;
        }
        len.max(units::usize_of(count))
    }

    fn lists<O: OffsetSizeTrait>(
        &mut self,
        field: &Field,
        element: &FieldRef,
        level: &Level<'_, 'a>,
    ) -> (FieldRef, ArrayRef) {
        let leaves = self.beneath(&level.path);
        let mut lengths = Vec::with_capacity(level.cells.len());
        let mut valid = Vec::with_capacity(level.cells.len());
        let mut cells = Vec::new();
        for (at, cell) in level.cells.iter().enumerate() {
            let json = self.array(level, at);
            let files = self.files(&leaves, level, at);
            let there = json.is_some() || files != Files::None;
            if !there && cell.json.is_none() && !cell.masked && !field.is_nullable() {
                self.missing(level, at);
            }
            let mut len = json.map_or(0, Vec::len);
            if let Files::Some(count) = files {
                len = self.longer(level, at, len, count);
            }
            cells.extend((0..len).map(|index| {
                let json = json.and_then(|all| all.get(index)).filter(|value| !value.is_null());
                Cell { parent: at, index, json, masked: false }
            }));
            lengths.push(len);
            valid.push(there);
        }
        let (element, values) = self.field(element, &level.below(Step::Element, cells));
        let data_type = GenericListArray::<O>::DATA_TYPE_CONSTRUCTOR(element.clone());
        let array = offsets::<O>(&lengths)
            .and_then(|offsets| GenericListArray::try_new(element, offsets, values, nulls(valid)));
        self.checked(with_type(field, data_type), level, array)
    }
}

/// A field with another type.
pub fn with_type(field: &Field, data_type: DataType) -> Field {
    field.clone().with_data_type(data_type)
}

/// Which values are there; `None` where all are.
pub fn nulls(there: Vec<bool>) -> Option<NullBuffer> {
    Some(NullBuffer::from(there)).filter(|nulls| nulls.null_count() > 0)
}

/// Where each list starts.
///
/// # Errors
/// Where the offset's type is too small for so many elements.
pub fn offsets<O: OffsetSizeTrait>(lengths: &[usize]) -> Result<OffsetBuffer<O>, ArrowError> {
    let mut end = 0;
    let mut all = Vec::with_capacity(lengths.len() + 1);
    all.push(O::usize_as(0));
    for len in lengths {
        end += len;
        let offset = O::from_usize(end);
        all.push(offset.ok_or_else(|| ArrowError::OffsetOverflowError(end))?);
    }
    Ok(OffsetBuffer::new(all.into()))
}

/// The error that stands in the place of a column that could not be read when `row.json` was made.
/// A struct may have a member of that name.
fn unreadable<'a>(field: &Field, value: &'a Value) -> Option<&'a str> {
    let object = value.as_object().filter(|object| object.len() == 1)?;
    let error = object.get("error")?.as_str()?;
    let of_struct = match field.data_type() {
        DataType::Struct(fields) => fields.find("error").is_some(),
        _ => false,
    };
    (!of_struct).then_some(error)
}
