//! What the program prints.
//!
//! 1. A reader that has gone away (`lancefs status | head`) is no failure, and nothing is said of it.
//! 2. A full disk is one, whatever the command came to: who reads the file would take half of a list
//!    for the whole. The first failure is kept, and [`settle`] ends every command.

use std::io::{self, ErrorKind, Write as _};
use std::sync::OnceLock;

use clap::CommandFactory as _;

use super::{Arguments, Exit};
use crate::error::{Error, IoContext as _, Kind, Result};

/// Why standard output did not take everything.
static UNSAID: OnceLock<Error> = OnceLock::new();

/// Prints a line on standard output.
pub fn say(line: impl std::fmt::Display) {
    note(writeln!(io::stdout(), "{line}"));
}

/// Prints a text on standard output as it is.
pub fn print(text: &[u8]) {
    note(io::stdout().write_all(text));
}

/// Prints what the argument parser says: help and version on standard output, the rest on standard
/// error.
pub fn usage(error: &clap::Error) -> Exit {
    let printed = error.print();
    if error.use_stderr() {
        return Exit::Usage;
    }
    note(printed);
    Exit::Success
}

/// Prints an error on standard error.
pub fn complain(error: &Error) {
    let _ = writeln!(io::stderr(), "lancefs: {error}");
}

/// Prints a remark on standard error.
pub fn remark(line: impl std::fmt::Display) {
    let _ = writeln!(io::stderr(), "lancefs: {line}");
}

/// What the program ends with, now that everything has been printed.
pub fn settle(exit: Exit) -> Exit {
    note(io::stdout().flush());
    match UNSAID.get() {
        None => exit,
        Some(error) => {
            complain(error);
            Exit::Failure
        }
    }
}

fn note(printed: io::Result<()>) {
    if let Err(error) = printed
        && error.kind() != ErrorKind::BrokenPipe
    {
        // Only the first is told; the rest of the output fails for the same reason.
        let _ = UNSAID.set(Error::caused(Kind::Internal, "write to standard output", error));
    }
}

/// Prints the manual page: the program's own and one for each command.
pub fn manual() -> Result<Exit> {
    let mut command = Arguments::command().disable_help_subcommand(true);
    command.build();
    let mut text = Vec::new();
    pages(&command, &mut text).context(Kind::Internal, || "write the manual".to_owned())?;
    print(&text);
    Ok(Exit::Success)
}

/// Prints the completion script of a shell.
pub fn completions(shell: clap_complete::Shell) -> Exit {
    // The generator panics where its writer fails.
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "lancefs", &mut text);
    print(&text);
    Exit::Success
}

/// The page of a command and those of the commands beneath it.
fn pages(command: &clap::Command, text: &mut Vec<u8>) -> io::Result<()> {
    clap_mangen::Man::new(command.clone()).render(text)?;
    command.get_subcommands().filter(|c| c.get_name() != "help").try_for_each(|c| pages(c, text))
}

/// A progress bar on standard error, if that is a terminal.
pub fn bar(total: u64, template: &str) -> indicatif::ProgressBar {
    let bar = indicatif::ProgressBar::new(total);
    if let Ok(style) = indicatif::ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}
