//! Runs an operation and answers its request.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::FutureExt as _;
use tokio::runtime::Handle;
use tracing::Instrument as _;

use crate::error::{Error, Kind, Result};
use crate::fs::{Counter, Fs};
use crate::units::Ino;

/// Where operations run.
#[derive(Clone)]
pub struct Answering {
    /// What they are operations of.
    pub fs: Arc<Fs>,
    /// Where those that wait are moved to.
    pub runtime: Handle,
    /// How long one may take, all retries included.
    pub timeout: Duration,
}

/// What a request is about, for the log and for `user.lancefs.error`.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The operation.
    pub operation: &'static str,
    /// The node it is for.
    pub ino: Ino,
    /// How long it may take.
    pub patience: Patience,
}

/// How long a request may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// As long as [`Answering::timeout`].
    Timeout,
    /// As long as it takes: a commit, a sync, a copy. Who asked knows that it may be long.
    Endless,
}

impl Request {
    /// A request that must be answered in time.
    pub fn new(operation: &'static str, ino: Ino) -> Self {
        Self { operation, ino, patience: Patience::Timeout }
    }

    /// A request that may take as long as it takes.
    pub fn patient(operation: &'static str, ino: Ino) -> Self {
        Self { operation, ino, patience: Patience::Endless }
    }
}

impl Answering {
    /// Polls an operation once on this thread and answers if it is ready; else moves it to the
    /// runtime, where it has as long as the request allows. `answer` is called exactly once.
    pub fn run<T, F, A>(&self, request: Request, operation: F, answer: A)
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
        A: FnOnce(Result<T>) + Send + 'static,
    {
        self.fs.counters().add(Counter::Requests, 1);
        let _in_runtime = self.runtime.enter();
        let mut operation = Box::pin(operation);
        let mut context = Context::from_waker(Waker::noop());
        let first =
            std::panic::catch_unwind(AssertUnwindSafe(|| operation.as_mut().poll(&mut context)));
        match first {
            Ok(Poll::Ready(result)) => answer(self.noted(request, result)),
            Err(_) => answer(self.noted(request, Err(panicked(request)))),
            Ok(Poll::Pending) => {
                let this = self.clone();
                let span = tracing::debug_span!("request", request.operation, ino = %request.ino);
                let waits = async move {
                    let caught = AssertUnwindSafe(operation).catch_unwind();
                    let in_time = match request.patience {
                        Patience::Timeout => tokio::time::timeout(this.timeout, caught).await,
                        Patience::Endless => Ok(caught.await),
                    };
                    let result = match in_time {
                        Ok(Ok(result)) => result,
                        Ok(Err(_)) => Err(panicked(request)),
                        Err(_) => Err(late(request, this.timeout)),
                    };
                    answer(this.noted(request, result));
                };
                self.runtime.spawn(waits.instrument(span));
            }
        }
    }

    /// Does an operation here and now, and answers. It must not wait for the network.
    pub fn run_here<T>(
        &self,
        request: Request,
        operation: impl FnOnce() -> Result<T>,
        answer: impl FnOnce(Result<T>),
    ) {
        self.fs.counters().add(Counter::Requests, 1);
        let done = std::panic::catch_unwind(AssertUnwindSafe(operation));
        answer(self.noted(request, done.unwrap_or_else(|_| Err(panicked(request)))));
    }

    fn noted<T>(&self, request: Request, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.fs.failed(request.operation, request.ino, error);
        }
        result
    }
}

fn panicked(request: Request) -> Error {
    Error::new(Kind::Internal, format!("{} panicked", request.operation))
}

fn late(request: Request, timeout: Duration) -> Error {
    let seconds = timeout.as_secs_f64();
    Error::new(Kind::Timeout, format!("{}: no answer within {seconds} s", request.operation))
}
