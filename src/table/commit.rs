//! Publishing a batch: one manifest that names its rows, once.
//!
//! 1. A store may apply the write of a manifest and then fail the answer, and a process may die
//!    before it hears it. So a transaction carries the batch's UUID as a property ([`BATCH`]), and
//!    who is not sure looks for it in the versions since ([`Table::find_batch`]). Once an attempt has
//!    begun to write, no later failure, of whatever call, says that the batch is not there: that is
//!    known from [`Chances`] alone, and [`Table::publish`] asks them in one place.
//! 2. A look proves nothing about a write that is still under way. But such a write is of one
//!    version number, which can be written once: an attempt that has looked at everything up to
//!    version n is only allowed to become n + 1 ([`Only`]), so it and the lost one exclude each
//!    other. The crate's own retries would go on to n + 2 and double the batch; they are switched
//!    off (`CommitBuilder::with_max_retries(0)`, lance 14.0.2 `L:io/commit.rs:1745`), the loop is
//!    here.
//! 3. Other writers commit at the same time: what does not concern the same rows is tried again
//!    on top of theirs, for [`CONFLICTS`] at most.

mod chances;
mod only;
#[cfg(test)]
mod tests;
mod whole;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use futures::{StreamExt as _, TryStreamExt as _};
use lance::Dataset;
use lance::dataset::transaction::Transaction;
use lance::dataset::{CommitBuilder, InsertBuilder};
use lance_table::io::commit::CommitHandler;
use uuid::Uuid;

pub use self::chances::Chances;
use self::only::Only;
use super::catalog::{Entry, Versions};
use super::write::replaced::{self, Changes, Refused, Written as Files};
use super::write::{self, digest};
use super::{Snapshot, Table, fault};
use crate::error::{Error, Kind, Result};
use crate::units::Version;

/// The property of a transaction that holds the batch's UUID.
pub const BATCH: &str = "lancefs.batch";
/// How long other writers' commits are given way to.
const CONFLICTS: Duration = Duration::from_mins(1);
/// The first wait after a conflict; each further one is twice as long, up to [`LONGEST_WAIT`].
const FIRST_WAIT: Duration = Duration::from_millis(20);
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// How many versions are searched for a batch at once.
const SEARCHES: usize = 16;

/// A change whose files are written and that no version names yet.
#[derive(Clone, Debug)]
pub struct Prepared {
    transaction: Transaction,
}

/// What is to be published.
#[derive(Clone, Copy, Debug)]
pub struct Publication<'a> {
    /// The change.
    pub change: &'a Prepared,
    /// The batch that it is.
    pub batch: Uuid,
    /// Where it may be after what was tried before.
    pub chances: Chances,
    /// How long one attempt may take.
    pub patience: Duration,
}

/// Where a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// In this version.
    In(u64),
    /// In none up to this one, the newest.
    NotUpTo(u64),
}

/// Why a change is not published, as far as is known.
#[derive(Debug)]
pub enum Unpublished {
    /// It certainly is not, and will not be: nothing that was ever tried can be there.
    Refused(Error),
    /// It may be all the same, now or in a moment.
    Unclear(Error),
}

/// Whether an attempt may have written its manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    No,
    Perhaps,
}

impl Table {
    /// Writes the files of changes to a version. What is written belongs to no version until
    /// [`Table::publish`].
    ///
    /// # Errors
    /// [`Kind::Faulty`] for rows that the table's schema does not take, and whatever the store
    /// gives; [`Kind::Payload`] where it has something else than was written; [`Kind::Denied`] where a
    /// link leads out of the table.
    pub async fn prepare(&self, on: &Snapshot, changes: Changes) -> Result<Prepared> {
        self.source.check_to_write()?;
        let written = self.write(on, changes).await?;
        whole::check(&on.dataset, &written).await?;
        Ok(Prepared { transaction: written.transaction })
    }

    async fn write(&self, on: &Snapshot, changes: Changes) -> Result<Files> {
        if changes.replaced.is_empty() && changes.deleted.is_empty() {
            return self.write_append(on.to_write(), changes.appended).await;
        }
        replaced::transaction(on, &changes).await.map_err(|refused| match refused {
            Refused::Failed(error) => error,
            Refused::Faults(faults) => {
                let text = faults.first().map(|fault| fault.text.clone());
                Error::new(Kind::Faulty, text.unwrap_or_default())
            }
        })
    }

    async fn write_append(&self, on: Arc<Dataset>, rows: Vec<RecordBatch>) -> Result<Files> {
        let params = write::to_append(&on);
        let insert = InsertBuilder::new(on).with_params(&params);
        let what = || format!("write rows to {}", self.source.shown);
        let transaction = insert.execute_uncommitted(rows.clone()).await.map_err(|e| match e {
            lance::Error::InvalidInput { .. } | lance::Error::SchemaMismatch { .. } => {
                Error::caused(Kind::Faulty, what(), e)
            }
            e => fault::of(what(), e),
        })?;
        let expected = digest::appended(whole::appended(&transaction), &rows)?;
        Ok(Files { transaction, expected: expected.into_iter().collect() })
    }

    /// Publishes a change as one new version of main, and gives its number. `trying` is told on top
    /// of which version before each attempt.
    ///
    /// # Errors
    /// [`Kind::Busy`] where another writer changed the same rows or leaves no gap for
    /// [`CONFLICTS`]; [`Kind::Timeout`]; whatever the store gives.
    pub async fn publish(
        &self,
        publication: &Publication<'_>,
        trying: impl FnMut(u64) -> Result<()>,
    ) -> Result<u64, Unpublished> {
        self.publish_through(&self.source.handler(), publication, trying).await
    }

    async fn publish_through(
        &self,
        handler: &Arc<dyn CommitHandler>,
        publication: &Publication<'_>,
        trying: impl FnMut(u64) -> Result<()>,
    ) -> Result<u64, Unpublished> {
        let Publication { batch, patience, .. } = *publication;
        let mut chances = publication.chances;
        let error = match self.contend(handler, publication, &mut chances, trying).await {
            Ok(version) => {
                // Who looks from now on sees it; if that fails, they see it a little later.
                let _ = self.catalog.look().await;
                return Ok(version);
            }
            Err(error) => error,
        };
        if chances.is_open() {
            match self.find_batch(batch, &mut chances, patience).await {
                Ok(Found::In(version)) => return Ok(version),
                Ok(Found::NotUpTo(_)) => {}
                Err(why) => tracing::info!(%batch, error = %why, "cannot be looked for"),
            }
        }
        Err(if chances.is_open() {
            Unpublished::Unclear(error)
        } else {
            Unpublished::Refused(error)
        })
    }

    /// Tries until the change is a version or cannot be one. What a failure means for the batch is
    /// in `chances`.
    async fn contend(
        &self,
        handler: &Arc<dyn CommitHandler>,
        publication: &Publication<'_>,
        chances: &mut Chances,
        mut trying: impl FnMut(u64) -> Result<()>,
    ) -> Result<u64> {
        let Publication { batch, patience, .. } = *publication;
        let shown = &self.source.shown;
        let started = Instant::now();
        let mut wait = FIRST_WAIT;
        loop {
            let searched = match self.find_batch(batch, chances, patience).await? {
                Found::In(version) => return Ok(version),
                Found::NotUpTo(newest) => newest,
            };
            let dataset = in_time(patience, self.open_version(searched)).await?;
            trying(searched)?;
            let attempt = self.attempt(handler, publication, dataset, searched + 1).await;
            let (error, written) = match attempt {
                Ok(version) => return Ok(version),
                Err(failed) => failed,
            };
            if written == Written::Perhaps {
                chances.begun(searched);
            }
            tracing::info!(%batch, on = searched, %error, "not confirmed");
            if !is_conflict(&error) {
                return Err(meaning(error, shown));
            }
            if started.elapsed() > CONFLICTS {
                let text = format!("other writers leave no gap to commit to {shown}");
                return Err(Error::caused(Kind::Busy, text, error));
            }
            tokio::time::sleep(wait).await;
            wait = LONGEST_WAIT.min(wait * 2);
        }
    }

    /// Looks for a batch wherever it may be, and notes what the look has ruled out. No single answer
    /// is waited for longer than `patience`.
    ///
    /// # Errors
    /// [`Kind::Busy`] where a version that could hold it has been removed, so that nobody can tell;
    /// [`Kind::Stale`] where the table has been replaced; whatever the store gives.
    pub async fn find_batch(
        &self,
        batch: Uuid,
        chances: &mut Chances,
        patience: Duration,
    ) -> Result<Found> {
        let versions = in_time(patience, self.catalog.look()).await?;
        let newest = versions.last_key_value().map_or(0, |(version, _)| version.get());
        let found = self.search(&versions, batch, chances.not_up_to(), patience).await?;
        if let Some(version) = found {
            return Ok(Found::In(version));
        }
        chances.read_up_to(newest);
        Ok(Found::NotUpTo(newest))
    }

    async fn search(
        &self,
        versions: &Versions,
        batch: Uuid,
        since: u64,
        patience: Duration,
    ) -> Result<Option<u64>> {
        let newest = versions.last_key_value().map_or(0, |(version, _)| version.get());
        if newest < since {
            let text = format!(
                "{} has no version {since} any more: it was replaced by another table",
                self.source.shown
            );
            return Err(Error::new(Kind::Stale, text));
        }
        let later = Version::new(since + 1)..;
        let entries: Vec<Entry> = versions.range(later).map(|(_, entry)| entry.clone()).collect();
        let there = u64::try_from(entries.len()).unwrap_or(u64::MAX);
        let looked = futures::stream::iter(entries)
            .map(|entry| async move { in_time(patience, self.holds(&entry, batch)).await })
            .buffer_unordered(SEARCHES)
            .try_collect::<Vec<_>>();
        let found = looked.await?.into_iter().flatten().min();
        if found.is_none() && there < newest - since {
            let text = format!(
                "versions between {since} and {newest} of {} were removed, so nobody can tell whether \
                 batch {batch} is in the table; look for its rows, then remove the batch or copy it",
                self.source.shown
            );
            return Err(Error::new(Kind::Busy, text));
        }
        Ok(found)
    }

    /// The version's number if it holds the batch.
    async fn holds(&self, entry: &Entry, batch: Uuid) -> Result<Option<u64>> {
        let dataset = self.source.open(&entry.id).await?;
        let transaction = dataset.read_transaction().await;
        let transaction = transaction
            .map_err(|e| fault::of(format!("read the transaction of {}", entry.id.version), e))?;
        let properties = transaction.as_ref().and_then(|t| t.transaction_properties.as_deref());
        let is_it = properties.and_then(|p| p.get(BATCH)).is_some_and(|b| *b == batch.to_string());
        Ok(is_it.then_some(entry.id.version.get()))
    }

    /// One attempt to become a certain version; on failure, with whether its manifest may have been
    /// written.
    async fn attempt(
        &self,
        handler: &Arc<dyn CommitHandler>,
        publication: &Publication<'_>,
        on: Arc<Dataset>,
        version: u64,
    ) -> Result<u64, (lance::Error, Written)> {
        let begun = Arc::new(AtomicBool::new(false));
        let handler = Only { inner: handler.clone(), version, begun: begun.clone() };
        // Not by `with_transaction_properties`: it is kept and never looked at (lance 14.0.2,
        // `L:dataset/write/commit.rs:272`).
        let properties = HashMap::from([(BATCH.to_owned(), publication.batch.to_string())]);
        let transaction = Transaction {
            transaction_properties: Some(Arc::new(properties)),
            ..publication.change.transaction.clone()
        };
        let commit = CommitBuilder::new(on)
            .with_max_retries(0)
            .with_commit_handler(Arc::new(handler))
            .with_timeout(Some(publication.patience))
            .execute(transaction);
        let published = commit.await.map_err(|error| {
            let is_begun = begun.load(Ordering::SeqCst);
            (error, if is_begun { Written::Perhaps } else { Written::No })
        })?;
        Ok(published.manifest.version)
    }

    async fn open_version(&self, version: u64) -> Result<Arc<Dataset>> {
        let entry = self.catalog.version(None, Version::new(version)).await?;
        Ok(Arc::new(self.source.open(&entry.id).await?))
    }
}

/// Waits for an answer of the store as long as one may take.
///
/// # Errors
/// [`Kind::Timeout`], and those of the answer.
pub async fn in_time<T>(patience: Duration, answer: impl Future<Output = Result<T>>) -> Result<T> {
    let late = |_| {
        let seconds = patience.as_secs_f64();
        Error::new(Kind::Timeout, format!("the table's store did not answer in {seconds} s"))
    };
    tokio::time::timeout(patience, answer).await.map_err(late)?
}

/// Whether another attempt on top of what others committed can help.
fn is_conflict(error: &lance::Error) -> bool {
    use lance::Error as E;
    matches!(error, E::CommitConflict { .. } | E::TooMuchWriteContention { .. })
}

/// What a failure that is no conflict means to us.
fn meaning(error: lance::Error, table: &str) -> Error {
    use lance::Error as E;
    let what = format!("commit to {table}");
    match error {
        E::IncompatibleTransaction { .. } | E::RetryableCommitConflict { .. } => Error::caused(
            Kind::Busy,
            format!("{what}: another writer changed the same rows"),
            error,
        ),
        error => fault::of(what, error),
    }
}
