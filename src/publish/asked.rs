//! Commits that somebody asked for, and the states of a batch that go with them.
//!
//! ```text
//! staged ──asked──▶ under way ──▶ published ──▶ gone
//!    ▲                │   │           ▲
//!    └── refused ◀────┘   └─ unclear ─┤ looked for until it is known, again and again
//!                            (sealed) └──▶ withdrawn: staged again
//! ```
//!
//! 1. Who asks may go away: at the mount's deadline, or by a signal. A commit cannot: its manifest may
//!    be on its way. So it is a task of its own, which ends as it ends, and who waits for it only
//!    waits ([`Publisher::ask`]). The batch is frozen for as long as it runs.
//! 2. Who asks again for a batch that is under way must not be told that it is busy, but wait for
//!    the same commit: there is one for each batch ([`Asked`]).
//! 3. Who went away must be able to find out: `user.lancefs.progress` has the step, `user.lancefs.error`
//!    says that it goes on, and then why it failed ([`Publisher::told`]), and `commits.jsonl` has a line
//!    for each end.
//! 4. A commit of which nobody can tell whether it took place is looked for until somebody can
//!    (`sweep`): when it is found, the batch leaves by itself.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared};
use tokio::sync::oneshot;
use uuid::Uuid;

use super::order::By;
use super::{Publisher, Work};
use crate::error::{Error, Kind, Result};

/// What a commit comes to, for everybody who waits for it.
type Outcome = Shared<BoxFuture<'static, Result<u64>>>;

/// The commits that are under way because somebody asked.
#[derive(Default)]
pub(super) struct Asked {
    by_batch: Mutex<HashMap<Uuid, Outcome>>,
}

impl Asked {
    /// Whether a batch is being committed.
    fn is_under_way(&self, batch: Uuid) -> bool {
        self.by_batch.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&batch)
    }

    fn end(&self, batch: Uuid) {
        self.by_batch.lock().unwrap_or_else(PoisonError::into_inner).remove(&batch);
    }
}

impl Publisher {
    /// Begins to commit a batch, if it is not being committed already, and gives what comes of it.
    /// It goes on whether or not that is waited for.
    pub(super) fn ask(self: Arc<Self>, name: String) -> Result<Outcome> {
        let batch = self.spool.batch(&name)?.origin.batch;
        let mut asked = self.asked.by_batch.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(outcome) = asked.get(&batch) {
            return Ok(outcome.clone());
        }
        let this = self.clone();
        let (tell, told) = oneshot::channel();
        tokio::spawn(async move {
            let committing = AssertUnwindSafe(this.publish(&name, By::Request)).catch_unwind();
            let outcome = committing.await.unwrap_or_else(|_| Err(broke_off()));
            this.note_held_back(batch, &outcome);
            // Before anybody hears of it: who then asks again asks for another one.
            this.asked.end(batch);
            // Nobody may be there to hear it.
            let _ = tell.send(outcome.as_ref().map(|done| done.version).map_err(Error::clone));
            if let Ok(published) = outcome {
                this.clean_up(published).await;
            }
        });
        let ended = told.map(|told| told.unwrap_or_else(|_| Err(broke_off())));
        let outcome = ended.boxed().shared();
        asked.insert(batch, outcome.clone());
        Ok(outcome)
    }

    /// Why a batch is still there although its commit was asked for, or was to come by itself.
    pub(super) fn told(&self, work: &Work) -> Option<String> {
        if self.asked.is_under_way(work.batch) {
            let text = "its commit goes on: user.lancefs.progress tells how far it is, and the batch \
                        leaves staging/ when it is published";
            return Some(text.to_owned());
        }
        work.held_back()
    }
}

fn broke_off() -> Error {
    Error::new(Kind::Internal, "the commit broke off: the log says where")
}
