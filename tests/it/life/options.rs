//! What options do, where they come from, and that none of them tells a secret.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Command, Output};

use super::{mounted, table};
use crate::harness::{
    LANCEFS, Place, Tables, eventually, is_alive, names, run, stderr, stdout, xattr,
};

/// `nobody` and `nogroup`, who have no rights at all.
const NOBODY: [&str; 4] = ["--reuid=65534", "--regid=65534", "--clear-groups", "--"];

fn mounted_with(table: impl AsRef<std::ffi::OsStr>, arguments: &[&str]) -> Place {
    let place = Place::new();
    let output = place.command(table).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    place
}

fn as_nobody(program: impl AsRef<std::ffi::OsStr>, arguments: &[&std::ffi::OsStr]) -> Output {
    let mut command = Command::new("setpriv");
    command.args(NOBODY).arg(program).args(arguments).output().unwrap()
}

#[test]
fn allow_other_lets_other_users_look() {
    let place = mounted_with(table(), &["--allow-other"]);
    assert!(place.mounts()[0].contains("allow_other"), "{:?}", place.mounts());
    let file = place.path.join("latest/1/row.json");
    let output = as_nobody("cat", &[file.as_ref()]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(output.stdout, fs::read(&file).unwrap());
}

#[test]
fn other_users_see_nothing_without_allow_other() {
    let place = mounted();
    assert!(!place.mounts()[0].contains("allow_other"), "{:?}", place.mounts());
    let output = as_nobody("ls", &[place.path.as_ref()]);
    assert!(stderr(&output).contains("Permission denied"), "{}", stderr(&output));
    assert_eq!(output.stdout, b"");
}

#[test]
fn modes_hold_for_other_users() {
    let place = mounted_with(table(), &["--allow-other", "--file-mode=0440", "--dir-mode=0551"]);
    let row = place.path.join("1/1");
    assert!(!as_nobody("ls", &[row.as_ref()]).status.success(), "the directory is not readable");
    let file = row.join("row.json");
    let output = as_nobody("cat", &[file.as_ref()]);
    assert!(stderr(&output).contains("Permission denied"), "{}", stderr(&output));
    assert!(as_nobody("stat", &[file.as_ref()]).status.success());
}

#[test]
fn owner_and_modes_are_as_asked() {
    let flags = ["--uid=1234", "--gid=4321", "--file-mode=0400", "--dir-mode=0500"];
    let place = mounted_with(table(), &flags);
    for (path, mode) in [
        ("", 0o500),
        ("1", 0o500),
        ("1/1", 0o500),
        ("tags", 0o500),
        (".lancefs", 0o500),
        ("1/1/row.json", 0o400),
        ("1/1/blob.bin", 0o400),
        ("1/.version.json", 0o400),
        (".lancefs/status.json", 0o400),
    ] {
        let meta = fs::metadata(place.path.join(path)).unwrap();
        assert_eq!(meta.permissions().mode() & 0o7777, mode, "{path:?}");
        assert_eq!((meta.uid(), meta.gid()), (1234, 4321), "{path:?}");
    }
}

/// Runs as root in a mount namespace of its own, where `/dev/fuse` is open to everybody whatever it
/// is on this machine, and goes on as nobody; whatever happens, nothing stays mounted.
const AS_NOBODY: &str = r#"
set -eu
mknod device c 10 229
chmod 666 device
mount --bind device /dev/fuse
trap 'setpriv "$@" ./lancefs unmount --lazy mnt' EXIT
setpriv "$@" ./lancefs mount --log-file=mnt.log table.lance mnt
setpriv "$@" ls mnt/latest/0
setpriv "$@" cat /proc/self/mountinfo
if setpriv "$@" ./lancefs mount --log-file=mnt.log --allow-other table.lance mnt2 2>error; then exit 9; fi
cat error >&2
setpriv "$@" ./lancefs unmount mnt
if grep -F "$PWD/mnt" /proc/self/mountinfo; then exit 8; fi
"#;

#[test]
fn an_ordinary_user_mounts_through_fusermount3() {
    let place = Place::new();
    let folder = place.folder.path();
    // Other users may not look into the folder that the program was built in.
    let program = folder.join("lancefs");
    fs::hard_link(&*LANCEFS, &program)
        .or_else(|_| fs::copy(&*LANCEFS, &program).map(drop))
        .unwrap();
    fs::rename(Tables::shared().copy("scalar", folder), folder.join("table.lance")).unwrap();
    fs::create_dir(folder.join("mnt2")).unwrap();
    fs::write(folder.join("mnt.log"), "").unwrap();
    for theirs in ["mnt", "mnt2", "mnt.log"] {
        std::os::unix::fs::chown(folder.join(theirs), Some(65534), Some(65534)).unwrap();
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "bash", "-c", AS_NOBODY, "as-nobody"]).args(NOBODY);
    let output = command.current_dir(folder).output().unwrap();
    let shown = stdout(&output);
    assert!(shown.starts_with("blob.bin\nrow.json\n"), "{shown}");
    // The namespace begins with the mounts of tests that run beside this one.
    let ours = format!(" {}/mnt ", folder.display());
    let line = shown.lines().find(|line| line.contains(&ours)).unwrap();
    for flag in ["nosuid", "nodev", "noexec", "ro", "user_id=65534"] {
        assert!(line.contains(flag), "{line} without {flag}");
    }
    assert!(stderr(&output).contains("user_allow_other in /etc/fuse.conf"), "{}", stderr(&output));
}

#[test]
fn at_shows_one_version_tag_or_branch() {
    let tables = Tables::shared();
    let refs = tables.path("refs");
    let expected = tables.expected("refs");
    let rows = |version: &serde_json::Value| version["rows"].as_array().unwrap().len();
    let main = |number: u64| rows(&expected["versions"][number.to_string()]);
    let on_a = &expected["branches"]["a"];
    let newest_on_a = on_a["latest"].as_u64().unwrap();
    for (at, version, count) in [
        ("2", 2, main(2)),
        ("v1.0", 2, main(2)),
        ("on-a", 4, rows(&on_a["versions"]["4"])),
        ("a", newest_on_a, rows(&on_a["versions"][newest_on_a.to_string()])),
        // A number is a version before it is a tag or a branch.
        ("3", 3, main(3)),
    ] {
        let place = mounted_with(&refs, &["--at", at]);
        assert_eq!(names(&place.path), [".lancefs", &version.to_string(), "latest"], "--at {at}");
        let latest = place.path.join("latest");
        assert_eq!(fs::read_link(&latest).unwrap(), Path::new(&version.to_string()));
        let shown = names(&place.path.join(version.to_string()));
        assert_eq!(shown.len() - 1, count, "--at {at}: {shown:?}");
        let about = fs::read(latest.join(".version.json")).unwrap();
        let about: serde_json::Value = serde_json::from_slice(&about).unwrap();
        assert_eq!((&about["version"], &about["rows"]), (&version.into(), &count.into()));
        assert!(!place.path.join("tags").exists() && !place.path.join("1").exists());
    }
}

#[test]
fn at_a_tag_stays_where_it_was() {
    let folder = crate::harness::folder();
    let copy = Tables::shared().copy("refs", folder.path());
    let place = mounted_with(&copy, &["--at=v1.0", "--refresh=0"]);
    let tag = copy.join("_refs/tags/v1.0.json");
    let moved = fs::read_to_string(copy.join("_refs/tags/3.json")).unwrap();
    assert_ne!(fs::read_to_string(&tag).unwrap(), moved);
    fs::write(&tag, moved).unwrap();
    assert_eq!(names(&place.path), [".lancefs", "2", "latest"]);
}

#[test]
fn a_flag_beats_o_beats_the_environment_beats_the_file() {
    let config = |place: &Place| {
        let file = place.folder.path().join("lancefs.toml");
        fs::write(&file, "uid = 1\ngid = 11\nfile_mode = \"0440\"\n").unwrap();
        file
    };
    let layers = ["--uid=4", "-ouid=3,ro,nofail", "LANCEFS_UID=2", "--config"];
    for (first, uid) in [(0, 4), (1, 3), (2, 2), (3, 1)] {
        let place = Place::new();
        let mut command = place.command(table());
        for layer in &layers[first..] {
            match layer.split_once('=') {
                Some(("LANCEFS_UID", value)) => command.env("LANCEFS_UID", value),
                None => command.arg("--config").arg(config(&place)),
                Some(_) => command.arg(layer),
            };
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let meta = fs::metadata(place.path.join("1/1/row.json")).unwrap();
        // What no higher layer says stays as the file says.
        assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o777), (uid, 11, 0o440));
    }
}

#[test]
fn switches_and_lists_come_from_every_layer() {
    let place = Place::new();
    let file = place.folder.path().join("lancefs.toml");
    fs::write(&file, "allow-other = true\nallow-external = [\"/a\", \"/b\"]\n").unwrap();
    let output = place.command(table()).env("LANCEFS_CONFIG", &file).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(place.mounts()[0].contains("allow_other"), "{:?}", place.mounts());
    let status: serde_json::Value =
        serde_json::from_slice(&fs::read(place.path.join(".lancefs/status.json")).unwrap())
            .unwrap();
    assert_eq!(status["allow_external"], serde_json::json!(["/a", "/b"]));
    let place = mounted_with(table(), &["-o", "allow_other", "-o", "refresh=90s,timeout=9s"]);
    assert!(place.mounts()[0].contains("allow_other"), "{:?}", place.mounts());
    let status = fs::read_to_string(place.path.join(".lancefs/status.json")).unwrap();
    assert!(status.contains("\"refresh_seconds\": 90.0"), "{status}");
}

#[test]
fn a_switch_in_the_environment_is_on_or_off() {
    for (value, on) in [("true", true), ("1", true), ("yes", true), ("false", false), ("0", false)]
    {
        let place = Place::new();
        let output = place.command(table()).env("LANCEFS_ALLOW_OTHER", value).output().unwrap();
        assert!(output.status.success(), "LANCEFS_ALLOW_OTHER={value}: {}", stderr(&output));
        assert_eq!(place.mounts()[0].contains("allow_other"), on, "LANCEFS_ALLOW_OTHER={value}");
    }
}

#[test]
fn no_secret_is_told_anywhere() {
    const SECRETS: [&str; 3] = ["SECRET-FROM-A-FLAG", "SECRET-FROM-A-FILE", "SECRET-FROM-THE-ENV"];
    let folder = crate::harness::folder();
    let copy = Tables::shared().copy("damaged", folder.path());
    let place = Place::new();
    let file = place.folder.path().join("options");
    fs::write(&file, format!("aws_session_token = {}\n", SECRETS[1])).unwrap();
    let mut command = place.command(&copy);
    command.env("LANCEFS_LOG", "trace").env("AWS_SECRET_ACCESS_KEY", SECRETS[2]);
    command.arg("--storage-options-file").arg(&file);
    command.arg(format!("--storage-option=aws_secret_access_key={}", SECRETS[0]));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let mut told = vec![stderr(&output)];
    for row in 0..6 {
        let path = place.path.join(format!("latest/{row}/blob.bin"));
        let _ = fs::read(&path);
        for name in ["user.lancefs.error", "user.lancefs.object"] {
            told.extend(xattr(&path, name));
        }
    }
    told.push(fs::read_to_string("/proc/self/mountinfo").unwrap());
    for file in ["status.json", "metrics"] {
        told.push(fs::read_to_string(place.path.join(".lancefs").join(file)).unwrap());
    }
    let path = place.path.to_str().unwrap();
    told.extend(
        [run(&["status", "--json"]), run(&["status", path])]
            .map(|output| String::from_utf8(output.stdout).unwrap()),
    );
    let daemon = place.pid();
    run(&["unmount", path]);
    eventually("the daemon ends", || !is_alive(daemon));
    told.push(fs::read_to_string(place.log_path()).unwrap());
    assert!(told.last().unwrap().contains("failed"), "the log has something to tell");
    for (secret, text) in SECRETS.iter().flat_map(|s| told.iter().map(move |text| (s, text))) {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
}
