//! A commit of which nobody can tell whether it took place: the batch cannot be changed until that
//! is known, and what it was is in the table once.

use serde_json::{Value, json};

use crate::harness::{Desk, S3, errno, eventually, folder, photos};

const EBUSY: i32 = 16;
const ENOENT: i32 = 2;
const FLAGS: [&str; 5] = ["--upload-delay", "1h", "--timeout", "3s", "--storage-option=timeout=1s"];

/// A table in a bucket, and a rule that applies the manifest of its next commit, loses the answer,
/// and every later answer about versions.
fn lost_answers() -> (S3, Desk, Value) {
    let (s3, folder) = (S3::new(&[]), folder());
    let table = folder.path().join("photos.lance");
    photos(&table);
    s3.put(&table, "t");
    let desk = Desk::remote(&s3, "t", &FLAGS);
    s3.strike(json!({ "kind": "none", "method": "any", "key": "_versions" }));
    desk.entry("first/row", &[("blob.bin", b"first")]);
    desk.must_commit("first");
    let asked = s3.struck().0;
    let put = asked.iter().position(|call| call.starts_with("PUT")).unwrap();
    let rule = json!({ "kind": "apply-then-drop", "method": "any", "key": "_versions",
                       "skip": put, "count": 100_000 });
    s3.heal();
    (s3, desk, rule)
}

#[test]
fn what_is_added_after_an_unclear_commit_is_not_lost() {
    let (s3, desk, rule) = lost_answers();
    let before = desk.rows();
    let pid = desk.mount.pid();
    desk.entry("b/one", &[("blob.bin", b"one")]);
    s3.strike(rule);
    assert!(desk.commit("b").is_err());
    let one = desk.staged("b/one/blob.bin");
    assert_eq!(std::fs::read(&one).unwrap(), b"one", "the batch is kept");
    assert_eq!(errno(std::fs::write(&one, b"other")), EBUSY);
    assert_eq!(errno(std::fs::create_dir(desk.staged("b/two"))), EBUSY);
    std::fs::create_dir(desk.staged("c")).unwrap();
    assert_eq!(errno(std::fs::rename(desk.staged("b/one"), desk.staged("c/one"))), EBUSY);
    let rename = || std::fs::rename(desk.staged("b"), desk.staged("renamed"));
    eventually("the attempt has ended", || rename().is_ok());
    // A process that knows nothing but the journal must keep it so, until it has looked.
    desk.kill(pid);
    s3.heal();
    desk.start();
    assert!([EBUSY, ENOENT].contains(&errno(std::fs::create_dir(desk.staged("renamed/two")))));
    eventually("it is found and taken away", || !desk.staged("renamed").exists());
    assert_eq!(desk.rows(), before + 1);
    let newest = desk.commits().pop().unwrap();
    assert_eq!((&newest["batch"], &newest["error"]), (&json!("renamed"), &Value::Null));
    std::fs::remove_dir(desk.staged("c")).unwrap();
    desk.settles();
}

#[test]
fn a_batch_whose_commit_certainly_failed_can_be_changed() {
    let (s3, desk, _) = lost_answers();
    let before = desk.rows();
    desk.entry("b/one", &[("blob.bin", b"one")]);
    s3.strike(json!({ "kind": "fail-403", "method": "PUT", "key": "/data/", "count": 100_000 }));
    assert!(desk.commit("b").is_err());
    s3.heal();
    desk.entry("b/two", &[("blob.bin", b"two")]);
    desk.must_commit("b");
    assert_eq!(desk.rows(), before + 2);
    desk.settles();
}

#[test]
fn a_batch_commits_itself_once_the_store_is_back() {
    let (s3, folder) = (S3::new(&[]), folder());
    let table = folder.path().join("photos.lance");
    photos(&table);
    s3.put(&table, "t");
    let flags = [&FLAGS[2..], &["--auto-commit", "300ms"]].concat();
    let desk = Desk::remote(&s3, "t", &flags);
    let before = desk.rows();
    s3.strike(json!({ "kind": "fail-403", "method": "any-write", "count": 100_000 }));
    desk.entry("b/one", &[("blob.bin", b"one")]);
    eventually("it is tried", || desk.commits().iter().any(|line| line["batch"] == "b"));
    assert!(desk.staged("b/one").exists());
    s3.heal();
    eventually("it is tried again", || desk.rows() == before + 1);
    desk.settles();
}
