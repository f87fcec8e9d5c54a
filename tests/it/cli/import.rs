//! `lancefs import`, read back by pylance and through a mount.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Seek as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{
    self, LANCEFS, Mount, Running, eventually, folder, names, run, run_python, sha256, stderr,
    stdout, xattr,
};

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR";

/// A folder with files of every size class, nested, one empty, one with a name that is not ASCII.
struct Files {
    folder: TempDir,
}

impl Files {
    fn new() -> Self {
        let folder = folder();
        let files = Self { folder };
        files.put("in/a.txt", b"hello");
        files.put("in/b/deep/er/packed.bin", &vec![7; 100_000]);
        files.put("in/b/empty", b"");
        files.put("in/c bäd %41.png", PNG);
        files.put("in/dedicated.mp4", &vec![9; 5 << 20]);
        files.put("single.json", b"{}");
        files
    }

    fn put(&self, name: &str, bytes: &[u8]) {
        let path = self.at(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.at(name).to_str().unwrap().to_owned()
    }

    /// Imports with `--json` and gives the report.
    fn import(&self, arguments: &[&str]) -> Value {
        let output = run(&[&["import", "--json"], arguments].concat());
        serde_json::from_str(&stdout(&output)).unwrap()
    }
}

/// The rows as pylance sees them: path, name, size, microseconds, type, SHA-256 of the bytes.
fn rows_by_pylance(table: &str) -> Vec<Value> {
    let printed = run_python(&format!(
        "import hashlib, json
d = lance.dataset({table:?})
columns = ['path', 'name', 'size', 'mtime', 'mime_type']
t = d.to_table(columns=columns)
assert str(t.schema.field('mtime').type) == 'timestamp[us, tz=UTC]', t.schema
us = t['mtime'].cast(pa.int64()).to_pylist()
blobs = d.take_blobs('content', indices=list(range(len(t))))
for i, (row, blob) in enumerate(zip(t.to_pylist(), blobs)):
    row['mtime'] = us[i]
    row['sha256'] = hashlib.sha256(blob.readall()).hexdigest()
    print(json.dumps(row))"
    ));
    printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A table's rows are these files, in this order, by pylance and through a mount.
fn holds(table: &str, files: &[(&Path, &str)]) -> Mount {
    let rows = rows_by_pylance(table);
    assert_eq!(rows.len(), files.len(), "{rows:?}");
    let mount = Mount::new(table);
    for ((row, (path, mime_type)), index) in rows.iter().zip(files).zip(0..) {
        let (bytes, meta) = (fs::read(path).unwrap(), fs::metadata(path).unwrap());
        let since = meta.modified().unwrap().duration_since(std::time::UNIX_EPOCH).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        assert_eq!(row["path"], path.to_str().unwrap());
        assert_eq!(row["name"], name);
        assert_eq!(row["size"], bytes.len(), "{name}");
        assert_eq!(row["mtime"], u64::try_from(since.as_micros()).unwrap(), "{name}");
        assert_eq!(row["mime_type"], *mime_type, "{name}");
        assert_eq!(row["sha256"], sha256(&bytes), "{name}");
        let folder = mount.at(format!("latest/{index}"));
        assert!(fs::read(folder.join("content.bin")).unwrap() == bytes, "{name} in the mount");
        let json: Value =
            serde_json::from_slice(&fs::read(folder.join("row.json")).unwrap()).unwrap();
        for key in ["path", "name", "size", "mime_type"] {
            assert_eq!(json[key], row[key], "{key}");
        }
        assert_eq!(json["content"], "content.bin");
    }
    mount
}

#[test]
fn files_and_directories_become_rows() {
    let files = Files::new();
    let table = files.text("t.lance");
    let report = files.import(&[&files.text("single.json"), &files.text("in"), &table]);
    let bytes = 2 + 5 + 100_000 + u64::try_from(PNG.len()).unwrap() + (5 << 20);
    assert_eq!(
        report,
        serde_json::json!({ "table": table, "version": 1, "rows": 6, "bytes": bytes })
    );
    let paths = [
        "single.json",
        "in/a.txt",
        "in/b/deep/er/packed.bin",
        "in/b/empty",
        "in/c bäd %41.png",
        "in/dedicated.mp4",
    ]
    .map(|name| files.at(name));
    let types = [
        "application/json",
        "text/plain",
        "application/octet-stream",
        "application/octet-stream",
        "image/png",
        "video/mp4",
    ];
    let wanted: Vec<_> = paths.iter().map(PathBuf::as_path).zip(types).collect();
    let mount = holds(&table, &wanted);
    let kind = |row: u8| xattr(&mount.at(format!("latest/{row}/content.bin")), "user.lancefs.kind");
    assert_eq!([1, 2, 5].map(|row| kind(row).unwrap()), ["inline", "packed", "dedicated"]);
    assert_eq!(fs::metadata(mount.at("latest/3/content.bin")).unwrap().len(), 0);
}

#[test]
fn a_relative_path_is_kept_as_it_was_given() {
    let files = Files::new();
    let mut command = Command::new(&*LANCEFS);
    command.args(["import", "single.json", "./in/b", "t.lance"]);
    let output = command.current_dir(files.folder.path()).stdin(Stdio::null()).output().unwrap();
    let said = stdout(&output);
    assert_eq!(said.trim(), "t.lance: version 1, 3 rows, 100002 bytes");
    let rows = rows_by_pylance(&files.text("t.lance"));
    let paths: Vec<_> = rows.iter().map(|row| row["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["single.json", "./in/b/deep/er/packed.bin", "./in/b/empty"]);
}

#[test]
fn an_import_into_a_table_that_is_there_appends() {
    let files = Files::new();
    let table = files.text("t.lance");
    files.import(&[&files.text("single.json"), &table]);
    let report = files.import(&[&files.text("in/a.txt"), &files.text("in/b/empty"), &table]);
    assert_eq!((&report["version"], &report["rows"]), (&2.into(), &2.into()));
    let wanted = [
        (files.at("single.json"), "application/json"),
        (files.at("in/a.txt"), "text/plain"),
        (files.at("in/b/empty"), "application/octet-stream"),
    ];
    let wanted: Vec<_> = wanted.iter().map(|(path, mime)| (path.as_path(), *mime)).collect();
    let mount = holds(&table, &wanted);
    assert_eq!(names(&mount.at("1/")), [".version.json", "0"]);
}

#[test]
fn a_table_with_managed_storage() {
    let files = Files::new();
    let table = files.text("t.lance");
    files.import(&["--managed", &files.text("in"), &table]);
    let mount = Mount::new(&table);
    let kind = |row: u8| xattr(&mount.at(format!("latest/{row}/content.bin")), "user.lancefs.kind");
    assert_eq!([0, 1, 4].map(|row| kind(row).unwrap()), ["inline", "managed", "managed"]);
    assert!(fs::read(mount.at("latest/4/content.bin")).unwrap() == vec![9; 5 << 20]);
    let appended = files.import(&["--managed", &files.text("in/dedicated.mp4"), &table]);
    assert_eq!(appended["version"], 2);
    assert_eq!(rows_by_pylance(&table).len(), 6);
    eventually("the version is shown", || mount.at("2/5").exists());
    let path = mount.at("2/5/content.bin");
    assert_eq!(xattr(&path, "user.lancefs.kind").unwrap(), "managed");
}

#[test]
fn managed_is_for_new_tables() {
    let files = Files::new();
    let table = files.text("t.lance");
    files.import(&[&files.text("single.json"), &table]);
    let output = run(&["import", "--managed", &files.text("in/a.txt"), &table]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("--managed is for new tables"), "{}", stderr(&output));
    assert_eq!(rows_by_pylance(&table).len(), 1);
}

/// Importing these fails so, and no table is made.
fn refused(files: &[&OsStr], table: &Path, code: i32, said: &str) {
    let before = table.exists();
    let mut command = Command::new(&*LANCEFS);
    let output =
        command.arg("import").args(files).arg(table).stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{files:?}: {}", stderr(&output));
    assert!(stderr(&output).contains(said), "{files:?}: {}", stderr(&output));
    assert_eq!(output.stdout, b"");
    assert_eq!(table.exists(), before, "{} after {}", table.display(), stderr(&output));
}

#[test]
fn what_cannot_be_imported_makes_no_table() {
    let files = Files::new();
    let table = files.at("t.lance");
    refused(&[files.at("absent").as_ref()], &table, 3, "absent");
    let odd = files.folder.path().join(OsStr::from_bytes(b"odd-\xff"));
    fs::write(&odd, b"x").unwrap();
    refused(&[odd.as_ref()], &table, 1, "is not UTF-8");
    fs::remove_file(odd).unwrap();
    let inner = files.folder.path().join(OsStr::from_bytes(b"in/odd-\xff"));
    fs::write(inner, b"x").unwrap();
    refused(&[files.at("in").as_ref()], &table, 1, "is not UTF-8");
    fs::create_dir(files.at("hollow")).unwrap();
    refused(&[files.at("hollow").as_ref()], &table, 1, "no files");
    let fifo = files.at("hollow/fifo");
    rustix::fs::mknodat(rustix::fs::CWD, fifo, rustix::fs::FileType::Fifo, 0o644.into(), 0)
        .unwrap();
    refused(&[files.at("hollow").as_ref()], &table, 1, "no files");
    refused(&["/dev/zero".as_ref()], &table, 1, "no files");
}

#[test]
fn what_is_no_table_is_left_alone() {
    let files = Files::new();
    let single = files.at("single.json");
    refused(&[files.at("in/a.txt").as_ref()], &single, 1, "the last argument is the table");
    assert_eq!(fs::read(&single).unwrap(), b"{}");
    refused(&[single.as_ref()], &files.at("in"), 1, "no Lance table");
    assert_eq!(names(&files.at("in")), ["a.txt", "b", "c bäd %41.png", "dedicated.mp4"]);
    let other = files.text("other.lance");
    run_python(&format!("lance.write_dataset(pa.table({{'x': [1]}}), {other:?})"));
    refused(&[single.as_ref()], Path::new(&other), 1, "content (a Blob v2 column)");
    let count = format!("d = lance.dataset({other:?}); print(d.version, d.count_rows())");
    assert_eq!(run_python(&count).trim(), "1 1");
}

#[test]
fn symlinks_are_followed() {
    let files = Files::new();
    let links = files.at("links");
    fs::create_dir(&links).unwrap();
    symlink(files.at("in/a.txt"), links.join("file")).unwrap();
    symlink(files.at("in/b"), links.join("folder")).unwrap();
    let table = files.text("t.lance");
    files.import(&[links.to_str().unwrap(), &table]);
    let rows = rows_by_pylance(&table);
    let found: Vec<_> = rows.iter().map(|row| row["path"].as_str().unwrap()).collect();
    let below = ["file", "folder/deep/er/packed.bin", "folder/empty"];
    assert_eq!(found, below.map(|name| files.text(&format!("links/{name}"))));
    assert_eq!(rows[0]["sha256"], sha256(b"hello"));
    symlink(&links, links.join("loop")).unwrap();
    let before = names(&PathBuf::from(&table).join("_versions"));
    refused(&[links.as_ref()], Path::new(&table), 1, "loop");
    fs::remove_file(links.join("loop")).unwrap();
    symlink("nowhere", links.join("dangling")).unwrap();
    refused(&[links.as_ref()], Path::new(&table), 3, "dangling");
    assert_eq!(names(&PathBuf::from(&table).join("_versions")), before);
}

/// A file that has this size and, but for its ends, no blocks.
fn sparse(path: &Path, size: u64) {
    let mut file = File::create(path).unwrap();
    file.write_all(b"begin").unwrap();
    file.set_len(size).unwrap();
    file.seek(std::io::SeekFrom::End(-3)).unwrap();
    file.write_all(b"end").unwrap();
}

/// How many bytes of files a folder holds.
fn weight(folder: &Path) -> u64 {
    let entries = walkdir::WalkDir::new(folder).into_iter().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|meta| meta.len()).sum()
}

/// Starts an import of what takes long, and sends a signal when some of it has been written.
fn interrupted(files: &Files, table: &Path, signal: Signal) -> String {
    let (big, errors) = (files.at("big"), files.at("errors"));
    sparse(&big, 4 << 30);
    let before = weight(table);
    let mut command = Command::new(&*LANCEFS);
    command.arg("import").arg(big).arg(table).stdin(Stdio::null()).stdout(Stdio::null());
    let mut import = Running::start(command.stderr(File::create(&errors).unwrap()));
    eventually("some of the file is copied", || weight(table) > before + (1 << 20));
    import.signal(signal);
    assert_eq!(import.ended("the import ends"), Some(1));
    fs::read_to_string(errors).unwrap()
}

#[test]
fn an_interrupted_import_leaves_no_table() {
    for signal in [Signal::INT, Signal::TERM] {
        let files = Files::new();
        let table = files.at("t.lance");
        let said = interrupted(&files, &table, signal);
        assert!(said.contains("interrupted: nothing was imported"), "{said}");
        assert!(!table.exists(), "{:?}", names(&table));
    }
}

#[test]
fn an_interrupted_import_leaves_a_table_as_it_was() {
    let files = Files::new();
    let table = files.text("t.lance");
    files.import(&[&files.text("single.json"), &table]);
    let said = interrupted(&files, Path::new(&table), Signal::INT);
    assert!(said.contains("interrupted: nothing was imported"), "{said}");
    let manifests = names(&PathBuf::from(&table).join("_versions"));
    assert_eq!(manifests.iter().filter(|file| file.ends_with(".manifest")).count(), 1);
    let paths = [files.at("single.json")];
    holds(&table, &[(&paths[0], "application/json")]);
    let report = files.import(&[&files.text("in/a.txt"), &table]);
    assert_eq!((&report["version"], rows_by_pylance(&table).len()), (&2.into(), 2));
}

#[test]
fn a_large_file_is_streamed_in_bounded_memory() {
    if std::env::var_os("LANCEFS_TEST_SLOW").is_none() {
        println!("skipped: LANCEFS_TEST_SLOW is not set");
        return;
    }
    const SIZE: u64 = 300 << 20;
    for managed in [&[][..], &["--managed"]] {
        let files = Files::new();
        let (big, table) = (files.at("big"), files.at("t.lance"));
        sparse(&big, SIZE);
        let mut command = Command::new(&*LANCEFS);
        command.arg("import").args(managed).arg(&big).arg(&table).stdin(Stdio::null());
        let mut import = Running::start(command.stdout(Stdio::null()));
        let pid = import.0.id().try_into().unwrap();
        let mut peak = 0;
        eventually("the import ends", || {
            peak = harness::peak(pid).unwrap_or(peak);
            import.0.try_wait().unwrap().is_some()
        });
        assert_eq!(import.ended("the import ends"), Some(0));
        println!("{managed:?}: {} MiB at the most", peak >> 10);
        assert!((1..200 << 10).contains(&peak), "{managed:?}: {} MiB", peak >> 10);
        let mount = Mount::new(&table);
        let content = mount.at("latest/0/content.bin");
        assert_eq!(fs::metadata(&content).unwrap().len(), SIZE);
        let compared = Command::new("cmp").arg(&big).arg(&content).output().unwrap();
        assert!(compared.status.success(), "{}", stdout(&compared));
    }
}
