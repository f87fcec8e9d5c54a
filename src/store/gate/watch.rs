//! Whether a store answers.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{BoxStream, FuturesUnordered};
use futures::{FutureExt as _, StreamExt as _};
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt as _, Result};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::error;
use crate::store::is_an_answer;

/// How long nobody is given an answer before the store is asked for something small. A healthy one
/// answers in 0.1 s.
const SUSPICION: Duration = Duration::from_secs(1);
/// How often that is asked, so that a store that is back is known to be within a second, and how long
/// an answer to it is waited for, which a new connection to a distant store may take.
const EVERY: Duration = Duration::from_millis(500);
const PROBE: Duration = Duration::from_secs(2);
/// How long nobody was given an answer where what still waits is asked anew: a link that is slow but
/// moves gives somebody something.
const SILENCE: Duration = Duration::from_secs(3);
/// How long the store is still asked when nobody waits any more, and how often somebody may ask it
/// although the time is over: the small thing alone may be what it does not answer.
const AFTER: Duration = Duration::from_secs(10);
/// How long that one waits.
const LEAST: Duration = Duration::from_secs(2);

/// What a store is asked for beside a request that waits.
#[derive(Clone)]
pub struct Probe(Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>);

impl Probe {
    /// Of a store. What is asked for is not there, and nothing that anybody waits for: any answer is one.
    pub fn new(store: Arc<dyn ObjectStore>) -> Self {
        Self(Arc::new(move || {
            let store = store.clone();
            async move { drop(store.head(&Path::from(NOWHERE)).await) }.boxed()
        }))
    }
}

/// The name of an object that no store has.
const NOWHERE: &str = "lancefs-asks-whether-anybody-is-there";

/// The silence of a store.
#[derive(Clone, Copy, Debug)]
struct Silence {
    since: Instant,
    /// When somebody was let through last.
    let_through: Instant,
}

#[derive(Debug)]
struct State {
    /// When somebody was given an answer, or nobody waited for one.
    heard: Instant,
    /// As long as the store is being asked for something small.
    silence: Option<Silence>,
    is_probing: bool,
    /// Requests without an answer.
    waiting: usize,
    /// When somebody wanted something last.
    wanted: Instant,
}

/// Watches one store for all who ask it.
#[derive(Debug)]
pub struct Watch {
    patience: Duration,
    state: Mutex<State>,
    /// Counts how often it came back.
    back: watch::Sender<u64>,
}

/// A request that waits.
struct Waiting<'a>(&'a Watch);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.waiting = state.waiting.saturating_sub(1);
        state.wanted = Instant::now();
    }
}

impl Watch {
    /// Of a store of which nothing is known.
    pub fn new(patience: Duration) -> Self {
        let now = Instant::now();
        let state = State { heard: now, silence: None, is_probing: false, waiting: 0, wanted: now };
        Self { patience, state: Mutex::new(state), back: watch::Sender::new(0) }
    }

    /// Asks for something that may be asked for twice, until there is an answer or no time is left.
    pub async fn ask<T, F: Future<Output = Result<T>>>(
        self: &Arc<Self>,
        probe: &Probe,
        request: impl Fn() -> F,
    ) -> Result<T> {
        let allowance = self.allowance();
        if allowance.is_zero() {
            return Err(silent(self.patience));
        }
        let deadline = Instant::now() + allowance;
        let mut back = self.back.subscribe();
        let _waiting = self.wait();
        loop {
            back.borrow_and_update();
            tokio::select! {
                biased;
                answer = request() => return self.heard(answer),
                _ = back.changed() => {}
                () = sleep_until(deadline) => return Err(silent(allowance)),
                () = self.suspect(probe) => {}
            }
        }
    }

    /// The next item of an answer.
    pub async fn next<T>(
        self: &Arc<Self>,
        probe: &Probe,
        items: &mut BoxStream<'static, Result<T>>,
    ) -> Option<Result<T>> {
        let allowance = self.allowance();
        let mut back = self.back.subscribe();
        let _waiting = self.wait();
        tokio::select! {
            biased;
            item = items.next() => item.map(|item| self.heard(item)),
            _ = back.changed() => Some(Err(broke_off())),
            () = sleep(allowance) => Some(Err(silent(allowance))),
            () = self.suspect(probe) => None,
        }
    }

    /// Takes note of what came, and gives it on.
    pub fn heard<T>(&self, answer: Result<T>) -> Result<T> {
        if answer.as_ref().err().is_none_or(is_an_answer) {
            self.answered();
        }
        answer
    }

    /// How long a request that begins now may wait.
    fn allowance(&self) -> Duration {
        let mut state = self.lock();
        state.wanted = Instant::now();
        let Some(silence) = &mut state.silence else { return self.patience };
        let left = self.patience.saturating_sub(silence.since.elapsed());
        if !left.is_zero() || silence.let_through.elapsed() < AFTER {
            return left;
        }
        silence.let_through = Instant::now();
        LEAST.min(self.patience)
    }

    fn wait(&self) -> Waiting<'_> {
        let mut state = self.lock();
        if state.waiting == 0 {
            state.heard = Instant::now();
        }
        state.waiting += 1;
        Waiting(self)
    }

    /// Has the store asked for something small when nobody is given an answer. Never returns.
    async fn suspect(self: &Arc<Self>, probe: &Probe) {
        loop {
            let quiet = self.lock().heard.elapsed();
            let known = self.lock().silence.is_some();
            if known || quiet >= SUSPICION {
                self.begin_to_probe(probe);
                sleep(SUSPICION).await;
            } else {
                sleep(SUSPICION.saturating_sub(quiet)).await;
            }
        }
    }

    fn begin_to_probe(self: &Arc<Self>, probe: &Probe) {
        let mut state = self.lock();
        let since = state.heard;
        // Those who wait already are through until their time is over.
        let let_through = since + self.patience;
        state.silence.get_or_insert(Silence { since, let_through });
        if !std::mem::replace(&mut state.is_probing, true) {
            tokio::spawn(self.clone().probe(probe.clone()));
        }
    }

    /// Asks until there is an answer, or nobody has wanted one for a while.
    async fn probe(self: Arc<Self>, probe: Probe) {
        let mut asked = FuturesUnordered::new();
        let mut tick = tokio::time::interval(EVERY);
        loop {
            tokio::select! {
                biased;
                Some(is_answer) = asked.next() => if is_answer {
                    self.answered();
                },
                _ = tick.tick() => {
                    let answer = timeout(PROBE, (probe.0)());
                    asked.push(async move { answer.await.is_ok() });
                }
            }
            let mut state = self.lock();
            let is_wanted = state.waiting > 0 || state.wanted.elapsed() < AFTER;
            if !is_wanted || state.silence.is_none() {
                state.silence = None;
                state.is_probing = false;
                return;
            }
        }
    }

    fn answered(&self) {
        let mut state = self.lock();
        state.heard = Instant::now();
        let ended = state.silence.take();
        drop(state);
        if ended.is_some_and(|silence| silence.since.elapsed() >= SILENCE) {
            self.back.send_modify(|count| *count = count.wrapping_add(1));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The store said nothing for so long: asking once more would not help.
#[derive(Debug)]
struct Silent {
    waited: Duration,
    cause: io::Error,
}

impl fmt::Display for Silent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the store did not answer within {:.1} s", self.waited.as_secs_f64())
    }
}

impl StdError for Silent {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.cause)
    }
}

/// Whether a failure is that a store is silent.
pub fn is_silence(error: &error::Error) -> bool {
    error.causes().any(<dyn StdError>::is::<Silent>)
}

fn silent(waited: Duration) -> Error {
    let cause = io::ErrorKind::TimedOut.into();
    Error::Generic { store: "a silent store", source: Box::new(Silent { waited, cause }) }
}

fn broke_off() -> Error {
    let text = "an answer stood still while the store was silent";
    let cause = io::Error::new(io::ErrorKind::TimedOut, text);
    Error::Generic { store: "a silent store", source: Box::new(cause) }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    /// A store that answers while it is up, and forgets what it was asked while it was down.
    #[derive(Clone, Default)]
    struct Store {
        is_up: Arc<AtomicBool>,
        asked: Arc<AtomicUsize>,
        probed: Arc<AtomicUsize>,
    }

    impl Store {
        fn answer(&self) -> BoxFuture<'static, ()> {
            let is_up = self.is_up.load(Ordering::Relaxed);
            let never = std::future::pending().boxed();
            if is_up { std::future::ready(()).boxed() } else { never }
        }

        fn probe(&self) -> Probe {
            let this = self.clone();
            Probe(Arc::new(move || {
                this.probed.fetch_add(1, Ordering::Relaxed);
                this.answer()
            }))
        }

        async fn ask(&self, watch: &Arc<Watch>) -> Result<()> {
            let request = || {
                self.asked.fetch_add(1, Ordering::Relaxed);
                self.answer().map(Ok)
            };
            watch.ask(&self.probe(), request).await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_counts_for_all_together_and_one_probe_asks() {
        let (store, watch) = (Store::default(), Arc::new(Watch::new(PATIENCE)));
        let begun = Instant::now();
        let all = (0..100).map(|_| store.ask(&watch));
        assert!(futures::future::join_all(all).await.iter().all(Result::is_err));
        assert_eq!(begun.elapsed().as_secs(), PATIENCE.as_secs());
        let probes = store.probed.load(Ordering::Relaxed);
        assert!((20..=40).contains(&probes), "{probes}");
        let begun = Instant::now();
        let failed = store.ask(&watch).await.unwrap_err();
        assert_eq!(begun.elapsed(), Duration::ZERO, "the time is over already");
        assert!(is_silence(&error::Error::caused(error::Kind::Timeout, "read", failed)));
        // Each was asked for once, as the store never came back.
        assert_eq!(store.asked.load(Ordering::Relaxed), 100);
        // One is let through now and then, in case that it is the probe alone that gets no answer.
        for asked in [100, 100] {
            sleep(AFTER * 2 / 5).await;
            store.ask(&watch).await.unwrap_err();
            assert_eq!(store.asked.load(Ordering::Relaxed), asked);
        }
        sleep(AFTER / 5).await;
        let begun = Instant::now();
        store.ask(&watch).await.unwrap_err();
        assert_eq!((begun.elapsed(), store.asked.load(Ordering::Relaxed)), (LEAST, 101));
        // A while after the last one wanted something, nothing is asked any more.
        sleep(AFTER * 2).await;
        let probes = store.probed.load(Ordering::Relaxed);
        sleep(AFTER * 10).await;
        assert_eq!(store.probed.load(Ordering::Relaxed), probes);
        assert_eq!(watch.allowance(), PATIENCE);
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_is_asked_anew_within_a_second_of_the_stores_return() {
        let (store, watch) = (Store::default(), Arc::new(Watch::new(PATIENCE)));
        let waiting = tokio::spawn({
            let (store, watch) = (store.clone(), watch.clone());
            async move { store.ask(&watch).await }
        });
        let down = Duration::from_secs(11);
        sleep(down).await;
        store.is_up.store(true, Ordering::Relaxed);
        let begun = Instant::now();
        waiting.await.unwrap().unwrap();
        assert!(begun.elapsed() <= EVERY, "{:?}", begun.elapsed());
        assert_eq!(store.asked.load(Ordering::Relaxed), 2);
        // And whoever asks next has all the time again.
        assert_eq!(watch.allowance(), PATIENCE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stands_still_breaks_off_when_the_store_is_back() {
        let (store, watch) = (Store::default(), Arc::new(Watch::new(PATIENCE)));
        let mut body = futures::stream::pending::<Result<()>>().boxed();
        let (probe, is_up) = (store.probe(), store.is_up.clone());
        tokio::spawn(async move {
            sleep(Duration::from_secs(5)).await;
            is_up.store(true, Ordering::Relaxed);
        });
        let begun = Instant::now();
        let error = watch.next(&probe, &mut body).await.unwrap().unwrap_err();
        assert_eq!(begun.elapsed().as_secs(), 5, "{error}");
        assert!(!is_silence(&error::Error::caused(error::Kind::Timeout, "read", error)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_answer_of_a_store_that_gives_others_is_waited_for() {
        let (store, watch) = (Store::default(), Arc::new(Watch::new(PATIENCE)));
        store.is_up.store(true, Ordering::Relaxed);
        let slow = || async {
            store.asked.fetch_add(1, Ordering::Relaxed);
            sleep(Duration::from_secs(19)).await;
            Ok(())
        };
        watch.ask(&store.probe(), slow).await.unwrap();
        assert_eq!(store.asked.load(Ordering::Relaxed), 1);
        let probes = store.probed.load(Ordering::Relaxed);
        assert!((1..=19).contains(&probes), "{probes}");
    }
}
