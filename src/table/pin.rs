//! Pinning: a tag that keeps the mounted version from cleanup for the life of the mount.
//!
//! A version may be removed while files of it are open (spec, "Snapshot Lifetime": an open handle
//! does not pin the snapshot). A local object survives that by its file descriptor; a remote one
//! only by a tag. The tag's name is computed from host and mountpoint, so that a mount which died
//! leaves one tag at the most, and the next mount at the same place takes it over.

use lance::dataset::refs::Ref;

use super::{Table, fault};
use crate::error::Result;
use crate::name;

/// A version that is pinned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The tag that holds it.
    pub tag: String,
}

impl Table {
    /// Tags the newest version that the table shows.
    ///
    /// # Errors
    /// [`crate::error::Kind::Denied`] where tags may not be written.
    pub async fn pin(&self, place: &str) -> Result<Pin> {
        let entry = self.catalog.latest(None).await?;
        let snapshot = self.snapshot(self.numbers.slot(&entry.id)).await?;
        let tag = format!("lancefs-pin-{}", name::short_hash(place));
        let version = Ref::Version(
            entry.id.branch.as_deref().map(ToOwned::to_owned),
            Some(entry.id.version.get()),
        );
        let tags = snapshot.dataset.tags();
        let written = match tags.get(&tag).await {
            Ok(_) => tags.update(&tag, version).await,
            Err(_) => tags.create(&tag, version).await,
        };
        written
            .map_err(|e| fault::of(format!("pin version {} by tag {tag}", entry.id.version), e))?;
        tracing::info!(version = %entry.id.version, tag, "pinned");
        Ok(Pin { tag })
    }

    /// Takes a pin away.
    ///
    /// # Errors
    /// Where the store does not let the tag be removed.
    pub async fn unpin(&self, pin: &Pin) -> Result<()> {
        let entry = self.catalog.latest(None).await?;
        let snapshot = self.snapshot(self.numbers.slot(&entry.id)).await?;
        let removed = snapshot.dataset.tags().delete(&pin.tag).await;
        removed.map_err(|e| fault::of(format!("remove tag {}", pin.tag), e))
    }
}
