//! Which versions, tags and branches there are: by name, without reading a manifest.
//!
//! 1. Other processes commit, tag and clean up at any time, and an idle mount must send no request:
//!    each list is read again on access only, at most once per refresh period ([`Refreshed`]), and the
//!    versions of a table on this machine only where they can have changed ([`unchanged`]).
//! 2. A failing store must not empty a listing: the last good list stays until one succeeds. A
//!    table that was dropped is no failure; it has no versions.
//! 3. A table that was dropped and recreated has other manifests under the same numbers: a version's
//!    identity includes its manifest's `e_tag`, or size and time where the store has none.
//! 4. One unreadable tag must not hide the others, and the crate's own list of tags loses names that
//!    are not ASCII (lance 14.0.2, `L:dataset/refs.rs:167` encodes a name that is encoded already):
//!    names are listed and decoded here, and a tag's file is read when somebody looks at it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use lance::dataset::refs::{TagContents, base_branches_contents_path, base_tags_path, tag_path};
use lance_table::io::commit::ManifestNamingScheme;
use object_store::ObjectMeta;
use object_store::path::Path;

use super::lives::Lives;
use super::refreshed::{Loaded, Refreshed};
use super::source::Source;
use super::unchanged::Stamps;
use super::uri::redacted;
use super::{fault, unchanged};
use crate::error::{Error, Kind, Result};
use crate::store::bare_tag;
use crate::tree::SnapshotId;
use crate::units::Version;

/// One version that is there.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its identity.
    pub id: SnapshotId,
    /// When its manifest was written, by the store's clock.
    pub modified: SystemTime,
    /// Its manifest.
    pub manifest: Path,
    /// The manifest's length in bytes.
    pub manifest_size: u64,
}

/// The versions of one branch.
pub type Versions = BTreeMap<Version, Entry>;

/// Where a tag points.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TagTarget {
    /// The branch, `None` for main.
    pub branch: Option<String>,
    /// The version on it.
    pub version: Version,
}

type VersionList = Arc<Refreshed<Versions>>;

/// The lists of one table.
pub struct Catalog {
    source: Arc<Source>,
    refresh: Duration,
    only: Option<Entry>,
    versions: Mutex<HashMap<Option<Arc<str>>, VersionList>>,
    stamps: Arc<Stamps>,
    tags: Arc<Refreshed<Vec<Arc<str>>>>,
    branches: Arc<Refreshed<Vec<Arc<str>>>>,
    targets: Mutex<HashMap<Arc<str>, Arc<Refreshed<TagTarget>>>>,
    lives: Lives,
}

impl Catalog {
    /// The lists of a table, read again at most once per `refresh`.
    pub fn new(source: Arc<Source>, refresh: Duration) -> Self {
        Self {
            source,
            refresh,
            only: None,
            versions: Mutex::default(),
            stamps: Arc::default(),
            tags: Arc::default(),
            branches: Arc::default(),
            targets: Mutex::default(),
            lives: Lives::default(),
        }
    }

    /// The same table as if it had this version and nothing else (`--at`).
    #[must_use]
    pub fn only(self, entry: Entry) -> Self {
        Self { only: Some(entry), ..self }
    }

    /// How long a list is believed.
    pub fn refresh(&self) -> Duration {
        self.refresh
    }

    /// Whether this shows one version only.
    pub fn is_pinned(&self) -> bool {
        self.only.is_some()
    }

    /// The versions of a branch, `None` for main. A branch or table that is gone has none.
    ///
    /// # Errors
    /// Where the store fails and no earlier list is known.
    pub async fn versions(&self, branch: Option<&Arc<str>>) -> Result<Arc<Versions>> {
        if let Some(only) = &self.only {
            return Ok(Arc::new(Versions::from([(only.id.version, only.clone())])));
        }
        let list = self.list(branch.cloned());
        let before = list.last();
        let (source, stamps) = (self.source.clone(), self.stamps.clone());
        let (branch, is_known) = (branch.cloned(), before.is_some());
        let load = || async move {
            let place = source.branch(branch.as_deref())?.path.join("_versions");
            let seen = unchanged::stamp(&source, &place);
            if is_known && stamps.are(branch.as_ref(), seen) {
                return Ok(Loaded::Same);
            }
            let listed = list_versions(source, branch.clone()).await?;
            stamps.note(branch, seen);
            Ok(Loaded::New(listed))
        };
        // A table without a version is one that is away: it may be back at the next look.
        let is_away = before.as_ref().is_some_and(|before| before.is_empty());
        let period = if is_away { Duration::ZERO } else { self.refresh };
        let now = list.get_changed(period, load).await?;
        // Most callers are given the list that was there: it is not compared with itself.
        let newer = before.filter(|before| !Arc::ptr_eq(before, &now));
        if newer.is_some_and(|before| replaced(&before, &now)) {
            self.source.forget();
        }
        Ok(now)
    }

    /// The versions of main as they are now, whatever was listed before: for who is about to
    /// commit, or has.
    ///
    /// # Errors
    /// Where the store fails.
    pub async fn look(&self) -> Result<Arc<Versions>> {
        let started = Instant::now();
        let now = Arc::new(list_versions(self.source.clone(), None).await?);
        let list = self.list(None);
        if list.last().is_some_and(|before| replaced(&before, &now)) {
            self.source.forget();
        }
        list.set(started, now.clone());
        Ok(now)
    }

    /// The life of the table that a version is of, as far as the last list tells; nothing is asked.
    pub fn life(&self, id: &SnapshotId) -> u64 {
        self.lives.of(id, self.list(id.branch.clone()).last())
    }

    fn list(&self, branch: Option<Arc<str>>) -> VersionList {
        let mut lists = self.versions.lock().unwrap_or_else(PoisonError::into_inner);
        lists.entry(branch).or_default().clone()
    }

    /// The versions of main that were listed last, without looking again.
    pub fn known_versions(&self) -> Vec<u64> {
        let lists = self.versions.lock().unwrap_or_else(PoisonError::into_inner);
        let listed = lists.get(&None).and_then(|list| list.last());
        match (&self.only, listed) {
            (Some(only), _) => vec![only.id.version.get()],
            (None, Some(versions)) => versions.keys().map(|version| version.get()).collect(),
            (None, None) => Vec::new(),
        }
    }

    /// The newest version of a branch.
    ///
    /// # Errors
    /// [`Kind::NotFound`] where it has none.
    pub async fn latest(&self, branch: Option<&Arc<str>>) -> Result<Entry> {
        let versions = self.versions(branch).await?;
        let newest = versions.last_key_value().map(|(_, entry)| entry.clone());
        newest.ok_or_else(|| {
            Error::new(Kind::NotFound, format!("{} has no versions", self.source.shown))
        })
    }

    /// One version.
    ///
    /// # Errors
    /// [`Kind::NotFound`] where there is none of that number.
    pub async fn version(&self, branch: Option<&Arc<str>>, version: Version) -> Result<Entry> {
        let entry = self.versions(branch).await?.get(&version).cloned();
        entry.ok_or_else(|| {
            let branch = branch.map_or("main", |b| b);
            Error::new(
                Kind::NotFound,
                format!("no version {version} on {branch} of {}", self.source.shown),
            )
        })
    }

    /// The tags' names, sorted.
    ///
    /// # Errors
    /// Where the store fails and no earlier list is known.
    pub async fn tags(&self) -> Result<Arc<Vec<Arc<str>>>> {
        self.tags.get(self.refresh, || list_names(self.source.clone(), base_tags_path)).await
    }

    /// The branches' names without main, sorted.
    ///
    /// # Errors
    /// Where the store fails and no earlier list is known.
    pub async fn branches(&self) -> Result<Arc<Vec<Arc<str>>>> {
        let load = || list_names(self.source.clone(), base_branches_contents_path);
        self.branches.get(self.refresh, load).await
    }

    /// Where a tag points.
    ///
    /// # Errors
    /// [`Kind::NotFound`] where there is no such tag, [`Kind::Table`] where its file is unreadable.
    pub async fn tag(&self, tag: &Arc<str>) -> Result<TagTarget> {
        let target = self
            .targets
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(tag.clone())
            .or_default()
            .clone();
        let found = target.get(self.refresh, || read_tag(self.source.clone(), tag.clone())).await;
        if found.is_err() {
            self.targets.lock().unwrap_or_else(PoisonError::into_inner).remove(tag);
        }
        Ok((*found?).clone())
    }
}

async fn read_tag(source: Arc<Source>, tag: Arc<str>) -> Result<TagTarget> {
    let path = tag_path(&source.branch(None)?.path, &tag);
    source.check(&path)?;
    let contents = TagContents::from_path(&path, &source.store).await;
    let contents = contents.map_err(|e| match fault::kind(&e) {
        Kind::Payload => Error::caused(Kind::NotFound, format!("no tag {tag}"), e),
        _ => fault::of(format!("read tag {tag}"), e),
    })?;
    Ok(TagTarget { branch: contents.branch, version: Version::new(contents.version) })
}

async fn list_versions(source: Arc<Source>, branch: Option<Arc<str>>) -> Result<Versions> {
    let place = source.branch(branch.as_deref())?;
    let directory = place.path.join("_versions");
    source.check(&directory)?;
    let found = source.store.list_with_delimiter(Some(&directory)).await;
    let found = found.map(|listed| listed.objects).or_else(|e| match fault::kind(&e) {
        Kind::Payload | Kind::NotFound => Ok(Vec::new()),
        _ => Err(fault::of(format!("list the versions of {}", redacted(&place.uri)), e)),
    })?;
    let entries = found.into_iter().filter_map(|meta| entry(branch.clone(), meta));
    Ok(entries.map(|entry| (entry.id.version, entry)).collect())
}

async fn list_names(source: Arc<Source>, directory: fn(&Path) -> Path) -> Result<Vec<Arc<str>>> {
    let directory = directory(&source.branch(None)?.path);
    source.check(&directory)?;
    let files = source.store.read_dir(directory.clone()).await;
    let files = files.or_else(|e| match fault::kind(&e) {
        Kind::Payload | Kind::NotFound => Ok(Vec::new()),
        _ => Err(fault::of(format!("list {directory}"), e)),
    })?;
    let stems = files.iter().filter_map(|file| file.strip_suffix(".json"));
    let decoded = stems.map(|stem| percent_encoding::percent_decode_str(stem).decode_utf8_lossy());
    let mut names: Vec<Arc<str>> = decoded.map(|name| Arc::from(name.as_ref())).collect();
    names.sort_unstable();
    Ok(names)
}

/// The version that a file in `_versions` is the manifest of; `None` for a file that is none.
fn entry(branch: Option<Arc<str>>, meta: ObjectMeta) -> Option<Entry> {
    let file = meta.location.filename()?;
    let version = ManifestNamingScheme::detect_scheme(file)?.parse_version(file)?;
    let time = meta.last_modified;
    let manifest = match &meta.e_tag {
        Some(tag) => bare_tag(tag).into(),
        None => format!("{}-{}", meta.size, time.timestamp_micros()).into(),
    };
    Some(Entry {
        id: SnapshotId { branch, version: Version::new(version), manifest },
        modified: time.into(),
        manifest: meta.location,
        manifest_size: meta.size,
    })
}

/// Whether a list contradicts an earlier one: a version has another manifest.
pub(super) fn replaced(before: &Versions, now: &Versions) -> bool {
    now.iter().any(|(version, entry)| before.get(version).is_some_and(|old| old.id != entry.id))
}
