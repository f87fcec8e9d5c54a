//! What is written to a mountpoint while the mount of a dead daemon is replaced.

use std::fs;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::process::Signal;

use super::{ENOTCONN, mounted, table};
use crate::harness::{
    LANCEFS, Place, errno, eventually, is_alive, kill, names, python, run, stderr,
};

/// Runs a program on a kernel that has no `fsopen`, as before Linux 5.2: with a seccomp filter.
const OLDER_KERNEL: &str = "
import ctypes, os, struct, sys
FSOPEN, ENOSYS = 430, 38
code = [(0x20, 0, 0, 0), (0x15, 0, 1, FSOPEN), (6, 0, 0, 0x50000 | ENOSYS), (6, 0, 0, 0x7fff0000)]
code = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *line) for line in code))
class Program(ctypes.Structure):
    _fields_ = [('len', ctypes.c_ushort), ('code', ctypes.c_void_p)]
program = Program(4, ctypes.addressof(code))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
";

/// One of the ways to mount.
type Mounted = fn(&Place) -> Output;

fn on_older_kernel(place: &Place) -> Output {
    let mut command = python();
    command.args(["-c", OLDER_KERNEL, &*LANCEFS, "mount"]).arg(table()).arg(&place.path);
    command.env("LANCEFS_LOG_FILE", place.log_path()).output().unwrap()
}

fn as_ever(place: &Place) -> Output {
    place.command(table()).output().unwrap()
}

/// A mountpoint whose daemon was killed.
fn dead() -> Place {
    let place = mounted();
    die(&place);
    place
}

fn die(place: &Place) {
    let daemon = place.pid();
    kill(daemon, Signal::KILL);
    eventually("the daemon is dead", || !is_alive(daemon));
    eventually("the mount is dead", || errno(fs::read_dir(&place.path)) == ENOTCONN);
}

/// Writes into a folder over and over while something is done; says how often it was refused.
fn written_to_while(folder: &Path, work: impl FnOnce()) -> usize {
    let (ends, refused) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0.. {
                if ends.load(Ordering::Acquire) {
                    break;
                }
                if fs::write(folder.join(format!("stray-{n}")), "precious").is_err() {
                    refused.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        // Also where the work panics, else nobody would hear of it.
        let worked = std::panic::catch_unwind(AssertUnwindSafe(work));
        ends.store(true, Ordering::Release);
        worked.unwrap();
    });
    refused.into_inner()
}

#[test]
fn s35_nothing_that_is_written_while_a_mountpoint_is_taken_over_lies_beneath_it() {
    let ways: [(Mounted, usize); 2] = [(as_ever, 1), (on_older_kernel, 2)];
    for (mount, mounts) in ways {
        let place = dead();
        let refused = written_to_while(&place.path, || {
            let output = mount(&place);
            assert!(output.status.success(), "{}", stderr(&output));
            assert_eq!(stderr(&output), "", "there is nothing to tell");
        });
        assert!(refused > 100, "it was tried {refused} times");
        assert_eq!(names(&place.path.join("latest/0")), ["blob.bin", "row.json"]);
        let lines = place.mounts();
        assert_eq!(lines.len(), mounts, "{lines:?}");
        for wanted in [" - fuse.lancefs ", "nosuid,nodev,noexec", "relatime"] {
            assert!(lines.last().unwrap().contains(wanted), "{wanted}: {lines:?}");
        }
        let output = run(&["unmount", place.path.to_str().unwrap()]);
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(place.mounts(), Vec::<String>::new());
        assert_eq!(names(&place.path), Vec::<String>::new());
    }
}

#[test]
fn s35_a_mount_that_was_taken_over_has_the_options_of_any_other() {
    let place = mounted();
    let arguments = ["--allow-other", "--read-only"];
    let any = Place::new();
    assert!(any.command(table()).args(arguments).output().unwrap().status.success());
    die(&place);
    let output = place.command(table()).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let options = |place: &Place| {
        let line = place.mounts().pop().unwrap();
        let (mount, superblock) = line.split_once(" - ").unwrap();
        (mount.split(' ').nth(5).unwrap().to_owned(), superblock.to_owned())
    };
    assert_eq!(options(&place), options(&any));
}

#[test]
fn s35_mounts_that_died_one_on_another_are_all_taken_over() {
    let place = dead();
    for _ in 0..2 {
        assert!(on_older_kernel(&place).status.success());
        die(&place);
    }
    assert_eq!(place.mounts().len(), 2, "of the dead ones one stays until the new one is there");
    assert!(as_ever(&place).status.success());
    assert_eq!(place.mounts().len(), 1);
    // On top of a dead one, also who unmounts by other means finds a folder.
    die(&place);
    assert!(on_older_kernel(&place).status.success());
    assert_eq!(place.mounts().len(), 2);
    let umount = Command::new("umount").arg(&place.path).status().unwrap();
    assert!(umount.success());
    eventually("nothing is mounted", || place.mounts().is_empty());
    assert_eq!(names(&place.path), Vec::<String>::new());
}
