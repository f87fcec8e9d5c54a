//! The life of a mount, from its command to the end of its daemon (README "The life of a mount").

mod options;
mod refusals;
mod silent;
mod staged;
mod takeover;

use std::fs::{self, File};
use std::io::{Read as _, Seek as _};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use crate::harness::{
    LANCEFS, Place, Running, Tables, errno, eventually, is_alive, kill, lancefs, names, run,
    stderr, stdout,
};

const ENOTCONN: i32 = 107;

fn table() -> std::path::PathBuf {
    Tables::shared().path("scalar")
}

/// A background mount of the table `scalar`.
fn mounted() -> Place {
    let place = Place::new();
    let output = place.command(table()).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    place
}

fn ends(place: &Place, daemon: i32) {
    eventually("the daemon ends", || !is_alive(daemon));
    assert!(place.mounts().is_empty(), "{:?}", place.mounts());
    assert!(names(&place.path).is_empty(), "the mountpoint is an empty directory again");
}

#[test]
fn s33_mount_returns_when_the_mountpoint_can_be_listed() {
    let place = Place::new();
    let mut command = place.command(table());
    let mut mount = Running::start(command.stdout(Stdio::null()).stderr(Stdio::null()));
    assert_eq!(mount.ended("the command returns"), Some(0));
    assert_eq!(
        names(&place.path),
        [".lancefs", "1", "branches", "commit", "latest", "staging", "tags"]
    );
    assert_eq!(place.mounts().len(), 1);
    assert!(is_alive(place.pid()));
}

#[test]
fn s34_sigterm_and_sigint_unmount() {
    for signal in [Signal::TERM, Signal::INT] {
        let place = mounted();
        let daemon = place.pid();
        kill(daemon, signal);
        ends(&place, daemon);
        let log = fs::read_to_string(place.log_path()).unwrap();
        assert!(log.contains("told to end") && !log.contains("ERROR"), "{log}");
    }
}

#[test]
fn s34_sigterm_and_sigint_unmount_with_an_open_file() {
    for signal in [Signal::TERM, Signal::INT] {
        let place = mounted();
        let daemon = place.pid();
        let mut open = File::open(place.path.join("latest/0/blob.bin")).unwrap();
        let other = File::open(place.path.join("latest/0/row.json")).unwrap();
        let mut first = [0];
        let read = open.read(&mut first).unwrap();
        kill(daemon, signal);
        ends(&place, daemon);
        // What the kernel has not kept is gone, and says so instead of hanging.
        assert!(other.metadata().is_err() || (&other).read(&mut first).is_err());
        assert!(read <= 1 && open.rewind().is_ok());
    }
}

#[test]
fn s35_the_mountpoint_of_a_killed_daemon_is_taken_over() {
    let place = mounted();
    let daemon = place.pid();
    kill(daemon, Signal::KILL);
    eventually("the daemon is dead", || !is_alive(daemon));
    // While the kernel takes the connection down, it says ECONNABORTED.
    eventually("the mount is dead", || errno(fs::read_dir(&place.path)) == ENOTCONN);
    let status = run(&["status"]);
    let line = format!("on {}: its daemon has died", place.path.display());
    assert!(stdout(&status).contains(&line), "{}", stdout(&status));
    let again = place.command(table()).output().unwrap();
    assert!(again.status.success(), "{}", stderr(&again));
    assert_eq!(place.mounts().len(), 1, "the dead mount is gone");
    assert_ne!(place.pid(), daemon);
    assert_eq!(names(&place.path.join("latest/0")), ["blob.bin", "row.json"]);
}

#[test]
fn s35_the_mountpoint_of_a_killed_daemon_is_taken_over_with_a_file_still_open() {
    let place = mounted();
    let daemon = place.pid();
    let open = File::open(place.path.join("latest/1/row.json")).unwrap();
    kill(daemon, Signal::KILL);
    eventually("the daemon is dead", || !is_alive(daemon));
    let again = place.command(table()).output().unwrap();
    assert!(again.status.success(), "{}", stderr(&again));
    assert_eq!(fs::read(place.path.join("latest/1/row.json")).unwrap().first(), Some(&b'{'));
    assert_eq!(errno((&open).read(&mut [0])), ENOTCONN);
}

#[test]
fn unmount_takes_a_dead_mount_away() {
    let place = mounted();
    let daemon = place.pid();
    kill(daemon, Signal::KILL);
    eventually("the daemon is dead", || !is_alive(daemon));
    let output = run(&["unmount", place.path.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    ends(&place, daemon);
}

#[test]
fn s36_unmount_of_what_is_not_mounted_succeeds() {
    let place = Place::new();
    for path in [place.path.clone(), place.path.join("absent"), place.path.join("absent/too")] {
        let output = run(&["unmount", path.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let remark = format!("nothing is mounted at {}", path.display());
        assert!(stderr(&output).contains(&remark), "{}", stderr(&output));
    }
    assert!(place.path.is_dir());
}

#[test]
fn unmount_returns_when_the_daemon_has_ended() {
    let place = mounted();
    let daemon = place.pid();
    let output = run(&["umount", place.path.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(!is_alive(daemon), "unmount returned before the daemon had ended");
    ends(&place, daemon);
}

#[test]
fn a_relative_mountpoint_and_one_behind_a_symlink_are_found() {
    let place = Place::new();
    std::os::unix::fs::symlink("mnt", place.folder.path().join("link")).unwrap();
    let in_folder = |arguments: &[&str]| {
        let mut command = Command::new(&*LANCEFS);
        command.args(arguments).current_dir(place.folder.path()).stdin(Stdio::null());
        command.env("LANCEFS_LOG_FILE", "relative.log").output().unwrap()
    };
    let output = in_folder(&["mount", table().to_str().unwrap(), "link"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(place.mounts().len(), 1);
    let status = in_folder(&["status", "./mnt/"]);
    assert!(stdout(&status).contains(place.path.to_str().unwrap()), "{}", stdout(&status));
    let output = in_folder(&["unmount", "link"]);
    assert!(output.status.success() && place.mounts().is_empty(), "{}", stderr(&output));
    assert!(place.folder.path().join("relative.log").is_file());
}

#[test]
fn a_daemon_holds_nothing_of_who_started_it() {
    let place = Place::new();
    let script = "\"$0\" mount \"$1\" \"$2\" 2>&1 | cat";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, &LANCEFS]).arg(table()).arg(&place.path);
    shell.env("LANCEFS_LOG_FILE", place.log_path()).stdin(Stdio::null()).stdout(Stdio::null());
    assert_eq!(Running::start(&mut shell).ended("the pipe ends"), Some(0));
    let process = Path::new("/proc").join(place.pid().to_string());
    let stream = |number: &str| fs::read_link(process.join("fd").join(number)).unwrap();
    assert_eq!(stream("0"), Path::new("/dev/null"));
    assert_eq!(stream("1"), Path::new("/dev/null"));
    assert_eq!(stream("2"), place.log_path());
    let stat = fs::read_to_string(process.join("stat")).unwrap();
    let fields: Vec<_> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    let (session, terminal) = (fields[3], fields[4]);
    assert_eq!((session, terminal), (place.pid().to_string().as_str(), "0"));
}

#[test]
fn in_the_foreground_systemd_is_told() {
    let place = Place::new();
    let address = place.folder.path().join("notify");
    let socket = UnixDatagram::bind(&address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut command = place.command(table());
    command.arg("--foreground").env("NOTIFY_SOCKET", &address).stdout(Stdio::null());
    let mut daemon = Running::start(command.stderr(Stdio::piped()));
    let heard = || {
        let mut message = [0; 512];
        let length = socket.recv(&mut message).expect("no message within 20 seconds");
        String::from_utf8(message[..length].to_vec()).unwrap()
    };
    assert_eq!(heard().lines().next(), Some("READY=1"));
    assert_eq!(names(&place.path.join("latest/0")), ["blob.bin", "row.json"]);
    assert_eq!(place.pid(), i32::try_from(daemon.0.id()).unwrap());
    daemon.signal(Signal::TERM);
    assert_eq!(heard().lines().next(), Some("STOPPING=1"));
    assert_eq!(daemon.ended("the daemon ends"), Some(0));
    assert!(place.mounts().is_empty());
    let mut log = String::new();
    daemon.0.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(log.contains("mounted") && log.contains("told to end"), "{log}");
}

#[test]
fn a_foreground_mount_ends_when_it_is_unmounted() {
    let place = Place::new();
    let mut command = place.command(table());
    command.arg("--foreground").stdout(Stdio::null()).stderr(Stdio::null());
    let mut daemon = Running::start(&mut command);
    eventually("it is mounted", || place.path.join("latest").is_symlink());
    let output = run(&["unmount", place.path.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(daemon.ended("the daemon ends"), Some(0));
}

#[test]
fn the_tools_of_the_system_unmount_and_the_daemon_ends() {
    for tool in [&["umount"][..], &["fusermount3", "-u"]] {
        let place = mounted();
        let daemon = place.pid();
        let output = Command::new(tool[0]).args(&tool[1..]).arg(&place.path).output().unwrap();
        assert!(output.status.success(), "{tool:?}: {}", stderr(&output));
        ends(&place, daemon);
    }
}

#[test]
fn unmount_of_a_busy_mount_names_who_uses_it() {
    let place = mounted();
    let daemon = place.pid();
    let path = place.path.to_str().unwrap();
    let open = File::open(place.path.join("latest/0/row.json")).unwrap();
    let mut sleep = Command::new("sleep");
    let sleeper = Running::start(sleep.arg("1000").current_dir(place.path.join("1")));
    let output = run(&["unmount", path]);
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    let said = stderr(&output);
    assert!(said.contains(&format!("sleep ({})", sleeper.0.id())), "{said}");
    assert!(said.contains(&format!("({})", std::process::id())), "{said}");
    assert!(said.contains("--lazy"), "{said}");
    assert!(!names(&place.path.join("1")).is_empty(), "it is still mounted");
    drop((open, sleeper));
    eventually("it is idle", || run(&["unmount", path]).status.success());
    ends(&place, daemon);
}

#[test]
fn a_lazy_unmount_ends_with_the_last_user() {
    let place = mounted();
    let daemon = place.pid();
    let mut open = File::open(place.path.join("latest/1/row.json")).unwrap();
    let output = run(&["unmount", "--lazy", place.path.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(place.mounts().is_empty() && names(&place.path).is_empty());
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert!(text.starts_with('{'), "{text}");
    assert!(is_alive(daemon));
    drop(open);
    eventually("the daemon ends", || !is_alive(daemon));
}

#[test]
fn every_mount_has_its_status_and_its_metrics() {
    let place = mounted();
    let bytes = fs::read(place.path.join("latest/1/row.json")).unwrap().len();
    let output = run(&["status", "--json", place.path.to_str().unwrap()]);
    let list: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(list.as_array().unwrap().len(), 1);
    let (mount, table) = (&list[0], table());
    assert_eq!(mount["mountpoint"], place.path.to_str().unwrap());
    assert_eq!((&mount["source"], &mount["alive"]), (&table.to_str().into(), &true.into()));
    let status = &mount["status"];
    assert_eq!((&status["latest"], &status["versions"]), (&1.into(), &1.into()));
    assert!(status["bytes_read"].as_u64().unwrap() >= u64::try_from(bytes).unwrap());
    assert_eq!(status["failures"], 0);
    let started = status["mounted_at"].as_str().unwrap();
    let age = chrono::Utc::now() - started.parse::<chrono::DateTime<chrono::Utc>>().unwrap();
    assert!((0..600).contains(&age.num_seconds()), "{started}");
    let text = stdout(&run(&["status", place.path.to_str().unwrap()]));
    assert!(text.contains(&format!("pid {}", place.pid())), "{text}");
    let all = stdout(&run(&["status"]));
    assert!(all.contains(place.path.to_str().unwrap()), "{all}");
    let nowhere = lancefs(["status".as_ref(), "/".as_ref()]).output().unwrap();
    assert_eq!(nowhere.status.code(), Some(3), "{}", stderr(&nowhere));
}

/// The samples of a text in the Prometheus format, each of which must have its help and type.
fn metrics(place: &Place) -> std::collections::BTreeMap<String, u64> {
    let text = fs::read_to_string(place.path.join(".lancefs/metrics")).unwrap();
    let mut found = std::collections::BTreeMap::new();
    let lines: Vec<_> = text.lines().collect();
    for three in lines.chunks(3) {
        let [help, kind, sample] = three else { panic!("{three:?}") };
        let (name, value) = sample.split_once(' ').unwrap();
        assert!(help.starts_with(&format!("# HELP {name} ")), "{help}");
        let word = if name.ends_with("_total") { "counter" } else { "gauge" };
        assert_eq!(*kind, format!("# TYPE {name} {word}"));
        assert!(found.insert(name.to_owned(), value.parse().unwrap()).is_none(), "{name} twice");
    }
    found
}

#[test]
fn metrics_count_what_is_done() {
    let place = mounted();
    let before = metrics(&place);
    assert!(before.len() >= 7, "{before:?}");
    let mut open = File::open(place.path.join("latest/1/row.json")).unwrap();
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    let after = metrics(&place);
    let grown = |name: &str| after[name] - before[name];
    assert!(grown("lancefs_requests_total") >= 2);
    assert!(grown("lancefs_read_bytes_total") >= u64::try_from(text.len()).unwrap());
    assert_eq!(after["lancefs_open_files"], before["lancefs_open_files"] + 1);
    assert!(grown("lancefs_opens_total") >= 1);
}
