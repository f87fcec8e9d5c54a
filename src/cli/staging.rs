//! Whether a mount has staging, and in which folder.
//!
//! ```text
//! $XDG_STATE_HOME/lancefs/staging/<table>-<hash of its URI>      the first mount of the table
//!                                 <table>-<hash of its URI>.2    another that is there at once, …
//! ```
//!
//! Beside them is `pins/` ([`super::pins`]).
//!
//! A store that does not tell while the mount begins whether the table takes something decides nothing: it
//! is asked again ([`look_again`]).
//!
//! A folder that holds batches must not be forgotten: of the folders that nobody uses, the first one
//! with batches is taken, else the first.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use url::Url;

use super::args::MountArgs;
use super::mount::state_folder;
use crate::error::{Error, Kind, Result};
use crate::fs::{Fs, Look, Staging, Writable};
use crate::name;
use crate::publish::{Options, Publisher};
use crate::staging::spool::{Opening, Spool};
use crate::table::{Managed, Table};
use crate::units::ByteLen;

/// How often, at most, it is looked at again whether something can be staged.
const SHORTEST: Duration = Duration::from_secs(1);
/// How many mounts of one table there can be at once on one machine.
const FOLDERS: u32 = 64;

/// Why nothing can be staged.
#[derive(Clone, Debug)]
pub struct Off {
    /// For people.
    pub reason: String,
    /// Whether that is only that the store has not told.
    pub is_unknown: bool,
}

impl Off {
    fn known(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), is_unknown: false }
    }
}

/// Opens the staging folder of a mount; or says why nothing can be staged.
pub async fn open(
    args: &MountArgs,
    table: &Table,
    look: &Look,
    mountpoint: &Path,
) -> Result<Result<Arc<Spool>, Off>> {
    if args.read_only {
        return Ok(Err(Off::known("this mount is read-only: --read-only")));
    }
    if args.at.is_some() {
        return Ok(Err(Off::known("this mount shows one version and is read-only: --at")));
    }
    match table.managed().await {
        Ok(Managed::On) => {}
        Ok(Managed::Off(reason)) => return Ok(Err(Off::known(reason.to_string()))),
        Err(error) => {
            let reason = format!("{}; it is looked at again", error.chain());
            return Ok(Err(Off { reason, is_unknown: true }));
        }
    }
    let opening = Opening {
        folder: PathBuf::new(),
        limit: args.staging_limit.map(|size| ByteLen::new(size.as_u64())),
        table: table.source.shown.clone(),
        mountpoint: mountpoint.to_owned(),
        owner: (look.uid, look.gid),
    };
    let Some(above) = base(args)? else {
        return Ok(Err(Off::known("there is no home folder to stage in: give --staging-dir")));
    };
    match take(&folders(&above, table), &opening) {
        Ok(spool) => {
            spool.adopt(&table.catalog.latest(None).await?.id)?;
            Ok(Ok(spool))
        }
        // What was asked for by name and cannot be had is an error; else the table can be read.
        Err(error) if args.staging_dir.is_none() => {
            tracing::warn!(%error, "nothing can be staged");
            Ok(Err(Off::known(error.chain())))
        }
        Err(error) => Err(error),
    }
}

/// Publishes the batches of a spool from now on.
///
/// # Errors
/// As [`Publisher::new`].
pub fn begin(table: &Arc<Table>, spool: Arc<Spool>, options: Options) -> Result<Staging> {
    let publisher = Arc::new(Publisher::new(table.clone(), spool.clone(), options)?);
    tokio::spawn(publisher.clone().run());
    Ok(Staging::On(Writable { spool, commit: publisher }))
}

/// Looks again at what the store has not told, until it tells.
pub async fn look_again(args: MountArgs, fs: Arc<Fs>, mountpoint: PathBuf, options: Options) {
    let table = fs.table();
    let pause = table.catalog.refresh().max(SHORTEST);
    loop {
        tokio::time::sleep(pause).await;
        let opened = open(&args, table, fs.look(), &mountpoint).await;
        let begun = match opened {
            Ok(Ok(spool)) => begin(table, spool, options),
            Ok(Err(off)) if off.is_unknown => continue,
            Ok(Err(off)) => Ok(Staging::Off(off.reason)),
            Err(error) => Err(error),
        };
        let staging = begun.unwrap_or_else(|error| Staging::Off(error.chain()));
        tracing::info!(is_on = matches!(staging, Staging::On(_)), "the store has told of staging");
        return fs.decide(staging);
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
    name_of(&canonical(&table.source.shown))
}

fn name_of(uri: &str) -> String {
    let last = uri.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let own = last.strip_suffix(".lance").unwrap_or(last);
    name::fit(&name::escape(own), &format!("-{}", name::short_hash(uri)))
}

/// A URI by which a table is known whatever it was called by: of a table of this machine, its path without
/// links.
fn canonical(uri: &str) -> String {
    let local = match Url::parse(uri) {
        Ok(parsed) if parsed.scheme() == "file" => parsed.to_file_path().ok(),
        Ok(_) => None,
        Err(_) => Some(PathBuf::from(uri)),
    };
    let path = local.and_then(|path| path.canonicalize().ok());
    path.and_then(|path| Some(path.to_str()?.to_owned())).unwrap_or_else(|| uri.to_owned())
}

/// The folders that mounts of a table use, also those of a name that it was called by before.
fn folders(above: &Path, table: &Table) -> Vec<PathBuf> {
    let uri = &table.source.shown;
    let known = canonical(uri);
    let mut names = vec![name_of(&known)];
    names.extend((known != *uri).then(|| name_of(uri)));
    let numbered = |name: &String, number: u32| match number {
        1 => above.join(name),
        _ => above.join(format!("{name}.{number}")),
    };
    let all = |name| (1..=FOLDERS).map(move |number| numbered(name, number));
    names.iter().flat_map(all).collect()
}

/// What whoever mounts should know of batches of the table that this mount does not show.
pub fn elsewhere(args: &MountArgs, table: &Table, ours: &Path) -> Option<String> {
    let above = base(args).ok()??;
    let others = folders(&above, table).into_iter().filter(|folder| folder != ours);
    let others: Vec<_> = others.filter(|folder| Spool::has_batches(folder)).collect();
    let shown: Vec<_> = others.iter().map(|folder| folder.display().to_string()).collect();
    (!shown.is_empty()).then(|| {
        format!(
            "other batches of this table are in {}: the mount that they were saved in shows them, or, \
             once that has ended, the next one at its mountpoint",
            shown.join(", ")
        )
    })
}

/// Takes the first folder that nobody uses: of those that this mountpoint used before, then of those
/// that hold batches, then of all.
fn take(all: &[PathBuf], opening: &Opening) -> Result<Arc<Spool>> {
    let mut folders = all.to_vec();
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
