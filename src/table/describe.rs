//! `row.json` and `.version.json`.

use arrow_schema::Schema as ArrowSchema;
use serde::Serializer as _;
use serde::ser::SerializeMap as _;
use serde_json::{Value, json};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

use super::json::Renderer;
use super::snapshot::{Row, Snapshot};
use super::{guard, redacted};
use crate::error::{Error, Kind, Result};
use crate::tree::ROW_JSON_MAX;
use crate::units::{self, RowIndex};

/// The text of a row's `row.json`: every column in schema order. There is no text that lacks one,
/// and none about a failure: what is read is copied, kept and committed.
///
/// # Errors
/// As [`Snapshot::columns`]; why one of the columns cannot be read or shown; [`Kind::TooLarge`] above
/// [`ROW_JSON_MAX`].
pub async fn row_json(snapshot: &Snapshot, index: RowIndex) -> Result<Vec<u8>> {
    let (row, turn) = snapshot.columns(index).await?;
    let leaves = &snapshot.leaves;
    let renderer = Renderer {
        shape: &leaves.shape,
        paths: leaves.fields.iter().map(|leaf| leaf.path.as_slice()).collect(),
        listed: if leaves.are_in_structs() { snapshot.row(index).await.ok() } else { None },
    };
    for leaf in &leaves.fields {
        snapshot.readable(leaf, row.page.fragment())?;
    }
    let mut text = Text::default();
    let mut work = || write(&mut text, &renderer, snapshot, &row);
    let written = if turn.is_some() { busy(work) } else { work() };
    written.map_err(|error| if text.is_full { too_large() } else { error })?;
    text.bytes.push(b'\n');
    text.bytes.shrink_to_fit();
    Ok(text.bytes)
}

/// Does something that takes a while, where other tasks can go on meanwhile.
fn busy<T>(work: impl FnOnce() -> T) -> T {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::MultiThread => block_in_place(work),
        _ => work(),
    }
}

fn write(text: &mut Text, renderer: &Renderer<'_>, snapshot: &Snapshot, row: &Row) -> Result<()> {
    let failed = |e: serde_json::Error| Error::new(Kind::Table, e.to_string());
    let mut out = serde_json::Serializer::pretty(text);
    let fields = &snapshot.dataset.schema().fields;
    let mut object = out.serialize_map(Some(fields.len())).map_err(failed)?;
    for (field, column) in fields.iter().zip(&row.page.columns) {
        let in_column = |error: Error| error.at(format!("column {:?}", field.name));
        let array = column.as_ref().map_err(|error| in_column(error.clone()))?;
        let cell = renderer.shown(&field.name, array, row.at);
        object.serialize_entry(&field.name, &cell).map_err(|e| in_column(failed(e)))?;
    }
    object.end().map_err(failed)
}

fn too_large() -> Error {
    let text = format!("row.json is larger than {} MiB", ROW_JSON_MAX >> 20);
    Error::new(Kind::TooLarge, text).hint("read the row's columns with a Lance library")
}

/// A text that does not grow beyond what a `row.json` may have.
#[derive(Default)]
struct Text {
    bytes: Vec<u8>,
    is_full: bool,
}

impl std::io::Write for Text {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.is_full = units::u64_of(self.bytes.len() + bytes.len()) >= ROW_JSON_MAX;
        if self.is_full {
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The text of a version's `.version.json`.
///
/// # Errors
/// Why the version's transaction cannot be read; one that has none is shown without.
pub async fn version_json(snapshot: &Snapshot) -> Result<Vec<u8>> {
    let manifest = &snapshot.dataset.manifest;
    if let Some(file) = &manifest.transaction_file {
        let folder = snapshot.dataset.branch_location().path.join("_transactions");
        snapshot.locator.source.check(&folder.join(file.as_str()))?;
    }
    let reading = || format!("read the transaction of version {}", manifest.version);
    let read = guard::within(reading, snapshot.dataset.read_transaction()).await;
    let transaction = match read {
        Ok(transaction) => transaction,
        Err(error) => return Err(snapshot.judged(error).await),
    };
    let transaction = transaction.map(|t| {
        json!({ "uuid": t.uuid, "read_version": t.read_version, "operation": t.operation.to_string(),
                "properties": t.transaction_properties.as_deref() })
    });
    let bases: Vec<Value> = sorted(&manifest.base_paths)
        .map(|(id, base)| {
            json!({ "id": id, "name": base.name, "path": redacted(&base.path), "is_dataset_root": base.is_dataset_root })
        })
        .collect();
    let understand = || format!("understand the schema of version {}", manifest.version);
    let schema = guard::here(understand, || Ok(ArrowSchema::from(snapshot.dataset.schema())))?;
    let files: usize = manifest.fragments.iter().map(|fragment| fragment.files.len()).sum();
    Ok(pretty(&json!({
        "version": manifest.version,
        "branch": manifest.branch,
        "timestamp": manifest.timestamp().to_rfc3339_opts(chrono::SecondsFormat::AutoSi, true),
        "rows": snapshot.rows.count(),
        "fragments": manifest.fragments.len(),
        "data_files": files,
        "data_storage_version": manifest.data_storage_format.lance_file_format().to_string(),
        "reader_feature_flags": manifest.reader_feature_flags,
        "writer_feature_flags": manifest.writer_feature_flags,
        "stable_row_ids": manifest.uses_stable_row_ids(),
        "writer": manifest.writer_version.as_ref().map(|w| json!({ "library": w.library, "version": w.version })),
        "schema": schema.fields().iter().map(|field| describe_field(field)).collect::<Vec<_>>(),
        "schema_metadata": sorted(schema.metadata()).collect::<std::collections::BTreeMap<_, _>>(),
        "blob_fields": snapshot.leaves.fields.iter().map(|leaf| &leaf.display).collect::<Vec<_>>(),
        "bases": bases,
        "transaction": transaction,
    })))
}

fn describe_field(field: &arrow_schema::Field) -> Value {
    json!({
        "name": field.name(),
        "type": field.data_type().to_string(),
        "nullable": field.is_nullable(),
        "metadata": sorted(field.metadata()).collect::<std::collections::BTreeMap<_, _>>(),
    })
}

fn sorted<K: Ord, V>(map: &std::collections::HashMap<K, V>) -> impl Iterator<Item = (&K, &V)> {
    let mut entries: Vec<_> = map.iter().collect();
    entries.sort_by_key(|(key, _)| *key);
    entries.into_iter()
}

fn pretty(value: &Value) -> Vec<u8> {
    let mut text = format!("{value:#}").into_bytes();
    text.push(b'\n');
    text
}
