//! A local object that must stay what it was when it was opened.
//!
//! Objects of somebody else can be written to at any time, and then a reader would get a bit of the
//! old and a bit of the new. What a file is shows in its number, its length and the time of its last
//! change, which every write moves on; they are looked at after each read, and other bytes are never
//! given. A file that is renamed or removed stays what it is for who has it open.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;

use super::fetch::Meta;
use super::{Interval, RangeRead};
use crate::error::{Error, IoContext as _, Kind, Result};
use crate::units::ByteLen;

/// A local object as it was when it was opened.
pub struct Pinned {
    inner: Arc<dyn RangeRead>,
    file: Arc<OwnedFd>,
    meta: Meta,
}

impl Pinned {
    /// An object that was opened just now, and what it is.
    ///
    /// # Errors
    /// [`Kind::Payload`] where the file system fails.
    pub fn new(inner: Arc<dyn RangeRead>, file: Arc<OwnedFd>) -> Result<(Self, Meta)> {
        let meta = meta(&file)?;
        Ok((Self { inner, file, meta: meta.clone() }, meta))
    }
}

impl RangeRead for Pinned {
    fn read(&self, interval: Interval) -> BoxFuture<'_, Result<Bytes>> {
        async move {
            let bytes = self.inner.read(interval).await;
            let now = meta(&self.file)?;
            if now == self.meta {
                return bytes;
            }
            let text = format!("it was changed while it was read: {:?}, now {now:?}", self.meta);
            Err(Error::new(Kind::Stale, text))
        }
        .boxed()
    }

    fn length(&self) -> BoxFuture<'_, Result<ByteLen>> {
        self.inner.length()
    }

    fn file(&self) -> Option<Arc<OwnedFd>> {
        self.inner.file()
    }
}

/// What a file is now.
fn meta(file: &OwnedFd) -> Result<Meta> {
    let stat = rustix::fs::fstat(file)
        .map_err(std::io::Error::from)
        .context(Kind::Payload, || "look at an object".to_owned())?;
    let length = ByteLen::new(u64::try_from(stat.st_size).unwrap_or(0));
    let (device, number) = (stat.st_dev, stat.st_ino);
    let tag = format!("{device}-{number}-{}.{:09}", stat.st_mtime, stat.st_mtime_nsec);
    Ok(Meta { length, tag: Some(tag.into()) })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::Write as _;

    use super::*;
    use crate::store::descriptors::Descriptors;
    use crate::store::{Folder, Local, LocalPlace};
    use crate::units::ObjectOffset;

    #[tokio::test]
    async fn who_reads_while_it_changes_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("o");
        fs::write(&path, b"0123456789").unwrap();
        let open = || {
            let root = Folder::named(folder.path());
            let place = LocalPlace::within(root, path.clone(), Arc::default());
            let local: Arc<dyn RangeRead> =
                Arc::new(Local::open(&place, &Descriptors::default(), Arc::default()).unwrap());
            let file = local.file().unwrap();
            Pinned::new(local, file).unwrap()
        };
        let part = Interval { offset: ObjectOffset::new(2), len: ByteLen::new(3) };
        let ((object, meta), (same, before)) = (open(), open());
        assert_eq!((meta.length, &meta), (ByteLen::new(10), &before));
        assert_eq!(object.read(part).await.unwrap(), "234");
        fs::rename(&path, folder.path().join("p")).unwrap();
        fs::write(&path, b"other").unwrap();
        assert_eq!(object.read(part).await.unwrap(), "234", "it is still that file");
        let ((other, after), moved) = (open(), folder.path().join("p"));
        assert_ne!(meta, after);
        File::options().append(true).open(&moved).unwrap().write_all(b"more").unwrap();
        assert_eq!(object.read(part).await.unwrap_err().kind(), Kind::Stale);
        assert_eq!(same.read(part).await.unwrap_err().kind(), Kind::Stale);
        assert_eq!(other.read(part).await.unwrap(), "her");
    }
}
