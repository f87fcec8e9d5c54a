//! What the commit engine relies on. What programs see is in `tests/it/staging`.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, XattrFlags};
use rustix::io::Errno;

use super::*;
use crate::error::{Error, Kind};
use crate::staging::{ORIGIN, Origin};
use crate::tree::SnapshotId;
use crate::tree::ino::STAGING_ROOT;
use crate::units::{BlobOffset, Version};

struct Desk {
    spool: Arc<Spool>,
    folder: tempfile::TempDir,
}

impl Desk {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { spool: Spool::open(&opening(folder.path())).unwrap(), folder }
    }

    /// Closes the folder, lets somebody work on it, and opens it again.
    fn reopened(self, work: impl FnOnce(&Path)) -> Self {
        let Self { spool, folder } = self;
        drop(spool);
        work(folder.path());
        Self { spool: Spool::open(&opening(folder.path())).unwrap(), folder }
    }

    fn set_origin(&self, name: &str, text: &[u8]) {
        rustix::fs::setxattr(self.tree(name), ORIGIN, text, XattrFlags::empty()).unwrap();
    }

    fn tree(&self, path: &str) -> PathBuf {
        self.folder.path().join(TREE).join(path)
    }

    fn mkdir(&self, parent: Ino, name: &str) -> Result<Ino> {
        let newest = newest();
        Ok(self.spool.mkdir(&new(parent, name, &newest))?.ino)
    }

    fn create(&self, parent: Ino, name: &str) -> Result<(Ino, Arc<OpenFile>)> {
        let newest = newest();
        let made = self.spool.create(&new(parent, name, &newest), OFlags::RDWR)?;
        Ok((made.0.ino, made.1))
    }

    fn rename(&self, from: (Ino, &str), to: (Ino, &str)) -> Result<()> {
        let origin = Origin::begun_on(&newest());
        let now = self.spool.moment();
        self.spool.rename(from, to, Moving::Replace, (Some(&origin), now))
    }

    fn uuid(&self, name: &str) -> uuid::Uuid {
        self.spool.batch(name).unwrap().origin.batch
    }
}

fn opening(folder: &Path) -> Opening {
    Opening {
        folder: folder.to_owned(),
        limit: None,
        table: "file:///table".to_owned(),
        mountpoint: "/mnt".into(),
        owner: (0, 0),
    }
}

fn newest() -> SnapshotId {
    SnapshotId { branch: None, version: Version::new(1), manifest: "m".into() }
}

fn new<'a>(parent: Ino, name: &'a str, newest: &'a SnapshotId) -> NewNode<'a> {
    let caller = Caller {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        pid: 0,
    };
    NewNode { parent, name, mode: 0o755, caller, newest: Some(newest) }
}

fn is_busy<T: std::fmt::Debug>(result: Result<T>) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), Kind::Busy, "{error}");
    assert!(error.chain().contains("not settled"), "{error}");
}

#[test]
fn a_batch_counts_as_gone_only_if_everything_was_read() {
    let desk = Desk::new();
    for name in ["a", "b"] {
        desk.mkdir(STAGING_ROOT, name).unwrap();
    }
    symlink("a", desk.tree("link")).unwrap();
    fs::create_dir(desk.tree("by-hand")).unwrap();
    let (a, nobody) = (desk.uuid("a"), uuid::Uuid::new_v4());
    assert_eq!(desk.spool.find(a).unwrap().unwrap().name, "a");
    assert_eq!(desk.spool.find(nobody).unwrap(), None);
    desk.set_origin("b", b"{damaged");
    assert_eq!(desk.spool.find(a).unwrap().unwrap().name, "a", "it was found all the same");
    assert!(desk.spool.find(nobody).is_err());
    assert_eq!(desk.spool.batches().unwrap().len(), 1, "a listing passes over it");
    fs::remove_dir(desk.tree("b")).unwrap();
    assert_eq!(desk.spool.find(nobody).unwrap(), None);
}

#[test]
fn a_sealed_batch_is_read_renamed_and_removed_but_not_changed() {
    let desk = Desk::new();
    let sealed = desk.mkdir(STAGING_ROOT, "sealed").unwrap();
    let entry = desk.mkdir(sealed, "1").unwrap();
    let (ino, file) = desk.create(entry, "x").unwrap();
    file.write(BlobOffset::new(0), b"bytes").unwrap();
    drop(file);
    let other = desk.mkdir(STAGING_ROOT, "other").unwrap();
    drop(desk.create(other, "y").unwrap());
    let uuid = desk.uuid("sealed");
    desk.spool.seal(uuid, Seal::Unsettled);
    let mode = Attributes { mode: Some(0o600), ..Attributes::default() };
    is_busy(desk.mkdir(entry, "new"));
    is_busy(desk.create(entry, "new"));
    is_busy(desk.spool.open_file(ino, OFlags::WRONLY));
    is_busy(desk.spool.set_attributes(ino, None, &mode));
    is_busy(desk.spool.set_xattr(sealed, "user.a", b"1", 0));
    is_busy(desk.rename((entry, "x"), (entry, "z")));
    is_busy(desk.rename((entry, "x"), (other, "x")));
    is_busy(desk.rename((other, "y"), (entry, "y")));
    is_busy(desk.rename((STAGING_ROOT, "sealed"), (other, "sealed")));
    is_busy(desk.rename((STAGING_ROOT, "other"), (sealed, "other")));
    is_busy(desk.rename((sealed, "1"), (STAGING_ROOT, "1")));
    // Others are as they were.
    drop(desk.create(other, "z").unwrap());
    let open = desk.spool.open_file(ino, OFlags::RDONLY).unwrap();
    assert_eq!(open.read(BlobOffset::new(0), ByteLen::new(9)).unwrap(), b"bytes"[..]);
    drop(desk.spool.freeze(&desk.spool.batch("sealed").unwrap()).unwrap());
    // What replaces it as a whole would be taken for it.
    let empty = desk.mkdir(STAGING_ROOT, "empty").unwrap();
    is_busy(desk.rename((STAGING_ROOT, "empty"), (STAGING_ROOT, "sealed")));
    assert_ne!(empty, sealed);
    desk.rename((STAGING_ROOT, "sealed"), (STAGING_ROOT, "moved")).unwrap();
    is_busy(desk.mkdir(entry, "new"));
    desk.spool.unseal(uuid);
    desk.mkdir(entry, "new").unwrap();
    desk.spool.seal(uuid, Seal::Unsettled);
    desk.spool.rmdir(entry, "new").unwrap();
    desk.spool.unlink(entry, "x").unwrap();
    desk.spool.rmdir(sealed, "1").unwrap();
    desk.spool.rmdir(STAGING_ROOT, "moved").unwrap();
    desk.mkdir(STAGING_ROOT, "moved").unwrap();
}

#[test]
fn a_copy_of_a_batch_is_another_batch() {
    let desk = Desk::new();
    desk.mkdir(STAGING_ROOT, "z").unwrap();
    let uuid = desk.uuid("z");
    for copy in ["a", "zz"] {
        std::thread::sleep(Duration::from_millis(20));
        let paths = [desk.tree("z"), desk.tree(copy)];
        assert!(std::process::Command::new("cp").arg("-a").args(paths).status().unwrap().success());
        assert_eq!(desk.uuid(copy), uuid);
    }
    fs::create_dir(desk.tree("by-hand")).unwrap();
    desk.spool.adopt(&newest()).unwrap();
    let uuids = ["z", "a", "zz", "by-hand"].map(|name| desk.uuid(name));
    assert_eq!(uuids[0], uuid, "the oldest is what it was");
    assert_eq!(uuids.iter().collect::<std::collections::HashSet<_>>().len(), 4);
    desk.spool.adopt(&newest()).unwrap();
    assert_eq!(["z", "a", "zz", "by-hand"].map(|name| desk.uuid(name)), uuids);
}

#[test]
fn an_origin_that_came_along_from_elsewhere_is_nobodys() {
    let desk = Desk::new();
    desk.mkdir(STAGING_ROOT, "z").unwrap();
    let other = Desk::new();
    other.mkdir(STAGING_ROOT, "a").unwrap();
    // `cp -a` out of another folder, and `tar --xattrs` of what somebody wrote by hand.
    let paths = [other.tree("a"), desk.tree("a")];
    assert!(std::process::Command::new("cp").arg("-a").args(paths).status().unwrap().success());
    let published = Origin { batch: desk.uuid("z"), version: 1, manifest: "m".to_owned() };
    fs::create_dir(desk.tree("by-hand")).unwrap();
    desk.set_origin("by-hand", &serde_json::to_vec(&published).unwrap());
    for name in ["a", "by-hand"] {
        let error = desk.spool.batch(name).unwrap_err();
        assert!(error.chain().contains("was put there by another program"), "{error}");
    }
    assert!(desk.spool.find(uuid::Uuid::new_v4()).is_err(), "nobody can tell which they are");
    desk.spool.adopt(&newest()).unwrap();
    let uuids = ["z", "a", "by-hand"].map(|name| desk.uuid(name));
    assert_eq!(uuids[0], published.batch);
    assert_ne!(uuids[1], other.uuid("a"));
    assert_ne!(uuids[2], published.batch);
    // What is moved up out of a batch is begun anew, whatever it brings.
    let z = desk.spool.lookup(STAGING_ROOT, "z").unwrap().ino;
    desk.mkdir(z, "inner").unwrap();
    desk.set_origin("z/inner", &serde_json::to_vec(&published).unwrap());
    desk.rename((z, "inner"), (STAGING_ROOT, "outer")).unwrap();
    assert_ne!(desk.uuid("outer"), published.batch);
}

#[test]
fn origins_from_before_there_were_marks_are_kept_unless_others_could_write_them() {
    let old = Origin { batch: uuid::Uuid::new_v4(), version: 1, manifest: "m".to_owned() };
    for (mode, is_kept) in [(0o755, true), (0o777, false)] {
        let desk = Desk::new();
        desk.mkdir(STAGING_ROOT, "b").unwrap();
        desk.set_origin("b", &serde_json::to_vec(&old).unwrap());
        let desk = desk.reopened(|folder| {
            fs::remove_file(folder.join("key")).unwrap();
            fs::set_permissions(folder, fs::Permissions::from_mode(mode)).unwrap();
        });
        desk.spool.adopt(&newest()).unwrap();
        assert_eq!(desk.uuid("b") == old.batch, is_kept, "{mode:o}");
        let uuid = desk.uuid("b");
        let desk = desk.reopened(|_| {});
        desk.spool.adopt(&newest()).unwrap();
        assert_eq!(desk.uuid("b"), uuid, "from now on it is marked");
        let mode = fs::metadata(desk.folder.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }
}

#[test]
fn what_is_planted_in_a_folder_is_neither_followed_nor_written_to() {
    let elsewhere = tempfile::tempdir().unwrap();
    let victim = elsewhere.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    for name in ["tree", "gone", "journal", "lock", "table", "key", COMMITS] {
        let folder = tempfile::tempdir().unwrap();
        let target = if ["tree", "gone", "journal"].contains(&name) {
            elsewhere.path()
        } else {
            victim.as_path()
        };
        symlink(target, folder.path().join(name)).unwrap();
        let refused = match Spool::open(&opening(folder.path())) {
            Ok(spool) => spool.commits().map(drop).unwrap_err(),
            Err(refused) => refused,
        };
        assert_eq!(refused.kind(), Kind::Denied, "{name}: {refused}");
        let planted = folder.path().join(name);
        assert!(refused.chain().contains(planted.to_str().unwrap()), "{refused}");
    }
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 1);
    assert!(rustix::fs::listxattr(elsewhere.path(), &mut [0_u8; 64][..]).unwrap() == 0);
}

#[test]
fn what_has_left_the_tree_takes_nothing_in_and_is_deleted_whatever_its_depth_and_modes() {
    let desk = Desk::new();
    let batch = desk.mkdir(STAGING_ROOT, "b").unwrap();
    let mut at = batch;
    // A path of it is longer than one can be.
    for _ in 0..40 {
        at = desk.mkdir(at, &"d".repeat(200)).unwrap();
        drop(desk.create(at, "x").unwrap());
    }
    let (ino, _) = desk.create(batch, "y").unwrap();
    let other = desk.mkdir(STAGING_ROOT, "other").unwrap();
    drop(desk.create(other, "z").unwrap());
    for node in [at, batch] {
        let mode = Attributes { mode: Some(0), ..Attributes::default() };
        desk.spool.set_attributes(node, None, &mode).unwrap();
    }
    let frozen = desk.spool.freeze(&desk.spool.batch("b").unwrap()).unwrap();
    desk.spool.remove(frozen).unwrap();
    let gone = |error: Error| {
        assert_eq!(error.kind(), Kind::Disk(Errno::NOENT.raw_os_error()), "{error}");
    };
    for parent in [batch, at] {
        gone(desk.mkdir(parent, "new").unwrap_err());
        gone(desk.create(parent, "new").unwrap_err());
        gone(desk.rename((other, "z"), (parent, "z")).unwrap_err());
        gone(desk.spool.symlink(&new(parent, "new", &newest()), Path::new("x")).unwrap_err());
    }
    gone(desk.rename((batch, "y"), (other, "y")).unwrap_err());
    gone(desk.spool.open_file(ino, OFlags::WRONLY).unwrap_err());
    let folder = desk.folder.path().join(GONE);
    let deadline = Instant::now() + Duration::from_secs(10);
    while fs::read_dir(&folder).unwrap().next().is_some() {
        assert!(Instant::now() < deadline, "{:?}", fs::read_dir(&folder));
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(desk.spool.space().unwrap().used, ByteLen::new(0));
}
