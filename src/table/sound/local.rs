//! The files of a fragment on this machine, looked at before the crate opens them.
//!
//! A file that was looked at is known by what the disk says of it ([`Stamp`]), so a file that is
//! changed is looked at again. A missing file is the crate's to report.

use std::fs::File;
use std::num::NonZeroUsize;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use lance::Dataset;
use lance_table::format::{BasePath, DataFile, Fragment};
use lance_table::io::deletion::deletion_file_path;
use lru::LruCache;

use super::{Fields, Unsound, data, deletion};
use crate::error::{Error, IoContext as _, Kind, Result};
use crate::units;

/// How many files are known to be sound: a few MiB.
const KNOWN: usize = 65_536;
/// What is read of a data file at first, in bytes: its metadata, unless it has hundreds of columns.
const FIRST_READ: u64 = 64 << 10;

/// A file as the disk knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stamp {
    place: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    /// Of what is open, or named.
    pub fn of(meta: &std::fs::Metadata) -> Self {
        Self {
            place: (meta.dev(), meta.ino()),
            size: meta.size(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }
}

impl Stamp {
    /// When a file's own state was changed last; a time that is set by hand is no matter.
    pub fn changed(meta: &std::fs::Metadata) -> Option<SystemTime> {
        let seconds = u64::try_from(meta.ctime()).ok()?;
        let nanos = u32::try_from(meta.ctime_nsec()).ok()?;
        SystemTime::UNIX_EPOCH.checked_add(Duration::new(seconds, nanos))
    }
}

/// The files that were looked at. What a file holds is nobody's state: it is the same for all tables.
static SOUND: LazyLock<Mutex<LruCache<Stamp, ()>>> = LazyLock::new(|| {
    Mutex::new(LruCache::new(NonZeroUsize::new(KNOWN).unwrap_or(NonZeroUsize::MIN)))
});

/// Looks at the deletion file of a fragment and at the data files of some of its fields, at those that
/// are on this machine.
///
/// # Errors
/// [`Kind::Table`] for a file whose lengths cannot be.
pub fn fragment(dataset: &Dataset, fragment: &Fragment, fields: &Fields) -> Result<()> {
    for path in paths(dataset, fragment, fields).flatten() {
        let path = path.as_path();
        // Not there, or not to be read: the crate says so.
        let Ok(file) = open(path) else { continue };
        let meta = file.metadata().context(Kind::Table, || format!("{}", path.display()))?;
        let stamp = Stamp::of(&meta);
        let known = || SOUND.lock().unwrap_or_else(PoisonError::into_inner);
        if !meta.is_file() || known().get(&stamp).is_some() {
            continue;
        }
        let looked = match path.extension().and_then(|extension| extension.to_str()) {
            Some("arrow") => deletions(&file, stamp.size),
            Some("bin") => Ok(Ok(())),
            _ => ends(&file, stamp.size),
        };
        let looked = looked.context(Kind::Table, || format!("read {}", path.display()))?;
        looked.map_err(|why| {
            Error::new(Kind::Table, format!("{} cannot be: {why}", path.display()))
        })?;
        known().put(stamp, ());
    }
    Ok(())
}

/// Nothing is waited for in the place of a file, a fifo for example.
fn open(path: &Path) -> std::io::Result<File> {
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path)
}

fn deletions(file: &File, size: u64) -> std::io::Result<Result<(), Unsound>> {
    if size > deletion::LONGEST {
        return Ok(Err(format!("{size} bytes")));
    }
    let mut bytes = vec![0; units::usize_of(size)];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(deletion::arrow(&bytes))
}

fn ends(file: &File, size: u64) -> std::io::Result<Result<(), Unsound>> {
    let mut from = size.saturating_sub(FIRST_READ);
    loop {
        let mut bytes = vec![0; units::usize_of(size - from)];
        file.read_exact_at(&mut bytes, from)?;
        match data::tail(&data::Tail { bytes: &bytes, size }) {
            Ok(Some(earlier)) if earlier < from => from = earlier,
            Ok(Some(_)) => return Ok(Err("parts that are not there".to_owned())),
            Ok(None) => return Ok(Ok(())),
            Err(why) => return Ok(Err(why)),
        }
    }
}

/// The files that a fragment is read from, as they are now; `None` unless all are on this machine
/// and there.
pub fn stamps(dataset: &Dataset, fragment: &Fragment) -> Option<Vec<Stamp>> {
    let stamp = |path: Option<PathBuf>| Some(Stamp::of(&std::fs::metadata(path?).ok()?));
    paths(dataset, fragment, &Fields::All).map(stamp).collect()
}

/// The data files of some fields of a fragment, and its deletion file; `None` for one that is
/// elsewhere.
fn paths(
    dataset: &Dataset,
    fragment: &Fragment,
    fields: &Fields,
) -> impl Iterator<Item = Option<PathBuf>> {
    let data = fragment.files.iter().filter(|file| fields.are_in(file));
    let data = data.map(|file| data_file(dataset, file));
    let deletions = fragment.deletion_file.iter().map(|file| {
        let root = match file.base_id {
            None => own_root(dataset),
            Some(id) => dataset.manifest.base_paths.get(&id).and_then(|base| folder(dataset, base)),
        };
        Some(local(&deletion_file_path(&root?, fragment.id, file)))
    });
    data.chain(deletions)
}

fn data_file(dataset: &Dataset, file: &DataFile) -> Option<PathBuf> {
    let folder = match file.base_id {
        None => own_root(dataset).map(|_| dataset.data_dir())?,
        Some(id) => {
            let base = dataset.manifest.base_paths.get(&id)?;
            let root = folder(dataset, base)?;
            if base.is_dataset_root { root.join("data") } else { root }
        }
    };
    Some(local(&folder.join(file.path.as_str())))
}

/// The root of the version's own branch, if it is on this machine.
fn own_root(dataset: &Dataset) -> Option<object_store::path::Path> {
    let uri = dataset.uri();
    let is_local = uri.starts_with('/') || uri.starts_with("file://");
    is_local.then(|| dataset.branch_location().path)
}

/// The root of a base, if it is on this machine.
fn folder(dataset: &Dataset, base: &BasePath) -> Option<object_store::path::Path> {
    let is_local = base.path.starts_with('/') || base.path.starts_with("file:");
    is_local.then(|| base.extract_path(dataset.session().store_registry()).ok()).flatten()
}

fn local(path: &object_store::path::Path) -> PathBuf {
    lance_io::local::to_local_path(path).into()
}
