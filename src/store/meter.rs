//! Counts what is asked of a store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};

use super::Interval;
use super::fetch::{Answer, Fetch, Meta};
use crate::error::Result;
use crate::units;

/// The figures of all objects of a mount, in requests and bytes since it began.
#[derive(Debug, Default)]
pub struct Figures {
    /// Ranged GETs that were started.
    pub gets: AtomicU64,
    /// HEADs.
    pub heads: AtomicU64,
    /// Bytes that came, also those that nobody read.
    pub fetched: AtomicU64,
    /// Bytes that readers were given.
    pub read: AtomicU64,
    /// Blocks that a reader found in memory.
    pub hits: AtomicU64,
    /// Blocks that a reader had to wait for.
    pub misses: AtomicU64,
    /// Blocks that came from the disk cache instead of the store.
    pub disk_hits: AtomicU64,
}

impl Figures {
    /// Adds to one of them.
    pub fn add(figure: &AtomicU64, n: u64) {
        figure.fetch_add(n, Ordering::Relaxed);
    }

    /// One of them as it is now.
    pub fn get(figure: &AtomicU64) -> u64 {
        figure.load(Ordering::Relaxed)
    }
}

/// Counts the requests for one object, and the bytes that came.
pub struct Meter {
    inner: Arc<dyn Fetch>,
    figures: Arc<Figures>,
}

impl Meter {
    /// Counts what goes to `inner`.
    pub fn new(inner: Arc<dyn Fetch>, figures: Arc<Figures>) -> Self {
        Self { inner, figures }
    }
}

impl Fetch for Meter {
    fn get(&self, interval: Interval) -> BoxFuture<'_, Result<Answer>> {
        Figures::add(&self.figures.gets, 1);
        let figures = self.figures.clone();
        let counted = move |answer: Answer| {
            let count = move |bytes: &Result<bytes::Bytes>| {
                let n = bytes.as_ref().map_or(0, bytes::Bytes::len);
                Figures::add(&figures.fetched, units::u64_of(n));
            };
            Answer { body: answer.body.inspect(count).boxed(), ..answer }
        };
        self.inner.get(interval).map(|answer| answer.map(counted)).boxed()
    }

    fn head(&self) -> BoxFuture<'_, Result<Meta>> {
        Figures::add(&self.figures.heads, 1);
        self.inner.head()
    }
}
