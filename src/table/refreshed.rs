//! A value that is read again on access, at most once per period, by one caller for all.
//!
//! 1. What is known must be shown although the store hangs: who asks while a value is known waits
//!    for a newer one for [`GRACE`] at most, and not at all while an earlier load is overdue.
//! 2. A load is a task of its own, so that a caller that goes away does not end it for the others.
//! 3. A failing store must not take away what is known: the last value stays until a load succeeds.
//! 4. Loads overlap with what is [set](Refreshed::set): what began to be read later is the newer one,
//!    whichever ends first.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared};

use crate::error::{Error, Kind, Result};

/// How long a newer value is waited for while an older one is known. Some round trips of a distant
/// store; short enough for a listing while the network is away.
const GRACE: Duration = Duration::from_millis(500);
/// How long one load may take: after the network has come back, the next one begins no later.
const LONGEST: Duration = Duration::from_secs(20);

type Loading<T> = Shared<BoxFuture<'static, Result<Arc<T>>>>;

struct State<T> {
    known: Option<(Instant, Arc<T>)>,
    loading: Option<(Instant, Loading<T>)>,
}

impl<T> State<T> {
    /// Takes a value if none is known whose reading began later; gives the one that is known now.
    fn take(&mut self, started: Instant, value: Arc<T>) -> Arc<T> {
        match &self.known {
            Some((read, newer)) if *read > started => newer.clone(),
            _ => {
                self.known = Some((started, value.clone()));
                value
            }
        }
    }
}

/// What a load found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loaded<T> {
    /// This.
    New(T),
    /// What is known is so still.
    Same,
}

/// The value.
pub struct Refreshed<T> {
    state: Mutex<State<T>>,
}

impl<T> Default for Refreshed<T> {
    fn default() -> Self {
        Self { state: Mutex::new(State { known: None, loading: None }) }
    }
}

impl<T: Send + Sync + 'static> Refreshed<T> {
    /// The value, not older than `period` if the store answers.
    ///
    /// # Errors
    /// What `load` gave, if there is no earlier value or it found that there is none any more;
    /// else the earlier value stays for another period.
    pub async fn get<F>(
        self: &Arc<Self>,
        period: Duration,
        load: impl FnOnce() -> F,
    ) -> Result<Arc<T>>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.get_changed(period, || load().map(|loaded| loaded.map(Loaded::New))).await
    }

    /// As [`Refreshed::get`], where a load may find that what is known is so still.
    ///
    /// # Errors
    /// As [`Refreshed::get`].
    pub async fn get_changed<F>(
        self: &Arc<Self>,
        period: Duration,
        load: impl FnOnce() -> F,
    ) -> Result<Arc<T>>
    where
        F: Future<Output = Result<Loaded<T>>> + Send + 'static,
    {
        let (known, since, loading) = {
            let mut state = self.lock();
            if let Some((read, value)) = &state.known
                && read.elapsed() < period
            {
                return Ok(value.clone());
            }
            let (since, loading) =
                state.loading.get_or_insert_with(|| (Instant::now(), self.begin(load())));
            let (since, loading) = (*since, loading.clone());
            (state.known.as_ref().map(|(_, value)| value.clone()), since, loading)
        };
        let Some(known) = known else { return loading.await };
        let grace = GRACE.saturating_sub(since.elapsed());
        tokio::time::timeout(grace, loading).await.unwrap_or(Ok(known))
    }

    /// The value as it was read last, however old.
    pub fn last(&self) -> Option<Arc<T>> {
        self.lock().known.as_ref().map(|(_, value)| value.clone())
    }

    /// Takes a value whose reading began at `started`, unless a newer one is known.
    pub fn set(&self, started: Instant, value: Arc<T>) {
        self.lock().take(started, value);
    }

    fn begin(
        self: &Arc<Self>,
        load: impl Future<Output = Result<Loaded<T>>> + Send + 'static,
    ) -> Loading<T> {
        let this = self.clone();
        // Taken before the load: what changes while it runs is seen by the next.
        let started = Instant::now();
        let task = tokio::spawn(async move {
            let late = |_| Error::new(Kind::Timeout, format!("no answer within {LONGEST:?}"));
            let loaded = tokio::time::timeout(LONGEST, load).await.map_err(late);
            this.finish(started, loaded.and_then(|loaded| loaded))
        });
        let this = self.clone();
        let ended = task.map(move |ended| {
            ended.unwrap_or_else(|e| {
                this.finish(started, Err(Error::caused(Kind::Table, "load", e)))
            })
        });
        ended.boxed().shared()
    }

    fn finish(&self, started: Instant, loaded: Result<Loaded<T>>) -> Result<Arc<T>> {
        let mut state = self.lock();
        state.loading = None;
        let value = match (loaded, &state.known) {
            (Ok(Loaded::New(value)), _) => Arc::new(value),
            (Ok(Loaded::Same), Some((_, last))) => last.clone(),
            (Ok(Loaded::Same), None) => {
                return Err(Error::new(Kind::Internal, "nothing is known that could be the same"));
            }
            (Err(error), Some((_, last))) if error.kind() != Kind::NotFound => {
                tracing::warn!(%error, "refresh failed, the last list stays");
                last.clone()
            }
            (Err(error), _) => return Err(error),
        };
        Ok(state.take(started, value))
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Duration = Duration::ZERO;

    #[tokio::test]
    async fn a_failing_refresh_keeps_the_last_value() {
        let value = Arc::new(Refreshed::default());
        let fail = |kind| async move { Err(Error::new(kind, "down")) };
        assert!(value.get(NONE, || fail(Kind::Timeout)).await.is_err());
        assert_eq!(*value.get(NONE, || async { Ok(1) }).await.unwrap(), 1);
        assert_eq!(*value.get(NONE, || fail(Kind::Timeout)).await.unwrap(), 1);
        assert_eq!(
            value.get(NONE, || fail(Kind::NotFound)).await.unwrap_err().kind(),
            Kind::NotFound
        );
    }

    #[tokio::test]
    async fn within_the_period_nothing_is_read() {
        let value = Arc::new(Refreshed::default());
        let long = Duration::from_secs(1000);
        assert_eq!(*value.get(long, || async { Ok(1) }).await.unwrap(), 1);
        assert_eq!(*value.get(long, || async { panic!("read again") }).await.unwrap(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_hangs_is_waited_for_once() {
        let value = Arc::new(Refreshed::default());
        assert_eq!(*value.get(NONE, || async { Ok(1) }).await.unwrap(), 1);
        let hang = || std::future::pending::<Result<i32>>();
        let begun = tokio::time::Instant::now();
        assert_eq!(*value.get(NONE, hang).await.unwrap(), 1);
        assert!(begun.elapsed() <= GRACE + Duration::from_millis(5), "{:?}", begun.elapsed());
        // The load's own clock is the machine's, which does not stand still.
        std::thread::sleep(GRACE);
        let begun = tokio::time::Instant::now();
        assert_eq!(*value.get(NONE, || async { panic!("a second load") }).await.unwrap(), 1);
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }

    #[tokio::test]
    async fn a_load_that_ends_late_does_not_take_a_newer_value_back() {
        let value = Arc::new(Refreshed::default());
        assert_eq!(*value.get(NONE, || async { Ok(1) }).await.unwrap(), 1);
        let (end, ended) = tokio::sync::oneshot::channel();
        let late = value.clone();
        let late = async move { late.get(NONE, || async { Ok(ended.await.unwrap()) }).await };
        let late = tokio::spawn(late);
        tokio::task::yield_now().await;
        let begun = Instant::now();
        value.set(begun, Arc::new(3));
        end.send(2).unwrap();
        assert_eq!(*late.await.unwrap().unwrap(), 3);
        assert_eq!(*value.last().unwrap(), 3);
        value.set(begun.checked_sub(Duration::from_secs(1)).unwrap(), Arc::new(1));
        assert_eq!(*value.last().unwrap(), 3);
    }

    #[tokio::test]
    async fn a_load_that_panics_is_an_error_and_the_next_one_runs() {
        let value = Arc::new(Refreshed::default());
        assert!(value.get(NONE, || async { panic!("in a library") }).await.is_err());
        assert_eq!(*value.get(NONE, || async { Ok(1) }).await.unwrap(), 1);
    }
}
