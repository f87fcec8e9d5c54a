//! What the mounted tree asks of whoever publishes batches, which is in a layer above this one.

use std::sync::Arc;
use std::time::SystemTime;

use futures::future::BoxFuture;
use uuid::Uuid;

use crate::error::Result;

/// Publishes batches. All of it may take long; none of it blocks the thread that asks.
pub trait Commit: Send + Sync {
    /// Publishes a batch and gives the new version. The batch has left `staging/` then. It goes on
    /// when what is given is dropped, and who asks again meanwhile waits for the same.
    ///
    /// # Errors
    /// `Kind::Faulty` for a batch that does not fit the table, `Kind::Busy` for one that is being
    /// committed or lost a conflict, and whatever the store gives; the batch is kept.
    fn commit(self: Arc<Self>, batch: &str) -> BoxFuture<'static, Result<u64>>;

    /// What a commit of a batch would do, as JSON.
    ///
    /// # Errors
    /// Where that cannot be found out; faults of the batch are in the plan.
    fn plan(&self, batch: &str) -> BoxFuture<'_, Result<String>>;

    /// How far a commit is, as JSON; `None` while none is under way.
    fn progress(&self, batch: &str) -> Option<String>;

    /// Why the last commit of a batch that nobody asked for did not take place, until it is tried
    /// again.
    fn held_back(&self, batch: &str) -> Option<String>;

    /// Why the last commit of a batch found faults, until it is tried again, changed or dismissed.
    fn refused(&self, batch: &str) -> Option<Refused>;

    /// Shows it no more. Gives whether it was shown.
    fn dismiss(&self, batch: &str) -> bool;

    /// Protects a version of main from cleanup until a batch that refers to its objects is gone
    /// (spec, "Snapshot Lifetime"). A batch that is only going to be there is taken for one that has
    /// gone as soon as what is given back is dropped.
    ///
    /// # Errors
    /// Where the version cannot be tagged, or not in time; then nothing may refer to it.
    fn protect(&self, batch: Uuid, version: u64) -> BoxFuture<'_, Result<Protected>>;

    /// Takes away, after a while, what was protected for a batch that has not come to be.
    fn tidy(&self);
}

/// Why a commit of a batch found faults.
#[derive(Clone, Debug)]
pub struct Refused {
    /// For people, line by line.
    pub text: String,
    /// When it was tried.
    pub at: SystemTime,
}

/// A version that is protected for a batch.
#[derive(Clone)]
#[must_use = "the protection of a batch that is not there yet ends with it"]
pub struct Protected {
    _held: Arc<()>,
}

impl Protected {
    /// For as long as something is shared.
    pub fn new(held: Arc<()>) -> Self {
        Self { _held: held }
    }
}
