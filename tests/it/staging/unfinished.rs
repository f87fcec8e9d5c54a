//! What is hidden, and what has not become a file yet, beside what is to be committed.

use std::fs;

use crate::harness::{Desk, eventually, folder, names, photos};

const AUTOMATIC: [&str; 4] = ["--auto-commit", "300ms", "--upload-delay", "100ms"];

fn desk(flags: &[&str]) -> (tempfile::TempDir, Desk) {
    let folder = folder();
    let table = folder.path().join("photos.lance");
    photos(&table);
    let desk = Desk::new(&table, flags);
    (folder, desk)
}

#[test]
fn s56_what_is_hidden_is_no_row() {
    let (_folder, desk) = desk(&["--upload-delay", "1h"]);
    fs::create_dir_all(desk.staged("b/.thumbnails")).unwrap();
    for name in ["a.jpg", ".nomedia", ".gitignore", ".secret.jpg", ".thumbnails/blob.jpg"] {
        fs::write(desk.staged(&format!("b/{name}")), name).unwrap();
    }
    let plan = crate::harness::xattr(&desk.staged("b"), "user.lancefs.plan").unwrap();
    assert!(plan.contains(r#""hidden":[".secret.jpg"]"#), "{plan}");
    desk.must_commit("b");
    assert_eq!(desk.rows(), 1);
    assert_eq!(fs::read(desk.mount.at("latest/0/blob.bin")).unwrap(), b"a.jpg");
    // A batch that is one file is a row, and a hidden one is none.
    fs::write(desk.staged(".alone.jpg"), "alone").unwrap();
    assert!(desk.commit(".alone.jpg").is_err());
    assert!(desk.error(".alone.jpg").contains("is no batch: its name begins with a dot"));
    assert_eq!(desk.rows(), 1);
}

#[test]
fn s56_a_download_that_goes_on_holds_its_batch_back() {
    for (half, whole, by) in [
        ("photo.jpg.part", "photo.jpg", "a download"),
        (".syncthing.b.jpg.tmp", "b.jpg", "a program that saves"),
        ("c.jpg.aria2", "c.txt", "aria2"),
    ] {
        let (_folder, desk) = desk(&AUTOMATIC);
        fs::create_dir(desk.staged("b")).unwrap();
        fs::write(desk.staged("b/a.jpg"), "a").unwrap();
        fs::write(desk.staged(&format!("b/{half}")), "half").unwrap();
        let why = format!("b/{half}: {half} looks like what {by} leaves that has not ended");
        let told = || crate::harness::xattr(&desk.staged("b"), "user.lancefs.error");
        eventually("it says why", || told().is_ok_and(|text| text.contains(&why)));
        assert!(desk.mount.log().contains(&why), "{}", desk.mount.log());
        assert_eq!(desk.rows(), 0);
        assert!(desk.commit("b").is_err(), "nor does it when it is asked for");
        assert!(desk.error("b").contains(&why), "{}", desk.error("b"));
        fs::rename(desk.staged(&format!("b/{half}")), desk.staged(&format!("b/{whole}"))).unwrap();
        eventually("it is committed when the download has ended", || desk.rows() == 2);
    }
}

#[test]
fn s56_what_systems_leave_in_staging_is_no_batch() {
    let (_folder, desk) = desk(&AUTOMATIC);
    for name in [".Trashes", "lost+found", "$RECYCLE.BIN", ".Spotlight-V100"] {
        desk.entry(&format!("{name}/501"), &[("blob.jpg", b"thrown away")]);
        assert!(desk.commit(name).is_err(), "{name}");
        let error = desk.error(name);
        assert!(error.contains(&format!("{name} is no batch: systems leave")), "{error}");
        assert!(error.contains("rename it"), "{error}");
    }
    // One that is made later is committed, and these are looked at before it.
    desk.entry("zz/1", &[("blob.jpg", b"meant")]);
    eventually("a batch is committed", || desk.rows() == 1);
    assert_eq!(fs::read(desk.mount.at("latest/0/blob.bin")).unwrap(), b"meant");
    eventually("it is gone", || !desk.staged("zz").exists());
    assert_eq!(names(&desk.mount.at("staging")).len(), 4);
    let by_themselves = desk.commits().into_iter().filter(|line| line["version"].is_null());
    assert_eq!(by_themselves.count(), 4, "only what was asked for was tried");
    fs::rename(desk.staged(".Trashes"), desk.staged("kept")).unwrap();
    eventually("under another name it is one", || desk.rows() == 2);
}

#[test]
fn s56_a_deletion_never_takes_a_file_along() {
    let (_folder, desk) = desk(&["--upload-delay", "1h"]);
    desk.entry("a/1", &[("blob.jpg", b"one")]);
    desk.must_commit("a");
    desk.entry("b/@0/.delete", &[("content.jpg", b"precious")]);
    assert!(desk.commit("b").is_err());
    assert!(desk.error("b").contains("b/@0: .delete is a directory"), "{}", desk.error("b"));
    assert_eq!((desk.rows(), desk.newest()), (1, 2));
    assert_eq!(fs::read(desk.staged("b/@0/.delete/content.jpg")).unwrap(), b"precious");
    fs::remove_dir_all(desk.staged("b/@0/.delete")).unwrap();
    fs::write(desk.staged("b/@0/.delete"), "").unwrap();
    desk.must_commit("b");
    assert_eq!(desk.rows(), 0);
}
