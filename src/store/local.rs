//! Objects that are files of this machine: one file descriptor each, read with `pread`.
//!
//! The kernel's page cache is the cache; nothing is kept here but the descriptor.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::{self, BoxFuture};
use rustix::io::Errno;

use super::buffers::Buffers;
use super::descriptors::Descriptors;
use super::{Interval, LocalPlace, RangeRead};
use crate::error::{Error, IoContext as _, Kind, Result};
use crate::units::{self, ByteLen};

/// An open local object.
#[derive(Debug)]
pub struct Local {
    fd: Arc<OwnedFd>,
    path: PathBuf,
    buffers: Arc<Buffers>,
}

impl Local {
    /// Opens a regular file for reading, into buffers that go round.
    ///
    /// # Errors
    /// As [`LocalPlace::open`] and [`Descriptors::share`].
    pub fn open(
        place: &LocalPlace,
        descriptors: &Descriptors,
        buffers: Arc<Buffers>,
    ) -> Result<Self> {
        let fd = descriptors.share(place.open()?, &place.path)?;
        Ok(Self { fd, path: place.path.clone(), buffers })
    }

    /// The file's length now.
    ///
    /// # Errors
    /// [`Kind::Payload`] where the file system fails.
    pub fn size(&self) -> Result<ByteLen> {
        Ok(ByteLen::new(u64::try_from(self.stat()?.st_size).unwrap_or(0)))
    }

    fn stat(&self) -> Result<rustix::fs::Stat> {
        rustix::fs::fstat(&self.fd)
            .map_err(std::io::Error::from)
            .context(Kind::Payload, || format!("stat {}", self.path.display()))
    }

    fn pread(&self, interval: Interval) -> Result<Bytes> {
        let mut bytes = self.buffers.to_pass(units::usize_of(interval.len.get()));
        while bytes.room() > 0 {
            let at = interval.offset.get() + units::u64_of(bytes.bytes().len());
            match bytes.pread(&self.fd, at) {
                Ok(0) => return Err(self.truncated(interval)),
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => {
                    return Err(std::io::Error::from(errno))
                        .context(Kind::Payload, || format!("read {}", self.path.display()));
                }
            }
        }
        Ok(bytes.freeze())
    }

    fn truncated(&self, interval: Interval) -> Error {
        let length = self.size().map_or_else(|e| e.to_string(), |l| l.to_string());
        let end = interval.offset.get().saturating_add(interval.len.get());
        let text = format!(
            "{} is truncated: {length} bytes, and {}..{end} are needed",
            self.path.display(),
            interval.offset
        );
        Error::new(Kind::Payload, text)
    }
}

impl RangeRead for Local {
    fn read(&self, interval: Interval) -> BoxFuture<'_, Result<Bytes>> {
        future::ready(self.pread(interval)).boxed()
    }

    fn length(&self) -> BoxFuture<'_, Result<ByteLen>> {
        future::ready(self.size()).boxed()
    }

    fn file(&self) -> Option<Arc<OwnedFd>> {
        Some(self.fd.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rustix::fs::{FileType, Mode};

    use super::*;
    use crate::store::Folder;
    use crate::units::ObjectOffset;

    fn open(path: &Path) -> Result<Local> {
        let folder = Folder::named(path.parent().unwrap());
        let place = LocalPlace::within(folder, path, Arc::default());
        Local::open(&place, &Descriptors::default(), Arc::default())
    }

    fn interval(offset: u64, len: u64) -> Interval {
        Interval { offset: ObjectOffset::new(offset), len: ByteLen::new(len) }
    }

    #[test]
    fn gives_all_bytes_or_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("o");
        std::fs::write(&path, b"0123456789").unwrap();
        let local = open(&path).unwrap();
        assert_eq!(local.pread(interval(3, 4)).unwrap(), "3456");
        assert_eq!(local.pread(interval(100, 0)).unwrap(), "");
        let error = local.pread(interval(8, 3)).unwrap_err();
        assert_eq!(error.kind(), Kind::Payload);
        assert!(error.to_string().contains("10 bytes, and 8..11 are needed"), "{error}");
    }

    #[test]
    fn an_open_object_outlives_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("o");
        std::fs::write(&path, b"kept").unwrap();
        let local = open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(local.pread(interval(0, 4)).unwrap(), "kept");
    }

    #[test]
    fn only_a_regular_file_is_an_object() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::RUSR, 0).unwrap();
        for path in [dir.path(), fifo.as_path(), &dir.path().join("absent")] {
            assert_eq!(open(path).unwrap_err().kind(), Kind::Payload, "{}", path.display());
        }
    }
}
