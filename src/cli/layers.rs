//! Four layers of options in one: a flag, `-o`, an environment variable, the configuration file.
//!
//! The parser knows flags and variables. What `-o` and the file say is put behind the arguments as
//! the flags that it stands for, where no higher layer has said anything, and all is parsed again.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _};

use super::args::Arguments;
use crate::config::{self, Pair};
use crate::error::Error;

/// Why arguments cannot be used.
pub enum Fault {
    /// The parser's own message; also help and version.
    Usage(clap::Error),
    /// `-o` or the configuration file.
    Options(Error),
}

/// Parses the arguments of the program.
///
/// # Errors
/// What is wrong with them.
pub fn parse(mut arguments: Vec<OsString>) -> Result<Arguments, Fault> {
    let first = matches(&arguments)?;
    if let Some(("mount", mount)) = first.subcommand() {
        let lower = lower_layers(mount).map_err(Fault::Options)?;
        // Behind a `--` there are no flags any more, so these go right behind the command.
        let command = arguments.iter().position(|argument| argument == "mount").unwrap_or(0);
        arguments.splice(command + 1..=command, lower);
    }
    let parsed = matches(&arguments)?;
    Arguments::from_arg_matches(&parsed).map_err(Fault::Usage)
}

fn matches(arguments: &[OsString]) -> Result<ArgMatches, Fault> {
    Arguments::command().try_get_matches_from(arguments).map_err(Fault::Usage)
}

fn lower_layers(mount: &ArgMatches) -> Result<Vec<OsString>, Error> {
    let mut flags = Vec::new();
    let mut said: Vec<String> = Vec::new();
    let given = mount.get_many::<String>("options").into_iter().flatten();
    let by_o: Vec<Pair> =
        given.map(|text| config::mount_options(text)).collect::<Result<Vec<_>, _>>()?.concat();
    for pair in by_o.iter().filter(|(name, _)| !is_from(mount, name, &[ValueSource::CommandLine])) {
        said.push(pair.0.clone());
        flags.push(flag(pair));
    }
    if let Some(path) = mount.get_one::<PathBuf>("config") {
        let by_file = config::file(path)?;
        let above = [ValueSource::CommandLine, ValueSource::EnvVariable];
        let unsaid = by_file
            .iter()
            .filter(|(name, _)| !is_from(mount, name, &above) && !said.contains(name));
        flags.extend(unsaid.map(flag));
    }
    Ok(flags)
}

/// Whether an option has its value from one of these sources. A name that is no option is left to
/// the parser to complain about.
fn is_from(mount: &ArgMatches, name: &str, sources: &[ValueSource]) -> bool {
    let id = name.replace('-', "_");
    let known = mount.try_contains_id(&id).is_ok();
    known && mount.value_source(&id).is_some_and(|source| sources.contains(&source))
}

fn flag((name, value): &Pair) -> OsString {
    match value {
        Some(value) => format!("--{name}={value}").into(),
        None => format!("--{name}").into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Command;
    use std::time::Duration;

    fn mount(arguments: &[&str]) -> Box<super::super::args::MountArgs> {
        let all = ["lancefs", "mount"].iter().chain(arguments).map(OsString::from).collect();
        match parse(all) {
            Ok(Arguments { command: Command::Mount(args) }) => args,
            Err(Fault::Usage(error)) => panic!("{error}"),
            Err(Fault::Options(error)) => panic!("{error}"),
            Ok(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_flag_beats_o_and_o_beats_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.toml");
        std::fs::write(
            &file,
            "refresh = \"7s\"\ntimeout = \"8s\"\nuid = 9\nallow_external = [\"/x\", \"/y\"]\n",
        )
        .unwrap();
        let config = format!("--config={}", file.display());
        let args = mount(&[
            "--refresh=1s",
            "-o",
            "refresh=2s,timeout=3s,allow_other,ro,noatime",
            &config,
            "--",
            "t",
            "m",
        ]);
        assert_eq!(args.refresh, Some(Duration::from_secs(1)));
        assert_eq!(args.timeout, Duration::from_secs(3));
        assert_eq!(args.uid, Some(9));
        assert!(args.allow_other && args.read_only);
        assert_eq!(args.policy.allow_external, ["/x", "/y"]);
    }

    #[test]
    fn an_unknown_option_is_a_usage_error() {
        let all =
            ["lancefs", "mount", "-o", "no_such_thing=1", "t", "m"].map(OsString::from).to_vec();
        assert!(
            matches!(parse(all), Err(Fault::Usage(error)) if error.to_string().contains("--no-such-thing"))
        );
    }
}
