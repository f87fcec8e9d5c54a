//! Objects of a store as readers see them: through the block cache, with read-ahead.
//!
//! ```text
//! read ── plan ──▶ in memory: an extent          Blocks
//!           │  ──▶ on its way: a flight          Flight, one however many wait
//!           │  ──▶ missing: a new flight ──▶ Fetch
//!           └─ note ──▶ Streams ──▶ further flights, ahead of the reader
//! ```
//!
//! Difficulties, and what answers each:
//!
//! 1. What is planned must not change before the flights are known to others: one short lock for
//!    each object ([`Object::plan`]), never held across a wait.
//!    A panic in between must not lock the object up: trips outlive the guard.
//! 2. What came leaves its flight and enters the cache without a moment in which it is in neither: it
//!    is kept before the flight is forgotten ([`Trip`]).
//! 3. Many streams share one budget: the window of each shrinks with how many there are
//!    ([`Readers`]), read-ahead stops before it takes the room of what is being read, and so many
//!    requests are ahead of all. What a long stream leaves behind goes first.
//! 4. The object under a name can be replaced (External objects are others' property): every
//!    answer's tag and length is compared with the first one's, and other bytes are never given
//!    ([`Kind::Stale`]); who opens the name again gets the new object ([`Cached::is_replaced`]).
//! 5. What the disk cache has of a name may be of a table that is gone: it is believed where the very
//!    snapshot that kept it names the object, and else the store is asked once whether the object has
//!    that tag still ([`Object::recall`]).

mod identity;
mod trip;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::Instant;

use super::blocks::{Blocks, Extent, Found, ObjectId};
use super::buffers::{Buffers, Filling};
use super::disk::Disk;
use super::fetch::{Fetch, Meta};
use super::flight::{Flight, Patience};
use super::gate::is_silence;
use super::meter::Figures;
use super::pace::{self, Readers};
use super::readahead::Streams;
use super::span;
use super::{Interval, ObjectRef, Owner, RangeRead};
use crate::error::{Error, Kind, Result};
use crate::units::{self, BlockNumber, ByteLen};
use trip::{Leave, Trip};

/// The largest request, in bytes. Requests that are under way share what the machine can take, so
/// with larger ones the reader waits longer for the end of the first while the last are fetched.
const LARGEST_REQUEST: u64 = 4 << 20;
/// The smallest request ahead of a reader, in bytes: its bytes take less time than the round trip, so
/// that smaller ones would only be more, each with a connection of its own.
const LEAST_REQUEST: u64 = 1 << 20;
/// What is asked for ahead is cut into so many parts, which come over as many connections.
const REQUESTS: u64 = 8;

/// What a stream leaves behind is dropped in so many buffers at once: it takes the cache's lock.
const BEHIND: u64 = 2;

/// Sizes of the cache and of what is fetched.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// For blocks in memory and on their way.
    pub memory: ByteLen,
    /// One block; not 0.
    pub block: ByteLen,
    /// The largest window of one stream; 0 turns read-ahead off.
    pub read_ahead: ByteLen,
}

/// What all objects of a mount share.
pub struct Shared {
    /// The blocks in memory.
    pub blocks: Blocks,
    /// The memory that they come in.
    pub buffers: Arc<Buffers>,
    /// The blocks on disk.
    pub disk: Option<Disk>,
    /// Sizes.
    pub sizes: Sizes,
    /// How long the store is waited for.
    pub patience: Patience,
    /// Who reads ahead just now.
    pub readers: Readers,
    /// Leave to ask for something ahead of a reader.
    pub requests_ahead: Arc<Semaphore>,
    /// What is counted.
    pub figures: Arc<Figures>,
}

impl Shared {
    /// An empty cache.
    pub fn new(sizes: Sizes, patience: Patience, disk: Option<Disk>) -> Self {
        let blocks = Blocks::new(sizes.memory, sizes.block);
        let (buffers, readers, figures) = Default::default();
        let requests_ahead = Arc::new(Semaphore::new(pace::REQUESTS_AHEAD));
        Self { blocks, buffers, disk, sizes, patience, readers, requests_ahead, figures }
    }
}

/// An object of a store.
#[derive(Clone)]
pub struct Cached(Arc<Object>);

struct Object {
    id: ObjectId,
    uri: Arc<str>,
    name: String,
    owner: Owner,
    from: Arc<dyn Fetch>,
    shared: Arc<Shared>,
    known: OnceLock<Meta>,
    recalled: OnceCell<()>,
    /// The length that somebody was told before anything was read.
    described: OnceLock<ByteLen>,
    replaced: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    flights: Vec<Arc<Flight>>,
    streams: Streams,
    /// Whether the next flight that begins panics.
    #[cfg(test)]
    panics: bool,
}

/// How a run of blocks stands when it is asked for.
enum Stand {
    Here(Extent),
    Flying(Arc<Flight>),
    Missing,
}

/// A part of what a read needs: bytes of the object.
enum Part {
    Here(Bytes),
    /// They are there when the flight has them.
    Coming(Arc<Flight>, Range<u64>),
}

impl Part {
    async fn wait(&self) -> Result<()> {
        match self {
            Self::Here(_) => Ok(()),
            Self::Coming(flight, bytes) => flight.wait(bytes).await,
        }
    }

    /// Its bytes without a copy, if they lie in one piece.
    fn slice(&self) -> Option<Bytes> {
        match self {
            Self::Here(bytes) => Some(bytes.clone()),
            Self::Coming(flight, bytes) => flight.slice(bytes),
        }
    }

    fn copy(&self, into: &mut Filling) {
        match self {
            Self::Here(bytes) => into.push(bytes),
            Self::Coming(flight, bytes) => flight.copy(bytes, into),
        }
    }
}

impl Cached {
    /// An object that nothing is known of yet.
    pub fn new(
        id: ObjectId,
        object: &ObjectRef,
        from: Arc<dyn Fetch>,
        shared: Arc<Shared>,
    ) -> Self {
        let (name, ObjectRef { uri, owner, .. }) = (object.name(), object.clone());
        let (known, recalled, described, replaced, state) = Default::default();
        Self(Arc::new(Object {
            id,
            uri,
            name,
            owner,
            from,
            shared,
            known,
            recalled,
            described,
            replaced,
            state,
        }))
    }

    /// What the store says of it now.
    ///
    /// # Errors
    /// As [`RangeRead::length`].
    pub async fn head(&self) -> Result<Meta> {
        self.0.from.head().await
    }

    /// Whether it is what the store says now, as far as that tells; else it is replaced. The first
    /// word of the store counts for all that follow.
    pub fn is_still(&self, now: &Meta) -> bool {
        self.0.describe(now).is_ok()
    }

    /// Whether the store has answered with another object under this name.
    pub fn is_replaced(&self) -> bool {
        self.0.replaced.load(Ordering::Relaxed)
    }
}

impl RangeRead for Cached {
    fn read(&self, interval: Interval) -> BoxFuture<'_, Result<Bytes>> {
        self.0.read(interval).boxed()
    }

    fn length(&self) -> BoxFuture<'_, Result<ByteLen>> {
        self.0.length().boxed()
    }
}

impl Object {
    async fn read(self: &Arc<Self>, interval: Interval) -> Result<Bytes> {
        if interval.len.get() == 0 {
            return Ok(Bytes::new());
        }
        let end = interval.offset.end(interval.len).ok_or_else(|| {
            Error::new(Kind::Invalid, format!("interval {interval:?} of {} overflows", self.uri))
        })?;
        let (begun, enough) = (Instant::now(), self.shared.patience.total * 3 / 4);
        let bytes = match self.try_read(interval, end.get()).await {
            // It joined a fetch that others began before, and that gave up now.
            Err(error)
                if error.kind() == Kind::Timeout
                    && begun.elapsed() < enough
                    && !is_silence(&error) =>
            {
                self.try_read(interval, end.get()).await
            }
            result => result,
        };
        let bytes = bytes.map_err(|e| e.at(format!("read {}", self.uri)))?;
        Figures::add(&self.shared.figures.read, units::u64_of(bytes.len()));
        Ok(bytes)
    }

    async fn try_read(self: &Arc<Self>, interval: Interval, end: u64) -> Result<Bytes> {
        let bytes = interval.offset.get()..end;
        let parts = self.plan(&bytes);
        // Nothing is copied before all is there: who waits holds the extents that it found at most.
        for part in &parts {
            part.wait().await?;
        }
        let slice = match &parts[..] {
            [part] => part.slice(),
            _ => None,
        };
        let got = slice.unwrap_or_else(|| {
            let mut all = self.shared.buffers.to_pass(span::len(&bytes));
            for part in &parts {
                part.copy(&mut all);
            }
            all.freeze()
        });
        if got.len() != span::len(&bytes) {
            let length = self.known.get().map_or_else(String::new, |m| m.length.to_string());
            let text = format!("it is truncated: {length} bytes, and {bytes:?} are needed");
            return Err(Error::new(Kind::Payload, text));
        }
        Ok(got)
    }

    async fn length(&self) -> Result<ByteLen> {
        if let Some(known) = self.known.get() {
            return Ok(known.length);
        }
        if let Some(length) = self.described.get() {
            return Ok(*length);
        }
        let meta = self.from.head().await?;
        self.describe(&meta)?;
        Ok(meta.length)
    }

    /// What a read's bytes are or come with, in order and as far as the object goes; starts what is
    /// missing, and what will be next.
    fn plan(self: &Arc<Self>, bytes: &Range<u64>) -> Vec<Part> {
        let Sizes { block, .. } = self.shared.sizes;
        // Before the guard, so that it is dropped after it: a trip that is dropped takes the lock, also
        // where a panic drops it.
        let mut trips = Vec::new();
        let mut state = self.lock();
        let (mut hits, mut misses) = (0, 0);
        let mut parts = Vec::new();
        for (run, stand) in self.stands(&state, &self.there(&span::blocks_of(bytes, block))) {
            let wanted = span::common(bytes, &span::bytes_of(&run, block));
            let flight = match stand {
                Stand::Here(extent) => {
                    hits += run.end - run.start;
                    parts.push(Part::Here(extent.part(&wanted, block)));
                    continue;
                }
                Stand::Flying(flight) => flight,
                Stand::Missing => {
                    // Where it was asked for ahead and is not there any more, it is asked for again.
                    state.streams.not_fetched(bytes.start);
                    self.shared.blocks.reserve(self.weight(&run));
                    self.start(&mut state, &mut trips, run.clone(), None)
                }
            };
            let counter = if flight.has(&wanted) { &mut hits } else { &mut misses };
            *counter += run.end - run.start;
            parts.push(Part::Coming(flight, wanted));
        }
        self.read_ahead(&mut state, &mut trips, bytes.clone());
        let figures = &self.shared.figures;
        Figures::add(&figures.misses, misses);
        Figures::add(&figures.hits, hits);
        // A runtime that is shutting down drops what it is given, and a dropped trip takes the lock.
        drop(state);
        for trip in trips {
            tokio::spawn(trip.fly());
        }
        parts
    }

    /// How the blocks of a span stand, in runs.
    fn stands(&self, state: &State, span: &Range<u64>) -> Vec<(Range<u64>, Stand)> {
        let mut stands = Vec::new();
        let mut at = span.start;
        while at < span.end {
            let (end, stand) = if let Some(flight) = state.flight(at) {
                (flight.blocks().end, Stand::Flying(flight))
            } else {
                match self.shared.blocks.find(self.id, BlockNumber::new(at)) {
                    Found::Here(extent) => {
                        (extent.blocks(self.shared.sizes.block).end, Stand::Here(extent))
                    }
                    Found::Missing(next) => (next.min(state.next_flight(at)), Stand::Missing),
                }
            };
            let run = at..end.min(span.end);
            at = run.end;
            stands.push((run, stand));
        }
        stands
    }

    /// What the stream that a read belongs to will need next.
    fn read_ahead(self: &Arc<Self>, state: &mut State, trips: &mut Vec<Trip>, bytes: Range<u64>) {
        let Sizes { memory, block, read_ahead } = self.shared.sizes;
        let window = self.shared.readers.window(memory, read_ahead);
        let (at, known) = (bytes.end, self.known.get());
        let ahead = state.streams.note(bytes, window.get());
        if known.is_some_and(|known| known.length > memory) {
            let step = BEHIND * units::u64_of(self.shared.buffers.size());
            let keep = pace::behind(memory).get();
            if let Some(left) = state.streams.left_behind(at, keep, step) {
                // Not all of the object can stay, so who reads it again from the start finds nothing:
                // it must not drive out what others find.
                self.shared.blocks.drop_within(self.id, &span::blocks_of(&left, block));
            }
        }
        let Some(ahead) = ahead else { return };
        let Some(known) = known else {
            // Nobody knows yet how far the object goes; the next read will.
            state.streams.not_fetched(ahead.span.start);
            return;
        };
        self.shared.readers.note(self.id, ahead.stream);
        let end = ahead.span.end.min(known.length.get());
        if ahead.span.start >= end {
            return;
        }
        let len = ((end - ahead.span.start) / REQUESTS).clamp(LEAST_REQUEST, LARGEST_REQUEST);
        let stands = self.stands(state, &span::blocks_of(&(ahead.span.start..end), block));
        let missing = stands.into_iter().filter(|(_, stand)| matches!(stand, Stand::Missing));
        for run in missing.flat_map(|(run, _)| self.requests_of(run, len)) {
            let leave = self.shared.requests_ahead.clone().try_acquire_owned().ok();
            let room = || self.shared.blocks.try_reserve(self.weight(&run), pace::ahead(memory));
            let Some(leave) = leave.filter(|_| room()) else {
                state.streams.not_fetched(run.start * block.get());
                break;
            };
            self.start(state, trips, run, Some(leave));
        }
    }

    /// A run of blocks as requests of some bytes each: whole extents, or as much as the kernel reads
    /// at once.
    fn requests_of(&self, run: Range<u64>, len: u64) -> impl Iterator<Item = Range<u64>> + use<> {
        let Shared { sizes, buffers, .. } = &*self.shared;
        let blocks = |bytes: u64| (bytes / sizes.block.get()).max(1);
        let (extent, least) = (buffers.blocks(sizes.block), blocks(LEAST_REQUEST));
        let unit = if blocks(len) < extent { least } else { extent };
        let most = (blocks(len) / unit).max(1) * unit;
        span::cuts(run.clone(), run.start, most)
    }

    /// Begins a flight: whoever drops its trip ends it, so the trip is there before the flight is known.
    fn start(
        self: &Arc<Self>,
        state: &mut State,
        trips: &mut Vec<Trip>,
        run: Range<u64>,
        leave: Option<Leave>,
    ) -> Arc<Flight> {
        let Shared { sizes, buffers, .. } = &*self.shared;
        let flight = Arc::new(Flight::new(run, sizes.block, buffers.clone()));
        trips.push(Trip::new(self.clone(), flight.clone(), leave));
        state.flights.push(flight.clone());
        #[cfg(test)]
        assert!(!std::mem::take(&mut state.panics), "injected");
        flight
    }

    fn weight(&self, run: &Range<u64>) -> ByteLen {
        ByteLen::new((run.end - run.start) * self.shared.sizes.block.get())
    }

    /// The part of a span that the object has, as far as that is known.
    fn there(&self, span: &Range<u64>) -> Range<u64> {
        let end = self
            .known
            .get()
            .map_or(u64::MAX, |known| known.length.get().div_ceil(self.shared.sizes.block.get()));
        span.start..span.end.min(end)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn flight(&self, block: u64) -> Option<Arc<Flight>> {
        self.flights.iter().find(|flight| flight.blocks().contains(&block)).cloned()
    }

    /// The first block after one that a flight fetches.
    fn next_flight(&self, block: u64) -> u64 {
        let starts = self.flights.iter().map(|flight| flight.blocks().start);
        starts.filter(|start| *start > block).min().unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests;
