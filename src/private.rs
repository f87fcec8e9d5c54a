//! Folders and files that are this user's alone.
//!
//! What lancefs keeps (batches, journals, blocks, logs) lies where others may be too, beneath `/tmp`
//! or `/var/lib`.
//!
//! 1. Others must not read it, whatever the umask says: folders are 0700 and files 0600, and what is
//!    ours and wider is tightened ([`Folder::make`], [`Folder::open`]).
//! 2. Somebody else may have been there first: who owns a folder or file is asked of its descriptor,
//!    before anything is done with it.
//! 3. A name may be a symlink, another name of somebody's file, or a fifo that never answers: every
//!    name is opened in its folder and not followed, and it must be a regular file with one name. One
//!    name with `O_NOFOLLOW` is as much as `RESOLVE_BENEATH` and `RESOLVE_NO_SYMLINKS` promise, on every
//!    kernel.
//! 4. A path may lead elsewhere a moment later: a [`Folder`] is a descriptor, and what is in it is
//!    reached through that alone.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::io::{self, Read as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::error::{Error, IoContext as _, Kind, Result};

/// What a folder has: all rights for its owner.
const FOLDER: Mode = Mode::RWXU;
/// What a file has.
const FILE: Mode = Mode::RUSR.union(Mode::WUSR);
/// The rights of a mode, without set-user-id and its like.
const RIGHTS: u32 = 0o777;
/// Group and others may write.
const OTHERS_WRITE: u32 = 0o022;
/// Everybody may make something in it, and remove only their own: a place that is shared.
const SHARED: u32 = 0o1000;

/// A folder of ours, by its descriptor.
#[derive(Debug)]
pub struct Folder {
    fd: OwnedFd,
    path: PathBuf,
    mode: u32,
}

impl Folder {
    /// Opens a folder, made if need be with those above it, and tightens it.
    ///
    /// # Errors
    /// [`Kind::Denied`] where it is another user's, a symlink or a place that is shared;
    /// [`Kind::Invalid`] where it cannot be made.
    pub fn make(path: &Path) -> Result<Self> {
        let what = || format!("make the folder {}", path.display());
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            let text = format!("{} is no folder of its own", path.display());
            return Err(Error::new(Kind::Invalid, text));
        };
        if !above.as_os_str().is_empty() {
            let mut builder = DirBuilder::new();
            builder.recursive(true).mode(FOLDER.bits());
            builder.create(above).context(Kind::Invalid, what)?;
        }
        // Who names a folder may name it through symlinks; only its own name is not followed.
        let above = rustix::fs::open(here(above), reached(OFlags::DIRECTORY), Mode::empty());
        let above = above.map_err(io::Error::from).context(Kind::Invalid, what)?;
        Self::make_in(above.as_fd(), name, path)
    }

    /// A folder in this one, made if need be.
    ///
    /// # Errors
    /// As [`Folder::make`].
    pub fn below(&self, name: &str) -> Result<Self> {
        Self::make_in(self.fd.as_fd(), name.as_ref(), &self.path.join(name))
    }

    fn make_in(above: BorrowedFd<'_>, name: &OsStr, path: &Path) -> Result<Self> {
        let what = || format!("make the folder {}", path.display());
        match rustix::fs::mkdirat(above, name, FOLDER) {
            Ok(()) => {
                // Where the folder above cannot be read it cannot be synced.
                let _ = sync(above);
            }
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(io::Error::from(errno)).context(Kind::Invalid, what),
        }
        let folder =
            Self::at(above, name, path).map_err(io::Error::from).context(Kind::Invalid, what)??;
        if folder.mode & SHARED != 0 {
            let text = format!("{} is a place that users share", path.display());
            return Err(refused(text, "name a folder of its own beneath it"));
        }
        if folder.mode & RIGHTS != FOLDER.bits() {
            let tightened = rustix::fs::chmod(proc(&folder), FOLDER);
            tightened.map_err(io::Error::from).context(Kind::Invalid, what)?;
        }
        Ok(folder)
    }

    /// A folder that is there, as it is; `None` where there is nothing.
    ///
    /// # Errors
    /// As [`Folder::make`].
    pub fn find(path: &Path) -> Result<Option<Self>> {
        match Self::at(rustix::fs::CWD, path.as_os_str(), path) {
            Err(Errno::NOENT) => Ok(None),
            found => found
                .map_err(io::Error::from)
                .context(Kind::Invalid, || format!("look at the folder {}", path.display()))?
                .map(Some),
        }
    }

    fn at(above: BorrowedFd<'_>, name: &OsStr, path: &Path) -> rustix::io::Result<Result<Self>> {
        let fd = rustix::fs::openat(above, name, reached(OFlags::NOFOLLOW), Mode::empty())?;
        let stat = rustix::fs::fstat(&fd)?;
        let mode = stat.st_mode & (RIGHTS | SHARED);
        let ours = is_ours(&stat, FileType::Directory, path);
        Ok(ours.map(|()| Self { fd, path: path.to_owned(), mode }))
    }

    /// Where it is, for people.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether others could write to it until now: then what is in it may be theirs.
    pub fn was_exposed(&self) -> bool {
        self.mode & OTHERS_WRITE != 0
    }

    /// Whether anybody but its owner had any right to it until now.
    pub fn was_wide(&self) -> bool {
        self.mode & RIGHTS & !FOLDER.bits() != 0
    }

    /// Opens a file in it, and tightens it. `flags` say for what, and whether it is made; one that is
    /// to be cut is cut afterwards.
    ///
    /// # Errors
    /// [`Kind::Denied`] for what is no regular file of ours with one name, [`Kind::NotFound`], and
    /// [`Kind::Internal`] where the disk fails.
    pub fn open(&self, name: &str, flags: OFlags) -> Result<File> {
        let path = self.path.join(name);
        let what = || format!("open {}", path.display());
        let quick = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.fd, name, flags | quick, FILE) {
            Err(Errno::LOOP) => return Err(in_the_way(&path, "a symlink")),
            Err(Errno::NXIO | Errno::ISDIR) => return Err(in_the_way(&path, "no regular file")),
            Err(Errno::NOENT) => return Err(Error::new(Kind::NotFound, what())),
            opened => opened.map_err(io::Error::from).context(Kind::Internal, what)?,
        };
        let stat = rustix::fs::fstat(&file).map_err(io::Error::from);
        let stat = stat.context(Kind::Internal, what)?;
        is_ours(&stat, FileType::RegularFile, &path)?;
        if stat.st_nlink > 1 {
            return Err(in_the_way(&path, "another name of a file that is elsewhere"));
        }
        if stat.st_mode & RIGHTS & !FILE.bits() != 0 {
            let tightened = rustix::fs::fchmod(&file, FILE).map_err(io::Error::from);
            tightened.context(Kind::Internal, what)?;
        }
        Ok(file.into())
    }

    /// The bytes of a file in it; `None` where there is none.
    ///
    /// # Errors
    /// As [`Folder::open`].
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let mut file = match self.open(name, OFlags::RDONLY) {
            Err(error) if error.kind() == Kind::NotFound => return Ok(None),
            opened => opened?,
        };
        let mut bytes = Vec::new();
        let read = file.read_to_end(&mut bytes);
        read.context(Kind::Internal, || format!("read {}", self.path.join(name).display()))?;
        Ok(Some(bytes))
    }

    /// The names in it that are UTF-8: ours all are.
    ///
    /// # Errors
    /// [`Kind::Internal`] where it cannot be listed.
    pub fn names(&self) -> Result<Vec<String>> {
        let list = || {
            let mut names = Vec::new();
            for entry in Dir::read_from(listable(self.fd.as_fd())?)? {
                let name = OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned();
                names.extend(name.into_string().ok().filter(|name| name != "." && name != ".."));
            }
            Ok(names)
        };
        let listed: rustix::io::Result<Vec<String>> = list();
        listed
            .map_err(io::Error::from)
            .context(Kind::Internal, || format!("list {}", self.path.display()))
    }

    /// Removes a file in it.
    ///
    /// # Errors
    /// What the disk says.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.fd, name, AtFlags::empty())?)
    }

    /// Makes what was made or removed in it durable.
    ///
    /// # Errors
    /// [`Kind::Internal`] where the disk fails.
    pub fn sync(&self) -> Result<()> {
        let synced = sync(self.fd.as_fd()).map_err(io::Error::from);
        synced.context(Kind::Internal, || format!("sync {}", self.path.display()))
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A path that names what a descriptor stands for while it is open, for calls that take none.
pub fn proc(fd: &impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

/// The error of something that is in the way of ours.
pub fn in_the_way(path: &Path, thing: &str) -> Error {
    refused(format!("{} is {thing}, which this program did not make", path.display()), "remove it")
}

/// Makes every name in a directory durable.
///
/// # Errors
/// What the disk says; a directory that may not be read cannot be synced.
pub fn sync(directory: BorrowedFd<'_>) -> rustix::io::Result<()> {
    rustix::fs::fsync(listable(directory)?)
}

fn listable(directory: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(directory, ".", flags, Mode::empty())
}

fn here(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

/// Opens what stands for a file, without a right to it: also another's can be asked whose it is.
fn reached(how: OFlags) -> OFlags {
    OFlags::PATH | OFlags::CLOEXEC | how
}

fn is_ours(stat: &Stat, wanted: FileType, path: &Path) -> Result<()> {
    match FileType::from_raw_mode(stat.st_mode) {
        found if found == wanted => {}
        FileType::Symlink => return Err(in_the_way(path, "a symlink")),
        FileType::Directory => return Err(in_the_way(path, "a directory")),
        _ if wanted == FileType::Directory => return Err(in_the_way(path, "no directory")),
        _ => return Err(in_the_way(path, "no regular file")),
    }
    let us = rustix::process::geteuid().as_raw();
    if stat.st_uid == us {
        return Ok(());
    }
    let text = format!(
        "{} belongs to user {}, and this is user {us}: what is in it cannot be trusted",
        path.display(),
        stat.st_uid
    );
    Err(refused(text, "have it removed, or name another folder"))
}

fn refused(text: String, remedy: &str) -> Error {
    Error::new(Kind::Denied, text).hint(remedy)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    const WRITTEN: OFlags = OFlags::WRONLY.union(OFlags::CREATE);

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    fn is_denied<T: std::fmt::Debug>(result: Result<T>, text: &str) {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), Kind::Denied, "{error}");
        assert!(error.chain().contains(text), "{error}");
    }

    #[test]
    fn what_is_made_is_ours_alone_and_what_was_wider_is_tightened() {
        let above = tempfile::tempdir().unwrap();
        let path = above.path().join("a/b");
        assert!(Folder::find(&path).unwrap().is_none());
        let folder = Folder::make(&path).unwrap();
        drop(folder.open("f", WRITTEN).unwrap());
        folder.below("c").unwrap();
        let all = ["", "f", "c"].map(|name| mode(&path.join(name)));
        assert_eq!(all, [0o700, 0o600, 0o700]);
        assert_eq!(mode(&above.path().join("a")), 0o700, "those above are made so too");
        set_mode(&path, 0o755);
        set_mode(&path.join("f"), 0o664);
        let folder = Folder::make(&path).unwrap();
        assert!(folder.was_wide() && !folder.was_exposed());
        assert_eq!(folder.read("f").unwrap(), Some(Vec::new()));
        assert_eq!(folder.read("g").unwrap(), None);
        assert_eq!((mode(&path), mode(&path.join("f"))), (0o700, 0o600));
        set_mode(&path, 0o777);
        assert!(Folder::make(&path).unwrap().was_exposed());
    }

    #[test]
    fn what_somebody_put_there_is_neither_followed_nor_written_to() {
        let above = tempfile::tempdir().unwrap();
        let victim = above.path().join("victim");
        std::fs::write(&victim, "precious").unwrap();
        let folder = Folder::make(&above.path().join("f")).unwrap();
        let at = |name: &str| folder.path().join(name);
        symlink(&victim, at("link")).unwrap();
        symlink(at("nowhere"), at("dangling")).unwrap();
        std::fs::hard_link(&victim, at("hard")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), FileType::Fifo, FILE, 0).unwrap();
        std::fs::create_dir(at("dir")).unwrap();
        for (name, text) in [
            ("link", "is a symlink"),
            ("dangling", "is a symlink"),
            ("hard", "another name"),
            ("fifo", "no regular file"),
            ("dir", "regular file"),
        ] {
            is_denied(folder.open(name, WRITTEN | OFlags::APPEND), text);
        }
        for name in ["link", "hard", "fifo"] {
            is_denied(folder.read(name), "which this program did not make");
        }
        is_denied(folder.below("link"), "is a symlink");
        is_denied(folder.below("hard"), "is no directory");
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
        assert!(!at("nowhere").exists());
        symlink(folder.path(), above.path().join("alias")).unwrap();
        is_denied(Folder::make(&above.path().join("alias")), "is a symlink");
    }

    #[test]
    fn what_is_anothers_or_everybodys_is_refused_and_left_as_it_is() {
        let above = tempfile::tempdir().unwrap();
        let path = above.path().join("shared");
        std::fs::create_dir(&path).unwrap();
        set_mode(&path, 0o1777);
        is_denied(Folder::make(&path), "a place that users share");
        assert_eq!(mode(&path), 0o1777);
        if !rustix::process::geteuid().is_root() {
            return;
        }
        set_mode(&path, 0o755);
        std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
        is_denied(Folder::make(&path), "belongs to user 65534, and this is user 0");
        is_denied(Folder::find(&path), "belongs to user 65534");
        assert_eq!(mode(&path), 0o755);
    }
}
