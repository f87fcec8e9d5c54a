//! Rows that are to be written: their JSON and their stored payloads as Arrow columns.
//!
//! The inverse of what `row.json` shows (`super::json`), for every type that a table can hold, so
//! that a copied row is the same row. Difficulties, and what answers each:
//!
//! 1. A field has JSON, files, or both, beneath structs and lists: `columns`, `level`, `nested`.
//! 2. Values must be exact or refused, in words that say what would be right: `number`, `time`,
//!    `scalar`. That no digit is lost before is up to who reads the text (`crate::staging::plan`).
//! 3. A stored payload becomes a prepared descriptor: `blob`.
//! 4. Rows that are there change in their places: [`replaced`].
//!
//! What JSON does not tell apart, and what it becomes:
//!
//! ```text
//! NaN with a payload or a sign          NaN
//! a dictionary's order and unused       equal values get one key, in the order of rows;
//!   values; its null key or null value    null is a null key
//! a zone's offset that changed by less  the earlier of the two instants
//!   than a minute, in that minute
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
mod columns;
mod level;
mod nested;
mod number;
pub mod replaced;
mod scalar;
mod time;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{Schema as ArrowSchema, SchemaRef};
use lance_core::datatypes::Schema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::schema::Leaves;
use super::snapshot::Snapshot;
use crate::store::Interval;
use crate::tree::LeafIndex;
use columns::{Builder, Row};

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

/// Rows as one batch for an append to a snapshot's table, its Blobs as prepared descriptors.
///
/// # Errors
/// Every fault of every row.
pub fn append(snapshot: &Snapshot, rows: &[NewRow]) -> Result<RecordBatch, Vec<Fault>> {
    batch(snapshot.dataset.schema(), &snapshot.leaves, rows)
}

/// [`append`] by a table's schema and its Blob fields.
///
/// # Errors
/// Every fault of every row. A fault of the table itself has an empty place.
pub fn batch(schema: &Schema, leaves: &Leaves, rows: &[NewRow]) -> Result<RecordBatch, Vec<Fault>> {
    let table = ArrowSchema::from(schema);
    let described: Vec<Row> = rows.iter().map(Row::of).collect();
    let mut builder = Builder { rows: &described, leaves, faults: Vec::new() };
    builder.unknown(&table);
    let (fields, columns): (Vec<_>, Vec<_>) =
        table.fields().iter().map(|field| builder.column(field)).unzip();
    let Builder { mut faults, .. } = builder;
    if faults.is_empty() {
        let built: SchemaRef =
            Arc::new(ArrowSchema::new_with_metadata(fields, table.metadata().clone()));
        match RecordBatch::try_new(built, columns) {
            Ok(batch) => return Ok(batch),
            Err(error) => faults.push(Fault {
                place: String::new(),
                field: String::new(),
                text: format!("these rows cannot be written: {error}"),
            }),
        }
    }
    sort(&mut faults, rows.iter().map(|row| row.place.as_str()));
    Err(faults)
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

/// A wrong value for a message: its JSON, cut.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests;
