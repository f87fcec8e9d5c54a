//! Where pages of data files are decoded: in a process of its own, which may end.
//!
//! ```text
//! scan ──▶ Decoder ── Scan, Answer ──▶ worker: the crate decodes ── reads by ──┐
//!             ▲  └──◀── Read, Done ── socket pair                             │
//!             └── asks the table's store, with its credentials ◀──────────────┘
//! ```
//!
//! What a page says of itself is known to the crate's decoders alone, and they ask for as much memory
//! as it says (lance 14.0.2, `lance-encoding/src/encodings/physical/block.rs:283` for eight bytes of
//! a compressed piece; run lengths and offsets elsewhere). Where there is not so much, a process ends:
//! that is no panic, and nothing within the process can catch it. Difficulties, and what answers each:
//!
//! 1. A mount must outlive it: another process decodes, whose memory is limited ([`worker`]). It is
//!    this program again, started with the first scan.
//! 2. It must not be another reader of the store, with other credentials, deadlines and counts: it
//!    opens no file and no connection, but asks us for each read ([`store`]).
//! 3. With it end the scans of others: each is done once more, by a process of its own. Which one
//!    ends that too is the one that cannot be decoded ([`Decoder::decode`]).
//! 4. It must not know a table better than we do: it is told one fragment of one manifest with each
//!    scan, and keeps what it knows of files by the session of who asks ([`Sessions`]).
//! 5. What it is told of a wide table is long: it is made once ([`Scannable`]).

mod process;
mod store;
mod wire;
mod worker;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use arrow_array::RecordBatch;
use arrow_ipc::reader::StreamReader;
use bytes::Bytes;
use bytesize::ByteSize;
use lance::Dataset;
use lance::session::Session;
use lance_core::datatypes::Schema;
use lance_table::format::{Fragment, pb};
use prost::Message as _;
use tokio::sync::Semaphore;

use super::{fault, guard, scan};
use crate::error::{Error, Kind, Result};
use crate::units;

use process::{Death, Process, Refusal};
use wire::{Place, Scan};
pub use worker::{is_worker, run};

/// Scans that are done once more at the same time, each by a process of its own.
const ALONE: usize = 2;

/// The decoder of this program, where it has one ([`apart`]).
static DECODER: OnceLock<Decoder> = OnceLock::new();

/// From now on, pages are decoded by a process of its own. Without this, as in tests of this library,
/// and where there is no `/proc` by which this program finds itself, they are decoded here.
pub fn apart() {
    let program = PathBuf::from("/proc/self/exe");
    if program.exists() {
        DECODER.get_or_init(|| Decoder::new(program));
    }
}

/// A version as it is scanned.
pub struct Scannable {
    dataset: Arc<Dataset>,
    header: OnceLock<Bytes>,
}

impl Scannable {
    /// Of a dataset whose columns the query engine finds by their names.
    pub(super) fn new(dataset: Arc<Dataset>) -> Self {
        Self { dataset, header: OnceLock::new() }
    }

    /// The dataset.
    pub fn dataset(&self) -> &Arc<Dataset> {
        &self.dataset
    }

    /// Its columns.
    pub fn schema(&self) -> &Schema {
        self.dataset.schema()
    }

    /// Its manifest without fragments, with bases as [`store`] names them.
    fn header(&self) -> Bytes {
        let make = || {
            let mut manifest = self.dataset.manifest.as_ref().clone();
            manifest.fragments = Arc::default();
            store::paths_of_bases(&mut manifest, &self.dataset.session().store_registry());
            Bytes::from(manifest.serialized())
        };
        self.header.get_or_init(make).clone()
    }
}

/// Decodes rows of a fragment with [`scan::scan_one`].
///
/// # Errors
/// Those of reading; [`Kind::Table`] where the crate panics or asks for more memory than there is.
pub async fn decode(
    table: &Scannable,
    fragment: &Fragment,
    projection: &Schema,
    run: scan::Run,
    most: u64,
    what: &str,
) -> Result<RecordBatch> {
    if let Some(decoder) = DECODER.get() {
        let decoded = decoder.decode(table, fragment, projection, run, most).await;
        return decoded.map_err(|e| e.at(what));
    }
    let (dataset, projection) = (table.dataset.clone(), projection.clone());
    let work = async move { scan::scan_one(&dataset, &projection, run, most).await };
    guard::apart(|| what.to_owned(), work).await
}

/// Processes that decode.
struct Decoder {
    program: PathBuf,
    shared: Mutex<Option<Arc<Process>>>,
    alone: Semaphore,
    sessions: Sessions,
    scans: AtomicU64,
}

impl Decoder {
    fn new(program: PathBuf) -> Self {
        Self {
            program,
            shared: Mutex::default(),
            alone: Semaphore::new(ALONE),
            sessions: Sessions::default(),
            scans: AtomicU64::new(0),
        }
    }

    async fn decode(
        &self,
        table: &Scannable,
        fragment: &Fragment,
        projection: &Schema,
        run: scan::Run,
        most: u64,
    ) -> Result<RecordBatch> {
        let files = table.dataset();
        let store = files.object_store(None).await.map_err(|e| fault::of("decode", e))?;
        let place = self.place(table, store.block_size());
        let scan = Scan {
            id: self.scans.fetch_add(1, Ordering::Relaxed),
            place: Some(place),
            fragment: pb::DataFragment::from(fragment).encode_to_vec().into(),
            fields: projection.fields_pre_order().map(|field| field.id).collect(),
            offset: run.offset,
            rows: run.rows,
            most,
        };
        let done = self.shared()?.run(scan.clone(), files.clone()).await;
        let done = match done {
            Ok(done) => done,
            Err(death) => {
                tracing::warn!(%death, ?run, "a decoder ended; the scan is done once more, alone");
                let alone = self.alone.acquire().await;
                let _alone = alone.map_err(|e| Error::caused(Kind::Internal, "decode", e))?;
                let again = Process::start(&self.program)?.run(scan, files.clone()).await;
                again.map_err(|death| ended(&death))?
            }
        };
        batch(&done.map_err(refused)?)
    }

    /// The process that all scans share; another one where it has ended.
    fn shared(&self) -> Result<Arc<Process>> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(process) = shared.as_ref().filter(|process| process.is_alive()) {
            return Ok(process.clone());
        }
        let process = Arc::new(Process::start(&self.program)?);
        *shared = Some(process.clone());
        Ok(process)
    }

    fn place(&self, table: &Scannable, block: usize) -> Place {
        let dataset = &table.dataset;
        Place {
            session: self.sessions.number(&dataset.session()),
            uri: dataset.uri().to_owned(),
            root: dataset.branch_location().path.to_string(),
            manifest: dataset.manifest_location().path.to_string(),
            header: table.header(),
            block: units::u64_of(block),
        }
    }
}

/// Numbers of sessions: what is cached of files is good within one (`Source::forget`).
#[derive(Default)]
struct Sessions(Mutex<Known>);

#[derive(Default)]
struct Known {
    last: u64,
    sessions: Vec<(Weak<Session>, u64)>,
}

impl Sessions {
    fn number(&self, session: &Arc<Session>) -> u64 {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // An address is not given to another one while somebody refers to it.
        let is_it = |held: &Weak<Session>| std::ptr::eq(held.as_ptr(), Arc::as_ptr(session));
        if let Some((_, number)) = known.sessions.iter().find(|(held, _)| is_it(held)) {
            return *number;
        }
        known.sessions.retain(|(held, _)| held.strong_count() > 0);
        known.last += 1;
        let number = known.last;
        known.sessions.push((Arc::downgrade(session), number));
        number
    }
}

fn batch(stream: &[u8]) -> Result<RecordBatch> {
    let read = || StreamReader::try_new(stream, None)?.next().transpose();
    let batch = read().map_err(|e| Error::caused(Kind::Internal, "hear from a decoder", e))?;
    batch.ok_or_else(|| Error::new(Kind::Internal, "a decoder answered without rows"))
}

fn refused(refusal: Refusal) -> Error {
    match refusal {
        Refusal::Unread(error) => fault::of("read its files", error.into()),
        Refusal::Undecoded(text) => Error::new(Kind::Table, text),
    }
}

/// Why a scan failed that ended a process of its own.
fn ended(death: &Death) -> Error {
    if !death.is_by_itself {
        return Error::new(Kind::Internal, format!("its decoder was killed: {death}"));
    }
    let limit = ByteSize(worker::memory_limit());
    let text = format!("its decoder, which may have {limit} of memory, ended: {death}");
    Error::new(Kind::Table, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_keeps_its_number_and_no_other_gets_it() {
        let new = || Arc::new(Session::new(1, 1, Arc::default()));
        let (sessions, first, second) = (Sessions::default(), new(), new());
        let numbers = [&first, &second, &first].map(|session| sessions.number(session));
        assert_eq!(numbers, [1, 2, 1]);
        drop(first);
        for _ in 0..10 {
            assert!(sessions.number(&new()) > 2);
        }
        assert_eq!(sessions.number(&second), 2);
    }
}
