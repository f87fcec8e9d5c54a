//! One fetch that is under way, for however many readers wait for it (single flight).
//!
//! The contract:
//!
//! 1. Blocks are given out one by one, in order, as they arrive: who waits for the first of a large
//!    fetch does not wait for the last.
//! 2. The fetch is a task of its own. A reader that goes away takes nothing with it, and a fetch that
//!    nobody waits for any more still fills the cache.
//! 3. A fetch always lands: with all blocks, at the end of the object, or with the error that every
//!    waiting reader gets; who flies it sees to that even when the task panics.
//! 4. A store that hangs or trickles does not hold it for ever: an answer or a piece of the body
//!    that does not come within [`Patience::stall`] is given up and asked for again, from where it
//!    stopped, until [`Patience::total`] has passed ([`fetch`]).

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::Interval;
use super::fetch::{Fetch, Meta};
use crate::error::{Error, Kind, Result};
use crate::units::{self, BlockNumber, ByteLen};

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

#[derive(Default)]
struct Progress {
    blocks: Vec<Bytes>,
    landed: Option<Result<()>>,
}

/// A fetch of some blocks of an object.
pub struct Flight {
    first: BlockNumber,
    count: u64,
    progress: Mutex<Progress>,
    arrived: Notify,
}

impl Flight {
    /// A fetch of `count` blocks that is about to start.
    pub fn new(first: BlockNumber, count: u64) -> Self {
        Self { first, count, progress: Mutex::default(), arrived: Notify::new() }
    }

    /// Whether it fetches a block.
    pub fn covers(&self, block: BlockNumber) -> bool {
        (self.first.get()..self.first.get() + self.count).contains(&block.get())
    }

    /// The first block after those that have arrived, and how many are still to come.
    pub fn rest(&self) -> (BlockNumber, u64) {
        let arrived = units::u64_of(self.lock().blocks.len());
        (BlockNumber::new(self.first.get() + arrived), self.count - arrived)
    }

    /// A block, as soon as it is there.
    ///
    /// # Errors
    /// Why the fetch failed; [`Kind::Payload`] where the object ends before the block.
    pub async fn block(&self, block: BlockNumber) -> Result<Bytes> {
        let at = units::usize_of(block.get() - self.first.get());
        loop {
            let mut arrived = std::pin::pin!(self.arrived.notified());
            // Listening before looking: what arrives in between is not missed.
            arrived.as_mut().enable();
            {
                let progress = self.lock();
                if let Some(bytes) = progress.blocks.get(at) {
                    return Ok(bytes.clone());
                }
                match &progress.landed {
                    Some(Ok(())) => return Err(Error::new(Kind::Payload, "it ends before that")),
                    Some(Err(error)) => return Err(error.clone()),
                    None => {}
                }
            }
            arrived.await;
        }
    }

    /// Gives out the next block.
    pub fn arrive(&self, bytes: Bytes) {
        self.lock().blocks.push(bytes);
        self.arrived.notify_waiters();
    }

    /// Ends it, for everybody who waits: with `Ok` no further block comes. The first result counts.
    pub fn land(&self, result: Result<()>) {
        self.lock().landed.get_or_insert(result);
        self.arrived.notify_waiters();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes what a fetch brings.
pub trait Intake: Sync {
    /// Hears what the store says of the object with each answer; an error ends the fetch.
    ///
    /// # Errors
    /// Where the object is not the one that was asked for before.
    fn meta(&self, meta: &Meta) -> Result<()>;

    /// Takes the next block: a full one, or the last of the object.
    fn block(&self, bytes: Bytes);
}

/// Fetches the rest of a flight into `intake`, as often as it takes.
///
/// # Errors
/// [`Kind::Timeout`] when patience ends; whatever another try would not change.
pub async fn fetch(
    from: &dyn Fetch,
    flight: &Flight,
    block: ByteLen,
    patience: Patience,
    intake: &dyn Intake,
) -> Result<()> {
    let deadline = Instant::now() + patience.total;
    let mut pause = FIRST_PAUSE;
    loop {
        let (before, _) = flight.rest();
        let stall = patience.stall.min(deadline - Instant::now());
        let error = match attempt(from, flight, block, stall, intake).await {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() != Kind::Timeout => return Err(error),
            Err(error) => error,
        };
        if flight.rest().0 != before {
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
    block: ByteLen,
    stall: Duration,
    intake: &dyn Intake,
) -> Result<()> {
    let (first, count) = flight.rest();
    if count == 0 {
        return Ok(());
    }
    let offset = first.start(block);
    let interval = Interval { offset, len: ByteLen::new(count * block.get()) };
    let late = |_| {
        let seconds = stall.as_secs_f64();
        Error::new(Kind::Timeout, format!("the store sent nothing for {seconds} s"))
    };
    let mut answer = timeout(stall, from.get(interval)).await.map_err(late)??;
    intake.meta(&answer.meta)?;
    let mut wanted = interval.len.get().min(answer.meta.length.get().saturating_sub(offset.get()));
    let mut filling = Filling::new(block, wanted);
    while wanted > 0 {
        let Some(piece) = timeout(stall, answer.body.next()).await.map_err(late)? else { break };
        let piece = piece?;
        let used = units::u64_of(piece.len()).min(wanted);
        wanted -= used;
        filling.add(&piece[..units::usize_of(used)], |full| intake.block(full));
    }
    if wanted > 0 {
        // Not a broken connection, which is an error of its own: the store says that this is all.
        return Err(Error::new(Kind::Payload, format!("an answer came {wanted} bytes short")));
    }
    Ok(())
}

/// Cuts pieces of any length into blocks.
struct Filling {
    block: usize,
    /// Bytes that are still to come, those in `part` not counted.
    left: usize,
    part: BytesMut,
}

impl Filling {
    fn new(block: ByteLen, expected: u64) -> Self {
        let (block, left) = (units::usize_of(block.get()), units::usize_of(expected));
        Self { block, left, part: BytesMut::with_capacity(block.min(left)) }
    }

    fn add(&mut self, mut piece: &[u8], mut full: impl FnMut(Bytes)) {
        while !piece.is_empty() {
            let room = (self.block - self.part.len()).min(piece.len());
            let (now, later) = piece.split_at(room);
            self.part.extend_from_slice(now);
            piece = later;
            self.left -= room;
            if self.part.len() == self.block || self.left == 0 {
                let next = BytesMut::with_capacity(self.block.min(self.left));
                full(std::mem::replace(&mut self.part, next).freeze());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn pieces_become_blocks() {
        for (pieces, blocks) in
            [(&[10][..], &[4, 4, 2][..]), (&[1; 8], &[4, 4]), (&[3, 3, 3], &[4, 4, 1]), (&[], &[])]
        {
            let total = pieces.iter().sum::<usize>();
            let mut filling = Filling::new(ByteLen::new(4), units::u64_of(total));
            let mut got = Vec::new();
            for piece in pieces {
                filling.add(&vec![7; *piece], |block| got.push(block.len()));
            }
            assert_eq!(got, blocks, "{pieces:?}");
        }
    }

    #[tokio::test]
    async fn a_flight_that_is_given_up_lands() {
        let flight = Arc::new(Flight::new(BlockNumber::new(3), 2));
        let waiting = tokio::spawn({
            let flight = flight.clone();
            async move { flight.block(BlockNumber::new(4)).await }
        });
        flight.arrive(Bytes::from_static(b"a"));
        assert_eq!(flight.block(BlockNumber::new(3)).await.unwrap(), "a");
        assert_eq!(flight.rest(), (BlockNumber::new(4), 1));
        flight.land(Err(Error::new(Kind::Internal, "given up")));
        flight.land(Ok(()));
        assert_eq!(waiting.await.unwrap().unwrap_err().kind(), Kind::Internal);
        assert_eq!(flight.block(BlockNumber::new(3)).await.unwrap(), "a");
    }

    #[tokio::test]
    async fn past_the_end_of_the_object_there_is_no_block() {
        let flight = Arc::new(Flight::new(BlockNumber::new(0), 2));
        flight.arrive(Bytes::from_static(b"a"));
        flight.land(Ok(()));
        assert_eq!(flight.block(BlockNumber::new(1)).await.unwrap_err().kind(), Kind::Payload);
    }
}
