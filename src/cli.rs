//! The command line: parse, run, print.
//!
//! Raw arguments are parsed once, into the types that the work takes; nothing below prints or reads
//! the environment. Every failure is one line on standard error and an exit code ([`Exit`]).

mod args;
mod ask;
mod commit;
mod import;
mod inspect;
mod layers;
mod mount;
mod output;
mod pins;
mod serve;
mod staging;
mod status;
mod table;
mod unmount;
mod verify;

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _};

use crate::error::{Error, Kind};
use crate::fuse::mount::asked;
use crate::table::decoder;

pub use args::{Arguments, Command};

/// What a run of `lancefs` ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It did what it was asked.
    Success,
    /// It failed for a reason of its own; the line on standard error says which.
    Failure,
    /// The arguments make no sense.
    Usage,
    /// There is no such table, version, tag, branch or file.
    NotFound,
    /// The mountpoint or the batch is in use.
    Busy,
    /// `verify` or `commit` found faults.
    Faults,
    /// Permission or credentials are missing.
    Denied,
}

impl Exit {
    /// Every exit, in the order of its code.
    pub const ALL: [Self; 7] = [
        Self::Success,
        Self::Failure,
        Self::Usage,
        Self::NotFound,
        Self::Busy,
        Self::Faults,
        Self::Denied,
    ];

    /// The number that the shell sees.
    pub fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Failure => 1,
            Self::Usage => 2,
            Self::NotFound => 3,
            Self::Busy => 4,
            Self::Faults => 5,
            Self::Denied => 6,
        }
    }

    /// What it means, for README and the manual page.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "it failed; standard error says why",
            Self::Usage => "the arguments make no sense",
            Self::NotFound => "no such table, version, tag, branch or file",
            Self::Busy => {
                "the mountpoint is in use, or the batch is, or others changed what it changes"
            }
            Self::Faults => "verify or commit found faults",
            Self::Denied => "permission or credentials are missing",
        }
    }

    fn of(error: &Error) -> Self {
        match error.kind() {
            Kind::NotFound => Self::NotFound,
            Kind::Denied => Self::Denied,
            Kind::Busy => Self::Busy,
            Kind::Faulty => Self::Faults,
            Kind::Payload
            | Kind::Table
            | Kind::Descriptor
            | Kind::Stale
            | Kind::Renewed
            | Kind::Timeout
            | Kind::Invalid
            | Kind::ReadOnly
            | Kind::NotDirectory
            | Kind::IsDirectory
            | Kind::NoAttribute
            | Kind::NameTooLong
            | Kind::Disk(_)
            | Kind::TooLarge
            | Kind::Quota
            | Kind::Refused
            | Kind::Unsupported
            | Kind::Continues
            | Kind::Interrupted
            | Kind::Internal => Self::Failure,
        }
    }
}

/// Runs the program.
pub fn main() -> ExitCode {
    if decoder::is_worker() {
        return decoder::run();
    }
    if let Some(code) = asked::look_for_another() {
        return code;
    }
    decoder::apart();
    let exit = match layers::parse(std::env::args_os().collect()) {
        Ok(arguments) => run(arguments),
        // Help and version are such errors too, and successes.
        Err(layers::Fault::Usage(error)) => output::usage(&error),
        Err(layers::Fault::Options(error)) => {
            output::complain(&error);
            Exit::Usage
        }
    };
    ExitCode::from(output::settle(exit).code())
}

fn run(arguments: Arguments) -> Exit {
    let filter = std::env::var("LANCEFS_LOG").ok();
    let done = match arguments.command {
        Command::Mount(args) => mount::run(&args, filter.as_deref()),
        Command::Unmount(args) => unmount::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Commit(args) => commit::run(&args),
        Command::Table(args) => table::run(&args),
        Command::Completions { shell } => Ok(output::completions(shell)),
        Command::Man => output::manual(),
    };
    done.unwrap_or_else(|error| {
        output::complain(&error);
        Exit::of(&error)
    })
}

/// Parses arguments as the program does, for tests and the manual.
///
/// # Errors
/// What the argument parser says.
pub fn parse_from(arguments: &[&str]) -> Result<Arguments, clap::Error> {
    Arguments::from_arg_matches(&Arguments::command().try_get_matches_from(arguments)?)
}
