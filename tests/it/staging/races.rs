//! Programs that write while a batch is committed.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::harness::{Desk, eventually, folder, photos};

const COMMITS: u64 = 20;

/// Writes whole files, one after another, into whatever batch there is; gives how many were whole.
fn create(desk: &Desk, writer: u64, end: &AtomicBool) -> u64 {
    let mut whole = 0;
    for number in 0.. {
        if end.load(Ordering::Relaxed) {
            break;
        }
        let path = desk.staged(&format!("b/{writer}-{number}.bin"));
        match File::create_new(path) {
            Ok(mut file) => {
                let text = format!("{writer}-{number}");
                file.write_all(text.as_bytes()).expect("what could be opened can be written");
                whole += 1;
            }
            // It is being committed, or there is none at this moment.
            Err(error) => assert!(
                matches!(error.kind(), ErrorKind::ResourceBusy | ErrorKind::NotFound),
                "{error}"
            ),
        }
    }
    whole
}

/// Tells the writers to end, also if the test fails.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_file_that_could_be_opened_is_never_committed_empty() {
    let folder = folder();
    let table = folder.path().join("photos.lance");
    photos(&table);
    let desk = Desk::new(&table, &[]);
    let (end, written) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let ending = Ending(&end);
        for writer in 0..4 {
            let (desk, end, written) = (&desk, &end, &written);
            scope.spawn(move || {
                written.fetch_add(create(desk, writer, end), Ordering::Relaxed);
            });
        }
        for _ in 0..COMMITS {
            fs::create_dir(desk.staged("b")).unwrap();
            // Begun at another moment of the writers' work each time.
            eventually("it is committed", || desk.commit("b").is_ok());
        }
        drop(ending);
    });
    assert_eq!(desk.rows(), written.load(Ordering::Relaxed));
    assert!(desk.rows() >= COMMITS, "a commit of nothing fails");
    for row in 0..desk.rows() {
        let value = fs::read(desk.mount.at(format!("latest/{row}/blob.bin"))).unwrap();
        assert!(value.contains(&b'-'), "row {row} is {value:?}");
    }
    desk.settles();
}

#[test]
fn nothing_is_made_in_a_batch_that_is_published() {
    let folder = folder();
    let table = folder.path().join("photos.lance");
    photos(&table);
    let desk = Desk::new(&table, &[]);
    for round in 0..10 {
        let open = |path: &str| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            rustix::fs::open(desk.staged(path), flags, Mode::empty()).unwrap()
        };
        // Enough of them that they are not deleted at once.
        for entry in 0..50 {
            desk.entry(&format!("b/{entry}"), &[("blob.bin", b"x")]);
        }
        let directories = [open("b"), open("b/7")];
        desk.must_commit("b");
        for number in 0..20 {
            for directory in &directories {
                let name = format!("late-{number}.bin");
                let flags = OFlags::CREATE | OFlags::WRONLY;
                let made = [
                    rustix::fs::openat(directory, &*name, flags, Mode::RWXU).map(drop),
                    rustix::fs::symlinkat("x", directory, "link"),
                    rustix::fs::mkdirat(directory, "folder", Mode::RWXU),
                ];
                assert_eq!(made, [Err(Errno::NOENT); 3], "round {round}, {number}");
            }
        }
    }
    desk.settles();
}
