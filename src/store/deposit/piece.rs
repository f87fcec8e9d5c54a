//! What an object is made of.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use crate::error::{Error, IoContext as _, Kind, Result};
use crate::store::{Interval, ObjectRef};

/// What tells a file from what it was before: a change through any path moves its `ctime`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fingerprint {
    /// The number of the file on its disk.
    pub inode: u64,
    /// Its length in bytes.
    pub len: u64,
    /// When its bytes changed last: seconds since 1970, and nanoseconds.
    pub mtime: (i64, i64),
    /// When anything about it changed last, likewise.
    pub ctime: (i64, i64),
}

impl Fingerprint {
    /// Of a file, as it is now.
    pub fn of(meta: &std::fs::Metadata) -> Self {
        Self {
            inode: meta.ino(),
            len: meta.len(),
            mtime: (meta.mtime(), meta.mtime_nsec()),
            ctime: (meta.ctime(), meta.ctime_nsec()),
        }
    }
}

/// Bytes that become a part of an object.
#[derive(Clone, Debug)]
pub enum Piece {
    /// A file of this machine, as it was when it was looked at.
    File(PathBuf, Fingerprint),
    /// An interval of another object.
    Object(ObjectRef, Interval),
}

impl Piece {
    /// How many bytes it has.
    pub fn len(&self) -> u64 {
        match self {
            Self::File(_, fingerprint) => fingerprint.len,
            Self::Object(_, interval) => interval.len.get(),
        }
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Opens a file that has not changed since it was looked at.
pub(super) fn open(path: &Path, expected: &Fingerprint) -> Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = rustix::fs::open(path, flags, Mode::empty())
        .map_err(std::io::Error::from)
        .context(Kind::Busy, || format!("open {}", path.display()))?;
    let file = File::from(file);
    unchanged(&file, path, expected)?;
    Ok(file)
}

/// Whether a file is still what it was.
pub(super) fn unchanged(file: &File, path: &Path, expected: &Fingerprint) -> Result<()> {
    let meta = file.metadata().context(Kind::Internal, || format!("stat {}", path.display()))?;
    if Fingerprint::of(&meta) == *expected {
        return Ok(());
    }
    Err(Error::new(Kind::Busy, format!("{} changed while it was uploaded", path.display())))
}
