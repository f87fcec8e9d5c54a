//! Rows that are to be written: their JSON and their stored payloads as Arrow columns.
//!
//! The inverse of what `row.json` shows (`super::json`), for every type that a table can hold, so
//! that a copied row is the same row. Difficulties, and what answers each:
//!
//! 1. A field has JSON, files, or both, beneath structs and lists: `columns`, `level`, `nested`.
//! 2. Values must be exact or refused, in words that say what would be right: `number`, `time`,
//!    `scalar`. That no digit is lost before is up to who reads the text (`crate::staging::plan`).
//! 3. A stored payload becomes a prepared descriptor: `blob`.
//! 4. All rows of a file share their dictionaries: `dictionary`.
//! 5. Rows that are there change in their places: [`replaced`].
//! 6. What was written is compared with what is read back: [`digest`], by the bytes of `canonical`.
//!
//! What JSON does not tell apart, and what it becomes:
//!
//! ```text
//! NaN with a payload or a sign          NaN
//! a dictionary's order and unused       equal values get one key, in the order of rows;
//!   values; its null key or null value    null is a null key
//! the white space and order of a JSON   as the crate stores JSON
//!   column
//! {"error": "…"} in a struct with a     a struct; in every other column it is a column that could
//!   member `error`                        not be read, and a fault
//! a number with a fraction where a      the nearest double, read again; strings are exact
//!   decimal belongs
//! ```
//!
//! Views are stored as the plain types, as the crate does. Unions, run-end encoding, list views and
//! intervals are in no Lance table (lance-core 14.0.2, `datatypes.rs:319`); intervals are read all
//! the same, the others are a fault.

mod blob;
mod canonical;
mod columns;
mod dictionary;
pub mod digest;
mod level;
mod nested;
mod number;
pub mod replaced;
mod scalar;
mod time;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{FieldRef, Schema as ArrowSchema};
use lance::Dataset;
use lance::dataset::{WriteMode, WriteParams};
use lance_core::datatypes::Schema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::managed::format_of_new_files;
use super::schema::{Leaves, is_lost};
use super::snapshot::Snapshot;
use crate::error::{Error, Kind};
use crate::store::Interval;
use crate::tree::LeafIndex;
use columns::{Builder, Row};
use dictionary::Dictionaries;

/// Rows in one batch of Arrow: a few MiB of descriptors.
const ROWS_AT_ONCE: usize = 8192;
/// How much of a wrong value a message shows, in characters.
const SHOWN: usize = 60;

/// One row that is to be written.
#[derive(Clone, Debug, Default)]
pub struct NewRow {
    /// Where it comes from, for messages: `batch/entry`.
    pub place: String,
    /// The values of its columns as `row.json` has them; absent ones are null. What it says of a
    /// Blob field is not looked at, except for the lists and structs around it.
    pub json: Map<String, Value>,
    /// Its Blob values by leaf and indices (one for each list above, outermost first).
    pub blobs: BTreeMap<(LeafIndex, Vec<u64>), Stored>,
    /// The values of the row that it replaces which it takes over, by the place where they go.
    pub named: BTreeMap<(LeafIndex, Vec<u64>), (LeafIndex, Vec<u64>)>,
}

/// A Blob value whose bytes are stored already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stored {
    /// No bytes: stored inline, so that it needs no object.
    Empty,
    /// An interval of an object of the table (spec, "Managed Resolution").
    Managed {
        /// A registered base; `None` is the table's root.
        base: Option<u32>,
        /// The object, relative to it.
        path: String,
        /// The part of it that is the value.
        interval: Interval,
    },
    /// An External reference (spec, "External Resolution").
    External {
        /// A registered base, or 0 for an absolute URI.
        base: u32,
        /// Relative to the base, or absolute.
        uri: String,
        /// The part of it that is the value; `None` is the whole object.
        interval: Option<Interval>,
    },
}

/// What is wrong with a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// The row: [`NewRow::place`].
    pub place: String,
    /// The field, as a dotted path; empty where it is the row itself.
    pub field: String,
    /// What is wrong and what would be right.
    pub text: String,
}

/// How the crate appends to a table.
pub fn to_append(dataset: &Dataset) -> WriteParams {
    WriteParams {
        mode: WriteMode::Append,
        data_storage_version: Some(format_of_new_files(dataset).to_selector()),
        // Whether a reference may be followed was decided before (`targets`); the crate's check
        // knows registered bases only.
        allow_external_blob_outside_bases: true,
        ..WriteParams::default()
    }
}

/// Rows as batches for an append to a snapshot's table, its Blobs as prepared descriptors.
///
/// # Errors
/// Every fault of every row.
pub fn append(snapshot: &Snapshot, rows: &[NewRow]) -> Result<Vec<RecordBatch>, Vec<Fault>> {
    let lost = snapshot.dataset.schema().fields.iter().find(|field| is_lost(&field.name));
    if let (Some(field), Some(row)) = (lost, rows.first()) {
        let text = format!(
            "the table has a column named {:?}, and the Lance library adds no row to such a table: rename it (alter_columns)",
            field.name
        );
        return Err(vec![Fault { place: row.place.clone(), field: String::new(), text }]);
    }
    batches(snapshot.dataset.schema(), &snapshot.leaves, rows, ROWS_AT_ONCE)
}

/// [`append`] by a table's schema and its Blob fields, so many rows in a batch.
///
/// # Errors
/// Every fault of every row. A fault of the table itself has an empty place.
pub fn batches(
    schema: &Schema,
    leaves: &Leaves,
    rows: &[NewRow],
    at_once: usize,
) -> Result<Vec<RecordBatch>, Vec<Fault>> {
    let table = ArrowSchema::from(schema);
    let (mut parts, mut faults) = (Vec::new(), Vec::new());
    let mut dictionaries = Dictionaries::default();
    for rows in rows.chunks(at_once) {
        let described: Vec<Row> = rows.iter().map(Row::of).collect();
        let mut builder = Builder { rows: &described, leaves, faults: Vec::new() };
        builder.unknown(&table);
        let columns: Vec<Column> =
            table.fields().iter().map(|field| builder.column(field)).collect();
        let is_good = builder.faults.is_empty();
        faults.append(&mut builder.faults);
        if is_good {
            faults.extend(without_key(&mut dictionaries, &table, &columns, rows));
        }
        parts.push(columns);
    }
    if faults.is_empty() {
        match encoded(&table, &mut dictionaries, parts) {
            Ok(batches) => return Ok(batches),
            Err(error) => faults.push(unwritable(&error)),
        }
    }
    sort(&mut faults, rows.iter().map(|row| row.place.as_str()));
    Err(faults)
}

/// A column of rows, with the field that it has in a batch.
type Column = (FieldRef, ArrayRef);

/// Collects the values of dictionaries; the faults are of rows whose value has no key.
fn without_key(
    dictionaries: &mut Dictionaries,
    table: &ArrowSchema,
    columns: &[Column],
    rows: &[NewRow],
) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (field, (_, column)) in table.fields().iter().zip(columns) {
        match dictionaries.collect(field, column) {
            Ok(overflows) => faults.extend(overflows.into_iter().map(|overflow| Fault {
                place: rows.get(overflow.row).map_or_else(String::new, |row| row.place.clone()),
                field: overflow.field,
                text: overflow.text,
            })),
            Err(error) => faults.push(unwritable(&error)),
        }
    }
    faults
}

fn encoded(
    table: &ArrowSchema,
    dictionaries: &mut Dictionaries,
    mut parts: Vec<Vec<Column>>,
) -> crate::error::Result<Vec<RecordBatch>> {
    dictionaries.seal()?;
    if !dictionaries.is_empty() {
        parts = vec![dictionary::joined(&parts)?];
    }
    let mut batches = Vec::with_capacity(parts.len());
    for columns in parts {
        let columns = table.fields().iter().zip(&columns);
        let columns =
            columns.map(|(field, (built, array))| dictionaries.encode(field, built, array));
        let (fields, columns): (Vec<_>, Vec<_>) =
            columns.collect::<crate::error::Result<Vec<_>>>()?.into_iter().unzip();
        let built = Arc::new(ArrowSchema::new_with_metadata(fields, table.metadata().clone()));
        let batch = RecordBatch::try_new(built, columns);
        batches.push(batch.map_err(|e| Error::caused(Kind::Internal, "put columns together", e))?);
    }
    Ok(batches)
}

fn unwritable(error: &Error) -> Fault {
    let text = format!("these rows cannot be written: {error}");
    Fault { place: String::new(), field: String::new(), text }
}

/// Sorts faults by rows, in the order in which those were given: people look at one entry after
/// another.
fn sort<'a>(faults: &mut [Fault], places: impl Iterator<Item = &'a str>) {
    let mut order = HashMap::new();
    for (at, place) in places.enumerate() {
        order.entry(place).or_insert(at);
    }
    faults.sort_by_key(|fault| order.get(fault.place.as_str()).copied());
}

/// A wrong value for a message: its JSON, cut, and no more of it made than that.
fn shown(value: &Value) -> String {
    let mut start = Start(Vec::new());
    let is_whole = serde_json::to_writer(&mut start, value).is_ok();
    let text = String::from_utf8_lossy(&start.0);
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None if is_whole => text.into_owned(),
        None => format!("{text}…"),
    }
}

/// The beginning of what is written; the rest is refused.
struct Start(Vec<u8>);

impl std::io::Write for Start {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        // A character has four bytes at the most.
        let left = (SHOWN * 4).saturating_sub(self.0.len()).min(bytes.len());
        self.0.extend_from_slice(&bytes[..left]);
        Ok(left)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
