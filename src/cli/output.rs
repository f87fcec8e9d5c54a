//! What the program prints. A reader that has gone away (`lancefs status | head`) is no failure.

use std::io::Write as _;

use clap::CommandFactory as _;

use super::{Arguments, Exit};
use crate::error::{Error, IoContext as _, Kind, Result};

/// Prints a line on standard output.
pub fn say(line: impl std::fmt::Display) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Prints an error on standard error.
pub fn complain(error: &Error) {
    let _ = writeln!(std::io::stderr(), "lancefs: {error}");
}

/// Prints a remark on standard error.
pub fn remark(line: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "lancefs: {line}");
}

/// Prints the manual page: the program's own and one for each command.
pub fn manual() -> Result<Exit> {
    let mut command = Arguments::command().disable_help_subcommand(true);
    command.build();
    let mut text = Vec::new();
    pages(&command, &mut text).context(Kind::Internal, || "write the manual".to_owned())?;
    let _ = std::io::stdout().write_all(&text);
    Ok(Exit::Success)
}

/// The page of a command and those of the commands beneath it.
fn pages(command: &clap::Command, text: &mut Vec<u8>) -> std::io::Result<()> {
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
