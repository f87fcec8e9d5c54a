//! What a batch shows whose commit found faults.

use std::os::unix::fs::PermissionsExt as _;

use crate::harness::{Desk, errno, folder, names, photos};

const EUCLEAN: i32 = 117;
const EROFS: i32 = 30;
const REFUSED: &str = "COMMIT-REFUSED.txt";

#[test]
fn a_refused_batch_shows_why_until_it_is_changed_or_tried_again() {
    let folder = folder();
    let table = folder.path().join("photos.lance");
    photos(&table);
    let desk = Desk::new(&table, &["--upload-delay", "1h"]);
    desk.entry("b/1", &[("blob.bin", b"one"), ("nofield.png", b"one")]);
    let shown = desk.staged("b").join(REFUSED);
    assert!(!shown.exists());
    for _ in 0..2 {
        assert_eq!(errno(desk.commit("b")), EUCLEAN);
        assert_eq!(names(&desk.staged("b")), ["1", REFUSED]);
        let text = std::fs::read_to_string(&shown).unwrap();
        let says = |line: &str| text.lines().any(|said| said.contains(line));
        assert!(says("batch b cannot be committed, 1 thing is wrong"), "{text}");
        assert!(says("b/1: ") && says("nofield.png"), "{text}");
        let found = shown.metadata().unwrap();
        assert_eq!(found.len(), u64::try_from(text.len()).unwrap());
        assert_eq!(found.permissions().mode() & 0o7777, 0o444);
    }
    assert_eq!(errno(std::fs::write(&shown, b"mine")), EROFS);
    assert!(!desk.folder().join("tree/b").join(REFUSED).exists(), "it is on no disk");
    std::fs::remove_file(desk.staged("b/1/nofield.png")).unwrap();
    assert_eq!(names(&desk.staged("b")), ["1"], "the batch has changed");
    desk.must_commit("b");
    assert_eq!(desk.rows(), 1);
}

#[test]
fn what_a_refused_batch_shows_is_no_row_and_can_be_removed() {
    let folder = folder();
    let table = folder.path().join("photos.lance");
    photos(&table);
    let desk = Desk::new(&table, &["--upload-delay", "1h"]);
    let entry = |batch: &str| desk.entry(&format!("{batch}/1"), &[("nofield.png", b"one")]);
    entry("b");
    assert_eq!(errno(desk.commit("b")), EUCLEAN);
    std::fs::remove_file(desk.staged("b").join(REFUSED)).unwrap();
    assert_eq!(names(&desk.staged("b")), ["1"]);
    assert_eq!(errno(desk.commit("b")), EUCLEAN);
    // Copied along into another batch it is a file, and still no row.
    let text = std::fs::read(desk.staged("b").join(REFUSED)).unwrap();
    desk.entry("c/1", &[("blob.bin", b"one")]);
    std::fs::write(desk.staged("c").join(REFUSED), text).unwrap();
    desk.must_commit("c");
    assert_eq!(desk.rows(), 1);
    std::fs::remove_dir_all(desk.staged("b")).unwrap();
    assert_eq!(names(&desk.mount.at("staging")), Vec::<String>::new());
}
