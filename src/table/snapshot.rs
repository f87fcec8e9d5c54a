//! One version, open: its rows, its Blob fields, their descriptors.
//!
//! ```text
//! row ── Rows ──▶ fragment, offset ── pages ──▶ Page: descriptors of 512 rows
//!                                               │
//! leaf, ordinal ── Chain ─────────────────────▶ descriptor ── Locator ──▶ object, interval
//! ```
//!
//! Difficulties:
//!
//! 1. Descriptors and columns are read a page of rows at a time, and a page that failed must not stay:
//!    [`page`].
//! 2. An External value may not record its size: it is the object's, for as long as that stays the same
//!    one ([`Sizes`], [`Snapshot::open`]).
//! 3. A walk over rows in order must not wait for each page: the next one is fetched while the walk
//!    is in the second half of one ([`Snapshot::look_ahead`]).
//! 4. `row.json` needs columns that may be wide: how many rows are scanned at once follows from what
//!    the first row weighs, and ends where they weigh more. Rows that are large by themselves are read
//!    one at a time, and none is kept ([`Snapshot::columns`], [`Turn`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use futures::{StreamExt as _, TryStreamExt as _};
use lance::Dataset;
use lance::dataset::fragment::FileFragment;
use lance_core::datatypes::Schema;
use tokio::sync::{Semaphore, SemaphorePermit};

mod oldest;
mod page;

use super::decoder::Scannable;
use super::descriptor::{self, Extent};
use super::guard;
use super::locate::{Located, Locator};
use super::rows::{Place, Rows};
use super::scan::{self, Run};
use super::schema::{self, Leaf, Leaves};
use super::sizes::Sizes;
use super::sound::{self, Fields};
use crate::error::{Error, Kind, Result};
use crate::store::{Interval, Meta, ObjectRef, Opener, Place as Where, RangeRead, Renamed};
use crate::tree::{LeafIndex, Slot, SnapshotId};
use crate::units::{self, ByteLen, Ordinal, RowIndex};

use page::What;
pub use page::{Pages, Row};

/// Rows in a page of descriptors. At some 40 bytes for each descriptor a page is about 20 KiB, one
/// read of an object store; a scan of 512 rows costs little more than one of a single row.
const PAGE_ROWS: u64 = 1 << 9;
/// What a scan for `row.json` may weigh, in bytes: a few pages of a store.
const COLUMNS_BYTES: u64 = 256 << 10;
/// How many fragments are asked for their row count at once, where the manifest has none.
const COUNT_PARALLELISM: usize = 16;

/// The right to have a row in memory that weighs more than a page of rows may.
pub type Turn = SemaphorePermit<'static>;

/// One at a time: what several such rows weigh, with their texts, no budget has room for.
static TURN: Semaphore = Semaphore::const_new(1);

/// A value that is there, resolved as far as its descriptor allows.
#[derive(Clone, Debug)]
pub struct Value {
    /// Where its bytes are.
    pub located: Located,
    /// The interval of the object that is the value.
    pub interval: Interval,
    /// What the object is, where its size is not recorded and had to be found out.
    pub looked: Option<Meta>,
}

/// One version, open.
pub struct Snapshot {
    /// Which one.
    pub id: SnapshotId,
    /// Its place in inode numbers.
    pub slot: Slot,
    /// When it was committed.
    pub committed: SystemTime,
    /// Its Blob fields.
    pub leaves: Leaves,
    /// Its live rows.
    pub rows: Rows,
    /// The crate's view of it.
    pub dataset: Arc<Dataset>,
    scannable: Scannable,
    all_columns: Vec<Schema>,
    pub(super) locator: Locator,
    pages: Arc<Pages>,
    sizes: Arc<Sizes>,
    /// Opens payloads.
    pub opener: Arc<Opener>,
    /// How many rows are scanned at once for their columns; 0 is not known yet.
    columns_rows: AtomicU64,
    /// The row that was asked for last.
    last: AtomicU64,
}

impl Snapshot {
    /// An object of somebody else, for copying it.
    ///
    /// # Errors
    /// [`Kind::Denied`] by policy, [`Kind::Descriptor`] for an unusable URI.
    pub async fn foreign(&self, uri: &str) -> Result<ObjectRef> {
        self.locator.external(uri).await
    }

    /// Prepares an opened version: finds its Blob fields and sums its rows.
    ///
    /// # Errors
    /// [`Kind::Table`] where it has a type that the crate does not know, or a fragment of an old
    /// format does not say how many rows it has.
    pub async fn new(
        id: SnapshotId,
        slot: Slot,
        locator: Locator,
        pages: Arc<Pages>,
        sizes: Arc<Sizes>,
        opener: Arc<Opener>,
    ) -> Result<Self> {
        let dataset = locator.dataset.clone();
        let rows = Rows::new(count_rows(&locator).await?)?;
        let what = || format!("understand the schema of version {}", dataset.manifest.version);
        schema::check_types(dataset.schema()).map_err(|e| e.at(what()))?;
        guard::here(what, || {
            let scannable = scan::scannable(&dataset);
            let columns = scannable.schema();
            let single = |field: &lance_core::datatypes::Field| Schema {
                fields: vec![field.clone()],
                metadata: columns.metadata.clone(),
            };
            Ok(Self {
                rows,
                committed: dataset.manifest.timestamp().into(),
                leaves: Leaves::of(dataset.schema(), columns),
                all_columns: columns.fields.iter().map(single).collect(),
                columns_rows: AtomicU64::new(0),
                last: AtomicU64::new(u64::MAX),
                id,
                slot,
                scannable,
                dataset: dataset.clone(),
                locator,
                pages,
                sizes,
                opener,
            })
        })
    }

    /// A row with the page of its descriptors.
    ///
    /// # Errors
    /// [`Kind::NotFound`] past the last row; where the page cannot be read.
    pub async fn row(&self, row: RowIndex) -> Result<Row> {
        let place = self.place(row)?;
        self.page(What::Descriptors, &self.leaves.columns, place, PAGE_ROWS).await
    }

    /// Notes that a row was asked for, and fetches the next page if rows are asked for in order and
    /// this one is far enough in its own. A page of a local table is there at once.
    pub fn look_ahead(self: &Arc<Self>, row: RowIndex) {
        if self.locator.source.store.is_local() {
            return;
        }
        let last = self.last.swap(row.get(), Ordering::Relaxed);
        let in_order = row.get() == last || row.get() == last.wrapping_add(1);
        let Some(place) = self.rows.place(row).filter(|_| in_order) else { return };
        let into_page = place.offset % PAGE_ROWS;
        let next = RowIndex::new(
            row.get() - into_page + PAGE_ROWS.min(place.rows - place.offset + into_page),
        );
        let Some(next_place) = self.rows.place(next).filter(|_| into_page >= PAGE_ROWS / 2) else {
            return;
        };
        if !self.pages.has(&self.key(What::Descriptors, next_place, PAGE_ROWS)) {
            let this = self.clone();
            tokio::spawn(async move {
                if let Err(error) = this.row(next).await {
                    tracing::debug!(%error, "a page was not fetched ahead");
                }
            });
        }
    }

    /// A row with all of its columns, in schema order, Blobs as descriptors; and, where it is large, the
    /// turn to have such a row in memory.
    ///
    /// # Errors
    /// As [`Snapshot::row`]; [`Kind::TooLarge`] where it is larger than any text of a row.
    pub async fn columns(&self, row: RowIndex) -> Result<(Row, Option<Turn>)> {
        let place = self.place(row)?;
        match self.small_columns(place).await {
            Err(error) if error.kind() == Kind::TooLarge => {}
            row => return Ok((row?, None)),
        }
        let turn = TURN.acquire().await;
        let turn = turn.map_err(|e| Error::caused(Kind::Internal, "wait for a turn", e))?;
        let run = Run { fragment: place.fragment, offset: place.offset, rows: 1 };
        let page = self.scan(What::Columns, &self.all_columns, run, scan::LARGEST).await?;
        Ok((Row { page, at: 0 }, Some(turn)))
    }

    async fn small_columns(&self, place: Place) -> Result<Row> {
        let mut rows = self.columns_rows.load(Ordering::Relaxed);
        if rows == 0 {
            let one = self.page(What::Columns, &self.all_columns, place, 1).await?;
            if !one.page.is_whole() {
                // What its columns weigh is not known.
                return Ok(one);
            }
            rows = one.page.rows_within(COLUMNS_BYTES);
            self.columns_rows.store(rows, Ordering::Relaxed);
        }
        let row = self.page(What::Columns, &self.all_columns, place, rows).await?;
        // Larger ones at once, smaller ones by and by: pages of another number of rows are other pages.
        match row.page.rows_within(COLUMNS_BYTES) {
            fit if fit < rows => self.columns_rows.store(fit, Ordering::Relaxed),
            fit if fit > 2 * rows => self.columns_rows.store(2 * rows, Ordering::Relaxed),
            _ => {}
        }
        Ok(row)
    }

    /// The value of a leaf in a row.
    ///
    /// # Errors
    /// [`Kind::NotFound`] where it is null or there is no such element; the kinds of
    /// [`descriptor::read`], of [`Locator::locate`], and of the object's length.
    pub async fn value(&self, row: &Row, leaf: LeafIndex, ordinal: Ordinal) -> Result<Value> {
        let located = self.locate(row, leaf, ordinal).await?;
        let (interval, looked) = match located.extent {
            Extent::Known(interval) => (interval, None),
            Extent::WholeObject(offset) => {
                let meta = self.sizes.of(&self.opener, &located.object).await;
                let meta = meta.map_err(|e| self.in_field(leaf, e))?;
                (Interval { offset, len: meta.length }, Some(meta))
            }
        };
        Ok(Value { located, interval, looked })
    }

    /// As [`Snapshot::value`], with the object open for reading. An empty value needs none; one whose
    /// size is not recorded is the object as it is now, whatever was found before.
    ///
    /// # Errors
    /// As [`Snapshot::value`], and why the object cannot be opened.
    pub async fn open(
        &self,
        row: &Row,
        leaf: LeafIndex,
        ordinal: Ordinal,
    ) -> Result<(Value, Option<Arc<dyn RangeRead>>)> {
        let mut located = self.locate(row, leaf, ordinal).await?;
        let (interval, looked, object) = match located.extent {
            Extent::Known(interval) if interval.len.get() == 0 => (interval, None, None),
            Extent::Known(interval) => {
                self.sizes.refresh(&self.opener, &located.object).await;
                let object = self.open_located(&mut located);
                (interval, None, Some(object.map_err(|e| self.in_field(leaf, e))?))
            }
            Extent::WholeObject(offset) => {
                let opened = self.sizes.open(&self.opener, &located.object).await;
                let (object, meta) = opened.map_err(|e| self.in_field(leaf, e))?;
                (Interval { offset, len: meta.length }, Some(meta), Some(object))
            }
        };
        Ok((Value { located, interval, looked }, object))
    }

    /// How long the object of a value is.
    ///
    /// # Errors
    /// As [`RangeRead::length`].
    pub async fn object_length(&self, value: &Value) -> Result<ByteLen> {
        self.open_located(&mut value.located.clone())?.length().await
    }

    /// Opens an object under the name that it has.
    fn open_located(&self, located: &mut Located) -> Result<Arc<dyn RangeRead>> {
        let opened = self.opener.open(&located.object);
        let Some(older) = located.older.take() else { return opened };
        let found = self.locator.source.note_renamed(&older.data_file);
        match (opened, &located.object.place) {
            (Err(error), _) if error.kind() == Kind::Payload => {
                let opened = self.opener.open(&older.object).map_err(|_| error)?;
                found();
                located.object = older.object;
                Ok(opened)
            }
            (Ok(first), Where::Remote(..)) => {
                let second = self.opener.open(&older.object)?;
                Ok(Arc::new(Renamed::new(first, second, found)))
            }
            (opened, _) => opened,
        }
    }

    fn in_field(&self, leaf: LeafIndex, error: Error) -> Error {
        match self.leaf(leaf) {
            Ok(field) => error.at(format!("field {}", field.display)),
            Err(_) => error,
        }
    }

    async fn locate(&self, row: &Row, leaf: LeafIndex, ordinal: Ordinal) -> Result<Located> {
        let field = self.leaf(leaf)?;
        let chain = row.page.chain(leaf)?;
        let element = chain.at(row.at, ordinal).ok_or_else(|| absent(field))?;
        let read = descriptor::read(chain.descriptors(), element.position);
        let read = read.map_err(|e| e.at(format!("field {}", field.display)))?;
        let descriptor = read.ok_or_else(|| absent(field))?;
        let located = self.locator.locate(row.page.fragment(), field.field_id, &descriptor).await;
        located.map_err(|e| e.at(format!("field {}", field.display)))
    }

    /// The leaf of an index.
    ///
    /// # Errors
    /// [`Kind::Stale`] for an index of no leaf.
    pub fn leaf(&self, leaf: LeafIndex) -> Result<&Leaf> {
        let found = self.leaves.fields.get(units::usize_of(leaf.get()));
        found.ok_or_else(|| Error::new(Kind::Stale, format!("no field {}", leaf.get())))
    }

    fn place(&self, row: RowIndex) -> Result<Place> {
        self.rows.place(row).ok_or_else(|| {
            Error::new(Kind::NotFound, format!("version {} has no row {row}", self.id.version))
        })
    }

    /// A column as it is scanned, by its position.
    pub(super) fn column(&self, at: usize) -> Option<&Schema> {
        self.all_columns.get(at)
    }

    /// The columns without a Blob.
    pub(super) fn plain_columns(&self) -> Vec<&Schema> {
        let id = |column: &Schema| column.fields.first().map(|field| field.id);
        let of_blobs: Vec<_> = self.leaves.columns.iter().map(id).collect();
        self.all_columns.iter().filter(|column| !of_blobs.contains(&id(column))).collect()
    }
}

fn absent(field: &Leaf) -> Error {
    Error::new(Kind::NotFound, format!("field {} is null here", field.display))
}

/// The live rows of each fragment. Newer manifests say; else each data file is asked.
async fn count_rows(locator: &Locator) -> Result<Vec<u64>> {
    let dataset = &locator.dataset;
    let known = |fragment: &lance_table::format::Fragment| {
        dataset.manifest.writer_version.as_ref().and(fragment.num_rows()).map(units::u64_of)
    };
    if let Some(counts) = dataset.manifest.fragments.iter().map(known).collect() {
        return Ok(counts);
    }
    let what = || "count the rows of each fragment".to_owned();
    let count = |fragment: FileFragment| async move {
        locator.check_all(fragment.metadata())?;
        sound::check(dataset, fragment.metadata(), Fields::All).await?;
        guard::within(what, fragment.count_rows(None)).await.map(units::u64_of)
    };
    let counts = futures::stream::iter(dataset.get_fragments()).map(count);
    counts.buffered(COUNT_PARALLELISM).try_collect().await
}
