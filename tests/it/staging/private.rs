//! What lancefs keeps on disks that others use too.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::Staged;
use crate::harness::{LANCEFS, Place, Tables, errno, folder, stderr, xattr};

const NOBODY: u32 = 65534;

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// The modes of everything beneath a folder, by relative path.
fn modes(root: &Path) -> BTreeMap<String, u32> {
    let entries = walkdir::WalkDir::new(root).into_iter().map(|entry| entry.unwrap().into_path());
    entries
        .map(|path| (path.strip_prefix(root).unwrap().to_str().unwrap().to_owned(), mode(&path)))
        .collect()
}

/// Runs something as a user without any rights.
fn as_nobody(words: &[&str]) -> Output {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
    command.args(words).output().unwrap()
}

/// `lancefs mount` of the Managed table, with a home folder and a umask that hides nothing.
fn mount(place: &Place, home: &Path, arguments: &[&str]) -> Output {
    Command::new("sh")
        .args(["-c", "umask 0; exec \"$@\"", "sh", &LANCEFS, "mount"])
        .arg(Tables::shared().path("managed"))
        .arg(&place.path)
        .args(arguments)
        .env("HOME", home)
        .env_remove("XDG_STATE_HOME")
        .output()
        .unwrap()
}

/// The one folder beneath another.
fn only_in(above: &Path) -> PathBuf {
    let mut entries = fs::read_dir(above).unwrap().map(|entry| entry.unwrap().path());
    let only = entries.next().unwrap();
    assert!(entries.next().is_none(), "more than one thing is in {}", above.display());
    only
}

#[test]
fn s44_what_is_kept_is_the_mounting_users_alone_whatever_the_umask() {
    let (place, home) = (Place::new(), folder());
    set_mode(home.path(), 0o755);
    let cache = home.path().join("cache");
    let arguments =
        ["--upload-delay=1h", "--cache-size=256MiB", "--cache-dir", cache.to_str().unwrap()];
    let output = mount(&place, home.path(), &arguments);
    assert!(output.status.success(), "{}", stderr(&output));
    let entry = place.path.join("staging/b/1");
    fs::create_dir_all(&entry).unwrap();
    fs::write(entry.join("blob.bin"), "secret").unwrap();
    set_mode(&entry, 0o755);
    set_mode(&entry.join("blob.bin"), 0o644);
    // Faulty, so that the attempt is recorded and the batch stays.
    fs::write(entry.join("no field"), "").unwrap();
    fs::rename(place.path.join("staging/b"), place.path.join("commit/b")).unwrap_err();
    let state = home.path().join(".local/state/lancefs");
    let found = modes(&state);
    let staging =
        format!("staging/{}", only_in(&state.join("staging")).file_name().unwrap().display());
    let tree = format!("{staging}/tree");
    for (path, mode) in &found {
        if path.starts_with(&tree) {
            continue;
        }
        let wanted = if state.join(path).is_dir() { 0o700 } else { 0o600 };
        assert_eq!(*mode, wanted, "{path}: {mode:o}");
    }
    for name in ["lock", "key", "table", "journal", "gone", "commits.jsonl"] {
        assert!(found.contains_key(&format!("{staging}/{name}")), "{name}: {found:?}");
    }
    assert!(found.keys().any(|path| path.starts_with("log/")), "{found:?}");
    // Users' modes are what users gave, also on the disk; the folder around keeps others out.
    assert_eq!(found[&format!("{tree}/b/1")], 0o755);
    assert_eq!(found[&format!("{tree}/b/1/blob.bin")], 0o644);
    for (path, mode) in modes(&cache) {
        assert_eq!(mode, if path.is_empty() { 0o700 } else { 0o600 }, "{path}: {mode:o}");
    }
    let payload = state.join(&tree).join("b/1/blob.bin");
    for words in [
        ["cat", payload.to_str().unwrap(), ""],
        ["ls", state.join(&staging).join("journal").to_str().unwrap(), ""],
        ["flock", state.join(&staging).join("lock").to_str().unwrap(), "true"],
    ] {
        let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
        let output = as_nobody(&words);
        assert!(!output.status.success() && stderr(&output).contains("denied"), "{words:?}");
    }
}

#[test]
fn s44_a_folder_that_was_open_to_others_is_tightened_and_its_batches_are_there() {
    let staged = Staged::new();
    fs::write(staged.batch("b").join("photo.jpg"), "1").unwrap();
    let before = staged.folder();
    staged.mount.unmount();
    for (name, mode) in [("", 0o755), ("journal", 0o755), ("lock", 0o644), ("key", 0o640)] {
        set_mode(&before.join(name), mode);
    }
    staged.mount_again();
    assert_eq!(staged.folder(), before);
    assert_eq!(fs::read(staged.at("b/photo.jpg")).unwrap(), b"1");
    let now = ["", "journal", "lock", "key"].map(|name| mode(&before.join(name)));
    assert_eq!(now, [0o700, 0o700, 0o600, 0o600]);
}

#[test]
fn s44_a_folder_that_somebody_else_made_first_is_refused_by_name() {
    let staged = Staged::new();
    let theirs = staged.folder();
    staged.mount.unmount();
    set_mode(staged.disk.path(), 0o1777);
    fs::remove_dir_all(&theirs).unwrap();
    let made = as_nobody(&["mkdir", "-m", "777", theirs.to_str().unwrap()]);
    assert!(made.status.success(), "{}", stderr(&made));
    symlink("/etc", theirs.join("tree")).unwrap();
    let place = Place::new();
    let output =
        mount(&place, staged.disk.path(), &["--staging-dir", staged.arguments[1].as_str()]);
    assert_eq!(output.status.code(), Some(6), "{}", stderr(&output));
    let said = stderr(&output);
    for wanted in
        [theirs.to_str().unwrap(), "belongs to user 65534", "user 0", "name another folder"]
    {
        assert!(said.contains(wanted), "{said}");
    }
    assert_eq!(crate::harness::names(&theirs), ["tree"], "nothing is put in it");
    // In the default place, which nobody asked for by name, the table can be read all the same.
    let home = folder();
    let default = home.path().join(".local/state/lancefs/staging");
    fs::create_dir_all(&default).unwrap();
    fs::rename(&theirs, default.join(theirs.file_name().unwrap())).unwrap();
    let output = mount(&place, home.path(), &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    let reason = xattr(&place.path.join("staging"), "user.lancefs.error").unwrap();
    assert!(reason.contains("belongs to user 65534"), "{reason}");
    assert_eq!(errno(fs::create_dir(place.path.join("staging/b"))), 30);
}

#[test]
fn s44_what_somebody_planted_is_refused_and_what_it_points_to_stays_as_it_is() {
    let staged = Staged::new();
    let ours = staged.folder();
    staged.mount.unmount();
    let elsewhere = folder();
    let victim = elsewhere.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    fs::create_dir(elsewhere.path().join("photos")).unwrap();
    fs::write(elsewhere.path().join("photos/photo.jpg"), "private").unwrap();
    let place = Place::new();
    for (name, target) in [("tree", "photos"), ("lock", "victim"), ("table", "victim")] {
        let aside = staged.disk.path().join("aside");
        fs::rename(ours.join(name), &aside).unwrap();
        symlink(elsewhere.path().join(target), ours.join(name)).unwrap();
        let output =
            mount(&place, staged.disk.path(), &["--staging-dir", staged.arguments[1].as_str()]);
        assert_eq!(output.status.code(), Some(6), "{name}: {}", stderr(&output));
        let said = stderr(&output);
        assert!(said.contains(ours.join(name).to_str().unwrap()), "{said}");
        assert!(said.contains("remove it"), "{said}");
        fs::remove_file(ours.join(name)).unwrap();
        fs::rename(&aside, ours.join(name)).unwrap();
    }
    // The list of commits is shown to whoever may look into the mount.
    symlink(&victim, ours.join("commits.jsonl")).unwrap();
    staged.mount_again();
    let record = staged.mount.at(".lancefs/commits.jsonl");
    assert!(!fs::read(&record).is_ok_and(|shown| shown.starts_with(b"precious")));
    let batch = staged.batch("b");
    fs::create_dir(batch.join("1")).unwrap();
    fs::write(batch.join("1/no field"), "").unwrap();
    fs::rename(&batch, staged.mount.at("commit/b")).unwrap_err();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    let attributes = rustix::fs::listxattr(elsewhere.path().join("photos"), &mut [0_u8; 64][..]);
    assert_eq!(attributes.unwrap(), 0, "nothing is marked");
    // A `tree` of somebody else counts only where others could not have put it there.
    staged.mount.unmount();
    fs::remove_file(ours.join("commits.jsonl")).unwrap();
    chown(ours.join("tree"), Some(NOBODY), None).unwrap();
    staged.mount_again();
    staged.mount.unmount();
    set_mode(&ours, 0o777);
    let output =
        mount(&place, staged.disk.path(), &["--staging-dir", staged.arguments[1].as_str()]);
    assert!(stderr(&output).contains("a directory of user 65534"), "{}", stderr(&output));
}

#[test]
fn a_reference_that_came_along_from_elsewhere_commits_nothing_and_reads_as_nothing() {
    let staged = Staged::with(&["--upload-delay", "1h"]);
    let batch = staged.batch("b");
    fs::create_dir(batch.join("1")).unwrap();
    let on_disk = staged.folder().join("tree/b/1/blob.bin");
    // What `tar --xattrs` makes of an archive that somebody wrote: a hole that stands for an object.
    fs::File::create(&on_disk).unwrap().set_len(100).unwrap();
    let text =
        br#"{"version":1,"manifest":"m","base":null,"path":"_blobs/x.blob","offset":0,"len":100}"#;
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&on_disk, "user.lancefs.reference", text, flags).unwrap();
    assert_eq!(errno(fs::read(batch.join("1/blob.bin"))), 5, "neither zeros nor another's bytes");
    fs::rename(&batch, staged.mount.at("commit/b")).unwrap_err();
    let error = xattr(&batch, "user.lancefs.error").unwrap();
    assert!(error.contains("b/1: ") && error.contains("put there by another program"), "{error}");
    fs::remove_file(batch.join("1/blob.bin")).unwrap();
}
