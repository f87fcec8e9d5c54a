//! Every value of a version against its object: is it there, and long enough?
//!
//! No payload is read: an object's length is asked for once, however many values it holds. Other
//! columns are not read either, but a file of theirs that may not be opened is a fault of the first
//! row that it is of.

use std::collections::HashMap;
use std::fmt;

use crate::error::{Error, Kind, Result};
use crate::store::{ObjectKey, Opener};
use crate::table::{Row, Snapshot, Table, Value};
use crate::tree::{LeafIndex, LeafName};
use crate::units::{ByteLen, Ordinal, RowIndex};

/// What is wrong with one value.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Its row.
    pub row: u64,
    /// Its file in the row's directory.
    pub file: String,
    /// Why it cannot be read.
    pub error: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}: {}", self.row, self.file, self.error)
    }
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
        found(Fault { row: first.get(), file, error: error.to_string() });
    }
    for index in 0..rows {
        progress(index, rows);
        let fault =
            |file: String, error: &Error| Fault { row: index, file, error: error.to_string() };
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
    summary.objects = lengths.len();
    Ok(summary)
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
        lengths.insert(key.clone(), length(&snapshot.opener, &value).await);
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

async fn length(opener: &Opener, value: &Value) -> Result<ByteLen> {
    opener.open(&value.located.object)?.length().await
}
