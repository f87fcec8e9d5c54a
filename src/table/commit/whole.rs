//! Whether a store has what was written, before a version names it (spec, "Snapshot Lifetime":
//! descriptor files must be complete). Afterwards the batch leaves the disk, and nothing else has it.
//!
//! 1. A store may say that all is well and have less. The crate does not look again (lance-io 14.0.2,
//!    `src/object_writer.rs`): lengths are asked for ([`lengths`]).
//! 2. A writer may say that all is well and write what no reader takes, or damage it on the way. So
//!    every new column is read back and decoded as a reader would, and its rows, nulls and values are
//!    compared with what was to be written ([`read_back`]), in bounded memory: a digest of each column.
//! 3. What failed belongs to no version, for certain: it is taken away ([`remove`]).

use std::collections::HashSet;
use std::sync::Arc;

use futures::{StreamExt as _, TryStreamExt as _};
use lance::Dataset;
use lance::dataset::transaction::{Operation, Transaction};
use lance_core::datatypes::Schema;
use lance_table::feature_flags::FLAG_STABLE_ROW_IDS;
use lance_table::format::{DataFile, Fragment};

use super::super::fault;
use super::super::scan::{self, Run};
use super::super::write::digest::{Digest, Expected};
use super::super::write::replaced::Written;
use crate::error::{Error, Kind, Result};
use crate::units;

/// Files that are asked for at once.
const AT_ONCE: usize = 16;
/// Rows that are read back at once, and how often that at once: as they are written.
const ROWS: u64 = 512;
const RUNS: usize = 4;

/// Compares what a store has with what was written to it.
///
/// # Errors
/// [`Kind::Payload`] for what is something else, and whatever the store gives. Then the new files are
/// gone.
pub(super) async fn check(on: &Arc<Dataset>, written: &Written) -> Result<()> {
    let checked = async {
        lengths(on, &written.transaction).await?;
        for expected in &written.expected {
            read_back(on, expected).await?;
        }
        Ok(())
    };
    let checked: Result<()> = checked.await;
    if let Err(error) = checked {
        remove(on, &written.transaction).await;
        return Err(
            error.at("what was written does not come back as it was; nothing was published")
        );
    }
    Ok(())
}

async fn lengths(on: &Dataset, transaction: &Transaction) -> Result<()> {
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

async fn read_back(on: &Arc<Dataset>, expected: &Expected) -> Result<()> {
    let scannable = scan::scannable(&view(on, &expected.fragments));
    let schema = scannable.schema();
    let column = |at: &usize| Schema {
        fields: vec![schema.fields[*at].clone()],
        metadata: schema.metadata.clone(),
    };
    let columns: Vec<Schema> = expected.columns.keys().map(column).collect();
    let mut runs = Vec::new();
    for (fragment, metadata) in expected.fragments.iter().enumerate() {
        let rows = metadata.num_rows().map_or(0, units::u64_of);
        let starts = (0..rows).step_by(units::usize_of(ROWS));
        runs.extend(starts.map(|offset| Run { fragment, offset, rows: ROWS.min(rows - offset) }));
    }
    let mut scans =
        futures::stream::iter(runs).map(|run| scan::scan(&scannable, &columns, run)).buffered(RUNS);
    let mut found = vec![Digest::default(); columns.len()];
    while let Some(scanned) = scans.try_next().await? {
        for (digest, column) in found.iter_mut().zip(scanned.columns) {
            digest.add(&column?)?;
        }
    }
    let compared = expected.columns.iter().zip(&found);
    compared
        .into_iter()
        .try_for_each(|((at, wanted), found)| same(&on.schema().fields[*at].name, wanted, found))
}

fn same(column: &str, wanted: &Digest, found: &Digest) -> Result<()> {
    if (wanted.rows, wanted.nulls) != (found.rows, found.nulls) {
        let text = format!(
            "column {column} has {} rows, {} of them null, after {} rows, {} of them null, were written",
            found.rows, found.nulls, wanted.rows, wanted.nulls
        );
        return Err(Error::new(Kind::Payload, text));
    }
    if wanted.values() != found.values() {
        let text = format!("column {column} has other values than were written");
        return Err(Error::new(Kind::Payload, text));
    }
    Ok(())
}

/// The table with these fragments, which no version has. Rows have no ids yet.
fn view(on: &Arc<Dataset>, fragments: &[Fragment]) -> Arc<Dataset> {
    let mut manifest = on.manifest.as_ref().clone();
    manifest.fragments = Arc::new(fragments.to_vec());
    manifest.reader_feature_flags &= !FLAG_STABLE_ROW_IDS;
    let mut dataset = on.as_ref().clone();
    dataset.manifest = Arc::new(manifest);
    Arc::new(dataset)
}

async fn remove(on: &Dataset, transaction: &Transaction) {
    let Ok(store) = on.object_store(None).await else { return };
    for file in new_files(on, &transaction.operation) {
        let path = on.data_dir().join(file.path.as_str());
        if let Err(error) = store.delete(&path).await {
            tracing::debug!(%path, %error, "a file that failed is left to the next cleanup");
        }
    }
}

/// The fragments that an append adds.
pub(super) fn appended(transaction: &Transaction) -> &[Fragment] {
    match &transaction.operation {
        Operation::Append { fragments } => fragments,
        _ => &[],
    }
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
    let known = on.manifest.fragments.iter().flat_map(|fragment| &fragment.files);
    let known: HashSet<&str> = known.map(|file| file.path.as_str()).collect();
    let files = new.iter().chain(updated).flat_map(|fragment| &fragment.files);
    files.filter(|file| !known.contains(file.path.as_str())).collect()
}
