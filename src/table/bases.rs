//! Which bases of a version are followed, and beneath what their files are opened.
//!
//! A manifest's bases are a claim of whoever wrote the table. One is trusted by itself
//!
//! ```text
//! table        base
//! in a bucket  in the same bucket, at the same endpoint
//! local        beneath the table's own folder
//! local        the root of another table whose folder has the same owner (a shallow clone's source)
//! ```
//!
//! and every other where `--allow-external` covers it. Difficulties:
//!
//! 1. Nothing may be asked of a store that is not trusted, nor a store opened (that alone asks for a
//!    bucket's region): [`Locator::ground`] comes first, for every object.
//! 2. `base_<id>.` storage options do not make a base trusted: which place has an id is the table's
//!    word, and may be another tomorrow. They are used where the place is allowed, and a base that
//!    they give another endpoint is in another store.
//! 3. The crate opens data files and deletion files by itself, by their paths. They are looked at
//!    before each scan ([`Locator::scan`]), and a file that is refused takes only its columns with
//!    it. Who can write to the folder may put a link there after the look, before the crate opens
//!    the file: the crate then decodes what the link leads to. It shows it only where that is a
//!    Lance file with the same columns; payloads are opened by us, and have no such moment.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lance::Dataset;
use lance_core::datatypes::Schema;
use lance_io::local::to_local_path;
use lance_table::format::{BasePath, DataFile, Fragment, ROW_ID_FIELD_ID};
use lance_table::io::deletion::deletion_file_path;
use object_store::path::Path as StorePath;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};

use super::decoder::Scannable;
use super::locate::Locator;
use super::scan::{self, Run, Scanned};
use super::snapshot::Snapshot;
use super::source::is_local;
use crate::error::{Error, Kind, Result};
use crate::store::{Folder, LocalPlace};
use crate::units::RowIndex;

/// Beneath what files are opened.
#[derive(Clone, Debug)]
pub(super) enum Ground {
    /// A store, whose keys lead nowhere else.
    Store,
    /// A folder of this machine.
    Folder(Folder),
}

impl Locator {
    /// What the files of a base are opened beneath, where it is trusted or allowed; `None` is the
    /// table itself.
    ///
    /// # Errors
    /// [`Kind::Denied`] with the flag that would allow it, [`Kind::Descriptor`] for a base that is
    /// not there or that no store has.
    pub(super) fn ground(&self, base: Option<u32>) -> Result<Ground> {
        match base {
            Some(id) => self.ground_of(self.base(id)?),
            None => Ok(self.source.folder().map_or(Ground::Store, Ground::Folder)),
        }
    }

    /// Whether a base is trusted or allowed.
    pub(super) fn trusts(&self, base: &BasePath) -> bool {
        self.ground_of(base).is_ok()
    }

    pub(super) fn ground_of(&self, base: &BasePath) -> Result<Ground> {
        let (store, path) =
            self.source.locate(&base.path).map_err(|e| e.of_kind(Kind::Descriptor))?;
        let local = is_local(&store).then(|| PathBuf::from(to_local_path(&path)));
        let trusted = match (self.source.folder(), &local) {
            (Some(own), Some(path)) => {
                beneath(&own, path).or_else(|| other_table(&own, path, base))
            }
            (None, None) if self.is_own_store(base, &store)? => Some(Ground::Store),
            _ => None,
        };
        if let Some(trusted) = trusted {
            return Ok(trusted);
        }
        self.policy.permit_base(base.id, &base.path)?;
        Ok(local.map_or(Ground::Store, |path| Ground::Folder(Folder::named(path))))
    }

    /// Whether a base's store is the table's own bucket, at the same endpoint.
    fn is_own_store(&self, base: &BasePath, store: &str) -> Result<bool> {
        let (own, _) = self.source.locate(&self.source.uri)?;
        Ok(own == store && self.stores.get(&None) == self.stores.get(&Some(base.id)))
    }

    /// Scans columns, without opening a file that may not be: see [`scan::prefix`].
    ///
    /// # Errors
    /// [`Kind::Denied`] where the file that says which rows are deleted may not be opened, and as
    /// [`scan::prefix`].
    pub(super) async fn scan(
        &self,
        table: &Scannable,
        columns: &[Schema],
        run: Run,
        most: u64,
    ) -> Result<Scanned> {
        let Some(fragment) = self.dataset.manifest.fragments.get(run.fragment) else {
            return scan::prefix(table, columns, run, most).await;
        };
        self.check_rows(fragment)?;
        let refused: Vec<_> = columns.iter().map(|c| self.refusal(fragment, c)).collect();
        let open = columns.iter().zip(&refused).filter(|(_, refused)| refused.is_none());
        let open: Vec<Schema> = open.map(|(column, _)| column.clone()).collect();
        let mut scanned = scan::prefix(table, &open, run, most).await?;
        let mut read = std::mem::take(&mut scanned.columns).into_iter();
        for refused in refused {
            scanned.columns.extend(refused.map_or_else(|| read.next(), |error| Some(Err(error))));
        }
        Ok(scanned)
    }

    /// Refuses a fragment whose rows cannot be known without a file that may not be opened.
    ///
    /// # Errors
    /// [`Kind::Denied`] with the flag that would allow it.
    pub(super) fn check_rows(&self, fragment: &Fragment) -> Result<()> {
        if let Some(file) = &fragment.deletion_file {
            let root = self.base_root(file.base_id)?;
            self.check(file.base_id, &deletion_file_path(&root, fragment.id, file))?;
        }
        // Where the manifest does not say how many rows there are, a data file is asked.
        let is_asked = |file: &&DataFile| {
            fragment.physical_rows.is_none() || file.fields.contains(&ROW_ID_FIELD_ID)
        };
        fragment.files.iter().filter(is_asked).try_for_each(|file| self.check_file(file))
    }

    /// Refuses a fragment with any file that may not be opened.
    ///
    /// # Errors
    /// [`Kind::Denied`] with the flag that would allow it.
    pub(super) fn check_all(&self, fragment: &Fragment) -> Result<()> {
        self.check_rows(fragment)?;
        fragment.files.iter().try_for_each(|file| self.check_file(file))
    }

    /// Why a column cannot be read from a fragment: a file that has some of it may not be opened.
    fn refusal(&self, fragment: &Fragment, column: &Schema) -> Option<Error> {
        // The crate opens the files of every field beneath a column (`L:dataset/fragment.rs:1616`).
        let whole = column.fields.iter().filter_map(|f| self.dataset.schema().field_by_id(f.id));
        let whole = Schema { fields: whole.cloned().collect(), metadata: HashMap::new() };
        let fields = whole.field_ids();
        let has_some = |file: &&DataFile| file.fields.iter().any(|id| fields.contains(id));
        fragment.files.iter().filter(has_some).find_map(|file| self.check_file(file).err())
    }

    fn check_file(&self, file: &DataFile) -> Result<()> {
        self.check(file.base_id, &self.data_directory(file)?.join(file.path.as_str()))
    }

    fn check(&self, base: Option<u32>, path: &StorePath) -> Result<()> {
        match self.ground(base)? {
            Ground::Store => Ok(()),
            Ground::Folder(folder) => {
                LocalPlace::within(folder, to_local_path(path), self.policy.local()).check()
            }
        }
    }
}

impl Snapshot {
    /// The version as new files of it are written: without the bases that are not followed, whose
    /// stores the crate opens otherwise, to compare them with references (lance 14.0.2,
    /// `L:dataset/write.rs:1652`).
    pub(super) fn to_write(&self) -> Arc<Dataset> {
        let manifest = &self.dataset.manifest;
        if manifest.base_paths.values().all(|base| self.locator.trusts(base)) {
            return self.dataset.clone();
        }
        let mut trimmed = manifest.as_ref().clone();
        trimmed.base_paths.retain(|_, base| self.locator.trusts(base));
        let mut dataset = self.dataset.as_ref().clone();
        dataset.manifest = Arc::new(trimmed);
        Arc::new(dataset)
    }

    /// Refuses fragments with a file that may not be opened: their values are read where some of
    /// them are replaced.
    ///
    /// # Errors
    /// [`Kind::Denied`] with the flag that would allow it.
    pub(super) fn check_fragments<'a>(&self, ids: impl Iterator<Item = &'a u64>) -> Result<()> {
        let ids: Vec<u64> = ids.copied().collect();
        let fragments = self.dataset.manifest.fragments.iter();
        let mut touched = fragments.filter(|fragment| ids.contains(&fragment.id));
        touched.try_for_each(|fragment| self.locator.check_all(fragment))
    }

    /// Files of columns without Blobs that may not be opened, one for each fragment that has such,
    /// with the fragment's first row.
    pub fn refused(&self) -> impl Iterator<Item = (RowIndex, Error)> + '_ {
        let plain = self.plain_columns();
        let fragments = self.dataset.manifest.fragments.iter().enumerate();
        fragments.filter_map(move |(at, fragment)| {
            let first = self.rows.first_of(at);
            self.rows.place(first).filter(|place| place.fragment == at)?;
            let refusal = plain.iter().find_map(|column| self.locator.refusal(fragment, column))?;
            Some((first, refusal))
        })
    }
}

/// The ground of a base beneath the table's own folder, under whichever name.
fn beneath(own: &Folder, base: &Path) -> Option<Ground> {
    if base.starts_with(own.path()) {
        return Some(Ground::Folder(own.clone()));
    }
    let (real, real_own) = (base.canonicalize().ok()?, own.path().canonicalize().ok()?);
    let below = own.path().join(real.strip_prefix(real_own).ok()?);
    Some(Ground::Folder(Folder::held(base, own.beneath(&below).ok()?)))
}

/// The ground of a base that is the root of another table of the same owner. What was looked at is
/// held, so that nothing else can take its name before it is used.
fn other_table(own: &Folder, base: &Path, claim: &BasePath) -> Option<Ground> {
    if !claim.is_dataset_root {
        return None;
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(base, flags, Mode::empty()).ok()?;
    let versions = rustix::fs::statat(&folder, "_versions", AtFlags::SYMLINK_NOFOLLOW).ok()?;
    let owner = rustix::fs::stat(own.path()).ok()?.st_uid;
    let is_table = FileType::from_raw_mode(versions.st_mode) == FileType::Directory;
    // In a folder to which everybody can write, such as /tmp, anybody can make one.
    let is_owned = rustix::fs::fstat(&folder).ok()?.st_uid == owner && versions.st_uid == owner;
    (is_table && is_owned).then(|| Ground::Folder(Folder::held(base, folder)))
}
