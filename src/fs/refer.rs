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
use crate::staging::{Reference, spool};
use crate::store::{Interval, RangeRead, blocking};
use crate::units::{BlobOffset, ByteLen, Ino, ObjectOffset};

/// How much is fetched at once when a file gets its bytes.
const PIECE: u64 = 4 << 20;
/// The most that one call copies, in bytes: the answer has 32 bits, and the kernel copies whole
/// pages.
const COPY: u64 = 1 << 31;
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
        let Staging::On(Writable { spool, commit }) = &self.staging else {
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
        commit.protect(&batch, whole.version).await?;
        blocking(move || file.refer(&reference)).await?;
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

    /// Keeps what a moved file or directory refers to for the batch that it is in now.
    pub(super) async fn protect_moved(&self, ino: Ino) {
        let Staging::On(Writable { spool, commit }) = &self.staging else { return };
        let Ok(Some(batch)) = spool.batch_around(ino) else { return };
        let looking = spool.clone();
        let versions = blocking(move || Ok(looking.versions_referred(ino))).await;
        for version in versions.unwrap_or_default() {
            if let Err(error) = commit.protect(&batch, version).await {
                tracing::error!(%batch, version, %error, "what was moved refers to a version that is not kept");
            }
        }
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
