//! The daemon is killed, at every step of a commit and at random under load, and mounted again:
//! every batch is committed once or is still whole.
//!
//! The fast tier kills a handful of times, the slow tier more than two hundred times.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;

use super::faults::no_strays;
use crate::harness::{Desk, S3, Seen, eventually, folder, is_alive, names, photos, tree};

const FLAGS: [&str; 4] = ["--upload-delay", "1h", "--timeout", "10s"];
/// Larger than one part of an upload.
const LARGE: usize = 9 << 20;

fn is_slow_tier() -> bool {
    std::env::var_os("LANCEFS_TEST_SLOW").is_some()
}

/// Stages a batch of two rows with ids from `id` on.
fn stage(desk: &Desk, id: u64, large: usize) -> BTreeMap<PathBuf, Seen> {
    for (n, blob) in [vec![b'l'; large], b"small".to_vec()].into_iter().enumerate() {
        let json = format!("{{\"id\": {}}}", id + u64::try_from(n).unwrap());
        let files: [(&str, &[u8]); 2] = [("row.json", json.as_bytes()), ("blob.bin", &blob)];
        desk.entry(&format!("b/{n}"), &files);
    }
    tree(&desk.staged("b"))
}

/// Looks at what a death has left, mounts again, and brings the batch to its end.
fn finish(desk: &Desk, what: &str, whole: &BTreeMap<PathBuf, Seen>, rows: u64) {
    let left = desk.folder().join("tree/b");
    if left.exists() {
        let contents = |of: &BTreeMap<PathBuf, Seen>| {
            of.iter().map(|(path, seen)| (path.clone(), seen.content.clone())).collect::<Vec<_>>()
        };
        assert_eq!(contents(&tree(&left)), contents(whole), "{what}: the batch is whole");
    }
    desk.start();
    // A restart may settle it by itself, before or while this asks for it.
    if let Err(error) = desk.commit("b") {
        let told = format!("{what}: {error}: {}\n{}", desk.error("b"), desk.mount.log());
        eventually(&told, || !desk.staged("b").exists());
    }
    desk.settles();
    assert_eq!(desk.rows(), rows, "{what}: rows\n{}", desk.mount.log());
}

/// Commits, which the daemon does not survive.
fn commit_to_death(desk: &Desk, pid: i32, kill: impl FnOnce()) {
    std::thread::scope(|scope| {
        let committing = scope.spawn(|| desk.commit("b"));
        kill();
        eventually("the daemon is dead", || !is_alive(pid));
        let _ = committing.join().unwrap();
    });
}

/// Every id is there once, and cleaning up leaves nothing behind.
fn end(desk: &Desk, ids: u64, blobs: &Path) {
    let found = desk.python("print(sorted(ds.to_table(columns=['id']).column(0).to_pylist()))");
    assert_eq!(found.trim(), format!("{:?}", (0..ids).collect::<Vec<_>>()));
    no_strays(desk, blobs);
}

/// The steps at which a process may die, the more telling ones first.
const STEPS: [&str; 18] = [
    "after-publishing",
    "after-committed",
    "after-published",
    "after-stored",
    "after-prepared",
    "before-removed",
    "after-removed",
    "after-settled",
    "before-opened",
    "after-opened",
    "after-opened:2",
    "before-stored",
    "before-stored:2",
    "after-stored:2",
    "after-uploaded",
    "before-publishing",
    "before-published",
    "before-settled",
];

fn killed_at_each_step(desk: &Desk, steps: &[&str], blobs: &Path) {
    let mut id = 0;
    for step in steps {
        desk.mount.unmount();
        desk.start_to_die(step);
        let whole = stage(desk, id, LARGE);
        commit_to_death(desk, desk.mount.pid(), || {});
        id += 2;
        finish(desk, step, &whole, id);
    }
    end(desk, id, blobs);
}

#[test]
fn a_batch_survives_a_death_at_every_step() {
    let folder = folder();
    let table = folder.path().join("photos.lance");
    photos(&table);
    let desk = Desk::new(&table, &FLAGS);
    let steps = if is_slow_tier() { &STEPS[..] } else { &STEPS[..6] };
    killed_at_each_step(&desk, steps, &table.join("_blobs"));
}

fn remote() -> (S3, Desk) {
    let (s3, folder) = (S3::new(&[]), folder());
    let table = folder.path().join("photos.lance");
    photos(&table);
    s3.put(&table, "t");
    let desk = Desk::remote(&s3, "t", &FLAGS);
    (s3, desk)
}

#[test]
fn a_batch_survives_a_death_at_every_step_in_an_object_store() {
    if !is_slow_tier() {
        return;
    }
    let (s3, desk) = remote();
    killed_at_each_step(&desk, &STEPS, &s3.bucket().join("t/_blobs"));
}

#[test]
fn a_batch_survives_a_death_during_every_call_of_the_store() {
    let (s3, desk) = remote();
    stage(&desk, 0, LARGE);
    s3.strike(json!({ "kind": "none" }));
    desk.must_commit("b");
    let calls = s3.struck().0;
    let chosen: Vec<usize> = if is_slow_tier() {
        (0..calls.len()).collect()
    } else {
        calls
            .iter()
            .position(|call| call.starts_with("PUT") && call.contains("_versions/"))
            .into_iter()
            .collect()
    };
    assert!(!chosen.is_empty(), "{calls:#?}");
    let mut id = 2;
    for skip in chosen {
        for kind in ["hang", "apply-then-hang"] {
            let whole = stage(&desk, id, LARGE);
            s3.strike(json!({ "skip": skip, "kind": kind, "count": 1 }));
            let pid = desk.mount.pid();
            let what = format!("{kind} of call {skip}, {}", calls[skip]);
            commit_to_death(&desk, pid, || {
                // The calls are not the same ones each time: a commit may be over before.
                let mut ended = false;
                eventually(&what, || {
                    ended = !desk.staged("b").exists();
                    s3.struck().1 > 0 || ended
                });
                desk.kill(pid);
            });
            s3.heal();
            id += 2;
            finish(&desk, &what, &whole, id);
        }
    }
    end(&desk, id, &s3.bucket().join("t/_blobs"));
}

#[test]
fn copies_that_refer_to_the_table_survive_a_death() {
    let folder = folder();
    let table = folder.path().join("photos.lance");
    photos(&table);
    let desk = Desk::new(&table, &FLAGS);
    stage(&desk, 0, LARGE);
    desk.must_commit("b");
    let mut rows = 2;
    for step in ["before-protect", "after-protect", "after-publishing", "before-settled"] {
        desk.mount.unmount();
        desk.start_to_die(step);
        let pid = desk.mount.pid();
        std::fs::create_dir_all(desk.staged("b/1")).unwrap();
        let copied = std::process::Command::new("cp")
            .arg(desk.mount.at("2/0/blob.bin"))
            .arg(desk.staged("b/1/blob.bin"))
            .output()
            .unwrap();
        if copied.status.success() {
            commit_to_death(&desk, pid, || {});
        }
        eventually("the daemon is dead", || !is_alive(pid));
        desk.start();
        if !copied.status.success() {
            let again = std::process::Command::new("cp")
                .arg(desk.mount.at("2/0/blob.bin"))
                .arg(desk.staged("b/1/blob.bin"))
                .output();
            crate::harness::stdout(&again.unwrap());
        }
        if desk.staged("b").exists() && desk.commit("b").is_err() {
            assert!(!desk.staged("b").exists(), "{step}: {}", desk.error("b"));
        }
        desk.settles();
        rows += 1;
        assert_eq!(desk.rows(), rows, "{step}");
        let last = desk.mount.at(format!("latest/{}/blob.bin", rows - 1));
        assert_eq!(std::fs::read(last).unwrap(), vec![b'l'; LARGE], "{step}");
    }
    assert_eq!(desk.python("print(list(ds.tags.list()))").trim(), "[]");
    no_strays(&desk, &table.join("_blobs"));
    assert_eq!(names(&table.join("_blobs")).len(), 2, "one large object and one of the small file");
}

/// Who writes while the daemon is killed again and again.
struct Load<'a> {
    desk: &'a Desk,
    /// Odd while there is no daemon.
    generation: AtomicU64,
    is_over: AtomicBool,
    ids: AtomicU64,
}

impl Load<'_> {
    /// Does something in a mount that is there, until it has succeeded.
    fn until_done<T>(&self, mut work: impl FnMut() -> std::io::Result<T>) -> T {
        for _ in 0..60_000 {
            let before = self.generation.load(Ordering::SeqCst);
            if before.is_multiple_of(2) {
                let done = work();
                if self.generation.load(Ordering::SeqCst) == before
                    && let Ok(done) = done
                {
                    return done;
                }
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        panic!("no success within two minutes\n{}", self.desk.mount.log());
    }

    fn write(&self, writer: usize) {
        for n in 0_u64.. {
            if self.is_over.load(Ordering::SeqCst) {
                return;
            }
            let (name, id) = (format!("w{writer}-{n}"), self.ids.fetch_add(1, Ordering::SeqCst));
            let batch = self.desk.staged(&name);
            let blob = id.to_string().repeat(if id % 5 == 0 { 400_000 } else { 1000 });
            self.until_done(|| {
                // Not `create_dir_all`: where nothing is mounted it would succeed.
                for folder in [batch.clone(), batch.join("e")] {
                    match std::fs::create_dir(&folder) {
                        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(e),
                        _ => {}
                    }
                }
                std::fs::write(batch.join("e/row.json"), format!("{{\"id\": {id}}}"))?;
                std::fs::write(batch.join("e/blob.bin"), &blob)
            });
            self.until_done(|| match self.desk.commit(&name) {
                Ok(()) => Ok(()),
                // It failed, or nobody was there to say that it succeeded.
                Err(error) => match std::fs::symlink_metadata(&batch) {
                    Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
                    _ => Err(error),
                },
            });
        }
    }
}

fn killed_under_load(desk: &Desk, kills: u64, blobs: &Path) {
    let load = Load {
        desk,
        generation: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
        ids: AtomicU64::new(0),
    };
    std::thread::scope(|scope| {
        let load = &load;
        let writers: Vec<_> = (0..3).map(|n| scope.spawn(move || load.write(n))).collect();
        // Seeded: the same times in each run, as far as a machine has the same times.
        let mut state = 0x2545_F491_4F6C_DD1D_u64;
        for _ in 0..kills {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            std::thread::sleep(Duration::from_millis(30 + state % 700));
            if writers.iter().any(std::thread::ScopedJoinHandle::is_finished) {
                break;
            }
            let pid = desk.mount.pid();
            load.generation.fetch_add(1, Ordering::SeqCst);
            desk.kill(pid);
            desk.start();
            load.generation.fetch_add(1, Ordering::SeqCst);
        }
        load.is_over.store(true, Ordering::SeqCst);
    });
    desk.settles();
    let ids = load.ids.load(Ordering::SeqCst);
    // Else the daemon was killed while nobody did anything.
    assert!(ids >= kills, "{kills} kills, {ids} batches");
    assert_eq!(desk.rows(), ids, "{}", desk.mount.log());
    end(desk, ids, blobs);
}

#[test]
fn batches_survive_deaths_under_load() {
    let folder = folder();
    let table = folder.path().join("photos.lance");
    photos(&table);
    let desk = Desk::new(&table, &["--upload-delay", "50ms"]);
    killed_under_load(&desk, if is_slow_tier() { 100 } else { 3 }, &table.join("_blobs"));
}

#[test]
fn batches_survive_deaths_under_load_in_an_object_store() {
    if !is_slow_tier() {
        return;
    }
    let (s3, folder) = (S3::new(&[]), folder());
    let table = folder.path().join("photos.lance");
    photos(&table);
    s3.put(&table, "t");
    let desk = Desk::remote(&s3, "t", &["--upload-delay", "50ms"]);
    killed_under_load(&desk, 60, &s3.bucket().join("t/_blobs"));
}
