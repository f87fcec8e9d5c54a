//! Lengths in a table's files, held against the files before the crate is let at them.
//!
//! The crate asks for as much memory as a file says (lance 14.0.2: `LT:io/deletion.rs:139` by way of
//! `arrow-ipc` 58.4.1, `reader.rs:912` and `compression.rs:264`; `lance-file`, `reader.rs:931`;
//! `LI:local.rs:355`), and where the machine has not that much, the process ends: that is no panic, and
//! nothing can catch it. Difficulties, and what answers each:
//!
//! 1. Each kind of file has its lengths elsewhere: [`deletion`] and [`data`] know them, without I/O.
//! 2. A check must cost a store no request: what is read of it passes a decorator that looks at the
//!    files' ends and at deletion files as they go by ([`passing`]).
//! 3. The crate opens files of this machine past every decorator: they are looked at before a fragment
//!    is scanned, once for as long as they are the same ([`local`]).
//!
//! What stands within the pages of a data file is known to the crate's decoders alone: they work in a
//! process of its own (`super::decoder`).

pub mod data;
pub mod deletion;
pub mod local;
pub mod passing;

use lance::Dataset;
use lance_table::format::{DataFile, Fragment};

use crate::error::Result;
use crate::store;

/// Looks at the files of a fragment that are on this machine: its deletion file, and the data files
/// that supply one of these fields.
///
/// # Errors
/// `Kind::Table` for a file whose lengths cannot be.
pub async fn check(dataset: &Dataset, fragment: &Fragment, fields: Fields) -> Result<()> {
    let (dataset, fragment) = (dataset.clone(), fragment.clone());
    store::blocking(move || local::fragment(&dataset, &fragment, &fields)).await
}

/// Which fields are to be read.
#[derive(Clone, Debug)]
pub enum Fields {
    /// Those of the table.
    All,
    /// Those of these ids.
    Of(Vec<i32>),
}

impl Fields {
    fn are_in(&self, file: &DataFile) -> bool {
        match self {
            Self::All => true,
            Self::Of(ids) => ids.iter().any(|id| file.fields.contains(id)),
        }
    }
}

/// Why a file is not let through.
pub type Unsound = String;

/// A number of bytes that fits.
fn range(offset: u64, length: u64, size: u64, what: &str) -> Result<std::ops::Range<u64>, Unsound> {
    match offset.checked_add(length) {
        Some(end) if end <= size => Ok(offset..end),
        _ => Err(format!("{what}: {length} bytes at {offset} of {size}")),
    }
}
