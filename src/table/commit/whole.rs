//! Whether a store has all of the files of a change before a version names them (spec, "Snapshot
//! Lifetime": descriptor files must be complete).
//!
//! A store may say that all is well and have less. The crate does not look again (lance-io 14.0.2,
//! `src/object_writer.rs`), and a version with a short file fails for whoever reads it, for ever.

use futures::{StreamExt as _, TryStreamExt as _};
use lance::Dataset;
use lance::dataset::transaction::{Operation, Transaction};
use lance_table::format::{DataFile, Fragment};

use super::super::fault;
use crate::error::{Error, Kind, Result};

/// Files that are asked for at once.
const AT_ONCE: usize = 16;

/// Compares the lengths of new data files with what was written.
///
/// # Errors
/// [`Kind::Payload`] for a file that is shorter or longer, and whatever the store gives.
pub(super) async fn check(on: &Dataset, transaction: &Transaction) -> Result<()> {
    let store = on.object_store(None).await.map_err(|e| fault::of("open the table's store", e))?;
    let (store, folder) = (&store, on.data_dir());
    let look = async |file: &DataFile| {
        let Some(written) = file.file_size_bytes.get() else { return Ok(()) };
        let found = store.size(&folder.clone().join(file.path.as_str())).await;
        let found = found.map_err(|e| fault::of(format!("look at {}", file.path), e))?;
        if found == written.get() {
            return Ok(());
        }
        let text = format!("{} has {found} bytes after {written} were written to it", file.path);
        Err(Error::new(Kind::Payload, text))
    };
    futures::stream::iter(new_files(on, &transaction.operation))
        .map(look)
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

/// The data files of an operation that its base does not have.
fn new_files<'a>(on: &Dataset, operation: &'a Operation) -> Vec<&'a DataFile> {
    let (new, updated): (&[Fragment], &[Fragment]) = match operation {
        Operation::Append { fragments } => (fragments, &[]),
        Operation::Update { new_fragments, updated_fragments, .. } => {
            (new_fragments, updated_fragments)
        }
        _ => (&[], &[]),
    };
    let old = |fragment: &Fragment, file: &DataFile| {
        let known = usize::try_from(fragment.id).ok().and_then(|id| on.get_fragment(id));
        known.is_some_and(|known| known.metadata().files.iter().any(|old| old.path == file.path))
    };
    let within =
        |fragment: &'a Fragment| fragment.files.iter().filter(move |file| !old(fragment, file));
    new.iter().flat_map(|fragment| &fragment.files).chain(updated.iter().flat_map(within)).collect()
}
