//! Types of the kernel to ours and back.

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    Errno, FileAttr, FileType, FopenFlags, INodeNo, ReplyDirectory, ReplyXattr,
    Request as KernelRequest, TimeOrNow,
};

use crate::fs::{Attr, Content, FileKind, Sink, Target};
use crate::staging::spool::{Caller, NewTime};
use crate::units::{ByteLen, Ino};

/// The block of `st_blocks` and of `statfs`, in bytes.
pub const BLOCK: u64 = 512;
/// `st_blksize`, in bytes: what one read of the kernel carries.
const READ_SIZE: u32 = 128 << 10;
/// Permission bits of a mode.
const PERMISSIONS: u32 = 0o7777;

/// The reply to a listing, while it is being filled.
#[derive(Clone)]
pub struct Entries(Arc<Mutex<Option<ReplyDirectory>>>);

impl Entries {
    /// Without an entry.
    pub fn new(reply: ReplyDirectory) -> Self {
        Self(Arc::new(Mutex::new(Some(reply))))
    }

    /// What has been filled, to answer with: once. Nothing is added afterwards.
    pub fn take(&self) -> Option<ReplyDirectory> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Sink for Entries {
    fn add(&mut self, ino: Ino, next: u64, kind: FileKind, name: &str) -> ControlFlow<()> {
        let mut reply = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(reply) = reply.as_mut() else { return ControlFlow::Break(()) };
        if reply.add(INodeNo(ino.get()), next, file_type(kind), name) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

/// The protocol of getxattr and listxattr: a size of 0 asks for the length.
pub fn sized(reply: ReplyXattr, size: u32, value: &[u8]) {
    match u32::try_from(value.len()) {
        Ok(len) if size == 0 => reply.size(len),
        Ok(len) if len <= size => reply.data(value),
        _ => reply.error(Errno::ERANGE),
    }
}

/// What the kernel may keep of a file's pages.
pub fn open_flags(content: Content) -> FopenFlags {
    match content {
        Content::Immutable => FopenFlags::FOPEN_KEEP_CACHE,
        Content::Foreign | Content::Staged => FopenFlags::empty(),
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

/// Attributes as the kernel takes them.
pub fn kernel_attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino.get()),
        size: attr.size.get(),
        blocks: attr.allocated.get().div_ceil(BLOCK),
        atime: attr.accessed,
        mtime: attr.modified,
        ctime: attr.changed,
        crtime: attr.changed,
        kind: file_type(attr.kind),
        perm: attr.mode,
        nlink: attr.links,
        uid: attr.uid,
        gid: attr.gid,
        rdev: 0,
        blksize: READ_SIZE,
        flags: 0,
    }
}

/// An entry that is not there and never will be: the kernel remembers a number of 0 as absent.
pub fn never() -> FileAttr {
    kernel_attr(&Attr {
        ino: Ino::new(0),
        generation: 0,
        kind: FileKind::File,
        mode: 0,
        links: 1,
        uid: 0,
        gid: 0,
        size: ByteLen::new(0),
        allocated: ByteLen::new(0),
        accessed: UNIX_EPOCH,
        modified: UNIX_EPOCH,
        changed: UNIX_EPOCH,
        ttl: Duration::ZERO,
    })
}

/// The permission bits of a mode.
pub fn permissions(mode: u32) -> u16 {
    // The mask leaves 12 bits.
    u16::try_from(mode & PERMISSIONS).unwrap_or(0)
}

/// A time that is to be set.
pub fn new_time(time: TimeOrNow) -> NewTime {
    match time {
        TimeOrNow::Now => NewTime::Now,
        // Before the epoch, fuser 0.18 takes the nanoseconds off where they are to be added
        // (`src/time.rs:45`).
        TimeOrNow::SpecificTime(time) => NewTime::At(match UNIX_EPOCH.duration_since(time) {
            Ok(before) => {
                let nanoseconds = Duration::from_nanos(before.subsec_nanos().into());
                time + nanoseconds + nanoseconds
            }
            Err(_) => time,
        }),
    }
}

/// Something that is to be made, for the caller of a request.
pub fn target(request: &KernelRequest, parent: INodeNo, name: &OsStr, mode: u32) -> Target {
    let caller = Caller { uid: request.uid(), gid: request.gid(), pid: request.pid() };
    Target { parent: Ino::new(parent.0), name: name.to_owned(), mode, caller }
}
