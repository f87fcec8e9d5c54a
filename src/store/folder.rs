//! Files of this machine that somebody else named: opened beneath a folder, never through a link.
//!
//! 1. Whoever writes a table chooses its files' names, and may put a symbolic link in the place of
//!    any of them: [`Folder`] lets the kernel refuse links and `..` on the way (`openat2`); where the
//!    kernel has no such call, or a sandbox forbids it, each component is opened by itself.
//! 2. Some tables have links for a good reason. A link is followed where the user allowed the place
//!    to which it leads by name ([`Allowed`]). That place is asked of the kernel for the very file
//!    that is open, so that nobody can put another one there in between.
//! 3. A table may be dropped and made anew at its path: the folder is opened each time, and is the
//!    one that has the name now. One that was looked at before it was trusted is held open instead.
//! 4. A device does things when it is opened: what lies behind a link is looked at first (`O_PATH`).

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::error::{Error, IoContext as _, Kind, Result};

/// NONBLOCK, so that a fifo in the place of an object cannot hang the mount.
const READ: OFlags =
    OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);
const LOOK: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// The places of this machine that the user allowed by name.
#[derive(Clone, Debug, Default)]
pub struct Allowed {
    /// Whether every place is.
    pub everything: bool,
    /// Files, and folders with what is beneath them.
    pub places: Vec<PathBuf>,
}

impl Allowed {
    /// Whether a path without links is one of them, by any of their names.
    fn covers(&self, path: &Path) -> bool {
        let is_at = |place: &PathBuf| {
            path.starts_with(place)
                || std::fs::canonicalize(place).is_ok_and(|place| path.starts_with(place))
        };
        self.everything || self.places.iter().any(is_at)
    }
}

/// A folder that paths may not leave.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    held: Option<Arc<OwnedFd>>,
}

impl Folder {
    /// The folder that has this name whenever something is opened; links in the name are followed.
    pub fn named(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), held: None }
    }

    /// This folder under this name, whatever has the name later.
    pub fn held(path: impl Into<PathBuf>, fd: OwnedFd) -> Self {
        Self { path: path.into(), held: Some(Arc::new(fd)) }
    }

    /// Its name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a folder beneath this one to hold it.
    ///
    /// # Errors
    /// [`Errno::LOOP`] for a link on the way, [`Errno::XDEV`] for a path that leaves it, and
    /// whatever the file system gives.
    pub fn beneath(&self, path: &Path) -> rustix::io::Result<OwnedFd> {
        self.open(path, LOOK | OFlags::DIRECTORY)
    }

    /// Opens what lies at a path beneath it. A link on the way is [`Errno::LOOP`], a path that
    /// leaves it [`Errno::XDEV`].
    fn open(&self, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let relative = path.strip_prefix(&self.path).map_err(|_| Errno::XDEV)?;
        let opened;
        let root = if let Some(held) = &self.held {
            held.as_fd()
        } else {
            opened = rustix::fs::open(&self.path, LOOK | OFlags::DIRECTORY, Mode::empty())?;
            opened.as_fd()
        };
        let relative = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        match rustix::fs::openat2(root, relative, flags, Mode::empty(), how) {
            Err(Errno::NOSYS | Errno::PERM) => walk(root, relative, flags),
            opened => opened,
        }
    }
}

/// `openat2` for kernels and sandboxes without it.
fn walk(root: BorrowedFd<'_>, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let mut folder = None;
    let mut parts = path.components().peekable();
    while let Some(part) = parts.next() {
        let at = folder.as_ref().map_or(root, AsFd::as_fd);
        let name = match part {
            Component::Normal(name) => name,
            Component::CurDir => ".".as_ref(),
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                return Err(Errno::XDEV);
            }
        };
        let last = parts.peek().is_none();
        let flags = if last { flags } else { LOOK | OFlags::DIRECTORY };
        // With O_PATH a link is opened as what it is, and with O_DIRECTORY it is no folder.
        let stat = rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
            return Err(Errno::LOOP);
        }
        let opened = rustix::fs::openat(at, name, flags | OFlags::NOFOLLOW, Mode::empty())?;
        if last {
            let stat = rustix::fs::fstat(&opened)?;
            let is_link = FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
            return if is_link { Err(Errno::LOOP) } else { Ok(opened) };
        }
        folder = Some(opened);
    }
    Err(Errno::NOENT)
}

/// A file of this machine by name, with how it may be reached.
#[derive(Clone, Debug)]
pub struct LocalPlace {
    /// Its path.
    pub path: PathBuf,
    /// The folder that it is in; without one it is where the user allowed.
    within: Option<Folder>,
    allowed: Arc<Allowed>,
}

impl LocalPlace {
    /// A file in a folder; `allowed` are the places to which links may lead.
    pub fn within(folder: Folder, path: impl Into<PathBuf>, allowed: Arc<Allowed>) -> Self {
        Self { path: path.into(), within: Some(folder), allowed }
    }

    /// A file in one of the places that the user allowed.
    pub fn allowed(path: impl Into<PathBuf>, allowed: Arc<Allowed>) -> Self {
        Self { path: path.into(), within: None, allowed }
    }

    /// Opens it for reading: a regular file.
    ///
    /// # Errors
    /// [`Kind::Denied`] where a link leads to what is not allowed, or the file system refuses;
    /// [`Kind::Payload`] where there is none or it is something else.
    pub fn open(&self) -> Result<OwnedFd> {
        let opened = match &self.within {
            Some(folder) => folder.open(&self.path, READ),
            None => Err(Errno::LOOP),
        };
        let opened = match opened {
            Err(Errno::LOOP | Errno::XDEV) => {
                let found = self.follow()?;
                self.regular(&found)?;
                rustix::fs::open(entry(&found), READ, Mode::empty())
            }
            opened => opened,
        };
        let fd = opened
            .map_err(std::io::Error::from)
            .context(Kind::Payload, || format!("open {}", self.path.display()))?;
        self.regular(&fd)?;
        Ok(fd)
    }

    fn regular(&self, fd: &OwnedFd) -> Result<()> {
        let stat = rustix::fs::fstat(fd)
            .map_err(std::io::Error::from)
            .context(Kind::Payload, || format!("stat {}", self.path.display()))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok(()),
            other => {
                let text = format!("{} is a {other:?}, not an object", self.path.display());
                Err(Error::new(Kind::Payload, text))
            }
        }
    }

    /// Whether it may be reached, for who opens it by its path. What is not there may be.
    ///
    /// # Errors
    /// [`Kind::Denied`] as [`LocalPlace::open`].
    pub fn check(&self) -> Result<()> {
        let opened = match &self.within {
            Some(folder) => folder.open(&self.path, LOOK),
            None => Err(Errno::LOOP),
        };
        match opened {
            Err(Errno::LOOP | Errno::XDEV) => match self.follow() {
                Err(error) if error.kind() == Kind::Denied => Err(error),
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// What its path leads to, if the user allowed the place.
    fn follow(&self) -> Result<OwnedFd> {
        let what = || format!("open {}", self.path.display());
        let found = rustix::fs::openat(CWD, &self.path, LOOK, Mode::empty())
            .map_err(std::io::Error::from)
            .context(Kind::Payload, what)?;
        let real = std::fs::read_link(entry(&found))
            .map_err(|e| Error::caused(Kind::Denied, what(), e))?;
        if self.allowed.covers(&real) {
            return Ok(found);
        }
        let text = format!(
            "{} is a symbolic link or behind one, and leads to {}: links out of a table are not followed; allow it with --allow-external {}",
            self.path.display(),
            real.display(),
            real.parent().unwrap_or(&real).display()
        );
        Err(Error::new(Kind::Denied, text))
    }
}

/// An open file's name, which leads to it whatever becomes of its path.
fn entry(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// `root/data/file`, and beside the root a secret to which links lead.
    fn place() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir_all(root.join("data")).unwrap();
        std::fs::create_dir(dir.path().join("out")).unwrap();
        std::fs::write(root.join("data/file"), b"fine").unwrap();
        std::fs::write(dir.path().join("out/secret"), b"secret").unwrap();
        symlink(dir.path().join("out/secret"), root.join("data/link")).unwrap();
        symlink("file", root.join("data/inner")).unwrap();
        symlink(dir.path().join("out"), root.join("folder")).unwrap();
        (dir, root)
    }

    fn kind(root: &Path, path: &str, allowed: &[&Path]) -> Option<Kind> {
        let allowed = Allowed {
            everything: false,
            places: allowed.iter().map(|p| (*p).to_owned()).collect(),
        };
        let place =
            LocalPlace::within(Folder::named(root), root.join(path), Arc::new(allowed.clone()));
        let opened = place.open().err().map(|e| e.kind());
        // What is not there may be looked for.
        let wanted = opened.filter(|kind| *kind == Kind::Denied);
        assert_eq!(place.check().err().map(|e| e.kind()), wanted, "{path}");
        opened
    }

    #[test]
    fn nothing_leads_out_of_a_folder() {
        let (dir, root) = place();
        assert_eq!(kind(&root, "data/file", &[]), None);
        for path in
            ["data/link", "data/inner", "folder/secret", "../out/secret", "data/../../out/secret"]
        {
            assert_eq!(kind(&root, path, &[]), Some(Kind::Denied), "{path}");
        }
        assert_eq!(kind(&root, "/etc/passwd", &[]), Some(Kind::Denied));
        assert_eq!(kind(&root, "data/absent", &[]), Some(Kind::Payload));
        assert_eq!(kind(&root, "absent/file", &[]), Some(Kind::Payload));
        // The name of the folder itself may be a link.
        let name = dir.path().join("name");
        symlink(&root, &name).unwrap();
        assert_eq!(kind(&name, "data/file", &[]), None);
        assert_eq!(kind(&name, "data/link", &[]), Some(Kind::Denied));
    }

    #[test]
    fn a_link_is_followed_where_its_end_is_allowed_by_any_name() {
        let (dir, root) = place();
        let out = dir.path().join("out");
        assert_eq!(kind(&root, "data/link", &[&out]), None);
        assert_eq!(kind(&root, "folder/secret", &[&out]), None);
        assert_eq!(kind(&root, "data/link", &[&dir.path().join("ou")]), Some(Kind::Denied));
        assert_eq!(kind(&root, "data/inner", &[&out]), Some(Kind::Denied));
        symlink(&out, dir.path().join("other")).unwrap();
        assert_eq!(kind(&root, "data/link", &[&dir.path().join("other")]), None);
    }

    #[test]
    fn a_place_that_is_allowed_ends_where_its_links_leave_it() {
        let (dir, root) = place();
        let opened = |places: &[&Path], path: &str| {
            let places = places.iter().map(|p| (*p).to_owned()).collect();
            let allowed = Allowed { everything: places == [Path::new("*")], places };
            LocalPlace::allowed(dir.path().join(path), Arc::new(allowed)).open().err()
        };
        assert!(opened(&[&root], "root/data/file").is_none());
        assert!(opened(&[&root], "root/data/inner").is_none());
        let error = opened(&[&root], "root/data/link").unwrap();
        assert_eq!(error.kind(), Kind::Denied);
        let flag = format!("--allow-external {}", dir.path().join("out").display());
        assert!(error.to_string().contains(&flag), "{error}");
        assert!(opened(&[Path::new("*")], "root/data/link").is_none());
    }

    #[test]
    fn without_openat2_each_component_is_opened_by_itself() {
        let (_dir, root) = place();
        let fd = rustix::fs::open(&root, LOOK | OFlags::DIRECTORY, Mode::empty()).unwrap();
        for flags in [READ, LOOK] {
            let walked = |path: &str| walk(fd.as_fd(), Path::new(path), flags).map(drop);
            assert_eq!(walked("data/file"), Ok(()));
            assert_eq!(walked("."), Ok(()));
            for path in ["data/link", "data/inner", "folder/secret", "folder"] {
                assert_eq!(walked(path), Err(Errno::LOOP), "{path}");
            }
            for path in ["../out/secret", "/etc/passwd", "data/../../out/secret"] {
                assert_eq!(walked(path), Err(Errno::XDEV), "{path}");
            }
            assert_eq!(walked("data/absent"), Err(Errno::NOENT));
            assert_eq!(walked("data/file/x"), Err(Errno::NOTDIR));
        }
    }

    #[test]
    fn a_folder_that_is_held_is_not_another_that_has_its_name() {
        let (dir, root) = place();
        let fd = rustix::fs::open(&root, LOOK | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let held = Folder::held(&root, fd);
        std::fs::rename(&root, dir.path().join("moved")).unwrap();
        std::fs::create_dir_all(root.join("data")).unwrap();
        std::fs::write(root.join("data/file"), b"another").unwrap();
        let read = |folder: Folder| {
            let place = LocalPlace::within(folder, root.join("data/file"), Arc::default());
            std::io::read_to_string(std::fs::File::from(place.open().unwrap())).unwrap()
        };
        assert_eq!(read(held), "fine");
        assert_eq!(read(Folder::named(&root)), "another");
    }
}
