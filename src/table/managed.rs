//! Whether a table keeps payloads as Managed objects, and turning that on (spec, "Capability and
//! Compatibility").
//!
//! ```text
//! schema metadata lance.blob.managed   "true" asks for it; absent or "false" does not; else an error
//! reader_feature_flags & 16384  ┐      set by the first commit with "true", and never cleared;
//! writer_feature_flags & 16384  ┘      one without the other is a damaged manifest
//! ```
//!
//! 1. Only the two together make payloads Managed: the bits stay when somebody takes the opt-in away,
//!    and a client older than Lance 14 can write the metadata without the bits.
//! 2. The format that a manifest names is the one that new files have unless a writer says otherwise;
//!    old files keep theirs. What takes Managed values is a Blob v2 column, and a file of 2.2 or
//!    newer makes a legacy column one, in the same manifest (lance 14.0.2,
//!    `LT:transaction/manifest_build.rs:1722`): the columns decide, and new files are of the first
//!    format that holds them ([`format_of_new_files`]).
//! 3. Turning it on cannot be undone, and old clients are locked out: what that means is said in one
//!    place ([`CONSEQUENCES`]), before it is done.

use std::fmt;

use lance::Dataset;
use lance_file::version::ConcreteFileVersion;
use lance_table::feature_flags::{
    FLAG_MANAGED_BLOBS, MANAGED_BLOBS_META_KEY, managed_blobs_enabled,
    validate_paired_feature_flags,
};

use super::schema::Layout;
use super::{Snapshot, Table, fault};
use crate::error::{Error, Kind, Result};
use crate::units::Version;

/// What people must know before Managed storage is turned on.
pub const CONSEQUENCES: &str = "\
Managed storage keeps payloads in objects of their own (_blobs/<uuid>.blob), which rewrites of the table leave where they are.
Turning it on makes a new version and changes no data, but it cannot be undone:
  - Clients older than Lance 14 cannot open the table from then on: LanceDB 0.40, for one, says
    that it is written with flags it does not know (16384).
  - Before that, stop or upgrade every job that cleans up or compacts the table. An old one that
    has it open, or works on an older version, can delete payloads that newer versions need.";

/// Whether a version's payloads can be Managed objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Managed {
    /// They can, and new ones are.
    On,
    /// They cannot.
    Off(Off),
}

/// Why a version has no Managed storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Off {
    /// Nobody asked for it yet.
    NotAsked,
    /// This Blob column has the layout of before Blob v2, as the data storage format, which is this
    /// one, has no other.
    Format(String, String),
    /// There is no Blob column.
    NoBlobs,
    /// This Blob column has the layout of before Blob v2.
    Legacy(String),
    /// The table's own folder cannot be written to, for this reason.
    Folder(String),
    /// The table's store, by its scheme, cannot make a version so that no other is lost: the crate
    /// commits to it without a condition (lance 14.0.2, `LT:io/commit.rs:1261`).
    Store(String),
}

/// What turning it on did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enabled {
    /// It was on in this version already; nothing was written.
    Already(Version),
    /// It is on since this version, which was just made.
    Now(Version),
}

impl Managed {
    /// What a version says.
    ///
    /// # Errors
    /// [`Kind::Table`] where the metadata is neither "true" nor "false", or one of the two feature
    /// bits is set without the other.
    pub fn of(snapshot: &Snapshot) -> Result<Self> {
        let manifest = &snapshot.dataset.manifest;
        let damaged = |e| {
            let what = format!("version {} is damaged", snapshot.id.version);
            Error::caused(Kind::Table, what, e)
        };
        validate_paired_feature_flags(manifest).map_err(damaged)?;
        let asked = managed_blobs_enabled(&manifest.schema).map_err(damaged)?;
        let format = manifest.data_storage_format.lance_file_format();
        let leaves = &snapshot.leaves.fields;
        // Files of the first format cannot have others beside them (lance 14.0.2,
        // `L:dataset/versions/mod.rs:65`).
        let is_first = format == ConcreteFileVersion::V1;
        let legacy = leaves.iter().find(|leaf| is_first || leaf.layout == Layout::Legacy);
        let active = manifest.has_managed_blobs();
        if let Some(scheme) = snapshot.locator.source.unsafe_scheme() {
            return Ok(Self::Off(Off::Store(scheme.to_owned())));
        }
        Ok(if let Some(leaf) = legacy {
            let column = leaf.display.clone();
            Self::Off(if holds_blob_v2(format) {
                Off::Legacy(column)
            } else {
                Off::Format(column, format.to_manifest_string().to_owned())
            })
        } else if leaves.is_empty() {
            Self::Off(Off::NoBlobs)
        } else if asked && active {
            Self::On
        } else {
            Self::Off(Off::NotAsked)
        })
    }
}

impl Off {
    /// Whether [`Table::enable_managed`] can help.
    pub fn can_be_turned_on(&self) -> bool {
        match self {
            Self::NotAsked => true,
            Self::Format(..)
            | Self::NoBlobs
            | Self::Legacy(_)
            | Self::Folder(_)
            | Self::Store(_) => false,
        }
    }
}

impl fmt::Display for Off {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAsked => f.write_str(
                "the table has not opted in to Managed storage: lancefs table enable-managed <TABLE> says what that means and does it",
            ),
            Self::Format(column, format) => write!(
                f,
                "the Blob column {column} is stored in the format {format}, and Managed storage needs 2.2 or newer: append rows with data_storage_version=\"2.2\", or rewrite the table into a new one"
            ),
            Self::Folder(why) => f.write_str(why),
            Self::NoBlobs => f.write_str("the table has no Blob column"),
            Self::Store(scheme) => write!(
                f,
                "in {scheme}:// the Lance library commits without a lock, so that one writer can undo another: write the table elsewhere and upload it"
            ),
            Self::Legacy(column) => write!(
                f,
                "the Blob column {column} has the layout of before Blob v2: rewrite the table into a new one"
            ),
        }
    }
}

impl Table {
    /// What the newest version of main says.
    ///
    /// # Errors
    /// As [`Managed::of`], and where the version cannot be opened.
    pub async fn managed(&self) -> Result<Managed> {
        if let Some(why) = self.source.unwritable() {
            return Ok(Managed::Off(Off::Folder(why)));
        }
        let entry = self.catalog.latest(None).await?;
        Managed::of(&*self.snapshot(self.numbers.slot(&entry.id)).await?)
    }

    /// Turns Managed storage on, in a new version of main. Others may commit meanwhile.
    ///
    /// # Errors
    /// [`Kind::ReadOnly`] where its folder cannot be written to; [`Kind::Invalid`] where the table
    /// cannot have it, with the reason; as [`Managed::of`]; and
    /// where the store does not let the version be written.
    pub async fn enable_managed(&self) -> Result<Enabled> {
        if let Some(why) = self.source.unwritable() {
            return Err(Error::new(Kind::ReadOnly, why));
        }
        let entry = self.catalog.latest(None).await?;
        let snapshot = self.snapshot(self.numbers.slot(&entry.id)).await?;
        match Managed::of(&snapshot)? {
            Managed::On => return Ok(Enabled::Already(entry.id.version)),
            Managed::Off(off) if !off.can_be_turned_on() => {
                return Err(Error::new(Kind::Invalid, format!("{}: {off}", self.source.shown)));
            }
            Managed::Off(_) => {}
        }
        let what = || format!("turn Managed storage on in {}", self.source.shown);
        let mut dataset = (*snapshot.dataset).clone();
        let update = dataset.update_schema_metadata([(MANAGED_BLOBS_META_KEY, "true")]);
        update.await.map_err(|e| fault::of(what(), e))?;
        let manifest = &dataset.manifest;
        // The crate sets both bits with the metadata; a version without them would be read by old
        // clients as if nothing had been asked for.
        if (manifest.reader_feature_flags & manifest.writer_feature_flags) & FLAG_MANAGED_BLOBS == 0
        {
            let text = format!("{}: version {} lacks its feature flags", what(), manifest.version);
            return Err(Error::new(Kind::Internal, text));
        }
        let version = Version::new(manifest.version);
        tracing::info!(%version, "turned Managed storage on");
        Ok(Enabled::Now(version))
    }
}

/// The format of files that are added to a table: its own, or the first one that holds Blob v2.
pub fn format_of_new_files(dataset: &Dataset) -> ConcreteFileVersion {
    let own = dataset.manifest.data_storage_format.lance_file_format();
    if holds_blob_v2(own) { own } else { ConcreteFileVersion::V2_2 }
}

fn holds_blob_v2(format: ConcreteFileVersion) -> bool {
    use ConcreteFileVersion::{V1, V2_0, V2_1, V2_2, V2_3};
    match format {
        V1 | V2_0 | V2_1 => false,
        V2_2 | V2_3 => true,
    }
}
