//! A store whose answers are looked at as they go by: deletion files, and the ends of data files.
//!
//! 1. Only what the crate asks for is held back until it is whole: a deletion file, and a read that
//!    ends where a data file ends and is no longer than the crate's first one ([`FIRST_READ`]).
//! 2. The metadata of a wide data file begins before that read: the rest is asked for here, which is
//!    the only request more.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use lance_io::object_store::WrappingObjectStore;
use object_store::list::PaginatedListStore;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt as _, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, RenameOptions, Result,
};

use super::{data, deletion};
use crate::store::Gate;
use crate::units;

/// The longest read that is taken for the crate's first one of a data file, in bytes: it reads a
/// block of 64 KiB.
const FIRST_READ: u64 = 1 << 20;
/// The longest metadata of a data file that is looked at, in bytes: some million columns.
const METADATA: u64 = 1 << 28;

/// Puts the decorator around every store that the crate opens, and a gate around those that are not
/// of this machine.
#[derive(Debug)]
pub struct Wrap {
    /// How long an operation waits for a store.
    pub patience: Duration,
}

impl WrappingObjectStore for Wrap {
    fn wrap(&self, prefix: &str, original: Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore> {
        let is_local = ["file", "memory"].iter().any(|scheme| prefix.starts_with(scheme));
        let inner = if is_local { original } else { Arc::new(Gate::new(original, self.patience)) };
        Arc::new(Passing { inner })
    }

    fn wrap_paginated(
        &self,
        _prefix: &str,
        original: Arc<dyn PaginatedListStore>,
    ) -> Option<Arc<dyn PaginatedListStore>> {
        Some(original)
    }
}

/// The decorator.
#[derive(Debug)]
struct Passing {
    inner: Arc<dyn ObjectStore>,
}

/// What is looked at.
enum Looked {
    Deletions,
    Tail,
}

impl Looked {
    fn at(location: &Path, answer: &GetResult) -> Option<Self> {
        let parent = location.parts().rev().nth(1);
        let is_deletions = parent.is_some_and(|folder| folder.as_ref() == "_deletions");
        if is_deletions && location.extension() == Some("arrow") {
            return Some(Self::Deletions);
        }
        let Range { start, end } = answer.range;
        let is_tail = end == answer.meta.size && end - start <= FIRST_READ;
        (location.extension() == Some("lance") && is_tail).then_some(Self::Tail)
    }
}

impl Passing {
    async fn look(&self, location: &Path, answer: GetResult, looked: Looked) -> Result<GetResult> {
        let size = answer.meta.size;
        if matches!(looked, Looked::Deletions) && size > deletion::LONGEST {
            return Err(unsound(location, &format!("{size} bytes")));
        }
        let GetResult { meta, range, attributes, extensions, .. } = answer;
        let again = GetResult {
            payload: answer.payload,
            meta: meta.clone(),
            range: range.clone(),
            attributes: attributes.clone(),
            extensions: extensions.clone(),
        };
        let bytes = again.bytes().await?;
        let is_all = units::u64_of(bytes.len()) == size;
        let looked = match looked {
            Looked::Deletions if is_all => deletion::arrow(&bytes).map(|()| None),
            // A part of one: the crate reads them whole.
            Looked::Deletions => Ok(None),
            Looked::Tail => data::tail(&data::Tail { bytes: &bytes, size }),
        };
        if let Some(from) = looked.map_err(|why| unsound(location, &why))? {
            self.look_at_rest(location, from, &bytes, size).await?;
        }
        let payload = stream::once(async move { Ok(bytes) }).boxed();
        let payload = GetResultPayload::Stream(payload);
        Ok(GetResult { payload, meta, range, attributes, extensions })
    }

    async fn look_at_rest(&self, location: &Path, from: u64, end: &Bytes, size: u64) -> Result<()> {
        let known = size - units::u64_of(end.len()).min(size);
        if from >= known || size - from > METADATA {
            return Err(unsound(location, &format!("metadata from {from} of {size} bytes on")));
        }
        let before = self.inner.get_range(location, from..known).await?;
        let bytes = [before.as_ref(), end.as_ref()].concat();
        match data::tail(&data::Tail { bytes: &bytes, size }) {
            Ok(None) => Ok(()),
            Ok(Some(more)) if more < from => {
                Err(unsound(location, &format!("parts at {more} and {from}")))
            }
            Ok(Some(_)) => Err(unsound(location, "parts that are not there")),
            Err(why) => Err(unsound(location, &why)),
        }
    }
}

fn unsound(location: &Path, why: &str) -> Error {
    Error::Generic {
        store: "a damaged file",
        source: format!("{location} cannot be: {why}").into(),
    }
}

impl fmt::Display for Passing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.inner, f)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl ObjectStore for Passing {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.inner.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let is_head = options.head;
        let answer = self.inner.get_opts(location, options).await?;
        match Looked::at(location, &answer).filter(|_| !is_head) {
            Some(looked) => self.look(location, answer, looked).await,
            None => Ok(answer),
        }
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.inner.get_ranges(location, ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.inner.rename_opts(from, to, options).await
    }
}
