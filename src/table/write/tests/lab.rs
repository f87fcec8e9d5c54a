//! Real tables for the tests: made and written by the crate, read back as a mount reads them.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchIterator};
use arrow_schema::{DataType, Field, Schema as ArrowSchema};
use bytes::Bytes;
use lance::Dataset;
use lance::blob::blob_field;
use lance::dataset::{InsertBuilder, WriteMode, WriteParams};
use object_store::ObjectStoreExt as _;
use object_store::path::Path;
use serde_json::Value;
use tempfile::TempDir;

use super::super::{Fault, NewRow, Stored, batches};
use crate::store::Interval;
use crate::table::schema::Leaves;
use crate::table::{Options, Policy, Snapshot, Table, row_json};
use crate::tree::LeafIndex;
use crate::units::{ByteLen, ObjectOffset, Ordinal, RowIndex};

/// The object that the tests put into a table; its values are parts of it.
pub const OBJECT: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyz";
const OBJECT_PATH: &str = "_blobs/x.blob";

/// A row as a mount shows it: `row.json`, and the kind and bytes of each value by leaf and indices.
#[derive(Debug, PartialEq)]
pub struct Shown {
    pub json: Value,
    pub values: BTreeMap<(String, Vec<u64>), (String, Bytes)>,
}

/// A table in a folder of its own.
pub struct Lab {
    folder: TempDir,
    pub dataset: Arc<Dataset>,
}

/// A field of a list or large list.
pub fn element(field: Field) -> Arc<Field> {
    Arc::new(field)
}

/// Every shape that Blobs can have, and some columns beside them.
pub fn every_shape() -> Vec<Field> {
    let scene = || {
        DataType::Struct(
            vec![blob_field("clip", true), Field::new("name", DataType::Utf8, true)].into(),
        )
    };
    let frames = || DataType::List(element(blob_field("item", true)));
    vec![
        Field::new("id", DataType::Int64, false),
        blob_field("image", true),
        Field::new(
            "info",
            DataType::Struct(
                vec![Field::new("n", DataType::Float64, true), blob_field("thumb", true)].into(),
            ),
            true,
        ),
        Field::new("frames", frames(), true),
        Field::new("scenes", DataType::List(element(Field::new("item", scene(), true))), true),
        Field::new("large", DataType::LargeList(element(blob_field("item", true))), true),
        Field::new("grid", DataType::List(element(Field::new("item", frames(), true))), true),
        Field::new(
            "vector",
            DataType::FixedSizeList(element(Field::new("item", DataType::Float32, true)), 2),
            true,
        ),
    ]
}

impl Lab {
    /// An empty table with these columns, that takes Managed values, and one object in it.
    pub async fn new(fields: Vec<Field>, stable_row_ids: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let metadata = [("lance.blob.managed".to_owned(), "true".to_owned())].into();
        let schema = Arc::new(ArrowSchema::new_with_metadata(fields, metadata));
        let params = params(stable_row_ids);
        let empty = RecordBatchIterator::new([Ok(RecordBatch::new_empty(schema.clone()))], schema);
        let uri = folder.path().join("t.lance");
        let dataset = Dataset::write(empty, uri.to_str().unwrap(), Some(params)).await.unwrap();
        put_object(&dataset).await;
        Self { folder, dataset: Arc::new(dataset) }
    }

    /// A table that begins with rows that the crate writes as it likes, and takes Managed values
    /// from then on. The rows are told of a file outside of the table.
    pub async fn new_unmanaged(rows: impl Fn(&str) -> RecordBatch, stable_row_ids: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let uri = folder.path().join("t.lance").to_str().unwrap().to_owned();
        let batch = rows(&outside(&folder));
        let params =
            WriteParams { allow_external_blob_outside_bases: true, ..params(stable_row_ids) };
        let rows = RecordBatchIterator::new([Ok(batch.clone())], batch.schema());
        let mut dataset = Dataset::write(rows, &uri, Some(params)).await.unwrap();
        dataset.update_schema_metadata([("lance.blob.managed", "true")]).await.unwrap();
        put_object(&dataset).await;
        Self { folder, dataset: Arc::new(dataset) }
    }

    pub fn uri(&self) -> String {
        self.folder.path().join("t.lance").to_str().unwrap().to_owned()
    }

    /// A file beside the table with the bytes of [`OBJECT`].
    pub fn outside(&self) -> String {
        outside(&self.folder)
    }

    pub fn batch(&self, rows: &[NewRow]) -> Result<RecordBatch, Vec<Fault>> {
        let schema = self.dataset.schema();
        let batches = batches(schema, &Leaves::of(schema, schema), rows, usize::MAX)?;
        Ok(batches.into_iter().next().unwrap())
    }

    /// Appends rows as one version.
    pub async fn append(&mut self, rows: &[NewRow]) {
        let batch = self.batch(rows).unwrap();
        let params = WriteParams { mode: WriteMode::Append, ..WriteParams::default() };
        let insert = InsertBuilder::new(self.dataset.clone())
            .with_params(&params)
            .execute(vec![batch])
            .await;
        self.dataset = Arc::new(insert.unwrap());
    }

    /// The newest version, through a table that is opened for it.
    pub async fn snapshot(&self) -> Arc<Snapshot> {
        let options =
            Options { policy: Policy::new(&["*".to_owned()]).unwrap(), ..Options::default() };
        let table = Table::open(&self.uri(), options).await.unwrap();
        let latest = table.catalog.latest(None).await.unwrap();
        table.snapshot(table.numbers.slot(&latest.id)).await.unwrap()
    }

    /// Every row of the newest version, as a mount shows them.
    pub async fn rows(&self) -> Vec<Shown> {
        let snapshot = self.snapshot().await;
        let mut rows = Vec::new();
        for at in 0..snapshot.rows.count() {
            let at = RowIndex::new(at);
            let text = row_json(&snapshot, at).await.unwrap();
            let row = snapshot.row(at).await.unwrap();
            let mut values = BTreeMap::new();
            for (index, _) in snapshot.leaves.shape.indexed() {
                for element in row.values(index, Ordinal::new(0)).unwrap() {
                    let value = snapshot.value(&row, index, element.ordinal).await.unwrap();
                    let bytes = match value.interval.len.get() {
                        0 => Bytes::new(),
                        _ => snapshot
                            .opener
                            .open(&value.located.object)
                            .unwrap()
                            .read(value.interval)
                            .await
                            .unwrap(),
                    };
                    let key = (snapshot.leaf(index).unwrap().display.clone(), element.indices);
                    values.insert(key, (value.located.kind.word().to_owned(), bytes));
                }
            }
            rows.push(Shown { json: serde_json::from_slice(&text).unwrap(), values });
        }
        rows
    }
}

fn params(stable_row_ids: bool) -> WriteParams {
    WriteParams {
        data_storage_version: Some("2.2".parse().unwrap()),
        enable_stable_row_ids: stable_row_ids,
        ..WriteParams::default()
    }
}

async fn put_object(dataset: &Dataset) {
    let store = dataset.object_store(None).await.unwrap();
    let path = dataset.branch_location().path.join("_blobs").join("x.blob");
    store.inner.put(&path, Bytes::from_static(OBJECT).into()).await.unwrap();
}

fn outside(folder: &TempDir) -> String {
    let path = folder.path().join("outside.bin");
    std::fs::write(&path, OBJECT).unwrap();
    url::Url::from_file_path(path).unwrap().to_string()
}

/// A part of [`OBJECT`].
pub fn part(offset: u64, len: u64) -> Stored {
    let interval = Interval { offset: ObjectOffset::new(offset), len: ByteLen::new(len) };
    Stored::Managed { base: None, path: Path::from(OBJECT_PATH).to_string(), interval }
}

/// A row of these columns and values.
pub fn row(place: &str, json: Value, blobs: &[(u64, &[u64], Stored)]) -> NewRow {
    let Value::Object(json) = json else { panic!("a row is an object") };
    let blob = |(leaf, indices, stored): &(u64, &[u64], Stored)| {
        ((LeafIndex::new(*leaf), indices.to_vec()), stored.clone())
    };
    NewRow {
        place: place.to_owned(),
        json,
        blobs: blobs.iter().map(blob).collect(),
        ..NewRow::default()
    }
}
