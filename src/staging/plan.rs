//! What a batch means: its files as rows that are to be added, replaced or deleted.
//!
//! ```text
//! <batch>/<entry>/<field>.<any extension>   one value of one new row        Source::File, Reference
//! <batch>/<entry>/<field>.bin -> <URI>      an External reference           Source::Uri
//! <batch>/<entry>/row.json                  the values of the other columns Entry::json
//! <batch>/@<row>/…                          replaces values of a row        Target::Replace
//! <batch>/@<row>/.delete                    deletes a row                   Target::Delete
//! <batch>/photo.jpg, or a file as <batch>   a new row of the one Blob column
//! ```
//!
//! 1. Field paths hold dots and so do extensions: `fields` finds the longest field that a name begins
//!    with.
//! 2. Whoever corrects a batch wants to do it once: nothing stops at the first fault, all are
//!    collected ([`Plan::faults`]).
//! 3. A batch may be written to by whoever can write to the mount: nothing in it is followed or waited
//!    for: `look`.
//! 4. Desktops and editors leave files that nobody wants as rows, and downloads half files: [`litter`].
//! 5. `row.json` may say otherwise than the names of the files where each goes: `places`.
//! 6. Rows should come in the order that people see: entry2 before entry10: `order`.
//!
//! What the values of `row.json` have to be is not looked at here: it takes the table's schema.

mod entry;
mod fields;
mod link;
mod litter;
mod look;
mod order;
mod places;
mod row_json;
mod summary;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::Reference;
use super::mark::Key;
use crate::error::{Error, IoContext as _, Kind, Result};
use crate::store::Fingerprint;
use crate::table::write::Fault;
use crate::tree::{LeafIndex, Shape};
use crate::units::RowIndex;

pub use fields::Slot;
pub use litter::{Class, class};
pub use summary::Summary;

use entry::Reader;
use look::{Folder, Thing};

/// A batch as rows.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The batch's name, for messages.
    pub batch: String,
    /// The rows, in the natural order of their names.
    pub entries: Vec<Entry>,
    /// Everything that is wrong. Entries with faults are among [`Plan::entries`] too, as far as
    /// they were understood.
    pub faults: Vec<Fault>,
    /// What is in the batch's directory and hidden: it goes with the batch, and becomes no row.
    pub hidden: Vec<String>,
}

/// One row of a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The name of its directory or file.
    pub name: String,
    /// `batch/entry`, for messages; the batch alone where that is a single file.
    pub place: String,
    /// What becomes of the table's rows.
    pub target: Target,
    /// What `row.json` says; empty where there is none.
    pub json: Map<String, Value>,
    /// Its Blob values, by field and indices.
    pub payloads: Vec<Payload>,
    /// The values of the row that it replaces which `row.json` names, by the place where it does.
    pub names: BTreeMap<Slot, Slot>,
}

/// What an entry does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Adds a row.
    New,
    /// Replaces values of a row of the version that the batch was begun on.
    Replace(RowIndex),
    /// Deletes such a row.
    Delete(RowIndex),
}

/// One Blob value of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload {
    /// The field.
    pub leaf: LeafIndex,
    /// The indices, one for each list above it, outermost first.
    pub indices: Vec<u64>,
    /// Where it goes: the same place, unless `row.json` says otherwise.
    pub places: Vec<Slot>,
    /// The staged file.
    pub file: PathBuf,
    /// Where its bytes come from.
    pub source: Source,
}

/// Where a value's bytes come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The staged file itself.
    File {
        /// Its length in bytes.
        len: u64,
        /// What it was when it was planned.
        fingerprint: Fingerprint,
    },
    /// An object of the table that is adopted.
    Reference(Reference),
    /// An object that belongs to somebody else.
    Uri {
        /// Absolute, without the range.
        uri: String,
        /// Offset and length in bytes, at least 1; `None` is the whole object.
        range: Option<(u64, u64)>,
    },
}

impl Payload {
    /// The value that its name is for.
    pub fn slot(&self) -> Slot {
        (self.leaf, self.indices.clone())
    }
}

impl Plan {
    /// All values of all entries.
    pub fn payloads(&self) -> impl Iterator<Item = &Payload> {
        self.entries.iter().flat_map(|entry| &entry.payloads)
    }

    /// Reads a batch: a directory of entries, or a single file. It is in the directory `tree`, under
    /// the last name of `path`; `key` tells which references are ours, and `rows` is how many rows the
    /// version has that its `@<row>` entries count.
    ///
    /// # Errors
    /// [`Kind::NotFound`] where there is no such batch, and where its own directory cannot be read.
    /// Whatever is wrong beneath it is among [`Plan::faults`].
    pub fn read(tree: impl AsFd, path: &Path, key: &Key, shape: &Shape, rows: u64) -> Result<Self> {
        let what = || format!("read the batch {}", path.display());
        let name = path
            .file_name()
            .ok_or_else(|| Error::new(Kind::Invalid, format!("{} is no batch", path.display())))?;
        let batch = name.to_string_lossy().into_owned();
        let mut reader = Reader::new(&batch, key, shape, rows);
        let above = Folder::open(tree).context(Kind::NotFound, what)?;
        match (above.look(name).context(Kind::NotFound, what)?, litter::no_batch(&batch)) {
            (_, Some(why)) => reader.fault(&batch, "", why),
            (Thing::Folder, None) => {
                let folder = above.below(name).context(Kind::Invalid, what)?;
                for name in folder.names().context(Kind::Invalid, what)? {
                    reader.entry(&folder, path, &name);
                }
            }
            (thing, None) => reader.single(path, thing),
        }
        let Reader { entries, mut faults, hidden, .. } = reader;
        if entries.is_empty() && faults.is_empty() {
            let text = "there is nothing in it to commit".to_owned();
            faults.push(Fault { place: batch.clone(), field: String::new(), text });
        }
        Ok(Self { batch, entries, faults, hidden })
    }
}
