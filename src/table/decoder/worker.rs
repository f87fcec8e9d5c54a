//! A process that decodes, from its own side.
//!
//! It has a limited memory, and knows of a table what it is told with each scan: a manifest, and one
//! fragment. It keeps manifests and, by session, what the crate caches of files.

use std::num::NonZeroUsize;
use std::os::unix::net::UnixStream as StdStream;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::RecordBatch;
use arrow_ipc::writer::StreamWriter;
use async_trait::async_trait;
use bytes::Bytes;
use lance::dataset::builder::DatasetBuilder;
use lance::session::Session;
use lance::{Dataset, Error as LanceError};
use lance_core::datatypes::Schema;
use lance_io::object_store::{ObjectStore, ObjectStoreParams};
use lance_table::format::{
    Fragment, IndexMetadata, Manifest, Transaction, pb, populate_manifest_schema_dictionaries,
};
use lance_table::io::commit::{
    CommitError, CommitHandler, ManifestLocation, ManifestNamingScheme, ManifestWriter,
};
use lru::LruCache;
use object_store::path::Path;
use prost::Message as _;
use rustix::process::{Resource, Rlimit};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::unbounded_channel;

use super::super::{guard, scan, source};
use super::store::{self, Line};
use super::wire::{self, Ask, Done, Place, Reply, Scan, Told};
use crate::error::{Error, Kind, Result};
use crate::units;

/// Tells the program that it is such a process; not one of the options that start with `LANCEFS_`.
pub const WORKER: &str = "_LANCEFS_DECODER";

/// How much memory one may have, in bytes: half of the machine's, within these.
const LEAST: u64 = 1 << 30;
const MOST: u64 = 4 << 30;

/// How many sessions and manifests are kept.
const SESSIONS: NonZeroUsize = NonZeroUsize::new(4).expect("not zero");
const MANIFESTS: NonZeroUsize = NonZeroUsize::new(16).expect("not zero");

/// How much memory a process that decodes may have, in bytes.
pub fn memory_limit() -> u64 {
    let machine = rustix::system::sysinfo();
    let bytes = machine.totalram.saturating_mul(u64::from(machine.mem_unit));
    (bytes / 2).clamp(LEAST, MOST)
}

/// Whether this process was started to decode.
pub fn is_worker() -> bool {
    std::env::var_os(WORKER).is_some()
}

/// Decodes what it is told on its standard input, until that ends.
pub fn run() -> ExitCode {
    // Else it would be called as the link that it was started by.
    let _ = rustix::thread::set_name(c"lancefs-decoder");
    limit_memory();
    let Ok(runtime) = Runtime::new() else { return ExitCode::FAILURE };
    let served = runtime.block_on(serve());
    // What is still being decoded is for nobody, and need not be waited for.
    std::process::exit(i32::from(served.is_err()))
}

/// Written memory is limited, not addresses: allocators and threads reserve more than they use.
fn limit_memory() {
    let lower = |resource, most: u64| {
        let limit = rustix::process::getrlimit(resource);
        let most = limit.maximum.map_or(most, |maximum| maximum.min(most));
        rustix::process::setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })
    };
    // A lower limit is always granted.
    let _ = lower(Resource::Data, memory_limit());
    let _ = lower(Resource::Core, 0);
    // Where the machine has no memory left, this is what the kernel ends first.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
}

async fn serve() -> std::io::Result<()> {
    let socket = rustix::stdio::stdin().try_clone_to_owned()?;
    let (mut ears, mouth) = wire::socket(StdStream::from(socket))?.into_split();
    let (says, said) = unbounded_channel();
    tokio::spawn(wire::pass_on(said, mouth));
    let worker = Arc::new(Worker::new(Line::new(says)));
    while let Some(Told { ask }) = wire::receive(&mut ears, u64::MAX).await? {
        match ask {
            Some(Ask::Scan(scan)) => {
                tokio::spawn(worker.clone().scan(scan));
            }
            Some(Ask::Answer(answer)) => worker.line.answered(answer),
            None => {}
        }
    }
    Ok(())
}

struct Worker {
    line: Arc<Line>,
    sessions: Mutex<LruCache<u64, Arc<Session>>>,
    manifests: Mutex<LruCache<(u64, Bytes), Arc<Manifest>>>,
}

impl Worker {
    fn new(line: Line) -> Self {
        Self {
            line: Arc::new(line),
            sessions: Mutex::new(LruCache::new(SESSIONS)),
            manifests: Mutex::new(LruCache::new(MANIFESTS)),
        }
    }

    async fn scan(self: Arc<Self>, scan: Scan) {
        let scanned = self.decode(&scan).await.and_then(|batch| stream(&batch));
        let (batch, failure) = match scanned {
            Ok(batch) => (batch, None),
            Err(error) => (Bytes::new(), Some(error.chain())),
        };
        self.line.say(Reply::Done(Done { scan: scan.id, batch, failure }));
    }

    async fn decode(&self, scan: &Scan) -> Result<RecordBatch> {
        let what = || "decode".to_owned();
        let place = scan.place.clone().unwrap_or_default();
        let dataset = guard::within(what, self.open(scan, &place)).await?;
        let projection = dataset.schema().project_by_ids(&scan.fields, false);
        let most = scan.most;
        let run = scan::Run { fragment: 0, offset: scan.offset, rows: scan.rows };
        let work = async move { scan::scan_one(&dataset, &projection, run, most).await };
        guard::apart(what, work).await
    }

    /// The version with the one fragment of a scan, in stores that read for it.
    async fn open(&self, scan: &Scan, place: &Place) -> lance::Result<Dataset> {
        let store = self.line.store(scan.id, units::usize_of(place.block));
        let mut manifest = self.manifest(place, &store).await?.as_ref().clone();
        let fragment = pb::DataFragment::decode(scan.fragment.clone())?;
        manifest.fragments = Arc::new(vec![Fragment::try_from(fragment)?]);
        store::uris_of_bases(&mut manifest, scan.id);
        // Without columns, as dictionaries would be read anew with each.
        let mut bare = manifest.clone();
        bare.schema = Schema::default();
        let mut dataset = DatasetBuilder::load_by_uri(
            self.session(place.session),
            Some(bare),
            Some(source::reading()),
            place.uri.clone(),
            None,
            store,
            path(&place.root)?,
            Arc::new(At(path(&place.manifest)?)),
            Some(ObjectStoreParams::default()),
            None,
        )
        .await?;
        dataset.manifest = Arc::new(manifest);
        Ok(dataset)
    }

    async fn manifest(&self, place: &Place, store: &ObjectStore) -> lance::Result<Arc<Manifest>> {
        let key = (place.session, place.header.clone());
        let known =
            self.manifests.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let mut manifest = Manifest::try_from(pb::Manifest::decode(place.header.clone())?)?;
        if manifest.schema.has_dictionary_types() {
            let reader = store.open(&path(&place.manifest)?).await?;
            populate_manifest_schema_dictionaries(&mut manifest, reader.as_ref()).await?;
        }
        let manifest = Arc::new(manifest);
        let mut known = self.manifests.lock().unwrap_or_else(PoisonError::into_inner);
        known.put(key, manifest.clone());
        Ok(manifest)
    }

    fn session(&self, number: u64) -> Arc<Session> {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let make = || Arc::new(source::new_session(self.line.registry()));
        sessions.get_or_insert(number, make).clone()
    }
}

fn path(text: &str) -> lance::Result<Path> {
    Path::parse(text).map_err(|e| LanceError::invalid_input(e.to_string()))
}

fn stream(batch: &RecordBatch) -> Result<Bytes> {
    let write = || {
        let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema())?;
        writer.write(batch)?;
        writer.into_inner()
    };
    write().map(Bytes::from).map_err(|e| Error::caused(Kind::Internal, "hand rows over", e))
}

/// Knows where the manifest is, and commits nothing.
#[derive(Debug)]
struct At(Path);

#[async_trait]
impl CommitHandler for At {
    async fn resolve_version_location(
        &self,
        _: &Path,
        version: u64,
        _: &dyn object_store::ObjectStore,
    ) -> lance::Result<ManifestLocation> {
        Ok(ManifestLocation {
            version,
            path: self.0.clone(),
            size: None,
            naming_scheme: ManifestNamingScheme::V2,
            e_tag: None,
            identity: None,
        })
    }

    async fn commit(
        &self,
        _: &mut Manifest,
        _: Option<Vec<IndexMetadata>>,
        _: &Path,
        _: &ObjectStore,
        _: ManifestWriter,
        _: ManifestNamingScheme,
        _: Option<Transaction>,
    ) -> std::result::Result<ManifestLocation, CommitError> {
        Err(CommitError::CommitConflict)
    }
}
