//! A process that decodes, from our side: it is asked for scans, and its reads are done for it.
//!
//! 1. It may end at any moment: whoever waits for it then is told so ([`Scans::end`]).
//! 2. Whether a scan failed because of what was read or because it could not be read decides for how
//!    long its failure is believed. The worker knows of a read only that it failed; we know why, so
//!    the failure is kept here ([`Open::failed`]).

use std::collections::HashMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use lance::Dataset;
use object_store::path::Path as StorePath;
use object_store::{Error as StoreError, GetOptions, GetRange};
use rustix::process::Signal;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::OwnedReadHalf;
use tokio::process::{Child, ChildStderr, Command};
use tokio::sync::mpsc::{UnboundedSender, WeakUnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::wire::{self, Answer, Ask, Done, Failure, Read, Reply, Said, Scan, Told};
use super::worker::{WORKER, memory_limit};
use crate::error::{IoContext as _, Kind, Result};

/// How much of what a process wrote last is kept, in bytes.
const WORDS: usize = 4 << 10;

/// Why there is no batch.
#[derive(Debug)]
pub enum Refusal {
    /// A file could not be read.
    Unread(StoreError),
    /// Its bytes make no sense.
    Undecoded(String),
}

/// A batch as an Arrow IPC stream, or why there is none.
pub type Outcome = Result<Bytes, Refusal>;

/// How a process ended.
#[derive(Clone, Debug)]
pub struct Death {
    /// Nobody killed it.
    pub is_by_itself: bool,
    said: String,
}

impl Death {
    fn new(status: ExitStatus, words: &[u8]) -> Self {
        let killed = [Signal::KILL, Signal::TERM].map(|signal| Some(signal.as_raw()));
        let words = String::from_utf8_lossy(words);
        let is_said = |line: &&str| !line.is_empty() && !line.starts_with("note:");
        let last = words.lines().map(str::trim).rfind(is_said);
        let said = last.map_or_else(|| status.to_string(), str::to_owned);
        Self { is_by_itself: !killed.contains(&status.signal()), said }
    }

    fn unseen() -> Self {
        Self { is_by_itself: false, said: "its end was not seen".to_owned() }
    }
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.said)
    }
}

/// A scan that is under way.
struct Open {
    tell: oneshot::Sender<Outcome>,
    files: Arc<Dataset>,
    /// The last read that failed.
    failed: Option<StoreError>,
}

/// The scans that are under way; none any more once their process has ended.
struct Scans(Mutex<Result<HashMap<u64, Open>, Death>>);

impl Scans {
    fn change<T>(&self, change: impl FnOnce(&mut HashMap<u64, Open>) -> T) -> Result<T, Death> {
        let mut scans = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        scans.as_mut().map(change).map_err(|death| death.clone())
    }

    fn end(&self, death: Death) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Err(death);
    }
}

/// A process that decodes. It ends when this is dropped.
pub struct Process {
    asks: UnboundedSender<Told>,
    scans: Arc<Scans>,
}

impl Process {
    /// Starts one, from a runtime.
    ///
    /// # Errors
    /// [`Kind::Internal`] where there are too many processes or descriptors.
    pub fn start(program: &Path) -> Result<Self> {
        let what = || "start a decoder".to_owned();
        let (ours, theirs) = StdStream::pair().context(Kind::Internal, what)?;
        let mut child = Command::new(program)
            .arg0("lancefs-decoder")
            .env(WORKER, "1")
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // What a terminal tells the mount is not for it: the mount needs it to its end.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .context(Kind::Internal, what)?;
        let (reader, writer) = wire::socket(ours).context(Kind::Internal, what)?.into_split();
        let (asks, asked) = unbounded_channel();
        let scans = Arc::new(Scans(Mutex::new(Ok(HashMap::new()))));
        let ear = Ear { scans: scans.clone(), asks: asks.downgrade(), death: None };
        let words = tokio::spawn(last_words(child.stderr.take()));
        tokio::spawn(wire::pass_on(asked, writer));
        tokio::spawn(ear.listen(reader, child, words));
        Ok(Self { asks, scans })
    }

    /// Whether it can be asked.
    pub fn is_alive(&self) -> bool {
        self.scans.change(|_| ()).is_ok()
    }

    /// Has a scan done; `files` are where its reads go.
    ///
    /// # Errors
    /// Where the process ends before it is done.
    pub async fn run(&self, scan: Scan, files: Arc<Dataset>) -> Result<Outcome, Death> {
        let (tell, told) = oneshot::channel();
        let open = Open { tell, files, failed: None };
        self.scans.change(|scans| scans.insert(scan.id, open))?;
        // Where this fails, so does what waits for the answer.
        let _ = self.asks.send(Told { ask: Some(Ask::Scan(scan)) });
        match told.await {
            Ok(outcome) => Ok(outcome),
            Err(_) => Err(self.scans.change(|_| ()).err().unwrap_or_else(Death::unseen)),
        }
    }
}

/// What hears a process to its end.
struct Ear {
    scans: Arc<Scans>,
    asks: WeakUnboundedSender<Told>,
    death: Option<Death>,
}

impl Drop for Ear {
    fn drop(&mut self) {
        self.scans.end(self.death.take().unwrap_or_else(Death::unseen));
    }
}

impl Ear {
    async fn listen(
        mut self,
        mut socket: OwnedReadHalf,
        mut child: Child,
        words: JoinHandle<Vec<u8>>,
    ) {
        while let Ok(Some(Said { reply })) = wire::receive(&mut socket, memory_limit()).await {
            match reply {
                Some(Reply::Done(done)) => self.finish(done),
                Some(Reply::Read(read)) => self.serve(read),
                None => {}
            }
        }
        // It has ended, or what it says makes no sense any more.
        let _ = child.start_kill();
        let words = words.await.unwrap_or_default();
        self.death = child.wait().await.ok().map(|status| Death::new(status, &words));
    }

    fn finish(&self, done: Done) {
        let Ok(Some(open)) = self.scans.change(|scans| scans.remove(&done.scan)) else { return };
        let outcome = match (done.failure, open.failed) {
            (None, _) => Ok(done.batch),
            (Some(_), Some(error)) => Err(Refusal::Unread(error)),
            (Some(text), None) => Err(Refusal::Undecoded(text)),
        };
        let _ = open.tell.send(outcome);
    }

    fn serve(&self, read: Read) {
        let files = self.scans.change(|scans| scans.get(&read.scan).map(|open| open.files.clone()));
        let (scans, asks) = (self.scans.clone(), self.asks.clone());
        tokio::spawn(async move {
            let answer = match files {
                Ok(Some(files)) => fetch(&files, &read).await,
                // The decoder read ahead for a scan that is done.
                _ => Err((generic(format!("scan {} is done", read.scan).into()), false)),
            };
            let answer = answer.unwrap_or_else(|(error, is_broken_off)| {
                let is_missing = matches!(error, StoreError::NotFound { .. });
                let failure = Failure { is_missing, is_broken_off, text: error.to_string() };
                let _ = scans.change(|scans| {
                    scans.get_mut(&read.scan).map(|open| open.failed = Some(error))
                });
                Answer { failure: Some(failure), ..Answer::default() }
            });
            let answer = Answer { read: read.id, ..answer };
            if let Some(asks) = asks.upgrade() {
                let _ = asks.send(Told { ask: Some(Ask::Answer(answer)) });
            }
        });
    }
}

/// Does a read. A failure comes with whether it had begun to answer.
async fn fetch(files: &Dataset, read: &Read) -> Result<Answer, (StoreError, bool)> {
    let before = |error| (error, false);
    let store = files.object_store(read.base).await;
    let store = store.map_err(|error| before(generic(error.into())))?;
    let path = StorePath::parse(&read.path).map_err(StoreError::from).map_err(before)?;
    let range = match (read.start, read.end, read.last) {
        (_, _, Some(last)) => Some(GetRange::Suffix(last)),
        (Some(start), Some(end), None) => Some(GetRange::Bounded(start..end)),
        (Some(start), None, None) => Some(GetRange::Offset(start)),
        (None, ..) => None,
    };
    let options = GetOptions { range, head: read.head, ..GetOptions::default() };
    let found = store.inner.get_opts(&path, options).await.map_err(before)?;
    let (size, start) = (found.meta.size, found.range.start);
    if read.head {
        return Ok(Answer { size, start, ..Answer::default() });
    }
    if found.range.end - start > memory_limit() {
        let source = format!("{} bytes of {path} at once", found.range.end - start).into();
        return Err(before(generic(source)));
    }
    let bytes = found.bytes().await.map_err(|error| (error, true))?;
    Ok(Answer { size, start, bytes, ..Answer::default() })
}

fn generic(source: Box<dyn std::error::Error + Send + Sync>) -> StoreError {
    StoreError::Generic { store: "a decoder's reads", source }
}

/// Hears what a process writes, to its end, and keeps the last of it.
async fn last_words(stderr: Option<ChildStderr>) -> Vec<u8> {
    let Some(mut stderr) = stderr else { return Vec::new() };
    let mut words = Vec::new();
    while let Ok(1..) = stderr.read_buf(&mut words).await {
        words.drain(..words.len().saturating_sub(WORDS));
    }
    words
}
