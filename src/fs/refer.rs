//! Copies of values without their bytes.
//!
//! `copy_file_range` from a value of main into an empty staged file makes the file a reference to
//! the value's object: the commit adopts the object. Reading the file reads the object, and whoever
//! changes the file gets the bytes first.

use std::sync::Arc;

use bytes::Bytes;

use super::handles::{OpenFile, OpenValue};
use super::staging::{Staging, Writable};
use super::{Fs, Handle};
use crate::error::{Error, Kind, Result};
use crate::staging::commit::Protected;
use crate::staging::spool::Moving;
use crate::staging::{Origin, Reference, spool};
use crate::store::{Interval, RangeRead, blocking};
use crate::tree::SnapshotId;
use crate::units::{BlobOffset, ByteLen, Ino, ObjectOffset};

/// How much is fetched at once when a file gets its bytes.
const PIECE: u64 = 4 << 20;
/// The most that one call copies, in bytes: the answer has 32 bits, and the kernel copies whole
/// pages.
const COPY: u64 = 1 << 31;
/// How often a move is tried again because others happen beside it.
const MOVES: u32 = 16;
/// Objects that are held open for files that refer to them.
pub(super) const REFERRED: u64 = 64;

/// An object that files refer to: version, manifest, base, path.
pub(super) type ObjectKey = (u64, String, Option<u32>, String);

impl Fs {
    /// Whether bytes must be fetched before a file can be changed.
    pub fn must_fetch(&self, handle: Handle) -> bool {
        matches!(self.handles.file(handle), Ok(OpenFile::Staged(file)) if file.reference().is_some())
    }

    /// Makes a staged file refer to a value, or to more of it; gives how many bytes were "copied".
    pub(super) async fn refer(
        &self,
        (value, from): (&OpenValue, BlobOffset),
        (file, to): (Arc<spool::OpenFile>, BlobOffset),
        len: ByteLen,
    ) -> Result<ByteLen> {
        let no = |why: &str| Error::new(Kind::Unsupported, format!("{}: {why}", value.place));
        let whole = value.reference.as_deref();
        let whole = whole.ok_or_else(|| no("its object cannot be adopted"))?;
        let Staging::On(Writable { spool, commit }) = self.staging() else {
            return Err(no("nothing can be committed"));
        };
        let len = ByteLen::new(whole.len).clamp(from, len).get().min(COPY);
        if len == 0 {
            return Ok(ByteLen::new(0));
        }
        let turn = file.turn();
        let _turn = turn.lock().await;
        let size = file.stat()?.size.get();
        let start = whole.offset.saturating_add(from.get());
        let reference = match file.reference() {
            None if size == 0 && to.get() == 0 => Reference { offset: start, len, ..whole.clone() },
            Some(known)
                if goes_on(&known, whole, start) && to.get() == size && size == known.len =>
            {
                Reference { len: known.len.saturating_add(len), ..(*known).clone() }
            }
            _ => return Err(no("the file has bytes of its own")),
        };
        let batch = spool.batch_around(file.ino())?.ok_or_else(|| no("the file is in no batch"))?;
        let batch = spool.batch(&batch)?.origin.batch;
        // What cannot be protected is not referred to: the kernel copies its bytes.
        let kept = commit.protect(batch, whole.version).await.map_err(|error| {
            tracing::warn!(place = %value.place, %error, "a copy is made of bytes");
            Error::caused(Kind::Unsupported, "its version cannot be protected", error)
        })?;
        blocking(move || file.refer(&reference, batch)).await?;
        drop(kept);
        Ok(ByteLen::new(len))
    }

    /// Reads a staged file.
    pub(super) async fn read_staged(
        &self,
        file: &spool::OpenFile,
        offset: BlobOffset,
        len: ByteLen,
    ) -> Result<Bytes> {
        match file.reference() {
            None => file.read(offset, len),
            Some(reference) => self.read_referred(&reference, offset, len).await,
        }
    }

    /// Gives a staged file bytes of its own.
    pub(super) async fn fetch(&self, file: &Arc<spool::OpenFile>) -> Result<()> {
        if file.reference().is_none() {
            return Ok(());
        }
        let turn = file.turn();
        let _turn = turn.lock().await;
        let Some(reference) = file.reference() else { return Ok(()) };
        let mut at = 0;
        while at < reference.len {
            let (offset, piece) = (BlobOffset::new(at), ByteLen::new(PIECE));
            let bytes = self.read_referred(&reference, offset, piece).await?;
            at = at.saturating_add(crate::units::u64_of(bytes.len()));
            let file = file.clone();
            blocking(move || file.fill(offset, &bytes)).await?;
        }
        let file = file.clone();
        blocking(move || file.own()).await
    }

    /// Moves a name. What goes to another batch and refers to the table is protected for that one
    /// first.
    ///
    /// # Errors
    /// As [`spool::Spool::rename`], and where it cannot be protected; then it is where it was.
    pub(super) async fn move_kept(
        &self,
        from: (Ino, &str),
        to: (Ino, &str),
        how: Moving,
        newest: Option<&SnapshotId>,
    ) -> Result<()> {
        let Staging::On(Writable { spool, commit }) = self.staging() else {
            return self.spooled().map(drop);
        };
        let origin = newest.map(Origin::begun_on);
        let mut attempts = MOVES;
        loop {
            let since = spool.moment();
            let kept = self.keep_moved(from, to, how, origin.as_ref()).await;
            let begun = (origin.as_ref(), since);
            let moved = kept.and_then(|kept| {
                let moved = spool.rename(from, to, how, begun);
                if moved.is_err() && !kept.is_empty() {
                    commit.tidy();
                }
                moved
            });
            attempts -= 1;
            if moved.is_ok() || spool.moment() == since || attempts == 0 {
                return moved;
            }
        }
    }

    /// Protects what a move is going to take to another batch.
    async fn keep_moved(
        &self,
        from: (Ino, &str),
        to: (Ino, &str),
        how: Moving,
        origin: Option<&Origin>,
    ) -> Result<Vec<Protected>> {
        let mut kept = Vec::new();
        let Staging::On(Writable { spool, commit }) = self.staging() else { return Ok(kept) };
        let (old, new) = (spool.batch_around(from.0)?, spool.batch_around(to.0)?);
        if old == new {
            return Ok(kept);
        }
        let back = (how == Moving::Exchange).then_some((to, old));
        for ((parent, name), batch) in std::iter::once((from, new)).chain(back) {
            let (looking, looked) = (spool.clone(), name.to_owned());
            let look = move || looking.versions_referred(parent, &looked);
            let versions = blocking(look).await?;
            if versions.is_empty() {
                continue;
            }
            let batch = match batch {
                Some(batch) => Some(spool.batch(&batch)?.origin.batch),
                None => origin.map(|origin| origin.batch),
            };
            let none = || Error::new(Kind::Internal, format!("{name:?} is moved to no batch"));
            let batch = batch.ok_or_else(none)?;
            for version in versions {
                let protected = commit.protect(batch, version).await;
                kept.push(protected.map_err(|e| e.at(format!("{name:?} refers to the table")))?);
            }
        }
        Ok(kept)
    }

    async fn read_referred(
        &self,
        reference: &Reference,
        offset: BlobOffset,
        len: ByteLen,
    ) -> Result<Bytes> {
        let len = ByteLen::new(reference.len).clamp(offset, len);
        if len.get() == 0 {
            return Ok(Bytes::new());
        }
        let start = ObjectOffset::new(reference.offset)
            .plus(offset)
            .ok_or_else(|| Error::new(Kind::Invalid, format!("offset {offset} overflows")))?;
        let object = self.object_of(reference).await?;
        let read = object.read(Interval { offset: start, len }).await;
        read.map_err(|e| e.at(format!("a copy of {}", reference.path)))
    }

    async fn object_of(&self, reference: &Reference) -> Result<Arc<dyn RangeRead>> {
        let Reference { version, manifest, base, path, .. } = reference;
        let key: ObjectKey = (*version, manifest.clone(), *base, path.clone());
        let cell = self.referred.cell(&key);
        let open = || async { self.table.opener.open(&self.table.referred(reference).await?) };
        let object = cell.get_or_try_init(open).await?.clone();
        self.referred.weigh(&key, 1);
        Ok(object)
    }
}

/// Whether a value's bytes from `start` on follow those that a file has already.
fn goes_on(known: &Reference, whole: &Reference, start: u64) -> bool {
    let place = |r: &Reference| (r.version, r.base, r.path.clone(), r.manifest.clone());
    place(known) == place(whole) && known.offset.checked_add(known.len) == Some(start)
}
