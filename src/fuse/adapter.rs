//! Requests of the kernel to operations of [`Fs`], and their results back.

use std::ffi::OsStr;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use fuser::{
    AccessFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyXattr, Request as KernelRequest,
};

use rustix::fs::OFlags;

use super::answering::{Answering, Request};
use super::backing::{Backings, Passthrough};
use super::errno::errno;
use crate::fs::{Attr, Content, FileKind, Fs, Handle, Look, Looked, Sink};
use crate::units::{BlobOffset, ByteLen, Ino};

/// What the kernel may have under way at once beyond what readers wait for: read-ahead.
const MAX_BACKGROUND: u16 = 64;
/// The flag of `open(2)`, as the kernel passes it on.
const O_DIRECT: i32 = OFlags::DIRECT.bits().cast_signed();
/// The block of `st_blocks` and of `statfs`, in bytes.
const BLOCK: u64 = 512;
/// `st_blksize`, in bytes: what one read of the kernel carries.
const READ_SIZE: u32 = 128 << 10;
/// Numbers are never used again for other content, so there is one generation.
const GENERATION: Generation = Generation(0);

/// The file system as the kernel sees it.
pub struct Adapter {
    answering: Answering,
    backings: Arc<Backings>,
}

impl Adapter {
    /// Serves operations.
    pub fn new(answering: Answering, passthrough: Passthrough) -> Self {
        Self { answering, backings: Arc::new(Backings::new(passthrough)) }
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
        self.backings.negotiate(config);
        Ok(())
    }

    fn lookup(&self, _request: &KernelRequest, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let Some(name) = name.to_str().map(ToOwned::to_owned) else {
            return reply.error(Errno::ENOENT);
        };
        let (fs, parent) = (self.fs(), Ino::new(parent.0));
        let look = fs.look().clone();
        let request = Request { operation: "lookup", ino: parent };
        self.answering.run(request, async move { fs.lookup(parent, &name).await }, move |result| {
            match result {
                Ok(Looked::Found(attr, ttl)) => {
                    reply.entry_with_ttls(&attr.ttl, &ttl, &kernel_attr(&attr, &look), GENERATION);
                }
                Ok(Looked::Failing(attr, ttl)) => {
                    reply.entry_with_ttls(
                        &Duration::ZERO,
                        &ttl,
                        &kernel_attr(&attr, &look),
                        GENERATION,
                    );
                }
                Ok(Looked::Never(ttl)) => reply.entry(&ttl, &never(&look), GENERATION),
                Err(error) => reply.error(errno(error.kind())),
            }
        });
    }

    fn getattr(
        &self,
        _request: &KernelRequest,
        ino: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        let (fs, ino) = (self.fs(), Ino::new(ino.0));
        let look = fs.look().clone();
        self.answering.run(
            Request { operation: "getattr", ino },
            async move { fs.getattr(ino).await },
            move |result| match result {
                Ok(attr) => reply.attr(&attr.ttl, &kernel_attr(&attr, &look)),
                Err(error) => reply.error(errno(error.kind())),
            },
        );
    }

    fn access(&self, _request: &KernelRequest, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
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
            Request { operation: "readlink", ino },
            async move { fs.readlink(ino).await },
            move |result| match result {
                Ok(target) => reply.data(target.as_bytes()),
                Err(error) => reply.error(errno(error.kind())),
            },
        );
    }

    fn open(&self, _request: &KernelRequest, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let (fs, ino) = (self.fs(), Ino::new(ino.0));
        let is_direct = flags.0 & O_DIRECT != 0;
        let backings = self.backings.clone();
        self.answering.run(
            Request { operation: "open", ino },
            async move { fs.open(ino).await },
            move |result| match result {
                Ok(opened) => {
                    let handle = FileHandle(opened.handle.0);
                    let flags = if is_direct {
                        FopenFlags::FOPEN_DIRECT_IO
                    } else {
                        open_flags(opened.content)
                    };
                    let whole = opened.same_as.as_deref();
                    match whole.and_then(|file| backings.of(ino, opened.handle, file, &reply)) {
                        Some(backing) => {
                            let flags = flags & FopenFlags::FOPEN_DIRECT_IO;
                            reply.opened_passthrough(handle, flags, &backing);
                        }
                        None => reply.opened(handle, flags),
                    }
                }
                Err(error) => reply.error(errno(error.kind())),
            },
        );
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
            Request { operation: "read", ino: Ino::new(ino.0) },
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
        let (fs, ino) = (self.fs(), Ino::new(ino.0));
        let flags = if fs.is_worth_caching(ino) {
            FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE
        } else {
            FopenFlags::empty()
        };
        self.answering.run(
            Request { operation: "opendir", ino },
            async move { fs.opendir(ino).await },
            move |result| match result {
                Ok(handle) => reply.opened(FileHandle(handle.0), flags),
                Err(error) => reply.error(errno(error.kind())),
            },
        );
    }

    fn readdir(
        &self,
        _request: &KernelRequest,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        let (fs, ino, handle) = (self.fs(), Ino::new(ino.0), Handle(handle.0));
        // The reply is the sink while the listing runs, and answers when it has come back.
        let listing = async move {
            let mut sink = Entries(reply);
            let listed = fs.readdir(ino, handle, offset, &mut sink).await;
            match listed {
                Ok(()) => Ok(sink.0),
                Err(error) => {
                    sink.0.error(errno(error.kind()));
                    Err(error)
                }
            }
        };
        self.answering.run(Request { operation: "readdir", ino }, listing, |result| {
            if let Ok(reply) = result {
                reply.ok();
            }
        });
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

    fn statfs(&self, _request: &KernelRequest, _ino: INodeNo, reply: ReplyStatfs) {
        let blocks = self.answering.fs.used_bytes().div_ceil(BLOCK);
        let name_max = u32::try_from(crate::name::NAME_MAX).unwrap_or(u32::MAX);
        // The block is a small constant that fits.
        let block = u32::try_from(BLOCK).unwrap_or(u32::MAX);
        reply.statfs(blocks, 0, 0, 0, 0, block, name_max, block);
    }

    fn getxattr(
        &self,
        _request: &KernelRequest,
        ino: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        let Some(name) = name.to_str().filter(|name| Fs::knows_xattr(name)).map(ToOwned::to_owned)
        else {
            return reply.error(Errno::ENODATA);
        };
        let (fs, ino) = (self.fs(), Ino::new(ino.0));
        self.answering.run(
            Request { operation: "getxattr", ino },
            async move { fs.getxattr(ino, &name).await },
            move |result| match result {
                Ok(value) => sized(reply, size, value.as_bytes()),
                Err(error) => reply.error(errno(error.kind())),
            },
        );
    }

    fn listxattr(&self, _request: &KernelRequest, ino: INodeNo, size: u32, reply: ReplyXattr) {
        match self.answering.fs.listxattr(Ino::new(ino.0)) {
            Ok(names) => {
                let list =
                    names.iter().flat_map(|name| name.bytes().chain([0])).collect::<Vec<_>>();
                sized(reply, size, &list);
            }
            Err(error) => reply.error(errno(error.kind())),
        }
    }
}

struct Entries(ReplyDirectory);

impl Sink for Entries {
    fn add(&mut self, ino: Ino, next: u64, kind: FileKind, name: &str) -> ControlFlow<()> {
        if self.0.add(INodeNo(ino.get()), next, file_type(kind), name) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

/// The protocol of getxattr and listxattr: a size of 0 asks for the length.
fn sized(reply: ReplyXattr, size: u32, value: &[u8]) {
    match u32::try_from(value.len()) {
        Ok(len) if size == 0 => reply.size(len),
        Ok(len) if len <= size => reply.data(value),
        _ => reply.error(Errno::ERANGE),
    }
}

fn open_flags(content: Content) -> FopenFlags {
    match content {
        Content::Immutable => FopenFlags::FOPEN_KEEP_CACHE,
        Content::Foreign => FopenFlags::empty(),
        // Its size is another at each look, so the kernel must not go by the one it knows.
        Content::Volatile => FopenFlags::FOPEN_DIRECT_IO,
    }
}

fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Directory => FileType::Directory,
        FileKind::File => FileType::RegularFile,
        FileKind::Symlink => FileType::Symlink,
    }
}

fn kernel_attr(attr: &Attr, look: &Look) -> FileAttr {
    let (perm, nlink) = match attr.kind {
        FileKind::Directory => (look.dir_mode, 2),
        FileKind::File => (look.file_mode, 1),
        FileKind::Symlink => (0o777, 1),
    };
    FileAttr {
        ino: INodeNo(attr.ino.get()),
        size: attr.size.get(),
        blocks: attr.size.get().div_ceil(BLOCK),
        atime: attr.time,
        mtime: attr.time,
        ctime: attr.time,
        crtime: attr.time,
        kind: file_type(attr.kind),
        perm,
        nlink,
        uid: look.uid,
        gid: look.gid,
        rdev: 0,
        blksize: READ_SIZE,
        flags: 0,
    }
}

/// An entry that is not there and never will be: the kernel remembers a number of 0 as absent.
fn never(look: &Look) -> FileAttr {
    let attr = Attr {
        ino: Ino::new(0),
        kind: FileKind::File,
        size: ByteLen::new(0),
        time: std::time::UNIX_EPOCH,
        ttl: Duration::ZERO,
    };
    kernel_attr(&attr, look)
}
