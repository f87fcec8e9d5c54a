//! Copies of values that keep a reference instead of bytes.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use super::Staged;
use crate::harness::{
    Desk, Mount, S3, Tables, eventually, folder, names, photos, sha256, stdout, xattr,
};

/// Too large to share an object with others.
const LARGE: usize = 5 << 20;

/// A table with values of every kind of storage, opted in to Managed storage afterwards.
fn mixed() -> (Staged, PathBuf) {
    let disk = folder();
    let table = Tables::shared().copy("scalar", disk.path());
    let staging = disk.path().join("staging");
    let arguments =
        ["--enable-managed", "--upload-delay", "1h", "--staging-dir", staging.to_str().unwrap()];
    let mount = Mount::with(&table, &arguments);
    let arguments = arguments.map(ToOwned::to_owned).to_vec();
    let staged = Staged { mount, disk, table, arguments };
    let tree = staged.folder().join("tree");
    (staged, tree)
}

fn copy(from: &Path, to: &Path) {
    stdout(&Command::new("cp").arg(from).arg(to).output().unwrap());
}

fn is_reference(on_disk: &Path) -> bool {
    let mut buffer = [0; 4096];
    rustix::fs::getxattr(on_disk, "user.lancefs.reference", &mut buffer).is_ok()
}

/// The rows with a value, and how it is stored.
fn rows(staged: &Staged) -> Vec<(String, PathBuf, String)> {
    let rows = names(&staged.mount.at("1"));
    let values = rows.into_iter().map(|row| {
        let value = staged.mount.at("1").join(&row).join("blob.bin");
        let kind = xattr(&value, "user.lancefs.kind").unwrap_or_default();
        (row, value, kind)
    });
    values.filter(|(_, value, _)| value.is_file()).collect()
}

#[test]
fn s42_a_copied_value_is_a_reference_until_it_is_written_to() {
    let (staged, tree) = mixed();
    let batch = staged.batch("b");
    let mut seen = std::collections::BTreeSet::new();
    for (row, value, kind) in rows(&staged) {
        let (name, original) = (format!("{row}.bin"), fs::read(&value).unwrap());
        copy(&value, &batch.join(&name));
        let on_disk = tree.join("b").join(&name);
        let adoptable = ["packed", "dedicated", "managed"].contains(&kind.as_str());
        assert_eq!(is_reference(&on_disk), adoptable, "{row} {kind}");
        let copied = batch.join(&name);
        assert_eq!(sha256(&fs::read(&copied).unwrap()), sha256(&original), "{row} {kind}");
        seen.insert(kind);
        if !adoptable {
            continue;
        }
        // The attribute may have a block of its own.
        assert!(fs::metadata(&on_disk).unwrap().blocks() <= 8, "no byte was copied");
        let blocks = fs::metadata(&copied).unwrap().blocks();
        assert!(blocks >= fs::metadata(&copied).unwrap().len() / 512, "it is no hole");
        assert!(xattr(&copied, "user.lancefs.reference").is_err(), "it is hidden");
        let file = OpenOptions::new().append(true).open(&copied).unwrap();
        assert!(is_reference(&on_disk), "an open changes nothing");
        (&file).write_all(b"more").unwrap();
        assert!(!is_reference(&on_disk));
        assert_eq!(fs::read(&on_disk).unwrap(), [&original[..], b"more"].concat());
        assert_eq!(fs::read(&copied).unwrap(), [&original[..], b"more"].concat());
    }
    assert!(seen.contains("packed") && seen.contains("dedicated"), "{seen:?}");
}

#[test]
fn s42_cutting_and_replacing_a_reference_leaves_the_right_bytes() {
    let (staged, tree) = mixed();
    let batch = staged.batch("b");
    let (_, value, _) = rows(&staged).into_iter().find(|(_, _, kind)| kind == "packed").unwrap();
    let original = fs::read(&value).unwrap();
    let (path, on_disk) = (batch.join("x"), tree.join("b/x"));
    copy(&value, &path);
    File::options().write(true).open(&path).unwrap().set_len(1000).unwrap();
    assert!(!is_reference(&on_disk));
    assert_eq!(fs::read(&path).unwrap(), original[..1000]);
    fs::remove_file(&path).unwrap();
    copy(&value, &path);
    assert!(is_reference(&on_disk));
    fs::write(&path, b"short").unwrap();
    assert!(!is_reference(&on_disk));
    assert_eq!(fs::read(&on_disk).unwrap(), b"short");
    copy(&value, &path);
    let file = File::options().read(true).write(true).open(&path).unwrap();
    file.write_all_at(b"here", 10).unwrap();
    let wanted = [&original[..10], b"here", &original[14..]].concat();
    assert!(fs::read(&path).unwrap() == wanted);
    fs::remove_file(&path).unwrap();
    copy(&value, &path);
    let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    let file = File::options().read(true).write(true).open(&path).unwrap();
    rustix::fs::fallocate(&file, hole, 0, 4096).unwrap();
    assert!(fs::read(&path).unwrap() == [&[0; 4096][..], &original[4096..]].concat());
}

#[test]
fn references_survive_a_remount_and_copies_of_them_are_whole() {
    let (staged, tree) = mixed();
    let batch = staged.batch("b");
    let (_, value, _) = rows(&staged).into_iter().find(|(_, _, kind)| kind == "dedicated").unwrap();
    let original = sha256(&fs::read(&value).unwrap());
    copy(&value, &batch.join("x"));
    staged.mount.unmount();
    staged.mount_again();
    assert!(is_reference(&tree.join("b/x")));
    assert_eq!(sha256(&fs::read(batch.join("x")).unwrap()), original);
    copy(&batch.join("x"), &batch.join("y"));
    assert_eq!(sha256(&fs::read(batch.join("y")).unwrap()), original);
    // tar takes a file without blocks for one hole.
    let script = "tar -S -cf - x | tar -xf - --transform s/x/z/";
    stdout(&Command::new("bash").args(["-ec", script]).current_dir(&batch).output().unwrap());
    assert_eq!(sha256(&fs::read(batch.join("z")).unwrap()), original);
    staged.batch("c");
    fs::rename(batch.join("x"), staged.at("c/x")).unwrap();
    assert!(is_reference(&tree.join("c/x")));
}

#[test]
fn a_commit_adopts_what_is_referred_to() {
    let (staged, _) = mixed();
    let batch = staged.batch("b");
    let values = rows(&staged);
    let blobs = || fs::read_dir(staged.table.join("_blobs")).map_or(0, Iterator::count);
    for (row, value, kind) in &values {
        if ["packed", "dedicated"].contains(&kind.as_str()) {
            fs::create_dir(batch.join(row)).unwrap();
            copy(value, &batch.join(row).join("blob.bin"));
        }
    }
    let entries = names(&batch).len();
    let before = blobs();
    fs::rename(&batch, staged.mount.at("commit/b")).unwrap();
    assert_eq!(blobs(), before, "no payload was moved");
    let newest = staged.mount.at("latest");
    let count = names(&staged.mount.at("1")).len() - 1;
    let mut adopted: Vec<String> = (count..count + entries)
        .map(|row| newest.join(row.to_string()).join("blob.bin"))
        .map(|value| sha256(&fs::read(value).unwrap()))
        .collect();
    let mut wanted: Vec<String> = values
        .iter()
        .filter(|(_, _, kind)| ["packed", "dedicated"].contains(&kind.as_str()))
        .map(|(_, value, _)| sha256(&fs::read(value).unwrap()))
        .collect();
    adopted.sort();
    wanted.sort();
    assert_eq!(adopted, wanted);
    assert_eq!(names(&staged.at("")), [""; 0]);
}

/// A table in a bucket with one row of a large value, which a copy can refer to.
fn remote() -> (S3, Desk) {
    let (s3, folder) = (S3::new(&[]), folder());
    let table = folder.path().join("photos.lance");
    photos(&table);
    s3.put(&table, "t");
    let flags = ["--upload-delay", "1h", "--timeout", "3s", "--storage-option=timeout=1s"];
    let desk = Desk::remote(&s3, "t", &flags);
    desk.entry("first/1", &[("blob.bin", &[b'l'; LARGE])]);
    desk.must_commit("first");
    desk.settles();
    (s3, desk)
}

/// The tags of a table, and what they keep.
fn tags(desk: &Desk) -> Vec<String> {
    let listed = desk.python("print(*sorted(ds.tags.list()))");
    listed.split_whitespace().map(ToOwned::to_owned).collect()
}

#[test]
fn s42_a_copy_whose_version_cannot_be_protected_has_bytes_of_its_own() {
    let (s3, desk) = remote();
    let value = desk.mount.at("2/0/blob.bin");
    for (name, kind) in [("refused", "fail-403"), ("hung", "hang"), ("lost", "apply-then-hang")] {
        fs::create_dir_all(desk.staged(&format!("{name}/1"))).unwrap();
        s3.strike(json!({ "kind": kind, "method": "PUT", "key": "_refs/tags" }));
        let copied = desk.staged(&format!("{name}/1/blob.bin"));
        copy(&value, &copied);
        assert!(s3.struck().1 > 0, "{kind}: no tag was written");
        s3.heal();
        let on_disk = desk.folder().join("tree").join(name).join("1/blob.bin");
        assert!(!is_reference(&on_disk), "{kind}");
        assert_eq!(fs::read(&on_disk).unwrap(), [b'l'; LARGE], "{kind}");
        // And once it can be, it refers to the table.
        fs::remove_file(&copied).unwrap();
        copy(&value, &copied);
        assert!(is_reference(&on_disk), "{kind}");
    }
    assert_eq!(tags(&desk).len(), 3);
    for batch in ["refused", "hung", "lost"] {
        desk.must_commit(batch);
    }
    desk.settles();
    assert_eq!(tags(&desk), [""; 0]);
    assert_eq!(names(&s3.bucket().join("t/_blobs")).len(), 1, "no byte was uploaded again");
}

#[test]
fn what_refers_to_the_table_moves_to_another_batch_only_if_it_is_protected_there() {
    let (s3, desk) = remote();
    for batch in ["a/1", "b/1"] {
        fs::create_dir_all(desk.staged(batch)).unwrap();
    }
    copy(&desk.mount.at("2/0/blob.bin"), &desk.staged("a/1/blob.bin"));
    for kind in ["fail-403", "hang", "apply-then-hang"] {
        for to in ["b/2", "alone"] {
            s3.strike(json!({ "kind": kind, "method": "PUT", "key": "_refs/tags" }));
            let moved = fs::rename(desk.staged("a/1"), desk.staged(to));
            assert!(moved.is_err() && s3.struck().1 > 0, "{kind}: {to}");
            s3.heal();
            assert!(desk.staged("a/1/blob.bin").exists() && !desk.staged(to).exists());
        }
    }
    fs::rename(desk.staged("a/1"), desk.staged("b/2")).unwrap();
    fs::rename(desk.staged("b/2/blob.bin"), desk.staged("alone.bin")).unwrap();
    fs::rename(desk.staged("alone.bin"), desk.staged("b/1/blob.bin")).unwrap();
    fs::remove_dir_all(desk.staged("a")).unwrap();
    fs::remove_dir(desk.staged("b/2")).unwrap();
    eventually("only b is protected", || tags(&desk).len() == 1);
    // The row goes, and with it every version but the newest and the one that is protected.
    desk.python(
        "from datetime import timedelta
ds.delete('true')
newest().cleanup_old_versions(older_than=timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False)",
    );
    assert_eq!(names(&s3.bucket().join("t/_blobs")).len(), 1, "the object is there");
    desk.must_commit("b");
    desk.settles();
    assert_eq!(fs::read(desk.mount.at("latest/0/blob.bin")).unwrap(), [b'l'; LARGE]);
    desk.verify();
    assert_eq!(tags(&desk), [""; 0]);
}
