//! The block cache: what was fetched, under one byte budget.
//!
//! 1. Blocks of many objects compete: the longest unused goes first, whichever object it is of. What
//!    came side by side into one buffer is one [`Extent`], which is used and dropped as one: a
//!    stream of a GiB is 512 of them instead of 65,536 blocks, and most reads need no copy.
//! 2. What is on its way takes memory as well: it is [reserved](Blocks::reserve) before it is
//!    fetched, and the cache makes room for it at once. An extent that is complete turns its part of
//!    the reservation into its weight.
//! 3. An extent must not hold more memory than it weighs: each has a buffer of its own, none is a
//!    slice of a larger answer.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use lru::LruCache;

use super::span;
use crate::units::{self, BlockNumber, ByteLen};

/// What the cache knows an object by; never used again for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(pub u64);

type Key = (ObjectId, BlockNumber);

/// What one extent costs besides its bytes, in bytes: its places in the map, the list and the tree.
const BOOKKEEPING: u64 = 200;

/// Blocks side by side: whole ones, but for the last of an object.
#[derive(Clone, Debug)]
pub struct Extent {
    /// The number of the first.
    pub first: BlockNumber,
    /// Their bytes.
    pub bytes: Bytes,
}

impl Extent {
    /// The numbers of its blocks.
    pub fn blocks(&self, block: ByteLen) -> Range<u64> {
        let count = units::u64_of(self.bytes.len()).div_ceil(block.get());
        self.first.get()..self.first.get() + count
    }

    /// What it has of a range of the object's bytes.
    pub fn part(&self, bytes: &Range<u64>, block: ByteLen) -> Bytes {
        self.bytes.slice(span::within(bytes, self.first.start(block).get(), self.bytes.len()))
    }
}

/// What the cache has at a block.
#[derive(Clone, Debug)]
pub enum Found {
    /// The extent that it is in.
    Here(Extent),
    /// Nothing before this block.
    Missing(u64),
}

struct State {
    extents: LruCache<Key, Bytes>,
    /// The keys of the map in order.
    starts: BTreeSet<Key>,
    held: u64,
    reserved: u64,
}

/// The blocks in memory.
pub struct Blocks {
    state: Mutex<State>,
    budget: u64,
    block: ByteLen,
}

impl Blocks {
    /// A cache of blocks of one size, of up to `budget` bytes, reservations included. With 0 it holds
    /// nothing, and a read is given what was fetched for it alone.
    pub fn new(budget: ByteLen, block: ByteLen) -> Self {
        let (extents, starts) = (LruCache::unbounded(), BTreeSet::new());
        let state = Mutex::new(State { extents, starts, held: 0, reserved: 0 });
        Self { state, budget: budget.get(), block }
    }

    /// What is here at a block; an extent is now the most recently used.
    pub fn find(&self, object: ObjectId, block: BlockNumber) -> Found {
        let state = &mut *self.lock();
        if let Some(extent) = self.holding(state, object, block) {
            return Found::Here(extent);
        }
        let next =
            state.starts.range((object, block)..=(object, BlockNumber::new(u64::MAX))).next();
        Found::Missing(next.map_or(u64::MAX, |(_, next)| next.get()))
    }

    /// Makes room for bytes that are about to be fetched.
    pub fn reserve(&self, bytes: ByteLen) {
        let mut state = self.lock();
        state.reserved += bytes.get();
        self.shrink(&mut state);
    }

    /// As [`Blocks::reserve`], if all reservations together stay within `most`.
    pub fn try_reserve(&self, bytes: ByteLen, most: ByteLen) -> bool {
        let mut state = self.lock();
        if state.reserved + bytes.get() > most.get() {
            return false;
        }
        state.reserved += bytes.get();
        self.shrink(&mut state);
        true
    }

    /// Gives back what was reserved and did not come.
    pub fn release(&self, bytes: ByteLen) {
        let mut state = self.lock();
        state.reserved = state.reserved.saturating_sub(bytes.get());
    }

    /// Keeps blocks that came, and for which each the size of a block was set aside.
    pub fn keep(&self, object: ObjectId, extent: Extent) {
        let blocks = extent.blocks(self.block);
        let mut state = self.lock();
        let reserved = (blocks.end - blocks.start).saturating_mul(self.block.get());
        state.reserved = state.reserved.saturating_sub(reserved);
        // Callers do not ask twice for what is here or on its way; if one did, both would be weighed.
        let before = self.holding(&mut state, object, extent.first).map(|old| (object, old.first));
        let within = (object, extent.first)..(object, BlockNumber::new(blocks.end));
        let within: Vec<Key> = state.starts.range(within).copied().collect();
        for key in before.into_iter().chain(within) {
            state.forget(key);
        }
        state.held += weight(&extent.bytes);
        state.starts.insert((object, extent.first));
        state.extents.put((object, extent.first), extent.bytes);
        self.shrink(&mut state);
    }

    /// Drops the extents that end in a span of blocks.
    pub fn drop_within(&self, object: ObjectId, span: &Range<u64>) {
        let state = &mut *self.lock();
        let key = |block| (object, BlockNumber::new(block));
        let first = self.holding(state, object, BlockNumber::new(span.start));
        let first = first.map_or(span.start, |extent| extent.first.get());
        let ends = |key: &&Key| {
            let bytes = state.extents.peek(key).cloned().unwrap_or_default();
            Extent { first: key.1, bytes }.blocks(self.block).end <= span.end
        };
        let starts = state.starts.range(key(first)..key(span.end.max(first)));
        let dropped: Vec<Key> = starts.filter(ends).copied().collect();
        for key in dropped {
            state.forget(key);
        }
    }

    /// Bytes held and bytes reserved.
    pub fn size(&self) -> (ByteLen, ByteLen) {
        let state = self.lock();
        (ByteLen::new(state.held), ByteLen::new(state.reserved))
    }

    fn holding(&self, state: &mut State, object: ObjectId, block: BlockNumber) -> Option<Extent> {
        let before = (object, BlockNumber::new(0))..=(object, block);
        let key = *state.starts.range(before).next_back()?;
        let bytes = state.extents.peek(&key)?.clone();
        let extent = Extent { first: key.1, bytes };
        if !extent.blocks(self.block).contains(&block.get()) {
            return None;
        }
        state.extents.promote(&key);
        Some(extent)
    }

    fn shrink(&self, state: &mut State) {
        while state.held + state.reserved > self.budget {
            let Some((key, _)) = state.extents.peek_lru() else { break };
            let key = *key;
            state.forget(key);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn forget(&mut self, key: Key) {
        self.starts.remove(&key);
        if let Some(dropped) = self.extents.pop(&key) {
            self.held -= weight(&dropped);
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
    const BLOCK: ByteLen = ByteLen::new(100);
    const ONE: u64 = 100 + BOOKKEEPING;

    fn cache(budget: u64) -> Blocks {
        Blocks::new(ByteLen::new(budget), BLOCK)
    }

    fn put(blocks: &Blocks, n: u64, len: usize) {
        let (first, bytes) = (BlockNumber::new(n), vec![7; len].into());
        blocks.keep(OBJECT, Extent { first, bytes });
    }

    fn find(blocks: &Blocks, object: ObjectId, n: u64) -> Found {
        blocks.find(object, BlockNumber::new(n))
    }

    /// The blocks that are here; looks without using them.
    fn here(blocks: &Blocks) -> Vec<u64> {
        let state = blocks.lock();
        let count = |bytes: &Bytes| units::u64_of(bytes.len()).div_ceil(BLOCK.get());
        let mut here: Vec<u64> = state
            .extents
            .iter()
            .flat_map(|((_, first), bytes)| first.get()..first.get() + count(bytes))
            .collect();
        here.sort_unstable();
        here
    }

    #[test]
    fn the_longest_unused_goes_first() {
        let blocks = cache(3 * ONE);
        for n in 0..3 {
            put(&blocks, n, 100);
        }
        assert!(matches!(find(&blocks, OBJECT, 0), Found::Here(_)));
        put(&blocks, 3, 100);
        assert_eq!(here(&blocks), [0, 2, 3]);
    }

    #[test]
    fn what_is_on_its_way_takes_room() {
        let blocks = cache(3 * ONE);
        for n in 0..3 {
            put(&blocks, n, 100);
        }
        assert!(!blocks.try_reserve(ByteLen::new(200), ByteLen::new(199)));
        assert!(blocks.try_reserve(ByteLen::new(200), ByteLen::new(200)));
        assert_eq!(here(&blocks), [1, 2]);
        put(&blocks, 5, 100);
        blocks.release(ByteLen::new(100));
        assert_eq!(here(&blocks), [2, 5]);
        assert_eq!(blocks.size(), (ByteLen::new(2 * ONE), ByteLen::new(0)));
    }

    #[test]
    fn blocks_are_found_in_their_extent_and_gaps_end_where_the_next_begins() {
        let blocks = cache(1 << 20);
        put(&blocks, 2, 250);
        put(&blocks, 9, 100);
        for n in 2..5 {
            let Found::Here(extent) = find(&blocks, OBJECT, n) else { panic!("{n}") };
            assert_eq!((extent.first.get(), extent.blocks(BLOCK)), (2, 2..5));
            assert_eq!(extent.part(&(399..1000), BLOCK).len(), 51);
            assert!(extent.part(&(450..1000), BLOCK).is_empty());
        }
        for (object, n, next) in [(OBJECT, 0, 2), (OBJECT, 5, 9), (OBJECT, 10, u64::MAX)] {
            assert!(matches!(find(&blocks, object, n), Found::Missing(at) if at == next), "{n}");
        }
        assert!(matches!(find(&blocks, ObjectId(2), 2), Found::Missing(u64::MAX)));
        assert!(matches!(find(&blocks, ObjectId(0), 2), Found::Missing(u64::MAX)));
    }

    #[test]
    fn blocks_that_are_kept_twice_weigh_once() {
        let blocks = cache(1 << 20);
        put(&blocks, 1, 100);
        put(&blocks, 1, 50);
        assert_eq!(blocks.size().0, ByteLen::new(50 + BOOKKEEPING));
        put(&blocks, 0, 300);
        put(&blocks, 2, 300);
        assert_eq!(blocks.size().0, ByteLen::new(300 + BOOKKEEPING));
    }

    #[test]
    fn what_ends_in_a_span_is_dropped() {
        let blocks = cache(1 << 20);
        for n in [0, 2, 4, 6] {
            put(&blocks, n, 200);
        }
        blocks.drop_within(ObjectId(2), &(0..8));
        blocks.drop_within(OBJECT, &(3..7));
        assert_eq!(here(&blocks), [0, 1, 6, 7]);
        blocks.drop_within(OBJECT, &(8..9));
        blocks.drop_within(OBJECT, &(1..8));
        assert!(here(&blocks).is_empty());
        assert_eq!(blocks.size().0, ByteLen::new(0));
    }

    #[test]
    fn without_a_budget_nothing_stays() {
        let blocks = cache(0);
        put(&blocks, 1, 100);
        assert!(here(&blocks).is_empty());
        assert_eq!(blocks.size(), (ByteLen::new(0), ByteLen::new(0)));
    }
}
