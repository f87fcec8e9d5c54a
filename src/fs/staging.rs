//! What is staged, as the tree shows it.

use std::sync::Arc;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use serde_json::{Value, json};

use super::handles::OpenFile;
use super::xattr::ERROR;
use super::{
    Attr, Commit, Content, Counter, DEEPER, FileKind, Fs, Handle, Looked, Opened, Sink, Stat,
};
use crate::error::{Error, Kind, Result};
use crate::staging::spool::{Listed, OpenDirectory, Spool};
use crate::store::blocking;
use crate::tree::ino::STAGING_ROOT;
use crate::tree::{self, Node};
use crate::units::{self, Ino};

/// The batch's id.
const BATCH: &str = "user.lancefs.batch";
/// What a commit of the batch would do.
const PLAN: &str = "user.lancefs.plan";
/// The version of main that it was begun on, whose rows `@<row>` counts.
const VERSION: &str = "user.lancefs.version";
/// How far a commit of the batch is.
const PROGRESS: &str = "user.lancefs.progress";
/// The first cookie after `.` and `..`.
const FIRST: u64 = 2;
/// Permissions of `commit/` where something can be committed.
const COMMIT_MODE: u16 = 0o755;
/// Permissions of `staging/` and `commit/` where nothing can be staged.
const OFF_MODE: u16 = 0o555;

/// Whether files can be staged.
pub enum Staging {
    /// They can.
    On(Writable),
    /// They cannot, for this reason.
    Off(String),
}

/// Where files are staged, and who publishes them.
pub struct Writable {
    /// The staging folder.
    pub spool: Arc<Spool>,
    /// Publishes batches.
    pub commit: Arc<dyn Commit>,
}

/// Whether an errno of the staging disk is a failure, and not what every file system answers to a
/// program that asks for what is not there.
pub(super) fn is_failure(errno: i32) -> bool {
    let failures = [Errno::NOSPC, Errno::DQUOT, Errno::IO, Errno::ROFS, Errno::NFILE, Errno::MFILE];
    failures.iter().any(|failure| failure.raw_os_error() == errno)
}

impl Fs {
    /// Whether files can be staged.
    pub fn staging(&self) -> &Staging {
        self.decided.get().unwrap_or(&self.staging)
    }

    /// Says for good whether files can be staged, where that could not be found out before.
    pub fn decide(&self, staging: Staging) {
        // Only the first word counts.
        let _ = self.decided.set(staging);
    }

    pub(super) fn spool(&self) -> Option<&Arc<Spool>> {
        match self.staging() {
            Staging::On(writable) => Some(&writable.spool),
            Staging::Off(_) => None,
        }
    }

    /// The spool, for an operation on something that is staged.
    pub(super) fn spooled(&self) -> Result<&Arc<Spool>> {
        match self.staging() {
            Staging::On(writable) => Ok(&writable.spool),
            Staging::Off(reason) => Err(Error::new(Kind::ReadOnly, reason.clone())),
        }
    }

    /// Takes back lookups that the kernel has forgotten.
    pub fn forget(&self, ino: Ino, lookups: u64) {
        if let Some(spool) = self.spool() {
            spool.forget(ino, lookups);
        }
    }

    /// Why the last operation on a node failed; of `staging/`, why nothing can be staged.
    pub(super) fn error_of(&self, ino: Ino) -> Option<String> {
        match self.staging() {
            Staging::Off(reason) if ino == STAGING_ROOT => Some(reason.clone()),
            _ => self.failure(ino),
        }
    }

    pub(super) fn staging_status(&self) -> Value {
        match self.staging() {
            Staging::Off(reason) => json!({ "enabled": false, "reason": reason }),
            Staging::On(Writable { spool, .. }) => {
                let used = spool.space().map(|space| space.used.get()).ok();
                json!({
                    "enabled": true,
                    "folder": spool.folder().path().display().to_string(),
                    "limit": spool.limit().map(units::ByteLen::get),
                    "used": used,
                    "batches": spool.names().unwrap_or_default(),
                })
            }
        }
    }

    /// The text of `.lancefs/commits.jsonl`.
    pub(super) async fn commits(&self) -> Result<Vec<u8>> {
        match self.spool().cloned() {
            Some(spool) => blocking(move || spool.commits()).await,
            None => Ok(Vec::new()),
        }
    }

    pub(super) fn attr_of_staging(&self) -> Result<Attr> {
        match self.spool() {
            Some(spool) => Ok(Attr {
                ino: STAGING_ROOT,
                generation: 0,
                ..attr(&spool.stat(STAGING_ROOT)?, Duration::ZERO)
            }),
            None => self.fixed_directory(&Node::Staging, OFF_MODE),
        }
    }

    pub(super) fn attr_of_commit(&self) -> Result<Attr> {
        let mode = if self.spool().is_some() { COMMIT_MODE } else { OFF_MODE };
        self.fixed_directory(&Node::Commit, mode)
    }

    fn fixed_directory(&self, node: &Node, mode: u16) -> Result<Attr> {
        let attr = self.plain(node, FileKind::Directory, 0, self.started, Duration::ZERO)?;
        Ok(Attr { mode: mode & (self.look.dir_mode | 0o222), ..attr })
    }

    pub(super) fn staged_attr(&self, ino: Ino) -> Result<Attr> {
        let spool = self.spooled()?;
        let ttl = if spool.batch_of(ino)?.is_some() { Duration::ZERO } else { DEEPER };
        Ok(attr(&spool.stat(ino)?, ttl))
    }

    pub(super) fn staged_link(&self, ino: Ino) -> Result<Vec<u8>> {
        self.spooled()?.readlink(ino)
    }

    /// Looks a name up beneath `staging/` or in `commit/`, which is always empty.
    pub(super) fn lookup_staged(&self, parent: &Node, name: &str) -> Result<Looked> {
        let none = || Error::new(Kind::NotFound, format!("no {name:?} in {parent:?}"));
        let Some(spool) = self.spool() else { return Err(none()) };
        let Some(ino) = staged_ino(parent) else { return Err(none()) };
        let stat = match spool.lookup(ino, name) {
            Err(_) if name == tree::REFUSED && self.refusal(ino).is_some() => {
                return Ok(Looked::Found(self.attr_of_refusal(ino)?, Duration::ZERO));
            }
            found => found?,
        };
        let ttl = ttl_in(ino);
        Ok(Looked::Found(attr(&stat, ttl), ttl))
    }

    pub(super) fn open_staged(&self, ino: Ino, flags: OFlags) -> Result<Opened> {
        let file = self.spooled()?.open_file(ino, flags)?;
        if flags.contains(OFlags::TRUNC) {
            file.truncate(units::ByteLen::new(0))?;
        }
        self.counters.add(Counter::Opens, 1);
        let handle = self.handles.open_file(OpenFile::Staged(file));
        Ok(Opened { handle, content: Content::Staged, same_as: None })
    }

    pub(super) fn opendir_staged(&self, node: &Node) -> Result<Handle> {
        let (listed, directory) = match (self.spool(), staged_ino(node)) {
            (Some(spool), Some(ino)) => {
                (self.list_staged(spool, ino)?, Some(OpenDirectory::new(spool.clone(), ino)))
            }
            _ => (Vec::new(), None),
        };
        Ok(self.handles.open_staged(listed, directory))
    }

    fn list_staged(&self, spool: &Spool, ino: Ino) -> Result<Vec<Listed>> {
        let mut listed = spool.list(ino)?;
        let is_real = listed.iter().any(|entry| entry.name == tree::REFUSED);
        if !is_real && self.refusal(ino).is_some() {
            let number = self.number(&Node::Refusal(ino))?;
            let name = tree::REFUSED.to_owned();
            listed.push(Listed { ino: number, kind: FileKind::File, name });
        }
        Ok(listed)
    }

    pub(super) fn readdir_staged(
        &self,
        node: &Node,
        handle: Handle,
        cookie: u64,
        sink: &mut (dyn Sink + Send),
    ) -> Result<()> {
        let listed = match (self.spool(), staged_ino(node)) {
            (Some(spool), Some(ino)) if cookie == 0 => {
                self.handles.relist(handle, self.list_staged(spool, ino)?)
            }
            _ => self.handles.listed(handle)?,
        };
        let own = self.number(node)?;
        for (name, at) in [".", ".."].into_iter().zip(0_u64..).skip(units::usize_of(cookie)) {
            let ino = if name == "." { own } else { self.above(node) };
            if sink.add(ino, at + 1, FileKind::Directory, name).is_break() {
                return Ok(());
            }
        }
        let from = units::usize_of(cookie.saturating_sub(FIRST));
        for (entry, at) in listed.iter().zip(FIRST..).skip(from) {
            if sink.add(entry.ino, at + 1, entry.kind, &entry.name).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// The number that `..` shows; the kernel itself knows which it is.
    fn above(&self, node: &Node) -> Ino {
        let root = || self.number(&Node::Root).unwrap_or_default();
        match node {
            Node::Staged(_) => STAGING_ROOT,
            _ => root(),
        }
    }

    pub(super) async fn staged_xattr(&self, node: &Node, name: &str) -> Result<Vec<u8>> {
        let missing = || Error::new(Kind::NoAttribute, format!("no attribute {name:?}"));
        let ino = self.number(node)?;
        if name == ERROR {
            let why = self.error_of(ino).or_else(|| self.held_back(ino));
            return why.map(String::into_bytes).ok_or_else(missing);
        }
        let Staging::On(Writable { spool, commit }) = self.staging() else { return Err(missing()) };
        if ![BATCH, PLAN, PROGRESS, VERSION].contains(&name) {
            return spool.xattr(ino, name);
        }
        let batch = spool.batch_of(ino)?.ok_or_else(missing)?;
        let text = match name {
            BATCH => spool.batch(&batch)?.origin.batch.to_string(),
            VERSION => spool.batch(&batch)?.origin.version.to_string(),
            PLAN => commit.plan(&batch).await?,
            PROGRESS => commit.progress(&batch).ok_or_else(missing)?,
            _ => return Err(missing()),
        };
        Ok(text.into_bytes())
    }

    /// Why a batch was not committed by itself.
    fn held_back(&self, ino: Ino) -> Option<String> {
        let Staging::On(Writable { spool, commit }) = self.staging() else { return None };
        let batch = spool.batch_of(ino).ok().flatten()?;
        commit.held_back(&batch)
    }

    pub(super) fn staged_xattrs(&self, node: &Node) -> Result<Vec<String>> {
        let ino = self.number(node)?;
        self.spool().map_or_else(|| Ok(Vec::new()), |spool| spool.xattrs(ino))
    }
}

/// How long what a staged directory holds is believed.
pub(super) fn ttl_in(parent: Ino) -> Duration {
    if parent == STAGING_ROOT { Duration::ZERO } else { DEEPER }
}

/// The number of a directory beneath which things are staged.
pub(super) fn staged_ino(node: &Node) -> Option<Ino> {
    match node {
        Node::Staging => Some(STAGING_ROOT),
        Node::Staged(ino) => Some(*ino),
        _ => None,
    }
}

/// Attributes that the staging disk gives.
pub(super) fn attr(stat: &Stat, ttl: Duration) -> Attr {
    Attr {
        ino: stat.ino,
        generation: stat.generation,
        kind: stat.kind,
        mode: stat.mode,
        links: stat.links,
        uid: stat.uid,
        gid: stat.gid,
        size: stat.size,
        allocated: stat.allocated,
        accessed: stat.accessed,
        modified: stat.modified,
        changed: stat.changed,
        ttl,
    }
}

/// The name of the tree's directory for batches, for messages.
pub(super) fn shown(batch: &str) -> String {
    format!("{}/{batch}", tree::STAGING)
}
