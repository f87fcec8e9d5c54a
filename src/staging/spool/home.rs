//! What lies in a staging folder beside batches, and how it is opened.
//!
//! 1. Two mounts must not use one folder: [`lock`] is held while the mount lives. Nobody else can
//!    hold it: the folder is 0700.
//! 2. Who is killed lets go of the lock a moment later: whoever comes to the same mountpoint waits.
//! 3. `tree/` is what `staging/` shows, with the owner and mode that its users gave it: it is a
//!    directory whatever the owner, but in a folder that others could write to until now it could be
//!    theirs ([`tree`]).

use std::fs::{File, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{Gid, Mode, OFlags, Uid, XattrFlags};
use rustix::io::Errno;

use super::TREE;
use super::disk::{self, proc};
use crate::error::{Error, IoContext as _, Kind, Result};
use crate::private::{self, Folder};
use crate::tree::FileKind;

/// The table's URI, for people.
pub const TABLE: &str = "table";
const LOCK: &str = "lock";
/// How long a killed process may take to let go of a folder, and how often that is looked at.
const LAST_BREATH: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(10);
/// Tells whether a disk has user attributes.
const PROBE: &str = "user.lancefs.probe";
/// The mode of `tree/` when it is made: what `staging/` shows.
const TREE_MODE: u16 = 0o755;

/// Locks a folder for this process.
pub fn lock(folder: &Folder, mountpoint: &Path) -> Result<File> {
    let what = || format!("lock the staging folder {}", folder.path().display());
    let mut file = folder.open(LOCK, OFlags::RDWR | OFlags::CREATE)?;
    let begun = Instant::now();
    loop {
        let refused = match file.try_lock() {
            Ok(()) => break,
            Err(refused) => refused,
        };
        let mut held_by = String::new();
        let _ = file.rewind().and_then(|()| file.read_to_string(&mut held_by));
        // Nobody serves this mountpoint any more: who holds the folder for it is about to end.
        let is_ending =
            held_by.trim_end().ends_with(&place(mountpoint)) && begun.elapsed() < LAST_BREATH;
        match refused {
            TryLockError::WouldBlock if is_ending => std::thread::sleep(LOOK),
            TryLockError::WouldBlock => {
                let text = format!(
                    "{} is used by the mount of {}; give another --staging-dir",
                    folder.path().display(),
                    held_by.trim()
                );
                return Err(Error::new(Kind::Busy, text));
            }
            TryLockError::Error(error) => {
                return Err(Error::caused(Kind::Invalid, what(), error));
            }
        }
    }
    let us = format!("process {}{}", std::process::id(), place(mountpoint));
    write(&mut file, &us).context(Kind::Invalid, what)?;
    Ok(file)
}

/// Who has or had a folder.
pub fn holder(folder: &Folder) -> String {
    let text = folder.read(LOCK).ok().flatten().unwrap_or_default();
    String::from_utf8_lossy(&text).trim_end().to_owned()
}

/// How the line of who has a folder ends.
pub fn place(mountpoint: &Path) -> String {
    format!(" at {}", mountpoint.display())
}

/// Writes a line for people.
pub fn say(folder: &Folder, name: &str, line: &str) -> Result<()> {
    let mut file = folder.open(name, OFlags::WRONLY | OFlags::CREATE)?;
    let what = || format!("write {name} in {}", folder.path().display());
    write(&mut file, line).context(Kind::Invalid, what)
}

fn write(file: &mut File, line: &str) -> std::io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(format!("{line}\n").as_bytes())
}

/// Whether a folder is a staging folder of ours with something in it.
pub fn has_batches(folder: &Path) -> bool {
    let Ok(Some(folder)) = Folder::find(folder) else { return false };
    disk::walk(&folder, [TREE]).and_then(disk::entries).is_ok_and(|batches| !batches.is_empty())
}

/// Opens `tree/`, made if need be for this owner.
pub fn tree(folder: &Folder, (uid, gid): (u32, u32)) -> Result<OwnedFd> {
    let path = folder.path().join(TREE);
    let what = || format!("make {}", path.display());
    let invalid = |made: rustix::io::Result<OwnedFd>| {
        made.map_err(std::io::Error::from).context(Kind::Invalid, what)
    };
    match rustix::fs::mkdirat(folder, TREE, Mode::RWXU) {
        Err(Errno::EXIST) => {
            let tree = invalid(disk::path_fd(folder, TREE))?;
            let stat = disk::stat(&tree, "")?;
            if stat.kind != FileKind::Directory {
                return Err(private::in_the_way(&path, "no directory"));
            }
            let us = rustix::process::geteuid().as_raw();
            if folder.was_exposed() && ![us, uid].contains(&stat.uid) {
                let text = format!("a directory of user {}", stat.uid);
                return Err(private::in_the_way(&path, &text));
            }
            return Ok(tree);
        }
        made => made.map_err(std::io::Error::from).context(Kind::Invalid, what)?,
    }
    let tree = invalid(disk::path_fd(folder, TREE))?;
    let owned = || {
        rustix::fs::chmod(proc(&tree), Mode::from_bits_retain(TREE_MODE.into()))?;
        if rustix::process::geteuid().is_root() {
            let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
            rustix::fs::chown(proc(&tree), uid, gid)?;
        }
        private::sync(folder.as_fd())
    };
    owned().map_err(std::io::Error::from).context(Kind::Invalid, what)?;
    Ok(tree)
}

/// Whether the disk keeps user attributes, which say where a batch comes from.
pub fn probe(folder: &Folder, tree: &OwnedFd) -> Result<()> {
    let tried = rustix::fs::setxattr(proc(tree), PROBE, b"1", XattrFlags::empty())
        .and_then(|()| rustix::fs::removexattr(proc(tree), PROBE));
    tried.map_err(|errno| {
        let kind = if errno == Errno::NOTSUP { Kind::Unsupported } else { Kind::Invalid };
        let text = format!(
            "the disk of {} has no user extended attributes; give --staging-dir on another disk",
            folder.path().display()
        );
        Error::caused(kind, text, std::io::Error::from(errno))
    })
}
