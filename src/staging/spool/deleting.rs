//! Deleting what has left the tree.
//!
//! 1. Modes may forbid it, also to who owns the files: directories get all rights first.
//! 2. Directories may be deeper than a path can be long, and than a stack: each is emptied for
//!    itself, and those that it holds are moved up beside it.
//! 3. A process or the disk may die on the way: everything stays in `gone/`, and the next mount
//!    goes on.

use std::ffi::{CStr, OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode};
use rustix::io::Errno;
use uuid::Uuid;

use super::Spool;
use super::disk::{self, path_fd, proc};
use crate::private::Folder;
use crate::tree::FileKind;
use crate::units::ByteLen;

/// How often a directory is emptied again because something came into it meanwhile.
const ATTEMPTS: u32 = 10;

/// What became of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unlinked {
    Gone,
    IsDirectory,
}

impl Spool {
    /// Deletes something in `gone/` in the background; what cannot be deleted is tried again by the
    /// next mount.
    pub(super) fn delete(self: &Arc<Self>, name: OsString) {
        let this = self.clone();
        let work = move || this.delete_now(name);
        if let Err(error) = std::thread::Builder::new().name("delete".to_owned()).spawn(work) {
            tracing::warn!(%error, "cannot delete a published batch now");
        }
    }

    fn delete_now(&self, name: OsString) {
        let warn = |name: &OsStr, errno: Errno| {
            tracing::warn!(name = %name.display(), %errno, "cannot delete a published batch");
        };
        let gone = &self.gone;
        let mut left = vec![name];
        while let Some(name) = left.pop() {
            let deleted = match self.unlink_one(gone, &name) {
                Ok(Unlinked::IsDirectory) => self.delete_directory(gone, &name, &mut left),
                unlinked => unlinked.map(drop),
            };
            if let Err(errno) = deleted {
                warn(&name, errno);
            }
        }
    }

    /// Deletes a directory in `gone/`, and moves those in it up there.
    fn delete_directory(
        &self,
        gone: &Folder,
        name: &OsStr,
        left: &mut Vec<OsString>,
    ) -> rustix::io::Result<()> {
        let directory = path_fd(gone, name)?;
        open_up(&directory);
        for _ in 0..ATTEMPTS {
            for entry in disk::entries(&directory)? {
                if self.unlink_one(&directory, entry.file_name())? == Unlinked::IsDirectory {
                    left.push(move_up(&directory, entry.file_name(), gone)?);
                }
            }
            match rustix::fs::unlinkat(gone, name, AtFlags::REMOVEDIR) {
                Err(Errno::NOTEMPTY) => {}
                deleted => return deleted,
            }
        }
        Err(Errno::NOTEMPTY)
    }

    fn unlink_one<N>(&self, directory: &impl AsFd, name: N) -> rustix::io::Result<Unlinked>
    where
        N: rustix::path::Arg + Copy + std::fmt::Debug,
    {
        let stat = disk::stat(directory, name);
        match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
            Err(Errno::ISDIR) => return Ok(Unlinked::IsDirectory),
            Err(Errno::NOENT) => return Ok(Unlinked::Gone),
            unlinked => unlinked?,
        }
        if let Ok(stat) = stat
            && stat.kind == FileKind::File
            && !self.opens.is_open(stat.ino)
        {
            self.quota.account(stat.allocated, ByteLen::new(0));
        }
        Ok(Unlinked::Gone)
    }
}

/// Moves a directory up into `gone/`, and gives its name there.
fn move_up(from: &OwnedFd, name: &CStr, gone: &Folder) -> rustix::io::Result<OsString> {
    // Its own entry `..` changes.
    open_up(&path_fd(from, name)?);
    let up = Uuid::new_v4().to_string();
    rustix::fs::renameat(from, name, gone, &*up)?;
    Ok(up.into())
}

/// Gives a directory's owner all rights. Where it is not ours, what comes next fails and is told.
fn open_up(directory: &OwnedFd) {
    if let Err(errno) = rustix::fs::chmod(proc(directory), Mode::RWXU) {
        tracing::debug!(%errno, "a directory that is deleted keeps its mode");
    }
}
