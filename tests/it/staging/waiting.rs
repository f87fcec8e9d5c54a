//! Who waits for a commit: until the deadline or a signal, and the commit goes on.

use std::fs::File;
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{
    Desk, Running, S3, errno, eventually, folder, names, photos, run, stdout, xattr,
};

const EBUSY: i32 = 16;
const ETIMEDOUT: i32 = 110;

/// A table in a bucket, mounted.
fn remote(flags: &[&str]) -> (S3, Desk) {
    let (s3, folder) = (S3::new(&[]), folder());
    let table = folder.path().join("photos.lance");
    photos(&table);
    s3.put(&table, "t");
    let desk = Desk::remote(&s3, "t", &[&["--upload-delay", "1h"], flags].concat());
    (s3, desk)
}

/// Lets the next manifest be written and its answer never come.
fn lose_the_answer(s3: &S3) {
    s3.strike(
        json!({ "kind": "apply-then-hang", "method": "PUT", "key": "_versions", "count": 1 }),
    );
}

fn progress(desk: &Desk, batch: &str) -> Value {
    let told = xattr(&desk.staged(batch), "user.lancefs.progress").unwrap_or_default();
    serde_json::from_str(&told).unwrap_or_default()
}

#[test]
fn s57_a_commit_ends_although_nobody_waits_for_it_any_more() {
    let (s3, desk) = remote(&["--timeout", "2s"]);
    desk.entry("b/1", &[("blob.bin", b"one")]);
    let before = desk.rows();
    lose_the_answer(&s3);
    assert_eq!(errno(desk.commit("b")), ETIMEDOUT);
    eventually("the batch leaves by itself", || names(&desk.mount.at("staging")).is_empty());
    eventually("its row is there", || desk.rows() == before + 1);
    let last = desk.commits().pop().unwrap();
    assert_eq!((&last["batch"], last["version"].as_u64()), (&json!("b"), Some(desk.newest())));
    desk.settles();
}

#[test]
fn the_command_waits_for_a_commit_longer_than_the_mount_does() {
    let (s3, desk) = remote(&["--timeout", "2s"]);
    desk.entry("b/1", &[("blob.bin", b"one")]);
    lose_the_answer(&s3);
    let output = run(&["commit", "--yes", desk.staged("b").to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    assert!(stdout(&output).contains("version 2: 1 row"), "{output:?}");
    desk.settles();
}

/// Begins to commit a batch over a link that hangs, by a process that can be told to end.
fn mv(desk: &Desk, batch: &str) -> Running {
    // By its path it could not be asked: who moves it holds the folder that it is in.
    let open = File::open(desk.staged(batch)).unwrap();
    let mv =
        Running::start(Command::new("mv").arg(desk.staged(batch)).arg(desk.mount.at("commit")));
    eventually("the commit is under way", || {
        let mut told = [0_u8; 1024];
        let len = rustix::fs::fgetxattr(&open, "user.lancefs.progress", &mut told);
        len.is_ok_and(|len| String::from_utf8_lossy(&told[..len]).contains("\"check\""))
    });
    mv
}

#[test]
fn s58_a_process_that_waits_for_a_commit_can_be_ended() {
    let (s3, desk) = remote(&["--timeout", "10m"]);
    // Not SIGINT: who runs the tests in the background lets everything that they start ignore it.
    for signal in [Signal::TERM, Signal::KILL] {
        let before = desk.rows();
        desk.entry("b/1", &[("blob.bin", b"one")]);
        s3.fault("hang");
        let mut mv = mv(&desk, "b");
        mv.signal(signal);
        assert_ne!(mv.ended("it is ended"), Some(0));
        // What waited for the folders goes on.
        assert_eq!(names(&desk.mount.at("staging")), ["b"]);
        assert!(desk.error("b").contains("goes on"), "{}", desk.error("b"));
        assert_eq!(errno(std::fs::create_dir(desk.staged("b/2"))), EBUSY);
        assert_eq!(progress(&desk, "b")["step"], "check");
        s3.fault("ok");
        eventually("the batch leaves by itself", || names(&desk.mount.at("staging")).is_empty());
        eventually("its row is there", || desk.rows() == before + 1);
        desk.settles();
    }
}
