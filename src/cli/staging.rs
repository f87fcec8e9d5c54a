//! Whether a mount has staging, and in which folder.
//!
//! ```text
//! $XDG_STATE_HOME/lancefs/staging/<table>-<hash of its URI>      the first mount of the table
//!                                 <table>-<hash of its URI>.2    another that is there at once, …
//! ```
//!
//! Beside them is `pins/` ([`super::pins`]).
//!
//! A folder that holds batches must not be forgotten: of the folders that nobody uses, the first one
//! with batches is taken, else the first.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::args::MountArgs;
use super::mount::state_folder;
use crate::error::{Error, Kind, Result};
use crate::fs::Look;
use crate::name;
use crate::staging::spool::{Opening, Spool};
use crate::table::{Managed, Table};
use crate::units::ByteLen;

/// How many mounts of one table there can be at once on one machine.
const FOLDERS: u32 = 64;

/// Opens the staging folder of a mount; or says why nothing can be staged.
pub async fn open(
    args: &MountArgs,
    table: &Table,
    look: &Look,
    mountpoint: &Path,
) -> Result<Result<Arc<Spool>, String>> {
    if args.read_only {
        return Ok(Err("this mount is read-only: --read-only".to_owned()));
    }
    if args.at.is_some() {
        return Ok(Err("this mount shows one version and is read-only: --at".to_owned()));
    }
    match table.managed().await {
        Ok(Managed::On) => {}
        Ok(Managed::Off(reason)) => return Ok(Err(reason.to_string())),
        Err(error) => return Ok(Err(error.chain())),
    }
    let opening = Opening {
        folder: PathBuf::new(),
        limit: args.staging_limit.map(|size| ByteLen::new(size.as_u64())),
        table: table.source.shown.clone(),
        mountpoint: mountpoint.to_owned(),
        owner: (look.uid, look.gid),
    };
    let Some(above) = base(args)? else {
        return Ok(Err("there is no home folder to stage in: give --staging-dir".to_owned()));
    };
    match take(&above.join(folder_name(table)), &opening) {
        Ok(spool) => {
            spool.adopt(&table.catalog.latest(None).await?.id)?;
            Ok(Ok(spool))
        }
        // What was asked for by name and cannot be had is an error; else the table can be read.
        Err(error) if args.staging_dir.is_none() => {
            tracing::warn!(%error, "nothing can be staged");
            Ok(Err(error.chain()))
        }
        Err(error) => Err(error),
    }
}

/// The folder of the folders of all tables; `None` where there is neither a flag nor a home.
pub fn base(args: &MountArgs) -> Result<Option<PathBuf>> {
    let given = args.staging_dir.clone();
    let Some(above) = given.or_else(|| Some(state_folder()?.join("staging"))) else {
        return Ok(None);
    };
    let absolute = std::path::absolute(&above);
    absolute.map(Some).map_err(|e| Error::caused(Kind::Invalid, "--staging-dir", e))
}

/// The name of a table's folder: its own, for people, and what tells it from others of that name.
pub fn folder_name(table: &Table) -> String {
    let uri = &table.source.shown;
    let last = uri.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let own = last.strip_suffix(".lance").unwrap_or(last);
    name::fit(&name::escape(own), &format!("-{}", name::short_hash(uri)))
}

/// Takes the first folder that nobody uses: of those that this mountpoint used before, then of those
/// that hold batches, then of all.
fn take(first: &Path, opening: &Opening) -> Result<Arc<Spool>> {
    let numbered = |number: u32| {
        let mut name = first.as_os_str().to_owned();
        if number > 1 {
            name.push(format!(".{number}"));
        }
        PathBuf::from(name)
    };
    let mut folders: Vec<PathBuf> = (1..=FOLDERS).map(numbered).collect();
    // Stable: those of one kind stay in their order.
    folders.sort_by_cached_key(|folder| {
        let is_ours = Spool::was_used_at(folder, &opening.mountpoint);
        (!is_ours, !Spool::has_batches(folder))
    });
    let mut used = None;
    for folder in folders {
        match Spool::open(&Opening { folder, ..opening.clone() }) {
            Err(error) if error.kind() == Kind::Busy => used = Some(error),
            opened => return opened,
        }
    }
    Err(used.unwrap_or_else(|| Error::new(Kind::Busy, "every staging folder is used")))
}
