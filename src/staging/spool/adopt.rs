//! Batches that somebody put on the disk, or copied there, while nothing was mounted.
//!
//! 1. What is there by hand has no origin: it is begun on the newest version.
//! 2. A copy may have brought the origin of another batch along (`cp -a`), and with it the journal:
//!    one of the two would be taken for the other, and deleted when that is published. The older
//!    one by the time of its birth, which no copy keeps, is the batch; the others are begun anew.
//! 3. An origin that is not marked as ours came from elsewhere, with `tar --xattrs` or from another
//!    folder: it is begun anew too. Only where the folder has just got its key may what is not marked
//!    be ours, of a mount before there were keys; unless others could write there until now.

use std::collections::HashSet;
use std::os::fd::OwnedFd;

use super::disk::{self, OnDisk as _};
use super::{Spool, origin};
use crate::error::Result;
use crate::staging::Origin;
use crate::staging::mark::Word;
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
            if let Err(error) = self.adopt_one(name, fd, newest, &mut known) {
                tracing::error!(name, %error, "what is in staging cannot be a batch");
            }
        }
        Ok(())
    }

    fn adopt_one(
        &self,
        name: &str,
        fd: &OwnedFd,
        newest: &SnapshotId,
        known: &mut HashSet<uuid::Uuid>,
    ) -> Result<()> {
        let why = match origin::look(&self.key, fd)? {
            Some(Word::Ours(origin)) if known.insert(origin.batch) => return Ok(()),
            Some(Word::Others(origin)) if self.believes_all && known.insert(origin.batch) => {
                return origin::write(&self.key, fd, &origin);
            }
            Some(Word::Others(_)) if !self.believes_all => "a batch from elsewhere is begun anew",
            Some(_) => "a copy of another batch is one of its own",
            None => "a batch that was not made through the mount is adopted",
        };
        tracing::warn!(name, "{why}");
        origin::write(&self.key, fd, &Origin::begun_on(newest))
    }
}
