//! New objects: written whole, verified, and never written again.
//!
//! 1. A file may be larger than memory: it goes in parts, several at once, and all uploads of a
//!    mount share one budget of bytes ([`Deposit::budget`]). It may also be larger than a store takes
//!    ([`Limits`]).
//! 2. Ten thousand small files are not ten thousand objects: an object is made of [`Piece`]s, one
//!    after another.
//! 3. A file may change while it is read: its [`Fingerprint`] is compared before and after, and an
//!    object of changed files is not used.
//! 4. A store may say that all is well and have less: the object's length is asked for at the end.
//! 5. A name is used once (it holds a UUID), so nothing can be overwritten; what an attempt leaves
//!    behind has the name that the table's cleanup looks for, from the first byte.

mod limits;
mod local;
mod piece;
mod pool;
mod remote;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _};
use tokio::sync::Semaphore;

pub use limits::Limits;
pub use piece::{Fingerprint, Piece};

use pool::Pool;

use super::{Allowed, Folder, LocalPlace, Opener, kind_of};
use crate::error::{Error, IoContext as _, Kind, Result};

/// A part of an upload, in bytes: above the 5 MiB that S3 asks for, and large enough that a round
/// trip is little beside it.
const PART: u64 = 8 << 20;
/// What may be in memory of all uploads, in bytes.
const BUDGET: u64 = 96 << 20;
/// Permits are counted in KiB, because a semaphore's count ends at 2^32 on some machines.
const PERMIT: u64 = 1 << 10;

/// Where objects are made: the root of a table.
#[derive(Clone, Debug)]
pub enum Depot {
    /// A folder of this machine, and where links in it may lead.
    Local(PathBuf, Arc<Allowed>),
    /// A prefix of an object store, and what the store takes.
    Remote(Arc<dyn ObjectStore>, Path, Limits),
}

/// What a store says of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its length in bytes.
    pub len: u64,
    /// When it was written, by the store's clock.
    pub modified: SystemTime,
}

impl Seen {
    /// How long ago it was written; 0 where the store's clock is ahead of ours.
    pub fn age(&self) -> Duration {
        self.modified.elapsed().unwrap_or_default()
    }
}

/// How far an upload is; shared by whoever shows it.
#[derive(Debug, Default)]
pub struct Progress {
    /// Bytes that the store has.
    pub done: AtomicU64,
}

impl Progress {
    fn add(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Makes the objects of one table.
pub struct Deposit {
    depot: Depot,
    opener: Arc<Opener>,
    budget: Arc<Semaphore>,
    pool: Arc<Pool>,
    patience: Duration,
}

impl Deposit {
    /// For a table's root. No single request waits longer than `patience`.
    pub fn new(depot: Depot, opener: Arc<Opener>, patience: Duration) -> Self {
        let permits = usize::try_from(BUDGET / PERMIT).unwrap_or(Semaphore::MAX_PERMITS);
        let budget = Arc::new(Semaphore::new(permits));
        Self { depot, opener, budget, pool: Arc::default(), patience }
    }

    /// Makes an object of pieces, one after another, and checks its length. `name` is relative to
    /// the root.
    ///
    /// # Errors
    /// [`Kind::Invalid`] where no object can be so large, before anything is sent;
    /// [`Kind::Busy`] where a file changed meanwhile, [`Kind::Payload`] where the store has another
    /// length, and whatever reading or writing gives. What was written then belongs to no version.
    pub async fn put(&self, name: &str, pieces: &[Piece], progress: &Progress) -> Result<()> {
        let len: u64 = pieces.iter().map(Piece::len).sum();
        self.limits().check(len)?;
        match &self.depot {
            Depot::Local(root, links) => {
                let folder = root.join(name).parent().map_or_else(|| root.clone(), Into::into);
                LocalPlace::within(Folder::named(root), folder, links.clone()).check()?;
                self.put_local(root, name, pieces, progress).await?;
            }
            Depot::Remote(store, root, limits) => {
                let part = limits.part_of(len);
                self.put_remote((store, root), name, pieces, part, progress).await?;
            }
        }
        let found = self.length(name).await?;
        if found == Some(len) {
            return Ok(());
        }
        let found = found.map_or_else(|| "is not there".to_owned(), |f| format!("has {f} bytes"));
        Err(Error::new(Kind::Payload, format!("{name} {found} after {len} were written to it")))
    }

    /// What the store takes.
    pub fn limits(&self) -> Limits {
        match &self.depot {
            Depot::Local(..) => Limits::NONE,
            Depot::Remote(_, _, limits) => *limits,
        }
    }

    /// The length of an object in bytes; `None` where there is none.
    ///
    /// # Errors
    /// Where the store does not answer.
    pub async fn length(&self, name: &str) -> Result<Option<u64>> {
        Ok(self.look(name).await?.map(|seen| seen.len))
    }

    /// What an object is like; `None` where there is none.
    ///
    /// # Errors
    /// Where the store does not answer.
    pub async fn look(&self, name: &str) -> Result<Option<Seen>> {
        match &self.depot {
            Depot::Local(root, _) => {
                let what = || format!("look at {name}");
                let meta = match std::fs::metadata(root.join(name)) {
                    Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
                    meta => meta.context(Kind::Payload, what)?,
                };
                let modified = meta.modified().context(Kind::Payload, what)?;
                Ok(Some(Seen { len: meta.len(), modified }))
            }
            Depot::Remote(store, root, _) => {
                match self.within(name, store.head(&below(root, name))).await? {
                    Ok(meta) => {
                        Ok(Some(Seen { len: meta.size, modified: meta.last_modified.into() }))
                    }
                    Err(object_store::Error::NotFound { .. }) => Ok(None),
                    Err(e) => Err(Error::caused(kind_of(&e), format!("head {name}"), e)),
                }
            }
        }
    }

    /// Takes an object away that no version names; one that is not there is no failure.
    ///
    /// # Errors
    /// Where the store refuses or does not answer.
    pub async fn delete(&self, name: &str) -> Result<()> {
        match &self.depot {
            Depot::Local(root, _) => match std::fs::remove_file(root.join(name)) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    Err(e).context(Kind::Payload, || format!("delete {name}"))
                }
                _ => Ok(()),
            },
            Depot::Remote(store, root, _) => {
                match self.within(name, store.delete(&below(root, name))).await? {
                    Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
                    Err(e) => Err(Error::caused(kind_of(&e), format!("delete {name}"), e)),
                }
            }
        }
    }

    async fn within<T>(&self, name: &str, request: impl Future<Output = T>) -> Result<T> {
        within(self.patience, name, request).await
    }
}

async fn within<T>(patience: Duration, name: &str, request: impl Future<Output = T>) -> Result<T> {
    let late = |_| {
        let seconds = patience.as_secs_f64();
        Error::new(Kind::Timeout, format!("{name}: the store did not answer in {seconds} s"))
    };
    tokio::time::timeout(patience, request).await.map_err(late)
}

fn below(root: &Path, name: &str) -> Path {
    root.parts().chain(Path::from(name).parts()).collect()
}
