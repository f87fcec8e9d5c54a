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
//! 1. Looking at ten million files must not fill memory: descriptors come in pages, in a cache that
//!    is bounded in bytes and shared by all snapshots ([`Pages`]).
//! 2. An External value may not record its size: it is looked up once and remembered
//!    ([`Sizes`]), so that a file's size stays what it was.
//! 3. A walk over rows in order must not wait for each page: the next one is fetched while the walk
//!    is in the second half of one ([`Snapshot::look_ahead`]).
//! 4. `row.json` needs columns that may be wide: how many rows are scanned at once is decided by
//!    what the first row weighs ([`Snapshot::columns`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use arrow_array::ArrayRef;
use futures::{StreamExt as _, TryStreamExt as _};
use lance::Dataset;
use lance_core::datatypes::Schema;
use tokio::sync::OnceCell;

use super::descriptor::{self, Extent};
use super::fault;
use super::locate::{Located, Locator};
use super::rows::{Place, Rows};
use super::scan::{self, Run};
use super::schema::{Layout, Leaf, Leaves};
use super::values::{Chain, Element};
use crate::error::{Error, Kind, Result};
use crate::store::lru::Lru;
use crate::store::{Interval, ObjectKey, ObjectRef, Opener};
use crate::tree::{LeafIndex, Slot, SnapshotId, Step};
use crate::units::{self, ByteLen, ObjectOffset, Ordinal, RowAddress, RowId, RowIndex};

/// Rows in a page of descriptors. At some 40 bytes for each descriptor a page is about 20 KiB, one
/// read of an object store; a scan of 512 rows costs little more than one of a single row.
const PAGE_ROWS: u64 = 512;
/// What a scan for `row.json` may weigh, in bytes: a few pages of a store.
const COLUMNS_BYTES: u64 = 256 << 10;
/// How many fragments are asked for their row count at once, where the manifest has none.
const COUNT_PARALLELISM: usize = 16;

/// Which scan a page is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum What {
    Descriptors,
    Columns,
}

/// The key of a page in a cache that all snapshots share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageKey {
    slot: Slot,
    what: What,
    run: Run,
}

/// The cache of pages.
pub type Pages = Lru<PageKey, Arc<Page>>;
/// The lengths of External objects that record none.
pub type Sizes = Lru<ObjectKey, ByteLen>;

/// A run of rows, scanned.
pub struct Page {
    chains: Vec<Result<Chain>>,
    /// The scanned columns, in the order of the projection.
    pub columns: Vec<Result<ArrayRef>>,
    addresses: Vec<u64>,
    ids: Vec<u64>,
    fragment: usize,
}

/// A row within its page.
#[derive(Clone)]
pub struct Row {
    /// The page.
    pub page: Arc<Page>,
    /// The row's position in it.
    pub at: usize,
}

/// A value that is there, resolved as far as its descriptor allows.
#[derive(Clone, Debug)]
pub struct Value {
    /// Where its bytes are.
    pub located: Located,
    /// The interval of the object that is the value.
    pub interval: Interval,
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
    scannable: Arc<Dataset>,
    all_columns: Vec<Schema>,
    pub(super) locator: Locator,
    pages: Arc<Pages>,
    sizes: Arc<Sizes>,
    /// Opens payloads.
    pub opener: Arc<Opener>,
    columns_rows: OnceCell<u64>,
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
    /// [`Kind::Table`] where a fragment of an old format does not say how many rows it has.
    pub async fn new(
        id: SnapshotId,
        slot: Slot,
        locator: Locator,
        pages: Arc<Pages>,
        sizes: Arc<Sizes>,
        opener: Arc<Opener>,
    ) -> Result<Self> {
        let dataset = locator.dataset.clone();
        let scannable = scan::scannable(&dataset);
        let schema = scannable.schema();
        let single = |field: &lance_core::datatypes::Field| Schema {
            fields: vec![field.clone()],
            metadata: schema.metadata.clone(),
        };
        Ok(Self {
            rows: Rows::new(count_rows(&dataset).await?),
            committed: dataset.manifest.timestamp().into(),
            leaves: Leaves::of(dataset.schema(), schema),
            all_columns: schema.fields.iter().map(single).collect(),
            columns_rows: OnceCell::new(),
            last: AtomicU64::new(u64::MAX),
            id,
            slot,
            scannable: scannable.clone(),
            dataset,
            locator,
            pages,
            sizes,
            opener,
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

    /// A row with all of its columns, in schema order, Blobs as descriptors.
    ///
    /// # Errors
    /// As [`Snapshot::row`].
    pub async fn columns(&self, row: RowIndex) -> Result<Row> {
        let place = self.place(row)?;
        let rows = self.columns_rows.get_or_try_init(|| async {
            let one = self.page(What::Columns, &self.all_columns, place, 1).await?;
            let weight = one.page.weight().max(1);
            let fit = (COLUMNS_BYTES / weight).clamp(1, PAGE_ROWS);
            Ok::<_, Error>(1 << fit.ilog2())
        });
        let rows = *rows.await?;
        self.page(What::Columns, &self.all_columns, place, rows).await
    }

    /// The value of a leaf in a row.
    ///
    /// # Errors
    /// [`Kind::NotFound`] where it is null or there is no such element; the kinds of
    /// [`descriptor::read`], of [`Locator::locate`], and of the object's length.
    pub async fn value(&self, row: &Row, leaf: LeafIndex, ordinal: Ordinal) -> Result<Value> {
        let field = self.leaf(leaf)?;
        let chain = row.page.chain(leaf)?;
        let element = chain.at(row.at, ordinal).ok_or_else(|| absent(field))?;
        let read = descriptor::read(chain.descriptors(), element.position);
        let read = read.map_err(|e| e.at(format!("field {}", field.display)))?;
        let descriptor = read.ok_or_else(|| absent(field))?;
        let located = self.locator.locate(row.page.fragment, field.field_id, &descriptor).await;
        let located = located.map_err(|e| e.at(format!("field {}", field.display)))?;
        let interval = match located.extent {
            Extent::Known(interval) => interval,
            Extent::WholeObject(offset) => self.whole(&located, offset).await?,
        };
        Ok(Value { located, interval })
    }

    /// The leaf of an index.
    ///
    /// # Errors
    /// [`Kind::Stale`] for an index of no leaf.
    pub fn leaf(&self, leaf: LeafIndex) -> Result<&Leaf> {
        let found = self.leaves.fields.get(units::usize_of(leaf.get()));
        found.ok_or_else(|| Error::new(Kind::Stale, format!("no field {}", leaf.get())))
    }

    async fn whole(&self, located: &Located, offset: ObjectOffset) -> Result<Interval> {
        let size = self.sizes.cell(&located.object.key());
        let ask = || async { self.opener.open(&located.object)?.length().await };
        let len = size.get_or_try_init(ask).await?;
        Ok(Interval { offset, len: *len })
    }

    fn place(&self, row: RowIndex) -> Result<Place> {
        self.rows.place(row).ok_or_else(|| {
            Error::new(Kind::NotFound, format!("version {} has no row {row}", self.id.version))
        })
    }

    fn key(&self, what: What, place: Place, page_rows: u64) -> PageKey {
        let offset = place.offset - place.offset % page_rows;
        let rows = page_rows.min(place.rows - offset);
        PageKey { slot: self.slot, what, run: Run { fragment: place.fragment, offset, rows } }
    }

    async fn page(
        &self,
        what: What,
        columns: &[Schema],
        place: Place,
        page_rows: u64,
    ) -> Result<Row> {
        let key = self.key(what, place, page_rows);
        let (run, cell) = (key.run, self.pages.cell(&key));
        let at = units::usize_of(place.offset - run.offset);
        if let Some(page) = cell.get() {
            return Ok(Row { page: page.clone(), at });
        }
        let page = cell.get_or_try_init(|| self.scan(what, columns, run)).await?.clone();
        self.pages.weigh(&key, page.weight());
        if page.columns.iter().any(|c| c.as_ref().is_err_and(fault::may_pass)) {
            self.pages.forget(&key);
        }
        Ok(Row { page, at })
    }

    fn schema_position(&self, leaf: &Leaf) -> usize {
        let name = match leaf.path.first() {
            Some(Step::Field(name)) => name.as_str(),
            Some(Step::Element) | None => "",
        };
        self.dataset.schema().fields.iter().position(|field| field.name == name).unwrap_or(0)
    }

    /// Refuses what the crate decodes to wrong descriptors without an error: a list of legacy Blobs
    /// in a file of format 2.1 or later (lance 14.0.2, found by running it: a value came back null).
    fn readable(&self, leaf: &Leaf, run: Run) -> Result<()> {
        let listed = leaf.path.contains(&Step::Element);
        if leaf.layout == Layout::V2 || !listed {
            return Ok(());
        }
        let fragment = self.dataset.manifest.fragments.get(run.fragment);
        let file =
            fragment.and_then(|f| f.files.iter().find(|file| file.fields.contains(&leaf.field_id)));
        match file {
            Some(file) if (file.file_major_version, file.file_minor_version) > (2, 0) => {
                let text = format!(
                    "field {}: a list of legacy Blobs in a file of format {}.{} cannot be read",
                    leaf.display, file.file_major_version, file.file_minor_version
                );
                Err(Error::new(Kind::Table, text))
            }
            _ => Ok(()),
        }
    }

    async fn scan(&self, what: What, columns: &[Schema], run: Run) -> Result<Arc<Page>> {
        let mut scanned = scan::scan(&self.scannable, columns, run).await?;
        if what == What::Columns {
            for leaf in &self.leaves.fields {
                if let Err(error) = self.readable(leaf, run) {
                    scanned.columns[self.schema_position(leaf)] = Err(error);
                }
            }
        }
        for error in scanned.columns.iter().filter_map(|c| c.as_ref().err()) {
            tracing::error!(version = %self.id.version, %error, "a field cannot be read");
        }
        let chain = |leaf: &Leaf| match &scanned.columns[leaf.column] {
            Ok(column) => self.readable(leaf, run).and_then(|()| Chain::new(column, &leaf.path)),
            Err(error) => Err(error.clone()),
        };
        let chains = match what {
            What::Descriptors => self.leaves.fields.iter().map(chain).collect(),
            What::Columns => Vec::new(),
        };
        Ok(Arc::new(Page {
            chains,
            addresses: scanned.addresses.values().to_vec(),
            ids: scanned.ids.values().to_vec(),
            columns: scanned.columns,
            fragment: run.fragment,
        }))
    }
}

impl Page {
    /// The position of its fragment in the manifest.
    pub(super) fn fragment(&self) -> usize {
        self.fragment
    }

    /// The values of a leaf.
    ///
    /// # Errors
    /// Why its column could not be read.
    pub fn chain(&self, leaf: LeafIndex) -> Result<&Chain> {
        match self.chains.get(units::usize_of(leaf.get())) {
            Some(Ok(chain)) => Ok(chain),
            Some(Err(error)) => Err(error.clone()),
            None => Err(Error::new(Kind::Stale, format!("no field {}", leaf.get()))),
        }
    }

    fn weight(&self) -> u64 {
        let arrays = self.columns.iter().flatten().map(|array| array.get_array_memory_size());
        units::u64_of(arrays.sum::<usize>() + self.addresses.len() * 16 + size_of::<Self>())
    }
}

impl Row {
    /// The row's address.
    pub fn address(&self) -> RowAddress {
        RowAddress::new(self.page.addresses[self.at])
    }

    /// The row's id.
    pub fn id(&self) -> RowId {
        RowId::new(self.page.ids[self.at])
    }

    /// The row's values of a leaf that are not null, from an ordinal on. A value whose descriptor
    /// is invalid is there: it is shown, and fails when it is opened.
    ///
    /// # Errors
    /// Why the leaf's column could not be read.
    pub fn values(
        &self,
        leaf: LeafIndex,
        from: Ordinal,
    ) -> Result<impl Iterator<Item = Element> + '_> {
        let chain = self.page.chain(leaf)?;
        let ordinals = (from.get()..chain.count(self.at)).map(Ordinal::new);
        let elements = ordinals.filter_map(|ordinal| chain.at(self.at, ordinal));
        Ok(elements.filter(|element| !descriptor::is_null(chain.descriptors(), element.position)))
    }
}

fn absent(field: &Leaf) -> Error {
    Error::new(Kind::NotFound, format!("field {} is null here", field.display))
}

/// The live rows of each fragment. Newer manifests say; else each data file is asked.
async fn count_rows(dataset: &Arc<Dataset>) -> Result<Vec<u64>> {
    let known = |fragment: &lance_table::format::Fragment| {
        dataset.manifest.writer_version.as_ref().and(fragment.num_rows()).map(units::u64_of)
    };
    if let Some(counts) = dataset.manifest.fragments.iter().map(known).collect() {
        return Ok(counts);
    }
    let counts = futures::stream::iter(dataset.get_fragments())
        .map(|fragment| async move { fragment.count_rows(None).await.map(units::u64_of) })
        .buffered(COUNT_PARALLELISM)
        .try_collect();
    counts.await.map_err(|e| fault::of("count the rows of each fragment", e))
}
