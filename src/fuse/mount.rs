//! Mounting and unmounting.
//!
//! 1. Root mounts by the system call, under the type `fuse.lancefs`, so that `mount`, `findmnt` and
//!    `umount -t` know it; fuser 0.18 would mount as plain `fuse` (`src/mnt/fuse_pure.rs:539`).
//!    Others go through `fusermount3`, which fuser calls.
//! 2. A daemon that was killed leaves "Transport endpoint is not connected": a mountpoint of ours that
//!    answers so is taken over, without leaving it bare where the kernel can do that ([`takeover`]).
//! 3. A failure names the missing piece: no `/dev/fuse`, no `fusermount3`, no `user_allow_other`.

pub mod asked;
mod takeover;

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use fuser::{Config, MountOption, Session, SessionACL};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};

use super::Adapter;
use crate::error::{Error, IoContext as _, Kind, Result};

pub use takeover::{Spot, look};

use takeover::Bare;

/// The type under which mounts appear.
pub const FS_TYPE: &str = "fuse.lancefs";
const SUBTYPE: &str = "lancefs";
/// What the kernel wants to know of a mount by root.
const ROOT_DATA: [(&str, &str); 3] = [("rootmode", "40000"), ("user_id", "0"), ("group_id", "0")];
const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";

/// How long others may take to mount, and how often that is looked for.
const OTHERS_MOUNT: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Who may look into the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The user that mounts, and nobody else, not even root.
    Owner,
    /// Everybody whom the modes allow.
    Everybody,
}

/// Whether the modes of files and directories keep anybody out.
///
/// The kernel checks modes only where they do: to check them it asks for attributes whose time has
/// run out, and then nobody could read `user.lancefs.error` of a value that has none to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Modes {
    /// Everybody who gets in may read everything.
    Open,
    /// Somebody may not.
    Restricting,
}

/// Whether anything in the mount can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// What is in `staging/`; the rest refuses it by itself.
    Staged,
    /// Nothing: the kernel refuses it.
    Refused,
}

/// How to mount.
#[derive(Clone, Debug)]
pub struct Mounting {
    /// Where.
    pub mountpoint: PathBuf,
    /// The source that `mount` shows: the table, without credentials.
    pub source: String,
    /// For whom.
    pub access: Access,
    /// Whether the kernel checks modes.
    pub modes: Modes,
    /// Whether anything can be written.
    pub writes: Writes,
    /// How many threads read requests of the kernel.
    pub threads: usize,
}

impl Mounting {
    /// Mounts, and gives the session that has to be run, and what whoever mounts should know. Always
    /// `nosuid,nodev,noexec` and, where there is nothing to write, `ro`.
    ///
    /// # Errors
    /// [`Kind::Invalid`] with the missing piece; [`Kind::Busy`] where lancefs is mounted there.
    pub fn mount(&self, adapter: Adapter) -> Result<(Session<Adapter>, Option<String>)> {
        if !Path::new(DEVICE).exists() {
            let text = format!(
                "{DEVICE} is not there: load the fuse module (modprobe fuse), or give the container the device (--device {DEVICE})"
            );
            return Err(Error::new(Kind::Invalid, text));
        }
        // Until it is mounted, so that of several who do this at once all but one find the mount.
        let _alone = alone_at(&self.mountpoint);
        let spot = look(&self.mountpoint)?;
        if rustix::process::geteuid().is_root() {
            let device = match spot {
                Spot::Free => self.mount_as_root()?,
                Spot::Dead => self.mount_over_dead(|| self.mount_as_root())?,
            };
            let session = Session::from_fd(adapter, device, self.acl(), self.config());
            let session = session.map_err(|e| {
                // The mount is there without anybody to serve it.
                let _ = unmount(&self.mountpoint, How::Lazily);
                self.failed(e)
            });
            return Ok((session?, None));
        }
        let bare = match spot {
            Spot::Free => None,
            Spot::Dead => Some(Bare::new(&self.mountpoint)?),
        };
        let session = Session::new(adapter, &self.mountpoint, &self.config());
        let session = session.map_err(|e| self.failed(e))?;
        Ok((session, bare.and_then(|bare| bare.hides(&self.mountpoint))))
    }

    fn mount_as_root(&self) -> Result<OwnedFd> {
        let device = open_device().map_err(|e| self.failed(e.into()))?;
        let options = ROOT_DATA.iter().map(|(key, value)| format!("{key}={value}"));
        let options = options.chain(self.data_flags().map(ToOwned::to_owned));
        let fd = format!("fd={}", device.as_raw_fd());
        let data = std::iter::once(fd).chain(options).collect::<Vec<_>>().join(",");
        let data = std::ffi::CString::new(data).map_err(|e| self.failed(e.into()))?;
        let mut flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        if self.writes == Writes::Refused {
            flags |= MountFlags::RDONLY;
        }
        rustix::mount::mount(&*self.source, &self.mountpoint, FS_TYPE, flags, data.as_c_str())
            .map_err(|e| self.failed(e.into()))?;
        Ok(device)
    }

    /// The options without a value that the kernel is given.
    fn data_flags(&self) -> impl Iterator<Item = &'static str> {
        let restricting = (self.modes == Modes::Restricting).then_some("default_permissions");
        let everybody = (self.access == Access::Everybody).then_some("allow_other");
        restricting.into_iter().chain(everybody)
    }

    fn acl(&self) -> SessionACL {
        match self.access {
            Access::Owner => SessionACL::Owner,
            Access::Everybody => SessionACL::All,
        }
    }

    fn config(&self) -> Config {
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName(self.source.clone()),
            MountOption::Subtype(SUBTYPE.to_owned()),
            MountOption::NoSuid,
            MountOption::NoDev,
            MountOption::NoExec,
        ];
        config.mount_options.push(match self.writes {
            Writes::Staged => MountOption::RW,
            Writes::Refused => MountOption::RO,
        });
        if self.modes == Modes::Restricting {
            config.mount_options.push(MountOption::DefaultPermissions);
        }
        config.acl = self.acl();
        config.n_threads = Some(self.threads);
        config.clone_fd = true;
        config
    }

    fn failed(&self, error: io::Error) -> Error {
        let text = error.to_string();
        let hint = if text.contains("user_allow_other") {
            "; --allow-other needs the line user_allow_other in /etc/fuse.conf"
        } else if error.kind() == io::ErrorKind::NotFound && !has_helper() {
            "; fusermount3 is not there: install fuse3 (apt-get install fuse3), or mount as root"
        } else if error.kind() == io::ErrorKind::PermissionDenied {
            "; is the mountpoint yours, and may you open /dev/fuse?"
        } else {
            ""
        };
        Error::caused(Kind::Invalid, format!("mount at {}{hint}", self.mountpoint.display()), error)
    }
}

/// Keeps others from mounting at the same place. Everything is as it is without where it cannot be had:
/// anybody may hold a lock of a folder.
fn alone_at(mountpoint: &Path) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // Not the mountpoint: it may be a mount whose daemon has died.
    let folder = rustix::fs::open(mountpoint.parent()?, flags, Mode::empty()).ok()?;
    let deadline = Instant::now() + OTHERS_MOUNT;
    while rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive).is_err() {
        if Instant::now() >= deadline {
            return None;
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    Some(folder)
}

fn open_device() -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

fn has_helper() -> bool {
    Command::new(HELPER).arg("--version").output().is_ok()
}

/// Whether a mount that is in use is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Not while it is in use.
    IfIdle,
    /// From the tree at once; it ends when the last user has gone.
    Lazily,
}

/// Unmounts, and takes away what a daemon that has died left beneath.
///
/// # Errors
/// [`Kind::Invalid`] where it is in use or not ours to unmount.
pub fn unmount(mountpoint: &Path, how: How) -> Result<()> {
    unmount_one(mountpoint, how)?;
    uncover(mountpoint);
    Ok(())
}

/// Takes away what a daemon that has died left at a mountpoint where nothing else is mounted any more.
pub fn uncover(mountpoint: &Path) {
    if let Err(error) = takeover::take_dead_away(mountpoint) {
        tracing::warn!(%error, "the mount of a daemon that has died stays");
    }
}

fn unmount_one(mountpoint: &Path, how: How) -> Result<()> {
    let flags = match how {
        How::IfIdle => UnmountFlags::empty(),
        How::Lazily => UnmountFlags::DETACH,
    };
    let what = || format!("unmount {}", mountpoint.display());
    match rustix::mount::unmount(mountpoint, flags) {
        Err(rustix::io::Errno::PERM) => unmount_by_helper(mountpoint, how),
        result => result.map_err(io::Error::from).context(Kind::Invalid, what),
    }
}

fn unmount_by_helper(mountpoint: &Path, how: How) -> Result<()> {
    let flags: &[&str] = match how {
        How::IfIdle => &["-u", "--"],
        How::Lazily => &["-u", "-z", "--"],
    };
    let output = Command::new(HELPER).args(flags).arg(mountpoint).output();
    let output = output.context(Kind::Invalid, || format!("run {HELPER}; install fuse3"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::new(Kind::Invalid, String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

/// One of our mounts, as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// Where.
    pub mountpoint: PathBuf,
    /// Of what.
    pub source: String,
    /// The number of its connection to the daemon.
    pub connection: u32,
}

/// All mounts of lancefs on this machine, in the order in which they were made.
///
/// # Errors
/// [`Kind::Internal`] where `/proc` is not there.
pub fn mounts() -> Result<Vec<Mounted>> {
    let list = std::fs::read("/proc/self/mountinfo")
        .context(Kind::Internal, || "read /proc/self/mountinfo".to_owned())?;
    Ok(list.split(|byte| *byte == b'\n').filter_map(parse_mount).collect())
}

/// `36 35 0:30 / /mnt/point ro,nosuid - fuse.lancefs source ro,user_id=0`: proc(5).
fn parse_mount(line: &[u8]) -> Option<Mounted> {
    use std::os::unix::ffi::OsStringExt as _;
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let dash = fields.iter().position(|field| *field == b"-")?;
    if fields.get(dash + 1)? != &FS_TYPE.as_bytes() {
        return None;
    }
    let mountpoint = std::ffi::OsString::from_vec(unescape_octal(fields.get(4)?)).into();
    let source = String::from_utf8_lossy(&unescape_octal(fields.get(dash + 2)?)).into_owned();
    let (_, connection) = std::str::from_utf8(fields.get(2)?).ok()?.split_once(':')?;
    Some(Mounted { mountpoint, source, connection: connection.parse().ok()? })
}

/// The kernel writes blanks and backslashes in these lists as `\040`.
fn unescape_octal(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        let octal =
            tail.get(..3).filter(|_| *first == b'\\').and_then(|d| std::str::from_utf8(d).ok());
        if let Some(byte) = octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            out.push(byte);
            rest = &tail[3..];
        } else {
            out.push(*first);
            rest = tail;
        }
    }
    out
}

/// The processes that have something open beneath a mountpoint, by number and name.
pub fn users(mountpoint: &Path) -> Vec<(u32, String)> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let uses = |process: &Path| {
        let links = ["cwd", "root", "exe"].map(|link| process.join(link));
        let files = std::fs::read_dir(process.join("fd"))
            .into_iter()
            .flatten()
            .flatten()
            .map(|fd| fd.path());
        links
            .into_iter()
            .chain(files)
            .any(|link| std::fs::read_link(link).is_ok_and(|target| target.starts_with(mountpoint)))
    };
    let name = |process: &Path| {
        std::fs::read_to_string(process.join("comm")).unwrap_or_default().trim().to_owned()
    };
    processes
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())))
        .filter(|(_, process)| uses(process))
        .map(|(pid, process)| (pid, name(&process)))
        .collect()
}

/// Opens `/dev/null`, to stand in for streams that a daemon must not hold.
///
/// # Errors
/// [`Kind::Internal`] where there is none.
pub fn null() -> Result<File> {
    let opened = File::options().read(true).write(true).open("/dev/null");
    opened.context(Kind::Internal, || "open /dev/null".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_mounts_are_found_among_others() {
        let line = br"36 35 0:30 / /mnt/a\040b\134c ro,nosuid shared:1 - fuse.lancefs /t\040x.lance ro,user_id=0";
        let source = "/t x.lance".to_owned();
        let mounted = Mounted { mountpoint: "/mnt/a b\\c".into(), source, connection: 30 };
        assert_eq!(parse_mount(line), Some(mounted));
        assert_eq!(parse_mount(b"36 35 0:30 / /mnt rw - fuse.sshfs x rw"), None);
        assert_eq!(parse_mount(b""), None);
    }
}
