//! Pinning: a tag that keeps the mounted version from cleanup for the life of the mount.
//!
//! A version may be removed while files of it are open (spec, "Snapshot Lifetime": an open handle
//! does not pin the snapshot). A local object survives that by its file descriptor; a remote one
//! only by a tag. The tag's name is computed from host and mountpoint, so that a mount which died
//! leaves one tag at the most; the next mount at the same place takes it over, and whoever wrote it
//! down before knows whose it is.

use std::sync::Arc;

use lance::Dataset;
use lance::dataset::refs::Ref;

use super::{Snapshot, Table, fault};
use crate::error::Result;
use crate::name;
use crate::store::bare_tag;
use crate::tree::SnapshotId;
use crate::units::Version;

/// A version that is pinned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The tag that holds it.
    pub tag: String,
}

impl Pin {
    /// The pin of a mount, by host and mountpoint.
    pub fn of(place: &str) -> Self {
        Self { tag: format!("lancefs-pin-{}", name::short_hash(place)) }
    }
}

impl Table {
    /// Tags the newest version that the table shows.
    ///
    /// # Errors
    /// [`crate::error::Kind::Denied`] where tags may not be written.
    pub async fn pin(&self, pin: &Pin) -> Result<()> {
        let entry = self.catalog.latest(None).await?;
        let snapshot = self.snapshot(self.numbers.slot(&entry.id)).await?;
        let version = Ref::Version(
            entry.id.branch.as_deref().map(ToOwned::to_owned),
            Some(entry.id.version.get()),
        );
        write_tag(&snapshot.dataset, &pin.tag, version).await?;
        tracing::info!(version = %entry.id.version, tag = pin.tag, "pinned");
        Ok(())
    }

    /// Takes a pin away.
    ///
    /// # Errors
    /// Where the store does not let the tag be removed.
    pub async fn unpin(&self, pin: &Pin) -> Result<()> {
        self.unprotect(&pin.tag).await
    }

    /// Keeps a version of main from cleanup, by a tag (spec, "Snapshot Lifetime").
    ///
    /// # Errors
    /// [`crate::error::Kind::Denied`] where tags may not be written.
    pub async fn protect(&self, tag: &str, version: u64) -> Result<()> {
        let dataset = &self.newest().await?.dataset;
        // Where it is there already, nobody needs the right to write it.
        if let Ok(known) = dataset.tags().get(tag).await
            && (known.branch.as_deref(), known.version) == (None, version)
        {
            return Ok(());
        }
        write_tag(dataset, tag, Ref::Version(None, Some(version))).await
    }

    /// Takes a tag away; one that is not there is no failure.
    ///
    /// # Errors
    /// Where the store does not let the tag be removed.
    pub async fn unprotect(&self, tag: &str) -> Result<()> {
        match self.newest().await?.dataset.tags().delete(tag).await {
            Ok(()) | Err(lance::Error::RefNotFound { .. }) => Ok(()),
            Err(e) => Err(fault::of(format!("remove tag {tag}"), e)),
        }
    }

    /// The newest version of main, open.
    ///
    /// # Errors
    /// As [`super::Catalog::latest`] and [`Table::snapshot`].
    pub async fn newest(&self) -> Result<Arc<Snapshot>> {
        let entry = self.catalog.latest(None).await?;
        self.snapshot(self.numbers.slot(&entry.id)).await
    }

    /// The newest version of main as it is now, whatever was listed before, open.
    ///
    /// # Errors
    /// As [`Table::newest`].
    pub async fn look_newest(&self) -> Result<Arc<Snapshot>> {
        self.catalog.look().await?;
        self.newest().await
    }

    /// A version of main that was seen before, open.
    ///
    /// # Errors
    /// [`crate::error::Kind::Stale`] where it is gone or another one has its number.
    pub async fn pinned(&self, version: u64, manifest: &str) -> Result<Arc<Snapshot>> {
        let version = Version::new(version);
        let id = SnapshotId { branch: None, version, manifest: bare_tag(manifest).into() };
        self.snapshot(self.numbers.slot(&id)).await
    }
}

async fn write_tag(dataset: &Dataset, tag: &str, version: Ref) -> Result<()> {
    let tags = dataset.tags();
    let written = match tags.get(tag).await {
        Ok(_) => tags.update(tag, version).await,
        Err(_) => tags.create(tag, version).await,
    };
    written.map_err(|e| fault::of(format!("write tag {tag}"), e))
}
