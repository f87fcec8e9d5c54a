//! The batches on the staging disk, and every change of them that comes through the mount.
//!
//! ```text
//! inode number ── Nodes ──▶ names from tree/ down ── walk ──▶ directory ── *at(name) ──▶ disk
//! open file    ── OpenFile ───────────────────────────────▶ descriptor ──────────────▶ disk
//!                                   │
//!                     every change: Batches (frozen? when?) and Quota
//! ```
//!
//! Difficulties, and what answers each:
//!
//! 1. An inode number must survive renames and remounts and never name another file: it is that of
//!    the file on the disk (`tree::ino::staged`), which [`nodes`] keeps from being used again while
//!    the kernel knows it, and a generation tells what was deleted behind the kernel's back apart.
//! 2. Between finding a path and using it, a rename may move it: paths are found and used under a
//!    lock that renames take alone ([`Spool::moves`]); open files need no path and no lock.
//! 3. A batch must have its [`Origin`] from the moment it is there, whatever happens: it is made in
//!    `gone/`, given the attribute and moved into `tree/` ([`names`], [`moves`]).
//! 4. A commit needs a batch that does not change: [`batches`]; also while it is not known whether
//!    it took place, and when it did and the batch is still here: [`seals`].
//! 5. Two mounts must not use one folder: `lock` is held for as long as the mount lives ([`home`]).
//! 6. The disk's own errors mean something to programs: they are passed on as they are ([`disk`]).
//! 7. Others may have been in the folder before us: it is opened once, and everything is reached
//!    through its descriptor, never through its path ([`home`]).

mod adopt;
mod attrs;
mod batches;
mod deleting;
mod disk;
mod files;
mod home;
mod moves;
mod names;
mod nodes;
mod origin;
mod presence;
mod quota;
mod reference;
mod seals;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use crate::error::Result;
use crate::private::Folder;
use crate::staging::mark::{Key, Keyed};
use crate::staging::plan::Plan;
use crate::tree::Shape;
use crate::units::{ByteLen, Ino};

pub use attrs::{Attributes, NewTime};
pub use batches::{Activity, Batch, BatchKind, Frozen};
pub use disk::Stat;
pub use files::{OpenFile, Whence};
pub use moves::Moving;
pub use names::{Caller, Listed, NewNode};
pub use presence::OpenDirectory;
pub use reference::Moment;
pub use seals::Seal;

use batches::Batches;
use files::Opens;
use nodes::Nodes;
use quota::Quota;
use seals::Seals;

const TREE: &str = "tree";
const GONE: &str = "gone";
/// The folder of the journals of batches.
const JOURNAL: &str = "journal";
/// The file with a line for each attempt to commit.
pub const COMMITS: &str = "commits.jsonl";
/// What a staging folder is opened for.
#[derive(Clone, Debug)]
pub struct Opening {
    /// The folder; it is made if it is not there.
    pub folder: PathBuf,
    /// How many bytes may be allocated beneath it; `None` is as many as the disk has.
    pub limit: Option<ByteLen>,
    /// The table's URI without credentials, for people.
    pub table: String,
    /// Where it is mounted, for whoever finds the folder locked.
    pub mountpoint: PathBuf,
    /// Owner and group of `staging/`.
    pub owner: (u32, u32),
}

/// The free space of the staging disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// What batches use.
    pub used: ByteLen,
    /// What may still be written: what the disk has, and what is left of the limit.
    pub free: ByteLen,
    /// What the disk has, whatever the limit.
    pub free_on_disk: ByteLen,
}

/// The batches of one mount.
#[derive(Debug)]
pub struct Spool {
    folder: Folder,
    /// Held locked.
    _lock: std::fs::File,
    /// `tree/`.
    tree: OwnedFd,
    /// `gone/`.
    gone: Folder,
    /// `journal/`.
    journals: Arc<Folder>,
    key: Key,
    /// What is not marked may be ours all the same.
    believes_all: bool,
    /// Read while a path is used, written while one changes.
    moves: RwLock<()>,
    nodes: Mutex<Nodes>,
    opens: Opens,
    batches: Batches,
    presence: presence::Presence,
    seals: Seals,
    quota: Quota,
    /// Counts what [`Moment`] tells of.
    moments: AtomicU64,
}

impl Spool {
    /// Opens a staging folder, and makes it if it is not there. What an earlier mount left half
    /// deleted is deleted in the background.
    ///
    /// # Errors
    /// [`Kind::Busy`] where another mount uses the folder, naming it; [`Kind::Unsupported`] where
    /// its disk has no user attributes; [`Kind::Denied`] and [`Kind::Invalid`] where it cannot be
    /// made.
    pub fn open(opening: &Opening) -> Result<Arc<Self>> {
        let folder = Folder::make(&opening.folder)?;
        let lock = home::lock(&folder, &opening.mountpoint)?;
        let was_there = disk::path_fd(&folder, TREE).is_ok();
        let tree = home::tree(&folder, opening.owner)?;
        home::probe(&folder, &tree)?;
        let (key, keyed) = Key::of(&folder)?;
        home::say(&folder, home::TABLE, &opening.table)?;
        let spool = Arc::new(Self {
            gone: folder.below(GONE)?,
            journals: Arc::new(folder.below(JOURNAL)?),
            believes_all: was_there && keyed == Keyed::Now && !folder.was_exposed(),
            folder,
            _lock: lock,
            tree,
            key,
            moves: RwLock::default(),
            nodes: Mutex::default(),
            opens: Opens::default(),
            batches: Batches::new(),
            presence: presence::Presence::new(),
            seals: Seals::default(),
            quota: Quota::new(opening.limit),
            moments: AtomicU64::new(0),
        });
        spool.quota.account(ByteLen::new(0), disk::allocated(&spool.tree));
        // What is in there counts until it is deleted.
        spool.quota.account(ByteLen::new(0), disk::allocated(&spool.gone));
        for name in spool.gone.names()? {
            spool.delete(name.into());
        }
        Ok(spool)
    }

    /// Whether a folder is a staging folder of ours with something in it.
    pub fn has_batches(folder: &Path) -> bool {
        home::has_batches(folder)
    }

    /// Whether the last mount that used a folder was at this mountpoint.
    pub fn was_used_at(folder: &Path, mountpoint: &Path) -> bool {
        let holder = Folder::find(folder).ok().flatten().map(|folder| home::holder(&folder));
        holder.is_some_and(|holder| holder.ends_with(&home::place(mountpoint)))
    }

    /// The staging folder.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// The folder of the journals of batches.
    pub fn journals(&self) -> Arc<Folder> {
        self.journals.clone()
    }

    /// Reads a batch as rows. `rows` is how many the version has that its `@<row>` entries count.
    ///
    /// # Errors
    /// As [`Plan::read`].
    pub fn plan(&self, batch: &Batch, shape: &Shape, rows: u64) -> Result<Plan> {
        Plan::read(&self.tree, &batch.path, &self.key, shape, rows)
    }

    /// The limit, if there is one.
    pub fn limit(&self) -> Option<ByteLen> {
        self.quota.limit()
    }

    /// The text of `commits.jsonl`; empty where nothing was committed yet.
    ///
    /// # Errors
    /// [`Kind::Internal`] where the file is there and cannot be read, [`Kind::Denied`] where it is
    /// somebody else's.
    pub fn commits(&self) -> Result<Vec<u8>> {
        Ok(self.folder.read(COMMITS)?.unwrap_or_default())
    }

    /// What is used and free. Asks the disk, which knows it by heart.
    ///
    /// # Errors
    /// [`Kind::Disk`].
    pub fn space(&self) -> Result<Space> {
        let disk = rustix::fs::fstatvfs(&self.tree);
        let disk = disk.map_err(|errno| disk::failed("ask for free space", errno))?;
        let on_disk = ByteLen::new(disk.f_bavail.saturating_mul(disk.f_frsize));
        let free = self.quota.left().map_or(on_disk, |left| left.min(on_disk));
        Ok(Space { used: self.quota.used(), free, free_on_disk: on_disk })
    }

    /// Takes back lookups that the kernel has forgotten.
    pub fn forget(&self, ino: Ino, lookups: u64) {
        let held = self.nodes().forget(ino, lookups);
        drop(held);
    }

    /// The batch that a number is, if it is one and not something within.
    ///
    /// # Errors
    /// [`Kind::Disk`] with ESTALE for a number that is not known.
    pub fn batch_of(&self, ino: Ino) -> Result<Option<Arc<str>>> {
        let path = self.nodes().path(ino)?;
        Ok(path.batch().filter(|_| path.names.len() == 1).cloned())
    }

    /// The batch that a number is in; `None` for `staging/` itself and for what has no name any
    /// more.
    ///
    /// # Errors
    /// As [`Spool::batch_of`].
    pub fn batch_around(&self, ino: Ino) -> Result<Option<Arc<str>>> {
        Ok(self.nodes().path(ino)?.batch().cloned())
    }

    /// Where a batch is, for people, and for who opens what was looked at before.
    fn path_of(&self, batch: &str) -> PathBuf {
        self.folder.path().join(TREE).join(batch)
    }

    fn nodes(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps every path what it is until the guard is dropped.
    fn still(&self) -> RwLockReadGuard<'_, ()> {
        self.moves.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// A directory for `*at` calls. The path must be kept still.
    fn directory(&self, path: &nodes::Path) -> Result<OwnedFd> {
        let names = path.names.iter().map(|name| &**name);
        let walked = match &path.base {
            Some(gone) => disk::walk(gone, names),
            None => disk::walk(&self.tree, names),
        };
        walked.map_err(|errno| disk::failed(format!("open {:?}", path.shown()), errno))
    }

    /// What a path names, without opening it. The path must be kept still.
    fn at(&self, path: &nodes::Path) -> Result<OwnedFd> {
        let mut above = path.clone();
        let Some(name) = above.names.pop() else {
            let fd = path.base.as_deref().unwrap_or(&self.tree);
            return rustix::io::fcntl_dupfd_cloexec(fd, 0)
                .map_err(|errno| disk::failed("duplicate a descriptor", errno));
        };
        disk::path_fd(self.directory(&above)?, &*name)
            .map_err(|errno| disk::failed(format!("open {:?}", path.shown()), errno))
    }
}

#[cfg(test)]
mod tests;
