//! The memory of parts, used again and again.
//!
//! Parts are filled by threads that come and go. An allocator keeps what each of them gave back apart
//! from the others' (glibc's arenas), so that what is allocated anew for each part adds up to several
//! times the budget.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{BUDGET, PART};
use crate::error::{Error, Kind, Result};
use crate::units::u64_of;

/// Buffers that nobody uses just now. When no part is under way, there are none.
#[derive(Debug, Default)]
pub(super) struct Pool {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    free: Vec<Vec<u8>>,
    in_use: usize,
}

impl Pool {
    /// An empty buffer with room for so many bytes.
    ///
    /// # Errors
    /// [`Kind::Internal`] where there is no such memory.
    pub(super) fn take(self: &Arc<Self>, room: usize) -> Result<Buffer> {
        let mut bytes = {
            let mut state = self.lock();
            state.in_use += 1;
            state.free.pop().unwrap_or_default()
        };
        let reserved = bytes.try_reserve_exact(room);
        let buffer = Buffer { bytes, pool: self.clone() };
        let what = || format!("there is no memory for a part of {room} bytes");
        reserved.map_err(|e| Error::caused(Kind::Internal, what(), e))?;
        Ok(buffer)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A buffer, which goes back when it is dropped.
pub(super) struct Buffer {
    /// What has been put into it.
    pub(super) bytes: Vec<u8>,
    pool: Arc<Pool>,
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        let most = usize::try_from(BUDGET / PART).unwrap_or(0);
        // A part is larger where an object has very many of them: those are not kept.
        let is_usual = u64_of(bytes.capacity()) <= PART;
        let mut state = self.pool.lock();
        state.in_use -= 1;
        if state.in_use == 0 {
            state.free.clear();
        } else if is_usual && state.free.len() < most {
            state.free.push(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_used_again_and_none_is_kept_when_all_are_back() {
        let pool = Arc::new(Pool::default());
        let (mut first, second) = (pool.take(100).unwrap(), pool.take(100).unwrap());
        first.bytes.extend_from_slice(b"old");
        let room = first.bytes.as_ptr();
        drop(first);
        let third = pool.take(50).unwrap();
        assert!(pool.take(usize::MAX).is_err());
        assert_eq!((third.bytes.as_ptr(), third.as_ref()), (room, &b""[..]));
        drop((second, third));
        assert_eq!(pool.lock().free.len(), 0);
    }
}
