//! Objects of an object store: one ranged GET for each fetch.

use std::sync::Arc;

use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt as _};

use super::fetch::{Answer, Fetch, Meta};
use super::{Interval, bare_tag, kind_of};
use crate::error::{Error, Kind, Result};
use crate::units::ByteLen;

/// An object of a store.
#[derive(Clone, Debug)]
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

    async fn start(&self, interval: Interval) -> Result<Answer> {
        let end = interval.offset.end(interval.len).ok_or_else(|| {
            Error::new(Kind::Invalid, format!("interval {interval:?} of {} overflows", self.uri))
        })?;
        let range = interval.offset.get()..end.get();
        let failed = {
            let (uri, range) = (self.uri.clone(), range.clone());
            move |e| Error::caused(kind_of(&e), format!("get {range:?} of {uri}"), e)
        };
        let options = GetOptions { range: Some(GetRange::Bounded(range)), ..Default::default() };
        let got = self.store.get_opts(&self.path, options).await.map_err(&failed)?;
        let meta = meta(&got.meta);
        let body = got.into_stream().map(move |bytes| bytes.map_err(&failed)).boxed();
        Ok(Answer { meta, body })
    }

    async fn ask(&self) -> Result<Meta> {
        let found = self.store.head(&self.path).await;
        let found =
            found.map_err(|e| Error::caused(kind_of(&e), format!("head {}", self.uri), e))?;
        let meta = meta(&found);
        // What describes a file of a Hugging Face repository is another service than what gives its
        // bytes, with another tag for the same content.
        Ok(if self.uri.starts_with("hf://") { Meta { tag: None, ..meta } } else { meta })
    }
}

impl Fetch for Remote {
    fn get(&self, interval: Interval) -> BoxFuture<'_, Result<Answer>> {
        self.start(interval).boxed()
    }

    fn head(&self) -> BoxFuture<'_, Result<Meta>> {
        self.ask().boxed()
    }
}

fn meta(found: &ObjectMeta) -> Meta {
    // A store without tags may say when the object was written.
    let time = found.last_modified.timestamp_micros();
    let written = (time != 0).then(|| format!("{time}").into());
    let tag = found.e_tag.as_deref().map(|tag| Arc::from(bare_tag(tag))).or(written);
    Meta { length: ByteLen::new(found.size), tag }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::ObjectOffset;
    use bytes::Bytes;
    use futures::TryStreamExt as _;
    use object_store::memory::InMemory;

    #[tokio::test]
    async fn gives_what_is_there_and_says_how_long_the_object_is() {
        let store = Arc::new(InMemory::new());
        let path = Path::from("o");
        store.put(&path, Bytes::from_static(b"0123456789").into()).await.unwrap();
        let remote = Remote::new(store.clone(), path, "memory:///o".into());
        let get = |offset, len| {
            remote.get(Interval { offset: ObjectOffset::new(offset), len: ByteLen::new(len) })
        };
        for (offset, len, expected) in [(3, 4, "3456"), (8, 100, "89"), (0, 10, "0123456789")] {
            let answer = get(offset, len).await.unwrap();
            assert_eq!(answer.meta.length, ByteLen::new(10));
            let body: Vec<Bytes> = answer.body.try_collect().await.unwrap();
            assert_eq!(body.concat(), expected.as_bytes());
        }
        assert_eq!(remote.head().await.unwrap().length, ByteLen::new(10));
        assert_eq!(get(u64::MAX, 2).await.err().unwrap().kind(), Kind::Invalid);
        let absent = Remote::new(store, Path::from("absent"), "memory:///absent".into());
        assert_eq!(absent.head().await.unwrap_err().kind(), Kind::Payload);
    }
}
