//! What the mounted tree asks of whoever publishes batches, which is in a layer above this one.

use futures::future::BoxFuture;

use crate::error::Result;

/// Publishes batches. All of it may take long; none of it blocks the thread that asks.
pub trait Commit: Send + Sync {
    /// Publishes a batch and gives the new version. The batch has left `staging/` then.
    ///
    /// # Errors
    /// `Kind::Invalid` for a batch that does not fit the table, `Kind::Busy` for one that is being
    /// committed or lost a conflict, and whatever the store gives; the batch is kept.
    fn commit(&self, batch: &str) -> BoxFuture<'_, Result<u64>>;

    /// What a commit of a batch would do, as JSON.
    ///
    /// # Errors
    /// Where that cannot be found out; faults of the batch are in the plan.
    fn plan(&self, batch: &str) -> BoxFuture<'_, Result<String>>;

    /// How far a commit is, as JSON; `None` while none is under way.
    fn progress(&self, batch: &str) -> Option<String>;

    /// Protects a version of main from cleanup until a batch that refers to its objects is gone
    /// (spec, "Snapshot Lifetime").
    ///
    /// # Errors
    /// Where the version cannot be tagged.
    fn protect(&self, batch: &str, version: u64) -> BoxFuture<'_, Result<()>>;
}
