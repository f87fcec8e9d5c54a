//! S11 to S16: versions, and what other processes do to the table.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

use super::{SOON, SOON_MS, object};
use crate::harness::{
    Mount, S3, Tables, errno, eventually, folder, names, run_python, sha256, tree, write_blobs,
};

fn latest(directory: &Path) -> String {
    std::fs::read_link(directory.join("latest")).unwrap().to_str().unwrap().to_owned()
}

#[test]
fn s11_a_version_directory_never_changes() {
    let folder = folder();
    let table = folder.path().join("t.lance");
    let values = "[None, b'', b'small', b'p' * 100_000, b'q' * 300_000, b'd' * 5_000_000]";
    write_blobs(&table, "create", values, "");
    let mount = Mount::with(&table, &SOON);
    let before = tree(&mount.at("1"));
    assert_eq!(before.len(), 1 + 6 + 6 + 5, "{before:?}");
    write_blobs(&table, "append", "[b'more' * 50_000]", "");
    run_python(&format!(
        "ds = lance.dataset({table:?})
ds.delete('id = 2')
ds.add_columns({{'twice': 'id * 2'}})
ds.update({{'id': '7'}}, where='id = 3')
ds.optimize.compact_files()
ds.tags.create('t', 1)
ds.update_config({{'k': 'v'}})
ds.restore()"
    ));
    eventually("a later version", || latest(&mount.path).parse::<u64>().unwrap() > 6);
    assert_eq!(tree(&mount.at("1")), before);
    assert_eq!(tree(&mount.at("tags/t/")), before);
    mount.unmount();
    mount.start(&table, &[]);
    assert_eq!(tree(&mount.at("1")), before);
}

#[test]
fn s12_latest_follows_commits_of_others() {
    let folder = folder();
    let table = folder.path().join("t.lance");
    write_blobs(&table, "create", "[b'one']", "");
    let mount = Mount::with(&table, &SOON);
    assert_eq!(latest(&mount.path), "1");
    write_blobs(&table, "append", "[b'two']", "");
    eventually("latest is 2", || latest(&mount.path) == "2");
    assert_eq!(std::fs::read(mount.at("latest/1/blob.bin")).unwrap(), b"two");
    assert!(names(&mount.path).contains(&"2".to_owned()));
    run_python(&format!(
        "ds = lance.dataset({table:?}).create_branch('side', 1)
ds.delete('id = 0')"
    ));
    eventually("the branch", || mount.at("branches/side").is_dir());
    eventually("its latest is 2", || latest(&mount.at("branches/side")) == "2");
    assert_eq!(latest(&mount.path), "2");
}

#[test]
fn s13_what_is_removed_leaves_the_listing() {
    let folder = folder();
    let table = folder.path().join("t.lance");
    write_blobs(&table, "create", "[b'one']", "");
    write_blobs(&table, "overwrite", "[b'two']", "");
    run_python(&format!(
        "ds = lance.dataset({table:?})
ds.tags.create('tag', 2)
ds.create_branch('side', 2)"
    ));
    let mount = Mount::with(&table, &SOON);
    let listed = |path: &str, name: &str| names(&mount.at(path)).contains(&name.to_owned());
    let all = [("", "1"), ("tags", "tag"), ("branches", "side")];
    for (path, name) in all {
        assert!(listed(path, name), "{path}/{name} is not there");
        assert!(mount.at(path).join(name).join(".").exists() && mount.at("1/0/blob.bin").exists());
    }
    run_python(&format!(
        "from datetime import timedelta
ds = lance.dataset({table:?})
ds.tags.delete('tag')
ds.branches.delete('side')
ds.cleanup_old_versions(older_than=timedelta(0), retain_versions=1)"
    ));
    for (path, name) in all {
        eventually(&format!("{path}/{name} is not listed"), || !listed(path, name));
        let lookup = || std::fs::symlink_metadata(mount.at(path).join(name));
        eventually(&format!("{path}/{name} is not found"), || lookup().is_err());
        assert_eq!(errno(lookup()), 2, "{path}/{name}");
    }
    assert_eq!(errno(std::fs::File::open(mount.at("1/0/blob.bin"))), 2);
    assert_eq!(std::fs::read(mount.at("2/0/blob.bin")).unwrap(), b"two");
}

/// README "Errors": a value whose version is gone is not one that is damaged.
#[test]
fn s14_an_open_file_of_a_bucket_says_that_its_version_was_removed() {
    const ESTALE: i32 = 116;
    let (s3, folder) = (S3::new(&[]), folder());
    let table = folder.path().join("t.lance");
    write_blobs(&table, "create", "[b'd' * 5_000_000, b'p' * 300_000]", "");
    s3.put(&table, "t");
    let mount = s3.mount("t", &["--read-ahead", "0", "--memory", "1MiB"]);
    let row = |row: u32| mount.at(format!("1/{row}/blob.bin"));
    let (large, packed) =
        (std::fs::File::open(row(0)).unwrap(), std::fs::File::open(row(1)).unwrap());
    let mut head = [0; 100];
    large.read_exact_at(&mut head, 0).unwrap();
    assert_eq!(head, [b'd'; 100]);
    let options = s3.python_options();
    run_python(&format!(
        "from datetime import timedelta
options = {options}
schema = pa.schema([pa.field('id', pa.int64()), blob_field('blob')])
lance.write_dataset(pa.table([[0], blob_array([b'new'])], schema=schema), '{0}', mode='overwrite', storage_options=options)
lance.dataset('{0}', storage_options=options).cleanup_old_versions(older_than=timedelta(0), retain_versions=1)",
        s3.uri("t")
    ));
    let mut tail = [0; 100];
    assert_eq!(errno(large.read_exact_at(&mut tail, 4_000_000)), ESTALE);
    assert_eq!(errno(packed.read_exact_at(&mut tail, 200_000)), ESTALE);
}

#[test]
fn s14_an_open_file_of_a_removed_version_reads_to_its_end() {
    let folder = folder();
    let table = folder.path().join("t.lance");
    let values = "[bytes(i * i % 251 for i in range(6_000_000)), b'packed' * 50_000, b'inline']";
    write_blobs(&table, "create", values, "");
    let mount = Mount::with(&table, &SOON);
    let paths = [0, 1, 2].map(|row| mount.at(format!("1/{row}/blob.bin")));
    let mut files = paths.clone().map(|path| std::fs::File::open(path).unwrap());
    let objects = paths.map(|path| object(&path).0);
    let wanted: Vec<u8> = (0..6_000_000_u64).map(|i| u8::try_from(i * i % 251).unwrap()).collect();
    let mut head = [0; 100];
    files[0].read_exact(&mut head).unwrap();
    assert_eq!(head, wanted[..100]);
    write_blobs(&table, "overwrite", "[b'new']", "");
    run_python(&format!(
        "from datetime import timedelta
lance.dataset({table:?}).cleanup_old_versions(older_than=timedelta(0), retain_versions=1)"
    ));
    for object in objects {
        assert!(!object.exists(), "the cleanup left {}", object.display());
    }
    eventually("version 1 is gone", || !names(&mount.path).contains(&"1".to_owned()));
    let mut rest = Vec::new();
    files[0].read_to_end(&mut rest).unwrap();
    assert_eq!(sha256(&rest), sha256(&wanted[100..]));
    let mut packed = Vec::new();
    files[1].read_to_end(&mut packed).unwrap();
    assert_eq!(packed, b"packed".repeat(50_000));
    let mut inline = [0; 6];
    files[2].read_exact_at(&mut inline, 0).unwrap();
    assert_eq!(&inline, b"inline");
}

#[test]
fn s15_a_recreated_table_shows_none_of_the_old_bytes() {
    let folder = folder();
    let table = folder.path().join("t.lance");
    let write = |word: &str| {
        let values = format!("[b'{word}', b'{word}' * 40_000, b'{word}' * 2_000_000]");
        write_blobs(&table, "create", &values, "");
    };
    write("old");
    let mount = Mount::with(&table, &SOON);
    let before = tree(&mount.path);
    let held = std::fs::File::open(mount.at("1/1/blob.bin")).unwrap();
    std::fs::remove_dir_all(&table).unwrap();
    write("new");
    let ino = |path: &Path| std::fs::metadata(path).map(|meta| meta.ino()).ok();
    let old = before[Path::new("1")].ino;
    eventually("another version 1", || ino(&mount.at("1")).is_some_and(|now| now != old));
    for (row, times) in [(0, 1), (1, 40_000), (2, 2_000_000)] {
        let bytes = std::fs::read(mount.at(format!("1/{row}/blob.bin"))).unwrap();
        assert!(bytes == b"new".repeat(times), "row {row} starts with {:?}", &bytes[..3]);
    }
    let after = tree(&mount.at("1"));
    let numbers: BTreeSet<u64> = before.values().map(|seen| seen.ino).collect();
    for (path, seen) in &after {
        assert!(!numbers.contains(&seen.ino), "{} has a number of the old", path.display());
    }
    assert_eq!(after.len(), 1 + 3 + 6);
    let mut bytes = vec![0; 120_000];
    held.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == b"old".repeat(40_000), "the file that was open changed");
}

/// The kernel tells of every open and read beneath the table. This sees what `strace` would show
/// but for `stat`; the list of tags needs an open, and so does that of versions once one has come.
#[test]
fn s16_an_idle_mount_asks_for_nothing() {
    let folder = folder();
    let table = Tables::shared().copy("refs", folder.path());
    let mount = Mount::with(&table, &SOON);
    let before = tree(&mount.path);
    assert!(before.len() > 100);
    let watch = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
    // Collected first, for the walk itself opens directories.
    let all: Vec<_> = walkdir::WalkDir::new(&table).into_iter().map(Result::unwrap).collect();
    for entry in all.iter().filter(|entry| entry.file_type().is_dir()) {
        let events = WatchFlags::OPEN | WatchFlags::ACCESS | WatchFlags::MODIFY;
        inotify::add_watch(&watch, entry.path(), events).unwrap();
    }
    let mut events = [0_u8; 4096];
    std::thread::sleep(Duration::from_millis(10 * SOON_MS));
    let idle = rustix::io::read(&watch, &mut events);
    assert_eq!(idle, Err(rustix::io::Errno::AGAIN), "somebody looked at the table");
    names(&mount.at("tags"));
    assert!(rustix::io::read(&watch, &mut events).unwrap() > 0, "a listing was not noticed");
}
