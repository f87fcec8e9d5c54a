//! What happens without being asked for: uploads of quiet files, commits of quiet batches, and the
//! cleaning up after a restart.
//!
//! A mount that is left alone does nothing: this waits for changes, and then for quiet.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::task::JoinSet;
use uuid::Uuid;

use super::order::By;
use super::{Publisher, upload};
use crate::error::{Error, Kind, Result};
use crate::staging::plan::{Class, Plan, Source, class};
use crate::staging::spool::Batch;
use crate::store::blocking;

/// How soon after a failure it is tried again; doubled each time, up to [`LONGEST_WAIT`].
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_mins(5);
/// How long after a change batches are looked at: while ten thousand files are copied, not after
/// each of them.
const PAUSE: Duration = Duration::from_millis(200);
/// How often a batch that is being changed is read: each time costs a look at every file.
const BETWEEN_READS: Duration = Duration::from_secs(2);
/// How many times as long a batch has to be quiet while a process runs that made something in it: it
/// may wait for what it copies. A desktop never ends.
const WHILE_MADE: u32 = 10;
/// How soon such a process is looked for again.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// The youngest that a file is uploaded, whatever the options say: the clock that stamps changes
/// may not tell two writes within a few milliseconds apart.
const YOUNGEST: Duration = Duration::from_millis(50);

/// When something that failed is tried again.
#[derive(Debug)]
struct Again {
    at: Option<Instant>,
    wait: Duration,
}

impl Again {
    /// At once.
    fn now() -> Self {
        Self { at: Some(Instant::now()), wait: FIRST_WAIT }
    }

    /// Not until it is asked for.
    fn never() -> Self {
        Self { at: None, wait: FIRST_WAIT }
    }

    /// How long until it is due; `None` where it is not.
    fn left(&self) -> Option<Duration> {
        self.at.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// It failed.
    fn later(&mut self) {
        self.at = Some(Instant::now() + self.wait);
        self.wait = LONGEST_WAIT.min(self.wait * 2);
    }
}

/// What is done about one batch.
#[derive(Debug)]
struct Attention {
    /// A task is at it.
    busy: bool,
    /// When it was read last while it was being changed.
    read: Option<Instant>,
    /// The change after which everything was uploaded.
    uploaded: Option<Instant>,
    /// The change after which a commit was tried by itself.
    tried: Option<Instant>,
    /// After a failure: not before.
    again: Again,
}

/// What there is to do about one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    /// Uploads large files that are quiet, and packs that are full.
    UploadSome,
    /// Uploads everything.
    UploadAll,
    Commit,
}

/// What has ended.
enum Ended {
    Sweep(Result<()>),
    Task(Uuid, Task, Result<()>),
}

impl Attention {
    fn new() -> Self {
        Self { busy: false, read: None, uploaded: None, tried: None, again: Again::never() }
    }

    /// Takes note of how a task went.
    fn ended(&mut self, task: Task, outcome: &Result<()>) {
        self.busy = false;
        match outcome {
            Ok(()) => self.again = Again::never(),
            // What is wrong with a batch stays wrong until it is changed.
            Err(error) if task == Task::Commit && error.kind() == Kind::Faulty => {}
            Err(_) => {
                self.uploaded = None;
                self.tried = None;
                self.again.later();
            }
        }
    }
}

impl Publisher {
    /// Runs until the mount ends.
    pub async fn run(self: Arc<Self>) {
        let mut changes = self.spool.changed();
        let mut known: HashMap<Uuid, Attention> = HashMap::new();
        let mut tasks: JoinSet<Ended> = JoinSet::new();
        let mut sweep = Again::now();
        loop {
            changes.borrow_and_update();
            let (next, is_gone) = self.look_around(&mut known, &mut tasks).await;
            if is_gone {
                sweep = Again::now();
            }
            if sweep.left().is_some_and(|left| left.is_zero()) {
                sweep.at = None;
                let this = self.clone();
                tasks.spawn(async move { Ended::Sweep(this.sweep().await) });
            }
            let due = async {
                match next.into_iter().chain(sweep.left()).min() {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                told = changes.changed() => {
                    if told.is_err() {
                        return;
                    }
                    tokio::time::sleep(PAUSE).await;
                }
                Some(ended) = tasks.join_next() => match ended {
                    Ok(Ended::Sweep(Ok(()))) => sweep = Again { at: sweep.at, ..Again::never() },
                    Ok(Ended::Sweep(Err(_))) => sweep.later(),
                    Ok(Ended::Task(uuid, task, outcome)) => {
                        if let Some(attention) = known.get_mut(&uuid) {
                            attention.ended(task, &outcome);
                        }
                    }
                    Err(error) => tracing::error!(%error, "work in the background broke off"),
                },
                () = self.leftovers.notified() => sweep.later(),
                () = due => {}
            }
        }
    }

    /// Begins what is due. Says when the next thing is, and whether a batch is gone.
    async fn look_around(
        self: &Arc<Self>,
        known: &mut HashMap<Uuid, Attention>,
        tasks: &mut JoinSet<Ended>,
    ) -> (Option<Duration>, bool) {
        let spool = self.spool.clone();
        let mut batches = blocking(move || spool.batches()).await.unwrap_or_default();
        // What is hidden or litter is left alone until somebody gives it another name.
        batches.retain(|batch| !matches!(class(&batch.name), Class::Hidden | Class::Litter));
        let before = known.len();
        known.retain(|uuid, _| batches.iter().any(|batch| batch.origin.batch == *uuid));
        let is_gone = known.len() < before;
        let mut next: Option<Duration> = None;
        for batch in batches {
            let uuid = batch.origin.batch;
            let attention = known.entry(uuid).or_insert_with(Attention::new);
            let (task, due) = self.next_task(&batch, attention);
            next = next.into_iter().chain(due).min();
            let Some(task) = task else { continue };
            attention.busy = true;
            let this = self.clone();
            tasks.spawn(async move {
                let outcome = this.work_on(&batch, task).await;
                if task == Task::Commit {
                    this.note_held_back(uuid, &outcome);
                }
                if let Err(error) = &outcome {
                    tracing::warn!(batch = batch.name, %error, "work in the background failed");
                }
                Ended::Task(uuid, task, outcome)
            });
        }
        (next, is_gone)
    }

    /// What is due for a batch, else when it has to be looked at again.
    fn next_task(
        &self,
        batch: &Batch,
        attention: &mut Attention,
    ) -> (Option<Task>, Option<Duration>) {
        if attention.busy || self.is_published(batch) {
            return (None, None);
        }
        if let Some(left) = attention.again.left().filter(|left| !left.is_zero()) {
            return (None, Some(left));
        }
        let activity = self.spool.activity(batch);
        let last = activity.last_change;
        let quiet = last.elapsed();
        let mut next: Option<Duration> = None;
        let mut wait = |left: Duration| next = next.into_iter().chain([left]).min();
        if let Some(after) = self.options.auto_commit
            && attention.tried != Some(last)
            && activity.open == 0
        {
            let after = if activity.is_being_made { after * WHILE_MADE } else { after };
            if quiet >= after {
                attention.tried = Some(last);
                return (Some(Task::Commit), None);
            }
            let left = after.saturating_sub(quiet);
            // That a process ends is not told.
            wait(if activity.is_being_made { left.min(LOOK_AGAIN) } else { left });
        }
        if attention.uploaded == Some(last) {
            return (None, next);
        }
        let delay = self.delay();
        if quiet >= delay {
            attention.uploaded = Some(last);
            return (Some(Task::UploadAll), None);
        }
        wait(delay.saturating_sub(quiet));
        if attention.read.is_none_or(|read| read < last) {
            let since = attention.read.map_or(BETWEEN_READS, |read| read.elapsed());
            if since >= BETWEEN_READS {
                attention.read = Some(Instant::now());
                return (Some(Task::UploadSome), None);
            }
            wait(BETWEEN_READS.saturating_sub(since));
        }
        (None, next)
    }

    /// Lets whoever looks at a batch know why it was not committed by itself.
    pub(super) fn note_held_back<T>(&self, batch: Uuid, outcome: &Result<T>) {
        let why = outcome.as_ref().err().map(Error::chain);
        let works = self.works.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(work) = works.get(&batch) {
            work.hold_back(why);
        }
    }

    /// Whether a batch only waits for being taken off the staging disk: the sweep does that.
    fn is_published(&self, batch: &Batch) -> bool {
        let works = self.works.lock().unwrap_or_else(PoisonError::into_inner);
        let work = works.get(&batch.origin.batch);
        work.is_some_and(|work| work.state(|state| state.published.is_some()))
    }

    fn delay(&self) -> Duration {
        self.options.upload_delay.max(YOUNGEST)
    }

    async fn work_on(&self, batch: &Batch, task: Task) -> Result<()> {
        match task {
            Task::Commit => {
                let published = self.publish(&batch.name, By::Quiet).await?;
                self.clean_up(published).await;
                Ok(())
            }
            Task::UploadSome | Task::UploadAll => self.upload_quiet(batch, task).await,
        }
    }

    /// Uploads the files of a batch that have been left alone for a while: large ones at once, small
    /// ones when they fill an object, or when the whole batch is quiet.
    async fn upload_quiet(&self, batch: &Batch, task: Task) -> Result<()> {
        let work = self.work(batch.origin.batch)?;
        // A commit uploads what is missing itself.
        let Ok(_turn) = work.turn.try_lock() else { return Ok(()) };
        if work.gone.load(Ordering::Acquire) || work.state(|state| state.tried.is_some()) {
            return Ok(());
        }
        let newest = self.table.newest().await?;
        let plan = self.plan(batch, &newest).await?;
        self.keep_referred(&work, &plan).await?;
        let waiting = self.quiet_files(&plan);
        let waiting = waiting
            .into_iter()
            .filter(|(_, print)| work.state(|state| !state.stored.contains_key(print)));
        let mut groups = upload::groups(waiting);
        if task == Task::UploadSome {
            groups.retain(upload::is_full);
        }
        if groups.is_empty() {
            return Ok(());
        }
        let stored = upload::store(&self.deposit, &work.journal, groups, &work.progress).await;
        match stored {
            // Somebody writes on: it is uploaded when that has ended.
            Err(error) if error.kind() == Kind::Busy => Ok(()),
            stored => stored,
        }
    }

    /// Files that nobody has open for writing and that have not changed for a while.
    fn quiet_files(&self, plan: &Plan) -> Vec<upload::Waiting> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let quiet_before = now.saturating_sub(self.delay());
        let payloads = plan.payloads();
        let files = payloads.filter_map(|payload| match &payload.source {
            Source::File { len: 1.., fingerprint } => Some((payload.file.clone(), *fingerprint)),
            _ => None,
        });
        files
            // What no store takes is a fault of the batch: the commit says so.
            .filter(|(_, print)| self.deposit.limits().check(print.len).is_ok())
            .filter(|(path, print)| {
                let (seconds, ns) = print.ctime;
                let seconds = u64::try_from(seconds).unwrap_or(0);
                let changed = Duration::new(seconds, u32::try_from(ns).unwrap_or(0));
                changed <= quiet_before && !self.spool.is_written(path)
            })
            .collect()
    }
}
