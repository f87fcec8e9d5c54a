//! The least that a FUSE file system can do: one file, an interval of another, read by `pread`.
//! `bareloop FILE OFFSET LENGTH MOUNTPOINT`. What a mount's read path costs is measured against it.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEntry, ReplyOpen, Request,
};

const VALUE: INodeNo = INodeNo(2);
const LIFE: Duration = Duration::from_secs(3600);

struct Bare {
    file: File,
    offset: u64,
    len: u64,
}

impl Bare {
    fn attr(&self, ino: INodeNo) -> FileAttr {
        let is_value = ino == VALUE;
        FileAttr {
            ino,
            size: if is_value { self.len } else { 0 },
            blocks: self.len.div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if is_value { FileType::RegularFile } else { FileType::Directory },
            perm: 0o555,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 128 << 10,
            flags: 0,
        }
    }
}

impl Filesystem for Bare {
    fn lookup(&self, _request: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == "value" {
            reply.entry(&LIFE, &self.attr(VALUE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&LIFE, &self.attr(ino));
    }

    fn open(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn readdir(&self, _: &Request, _: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        if offset == 0 {
            let _ = reply.add(VALUE, 1, FileType::RegularFile, "value");
        }
        reply.ok();
    }

    fn read(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let len = u64::from(size).min(self.len.saturating_sub(offset));
        let mut buffer = vec![0; len as usize];
        match self.file.read_exact_at(&mut buffer, self.offset + offset) {
            Ok(()) => reply.data(&buffer),
            Err(error) => reply.error(error.into()),
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, offset, len, mountpoint] = arguments.as_slice() else {
        eprintln!("usage: bareloop FILE OFFSET LENGTH MOUNTPOINT");
        std::process::exit(2);
    };
    let bare = Bare {
        file: File::open(file).expect("FILE is there"),
        offset: offset.parse().expect("OFFSET is a number"),
        len: len.parse().expect("LENGTH is a number"),
    };
    let mut config = Config::default();
    config.n_threads = Some(4);
    config.clone_fd = true;
    fuser::mount(bare, mountpoint, &config).expect("it mounts");
}
