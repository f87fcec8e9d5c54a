//! Objects in a folder of this machine: copied by the kernel, which shares the blocks where the
//! file system can.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;

use super::piece::{self, Piece};
use super::{Deposit, PART, Progress};
use crate::error::{Error, IoContext as _, Kind, Result};
use crate::store::{Interval, ObjectRef, blocking};
use crate::units::ByteLen;

/// Bytes that are copied between two looks at the progress.
const STEP: u64 = 64 << 20;

impl Deposit {
    pub(super) async fn put_local(
        &self,
        root: &Path,
        name: &str,
        pieces: &[Piece],
        progress: &Progress,
    ) -> Result<()> {
        let path = root.join(name);
        let what = || format!("write {}", path.display());
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).context(Kind::Payload, what)?;
        }
        has_room(root, pieces)?;
        let file = File::options().write(true).create_new(true).open(&path);
        let file = Arc::new(file.context(Kind::Payload, what)?);
        let written = self.fill(file, &path, pieces, progress).await;
        if written.is_err() {
            // A disk that is full must not stay full of this.
            if let Err(error) = std::fs::remove_file(&path) {
                tracing::warn!(%error, path = %path.display(), "an unfinished object stays");
            }
        }
        written
    }

    async fn fill(
        &self,
        file: Arc<File>,
        path: &Path,
        pieces: &[Piece],
        progress: &Progress,
    ) -> Result<()> {
        let mut files = Vec::new();
        for one in pieces {
            match one {
                Piece::File(from, fingerprint) => files.push((from.clone(), *fingerprint)),
                Piece::Object(object, interval) => {
                    copy_files(&file, std::mem::take(&mut files), progress).await?;
                    self.copy_object(&file, object, *interval, progress).await?;
                }
            }
        }
        copy_files(&file, files, progress).await?;
        let (path, what) = (path.to_owned(), format!("write {}", path.display()));
        let sync = move || {
            file.sync_all()?;
            path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
        };
        blocking(move || sync().context(Kind::Payload, || what)).await
    }

    async fn copy_object(
        &self,
        to: &Arc<File>,
        object: &ObjectRef,
        interval: Interval,
        progress: &Progress,
    ) -> Result<()> {
        let from = self.opener.open(object)?;
        let mut offset = interval.offset;
        let mut left = interval.len.get();
        while left > 0 {
            let len = ByteLen::new(left.min(PART));
            let bytes = from.read(Interval { offset, len }).await?;
            let (to, uri) = (to.clone(), object.uri.clone());
            let write = move || {
                let written = (&*to).write_all(&bytes);
                written.context(Kind::Payload, || format!("write a copy of {uri}"))
            };
            blocking(write).await?;
            progress.add(len.get());
            left -= len.get();
            offset = offset.end(len).unwrap_or(offset);
        }
        Ok(())
    }
}

/// Whether the disk has room for an object: one that has not is not filled first.
fn has_room(root: &Path, pieces: &[Piece]) -> Result<()> {
    let Ok(disk) = rustix::fs::statvfs(root) else { return Ok(()) };
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    let len: u64 = pieces.iter().map(Piece::len).sum();
    if len <= free {
        return Ok(());
    }
    let text =
        format!("the table's disk has {free} bytes free, and an object of {len} was to be made");
    Err(Error::new(Kind::Disk(rustix::io::Errno::NOSPC.raw_os_error()), text))
}

async fn copy_files(
    to: &Arc<File>,
    files: Vec<(std::path::PathBuf, super::Fingerprint)>,
    progress: &Progress,
) -> Result<()> {
    for (path, fingerprint) in files {
        let from = Arc::new(piece::open(&path, &fingerprint)?);
        let mut left = fingerprint.len;
        while left > 0 {
            let step = left.min(STEP);
            let (source, to, shown) = (from.clone(), to.clone(), path.clone());
            let copy = move || {
                let copied = io::copy(&mut (&*source).take(step), &mut &*to);
                copied.context(Kind::Payload, || format!("copy {}", shown.display()))
            };
            let copied = blocking(copy).await?;
            if copied == 0 {
                return Err(Error::new(Kind::Busy, format!("{} became shorter", path.display())));
            }
            progress.add(copied);
            left -= copied;
        }
        piece::unchanged(&from, &path, &fingerprint)?;
    }
    Ok(())
}
