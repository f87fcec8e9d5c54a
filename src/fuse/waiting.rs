//! How long who asks for a commit waits for it: until it has ended, or the mount's deadline, or a signal
//! that is to end the process that waits.
//!
//! 1. The kernel tells a file system of signals (`FUSE_INTERRUPT`), and fuser does not pass that on
//!    (0.18.0, `src/request.rs:117`: it answers that it knows no such request, and the kernel never
//!    asks again). A process that waits for us keeps a signal that it was sent, so it is asked for
//!    those itself ([`told_to_end`]).
//! 2. A program may be sent signals that mean nothing of that kind, such as those by which a runtime
//!    takes turns: only those count that ask for an end ([`ENDING`]). One that ends a process without
//!    its help is SIGKILL for each of its threads.
//! 3. What was asked for goes on: it is a task of its own (`publish::asked`).

use std::time::Duration;

use rustix::process::Signal;

use crate::error::{Error, Kind, Result};

/// How often a process is asked for its signals.
const LOOK: Duration = Duration::from_millis(100);
/// Signals by which somebody, or the process itself, says that it is to wait no longer.
const ENDING: [Signal; 6] =
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::KILL, Signal::ALARM, Signal::TERM];
/// What is told to who waits no longer.
const GOES_ON: &str = "the commit goes on, and the batch leaves staging/ when it is published; \
                       user.lancefs.progress tells how far it is, .lancefs/commits.jsonl how it ends";

/// Waits for work that goes on without being waited for. `caller` is the thread that waits in the
/// kernel, 0 where it is not known.
///
/// # Errors
/// [`Kind::Continues`] at the deadline, [`Kind::Interrupted`] by a signal, and those of the work.
pub async fn wait<T>(
    work: impl Future<Output = Result<T>>,
    deadline: Duration,
    caller: u32,
) -> Result<T> {
    tokio::select! {
        biased;
        done = work => done,
        () = told_to_end(caller) => {
            Err(Error::new(Kind::Interrupted, format!("interrupted: {GOES_ON}")))
        }
        () = tokio::time::sleep(deadline) => {
            let seconds = deadline.as_secs_f64();
            Err(Error::new(Kind::Continues, format!("not done within {seconds} s: {GOES_ON}")))
        }
    }
}

/// Returns when a thread has been sent a signal that is to end it.
async fn told_to_end(caller: u32) {
    loop {
        tokio::time::sleep(LOOK).await;
        // A process of another namespace, or one that hides, has nothing to tell.
        let told = std::fs::read_to_string(format!("/proc/{caller}/status"));
        if told.is_ok_and(|status| is_to_end(&status)) {
            return;
        }
    }
}

/// Whether a process with this `/proc/<pid>/status` has such a signal and does not hold it off.
fn is_to_end(status: &str) -> bool {
    let set = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
    };
    let waiting = (set("SigPnd") | set("ShdPnd")) & !set("SigBlk");
    ENDING.iter().any(|signal| waiting & (1 << (signal.as_raw() - 1)) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_are_to_end_a_process_are_told_from_others() {
        let status = |own: u64, shared: u64, blocked: u64| {
            format!(
                "Name:\tmv\nSigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t{blocked:016x}\n"
            )
        };
        let (int, kill, child, urgent) = (1 << 1, 1 << 8, 1 << 16, 1 << 22);
        for (told, expected) in [
            (status(0, 0, 0), false),
            (status(kill, 0, 0), true),
            (status(0, int, 0), true),
            (status(0, int, int), false),
            (status(urgent, child, 0), false),
            (String::new(), false),
        ] {
            assert_eq!(is_to_end(&told), expected, "{told}");
        }
    }

    #[tokio::test]
    async fn a_thread_that_has_no_such_signal_waits_until_the_deadline() {
        let caller = std::process::id();
        let never = std::future::pending::<Result<()>>();
        let error = wait(never, LOOK * 2, caller).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Continues, "{error}");
        assert_eq!(wait(async { Ok(1) }, LOOK, caller).await.unwrap(), 1);
    }
}
