//! `.lancefs/commits.jsonl`: one line for each commit attempt.

use std::io::Write as _;

use rustix::fs::OFlags;
use serde_json::json;
use uuid::Uuid;

use crate::error::{IoContext as _, Kind, Result};
use crate::private::Folder;
use crate::staging::spool::COMMITS;

/// What came of an attempt.
#[derive(Clone, Debug)]
pub struct Attempt<'a> {
    /// The batch's name when it was committed.
    pub name: &'a str,
    /// Which batch.
    pub batch: Uuid,
    /// The version that holds it, or why none does.
    pub outcome: Result<u64, &'a str>,
    /// Rows that were added, replaced or deleted.
    pub rows: u64,
    /// Bytes of payload that they have, uploaded or adopted.
    pub bytes: u64,
    /// How long the attempt took.
    pub seconds: f64,
}

/// Appends a line, and returns when the disk has it.
///
/// # Errors
/// Where the staging disk fails.
pub fn append(folder: &Folder, attempt: &Attempt<'_>) -> Result<()> {
    let now: chrono::DateTime<chrono::Utc> = std::time::SystemTime::now().into();
    let (version, error) = match attempt.outcome {
        Ok(version) => (Some(version), None),
        Err(error) => (None, Some(error)),
    };
    let mut line = json!({
        "time": now.to_rfc3339_opts(chrono::SecondsFormat::Millis, true),
        "batch": attempt.name,
        "uuid": attempt.batch,
        "rows": attempt.rows,
        "bytes": attempt.bytes,
        "seconds": attempt.seconds,
    });
    if let Some(version) = version {
        line["version"] = version.into();
    }
    if let Some(error) = error {
        line["error"] = error.into();
    }
    let what = || format!("write {COMMITS} in {}", folder.path().display());
    let mut file = folder.open(COMMITS, OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE)?;
    // One write for the line, so that lines of two threads do not mix.
    file.write_all(format!("{line}\n").as_bytes()).context(Kind::Internal, what)?;
    file.sync_data().context(Kind::Internal, what)
}
