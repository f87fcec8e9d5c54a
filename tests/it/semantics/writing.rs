//! S31 and S32: nothing can be written.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};

use crate::harness::{Mount, Tables, errno, tree};

const EROFS: i32 = 30;

/// Everything that would change a directory, each tried.
fn change_directory(directory: &Path) -> Vec<(&'static str, io::Result<()>)> {
    let new = directory.join("new");
    let fifo = rustix::fs::mknodat(CWD, &new, FileType::Fifo, Mode::RUSR, 0);
    vec![
        ("create", File::create(&new).map(drop)),
        ("mkdir", std::fs::create_dir(&new)),
        ("symlink", symlink("target", &new)),
        ("mknod", fifo.map_err(Into::into)),
        ("rmdir", std::fs::remove_dir(directory)),
    ]
}

/// Everything that would change a file or directory or its name, each tried.
fn change(path: &Path) -> Vec<(&'static str, io::Result<()>)> {
    let time = Timespec { tv_sec: 1, tv_nsec: 0 };
    let times = Timestamps { last_access: time, last_modification: time };
    let utimens = rustix::fs::utimensat(CWD, path, &times, AtFlags::empty());
    let set = rustix::fs::setxattr(path, "user.x", b"x", XattrFlags::empty());
    let remove = rustix::fs::removexattr(path, "user.mime_type");
    let beside = path.with_file_name("renamed");
    vec![
        ("chmod", std::fs::set_permissions(path, Permissions::from_mode(0o777))),
        ("chown", chown(path, Some(1), Some(1))),
        ("utimens", utimens.map_err(Into::into)),
        ("setxattr", set.map_err(Into::into)),
        ("removexattr", remove.map_err(Into::into)),
        ("rename", std::fs::rename(path, beside)),
    ]
}

fn change_file(path: &Path) -> Vec<(&'static str, io::Result<()>)> {
    let mut options = OpenOptions::new();
    vec![
        ("write", options.write(true).open(path).map(drop)),
        ("append", OpenOptions::new().append(true).open(path).map(drop)),
        ("read and write", OpenOptions::new().read(true).write(true).open(path).map(drop)),
        ("open to truncate", options.truncate(true).open(path).map(drop)),
        ("truncate", truncate(path)),
        ("unlink", std::fs::remove_file(path)),
        ("link", std::fs::hard_link(path, path.with_file_name("linked"))),
    ]
}

/// `truncate(2)` by path, which asks for no open file; a program does it, as Rust has none.
fn truncate(path: &Path) -> io::Result<()> {
    let script =
        "import os, sys\ntry: os.truncate(sys.argv[1], 0)\nexcept OSError as e: sys.exit(e.errno)";
    let status = crate::harness::python().args(["-c", script]).arg(path).status()?;
    match status.code() {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(code)),
        None => panic!("{status}"),
    }
}

#[test]
fn s31_every_change_is_refused_everywhere() {
    let mount = Mount::new(Tables::shared().path("refs"));
    let before = tree(&mount.path);
    let mut tried = 0;
    let mut check = |path: &str, results: Vec<(&'static str, io::Result<()>)>| {
        for (operation, result) in results {
            assert_eq!(errno(result), EROFS, "{operation} {path}");
            tried += 1;
        }
    };
    for path in ["1", "1/0", "tags", "branches", "branches/a", "branches/a/4", ".lancefs"] {
        check(path, change_directory(&mount.at(path)));
        check(path, change(&mount.at(path)));
    }
    for path in ["1/0/blob.bin", "1/0/row.json", "1/.version.json", ".lancefs/status.json"] {
        check(path, change_file(&mount.at(path)));
        check(path, change(&mount.at(path)));
    }
    for path in ["latest", "tags/v1.0", "branches/a/latest"] {
        check(path, vec![("unlink", std::fs::remove_file(mount.at(path)))]);
    }
    let root = change_directory(&mount.path);
    check("", root.into_iter().filter(|(operation, _)| *operation != "rmdir").collect());
    let between = std::fs::rename(mount.at("1/0/blob.bin"), mount.at("2/0/blob.bin"));
    check("between versions", vec![("rename", between)]);
    assert_eq!(tried, 7 * 11 + 4 * 13 + 3 + 4 + 1);
    assert_eq!(tree(&mount.path), before);
}

#[test]
fn s32_the_mount_has_the_flags_of_a_mount_that_cannot_harm() {
    let table = Tables::shared().path("refs");
    let mount = Mount::with(&table, &["-o", "rw,suid,dev,exec"]);
    let list = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let path = mount.path.to_str().unwrap();
    let line = list.lines().find(|line| line.split(' ').nth(4) == Some(path)).unwrap();
    let fields: Vec<&str> = line.split(' ').collect();
    let options: Vec<&str> = fields[5].split(',').collect();
    for flag in ["ro", "nosuid", "nodev", "noexec"] {
        assert!(options.contains(&flag), "no {flag}: {line}");
    }
    let dash = fields.iter().position(|field| *field == "-").unwrap();
    assert_eq!(fields[dash + 1], "fuse.lancefs");
    assert_eq!(fields[dash + 2], table.to_str().unwrap());
    assert!(fields[dash + 3].split(',').any(|option| option == "ro"), "{line}");
}
