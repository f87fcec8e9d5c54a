//! What is known of each batch besides its files, and what the commit engine does with one.
//!
//! 1. A commit reads a batch that must not change meanwhile: [`Frozen`] waits for the changes that
//!    are under way, and every later one answers [`Kind::Busy`] until it is dropped. Reads go on.
//! 2. A file that is open for writing may change at any time: then nothing is frozen. The kernel
//!    tells of a close a moment after the program that closed has gone on, so a moment is waited.
//!    Who has a file open writes on meanwhile ([`Hold::Closing`]): a write that is refused would
//!    leave half a file, which the commit would take for a whole one as soon as it is closed.
//! 3. A batch leaves at once or not at all: it is renamed out of the tree, and deleted afterwards.

use std::collections::HashMap;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::RenameFlags;
use rustix::io::Errno;
use tokio::sync::watch;
use uuid::Uuid;

use super::disk::{self, OnDisk as _, as_owner, path_fd};
use super::{GONE, Spool, TREE, origin};
use crate::error::{Error, Kind, Result};
use crate::private::Folder;
use crate::staging::Origin;
use crate::tree::FileKind;
use crate::units::Ino;

/// How long a freeze waits for a close that is on its way, and for changes that are under way.
const CLOSING: Duration = Duration::from_secs(1);
const CHANGING: Duration = Duration::from_secs(30);
/// How often it looks whether the files were closed.
const LOOK: Duration = Duration::from_millis(5);
/// How many open files an error names.
const NAMED: usize = 10;

/// A batch as it is on the staging disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Its name in `staging/`.
    pub name: String,
    /// Where it is on the staging disk.
    pub path: PathBuf,
    /// Where it comes from.
    pub origin: Origin,
    /// Whether it is one file or a directory.
    pub kind: BatchKind,
}

/// What a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchKind {
    /// A directory of entries.
    Directory,
    /// One file: the short form, a batch of one row.
    File,
}

/// What happens to a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    /// When it was changed last through the mount; when the mount began, if never since.
    pub last_change: Instant,
    /// How many of its files and directories are open.
    pub open: usize,
    /// A process that made something in it since the mount began still runs.
    pub is_being_made: bool,
}

/// Which changes of a batch are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    /// None.
    Free,
    /// All but those of files that are open for writing already.
    Closing,
    /// All.
    Frozen,
}

/// Who changes something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Somebody who knows its name.
    Name,
    /// Somebody who has it open for writing.
    Writer,
}

#[derive(Debug)]
struct State {
    hold: Hold,
    /// Changes that are under way.
    changing: u64,
    last_change: Instant,
}

/// The state of all batches.
#[derive(Debug)]
pub struct Batches {
    states: Mutex<HashMap<Arc<str>, State>>,
    idle: Condvar,
    started: Instant,
    changes: watch::Sender<u64>,
}

/// A change that is under way; it counts when it is dropped.
#[derive(Debug)]
pub struct Change<'a> {
    batches: &'a Batches,
    batch: Arc<str>,
}

impl Batches {
    /// Nothing has happened yet.
    pub fn new() -> Self {
        Self {
            states: Mutex::default(),
            idle: Condvar::new(),
            started: Instant::now(),
            changes: watch::Sender::new(0),
        }
    }

    /// Begins a change of a batch.
    ///
    /// # Errors
    /// [`Kind::Busy`] while it is frozen.
    pub fn change(&self, batch: &Arc<str>, by: By) -> Result<Change<'_>> {
        let mut states = self.lock();
        let state = states.entry(batch.clone()).or_insert_with(|| self.untouched());
        match (state.hold, by) {
            (Hold::Free, _) | (Hold::Closing, By::Writer) => {}
            (Hold::Closing, By::Name) | (Hold::Frozen, _) => return Err(being_committed(batch)),
        }
        state.changing += 1;
        Ok(Change { batches: self, batch: batch.clone() })
    }

    /// Notes that a batch was changed, and wakes whoever waits for that.
    pub fn touch(&self, batch: &Arc<str>) {
        let mut states = self.lock();
        states.entry(batch.clone()).or_insert_with(|| self.untouched()).last_change =
            Instant::now();
        drop(states);
        self.tell();
    }

    /// Wakes whoever waits for changes.
    pub fn tell(&self) {
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Counts up with every change and every close.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn last_change(&self, batch: &str) -> Instant {
        self.lock().get(batch).map_or(self.started, |state| state.last_change)
    }

    fn untouched(&self) -> State {
        State { hold: Hold::Free, changing: 0, last_change: self.started }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, State>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses changes from now on, but those of files that are open for writing.
    fn close(&self, batch: &Arc<str>) -> Result<()> {
        let mut states = self.lock();
        let state = states.entry(batch.clone()).or_insert_with(|| self.untouched());
        if state.hold != Hold::Free {
            return Err(being_committed(batch));
        }
        state.hold = Hold::Closing;
        Ok(())
    }

    /// Refuses every change from now on.
    fn freeze(&self, batch: &str) {
        if let Some(state) = self.lock().get_mut(batch) {
            state.hold = Hold::Frozen;
        }
    }

    /// Waits for the changes that are under way.
    fn settle(&self, batch: &str) -> Result<()> {
        let busy =
            |all: &mut HashMap<Arc<str>, State>| all.get(batch).is_some_and(|s| s.changing > 0);
        let waited = self.idle.wait_timeout_while(self.lock(), CHANGING, busy);
        let (states, late) = waited.unwrap_or_else(PoisonError::into_inner);
        drop(states);
        if late.timed_out() {
            return Err(Error::new(Kind::Busy, format!("batch {batch:?} is still being changed")));
        }
        Ok(())
    }

    fn thaw(&self, batch: &str) {
        if let Some(state) = self.lock().get_mut(batch) {
            state.hold = Hold::Free;
        }
    }

    fn forget(&self, batch: &str) {
        self.lock().remove(batch);
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if let Some(state) = self.batches.lock().get_mut(&self.batch) {
            state.changing = state.changing.saturating_sub(1);
            state.last_change = Instant::now();
        }
        self.batches.idle.notify_all();
        self.batches.tell();
    }
}

/// A batch that cannot change. Dropping it lets it change again.
#[derive(Debug)]
pub struct Frozen {
    spool: Arc<Spool>,
    batch: Batch,
}

impl Frozen {
    /// The batch.
    pub fn batch(&self) -> &Batch {
        &self.batch
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.spool.batches.thaw(&self.batch.name);
    }
}

impl Spool {
    /// All batches, by name. What is no batch (a symlink that somebody put there, a name that is
    /// not UTF-8, one without an [`Origin`]) is left out and logged.
    ///
    /// # Errors
    /// [`Kind::Disk`] where the disk does not list them.
    pub fn batches(&self) -> Result<Vec<Batch>> {
        let mut batches = Vec::new();
        for name in self.names()? {
            match self.batch(&name) {
                Ok(batch) => batches.push(batch),
                Err(error) => tracing::warn!(name, %error, "no batch"),
            }
        }
        batches.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(batches)
    }

    /// The batch of an id; `None` only where it is certain that none in `staging/` has it.
    ///
    /// # Errors
    /// [`Kind::Disk`] and [`Kind::Internal`] where it was not found and something in `staging/`
    /// could not be read, which may be it.
    pub fn find(&self, batch: Uuid) -> Result<Option<Batch>> {
        // A batch that is renamed meanwhile could be missed under both names.
        let _still = self.still();
        let mut unread = None;
        for entry in disk::entries(&self.tree).on_disk(|| format!("list {TREE}"))? {
            // What is not UTF-8 cannot be a batch.
            let Ok(name) = entry.file_name().to_str() else { continue };
            match self.known(name) {
                Ok(Some(found)) if found.origin.batch == batch => return Ok(Some(found)),
                Ok(_) => {}
                Err(error) => unread = Some(error),
            }
        }
        unread.map_or(Ok(None), Err)
    }

    /// The batch of a name; `None` where there is nothing, or something that is no batch.
    fn known(&self, name: &str) -> Result<Option<Batch>> {
        let fd = match path_fd(&self.tree, name) {
            Err(Errno::NOENT) => return Ok(None),
            opened => opened.on_disk(|| format!("open batch {name:?}"))?,
        };
        let kind = match disk::stat(&fd, "") {
            Ok(stat) => match stat.kind {
                FileKind::Directory => BatchKind::Directory,
                FileKind::File => BatchKind::File,
                FileKind::Symlink => return Ok(None),
            },
            // A device that somebody put there.
            Err(error) if error.kind() == Kind::Disk(Errno::NOENT.raw_os_error()) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let origin = origin::read(&self.key, &fd)?;
        let path = self.path_of(name);
        Ok(origin.map(|origin| Batch { name: name.to_owned(), path, origin, kind }))
    }

    /// The batch of a name.
    ///
    /// # Errors
    /// [`Kind::Disk`] with ENOENT where there is none; [`Kind::Internal`] where its attribute is
    /// missing or cannot be read.
    pub fn batch(&self, name: &str) -> Result<Batch> {
        let stat = disk::stat(&self.tree, name)?;
        let kind = match stat.kind {
            FileKind::Directory => BatchKind::Directory,
            FileKind::File => BatchKind::File,
            FileKind::Symlink => {
                return Err(Error::new(Kind::Invalid, format!("{name:?} is a symlink")));
            }
        };
        let fd = path_fd(&self.tree, name).on_disk(|| format!("open batch {name:?}"))?;
        let origin = origin::read(&self.key, &fd)?.ok_or_else(|| {
            Error::new(Kind::Internal, format!("batch {name:?} does not say where it comes from"))
        })?;
        Ok(Batch { name: name.to_owned(), path: self.path_of(name), origin, kind })
    }

    /// What happens to a batch.
    pub fn activity(&self, batch: &Batch) -> Activity {
        let files = self.opens.all().into_iter().map(|(ino, _)| ino).collect();
        let open = self.within(&batch.name, files).len()
            + self.within(&batch.name, self.presence.directories()).len();
        let is_being_made = self.presence.is_at(&batch.name);
        Activity { last_change: self.batches.last_change(&batch.name), open, is_being_made }
    }

    /// When a batch was changed last through the mount; when the mount began, if never since.
    pub fn last_change(&self, batch: &str) -> Instant {
        self.batches.last_change(batch)
    }

    /// Counts up with every change that comes through the mount and with every close.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.batches.changes()
    }

    /// Makes a batch unchangeable until the guard is dropped. Blocks for a moment.
    ///
    /// # Errors
    /// [`Kind::Busy`] where it is frozen already, or naming the files that are open for writing;
    /// [`Kind::Disk`] where it has gone or another one has its name.
    pub fn freeze(self: &Arc<Self>, batch: &Batch) -> Result<Frozen> {
        let name: Arc<str> = batch.name.as_str().into();
        self.batches.close(&name)?;
        let frozen = Frozen { spool: self.clone(), batch: batch.clone() };
        let deadline = Instant::now() + CLOSING;
        loop {
            let mut open = self.writers_in(&name);
            if open.is_empty() {
                // One of the changes under way may open a file.
                self.batches.settle(&name)?;
                open = self.writers_in(&name);
            }
            if open.is_empty() {
                break;
            }
            if Instant::now() >= deadline {
                return Err(Error::new(Kind::Busy, still_open(&name, &open)));
            }
            std::thread::sleep(LOOK);
        }
        self.batches.freeze(&name);
        // A change of attributes may have begun when the last file was still open.
        self.batches.settle(&name)?;
        let now = self.batch(&name)?;
        if now.origin.batch != batch.origin.batch {
            return Err(disk::failed(format!("batch {name:?} is another one"), Errno::STALE));
        }
        Ok(frozen)
    }

    /// Takes a batch out of the tree at once, durably, and deletes it in the background. Whoever
    /// has one of its files open goes on reading it.
    ///
    /// # Errors
    /// [`Kind::Disk`], and then it is still there, thawed; what else the disk says where that it has
    /// gone cannot be made durable.
    pub fn remove(self: &Arc<Self>, frozen: Frozen) -> Result<()> {
        let batch = frozen.batch.clone();
        let name = batch.name.as_str();
        let what = || format!("take batch {name:?} away");
        let moving = self.moves.write().unwrap_or_else(PoisonError::into_inner);
        let held = Arc::new(path_fd(&self.tree, name).on_disk(what)?);
        let to = free_name(&self.gone, batch.origin.batch);
        let flags = RenameFlags::NOREPLACE;
        let take = || rustix::fs::renameat_with(&self.tree, name, &self.gone, &*to, flags);
        as_owner(&[&held, &self.tree], take).on_disk(what)?;
        self.leave(name, &held);
        self.batches.forget(name);
        self.presence.forget(name);
        self.unseal(batch.origin.batch);
        // First, so that a new batch of this name is not the one that is thawed.
        drop(frozen);
        drop(moving);
        self.batches.tell();
        let synced = self.sync_names();
        self.delete(to.into());
        synced
    }

    /// Makes it durable which batches there are, and which have gone.
    ///
    /// # Errors
    /// What the disk says.
    pub fn sync_names(&self) -> Result<()> {
        disk::sync_directory(&self.tree, TREE)?;
        disk::sync_directory(&self.gone, GONE)?;
        Ok(())
    }

    /// The files of a batch that are open for writing, by path.
    fn writers_in(&self, batch: &str) -> Vec<String> {
        self.within(batch, self.opens.writers())
    }

    /// Those of some files and directories that are in a batch, by path.
    fn within(&self, batch: &str, open: Vec<Ino>) -> Vec<String> {
        let nodes = self.nodes();
        let paths = open.into_iter().filter_map(|ino| nodes.path(ino).ok());
        paths
            .filter(|path| path.batch().is_some_and(|name| **name == *batch))
            .map(|path| path.shown())
            .collect()
    }

    /// Gives what the kernel knows of a batch a hold on it that needs no name: itself, and its
    /// open files.
    fn leave(&self, name: &str, batch: &Arc<std::os::fd::OwnedFd>) {
        let open = self.opens.all();
        let mut nodes = self.nodes();
        for (ino, file) in open {
            let path = nodes.path(ino);
            if path.is_ok_and(|path| path.batch().is_some_and(|batch| **batch == *name)) {
                nodes.gone(ino, file);
            }
        }
        if let Ok(stat) = disk::stat(batch.as_fd(), "") {
            nodes.gone(stat.ino, batch.clone());
        }
    }
}

fn being_committed(batch: &str) -> Error {
    Error::new(Kind::Busy, format!("batch {batch:?} is being committed"))
}

fn still_open(batch: &str, open: &[String]) -> String {
    let more = open.len().saturating_sub(NAMED);
    let mut text = format!(
        "batch {batch:?} has files that are open for writing: {}",
        open.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ")
    );
    if more > 0 {
        text = format!("{text} and {more} more");
    }
    text
}

/// The batch's own id, unless an earlier attempt left something under it.
fn free_name(folder: &Folder, batch: Uuid) -> String {
    let name = batch.to_string();
    if path_fd(folder, &name).is_err() { name } else { Uuid::new_v4().to_string() }
}
