//! Where standard output goes: a reader that leaves, a disk that is full.

use std::fs::File;
use std::process::{Command, Stdio};

use crate::harness::{LANCEFS, Tables};

/// Commands that print and need no mount, and what each ends with.
fn printing() -> Vec<(Vec<String>, i32)> {
    let tables = Tables::shared();
    let table = |name: &str| tables.path(name).to_str().unwrap().to_owned();
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let mut commands: Vec<_> = [&["--help"][..], &["--version"], &["help", "mount"], &["man"]]
        .into_iter()
        .chain([&["completions", "bash"][..], &["completions", "zsh"], &["status", "--json"]])
        .map(|command| (words(command), 0))
        .collect();
    for (name, exit) in [("scalar", 0), ("damaged", 5)] {
        for format in [&["verify"][..], &["verify", "--json"]] {
            commands.push((words(&[format, &[&table(name)]].concat()), exit));
        }
    }
    commands
}

#[test]
fn output_that_a_full_disk_does_not_take_is_a_failure() {
    for (arguments, _) in printing() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = Command::new(&*LANCEFS).args(&arguments).stdout(full).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.contains("write to standard output"), "{arguments:?}: {said}");
    }
}

#[test]
fn a_reader_that_leaves_is_no_failure() {
    for (arguments, exit) in printing() {
        let mut command = Command::new(&*LANCEFS);
        command.args(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(exit), "{arguments:?}: {said}");
        assert_eq!(said, "", "{arguments:?}");
    }
}
