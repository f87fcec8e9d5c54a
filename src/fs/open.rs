//! Opening and reading.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::OFlags;

use super::handles::{OpenFile, OpenValue, Text};
use super::{Counter, Fs, Handle, is_directory, place, place_of_value};
use crate::error::{Error, Kind, Result};
use crate::store::{Interval, Place};
use crate::table::descriptor::BlobKind;
use crate::table::{self, Snapshot, Value};
use crate::tree::{LeafIndex, Node, Slot};
use crate::units::{self, BlobOffset, ByteLen, Ino, ObjectOffset, Ordinal, RowIndex};

/// An open file, and whether the kernel may keep its pages.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The handle to read from.
    pub handle: Handle,
    /// Whether the bytes can ever change.
    pub content: Content,
    /// The file of this machine that has the same bytes, if there is one: the kernel may read it
    /// by itself.
    pub same_as: Option<Whole>,
}

/// A file of this machine that is a value, all of it.
#[derive(Clone, Debug)]
pub struct Whole {
    /// The file, open.
    pub file: Arc<OwnedFd>,
    /// The value's length: if the file's is another one, it is not that value any more.
    pub len: ByteLen,
}

/// Whether bytes can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Never: pages may be kept across opens.
    Immutable,
    /// Not by Lance, but by whoever owns an External object: pages are kept while it is open.
    Foreign,
    /// A new text at each open.
    Volatile,
    /// A staged file: pages are kept while it is open.
    Staged,
}

/// What a text weighs beside its bytes, in bytes.
const WEIGHT: u64 = 256;

impl Fs {
    /// Opens a file: one that is staged for whatever the flags say, every other for reading.
    ///
    /// # Errors
    /// [`Kind::ReadOnly`] for writing to what is not staged; [`Kind::IsDirectory`]; for a value,
    /// why it cannot be resolved or its object opened.
    pub async fn open(&self, ino: Ino, flags: OFlags) -> Result<Opened> {
        let node = self.node(ino)?;
        if let Node::Staged(ino) = node {
            return self.open_staged(ino, flags);
        }
        if flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC) {
            return Err(self.read_only(&node));
        }
        let (file, content) = match &node {
            Node::Value(slot, row, leaf, ordinal) => {
                let snapshot = self.snapshot(*slot).await?;
                self.open_value(ino, &snapshot, *row, (*leaf, *ordinal)).await?
            }
            Node::VersionJson(_) | Node::RowJson(..) => {
                let text = self.handles.text(node.clone(), self.text(&node).await?);
                (OpenFile::Text(text), Content::Immutable)
            }
            Node::Status | Node::Metrics => {
                let text = Text::Kept(self.report(&node).into());
                (OpenFile::Text(text), Content::Volatile)
            }
            Node::Commits => {
                let text = Text::Kept(self.commits().await?.into());
                (OpenFile::Text(text), Content::Volatile)
            }
            Node::Refusal(batch) => {
                let text = Text::Kept(self.refusal_text(*batch)?.into());
                (OpenFile::Text(text), Content::Volatile)
            }
            Node::Latest(_) | Node::Tag(_) => {
                return Err(Error::new(Kind::Invalid, format!("{node:?} is a symlink")));
            }
            Node::Root
            | Node::Tags
            | Node::Branches
            | Node::Branch(_)
            | Node::Control
            | Node::Staging
            | Node::Staged(_)
            | Node::Commit
            | Node::Version(_)
            | Node::Row(..) => {
                return Err(is_directory(&node));
            }
        };
        self.counters.add(Counter::Opens, 1);
        let same_as = match (&file, content) {
            (OpenFile::Value(value), Content::Immutable) => {
                let len = value.interval.len;
                value.whole.clone().map(|file| Whole { file, len })
            }
            _ => None,
        };
        Ok(Opened { handle: self.handles.open_file(file), content, same_as })
    }

    async fn open_value(
        &self,
        ino: Ino,
        snapshot: &Arc<Snapshot>,
        row: RowIndex,
        (leaf, ordinal): (LeafIndex, Ordinal),
    ) -> Result<(OpenFile, Content)> {
        snapshot.look_ahead(row);
        let open = async {
            let page = snapshot.row(row).await?;
            let (value, object) = snapshot.open(&page, leaf, ordinal).await?;
            Ok((page, value, object))
        };
        let (page, value, object) = match open.await {
            Ok(opened) => opened,
            Err(error) => {
                return Err(self.judged(snapshot.slot, error).await.at(place(snapshot, row)));
            }
        };
        if let Some(meta) = &value.looked
            && meta.digest() != self.generations.of(ino)
        {
            // What the kernel has is of the object that was there before.
            let text = format!("{} is another object now", value.located.object.uri);
            return Err(Error::new(Kind::Renewed, text));
        }
        let reference = match self.spool() {
            Some(_) => snapshot.reference(&page, (leaf, ordinal), value.interval)?,
            None => None,
        };
        let place = place_of_value(snapshot, row, leaf)?;
        let opened = match object {
            Some(object) => {
                let kept = OpenValue {
                    object,
                    interval: value.interval,
                    place: place.as_str().into(),
                    slot: snapshot.slot,
                    whole: None,
                    reference: reference.map(Arc::new),
                };
                open_object(kept, &value).await
            }
            None => Ok(OpenFile::Text(Text::Kept(Bytes::new()))),
        };
        let foreign = value.located.kind == BlobKind::External;
        let content = if foreign { Content::Foreign } else { Content::Immutable };
        match opened {
            Ok(file) => Ok((file, content)),
            Err(error) => Err(self.judged(snapshot.slot, error).await.at(place)),
        }
    }

    /// Reads up to `len` bytes; fewer only at the end of the file.
    ///
    /// # Errors
    /// [`Kind::Payload`] where the object is shorter than its descriptor says, and whatever its
    /// store gives.
    pub async fn read(&self, handle: Handle, offset: BlobOffset, len: ByteLen) -> Result<Bytes> {
        let bytes = match self.handles.file(handle)? {
            OpenFile::Value(value) => {
                let len = value.interval.len.clamp(offset, len);
                if len.get() == 0 {
                    return Ok(Bytes::new());
                }
                let start = value.interval.offset.plus(offset);
                let start = start.ok_or_else(|| {
                    Error::new(Kind::Invalid, format!("offset {offset} overflows"))
                })?;
                match value.object.read(Interval { offset: start, len }).await {
                    Ok(bytes) => bytes,
                    Err(error) => {
                        return Err(self.judged(value.slot, error).await.at(&value.place));
                    }
                }
            }
            OpenFile::Staged(file) => self.read_staged(&file, offset, len).await?,
            OpenFile::Text(text) => {
                let text = match text {
                    Text::Kept(text) => text,
                    Text::Held(held) => held.text().clone(),
                    Text::Long(node, _) => self.text(&node).await?,
                };
                let start = units::usize_of(offset.get()).min(text.len());
                let end = start.saturating_add(units::usize_of(len.get())).min(text.len());
                text.slice(start..end)
            }
        };
        self.counters.add(Counter::BytesRead, units::u64_of(bytes.len()));
        Ok(bytes)
    }

    /// A failure to read a value, for what it is: its object is missing, or was taken away with its
    /// version.
    async fn judged(&self, slot: Slot, error: Error) -> Error {
        if error.kind() != Kind::Payload {
            return error;
        }
        match self.table.snapshot(slot).await {
            Ok(snapshot) => snapshot.judged(error).await,
            Err(gone) if gone.kind() == Kind::Stale => error.of_kind(Kind::Stale),
            Err(_) => error,
        }
    }

    /// Closes a file or directory.
    pub fn release(&self, handle: Handle) {
        self.handles.release(handle);
    }

    /// The text of `row.json` or `.version.json`, rendered once while it is in use. That one is too large
    /// is known from then on.
    pub(super) async fn text(&self, node: &Node) -> Result<Bytes> {
        let cell = self.texts.cell(node);
        let render = || async {
            match self.render(node).await {
                Err(error) if error.kind() == Kind::TooLarge => Ok(Err(error)),
                text => text.map(Ok),
            }
        };
        let text = cell.get_or_try_init(render).await?.clone();
        self.texts.weigh(node, text.as_ref().map_or(0, |text| units::u64_of(text.len())) + WEIGHT);
        text
    }

    async fn render(&self, node: &Node) -> Result<Bytes> {
        Ok(match node {
            Node::RowJson(slot, row) => {
                let snapshot = self.snapshot(*slot).await?;
                let text = table::row_json(&snapshot, *row).await;
                text.map_err(|e| e.at(place(&snapshot, *row)))?.into()
            }
            Node::VersionJson(slot) => {
                table::version_json(&*self.snapshot(*slot).await?).await?.into()
            }
            _ => return Err(Error::new(Kind::Internal, format!("{node:?} has no text"))),
        })
    }
}

/// A value whose object is open. A local object that is too short for the value is found out here,
/// before a byte of it has been given to anybody.
async fn open_object(kept: OpenValue, value: &Value) -> Result<OpenFile> {
    let interval = kept.interval;
    let mut whole = None;
    if matches!(value.located.object.place, Place::Local(_)) {
        let length = kept.object.length().await?;
        let end = interval.offset.end(interval.len);
        if end.is_none_or(|end| end.get() > length.get()) {
            let text = format!(
                "{} is truncated: {length} bytes, and the value is {} bytes at {}",
                value.located.object.uri, interval.len, interval.offset
            );
            return Err(Error::new(Kind::Payload, text));
        }
        let all = Interval { offset: ObjectOffset::new(0), len: length };
        whole = kept.object.file().filter(|_| interval == all);
    }
    Ok(OpenFile::Value(OpenValue { whole, ..kept }))
}
