//! Open files and directories.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;

use crate::error::{Error, Kind, Result};
use crate::staging::Reference;
use crate::staging::spool::{self, Listed, OpenDirectory};
use crate::store::{Interval, RangeRead};
use crate::tree::{Node, ROW_JSON_MAX, Slot};
use crate::units;

/// The number of an open file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle(pub u64);

/// A directory whose list needs no handle: all of them share this one.
const STATELESS: Handle = Handle(0);

/// What an open file reads from.
#[derive(Clone)]
pub enum OpenFile {
    /// A value.
    Value(OpenValue),
    /// A text.
    Text(Text),
    /// A staged file.
    Staged(Arc<spool::OpenFile>),
}

/// A text that is open.
#[derive(Clone)]
pub enum Text {
    /// One that was made when the file was opened.
    Kept(Bytes),
    /// One that was, too, and is long.
    Held(Arc<Held>),
    /// A long one for which there is no room, and which is always the same: it is made anew where it is
    /// not in memory when it is read.
    Long(Node, u64),
}

/// A long text, as long as somebody has it open.
pub struct Held {
    text: Bytes,
    all: Arc<AtomicU64>,
}

/// Texts up to so many bytes are no matter.
const SHORT: u64 = 1 << 20;
/// What all long texts that are open may take, in bytes.
const HELD: u64 = 4 * ROW_JSON_MAX;

impl Text {
    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::Kept(text) => units::u64_of(text.len()),
            Self::Held(held) => units::u64_of(held.text.len()),
            Self::Long(_, len) => *len,
        }
    }
}

impl Held {
    /// The text.
    pub fn text(&self) -> &Bytes {
        &self.text
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.fetch_sub(units::u64_of(self.text.len()), Ordering::Relaxed);
    }
}

/// A value that is open: an interval of an object that is held open.
#[derive(Clone)]
pub struct OpenValue {
    /// The object.
    pub object: Arc<dyn RangeRead>,
    /// The part of it that is the value.
    pub interval: Interval,
    /// Which value it is, for messages.
    pub place: Arc<str>,
    /// The version that it is of.
    pub slot: Slot,
    /// The object's file, where the value is all of it.
    pub whole: Option<Arc<OwnedFd>>,
    /// What a staged copy of it refers to, where a commit can adopt its object.
    pub reference: Option<Arc<Reference>>,
}

#[derive(Clone)]
enum Open {
    File(OpenFile),
    Names(Arc<Vec<Arc<str>>>),
    Staged(
        Arc<Vec<Listed>>,
        #[expect(dead_code, reason = "the directory counts as open until the handle goes")]
        Option<Arc<OpenDirectory>>,
    ),
}

/// The open handles of one mount.
#[derive(Default)]
pub struct Handles {
    open: RwLock<HashMap<Handle, Open>>,
    last: AtomicU64,
    held: Arc<AtomicU64>,
}

impl Handles {
    /// How the text of a node is kept open, which is always the same.
    pub fn text(&self, node: Node, text: Bytes) -> Text {
        let len = units::u64_of(text.len());
        if len <= SHORT {
            return Text::Kept(text);
        }
        let held = Held { text, all: self.held.clone() };
        if self.held.fetch_add(len, Ordering::Relaxed) + len <= HELD {
            return Text::Held(Arc::new(held));
        }
        Text::Long(node, len)
    }

    /// Keeps an open file until it is released.
    pub fn open_file(&self, file: OpenFile) -> Handle {
        self.insert(Open::File(file))
    }

    /// Keeps the names that a directory lists, if it lists names.
    pub fn open_directory(&self, names: Option<Arc<Vec<Arc<str>>>>) -> Handle {
        names.map_or(STATELESS, |names| self.insert(Open::Names(names)))
    }

    /// An open file.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for a handle that is not open.
    pub fn file(&self, handle: Handle) -> Result<OpenFile> {
        match self.get(handle) {
            Some(Open::File(file)) => Ok(file),
            Some(Open::Names(_) | Open::Staged(..)) | None => Err(not_open(handle)),
        }
    }

    /// The names that an open directory lists.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for a handle that is not open.
    pub fn names(&self, handle: Handle) -> Result<Arc<Vec<Arc<str>>>> {
        match self.get(handle) {
            Some(Open::Names(names)) => Ok(names),
            Some(Open::File(_) | Open::Staged(..)) | None => Err(not_open(handle)),
        }
    }

    /// Keeps the list of a staged directory, so that what is removed while it is read does not
    /// shift what comes after.
    pub fn open_staged(&self, listed: Vec<Listed>, directory: Option<OpenDirectory>) -> Handle {
        self.insert(Open::Staged(Arc::new(listed), directory.map(Arc::new)))
    }

    /// Puts a new list in the place of an old one: `rewinddir` asks for it.
    pub fn relist(&self, handle: Handle, listed: Vec<Listed>) -> Arc<Vec<Listed>> {
        let listed = Arc::new(listed);
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(Open::Staged(before, _)) = open.get_mut(&handle) {
            *before = listed.clone();
        }
        listed
    }

    /// The list of a staged directory.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for a handle that is not open.
    pub fn listed(&self, handle: Handle) -> Result<Arc<Vec<Listed>>> {
        match self.get(handle) {
            Some(Open::Staged(listed, _)) => Ok(listed),
            Some(Open::File(_) | Open::Names(_)) | None => Err(not_open(handle)),
        }
    }

    /// A staged file that is open.
    ///
    /// # Errors
    /// [`Kind::ReadOnly`] for another file, [`Kind::Invalid`] for a handle that is not open.
    pub fn staged(&self, handle: Handle) -> Result<Arc<spool::OpenFile>> {
        match self.file(handle)? {
            OpenFile::Staged(file) => Ok(file),
            OpenFile::Value(_) | OpenFile::Text(_) => {
                Err(Error::new(Kind::ReadOnly, format!("handle {} is read-only", handle.0)))
            }
        }
    }

    /// Forgets a handle, and with it the file descriptor that it held.
    pub fn release(&self, handle: Handle) {
        if handle != STATELESS {
            let open = self.open.write().unwrap_or_else(PoisonError::into_inner).remove(&handle);
            // Without the lock: closing may take a while.
            drop(open);
        }
    }

    /// How many handles are open.
    pub fn count(&self) -> usize {
        self.open.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn insert(&self, open: Open) -> Handle {
        let handle = Handle(self.last.fetch_add(1, Ordering::Relaxed) + 1);
        self.open.write().unwrap_or_else(PoisonError::into_inner).insert(handle, open);
        handle
    }

    fn get(&self, handle: Handle) -> Option<Open> {
        self.open.read().unwrap_or_else(PoisonError::into_inner).get(&handle).cloned()
    }
}

fn not_open(handle: Handle) -> Error {
    Error::new(Kind::Invalid, format!("handle {} is not open", handle.0))
}
