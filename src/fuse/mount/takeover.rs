//! Taking over the mountpoint of a daemon that has died.
//!
//! Whoever takes the dead mount away and then mounts leaves a bare folder for a moment, and what is
//! written into that lies hidden beneath the new mount. So:
//!
//! 1. Root puts the new mount *beneath* the dead one (`MOVE_MOUNT_BENEATH`, since Linux 6.5) and then
//!    takes the dead one away, by its descriptor: what comes to light is the new one
//!    ([`Mounting::mount_beneath`]).
//! 2. An older kernel mounts *on* the dead one, which stays there, out of sight, and is taken away
//!    together with the new one ([`take_dead_away`]).
//! 3. `fusermount3` takes only a folder that it can look into and write to. For an ordinary user the
//!    dead mount goes right before the new one comes, when all else is done, and what came into the
//!    folder in that moment is told ([`Bare`]).

use std::ffi::OsStr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{CWD, Dir, Mode, OFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount,
};

use super::asked::{self, Seen};
use super::{How, Mounting, SUBTYPE, mounts, unmount_one};
use crate::error::{Error, IoContext as _, Kind, Result};
use crate::private::proc;

/// How many names in a bare folder are told.
const NAMED: usize = 10;

/// What is at a mountpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spot {
    /// A directory, and no mount of ours.
    Free,
    /// A mount of ours whose daemon has died.
    Dead,
}

/// Looks whether a mountpoint can be used.
///
/// # Errors
/// [`Kind::Invalid`] where it is no directory or something else that is broken is mounted there;
/// [`Kind::Busy`] where a live mount of ours is, or one whose daemon does not answer.
pub fn look(mountpoint: &Path) -> Result<Spot> {
    let shown = mountpoint.display();
    if count(mountpoint)? > 0 {
        match asked::ask(mountpoint) {
            Seen::Dead => return Ok(Spot::Dead),
            Seen::Silent(pids) => {
                return Err(Error::new(Kind::Busy, asked::silence(mountpoint, &pids)));
            }
            Seen::Alive(_) => {}
        }
        let text = format!("lancefs is mounted at {shown} already; lancefs unmount {shown} first");
        return Err(Error::new(Kind::Busy, text));
    }
    match std::fs::metadata(mountpoint) {
        Ok(meta) if meta.is_dir() => Ok(Spot::Free),
        Ok(_) => Err(Error::new(Kind::Invalid, format!("{shown} is not a directory"))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let text = format!("the mountpoint {shown} does not exist; mkdir -p {shown} first");
            Err(Error::new(Kind::Invalid, text))
        }
        Err(error) => Err(Error::caused(Kind::Invalid, format!("mountpoint {shown}"), error)),
    }
}

/// Takes away every mount of ours at a mountpoint whose daemon has died, as long as one is on top.
///
/// # Errors
/// [`Kind::Invalid`] where it is not ours to unmount.
pub fn take_dead_away(mountpoint: &Path) -> Result<()> {
    while count(mountpoint)? > 0 && is_dead(mountpoint) {
        tracing::info!(mountpoint = %mountpoint.display(), "taking away the mount of a daemon that has died");
        unmount_one(mountpoint, How::Lazily)?;
    }
    Ok(())
}

fn count(mountpoint: &Path) -> Result<usize> {
    Ok(mounts()?.iter().filter(|mount| mount.mountpoint == mountpoint).count())
}

fn is_dead(mountpoint: &Path) -> bool {
    asked::ask(mountpoint) == Seen::Dead
}

impl Mounting {
    /// Mounts where a dead mount is, without a moment in which none is there; `on_top` mounts as on a
    /// free directory.
    pub(super) fn mount_over_dead(
        &self,
        on_top: impl FnOnce() -> Result<OwnedFd>,
    ) -> Result<OwnedFd> {
        // Of several dead ones the last stays until the new one is there.
        while count(&self.mountpoint)? > 1 && look(&self.mountpoint)? == Spot::Dead {
            unmount_one(&self.mountpoint, How::Lazily)?;
        }
        match self.mount_beneath() {
            Ok(device) => Ok(device),
            Err(errno) => {
                tracing::info!(%errno, "mounted on a dead mount, which goes when this one does");
                on_top()
            }
        }
    }

    /// The device of the new mount, once the dead one is gone.
    fn mount_beneath(&self) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dead = rustix::fs::open(&self.mountpoint, flags, Mode::empty())?;
        let device = super::open_device()?;
        let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_set_string(&context, "source", &*self.source)?;
        fsconfig_set_string(&context, "subtype", SUBTYPE)?;
        fsconfig_set_string(&context, "fd", device.as_raw_fd().to_string())?;
        for (key, value) in super::ROOT_DATA {
            fsconfig_set_string(&context, key, value)?;
        }
        for flag in self.data_flags() {
            fsconfig_set_flag(&context, flag)?;
        }
        let mut attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        if self.writes == super::Writes::Refused {
            fsconfig_set_flag(&context, "ro")?;
            attributes |= MountAttrFlags::MOUNT_ATTR_RDONLY;
        }
        fsconfig_create(&context)?;
        let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
        let beneath = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_BENEATH;
        move_mount(&mount, "", CWD, &self.mountpoint, beneath)?;
        // By its descriptor: by its path it would be whatever is on top now.
        if let Err(errno) = rustix::mount::unmount(proc(&dead), UnmountFlags::DETACH) {
            tracing::warn!(%errno, "a dead mount stays above the new one");
        }
        Ok(device)
    }
}

/// A mountpoint whose dead mount was taken away before the new one could be there.
#[derive(Debug)]
pub struct Bare(OwnedFd);

impl Bare {
    /// Takes the dead mount away.
    ///
    /// # Errors
    /// [`Kind::Invalid`] where it is not ours to unmount.
    pub fn new(mountpoint: &Path) -> Result<Self> {
        take_dead_away(mountpoint)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(mountpoint, flags, Mode::empty());
        let folder = folder.map_err(std::io::Error::from);
        Ok(Self(folder.context(Kind::Invalid, || format!("open {}", mountpoint.display()))?))
    }

    /// What lies in it, hidden by the mount that is there now; `None` where nothing does.
    pub fn hides(&self, mountpoint: &Path) -> Option<String> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // The dot is the folder itself: only a name leads into what is mounted there.
        let folder = rustix::fs::openat(&self.0, ".", flags, Mode::empty()).ok()?;
        let names = Dir::read_from(folder).ok()?.flatten().map(|entry| {
            OsStr::from_bytes(entry.file_name().to_bytes()).to_string_lossy().into_owned()
        });
        let names: Vec<String> =
            names.filter(|name| name != "." && name != "..").take(NAMED).collect();
        if names.is_empty() {
            return None;
        }
        Some(format!(
            "beneath the mount at {} lies what was in the folder when its dead mount was taken away, \
             perhaps written in that moment: {}; unmount to get at it",
            mountpoint.display(),
            names.join(", ")
        ))
    }
}
