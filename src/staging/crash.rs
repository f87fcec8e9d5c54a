//! A process that dies at a certain step, so that a test can see what a restart makes of it.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// `STEP` or `STEP:N`: die when the step is reached for the N-th time.
const VARIABLE: &str = "_LANCEFS_CRASH";

/// Where to die, and how often that has to be reached still.
static PLAN: LazyLock<Option<(String, AtomicU64)>> = LazyLock::new(|| {
    let text = std::env::var(VARIABLE).ok()?;
    let (step, count) = text.split_once(':').unwrap_or((&text, "1"));
    Some((step.to_owned(), AtomicU64::new(count.parse().ok()?)))
});

/// Kills the process if it is to die here. Nothing is flushed and nothing is told: it is what
/// SIGKILL at this point would be.
pub fn at(when: &str, step: &str) {
    let Some((wanted, left)) = &*PLAN else { return };
    let is_here = wanted.strip_prefix(when).and_then(|rest| rest.strip_prefix('-')) == Some(step);
    if is_here && left.fetch_sub(1, Ordering::SeqCst) == 1 {
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}
