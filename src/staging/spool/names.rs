//! Names: finding, making and listing.
//!
//! What is made in `staging/` itself is a batch from its first moment: it is made in `gone/` under a
//! name that nobody sees, given its origin, and moved into place without replacing anything. A crash
//! on the way leaves something in `gone/`, which the next mount deletes.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, RwLockReadGuard};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, RenameFlags, Uid};
use rustix::io::Errno;
use uuid::Uuid;

use super::batches::Change;
use super::disk::{self, OnDisk as _, Stat, as_owner, failed, path_fd, proc};
use super::files::OpenFile;
use super::nodes::Path;
use super::{Spool, origin, reference};
use crate::error::{Error, Kind, Result};
use crate::staging::Origin;
use crate::tree::{FileKind, SnapshotId, ino::STAGING_ROOT};
use crate::units::{ByteLen, Ino};

/// Set-group-id of a directory: what is made in it has its group.
const SET_GROUP_ID: u16 = 0o2000;

/// Who makes something.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The process; 0 where it is not seen from here.
    pub pid: u32,
}

/// A file or directory that is to be made.
#[derive(Clone, Copy, Debug)]
pub struct NewNode<'a> {
    /// In this directory.
    pub parent: Ino,
    /// Under this name.
    pub name: &'a str,
    /// With these permissions, the caller's umask taken off.
    pub mode: u16,
    /// For this caller.
    pub caller: Caller,
    /// The newest version of main, if what is made is a batch.
    pub newest: Option<&'a SnapshotId>,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its number.
    pub ino: Ino,
    /// What it is.
    pub kind: FileKind,
    /// Its name.
    pub name: String,
}

/// A name in a directory that is open.
pub(super) struct Spot {
    pub(super) parent: Ino,
    pub(super) directory: OwnedFd,
    above: Path,
}

impl Spot {
    /// The path of a name here.
    pub(super) fn path(&self, name: &str) -> Path {
        let mut path = self.above.clone();
        path.names.push(name.into());
        path
    }

    pub(super) fn is_top(&self) -> bool {
        self.parent == STAGING_ROOT
    }
}

/// What was made, and its batch cannot be frozen nor moved yet.
struct Making<'a> {
    stat: Stat,
    _change: Option<Change<'a>>,
    _still: RwLockReadGuard<'a, ()>,
}

impl Spool {
    /// Finds a name. The kernel knows the number from now on.
    ///
    /// # Errors
    /// [`Kind::Disk`] with ENOENT where it is not there.
    pub fn lookup(&self, parent: Ino, name: &str) -> Result<Stat> {
        let _still = self.still();
        let spot = self.spot(parent)?;
        let stat = disk::stat(&spot.directory, name)?;
        self.nodes().seen(stat.ino, parent, name);
        Ok(reference::shown(&self.key, stat, || path_fd(&spot.directory, name)))
    }

    /// The number behind a name, which the kernel does not learn from this.
    ///
    /// # Errors
    /// As [`Spool::lookup`].
    pub fn number(&self, parent: Ino, name: &str) -> Result<Ino> {
        let _still = self.still();
        Ok(disk::stat(&self.spot(parent)?.directory, name)?.ino)
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// [`Kind::Busy`] in a batch that is frozen, [`Kind::Disk`].
    pub fn mkdir(&self, new: &NewNode<'_>) -> Result<Stat> {
        self.make(new, |directory, name| {
            rustix::fs::mkdirat(directory, name, Mode::from_bits_retain(new.mode.into()))
        })
        .map(|made| made.stat)
    }

    /// Makes a file, or opens the one that is there where the flags allow it.
    ///
    /// # Errors
    /// As [`Spool::mkdir`].
    pub fn create(
        self: &Arc<Self>,
        new: &NewNode<'_>,
        flags: OFlags,
    ) -> Result<(Stat, Arc<OpenFile>)> {
        let access = flags & (OFlags::RDWR | OFlags::WRONLY);
        let mut opened = None;
        let made = self.make(new, |directory, name| {
            let flags = access | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mode = Mode::from_bits_retain(new.mode.into());
            opened = Some(rustix::fs::openat(directory, name, flags, mode)?);
            Ok(())
        });
        let exists = Kind::Disk(Errno::EXIST.raw_os_error());
        match (made, opened) {
            // It counts as open before the change ends: whoever freezes the batch sees one of them.
            (Ok(made), Some(fd)) => Ok((made.stat, self.opened(made.stat.ino, fd, access)?)),
            (Err(error), _) if error.kind() == exists && !flags.contains(OFlags::EXCL) => {
                let stat = self.lookup(new.parent, new.name)?;
                let file = self.open_file(stat.ino, access);
                let file = file.and_then(|file| {
                    if flags.contains(OFlags::TRUNC) {
                        file.truncate(ByteLen::new(0))?;
                    }
                    Ok(file)
                });
                Ok((stat, file.inspect_err(|_| self.forget(stat.ino, 1))?))
            }
            (Err(error), _) => Err(error),
            (Ok(_), None) => Err(Error::new(Kind::Internal, "a file was made and not opened")),
        }
    }

    /// Makes a symlink; its target is text and nothing else.
    ///
    /// # Errors
    /// As [`Spool::mkdir`]; [`Kind::Refused`] in `staging/` itself, as it can be no batch.
    pub fn symlink(&self, new: &NewNode<'_>, target: &std::path::Path) -> Result<Stat> {
        if new.parent == STAGING_ROOT {
            return Err(no_batch(new.name));
        }
        let _still = self.still();
        let spot = self.spot_to_change(new.parent)?;
        let path = spot.path(new.name);
        let _change = self.changing(&path)?;
        let what = || format!("make {:?}", path.shown());
        rustix::fs::symlinkat(target, &spot.directory, new.name).on_disk(what)?;
        Self::own(spot.directory.as_fd(), new.name, new.caller, &spot)?;
        self.told(&spot, new.name)
    }

    /// Where a symlink points.
    ///
    /// # Errors
    /// [`Kind::Disk`].
    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let _still = self.still();
        let path = self.nodes().path(ino)?;
        let target = rustix::fs::readlinkat(self.at(&path)?, "", Vec::new());
        Ok(target.on_disk(|| format!("read the link {:?}", path.shown()))?.into_bytes())
    }

    /// The names in a directory with what they are, in the disk's order. A name that is not UTF-8
    /// cannot have been made through the mount and is left out.
    ///
    /// # Errors
    /// [`Kind::Disk`].
    pub fn list(&self, ino: Ino) -> Result<Vec<Listed>> {
        let _still = self.still();
        let path = self.nodes().path(ino)?;
        let directory = self.directory(&path)?;
        let read = disk::entries(&directory).on_disk(|| format!("list {:?}", path.shown()))?;
        let mut listed = Vec::new();
        for entry in read {
            let Ok(name) = entry.file_name().to_str() else { continue };
            let kind = match entry.file_type() {
                rustix::fs::FileType::Directory => FileKind::Directory,
                rustix::fs::FileType::RegularFile => FileKind::File,
                rustix::fs::FileType::Symlink => FileKind::Symlink,
                // Some disks do not say; what is gone by now is left out, as is a device.
                _ => match disk::stat(&directory, name) {
                    Ok(stat) => stat.kind,
                    Err(_) => continue,
                },
            };
            let ino = crate::tree::ino::staged(entry.ino());
            listed.push(Listed { ino, kind, name: name.to_owned() });
        }
        Ok(listed)
    }

    /// The names of all batches, in the disk's order.
    ///
    /// # Errors
    /// [`Kind::Disk`].
    pub fn names(&self) -> Result<Vec<String>> {
        Ok(self.list(STAGING_ROOT)?.into_iter().map(|entry| entry.name).collect())
    }

    /// Makes a directory durable: every name in it.
    ///
    /// # Errors
    /// [`Kind::Disk`].
    pub fn sync_directory(&self, ino: Ino) -> Result<()> {
        let still = self.still();
        let path = self.nodes().path(ino)?;
        let what = || format!("sync {:?}", path.shown());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = rustix::fs::openat(self.directory(&path)?, ".", flags, Mode::empty());
        let open = open.on_disk(what)?;
        drop(still);
        rustix::fs::fsync(open).on_disk(what)
    }

    fn spot(&self, parent: Ino) -> Result<Spot> {
        let above = self.nodes().path(parent)?;
        Ok(Spot { parent, directory: self.directory(&above)?, above })
    }

    /// A directory in which names may change. In one that has left the tree nothing may: it is a
    /// removed directory, although the disk may have it for a moment still.
    pub(super) fn spot_to_change(&self, parent: Ino) -> Result<Spot> {
        let spot = self.spot(parent)?;
        spot.above.in_tree()?;
        Ok(spot)
    }

    /// Makes something, in its place or, if it is a batch, beside and then in its place. The
    /// change ends when what is given back is dropped.
    fn make(
        &self,
        new: &NewNode<'_>,
        make: impl FnOnce(BorrowedFd<'_>, &str) -> rustix::io::Result<()>,
    ) -> Result<Making<'_>> {
        let still = self.still();
        let spot = self.spot_to_change(new.parent)?;
        let path = spot.path(new.name);
        let change = self.changing(&path)?;
        if spot.is_top() {
            self.make_batch(new, &spot, make)?;
        } else {
            make(spot.directory.as_fd(), new.name)
                .on_disk(|| format!("make {:?}", path.shown()))?;
            Self::finish(spot.directory.as_fd(), new.name, new, &spot)?;
        }
        if let Some(batch) = path.batch() {
            self.presence.made(batch, new.caller.pid);
        }
        Ok(Making { stat: self.told(&spot, new.name)?, _change: change, _still: still })
    }

    fn make_batch(
        &self,
        new: &NewNode<'_>,
        spot: &Spot,
        make: impl FnOnce(BorrowedFd<'_>, &str) -> rustix::io::Result<()>,
    ) -> Result<()> {
        let what = || format!("make {:?}", new.name);
        if disk::stat(&spot.directory, new.name).is_ok() {
            return Err(failed(what(), Errno::EXIST));
        }
        let beside = self.gone.as_fd();
        let hidden = Uuid::new_v4().to_string();
        make(beside, &hidden).on_disk(what)?;
        let put = Self::finish(beside, &hidden, new, spot).and_then(|()| {
            let fd = path_fd(beside, &hidden).on_disk(what)?;
            self.become_batch(&fd, new.name, new.newest.map(Origin::begun_on).as_ref())?;
            let (to, flags) = (&spot.directory, RenameFlags::NOREPLACE);
            // A directory is written to when it is moved.
            let put = || rustix::fs::renameat_with(beside, &*hidden, to, new.name, flags);
            as_owner(&[&fd], put).on_disk(what)
        });
        if put.is_err() {
            for flags in [AtFlags::empty(), AtFlags::REMOVEDIR] {
                let _ = rustix::fs::unlinkat(beside, &*hidden, flags);
            }
        }
        put
    }

    /// Gives what was made its mode, which the daemon's own umask may have narrowed, and owner.
    fn finish(directory: BorrowedFd<'_>, name: &str, new: &NewNode<'_>, spot: &Spot) -> Result<()> {
        let what = || format!("make {name:?}");
        Self::own(directory, name, new.caller, spot)?;
        let stat = disk::stat(directory, name)?;
        // A directory takes set-group-id from the one around it.
        let wanted = new.mode | (stat.mode & SET_GROUP_ID);
        if stat.mode != wanted {
            let fd = path_fd(directory, name).on_disk(what)?;
            rustix::fs::chmod(proc(&fd), Mode::from_bits_retain(wanted.into())).on_disk(what)?;
        }
        Ok(())
    }

    /// Gives what was made to who asked for it; only root can.
    fn own(directory: BorrowedFd<'_>, name: &str, caller: Caller, spot: &Spot) -> Result<()> {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        if !uid.is_root() || (caller.uid, caller.gid) == (uid.as_raw(), gid.as_raw()) {
            return Ok(());
        }
        let around = disk::stat(&spot.directory, "")?;
        let group = (around.mode & SET_GROUP_ID == 0).then(|| Gid::from_raw(caller.gid));
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::chownat(directory, name, Some(Uid::from_raw(caller.uid)), group, flags)
            .on_disk(|| format!("give {name:?} to user {}", caller.uid))
    }

    /// What was made, which the kernel knows from now on.
    fn told(&self, spot: &Spot, name: &str) -> Result<Stat> {
        let stat = disk::stat(&spot.directory, name)?;
        self.nodes().seen(stat.ino, spot.parent, name);
        Ok(stat)
    }

    /// Lets what is to be a batch say where it comes from.
    pub(super) fn become_batch(
        &self,
        fd: &OwnedFd,
        name: &str,
        origin: Option<&Origin>,
    ) -> Result<()> {
        if disk::stat(fd, "")?.kind == FileKind::Symlink {
            return Err(no_batch(name));
        }
        let origin = origin.ok_or_else(|| {
            let text = format!("nobody said which version batch {name:?} is begun on");
            Error::new(Kind::Internal, text)
        })?;
        origin::write(&self.key, fd, origin)
    }
}

fn no_batch(name: &str) -> Error {
    let text = format!("{name:?} can be no batch: a batch is a directory or a file, not a symlink");
    Error::new(Kind::Refused, text)
}
