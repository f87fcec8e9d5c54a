//! Public test suites for file systems, run on `staging/`: what is installed of them. The slow tier
//! runs these.
//!
//! ```text
//! cargo install fsx pjdfstest        random reads and writes; every system call of POSIX
//! apt-get install stress-ng fio      many at once, with verification
//! ```
//!
//! What pjdfstest finds missing is what is refused on purpose: hard links, devices, fifos and sockets.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use super::Staged;
use crate::harness::folder;

/// Whether a suite is to be run: in the slow tier, and where it is installed.
fn has(program: &str) -> bool {
    std::env::var_os("LANCEFS_TEST_SLOW").is_some()
        && Command::new(program).arg("--version").output().is_ok()
}

fn succeeds(command: &mut Command, at: &Path) -> String {
    let output = command.current_dir(at).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    text
}

#[test]
fn fsx_finds_nothing() {
    if !has("fsx") {
        return;
    }
    let staged = Staged::new();
    let batch = staged.batch("b");
    let config = folder();
    let file = config.path().join("fsx.toml");
    let weights = "[opsize]\nmax = 65536\n[weights]\ncopy_file_range = 2\npunch_hole = 2\nposix_fallocate = 1\nfsync = 0.3\nfdatasync = 0.3\nsendfile = 1\n";
    std::fs::write(&file, weights).unwrap();
    for seed in ["1", "2", "3"] {
        let mut fsx = Command::new("fsx");
        fsx.args(["-N", "20000", "-S", seed, "-f"]).arg(&file).arg("file");
        succeeds(&mut fsx, &batch);
    }
}

#[test]
fn stress_and_fio_find_nothing() {
    let staged = Staged::new();
    let batch = staged.batch("b");
    if has("stress-ng") {
        let stressors = "--hdd 2 --hdd-bytes 16M --dir 2 --rename 2 --sync-file 1 --seek 1 --fallocate 1 --symlink 1 --touch 1 --chmod 1 --xattr 1 --utime 1 --flock 1 --copy-file 1 --mmap 1 --mmap-file --dentry 1 --filename 1 --open 1 --verify -t 8s";
        let mut stress = Command::new("stress-ng");
        succeeds(stress.args(stressors.split(' ')).arg("--temp-path").arg(&batch), &batch);
    }
    if has("fio") {
        for how in ["--ioengine=psync --bsrange=512-128k", "--ioengine=mmap --bs=4k"] {
            let job =
                "--name=v --rw=randrw --size=32m --numjobs=2 --verify=crc32c --verify_fatal=1";
            let mut fio = Command::new("fio");
            succeeds(fio.args(job.split(' ')).args(how.split(' ')), &batch);
        }
    }
}

#[test]
fn pjdfstest_misses_only_what_is_refused() {
    if !has("pjdfstest") {
        return;
    }
    let staged = Staged::with(&["--allow-other"]);
    let everybody = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(staged.mount.path.parent().unwrap(), everybody.clone()).unwrap();
    let batch = staged.batch("b");
    std::fs::set_permissions(&batch, everybody).unwrap();
    let config = folder();
    let file = config.path().join("pjd.toml");
    let text = "[features]\nposix_fallocate = {}\nutime_now = {}\nutimensat = {}\nrename_ctime = {}\n[settings]\nnaptime = 0.01\nallow_remount = false\n[dummy_auth]\nentries = [[\"nobody\", \"nogroup\"], [\"games\", \"games\"]]\n";
    std::fs::write(&file, text).unwrap();
    let mut suite = Command::new("pjdfstest");
    let output = suite.arg("-c").arg(&file).arg("-p").arg(&batch).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let failed: Vec<&str> = text
        .lines()
        .filter(|line| line.ends_with(" FAILED"))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let special = ["::fifo", "::socket", "::char", "::block"];
    // These make a hard link, or a fifo or socket, although their names do not say so.
    let linked = [
        "open::fifo_nonblock_wronly",
        "open::socket_error",
        "rename::preserve_metadata::regular",
        "rename::to_multiply_linked::regular",
        "unlink::unchanged_ctime_failed::regular",
        "unlink::update_ctime_success::regular",
    ];
    let refused = |test: &&&str| {
        special.iter().any(|kind| test.ends_with(kind))
            || ["link::", "mkfifo::", "mknod::"].iter().any(|module| test.starts_with(module))
            || linked.contains(test)
    };
    let wrong: Vec<_> = failed.iter().filter(|test| !refused(test)).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    assert!(text.lines().filter(|line| line.ends_with(" ok")).count() > 150, "{text}");
}
