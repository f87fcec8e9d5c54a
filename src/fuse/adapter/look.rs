//! Requests that look at names, attributes and directories, and that open.

use std::ffi::OsStr;
use std::time::Duration;

use fuser::{
    Errno, FileHandle, FopenFlags, Generation, INodeNo, OpenFlags, ReplyDirectory, ReplyEntry,
    ReplyOpen, ReplyStatfs, ReplyXattr,
};
use rustix::fs::OFlags;

use super::convert::{BLOCK, Entries, kernel_attr, never, open_flags, sized};
use super::{Adapter, Request, errno};
use crate::fs::{Handle, Looked};
use crate::units::Ino;

impl Adapter {
    pub(super) fn find(&self, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let Some(name) = name.to_str().map(ToOwned::to_owned) else {
            return reply.error(Errno::ENOENT);
        };
        let (fs, parent) = (self.fs(), Ino::new(parent.0));
        let request = Request::new("lookup", parent);
        self.answering.run(request, async move { fs.lookup(parent, &name).await }, move |result| {
            match result {
                Ok(Looked::Found(attr, ttl)) => {
                    let generation = Generation(attr.generation);
                    reply.entry_with_ttls(&attr.ttl, &ttl, &kernel_attr(&attr), generation);
                }
                Ok(Looked::Failing(attr)) => {
                    let generation = Generation(attr.generation);
                    reply.entry(&Duration::ZERO, &kernel_attr(&attr), generation);
                }
                Ok(Looked::Never(ttl)) => reply.entry(&ttl, &never(), Generation(0)),
                Err(error) => reply.error(errno(error.kind())),
            }
        });
    }

    pub(super) fn open_file(&self, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let (fs, ino) = (self.fs(), Ino::new(ino.0));
        let flags = OFlags::from_bits_retain(flags.0.cast_unsigned());
        let is_direct = flags.contains(OFlags::DIRECT);
        let backings = self.backings.clone();
        self.answering.run(
            Request::new("open", ino),
            async move { fs.open(ino, flags).await },
            move |result| match result {
                Ok(opened) => {
                    let handle = FileHandle(opened.handle.0);
                    let flags = if is_direct {
                        FopenFlags::FOPEN_DIRECT_IO
                    } else {
                        open_flags(opened.content)
                    };
                    let whole = opened.same_as.as_ref();
                    match whole.and_then(|whole| backings.of(ino, opened.handle, whole, &reply)) {
                        Some(backing) => {
                            let flags = flags & FopenFlags::FOPEN_DIRECT_IO;
                            reply.opened_passthrough(handle, flags, &backing.id);
                        }
                        None => reply.opened(handle, flags),
                    }
                }
                Err(error) => reply.error(errno(error.kind())),
            },
        );
    }

    pub(super) fn open_directory(&self, ino: INodeNo, reply: ReplyOpen) {
        let (fs, ino) = (self.fs(), Ino::new(ino.0));
        let flags = if fs.is_worth_caching(ino) {
            FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE
        } else {
            FopenFlags::empty()
        };
        self.answering.run(
            Request::new("opendir", ino),
            async move { fs.opendir(ino).await },
            move |result| match result {
                Ok(handle) => reply.opened(FileHandle(handle.0), flags),
                Err(error) => reply.error(errno(error.kind())),
            },
        );
    }

    pub(super) fn list(
        &self,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        let (fs, ino, handle) = (self.fs(), Ino::new(ino.0), Handle(handle.0));
        // The reply is the sink while the listing runs. It does not go with a listing that is given up:
        // then it has to say why.
        let entries = Entries::new(reply);
        let mut sink = entries.clone();
        let listing = async move { fs.readdir(ino, handle, offset, &mut sink).await };
        self.answering.run(Request::new("readdir", ino), listing, move |result| {
            if let Some(reply) = entries.take() {
                match result {
                    Ok(()) => reply.ok(),
                    Err(error) => reply.error(errno(error.kind())),
                }
            }
        });
    }

    pub(super) fn attribute(&self, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let (fs, ino) = (self.fs(), Ino::new(ino.0));
        let known = name.to_str().filter(|name| fs.may_have_xattr(ino, name));
        let Some(name) = known.map(ToOwned::to_owned) else {
            return reply.error(Errno::ENODATA);
        };
        self.answering.run(
            Request::new("getxattr", ino),
            async move { fs.getxattr(ino, &name).await },
            move |result| match result {
                Ok(value) => sized(reply, size, &value),
                Err(error) => reply.error(errno(error.kind())),
            },
        );
    }

    pub(super) fn attribute_names(&self, ino: INodeNo, size: u32, reply: ReplyXattr) {
        match self.answering.fs.listxattr(Ino::new(ino.0)) {
            Ok(names) => {
                let list =
                    names.iter().flat_map(|name| name.bytes().chain([0])).collect::<Vec<_>>();
                sized(reply, size, &list);
            }
            Err(error) => reply.error(errno(error.kind())),
        }
    }

    pub(super) fn space(&self, ino: INodeNo, reply: ReplyStatfs) {
        let space = self.answering.fs.space(Ino::new(ino.0));
        let free = space.free.get() / BLOCK;
        let blocks = space.used.get().div_ceil(BLOCK).saturating_add(free);
        let name_max = u32::try_from(crate::name::NAME_MAX).unwrap_or(u32::MAX);
        // The block is a small constant that fits.
        let block = u32::try_from(BLOCK).unwrap_or(u32::MAX);
        reply.statfs(blocks, free, free, 0, 0, block, name_max, block);
    }
}
