//! Batches that somebody put on the disk, or copied there, while nothing was mounted.
//!
//! 1. What is there by hand has no origin: it is begun on the newest version.
//! 2. A copy may have brought the origin of another batch along (`cp -a`), and with it the journal:
//!    one of the two would be taken for the other, and deleted when that is published. The older
//!    one by the time of its birth, which no copy keeps, is the batch; the others are begun anew.

use std::collections::HashSet;
use std::os::fd::OwnedFd;

use super::disk::{self, OnDisk as _};
use super::{Spool, origin};
use crate::error::Result;
use crate::tree::{FileKind, SnapshotId};

impl Spool {
    /// Gives an origin of its own to every batch that has none, or that of another. One that cannot
    /// be read stays as it is, and can be neither listed nor committed.
    ///
    /// # Errors
    /// [`crate::error::Kind::Disk`].
    pub fn adopt(&self, newest: &SnapshotId) -> Result<()> {
        let mut found = Vec::new();
        for name in self.names()? {
            let fd =
                disk::path_fd(&self.tree, &*name).on_disk(|| format!("open batch {name:?}"))?;
            if disk::stat(&fd, "").is_ok_and(|stat| stat.kind != FileKind::Symlink) {
                found.push((disk::born(&fd)?, name, fd));
            }
        }
        found.sort_by(|(born, name, _), (other, than, _)| (born, name).cmp(&(other, than)));
        let mut known = HashSet::new();
        for (_, name, fd) in &found {
            if let Err(error) = adopt_one(name, fd, newest, &mut known) {
                tracing::error!(name, %error, "what is in staging cannot be a batch");
            }
        }
        Ok(())
    }
}

fn adopt_one(
    name: &str,
    fd: &OwnedFd,
    newest: &SnapshotId,
    known: &mut HashSet<uuid::Uuid>,
) -> Result<()> {
    let why = match origin::read(fd)? {
        Some(origin) if known.insert(origin.batch) => return Ok(()),
        Some(_) => "a copy of another batch is one of its own",
        None => "a batch that was not made through the mount is adopted",
    };
    tracing::warn!(name, "{why}");
    origin::write(fd, &origin::new(newest))
}
