//! Batches to versions, each once: what is done in which order.
//!
//! ```text
//! freeze ─▶ settle ─▶ check ─▶ upload ─▶ look again ─▶ publish ─▶ remove ─▶ clean up
//!             │                                                    ▲
//!             └── a commit was tried before, and is in the table ──┘
//! ```
//!
//! 1. A process may die anywhere: every step is in the batch's journal (`staging::journal`), and a
//!    batch whose commit was tried is looked for in the table before anything else ([`order`]).
//! 2. A commit must have little left to do: what has been quiet for a while is uploaded in the
//!    background ([`background`]), and used if it is still the same file.
//! 3. One batch is worked on by one task at a time ([`Work::turn`]), different batches by as many as
//!    there are; nothing here holds up the rest of `staging/`.
//! 4. From its first attempt on until it is certain that it is not published, or it is gone, a batch
//!    is sealed: what was added to it would go with it ([`Publisher::seal_as_known`]).
//! 5. What is left of batches that are gone is taken away, but never an object that a version could
//!    name ([`sweep`]).

mod asked;
mod background;
mod order;
pub mod record;
mod rows;
mod sweep;
mod upload;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use serde_json::json;
use tokio::sync::Notify;
use uuid::Uuid;

use self::asked::Asked;
use self::record::Attempt;
use crate::error::{Error, Kind, Result};
use crate::private::Folder;
use crate::staging::commit::{Commit, Protected, Refused};
use crate::staging::journal::{Journal, State, Step};
use crate::staging::plan::{Payload, Plan, Source};
use crate::staging::spool::{Seal, Spool};
use crate::store::{Deposit, Progress};
use crate::table::Table;
use crate::tree;

/// What becomes of External references in batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Externals {
    /// They stay references (spec, "Writer Policy").
    #[default]
    Reference,
    /// The bytes are copied into the table.
    Ingest,
}

/// How batches are published.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long a file has to be closed and quiet before it is uploaded.
    pub upload_delay: Duration,
    /// How long a batch has to be quiet before it is committed by itself; `None` is never.
    pub auto_commit: Option<Duration>,
    /// What becomes of External references.
    pub externals: Externals,
    /// How long one request of an upload may take.
    pub patience: Duration,
}

/// Publishes the batches of one mount.
pub struct Publisher {
    table: Arc<Table>,
    spool: Arc<Spool>,
    deposit: Deposit,
    options: Options,
    works: Mutex<HashMap<Uuid, Arc<Work>>>,
    asked: Asked,
    /// When a version could not be protected in time, and why.
    unprotected: Mutex<Option<(Instant, Error)>>,
    /// Told where something could not be taken away: it is tried again after a while.
    leftovers: Notify,
}

/// What is known about one batch that is worked on.
struct Work {
    batch: Uuid,
    turn: tokio::sync::Mutex<()>,
    journal: Mutex<Journal>,
    /// Versions that this process has tagged for it.
    protected: tokio::sync::Mutex<HashSet<u64>>,
    /// Shared with whoever is about to refer to a version that is protected for it.
    held: Arc<()>,
    /// Its journal has been taken away: whoever still holds this has to begin anew.
    gone: AtomicBool,
    /// That it is published is in `.lancefs/commits.jsonl`.
    recorded: AtomicBool,
    doing: Mutex<Doing>,
    /// Why it was not committed by itself.
    held_back: Mutex<Option<String>>,
    /// What its last commit found, and the change that it was tried after.
    refused: Mutex<Option<(Refused, Instant)>>,
    progress: Progress,
    total: AtomicU64,
}

/// What a commit is at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Doing {
    #[default]
    Nothing,
    Checking,
    Uploading,
    Publishing,
}

impl Doing {
    fn word(self) -> &'static str {
        match self {
            Self::Nothing => "idle",
            Self::Checking => "check",
            Self::Uploading => "upload",
            Self::Publishing => "publish",
        }
    }
}

impl Work {
    fn state<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(self.journal.lock().unwrap_or_else(PoisonError::into_inner).state())
    }

    fn write(&self, step: Step) -> Result<()> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner).write(step)
    }

    fn is_at(&self, doing: Doing) {
        *self.doing.lock().unwrap_or_else(PoisonError::into_inner) = doing;
    }

    fn hold_back(&self, why: Option<String>) {
        *self.held_back.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    fn held_back(&self) -> Option<String> {
        self.held_back.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes how an attempt ended that was made after a change.
    fn refuse(&self, error: Option<&Error>, after: Instant) {
        let error = error.filter(|error| error.kind() == Kind::Faulty);
        let refused = error.map(|error| (refusal(error), after));
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = refused;
    }

    /// Begins to count an upload of so many bytes, of which the store has some already.
    fn begin_upload(&self, total: u64, ready: u64) {
        self.total.store(total, Ordering::Relaxed);
        self.progress.done.store(ready, Ordering::Relaxed);
    }

    fn shown(&self) -> String {
        let doing = *self.doing.lock().unwrap_or_else(PoisonError::into_inner);
        let done = self.progress.done.load(Ordering::Relaxed);
        let total = self.total.load(Ordering::Relaxed);
        let step = match (doing, self.state(|state| (state.published, state.tried))) {
            (Doing::Nothing, (Some(_), _)) => "published",
            (Doing::Nothing, (None, Some(_))) => "unsettled",
            (doing, _) => doing.word(),
        };
        json!({ "step": step, "bytes_done": done, "bytes_total": total }).to_string()
    }
}

/// What is shown of faults, each in a line.
fn refusal(error: &Error) -> Refused {
    let text = format!(
        "{}\n\nMend it and move the batch into {}/ again. This file is no row, and goes with the next \
         change of the batch.\n",
        error.chain().replace("; ", "\n"),
        tree::COMMIT
    );
    Refused { text, at: SystemTime::now() }
}

impl Publisher {
    /// For the batches of a spool.
    ///
    /// # Errors
    /// [`Kind::Internal`] where the journals of an earlier process cannot be listed.
    pub fn new(table: Arc<Table>, spool: Arc<Spool>, options: Options) -> Result<Self> {
        let deposit = Deposit::new(table.source.depot(), table.opener.clone(), options.patience);
        let (works, asked, leftovers) = (Mutex::default(), Asked::default(), Notify::new());
        let unprotected = Mutex::default();
        let this = Self { table, spool, deposit, options, works, asked, unprotected, leftovers };
        this.seal_all()?;
        Ok(this)
    }

    /// Seals every batch that an earlier process has published, or may have.
    ///
    /// # Errors
    /// [`Kind::Internal`] where the journals cannot be listed: then nobody knows which those are.
    fn seal_all(&self) -> Result<()> {
        for batch in Journal::all(&self.journals())? {
            match self.work(batch) {
                Ok(work) => self.seal_as_known(&work),
                Err(error) => {
                    tracing::error!(%batch, %error, "nobody can tell whether it is published");
                    self.spool.seal(batch, Seal::Unsettled);
                }
            }
        }
        Ok(())
    }

    /// Lets nobody change a batch that is published or may be: what was added would be removed with
    /// it.
    fn seal_as_known(&self, work: &Work) {
        match work.state(|state| (state.published, state.tried)) {
            (Some(version), _) => self.spool.seal(work.batch, Seal::Published(version)),
            (None, Some(_)) => self.spool.seal(work.batch, Seal::Unsettled),
            (None, None) => self.spool.unseal(work.batch),
        }
    }

    /// Keeps a version from cleanup until the batch is gone, because the batch refers to objects
    /// of it (spec, "Snapshot Lifetime").
    ///
    /// # Errors
    /// [`Kind::Denied`] where tags may not be written, [`Kind::Timeout`] where the store does not
    /// say in time that it is written.
    async fn keep(&self, batch: Uuid, version: u64) -> Result<Protected> {
        let work = self.work(batch)?;
        // Who is about to refer to the version holds this: until then nothing is cleaned up.
        let held = Protected::new(work.held.clone());
        let tag = format!("lancefs-staging-{batch}-{version}");
        // Those who come second wait until the tag is there.
        let mut protected = work.protected.lock().await;
        if work.gone.load(Ordering::Acquire) {
            return Err(Error::new(Kind::NotFound, format!("batch {batch} was removed")));
        }
        if protected.contains(&version) {
            return Ok(held);
        }
        // The journal may know of a tag that was never written.
        if !work.state(|state| state.tags.contains(&(tag.clone(), version))) {
            work.write(Step::Protect { tag: tag.clone(), version })?;
        }
        let late = |_| {
            let seconds = self.options.patience.as_secs_f64();
            Error::new(Kind::Timeout, format!("tag {tag} was not written in {seconds} s"))
        };
        let writing = self.table.protect(&tag, version);
        tokio::time::timeout(self.options.patience, writing).await.map_err(late)??;
        protected.insert(version);
        Ok(held)
    }

    /// [`Publisher::keep`] for who can do without: where that was in vain a moment ago, it is not waited
    /// for once more, so that the copies of a whole folder do not add up.
    ///
    /// # Errors
    /// As [`Publisher::keep`].
    async fn keep_in_time(&self, batch: Uuid, version: u64) -> Result<Protected> {
        let unprotected = || self.unprotected.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = unprotected().clone();
        if let Some((since, error)) = failed
            && since.elapsed() < self.options.patience
        {
            return Err(error);
        }
        let kept = self.keep(batch, version).await;
        if let Err(error) = &kept
            && error.kind() == Kind::Timeout
        {
            *unprotected() = Some((Instant::now(), error.clone()));
        }
        kept
    }

    /// Keeps all versions that a plan refers to. Their tags are there for long, unless somebody has
    /// taken them away, or has put the files on the staging disk by hand.
    async fn keep_referred(&self, work: &Work, plan: &Plan) -> Result<()> {
        let version = |payload: &Payload| match &payload.source {
            Source::Reference(reference) => Some(reference.version),
            Source::File { .. } | Source::Uri { .. } => None,
        };
        let versions: BTreeSet<u64> = plan.payloads().filter_map(version).collect();
        for version in versions {
            let _held = self.keep(work.batch, version).await?;
        }
        Ok(())
    }

    /// The work on a batch; begins one where there is none.
    fn work(&self, batch: Uuid) -> Result<Arc<Work>> {
        let mut works = self.works.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(work) = works.get(&batch).filter(|work| !work.gone.load(Ordering::Acquire)) {
            return Ok(work.clone());
        }
        let journal = Journal::open(&self.journals(), batch)?;
        let work = Arc::new(Work {
            batch,
            turn: tokio::sync::Mutex::default(),
            journal: Mutex::new(journal),
            protected: tokio::sync::Mutex::default(),
            held: Arc::default(),
            gone: AtomicBool::new(false),
            recorded: AtomicBool::new(false),
            doing: Mutex::default(),
            held_back: Mutex::default(),
            refused: Mutex::default(),
            progress: Progress::default(),
            total: AtomicU64::new(0),
        });
        works.insert(batch, work.clone());
        Ok(work)
    }

    /// The work on a batch of a name, where there is any.
    fn known_work(&self, name: &str) -> Option<Arc<Work>> {
        let batch = self.spool.batch(name).ok()?.origin.batch;
        self.works.lock().unwrap_or_else(PoisonError::into_inner).get(&batch).cloned()
    }

    /// Adds a line to `.lancefs/commits.jsonl`. Where it cannot, the attempt is what it was.
    fn record(&self, attempt: &Attempt<'_>) {
        if let Err(error) = record::append(self.spool.folder(), attempt) {
            tracing::warn!(%error, "a commit is not recorded");
        }
    }

    fn journals(&self) -> Arc<Folder> {
        self.spool.journals()
    }
}

impl Commit for Publisher {
    fn commit(self: Arc<Self>, batch: &str) -> BoxFuture<'static, Result<u64>> {
        match self.ask(batch.to_owned()) {
            Ok(outcome) => outcome.boxed(),
            Err(error) => std::future::ready(Err(error)).boxed(),
        }
    }

    fn plan(&self, batch: &str) -> BoxFuture<'_, Result<String>> {
        let batch = batch.to_owned();
        async move { self.summary(&batch).await }.boxed()
    }

    fn progress(&self, batch: &str) -> Option<String> {
        self.known_work(batch).map(|work| work.shown())
    }

    fn protect(&self, batch: Uuid, version: u64) -> BoxFuture<'_, Result<Protected>> {
        self.keep_in_time(batch, version).boxed()
    }

    fn tidy(&self) {
        self.leftovers.notify_one();
    }

    fn refused(&self, batch: &str) -> Option<Refused> {
        let work = self.known_work(batch)?;
        let refused = work.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let (refused, after) = refused.as_ref()?;
        (*after == self.spool.last_change(batch)).then(|| refused.clone())
    }

    fn dismiss(&self, batch: &str) -> bool {
        let is_shown = self.refused(batch).is_some();
        if let Some(work) = self.known_work(batch) {
            *work.refused.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        is_shown
    }

    fn held_back(&self, batch: &str) -> Option<String> {
        self.told(&*self.known_work(batch)?)
    }
}
