//! One Lance table: its versions, and in each the rows, values and where their bytes are.
//!
//! Only this module knows the lance crate and Arrow. Difficulties, and what answers each:
//!
//! 1. Which versions, tags and branches there are changes at any time: [`Catalog`].
//! 2. A version never changes, but opening one costs a manifest: a few stay open ([`Table::snapshot`]).
//! 3. The crate does not resolve every descriptor, nor one by one: [`descriptor`] reads them,
//!    [`locate`] resolves them, by the spec.
//! 4. A table may have been written by somebody hostile: [`external`] decides which references are
//!    followed and `bases` which bases, and no file is reached through a link.

mod bases;
mod catalog;
mod changed;
mod commit;
mod decode;
pub mod decoder;
mod describe;
pub mod descriptor;
pub mod external;
mod fault;
mod guard;
mod json;
mod lives;
mod locate;
mod managed;
mod pin;
#[cfg(feature = "aws")]
mod profile;
mod reference;
mod refreshed;
pub mod remedy;
mod rows;
mod scan;
mod schema;
mod sizes;
mod snapshot;
mod sound;
mod source;
mod storage;
mod targets;
mod unchanged;
mod uri;
mod values;
pub mod write;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use crate::error::{Error, Kind, Result};
use crate::store::lru::Lru;
use crate::store::{Opener, Origin, Settings, bare_tag};
use crate::tree::ino::{Layout, Numbers};
use crate::tree::{Slot, SnapshotId};
use crate::units::{self, Version};

pub use catalog::{Catalog, Entry, TagTarget, Versions};
pub use commit::{Chances, Found, Prepared, Publication, Unpublished, in_time};
pub use describe::{row_json, version_json};
pub use external::Policy;
pub use locate::Located;
pub use managed::{CONSEQUENCES, Enabled, Managed, Off};
pub use pin::Pin;
pub use snapshot::{Row, Snapshot, Value};
pub use source::Source;
pub use storage::Storage;
pub use uri::redacted;
pub use values::Element;

use locate::Locator;
use sizes::Sizes;
use snapshot::Pages;

/// Snapshots that stay open. Each holds its manifest (a few KiB to some MiB); a walk over 10,000
/// versions must not hold them all.
const OPEN_SNAPSHOTS: u64 = 16;
/// Memory for pages of descriptors and columns, in bytes: some million descriptors.
const PAGES_BYTES: u64 = 64 << 20;

/// How a table is shown.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// How long a list of versions, tags or branches is believed.
    pub refresh: Duration,
    /// Which External references are followed.
    pub policy: Policy,
    /// What is passed to the object store: credentials, endpoints.
    pub storage: Storage,
    /// The one version, tag or branch to show; `None` shows all.
    pub at: Option<String>,
    /// How payloads are read.
    pub reading: Settings,
}

/// When a version was committed.
#[derive(Clone, Copy, Debug)]
pub enum Committed {
    /// For good.
    Known(SystemTime),
    /// Its manifest cannot be read now: the time of that file.
    Unread(SystemTime),
}

/// One table.
pub struct Table {
    /// Where it is.
    pub source: Arc<Source>,
    /// What is in it.
    pub catalog: Catalog,
    /// The inode numbers of its snapshots.
    pub numbers: Arc<Numbers>,
    /// Which External references are followed.
    pub policy: Arc<Policy>,
    /// Opens payloads.
    pub opener: Arc<Opener>,
    snapshots: Lru<Slot, Arc<Snapshot>>,
    committed: Mutex<HashMap<Slot, SystemTime>>,
    newest: Mutex<(Version, u64)>,
    pages: Arc<Pages>,
    sizes: Arc<Sizes>,
}

impl Table {
    /// Opens a table that has at least one version.
    ///
    /// # Errors
    /// [`Kind::NotFound`] where there is no table or no such reference, and whatever connecting to
    /// its store gives.
    pub async fn open(uri: &str, options: Options) -> Result<Self> {
        let source = Source::connect(uri, &options.storage, options.reading.patience.total).await;
        let source = source.map_err(|e| remedy::of(e, uri))?.allowing(options.policy.local());
        let source = Arc::new(source);
        let catalog = Catalog::new(source.clone(), options.refresh);
        let latest = catalog.latest(None).await;
        latest.map_err(|e| match e.kind() {
            Kind::NotFound => {
                Error::new(Kind::NotFound, format!("there is no Lance table at {}", source.shown))
            }
            _ => remedy::of(e, uri),
        })?;
        let only = match &options.at {
            Some(reference) => Some(resolve(&catalog, reference).await?),
            None => None,
        };
        Ok(Self {
            catalog: match only {
                Some(entry) => catalog.only(entry),
                None => catalog,
            },
            source,
            numbers: Arc::default(),
            policy: Arc::new(options.policy),
            opener: Arc::new(Opener::new(options.reading).await?),
            snapshots: Lru::new(OPEN_SNAPSHOTS),
            committed: Mutex::default(),
            newest: Mutex::default(),
            pages: Arc::new(Lru::new(PAGES_BYTES)),
            sizes: Arc::new(Sizes::new(options.refresh)),
        })
    }

    /// The open snapshot of a slot.
    ///
    /// # Errors
    /// [`Kind::Stale`] where the version is gone, [`Kind::Table`] where it cannot be read.
    pub async fn snapshot(&self, slot: Slot) -> Result<Arc<Snapshot>> {
        let cell = self.snapshots.cell(&slot);
        if let Some(snapshot) = cell.get() {
            return Ok(snapshot.clone());
        }
        let snapshot = cell.get_or_try_init(|| self.open_snapshot(slot)).await?.clone();
        self.snapshots.weigh(&slot, 1);
        Ok(snapshot)
    }

    /// When a version was committed, without opening it: from its manifest where that is local,
    /// else by the store's clock, which spares a request for each version that is merely listed.
    pub async fn committed(&self, entry: &Entry) -> Committed {
        let slot = self.numbers.slot(&entry.id);
        let known =
            self.committed.lock().unwrap_or_else(PoisonError::into_inner).get(&slot).copied();
        match known {
            Some(time) => Committed::Known(time),
            None if self.source.store.is_local() => self.read_committed(slot, entry).await,
            None => Committed::Known(entry.modified),
        }
    }

    /// How many snapshots are open, and pages and bytes cached, for the status file.
    pub fn sizes(&self) -> ((u64, u64), (u64, u64)) {
        (self.snapshots.size(), self.pages.size())
    }

    /// Bytes of data files that the newest version opened so far names.
    pub fn newest_bytes(&self) -> u64 {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner).1
    }

    async fn read_committed(&self, slot: Slot, entry: &Entry) -> Committed {
        match self.source.committed(&entry.manifest, entry.manifest_size).await {
            Ok(time) => {
                self.committed.lock().unwrap_or_else(PoisonError::into_inner).insert(slot, time);
                Committed::Known(time)
            }
            Err(error) => {
                tracing::warn!(version = %entry.id.version, %error, "cannot read the manifest, its file's time is shown");
                Committed::Unread(entry.modified)
            }
        }
    }

    async fn open_snapshot(&self, slot: Slot) -> Result<Arc<Snapshot>> {
        let id = self.numbers.snapshot(slot);
        let id = id.ok_or_else(|| {
            Error::new(Kind::Stale, format!("slot {slot:?} is not of this mount"))
        })?;
        let dataset = Arc::new(self.source.open(&id).await?);
        if is_another(&id, dataset.manifest_location().e_tag.as_deref()) {
            self.source.forget();
            return Err(Error::new(
                Kind::Stale,
                format!("version {} was replaced by another table's", id.version),
            ));
        }
        let origin = Origin { life: self.catalog.life(&id), snapshot: id.to_string().into() };
        let locator = Locator::new(dataset, self.source.clone(), self.policy.clone(), origin);
        let snapshot = Snapshot::new(
            id.clone(),
            slot,
            locator,
            self.pages.clone(),
            self.sizes.clone(),
            self.opener.clone(),
        )
        .await?;
        let layout = Layout::new(snapshot.rows.count(), snapshot.leaves.fields.len())?;
        self.numbers.set_layout(&id, layout);
        self.committed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(slot, snapshot.committed);
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if id.version >= newest.0 {
            *newest = (id.version, snapshot.dataset.manifest.summary().total_files_size);
        }
        drop(newest);
        tracing::debug!(
            version = %id.version,
            rows = snapshot.rows.count(),
            fragments = snapshot.rows.fragments(),
            fields = units::u64_of(snapshot.leaves.fields.len()),
            "opened a version"
        );
        Ok(Arc::new(snapshot))
    }
}

/// Whether an `e_tag` is another than the identity that was listed, where both are known.
fn is_another(id: &SnapshotId, e_tag: Option<&str>) -> bool {
    e_tag.is_some_and(|e_tag| bare_tag(e_tag) != &*id.manifest)
}

/// The version that a `--at` reference names: a number, else a tag, else a branch's newest.
async fn resolve(catalog: &Catalog, reference: &str) -> Result<Entry> {
    if let Some(number) = crate::name::decimal(reference)
        && let Ok(entry) = catalog.version(None, Version::new(number)).await
    {
        return Ok(entry);
    }
    let name: Arc<str> = reference.into();
    if catalog.tags().await?.contains(&name) {
        let target = catalog.tag(&name).await?;
        let branch = target.branch.map(Arc::from);
        return catalog.version(branch.as_ref(), target.version).await;
    }
    if catalog.branches().await?.contains(&name) {
        return catalog.latest(Some(&name)).await;
    }
    Err(Error::new(
        Kind::NotFound,
        format!("the table has no version, tag or branch {reference:?}"),
    ))
}
