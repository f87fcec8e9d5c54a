//! Mounts that cannot be: each names what is missing, has its exit code, and leaves nothing.

use std::fs;
use std::path::Path;

use super::{mounted, table};
use crate::harness::{Place, is_alive, run, stderr, stdout};

/// Mounting fails so, and nothing is mounted, and no daemon is left.
fn refused(
    place: &Place,
    table: &Path,
    mountpoint: &Path,
    arguments: &[&str],
    code: i32,
) -> String {
    let mounts = || fs::read_to_string("/proc/self/mountinfo").unwrap();
    let here = place.folder.path().to_str().unwrap();
    let mut command =
        crate::harness::lancefs(["mount".as_ref(), table.as_ref(), mountpoint.as_ref()]);
    let output =
        command.env("LANCEFS_LOG_FILE", place.log_path()).args(arguments).output().unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(said.starts_with("lancefs: ") || said.starts_with("error: "), "{said}");
    assert_eq!(stdout_of(&output), "");
    let left: Vec<_> = mounts().lines().filter(|l| l.contains(here)).map(str::to_owned).collect();
    assert!(left.is_empty(), "{left:?} is still mounted after {said}");
    said
}

fn stdout_of(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_mountpoint_that_is_not_there() {
    let place = Place::new();
    let absent = place.path.join("absent");
    let said = refused(&place, &table(), &absent, &[], 1);
    assert!(said.contains(&format!("mkdir -p {}", absent.display())), "{said}");
    let said = refused(&place, &table(), &absent.join("too"), &["--foreground"], 1);
    assert!(said.contains("does not exist"), "{said}");
    assert!(!absent.exists());
}

#[test]
fn a_mountpoint_that_is_a_file() {
    let place = Place::new();
    let file = place.path.join("file");
    fs::write(&file, b"kept").unwrap();
    let said = refused(&place, &table(), &file, &[], 1);
    assert!(said.contains("is not a directory"), "{said}");
    let said = refused(&place, &table(), &file.join("below"), &[], 1);
    assert!(said.contains(file.to_str().unwrap()), "{said}");
    assert_eq!(fs::read(&file).unwrap(), b"kept");
}

#[test]
fn no_table() {
    let place = Place::new();
    let absent = place.folder.path().join("absent.lance");
    for flags in [&[][..], &["--foreground"]] {
        let said = refused(&place, &absent, &place.path, flags, 3);
        let text = format!("there is no Lance table at {}", absent.display());
        assert!(said.contains(&text), "{said}");
    }
    assert!(!absent.exists(), "looking for a table makes none");
}

#[test]
fn a_table_without_versions() {
    let place = Place::new();
    for folders in ["data", "_versions", "_refs/tags"] {
        let empty = place.folder.path().join("empty.lance");
        fs::create_dir_all(empty.join(folders)).unwrap();
        let said = refused(&place, &empty, &place.path, &[], 3);
        assert!(said.contains("there is no Lance table at"), "{said}");
    }
    let file = place.folder.path().join("file");
    fs::write(&file, b"no table").unwrap();
    let said = refused(&place, &file, &place.path, &[], 3);
    assert!(said.contains("there is no Lance table at"), "{said}");
}

#[test]
fn a_uri_of_no_store() {
    let place = Place::new();
    let said = refused(&place, Path::new("gopher://host/table"), &place.path, &[], 1);
    assert!(said.contains("gopher"), "{said}");
}

#[test]
fn a_store_that_does_not_answer() {
    let place = Place::new();
    let flags = [
        "--timeout=1s",
        "--storage-option=aws_endpoint=http://127.0.0.1:1",
        "--storage-option=allow_http=true",
        "--storage-option=aws_access_key_id=key",
        "--storage-option=aws_secret_access_key=SECRET-OF-THE-TEST",
        "--storage-option=aws_region=eu-west-1",
    ];
    let table = Path::new("s3://bucket/table.lance");
    let said = refused(&place, table, &place.path, &flags, 1);
    assert!(said.contains("s3://bucket/table.lance"), "{said}");
    assert!(!said.contains("SECRET-OF-THE-TEST"), "{said}");
    let log = fs::read_to_string(place.log_path()).unwrap();
    assert!(log.contains("s3://bucket/table.lance"), "{log}");
    assert!(!log.contains("SECRET-OF-THE-TEST"), "{log}");
}

#[test]
fn an_unknown_reference() {
    let place = Place::new();
    let said = refused(&place, &table(), &place.path, &["--at", "no-such-tag"], 3);
    assert!(said.contains("no-such-tag"), "{said}");
    let said = refused(&place, &table(), &place.path, &["--at", "2"], 3);
    assert!(said.contains("\"2\""), "{said}");
}

#[test]
fn options_that_make_no_sense() {
    let place = Place::new();
    let config = place.folder.path().join("config.toml");
    fs::write(&config, "uid = [").unwrap();
    let config = format!("--config={}", config.display());
    for (flag, named) in [
        ("--no-such-flag", "--no-such-flag"),
        ("--threads=0", "--threads"),
        ("--timeout=soon", "--timeout"),
        ("--file-mode=888", "--file-mode"),
        ("-ono_such_option", "--no-such-option"),
        ("-ouid=me", "--uid"),
        ("--storage-option=novalue", "KEY=VALUE"),
        ("--config=/no/such/file.toml", "/no/such/file.toml"),
        (config.as_str(), "config.toml"),
    ] {
        let said = refused(&place, &table(), &place.path, &[flag], 2);
        assert!(said.contains(named), "{flag}: {said}");
    }
    let said = refused(&place, &table(), &place.path, &["--allow-external=relative"], 1);
    assert!(said.contains("--allow-external \"relative\""), "{said}");
    let secrets = place.folder.path().join("secrets");
    fs::write(&secrets, "a = b\nSECRET-WITHOUT-KEY\n").unwrap();
    let flag = format!("--storage-options-file={}", secrets.display());
    let said = refused(&place, &table(), &place.path, &[&flag], 1);
    assert!(said.contains("line 2") && !said.contains("SECRET-WITHOUT-KEY"), "{said}");
}

#[test]
fn a_mountpoint_where_lancefs_is_mounted() {
    let place = mounted();
    let daemon = place.pid();
    for flags in [&[][..], &["--foreground"]] {
        let output = place.command(table()).args(flags).output().unwrap();
        assert!(stderr(&output).contains("lancefs unmount"), "{}", stderr(&output));
        assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    }
    assert_eq!((place.mounts().len(), place.pid()), (1, daemon));
    assert!(is_alive(daemon));
}

#[test]
fn two_mounts_of_one_table_do_not_disturb_each_other() {
    let (first, second) = (mounted(), mounted());
    assert_ne!(first.pid(), second.pid());
    let output = run(&["unmount", first.path.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let status = stdout(&run(&["status", second.path.to_str().unwrap()]));
    assert!(status.contains(&format!("pid {}", second.pid())), "{status}");
}
