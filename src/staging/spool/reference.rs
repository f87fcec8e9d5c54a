//! Files whose bytes are still in the table.
//!
//! 1. Such a file is a hole of the right length with an attribute; whoever writes to it gets the
//!    bytes first. Until then every change of its content here is refused ([`OpenFile::owns`]), so
//!    that a change that was forgotten above fails and never makes zeros of somebody's bytes.
//! 2. A crash on the way: the attribute is there before the length is, and gone only after the bytes
//!    are on the disk. What both give is what was copied.
//! 3. Several may write first: one fetches and the others wait ([`OpenFile::turn`]).
//! 4. What is referred to must be protected for the batch that a file is in, before it refers and
//!    before it is moved there; that takes a request, for which no lock can be held. So whoever
//!    refers says for which batch it was protected, and whoever moves between batches since when it
//!    has known what is referred to ([`Moment`]).

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::XattrFlags;
use rustix::io::Errno;
use uuid::Uuid;

use super::Spool;
use super::disk::{self, OnDisk as _, Stat, as_owner, failed, proc};
use super::files::OpenFile;
use crate::error::{Error, Kind, Result};
use crate::staging::mark::{self, Key};
use crate::staging::{REFERENCE, Reference};
use crate::tree::FileKind;
use crate::units::{BlobOffset, ByteLen, Ino, u64_of};

/// The reference that a file is; `None` for one with its own bytes.
///
/// # Errors
/// [`Kind::Disk`]; [`Kind::Internal`] where nobody knows what it refers to.
pub fn read(key: &Key, fd: impl AsFd, stat: &Stat) -> Result<Option<Arc<Reference>>> {
    let read = mark::reference(key, |buffer| rustix::fs::getxattr(proc(&fd), REFERENCE, buffer));
    match read {
        Ok(reference) => Ok(reference.map(Arc::new)),
        // Who may not read a file may write it, but not if that is a reference.
        Err(error)
            if error.kind() == io::ErrorKind::PermissionDenied && stat.allocated >= stat.size =>
        {
            Ok(None)
        }
        Err(error) => {
            let kind = error.raw_os_error().map_or(Kind::Internal, Kind::Disk);
            Err(Error::caused(kind, format!("read {REFERENCE}"), error))
        }
    }
}

/// Attributes as programs must see them: without blocks, some take a file for one hole. (It may have
/// a block, for the attribute.)
pub fn shown(key: &Key, stat: Stat, fd: impl FnOnce() -> rustix::io::Result<OwnedFd>) -> Stat {
    if stat.kind != FileKind::File || stat.allocated >= stat.size {
        return stat;
    }
    let is_reference = fd().is_ok_and(|fd| read(key, fd, &stat).is_ok_and(|found| found.is_some()));
    if is_reference { Stat { allocated: stat.size, ..stat } } else { stat }
}

impl OpenFile {
    /// What it refers to; `None` if its bytes are its own.
    pub fn reference(&self) -> Option<Arc<Reference>> {
        self.spool().opens.reference(self.ino())
    }

    /// Whose turn it is to fetch the bytes.
    pub fn turn(&self) -> Arc<tokio::sync::Mutex<()>> {
        self.spool().opens.turn(self.ino())
    }

    /// Makes it a reference, or a longer one, whose version is protected for a batch.
    ///
    /// # Errors
    /// [`Kind::Busy`] in a batch that is frozen, [`Kind::Unsupported`] in another one than that, and
    /// what the disk says.
    pub fn refer(&self, reference: &Reference, batch: Uuid) -> Result<()> {
        // It stays in its batch meanwhile.
        let spool = self.spool();
        let _still = spool.still();
        let _change = self.changing()?;
        let around = spool.batch_around(self.ino())?;
        if around.is_none_or(|name| spool.batch(&name).is_ok_and(|b| b.origin.batch != batch)) {
            return Err(Error::new(Kind::Unsupported, "it was moved to another batch"));
        }
        let text = spool.key.mark(REFERENCE, reference)?;
        let what = || format!("write {REFERENCE}");
        let fd = self.file();
        // A value is read-only in a version, and so is what cp makes for its copy.
        as_owner(&[&fd], || rustix::fs::setxattr(proc(&fd), REFERENCE, &text, XattrFlags::empty()))
            .map_err(|errno| match errno {
                // Not ours: the kernel copies the bytes then.
                Errno::ACCESS | Errno::PERM => {
                    let cause = io::Error::from(errno);
                    Error::caused(Kind::Unsupported, what(), cause)
                }
                other => failed(what(), other),
            })?;
        spool.opens.refer(self.ino(), Some(Arc::new(reference.clone())));
        spool.moved();
        rustix::fs::ftruncate(&fd, reference.len).on_disk(what)
    }

    /// Puts fetched bytes where the reference's are.
    ///
    /// # Errors
    /// [`Kind::Quota`] and what the disk says.
    pub fn fill(&self, offset: BlobOffset, bytes: &[u8]) -> Result<()> {
        let _change = self.changing()?;
        self.room(offset.get(), ByteLen::new(u64_of(bytes.len())))?;
        let mut done = 0;
        while done < bytes.len() {
            let at = offset.get().saturating_add(u64_of(done));
            match rustix::io::pwrite(self.file(), &bytes[done..], at) {
                Ok(0) => return Err(failed("write", Errno::NOSPC)),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(failed("write", errno)),
            }
        }
        self.account();
        Ok(())
    }

    /// Says that its bytes are its own now: all of them have been filled in.
    ///
    /// # Errors
    /// What the disk says.
    pub fn own(&self) -> Result<()> {
        rustix::fs::fdatasync(self.file()).on_disk(|| "sync".to_owned())?;
        self.drop_reference()
    }

    pub(super) fn drop_reference(&self) -> Result<()> {
        let file = self.file();
        let removed = as_owner(&[&file], || rustix::fs::removexattr(proc(&file), REFERENCE));
        removed.on_disk(|| format!("remove {REFERENCE}"))?;
        self.spool().opens.refer(self.ino(), None);
        Ok(())
    }

    /// Refuses to change what is still in the table.
    pub(super) fn owns(&self) -> Result<()> {
        match self.reference() {
            None => Ok(()),
            Some(_) => Err(Error::new(Kind::Internal, "its bytes are in the table still")),
        }
    }
}

/// Tells whether a file has become a reference since, or a name has moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment(u64);

impl Spool {
    /// Now.
    pub fn moment(&self) -> Moment {
        Moment(self.moments.load(Ordering::SeqCst))
    }

    /// Something has moved, or refers to the table now.
    pub(super) fn moved(&self) {
        self.moments.fetch_add(1, Ordering::SeqCst);
    }

    /// The versions that a file, or the files in a directory, refer to: their objects must be kept.
    ///
    /// # Errors
    /// What the disk says: then it is not known.
    pub fn versions_referred(&self, parent: Ino, name: &str) -> Result<BTreeSet<u64>> {
        let path = self.nodes().path(parent)?;
        let mut versions = BTreeSet::new();
        if path.base.is_some() {
            return Ok(versions);
        }
        let _still = self.still();
        let mut path = path;
        path.names.push(name.into());
        let what = || format!("look for references in {:?}", path.shown());
        let root = self.at(&path)?;
        if disk::stat(&root, "")?.kind == FileKind::File {
            versions.extend(self.version_referred(&root)?);
            return Ok(versions);
        }
        for entry in walkdir::WalkDir::new(disk::within(&root)) {
            let entry = entry.map_err(|e| {
                let errno = e.io_error().and_then(io::Error::raw_os_error);
                Error::caused(errno.map_or(Kind::Internal, Kind::Disk), what(), e)
            })?;
            if entry.file_type().is_file() {
                let fd = disk::path_fd(rustix::fs::CWD, entry.path()).on_disk(what)?;
                versions.extend(self.version_referred(&fd)?);
            }
        }
        Ok(versions)
    }

    /// The version that a file refers to. What cannot be a reference of ours refers to nothing: no
    /// commit adopts it.
    fn version_referred(&self, file: &OwnedFd) -> Result<Option<u64>> {
        match read(&self.key, file, &disk::stat(file, "")?) {
            Ok(reference) => Ok(reference.map(|reference| reference.version)),
            Err(error) if error.kind() == Kind::Internal => Ok(None),
            Err(error) => Err(error),
        }
    }
}
