//! Looks at what is in a batch without following or waiting for anything.
//!
//! Whoever writes to the mount decides what lies there: a symlink to somebody else's file, or a
//! fifo that never answers. So everything is opened relative to its directory, never through a
//! symlink, and only if it is a regular file.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};

use super::order::natural;
use crate::store::Fingerprint;

/// A directory that is open.
pub struct Folder(OwnedFd);

/// What a name in a directory is.
pub enum Thing {
    /// A directory.
    Folder,
    /// A regular file, open for reading.
    File(File, Fingerprint),
    /// A symlink, and where it points.
    Link(OsString),
    /// Something that is no data: its word.
    Special(&'static str),
}

impl Folder {
    /// Opens the directory that a descriptor stands for.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn open(directory: impl AsFd) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::openat(directory, ".", flags, Mode::empty())?))
    }

    /// Opens a directory in this one; fails if it is a symlink to one.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn below(&self, name: &OsStr) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::openat(&self.0, name, flags, Mode::empty())?))
    }

    /// The names in it, in natural order.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.0)? {
            let name = OsString::from_vec(entry?.file_name().to_bytes().to_vec());
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        names.sort_by(|a, b| natural(a.as_bytes(), b.as_bytes()));
        Ok(names)
    }

    /// What a name in it is.
    ///
    /// # Errors
    /// What the operating system says; a regular file that cannot be read is an error.
    pub fn look(&self, name: &OsStr) -> io::Result<Thing> {
        let stat = rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Thing::Folder,
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(&self.0, name, Vec::new())?;
                Thing::Link(OsString::from_vec(target.into_bytes()))
            }
            FileType::RegularFile => {
                // It may have become something else meanwhile: a fifo is not waited for.
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let file = rustix::fs::openat(&self.0, name, flags, Mode::empty())?;
                let stat = rustix::fs::fstat(&file)?;
                if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                    return Ok(Thing::Special("something else than it was"));
                }
                let file = File::from(file);
                let fingerprint = Fingerprint::of(&file.metadata()?);
                Thing::File(file, fingerprint)
            }
            FileType::Fifo => Thing::Special("a fifo"),
            FileType::Socket => Thing::Special("a socket"),
            FileType::CharacterDevice | FileType::BlockDevice => Thing::Special("a device"),
            FileType::Unknown => Thing::Special("no file"),
        })
    }
}
