//! What a column is to hold, in a few bytes: kept while it is written, and compared with what is read
//! back.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher as _};

use arrow_array::{Array, RecordBatch};
use lance_arrow::json::{convert_json_columns, convert_lance_json_to_arrow};
use lance_table::format::Fragment;

use super::canonical;
use crate::error::{Error, Kind, Result};

/// The values of a column, in order.
#[derive(Clone, Debug, Default)]
pub struct Digest {
    /// How many rows.
    pub rows: u64,
    /// How many of them are null.
    pub nulls: u64,
    values: DefaultHasher,
}

impl Digest {
    /// Adds rows.
    ///
    /// # Errors
    /// For a type that is in no Lance table.
    pub fn add(&mut self, array: &dyn Array) -> Result<()> {
        let mut bytes = Vec::new();
        for at in 0..array.len() {
            bytes.clear();
            canonical::cell(array, at, &mut bytes)?;
            self.nulls += u64::from(array.is_null(at));
            self.values.write(&bytes);
        }
        self.rows += crate::units::u64_of(array.len());
        Ok(())
    }

    /// A number that other values do not have, as far as 64 bits tell.
    pub fn values(&self) -> u64 {
        self.values.finish()
    }
}

/// What new data files are to hold.
#[derive(Clone, Debug)]
pub struct Expected {
    /// The fragments that hold it, as they are to be read: without what the same transaction deletes.
    pub fragments: Vec<Fragment>,
    /// The columns by position in the schema.
    pub columns: BTreeMap<usize, Digest>,
}

/// Adds the rows of a batch that is to be written to the digests of its columns.
///
/// # Errors
/// As [`Digest::add`].
pub fn add<'d>(batch: &RecordBatch, digests: impl Iterator<Item = &'d mut Digest>) -> Result<()> {
    // JSON is read as the crate spells it.
    let stored =
        convert_json_columns(batch).and_then(|stored| convert_lance_json_to_arrow(&stored));
    let stored = stored.map_err(|e| Error::caused(Kind::Internal, "spell JSON as stored", e))?;
    let mut columns = stored.columns().iter().zip(digests);
    columns.try_for_each(|(column, digest)| digest.add(column))
}

/// What appended rows are to be read back as.
///
/// # Errors
/// As [`Digest::add`].
pub fn appended(fragments: &[Fragment], batches: &[RecordBatch]) -> Result<Option<Expected>> {
    let Some(first) = batches.first().filter(|_| !fragments.is_empty()) else { return Ok(None) };
    let mut digests = vec![Digest::default(); first.num_columns()];
    for batch in batches {
        add(batch, digests.iter_mut())?;
    }
    let columns = digests.into_iter().enumerate().collect();
    Ok(Some(Expected { fragments: fragments.to_vec(), columns }))
}
