//! Every operation of the mounted tree, async, in our own words: no fuser, no lance, no errno.
//!
//! Difficulties, and what answers each:
//!
//! 1. One bad value must not spoil its directory: a value that cannot be resolved is still listed
//!    and looked up ([`Looked::Failing`]), so that its siblings show and its
//!    `user.lancefs.error` can be read; asking for its attributes or its bytes gives the error.
//! 2. The kernel remembers names for as long as we say: within a version that is for ever
//!    ([`WITHIN_VERSION`]), elsewhere one refresh period.
//! 3. Nothing is kept for a name that was looked up: numbers are decoded (`tree::ino`), texts are
//!    in a small cache, handles live as long as the file is open. What is staged is the exception;
//!    there the numbers are the disk's.
//! 4. The object of a value can become another one: an External object is somebody else's, and what is
//!    on a disk can be cut. Then the value gets another inode under its number ([`Generations`]).
//! 5. Everything but `staging/` is read-only, whatever the caller may do: [`change`] asks the node
//!    before anything else. A batch that was committed must be gone at once, so the kernel
//!    remembers nothing of what `staging/` and `commit/` hold ([`DEEPER`] is for what lies deeper).

mod attr;
mod change;
mod generations;
mod handles;
mod lookup;
mod open;
mod readdir;
mod refer;
mod refusal;
mod staging;
mod status;
mod xattr;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use ::lru::LruCache;
use bytes::Bytes;

use crate::error::{Error, Kind, Result};
use crate::staging::spool::Stat;
use crate::store::RangeRead;
use crate::store::lru::Lru;
use crate::table::{Snapshot, Table};
use crate::tree::{self, LeafIndex, Node, Slot};
use crate::units::{ByteLen, Ino, RowIndex};

pub use crate::staging::commit::Commit;
pub use crate::tree::FileKind;
pub use change::{Change, Made, Target};
pub use handles::Handle;
pub use open::{Content, Opened, Whole};
pub use readdir::Sink;
pub use staging::{Staging, Writable};
pub use status::{Counter, Counters, Space};

use generations::Generations;
use handles::Handles;

/// How long names and attributes within a version are believed: they never change, a day is enough
/// to never ask again and short enough to forget an inode number of a removed version.
pub const WITHIN_VERSION: Duration = Duration::from_hours(24);
/// How long names and attributes beneath a batch are believed. All changes come through the kernel,
/// so it knows them before us; what is in a batch goes with it.
pub const DEEPER: Duration = Duration::from_secs(1);
/// Memory for rendered `row.json` and `.version.json` texts, in bytes.
const TEXTS_BYTES: u64 = 16 << 20;
/// Nodes whose last failure is remembered for `user.lancefs.error`.
const FAILURES: usize = 1024;

/// How the tree looks to the kernel.
#[derive(Clone, Debug)]
pub struct Look {
    /// Owner of everything.
    pub uid: u32,
    /// Group of everything.
    pub gid: u32,
    /// Permission bits of files.
    pub file_mode: u16,
    /// Permission bits of directories.
    pub dir_mode: u16,
    /// How long names outside of versions are believed.
    pub refresh: Duration,
}

/// The attributes of a node.
#[derive(Clone, Copy, Debug)]
pub struct Attr {
    /// Its number.
    pub ino: Ino,
    /// Tells it from an earlier node of the same number; 0 but for what is staged and for values whose
    /// object can become another one.
    pub generation: u64,
    /// What it is.
    pub kind: FileKind,
    /// Its permission bits.
    pub mode: u16,
    /// How many names it has.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Exact, in bytes; of a symlink, its target's length.
    pub size: ByteLen,
    /// What `st_blocks` tells, in bytes.
    pub allocated: ByteLen,
    /// Time of the last access.
    pub accessed: SystemTime,
    /// Time of the last change of its content.
    pub modified: SystemTime,
    /// Time of the last change of its attributes.
    pub changed: SystemTime,
    /// How long these attributes are believed.
    pub ttl: Duration,
}

/// The answer to a lookup.
#[derive(Clone, Debug)]
pub enum Looked {
    /// The node, and how long its name is believed.
    Found(Attr, Duration),
    /// It is there by its name, and cannot be resolved: its attributes must be asked for, and fail.
    /// Nothing of it is remembered, for a failure passes.
    Failing(Attr),
    /// It is not there, and never will be: may be remembered.
    Never(Duration),
}

/// The mounted tree.
pub struct Fs {
    table: Arc<Table>,
    look: Look,
    staging: Staging,
    /// What was found out about staging later.
    decided: OnceLock<Staging>,
    started: SystemTime,
    handles: Handles,
    /// Texts, and which ones are too large.
    texts: Lru<Node, Result<Bytes>>,
    /// Objects that staged files refer to, open.
    referred: Lru<refer::ObjectKey, Arc<dyn RangeRead>>,
    failures: Mutex<LruCache<Ino, String>>,
    generations: Generations,
    counters: Counters,
}

impl Fs {
    /// The tree of a table.
    pub fn new(table: Arc<Table>, look: Look, staging: Staging) -> Self {
        let most = std::num::NonZeroUsize::new(FAILURES).unwrap_or(std::num::NonZeroUsize::MIN);
        Self {
            table,
            look,
            staging,
            decided: OnceLock::new(),
            started: SystemTime::now(),
            handles: Handles::default(),
            texts: Lru::new(TEXTS_BYTES),
            referred: Lru::new(refer::REFERRED),
            failures: Mutex::new(LruCache::new(most)),
            generations: Generations::default(),
            counters: Counters::default(),
        }
    }

    /// The table that is shown.
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// How the tree looks.
    pub fn look(&self) -> &Look {
        &self.look
    }

    /// The figures of this mount.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Remembers why an operation on a node failed, and logs it; an expected miss is not a failure.
    pub fn failed(&self, operation: &'static str, ino: Ino, error: &Error) {
        // The one place whose mode promises more: what to do instead is said there.
        if error.kind() == Kind::ReadOnly && self.is_commit(ino) {
            self.remember(ino, error);
        }
        match error.kind() {
            Kind::NotFound
            | Kind::NoAttribute
            | Kind::ReadOnly
            | Kind::NotDirectory
            | Kind::IsDirectory
            | Kind::NameTooLong
            | Kind::Refused
            | Kind::Renewed
            | Kind::Continues
            | Kind::Interrupted
            | Kind::Unsupported => {
                tracing::debug!(operation, %ino, %error, "refused");
                return;
            }
            Kind::Disk(errno) if !staging::is_failure(errno) => {
                tracing::debug!(operation, %ino, %error, "refused by the staging disk");
                return;
            }
            Kind::Payload
            | Kind::Table
            | Kind::Descriptor
            | Kind::Stale
            | Kind::Denied
            | Kind::Timeout
            | Kind::Invalid
            | Kind::Faulty
            | Kind::Busy
            | Kind::Disk(_)
            | Kind::TooLarge
            | Kind::Quota
            | Kind::Internal => {}
        }
        self.counters.add(Counter::Failures, 1);
        tracing::error!(operation, %ino, %error, "failed");
        self.remember(ino, error);
    }

    fn remember(&self, ino: Ino, error: &Error) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.put(ino, error.chain());
    }

    /// Why an operation on a node failed last.
    fn failure(&self, ino: Ino) -> Option<String> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).peek(&ino).cloned()
    }

    /// Forgets a failure, because its number is that of something new.
    fn forgive(&self, ino: Ino) {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).pop(&ino);
    }

    /// Says that the inode of a number is to end: gives a path in the mount whose lookup ends it.
    pub fn renew(&self, ino: Ino) -> PathBuf {
        Path::new(tree::CONTROL).join(self.generations.announce(ino))
    }

    /// Whether nobody has looked that path up yet.
    pub fn is_renewing(&self, ino: Ino) -> bool {
        self.generations.is_announced(ino)
    }

    fn number(&self, node: &Node) -> Result<Ino> {
        self.table.numbers.number(node)
    }

    fn node(&self, ino: Ino) -> Result<Node> {
        self.table.numbers.node(ino)
    }

    async fn snapshot(&self, slot: Slot) -> Result<Arc<Snapshot>> {
        self.table.snapshot(slot).await
    }
}

/// Says in which version and row something failed.
fn place(snapshot: &Snapshot, row: RowIndex) -> String {
    match &snapshot.id.branch {
        Some(branch) => format!("branch {branch} version {} row {row}", snapshot.id.version),
        None => format!("version {} row {row}", snapshot.id.version),
    }
}

/// Says in which version, row and field something failed.
fn place_of_value(snapshot: &Snapshot, row: RowIndex, leaf: LeafIndex) -> Result<String> {
    Ok(format!("{}: field {}", place(snapshot, row), snapshot.leaf(leaf)?.display))
}

/// An operation for files on a directory.
fn is_directory(node: &Node) -> Error {
    Error::new(Kind::IsDirectory, format!("{node:?} is a directory"))
}

/// An operation for directories on a file.
fn not_directory(node: &Node) -> Error {
    Error::new(Kind::NotDirectory, format!("{node:?} is no directory"))
}
