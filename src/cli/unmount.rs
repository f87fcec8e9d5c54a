//! `lancefs unmount`.

use std::path::Path;
use std::time::{Duration, Instant};

use super::args::UnmountArgs;
use super::{Exit, mount as command, output, status};
use crate::error::{Error, Kind, Result};
use crate::fuse::mount::{self, How};

/// How long the daemon is waited for, once its mount is gone.
const DAEMON_ENDS: Duration = Duration::from_secs(10);

/// Runs the command.
pub fn run(args: &UnmountArgs) -> Result<Exit> {
    let mountpoint = command::resolved(&args.mountpoint)?;
    if !mount::mounts()?.iter().any(|mount| mount.mountpoint == mountpoint) {
        output::remark(format_args!("nothing is mounted at {}", mountpoint.display()));
        return Ok(Exit::Success);
    }
    let daemon = status::daemon(&mountpoint);
    let how = if args.lazy || daemon.is_none() { How::Lazily } else { How::IfIdle };
    if let Err(error) = mount::unmount(&mountpoint, how) {
        return busy(&mountpoint, error);
    }
    if let (Some(pid), How::IfIdle) = (daemon, how) {
        wait_for(pid);
    }
    Ok(Exit::Success)
}

fn busy(mountpoint: &Path, error: Error) -> Result<Exit> {
    let users = mount::users(mountpoint);
    if users.is_empty() {
        return Err(error);
    }
    let list: Vec<_> = users.iter().map(|(pid, name)| format!("{name} ({pid})")).collect();
    let text = format!(
        "{} is in use by {}; end them, or use --lazy",
        mountpoint.display(),
        list.join(", ")
    );
    output::complain(&Error::new(Kind::Invalid, text));
    Ok(Exit::Busy)
}

/// Waits until a process has ended. One that its parent has not reaped yet is still listed.
fn wait_for(pid: u64) {
    let stat = Path::new("/proc").join(pid.to_string()).join("stat");
    let deadline = Instant::now() + DAEMON_ENDS;
    while std::fs::read_to_string(&stat).is_ok_and(|stat| runs(&stat)) && Instant::now() < deadline
    {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whether a line of `/proc/<pid>/stat` is of a process that is no zombie; its state follows its
/// name, which is in parentheses and may hold any character.
fn runs(stat: &str) -> bool {
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}
