//! Looks at a mount from outside, which ask its daemon and may never be answered.
//!
//! Whoever asks the daemon of a mount and gets no answer can be neither interrupted nor ended, once the
//! daemon has read the request: that is the kernel's rule for FUSE. So:
//!
//! 1. Another process looks, for a few seconds; if it hangs then, it is left to itself ([`ask`]).
//! 2. Who does not answer is found without asking: the kernel says in `fdinfo` which process has the
//!    device of a mount open ([`daemons`]).

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::io::Errno;

use super::mounts;
use crate::tree;

/// How long a daemon has to answer.
const DEADLINE: Duration = Duration::from_secs(3);
/// Tells this program that it is to look at the mount of this path.
const LOOK: &str = "_LANCEFS_LOOK";
/// What the other process ends with where the daemon has died, and where its status cannot be read.
const DEAD: u8 = 3;
const UNREADABLE: u8 = 4;

/// What a look found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The daemon answers; the text of its status, if that could be read.
    Alive(Option<Vec<u8>>),
    /// There is no daemon any more.
    Dead,
    /// No answer came in time from these processes.
    Silent(Vec<u32>),
}

/// Looks at the mount of ours at a mountpoint.
pub fn ask(mountpoint: &Path) -> Seen {
    let child = Command::new("/proc/self/exe")
        .env(LOOK, mountpoint)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    // Where no process can be started, nothing is known to be wrong with the mount.
    let Ok(mut child) = child else { return Seen::Alive(None) };
    let (tell, told) = mpsc::channel();
    let pid = child.id();
    std::thread::spawn(move || {
        let mut text = Vec::new();
        if let Some(mut output) = child.stdout.take() {
            // What is cut off is no status.
            let _ = output.read_to_end(&mut text);
        }
        let _ = tell.send((child.wait().ok().and_then(|status| status.code()), text));
    });
    match told.recv_timeout(DEADLINE) {
        Ok((Some(0), text)) => Seen::Alive(Some(text)),
        Ok((Some(code), _)) if code == i32::from(DEAD) => Seen::Dead,
        Ok(_) => Seen::Alive(None),
        Err(_) => {
            // It ends unless the daemon has read what it asked.
            if let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
            Seen::Silent(daemons(mountpoint))
        }
    }
}

/// Looks, where this process was started to do that.
pub fn look_for_another() -> Option<ExitCode> {
    let mountpoint = PathBuf::from(std::env::var_os(LOOK)?);
    // Attributes would come from the kernel's memory for a while.
    let dead = [Errno::NOTCONN, Errno::CONNABORTED];
    if rustix::fs::statfs(&mountpoint).is_err_and(|errno| dead.contains(&errno)) {
        return Some(ExitCode::from(DEAD));
    }
    let text = std::fs::read(mountpoint.join(tree::CONTROL).join(tree::STATUS));
    let shown = text.and_then(|text| std::io::stdout().write_all(&text));
    Some(shown.map_or(ExitCode::from(UNREADABLE), |()| ExitCode::SUCCESS))
}

/// The processes that have the device of a mount open.
pub fn daemons(mountpoint: &Path) -> Vec<u32> {
    let mounts = mounts().unwrap_or_default();
    // The one on top came last.
    let Some(mount) = mounts.iter().rfind(|mount| mount.mountpoint == mountpoint) else {
        return Vec::new();
    };
    let wanted = mount.connection;
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let serves = |process: &Path| {
        let files = std::fs::read_dir(process.join("fdinfo")).into_iter().flatten().flatten();
        files.filter_map(|file| std::fs::read_to_string(file.path()).ok()).any(|info| {
            let number = info.lines().find_map(|line| line.strip_prefix("fuse_connection:"));
            number.and_then(|number| number.trim().parse().ok()) == Some(wanted)
        })
    };
    processes
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())))
        .filter(|(_, process)| serves(process))
        .map(|(pid, _)| pid)
        .collect()
}

/// What to do about processes that do not answer.
pub fn silence(mountpoint: &Path, pids: &[u32]) -> String {
    let who: Vec<_> = pids.iter().map(|pid| format!("pid {pid}")).collect();
    let who = if who.is_empty() { "a process that is not seen".to_owned() } else { who.join(", ") };
    let shown = mountpoint.display();
    format!(
        "the daemon of the mount at {shown} ({who}) does not answer: it may be stopped (kill -CONT), or its \
         machine or disk may hang; lancefs unmount --lazy {shown} takes the mount away without it"
    )
}
