//! The tag of `--pin`, from before it is made until it is certain that it is gone.
//!
//! ```text
//! <staging>/pins/<table>-<hash of its URI>/<tag>   "<host>:<mountpoint>", locked by the mount while it lives
//! ```
//!
//! 1. A process may die, or its store may hang when it ends: the tag is written down before it is
//!    made, and the next mount of the table on this machine takes it away ([`Pins::take_back`]).
//! 2. Another mount's tag must stay: its file is locked for as long as that mount lives. A mount
//!    that keeps its files elsewhere may have the tag too, as its name is that of the mountpoint:
//!    where something is mounted there, the tag stays.
//! 3. The end of a mount must not wait for a store that hangs: [`ENDING`].

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;

use super::args::MountArgs;
use super::staging;
use crate::error::{Error, IoContext as _, Kind, Result};
use crate::fuse::mount;
use crate::private::Folder;
use crate::table::{Pin, Table};

const PINS: &str = "pins";
/// How long the end of a mount waits for its tag to be taken away: less than `lancefs unmount` waits
/// for the daemon.
const ENDING: Duration = Duration::from_secs(5);

/// The tags that are written down for one table.
pub struct Pins {
    folder: Folder,
    host: String,
    mountpoint: PathBuf,
}

/// A version that this mount has pinned.
pub struct Pinned {
    pin: Pin,
    /// Held locked.
    _record: File,
}

impl Pins {
    /// Those of a table; `None` where there is no folder to keep them in, or none of them and none is
    /// wanted.
    pub fn of(args: &MountArgs, table: &Table, mountpoint: &Path) -> Result<Option<Self>> {
        let Some(pins) = staging::base(args)?.map(|above| above.join(PINS)) else {
            return Ok(None);
        };
        if !args.pin && std::fs::symlink_metadata(&pins).is_err() {
            return Ok(None);
        }
        let folder = Folder::make(&pins)?.below(&staging::folder_name(table))?;
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Ok(Some(Self { folder, host, mountpoint: mountpoint.to_owned() }))
    }

    /// Pins the newest version.
    ///
    /// # Errors
    /// Where it cannot be written down, or the tag cannot be made.
    pub async fn pin(&self, table: &Table, patience: Duration) -> Result<Pinned> {
        let pin = Pin::of(&self.place());
        let mut record = self.folder.open(&pin.tag, OFlags::CREATE | OFlags::RDWR)?;
        let what = || format!("write {} down", pin.tag);
        record.try_lock().map_err(|e| Error::caused(Kind::Busy, what(), e))?;
        record.set_len(0).context(Kind::Internal, what)?;
        record.write_all(self.place().as_bytes()).context(Kind::Internal, what)?;
        record.sync_all().context(Kind::Internal, what)?;
        self.folder.sync()?;
        let late = |_| Error::new(Kind::Timeout, format!("tag {} was not written", pin.tag));
        tokio::time::timeout(patience, table.pin(&pin)).await.map_err(late)??;
        Ok(Pinned { pin, _record: record })
    }

    /// Takes a pin away at the end of the mount; what cannot be is left to the next one.
    pub async fn unpin(&self, table: &Table, pinned: Pinned) {
        let tag = &pinned.pin.tag;
        let why = match tokio::time::timeout(ENDING, table.unpin(&pinned.pin)).await {
            Ok(Ok(())) => return self.forget(tag),
            Ok(Err(error)) => error.chain(),
            Err(_) => format!("the store did not answer within {ENDING:?}"),
        };
        tracing::warn!(tag, why, "the pin stays; the next mount of the table takes its tag away");
    }

    /// Takes away the tags of mounts of this machine that have ended without doing so.
    pub async fn take_back(&self, table: &Table) {
        for tag in self.folder.names().unwrap_or_default() {
            if let Err(error) = self.take_back_one(table, &tag).await {
                tracing::warn!(tag, %error, "the pin of an ended mount stays");
            }
        }
    }

    async fn take_back_one(&self, table: &Table, tag: &str) -> Result<()> {
        let mut record = self.folder.open(tag, OFlags::RDWR)?;
        // Who holds it lives.
        if record.try_lock().is_err() {
            return Ok(());
        }
        let mut place = String::new();
        record
            .read_to_string(&mut place)
            .context(Kind::Internal, || format!("read who has made {tag}"))?;
        let is_ours = place.is_empty() || Pin::of(&place).tag == tag;
        let there = place.strip_prefix(&format!("{}:", self.host)).map(Path::new);
        let is_elsewhere = !place.is_empty() && there.is_none();
        if !is_ours || is_elsewhere || there.is_some_and(|there| self.is_used(there)) {
            return Ok(());
        }
        // A process that died before it has written whose it is has not made the tag either.
        if !place.is_empty() {
            table.unpin(&Pin::of(&place)).await?;
            tracing::info!(tag, place, "took away the pin of a mount that has ended");
        }
        self.forget(tag);
        Ok(())
    }

    /// Whether another mount than this one is there now.
    fn is_used(&self, there: &Path) -> bool {
        let is_there = |mount: &mount::Mounted| mount.mountpoint == there;
        there != self.mountpoint
            && mount::mounts().map_or(true, |mounts| mounts.iter().any(is_there))
    }

    fn forget(&self, tag: &str) {
        if let Err(error) = self.folder.remove(tag) {
            tracing::warn!(tag, %error, "the file about a pin stays");
        }
    }

    fn place(&self) -> String {
        format!("{}:{}", self.host, self.mountpoint.display())
    }
}
