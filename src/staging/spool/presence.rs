//! Who is at a batch: the processes that made something in it, and its directories that are open.
//!
//! A batch that is only quiet may be half of a copy whose source is slow. What tells the two apart is
//! the process: `cp` ends when it is done. A process that was there before the mount, such as a
//! desktop or a shell, never tells that way and is not counted.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::Spool;
use crate::units::Ino;

/// Processes by number, with when they started.
type Makers = HashMap<u32, Started>;

/// When a process started, in ticks since the machine did.
type Started = u64;

/// So many processes of a batch are kept without a look at which have ended.
const MANY: usize = 64;

/// What is known of who is at batches.
#[derive(Debug)]
pub struct Presence {
    makers: Mutex<HashMap<Arc<str>, Makers>>,
    directories: Mutex<HashMap<Ino, u64>>,
    /// When this process started.
    since: Option<Started>,
}

impl Presence {
    /// Nobody has come yet.
    pub fn new() -> Self {
        let since = started(std::process::id());
        Self { makers: Mutex::default(), directories: Mutex::default(), since }
    }

    /// Notes that a process made something in a batch.
    pub fn made(&self, batch: &Arc<str>, by: u32) {
        let mut makers = self.makers.lock().unwrap_or_else(PoisonError::into_inner);
        let makers = makers.entry(batch.clone()).or_default();
        if makers.contains_key(&by) {
            return;
        }
        if makers.len() >= MANY {
            makers.retain(|pid, since| started(*pid) == Some(*since));
        }
        if let Some(started) = started(by) {
            makers.insert(by, started);
        }
    }

    /// Whether a process that made something in a batch still runs.
    pub fn is_at(&self, batch: &str) -> bool {
        let mut makers = self.makers.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(makers) = makers.get_mut(batch) else { return false };
        makers.retain(|pid, since| started(*pid) == Some(*since));
        makers.values().any(|started| Some(*started) > self.since)
    }

    /// Forgets a batch that is gone.
    pub fn forget(&self, batch: &str) {
        self.makers.lock().unwrap_or_else(PoisonError::into_inner).remove(batch);
    }

    /// The directories that are open.
    pub fn directories(&self) -> Vec<Ino> {
        let directories = self.directories.lock().unwrap_or_else(PoisonError::into_inner);
        directories.keys().copied().collect()
    }
}

/// When a process started; `None` where it does not run, or is not seen from here.
fn started(pid: u32) -> Option<Started> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Its name stands in parentheses, and may hold anything; the 22nd field is wanted.
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace();
    let is_dead = matches!(fields.next(), Some("Z" | "X"));
    fields.nth(18)?.parse().ok().filter(|_| !is_dead)
}

/// A directory that is open.
#[derive(Debug)]
pub struct OpenDirectory {
    spool: Arc<Spool>,
    ino: Ino,
}

impl OpenDirectory {
    /// Counts as open until it is dropped.
    pub fn new(spool: Arc<Spool>, ino: Ino) -> Self {
        let mut open = spool.presence.directories.lock().unwrap_or_else(PoisonError::into_inner);
        *open.entry(ino).or_default() += 1;
        drop(open);
        Self { spool, ino }
    }
}

impl Drop for OpenDirectory {
    fn drop(&mut self) {
        let directories = &self.spool.presence.directories;
        let mut open = directories.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.ino) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.ino);
            }
        }
        drop(open);
        // Somebody may wait for that.
        self.spool.batches.tell();
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_at_a_batch_until_it_ends() {
        let (presence, batch) = (Presence::new(), Arc::from("b"));
        presence.made(&batch, std::process::id());
        assert!(!presence.is_at("b"), "it was there before");
        // Ticks are hundredths of a second.
        std::thread::sleep(std::time::Duration::from_millis(30));
        let mut copier = Command::new("sleep").arg("60").spawn().unwrap();
        presence.made(&batch, copier.id());
        assert!(presence.is_at("b") && !presence.is_at("c"));
        copier.kill().unwrap();
        copier.wait().unwrap();
        assert!(!presence.is_at("b"));
    }
}
