//! Large buffers, used again and again.
//!
//! 1. What streams through a mount is put into new memory all the time. Memory that the kernel has
//!    just given costs a fault and a zeroing for each page; a buffer that goes round costs nothing.
//! 2. The kernel backs a map of one huge page by one huge page, where it has one and may
//!    (`transparent_hugepage` is `madvise` or `always`, and Linux aligns such a map, as 6.7 does): one
//!    fault instead of 512.
//! 3. What is kept for long must not hold more memory than it weighs: only what fills a buffer is
//!    kept in one ([`Buffers::to_keep`]), everything else in memory of its own. If that is large, it
//!    is a map of its own: an allocator whose callers come and go on many threads keeps what they
//!    gave back apart (glibc's arenas), which for 64 streams added up to a third of the budget.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use memmap2::{Advice, MmapMut};

use crate::units::{ByteLen, u64_of};

/// The size of a buffer, in bytes: one huge page of x86-64 and of ARM with small pages of 4 KiB.
const SIZE: usize = 2 << 20;
/// Buffers that wait to be used again. A cache that is full gives back as many as it takes, in turns
/// of what is fetched ahead at once; 32 MiB are beyond the memory budget at most.
const FREE: usize = 16;
/// Less than this, in bytes, is not worth a map.
const LEAST: usize = 128 << 10;

/// The buffers that nobody uses just now.
#[derive(Debug)]
pub struct Buffers {
    size: usize,
    free: Mutex<Vec<MmapMut>>,
}

impl Default for Buffers {
    fn default() -> Self {
        Self::of(SIZE)
    }
}

impl Buffers {
    /// Buffers of a size in bytes, which is not 0.
    pub fn of(size: usize) -> Self {
        Self { size, free: Mutex::default() }
    }

    /// The size of a buffer, in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// How many blocks of a size fill a buffer; one at least.
    pub fn blocks(&self, block: ByteLen) -> u64 {
        (u64_of(self.size) / block.get()).max(1)
    }

    /// Room for bytes that will be kept.
    pub fn to_keep(self: &Arc<Self>, room: usize) -> Filling {
        let buffer = if room == self.size {
            self.take()
        } else if room >= LEAST {
            MmapMut::map_anon(room).ok().map(Buffer::alone)
        } else {
            None
        };
        Filling::new(room, buffer)
    }

    /// Room for bytes that are given away and dropped.
    pub fn to_pass(self: &Arc<Self>, room: usize) -> Filling {
        let is_worth_it = (LEAST..=self.size).contains(&room);
        Filling::new(room, if is_worth_it { self.take() } else { None })
    }

    /// A free buffer or a new one; none where the kernel has no more maps.
    fn take(self: &Arc<Self>) -> Option<Buffer> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let map = free.or_else(|| {
            let map = MmapMut::map_anon(self.size).ok()?;
            // A kernel without huge pages says no, and small ones do as well.
            let _ = map.advise(Advice::HugePage);
            Some(map)
        })?;
        Some(Buffer { map: Some(map), len: 0, home: Some(self.clone()) })
    }
}

/// A map in use, which goes back when it is dropped, if it is one that goes round.
struct Buffer {
    /// There until it is dropped.
    map: Option<MmapMut>,
    len: usize,
    home: Option<Arc<Buffers>>,
}

impl Buffer {
    fn alone(map: MmapMut) -> Self {
        Self { map: Some(map), len: 0, home: None }
    }

    fn push(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        if let Some(map) = &mut self.map {
            map[self.len..end].copy_from_slice(bytes);
            self.len = end;
        }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self.map.as_ref().map_or(&[], |map| &map[..self.len])
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let Some(home) = &self.home else { return };
        let mut free = home.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < FREE {
            free.extend(self.map.take());
        }
    }
}

enum Memory {
    Mapped(Buffer),
    Own(Vec<u8>),
}

/// Memory that is being filled from front to back.
pub struct Filling {
    room: usize,
    memory: Memory,
}

impl Filling {
    fn new(room: usize, buffer: Option<Buffer>) -> Self {
        let memory = buffer.map_or_else(|| Memory::Own(Vec::with_capacity(room)), Memory::Mapped);
        Self { room, memory }
    }

    /// Adds bytes, for which there must be room.
    pub fn push(&mut self, bytes: &[u8]) {
        match &mut self.memory {
            Memory::Mapped(buffer) => buffer.push(bytes),
            Memory::Own(own) => own.extend_from_slice(bytes),
        }
    }

    /// Adds what a file has at an offset, as far as there is room; gives how much that was.
    ///
    /// # Errors
    /// Those of `pread`.
    pub fn pread(&mut self, file: &OwnedFd, offset: u64) -> rustix::io::Result<usize> {
        match &mut self.memory {
            Memory::Mapped(buffer) => {
                let Some(map) = &mut buffer.map else { return Ok(0) };
                let read = rustix::io::pread(file, &mut map[buffer.len..self.room], offset)?;
                buffer.len += read;
                Ok(read)
            }
            Memory::Own(own) => {
                let before = own.len();
                rustix::io::pread(file, rustix::buffer::spare_capacity(own), offset)?;
                // The allocator may have given more room than was asked for.
                own.truncate(self.room);
                Ok(own.len() - before)
            }
        }
    }

    /// What was added.
    pub fn bytes(&self) -> &[u8] {
        match &self.memory {
            Memory::Mapped(buffer) => buffer.as_ref(),
            Memory::Own(own) => own,
        }
    }

    /// For how many bytes there is still room.
    pub fn room(&self) -> usize {
        self.room - self.bytes().len()
    }

    /// All of it, as it is now.
    pub fn freeze(self) -> Bytes {
        match self.memory {
            Memory::Mapped(buffer) => Bytes::from_owner(buffer),
            Memory::Own(own) => own.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free(buffers: &Buffers) -> usize {
        buffers.free.lock().unwrap().len()
    }

    #[test]
    fn a_buffer_goes_round_and_starts_empty() {
        let buffers = Arc::new(Buffers::default());
        let mut filling = buffers.to_keep(SIZE);
        filling.push(b"old");
        assert_eq!((filling.bytes(), filling.room()), (&b"old"[..], SIZE - 3));
        let (bytes, place) = { (filling.bytes().to_vec(), filling.bytes().as_ptr()) };
        let whole = filling.freeze();
        assert_eq!(whole, bytes);
        let part = whole.slice(1..2);
        drop(whole);
        assert_eq!((free(&buffers), &part[..]), (0, &b"l"[..]), "a part holds it");
        drop(part);
        assert_eq!(free(&buffers), 1);
        let again = buffers.to_pass(LEAST);
        assert_eq!((again.bytes(), again.bytes().as_ptr()), (&b""[..], place));
        assert_eq!(again.room(), LEAST);
    }

    #[test]
    fn what_is_kept_holds_no_more_than_it_needs() {
        let buffers = Arc::new(Buffers::default());
        let mut large = buffers.to_keep(SIZE - 1);
        large.push(&vec![7; LEAST]);
        assert_eq!((large.room(), large.freeze()), (SIZE - 1 - LEAST, vec![7; LEAST].into()));
        drop(buffers.to_pass(LEAST - 1));
        drop(buffers.to_pass(SIZE + 1));
        assert_eq!(free(&buffers), 0);
    }

    #[test]
    fn few_are_kept() {
        let buffers = Arc::new(Buffers::default());
        let many: Vec<_> = (0..2 * FREE).map(|_| buffers.to_pass(SIZE)).collect();
        drop(many);
        assert_eq!(free(&buffers), FREE);
    }
}
