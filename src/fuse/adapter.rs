//! Requests of the kernel to operations of [`Fs`], and their results back: one method for each
//! request. Those that change something are put into our words here and run in [`change`].

mod change;
mod convert;
mod look;

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::SystemTime;

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request as KernelRequest, TimeOrNow, WriteFlags,
};

use rustix::fs::OFlags;

use super::answering::{Answering, Request};
use super::backing::{Backings, Passthrough};
use super::errno::errno;
use crate::fs::{Change, Fs, Handle};
use crate::staging::spool::Attributes;
use crate::units::{BlobOffset, ByteLen, Ino};
use convert::{kernel_attr, new_time, permissions, target};

/// The most that one write carries, in bytes: a larger one holds a thread longer than listing takes.
const MAX_WRITE: u32 = 1 << 20;
/// What the kernel may have under way at once beyond what readers wait for: read-ahead.
const MAX_BACKGROUND: u16 = 64;

/// The file system as the kernel sees it.
pub struct Adapter {
    answering: Answering,
    backings: Arc<Backings>,
    /// Writes that are being done on threads that read requests.
    writing: AtomicUsize,
    /// How many may be at once, so that a slow disk leaves a thread for everything else.
    writers: usize,
}

impl Adapter {
    /// Serves operations at a mountpoint, on so many threads.
    pub fn new(
        answering: Answering,
        passthrough: Passthrough,
        threads: usize,
        mountpoint: PathBuf,
    ) -> Self {
        let backings = Arc::new(Backings::new(passthrough, mountpoint));
        Self { answering, backings, writing: AtomicUsize::new(0), writers: threads / 2 }
    }

    fn fs(&self) -> Arc<Fs> {
        self.answering.fs.clone()
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _request: &KernelRequest, config: &mut KernelConfig) -> io::Result<()> {
        // Each is a gain where the kernel has it, and no loss where not.
        let _ = config.add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS);
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        let _ = config.set_max_background(MAX_BACKGROUND);
        let _ = config.set_max_write(MAX_WRITE);
        // Else the kernel asks for `security.capability` before each write.
        let _ = config.add_capabilities(InitFlags::FUSE_HANDLE_KILLPRIV_V2);
        let _ = config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);
        self.backings.negotiate(config, &self.answering.fs, &self.answering.runtime);
        Ok(())
    }

    fn forget(&self, _request: &KernelRequest, ino: INodeNo, lookups: u64) {
        self.answering.fs.forget(Ino::new(ino.0), lookups);
    }

    fn lookup(&self, _request: &KernelRequest, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.find(parent, name, reply);
    }

    fn getattr(
        &self,
        _request: &KernelRequest,
        ino: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        let (fs, ino) = (self.fs(), Ino::new(ino.0));
        self.answering.run(
            Request::new("getattr", ino),
            async move { fs.getattr(ino).await },
            move |result| match result {
                Ok(attr) => reply.attr(&attr.ttl, &kernel_attr(&attr)),
                Err(error) => reply.error(errno(error.kind())),
            },
        );
    }

    fn access(&self, _request: &KernelRequest, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        if mask.contains(AccessFlags::W_OK)
            && let Err(error) = self.answering.fs.may_write(Ino::new(ino.0))
        {
            return reply.error(errno(error.kind()));
        }
        // Asked only where the modes keep nobody out of reading (`mount::Modes`).
        let wants_to_run = mask.contains(AccessFlags::X_OK);
        if wants_to_run && self.answering.fs.is_plain_file(Ino::new(ino.0)) {
            return reply.error(Errno::EACCES);
        }
        reply.ok();
    }

    fn readlink(&self, _request: &KernelRequest, ino: INodeNo, reply: ReplyData) {
        let (fs, ino) = (self.fs(), Ino::new(ino.0));
        self.answering.run(
            Request::new("readlink", ino),
            async move { fs.readlink(ino).await },
            move |result| match result {
                Ok(target) => reply.data(&target),
                Err(error) => reply.error(errno(error.kind())),
            },
        );
    }

    fn open(&self, _request: &KernelRequest, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.open_file(ino, flags, reply);
    }

    fn read(
        &self,
        _request: &KernelRequest,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let (fs, handle) = (self.fs(), Handle(handle.0));
        let (offset, len) = (BlobOffset::new(offset), ByteLen::new(size.into()));
        self.answering.run(
            Request::new("read", Ino::new(ino.0)),
            async move { fs.read(handle, offset, len).await },
            move |result| match result {
                Ok(bytes) => reply.data(&bytes),
                Err(error) => reply.error(errno(error.kind())),
            },
        );
    }

    fn release(
        &self,
        _request: &KernelRequest,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.backings.release(Handle(handle.0));
        self.answering.fs.release(Handle(handle.0));
        reply.ok();
    }

    fn opendir(&self, _request: &KernelRequest, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.open_directory(ino, reply);
    }

    fn readdir(
        &self,
        _request: &KernelRequest,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        self.list(ino, handle, offset, reply);
    }

    fn releasedir(
        &self,
        _request: &KernelRequest,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.answering.fs.release(Handle(handle.0));
        reply.ok();
    }

    fn statfs(&self, _request: &KernelRequest, ino: INodeNo, reply: ReplyStatfs) {
        self.space(ino, reply);
    }

    fn getxattr(
        &self,
        _request: &KernelRequest,
        ino: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        self.attribute(ino, name, size, reply);
    }

    fn listxattr(&self, _request: &KernelRequest, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.attribute_names(ino, size, reply);
    }

    fn mkdir(
        &self,
        request: &KernelRequest,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        self.make_directory(target(request, parent, name, mode), reply);
    }

    fn mknod(
        &self,
        request: &KernelRequest,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _rdev: u32,
        reply: ReplyEntry,
    ) {
        self.make_node(target(request, parent, name, mode), reply);
    }

    fn create(
        &self,
        request: &KernelRequest,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let flags = OFlags::from_bits_retain(flags.cast_unsigned());
        self.make_file(target(request, parent, name, mode), flags, reply);
    }

    fn symlink(
        &self,
        request: &KernelRequest,
        parent: INodeNo,
        name: &OsStr,
        points_to: &Path,
        reply: ReplyEntry,
    ) {
        self.make_symlink(&target(request, parent, name, 0), points_to, reply);
    }

    fn link(
        &self,
        _request: &KernelRequest,
        _ino: INodeNo,
        parent: INodeNo,
        _name: &OsStr,
        reply: ReplyEntry,
    ) {
        let (fs, parent) = (self.fs(), Ino::new(parent.0));
        let refused = move || fs.refuse(parent, "a hard link");
        self.answering.run_here(Request::new("link", parent), refused, |result| {
            // It never succeeds.
            reply.error(result.map_or_else(|error| errno(error.kind()), |()| Errno::EPERM));
        });
    }

    fn unlink(&self, _request: &KernelRequest, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (fs, parent) = (self.fs(), Ino::new(parent.0));
        self.remove("unlink", parent, name, reply, move |name| fs.unlink(parent, name));
    }

    fn rmdir(&self, _request: &KernelRequest, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (fs, parent) = (self.fs(), Ino::new(parent.0));
        self.remove("rmdir", parent, name, reply, move |name| fs.rmdir(parent, name));
    }

    fn rename(
        &self,
        request: &KernelRequest,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (parent, new_parent) = (Ino::new(parent.0), Ino::new(new_parent.0));
        let caller = request.pid();
        self.move_name((parent, name), (new_parent, new_name), flags, caller, reply);
    }

    fn setattr(
        &self,
        _request: &KernelRequest,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _changed: Option<SystemTime>,
        handle: Option<FileHandle>,
        _born: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let new = Attributes {
            mode: mode.map(permissions),
            uid,
            gid,
            size: size.map(ByteLen::new),
            accessed: accessed.map(new_time),
            modified: modified.map(new_time),
        };
        let handle = handle.map(|handle| Handle(handle.0));
        self.change_attributes(Change { ino: Ino::new(ino.0), handle, new }, reply);
    }

    fn write(
        &self,
        _request: &KernelRequest,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        _open_flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let place = (Ino::new(ino.0), Handle(handle.0), BlobOffset::new(offset));
        let by_other = flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        self.write_bytes(place, data, by_other, reply);
    }

    fn flush(
        &self,
        _request: &KernelRequest,
        _ino: INodeNo,
        _handle: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // Nothing is kept back, so there is nothing to flush; told so, the kernel asks no more.
        reply.error(Errno::ENOSYS);
    }

    fn fsync(
        &self,
        _request: &KernelRequest,
        ino: INodeNo,
        handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        let (fs, handle) = (self.fs(), Handle(handle.0));
        let request = Request::patient("fsync", Ino::new(ino.0));
        self.finish(request, async move { fs.fsync(handle, data_only).await }, reply);
    }

    fn fsyncdir(
        &self,
        _request: &KernelRequest,
        ino: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        let (fs, ino) = (self.fs(), Ino::new(ino.0));
        let request = Request::patient("fsyncdir", ino);
        self.finish(request, async move { fs.fsyncdir(ino).await }, reply);
    }

    fn setxattr(
        &self,
        request: &KernelRequest,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let who = (request.uid(), request.pid());
        self.set_attribute(who, Ino::new(ino.0), name, value, flags, reply);
    }

    fn removexattr(&self, _request: &KernelRequest, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (fs, ino) = (self.fs(), Ino::new(ino.0));
        self.remove("removexattr", ino, name, reply, move |name| fs.removexattr(ino, name));
    }

    fn fallocate(
        &self,
        _request: &KernelRequest,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let (fs, handle) = (self.fs(), Handle(handle.0));
        let (offset, length) = (BlobOffset::new(offset), ByteLen::new(length));
        let request = Request::patient("fallocate", Ino::new(ino.0));
        let allocate = async move { fs.allocate(handle, mode, offset, length).await };
        self.finish(request, allocate, reply);
    }

    fn lseek(
        &self,
        _request: &KernelRequest,
        ino: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        self.find_data(Ino::new(ino.0), Handle(handle.0), offset, whence, reply);
    }

    fn copy_file_range(
        &self,
        _request: &KernelRequest,
        _from: INodeNo,
        from_handle: FileHandle,
        from_offset: u64,
        to: INodeNo,
        to_handle: FileHandle,
        to_offset: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let from = (Handle(from_handle.0), BlobOffset::new(from_offset));
        let target = (Handle(to_handle.0), BlobOffset::new(to_offset));
        self.copy_bytes(Ino::new(to.0), from, target, ByteLen::new(len), reply);
    }
}
