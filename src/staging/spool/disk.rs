//! Calls to the staging disk, by descriptors and single names, and what they give in our words.
//!
//! 1. A symlink that somebody staged must never be followed: every directory is reached name by
//!    name with `O_NOFOLLOW` ([`walk`]), and the last name is never followed either.
//! 2. Attributes of a file that has no name any more: [`proc`] names an open descriptor.
//! 3. Our attributes and moves must not depend on the modes that users give their files: an ordinary
//!    user's daemon has no rights but theirs ([`as_owner`]).

use std::fmt::Debug;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, Dir, DirEntry, Mode, OFlags, Statx, StatxFlags, StatxTimestamp};
use rustix::io::Errno;
use rustix::path::Arg;

use crate::error::{Error, Kind, Result};
pub use crate::private::proc;
use crate::tree::FileKind;
use crate::tree::ino::staged;
use crate::units::{ByteLen, Ino};

/// Bytes in a block of `st_blocks`.
const BLOCK: u64 = 512;
/// The permission bits of a mode, with set-user-id, set-group-id and sticky.
const PERMISSIONS: u16 = 0o7777;

/// What the staging disk says of a file.
#[derive(Clone, Copy, Debug)]
pub struct Stat {
    /// Its number in the mount.
    pub ino: Ino,
    /// Tells a file from an earlier one that had the same number: from the time of its birth.
    pub generation: u64,
    /// What it is.
    pub kind: FileKind,
    /// Permission bits, `0o7777` at most.
    pub mode: u16,
    /// How many names it has.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Length in bytes.
    pub size: ByteLen,
    /// Bytes that are allocated.
    pub allocated: ByteLen,
    /// Time of the last access.
    pub accessed: SystemTime,
    /// Time of the last change of its content.
    pub modified: SystemTime,
    /// Time of the last change of its attributes.
    pub changed: SystemTime,
}

/// An error of the staging disk: its errno is passed on.
pub fn failed(what: impl Into<String>, errno: Errno) -> Error {
    Error::caused(Kind::Disk(errno.raw_os_error()), what, std::io::Error::from(errno))
}

/// Adds what was being done to an errno of the staging disk.
pub trait OnDisk<T> {
    /// Wraps the errno.
    ///
    /// # Errors
    /// [`Kind::Disk`].
    fn on_disk(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T> OnDisk<T> for rustix::io::Result<T> {
    fn on_disk(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|errno| failed(what(), errno))
    }
}

/// Opens a directory beneath another without following a symlink, for `*at` calls.
pub fn walk<'a>(
    base: impl AsFd,
    names: impl IntoIterator<Item = &'a str>,
) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut directory = rustix::fs::openat(base, ".", flags, Mode::empty())?;
    for name in names {
        directory = rustix::fs::openat(&directory, name, flags, Mode::empty())?;
    }
    Ok(directory)
}

/// A descriptor that stands for a file of any sort, without opening it.
pub fn path_fd(directory: impl AsFd, name: impl Arg) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name, flags, Mode::empty())
}

/// Makes what was made, renamed or removed in a directory durable.
///
/// # Errors
/// [`Kind::Disk`].
pub fn sync_directory(directory: &impl AsFd, shown: &str) -> Result<()> {
    crate::private::sync(directory.as_fd()).on_disk(|| format!("sync {shown}"))
}

/// Bytes that are allocated beneath a directory.
pub fn allocated(directory: &impl AsFd) -> ByteLen {
    use std::os::unix::fs::MetadataExt as _;
    let files = walkdir::WalkDir::new(within(directory)).into_iter().flatten();
    let files = files.filter(|entry| entry.file_type().is_file());
    let blocks: u64 = files.filter_map(|file| file.metadata().ok()).map(|meta| meta.blocks()).sum();
    ByteLen::new(blocks.saturating_mul(BLOCK))
}

/// A path of an open directory, for walks, which do not follow the last name.
pub fn within(directory: &impl AsFd) -> String {
    format!("{}/.", proc(directory))
}

/// Everything in a directory but itself and the one above it, in the disk's order.
pub fn entries(directory: impl AsFd) -> rustix::io::Result<Vec<DirEntry>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = rustix::fs::openat(directory, ".", flags, Mode::empty())?;
    let is_within = |entry: &DirEntry| ![c".", c".."].contains(&entry.file_name());
    Dir::read_from(open)?.filter(|entry| entry.as_ref().map_or(true, is_within)).collect()
}

/// Does something that the modes of files of ours may forbid: where it is refused, it is done with
/// all rights of an owner, and then the modes are put back. What root does is never refused.
///
/// # Errors
/// What the work gives; EACCES stays where the files are not ours.
pub fn as_owner<T>(
    files: &[&OwnedFd],
    work: impl Fn() -> rustix::io::Result<T>,
) -> rustix::io::Result<T> {
    /// Two at once would put back each other's modes.
    static TURN: Mutex<()> = Mutex::new(());
    match work() {
        Err(Errno::ACCESS) => {}
        done => return done,
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let opened: Vec<Opened<'_>> = files.iter().filter_map(|file| Opened::new(file)).collect();
    let done = work();
    drop(opened);
    done
}

/// A file whose owner has all rights until it is dropped.
struct Opened<'a> {
    file: &'a OwnedFd,
    before: Mode,
    now: Mode,
}

impl<'a> Opened<'a> {
    fn new(file: &'a OwnedFd) -> Option<Self> {
        let stat = stat(file, "").ok()?;
        let rights = match stat.kind {
            FileKind::Directory => Mode::RWXU,
            FileKind::File => Mode::RUSR | Mode::WUSR,
            FileKind::Symlink => return None,
        };
        let before = Mode::from_bits_retain(stat.mode.into());
        let now = before | rights;
        rustix::fs::chmod(proc(file), now).ok()?;
        Some(Self { file, before, now })
    }
}

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        // Somebody else may have given it another mode meanwhile.
        let is_ours = |stat: Stat| Mode::from_bits_retain(stat.mode.into()) == self.now;
        if !stat(self.file, "").is_ok_and(is_ours) {
            return;
        }
        if let Err(errno) = rustix::fs::chmod(proc(self.file), self.before) {
            tracing::warn!(%errno, mode = ?self.before, "a file keeps more rights than it had");
        }
    }
}

/// What the disk says of a name in a directory; of the descriptor itself where the name is empty.
pub fn stat(directory: impl AsFd, name: impl Arg + Copy + Debug) -> Result<Stat> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let found = rustix::fs::statx(directory, name, flags, wanted);
    converted(&found.on_disk(|| format!("look at {name:?}"))?)
}

/// When a file was made, in seconds and nanoseconds since 1970; 0 where the disk does not know it.
pub fn born(file: &OwnedFd) -> Result<(i64, u32)> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
    let found = rustix::fs::statx(file, "", flags, StatxFlags::BTIME);
    let born = found.on_disk(|| "look when a file was made".to_owned())?.stx_btime;
    Ok((born.tv_sec, born.tv_nsec))
}

fn converted(found: &Statx) -> Result<Stat> {
    let kind = match rustix::fs::FileType::from_raw_mode(found.stx_mode.into()) {
        rustix::fs::FileType::Directory => FileKind::Directory,
        rustix::fs::FileType::RegularFile => FileKind::File,
        rustix::fs::FileType::Symlink => FileKind::Symlink,
        // Nobody can make one through the mount; somebody put it there.
        other => {
            let text = format!("{other:?} has no place in staging");
            return Err(Error::new(Kind::Disk(Errno::NOENT.raw_os_error()), text));
        }
    };
    Ok(Stat {
        ino: staged(found.stx_ino),
        generation: generation(found.stx_btime),
        kind,
        mode: found.stx_mode & PERMISSIONS,
        links: found.stx_nlink,
        uid: found.stx_uid,
        gid: found.stx_gid,
        size: ByteLen::new(found.stx_size),
        allocated: ByteLen::new(found.stx_blocks.saturating_mul(BLOCK)),
        accessed: time(found.stx_atime),
        modified: time(found.stx_mtime),
        changed: time(found.stx_ctime),
    })
}

/// 31 bits, as many as the kernel keeps, of the time at which a file was made; 0 where the disk
/// does not know it.
fn generation(born: StatxTimestamp) -> u64 {
    let nanoseconds = born.tv_sec.unsigned_abs().wrapping_mul(1_000_000_000);
    (nanoseconds.wrapping_add(born.tv_nsec.into()) >> 10) & ((1 << 31) - 1)
}

fn time(stamp: StatxTimestamp) -> SystemTime {
    let whole = Duration::from_secs(stamp.tv_sec.unsigned_abs());
    let epoch = SystemTime::UNIX_EPOCH;
    let second = if stamp.tv_sec < 0 { epoch.checked_sub(whole) } else { epoch.checked_add(whole) };
    second.unwrap_or(epoch) + Duration::from_nanos(stamp.tv_nsec.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_staged_symlink_is_never_followed() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("real")).unwrap();
        std::os::unix::fs::symlink("real", folder.path().join("link")).unwrap();
        let base = std::fs::File::open(folder.path()).unwrap();
        assert!(walk(&base, ["real"]).is_ok());
        assert_eq!(walk(&base, ["link"]).unwrap_err(), Errno::NOTDIR);
        assert_eq!(stat(&base, "link").unwrap().kind, FileKind::Symlink);
    }

    #[test]
    fn times_before_the_epoch_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("old");
        let file = std::fs::File::create(&path).unwrap();
        let old = SystemTime::UNIX_EPOCH - Duration::from_millis(1500);
        file.set_modified(old).unwrap();
        let base = std::fs::File::open(folder.path()).unwrap();
        assert_eq!(stat(&base, "old").unwrap().modified, old);
    }
}
