//! Ways to commit, large batches, and commits beside each other.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{
    Desk, Running, S3, eventually, folder, names, photos, python, run, stdout, xattr,
};

fn is_slow_tier() -> bool {
    std::env::var_os("LANCEFS_TEST_SLOW").is_some()
}

fn photo_desk(folder: &Path, flags: &[&str]) -> Desk {
    let table = folder.join("photos.lance");
    photos(&table);
    Desk::new(&table, flags)
}

fn remote_desk(s3: &S3, flags: &[&str]) -> Desk {
    let folder = folder();
    let table = folder.path().join("photos.lance");
    photos(&table);
    s3.put(&table, "t");
    Desk::remote(s3, "t", flags)
}

#[test]
fn the_command_commits_and_tells_programs() {
    let folder = folder();
    let desk = photo_desk(folder.path(), &[]);
    desk.entry("b/1", &[("row.json", br#"{"id": 1}"#), ("blob.jpg", b"one")]);
    let batch = desk.staged("b");
    let batch = batch.to_str().unwrap();
    let dry = run(&["commit", "--dry-run", "--json", batch]);
    let dry: Value = serde_json::from_str(&stdout(&dry)).unwrap();
    assert_eq!((&dry["plan"]["rows_new"], &dry["plan"]["bytes_upload"]), (&json!(1), &json!(3)));
    assert_eq!((desk.rows(), desk.newest()), (0, 1), "a dry run commits nothing");
    let output = run(&["commit", "--json", "--yes", batch]);
    let told: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(told["result"]["version"], 2, "{told}");
    assert_eq!((desk.rows(), desk.newest()), (1, 2));
    let line = desk.commits().pop().unwrap();
    assert_eq!((&line["batch"], &line["version"]), (&json!("b"), &json!(2)));
    assert_eq!((&line["rows"], &line["bytes"]), (&json!(1), &json!(3)));
    assert!(line["seconds"].as_f64().unwrap() > 0.0 && line["uuid"].is_string(), "{line}");
    desk.entry("wrong/1", &[("nothing.jpg", b"one")]);
    let failed = run(&["commit", "--json", "--yes", desk.staged("wrong").to_str().unwrap()]);
    assert!(!failed.status.success());
}

#[test]
fn an_attribute_commits() {
    let folder = folder();
    let desk = photo_desk(folder.path(), &[]);
    desk.entry("b/1", &[("blob.jpg", b"one")]);
    let set = |name: &str| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(desk.staged(name), "user.lancefs.commit", b"1", flags)
    };
    set("b").unwrap();
    assert_eq!((desk.rows(), desk.newest()), (1, 2));
    assert_eq!(names(&desk.mount.at("staging")), Vec::<String>::new());
    desk.entry("c/1", &[("nothing.jpg", b"one")]);
    assert_eq!(set("c").unwrap_err(), rustix::io::Errno::UCLEAN);
    assert_eq!(names(&desk.mount.at("staging")), ["c"]);
}

#[test]
fn a_quiet_batch_commits_itself() {
    let folder = folder();
    let desk = photo_desk(folder.path(), &["--auto-commit", "1s", "--upload-delay", "100ms"]);
    desk.entry("b/1", &[("blob.jpg", b"one")]);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(2500) {
        std::fs::write(desk.staged("b/1/blob.jpg"), b"other").unwrap();
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(desk.rows(), 0, "who writes on is waited for");
    eventually("it is committed", || desk.rows() == 1);
    assert_eq!(std::fs::read(desk.mount.at("latest/0/blob.bin")).unwrap(), b"other");
    eventually("it is gone", || names(&desk.mount.at("staging")).is_empty());
}

#[test]
fn a_copy_that_pauses_and_a_directory_that_is_open_are_waited_for() {
    let folder = folder();
    let desk = photo_desk(folder.path(), &["--auto-commit", "300ms", "--upload-delay", "100ms"]);
    let copy = "mkdir -p $0/1 && printf one > $0/1/blob.bin && sleep 1.5
        mkdir $0/2 && printf two > $0/2/blob.bin";
    let copied = Command::new("sh").args(["-c", copy]).arg(desk.staged("b")).status().unwrap();
    assert!(copied.success());
    eventually("it is committed", || desk.rows() == 2);
    assert_eq!(desk.newest(), 2, "all of it at once");
    desk.entry("c/1", &[("blob.bin", b"three")]);
    let open = std::fs::File::open(desk.staged("c/1")).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(desk.rows(), 2, "somebody looks into it");
    drop(open);
    eventually("it is committed", || desk.rows() == 3);
}

#[test]
fn a_row_that_is_empty_for_a_fault_is_told_for_the_fault() {
    let folder = folder();
    let desk = photo_desk(folder.path(), &["--auto-commit", "300ms"]);
    desk.entry("k/e", &[("nofield.png", b"one")]);
    let why = || desk.error("k");
    eventually("it says why", || why().contains("nofield"));
    assert!(!why().contains("is empty"), "{}", why());
}

#[test]
fn a_folder_that_is_still_empty_is_not_committed_by_itself() {
    let folder = folder();
    let desk = photo_desk(folder.path(), &["--auto-commit", "300ms"]);
    std::fs::create_dir_all(desk.staged("b/New Folder")).unwrap();
    let why = || desk.commits().pop().map(|line| line["error"].to_string());
    eventually("it says why", || why().is_some_and(|why| why.contains("New Folder is empty")));
    assert_eq!(xattr(&desk.staged("b"), "user.lancefs.version").unwrap(), "1");
    std::thread::sleep(Duration::from_millis(900));
    assert_eq!((desk.rows(), desk.commits().len()), (0, 1), "it is not tried over and over");
    desk.must_commit("b");
    assert_eq!(desk.rows(), 1, "who asks for it has meant it");
}

#[test]
fn small_files_share_few_objects() {
    let (count, len) = if is_slow_tier() { (10_000, 20_000) } else { (1500, 20_000) };
    let folder = folder();
    let desk = photo_desk(folder.path(), &["--upload-delay", "1h"]);
    std::fs::create_dir(desk.staged("b")).unwrap();
    let next = AtomicUsize::new(0);
    let bytes = |n: usize| {
        let mut bytes = vec![u8::try_from(n % 256).unwrap(); len];
        bytes[..8].copy_from_slice(&n.to_le_bytes());
        bytes
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(n) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).filter(|n| *n < count)
                {
                    std::fs::write(desk.staged(&format!("b/{n:05}.jpg")), bytes(n)).unwrap();
                }
            });
        }
    });
    desk.must_commit("b");
    let objects = names(&Path::new(&desk.table).join("_blobs"));
    assert!(objects.len() <= 1 + count * len / (60 << 20), "{} objects", objects.len());
    assert_eq!(desk.rows(), u64::try_from(count).unwrap());
    for n in [0, 1, 777, count - 1] {
        let file = desk.mount.at(format!("latest/{n}/blob.bin"));
        assert_eq!(std::fs::read(file).unwrap(), bytes(n), "row {n}");
    }
    desk.verify();
    desk.settles();
}

#[test]
fn a_large_file_goes_in_parts() {
    let mib: usize = if is_slow_tier() { 300 } else { 20 };
    let s3 = S3::new(&[]);
    let desk = remote_desk(&s3, &["--upload-delay", "1h"]);
    std::fs::create_dir_all(desk.staged("b/1")).unwrap();
    let chunk: Vec<u8> = (0..1_u32 << 20).map(|n| u8::try_from(n * 31 % 253).unwrap()).collect();
    let mut file = std::fs::File::create(desk.staged("b/1/blob.mp4")).unwrap();
    for n in 0..mib {
        let mut chunk = chunk.clone();
        chunk[0] = u8::try_from(n % 256).unwrap();
        std::io::Write::write_all(&mut file, &chunk).unwrap();
    }
    drop(file);
    let staged = digest(&desk.staged("b/1/blob.mp4"));
    s3.strike(json!({ "kind": "none", "method": "PUT", "key": "partNumber=" }));
    desk.must_commit("b");
    assert_eq!(s3.struck().0.len(), mib.div_ceil(8), "parts of 8 MiB");
    assert_eq!(digest(&desk.mount.at("latest/0/blob.bin")), staged);
    let objects = names(&s3.bucket().join("t/_blobs"));
    assert_eq!(objects.len(), 1, "{objects:?}");
}

/// What `sha256sum` says.
fn digest(file: &Path) -> String {
    let output = Command::new("sha256sum").arg(file).output().unwrap();
    stdout(&output).split(' ').next().unwrap().to_owned()
}

#[test]
fn uploads_run_ahead_and_the_move_has_little_left() {
    let s3 = S3::new(&[]);
    let desk = remote_desk(&s3, &["--upload-delay", "200ms"]);
    desk.entry("b/1", &[("blob.bin", &vec![b'x'; 9 << 20])]);
    desk.entry("b/2", &[("blob.bin", b"small")]);
    let plan = || -> Value {
        let text = xattr(&desk.staged("b"), "user.lancefs.plan").unwrap();
        serde_json::from_str(&text).unwrap()
    };
    eventually("all is uploaded", || plan()["ready_bytes"] == (9 << 20) + 5);
    // Written again: uploaded again, and the first object is taken away in the end.
    std::fs::write(desk.staged("b/2/blob.bin"), b"other").unwrap();
    eventually("the change is uploaded", || plan()["ready_bytes"] == (9 << 20) + 5);
    s3.strike(json!({ "kind": "none", "method": "PUT", "key": "/_blobs/" }));
    desk.must_commit("b");
    assert_eq!(s3.struck().0, Vec::<String>::new(), "nothing was left to upload");
    assert_eq!(std::fs::read(desk.mount.at("latest/1/blob.bin")).unwrap(), b"other");
    desk.settles();
    assert_eq!(names(&s3.bucket().join("t/_blobs")).len(), 2);
}

#[test]
fn two_mounts_and_pylance_commit_to_one_table_at_once() {
    let s3 = S3::new(&[]);
    let first = remote_desk(&s3, &[]);
    let second = Desk::remote(&s3, "t", &[]);
    let (batches, appends) = (4_u64, 5_u64);
    let script = format!(
        "import sys, lance, pyarrow as pa
schema = pa.schema([pa.field('id', pa.int64()), lance.blob_field('blob'), pa.field('frames', pa.list_(lance.blob_field('item')))])
for n in range({appends}):
    ds = lance.dataset('{}', storage_options={})
    rows = pa.table([pa.array([1000 + n]), lance.blob_array([b'py']), pa.nulls(1, schema.field(2).type)], schema=schema)
    lance.write_dataset(rows, ds, mode='append')",
        first.table,
        s3.python_options()
    );
    let mut command = python();
    let mut writer = Running::start(command.arg("-c").arg(script));
    std::thread::scope(|scope| {
        for (number, desk) in [(1, &first), (2, &second)] {
            scope.spawn(move || {
                for n in 0..batches {
                    let (batch, id) = (format!("b{number}-{n}"), number * 100 + n);
                    let json = format!("{{\"id\": {id}}}");
                    desk.entry(
                        &format!("{batch}/e"),
                        &[("row.json", json.as_bytes()), ("blob.bin", batch.as_bytes())],
                    );
                    desk.must_commit(&batch);
                }
            });
        }
    });
    assert_eq!(writer.ended("pylance has appended"), Some(0));
    let ids = first
        .python("print(sorted(ds.to_table(columns=['id']).column(0).to_pylist()), ds.version)");
    let wanted: Vec<u64> =
        (100..100 + batches).chain(200..200 + batches).chain(1000..1000 + appends).collect();
    assert_eq!(ids.trim(), format!("{wanted:?} {}", 1 + 2 * batches + appends));
    first.verify();
    first.settles();
    second.settles();
}

#[test]
fn nothing_in_staging_waits_for_a_commit() {
    let s3 = S3::new(&[]);
    let desk = remote_desk(&s3, &["--upload-delay", "1h", "--timeout", "60s"]);
    desk.entry("b/1", &[("blob.bin", &vec![b'x'; 9 << 20])]);
    desk.entry("c/1", &[("blob.bin", b"first")]);
    s3.strike(json!({ "kind": "hang", "method": "PUT", "key": "/_blobs/" }));
    std::thread::scope(|scope| {
        let batch = desk.staged("b");
        let committing =
            scope.spawn(move || run(&["commit", "--yes", "--json", batch.to_str().unwrap()]));
        eventually("the upload hangs", || s3.struck().1 > 0);
        let timed = |what: &str, work: &dyn Fn()| {
            let begun = Instant::now();
            work();
            assert!(begun.elapsed() < Duration::from_millis(200), "{what}: {:?}", begun.elapsed());
        };
        timed("ls staging/", &|| assert_eq!(names(&desk.mount.at("staging")), ["b", "c"]));
        timed("write", &|| std::fs::write(desk.staged("c/1/blob.bin"), b"second").unwrap());
        timed("mkdir", &|| std::fs::create_dir(desk.staged("d")).unwrap());
        timed("rename", &|| std::fs::rename(desk.staged("d"), desk.staged("e")).unwrap());
        s3.heal();
        // What hangs is given up after --timeout, which this test does not wait for.
        s3.fault("reset");
        std::thread::sleep(Duration::from_millis(300));
        s3.fault("ok");
        let output = committing.join().unwrap();
        assert!(output.status.success(), "{}", crate::harness::stderr(&output));
    });
    assert_eq!((desk.rows(), desk.newest()), (1, 2));
    assert_eq!(std::fs::read(desk.staged("c/1/blob.bin")).unwrap(), b"second");
}

#[test]
fn what_was_uploaded_days_ago_is_uploaded_again_before_a_cleanup_may_take_it() {
    let (s3, folder) = (S3::new(&[]), folder());
    let flags = ["--upload-delay", "100ms"];
    let remote = remote_desk(&s3, &flags);
    let local = photo_desk(folder.path(), &flags);
    for (desk, blobs) in [
        (&remote, s3.bucket().join("t/_blobs")),
        (&local, folder.path().join("photos.lance/_blobs")),
    ] {
        desk.entry("old/1", &[("blob.bin", b"old")]);
        desk.entry("young/1", &[("blob.bin", b"young")]);
        // An object is in the store a moment before the mount knows that it is.
        let ready = |batch: &str| {
            let plan = xattr(&desk.staged(batch), "user.lancefs.plan").unwrap();
            serde_json::from_str::<Value>(&plan).unwrap()["ready_bytes"].as_u64()
        };
        eventually("all is uploaded", || (ready("old"), ready("young")) == (Some(3), Some(5)));
        let before = names(&blobs);
        let day = Duration::from_hours(24);
        for name in &before {
            let path = blobs.join(name);
            let days =
                if std::fs::read(&path).unwrap() == b"old" { 6 * day + day / 2 } else { 5 * day };
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.set_modified(std::time::SystemTime::now() - days).unwrap();
        }
        desk.must_commit("old");
        desk.must_commit("young");
        desk.settles();
        let after = names(&blobs);
        assert_eq!(after.len(), 2, "the old object is taken away: {before:?}, {after:?}");
        assert_eq!(before.iter().filter(|name| after.contains(name)).count(), 1);
        let read = |row| std::fs::read(desk.mount.at(format!("latest/{row}/blob.bin"))).unwrap();
        assert_eq!((&read(0)[..], &read(1)[..]), (&b"old"[..], &b"young"[..]));
        desk.verify();
    }
}
