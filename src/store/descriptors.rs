//! Descriptors of local objects: one for each object however often it is open, and never the last that
//! this process may have.
//!
//! A descriptor's number is the lowest that was free, so the number of a new one says how many are
//! taken. Some are kept for what a mount does for itself: its journals, its folders, its connections.

use std::collections::HashMap;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit};

use crate::error::{Error, IoContext as _, Kind, Result};

/// How many descriptors are kept for the mount itself, and the part of all that this may be at most.
const RESERVE: u64 = 256;
const PART: u64 = 4;

/// Which file it is, on which device.
type File = (u64, u64);

/// The descriptors that are open.
#[derive(Debug, Default)]
pub struct Descriptors(Mutex<HashMap<File, Weak<OwnedFd>>>);

impl Descriptors {
    /// The descriptor that the object of a new one has already, else the new one.
    ///
    /// # Errors
    /// [`Kind::Disk`] with EMFILE where there is no room for it.
    pub fn share(&self, fd: OwnedFd, path: &std::path::Path) -> Result<Arc<OwnedFd>> {
        let what = || format!("open {}", path.display());
        let stat = rustix::fs::fstat(&fd).map_err(std::io::Error::from);
        let stat = stat.context(Kind::Payload, what)?;
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let file = (stat.st_dev, stat.st_ino);
        if let Some(shared) = open.get(&file).and_then(Weak::upgrade) {
            return Ok(shared);
        }
        let limit = limit();
        let most = limit - RESERVE.min(limit / PART);
        if u64::try_from(fd.as_raw_fd()).unwrap_or(0) >= most {
            let text = format!("{}: {most} files are open, and no more may be (ulimit -n)", what());
            return Err(Error::new(Kind::Disk(Errno::MFILE.raw_os_error()), text));
        }
        if open.len() == open.capacity() {
            open.retain(|_, shared| shared.strong_count() > 0);
        }
        let fd = Arc::new(fd);
        open.insert(file, Arc::downgrade(&fd));
        Ok(fd)
    }
}

/// How many descriptors this process may have.
fn limit() -> u64 {
    rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Lets this process have as many descriptors as it may.
pub fn raise_limit() {
    let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
    if let Err(errno) =
        rustix::process::setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        tracing::debug!(%errno, "the number of open files stays limited as it was");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_has_one_descriptor_while_it_is_open() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("o");
        std::fs::write(&path, b"x").unwrap();
        let descriptors = Descriptors::default();
        let open = || {
            let fd = OwnedFd::from(std::fs::File::open(&path).unwrap());
            descriptors.share(fd, &path).unwrap()
        };
        let (first, second) = (open(), open());
        assert!(Arc::ptr_eq(&first, &second));
        let before = Arc::downgrade(&first);
        drop((first, second));
        let _again = open();
        assert_eq!(before.strong_count(), 0);
    }
}
