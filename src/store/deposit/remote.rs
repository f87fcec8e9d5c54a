//! Objects of an object store: one PUT where the object is small, else parts, several at once.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Read as _;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::FuturesUnordered;
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt as _, PutPayload};
use tokio::sync::OwnedSemaphorePermit;

use super::limits::permits;
use super::piece::{self, Fingerprint, Piece};
use super::pool::Buffer;
use super::{BUDGET, Deposit, PART, Progress, below, within};
use crate::error::{Error, IoContext as _, Kind, Result};
use crate::store::{Interval, RangeRead, blocking, kind_of};
use crate::units::{self, ByteLen, ObjectOffset};

/// Small files that are read in one go: a trip to another thread for each would cost more than the
/// reading.
const FILES_AT_ONCE: usize = 64;

impl Deposit {
    pub(super) async fn put_remote(
        &self,
        (store, root): (&Arc<dyn ObjectStore>, &Path),
        name: &str,
        pieces: &[Piece],
        part: u64,
        progress: &Progress,
    ) -> Result<()> {
        let path = &below(root, name);
        let len: u64 = pieces.iter().map(Piece::len).sum();
        let mut source = Source::new(self, pieces);
        let failed = |e| Error::caused(kind_of(&e), format!("put {path}"), e);
        if len <= part {
            let (payload, permit) = source.next(len).await?;
            let put = store.put(path, payload);
            self.within(path.as_ref(), put).await?.map_err(failed)?;
            drop(permit);
            progress.add(len);
            return Ok(());
        }
        let mut upload =
            self.within(path.as_ref(), store.put_multipart(path)).await?.map_err(failed)?;
        let sent = self.send(&mut upload, &mut source, part, len, path, progress).await;
        let finished = match sent {
            Ok(()) => match self.within(path.as_ref(), upload.complete()).await {
                Ok(Ok(_)) => Ok(()),
                // A store may do it and lose the answer; asked again, it knows of no such upload.
                _ if self.length(name).await.is_ok_and(|found| found == Some(len)) => return Ok(()),
                Ok(Err(e)) => Err(failed(e)),
                Err(late) => Err(late),
            },
            Err(error) => Err(error),
        };
        match finished {
            Ok(()) => Ok(()),
            Err(error) => {
                // What it leaves is the store's to expire; the failure that is told is the first.
                if let Ok(Err(error)) = self.within(path.as_ref(), upload.abort()).await {
                    tracing::debug!(%path, %error, "an unfinished upload stays");
                }
                Err(error)
            }
        }
    }

    async fn send(
        &self,
        upload: &mut Box<dyn MultipartUpload>,
        source: &mut Source<'_>,
        part: u64,
        len: u64,
        path: &Path,
        progress: &Progress,
    ) -> Result<()> {
        // A larger part takes longer.
        let budgets = u32::try_from(part.div_ceil(BUDGET)).unwrap_or(u32::MAX);
        let patience = self.patience.saturating_mul(budgets);
        let mut under_way = FuturesUnordered::new();
        let mut left = len;
        while left > 0 {
            let size = left.min(part);
            // The budget is awaited while parts that hold it are being sent.
            let (payload, permit) = {
                let next = source.next(size);
                tokio::pin!(next);
                loop {
                    tokio::select! {
                        next = &mut next => break next?,
                        Some(sent) = under_way.next() => { let () = sent?; }
                    }
                }
            };
            let put = upload.put_part(payload);
            under_way.push(async move {
                let put = within(patience, path.as_ref(), put).await?;
                put.map_err(|e| Error::caused(kind_of(&e), format!("put a part of {path}"), e))?;
                drop(permit);
                progress.add(size);
                Ok::<(), Error>(())
            });
            left -= size;
        }
        under_way.try_collect::<()>().await
    }
}

/// Reads pieces, one after another.
struct Source<'a> {
    deposit: &'a Deposit,
    left: VecDeque<&'a Piece>,
    open: Option<Open>,
}

/// A piece that is being read.
enum Open {
    File { file: Arc<File>, path: std::path::PathBuf, fingerprint: Fingerprint, left: u64 },
    Object { object: Arc<dyn RangeRead>, offset: ObjectOffset, left: u64 },
}

impl<'a> Source<'a> {
    fn new(deposit: &'a Deposit, pieces: &'a [Piece]) -> Self {
        let left = pieces.iter().filter(|piece| !piece.is_empty()).collect();
        Self { deposit, left, open: None }
    }

    /// The next bytes, and the permission to hold them.
    async fn next(&mut self, size: u64) -> Result<(PutPayload, OwnedSemaphorePermit)> {
        let permit = self.deposit.budget.clone().acquire_many_owned(permits(size)).await;
        let permit = permit.map_err(|e| Error::caused(Kind::Internal, "wait for memory", e))?;
        let mut buffer = self.deposit.pool.take(units::usize_of(size))?;
        while missing(&buffer, size) > 0 {
            if self.open.is_none() {
                buffer = self.whole_files(buffer, size).await?;
                if missing(&buffer, size) == 0 || !self.open_next()? {
                    break;
                }
            }
            buffer = self.read(buffer, size).await?;
        }
        Ok((Bytes::from_owner(buffer).into(), permit))
    }

    /// Files that fit as they are, many in one go.
    async fn whole_files(&mut self, mut buffer: Buffer, size: u64) -> Result<Buffer> {
        loop {
            let mut files = Vec::new();
            let mut room = missing(&buffer, size);
            while let Some(Piece::File(path, fingerprint)) = self.left.front().copied()
                && fingerprint.len <= room
                && files.len() < FILES_AT_ONCE
            {
                room -= fingerprint.len;
                files.push((path.clone(), *fingerprint));
                self.left.pop_front();
            }
            if files.is_empty() {
                return Ok(buffer);
            }
            let read = move || {
                for (path, print) in &files {
                    read_whole(path, print, &mut buffer.bytes)?;
                }
                Ok::<_, Error>(buffer)
            };
            buffer = blocking(read).await?;
        }
    }

    fn open_next(&mut self) -> Result<bool> {
        let Some(piece) = self.left.pop_front() else { return Ok(false) };
        self.open = Some(match piece {
            Piece::File(path, fingerprint) => Open::File {
                file: Arc::new(piece::open(path, fingerprint)?),
                path: path.clone(),
                fingerprint: *fingerprint,
                left: fingerprint.len,
            },
            Piece::Object(object, interval) => Open::Object {
                object: self.deposit.opener.open(object)?,
                offset: interval.offset,
                left: interval.len.get(),
            },
        });
        Ok(true)
    }

    /// What the buffer has room for of the piece that is open; closes it at its end.
    async fn read(&mut self, mut buffer: Buffer, size: u64) -> Result<Buffer> {
        let most = missing(&buffer, size);
        let (buffer, ended) = match &mut self.open {
            None => return Ok(buffer),
            Some(Open::File { file, path, fingerprint, left }) => {
                let take = most.min(*left);
                let (from, shown) = (file.clone(), path.clone());
                let read =
                    move || read_exactly(&from, take, &shown, &mut buffer.bytes).map(|()| buffer);
                let buffer = blocking(read).await?;
                *left -= take;
                if *left == 0 {
                    piece::unchanged(file, path, fingerprint)?;
                }
                (buffer, *left == 0)
            }
            Some(Open::Object { object, offset, left }) => {
                let len = ByteLen::new(most.min(*left).min(PART));
                buffer
                    .bytes
                    .extend_from_slice(&object.read(Interval { offset: *offset, len }).await?);
                *left -= len.get();
                *offset = offset.end(len).unwrap_or(*offset);
                (buffer, *left == 0)
            }
        };
        if ended {
            self.open = None;
        }
        Ok(buffer)
    }
}

/// How many bytes a buffer has room for until it has so many.
fn missing(buffer: &Buffer, size: u64) -> u64 {
    size.saturating_sub(units::u64_of(buffer.bytes.len()))
}

fn read_whole(path: &std::path::Path, fingerprint: &Fingerprint, to: &mut Vec<u8>) -> Result<()> {
    let file = piece::open(path, fingerprint)?;
    read_exactly(&file, fingerprint.len, path, to)?;
    piece::unchanged(&file, path, fingerprint)
}

fn read_exactly(file: &File, len: u64, path: &std::path::Path, to: &mut Vec<u8>) -> Result<()> {
    let read = file.take(len).read_to_end(to);
    let read = read.context(Kind::Internal, || format!("read {}", path.display()))?;
    if units::u64_of(read) == len {
        return Ok(());
    }
    Err(Error::new(Kind::Busy, format!("{} became shorter while it was uploaded", path.display())))
}
