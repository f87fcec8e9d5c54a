//! Which object it is that has this name: what its answers, its descriptions and the disk cache say.

use std::sync::atomic::Ordering;

use tokio::time::timeout;

use super::Object;
use crate::error::{Error, Kind, Result};
use crate::store::disk::{Disk, Known};
use crate::store::fetch::Meta;
use crate::store::{Origin, Owner};

impl Object {
    /// The disk cache, for an object that it may keep, and what names the object.
    pub(super) fn disk(&self) -> Option<(&Disk, &Origin)> {
        match &self.owner {
            Owner::Lance(origin) => Some((self.shared.disk.as_ref()?, origin)),
            Owner::Others => None,
        }
    }

    /// What the disk cache finds its blocks by; nothing where only the length is known.
    pub(super) fn known(&self) -> Option<Known<'_>> {
        let meta = self.known.get().filter(|meta| meta.tag.is_some())?;
        Some(Known { name: &self.name, meta, block: self.shared.sizes.block })
    }

    /// Finds out, once, whether what the disk cache has under the object's name is of this object.
    pub(super) async fn recall(&self) {
        let Some((disk, origin)) = self.disk() else { return };
        let recall = || async {
            let Some((meta, named_by)) = disk.meta(&self.name).await else { return };
            if *named_by != *origin.snapshot {
                // Another snapshot kept it, perhaps of a table that was dropped since.
                let asked = timeout(self.shared.patience.stall, self.from.head()).await;
                match asked {
                    Ok(Ok(now)) if now == meta => {
                        disk.keep_meta(&self.name, &meta, &origin.snapshot);
                    }
                    Ok(Ok(_)) => return disk.forget(&self.name),
                    // The first answer with bytes will tell.
                    Ok(Err(_)) | Err(_) => return,
                }
            }
            let _ = self.known.set(meta);
        };
        if self.known.get().is_none() {
            self.recalled.get_or_init(recall).await;
        }
    }

    /// Compares an answer with the first one.
    pub(super) fn compare(&self, meta: &Meta) -> Result<()> {
        let known = self.known.get_or_init(|| {
            if let Some((disk, origin)) = self.disk() {
                disk.keep_meta(&self.name, meta, &origin.snapshot);
            }
            meta.clone()
        });
        let is_described = self.described.get().is_none_or(|length| *length == meta.length);
        if known == meta && is_described { Ok(()) } else { self.replaced(meta) }
    }

    fn replaced(&self, meta: &Meta) -> Result<()> {
        self.replaced.store(true, Ordering::Relaxed);
        if let Some((disk, _)) = self.disk() {
            disk.forget(&self.name);
        }
        let known = self.known.get();
        let text = format!("{} was replaced while it was read: {known:?}, now {meta:?}", self.uri);
        Err(Error::new(Kind::Stale, text))
    }

    /// Takes a description, or compares it with what is known.
    pub(super) fn describe(&self, meta: &Meta) -> Result<()> {
        if meta.tag.is_some() {
            return self.compare(meta);
        }
        // Without a tag only its length can be compared with that of what is read, before or later.
        let described = *self.described.get_or_init(|| meta.length);
        let read = self.known.get().map_or(described, |known| known.length);
        if described == meta.length && read == meta.length { Ok(()) } else { self.replaced(meta) }
    }
}
