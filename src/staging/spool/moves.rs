//! Names that change: moving and removing.

use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};

use rustix::fs::{AtFlags, RenameFlags};

use super::batches::Change;
use super::disk::{self, OnDisk as _, as_owner, path_fd, proc};
use super::names::Spot;
use super::nodes::Path;
use super::reference::Moment;
use super::{Spool, origin as origins};
use crate::error::{Error, Kind, Result};
use crate::staging::mark::Word;
use crate::staging::{ORIGIN, Origin};
use crate::tree::FileKind;
use crate::units::{ByteLen, Ino};

/// What a rename does where the new name is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moving {
    /// Replaces what is there.
    Replace,
    /// Fails.
    NoReplace,
    /// Gives it the old name.
    Exchange,
}

impl Spool {
    /// Removes a file or symlink.
    ///
    /// # Errors
    /// As [`Spool::mkdir`].
    pub fn unlink(&self, parent: Ino, name: &str) -> Result<()> {
        self.take_away(parent, name, AtFlags::empty())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As [`Spool::mkdir`].
    pub fn rmdir(&self, parent: Ino, name: &str) -> Result<()> {
        self.take_away(parent, name, AtFlags::REMOVEDIR)
    }

    /// Moves a name. What becomes a child of `staging/` is the batch `origin` from then on.
    ///
    /// # Errors
    /// As [`Spool::mkdir`], of both places; [`Kind::Refused`] for a symlink that would be a batch;
    /// [`Kind::Busy`] for a move from one batch to another after which it is not certain any more,
    /// because something has happened since that [`Moment`], that what it refers to is protected.
    pub fn rename(
        &self,
        (from_parent, from): (Ino, &str),
        (to_parent, to): (Ino, &str),
        how: Moving,
        (origin, since): (Option<&Origin>, Moment),
    ) -> Result<()> {
        let moving = self.moves.write().unwrap_or_else(PoisonError::into_inner);
        let source = self.spot_to_change(from_parent)?;
        let target = self.spot_to_change(to_parent)?;
        let (old, new) = (source.path(from), target.path(to));
        let is_within =
            source.is_top() == target.is_top() && (source.is_top() || old.batch() == new.batch());
        if !is_within && self.moment() != since {
            let text = format!("{:?} cannot be moved: much else is", old.shown());
            return Err(Error::new(Kind::Busy, text));
        }
        let _changes = if source.is_top() && target.is_top() {
            self.moving_batch(&old, &new, how)?
        } else {
            (self.changing(&old)?, self.changing(&new)?)
        };
        let what = || format!("rename {:?} to {:?}", old.shown(), new.shown());
        let moved = path_fd(&source.directory, from).on_disk(what)?;
        let there = path_fd(&target.directory, to).ok();
        // What is a batch stays the one that it is; what somebody put there by hand becomes one.
        let is_batch = || Ok(matches!(origins::look(&self.key, &moved)?, Some(Word::Ours(_))));
        if target.is_top() && !(source.is_top() && is_batch()?) {
            self.become_batch(&moved, to, origin)?;
        }
        if source.is_top()
            && !target.is_top()
            && how == Moving::Exchange
            && let Some(there) = &there
        {
            self.become_batch(there, from, origin)?;
        }
        let flags = match how {
            Moving::Replace => RenameFlags::empty(),
            Moving::NoReplace => RenameFlags::NOREPLACE,
            Moving::Exchange => RenameFlags::EXCHANGE,
        };
        rustix::fs::renameat_with(&source.directory, from, &target.directory, to, flags)
            .on_disk(what)?;
        self.moved();
        self.renamed((&source, from, moved), (&target, to, there), how)?;
        drop(moving);
        Ok(())
    }

    /// Begins to move a batch as a whole, which a sealed one allows. What it replaces must not be
    /// sealed.
    fn moving_batch<'a>(
        &'a self,
        old: &Path,
        new: &Path,
        how: Moving,
    ) -> Result<(Option<Change<'a>>, Option<Change<'a>>)> {
        let is_replacing = how == Moving::Replace && old.names != new.names;
        let there = if is_replacing { self.changing(new)? } else { self.removing(new)? };
        let moved = if old.names == new.names { None } else { self.removing(old)? };
        Ok((moved, there))
    }

    fn take_away(&self, parent: Ino, name: &str, flags: AtFlags) -> Result<()> {
        let moving = self.moves.write().unwrap_or_else(PoisonError::into_inner);
        let spot = self.spot_to_change(parent)?;
        let path = spot.path(name);
        let _change = self.removing(&path)?;
        let what = || format!("remove {:?}", path.shown());
        let held = path_fd(&spot.directory, name).on_disk(what)?;
        rustix::fs::unlinkat(&spot.directory, name, flags).on_disk(what)?;
        let held = Arc::new(held);
        self.lost(&held);
        drop(moving);
        // The last hold on a large file: its blocks are freed now, and nobody waits for it.
        drop(held);
        Ok(())
    }

    /// Something has lost its name: who has it goes on with a descriptor.
    fn lost(&self, held: &Arc<OwnedFd>) {
        let Ok(stat) = disk::stat(held, "") else { return };
        self.nodes().gone(stat.ino, held.clone());
        if stat.kind == FileKind::File && !self.opens.is_open(stat.ino) {
            self.quota.account(stat.allocated, ByteLen::new(0));
        }
    }

    fn renamed(
        &self,
        (source, from, moved): (&Spot, &str, OwnedFd),
        (target, to, there): (&Spot, &str, Option<OwnedFd>),
        how: Moving,
    ) -> Result<()> {
        let ino = disk::stat(&moved, "")?.ino;
        self.nodes().moved(ino, target.parent, to);
        if source.is_top() && !target.is_top() {
            end_batch(&moved);
        }
        let Some(there) = there else { return Ok(()) };
        let other = disk::stat(&there, "")?.ino;
        if how == Moving::Exchange {
            self.nodes().moved(other, source.parent, from);
            if target.is_top() && !source.is_top() {
                end_batch(&there);
            }
        } else if other != ino {
            self.lost(&Arc::new(there));
        }
        Ok(())
    }
}

/// What is moved into a batch is one no more: moved back, it is begun anew.
fn end_batch(fd: &OwnedFd) {
    let removed = as_owner(&[fd], || rustix::fs::removexattr(proc(fd), ORIGIN));
    if let Err(errno) = removed {
        tracing::warn!(%errno, "a batch that was moved into another keeps its origin");
    }
}
