//! A daemon that does not answer: nothing hangs that looks at its mount from outside.

use super::*;

const BUSY: Option<i32> = Some(4);

/// Lets the daemon go on, whatever happens.
struct Stopped(i32);

impl Stopped {
    fn new(daemon: i32) -> Self {
        kill(daemon, Signal::STOP);
        Self(daemon)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        kill(self.0, Signal::CONT);
    }
}

#[test]
fn a_daemon_that_is_stopped_is_named_and_its_mount_can_be_taken_away() {
    let place = mounted();
    let daemon = place.pid();
    let stopped = Stopped::new(daemon);
    let path = place.path.to_str().unwrap();
    let named = format!("(pid {daemon}) does not answer");
    let link = place.path.parent().unwrap().join("link");
    std::os::unix::fs::symlink(&place.path, &link).unwrap();
    for arguments in [vec!["status"], vec!["status", path], vec!["status", link.to_str().unwrap()]]
    {
        let output = run(&arguments);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(stdout(&output).contains(&named), "{}", stdout(&output));
    }
    let output = run(&["status", "--json", path]);
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told[0]["alive"], false);
    assert_eq!(told[0]["silent_pids"], serde_json::json!([daemon]));
    let again = place.command(table()).output().unwrap();
    assert_eq!(again.status.code(), BUSY, "{}", stderr(&again));
    assert!(stderr(&again).contains(&named), "{}", stderr(&again));
    let output = run(&["unmount", path]);
    assert_eq!(output.status.code(), BUSY, "{}", stderr(&output));
    assert!(stderr(&output).contains(&named), "{}", stderr(&output));
    assert_eq!(place.mounts().len(), 1);
    let output = run(&["unmount", "--lazy", link.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(place.mounts().is_empty());
    drop(stopped);
    ends(&place, daemon);
}

#[test]
fn a_daemon_holds_nothing_of_who_started_it() {
    let place = Place::new();
    let lock = place.path.parent().unwrap().join("lock");
    let script = "exec 9>\"$0\" && flock -n 9 && \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(&lock).arg(&*LANCEFS).arg("mount").arg(table());
    let output = command.arg(&place.path).arg("--log-file").arg(place.log_path()).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let free = Command::new("flock").arg("-n").arg(&lock).arg("true").status().unwrap();
    assert!(free.success(), "the daemon holds the lock of the shell that started it");
    assert!(is_alive(place.pid()));
}

#[test]
fn of_several_who_mount_at_one_place_at_once_one_does() {
    let place = Place::new();
    let codes: Vec<_> = std::thread::scope(|scope| {
        let mounting =
            (0..4).map(|_| scope.spawn(|| place.command(table()).output().unwrap().status.code()));
        let mounting: Vec<_> = mounting.collect();
        mounting.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(codes.iter().filter(|code| **code == Some(0)).count(), 1, "{codes:?}");
    assert_eq!(codes.iter().filter(|code| **code == BUSY).count(), 3, "{codes:?}");
    assert_eq!(place.mounts().len(), 1);
}

#[test]
fn a_table_is_not_mounted_onto_itself_or_what_is_around_it() {
    let folder = crate::harness::folder();
    let copy = Tables::shared().copy("scalar", &folder.path().join("t.lance"));
    let uri = format!("file://{}", copy.display());
    for (table, mountpoint) in [
        (copy.to_str().unwrap(), copy.as_path()),
        (copy.to_str().unwrap(), folder.path()),
        (&uri, folder.path()),
        (copy.to_str().unwrap(), &copy.join("data")),
    ] {
        let output = run(&["mount", table, mountpoint.to_str().unwrap()]);
        if mountpoint.ends_with("data") {
            assert!(stderr(&output).contains("lies within the table"), "{}", stderr(&output));
        } else {
            assert!(stderr(&output).contains("would hide the table"), "{}", stderr(&output));
        }
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    }
}
