//! Every value of a version against its object: is it there, and long enough?
//!
//! No payload is read: an object's length is asked for once, however many values it holds. Of other
//! columns, a file that may not be opened is a fault of the first row that it is of. If asked to, every
//! column of every fragment is decoded too: one that no decoder reads is found by nothing else, and one
//! damaged page takes all of its column with it.

use std::collections::HashMap;
use std::fmt;

use crate::error::{Error, Kind, Result};
use crate::store::ObjectKey;
use crate::table::{Row, Snapshot, Table};
use crate::tree::{LeafIndex, LeafName};
use crate::units::{self, ByteLen, Ordinal, RowIndex};

/// What is wrong.
#[derive(Clone, Debug)]
pub enum Fault {
    /// One value cannot be read.
    Value {
        /// Its row.
        row: u64,
        /// Its file in the row's directory.
        file: String,
        /// Why.
        error: String,
    },
    /// A column of a fragment cannot be decoded.
    Column {
        /// Position of the fragment in the version.
        fragment: u64,
        /// Its first row.
        first: u64,
        /// How many rows it has.
        rows: u64,
        /// The column's name.
        column: String,
        /// Why.
        error: String,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value { row, file, error } => write!(f, "{row}/{file}: {error}"),
            Self::Column { fragment, first, rows, column, error } => {
                write!(
                    f,
                    "column {column} of fragment {fragment} ({rows} rows from {first}): {error}"
                )
            }
        }
    }
}

/// What is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every value.
    Values,
    /// Every value, and every column of every fragment.
    ValuesAndColumns,
}

/// What was looked at.
#[derive(Clone, Copy, Debug)]
pub struct Summary {
    /// The version.
    pub version: u64,
    /// Its live rows.
    pub rows: u64,
    /// Their values that are not null.
    pub values: u64,
    /// The objects that hold them.
    pub objects: usize,
    /// Bytes of all values.
    pub bytes: u64,
}

type Lengths = HashMap<ObjectKey, Result<ByteLen>>;

/// Checks the newest version that the table shows. `progress` is told rows done and rows in all,
/// `found` each fault.
///
/// # Errors
/// Where the version itself cannot be opened, or the store does not answer.
pub async fn verify(
    table: &Table,
    scope: Scope,
    progress: impl Fn(u64, u64),
    mut found: impl FnMut(Fault),
) -> Result<Summary> {
    let entry = table.catalog.latest(None).await?;
    let snapshot = table.snapshot(table.numbers.slot(&entry.id)).await?;
    let rows = snapshot.rows.count();
    let mut summary =
        Summary { version: entry.id.version.get(), rows, values: 0, objects: 0, bytes: 0 };
    let mut lengths = Lengths::new();
    for (first, error) in snapshot.refused() {
        let file = "row.json".to_owned();
        found(Fault::Value { row: first.get(), file, error: error.to_string() });
    }
    for index in 0..rows {
        progress(index, rows);
        let fault = |file: String, error: &Error| Fault::Value {
            row: index,
            file,
            error: error.to_string(),
        };
        let row = match snapshot.row(RowIndex::new(index)).await {
            Ok(row) => row,
            Err(error) if error.kind() == Kind::Timeout => return Err(error),
            Err(error) => {
                found(fault("*".to_owned(), &error));
                continue;
            }
        };
        for (leaf, name) in snapshot.leaves.shape.indexed() {
            let values = match row.values(leaf, Ordinal::new(0)) {
                Ok(values) => values,
                Err(error) => {
                    found(fault(pattern(name), &error));
                    continue;
                }
            };
            for value in values {
                summary.values += 1;
                match check(&snapshot, &row, leaf, value.ordinal, &mut lengths).await {
                    Ok(len) => summary.bytes += len.get(),
                    Err(error) => found(fault(name.file_name(&value.indices), &error)),
                }
            }
        }
    }
    progress(rows, rows);
    if scope == Scope::ValuesAndColumns {
        columns(&snapshot, progress, found).await?;
    }
    summary.objects = lengths.len();
    Ok(summary)
}

/// Decodes every column of every fragment.
async fn columns(
    snapshot: &Snapshot,
    progress: impl Fn(u64, u64),
    mut found: impl FnMut(Fault),
) -> Result<()> {
    let names = snapshot.column_names();
    let all = snapshot.rows.count() * units::u64_of(names.len());
    let mut done = 0;
    for fragment in 0..snapshot.rows.fragments() {
        let position = units::usize_of(fragment);
        let rows = snapshot.rows.live(position);
        for (at, column) in names.iter().enumerate() {
            progress(done, all);
            done += rows;
            match snapshot.decode(position, at).await {
                Err(error) if error.kind() == Kind::Timeout => return Err(error),
                Err(error) => found(Fault::Column {
                    fragment,
                    first: snapshot.rows.first_of(position).get(),
                    rows,
                    column: column.clone(),
                    error: error.chain(),
                }),
                Ok(()) => {}
            }
        }
    }
    progress(done, all);
    Ok(())
}

fn pattern(name: &LeafName) -> String {
    name.file_name(&vec![0; name.lists()])
}

async fn check(
    snapshot: &Snapshot,
    row: &Row,
    leaf: LeafIndex,
    ordinal: Ordinal,
    lengths: &mut Lengths,
) -> Result<ByteLen> {
    let value = snapshot.value(row, leaf, ordinal).await?;
    if value.interval.len.get() == 0 {
        return Ok(value.interval.len);
    }
    let (key, uri) = (value.located.object.key(), &value.located.object.uri);
    if !lengths.contains_key(&key) {
        lengths.insert(key.clone(), snapshot.object_length(&value).await);
    }
    let length = lengths
        .get(&key)
        .cloned()
        .unwrap_or_else(|| Err(Error::new(Kind::Internal, "no length")))?;
    match value.interval.offset.end(value.interval.len) {
        Some(end) if end.get() <= length.get() => Ok(value.interval.len),
        _ => {
            let text = format!(
                "{uri} is {length} bytes, and the value is {} bytes at {}",
                value.interval.len, value.interval.offset
            );
            Err(Error::new(Kind::Payload, text))
        }
    }
}
