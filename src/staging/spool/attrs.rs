//! Attributes: modes, owners, times, and the extended ones that are the user's own.

use std::os::fd::OwnedFd;
use std::time::{Duration, SystemTime};

use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid, XattrFlags,
};
use rustix::io::Errno;

use super::batches::{By, Change};
use super::disk::{self, OnDisk as _, Stat, failed, proc};
use super::files::OpenFile;
use super::nodes::Path;
use super::{Spool, reference};
use crate::error::{Error, Kind, Result};
use crate::tree::FileKind;
use crate::units::{ByteLen, Ino};

/// The namespace of the attributes that programs may set, and the part of it that is ours.
const USER: &str = "user.";
const OURS: &str = "user.lancefs.";
/// The longest value and list of extended attributes that the kernel passes, in bytes.
const LONGEST: usize = 64 << 10;

/// A time that is to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewTime {
    /// The time of the call, by the disk's clock.
    Now,
    /// This time.
    At(SystemTime),
}

/// Attributes that are to be changed; `None` stays as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attributes {
    /// Permission bits.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length.
    pub size: Option<ByteLen>,
    /// Time of the last access.
    pub accessed: Option<NewTime>,
    /// Time of the last change of the content.
    pub modified: Option<NewTime>,
}

impl Spool {
    /// The attributes of a number.
    ///
    /// # Errors
    /// ESTALE where the disk has another file in its place.
    pub fn stat(&self, ino: Ino) -> Result<Stat> {
        let _still = self.still();
        let path = self.nodes().path(ino)?;
        let fd = self.at(&path)?;
        let stat = disk::stat(&fd, "")?;
        if stat.ino != ino && ino != crate::tree::ino::STAGING_ROOT {
            return Err(failed(format!("{:?} is another file", path.shown()), Errno::STALE));
        }
        Ok(reference::shown(&self.key, stat, || Ok(fd)))
    }

    /// Changes attributes; the length through the open file, if the caller has one.
    ///
    /// # Errors
    /// [`Kind::Busy`] in a batch that is frozen, [`Kind::Quota`], and what the disk says.
    pub fn set_attributes(
        self: &std::sync::Arc<Self>,
        ino: Ino,
        open: Option<&OpenFile>,
        new: &Attributes,
    ) -> Result<Stat> {
        if let Some(len) = new.size {
            match open {
                Some(file) => file.truncate(len)?,
                None => self.open_file(ino, OFlags::WRONLY)?.truncate(len)?,
            }
        }
        let (path, fd, _change) = self.changed_at(ino)?;
        let what = || format!("change the attributes of {:?}", path.shown());
        if new.uid.is_some() || new.gid.is_some() {
            let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
            let (uid, gid) = (new.uid.map(Uid::from_raw), new.gid.map(Gid::from_raw));
            rustix::fs::chownat(&fd, "", uid, gid, flags).on_disk(what)?;
        }
        if let Some(mode) = new.mode {
            if disk::stat(&fd, "")?.kind == FileKind::Symlink {
                return Err(failed(what(), Errno::OPNOTSUPP));
            }
            let mode = Mode::from_bits_retain(mode.into());
            rustix::fs::chmod(proc(&fd), mode).on_disk(what)?;
        }
        if new.accessed.is_some() || new.modified.is_some() {
            let times = Timestamps {
                last_access: timespec(new.accessed),
                last_modification: timespec(new.modified),
            };
            let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
            rustix::fs::utimensat(&fd, "", &times, flags).on_disk(what)?;
        }
        disk::stat(&fd, "")
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// [`Kind::NoAttribute`], also for every name that is not in `user.`.
    pub fn xattr(&self, ino: Ino, name: &str) -> Result<Vec<u8>> {
        let none = || Error::new(Kind::NoAttribute, format!("no attribute {name:?}"));
        if !is_the_users(name) {
            return Err(none());
        }
        let _still = self.still();
        let path = self.nodes().path(ino)?;
        let fd = self.at(&path)?;
        if disk::stat(&fd, "")?.kind == FileKind::Symlink {
            return Err(none());
        }
        let mut value = vec![0; LONGEST];
        match rustix::fs::getxattr(proc(&fd), name, &mut value[..]) {
            Ok(len) => {
                value.truncate(len);
                Ok(value)
            }
            Err(Errno::NODATA) => Err(none()),
            Err(errno) => {
                Err(failed(format!("read attribute {name} of {:?}", path.shown()), errno))
            }
        }
    }

    /// The names of the extended attributes that are the user's own.
    ///
    /// # Errors
    /// What the disk says.
    pub fn xattrs(&self, ino: Ino) -> Result<Vec<String>> {
        let _still = self.still();
        let path = self.nodes().path(ino)?;
        let fd = self.at(&path)?;
        if disk::stat(&fd, "")?.kind == FileKind::Symlink {
            return Ok(Vec::new());
        }
        let mut list = vec![0; LONGEST];
        let len = rustix::fs::listxattr(proc(&fd), &mut list[..])
            .on_disk(|| format!("list the attributes of {:?}", path.shown()))?;
        let names =
            list[..len].split(|byte| *byte == 0).filter_map(|n| std::str::from_utf8(n).ok());
        Ok(names.filter(|name| is_the_users(name)).map(ToOwned::to_owned).collect())
    }

    /// Sets an extended attribute; `flags` are those of `setxattr(2)`.
    ///
    /// # Errors
    /// [`Kind::Refused`] for names that are ours, [`Kind::Unsupported`] for other namespaces,
    /// [`Kind::Busy`] in a batch that is frozen, and what the disk says.
    pub fn set_xattr(&self, ino: Ino, name: &str, value: &[u8], flags: i32) -> Result<()> {
        may_change(name)?;
        let (path, fd, _change) = self.changed_at(ino)?;
        let flags = XattrFlags::from_bits_retain(flags.cast_unsigned());
        let what = || format!("set attribute {name} of {:?}", path.shown());
        no_symlink(&fd, what)?;
        rustix::fs::setxattr(proc(&fd), name, value, flags).on_disk(what)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// As [`Spool::set_xattr`]; [`Kind::NoAttribute`].
    pub fn remove_xattr(&self, ino: Ino, name: &str) -> Result<()> {
        may_change(name)?;
        let (path, fd, _change) = self.changed_at(ino)?;
        let what = || format!("remove attribute {name} of {:?}", path.shown());
        no_symlink(&fd, what)?;
        rustix::fs::removexattr(proc(&fd), name).on_disk(what)
    }

    /// What a number is, to be changed.
    fn changed_at(&self, ino: Ino) -> Result<(Path, OwnedFd, Option<Change<'_>>)> {
        let _still = self.still();
        let path = self.nodes().path(ino)?;
        let by = if self.opens.is_written(ino) { By::Writer } else { By::Name };
        let change = self.changing_by(by, &path)?;
        let fd = self.at(&path)?;
        Ok((path, fd, change))
    }
}

fn is_the_users(name: &str) -> bool {
    name.starts_with(USER) && !name.starts_with(OURS)
}

fn may_change(name: &str) -> Result<()> {
    match (name.starts_with(OURS), name.starts_with(USER)) {
        (true, _) => {
            Err(Error::new(Kind::Refused, format!("attribute {name} is not to be set by hand")))
        }
        (false, true) => Ok(()),
        (false, false) => {
            Err(Error::new(Kind::Unsupported, format!("attribute {name} is not in {USER}")))
        }
    }
}

/// A symlink has no attributes of users, and `proc` would follow it.
fn no_symlink(fd: &OwnedFd, what: impl FnOnce() -> String) -> Result<()> {
    match disk::stat(fd, "")?.kind {
        FileKind::Symlink => Err(failed(what(), Errno::PERM)),
        FileKind::Directory | FileKind::File => Ok(()),
    }
}

fn timespec(time: Option<NewTime>) -> Timespec {
    match time {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(NewTime::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(NewTime::At(time)) => match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(after) => Timespec { tv_sec: seconds(after), tv_nsec: after.subsec_nanos().into() },
            Err(before) => {
                let before = before.duration();
                let nanoseconds = before.subsec_nanos();
                let borrow = i64::from(nanoseconds > 0);
                Timespec {
                    tv_sec: -seconds(before) - borrow,
                    tv_nsec: (borrow * 1_000_000_000) - i64::from(nanoseconds),
                }
            }
        },
    }
}

fn seconds(time: Duration) -> i64 {
    i64::try_from(time.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_the_epoch_have_nanoseconds_forward() {
        let before = SystemTime::UNIX_EPOCH - Duration::from_millis(1500);
        let spec = timespec(Some(NewTime::At(before)));
        assert_eq!((spec.tv_sec, spec.tv_nsec), (-2, 500_000_000));
        let whole = timespec(Some(NewTime::At(SystemTime::UNIX_EPOCH - Duration::from_secs(3))));
        assert_eq!((whole.tv_sec, whole.tv_nsec), (-3, 0));
    }

    #[test]
    fn our_attributes_are_not_the_users() {
        assert!(is_the_users("user.mime_type") && !is_the_users("user.lancefs.batch"));
        assert!(!is_the_users("security.capability"));
        assert_eq!(may_change("user.lancefs.batch").unwrap_err().kind(), Kind::Refused);
        assert_eq!(may_change("trusted.x").unwrap_err().kind(), Kind::Unsupported);
    }
}
