//! Staging as an ordinary user, whose daemon has no rights but theirs, and beside other users.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Staged;
use crate::harness::{LANCEFS, Place, names, photos, stderr, stdout};

/// `nobody` and `nogroup`, who have no rights at all.
const NOBODY: [&str; 4] = ["--reuid=65534", "--regid=65534", "--clear-groups", "--"];

/// Runs as root in a mount namespace of its own, where `/dev/fuse` is open to everybody, mounts as
/// nobody and goes on as nobody with the script `inner`.
const OUTER: &str = r#"
set -eu
mknod device c 10 229
chmod 666 device
mount --bind device /dev/fuse
trap 'setpriv "$@" ./lancefs unmount --lazy mnt' EXIT
mount() { setpriv "$@" ./lancefs mount --log-file=mnt.log --staging-dir=staging table.lance mnt; }
mount "$@"
setpriv "$@" bash -euxc "$INNER"
# A second mount deletes what the first one left.
setpriv "$@" ./lancefs unmount mnt
mount "$@"
for wait in $(seq 100); do
    [ -n "$(ls -A staging/*/gone)" ] || exit 0
    sleep 0.1
done
ls -lR staging
exit 9
"#;

/// Other users may not look into the folder that the program was built in.
pub fn copy_of_the_program(folder: &Path) -> PathBuf {
    let program = folder.join("lancefs");
    fs::hard_link(&*LANCEFS, &program)
        .or_else(|_| fs::copy(&*LANCEFS, &program).map(drop))
        .unwrap();
    program
}

fn as_nobody(inner: &str) -> String {
    let place = Place::new();
    let folder = place.folder.path();
    copy_of_the_program(folder);
    photos(&folder.join("table.lance"));
    fs::create_dir(folder.join("staging")).unwrap();
    fs::write(folder.join("mnt.log"), "").unwrap();
    for theirs in ["mnt", "mnt.log", "staging", "table.lance"] {
        let mut chown = Command::new("chown");
        let done = chown.args(["-R", "65534:65534"]).arg(folder.join(theirs)).status();
        assert!(done.unwrap().success());
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "bash", "-c", OUTER, "as-nobody"]).args(NOBODY);
    let output = command.env("INNER", inner).current_dir(folder).output().unwrap();
    let log = fs::read_to_string(folder.join("mnt.log")).unwrap();
    assert!(
        output.status.success(),
        "{}{}\n{log}",
        String::from_utf8_lossy(&output.stdout),
        stderr(&output)
    );
    stdout(&output)
}

#[test]
fn an_ordinary_user_copies_values_and_rows_without_their_bytes() {
    let said = as_nobody(
        r"
mkdir -p mnt/staging/a/1
head -c 200000 /dev/urandom > mnt/staging/a/1/blob.bin
mv mnt/staging/a mnt/commit/
mkdir -p mnt/staging/b/e
cp mnt/2/0/blob.bin mnt/staging/b/e/
cp -r mnt/2/0 mnt/staging/b/f
cp mnt/2/0/blob.bin mnt/staging/alone.bin
cp -r mnt/2 mnt/staging/v
for copy in b/e/blob.bin b/f/blob.bin alone.bin v/0/blob.bin; do
    cmp mnt/2/0/blob.bin mnt/staging/$copy
    stat -c '%n %a %b' staging/*/tree/$copy
done
mv mnt/staging/b mnt/commit/
mv mnt/staging/alone.bin mnt/commit/
for row in 1 2 3; do cmp mnt/2/0/blob.bin mnt/latest/$row/blob.bin; done
ls mnt/staging
",
    );
    let mut lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.pop(), Some("v"), "{said}");
    assert_eq!(lines.len(), 4, "{said}");
    for line in lines {
        let blocks: u64 = line.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(blocks <= 8, "no byte is copied: {line}");
        assert!(line.contains(" 644 "), "the mode is what it was: {line}");
    }
}

#[test]
fn an_ordinary_user_commits_what_modes_protect() {
    let said = as_nobody(
        r"
mkdir -m 555 mnt/staging/x
stat -c %a mnt/staging/x
mkdir -p mnt/staging/b/1/deep
rmdir mnt/staging/b/1/deep
echo one > mnt/staging/b/1/blob.bin
chmod 400 mnt/staging/b/1/blob.bin
chmod 555 mnt/staging/b/1 mnt/staging/b
./lancefs commit --yes mnt/staging/b >&2
cat mnt/latest/0/blob.bin
mkdir -p mnt/staging/unread
chmod 300 mnt/staging/unread
mv mnt/staging/unread mnt/staging/renamed
ls mnt/staging
stat -c %a mnt/staging/renamed
",
    );
    assert_eq!(said, "555\none\nrenamed\nx\n300\n");
}

/// What the helper does right before it mounts, somebody else may do at any moment: the folder is bare
/// then, because the helper mounts nowhere else.
#[test]
fn s35_an_ordinary_user_is_told_what_a_taken_over_mountpoint_hides() {
    let said = as_nobody(
        r#"
exec 2>staging/trace
pid=$(grep -o '"pid": *[0-9]*' mnt/.lancefs/status.json | grep -o '[0-9]*$')
kill -9 $pid
while ls mnt >&2; do sleep 0.1; done
cat > staging/helper <<END
#!/bin/sh
[ "\$1" = -u ] || echo precious > $PWD/mnt/stray
exec fusermount3 "\$@"
END
chmod +x staging/helper
export FUSERMOUNT_PATH=$PWD/staging/helper
./lancefs mount --log-file=mnt.log --staging-dir=staging table.lance mnt 2>&1
ls mnt/latest/
./lancefs unmount mnt
cat mnt/stray
rm mnt/stray staging/helper
"#,
    );
    let told = "perhaps written in that moment: stray; unmount to get at it";
    assert!(said.contains(told), "{said}");
    assert!(said.ends_with("precious\n"), "{said}");
}

#[test]
fn only_the_owner_of_the_mount_commits() {
    let staged = Staged::with(&["--allow-other"]);
    let place = Place::new();
    let program = copy_of_the_program(place.folder.path());
    let everybody = fs::Permissions::from_mode(0o755);
    fs::set_permissions(staged.mount.path.parent().unwrap(), everybody).unwrap();
    let batch = staged.batch("b");
    fs::set_permissions(&batch, fs::Permissions::from_mode(0o777)).unwrap();
    let versions = names(&staged.mount.path);
    let by_other = |program: &Path, arguments: &[&Path]| {
        let mut command = Command::new("setpriv");
        command.args(NOBODY).arg(program).args(arguments).output().unwrap()
    };
    let output = by_other("touch".as_ref(), &[&batch.join("theirs")]);
    assert!(output.status.success(), "they may write to it: {}", stderr(&output));
    let output = by_other(&program, &["commit".as_ref(), "--yes".as_ref(), &batch]);
    assert!(stderr(&output).contains("user 65534 may not commit"), "{}", stderr(&output));
    let output = by_other("mv".as_ref(), &[&batch, &staged.mount.at("commit")]);
    assert!(stderr(&output).contains("Permission denied"), "{}", stderr(&output));
    assert_eq!(names(&staged.mount.path), versions);
    assert!(batch.join("theirs").is_file());
}
