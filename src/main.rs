//! The `lancefs` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    lancefs::cli::main()
}
