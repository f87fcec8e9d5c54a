//! Requests that change something.
//!
//! 1. A disk that is slow to take writes must not stall those who list or read: at most half of the
//!    threads that read requests write at once, the other writes are copied and wait elsewhere.
//! 2. A commit takes minutes and goes on by itself: who asked for it waits as long as is said in
//!    `fuse::waiting`. A sync or a copy within the staging disk has no deadline (`Request::patient`).
//! 3. The reason why a move failed is looked for on what was to be moved, not on its directory.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::atomic::Ordering;

use fuser::{
    Errno, FileHandle, FopenFlags, Generation, RenameFlags, ReplyAttr, ReplyCreate, ReplyEmpty,
    ReplyEntry, ReplyLseek, ReplyWrite,
};
use rustix::fs::{FileType, OFlags};

use super::convert::kernel_attr;
use super::{Adapter, Request, errno};
use crate::error::{Error, Kind, Result};
use crate::fs::{Change, Fs, Handle, Made, Target};
use crate::fuse::answering::Patience;
use crate::fuse::waiting::wait;
use crate::staging::spool::{Moving, Whence};
use crate::units::{self, BlobOffset, ByteLen, Ino};

/// `whence` of `lseek(2)`, as the kernel passes it on; all others it answers itself.
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

impl Adapter {
    /// Answers a request whose answer is that it was done.
    pub(super) fn finish(
        &self,
        request: Request,
        operation: impl Future<Output = Result<()>> + Send + 'static,
        reply: ReplyEmpty,
    ) {
        self.answering.run(request, operation, |result| done(reply, result));
    }

    pub(super) fn make_directory(&self, target: Target, reply: ReplyEntry) {
        let (fs, request) = (self.fs(), Request::new("mkdir", target.parent));
        let make = async move { fs.mkdir(target).await };
        self.answering.run(request, make, |result| entry(reply, result));
    }

    pub(super) fn make_node(&self, target: Target, reply: ReplyEntry) {
        let (fs, request) = (self.fs(), Request::new("mknod", target.parent));
        let make = async move {
            let kind = FileType::from_raw_mode(target.mode);
            if kind != FileType::RegularFile {
                fs.refuse(target.parent, "a device, fifo or socket")?;
            }
            let (made, opened) = fs.create(target, OFlags::EXCL | OFlags::WRONLY).await?;
            fs.release(opened.handle);
            Ok(made)
        };
        self.answering.run(request, make, |result| entry(reply, result));
    }

    pub(super) fn make_symlink(&self, target: &Target, points_to: &Path, reply: ReplyEntry) {
        let (fs, request) = (self.fs(), Request::new("symlink", target.parent));
        let make = || fs.symlink(target, points_to);
        self.answering.run_here(request, make, |result| entry(reply, result));
    }

    pub(super) fn make_file(&self, target: Target, flags: OFlags, reply: ReplyCreate) {
        let (fs, request) = (self.fs(), Request::new("create", target.parent));
        let is_direct = flags.contains(OFlags::DIRECT);
        let make = async move { fs.create(target, flags).await };
        self.answering.run(request, make, move |result| match result {
            Ok((Made { attr }, opened)) => {
                let open =
                    if is_direct { FopenFlags::FOPEN_DIRECT_IO } else { FopenFlags::empty() };
                let (handle, generation) =
                    (FileHandle(opened.handle.0), Generation(attr.generation));
                reply.created(&attr.ttl, &kernel_attr(&attr), generation, handle, open);
            }
            Err(error) => reply.error(errno(error.kind())),
        });
    }

    pub(super) fn remove(
        &self,
        operation: &'static str,
        ino: Ino,
        name: &OsStr,
        reply: ReplyEmpty,
        remove: impl FnOnce(&OsStr) -> Result<()>,
    ) {
        let request = Request::new(operation, ino);
        self.answering.run_here(request, || remove(name), |result| done(reply, result));
    }

    pub(super) fn move_name(
        &self,
        (parent, name): (Ino, &OsStr),
        (new_parent, new_name): (Ino, &OsStr),
        flags: RenameFlags,
        caller: u32,
        reply: ReplyEmpty,
    ) {
        let fs = self.fs();
        let ino = fs.blamed(parent, name);
        let request = if fs.is_commit(new_parent) {
            Request::patient("commit", ino)
        } else {
            Request::new("rename", ino)
        };
        let (from, to) = ((parent, name.to_owned()), (new_parent, new_name.to_owned()));
        let is_commit = request.patience == Patience::Endless;
        let moving = async move { fs.rename(from, to, moving(flags)?).await };
        if is_commit {
            self.finish(request, wait(moving, self.answering.timeout, caller), reply);
        } else {
            self.finish(request, moving, reply);
        }
    }

    pub(super) fn change_attributes(&self, change: Change, reply: ReplyAttr) {
        let fs = self.fs();
        // A file that is cut may have to get its bytes first.
        let request = match change.new.size {
            Some(_) => Request::patient("setattr", change.ino),
            None => Request::new("setattr", change.ino),
        };
        self.answering.run(request, async move { fs.setattr(change).await }, move |result| {
            match result {
                Ok(attr) => reply.attr(&attr.ttl, &kernel_attr(&attr)),
                Err(error) => reply.error(errno(error.kind())),
            }
        });
    }

    pub(super) fn set_attribute(
        &self,
        (uid, caller): (u32, u32),
        ino: Ino,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        reply: ReplyEmpty,
    ) {
        let (fs, name, value) = (self.fs(), name.to_owned(), value.to_owned());
        let is_commit = name.to_str().is_some_and(Fs::commits_by);
        let set = async move { fs.setxattr(uid, ino, &name, &value, flags).await };
        if is_commit {
            let request = Request::patient("commit", ino);
            self.finish(request, wait(set, self.answering.timeout, caller), reply);
        } else {
            self.finish(Request::new("setxattr", ino), set, reply);
        }
    }

    pub(super) fn write_bytes(
        &self,
        (ino, handle, offset): (Ino, Handle, BlobOffset),
        data: &[u8],
        by_other: bool,
        reply: ReplyWrite,
    ) {
        let (fs, request) = (self.fs(), Request::patient("write", ino));
        let has_room = self.writing.fetch_add(1, Ordering::Relaxed) < self.writers;
        if has_room && !fs.must_fetch(handle) {
            let write = || fs.write(handle, offset, data, by_other);
            self.answering.run_here(request, write, |result| written(reply, result));
        } else {
            let data = data.to_owned();
            let write = async move { fs.write_elsewhere(handle, offset, data, by_other).await };
            self.answering.run(request, write, |result| written(reply, result));
        }
        self.writing.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn find_data(
        &self,
        ino: Ino,
        handle: Handle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let (fs, request) = (self.fs(), Request::new("lseek", ino));
        let seek = || {
            let whence = match whence {
                SEEK_DATA => Whence::Data,
                SEEK_HOLE => Whence::Hole,
                _ => return Err(Error::new(Kind::Invalid, format!("lseek from {whence}"))),
            };
            let offset = u64::try_from(offset);
            let offset = offset.map_err(|e| Error::caused(Kind::Invalid, "lseek", e))?;
            fs.seek(handle, whence, BlobOffset::new(offset))
        };
        self.answering.run_here(request, seek, |result| match result {
            Ok(found) => reply.offset(units::i64_of(found.get())),
            Err(error) => reply.error(errno(error.kind())),
        });
    }

    pub(super) fn copy_bytes(
        &self,
        ino: Ino,
        from: (Handle, BlobOffset),
        to: (Handle, BlobOffset),
        len: ByteLen,
        reply: ReplyWrite,
    ) {
        let (fs, request) = (self.fs(), Request::patient("copy", ino));
        let copy = async move { fs.copy(from, to, len).await };
        self.answering.run(request, copy, |result| written(reply, result));
    }
}

fn done(reply: ReplyEmpty, result: Result<()>) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error.kind())),
    }
}

fn entry(reply: ReplyEntry, result: Result<Made>) {
    match result {
        Ok(Made { attr }) => {
            reply.entry(&attr.ttl, &kernel_attr(&attr), Generation(attr.generation));
        }
        Err(error) => reply.error(errno(error.kind())),
    }
}

fn written(reply: ReplyWrite, result: Result<ByteLen>) {
    match result.map(|len| u32::try_from(len.get())) {
        Ok(Ok(len)) => reply.written(len),
        // No request asks for so much.
        Ok(Err(_)) => reply.error(Errno::EIO),
        Err(error) => reply.error(errno(error.kind())),
    }
}

fn moving(flags: RenameFlags) -> Result<Moving> {
    if flags.is_empty() {
        return Ok(Moving::Replace);
    }
    if flags == RenameFlags::RENAME_NOREPLACE {
        return Ok(Moving::NoReplace);
    }
    if flags == RenameFlags::RENAME_EXCHANGE {
        return Ok(Moving::Exchange);
    }
    Err(Error::new(Kind::Invalid, format!("rename with flags {flags}")))
}
