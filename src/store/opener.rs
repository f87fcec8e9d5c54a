//! Opens objects, and remembers those of stores, so that a stream goes on in the next file of the
//! same object.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lru::LruCache;

use super::blocks::ObjectId;
use super::cached::{Cached, Shared};
use super::descriptors::Descriptors;
use super::pinned::Pinned;
use super::{
    Disk, Figures, Local, Meta, Meter, ObjectKey, ObjectRef, Patience, Place, RangeRead, Remote,
    Sizes,
};
use crate::error::{Error, Kind, Result};
use crate::units::ByteLen;

/// Objects that are remembered: each is some hundred bytes and its streams. A table of Dedicated
/// objects has one for each value; those not read for long start anew.
const OBJECTS: usize = 4096;

/// How stores are read.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Sizes of the cache and of what is fetched.
    pub sizes: Sizes,
    /// How long a store is waited for.
    pub patience: Patience,
    /// The folder of the disk cache and its size; none without one.
    pub disk: Option<(PathBuf, ByteLen)>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            sizes: Sizes {
                memory: ByteLen::mib(512),
                block: ByteLen::kib(16),
                read_ahead: ByteLen::mib(128),
            },
            patience: Patience::within(Duration::from_mins(1)),
            disk: None,
        }
    }
}

/// Opens the objects of one mount.
pub struct Opener {
    shared: Arc<Shared>,
    objects: Mutex<LruCache<ObjectKey, Cached>>,
    last: AtomicU64,
    descriptors: Descriptors,
}

impl Opener {
    /// With nothing in memory.
    ///
    /// # Errors
    /// Where the disk cache cannot be used.
    pub async fn new(settings: Settings) -> Result<Self> {
        let disk = match settings.disk {
            Some((folder, size)) => Some(Disk::open(&folder, size).await?),
            None => None,
        };
        let most = NonZeroUsize::new(OBJECTS).unwrap_or(NonZeroUsize::MIN);
        Ok(Self {
            shared: Arc::new(Shared::new(settings.sizes, settings.patience, disk)),
            objects: Mutex::new(LruCache::new(most)),
            last: AtomicU64::new(0),
            descriptors: Descriptors::default(),
        })
    }

    /// Writes to the disk cache what is on its way there.
    pub async fn close(&self) {
        if let Some(disk) = &self.shared.disk {
            disk.close().await;
        }
    }

    /// Opens an object for reading. A local object is opened here and now; a remote one is not
    /// asked for until it is read.
    ///
    /// # Errors
    /// `Kind::Payload` where a local object is absent or no regular file, `Kind::Denied` where the
    /// file system refuses.
    pub fn open(&self, object: &ObjectRef) -> Result<Arc<dyn RangeRead>> {
        Ok(match &object.place {
            Place::Local(place) => {
                Arc::new(Local::open(place, &self.descriptors, self.shared.buffers.clone())?)
            }
            Place::Remote(store, path) => {
                let remote = Remote::new(store.clone(), path.clone(), object.uri.clone());
                Arc::new(self.cached(object, remote))
            }
        })
    }

    /// Whether something that was read of an object may be in memory.
    pub fn is_known(&self, object: &ObjectRef) -> bool {
        let objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        objects.contains(&object.key())
    }

    /// What an object is now: of a store, one HEAD.
    ///
    /// # Errors
    /// As [`RangeRead::length`].
    pub async fn look(&self, object: &ObjectRef) -> Result<Meta> {
        Ok(self.open_now(object).await?.1)
    }

    /// Opens an object as what it is now, and says what that is: if it becomes another one, reading
    /// fails. Of a store, one HEAD.
    ///
    /// # Errors
    /// As [`RangeRead::length`].
    pub async fn open_now(&self, object: &ObjectRef) -> Result<(Arc<dyn RangeRead>, Meta)> {
        if let Place::Remote(store, path) = &object.place {
            let remote = || Remote::new(store.clone(), path.clone(), object.uri.clone());
            let known = self.cached(object, remote());
            let meta = known.head().await?;
            if known.is_still(&meta) {
                return Ok((Arc::new(known), meta));
            }
            let now = self.cached(object, remote());
            // It is not, where it was replaced once more: then the next read fails.
            now.is_still(&meta);
            return Ok((Arc::new(now), meta));
        }
        let opened = self.open(object)?;
        let file = opened
            .file()
            .ok_or_else(|| Error::new(Kind::Internal, format!("{} is no file", object.uri)))?;
        let (pinned, meta) = Pinned::new(opened, file)?;
        Ok((Arc::new(pinned), meta))
    }

    /// What has been asked of stores.
    pub fn figures(&self) -> &Figures {
        &self.shared.figures
    }

    /// Bytes in the block cache, and bytes on their way to it.
    pub fn size(&self) -> (ByteLen, ByteLen) {
        self.shared.blocks.size()
    }

    fn cached(&self, object: &ObjectRef, remote: Remote) -> Cached {
        let key = object.key();
        let mut objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = objects.get(&key).filter(|object| !object.is_replaced()) {
            return known.clone();
        }
        let from = Arc::new(Meter::new(Arc::new(remote), self.shared.figures.clone()));
        let id = ObjectId(self.last.fetch_add(1, Ordering::Relaxed) + 1);
        let cached = Cached::new(id, object, from, self.shared.clone());
        objects.put(key, cached.clone());
        cached
    }
}
