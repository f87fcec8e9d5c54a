//! Open files: reading and writing at offsets, lengths, holes and copies.
//!
//! 1. A file that is open needs no path: it is unlinked and renamed without its noticing, and its
//!    operations wait for no lock.
//! 2. The kernel has found out where an append goes before it asks: descriptors are opened without
//!    `O_APPEND`, with which the disk would write at the end whatever offset is given.
//! 3. What a write allocates is known only afterwards, and asking costs a call: it is asked after
//!    every write where there is a limit, else when a file is closed.

use std::collections::HashMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use rustix::fs::{FallocateFlags, Mode, OFlags, SeekFrom};
use rustix::io::Errno;

use super::batches::{By, Change};
use super::disk::{self, OnDisk as _, failed, proc};
use super::{Spool, Stat, reference};
use crate::error::Result;
use crate::staging::Reference;
use crate::tree::FileKind;
use crate::units::{self, BlobOffset, ByteLen, Ino};

/// Set-user-id and set-group-id: a write by somebody else takes them away.
const SET_ID: u16 = 0o6000;
/// The most that one call copies, in bytes: the answer has 32 bits.
const COPY: u64 = 1 << 30;

/// What `lseek` looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// The next byte that is there.
    Data,
    /// The next hole.
    Hole,
}

/// The files that are open.
#[derive(Debug, Default)]
pub struct Opens {
    open: Mutex<HashMap<Ino, Open>>,
}

#[derive(Debug)]
struct Open {
    handles: u64,
    writers: u64,
    /// What the quota knows of it.
    allocated: ByteLen,
    file: Arc<OwnedFd>,
    reference: Option<Arc<Reference>>,
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Opens {
    /// The files that are open for writing.
    pub fn writers(&self) -> Vec<Ino> {
        self.lock().iter().filter(|(_, open)| open.writers > 0).map(|(ino, _)| *ino).collect()
    }

    /// All files that are open, with a descriptor of each.
    pub fn all(&self) -> Vec<(Ino, Arc<OwnedFd>)> {
        self.lock().iter().map(|(ino, open)| (*ino, open.file.clone())).collect()
    }

    /// Whether a file is open.
    pub fn is_open(&self, ino: Ino) -> bool {
        self.lock().contains_key(&ino)
    }

    /// What a file refers to.
    pub fn reference(&self, ino: Ino) -> Option<Arc<Reference>> {
        self.lock().get(&ino)?.reference.clone()
    }

    /// Notes what a file refers to.
    pub fn refer(&self, ino: Ino, reference: Option<Arc<Reference>>) {
        if let Some(open) = self.lock().get_mut(&ino) {
            open.reference = reference;
        }
    }

    /// Whose turn it is to fetch the bytes of a file.
    pub fn turn(&self, ino: Ino) -> Arc<tokio::sync::Mutex<()>> {
        self.lock().get(&ino).map(|open| open.turn.clone()).unwrap_or_default()
    }

    /// Whether a file is open for writing.
    pub fn is_written(&self, ino: Ino) -> bool {
        self.lock().get(&ino).is_some_and(|open| open.writers > 0)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Ino, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An open file. It is closed when it is dropped.
#[derive(Debug)]
pub struct OpenFile {
    spool: Arc<Spool>,
    ino: Ino,
    fd: Arc<OwnedFd>,
    writable: bool,
}

impl Spool {
    /// Opens a file. Only whether it is read or written counts of the flags.
    ///
    /// # Errors
    /// [`crate::error::Kind::Busy`] for writing in a batch that is frozen, and what the disk says.
    pub fn open_file(self: &Arc<Self>, ino: Ino, flags: OFlags) -> Result<Arc<OpenFile>> {
        let access = flags & (OFlags::RDWR | OFlags::WRONLY);
        let _still = self.still();
        let path = self.nodes().path(ino)?;
        let _change = if access.is_empty() { None } else { self.changing(&path)? };
        if !access.is_empty() && !path.names.is_empty() {
            // What is beneath a batch that is gone is deleted soon. A file alone that has lost its
            // name can be written to by whoever has it, as anywhere.
            path.in_tree()?;
        }
        let what = || format!("open {:?}", path.shown());
        let mut above = path.clone();
        let fd = match (above.names.pop(), &path.base) {
            (Some(name), _) => {
                let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                rustix::fs::openat(self.directory(&above)?, &*name, flags, Mode::empty())
            }
            (None, Some(gone)) => {
                rustix::fs::open(proc(gone), access | OFlags::CLOEXEC, Mode::empty())
            }
            (None, None) => Err(Errno::ISDIR),
        };
        self.opened(ino, fd.on_disk(what)?, access)
    }

    /// Notes that a file is open.
    pub(super) fn opened(
        self: &Arc<Self>,
        ino: Ino,
        fd: OwnedFd,
        access: OFlags,
    ) -> Result<Arc<OpenFile>> {
        let stat = disk::stat(&fd, "")?;
        if stat.ino != ino || stat.kind != FileKind::File {
            return Err(failed(format!("inode {ino} is another file on the disk"), Errno::STALE));
        }
        let (fd, writable) = (Arc::new(fd), !access.is_empty());
        let reference = reference::read(&self.key, &*fd, &stat)?;
        let mut opens = self.opens.lock();
        let allocated = stat.allocated;
        let open = opens.entry(ino).or_insert_with(|| Open {
            handles: 0,
            writers: 0,
            allocated,
            file: fd.clone(),
            reference,
            turn: Arc::default(),
        });
        open.handles += 1;
        open.writers += u64::from(writable);
        Ok(Arc::new(OpenFile { spool: self.clone(), ino, fd, writable }))
    }

    /// Whether a file on the staging disk is open for writing through the mount.
    pub fn is_written(&self, path: &std::path::Path) -> bool {
        use std::os::unix::fs::MetadataExt as _;
        let meta = path.symlink_metadata();
        meta.is_ok_and(|meta| self.opens.is_written(crate::tree::ino::staged(meta.ino())))
    }
}

impl OpenFile {
    /// Its number.
    pub fn ino(&self) -> Ino {
        self.ino
    }

    pub(super) fn spool(&self) -> &Arc<Spool> {
        &self.spool
    }

    /// Its descriptor.
    pub fn file(&self) -> Arc<OwnedFd> {
        self.fd.clone()
    }

    /// Reads up to `len` bytes; fewer only at its end.
    ///
    /// # Errors
    /// What the disk says.
    pub fn read(&self, offset: BlobOffset, len: ByteLen) -> Result<Bytes> {
        let len = units::usize_of(len.get());
        let mut buffer = Vec::with_capacity(len);
        while buffer.len() < len {
            let at = offset.get().saturating_add(units::u64_of(buffer.len()));
            let spare = rustix::buffer::spare_capacity(&mut buffer);
            match rustix::io::pread(&self.fd, spare, at) {
                Ok(0) => break,
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(failed("read", errno)),
            }
        }
        // The allocator may have given more room than was asked for.
        buffer.truncate(len);
        Ok(buffer.into())
    }

    /// Writes, and gives how many bytes: fewer than asked for only where the disk became full.
    /// `caller` is who writes; somebody else's write takes set-user-id away.
    ///
    /// # Errors
    /// [`crate::error::Kind::Quota`], [`crate::error::Kind::Busy`], and what the disk says.
    pub fn write(&self, offset: BlobOffset, data: &[u8]) -> Result<ByteLen> {
        let _change = self.changing()?;
        self.owns()?;
        self.room(offset.get(), ByteLen::new(units::u64_of(data.len())))?;
        let mut written = 0;
        while written < data.len() {
            let at = offset.get().saturating_add(units::u64_of(written));
            match rustix::io::pwrite(&self.fd, &data[written..], at) {
                Ok(0) => break,
                Ok(count) => written += count,
                Err(Errno::INTR) => {}
                Err(_) if written > 0 => break,
                Err(errno) => return Err(failed("write", errno)),
            }
        }
        self.account_if_limited();
        Ok(ByteLen::new(units::u64_of(written)))
    }

    /// Whether a length can be set while its bytes are in the table: its own, or none.
    pub fn can_truncate(&self, len: ByteLen) -> bool {
        self.reference().is_none_or(|known| len.get() == 0 || len.get() == known.len)
    }

    /// Sets the length.
    ///
    /// # Errors
    /// As [`OpenFile::write`].
    pub fn truncate(&self, len: ByteLen) -> Result<()> {
        let _change = self.changing()?;
        if !self.can_truncate(len) {
            self.owns()?;
        }
        if len.get() == 0 && self.reference().is_some() {
            self.drop_reference()?;
        }
        rustix::fs::ftruncate(&self.fd, len.get()).on_disk(|| "truncate".to_owned())?;
        self.account();
        Ok(())
    }

    /// Takes set-user-id and set-group-id away, as a write by somebody without privileges does.
    ///
    /// # Errors
    /// What the disk says.
    pub fn drop_set_id(&self) -> Result<()> {
        let stat = self.stat()?;
        if stat.mode & SET_ID != 0 {
            let mode = Mode::from_bits_retain((stat.mode & !SET_ID).into());
            rustix::fs::fchmod(&self.fd, mode).on_disk(|| "drop set-user-id".to_owned())?;
        }
        Ok(())
    }

    /// `fallocate`: allocates, punches a hole or zeroes, as the bits of `mode` say.
    ///
    /// # Errors
    /// As [`OpenFile::write`].
    pub fn allocate(&self, mode: i32, offset: BlobOffset, len: ByteLen) -> Result<()> {
        let _change = self.changing()?;
        self.owns()?;
        let flags = FallocateFlags::from_bits_retain(mode.cast_unsigned());
        if !flags.contains(FallocateFlags::PUNCH_HOLE) {
            self.room(offset.get(), len)?;
        }
        rustix::fs::fallocate(&self.fd, flags, offset.get(), len.get())
            .on_disk(|| "allocate".to_owned())?;
        self.account();
        Ok(())
    }

    /// The next data or hole from an offset on.
    ///
    /// # Errors
    /// ENXIO past the end.
    pub fn seek(&self, whence: Whence, offset: BlobOffset) -> Result<BlobOffset> {
        let to = match whence {
            Whence::Data => SeekFrom::Data(offset.get()),
            Whence::Hole => SeekFrom::Hole(offset.get()),
        };
        rustix::fs::seek(&self.fd, to).on_disk(|| "seek".to_owned()).map(BlobOffset::new)
    }

    /// Copies from another staged file, on the disk where it can share the bytes. Gives how many.
    ///
    /// # Errors
    /// As [`OpenFile::write`].
    pub fn copy_from(
        &self,
        source: &Self,
        from: BlobOffset,
        to: BlobOffset,
        len: ByteLen,
    ) -> Result<ByteLen> {
        let _change = self.changing()?;
        self.owns()?;
        source.owns()?;
        let len = ByteLen::new(len.get().min(COPY));
        self.room(to.get(), len)?;
        let (mut from, mut to) = (from.get(), to.get());
        let count = units::usize_of(len.get());
        let copied = rustix::fs::copy_file_range(
            &source.fd,
            Some(&mut from),
            &self.fd,
            Some(&mut to),
            count,
        );
        let copied = copied.on_disk(|| "copy".to_owned())?;
        self.account_if_limited();
        Ok(ByteLen::new(units::u64_of(copied)))
    }

    /// Makes its bytes durable, and its attributes too unless only `data` is wanted.
    ///
    /// # Errors
    /// What the disk says.
    pub fn sync(&self, data_only: bool) -> Result<()> {
        let synced =
            if data_only { rustix::fs::fdatasync(&self.fd) } else { rustix::fs::fsync(&self.fd) };
        synced.on_disk(|| "sync".to_owned())
    }

    /// What the disk says of it.
    ///
    /// # Errors
    /// What the disk says.
    pub fn stat(&self) -> Result<Stat> {
        disk::stat(self.fd.as_fd(), "")
    }

    pub(super) fn changing(&self) -> Result<Option<Change<'_>>> {
        let path = self.spool.nodes().path(self.ino)?;
        let by = if self.writable { By::Writer } else { By::Name };
        self.spool.changing_by(by, &path)
    }

    /// Refuses what does not fit in the limit. What is allocated already can be overwritten.
    pub(super) fn room(&self, offset: u64, len: ByteLen) -> Result<()> {
        if self.spool.quota.fits(len) {
            return Ok(());
        }
        let end = offset.saturating_add(len.get());
        match rustix::fs::seek(&self.fd, SeekFrom::Hole(offset)) {
            Ok(hole) if hole >= end => Ok(()),
            _ => Err(self.spool.quota.exceeded()),
        }
    }

    fn account_if_limited(&self) {
        if self.spool.limit().is_some() {
            self.account();
        }
    }

    /// Tells the quota what is allocated now.
    pub(super) fn account(&self) {
        let Ok(stat) = self.stat() else { return };
        if let Some(open) = self.spool.opens.lock().get_mut(&self.ino) {
            let before = std::mem::replace(&mut open.allocated, stat.allocated);
            self.spool.quota.account(before, stat.allocated);
        }
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if self.writable {
            self.account();
        }
        let mut opens = self.spool.opens.lock();
        let mut last = None;
        if let Some(open) = opens.get_mut(&self.ino) {
            open.handles -= 1;
            open.writers -= u64::from(self.writable);
            if open.handles == 0 {
                last = opens.remove(&self.ino);
            }
        }
        drop(opens);
        if let Some(open) = last
            && self.stat().is_ok_and(|stat| stat.links == 0)
        {
            // It had lost its name before: its bytes count until now.
            self.spool.quota.account(open.allocated, ByteLen::new(0));
        }
        let path = self.spool.nodes().path(self.ino);
        match path.as_ref().map(|path| path.batch()) {
            // What is mapped was written up to now.
            Ok(Some(batch)) if self.writable => self.spool.batches.touch(batch),
            _ => self.spool.batches.tell(),
        }
    }
}
