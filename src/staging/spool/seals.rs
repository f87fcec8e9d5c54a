//! Batches that must stay what they are: whether they are in the table is not known yet, or they are
//! in it and are still here.
//!
//! 1. A batch whose commit is not settled must stay what the commit may have published, and one that
//!    is published must not take in what would go with it: every change of either is refused, as is
//!    moving anything out of it or into it. It may be read, renamed as a whole within `staging/`,
//!    committed again and removed: its owner must be able to get rid of it.
//! 2. It must be so before the mount serves, when nobody has looked at the batches yet: a seal names
//!    a batch by its id, and the id of what is changed is read from the disk, as long as there are
//!    seals at all.
//! 3. Who is refused must hear what to do, which is not the same in the two cases: [`Seal`].

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use uuid::Uuid;

use super::batches::{By, Change};
use super::disk::{self, failed, path_fd};
use super::{Spool, nodes, origin};
use crate::error::{Error, Kind, Result};
use crate::tree::FileKind;

/// Why a batch may not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seal {
    /// Whether it is in the table is not known.
    Unsettled,
    /// It is in the table, as this version, and has not been taken off the staging disk.
    Published(u64),
}

/// The batches that are sealed.
#[derive(Debug, Default)]
pub struct Seals {
    sealed: Mutex<HashMap<Uuid, Seal>>,
}

impl Seals {
    fn lock(&self) -> MutexGuard<'_, HashMap<Uuid, Seal>> {
        self.sealed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Spool {
    /// Lets a batch not change from now on. It can still be read, frozen, renamed within `staging/`
    /// and removed. A batch that is not there may be sealed too.
    pub fn seal(&self, batch: Uuid, seal: Seal) {
        self.seals.lock().insert(batch, seal);
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
        let change = path.batch().map(|batch| self.batches.change(batch, by)).transpose();
        // Afterwards: a batch is sealed while it is frozen, so no change is between the two. It says
        // more than that it is frozen for a moment.
        if let Some(batch) = path.batch() {
            self.refuse_sealed(batch)?;
        }
        change
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
        let Some(origin) = origin::read(&self.key, &fd)? else { return Ok(()) };
        let seal = self.seals.lock().get(&origin.batch).copied();
        seal.map_or(Ok(()), |seal| Err(Error::new(Kind::Busy, refusal(batch, seal))))
    }
}

fn refusal(batch: &str, seal: Seal) -> String {
    match seal {
        Seal::Unsettled => format!(
            "the commit of batch {batch:?} is not settled: commit it again, or remove the batch as a \
             whole"
        ),
        Seal::Published(version) => format!(
            "batch {batch:?} is version {version} of the table already, and could not be taken off \
             the staging disk (the log says why): what is added to it would be lost with it; begin \
             another batch"
        ),
    }
}
