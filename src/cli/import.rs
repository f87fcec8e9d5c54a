//! `lancefs import`.

use serde_json::json;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use super::args::ImportArgs;
use super::{Exit, output, serve};
use crate::error::{Error, IoContext as _, Kind, Result};
use crate::maintain::import::{Import, Storage};

/// Runs the command.
pub fn run(args: &ImportArgs) -> Result<Exit> {
    let runtime = Runtime::new().context(Kind::Internal, || "start the runtime".to_owned())?;
    let storage = if args.managed { Storage::Managed } else { Storage::ByTable };
    let import = Import::plan(&args.files, &args.table, storage, serve::storage(&args.storage)?)?;
    let bar =
        output::bar(import.bytes(), "{bar:40} {bytes}/{total_bytes} {bytes_per_sec}, {eta} left");
    let done = runtime.block_on(async {
        let stop = |kind| signal(kind).context(Kind::Internal, || "listen for signals".to_owned());
        let (mut terminate, mut interrupt) =
            (stop(SignalKind::terminate())?, stop(SignalKind::interrupt())?);
        let written = tokio::select! {
            written = import.run(|bytes| bar.inc(bytes)) => Some(written),
            _ = terminate.recv() => None,
            _ = interrupt.recv() => None,
        };
        written
            .unwrap_or_else(|| Err(Error::new(Kind::Invalid, "interrupted: nothing was imported")))
    });
    bar.finish_and_clear();
    // Writers that were interrupted end with their runtime, before their files are taken away.
    drop(runtime);
    if done.is_err() {
        import.undo();
    }
    let version = done?;
    if args.json {
        output::say(
            json!({ "table": import.table(), "version": version, "rows": import.rows(), "bytes": import.bytes() }),
        );
    } else {
        output::say(format_args!(
            "{}: version {version}, {} rows, {} bytes",
            import.table(),
            import.rows(),
            import.bytes()
        ));
    }
    Ok(Exit::Success)
}
