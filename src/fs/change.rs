//! Operations that change something: all of them beneath `staging/`, refused everywhere else.
//!
//! What may wait for the disk for long (a sync, a copy, an allocation, a new batch) runs on a thread
//! of its own kind; the rest is done where it was asked.

use std::ffi::{OsStr, OsString};

use rustix::fs::OFlags;

use super::handles::OpenFile;
use super::staging::{Staging, Writable, attr, shown, staged_ino, ttl_in};
use super::{Attr, Content, Counter, Fs, Handle, Opened};
use crate::error::{Error, Kind, Result};
use crate::staging::spool::{Attributes, Caller, Moving, NewNode, Whence};
use crate::store::blocking;
use crate::tree::ino::STAGING_ROOT;
use crate::tree::{self, Node, SnapshotId};
use crate::units::{BlobOffset, ByteLen, Ino};

/// Setting this attribute of a batch commits it.
const COMMIT: &str = "user.lancefs.commit";
/// The user who may do everything.
const ROOT: u32 = 0;
/// Permission bits that a caller can ask for.
const PERMISSIONS: u32 = 0o7777;

/// Something that is to be made.
#[derive(Clone, Debug)]
pub struct Target {
    /// In this directory.
    pub parent: Ino,
    /// Under this name.
    pub name: OsString,
    /// With these permissions, the umask taken off; other bits are not looked at.
    pub mode: u32,
    /// For this user and group.
    pub caller: Caller,
}

/// What was made.
#[derive(Clone, Copy, Debug)]
pub struct Made {
    /// Its attributes; its name is believed as long as they are.
    pub attr: Attr,
}

/// A change of attributes.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// Of this node.
    pub ino: Ino,
    /// Through this handle, if the caller has one.
    pub handle: Option<Handle>,
    /// The new attributes.
    pub new: Attributes,
}

impl Fs {
    /// Makes a directory; in `staging/` itself, a batch, which is begun on the newest version.
    ///
    /// # Errors
    /// [`Kind::ReadOnly`] anywhere else, [`Kind::Busy`] in a batch that is being committed, where
    /// the store does not tell the newest version, and what the disk says.
    pub async fn mkdir(&self, target: Target) -> Result<Made> {
        let parent = self.may_change(target.parent)?;
        let newest = self.newest_for(parent).await?;
        let spool = self.spooled()?.clone();
        let make = move || spool.mkdir(&new_node(&target, newest.as_ref())?);
        let stat = if parent == STAGING_ROOT { blocking(make).await } else { make() };
        Ok(self.made(attr(&stat?, ttl_in(parent))))
    }

    /// Makes and opens a file; in `staging/` itself, a batch of one file.
    ///
    /// # Errors
    /// As [`Fs::mkdir`].
    pub async fn create(&self, target: Target, flags: OFlags) -> Result<(Made, Opened)> {
        let parent = self.may_change(target.parent)?;
        let newest = self.newest_for(parent).await?;
        let spool = self.spooled()?.clone();
        let make = move || spool.create(&new_node(&target, newest.as_ref())?, flags);
        let result = if parent == STAGING_ROOT { blocking(make).await } else { make() };
        let (stat, file) = result?;
        self.counters.add(Counter::Opens, 1);
        let handle = self.handles.open_file(OpenFile::Staged(file));
        let opened = Opened { handle, content: Content::Staged, same_as: None };
        Ok((self.made(attr(&stat, ttl_in(parent))), opened))
    }

    /// Makes a symlink.
    ///
    /// # Errors
    /// As [`Fs::mkdir`]; [`Kind::Refused`] in `staging/` itself.
    pub fn symlink(&self, target: &Target, points_to: &std::path::Path) -> Result<Made> {
        let parent = self.may_change(target.parent)?;
        let stat = self.spooled()?.symlink(&new_node(target, None)?, points_to)?;
        Ok(self.made(attr(&stat, ttl_in(parent))))
    }

    /// Refuses what `mknod` and `link` make: nothing but a regular file can be staged.
    ///
    /// # Errors
    /// Always: [`Kind::ReadOnly`] outside of `staging/`, else [`Kind::Refused`].
    pub fn refuse(&self, parent: Ino, what: &str) -> Result<()> {
        self.may_change(parent)?;
        Err(Error::new(Kind::Refused, format!("{what} cannot be staged")))
    }

    /// Removes a file or symlink.
    ///
    /// # Errors
    /// As [`Fs::mkdir`].
    pub fn unlink(&self, parent: Ino, name: &OsStr) -> Result<()> {
        let (parent, name) = (self.may_change(parent)?, existing(name)?);
        if self.dismiss(parent, name) {
            return Ok(());
        }
        self.spooled()?.unlink(parent, name)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As [`Fs::mkdir`].
    pub fn rmdir(&self, parent: Ino, name: &OsStr) -> Result<()> {
        let parent = self.may_change(parent)?;
        self.spooled()?.rmdir(parent, existing(name)?)
    }

    /// Moves a name within `staging/`, or commits a batch by moving it into `commit/`.
    ///
    /// # Errors
    /// As [`Fs::mkdir`], for both places; [`Kind::Invalid`] for anything else than a batch that is
    /// moved into `commit/`; what the commit gives.
    pub async fn rename(
        &self,
        (from_parent, from): (Ino, OsString),
        (to_parent, to): (Ino, OsString),
        how: Moving,
    ) -> Result<()> {
        let source = self.may_change(from_parent)?;
        let from = existing(&from)?;
        if self.is_commit(to_parent) {
            if source != STAGING_ROOT || how == Moving::Exchange {
                return Err(only_batches(from));
            }
            return self.commit(from).await;
        }
        let target = self.may_change(to_parent)?;
        let to = new_name(&to)?;
        let swaps = how == Moving::Exchange && source == STAGING_ROOT;
        let newest = self.newest_for(if swaps { source } else { target }).await?;
        self.move_kept((source, from), (target, to), how, newest.as_ref()).await
    }

    /// Whether a number is that of `commit/`: what is moved there may take long.
    pub fn is_commit(&self, ino: Ino) -> bool {
        matches!(self.node(ino), Ok(Node::Commit))
    }

    /// The node whose `user.lancefs.error` tells why something with a name failed: what has the
    /// name, if it is staged, else its directory.
    pub fn blamed(&self, parent: Ino, name: &OsStr) -> Ino {
        let staged = self.node(parent).ok().and_then(|node| staged_ino(&node));
        let found = || self.spool()?.number(staged?, name.to_str()?).ok();
        found().unwrap_or(parent)
    }

    /// Changes attributes.
    ///
    /// # Errors
    /// As [`Fs::mkdir`].
    pub async fn setattr(&self, change: Change) -> Result<Attr> {
        let ino = self.may_change(change.ino)?;
        let spool = self.spooled()?.clone();
        let mut open = change.handle.map(|handle| self.handles.staged(handle)).transpose()?;
        let slow = change.new.size.is_some();
        if let Some(len) = change.new.size {
            let file = match open.take() {
                Some(file) => file,
                None => spool.open_file(ino, OFlags::WRONLY)?,
            };
            if !file.can_truncate(len) {
                self.fetch(&file).await?;
            }
            open = Some(file);
        }
        let set = {
            let spool = spool.clone();
            move || spool.set_attributes(ino, open.as_deref(), &change.new)
        };
        // Cutting a large file frees its blocks.
        if slow { blocking(set).await } else { set() }?;
        self.getattr(change.ino).await
    }

    /// Writes, and gives how many bytes. `by_other` says that the writer may not keep set-user-id.
    ///
    /// # Errors
    /// [`Kind::ReadOnly`] for a file that is not staged, [`Kind::Quota`], what the disk says.
    pub fn write(
        &self,
        handle: Handle,
        offset: BlobOffset,
        data: &[u8],
        by_other: bool,
    ) -> Result<ByteLen> {
        let file = self.handles.staged(handle)?;
        if by_other {
            file.drop_set_id()?;
        }
        file.write(offset, data)
    }

    /// Writes on a thread of its own: for a caller that must not wait for the disk.
    ///
    /// # Errors
    /// As [`Fs::write`].
    pub async fn write_elsewhere(
        self: std::sync::Arc<Self>,
        handle: Handle,
        offset: BlobOffset,
        data: Vec<u8>,
        by_other: bool,
    ) -> Result<ByteLen> {
        self.fetch(&self.handles.staged(handle)?).await?;
        blocking(move || self.write(handle, offset, &data, by_other)).await
    }

    /// Makes a file durable.
    ///
    /// # Errors
    /// What the disk says.
    pub async fn fsync(&self, handle: Handle, data_only: bool) -> Result<()> {
        match self.handles.file(handle)? {
            OpenFile::Staged(file) => blocking(move || file.sync(data_only)).await,
            // Whoever reads a file may ask for that too, and it is as durable as it can be.
            OpenFile::Value(_) | OpenFile::Text(_) => Ok(()),
        }
    }

    /// Makes the names in a directory durable.
    ///
    /// # Errors
    /// What the disk says.
    pub async fn fsyncdir(&self, ino: Ino) -> Result<()> {
        let staged = staged_ino(&self.node(ino)?).zip(self.spool().cloned());
        let Some((ino, spool)) = staged else { return Ok(()) };
        blocking(move || spool.sync_directory(ino)).await
    }

    /// Allocates, punches holes or zeroes, as `fallocate(2)` says.
    ///
    /// # Errors
    /// As [`Fs::write`].
    pub async fn allocate(
        &self,
        handle: Handle,
        mode: i32,
        offset: BlobOffset,
        len: ByteLen,
    ) -> Result<()> {
        let file = self.handles.staged(handle)?;
        self.fetch(&file).await?;
        blocking(move || file.allocate(mode, offset, len)).await
    }

    /// The next data or hole.
    ///
    /// # Errors
    /// [`Kind::Disk`] with ENXIO at the end and past it.
    pub fn seek(&self, handle: Handle, whence: Whence, offset: BlobOffset) -> Result<BlobOffset> {
        let size = match self.handles.file(handle)? {
            OpenFile::Staged(file) => match file.reference() {
                None => return file.seek(whence, offset),
                Some(reference) => reference.len,
            },
            OpenFile::Value(value) => value.interval.len.get(),
            OpenFile::Text(text) => text.len(),
        };
        // What is in the table has no holes but the one that every file ends in.
        match whence {
            _ if offset.get() >= size => Err(no_such_place()),
            Whence::Data => Ok(offset),
            Whence::Hole => Ok(BlobOffset::new(size)),
        }
    }

    /// Copies between open files, and gives how many bytes.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] where bytes must be read and written: the kernel does that then. Else
    /// as [`Fs::write`].
    pub async fn copy(
        &self,
        (from, from_offset): (Handle, BlobOffset),
        (to, to_offset): (Handle, BlobOffset),
        len: ByteLen,
    ) -> Result<ByteLen> {
        let target = self.handles.staged(to)?;
        match self.handles.file(from)? {
            OpenFile::Staged(source) if source.reference().is_some() => {
                Err(Error::new(Kind::Unsupported, "its bytes are in the table"))
            }
            OpenFile::Staged(source) => {
                self.fetch(&target).await?;
                blocking(move || target.copy_from(&source, from_offset, to_offset, len)).await
            }
            OpenFile::Value(value) => {
                self.refer((&value, from_offset), (target, to_offset), len).await
            }
            OpenFile::Text(_) => Err(Error::new(
                Kind::Unsupported,
                "a text has no bytes that can be copied on the disk",
            )),
        }
    }

    /// Sets an extended attribute, or commits a batch by setting `user.lancefs.commit`, for a user.
    ///
    /// # Errors
    /// As [`Fs::mkdir`]; [`Kind::Refused`] for other names of ours, [`Kind::Unsupported`] for
    /// namespaces that are not the user's; [`Kind::Denied`] for a commit by a user who may not
    /// write to `commit/`; what the commit gives.
    pub async fn setxattr(
        &self,
        uid: u32,
        ino: Ino,
        name: &OsStr,
        value: &[u8],
        flags: i32,
    ) -> Result<()> {
        let ino = self.may_change(ino)?;
        let name = new_name(name)?;
        if Self::tells_of_value(name) {
            return Ok(());
        }
        let spool = self.spooled()?;
        if name != COMMIT {
            return spool.set_xattr(ino, name, value, flags);
        }
        // The kernel has asked for a right on the batch, and a move asks for one on `commit/` too.
        if uid != ROOT && uid != self.look.uid {
            let text = format!("user {uid} may not commit: {}/ is not theirs", tree::COMMIT);
            return Err(Error::new(Kind::Denied, text));
        }
        match spool.batch_of(ino)? {
            Some(batch) => self.commit(&batch).await,
            None => Err(only_batches("what is not a child of staging/")),
        }
    }

    /// Whether setting an attribute may take long.
    pub fn commits_by(name: &str) -> bool {
        name == COMMIT
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// As [`Fs::setxattr`].
    pub fn removexattr(&self, ino: Ino, name: &OsStr) -> Result<()> {
        let ino = self.may_change(ino)?;
        let name = new_name(name)?;
        self.spooled()?.remove_xattr(ino, name)
    }

    /// Whether a node can be written at all.
    ///
    /// # Errors
    /// [`Kind::ReadOnly`].
    pub fn may_write(&self, ino: Ino) -> Result<()> {
        self.may_change(ino).map(drop)
    }

    /// The staged number of a node that is to be changed, before anything else is looked at.
    fn may_change(&self, ino: Ino) -> Result<Ino> {
        let node = self.node(ino)?;
        match staged_ino(&node) {
            Some(staged) if self.spool().is_some() => Ok(staged),
            _ => Err(self.read_only(&node)),
        }
    }

    /// The error of a change where nothing changes.
    pub(super) fn read_only(&self, node: &Node) -> Error {
        let text = match (self.staging(), node) {
            (Staging::Off(reason), Node::Staging | Node::Commit) => reason.clone(),
            (Staging::On(_), Node::Commit) => format!(
                "{0}/ takes what is moved here out of {1}/: make a directory there, save into that, \
                 and move it here (mkdir {1}/b && cp … {1}/b && mv {1}/b {0}/)",
                tree::COMMIT,
                tree::STAGING
            ),
            _ => format!("{node:?} is read-only; new files go into {}/", tree::STAGING),
        };
        Error::new(Kind::ReadOnly, text)
    }

    async fn newest_for(&self, parent: Ino) -> Result<Option<SnapshotId>> {
        if parent != STAGING_ROOT {
            return Ok(None);
        }
        Ok(Some(self.table.catalog.latest(None).await?.id))
    }

    async fn commit(&self, batch: &str) -> Result<()> {
        match self.staging() {
            Staging::On(Writable { commit, .. }) => {
                // A new attempt: what was said of an earlier one is no longer so.
                if let Ok(ino) = self.spooled()?.number(STAGING_ROOT, batch) {
                    self.forgive(ino);
                }
                let outcome = commit.clone().commit(batch).await;
                outcome.map(drop).map_err(|e| e.at(shown(batch)))
            }
            Staging::Off(reason) => Err(Error::new(Kind::ReadOnly, reason.clone())),
        }
    }

    /// What was made is another than what had its number before.
    fn made(&self, attr: Attr) -> Made {
        self.forgive(attr.ino);
        Made { attr }
    }
}

fn new_node<'a>(target: &'a Target, newest: Option<&'a SnapshotId>) -> Result<NewNode<'a>> {
    Ok(NewNode {
        parent: target.parent,
        name: new_name(&target.name)?,
        // The mask leaves 12 bits.
        mode: u16::try_from(target.mode & PERMISSIONS).unwrap_or(0),
        caller: target.caller,
        newest,
    })
}

/// A name that something is to have: one that is not UTF-8 could become no row and no field.
fn new_name(name: &OsStr) -> Result<&str> {
    name.to_str().ok_or_else(|| {
        let text = format!("the name {} is not UTF-8, and so cannot be staged", name.display());
        Error::new(Kind::Invalid, text)
    })
}

/// A name that something has; nothing has one that is not UTF-8.
fn existing(name: &OsStr) -> Result<&str> {
    let none = || Error::new(Kind::NotFound, format!("no {}", name.display()));
    name.to_str().ok_or_else(none)
}

fn no_such_place() -> Error {
    Error::new(Kind::Disk(rustix::io::Errno::NXIO.raw_os_error()), "there is no data from there on")
}

fn only_batches(what: &str) -> Error {
    let text = format!("{what:?}: only whole batches can be committed, the children of staging/");
    Error::new(Kind::Invalid, text)
}
