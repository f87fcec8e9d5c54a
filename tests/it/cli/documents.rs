//! Help, completions, the manual, and the blocks of README that are made from the program.
//!
//! `LANCEFS_BLESS=1 cargo test --test it documents` writes the blocks.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use lancefs::cli::Exit;

use crate::harness::{LANCEFS, run, stderr, stdout};

const README: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
const COMMANDS: [&str; 10] = [
    "mount",
    "unmount",
    "status",
    "inspect",
    "verify",
    "import",
    "commit",
    "table",
    "completions",
    "man",
];
/// The commands beneath others.
const BENEATH: [&str; 1] = ["table enable-managed"];

/// Runs the program without variables of ours, which its help would show, at a fixed width.
fn plainly(arguments: &[&str]) -> Output {
    let mut command = Command::new(&*LANCEFS);
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("LANCEFS_")) {
            command.env_remove(name);
        }
    }
    command.env("COLUMNS", "100").args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// Checks a block of README, or writes it if that is asked for.
fn is_in_readme(name: &str, wanted: &str) {
    use std::sync::{Mutex, PoisonError};
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let readme = std::fs::read_to_string(README).unwrap();
    let (begin, end) = (format!("<!-- {name}:begin -->\n"), format!("<!-- {name}:end -->"));
    let (before, rest) = readme.split_once(&begin).unwrap_or_else(|| panic!("no {begin}"));
    let (found, after) = rest.split_once(&end).unwrap_or_else(|| panic!("no {end}"));
    if found == wanted {
        return;
    }
    if std::env::var_os("LANCEFS_BLESS").is_some_and(|bless| bless == "1") {
        std::fs::write(README, [before, &begin, wanted, &end, after].concat()).unwrap();
        return;
    }
    panic!("README should hold this (LANCEFS_BLESS=1 writes it):\n{begin}{wanted}{end}");
}

#[test]
fn readme_holds_the_options_of_mount() {
    let help = stdout(&plainly(&["mount", "--help"]));
    assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
    is_in_readme("options", &format!("```text\n{}\n```\n", help.trim_end()));
}

#[test]
fn readme_holds_the_exit_codes() {
    let mut table = "| code | meaning |\n|---|---|\n".to_owned();
    for exit in Exit::ALL {
        writeln!(table, "| {} | {} |", exit.code(), exit.meaning()).unwrap();
    }
    is_in_readme("exit-codes", &table);
}

#[test]
fn exit_codes_are_distinct_and_in_order() {
    let codes: Vec<_> = Exit::ALL.map(Exit::code).into();
    assert_eq!(codes, (0..7).collect::<Vec<u8>>());
}

#[test]
fn every_command_has_its_help() {
    let overview = stdout(&plainly(&["--help"]));
    for command in COMMANDS.into_iter().chain(BENEATH) {
        let beneath = command.contains(' ');
        assert!(beneath || overview.contains(&format!("\n  {command} ")), "{overview}");
        let words: Vec<&str> = command.split(' ').collect();
        let help = stdout(&plainly(&[&words[..], &["--help"]].concat()));
        assert!(help.contains(&format!("Usage: lancefs {command}")), "{help}");
        assert_eq!(help, stdout(&plainly(&[&["help"], &words[..]].concat())));
        // An option without a word about it is a line that ends with its name.
        let mute = help.lines().filter(|line| line.trim_start().starts_with('-'));
        let mute: Vec<_> = mute.filter(|line| line.trim().split("  ").count() < 2).collect();
        assert!(mute.is_empty(), "{command}: {mute:?}");
    }
    let listed = overview.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed: Vec<_> = listed.take_while(|line| !line.is_empty()).collect();
    assert_eq!(listed.len(), COMMANDS.len() + 1, "a command is not tested: {listed:?}");
}

#[test]
fn a_wrong_command_line_is_a_usage_error() {
    for arguments in [&[][..], &["mont"], &["mount"], &["mount", "t"], &["completions", "tcsh"]] {
        let output = plainly(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("Usage:") || stderr(&output).contains("--help"));
        assert_eq!(output.stdout, b"", "{arguments:?}");
    }
    let version = stdout(&run(&["--version"]));
    assert_eq!(version.trim(), concat!("lancefs ", env!("CARGO_PKG_VERSION")));
}

#[test]
fn completions_are_scripts_of_their_shells() {
    for (shell, first) in
        [("bash", "_lancefs()"), ("zsh", "#compdef lancefs"), ("fish", "complete -c lancefs")]
    {
        let script = stdout(&run(&["completions", shell]));
        assert!(script.contains(first), "{shell}: {script}");
        for word in COMMANDS.into_iter().chain(["allow-external", "storage-options-file"]) {
            assert!(script.contains(word), "{shell}: no {word}");
        }
    }
    let script = stdout(&run(&["completions", "bash"]));
    let script = format!("{script}\ncomplete -p lancefs");
    let output = Command::new("bash").arg("-c").arg(script).output().unwrap();
    assert!(stdout(&output).contains("-F _lancefs lancefs"), "{}", stderr(&output));
}

#[test]
fn completions_do_not_offer_what_is_hidden() {
    for shell in ["bash", "zsh", "fish"] {
        let script = stdout(&run(&["completions", shell]));
        assert!(!script.contains("--daemon") && !script.contains("-l daemon"), "{shell}");
    }
}

#[test]
fn the_manual_has_a_page_for_each_command() {
    let manual = stdout(&plainly(&["man"]));
    let pages: Vec<_> = manual.lines().filter(|line| line.starts_with(".TH ")).collect();
    assert_eq!(pages.len(), COMMANDS.len() + BENEATH.len() + 1, "{pages:?}");
    for command in COMMANDS.into_iter().chain(BENEATH) {
        let title = format!(".TH lancefs-{} ", command.replace(' ', "-"));
        assert!(pages.iter().any(|page| page.starts_with(&title)), "{title} of {pages:?}");
    }
    let named = manual.lines().filter(|line| line.ends_with("(1)")).count();
    assert_eq!(named, COMMANDS.len() + BENEATH.len(), "it names pages that it has not");
    assert!(manual.contains("storage\\-options\\-file") && !manual.contains("\\-\\-daemon"));
}

#[test]
fn the_manual_renders() {
    if Command::new("groff").arg("--version").output().is_err() {
        println!("skipped: groff is not installed");
        return;
    }
    let manual = stdout(&plainly(&["man"]));
    let mut groff = Command::new("groff")
        .args(["-man", "-Tascii", "-P-cbou", "-ww"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = groff.stdin.take().unwrap();
    let writer = std::thread::spawn(move || input.write_all(manual.as_bytes()));
    let output = groff.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    let text = stdout(&output);
    assert!(text.contains("       --allow-external <PREFIX>\n"), "{text}");
    assert_eq!(stderr(&output), "");
}
