//! One fetch that is under way, for however many readers wait for it (single flight).
//!
//! The contract:
//!
//! 1. Bytes are given out as they arrive: who waits for the first of a large fetch does not wait for
//!    the last. They arrive in extents, whole buffers that the cache takes over and readers get
//!    slices of; what is still being filled is copied.
//! 2. The fetch is a task of its own. A reader that goes away takes nothing with it, and a fetch that
//!    nobody waits for any more still fills the cache.
//! 3. A fetch always lands: with all bytes, at the end of the object, or with the error that every
//!    waiting reader gets; who flies it sees to that even when the task panics.
//! 4. A store that hangs or trickles does not hold it for ever: an answer or a piece of the body
//!    that does not come within [`Patience::stall`] is given up and asked for again, from where it
//!    stopped, until [`Patience::total`] has passed ([`fetch`]).

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::Interval;
use super::blocks::Extent;
use super::buffers::{Buffers, Filling};
use super::fetch::{Fetch, Meta};
use super::gate::is_silence;
use super::span;
use crate::error::{Error, Kind, Result};
use crate::units::{self, BlockNumber, ByteLen, ObjectOffset};

/// The first pause before a request is made again; it doubles up to [`LONGEST_PAUSE`]. The store's
/// client has made some tries of its own by then.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// How long a fetch is waited for.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For an answer, and then for each piece of its body.
    pub stall: Duration,
    /// For all tries together.
    pub total: Duration,
}

/// The longest that a store may send nothing, in seconds: a healthy one answers in 0.1 s, a congested
/// one in 5.
const STALL: Duration = Duration::from_secs(10);

impl Patience {
    /// For operations that may take `total`: there is time for three tries at least.
    pub fn within(total: Duration) -> Self {
        Self { stall: STALL.min(total / 3), total }
    }
}

/// A fetch of some blocks of an object.
pub struct Flight {
    blocks: Range<u64>,
    block: ByteLen,
    buffers: Arc<Buffers>,
    progress: Mutex<Progress>,
    arrived: Notify,
}

struct Progress {
    /// Those that are complete, in order; held until it lands, also when the cache lets go of them.
    extents: Vec<Bytes>,
    /// The next one.
    filling: Option<Filling>,
    /// Up to where the object's bytes have arrived.
    received: u64,
    /// Where it ends.
    end: u64,
    /// The least that somebody waits for to arrive.
    wanted: u64,
    landed: Option<Result<()>>,
}

impl Flight {
    /// A fetch of blocks that is about to start.
    pub fn new(blocks: Range<u64>, block: ByteLen, buffers: Arc<Buffers>) -> Self {
        let Range { start: received, end } = span::bytes_of(&blocks, block);
        let (extents, filling, landed) = Default::default();
        let progress = Progress { extents, filling, received, end, wanted: u64::MAX, landed };
        Self { blocks, block, buffers, progress: Mutex::new(progress), arrived: Notify::new() }
    }

    /// The blocks that it fetches.
    pub fn blocks(&self) -> Range<u64> {
        self.blocks.clone()
    }

    /// The object's bytes that are still to come.
    pub fn rest(&self) -> Range<u64> {
        let progress = self.lock();
        progress.received..progress.end.max(progress.received)
    }

    /// Says how long the object is: nothing comes from beyond.
    pub fn bound(&self, length: ByteLen) {
        let mut progress = self.lock();
        progress.end = progress.end.min(length.get());
    }

    /// Whether all of a range that will come is there.
    pub fn has(&self, bytes: &Range<u64>) -> bool {
        self.lock().has(bytes)
    }

    /// Waits until it [has](Flight::has) a range, or nothing more comes.
    ///
    /// # Errors
    /// Why the fetch failed.
    pub async fn wait(&self, bytes: &Range<u64>) -> Result<()> {
        loop {
            let mut arrived = std::pin::pin!(self.arrived.notified());
            // Listening before looking: what arrives in between is not missed.
            arrived.as_mut().enable();
            {
                let mut progress = self.lock();
                if progress.has(bytes) {
                    return Ok(());
                }
                if let Some(landed) = &progress.landed {
                    return landed.clone();
                }
                progress.wanted = progress.wanted.min(bytes.end);
            }
            arrived.await;
        }
    }

    /// A range that is in one extent, without a copy.
    pub fn slice(&self, bytes: &Range<u64>) -> Option<Bytes> {
        let progress = self.lock();
        let mut start = self.start();
        for extent in &progress.extents {
            let cut = span::within(bytes, start, extent.len());
            if cut.len() == span::len(bytes) {
                return Some(extent.slice(cut));
            }
            start += units::u64_of(extent.len());
        }
        None
    }

    /// Copies what has arrived of a range.
    pub fn copy(&self, bytes: &Range<u64>, into: &mut Filling) {
        let progress = self.lock();
        let mut start = self.start();
        let complete = progress.extents.iter().map(|extent| &extent[..]);
        for here in complete.chain(progress.filling.as_ref().map(Filling::bytes)) {
            into.push(&here[span::within(bytes, start, here.len())]);
            start += units::u64_of(here.len());
        }
    }

    /// Takes the next bytes; gives the extents that they complete.
    pub fn arrive(&self, mut bytes: &[u8]) -> Vec<Extent> {
        let mut complete = Vec::new();
        let progress = &mut *self.lock();
        while !bytes.is_empty() && progress.received < progress.end {
            let at = progress.received;
            let room = || units::usize_of(self.extent_end(at).min(progress.end) - at);
            let filling = progress.filling.get_or_insert_with(|| self.buffers.to_keep(room()));
            let (now, later) = bytes.split_at(bytes.len().min(filling.room()));
            filling.push(now);
            bytes = later;
            progress.received += units::u64_of(now.len());
            if filling.room() == 0
                && let Some(full) = progress.filling.take()
            {
                complete.push(self.complete(progress, full.freeze()));
            }
        }
        if progress.received >= progress.wanted.min(progress.end) {
            progress.wanted = u64::MAX;
            self.arrived.notify_waiters();
        }
        complete
    }

    /// Ends what comes: gives the whole blocks of what is not complete, and says how many have not
    /// come.
    pub fn close(&self) -> (Option<Extent>, u64) {
        let progress = self.lock();
        let block = self.block.get();
        let Some(filling) = &progress.filling else {
            return (None, self.blocks.end.saturating_sub(progress.received.div_ceil(block)));
        };
        let start = progress.received - units::u64_of(filling.bytes().len());
        let whole = progress.received / block * block;
        let bytes = &filling.bytes()[..units::usize_of(whole.max(start) - start)];
        let first = BlockNumber::holding(ObjectOffset::new(start), self.block);
        // A copy: an extent must not hold a whole buffer.
        let last = Extent { first, bytes: Bytes::copy_from_slice(bytes) };
        ((!bytes.is_empty()).then_some(last), self.blocks.end.saturating_sub(whole / block))
    }

    /// Ends it, for everybody who waits: with `Ok` nothing more comes. The first result counts.
    pub fn land(&self, result: Result<()>) {
        self.lock().landed.get_or_insert(result);
        self.arrived.notify_waiters();
    }

    fn complete(&self, progress: &mut Progress, bytes: Bytes) -> Extent {
        progress.extents.push(bytes.clone());
        let start = ObjectOffset::new(progress.received - units::u64_of(bytes.len()));
        Extent { first: BlockNumber::holding(start, self.block), bytes }
    }

    fn start(&self) -> u64 {
        span::bytes_of(&self.blocks, self.block).start
    }

    /// Where the extent of an offset ends: each has as many blocks as a buffer holds, from the first
    /// one on.
    fn extent_end(&self, at: u64) -> u64 {
        let extent = self.buffers.blocks(self.block) * self.block.get();
        let start = self.start();
        start.saturating_add(((at - start) / extent + 1).saturating_mul(extent))
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Progress {
    fn has(&self, bytes: &Range<u64>) -> bool {
        bytes.end.min(self.end) <= self.received
    }
}

/// Takes what a fetch brings.
pub trait Intake: Sync {
    /// Hears what the store says of the object with each answer; an error ends the fetch.
    ///
    /// # Errors
    /// Where the object is not the one that was asked for before.
    fn meta(&self, meta: &Meta) -> Result<()>;

    /// Takes the next bytes.
    fn piece(&self, bytes: &[u8]);
}

/// Fetches the rest of a flight into `intake`, as often as it takes.
///
/// # Errors
/// [`Kind::Timeout`] when patience ends; whatever another try would not change.
pub async fn fetch(
    from: &dyn Fetch,
    flight: &Flight,
    patience: Patience,
    intake: &dyn Intake,
) -> Result<()> {
    let deadline = Instant::now() + patience.total;
    let mut pause = FIRST_PAUSE;
    loop {
        let before = flight.rest();
        let stall = patience.stall.min(deadline - Instant::now());
        let error = match attempt(from, flight, stall, intake).await {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() != Kind::Timeout || is_silence(&error) => return Err(error),
            Err(error) => error,
        };
        if flight.rest().start != before.start {
            pause = FIRST_PAUSE;
        }
        if Instant::now() + pause >= deadline {
            return Err(error);
        }
        tracing::debug!(%error, "fetching again");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn attempt(
    from: &dyn Fetch,
    flight: &Flight,
    stall: Duration,
    intake: &dyn Intake,
) -> Result<()> {
    let rest = flight.rest();
    if rest.is_empty() {
        return Ok(());
    }
    let (offset, len) = (ObjectOffset::new(rest.start), ByteLen::new(rest.end - rest.start));
    let late = |_| {
        let seconds = stall.as_secs_f64();
        Error::new(Kind::Timeout, format!("the store sent nothing for {seconds} s"))
    };
    let interval = Interval { offset, len };
    let mut answer = timeout(stall, from.get(interval)).await.map_err(late)??;
    intake.meta(&answer.meta)?;
    flight.bound(answer.meta.length);
    let mut left = span::len(&flight.rest());
    while left > 0 {
        let Some(piece) = timeout(stall, answer.body.next()).await.map_err(late)? else { break };
        let piece = piece?;
        intake.piece(&piece);
        left = left.saturating_sub(piece.len());
    }
    if left > 0 {
        // Not a broken connection, which is an error of its own: the store says that this is all.
        return Err(Error::new(Kind::Payload, format!("an answer came {left} bytes short")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flight(blocks: Range<u64>, block: ByteLen) -> Arc<Flight> {
        Arc::new(Flight::new(blocks, block, Arc::default()))
    }

    fn copy(flight: &Flight, bytes: Range<u64>) -> Bytes {
        let mut copy = Arc::<Buffers>::default().to_pass(span::len(&bytes));
        flight.copy(&bytes, &mut copy);
        copy.freeze()
    }

    #[tokio::test]
    async fn bytes_are_given_as_they_arrive_and_whole_blocks_kept_when_it_breaks_off() {
        let flight = flight(3..6, ByteLen::new(4));
        assert_eq!(flight.rest(), 12..24);
        let waiting = tokio::spawn({
            let flight = flight.clone();
            async move { flight.wait(&(16..18)).await }
        });
        tokio::task::yield_now().await;
        assert!(flight.arrive(b"abcde").is_empty());
        assert!(flight.has(&(13..17)) && !flight.has(&(13..18)));
        assert_eq!(copy(&flight, 13..17), "bcde");
        flight.arrive(b"f");
        waiting.await.unwrap().unwrap();
        assert_eq!(copy(&flight, 16..18), "ef");
        assert_eq!(flight.slice(&(16..18)), None, "it is being filled");
        assert_eq!(flight.rest(), 18..24);
        let (kept, missing) = flight.close();
        let kept = kept.unwrap();
        assert_eq!((kept.first.get(), &kept.bytes[..], missing), (3, &b"abcd"[..], 2));
        flight.land(Err(Error::new(Kind::Internal, "given up")));
        flight.land(Ok(()));
        flight.wait(&(12..18)).await.unwrap();
        assert_eq!(copy(&flight, 12..18), "abcdef", "whoever waited for it has it");
        assert_eq!(flight.wait(&(12..19)).await.unwrap_err().kind(), Kind::Internal);
    }

    #[test]
    fn extents_are_whole_buffers_wherever_a_flight_begins() {
        let block = ByteLen::kib(16);
        let flight = flight(100..400, block);
        let bytes: Vec<u8> = (0..=250).cycle().take(300 << 14).collect();
        flight.bound(ByteLen::new((390 << 14) + 7));
        let mut extents = Vec::new();
        for piece in bytes.chunks(300_000) {
            extents.extend(flight.arrive(piece));
        }
        let blocks: Vec<_> = extents.iter().map(|extent| extent.blocks(block)).collect();
        assert_eq!(blocks, [100..228, 228..356, 356..391]);
        let all = &bytes[..(290 << 14) + 7];
        assert!(extents.iter().flat_map(|extent| extent.bytes.iter()).eq(all));
        assert!(flight.has(&(100 << 14..400 << 14)), "no more comes");
        assert!(copy(&flight, 100 << 14..400 << 14) == all);
        let one = flight.slice(&((228 << 14) + 5..356 << 14)).unwrap();
        assert_eq!(one.as_ptr(), extents[1].bytes[5..].as_ptr(), "not a copy");
        assert_eq!(flight.slice(&(227 << 14..229 << 14)), None, "in two of them");
        assert_eq!((flight.close().0.is_none(), flight.close().1), (true, 9));
    }

    #[tokio::test]
    async fn past_the_end_of_the_object_there_is_nothing() {
        let flight = flight(0..2, ByteLen::new(4));
        flight.arrive(b"a");
        flight.land(Ok(()));
        assert_eq!(copy(&flight, 4..8), "");
        flight.wait(&(0..8)).await.unwrap();
        assert_eq!(copy(&flight, 0..8), "a");
        assert_eq!(flight.close().1, 2, "not a whole block");
    }
}
