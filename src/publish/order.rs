//! The order of a commit.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::record::Attempt;
use super::rows::{Tally, Values};
use super::{Doing, Publisher, Work};
use crate::error::{Error, Kind, Result};
use crate::staging::crash;
use crate::staging::journal::Step;
use crate::staging::plan::{Entry, Payload, Plan, Source, Target};
use crate::staging::spool::{Batch, Frozen, Seal};
use crate::store::blocking;
use crate::table::write::Fault;
use crate::table::{Chances, Found, Publication, Snapshot, Unpublished, in_time};

/// How many faults an error lists.
const FAULTS_SHOWN: usize = 100;
/// Rows whose files are written well within the time of one request. Replaced ones cost most: the
/// columns of their fragments are written anew.
const ROWS_IN_A_WHILE: usize = 256;
/// How long the plan of a batch may be, in bytes: an extended attribute ends at 64 KiB.
const SUMMARY_MAX: usize = 60 << 10;
/// How often a batch is looked at that somebody else is taking away.
const LOOK: Duration = Duration::from_millis(10);
/// How often a change of rows is written anew because others change rows beside it.
const ATTEMPTS: u32 = 8;

/// Why a batch is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// Somebody asked for it.
    Request,
    /// It has been quiet for so long.
    Quiet,
}

/// A batch that is to be committed.
enum Held {
    Frozen(Frozen),
    /// It was published before, as this version, and has left.
    Gone(u64),
}

/// What was published.
pub(super) struct Published {
    /// As this version.
    pub version: u64,
    /// Of a batch that is off the staging disk, and has left something.
    work: Option<Arc<Work>>,
}

impl Publisher {
    /// Commits a batch as one new version of main, and gives the version's number. The batch is
    /// frozen meanwhile, and gone afterwards.
    ///
    /// # Errors
    /// [`Kind::Faulty`] with every fault of the batch; [`Kind::Busy`] where it is written to or
    /// committed already, or another writer changed the same rows; whatever the store
    /// gives. Then the batch is as it was.
    pub(super) async fn publish(&self, name: &str, by: By) -> Result<Published> {
        let started = Instant::now();
        let batch = self.spool.batch(name)?;
        let frozen = match self.freeze(&batch).await? {
            Held::Frozen(frozen) => frozen,
            Held::Gone(version) => return Ok(Published { version, work: None }),
        };
        let mut tally = Tally::default();
        // Nothing changes it any more.
        let after = self.spool.last_change(name);
        let (work, outcome) = self.commit_frozen(&batch, by, &mut tally).await;
        if let Some(work) = &work {
            work.refuse(outcome.as_ref().err(), after);
        }
        let chain = outcome.as_ref().err().map(Error::chain);
        let attempt = Attempt {
            name,
            batch: batch.origin.batch,
            outcome: outcome.as_ref().map_err(|_| chain.as_deref().unwrap_or_default()).copied(),
            rows: tally.rows,
            bytes: tally.bytes,
            seconds: started.elapsed().as_secs_f64(),
        };
        self.record(&attempt);
        let version = outcome.inspect_err(|_| {
            // What nobody can tell now is looked for.
            if work.as_ref().is_some_and(|work| work.state(|state| state.tried.is_some())) {
                self.leftovers.notify_one();
            }
        })?;
        tracing::info!(batch = name, version, rows = tally.rows, bytes = tally.bytes, "committed");
        if let Some(work) = &work {
            work.recorded.store(true, Ordering::Release);
            if let Err(error) = self.take_away(frozen).await {
                // It will not be committed again: the journal says that it is published.
                tracing::error!(batch = name, version, %error, "a published batch is still there");
                self.leftovers.notify_one();
                return Ok(Published { version, work: None });
            }
        }
        Ok(Published { version, work })
    }

    /// Cleans up after a batch that is published. Nobody has to wait for that.
    pub(super) async fn clean_up(&self, published: Published) {
        let Published { version, work: Some(work) } = published else { return };
        if let Err(error) = self.clean(&work).await {
            tracing::warn!(batch = %work.batch, version, %error, "a published batch leaves something");
            self.leftovers.notify_one();
        }
    }

    /// Freezes a batch for its commit. One that is published may just be being taken off the staging
    /// disk by somebody else: that is waited for.
    async fn freeze(&self, batch: &Batch) -> Result<Held> {
        let deadline = Instant::now() + self.options.patience;
        let mut was = None;
        loop {
            let (spool, frozen) = (self.spool.clone(), batch.clone());
            let error = match blocking(move || spool.freeze(&frozen)).await {
                Ok(frozen) => return Ok(Held::Frozen(frozen)),
                Err(error) => error,
            };
            let work = self.known_work(&batch.name);
            let published = work.and_then(|work| work.state(|state| state.published));
            let is_gone =
                !self.spool.batch(&batch.name).is_ok_and(|now| now.origin == batch.origin);
            match was.or(published) {
                Some(version) if is_gone => return Ok(Held::Gone(version)),
                Some(version) if Instant::now() < deadline => was = Some(version),
                _ => return Err(error),
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// What a commit of a batch would do and what is wrong with it, as JSON
    /// (`staging::plan::Summary`).
    ///
    /// # Errors
    /// Where the batch or the table cannot be read.
    pub(super) async fn summary(&self, name: &str) -> Result<String> {
        let batch = self.spool.batch(name)?;
        let work = self.work(batch.origin.batch)?;
        let newest = self.table.newest().await?;
        let mut plan = self.plan(&batch, &newest).await?;
        let is_ready = |payload: &Payload| match &payload.source {
            Source::File { len, fingerprint } => {
                let is_stored = work.state(|state| state.stored.contains_key(fingerprint));
                if is_stored { *len } else { 0 }
            }
            _ => 0,
        };
        let payloads = plan.payloads();
        let ready = payloads.map(is_ready).sum();
        plan.faults = self.faults(&batch, &plan, &newest).await?;
        Ok(plan.summary(ready).json(SUMMARY_MAX))
    }

    async fn commit_frozen(
        &self,
        batch: &Batch,
        by: By,
        tally: &mut Tally,
    ) -> (Option<Arc<Work>>, Result<u64>) {
        loop {
            let work = match self.work(batch.origin.batch) {
                Ok(work) => work,
                Err(error) => return (None, Err(error)),
            };
            let outcome = {
                let _turn = work.turn.lock().await;
                if work.gone.load(Ordering::Acquire) {
                    continue;
                }
                let outcome = self.settle_or_publish(batch, &work, by, tally).await;
                work.is_at(Doing::Nothing);
                self.seal_as_known(&work);
                outcome
            };
            return (Some(work), outcome);
        }
    }

    async fn settle_or_publish(
        &self,
        batch: &Batch,
        work: &Work,
        by: By,
        tally: &mut Tally,
    ) -> Result<u64> {
        work.is_at(Doing::Checking);
        if let Some(version) = self.settled(work).await? {
            return Ok(version);
        }
        let newest = in_time(self.options.patience, self.table.look_newest()).await?;
        let plan = self.plan(batch, &newest).await?;
        *tally = Tally::of(&plan);
        let faults = self.faults(batch, &plan, &newest).await?;
        if !faults.is_empty() {
            return Err(invalid(&batch.name, &faults));
        }
        // A row with a fault may look empty for it.
        if by == By::Quiet {
            is_begun(&plan)?;
        }
        work.is_at(Doing::Uploading);
        self.keep_referred(work, &plan).await?;
        self.upload_rest(work, &plan).await?;
        self.check_references(&plan).await?;
        crash::at("after", "uploaded");
        let values = self.values(work, &plan, &newest).await?;
        work.is_at(Doing::Publishing);
        let version = self.publish_values(batch, work, &plan, &values, newest).await?;
        crash::at("after", "committed");
        Self::note_published(work, version);
        Ok(version)
    }

    /// Writes rows and publishes them. Where somebody changes other rows of the same fragments
    /// meanwhile, the files are written anew on top of that.
    async fn publish_values(
        &self,
        batch: &Batch,
        work: &Work,
        plan: &Plan,
        values: &Values<'_>,
        mut newest: Arc<Snapshot>,
    ) -> Result<u64> {
        let objects = values.objects();
        let mut left = ATTEMPTS;
        loop {
            let writing = self.prepare(batch, plan, values, &newest);
            let change = tokio::time::timeout(self.allowance(plan), writing).await;
            let change = change.map_err(|_| {
                Error::new(Kind::Timeout, "the store did not take the new rows in time")
            })??;
            crash::at("after", "prepared");
            // An attempt of an earlier process may still be on its way.
            let none = || Chances::none_up_to(newest.id.version.get());
            let chances = chances(work).unwrap_or_else(none);
            let patience = self.options.patience;
            let publication = Publication { change: &change, batch: work.batch, chances, patience };
            let trying = |on| {
                // From here on until it is known what came of it, whatever happens to this task.
                self.spool.seal(work.batch, Seal::Unsettled);
                work.write(Step::Publishing { on, objects: objects.clone() })
            };
            let error = match self.table.publish(&publication, trying).await {
                Ok(version) => return Ok(version),
                Err(Unpublished::Unclear(error)) => return Err(error),
                Err(Unpublished::Refused(error)) => error,
            };
            if work.state(|state| state.tried.is_some()) {
                work.write(Step::Withdrawn)?;
            }
            left -= 1;
            if error.kind() != Kind::Busy || left == 0 {
                return Err(error);
            }
            let now = in_time(self.options.patience, self.table.look_newest()).await?;
            if now.id == newest.id {
                return Err(error);
            }
            tracing::info!(batch = batch.name, %error, "written anew on top of another commit");
            newest = now;
        }
    }

    /// How long the files of new rows may take: as long as a request may, for each so many rows.
    fn allowance(&self, plan: &Plan) -> Duration {
        let parts = plan.entries.len() / ROWS_IN_A_WHILE + 1;
        self.options.patience.saturating_mul(u32::try_from(parts).unwrap_or(u32::MAX))
    }

    /// The version that holds a batch whose commit was tried before. Where it is in none, and the
    /// versions that it could have become are others', it is known not to be there.
    pub(super) async fn settled(&self, work: &Work) -> Result<Option<u64>> {
        let published = work.state(|state| state.published);
        let Some(mut chances) = chances(work).filter(|_| published.is_none()) else {
            return Ok(published);
        };
        let patience = self.options.patience;
        match self.table.find_batch(work.batch, &mut chances, patience).await? {
            Found::In(version) => {
                Self::note_published(work, version);
                Ok(Some(version))
            }
            Found::NotUpTo(_) => {
                if !chances.is_open() {
                    work.write(Step::Withdrawn)?;
                    self.spool.unseal(work.batch);
                }
                Ok(None)
            }
        }
    }

    /// Writes down that a batch is published. A disk that is full does not undo that.
    fn note_published(work: &Work, version: u64) {
        let step = Step::Published { version };
        let mut journal = work.journal.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = journal.write(step.clone()) {
            tracing::warn!(batch = %work.batch, version, %error, "published, and not written down");
            journal.assume(step);
        }
    }

    /// Reads a batch against the newest version; `@<row>` counts the rows of the version that the
    /// batch was begun on.
    pub(super) async fn plan(&self, batch: &Batch, newest: &Arc<Snapshot>) -> Result<Plan> {
        let rows = self.begun(batch).await.map_or(0, |begun| begun.rows.count());
        let (spool, batch, newest) = (self.spool.clone(), batch.clone(), newest.clone());
        blocking(move || spool.plan(&batch, &newest.leaves.shape, rows)).await
    }

    /// The version that a batch was begun on.
    pub(super) async fn begun(&self, batch: &Batch) -> Result<Arc<Snapshot>> {
        self.table.pinned(batch.origin.version, &batch.origin.manifest).await
    }
}

/// Where a batch may be that was tried before, by this process or an earlier one.
fn chances(work: &Work) -> Option<Chances> {
    work.state(|state| state.tried).map(|(first, last)| Chances::after(first, last))
}

/// Whether every entry has something in it. Who asks for a commit means what is there; a folder that
/// was just made is still to be filled.
fn is_begun(plan: &Plan) -> Result<()> {
    let is_bare = |entry: &&Entry| {
        entry.target == Target::New && entry.json.is_empty() && entry.payloads.is_empty()
    };
    let Some(bare) = plan.entries.iter().find(is_bare) else { return Ok(()) };
    let text = format!("{} is empty: it is not committed by itself, only when asked", bare.place);
    Err(Error::new(Kind::Faulty, text))
}

/// Every fault of a batch in one error.
pub(super) fn invalid(batch: &str, faults: &[Fault]) -> Error {
    let count = faults.len();
    let (things, are) = if count == 1 { ("thing", "is") } else { ("things", "are") };
    let mut text = format!("batch {batch} cannot be committed, {count} {things} {are} wrong");
    for Fault { place, field, text: wrong } in faults.iter().take(FAULTS_SHOWN) {
        // Writing to a String cannot fail.
        let _ = match field.as_str() {
            "" => write!(text, "; {place}: {wrong}"),
            field => write!(text, "; {place}: {field}: {wrong}"),
        };
    }
    if faults.len() > FAULTS_SHOWN {
        text.push_str("; …");
    }
    Error::new(Kind::Faulty, text)
}
