//! Objects of a store as readers see them: through the block cache, with read-ahead.
//!
//! ```text
//! read ── plan ──▶ in memory: a block            Blocks
//!           │  ──▶ on its way: a flight          Flight, one however many wait
//!           │  ──▶ missing: a new flight ──▶ Fetch
//!           └─ note ──▶ Streams ──▶ further flights, ahead of the reader
//! ```
//!
//! Difficulties, and what answers each:
//!
//! 1. What is planned must not change before the flights are known to others: one short lock for
//!    each object ([`Object::plan`]), never held across a wait.
//! 2. A block leaves its flight and enters the cache without a moment in which it is in neither: it
//!    is kept before the flight is forgotten ([`Trip`]).
//! 3. Many streams share one budget: the window of each shrinks with how many there are
//!    ([`Readers`]), and read-ahead stops before it takes the room of what is being read.
//! 4. The object under a name can be replaced (External objects are others' property): every
//!    answer's tag and length is compared with the first one's, and other bytes are never given
//!    ([`Kind::Stale`]); who opens the name again gets the new object ([`Cached::is_replaced`]).

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};
use tokio::time::Instant;

use super::blocks::{Blocks, ObjectId};
use super::disk::{Disk, Known};
use super::fetch::{Fetch, Meta};
use super::flight::{self, Flight, Intake, Patience};
use super::meter::Figures;
use super::pace::{self, Readers};
use super::readahead::Streams;
use super::span::{self, Taking};
use super::{Interval, Owner, RangeRead};
use crate::error::{Error, Kind, Result};
use crate::units::{self, BlockNumber, ByteLen};

/// The largest request, in bytes. Requests that are under way share what the machine can take, so
/// with larger ones the reader waits longer for the end of the first while the last are fetched.
const LARGEST_PART: u64 = 4 << 20;
/// The smallest request ahead of a reader, in bytes.
const LEAST_PART: u64 = 256 << 10;
/// What is asked for ahead is cut into so many parts, which come over as many connections.
const PARTS: u64 = 8;
/// Blocks that are read from the disk cache at once.
const DISK_READS: usize = 16;

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
    /// The blocks on disk.
    pub disk: Option<Disk>,
    /// Sizes.
    pub sizes: Sizes,
    /// How long the store is waited for.
    pub patience: Patience,
    /// Who reads ahead just now.
    pub readers: Readers,
    /// What is counted.
    pub figures: Arc<Figures>,
}

impl Shared {
    /// An empty cache.
    pub fn new(sizes: Sizes, patience: Patience, disk: Option<Disk>) -> Self {
        let blocks = Blocks::new(sizes.memory);
        Self { blocks, disk, sizes, patience, readers: Readers::default(), figures: Arc::default() }
    }
}

/// An object of a store.
#[derive(Clone)]
pub struct Cached(Arc<Object>);

struct Object {
    id: ObjectId,
    uri: Arc<str>,
    owner: Owner,
    from: Arc<dyn Fetch>,
    shared: Arc<Shared>,
    known: OnceLock<Meta>,
    replaced: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    flights: Vec<Arc<Flight>>,
    streams: Streams,
}

/// A block that a read needs.
enum Part {
    Here(Bytes),
    Coming(Arc<Flight>),
}

impl Cached {
    /// An object that nothing is known of yet.
    pub fn new(
        id: ObjectId,
        uri: Arc<str>,
        owner: Owner,
        from: Arc<dyn Fetch>,
        shared: Arc<Shared>,
    ) -> Self {
        let (known, replaced, state) = Default::default();
        Self(Arc::new(Object { id, uri, owner, from, shared, known, replaced, state }))
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
            Err(error) if error.kind() == Kind::Timeout && begun.elapsed() < enough => {
                self.try_read(interval, end.get()).await
            }
            result => result,
        };
        let bytes = bytes.map_err(|e| e.at(format!("read {}", self.uri)))?;
        Figures::add(&self.shared.figures.read, units::u64_of(bytes.len()));
        Ok(bytes)
    }

    async fn try_read(self: &Arc<Self>, interval: Interval, end: u64) -> Result<Bytes> {
        let block = self.shared.sizes.block;
        let bytes = interval.offset.get()..end;
        let span = span::blocks_of(&bytes, block);
        let mut taking = Taking::new(interval, block);
        for (number, part) in self.plan(span, bytes.clone()) {
            match part {
                Part::Here(block) => taking.take(&block),
                Part::Coming(flight) => taking.take(&flight.block(number).await?),
            }
        }
        taking.done().ok_or_else(|| {
            let length = self.known.get().map_or_else(String::new, |m| m.length.to_string());
            let text = format!("it is truncated: {length} bytes, and {bytes:?} are needed");
            Error::new(Kind::Payload, text)
        })
    }

    async fn length(&self) -> Result<ByteLen> {
        if let Some(known) = self.known.get() {
            return Ok(known.length);
        }
        let meta = self.from.head().await?;
        self.compare(&meta)?;
        Ok(meta.length)
    }

    /// What each block of a span is or comes with, as far as the object goes; starts what is
    /// missing, and what will be next.
    fn plan(self: &Arc<Self>, span: Range<u64>, bytes: Range<u64>) -> Vec<(BlockNumber, Part)> {
        let mut state = self.lock();
        let found = self.shared.blocks.span(self.id, span.clone());
        let is_here = |number: BlockNumber| {
            found[units::usize_of(number.get() - span.start)].is_some() || state.flies(number)
        };
        let missing = span::runs(self.there(&span), u64::MAX, |number| !is_here(number));
        let mut trips = Vec::new();
        for run in missing {
            self.shared.blocks.reserve(self.weight(&run));
            trips.push(self.start(&mut state, run));
        }
        trips.extend(self.read_ahead(&mut state, bytes));
        let misses = found.iter().filter(|block| block.is_none()).count();
        let figures = &self.shared.figures;
        Figures::add(&figures.misses, units::u64_of(misses));
        Figures::add(&figures.hits, units::u64_of(found.len() - misses));
        let part = |(block, number): (Option<Bytes>, u64)| {
            let number = BlockNumber::new(number);
            let part = match block {
                Some(bytes) => Some(Part::Here(bytes)),
                None => state.flight(number).map(Part::Coming),
            };
            Some((number, part?))
        };
        let parts = found.into_iter().zip(span).filter_map(part).collect();
        // A runtime that is shutting down drops what it is given, and a dropped trip takes the lock.
        drop(state);
        for trip in trips {
            tokio::spawn(trip.fly());
        }
        parts
    }

    /// What the stream that a read belongs to will need next.
    fn read_ahead(self: &Arc<Self>, state: &mut State, bytes: Range<u64>) -> Vec<Trip> {
        let mut trips = Vec::new();
        let Sizes { memory, block, read_ahead } = self.shared.sizes;
        let window = self.shared.readers.window(memory, read_ahead);
        let Some(ahead) = state.streams.note(bytes, window.get()) else { return trips };
        let Some(known) = self.known.get() else {
            // Nobody knows yet how far the object goes; the next read will.
            state.streams.not_fetched(ahead.span.start);
            return trips;
        };
        self.shared.readers.note(self.id, ahead.stream);
        let end = ahead.span.end.min(known.length.get());
        if ahead.span.start >= end {
            return trips;
        }
        let part = ((end - ahead.span.start) / PARTS).clamp(LEAST_PART, LARGEST_PART);
        let most = (part / block.get()).max(1);
        let span = span::blocks_of(&(ahead.span.start..end), block);
        let is_here = |number| state.flies(number) || self.shared.blocks.has(self.id, number);
        for run in span::runs(span, most, |number| !is_here(number)) {
            if !self.shared.blocks.try_reserve(self.weight(&run), pace::ahead(memory)) {
                state.streams.not_fetched(run.start * block.get());
                break;
            }
            trips.push(self.start(state, run));
        }
        trips
    }

    fn start(self: &Arc<Self>, state: &mut State, run: Range<u64>) -> Trip {
        let flight = Arc::new(Flight::new(BlockNumber::new(run.start), run.end - run.start));
        state.flights.push(flight.clone());
        Trip { object: self.clone(), flight, result: None }
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

    /// The disk cache, for an object that it may keep.
    fn disk(&self) -> Option<&Disk> {
        self.shared.disk.as_ref().filter(|_| self.owner == Owner::Lance)
    }

    fn known<'a>(&'a self, meta: &'a Meta) -> Known<'a> {
        Known { uri: &self.uri, meta, block: self.shared.sizes.block }
    }

    /// Compares an answer with the first one.
    fn compare(&self, meta: &Meta) -> Result<()> {
        let known = self.known.get_or_init(|| {
            if let Some(disk) = self.disk() {
                disk.keep_meta(&self.uri, meta);
            }
            meta.clone()
        });
        if known == meta {
            return Ok(());
        }
        self.replaced.store(true, Ordering::Relaxed);
        if let Some(disk) = self.disk() {
            disk.forget(&self.uri);
        }
        let text = format!("{} was replaced while it was read: {known:?}, now {meta:?}", self.uri);
        Err(Error::new(Kind::Stale, text))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn flight(&self, block: BlockNumber) -> Option<Arc<Flight>> {
        self.flights.iter().find(|flight| flight.covers(block)).cloned()
    }

    fn flies(&self, block: BlockNumber) -> bool {
        self.flights.iter().any(|flight| flight.covers(block))
    }
}

/// A flight under way. However it ends, the object forgets it, what was reserved and did not come
/// is given back, and everybody who waits hears of it, in this order.
struct Trip {
    object: Arc<Object>,
    flight: Arc<Flight>,
    result: Option<Result<()>>,
}

impl Trip {
    async fn fly(mut self) {
        self.take_from_disk().await;
        let (first, count) = self.flight.rest();
        if self.object.there(&(first.get()..first.get() + count)).is_empty() {
            self.result = Some(Ok(()));
            return;
        }
        let (from, shared) = (self.object.from.clone(), self.object.shared.clone());
        let (block, patience) = (shared.sizes.block, shared.patience);
        let fetched = flight::fetch(&*from, &self.flight, block, patience, &self).await;
        self.result = Some(fetched);
    }

    /// Takes from the disk cache what it has, up to the first block that it has not.
    async fn take_from_disk(&self) {
        let object = &self.object;
        let Some(disk) = object.disk() else { return };
        if object.known.get().is_none()
            && let Some(meta) = disk.meta(&object.uri).await
        {
            let _ = object.known.set(meta);
        }
        let Some(meta) = object.known.get() else { return };
        let (first, count) = self.flight.rest();
        let numbers = object.there(&(first.get()..first.get() + count));
        let known = object.known(meta);
        let reads = numbers.map(|number| disk.block(&known, BlockNumber::new(number)));
        let mut blocks = futures::stream::iter(reads).buffered(DISK_READS);
        while let Some(Some(bytes)) = blocks.next().await {
            Figures::add(&object.shared.figures.disk_hits, 1);
            self.take(bytes);
        }
    }

    fn take(&self, bytes: Bytes) {
        let (number, _) = self.flight.rest();
        let Shared { blocks, sizes, .. } = &*self.object.shared;
        blocks.keep(self.object.id, number, bytes.clone(), sizes.block);
        self.flight.arrive(bytes);
    }
}

impl Intake for Trip {
    fn meta(&self, meta: &Meta) -> Result<()> {
        self.object.compare(meta)
    }

    fn block(&self, bytes: Bytes) {
        if let (Some(disk), Some(meta)) = (self.object.disk(), self.object.known.get()) {
            disk.keep(&self.object.known(meta), self.flight.rest().0, bytes.clone());
        }
        self.take(bytes);
    }
}

impl Drop for Trip {
    fn drop(&mut self) {
        self.object.lock().flights.retain(|flight| !Arc::ptr_eq(flight, &self.flight));
        let (_, missing) = self.flight.rest();
        self.object.shared.blocks.release(self.object.weight(&(0..missing)));
        let lost = || Err(Error::new(Kind::Internal, "a fetch was given up"));
        self.flight.land(self.result.take().unwrap_or_else(lost));
    }
}

#[cfg(test)]
mod tests;
