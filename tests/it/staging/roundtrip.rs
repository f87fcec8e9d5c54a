//! Rows of every table that the generator writes, copied into a batch by `cp -r` and committed: the
//! new rows are the old ones, as pylance reads them and as the mount shows them.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::harness::{Desk, S3, Tables, enable, folder, names, python, xattr};

/// Everything may be followed: what an External value copies is its bytes.
const FLAGS: [&str; 2] = ["--allow-external", "*"];

fn script(arguments: &[&str]) -> Command {
    let mut command = python();
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tables/roundtrip.py")).args(arguments);
    command
}

/// The tables with Blob v2 in a format that takes Managed payloads, by pylance and not by lancefs.
fn chosen(tables: &Tables) -> Vec<String> {
    let output = script(&["choose", tables.folder.to_str().unwrap()]).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Copies of tables that take Managed payloads.
fn managed_copies(tables: &Tables, names: &[impl AsRef<str>], to: &Path) -> Vec<PathBuf> {
    let copies: Vec<_> = names.iter().map(|name| tables.copy(name.as_ref(), to)).collect();
    enable(&copies);
    copies
}

/// The rows of the newest version whose every cell can be read.
fn whole_rows(tables: &Tables, name: &str) -> Vec<usize> {
    let expected = tables.expected(name);
    let rows = expected["versions"][expected["latest"].to_string()]["rows"].as_array().unwrap();
    let is_whole = |row: &Value| {
        row["files"].as_object().unwrap().values().all(|cell| cell.get("error").is_none())
    };
    (0..rows.len()).filter(|row| is_whole(&rows[*row])).collect()
}

/// Copies rows into a batch, commits it, compares what the mount shows, and gives the job for
/// pylance.
fn copy_rows(desk: &Desk, rows: &[usize], options: &Value) -> Result<Value, String> {
    let before = usize::try_from(desk.rows()).unwrap();
    std::fs::create_dir(desk.staged("copies")).map_err(|e| format!("mkdir: {e}"))?;
    let copied = Command::new("cp")
        .arg("-r")
        .args(rows.iter().map(|row| desk.mount.at(format!("latest/{row}"))))
        .arg(desk.staged("copies"))
        .output()
        .unwrap();
    if !copied.status.success() {
        return Err(format!("cp: {}", String::from_utf8_lossy(&copied.stderr)));
    }
    let moved = Command::new("mv")
        .arg(desk.staged("copies"))
        .arg(desk.mount.at("commit/"))
        .output()
        .unwrap();
    if !moved.status.success() {
        let said = String::from_utf8_lossy(&moved.stderr).into_owned();
        return Err(format!("{said}{}", desk.error("copies")));
    }
    let pairs: Vec<(usize, usize)> = rows.iter().copied().zip(before..).collect();
    if desk.rows() != u64::try_from(before + rows.len()).unwrap() {
        return Err(format!("{} rows, not {before} + {}", desk.rows(), rows.len()));
    }
    for (old, new) in &pairs {
        let at = |row: usize| desk.mount.at(format!("latest/{row}"));
        same_directories(&at(*old), &at(*new))?;
    }
    Ok(json!({ "uri": desk.table, "options": options, "pairs": pairs }))
}

fn same_directories(old: &Path, new: &Path) -> Result<(), String> {
    let (wanted, shown) = (names(old), names(new));
    if wanted != shown {
        return Err(format!("{}: {shown:?}, not {wanted:?}", new.display()));
    }
    for name in wanted {
        let read = |folder: &Path| {
            std::fs::read(folder.join(&name))
                .map_err(|e| format!("{}/{name}: {e}", folder.display()))
        };
        let (wanted, found) = (read(old)?, read(new)?);
        if name == "row.json" {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            if wanted != found {
                let (wanted, found) = (text(&wanted), text(&found));
                return Err(format!("{}: {found}\nnot\n{wanted}", new.display()));
            }
            continue;
        }
        if wanted != found {
            return Err(format!("{}/{name}: other bytes ({})", new.display(), found.len()));
        }
        let kind = xattr(&new.join(&name), "user.lancefs.kind").unwrap_or_default();
        let is_right =
            if found.is_empty() { kind == "inline" } else { kind.starts_with("managed") };
        if !is_right {
            return Err(format!("{}/{name}: {} bytes are {kind}", new.display(), found.len()));
        }
    }
    Ok(())
}

fn compare(jobs: &[Value]) {
    let mut child =
        script(&["compare"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let text = serde_json::to_vec(jobs).unwrap();
    child.stdin.take().unwrap().write_all(&text).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn copied_rows_of_every_table_are_the_same_rows() {
    let (tables, folder) = (Tables::shared(), folder());
    let all = chosen(tables);
    assert!(all.len() >= 55, "{all:?}");
    let copies = managed_copies(tables, &all, folder.path());
    let (jobs, faults) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some((name, copy)) =
                    all.iter().zip(&copies).nth(next.fetch_add(1, Ordering::Relaxed))
                {
                    let desk = Desk::new(copy, &FLAGS);
                    match copy_rows(&desk, &whole_rows(tables, name), &Value::Null) {
                        Ok(job) => jobs.lock().unwrap().push(job),
                        Err(fault) => faults.lock().unwrap().push(format!("{name}: {fault}")),
                    }
                }
            });
        }
    });
    let mut faults = faults.into_inner().unwrap();
    // Nobody can write to a table with a column without a name (lance-core 14.0.2,
    // `datatypes/schema.rs:518`), pylance neither.
    faults.retain(|fault| !fault.starts_with("names_unprojectable: mv: "));
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    compare(&jobs.into_inner().unwrap());
}

#[test]
fn copied_rows_are_the_same_rows_in_an_object_store() {
    let (tables, folder, s3) = (Tables::shared(), folder(), S3::new(&[]));
    let options: Value =
        s3.options().into_iter().map(|(key, value)| (key.to_owned(), Value::from(value))).collect();
    let mut jobs = Vec::new();
    let names = ["scalar", "thresholds", "nested_managed", "list", "types", "types_containers"];
    for (name, copy) in names.iter().zip(managed_copies(tables, &names, folder.path())) {
        s3.put(&copy, name);
        let desk = Desk::remote(&s3, name, &FLAGS);
        let job = copy_rows(&desk, &whole_rows(tables, name), &options);
        jobs.push(job.unwrap_or_else(|fault| panic!("{name}: {fault}")));
        desk.verify();
    }
    compare(&jobs);
}
