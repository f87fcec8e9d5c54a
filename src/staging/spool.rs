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
//! 5. Two mounts must not use one folder: `lock` is held for as long as the mount lives.
//! 6. The disk's own errors mean something to programs: they are passed on as they are ([`disk`]).

mod adopt;
mod attrs;
mod batches;
mod deleting;
mod disk;
mod files;
mod moves;
mod names;
mod nodes;
mod origin;
mod quota;
mod reference;
mod seals;

use std::fs::{File, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use rustix::fs::{Gid, Mode, OFlags, Uid, XattrFlags};
use rustix::io::Errno;

use crate::error::{Error, IoContext as _, Kind, Result};
use crate::units::{ByteLen, Ino};

pub use attrs::{Attributes, NewTime};
pub use batches::{Activity, Batch, BatchKind, Frozen};
pub use disk::Stat;
pub use files::{OpenFile, Whence};
pub use moves::Moving;
pub use names::{Caller, Listed, NewNode};
pub use seals::Seal;

use batches::Batches;
use files::Opens;
use nodes::Nodes;
use quota::Quota;
use seals::Seals;

const TREE: &str = "tree";
const GONE: &str = "gone";
const LOCK: &str = "lock";
const TABLE: &str = "table";
/// The folder of the journals of batches.
pub const JOURNAL: &str = "journal";
/// The file with a line for each attempt to commit.
pub const COMMITS: &str = "commits.jsonl";
/// How long a killed process may take to let go of a folder, and how often that is looked at.
const LAST_BREATH: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(10);
/// Tells whether a disk has user attributes.
const PROBE: &str = "user.lancefs.probe";
/// The mode of `tree/` when it is made: what `staging/` shows.
const TREE_MODE: u16 = 0o755;

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
    folder: PathBuf,
    /// Held locked.
    _lock: File,
    /// The folder.
    base: OwnedFd,
    /// `tree/`.
    tree: OwnedFd,
    /// Read while a path is used, written while one changes.
    moves: RwLock<()>,
    nodes: Mutex<Nodes>,
    opens: Opens,
    batches: Batches,
    seals: Seals,
    quota: Quota,
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
        let folder = &opening.folder;
        let what = || format!("make the staging folder {}", folder.display());
        for name in [GONE, JOURNAL] {
            std::fs::create_dir_all(folder.join(name)).context(Kind::Invalid, what)?;
        }
        let lock = lock(folder, &opening.mountpoint)?;
        make_tree(folder, opening.owner)?;
        probe(folder)?;
        std::fs::write(folder.join(TABLE), format!("{}\n", opening.table))
            .context(Kind::Invalid, what)?;
        let open = |path: &Path| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::open(path, flags, Mode::empty()).map_err(std::io::Error::from)
        };
        let spool = Arc::new(Self {
            base: open(folder).context(Kind::Invalid, what)?,
            tree: open(&folder.join(TREE)).context(Kind::Invalid, what)?,
            folder: folder.clone(),
            _lock: lock,
            moves: RwLock::default(),
            nodes: Mutex::default(),
            opens: Opens::default(),
            batches: Batches::new(),
            seals: Seals::default(),
            quota: Quota::new(opening.limit),
        });
        spool.quota.account(ByteLen::new(0), allocated(&folder.join(TREE)));
        for entry in std::fs::read_dir(folder.join(GONE)).context(Kind::Invalid, what)?.flatten() {
            // Their bytes count until they are deleted.
            spool.quota.account(ByteLen::new(0), allocated(&entry.path()));
            spool.delete(entry.file_name());
        }
        Ok(spool)
    }

    /// Whether a folder is a staging folder with something in it.
    pub fn has_batches(folder: &Path) -> bool {
        std::fs::read_dir(folder.join(TREE)).is_ok_and(|mut batches| batches.next().is_some())
    }

    /// Whether the last mount that used a folder was at this mountpoint.
    pub fn was_used_at(folder: &Path, mountpoint: &Path) -> bool {
        let holder = std::fs::read_to_string(folder.join(LOCK)).unwrap_or_default();
        holder.trim_end().ends_with(&format!(" at {}", mountpoint.display()))
    }

    /// The staging folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The limit, if there is one.
    pub fn limit(&self) -> Option<ByteLen> {
        self.quota.limit()
    }

    /// The text of `commits.jsonl`; empty where nothing was committed yet.
    ///
    /// # Errors
    /// [`Kind::Internal`] where the file is there and cannot be read.
    pub fn commits(&self) -> Result<Vec<u8>> {
        match std::fs::read(self.folder.join(COMMITS)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            read => read.context(Kind::Internal, || format!("read {COMMITS}")),
        }
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

/// Locks a folder for this process.
fn lock(folder: &Path, mountpoint: &Path) -> Result<File> {
    let what = || format!("lock the staging folder {}", folder.display());
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(folder.join(LOCK))
        .context(Kind::Invalid, what)?;
    let here = format!(" at {}", mountpoint.display());
    let begun = Instant::now();
    loop {
        let refused = match file.try_lock() {
            Ok(()) => break,
            Err(refused) => refused,
        };
        let mut holder = String::new();
        let _ = file.rewind().and_then(|()| file.read_to_string(&mut holder));
        // Nobody serves this mountpoint any more: who holds the folder for it is about to end.
        let is_ending = holder.trim_end().ends_with(&here) && begun.elapsed() < LAST_BREATH;
        match refused {
            TryLockError::WouldBlock if is_ending => std::thread::sleep(LOOK),
            TryLockError::WouldBlock => {
                let text = format!(
                    "{} is used by the mount of {}; give another --staging-dir",
                    folder.display(),
                    holder.trim()
                );
                return Err(Error::new(Kind::Busy, text));
            }
            TryLockError::Error(error) => {
                return Err(Error::caused(Kind::Invalid, what(), error));
            }
        }
    }
    let holder = format!("process {} at {}\n", std::process::id(), mountpoint.display());
    file.set_len(0).context(Kind::Invalid, what)?;
    file.rewind().context(Kind::Invalid, what)?;
    file.write_all(holder.as_bytes()).context(Kind::Invalid, what)?;
    Ok(file)
}

fn make_tree(folder: &Path, (uid, gid): (u32, u32)) -> Result<()> {
    let tree = folder.join(TREE);
    let what = || format!("make {}", tree.display());
    match std::fs::create_dir(&tree) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => return Ok(()),
        made => made.context(Kind::Invalid, what)?,
    }
    rustix::fs::chmod(&tree, Mode::from_bits_retain(TREE_MODE.into()))
        .map_err(std::io::Error::from)
        .context(Kind::Invalid, what)?;
    if rustix::process::geteuid().is_root() {
        rustix::fs::chown(&tree, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
            .map_err(std::io::Error::from)
            .context(Kind::Invalid, what)?;
    }
    sync_directory(folder)
}

/// Whether the disk keeps user attributes, which say where a batch comes from.
fn probe(folder: &Path) -> Result<()> {
    let tree = folder.join(TREE);
    let tried = rustix::fs::setxattr(&tree, PROBE, b"1", XattrFlags::empty())
        .and_then(|()| rustix::fs::removexattr(&tree, PROBE));
    tried.map_err(|errno| {
        let kind = if errno == Errno::NOTSUP { Kind::Unsupported } else { Kind::Invalid };
        let text = format!(
            "the disk of {} has no user extended attributes; give --staging-dir on another disk",
            folder.display()
        );
        Error::caused(kind, text, std::io::Error::from(errno))
    })
}

/// Bytes that are allocated beneath a path.
fn allocated(path: &Path) -> ByteLen {
    use std::os::unix::fs::MetadataExt as _;
    let files = walkdir::WalkDir::new(path).into_iter().flatten();
    let files = files.filter(|entry| entry.file_type().is_file());
    let blocks: u64 = files.filter_map(|file| file.metadata().ok()).map(|meta| meta.blocks()).sum();
    ByteLen::new(blocks.saturating_mul(512))
}

/// Makes what was made, renamed or removed in a directory durable.
fn sync_directory(path: &Path) -> Result<()> {
    let directory = File::open(path).and_then(|directory| directory.sync_all());
    directory.context(Kind::Internal, || format!("sync {}", path.display()))
}

#[cfg(test)]
mod tests;
