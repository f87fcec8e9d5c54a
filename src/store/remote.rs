//! Objects of an object store: one ranged GET for each read.

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _};

use super::{Interval, RangeRead, kind_of};
use crate::error::{Error, Kind, Result};
use crate::units::{self, ByteLen};

/// An object of a store.
#[derive(Debug)]
pub struct Remote {
    store: Arc<dyn ObjectStore>,
    path: Path,
    uri: Arc<str>,
}

impl Remote {
    /// Names an object; nothing is asked of the store yet.
    pub fn new(store: Arc<dyn ObjectStore>, path: Path, uri: Arc<str>) -> Self {
        Self { store, path, uri }
    }

    async fn get(&self, interval: Interval) -> Result<Bytes> {
        if interval.len.get() == 0 {
            return Ok(Bytes::new());
        }
        let end = interval.offset.end(interval.len).ok_or_else(|| {
            Error::new(Kind::Invalid, format!("interval {interval:?} of {} overflows", self.uri))
        })?;
        let range = interval.offset.get()..end.get();
        let bytes =
            self.store.get_range(&self.path, range.clone()).await.map_err(|e| {
                Error::caused(kind_of(&e), format!("get {range:?} of {}", self.uri), e)
            })?;
        if units::u64_of(bytes.len()) != interval.len.get() {
            let text =
                format!("{} is truncated: {} bytes came for {range:?}", self.uri, bytes.len());
            return Err(Error::new(Kind::Payload, text));
        }
        Ok(bytes)
    }

    async fn head(&self) -> Result<ByteLen> {
        let meta = self.store.head(&self.path).await;
        let meta = meta.map_err(|e| Error::caused(kind_of(&e), format!("head {}", self.uri), e))?;
        Ok(ByteLen::new(meta.size))
    }
}

impl RangeRead for Remote {
    fn read(&self, interval: Interval) -> BoxFuture<'_, Result<Bytes>> {
        self.get(interval).boxed()
    }

    fn length(&self) -> BoxFuture<'_, Result<ByteLen>> {
        self.head().boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::ObjectOffset;
    use object_store::memory::InMemory;

    #[tokio::test]
    async fn gives_all_bytes_or_an_error() {
        let store = Arc::new(InMemory::new());
        let path = Path::from("o");
        store.put(&path, Bytes::from_static(b"0123456789").into()).await.unwrap();
        let remote = Remote::new(store, path, "memory:///o".into());
        let read = |offset, len| {
            remote.read(Interval { offset: ObjectOffset::new(offset), len: ByteLen::new(len) })
        };
        assert_eq!(read(3, 4).await.unwrap(), "3456");
        assert_eq!(read(u64::MAX, 0).await.unwrap(), "");
        assert_eq!(remote.length().await.unwrap(), ByteLen::new(10));
        for (offset, len) in [(8, 3), (10, 1), (11, 1)] {
            assert_eq!(read(offset, len).await.unwrap_err().kind(), Kind::Payload);
        }
        assert_eq!(read(u64::MAX, 2).await.unwrap_err().kind(), Kind::Invalid);
    }
}
