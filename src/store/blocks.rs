//! The block cache: what was fetched, in blocks of one size, under one byte budget.
//!
//! 1. Blocks of many objects compete: the longest unused goes first, whichever object it is of.
//! 2. What is on its way takes memory as well: it is [reserved](Blocks::reserve) before it is
//!    fetched, and the cache makes room for it at once. A block that arrives turns its part of the
//!    reservation into its weight.
//! 3. A block must not hold more memory than it weighs: each has a buffer of its own, none is a
//!    slice of a larger answer.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use lru::LruCache;

use crate::units::{self, BlockNumber, ByteLen};

/// What the cache knows an object by; never used again for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ObjectId(pub u64);

type Key = (ObjectId, BlockNumber);

/// What one block costs besides its bytes, in bytes: its place in the map and in the list.
const BOOKKEEPING: u64 = 160;

struct State {
    blocks: LruCache<Key, Bytes>,
    held: u64,
    reserved: u64,
}

/// The blocks in memory.
pub struct Blocks {
    state: Mutex<State>,
    budget: u64,
}

impl Blocks {
    /// A cache of up to `budget` bytes, reservations included. With 0 it holds nothing, and a read
    /// is given what was fetched for it alone.
    pub fn new(budget: ByteLen) -> Self {
        let state = State { blocks: LruCache::unbounded(), held: 0, reserved: 0 };
        Self { state: Mutex::new(state), budget: budget.get() }
    }

    /// The blocks of a span that are here, now the most recently used.
    pub fn span(&self, object: ObjectId, span: Range<u64>) -> Vec<Option<Bytes>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        span.map(|block| state.blocks.get(&(object, BlockNumber::new(block))).cloned()).collect()
    }

    /// Whether a block is here; its age does not change.
    pub fn has(&self, object: ObjectId, block: BlockNumber) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).blocks.contains(&(object, block))
    }

    /// Makes room for bytes that are about to be fetched.
    pub fn reserve(&self, bytes: ByteLen) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.reserved += bytes.get();
        self.shrink(&mut state);
    }

    /// As [`Blocks::reserve`], if all reservations together stay within `most`.
    pub fn try_reserve(&self, bytes: ByteLen, most: ByteLen) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.reserved + bytes.get() > most.get() {
            return false;
        }
        state.reserved += bytes.get();
        self.shrink(&mut state);
        true
    }

    /// Gives back what was reserved and did not come.
    pub fn release(&self, bytes: ByteLen) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.reserved = state.reserved.saturating_sub(bytes.get());
    }

    /// Keeps a block that came; `reserved` is what was set aside for it.
    pub fn keep(&self, object: ObjectId, block: BlockNumber, bytes: Bytes, reserved: ByteLen) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.reserved = state.reserved.saturating_sub(reserved.get());
        state.held += weight(&bytes);
        if let Some(before) = state.blocks.put((object, block), bytes) {
            state.held -= weight(&before);
        }
        self.shrink(&mut state);
    }

    /// Bytes held and bytes reserved.
    pub fn size(&self) -> (ByteLen, ByteLen) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (ByteLen::new(state.held), ByteLen::new(state.reserved))
    }

    fn shrink(&self, state: &mut State) {
        while state.held + state.reserved > self.budget {
            let Some((_, dropped)) = state.blocks.pop_lru() else { break };
            state.held -= weight(&dropped);
        }
    }
}

fn weight(bytes: &Bytes) -> u64 {
    units::u64_of(bytes.len()) + BOOKKEEPING
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECT: ObjectId = ObjectId(1);

    fn block(n: u64) -> BlockNumber {
        BlockNumber::new(n)
    }

    fn put(blocks: &Blocks, n: u64, len: usize) {
        blocks.keep(OBJECT, block(n), vec![0; len].into(), ByteLen::new(0));
    }

    fn here(blocks: &Blocks) -> Vec<u64> {
        (0..10).filter(|n| blocks.has(OBJECT, block(*n))).collect()
    }

    #[test]
    fn the_longest_unused_goes_first() {
        let blocks = Blocks::new(ByteLen::new(3 * (100 + BOOKKEEPING)));
        for n in 0..3 {
            put(&blocks, n, 100);
        }
        assert!(blocks.span(OBJECT, 0..1)[0].is_some());
        put(&blocks, 3, 100);
        assert_eq!(here(&blocks), [0, 2, 3]);
        assert!(blocks.span(ObjectId(2), 0..4).iter().all(Option::is_none));
    }

    #[test]
    fn what_is_on_its_way_counts() {
        let blocks = Blocks::new(ByteLen::new(3 * (100 + BOOKKEEPING)));
        for n in 0..3 {
            put(&blocks, n, 100);
        }
        assert!(!blocks.try_reserve(ByteLen::new(200), ByteLen::new(199)));
        assert!(blocks.try_reserve(ByteLen::new(200), ByteLen::new(200)));
        assert_eq!(here(&blocks), [1, 2]);
        blocks.keep(OBJECT, block(5), vec![0; 100].into(), ByteLen::new(100));
        blocks.release(ByteLen::new(100));
        assert_eq!(here(&blocks), [2, 5]);
        assert_eq!(blocks.size(), (ByteLen::new(2 * (100 + BOOKKEEPING)), ByteLen::new(0)));
    }

    #[test]
    fn a_block_that_is_kept_twice_weighs_once() {
        let blocks = Blocks::new(ByteLen::mib(1));
        put(&blocks, 1, 100);
        put(&blocks, 1, 50);
        assert_eq!(blocks.size().0, ByteLen::new(50 + BOOKKEEPING));
    }

    #[test]
    fn without_a_budget_nothing_stays() {
        let blocks = Blocks::new(ByteLen::new(0));
        put(&blocks, 1, 100);
        assert!(here(&blocks).is_empty());
        assert_eq!(blocks.size(), (ByteLen::new(0), ByteLen::new(0)));
    }
}
