//! Scans of a short run of rows of one fragment: descriptors, or the row's other columns.
//!
//! 1. A field whose data cannot be decoded must not take its neighbours with it, and a decoder may
//!    panic (lance 14.0.2, `miniblock_decode.rs:716` on a legacy list): all columns are scanned
//!    together, and only if that fails each by itself.
//! 2. The query engine does not find a column named `""`, or with a backtick, by its name (lance
//!    14.0.2, `lance-datafusion/src/projection.rs:329`): [`scannable`].
//! 3. Lists of Blobs cannot be decoded where no list of the rows asked for has an element, and
//!    another of the same page has (lance 14.0.2, `lance-encoding/src/data.rs:2143`, a panic): more
//!    rows are scanned around them, until one has ([`widened`]).
//! 4. Neither a panic in the crate nor a length in a file may end the mount: [`decoder`], [`sound`].

use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::types::UInt64Type;
use arrow_array::{Array as _, ArrayRef, RecordBatch, UInt64Array};
use arrow_schema::DataType;
use futures::TryStreamExt as _;
use lance::Dataset;
use lance_core::datatypes::{BlobHandling, Field, Schema};

use super::decoder::{self, Scannable};
use super::schema::is_lost;
use super::sound::{self, Fields};
use crate::error::{Error, Kind, Result};
use crate::units;

/// By how much more rows are scanned at each attempt of difficulty 3, on both sides.
const WIDER: u64 = 4;
const ROW_ADDRESS: &str = "_rowaddr";
const ROW_ID: &str = "_rowid";

/// A run of live rows of one fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    /// Position of the fragment in the manifest.
    pub fragment: usize,
    /// The first row, among the fragment's live rows.
    pub offset: u64,
    /// How many rows.
    pub rows: u64,
}

/// What a scan gave.
pub struct Scanned {
    /// One array for each column asked for, or why there is none.
    pub columns: Vec<Result<ArrayRef>>,
    /// `_rowaddr` of each row.
    pub addresses: UInt64Array,
    /// `_rowid` of each row.
    pub ids: UInt64Array,
}

/// Scans columns, each given as a schema with one top-level field; Blobs come as descriptors.
///
/// # Errors
/// Where not even the rows' addresses can be read, or all columns failed for a passing reason.
pub async fn scan(table: &Scannable, columns: &[Schema], run: Run) -> Result<Scanned> {
    let together = batch(table, &merged(table, columns), run).await;
    let first_failure = match together {
        Ok(batch) => return take_apart(&batch, columns),
        Err(error) if matches!(error.kind(), Kind::Timeout | Kind::Denied) => return Err(error),
        Err(error) => error,
    };
    tracing::debug!(error = %first_failure, ?run, "scanning each column by itself");
    let rows = batch(table, &merged(table, &[]), run).await?;
    let mut found = take_apart(&rows, &[])?;
    for column in columns {
        let alone = match columns {
            // It was by itself already.
            [_] => Err(first_failure.clone()),
            _ => batch(table, column, run).await,
        };
        let alone = match alone {
            Ok(batch) => take_apart(&batch, std::slice::from_ref(column))?.columns.pop(),
            Err(error) if !holds_list(column) => Some(Err(error)),
            Err(error) => Some(widened(table, column, run).await.map_err(|()| error)),
        };
        found.columns.extend(alone);
    }
    Ok(found)
}

/// Whether a column can meet difficulty 3.
fn holds_list(column: &Schema) -> bool {
    let is_list =
        |field: &Field| matches!(field.data_type(), DataType::List(_) | DataType::LargeList(_));
    column.fields_pre_order().any(is_list) && column.fields_pre_order().any(Field::is_blob_v2)
}

/// A column of a run, from a scan of more rows (difficulty 3). Who reads a fragment whose only
/// element is far away pays for all between.
async fn widened(table: &Scannable, column: &Schema, run: Run) -> Result<ArrayRef, ()> {
    let fragment = table.dataset().manifest.fragments.get(run.fragment).ok_or(())?;
    let rows = fragment.num_rows().map(units::u64_of).ok_or(())?;
    let mut wide = run;
    while wide.rows < rows {
        let more = wide.rows * WIDER;
        let offset = wide.offset.saturating_sub(more);
        let end = rows.min(wide.offset + wide.rows + more);
        wide = Run { offset, rows: end - offset, ..run };
        let Ok(batch) = batch(table, column, wide).await else { continue };
        let scanned = take_apart(&batch, std::slice::from_ref(column)).map_err(drop)?;
        let array = scanned.columns.into_iter().next().ok_or(())?.map_err(drop)?;
        let first = units::usize_of(run.offset - wide.offset);
        return Ok(array.slice(first, units::usize_of(run.rows)));
    }
    Err(())
}

/// The dataset as it is scanned: with names that the query engine finds (difficulty 2). Fields are
/// read by id, so what they are called does not matter; positions and ids stay.
pub fn scannable(dataset: &Arc<Dataset>) -> Scannable {
    if !dataset.schema().fields.iter().any(|field| is_lost(&field.name)) {
        return Scannable::new(dataset.clone());
    }
    let mut manifest = dataset.manifest.as_ref().clone();
    for field in manifest.schema.fields.iter_mut().filter(|field| is_lost(&field.name)) {
        field.name = format!("lancefs_field_{}", field.id);
    }
    let mut renamed = dataset.as_ref().clone();
    renamed.manifest = Arc::new(manifest);
    Scannable::new(Arc::new(renamed))
}

fn merged(table: &Scannable, columns: &[Schema]) -> Schema {
    let fields = columns.iter().flat_map(|column| column.fields.clone()).collect();
    Schema { fields, metadata: table.schema().metadata.clone() }
}

async fn batch(table: &Scannable, projection: &Schema, run: Run) -> Result<RecordBatch> {
    let dataset = table.dataset();
    let names: Vec<_> = projection.fields.iter().map(|field| field.name.as_str()).collect();
    let version = dataset.manifest.version;
    let fragment = dataset.manifest.fragments.get(run.fragment);
    let files: Vec<_> = fragment.iter().flat_map(|f| &f.files).map(|file| &file.path).collect();
    let what = format!("scan {names:?} of {run:?} of version {version} in {files:?}");
    let fragment =
        fragment.ok_or_else(|| Error::new(Kind::Table, format!("{what}: no such fragment")))?;
    let ids = projection.fields_pre_order().map(|field| field.id).collect();
    sound::check(dataset, fragment, Fields::Of(ids)).await.map_err(|e| e.at(&what))?;
    let scanned = decoder::decode(table, fragment, projection, run, &what).await;
    let batch = scanned.map_err(|error| match error.kind() {
        // What a version names is there, or something is wrong: it is never simply absent.
        Kind::NotFound => error.of_kind(Kind::Payload),
        _ => error,
    })?;
    if units::u64_of(batch.num_rows()) != run.rows {
        let text = format!("{what}: {} rows came", batch.num_rows());
        return Err(Error::new(Kind::Table, text));
    }
    Ok(batch)
}

/// Has the crate decode rows.
pub(super) async fn scan_one(
    dataset: &Dataset,
    projection: &Schema,
    run: Run,
) -> lance::Result<RecordBatch> {
    let fragment = dataset.manifest.fragments.get(run.fragment).cloned();
    let fragment = fragment
        .ok_or_else(|| lance::Error::invalid_input(format!("no fragment {}", run.fragment)))?;
    let mut scanner = dataset.scan();
    scanner.blob_handling(BlobHandling::BlobsDescriptions);
    if projection.fields.is_empty() {
        scanner.project::<&str>(&[])?;
    } else {
        scanner.project_with_schema(projection)?;
    }
    scanner
        .with_row_address()
        .with_row_id()
        .with_fragments(vec![fragment])
        .batch_size(units::usize_of(run.rows.max(1)))
        .limit(Some(units::i64_of(run.rows)), Some(units::i64_of(run.offset)))?;
    let batches: Vec<RecordBatch> = scanner.try_into_stream().await?.try_collect().await?;
    let schema = batches
        .first()
        .map_or_else(|| Arc::new(arrow_schema::Schema::empty()), RecordBatch::schema);
    Ok(arrow_select::concat::concat_batches(&schema, &batches)?)
}

fn take_apart(batch: &RecordBatch, columns: &[Schema]) -> Result<Scanned> {
    let number = |name| {
        let column =
            batch.column_by_name(name).and_then(|c| c.as_primitive_opt::<UInt64Type>().cloned());
        column.ok_or_else(|| Error::new(Kind::Table, format!("a scan came without {name}")))
    };
    let (addresses, ids) = (number(ROW_ADDRESS)?, number(ROW_ID)?);
    let names = columns.iter().flat_map(|column| column.fields.iter().map(|field| &field.name));
    let arrays = names.map(|name| {
        let array = batch.column_by_name(name).cloned();
        array.ok_or_else(|| Error::new(Kind::Table, format!("a scan came without column {name:?}")))
    });
    Ok(Scanned { columns: arrays.collect(), addresses, ids })
}
