//! What batches leave behind: finished after a restart, taken away when the batch is gone.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use uuid::Uuid;

use super::record::Attempt;
use super::rows::Tally;
use super::{Publisher, Work};
use crate::error::{Error, Kind, Result};
use crate::staging::crash;
use crate::staging::journal::Journal;
use crate::staging::spool::{Batch, Frozen};
use crate::store::blocking;

impl Publisher {
    /// Settles every batch whose commit was tried, and cleans up after those that are gone.
    ///
    /// # Errors
    /// The first failure, after everything was tried: then it has to be asked for again.
    pub(super) async fn sweep(&self) -> Result<()> {
        let journals = self.journals();
        let known = blocking(move || Journal::all(&journals)).await?;
        // One that is being uploaded does not hold up the others.
        let swept = futures::future::join_all(known.into_iter().map(|uuid| async move {
            let outcome = self.sweep_one(uuid).await;
            if let Err(error) = &outcome {
                tracing::warn!(batch = %uuid, %error, "a batch is not settled yet");
            }
            outcome
        }));
        swept.await.into_iter().collect()
    }

    async fn sweep_one(&self, uuid: Uuid) -> Result<()> {
        let work = self.work(uuid)?;
        let (batch, published) = {
            let _turn = work.turn.lock().await;
            let batch = self.find(uuid).await?;
            let published = if batch.is_some() { self.settled(&work).await? } else { None };
            self.seal_as_known(&work);
            (batch, published)
        };
        let Some(batch) = batch else { return self.clean(&work).await };
        let Some(version) = published else {
            return match work.state(|state| state.tried) {
                // It may still come: whoever looks next knows more.
                Some(_) => {
                    Err(Error::new(Kind::Busy, "nobody can tell yet whether it is published"))
                }
                None => Ok(()),
            };
        };
        let (spool, removed) = (self.spool.clone(), batch.clone());
        let frozen = blocking(move || spool.freeze(&removed)).await?;
        self.recovered(&batch, &work, version).await;
        self.take_away(frozen).await?;
        self.clean(&work).await
    }

    /// Takes a published batch off the staging disk.
    ///
    /// # Errors
    /// What the disk says. The batch may still be there then, sealed; it is not committed again, as
    /// its journal says that it is published.
    pub(super) async fn take_away(&self, frozen: Frozen) -> Result<()> {
        let spool = self.spool.clone();
        crash::at("before", "removed");
        blocking(move || spool.remove(frozen)).await?;
        crash::at("after", "removed");
        Ok(())
    }

    /// Whether a batch is published or has been removed: only then may its journal go, and with it
    /// the memory of having been tried.
    async fn is_over(&self, work: &Work) -> bool {
        work.state(|state| state.published.is_some())
            || matches!(self.find(work.batch).await, Ok(None))
    }

    async fn find(&self, uuid: Uuid) -> Result<Option<Batch>> {
        let spool = self.spool.clone();
        blocking(move || spool.find(uuid)).await
    }

    async fn recovered(&self, batch: &Batch, work: &Work, version: u64) {
        if work.recorded.swap(true, Ordering::AcqRel) {
            return;
        }
        tracing::info!(batch = batch.name, version, "an earlier attempt published this batch");
        let Tally { rows, bytes } = self.tally(batch).await.unwrap_or_default();
        let attempt = Attempt {
            name: &batch.name,
            batch: batch.origin.batch,
            outcome: Ok(version),
            rows,
            bytes,
            seconds: 0.0,
        };
        self.record(&attempt);
    }

    /// How much a batch is that is still on the staging disk.
    async fn tally(&self, batch: &Batch) -> Result<Tally> {
        Ok(Tally::of(&self.plan(batch, &self.table.newest().await?).await?))
    }

    /// After a batch is gone: deletes the objects that no version can name, takes its tags away,
    /// and then its journal; objects that a commit named are left to the table's cleanup.
    ///
    /// # Errors
    /// The last failure. What is left is in the journal, for the next time.
    pub(super) async fn clean(&self, work: &Arc<Work>) -> Result<()> {
        let _turn = work.turn.lock().await;
        // Nobody protects anything for it meanwhile.
        let mut protected = work.protected.lock().await;
        if work.gone.load(Ordering::Acquire) || !self.is_over(work).await {
            return Ok(());
        }
        if Arc::strong_count(&work.held) > 1 {
            let text = format!("batch {} is not there, and is about to be", work.batch);
            return Err(Error::new(Kind::Busy, text));
        }
        protected.clear();
        let (abandoned, tags) = work.state(|state| {
            let abandoned: Vec<Arc<str>> = state.abandoned().cloned().collect();
            (abandoned, state.tags.clone())
        });
        let mut failure = None;
        for object in abandoned {
            if let Err(error) = self.deposit.delete(&object).await {
                failure = Some(error.at(format!("an object that nothing uses stays, {object}")));
            }
        }
        for (tag, _) in tags {
            if let Err(error) = self.table.unprotect(&tag).await {
                failure = Some(error.at(format!("a tag that nothing needs stays, {tag}")));
            }
        }
        if let Some(failure) = failure {
            return Err(failure);
        }
        // With the journal goes the memory of having been published: not before the disk knows that
        // the batch has gone.
        let spool = self.spool.clone();
        blocking(move || spool.sync_names()).await?;
        work.journal.lock().unwrap_or_else(PoisonError::into_inner).delete()?;
        work.gone.store(true, Ordering::Release);
        self.works.lock().unwrap_or_else(PoisonError::into_inner).remove(&work.batch);
        self.spool.unseal(work.batch);
        Ok(())
    }
}
