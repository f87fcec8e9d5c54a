//! A store that falls silent: what waits for it, for how long, and what when it is back.

use std::fs;
use std::path::PathBuf;

use serde_json::json;

use crate::harness::{Desk, S3, errno, eventually, folder, names, photos};

const ETIMEDOUT: i32 = 110;
/// Too large to be packed with others.
const LARGE: usize = 5 << 20;
const ROWS: usize = 12;

/// A table in a bucket with some values, each an object, and their bytes; nothing of it is read yet.
fn values() -> (S3, Desk) {
    let (s3, made) = (S3::new(&[]), folder());
    let table = made.path().join("photos.lance");
    photos(&table);
    s3.put(&table, "t");
    let desk = Desk::remote(&s3, "t", &["--upload-delay", "1h", "--timeout", "3s"]);
    for row in 0..ROWS {
        desk.entry(&format!("b/{row}"), &[("blob.bin", &vec![byte(row); LARGE])]);
    }
    // It takes its time.
    while desk.commit("b").is_err() && desk.staged("b").exists() {}
    (s3, desk)
}

fn byte(row: usize) -> u8 {
    u8::try_from(row).unwrap()
}

fn paths(desk: &Desk) -> Vec<PathBuf> {
    (0..ROWS).map(|row| desk.mount.at(format!("2/{row}/blob.bin"))).collect()
}

#[test]
fn the_times_of_many_reads_do_not_add_up() {
    let (s3, desk) = values();
    let paths = paths(&desk);
    for path in &paths {
        assert_eq!(fs::metadata(path).unwrap().len(), 5 << 20);
    }
    s3.strike(json!({ "kind": "hang", "method": "any", "key": "", "count": 1_000_000 }));
    for path in &paths {
        fs::read(path).unwrap_err();
    }
    let (asked, _) = s3.struck();
    let for_values = asked.iter().filter(|call| call.contains("/_blobs/")).count();
    assert!((1..ROWS).contains(&for_values), "{for_values}: {asked:?}");
    s3.heal();
    for (row, path) in paths.iter().enumerate() {
        // The first one may find that the store is still thought to be silent.
        let mut read = None;
        eventually("it is read", || {
            read = fs::read(path).ok();
            read.is_some()
        });
        assert!(read.unwrap() == vec![byte(row); LARGE]);
    }
}

#[test]
fn a_listing_that_a_silent_store_holds_up_says_so() {
    let (s3, desk) = values();
    let pid = desk.mount.pid();
    desk.kill(pid);
    desk.start();
    let listed = desk.mount.at("2");
    fs::metadata(&listed).unwrap();
    s3.fault("hang");
    let listing = fs::read_dir(listed.join("0")).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    assert_eq!(errno(listing), ETIMEDOUT, "{}", desk.mount.log());
    s3.fault("ok");
    eventually("it is listed", || fs::read_dir(listed.join("0")).is_ok());
    assert!(names(&listed.join("0")).contains(&"blob.bin".to_owned()));
}

#[test]
fn copies_are_made_where_the_tags_of_a_table_cannot_be_written() {
    let (s3, desk) = values();
    s3.strike(json!({ "kind": "hang", "method": "any", "key": "_refs", "count": 1_000_000 }));
    for (row, path) in paths(&desk).iter().enumerate().take(4) {
        fs::create_dir_all(desk.staged(&format!("c/{row}"))).unwrap();
        let copy = desk.staged(&format!("c/{row}/blob.bin"));
        fs::copy(path, &copy).unwrap();
        assert!(fs::read(copy).unwrap() == vec![byte(row); LARGE]);
    }
    let (asked, _) = s3.struck();
    let tags = asked.iter().filter(|call| call.contains("lancefs-staging")).count();
    assert!(tags <= 3, "asked for the tag of one version: {asked:?}");
    s3.heal();
}

#[test]
fn one_bad_answer_while_mounting_does_not_turn_staging_off() {
    let (s3, disk) = (S3::new(&[]), folder());
    let table = disk.path().join("photos.lance");
    photos(&table);
    s3.put(&table, "t");
    let staging = format!("--staging-dir={}", disk.path().join("staging").display());
    s3.strike(json!({ "kind": "fail-403", "method": "GET", "key": ".manifest", "count": 1 }));
    let mount = s3.mount("t", &[&staging, "--refresh", "1s"]);
    assert_eq!(s3.struck().1, 1);
    eventually("staging is on", || mount.status()["staging"]["enabled"] == true);
    fs::create_dir_all(mount.at("staging/b/1")).unwrap();
    fs::write(mount.at("staging/b/1/blob.bin"), "one").unwrap();
    fs::rename(mount.at("staging/b"), mount.at("commit/b")).unwrap();
    assert_eq!(fs::read(mount.at("latest/0/blob.bin")).unwrap(), b"one");
}
