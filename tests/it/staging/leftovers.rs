//! Batches that are in the table and cannot be taken off the staging disk: nobody can add to them what
//! would be lost, and they go as soon as they can.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::{Desk, errno, eventually, folder, names, photos, stdout, xattr};

const EBUSY: i32 = 16;

/// A folder in which nothing can be made, not even by root, until this is dropped.
struct Immutable(PathBuf);

impl Immutable {
    fn new(path: PathBuf) -> Self {
        stdout(&Command::new("chattr").arg("+i").arg(&path).output().unwrap());
        Self(path)
    }
}

impl Drop for Immutable {
    fn drop(&mut self) {
        let _ = Command::new("chattr").arg("-i").arg(&self.0).output();
    }
}

fn desk(folder: &Path, flags: &[&str]) -> Desk {
    let table = folder.join("photos.lance");
    photos(&table);
    Desk::new(&table, flags)
}

/// Everything that would add to a batch fails, and says why.
fn is_sealed(desk: &Desk, batch: &str, version: u64) {
    let at = |path: &str| desk.staged(&format!("{batch}/{path}"));
    assert_eq!(errno(std::fs::create_dir(at("new"))), EBUSY);
    assert_eq!(errno(std::fs::write(at("new.bin"), b"new")), EBUSY);
    assert_eq!(errno(std::fs::write(at("1/frames[0].bin"), b"new")), EBUSY);
    assert_eq!(errno(std::fs::write(at("1/blob.bin"), b"other")), EBUSY);
    assert_eq!(errno(std::fs::rename(desk.staged("other/1"), at("2"))), EBUSY);
    let why = xattr(&desk.staged(batch), "user.lancefs.error").unwrap();
    assert!(why.contains(&format!("is version {version} of the table already")), "{why}");
    assert_eq!(std::fs::read(at("1/blob.bin")).unwrap(), b"one", "it can be read");
}

#[test]
fn s55_what_is_added_to_a_published_batch_is_refused_until_it_is_gone() {
    let folder = folder();
    let desk = desk(folder.path(), &["--auto-commit", "1h"]);
    desk.entry("b/1", &[("blob.bin", b"one")]);
    desk.entry("other/1", &[("blob.bin", b"other")]);
    let immutable = Immutable::new(desk.folder().join("gone"));
    assert_eq!(desk.must_commit("b"), 2);
    assert_eq!((desk.rows(), desk.staged("b").exists()), (1, true));
    is_sealed(&desk, "b", 2);
    assert_eq!(desk.must_commit("b"), 2, "who commits again hears where it is");
    is_sealed(&desk, "b", 2);
    let pid = desk.mount.pid();
    desk.kill(pid);
    desk.start();
    is_sealed(&desk, "b", 2);
    desk.mount.unmount();
    desk.start();
    is_sealed(&desk, "b", 2);
    assert_eq!(desk.must_commit("b"), 2);
    let lines = desk.commits();
    assert!(lines.iter().all(|line| line["version"] == 2), "{lines:?}");
    drop(immutable);
    eventually("it goes by itself", || !desk.staged("b").exists());
    assert_eq!((desk.rows(), desk.newest()), (1, 2));
    // Its name is free again.
    desk.entry("b/2", &[("blob.bin", b"two")]);
    assert_eq!(desk.must_commit("b"), 3);
    assert_eq!(names(&desk.mount.at("staging")), ["other"]);
    assert_eq!(desk.must_commit("other"), 4);
    desk.settles();
}

#[test]
fn a_published_batch_that_stays_can_be_removed_by_hand() {
    let folder = folder();
    let desk = desk(folder.path(), &[]);
    desk.entry("b/1", &[("blob.bin", b"one")]);
    let immutable = Immutable::new(desk.folder().join("gone"));
    desk.must_commit("b");
    std::fs::remove_dir_all(desk.staged("b")).unwrap();
    drop(immutable);
    desk.settles();
    assert_eq!((desk.rows(), desk.newest()), (1, 2));
}
