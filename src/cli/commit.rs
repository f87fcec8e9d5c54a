//! `lancefs commit`: shows what a batch would do, asks, and waits until it is published.
//!
//! Everything goes through the batch's extended attributes, so a script can do the same with
//! `getfattr` and `setfattr`:
//!
//! ```text
//! user.lancefs.batch       the batch's id, by which its line in .lancefs/commits.jsonl is found
//! user.lancefs.plan        what a commit would do, as JSON (`staging::plan::Summary`)
//! user.lancefs.commit=1    commits; returns when the version is published, or fails
//! user.lancefs.progress    how far that is: {"step", "bytes_done", "bytes_total"}
//! user.lancefs.error       why it failed
//! ```
//!
//! 1. People give paths deeper in a batch, in other file systems, or of a mount that cannot stage: each
//!    has an answer of its own ([`place`]).
//! 2. The kernel holds the request that commits until it is answered: it waits in a thread, and the
//!    progress is asked for beside it ([`publish`]).
//! 3. The mount answers at its `--timeout` at the latest, and the commit goes on: it is asked for again,
//!    which waits for the same one, until the record tells how it ended ([`wait`]).
//! 4. A commit that is under way is not stopped by ending this program: the daemon finishes it.

mod place;

use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use rustix::fs::XattrFlags;
use rustix::io::Errno;
use serde::Deserialize;
use serde_json::{Value, json};

use super::args::CommitArgs;
use super::ask::{Answer, ask};
use super::{Exit, output};
use crate::error::{Error, Kind, Result};
use crate::staging::plan::Summary;
use place::Place;

const BATCH: &str = "user.lancefs.batch";
const PLAN: &str = "user.lancefs.plan";
const COMMIT: &str = "user.lancefs.commit";
const PROGRESS: &str = "user.lancefs.progress";
const ERROR: &str = "user.lancefs.error";
/// The longest value of an attribute that Linux gives, in bytes (`XATTR_SIZE_MAX`).
const VALUE_MAX: usize = 64 << 10;
/// How often the progress is asked for.
const TICK: Duration = Duration::from_millis(100);
/// Where a mount tells what came of commits.
const RECORD: &str = ".lancefs/commits.jsonl";

/// How far a commit is.
#[derive(Debug, Default, Deserialize)]
struct Progress {
    step: String,
    bytes_done: u64,
    bytes_total: u64,
}

/// What came of a commit: its line in the record, and why it failed if it did.
struct Outcome {
    record: Option<Value>,
    failure: Option<(Exit, String)>,
}

/// Runs the command.
pub fn run(args: &CommitArgs) -> Result<Exit> {
    let place = Place::find(&args.path)?;
    let path = place.path();
    let uuid = get(&path, BATCH).map_err(|errno| place.no_batch(errno))?;
    let plan = get(&path, PLAN).map_err(|errno| failed(&path, "plan", errno))?;
    let plan: Summary = serde_json::from_str(&plan).map_err(|e| {
        Error::caused(Kind::Internal, format!("read {PLAN} of {}", path.display()), e)
    })?;
    if !args.json {
        tell(&place, &plan);
    }
    let faulty = plan.faults_total > 0 || !plan.faults.is_empty();
    if faulty || args.dry_run {
        if args.json {
            output::say(format_args!("{:#}", json!({ "plan": plan, "result": null })));
        }
        return Ok(if faulty { Exit::Faults } else { Exit::Success });
    }
    if !args.yes && ask("Commit?", Answer::Yes) == Answer::No {
        return Err(Error::new(Kind::Invalid, "nothing was committed"));
    }
    let outcome = publish(&place, &uuid, &plan);
    if args.json {
        let because = |(_, text): &(Exit, String)| json!({ "error": text });
        let result = outcome.record.or_else(|| outcome.failure.as_ref().map(because));
        output::say(format_args!("{:#}", json!({ "plan": plan, "result": result })));
    } else if outcome.failure.is_none() {
        output::say(published(&place, outcome.record.as_ref()));
    }
    let Some((exit, text)) = outcome.failure else { return Ok(Exit::Success) };
    output::remark(format_args!("{} is not committed: {text}", path.display()));
    Ok(exit)
}

/// The plan and its faults, for people.
fn tell(place: &Place, plan: &Summary) {
    output::say(format_args!("{}: {plan}", place.batch.to_string_lossy()));
    for fault in &plan.faults {
        let field =
            if fault.field.is_empty() { String::new() } else { format!("{}: ", fault.field) };
        output::say(format_args!("{}: {field}{}", fault.place, fault.text));
    }
    let told = crate::units::u64_of(plan.faults.len());
    if let Some(more) = plan.faults_total.checked_sub(told).filter(|more| *more > 0) {
        output::say(format_args!("… and {more} more faults"));
    }
}

/// Commits, with a bar that shows how far it is.
fn publish(place: &Place, uuid: &str, plan: &Summary) -> Outcome {
    let path = place.path();
    let bar = output::bar(
        plan.bytes_upload,
        "{msg:8} {bar:40} {bytes}/{total_bytes} {bytes_per_sec}, {eta} left",
    );
    let (ended, end) = mpsc::channel();
    let committed = std::thread::scope(|scope| {
        scope.spawn(|| {
            // Whoever waits for this waits until it is sent.
            let _ = ended.send(wait(place, uuid));
        });
        loop {
            match end.recv_timeout(TICK) {
                Ok(committed) => return committed,
                Err(RecvTimeoutError::Disconnected) => return Err(Errno::IO),
                Err(RecvTimeoutError::Timeout) => show(&bar, &path),
            }
        }
    });
    bar.finish_and_clear();
    let failure = committed.err().map(|errno| {
        let text = get(&path, ERROR).unwrap_or_else(|_| describe(errno));
        (exit(errno), text)
    });
    Outcome { record: records(&place.mountpoint, uuid).pop(), failure }
}

/// Asks for a commit until it has ended.
fn wait(place: &Place, uuid: &str) -> Result<(), Errno> {
    let path = place.path();
    let before = records(&place.mountpoint, uuid).len();
    loop {
        let asked = rustix::fs::setxattr(&path, COMMIT, b"1", XattrFlags::empty());
        let Err(errno @ (Errno::TIMEDOUT | Errno::NOENT)) = asked else { return asked };
        let since = records(&place.mountpoint, uuid).split_off(before);
        match since.last() {
            Some(line) if line.get("version").is_some() => return Ok(()),
            None if errno == Errno::TIMEDOUT => {}
            _ => return asked,
        }
    }
}

/// Moves the bar to where the commit is.
fn show(bar: &indicatif::ProgressBar, path: &Path) {
    let told = get(path, PROGRESS).ok();
    let Some(progress) = told.and_then(|text| serde_json::from_str::<Progress>(&text).ok()) else {
        return;
    };
    bar.set_length(progress.bytes_total);
    bar.set_position(progress.bytes_done);
    bar.set_message(progress.step);
}

/// The lines about a batch.
fn records(mountpoint: &Path, uuid: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(mountpoint.join(RECORD));
    about(&text.unwrap_or_default(), uuid)
}

fn about(lines: &str, uuid: &str) -> Vec<Value> {
    let parsed = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    parsed.filter(|line| line.get("uuid").and_then(Value::as_str) == Some(uuid)).collect()
}

fn published(place: &Place, record: Option<&Value>) -> String {
    let batch = place.batch.to_string_lossy();
    let number = |key: &str| record.and_then(|record| record.get(key)).and_then(Value::as_u64);
    let Some(version) = number("version") else { return format!("{batch} is committed") };
    let rows = match number("rows").unwrap_or_default() {
        1 => "1 row".to_owned(),
        rows => format!("{rows} rows"),
    };
    let seconds = record.and_then(|record| record.get("seconds")).and_then(Value::as_f64);
    format!(
        "version {version}: {rows}, {} in {:.1} s",
        bytesize::ByteSize(number("bytes").unwrap_or_default()),
        seconds.unwrap_or_default()
    )
}

/// Why an attribute could not be had or set, with the daemon's own words if there are such.
fn failed(path: &Path, verb: &str, errno: Errno) -> Error {
    let text = get(path, ERROR).unwrap_or_else(|_| describe(errno));
    let kind = match exit(errno) {
        Exit::Denied => Kind::Denied,
        Exit::Busy => Kind::Busy,
        _ => Kind::Invalid,
    };
    Error::new(kind, format!("{verb} {}: {text}", path.display()))
}

/// The exit code of a commit that failed so (DESIGN section 2).
fn exit(errno: Errno) -> Exit {
    match errno {
        Errno::UCLEAN => Exit::Faults,
        Errno::BUSY => Exit::Busy,
        Errno::ACCESS | Errno::PERM => Exit::Denied,
        _ => Exit::Failure,
    }
}

fn describe(errno: Errno) -> String {
    match errno {
        Errno::NOTCONN | Errno::CONNABORTED | Errno::NODEV => {
            "the daemon of the mount has died: mount again, and what was begun is settled"
                .to_owned()
        }
        _ => std::io::Error::from(errno).to_string(),
    }
}

fn get(path: &Path, name: &str) -> Result<String, Errno> {
    let mut buffer = vec![0_u8; VALUE_MAX];
    let len = rustix::fs::lgetxattr(path, name, &mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..len]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_of_a_batch_is_its_result() {
        let lines = "{\"uuid\": \"a\", \"error\": \"x\"}\n{\"uuid\": \"b\", \"version\": 3}\nhalf a li\n{\"uuid\": \"a\", \"version\": 4, \"rows\": 2, \"bytes\": 2048, \"seconds\": 0.25}\n{\"uuid\": \"c\"}\n";
        let found = about(lines, "a").pop().unwrap();
        assert_eq!(found["version"], 4);
        assert!(about(lines, "d").is_empty());
        let place = Place { mountpoint: "/m".into(), batch: "b".into() };
        assert_eq!(published(&place, Some(&found)), "version 4: 2 rows, 2.0 KiB in 0.2 s");
        assert_eq!(published(&place, None), "b is committed");
    }
}
