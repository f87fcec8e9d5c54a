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
//! 5. Rows may be of any size, and the next one may be a thousand times as large as the last: a few are
//!    decoded at once, and a scan ends early where it has enough ([`prefix`]); who needs all rows goes
//!    on from there. Lists of Blobs (difficulty 3) and dictionaries, whose pieces do not go together
//!    again, are decoded whole, by a scan of their own ([`is_whole`]).

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
use crate::tree::ROW_JSON_MAX;
use crate::units;

/// By how much more rows are scanned at each attempt of difficulty 3, on both sides.
const WIDER: u64 = 4;
/// What several rows that are scanned to be looked at may weigh together, in bytes.
pub const MOST: u64 = 16 << 20;
/// What one row may weigh, in bytes: more than any text of one. A number of eight bytes is eight
/// letters with the white space around it, a text or bytes are as long as they are.
pub const LARGEST: u64 = 2 * ROW_JSON_MAX;
/// Rows that are decoded before they are weighed.
const AT_ONCE: u64 = 16;
/// How far reading may be ahead of decoding, in bytes.
const IO_BUFFER: u64 = 256 << 20;
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
    let mut scanned = prefix(table, columns, run, LARGEST).await?;
    while scanned.rows() < run.rows {
        let done = scanned.rows();
        let rest = Run { offset: run.offset + done, rows: run.rows - done, ..run };
        scanned = scanned.and(prefix(table, columns, rest, LARGEST).await?)?;
    }
    Ok(scanned)
}

/// Scans the first rows of a run, as many as weigh no more than so many bytes, and one at least.
///
/// # Errors
/// As [`scan`]; [`Kind::TooLarge`] where the first row alone weighs more.
pub async fn prefix(table: &Scannable, columns: &[Schema], run: Run, most: u64) -> Result<Scanned> {
    let whole: Vec<bool> =
        columns.iter().map(|column| column.fields.iter().any(is_whole)).collect();
    if !whole.contains(&true) || !whole.contains(&false) {
        return alike(table, columns, run, most).await;
    }
    let of = |kind| {
        let chosen = columns.iter().zip(&whole).filter(move |(_, whole)| **whole == kind);
        chosen.map(|(column, _)| column.clone()).collect::<Vec<_>>()
    };
    let (pieces, wholes) = (of(false), of(true));
    let mut found = alike(table, &pieces, run, most).await?;
    let run = Run { rows: found.rows(), ..run };
    let others = alike(table, &wholes, run, most).await?;
    found = found.slice(others.addresses.len());
    let mut pieces = std::mem::take(&mut found.columns).into_iter();
    let mut wholes = others.columns.into_iter();
    let next = |whole: &bool| if *whole { wholes.next() } else { pieces.next() };
    found.columns = whole.iter().filter_map(next).collect();
    Ok(found)
}

/// [`prefix`] of columns that are decoded in the same way.
async fn alike(table: &Scannable, columns: &[Schema], run: Run, most: u64) -> Result<Scanned> {
    let together = batch(table, &merged(table, columns), run, most).await;
    let first_failure = match together {
        Ok(batch) => return take_apart(&batch, columns),
        Err(error) if matches!(error.kind(), Kind::Timeout | Kind::Denied | Kind::TooLarge) => {
            return Err(error);
        }
        Err(error) => error,
    };
    tracing::debug!(error = %first_failure, ?run, "scanning each column by itself");
    let rows = batch(table, &merged(table, &[]), run, most).await?;
    let mut found = take_apart(&rows, &[])?;
    for column in columns {
        let alone = match columns {
            // It was by itself already.
            [_] => Err(first_failure.clone()),
            _ => batch(table, column, run, most).await,
        };
        let alone = match alone {
            Ok(batch) => take_apart(&batch, std::slice::from_ref(column))?.columns.pop(),
            Err(error) if !holds_list(column) => Some(Err(error)),
            Err(error) => Some(widened(table, column, run).await.map_err(|()| error)),
        };
        found.columns.extend(alone);
    }
    let read = found.columns.iter().flatten().map(arrow_array::Array::len);
    let rows = read.min().unwrap_or(found.addresses.len()).min(found.addresses.len());
    Ok(found.slice(rows))
}

/// Whether a column has to be decoded in one piece.
fn is_whole(field: &Field) -> bool {
    let is_list = matches!(field.data_type(), DataType::List(_) | DataType::LargeList(_));
    let holds_blob = || {
        let below = Schema { fields: field.children.clone(), ..Schema::default() };
        below.fields_pre_order().any(Field::is_blob_v2)
    };
    matches!(field.data_type(), DataType::Dictionary(..))
        || is_list && holds_blob()
        || field.children.iter().any(is_whole)
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
        let Ok(batch) = batch(table, column, wide, LARGEST).await else { continue };
        if units::u64_of(batch.num_rows()) != wide.rows {
            return Err(());
        }
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

async fn batch(table: &Scannable, projection: &Schema, run: Run, most: u64) -> Result<RecordBatch> {
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
    let scanned = decoder::decode(table, fragment, projection, run, most, &what).await;
    let batch = scanned.map_err(|error| match error.kind() {
        // What a version names is there, or something is wrong: it is never simply absent.
        Kind::NotFound => error.of_kind(Kind::Payload),
        _ => error,
    })?;
    match units::u64_of(batch.num_rows()) {
        0 if run.rows > 0 => {
            let text = format!("{what}: the first row is larger than {most} bytes");
            Err(Error::new(Kind::TooLarge, text))
        }
        rows if rows > run.rows => {
            Err(Error::new(Kind::Table, format!("{what}: {rows} rows came")))
        }
        _ => Ok(batch),
    }
}

/// Has the crate decode rows: the first ones that weigh no more than `most` together, which are none
/// where the first one weighs more.
pub(super) async fn scan_one(
    dataset: &Dataset,
    projection: &Schema,
    run: Run,
    most: u64,
) -> lance::Result<RecordBatch> {
    let fragment = dataset.manifest.fragments.get(run.fragment).cloned();
    let fragment = fragment
        .ok_or_else(|| lance::Error::invalid_input(format!("no fragment {}", run.fragment)))?;
    let is_whole = projection.fields.iter().any(is_whole);
    let at_once = if is_whole { run.rows } else { run.rows.min(AT_ONCE) };
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
        .batch_size(units::usize_of(at_once.max(1)))
        .io_buffer_size(IO_BUFFER)
        .limit(Some(units::i64_of(run.rows)), Some(units::i64_of(run.offset)))?;
    let mut stream = scanner.try_into_stream().await?;
    let (mut batches, mut left) = (Vec::new(), most);
    while let Some(batch) = stream.try_next().await? {
        let rows = fitting(&batch, left)?;
        let is_cut = rows < batch.num_rows();
        let batch = batch.slice(0, rows);
        left = left.saturating_sub(weight(&batch)?);
        batches.push(batch);
        if is_cut {
            break;
        }
    }
    if batches.is_empty() && run.rows > 0 {
        return Err(lance::Error::invalid_input("no rows came"));
    }
    let schema = batches
        .first()
        .map_or_else(|| Arc::new(arrow_schema::Schema::empty()), RecordBatch::schema);
    Ok(arrow_select::concat::concat_batches(&schema, &batches)?)
}

/// How many of the first rows weigh no more than so many bytes.
fn fitting(batch: &RecordBatch, most: u64) -> lance::Result<usize> {
    let (mut fits, mut over) = (0, batch.num_rows() + 1);
    let mut try_next = batch.num_rows();
    while fits + 1 < over {
        if weight(&batch.slice(0, try_next))? <= most {
            fits = try_next;
        } else {
            over = try_next;
        }
        try_next = usize::midpoint(fits, over);
    }
    Ok(fits)
}

/// What rows weigh, without what their arrays share with others.
fn weight(batch: &RecordBatch) -> lance::Result<u64> {
    let mut sum = 0;
    for column in batch.columns() {
        sum += units::u64_of(column.to_data().get_slice_memory_size()?);
    }
    Ok(sum)
}

impl Scanned {
    /// How many rows.
    pub fn rows(&self) -> u64 {
        units::u64_of(self.addresses.len())
    }

    /// The first rows.
    fn slice(self, rows: usize) -> Self {
        let first = |column: Result<ArrayRef>| column.map(|column| column.slice(0, rows));
        Self {
            columns: self.columns.into_iter().map(first).collect(),
            addresses: self.addresses.slice(0, rows),
            ids: self.ids.slice(0, rows),
        }
    }

    /// With the rows that follow; a column that failed in either failed.
    fn and(self, next: Self) -> Result<Self> {
        let join = |first: &dyn arrow_array::Array, next: &dyn arrow_array::Array| {
            let joined = arrow_select::concat::concat(&[first, next]);
            joined.map_err(|e| Error::caused(Kind::Internal, "put rows together", e))
        };
        let numbers = |first: &UInt64Array, next: &UInt64Array| {
            Ok::<_, Error>(join(first, next)?.as_primitive::<UInt64Type>().clone())
        };
        let columns = self.columns.into_iter().zip(next.columns);
        let columns = columns.map(|(first, next)| join(&first?, &next?)).collect();
        let addresses = numbers(&self.addresses, &next.addresses)?;
        Ok(Self { columns, addresses, ids: numbers(&self.ids, &next.ids)? })
    }
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
