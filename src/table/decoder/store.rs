//! The store of a process that decodes: each read is done by who asked for the scan.
//!
//! A scan has stores of its own, so that a read is known to be for it. Bases have URIs that say both:
//! `lancefs://<scan>-<base>/<path in the base's store>`.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use chrono::DateTime;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use lance_io::object_store::{
    ObjectStore as LanceStore, ObjectStoreParams, ObjectStoreProvider, ObjectStoreRegistry,
};
use lance_table::format::Manifest;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result,
};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use url::Url;

use super::wire::{Answer, Read, Reply, Said};
use crate::units;

/// The scheme of the stores here.
const SCHEME: &str = "lancefs";
/// Reads at once, and how often one is repeated that was broken off, as the crate does with other
/// stores (lance 14.0.2, `LI:object_store.rs:693`).
const PARALLELISM: usize = 64;
const RETRIES: usize = 3;

/// What a process that decodes says, and what it waits for.
#[derive(Debug)]
pub struct Line {
    says: UnboundedSender<Said>,
    reads: Mutex<HashMap<u64, oneshot::Sender<Answer>>>,
    last: AtomicU64,
}

impl Line {
    /// One that says what it has to say to this.
    pub fn new(says: UnboundedSender<Said>) -> Self {
        Self { says, reads: Mutex::default(), last: AtomicU64::new(0) }
    }

    /// Says something. Where nobody hears it, this process is about to end.
    pub fn say(&self, reply: Reply) {
        let _ = self.says.send(Said { reply: Some(reply) });
    }

    /// Gives an answer to who waits for it.
    pub fn answered(&self, answer: Answer) {
        let waiting =
            self.reads.lock().unwrap_or_else(PoisonError::into_inner).remove(&answer.read);
        if let Some(waiting) = waiting {
            let _ = waiting.send(answer);
        }
    }

    async fn read(&self, read: Read) -> Result<Answer> {
        let (tell, told) = oneshot::channel();
        let id = self.last.fetch_add(1, Ordering::Relaxed);
        self.reads.lock().unwrap_or_else(PoisonError::into_inner).insert(id, tell);
        self.say(Reply::Read(Read { id, ..read }));
        told.await.map_err(|gone| generic(gone.to_string()))
    }

    /// The store of a scan's table.
    pub fn store(self: &Arc<Self>, scan: u64, block_size: usize) -> Arc<LanceStore> {
        let remote = Remote { line: self.clone(), scan, base: None };
        Arc::new(wrapped(remote, uri(scan, "table", ""), Some(block_size)))
    }

    /// What makes the stores of bases.
    pub fn registry(self: &Arc<Self>) -> Arc<ObjectStoreRegistry> {
        let registry = ObjectStoreRegistry::empty();
        registry.insert(SCHEME, Arc::new(Bases(self.clone())));
        Arc::new(registry)
    }
}

fn wrapped(remote: Remote, uri: Url, block_size: Option<usize>) -> LanceStore {
    let store = Arc::new(remote);
    LanceStore::new(store, uri, block_size, None, false, true, PARALLELISM, RETRIES, None)
}

fn generic(text: String) -> Error {
    Error::Generic { store: "who asked", source: text.into() }
}

/// Puts in place of each base's URI its path within its store.
pub fn paths_of_bases(manifest: &mut Manifest, registry: &Arc<ObjectStoreRegistry>) {
    for base in manifest.base_paths.values_mut() {
        // Where it has none, the store cannot be opened, which is said when it is tried.
        base.path = base.extract_path(registry.clone()).unwrap_or_default().to_string();
    }
}

/// Puts in place of each base's path the URI of its store for a scan.
pub fn uris_of_bases(manifest: &mut Manifest, scan: u64) {
    for base in manifest.base_paths.values_mut() {
        base.path = uri(scan, &base.id.to_string(), &base.path).into();
    }
}

fn uri(scan: u64, base: &str, path: &str) -> Url {
    #[expect(clippy::expect_used, reason = "digits and letters make a host")]
    let mut uri = Url::parse(&format!("{SCHEME}://{scan}-{base}/")).expect("a URI");
    if let Ok(mut segments) = uri.path_segments_mut() {
        segments.pop_if_empty().extend(path.split('/').filter(|part| !part.is_empty()));
    }
    uri
}

/// Makes the stores of bases.
#[derive(Debug)]
struct Bases(Arc<Line>);

#[async_trait]
impl ObjectStoreProvider for Bases {
    async fn new_store(&self, uri: Url, _: &ObjectStoreParams) -> lance::Result<LanceStore> {
        let numbers = uri.host_str().and_then(|host| host.split_once('-'));
        let numbers = numbers.and_then(|(s, b)| Some((s.parse().ok()?, b.parse().ok()?)));
        let no_base = || lance::Error::invalid_input(format!("{uri} is no base"));
        let (scan, base) = numbers.ok_or_else(no_base)?;
        Ok(wrapped(Remote { line: self.0.clone(), scan, base: Some(base) }, uri, None))
    }
}

/// A store of a scan.
#[derive(Debug)]
struct Remote {
    line: Arc<Line>,
    scan: u64,
    base: Option<u32>,
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the store of scan {}", self.scan)
    }
}

fn read_only<T>() -> Result<T> {
    Err(generic("it is only read from".to_owned()))
}

#[async_trait]
impl ObjectStore for Remote {
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let (start, end, last) = match options.range {
            None => (None, None, None),
            Some(GetRange::Bounded(Range { start, end })) => (Some(start), Some(end), None),
            Some(GetRange::Offset(start)) => (Some(start), None, None),
            Some(GetRange::Suffix(last)) => (None, None, Some(last)),
        };
        let (scan, base, head) = (self.scan, self.base, options.head);
        let path = location.to_string();
        let read = Read { id: 0, scan, base, path: path.clone(), head, start, end, last };
        let Answer { size, start, bytes, failure, .. } = self.line.read(read).await?;
        let end = start + units::u64_of(bytes.len());
        let bytes = match failure {
            Some(failure) if failure.is_missing => {
                return Err(Error::NotFound { path, source: failure.text.into() });
            }
            Some(failure) if !failure.is_broken_off => return Err(generic(failure.text)),
            Some(failure) => Err(generic(failure.text)),
            None => Ok(bytes),
        };
        Ok(GetResult {
            payload: GetResultPayload::Stream(stream::once(async { bytes }).boxed()),
            meta: ObjectMeta {
                location: location.clone(),
                last_modified: DateTime::UNIX_EPOCH,
                size,
                e_tag: None,
                version: None,
            },
            range: start..end,
            attributes: object_store::Attributes::default(),
            extensions: object_store::Extensions::default(),
        })
    }

    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        read_only()
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        read_only()
    }

    fn delete_stream(
        &self,
        _: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        stream::once(async { read_only() }).boxed()
    }

    fn list(&self, _: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        stream::once(async { read_only() }).boxed()
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        read_only()
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        read_only()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_keeps_its_path_whatever_is_in_it() {
        for path in ["", "a/b", "a b/100%/c#d?e", "ü/%2F"] {
            let uri = uri(7, "3", path);
            let found = Path::from_url_path(uri.path()).unwrap();
            assert_eq!((uri.host_str(), found.as_ref()), (Some("7-3"), path), "{uri}");
        }
    }
}
