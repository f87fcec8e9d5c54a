//! Batches whose commit is not settled: whether they are in the table is not known yet.
//!
//! 1. Such a batch must stay what the commit may have published: every change of it is refused, as
//!    is moving anything out of it or into it. It may be read, renamed as a whole within `staging/`,
//!    committed again and removed: its owner must be able to get rid of it.
//! 2. It must be so before the mount serves, when nobody has looked at the batches yet: a seal names
//!    a batch by its id, and the id of what is changed is read from the disk, as long as there are
//!    seals at all.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use uuid::Uuid;

use super::batches::{By, Change};
use super::disk::{self, failed, path_fd};
use super::{Spool, nodes, origin};
use crate::error::{Error, Kind, Result};
use crate::tree::FileKind;

/// The batches that are sealed.
#[derive(Debug, Default)]
pub struct Seals {
    sealed: Mutex<HashSet<Uuid>>,
}

impl Seals {
    fn lock(&self) -> MutexGuard<'_, HashSet<Uuid>> {
        self.sealed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Spool {
    /// Lets a batch not change until its commit is settled. It can still be read, frozen, renamed
    /// within `staging/` and removed. A batch that is not there may be sealed too.
    pub fn seal(&self, batch: Uuid) {
        self.seals.lock().insert(batch);
    }

    /// Lets a batch change again.
    pub fn unseal(&self, batch: Uuid) {
        self.seals.lock().remove(&batch);
    }

    /// Begins a change of what is at a path; what is in no batch may always change.
    ///
    /// # Errors
    /// [`Kind::Busy`] in a batch that is frozen or sealed.
    pub(super) fn changing(&self, path: &nodes::Path) -> Result<Option<Change<'_>>> {
        self.changing_by(By::Name, path)
    }

    /// [`Spool::changing`] by somebody.
    ///
    /// # Errors
    /// As [`Spool::changing`].
    pub(super) fn changing_by(&self, by: By, path: &nodes::Path) -> Result<Option<Change<'_>>> {
        let change = path.batch().map(|batch| self.batches.change(batch, by)).transpose()?;
        // Afterwards: a batch is sealed while it is frozen, so no change is between the two.
        if let Some(batch) = path.batch() {
            self.refuse_sealed(batch)?;
        }
        Ok(change)
    }

    /// Begins a change that a sealed batch allows too.
    ///
    /// # Errors
    /// [`Kind::Busy`] in a batch that is frozen.
    pub(super) fn removing(&self, path: &nodes::Path) -> Result<Option<Change<'_>>> {
        path.batch().map(|batch| self.batches.change(batch, By::Name)).transpose()
    }

    /// Refuses to change a batch that is sealed.
    ///
    /// # Errors
    /// [`Kind::Busy`]; [`Kind::Disk`] where it cannot be found out whether it is.
    pub(super) fn refuse_sealed(&self, batch: &str) -> Result<()> {
        if self.seals.lock().is_empty() {
            return Ok(());
        }
        let fd = match path_fd(&self.tree, batch) {
            Err(Errno::NOENT) => return Ok(()),
            opened => opened.map_err(|errno| failed(format!("open batch {batch:?}"), errno))?,
        };
        if disk::stat(&fd, "")?.kind == FileKind::Symlink {
            return Ok(());
        }
        let origin = origin::read(&fd)?;
        if origin.is_some_and(|origin| self.seals.lock().contains(&origin.batch)) {
            let text = format!(
                "the commit of batch {batch:?} is not settled: commit it again, or remove the \
                 batch as a whole"
            );
            return Err(Error::new(Kind::Busy, text));
        }
        Ok(())
    }
}
