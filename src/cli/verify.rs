//! `lancefs verify`.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::args::VerifyArgs;
use super::{Exit, output, serve};
use crate::error::{IoContext as _, Kind, Result};
use crate::maintain::verify::{Fault, Scope, verify};
use crate::store::Settings;
use crate::table::{Options, Table};

/// Runs the command.
pub fn run(args: &VerifyArgs) -> Result<Exit> {
    let runtime = Runtime::new().context(Kind::Internal, || "start the runtime".to_owned())?;
    let options = Options {
        refresh: Duration::MAX,
        policy: serve::policy(&args.policy)?,
        storage: serve::storage(&args.storage)?,
        at: args.at.clone(),
        reading: Settings::default(),
    };
    let scope = if args.columns { Scope::ValuesAndColumns } else { Scope::Values };
    let (bar, mut faults) = (output::bar(0, "{bar:40} {pos}/{len} rows, {eta} left"), Vec::new());
    let summary = runtime.block_on(async {
        let table = Table::open(&args.table, options).await?;
        let progress = |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        };
        let found = |fault: Fault| {
            if !args.json {
                bar.suspend(|| output::say(format_args!("{fault}")));
            }
            faults.push(fault);
        };
        verify(&table, scope, progress, found).await
    });
    bar.finish_and_clear();
    let summary = summary?;
    if args.json {
        let list: Vec<_> = faults.iter().map(as_json).collect();
        output::say(format_args!(
            "{:#}",
            json!({ "version": summary.version, "rows": summary.rows, "values": summary.values, "objects": summary.objects, "bytes": summary.bytes, "faults": list })
        ));
    } else {
        output::say(format_args!(
            "version {}: {} rows, {} values in {} objects, {} bytes: {} faults",
            summary.version,
            summary.rows,
            summary.values,
            summary.objects,
            summary.bytes,
            faults.len()
        ));
    }
    Ok(if faults.is_empty() { Exit::Success } else { Exit::Faults })
}

fn as_json(fault: &Fault) -> Value {
    match fault {
        Fault::Value { row, file, error } => json!({ "row": row, "file": file, "error": error }),
        Fault::Column { fragment, first, rows, column, error } => json!({
            "fragment": fragment, "first_row": first, "rows": rows, "column": column, "error": error
        }),
    }
}
