//! The table as a place: its store, its base path, and how a version of it is opened.
//!
//! A version is opened by the manifest's path alone, never by way of the newest version, so that one
//! unreadable manifest spoils nothing but itself. What the crate opens by its path is looked at first
//! ([`Source::check`]): a link in a local table leads out of it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use lance::Dataset;
use lance::dataset::builder::DatasetBuilder;
use lance::session::Session;
use lance_file::reader::FileReaderOptions;
use lance_io::local::to_local_path;
use lance_io::object_store::{ObjectStore, ObjectStoreParams, ObjectStoreRegistry};
use lance_table::io::commit::{CommitHandler, ManifestNamingScheme, commit_handler_from_url};
use lance_table::io::manifest::read_manifest;
use object_store::path::Path;
use rustix::fs::{Access, AtFlags, CWD};
use rustix::io::Errno;

use super::sound::passing::Wrap;
use super::storage::Storage;
use super::uri::{HUB, redacted};
use super::{fault, guard};
use crate::error::{Error, Kind, Result};
use crate::store::{Allowed, Depot, Folder, Limits, LocalPlace};
use crate::tree::SnapshotId;

/// Index files are never read here, so their cache is as small as it can be.
const INDEX_CACHE_BYTES: usize = 1 << 20;
/// Manifests, data file footers and deletion vectors; the crate's default is a GiB.
const METADATA_CACHE_BYTES: usize = 128 << 20;

/// Where a branch is.
#[derive(Clone, Debug)]
pub struct BranchPlace {
    /// In the table's store.
    pub path: Path,
    /// As a URI, which may hold credentials.
    pub uri: String,
}

/// How the URI of a file begins.
const FILE: &str = "file:";

/// A connection to one table.
pub struct Source {
    /// The table's URI as an absolute path or URL. It may hold credentials: messages show
    /// [`Source::shown`].
    pub uri: String,
    /// The URI for people.
    pub shown: String,
    /// The table's store.
    pub store: Arc<ObjectStore>,
    base: Path,
    pub(super) params: ObjectStoreParams,
    handler: Arc<dyn CommitHandler>,
    session: Mutex<Arc<Session>>,
    stores: Mutex<HashMap<String, Arc<ObjectStore>>>,
    /// Where links of a local table may lead.
    links: Arc<Allowed>,
    /// Data files whose sidecars have the names of release 2.0.1 (`locate`).
    renamed: Arc<Mutex<HashSet<String>>>,
}

impl Source {
    /// Connects to the store of a table, which an operation waits for so long. A path is made absolute;
    /// nothing of the table is read.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for a URI of no known store, [`Kind::Denied`] without credentials.
    pub async fn connect(table: &str, storage: &Storage, patience: Duration) -> Result<Self> {
        let uri = absolute(table)?;
        let mut params = storage.params();
        params.object_store_wrapper = Some(Arc::new(Wrap { patience }));
        let session = Arc::new(new_session(Arc::default()));
        let opened =
            ObjectStore::from_uri_and_params(session.store_registry(), &uri, &params).await;
        let (store, base) =
            opened.map_err(|e| fault::of(format!("connect to {}", redacted(&uri)), e))?;
        let handler = commit_handler_from_url(&uri, &Some(params.clone())).await;
        let handler =
            handler.map_err(|e| fault::of(format!("connect to {}", redacted(&uri)), e))?;
        let (session, stores) = (Mutex::new(session), Mutex::default());
        let (shown, links) = (redacted(&uri), Arc::default());
        let renamed = Arc::default();
        Ok(Self { uri, shown, store, base, params, handler, session, stores, links, renamed })
    }

    /// The same table, whose links may lead to these places.
    #[must_use]
    pub fn allowing(self, links: Arc<Allowed>) -> Self {
        Self { links, ..self }
    }

    /// The table's folder, where it is one of this machine.
    pub(super) fn folder(&self) -> Option<Folder> {
        is_local(self.store.scheme()).then(|| Folder::named(to_local_path(&self.base)))
    }

    /// Refuses a file or folder of the table that a link leads to, before the crate opens it by its
    /// path.
    ///
    /// # Errors
    /// [`Kind::Denied`] with the flag that would allow it.
    pub(super) fn check(&self, path: &Path) -> Result<()> {
        let Some(folder) = self.folder() else { return Ok(()) };
        LocalPlace::within(folder, to_local_path(path), self.links.clone()).check()
    }

    /// Where a branch's own `_versions` and `data` are; `None` is main. The crate keeps this layout
    /// to itself (lance 14.0.2, `L:dataset/branch_location.rs:110`): `<root>/tree/<branch>`.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for a name that no branch can have.
    pub fn branch(&self, branch: Option<&str>) -> Result<BranchPlace> {
        let Some(branch) = branch else {
            return Ok(BranchPlace { path: self.base.clone(), uri: self.uri.clone() });
        };
        let below = format!("tree/{branch}");
        let relative = Path::parse(&below);
        let relative =
            relative.map_err(|e| Error::caused(Kind::Invalid, format!("branch {branch}"), e))?;
        let path = self.base.parts().chain(relative.parts()).collect();
        Ok(BranchPlace { path, uri: format!("{}/{below}", self.uri) })
    }

    /// Opens one version.
    ///
    /// # Errors
    /// [`Kind::Stale`] where the manifest is gone or another one than the snapshot's,
    /// [`Kind::Denied`] for one behind a link, [`Kind::Table`] where it cannot be read.
    pub async fn open(&self, id: &SnapshotId) -> Result<Dataset> {
        let place = self.branch(id.branch.as_deref())?;
        for naming in [ManifestNamingScheme::V2, ManifestNamingScheme::V1] {
            self.check(&naming.manifest_path(&place.path, id.version.get()))?;
        }
        let what = || format!("open version {} of {}", id.version, redacted(&place.uri));
        let opened = DatasetBuilder::load_by_uri(
            self.session(),
            None,
            Some(reading()),
            place.uri.clone(),
            Some(id.version.get()),
            self.store.clone(),
            place.path.clone(),
            self.handler.clone(),
            Some(self.params.clone()),
            None,
        );
        let opened = guard::apart(what, opened).await;
        let dataset = opened.map_err(|error| match error.kind() {
            Kind::NotFound | Kind::Payload => error.of_kind(Kind::Stale),
            _ => error,
        })?;
        if dataset.manifest.version != id.version.get() {
            return Err(Error::new(Kind::Stale, format!("{}: it is gone", what())));
        }
        Ok(dataset)
    }

    /// The table's scheme, if the crate commits there without a condition: two writers would lose
    /// one of their versions.
    pub(super) fn unsafe_scheme(&self) -> Option<&'static str> {
        let (scheme, _) = self.uri.split_once("://")?;
        (scheme == HUB).then_some(HUB)
    }

    /// What publishes manifests.
    pub(super) fn handler(&self) -> Arc<dyn CommitHandler> {
        self.handler.clone()
    }

    /// Why a commit could not write to the table, where that is known without trying: it is on a disk
    /// of this machine that is mounted read-only, or in a folder of somebody else.
    pub(super) fn unwritable(&self) -> Option<String> {
        self.folder()?;
        let base = std::path::PathBuf::from(to_local_path(&self.base));
        let folders = ["", "data", "_versions", "_transactions", "_blobs", "_deletions"];
        folders.into_iter().find_map(|name| {
            let folder = base.join(name);
            let needed = Access::WRITE_OK | Access::EXEC_OK;
            let checked = rustix::fs::accessat(CWD, &folder, needed, AtFlags::EACCESS);
            let why = match checked {
                Err(Errno::ROFS) => "is on a file system that is mounted read-only",
                Err(Errno::ACCESS | Errno::PERM) => "may not be written to by this user",
                _ => return None,
            };
            Some(format!("nothing can be added to the table: {} {why}", folder.display()))
        })
    }

    /// Refuses a table of which a folder that a commit writes to is elsewhere.
    ///
    /// # Errors
    /// As [`Source::check`].
    pub(super) fn check_to_write(&self) -> Result<()> {
        let folders = ["data", "_blobs", "_deletions", "_transactions", "_versions"];
        folders.into_iter().try_for_each(|folder| self.check(&self.base.clone().join(folder)))
    }

    /// Where objects of the table are made.
    pub fn depot(&self) -> Depot {
        if self.store.is_local() {
            return Depot::Local(to_local_path(&self.base).into(), self.links.clone());
        }
        let scheme = self.uri.split_once("://").map_or("", |(scheme, _)| scheme);
        Depot::Remote(self.store.inner.clone(), self.base.clone(), Limits::of(scheme))
    }

    /// When a version was committed, from its manifest alone.
    ///
    /// # Errors
    /// [`Kind::Table`] where the manifest cannot be read.
    pub async fn committed(&self, manifest: &Path, size: u64) -> Result<SystemTime> {
        let what = || format!("read the manifest {manifest}");
        self.check(manifest)?;
        let (store, path) = (self.store.clone(), manifest.clone());
        let read = async move { read_manifest(&store, &path, Some(size)).await };
        Ok(guard::apart(what, read).await?.timestamp().into())
    }

    /// Forgets what the crate cached, because a manifest was replaced: the crate keys some of its
    /// caches (transactions, `L:dataset.rs:1268`) by version number alone.
    pub fn forget(&self) {
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) =
            Arc::new(new_session(Arc::default()));
    }

    /// The store and path of an absolute URI, with the table's storage options (spec, "External
    /// Resolution"). One store is kept for each bucket: the crate's registry holds weak references
    /// only (`LI:object_store/providers.rs:110`).
    ///
    /// # Errors
    /// [`Kind::Descriptor`] for a scheme that no store has.
    pub async fn resolve(&self, uri: &url::Url) -> Result<(Arc<ObjectStore>, Path)> {
        let what = || format!("resolve External reference {}", redacted(uri.as_str()));
        let registry = self.session().store_registry();
        let bucket = registry
            .calculate_object_store_prefix(uri.as_str(), self.params.storage_options())
            .map_err(|e| Error::caused(Kind::Descriptor, what(), e))?;
        let known =
            self.stores.lock().unwrap_or_else(PoisonError::into_inner).get(&bucket).cloned();
        if let Some(store) = known {
            let path = ObjectStore::extract_path_from_uri(registry, uri.as_str());
            return Ok((store, path.map_err(|e| Error::caused(Kind::Descriptor, what(), e))?));
        }
        let opened = ObjectStore::from_uri_and_params(registry, uri.as_str(), &self.params).await;
        let (store, path) = opened.map_err(|e| match fault::kind(&e) {
            Kind::Table => Error::caused(Kind::Descriptor, what(), e),
            kind => Error::caused(kind, what(), e),
        })?;
        self.stores.lock().unwrap_or_else(PoisonError::into_inner).insert(bucket, store.clone());
        Ok((store, path))
    }

    /// Whether a data file's sidecars are known to have the names of release 2.0.1.
    pub(super) fn has_renamed(&self, data_file: &str) -> bool {
        self.renamed.lock().unwrap_or_else(PoisonError::into_inner).contains(data_file)
    }

    /// What is to be called when they are found to have.
    pub(super) fn note_renamed(&self, data_file: &str) -> impl Fn() + Send + Sync + use<> {
        let (renamed, data_file) = (self.renamed.clone(), data_file.to_owned());
        move || {
            renamed.lock().unwrap_or_else(PoisonError::into_inner).insert(data_file.clone());
        }
    }

    /// The session that versions are opened in.
    pub fn session(&self) -> Arc<Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Decoded arrays are checked before they are used: the crate takes offsets from a file as they are,
/// and Arrow follows them without a look.
pub(super) fn reading() -> FileReaderOptions {
    let mut options = FileReaderOptions::default();
    options.decoder_config.validate_on_decode = true;
    options
}

/// Whether a store, as the crate tells stores apart, is the files of this machine: a scheme alone.
pub(super) fn is_local(store: &str) -> bool {
    matches!(store, "file" | "file+uring" | "file-object-store")
}

pub(super) fn new_session(registry: Arc<ObjectStoreRegistry>) -> Session {
    Session::new(INDEX_CACHE_BYTES, METADATA_CACHE_BYTES, registry)
}

/// A path made absolute; a URI as it is, but for one of a file with a single slash (RFC 8089, "Non-local
/// files", calls it minimal).
fn absolute(table: &str) -> Result<String> {
    if table.contains("://") {
        return Ok(table.trim_end_matches('/').to_owned());
    }
    let path = match table.strip_prefix(FILE) {
        Some(path) if path.starts_with('/') => {
            let uri = format!("{FILE}//{path}");
            return Ok(uri.trim_end_matches('/').to_owned());
        }
        Some(_) if !std::path::Path::new(table).exists() => {
            let text = format!("{table}: a URI of a file names it from / on, as in file:///srv/t");
            return Err(Error::new(Kind::Invalid, text));
        }
        _ => std::path::absolute(table),
    };
    let path = path.map_err(|e| Error::caused(Kind::Invalid, format!("table {table:?}"), e))?;
    let text = path.to_str().ok_or_else(|| {
        Error::new(Kind::Invalid, format!("table path {} is not UTF-8", path.display()))
    })?;
    Ok(text.trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_several_names() {
        let uri = |table| absolute(table).unwrap();
        assert_eq!(uri("file:/srv/t%20x/"), "file:///srv/t%20x");
        assert_eq!(uri("file:///srv/t"), "file:///srv/t");
        assert_eq!(uri("/srv/../srv/t/"), "/srv/../srv/t");
        let error = absolute("file:t").unwrap_err();
        assert!(error.to_string().contains("file:///srv/t"), "{error}");
    }

    #[tokio::test]
    async fn only_where_nothing_locks_a_commit_is_unsafe() {
        for (table, scheme) in [
            ("/t.lance", None),
            ("file:///t", None),
            ("memory://t", None),
            ("hf://datasets/a/b/t", Some("hf")),
        ] {
            let source = Source::connect(table, &Storage::default(), Duration::ZERO).await.unwrap();
            assert_eq!(source.unsafe_scheme(), scheme, "{table}");
        }
    }
}
