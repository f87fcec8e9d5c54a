//! Values whose inode is another one from now on, under the same number.
//!
//! The kernel keeps an inode with its size and its pages, and reads some files by itself. Where the
//! object of a value is not what it was, none of that is right any more. A lookup that answers with
//! another generation ends it all: the kernel makes the inode that it had a bad one, on which every
//! read of whoever has it open fails with EIO, and the name leads to a new inode (Linux,
//! `fs/fuse/inode.c`, `fuse_iget`).
//!
//! 1. Whoever opens a file brings a number and no generation: what the kernel was told last is
//!    remembered ([`Generations::of`]), and where that is not what it should be, `ESTALE` makes it look
//!    the name up anew and open that, within the same call of a program ([`Kind::Renewed`]).
//! 2. The kernel must also be told where nobody looks the name up: a name in `.lancefs`, that exists
//!    for the moment, leads to the inode ([`Generations::announce`]).
//!
//! [`Kind::Renewed`]: crate::error::Kind::Renewed

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ::lru::LruCache;

use crate::units::Ino;

/// Values whose generation is remembered; one that is forgotten is looked up once more.
const REMEMBERED: usize = 1 << 16;
/// What the names begin with that lead to inodes that are to be ended.
const ANNOUNCEMENT: &str = ".renewed-";

/// The generations that the kernel was told of; all others are 0.
pub struct Generations {
    state: Mutex<State>,
}

struct State {
    told: LruCache<Ino, u32>,
    announced: HashSet<Ino>,
}

impl Default for Generations {
    fn default() -> Self {
        let most = NonZeroUsize::new(REMEMBERED).unwrap_or(NonZeroUsize::MIN);
        let state = State { told: LruCache::new(most), announced: HashSet::new() };
        Self { state: Mutex::new(state) }
    }
}

impl Generations {
    /// The generation that the kernel was told last.
    pub fn of(&self, ino: Ino) -> u32 {
        self.lock().told.get(&ino).copied().unwrap_or(0)
    }

    /// Remembers what the kernel is being told.
    pub fn tell(&self, ino: Ino, generation: u32) {
        let mut state = self.lock();
        if state.told.get(&ino).copied().unwrap_or(0) != generation {
            state.told.put(ino, generation);
        }
    }

    /// Gives an inode its next generation, and the name in `.lancefs` whose lookup tells the kernel.
    pub fn announce(&self, ino: Ino) -> String {
        let mut state = self.lock();
        let next = state.told.get(&ino).map_or(1, |last| last.wrapping_add(1).max(1));
        state.told.put(ino, next);
        state.announced.insert(ino);
        format!("{ANNOUNCEMENT}{}", ino.get())
    }

    /// Whether the kernel has not asked yet for what was announced.
    pub fn is_announced(&self, ino: Ino) -> bool {
        self.lock().announced.contains(&ino)
    }

    /// The inode that a name in `.lancefs` leads to, once for each announcement.
    pub fn named(&self, name: &str) -> Option<Ino> {
        let ino = Ino::new(name.strip_prefix(ANNOUNCEMENT)?.parse().ok()?);
        self.lock().announced.remove(&ino).then_some(ino)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_that_is_announced_is_named_once() {
        let generations = Generations::default();
        let ino = Ino::new(77);
        assert_eq!((generations.of(ino), generations.named(".renewed-77")), (0, None));
        let name = generations.announce(ino);
        assert!(generations.is_announced(ino));
        assert_eq!(generations.named(&name), Some(ino));
        assert_eq!((generations.named(&name), generations.is_announced(ino)), (None, false));
        assert_eq!(generations.of(ino), 1);
        generations.tell(ino, u32::MAX);
        generations.announce(ino);
        assert_eq!(generations.of(ino), 1, "0 is that of who was never renewed");
        assert_eq!(generations.named(".renewed-x"), None);
    }
}
