//! How much each stream may have ahead of it and keep behind it, and how many requests all of them may
//! have under way, so that they fit the budget together.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::blocks::ObjectId;
use crate::units::{self, ByteLen};

/// A stream that has not asked for more in this time does not count any more. A slow reader (a
/// player at 1 MB/s) asks less often; its window is full by then and costs it nothing.
const ACTIVE: Duration = Duration::from_secs(5);
/// One in so many parts of the budget may be ahead of readers; the rest is for what they come back to.
const AHEAD: u64 = 2;
/// One in so many parts of the budget is kept behind a stream through an object larger than all of it:
/// 64 MiB of 512, more than a player goes back.
const BEHIND: u64 = 8;
/// Requests ahead of readers that are under way at once. Each holds a connection with buffers of its
/// client that no budget knows of, up to 0.4 MB (hyper 1.12, `src/proto/h1/io.rs`).
pub const REQUESTS_AHEAD: usize = 64;

/// The streams of all objects that read ahead just now.
#[derive(Debug, Default)]
pub struct Readers {
    active: Mutex<HashMap<(ObjectId, u64), Instant>>,
}

impl Readers {
    /// Notes that a stream asked for more.
    pub fn note(&self, object: ObjectId, stream: u64) {
        let mut active = self.active.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        active.retain(|_, last| now.duration_since(*last) < ACTIVE);
        active.insert((object, stream), now);
    }

    /// The window of each stream, of a budget of `memory` and at most `most`.
    pub fn window(&self, memory: ByteLen, most: ByteLen) -> ByteLen {
        let active = self.active.lock().unwrap_or_else(PoisonError::into_inner).len();
        ByteLen::new(most.get().min(ahead(memory).get() / units::u64_of(active.max(1))))
    }
}

/// What one stream keeps behind it, for who goes back or follows; the rest is others'.
pub fn behind(memory: ByteLen) -> ByteLen {
    ByteLen::new(memory.get() / BEHIND)
}

/// What may be on its way ahead of all readers together.
pub fn ahead(memory: ByteLen) -> ByteLen {
    ByteLen::new(memory.get() / AHEAD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_share_half_of_the_budget() {
        let readers = Readers::default();
        let window = || readers.window(ByteLen::mib(512), ByteLen::mib(128)).get() >> 20;
        assert_eq!(window(), 128);
        for stream in 0..64 {
            readers.note(ObjectId(1), stream);
            readers.note(ObjectId(1), stream);
        }
        assert_eq!(window(), 4);
    }
}
