//! A commit that becomes one certain version, or none.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use futures::stream::BoxStream;
use lance::Error;
use lance_io::object_store::ObjectStore;

use lance_table::format::{IndexMetadata, Manifest, Transaction};
use lance_table::io::commit::{
    CommitError, CommitHandler, ManifestLocation, ManifestNamingScheme, ManifestWriter,
    PredecessorIdentity,
};
use object_store::ObjectStore as Store;
use object_store::path::Path;

type Result<T, E = Error> = std::result::Result<T, E>;

/// The table's own handler, which refuses every other version than this one.
pub(super) struct Only {
    pub(super) inner: Arc<dyn CommitHandler>,
    pub(super) version: u64,
    /// Set before anything is written.
    pub(super) begun: Arc<AtomicBool>,
}

impl Only {
    fn begin(&self, manifest: &Manifest) -> Result<(), CommitError> {
        if manifest.version != self.version {
            return Err(CommitError::CommitConflict);
        }
        self.begun.store(true, Ordering::SeqCst);
        Ok(())
    }
}

impl fmt::Debug for Only {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, version {} only", self.inner, self.version)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl CommitHandler for Only {
    async fn commit(
        &self,
        manifest: &mut Manifest,
        indices: Option<Vec<IndexMetadata>>,
        base_path: &Path,
        object_store: &ObjectStore,
        manifest_writer: ManifestWriter,
        naming_scheme: ManifestNamingScheme,
        transaction: Option<Transaction>,
    ) -> Result<ManifestLocation, CommitError> {
        self.begin(manifest)?;
        let write = self.inner.commit(
            manifest,
            indices,
            base_path,
            object_store,
            manifest_writer,
            naming_scheme,
            transaction,
        );
        write.await
    }

    async fn commit_after(
        &self,
        manifest: &mut Manifest,
        indices: Option<Vec<IndexMetadata>>,
        base_path: &Path,
        object_store: &ObjectStore,
        manifest_writer: ManifestWriter,
        naming_scheme: ManifestNamingScheme,
        transaction: Option<Transaction>,
        predecessor: &PredecessorIdentity,
    ) -> Result<ManifestLocation, CommitError> {
        self.begin(manifest)?;
        let write = self.inner.commit_after(
            manifest,
            indices,
            base_path,
            object_store,
            manifest_writer,
            naming_scheme,
            transaction,
            predecessor,
        );
        write.await
    }

    fn is_version_not_found_definitive(&self) -> bool {
        self.inner.is_version_not_found_definitive()
    }

    fn propagate_commit_error_after_success(&self) -> bool {
        self.inner.propagate_commit_error_after_success()
    }

    async fn resolve_latest_location(
        &self,
        base_path: &Path,
        object_store: &ObjectStore,
    ) -> Result<ManifestLocation> {
        self.inner.resolve_latest_location(base_path, object_store).await
    }

    async fn resolve_version_location(
        &self,
        base_path: &Path,
        version: u64,
        object_store: &dyn Store,
    ) -> Result<ManifestLocation> {
        self.inner.resolve_version_location(base_path, version, object_store).await
    }

    async fn version_exists(
        &self,
        base_path: &Path,
        version: u64,
        object_store: &dyn Store,
        naming_scheme: ManifestNamingScheme,
    ) -> Result<bool> {
        self.inner.version_exists(base_path, version, object_store, naming_scheme).await
    }

    fn list_detached_manifest_locations<'a>(
        &self,
        base_path: &Path,
        object_store: &'a ObjectStore,
    ) -> BoxStream<'a, Result<ManifestLocation>> {
        self.inner.list_detached_manifest_locations(base_path, object_store)
    }

    fn list_manifest_locations<'a>(
        &self,
        base_path: &Path,
        object_store: &'a ObjectStore,
        sorted_descending: bool,
    ) -> BoxStream<'a, Result<ManifestLocation>> {
        self.inner.list_manifest_locations(base_path, object_store, sorted_descending)
    }

    fn list_manifest_locations_since<'a>(
        &self,
        base_path: &Path,
        object_store: &'a ObjectStore,
        since_version: u64,
    ) -> BoxStream<'a, Result<ManifestLocation>> {
        self.inner.list_manifest_locations_since(base_path, object_store, since_version)
    }

    fn supports_predecessor_condition(&self) -> bool {
        self.inner.supports_predecessor_condition()
    }

    async fn resolve_latest_identity(
        &self,
        base_path: &Path,
        object_store: &ObjectStore,
    ) -> Result<Option<PredecessorIdentity>> {
        self.inner.resolve_latest_identity(base_path, object_store).await
    }

    async fn resolve_identity(
        &self,
        base_path: &Path,
        object_store: &ObjectStore,
        version: u64,
    ) -> Result<Option<PredecessorIdentity>> {
        self.inner.resolve_identity(base_path, object_store, version).await
    }

    async fn forget_version(&self, base_path: &Path, version: u64, identity: &str) -> Result<()> {
        self.inner.forget_version(base_path, version, identity).await
    }

    async fn delete(&self, base_path: &Path) -> Result<()> {
        self.inner.delete(base_path).await
    }
}
