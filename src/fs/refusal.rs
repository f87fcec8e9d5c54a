//! `COMMIT-REFUSED.txt`: in a batch whose commit found faults, which those are.
//!
//! A shell and a file manager have one errno for a move that fails and their own words for it, so the
//! faults are shown where whoever moved the batch looks next. The file is shown and is nowhere on the
//! disk; it goes with the next change of the batch, or the next attempt.

use std::time::Duration;

use super::staging::{Staging, Writable};
use super::{Attr, Fs};
use crate::error::{Error, Kind, Result};
use crate::staging::commit::Refused;
use crate::tree::{self, FileKind, Node};
use crate::units::{self, Ino};

/// Nobody may write to it.
const MODE: u16 = 0o444;

impl Fs {
    /// The refusal that a directory beneath `staging/` shows, if it is a batch that has one.
    pub(super) fn refusal(&self, directory: Ino) -> Option<Refused> {
        let Staging::On(Writable { spool, commit }) = self.staging() else { return None };
        commit.refused(&spool.batch_of(directory).ok()??)
    }

    /// The refusal's text.
    ///
    /// # Errors
    /// [`Kind::NotFound`] where there is none any more.
    pub(super) fn refusal_text(&self, batch: Ino) -> Result<Vec<u8>> {
        self.refusal(batch).map(|refused| refused.text.into_bytes()).ok_or_else(gone)
    }

    pub(super) fn attr_of_refusal(&self, batch: Ino) -> Result<Attr> {
        let Refused { text, at } = self.refusal(batch).ok_or_else(gone)?;
        let (node, size) = (Node::Refusal(batch), units::u64_of(text.len()));
        let attr = self.plain(&node, FileKind::File, size, at, Duration::ZERO)?;
        Ok(Attr { mode: MODE, ..attr })
    }

    /// Takes a refusal away that somebody removes. Gives whether there was one of that name.
    pub(super) fn dismiss(&self, directory: Ino, name: &str) -> bool {
        let Staging::On(Writable { spool, commit }) = self.staging() else { return false };
        if name != tree::REFUSED || spool.number(directory, name).is_ok() {
            return false;
        }
        let batch = spool.batch_of(directory).ok().flatten();
        batch.is_some_and(|batch| commit.dismiss(&batch))
    }
}

fn gone() -> Error {
    Error::new(Kind::NotFound, "the batch was changed since its commit was refused")
}
