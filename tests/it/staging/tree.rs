//! The tree beneath `staging/` as programs use it: an ordinary local file system, but for what is
//! refused on purpose; and the rest of the mount, which is read-only.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;

use rustix::fs::{CWD, FallocateFlags, FileType, Mode, RenameFlags, XattrFlags};

use super::Staged;
use crate::harness::{
    Mount, Place, Tables, errno, eventually, folder, kill, names, python, stderr, xattr,
};

const EPERM: i32 = 1;
const ENOENT: i32 = 2;
const EEXIST: i32 = 17;
const EINVAL: i32 = 22;
const EROFS: i32 = 30;
const ENOTEMPTY: i32 = 39;
const EDQUOT: i32 = 122;

fn shell(script: &str, at: &Path) {
    let output = Command::new("bash").args(["-euc", script]).current_dir(at).output().unwrap();
    assert!(output.status.success(), "{script}\n{}", stderr(&output));
}

#[test]
fn s37_files_are_made_written_cut_and_replaced() {
    let staged = Staged::new();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = mounts.lines().find(|line| line.contains(staged.mount.path.to_str().unwrap()));
    let flags: Vec<&str> = line.unwrap().split(' ').nth(5).unwrap().split(',').collect();
    for flag in ["rw", "nosuid", "nodev", "noexec"] {
        assert!(flags.contains(&flag), "S32: no {flag} in {flags:?}");
    }
    let batch = staged.batch("b");
    let path = batch.join("e.bin");
    fs::write(&path, b"hello").unwrap();
    OpenOptions::new().append(true).open(&path).unwrap().write_all(b" world").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"hello world");
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    file.set_len(5).unwrap();
    file.write_all_at(b"x", 9).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"hello\0\0\0\0x");
    assert_eq!(errno(File::create_new(&path)), EEXIST);
    let number = fs::metadata(&path).unwrap().ino();
    assert!(number > i64::MAX.unsigned_abs(), "{number}");
    let other = batch.join("new");
    fs::write(&other, b"replaces").unwrap();
    fs::rename(&other, &path).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"replaces");
    assert_ne!(fs::metadata(&path).unwrap().ino(), number);
    let mut old = Vec::new();
    (&file).seek(SeekFrom::Start(0)).unwrap();
    (&file).read_to_end(&mut old).unwrap();
    assert_eq!(old, b"hello\0\0\0\0x", "what was replaced while it was open");
    assert_eq!(file.metadata().unwrap().len(), 10);
    assert_eq!(errno(fs::remove_dir(&batch)), ENOTEMPTY);
    assert_eq!(names(&batch), ["e.bin"]);
}

#[test]
fn s37_a_file_without_a_name_goes_on_to_work() {
    let staged = Staged::new();
    let path = staged.batch("b").join("gone");
    let file = File::create_new(&path).unwrap();
    let reader = File::open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let other = staged.at("b/other");
    fs::write(&other, b"another").unwrap();
    assert_ne!(fs::metadata(&other).unwrap().ino(), file.metadata().unwrap().ino());
    file.write_all_at(b"still here", 0).unwrap();
    file.set_permissions(Permissions::from_mode(0o600)).unwrap();
    let mut buffer = [0; 10];
    reader.read_exact_at(&mut buffer, 0).unwrap();
    assert_eq!(&buffer, b"still here");
    let meta = reader.metadata().unwrap();
    assert_eq!((meta.nlink(), meta.len(), meta.mode() & 0o777), (0, 10, 0o600));
}

#[test]
fn s39_modes_times_and_attributes_are_kept() {
    let staged = Staged::new();
    let batch = staged.batch("b");
    shell("umask 022; mkdir d; touch f; umask 077; touch g", &batch);
    let mode = |name: &str| fs::metadata(batch.join(name)).unwrap().mode() & 0o7777;
    assert_eq!((mode("d"), mode("f"), mode("g")), (0o755, 0o644, 0o600));
    fs::set_permissions(batch.join("f"), Permissions::from_mode(0o4711)).unwrap();
    assert_eq!(mode("f"), 0o4711);
    shell("touch -d '1969-12-31 23:59:58.5 UTC' f; touch -ad 2001-01-01 g", &batch);
    let meta = fs::metadata(batch.join("f")).unwrap();
    assert_eq!((meta.mtime(), meta.mtime_nsec()), (-2, 500_000_000));
    let before = fs::metadata(batch.join("g")).unwrap();
    assert!(before.atime() < before.mtime());
    let f = batch.join("f");
    rustix::fs::setxattr(&f, "user.note", b"mine", XattrFlags::empty()).unwrap();
    assert_eq!(xattr(&f, "user.note").unwrap(), "mine");
    for name in ["user.lancefs.batch", "user.lancefs.x"] {
        let refused = rustix::fs::setxattr(&f, name, b"x", XattrFlags::empty()).unwrap_err();
        assert_eq!(refused.raw_os_error(), EPERM, "{name}");
    }
    // What tells about a payload is taken and not kept, so that `cp -a` and `rsync -X` succeed.
    rustix::fs::setxattr(&f, "user.lancefs.kind", b"x", XattrFlags::empty()).unwrap();
    assert!(xattr(&f, "user.lancefs.kind").is_err());
    let mut list = [0; 256];
    let len = rustix::fs::listxattr(&f, &mut list).unwrap();
    assert_eq!(&list[..len], b"user.note\0");
    rustix::fs::removexattr(&f, "user.note").unwrap();
    assert!(xattr(&f, "user.note").is_err());
    shell(
        "ln -s s3://bucket/key#bytes=1-2 link; test \"$(readlink link)\" = s3://bucket/key#bytes=1-2",
        &batch,
    );
}

#[test]
fn s38_what_can_never_be_a_row_is_refused() {
    let staged = Staged::new();
    let batch = staged.batch("b");
    let file = batch.join("f");
    fs::write(&file, b"x").unwrap();
    assert_eq!(errno(fs::hard_link(&file, batch.join("hard"))), EPERM);
    assert_eq!(errno(fs::hard_link(staged.mount.at("1/0/row.json"), batch.join("hard"))), EPERM);
    for kind in [FileType::Fifo, FileType::Socket, FileType::CharacterDevice] {
        let made = rustix::fs::mknodat(CWD, batch.join("n"), kind, Mode::RUSR, 0x103);
        assert_eq!(made.unwrap_err().raw_os_error(), EPERM, "{kind:?}");
    }
    assert_eq!(errno(symlink("s3://b/k", staged.at("link"))), EPERM, "a symlink is no batch");
    let odd = std::os::unix::ffi::OsStrExt::from_bytes(b"\xff\xfe");
    assert_eq!(errno(File::create(batch.join::<&std::ffi::OsStr>(odd))), EINVAL);
    assert_eq!(names(&batch), ["f"]);
}

#[test]
fn s31_everything_else_stays_read_only() {
    let staged = Staged::new();
    let mount = &staged.mount;
    let batch = staged.batch("b");
    fs::write(batch.join("f"), b"x").unwrap();
    for place in ["", "1", "1/0", "tags", "branches", ".lancefs", "commit"] {
        let place = mount.at(place);
        let new = place.join("new");
        assert_eq!(errno(File::create(&new)), EROFS, "{}", place.display());
        assert_eq!(errno(fs::create_dir(&new)), EROFS, "{}", place.display());
        assert_eq!(errno(symlink("x", &new)), EROFS, "{}", place.display());
        assert_eq!(errno(fs::set_permissions(&place, Permissions::from_mode(0o777))), EROFS);
        let set = rustix::fs::setxattr(&place, "user.x", b"x", XattrFlags::empty());
        assert_eq!(set.unwrap_err().raw_os_error(), EROFS, "{}", place.display());
        let may = rustix::fs::access(&place, rustix::fs::Access::WRITE_OK);
        let wanted = (!place.ends_with("commit")).then_some(EROFS);
        assert_eq!(may.err().map(rustix::io::Errno::raw_os_error), wanted.or(Some(EROFS)));
    }
    let file = mount.at("1/0/row.json");
    for mut options in
        [OpenOptions::new().write(true).clone(), OpenOptions::new().append(true).clone()]
    {
        assert_eq!(errno(options.open(&file)), EROFS);
        assert_eq!(errno(options.read(true).open(&file)), EROFS);
    }
    assert_eq!(errno(fs::remove_file(&file)), EROFS);
    assert_eq!(errno(fs::remove_dir(mount.at("1/0"))), EROFS);
    assert_eq!(errno(fs::hard_link(&file, mount.at("1/0/hard"))), EROFS);
    assert_eq!(errno(fs::rename(&file, batch.join("moved"))), EROFS, "out of a version");
    assert_eq!(errno(fs::rename(batch.join("f"), mount.at("1/0/f"))), EROFS, "into a version");
    assert_eq!(errno(fs::rename(mount.at("staging"), mount.at("other"))), EROFS);
    assert_eq!(errno(fs::rename(batch.join("f"), mount.at("commit/f"))), EINVAL);
    let why = xattr(&batch.join("f"), "user.lancefs.error").unwrap();
    assert!(why.contains("only whole batches"), "{why}");
    let why = xattr(&mount.at("commit"), "user.lancefs.error").unwrap();
    assert!(why.contains("mkdir staging/b"), "{why}");
    assert_eq!(names(&mount.at("commit")), [""; 0]);
}

#[test]
fn s32_a_table_that_is_not_managed_says_why_nothing_can_be_staged() {
    let mount = Mount::new(Tables::shared().path("scalar"));
    assert_eq!(errno(fs::create_dir(mount.at("staging/b"))), EROFS);
    for folder in ["staging", "commit"] {
        assert_eq!(names(&mount.at(folder)), [""; 0]);
        assert_eq!(fs::metadata(mount.at(folder)).unwrap().mode() & 0o777, 0o555);
    }
    let why = xattr(&mount.at("staging"), "user.lancefs.error").unwrap();
    assert!(why.contains("enable-managed"), "{why}");
    assert_eq!(mount.status()["staging"]["reason"], why);
    let managed = Tables::shared().path("managed");
    let mount = Mount::with(&managed, &["--read-only"]);
    assert_eq!(errno(fs::create_dir(mount.at("staging/b"))), EROFS);
    let why = xattr(&mount.at("staging"), "user.lancefs.error").unwrap();
    assert!(why.contains("--read-only"), "{why}");
    let mount = Mount::with(&managed, &["--at", "1"]);
    assert_eq!(errno(fs::metadata(mount.at("staging"))), ENOENT, "only the version is shown");
}

#[test]
fn s37_programs_find_a_file_system() {
    let staged = Staged::new();
    let batch = staged.batch("b");
    let version = staged.mount.at("1");
    let source = version.to_str().unwrap();
    shell(&format!("cp -a {source}/1 copy; cmp {source}/1/blob.bin copy/blob.bin"), &batch);
    shell(&format!("tar -C {source} -cf - 2 3 | tar xf - ; diff -r {source}/2 2"), &batch);
    shell(
        "mkdir t; cp copy/* t/; chmod -R u+w t; echo a > t/x; echo b > t/.x.swp; mv t/.x.swp t/x; grep -q b t/x",
        &batch,
    );
    shell(
        "for i in $(seq 3000); do echo $i > many$i; done; mkdir m; mv many* m; rm -r m; test ! -e m",
        &batch,
    );
    shell("(flock -n 9; echo locked) 9> lock", &batch);
    if Command::new("rsync").arg("--version").output().is_ok() {
        shell(&format!("rsync -aX {source}/1/ r/; rsync -aXc --delete {source}/1/ r/"), &batch);
    }
    if Command::new("vim").arg("--version").output().is_ok() {
        shell(
            "echo old > doc; vim -Nes -u NONE -c '%s/old/new/' -c wq doc; grep -q new doc",
            &batch,
        );
    }
    let script = "import sqlite3, sys
c = sqlite3.connect('data.db')
c.execute('pragma journal_mode=delete')
c.execute('create table t(a)')
for i in range(200):
    c.execute('insert into t values (?)', (i,))
    c.commit() if i % 20 == 0 else None
c.commit(); c.close()
c = sqlite3.connect('data.db')
assert c.execute('select count(*) from t').fetchone() == (200,)
assert c.execute('pragma integrity_check').fetchone() == ('ok',)
import mmap, os
fd = os.open('mapped', os.O_RDWR | os.O_CREAT); os.ftruncate(fd, 10000)
m = mmap.mmap(fd, 10000); m[5000:5005] = b'hello'; m.flush(); m[9999:10000] = b'!'; m.close(); os.close(fd)
b = open('mapped', 'rb').read()
assert b[5000:5005] == b'hello' and b[9999:] == b'!' and len(b) == 10000";
    let output = python().args(["-c", script]).current_dir(&batch).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn s37_holes_stay_holes() {
    let staged = Staged::new();
    let path = staged.batch("b").join("sparse");
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    file.set_len(64 << 20).unwrap();
    file.write_all_at(&[1; 4096], 32 << 20).unwrap();
    assert!(file.metadata().unwrap().blocks() < 1000);
    let data = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)).unwrap();
    let hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(data)).unwrap();
    assert_eq!((data, hole), (32 << 20, (32 << 20) + 4096));
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 32 << 20, 4096).unwrap();
    assert_eq!(file.metadata().unwrap().blocks(), 0);
    rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 1 << 20).unwrap();
    let meta = file.metadata().unwrap();
    assert_eq!((meta.len(), meta.blocks()), (64 << 20, 2048));
    shell(
        "cp --sparse=always sparse copy; cmp sparse copy; test $(stat -c %b copy) = 0",
        path.parent().unwrap(),
    );
}

#[test]
fn names_are_exchanged_and_not_replaced() {
    let staged = Staged::new();
    let (a, b) = (staged.batch("a"), staged.batch("b"));
    fs::write(a.join("x"), b"1").unwrap();
    fs::write(b.join("x"), b"2").unwrap();
    let rename = |flags| rustix::fs::renameat_with(CWD, a.join("x"), CWD, b.join("x"), flags);
    assert_eq!(rename(RenameFlags::NOREPLACE).unwrap_err().raw_os_error(), EEXIST);
    rename(RenameFlags::EXCHANGE).unwrap();
    assert_eq!(
        (fs::read(a.join("x")).unwrap(), fs::read(b.join("x")).unwrap()),
        (b"2".to_vec(), b"1".to_vec())
    );
    let open = File::open(b.join("x")).unwrap();
    fs::rename(&b, staged.at("c")).unwrap();
    assert_eq!(errno(fs::metadata(&b)), ENOENT);
    assert_eq!(open.metadata().unwrap().ino(), fs::metadata(staged.at("c/x")).unwrap().ino());
    assert_eq!(names(&staged.at("")), ["a", "c"]);
}

#[test]
fn s43_a_batch_says_where_it_comes_from() {
    let staged = Staged::new();
    let id = |path: &Path| xattr(path, "user.lancefs.batch");
    let batch = staged.batch("b");
    let first = id(&batch).unwrap();
    assert_eq!(first.len(), 36);
    fs::write(staged.at("one.jpg"), b"x").unwrap();
    assert_ne!(id(&staged.at("one.jpg")).unwrap(), first);
    fs::create_dir(batch.join("inner")).unwrap();
    assert!(id(&batch.join("inner")).is_err(), "what is in a batch is none");
    fs::rename(batch.join("inner"), staged.at("outer")).unwrap();
    assert_ne!(id(&staged.at("outer")).unwrap(), first);
    fs::rename(&batch, staged.at("renamed")).unwrap();
    assert_eq!(id(&staged.at("renamed")).unwrap(), first);
    fs::rename(staged.at("renamed"), staged.at("outer/within")).unwrap();
    fs::rename(staged.at("outer/within"), staged.at("again")).unwrap();
    assert_ne!(id(&staged.at("again")).unwrap(), first, "it was no batch in between");
    let status = staged.mount.status();
    let mut listed: Vec<&str> = status["staging"]["batches"]
        .as_array()
        .unwrap()
        .iter()
        .map(|b| b.as_str().unwrap())
        .collect();
    listed.sort_unstable();
    assert_eq!(listed, ["again", "one.jpg", "outer"]);
}

#[test]
fn s40_the_limit_is_what_is_allocated() {
    let staged = Staged::with(&["--staging-limit", "1MiB"]);
    let path = staged.batch("b").join("f");
    let file = File::create(&path).unwrap();
    file.set_len(1 << 30).unwrap();
    file.write_all_at(&vec![1; 1 << 19], 0).unwrap();
    let space = |path: &str| rustix::fs::statvfs(staged.mount.at(path)).unwrap();
    let free = |path: &str| space(path).f_bavail * space(path).f_frsize;
    assert_eq!(free("staging"), 1 << 19);
    assert!(free("") > 1 << 19, "the mount shows the disk");
    assert_eq!(errno(file.write_all_at(&vec![1; 1 << 20], 1 << 20)), EDQUOT);
    file.write_all_at(&vec![2; 1 << 19], 0).unwrap();
    file.write_all_at(&vec![3; 1 << 19], 1 << 20).unwrap();
    assert_eq!(errno(file.write_all_at(&[1], 1 << 25)), EDQUOT);
    file.write_all_at(&[4; 100], 50).unwrap();
    let allocate = rustix::fs::fallocate(&file, FallocateFlags::empty(), 1 << 26, 1 << 20);
    assert_eq!(allocate.unwrap_err().raw_os_error(), EDQUOT);
    drop(file);
    fs::remove_file(&path).unwrap();
    eventually("the space is free again", || free("staging") == 1 << 20);
}

#[test]
fn s41_a_remount_and_a_kill_keep_everything() {
    let staged = Staged::new();
    let batch = staged.batch("b");
    fs::write(batch.join("f"), b"before").unwrap();
    let id = xattr(&batch, "user.lancefs.batch").unwrap();
    let number = fs::metadata(batch.join("f")).unwrap().ino();
    staged.mount.unmount();
    staged.mount_again();
    assert_eq!(fs::read(batch.join("f")).unwrap(), b"before");
    assert_eq!(fs::metadata(batch.join("f")).unwrap().ino(), number);
    let mut file = File::create(batch.join("synced")).unwrap();
    file.write_all(&[7; 100_000]).unwrap();
    file.sync_all().unwrap();
    let pid = staged.mount.pid();
    kill(pid, rustix::process::Signal::KILL);
    eventually("the daemon is dead", || !crate::harness::is_alive(pid));
    drop(file);
    staged.mount_again();
    assert_eq!(fs::read(batch.join("synced")).unwrap(), vec![7; 100_000]);
    assert_eq!(xattr(&batch, "user.lancefs.batch").unwrap(), id);
}

#[test]
fn two_mounts_of_a_table_stage_in_two_folders() {
    let first = Staged::new();
    first.batch("mine");
    let place = Place::new();
    let run = |place: &Place| {
        place.command(&first.table).arg("--staging-dir").arg(first.disk.path()).output().unwrap()
    };
    let output = run(&place);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(names(&place.path.join("staging")), [""; 0]);
    fs::create_dir(place.path.join("staging/yours")).unwrap();
    assert_eq!(names(&first.at("")), ["mine"]);
    let holder = fs::read_to_string(first.folder().join("lock")).unwrap();
    assert!(holder.contains(first.mount.path.to_str().unwrap()), "{holder}");
}

#[test]
fn a_disk_without_attributes_is_refused() {
    let place = Place::new();
    let disk = folder();
    // An old ramfs has no user attributes.
    let mounted = Command::new("mount").args(["-t", "ramfs", "none"]).arg(disk.path()).status();
    if !mounted.is_ok_and(|status| status.success()) {
        println!("skipped: no ramfs can be mounted");
        return;
    }
    let output = place
        .command(Tables::shared().path("managed"))
        .arg("--staging-dir")
        .arg(disk.path())
        .output();
    let output = output.unwrap();
    let unmounted = Command::new("umount").arg(disk.path()).status().unwrap();
    assert!(unmounted.success());
    assert!(!output.status.success());
    assert!(stderr(&output).contains("extended attributes"), "{}", stderr(&output));
}

#[test]
fn s39_others_are_kept_out_by_modes() {
    let staged = Staged::with(&["--allow-other"]);
    fs::set_permissions(staged.mount.path.parent().unwrap(), Permissions::from_mode(0o755))
        .unwrap();
    let batch = staged.batch("b");
    fs::write(batch.join("secret"), b"x").unwrap();
    fs::set_permissions(batch.join("secret"), Permissions::from_mode(0o600)).unwrap();
    let nobody = |script: &str| {
        let user = ["--reuid", "65534", "--regid", "65534", "--clear-groups", "bash", "-c", script];
        Command::new("setpriv").args(user).current_dir(&batch).status().unwrap().success()
    };
    assert!(nobody("ls > /dev/null"));
    assert!(!nobody("cat secret"));
    assert!(!nobody("echo > mine"));
    fs::set_permissions(&batch, Permissions::from_mode(0o777)).unwrap();
    assert!(nobody("umask 022; echo > mine"));
    let meta = fs::metadata(batch.join("mine")).unwrap();
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o777), (65534, 65534, 0o644));
}

#[test]
fn nothing_waits_for_nothing_while_much_is_written() {
    let staged = Staged::new();
    let batch = staged.batch("b");
    let writers: Vec<_> = (0..6)
        .map(|i| {
            let path = batch.join(format!("f{i}"));
            std::thread::spawn(move || fs::write(path, vec![i; 32 << 20]).unwrap())
        })
        .collect();
    let mut slowest = std::time::Duration::ZERO;
    while writers.iter().any(|writer| !writer.is_finished()) {
        let began = std::time::Instant::now();
        names(&staged.at(""));
        fs::metadata(staged.mount.at("1/0/row.json")).unwrap();
        slowest = slowest.max(began.elapsed());
    }
    for writer in writers {
        writer.join().unwrap();
    }
    assert!(slowest < std::time::Duration::from_secs(2), "{slowest:?}");
}
