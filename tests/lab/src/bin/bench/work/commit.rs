//! Commits: of large files, of many small ones, and the memory of one that is larger than it.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::super::Arguments;
use super::super::data::{BUCKET, Data, noise};
use super::super::report::{Better, Report};
use super::super::systems::{Endpoint, Mount};
use super::limit::{self, Piece};
use super::timed;

/// Ten large files, in MiB each.
const LARGE: (usize, u64) = (10, 256);
/// Many small files, in bytes each.
const SMALL: (usize, u64) = (10_000, 20 << 10);
/// What an object of small files has at the most, in bytes (`src/publish/upload.rs`).
const PACK: u64 = 64 << 20;
/// One file that is larger than the memory that a commit may take, in MiB.
const HUGE: u64 = 4096;
/// What the commit of it may take, in MiB.
const MEMORY: f64 = 300.0;

/// Works that write.
pub fn works(arguments: &Arguments, data: &Data, report: &mut Report, endpoint: &Endpoint) {
    let plain = "plain upload";
    if report.wants("S3, commit of ten files of 256 MiB") {
        let files: Vec<PathBuf> = (0..LARGE.0).map(|n| source(arguments, n, LARGE.1)).collect();
        let pieces: Vec<Piece> = files.iter().map(|file| (file.clone(), 0, LARGE.1 << 20)).collect();
        let mb = LARGE.0 as f64 * LARGE.1 as f64 * 1.048_576;
        for _ in 0..arguments.repeat {
            report.add(plain, mb / upload(data, endpoint, &pieces));
            let (seconds, peak) = commit(arguments, data, endpoint, &files);
            report.add("lancefs", mb / seconds);
            report.add("lancefs, peak MiB", peak);
        }
        report.end("MB/s", Better::More, plain);
    }
    if report.wants("S3, commit of 10,000 files of 20 KiB") {
        let (count, len) = (SMALL.0, SMALL.1);
        let all = source(arguments, 0, LARGE.1);
        let folder = arguments.folder.join("source/small");
        let files: Vec<PathBuf> = (0..count).map(|n| folder.join(format!("{n:05}.bin"))).collect();
        for (n, file) in files.iter().enumerate().filter(|(_, file)| !file.exists()) {
            noise(file, len, n as u64 + 1000);
        }
        let total = count as u64 * len;
        // The same bytes, but one after another: whoever uploads plainly opens one file.
        let pieces: Vec<Piece> = (0..total.div_ceil(PACK))
            .map(|n| (all.clone(), n * PACK, PACK.min(total - n * PACK)))
            .collect();
        for _ in 0..arguments.repeat {
            report.add(plain, total as f64 / 1e6 / upload(data, endpoint, &pieces));
            let (seconds, peak) = commit(arguments, data, endpoint, &files);
            report.add("lancefs", total as f64 / 1e6 / seconds);
            report.add("lancefs, peak MiB", peak);
        }
        report.end("MB/s", Better::More, plain);
    }
    if report.wants("S3, memory of a commit of 4 GiB") {
        let (_, peak) = commit(arguments, data, endpoint, &[source(arguments, 99, HUGE)]);
        report.add("300 MiB", MEMORY);
        report.add("lancefs", peak);
        report.end("MiB", Better::Less, "300 MiB");
    }
}

/// A file to stage, made once.
fn source(arguments: &Arguments, n: usize, mib: u64) -> PathBuf {
    let file = arguments.folder.join(format!("source/{n}-{mib}.bin"));
    if std::fs::metadata(&file).map_or(0, |meta| meta.len()) != mib << 20 {
        noise(&file, mib << 20, n as u64 + 1);
    }
    file
}

fn upload(data: &Data, endpoint: &Endpoint, pieces: &[Piece]) -> f64 {
    let seconds = limit::upload(endpoint, pieces);
    let made = data.root.join(BUCKET).join("objects/upload");
    std::fs::remove_dir_all(made).expect("what was uploaded");
    seconds
}

/// Stages files, one for each row, and commits them; gives the seconds of the commit, and the most
/// memory that the mount has had, in MiB.
fn commit(arguments: &Arguments, data: &Data, endpoint: &Endpoint, files: &[PathBuf]) -> (f64, f64) {
    let table = data.root.join(BUCKET).join("commit.lance");
    for left in [&table, &arguments.folder.join("staging")] {
        let _ = std::fs::remove_dir_all(left);
    }
    make_table(arguments, &table);
    let mount = Mount::writable(arguments, endpoint, "commit");
    let batch = mount.path.join("staging/batch");
    std::fs::create_dir(&batch).expect("staging is on");
    for (n, file) in files.iter().enumerate() {
        std::fs::copy(file, batch.join(format!("{n:05}.bin"))).expect("the disk has room");
    }
    let seconds = timed(|| {
        std::fs::rename(&batch, mount.path.join("commit/batch")).expect("a commit");
    });
    let rows = std::fs::read_to_string(mount.path.join("latest/.version.json")).expect("a version");
    let rows: serde_json::Value = serde_json::from_str(&rows).expect("JSON");
    assert_eq!(rows["rows"].as_u64(), Some(files.len() as u64));
    let peak = mount.peak();
    drop(mount);
    std::fs::remove_dir_all(table).expect("the table");
    (seconds, peak)
}

fn make_table(arguments: &Arguments, table: &Path) {
    let script = "import sys, pyarrow as pa, lance
schema = pa.schema([lance.blob_field('blob')], metadata={'lance.blob.managed': 'true'})
lance.write_dataset(pa.RecordBatchReader.from_batches(schema, []), sys.argv[1], data_storage_version='2.2')";
    let status = Command::new(&arguments.python).args(["-c", script]).arg(table).status();
    assert!(status.expect("python runs").success(), "write a table by pylance");
}
