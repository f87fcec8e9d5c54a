//! Pages: runs of rows that are scanned together and kept.
//!
//! Difficulties:
//!
//! 1. Looking at ten million files must not fill memory: pages are in a cache that is bounded in
//!    bytes and shared by all snapshots ([`Pages`]).
//! 2. A failure passes: a file is away for a moment, an answer is cut short. Of a page in which a
//!    column failed, the other columns are kept, and that one is scanned again by whoever asks next,
//!    by one for all who ask at once ([`Pass::Again`]).
//! 3. A column that nobody can decode must not be scanned for each of its rows: such a failure is
//!    kept for as long as the files it was read from are the same ([`Snapshot::identity`]).
//! 4. Rows may be of any size: a page ends before it weighs too much, and a row beyond its end is a
//!    page of its own ([`Snapshot::page`]).
//! 5. A file that is not there was lost, or was taken away with its version: its manifest tells.

use std::sync::Arc;

use arrow_array::ArrayRef;
use lance_core::datatypes::Schema;
use object_store::ObjectStoreExt as _;

use super::Snapshot;
use crate::error::{Error, Kind, Result};
use crate::store::lru::Lru;
use crate::table::rows::Place;
use crate::table::scan::{LARGEST, MOST, Run};
use crate::table::schema::{Layout, Leaf};
use crate::table::sound::local::{self, Stamp};
use crate::table::values::{Chain, Element};
use crate::table::{descriptor, fault};
use crate::tree::{LeafIndex, Slot, Step};
use crate::units::{self, Ordinal, RowAddress, RowId};

/// Which scan a page is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum What {
    Descriptors,
    Columns,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Pass {
    First,
    /// The columns that failed are being scanned again; forgotten as soon as that is done.
    Again,
}

/// The key of a page in a cache that all snapshots share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageKey {
    slot: Slot,
    what: What,
    run: Run,
    pass: Pass,
}

/// The cache of pages.
pub type Pages = Lru<PageKey, Arc<Page>>;

/// A run of rows, scanned.
pub struct Page {
    chains: Vec<Result<Chain>>,
    /// The scanned columns, in the order of the projection.
    pub columns: Vec<Result<ArrayRef>>,
    addresses: Vec<u64>,
    ids: Vec<u64>,
    fragment: usize,
    /// What the columns that failed were read from, if that is all there is to know about them.
    failed_for_good: Option<Vec<Stamp>>,
}

/// A row within its page.
#[derive(Clone)]
pub struct Row {
    /// The page.
    pub page: Arc<Page>,
    /// The row's position in it.
    pub at: usize,
}

impl Snapshot {
    pub(super) fn key(&self, what: What, place: Place, page_rows: u64) -> PageKey {
        let offset = place.offset - place.offset % page_rows;
        let rows = page_rows.min(place.rows - offset);
        let run = Run { fragment: place.fragment, offset, rows };
        PageKey { slot: self.slot, what, run, pass: Pass::First }
    }

    pub(super) async fn page(
        &self,
        what: What,
        columns: &[Schema],
        place: Place,
        page_rows: u64,
    ) -> Result<Row> {
        let key = self.key(what, place, page_rows);
        let at = units::usize_of(place.offset - key.run.offset);
        match self.page_of(&key, columns).await {
            // It has as many of its rows as there is room for.
            Ok(page) if at >= page.addresses.len() && page_rows > 1 => {}
            Err(error) if error.kind() == Kind::TooLarge && page_rows > 1 => {}
            page => return Ok(Row { page: page?, at }),
        }
        let key = self.key(what, place, 1);
        Ok(Row { page: self.page_of(&key, columns).await?, at: 0 })
    }

    async fn page_of(&self, key: &PageKey, columns: &[Schema]) -> Result<Arc<Page>> {
        let cell = self.pages.cell(key);
        if let Some(page) = cell.get() {
            let stays = page.is_whole()
                || page.failed_for_good.is_some() && page.failed_for_good == self.identity(key.run);
            return Ok(if stays { page.clone() } else { self.again(key, columns, page).await });
        }
        let most = match (key.what, key.run.rows) {
            (What::Descriptors, 1) => LARGEST,
            _ => MOST,
        };
        let scan = || self.scan(key.what, columns, key.run, most);
        let page = cell.get_or_try_init(scan).await?.clone();
        self.pages.weigh(key, page.weight());
        Ok(page)
    }

    /// The page with the columns that failed scanned again, once for all who ask meanwhile.
    async fn again(&self, key: &PageKey, columns: &[Schema], page: &Arc<Page>) -> Arc<Page> {
        let second = PageKey { pass: Pass::Again, ..*key };
        let cell = self.pages.cell(&second);
        let again = cell.get_or_init(|| self.scan_failed(key, columns, page)).await.clone();
        self.pages.forget(&second);
        again
    }

    async fn scan_failed(&self, key: &PageKey, columns: &[Schema], page: &Page) -> Arc<Page> {
        let is_failed = |(_, column): &(usize, &Result<ArrayRef>)| column.is_err();
        let failed: Vec<usize> =
            page.columns.iter().enumerate().filter(is_failed).map(|(at, _)| at).collect();
        let wanted: Vec<Schema> = failed.iter().map(|at| columns[*at].clone()).collect();
        let before = self.identity(key.run);
        let rows = units::u64_of(page.addresses.len());
        let scanned = self.scan_run(&wanted, Run { rows, ..key.run }, LARGEST).await;
        let found = match scanned {
            Ok(scanned) if scanned.rows() == rows => scanned.columns,
            Ok(_) => vec![Err(Error::new(Kind::Table, "its rows are too large")); failed.len()],
            Err(error) => vec![Err(error); failed.len()],
        };
        let mut now = page.columns.clone();
        for (at, column) in failed.into_iter().zip(found) {
            now[at] = column;
        }
        let rows = (page.addresses.clone(), page.ids.clone());
        let page = self.assemble(key.what, key.run, now, rows, before).await;
        self.pages.forget(key);
        // Where another has put one meanwhile, that one is as new.
        let _ = self.pages.cell(key).set(page.clone());
        self.pages.weigh(key, page.weight());
        page
    }

    pub(super) async fn scan(
        &self,
        what: What,
        columns: &[Schema],
        run: Run,
        most: u64,
    ) -> Result<Arc<Page>> {
        let before = self.identity(run);
        let scanned = match self.scan_run(columns, run, most).await {
            Ok(scanned) => scanned,
            Err(error) => return Err(self.judged(error).await),
        };
        let rows = (scanned.addresses.values().to_vec(), scanned.ids.values().to_vec());
        Ok(self.assemble(what, run, scanned.columns, rows, before).await)
    }

    async fn assemble(
        &self,
        what: What,
        run: Run,
        scanned: Vec<Result<ArrayRef>>,
        (addresses, ids): (Vec<u64>, Vec<u64>),
        read_from: Option<Vec<Stamp>>,
    ) -> Arc<Page> {
        let mut columns = Vec::with_capacity(scanned.len());
        for column in scanned {
            columns.push(match column {
                Err(error) => Err(self.judged(error).await),
                array => array,
            });
        }
        let failures = || columns.iter().filter_map(|column| column.as_ref().err());
        for error in failures() {
            tracing::error!(version = %self.id.version, %error, "a field cannot be read");
        }
        let for_good = failures().all(fault::is_of_content);
        let chains = match what {
            What::Descriptors => {
                self.leaves.fields.iter().map(|leaf| self.chain(leaf, &columns, run)).collect()
            }
            What::Columns => Vec::new(),
        };
        let fragment = run.fragment;
        let failed_for_good = read_from.filter(|_| for_good);
        Arc::new(Page { chains, columns, addresses, ids, fragment, failed_for_good })
    }

    fn chain(&self, leaf: &Leaf, columns: &[Result<ArrayRef>], run: Run) -> Result<Chain> {
        match &columns[leaf.column] {
            Ok(column) => {
                self.readable(leaf, run.fragment).and_then(|()| Chain::new(column, &leaf.path))
            }
            Err(error) => Err(error.clone()),
        }
    }

    /// Refuses what the crate decodes to wrong descriptors without an error: a list of legacy Blobs
    /// in a file of format 2.1 or later (lance 14.0.2, found by running it: a value came back null).
    ///
    /// # Errors
    /// [`Kind::Table`]; it is certain from the manifest alone.
    pub(in crate::table) fn readable(&self, leaf: &Leaf, fragment: usize) -> Result<()> {
        let listed = leaf.path.contains(&Step::Element);
        if leaf.layout == Layout::V2 || !listed {
            return Ok(());
        }
        let fragment = self.dataset.manifest.fragments.get(fragment);
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

    /// A failure for what it is: where a file is missing because the version was removed, it is that.
    pub async fn judged(&self, error: Error) -> Error {
        if error.kind() != Kind::Payload || !self.is_removed().await {
            return error;
        }
        error.at(format!("version {} was removed", self.id.version)).of_kind(Kind::Stale)
    }

    /// What a run is read from; `None` where that may be another by the next look and nobody would
    /// know.
    fn identity(&self, run: Run) -> Option<Vec<Stamp>> {
        local::stamps(&self.dataset, self.dataset.manifest.fragments.get(run.fragment)?)
    }

    async fn is_removed(&self) -> bool {
        let manifest = &self.dataset.manifest_location().path;
        let found = self.locator.source.store.inner.head(manifest).await;
        matches!(found, Err(object_store::Error::NotFound { .. }))
    }
}

impl Page {
    /// Whether every column was read.
    pub(super) fn is_whole(&self) -> bool {
        self.columns.iter().all(Result::is_ok)
    }

    /// The position of its fragment in the manifest.
    pub(in crate::table) fn fragment(&self) -> usize {
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

    /// How many rows like these weigh no more than so many bytes: a power of two.
    pub(super) fn rows_within(&self, bytes: u64) -> u64 {
        let rows = units::u64_of(self.addresses.len()).saturating_mul(bytes) / self.weight().max(1);
        1 << rows.clamp(1, super::PAGE_ROWS).ilog2()
    }

    pub(super) fn weight(&self) -> u64 {
        let arrays = self.columns.iter().flatten().map(arrow_array::Array::get_array_memory_size);
        units::u64_of(arrays.sum::<usize>() + self.addresses.len() * 16 + size_of::<Self>())
    }
}

impl Row {
    /// The row's address.
    pub fn address(&self) -> RowAddress {
        RowAddress::new(self.page.addresses[self.at])
    }

    /// Whether the row has a value of a leaf at these indices, or that cannot be read.
    pub fn lists(&self, leaf: LeafIndex, indices: &[u64]) -> bool {
        let Ok(chain) = self.page.chain(leaf) else { return true };
        let element = chain.ordinal(self.at, indices).and_then(|at| chain.at(self.at, at));
        element.is_some_and(|found| !descriptor::is_null(chain.descriptors(), found.position))
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
