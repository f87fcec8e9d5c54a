//! A cache that is bounded by weight, of things that are made once however many ask.
//!
//! Two difficulties:
//!
//! 1. Many callers want the same thing at once: each gets the same cell, the first one to come
//!    fills it and the others wait ([`Lru::cell`]). A caller that goes away does not take the work
//!    of the others with it: the next one starts again.
//! 2. What a thing weighs is known when it is there: [`Lru::weigh`] charges it then and drops the
//!    longest unused until the budget holds. What was dropped lives on for whoever still has it.

use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use lru::LruCache;
use tokio::sync::OnceCell;

use crate::units;

/// The cell of one key: empty until somebody has made the value.
pub type Cell<V> = Arc<OnceCell<V>>;

struct Entry<V> {
    cell: Cell<V>,
    weight: u64,
}

struct State<K, V> {
    entries: LruCache<K, Entry<V>>,
    weight: u64,
}

/// A cache of `V` by `K`. Weights are bytes or pieces, as the owner decides.
pub struct Lru<K, V> {
    state: Mutex<State<K, V>>,
    budget: u64,
}

/// What one entry weighs before its value is there: about its own bookkeeping in bytes, so that a
/// cache that counts bytes cannot fill with empty cells. A cache that counts pieces passes 1.
const EMPTY_CELL: u64 = 1;

impl<K: Hash + Eq + Clone, V> Lru<K, V> {
    /// A cache that holds up to `budget`; with 0 it holds only what was asked for last.
    pub fn new(budget: u64) -> Self {
        let state = State { entries: LruCache::unbounded(), weight: 0 };
        Self { state: Mutex::new(state), budget }
    }

    /// The cell of a key, made empty if there is none, and now the most recently used.
    pub fn cell(&self, key: &K) -> Cell<V> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = state.entries.get(key) {
            return entry.cell.clone();
        }
        let cell = Cell::default();
        state.entries.put(key.clone(), Entry { cell: cell.clone(), weight: EMPTY_CELL });
        state.weight += EMPTY_CELL;
        self.shrink(&mut state);
        cell
    }

    /// Whether there is a cell of a key, filled or not; its age does not change.
    pub fn has(&self, key: &K) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).entries.contains(key)
    }

    /// Charges a value that has been made, and drops others if the budget is exceeded.
    pub fn weigh(&self, key: &K, weight: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = state.entries.peek_mut(key) else { return };
        let before = std::mem::replace(&mut entry.weight, weight);
        state.weight = state.weight - before + weight;
        self.shrink(&mut state);
    }

    /// Drops an entry, so that the next caller makes it anew.
    pub fn forget(&self, key: &K) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = state.entries.pop(key) {
            state.weight -= entry.weight;
        }
    }

    /// How many entries there are, and what they weigh.
    pub fn size(&self) -> (u64, u64) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (units::u64_of(state.entries.len()), state.weight)
    }

    fn shrink(&self, state: &mut State<K, V>) {
        while state.weight > self.budget && state.entries.len() > 1 {
            if let Some((_, dropped)) = state.entries.pop_lru() {
                state.weight -= dropped.weight;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn value(cache: &Lru<u32, u32>, key: u32, weight: u64) -> u32 {
        let cell = cache.cell(&key);
        let value = *cell.get_or_init(|| async { key * 10 }).await;
        cache.weigh(&key, weight);
        value
    }

    #[tokio::test]
    async fn the_longest_unused_goes_first() {
        let cache = Lru::new(10);
        for key in 0..3 {
            assert_eq!(value(&cache, key, 4).await, key * 10);
        }
        assert_eq!(cache.size(), (2, 8));
        assert!(cache.cell(&0).get().is_none());
        assert_eq!(cache.cell(&2).get(), Some(&20));
    }

    #[tokio::test]
    async fn one_that_outweighs_the_budget_stays_alone() {
        let cache = Lru::new(10);
        value(&cache, 1, 4).await;
        value(&cache, 2, 40).await;
        assert_eq!(cache.size(), (1, 40));
        assert_eq!(cache.cell(&2).get(), Some(&20));
    }

    #[tokio::test]
    async fn a_caller_that_goes_away_leaves_the_work_to_the_next() {
        let cache: Lru<u32, u32> = Lru::new(10);
        let cell = cache.cell(&1);
        let gone = cell.get_or_init(std::future::pending::<u32>);
        assert!(tokio::time::timeout(std::time::Duration::from_millis(5), gone).await.is_err());
        assert_eq!(cache.cell(&1).get_or_init(|| async { 7 }).await, &7);
    }
}
