//! `lancefs unmount`.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::args::UnmountArgs;
use super::status::Told;
use super::{Exit, mount as command, output};
use crate::error::{Error, Kind, Result};
use crate::fuse::mount::{self, How, asked};

/// How long the daemon is waited for, once its mount is gone.
const DAEMON_ENDS: Duration = Duration::from_secs(10);

/// Runs the command.
pub fn run(args: &UnmountArgs) -> Result<Exit> {
    let mountpoint = command::resolved(&args.mountpoint)?;
    if !mount::mounts()?.iter().any(|mount| mount.mountpoint == mountpoint) {
        output::remark(format_args!("nothing is mounted at {}", mountpoint.display()));
        return Ok(Exit::Success);
    }
    if args.lazy {
        // Whatever its daemon does.
        mount::unmount(&mountpoint, How::Lazily)?;
        return Ok(Exit::Success);
    }
    if let Some(error) = bound(&mountpoint)? {
        return Err(error);
    }
    let (how, daemon) = match Told::by(&mountpoint) {
        Told::Dead => (How::Lazily, None),
        Told::Status(status) => {
            staged(&status);
            (How::IfIdle, status.get("pid").and_then(Value::as_u64))
        }
        Told::Silent(pids) => {
            let text = asked::silence(&mountpoint, &pids);
            return Err(Error::new(Kind::Busy, text));
        }
    };
    if let Err(error) = mount::unmount(&mountpoint, how) {
        return busy(&mountpoint, error);
    }
    if let Some(pid) = daemon {
        wait_for(pid);
    }
    Ok(Exit::Success)
}

/// Why a mount does not end by being taken away: a folder of it is mounted elsewhere too.
fn bound(mountpoint: &Path) -> Result<Option<Error>> {
    let mounts = mount::mounts()?;
    let ours = mounts.iter().rfind(|mount| mount.mountpoint == mountpoint);
    let elsewhere: Vec<_> = ours
        .into_iter()
        .flat_map(|ours| mounts.iter().filter(|other| other.connection == ours.connection))
        .filter(|other| other.mountpoint != mountpoint)
        .map(|other| other.mountpoint.display().to_string())
        .collect();
    Ok((!elsewhere.is_empty()).then(|| {
        let text = format!(
            "{} is mounted at {} too: unmount that first (umount), or use --lazy",
            mountpoint.display(),
            elsewhere.join(", ")
        );
        Error::new(Kind::Busy, text)
    }))
}

/// Says where batches stay that are not committed.
fn staged(status: &Value) {
    let Some(staging) = status.get("staging") else { return };
    let folder = staging.get("folder").and_then(Value::as_str);
    let names = staging.get("batches").and_then(Value::as_array);
    if let (Some(folder), Some([_, ..])) = (folder, names.map(Vec::as_slice)) {
        let names = names.into_iter().flatten().filter_map(Value::as_str);
        let names = names.collect::<Vec<_>>().join(", ");
        output::remark(format_args!(
            "not committed, and kept in {folder} for the next mount of the table: {names}"
        ));
    }
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
