//! `lancefs table`: work on a table without mounting it.

use std::time::Duration;

use serde_json::json;
use tokio::runtime::Runtime;

use super::args::{EnableManagedArgs, MountArgs, TableArgs, TableCommand};
use super::ask::{Answer, ask};
use super::{Exit, output, serve};
use crate::error::{Error, IoContext as _, Kind, Result};
use crate::table::{CONSEQUENCES, Enabled, Managed, Options, Policy, Table};

/// Runs the command.
pub fn run(args: &TableArgs) -> Result<Exit> {
    match &args.command {
        TableCommand::EnableManaged(args) => enable_managed(args),
    }
}

fn enable_managed(args: &EnableManagedArgs) -> Result<Exit> {
    let runtime = runtime()?;
    let options = Options {
        refresh: Duration::MAX,
        policy: Policy::default(),
        storage: serve::storage(&args.storage)?,
        ..Options::default()
    };
    let table = runtime.block_on(Table::open(&args.table, options))?;
    if is_to_be_enabled(&table, &runtime)? {
        output::remark(format_args!("{}\n{CONSEQUENCES}", table.source.shown));
        if !args.yes {
            match ask("Turn Managed storage on?", Answer::No) {
                Answer::Yes => {}
                Answer::No => return Err(Error::new(Kind::Invalid, "nothing was changed")),
                Answer::Nobody => {
                    let text = "there is no terminal to ask at, and nothing was changed: with --yes it is done without asking";
                    return Err(Error::new(Kind::Invalid, text));
                }
            }
        }
    }
    let enabled = runtime.block_on(table.enable_managed())?;
    let (version, changed, word) = match enabled {
        Enabled::Already(version) => (version, false, "is already on"),
        Enabled::Now(version) => (version, true, "is on"),
    };
    if args.json {
        let shown = &table.source.shown;
        output::say(
            json!({ "table": shown, "managed": true, "version": version.get(), "changed": changed }),
        );
    } else {
        output::say(format_args!(
            "{}: Managed storage {word} in version {version}",
            table.source.shown
        ));
    }
    Ok(Exit::Success)
}

/// `lancefs mount --enable-managed`: the flag is the answer, so that fstab and systemd can give it.
pub fn enable_for_mount(args: &MountArgs) -> Result<()> {
    let runtime = runtime()?;
    let table = runtime.block_on(serve::open_table(args))?;
    if is_to_be_enabled(&table, &runtime)? {
        output::remark(format_args!("{}\n{CONSEQUENCES}", table.source.shown));
    }
    if let Enabled::Now(version) = runtime.block_on(table.enable_managed())? {
        output::remark(format_args!("Managed storage is on in version {version}"));
    }
    // What still waits for a store must not keep the mount.
    runtime.shutdown_background();
    Ok(())
}

/// Whether there is something to warn of: not where it is on, or cannot be turned on.
fn is_to_be_enabled(table: &Table, runtime: &Runtime) -> Result<bool> {
    Ok(match runtime.block_on(table.managed())? {
        Managed::On => false,
        Managed::Off(off) => off.can_be_turned_on(),
    })
}

fn runtime() -> Result<Runtime> {
    Runtime::new().context(Kind::Internal, || "start the runtime".to_owned())
}
