//! A commit while its store, its disk or its table fails: every call of it, one after another. What
//! fails leaves the batch whole, what is tried again succeeds, and nothing is there twice.
//!
//! The fast tier lets the calls fail that matter most, the slow tier all of them in every way.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{Desk, S3, Seen, errno, eventually, folder, names, photos, stdout, tree};

const ENOENT: i32 = 2;
const EACCES: i32 = 13;
const EUCLEAN: i32 = 117;

/// Requests that hang are given up after a second, and what waits for them after three.
const FLAGS: [&str; 5] = ["--upload-delay", "1h", "--timeout", "3s", "--storage-option=timeout=1s"];
/// Larger than one part of an upload.
const LARGE: usize = 9 << 20;

/// A table in a bucket, of which it is known which ids it has to have in the end.
pub struct Trial {
    pub s3: S3,
    desk: Desk,
    ids: u64,
}

impl Trial {
    pub fn new() -> Self {
        let (s3, folder) = (S3::new(&[]), folder());
        let table = folder.path().join("photos.lance");
        photos(&table);
        s3.put(&table, "t");
        let desk = Desk::remote(&s3, "t", &FLAGS);
        Self { s3, desk, ids: 0 }
    }

    /// Stages a batch with every way in which bytes are stored; gives what it looks like.
    fn stage(&mut self) -> BTreeMap<PathBuf, Seen> {
        let mut entry = |name: &str, files: &[(&str, &[u8])]| {
            let json = format!("{{\"id\": {}}}", self.ids);
            self.desk.entry(&format!("b/{name}"), &[("row.json", json.as_bytes())]);
            self.desk.entry(&format!("b/{name}"), files);
            self.ids += 1;
        };
        entry("1", &[("blob.bin", &vec![b'l'; LARGE]), ("frames[1].bin", b"in a list")]);
        entry("2", &[("blob.bin", b"small"), ("frames[0].bin", b"")]);
        entry("3", &[]);
        tree(&self.desk.staged("b"))
    }

    /// The requests of one commit without faults.
    pub fn calls(&mut self) -> Vec<String> {
        self.stage();
        self.s3.strike(json!({ "kind": "none" }));
        self.desk.must_commit("b");
        self.desk.settles();
        let calls = self.s3.struck().0;
        self.s3.heal();
        calls
    }

    /// Commits a batch under a fault, and once more without it if it failed. Gives whether the
    /// fault took place.
    pub fn commit_under(&mut self, rule: &Value) -> bool {
        let before = self.desk.rows();
        let whole = self.stage();
        self.s3.strike(rule.clone());
        let outcome = self.desk.commit("b");
        let struck = self.s3.struck().1 > 0;
        self.s3.heal();
        if let Err(error) = outcome {
            let why = self.desk.error("b");
            let kept = tree(&self.desk.staged("b"));
            // One that nobody could tell of is looked for, and leaves by itself when it is found.
            let is_found = || !self.desk.staged("b").exists();
            assert!(kept == whole || is_found(), "{rule}: {error}: {why}: {kept:?}");
            // Where the first one went on, the second is told what came of it, which may be that it
            // failed under the fault; the third one is an attempt of its own.
            let again = self.desk.commit("b").or_else(|_| self.desk.commit("b"));
            if let Err(error) = again
                && error.raw_os_error() != Some(ENOENT)
            {
                panic!("{rule}: then {error}: {}\n{}", self.desk.error("b"), self.desk.mount.log());
            }
        }
        // Where the look after the commit failed, the next one is due within --refresh.
        eventually(&format!("{rule}: rows"), || self.desk.rows() == before + 3);
        self.desk.settles();
        struck
    }

    /// Every id is there once, every value is whole, and cleaning up leaves nothing behind.
    pub fn end(&self) {
        self.desk.verify();
        let found = self.desk.python(
            "print(sorted(ds.to_table(columns=['id']).column(0).to_pylist()))
values = ds.to_table(blob_handling='all_binary')
sizes = [len(v) if v is not None else 0 for v in values.column('blob').to_pylist()]
print(sum(sizes))",
        );
        let ids: Vec<u64> = (0..self.ids).collect();
        let bytes = self.ids / 3 * u64::try_from(LARGE + "small".len()).unwrap();
        assert_eq!(found.trim(), format!("{ids:?}\n{bytes}"));
        no_strays(&self.desk, &self.s3.bucket().join("t/_blobs"));
    }
}

/// Lets pylance clean up, and compares what is left with what the newest version names.
pub fn no_strays(desk: &Desk, blobs: &Path) {
    let named = desk.python(
        "from datetime import timedelta
ds.cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
def uris(value):
    if isinstance(value, dict) and 'blob_uri' in value: yield from [value['blob_uri']] if value['kind'] in (4, 5) else []
    elif isinstance(value, (dict, list)):
        for child in value.values() if isinstance(value, dict) else value: yield from uris(child)
rows = newest().to_table(columns=['blob', 'frames'], blob_handling='blobs_descriptions').to_pylist()
print(*sorted({uri.removeprefix('_blobs/') for row in rows for uri in uris(row)}))",
    );
    let named: Vec<&str> = named.split_whitespace().collect();
    assert_eq!(names(blobs), named, "objects that no version names");
    desk.verify();
}

pub fn is_slow_tier() -> bool {
    std::env::var_os("LANCEFS_TEST_SLOW").is_some()
}

#[test]
fn calls_that_fail_lose_and_double_nothing() {
    let mut trial = Trial::new();
    let calls = trial.calls();
    let find = |method: &str, part: &str| {
        let is_it = |call: &&String| call.starts_with(method) && call.contains(part);
        calls.iter().find(is_it).unwrap_or_else(|| panic!("no {method} {part} in {calls:#?}"));
        json!({ "method": method, "key": part })
    };
    let rule = |of: &Value, kind: &str, count: u64| {
        let mut rule = of.clone();
        (rule["kind"], rule["count"]) = (kind.into(), count.into());
        rule
    };
    let manifest = find("PUT", "/_versions/");
    let data = find("PUT", "/data/");
    let blob = find("PUT", "/_blobs/");
    let complete = find("POST", "uploadId=");
    for rule in [
        // The answer is lost, once and for good: the client's own retry finds a version that it
        // takes for another writer's.
        rule(&manifest, "apply-then-fail", 1),
        rule(&manifest, "apply-then-fail", 1000),
        rule(&manifest, "apply-then-hang", 1000),
        rule(&manifest, "apply-then-drop", 1),
        rule(&manifest, "fail-403", 1000),
        rule(&data, "fail-500", 1000),
        rule(&data, "truncate", 1),
        rule(&blob, "truncate", 1),
        rule(&blob, "hang", 1000),
        rule(&complete, "apply-then-fail", 1),
        rule(&complete, "drop", 1000),
    ] {
        assert!(trial.commit_under(&rule), "{rule} never took place");
    }
    trial.end();
}

#[test]
fn every_call_of_a_commit_can_fail_in_every_way() {
    if !is_slow_tier() {
        return;
    }
    let mut trial = Trial::new();
    let calls = trial.calls();
    println!("a commit is {} calls: {calls:#?}", calls.len());
    let mut count = 0;
    for (skip, call) in calls.iter().enumerate() {
        for (kind, times) in [
            ("fail-500", 1000_u64),
            ("fail-403", 1000),
            ("full", 1),
            ("drop", 1),
            ("drop", 1000),
            ("hang", 1),
            ("hang", 1000),
            ("truncate", 1),
            ("truncate", 1000),
            ("apply-then-fail", 1),
            ("apply-then-fail", 1000),
            ("apply-then-drop", 1),
            ("apply-then-hang", 1),
            ("apply-then-hang", 1000),
        ] {
            let is_write = !call.starts_with("GET") && !call.starts_with("HEAD");
            // A manifest of which a store keeps the half, and says that all is well, is a broken
            // table for everybody; and there is nothing to apply where nothing changes.
            let is_manifest = call.contains("/_versions/") || call.contains("/_transactions/");
            if kind == "truncate" && is_write && is_manifest
                || kind.starts_with("apply") && !is_write
            {
                continue;
            }
            let rule = json!({ "skip": skip, "kind": kind, "count": times });
            println!("{call}: {kind} × {times}");
            count += u64::from(trial.commit_under(&rule));
        }
    }
    println!("{count} faults took place");
    assert!(count > 150, "{count} faults took place only");
    trial.end();
}

#[test]
fn revoked_credentials_and_a_full_store_keep_the_batch() {
    let mut trial = Trial::new();
    for (kind, wanted) in [("fail-403", Some(EACCES)), ("full", None)] {
        let whole = trial.stage();
        let method = if kind == "full" { "any-write" } else { "any" };
        trial.s3.strike(json!({ "kind": kind, "method": method }));
        let number = errno(trial.desk.commit("b"));
        trial.s3.heal();
        let why = trial.desk.error("b");
        assert!(wanted.is_none_or(|wanted| wanted == number), "{kind}: errno {number}, {why}");
        assert_eq!(tree(&trial.desk.staged("b")), whole);
        trial.desk.must_commit("b");
        trial.desk.settles();
    }
    trial.end();
}

#[test]
fn a_table_that_vanished_keeps_the_batch() {
    let folder = folder();
    let table = folder.path().join("photos.lance");
    photos(&table);
    let desk = Desk::new(&table, &FLAGS);
    desk.entry("b/1", &[("blob.bin", b"one")]);
    let whole = tree(&desk.staged("b"));
    let aside = folder.path().join("aside.lance");
    std::fs::rename(&table, &aside).unwrap();
    assert!(desk.commit("b").is_err());
    assert_eq!(tree(&desk.staged("b")), whole);
    assert!(!table.exists(), "a table that is gone is not begun anew: {:?}", names(&table));
    std::fs::rename(&aside, &table).unwrap();
    desk.must_commit("b");
    assert_eq!(desk.rows(), 1);
    desk.settles();
}

#[test]
fn a_table_that_was_replaced_does_not_take_the_batch_by_mistake() {
    let folder = folder();
    let table = folder.path().join("photos.lance");
    photos(&table);
    let desk = Desk::new(&table, &FLAGS);
    desk.entry("a/1", &[("blob.bin", b"one")]);
    desk.must_commit("a");
    desk.entry("b/@0", &[("blob.bin", b"two")]);
    std::fs::remove_dir_all(&table).unwrap();
    photos(&table);
    assert!(desk.commit("b").is_err(), "its row is of another table");
    assert_eq!(std::fs::read(desk.staged("b/@0/blob.bin")).unwrap(), b"two");
}

/// A small disk, unmounted when it is dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn new(at: PathBuf) -> Self {
        std::fs::create_dir(&at).unwrap();
        let flags = ["-t", "tmpfs", "-o", "size=4m", "tmpfs"];
        stdout(&Command::new("mount").args(flags).arg(&at).output().unwrap());
        Self(at)
    }

    /// Fills it up to the last byte, by a file that is not in staging.
    fn fill(&self) -> PathBuf {
        let file = self.0.join("filler");
        let mut open = std::fs::File::create(&file).unwrap();
        for len in [64 << 10, 4096, 1] {
            while std::io::Write::write_all(&mut open, &vec![0; len]).is_ok() {}
        }
        file
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

#[test]
fn a_file_that_no_object_can_hold_is_a_fault_before_a_byte_is_sent() {
    let (s3, folder) = (S3::new(&[]), folder());
    let table = folder.path().join("photos.lance");
    photos(&table);
    s3.put(&table, "t");
    // On a disk that takes any length; the file is one hole.
    let small = SmallDisk::new(folder.path().join("disk"));
    let flags = ["--upload-delay", "100ms", "--timeout", "3s", "--storage-option=timeout=1s"];
    let desk = Desk::remote_with_staging(&s3, "t", &small.0, &flags);
    s3.strike(json!({ "kind": "none", "method": "any-write" }));
    desk.entry("b/1", &[("blob.bin", b"")]);
    let file = std::fs::File::options().write(true).open(desk.staged("b/1/blob.bin")).unwrap();
    file.set_len(49 << 40).unwrap();
    drop(file);
    assert_eq!(errno(desk.commit("b")), EUCLEAN);
    let why = desk.error("b");
    assert!(why.contains("1: blob: 53876069761024 bytes are more than one object"), "{why}");
    assert_eq!(s3.struck().0, Vec::<String>::new(), "nothing was sent");
    std::fs::write(desk.staged("b/1/blob.bin"), b"short").unwrap();
    desk.must_commit("b");
    desk.settles();
}

#[test]
fn a_full_staging_disk_keeps_the_batch() {
    let folder = folder();
    let table = folder.path().join("photos.lance");
    photos(&table);
    let small = SmallDisk::new(folder.path().join("disk"));
    let desk = Desk::with_staging(&table, &small.0, &FLAGS);
    desk.entry("b/1", &[("row.json", br#"{"id": 1}"#), ("blob.bin", &[b'x'; 100_000])]);
    let whole = tree(&desk.staged("b"));
    let filler = small.fill();
    let full = std::fs::write(desk.staged("b/1/frames[0].bin"), [b'y'; 100_000]);
    assert_eq!(full.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    let _ = std::fs::remove_file(desk.staged("b/1/frames[0].bin"));
    // Without room for its journal a commit may not go on; with luck there is room.
    if desk.commit("b").is_err() {
        let now = tree(&desk.staged("b"));
        for (path, seen) in whole.iter().filter(|(path, _)| !path.ends_with("1")) {
            assert_eq!(now.get(path), Some(seen), "{}", path.display());
        }
        std::fs::remove_file(&filler).unwrap();
        desk.must_commit("b");
    }
    assert_eq!(desk.rows(), 1);
    assert_eq!(std::fs::read(desk.mount.at("latest/0/blob.bin")).unwrap(), [b'x'; 100_000]);
    let _ = std::fs::remove_file(&filler);
    desk.settles();
}
