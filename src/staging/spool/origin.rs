//! The attribute that says where a batch comes from: [`Origin`], marked as ours.

use std::os::fd::OwnedFd;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::disk::{self, OnDisk as _, as_owner, failed, proc};
use crate::error::{Error, Kind, Result};
use crate::staging::mark::{self, Key, Word};
use crate::staging::{ORIGIN, Origin};
use crate::tree::FileKind;

/// Reads the origin of what a descriptor stands for; `None` where it has none.
///
/// # Errors
/// [`Kind::Disk`]; [`Kind::Internal`] where it holds something else, or what this program did not
/// write.
pub fn read(key: &Key, fd: &OwnedFd) -> Result<Option<Origin>> {
    match look(key, fd)? {
        None => Ok(None),
        Some(Word::Ours(origin)) => Ok(Some(origin)),
        Some(Word::Others(_)) => {
            let text = format!("its attribute {ORIGIN} was put there by another program");
            Err(Error::new(Kind::Internal, text).hint("mount again, and it is a batch of its own"))
        }
    }
}

/// The origin of what a descriptor stands for, and whose word it is.
///
/// # Errors
/// [`Kind::Disk`]; [`Kind::Internal`] where it holds something else.
pub fn look(key: &Key, fd: &OwnedFd) -> Result<Option<Word<Origin>>> {
    let get = || {
        let mut buffer = vec![0_u8; mark::LONGEST];
        let len = rustix::fs::getxattr(proc(fd), ORIGIN, &mut buffer[..])?;
        buffer.truncate(len);
        Ok(buffer)
    };
    // A file is left as it is: the time of its last change tells whether it has been uploaded.
    let is_directory = disk::stat(fd, "")?.kind == FileKind::Directory;
    let text = match if is_directory { as_owner(&[fd], get) } else { get() } {
        Ok(text) => text,
        Err(Errno::NODATA) => return Ok(None),
        Err(errno) => return Err(failed(format!("read {ORIGIN}"), errno)),
    };
    key.read(ORIGIN, &text)
        .map_err(|e| Error::caused(Kind::Internal, format!("read {ORIGIN}"), e))
        .map(Some)
}

/// Writes it.
///
/// # Errors
/// [`Kind::Disk`].
pub fn write(key: &Key, fd: &OwnedFd, origin: &Origin) -> Result<()> {
    let text = key.mark(ORIGIN, origin)?;
    as_owner(&[fd], || rustix::fs::setxattr(proc(fd), ORIGIN, &text, XattrFlags::empty()))
        .on_disk(|| format!("write {ORIGIN}"))
}
