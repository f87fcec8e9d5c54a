//! A store that may fall silent: how long each request waits, and what happens when it is back.
//!
//! 1. One operation of a program becomes several requests, of the kernel (a page is read ahead, and
//!    then once more alone), of the crate and of ours: each waiting for the full time, they add up.
//!    So the time counts from when the store fell silent, for all together ([`Watch::allowance`]).
//! 2. Nobody can tell a slow answer from none: what waits for long has the store asked for something
//!    small beside it, by one task for everybody ([`Watch::suspect`]).
//! 3. What was asked before the store came back may never be answered, because its connection is
//!    gone: it is asked anew at once, where asking twice does no harm, and a body that stands still
//!    breaks off, so that whoever reads it goes on from there.
//! 4. One object that is never answered says nothing about the others: any answer of the store is
//!    taken as one, and what is asked for beside it is nothing that anybody waits for.
//! 5. A large write may take long without an answer: its own callers know how long.

mod watch;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
};

pub use self::watch::is_silence;
use self::watch::{Probe, Watch};

/// The decorator.
pub struct Gate {
    inner: Arc<dyn ObjectStore>,
    watch: Arc<Watch>,
    probe: Probe,
}

impl Gate {
    /// Around a store that an operation waits for so long, all requests included.
    pub fn new(inner: Arc<dyn ObjectStore>, patience: Duration) -> Self {
        let probe = Probe::new(inner.clone());
        Self { inner, watch: Arc::new(Watch::new(patience)), probe }
    }

    fn items<T: Send + 'static>(
        &self,
        items: BoxStream<'static, Result<T>>,
    ) -> BoxStream<'static, Result<T>> {
        let (watch, probe) = (self.watch.clone(), self.probe.clone());
        let given = stream::unfold(items, move |mut items| {
            let (watch, probe) = (watch.clone(), probe.clone());
            async move { Some((watch.next(&probe, &mut items).await?, items)) }
        });
        given.boxed()
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.inner, f)
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.inner, f)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl ObjectStore for Gate {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.watch.heard(self.inner.put_opts(location, payload, options).await)
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.watch.heard(self.inner.put_multipart_opts(location, options).await)
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let ask = || self.inner.get_opts(location, options.clone());
        let mut answer = self.watch.ask(&self.probe, ask).await?;
        answer.payload = match answer.payload {
            GetResultPayload::Stream(body) => GetResultPayload::Stream(self.items(body)),
            file @ GetResultPayload::File(..) => file,
        };
        Ok(answer)
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let ask = || self.inner.get_ranges(location, ranges);
        self.watch.ask(&self.probe, ask).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.items(self.inner.delete_stream(locations))
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.items(self.inner.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.items(self.inner.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let ask = || self.inner.list_with_delimiter(prefix);
        self.watch.ask(&self.probe, ask).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.watch.heard(self.inner.copy_opts(from, to, options).await)
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.watch.heard(self.inner.rename_opts(from, to, options).await)
    }
}
