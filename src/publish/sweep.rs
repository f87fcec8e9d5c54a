//! What batches leave behind: finished after a restart, taken away when the batch is gone.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use uuid::Uuid;

use super::record::Attempt;
use super::{Publisher, Work};
use crate::error::Result;
use crate::staging::journal::Journal;
use crate::staging::spool::Batch;
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
            self.seal_if_unclear(&work);
            (batch, published)
        };
        let Some(batch) = batch else {
            self.clean(&work).await;
            return Ok(());
        };
        let Some(version) = published else { return Ok(()) };
        let spool = self.spool.clone();
        let removed = batch.clone();
        blocking(move || spool.freeze(&removed).and_then(|frozen| spool.remove(frozen))).await?;
        self.recovered(&batch, version);
        self.clean(&work).await;
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

    fn recovered(&self, batch: &Batch, version: u64) {
        tracing::info!(batch = batch.name, version, "an earlier process published this batch");
        let attempt = Attempt {
            name: &batch.name,
            batch: batch.origin.batch,
            outcome: Ok(version),
            rows: 0,
            bytes: 0,
            seconds: 0.0,
        };
        self.record(&attempt);
    }

    /// After a batch is gone: deletes the objects that no version can name, takes its tags away,
    /// and then its journal. What fails is left for the next sweep; objects that a commit named
    /// are left to the table's cleanup.
    pub(super) async fn clean(&self, work: &Arc<Work>) {
        let _turn = work.turn.lock().await;
        if work.gone.load(Ordering::Acquire) || !self.is_over(work).await {
            return;
        }
        let (abandoned, tags) = work.state(|state| {
            let abandoned: Vec<Arc<str>> = state.abandoned().cloned().collect();
            (abandoned, state.tags.clone())
        });
        let mut all = true;
        for object in abandoned {
            if let Err(error) = self.deposit.delete(&object).await {
                tracing::warn!(%object, %error, "an object that nothing uses stays");
                all = false;
            }
        }
        for (tag, _) in tags {
            if let Err(error) = self.table.unprotect(&tag).await {
                tracing::warn!(tag, %error, "a tag that nothing needs stays");
                all = false;
            }
        }
        if all {
            let deleted = work.journal.lock().unwrap_or_else(PoisonError::into_inner).delete();
            match deleted {
                Ok(()) => work.gone.store(true, Ordering::Release),
                Err(error) => tracing::warn!(%error, "a journal stays"),
            }
            self.works.lock().unwrap_or_else(PoisonError::into_inner).remove(&work.batch);
        }
    }
}
