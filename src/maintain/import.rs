//! Files into rows: one row for each file, in one new version.
//!
//! ```text
//! path utf8       as it was found: the argument, and what is beneath it
//! name utf8       the last component
//! size int64      bytes
//! mtime timestamp microseconds, UTC
//! mime_type utf8  by content and name ([`media::type_of`])
//! content blob    the bytes
//! ```
//!
//! 1. A file may be larger than memory: rows carry the files' URIs, and the crate's ingest mode
//!    copies each file in parts (lance 14.0.2, `L:dataset/blob/write.rs:1164`).
//! 2. An interrupted import leaves the table as it was: the version is published at the end, by one
//!    manifest; the folder of a table that was to be made is taken away ([`Import::undo`]).

use std::fs::Metadata;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arrow_array::types::{Int64Type, TimestampMicrosecondType};
use arrow_array::{ArrayRef, PrimitiveArray, RecordBatch, RecordBatchIterator, StringArray};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef, TimeUnit};
use lance::blob::{BlobArrayBuilder, blob_field};
use lance::dataset::{Dataset, ExternalBlobMode, WriteMode, WriteParams};
use lance_table::feature_flags::MANAGED_BLOBS_META_KEY;
use url::Url;

use crate::error::{Error, IoContext as _, Kind, Result};
use crate::media;
use crate::table::{self, Options, Table};
use crate::units;

/// Rows in a batch. Small values are held in memory until their batch is written: at up to 64 KiB
/// each that is 16 MiB.
const BATCH_ROWS: usize = 256;
/// The format of new tables: the first one that holds Blob v2.
const STORAGE_VERSION: &str = "2.2";

/// How the payloads of a new table are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// As Managed objects.
    Managed,
    /// As the table says; a new table does not ask for Managed storage.
    ByTable,
}

/// A file that becomes a row.
#[derive(Clone, Debug)]
struct Source {
    path: PathBuf,
    shown: String,
    size: u64,
    mtime_micros: i64,
}

/// A planned import.
pub struct Import {
    table: String,
    storage: Storage,
    options: table::Storage,
    sources: Vec<Source>,
    created: Option<PathBuf>,
}

impl Import {
    /// Finds the files and looks at the table's place; writes nothing.
    ///
    /// # Errors
    /// [`Kind::NotFound`] for a file that is not there, [`Kind::Invalid`] where there are no files,
    /// a name is not UTF-8, or the table's place is taken by something else.
    pub fn plan(
        files: &[PathBuf],
        table: &str,
        storage: Storage,
        options: table::Storage,
    ) -> Result<Self> {
        let mut sources = Vec::new();
        for file in files {
            find(file, &mut sources)?;
        }
        if sources.is_empty() {
            return Err(Error::new(Kind::Invalid, "there are no files in what was given"));
        }
        Ok(Self { created: to_create(table)?, table: table.to_owned(), storage, options, sources })
    }

    /// The table.
    pub fn table(&self) -> &str {
        &self.table
    }

    /// How many rows will be made.
    pub fn rows(&self) -> usize {
        self.sources.len()
    }

    /// How many bytes of payload will be copied.
    pub fn bytes(&self) -> u64 {
        self.sources.iter().map(|source| source.size).sum()
    }

    /// Copies the files and publishes them as one version; gives its number. `progress` is told
    /// how many more bytes have been copied.
    ///
    /// # Errors
    /// [`Kind::Invalid`] where the table's schema has no room for these columns; whatever reading a
    /// file or writing to the store gives. Then nothing was published.
    pub async fn run(&self, progress: impl Fn(u64)) -> Result<u64> {
        let mode = self.mode().await?;
        let schema = self.schema(mode);
        let copied = Arc::new(AtomicU64::new(0));
        let batches = self.batches(schema.clone(), copied.clone());
        let params = self.params(mode)?;
        let write = Dataset::write(
            RecordBatchIterator::new(batches, schema),
            self.table.as_str(),
            Some(params),
        );
        let mut write = std::pin::pin!(write);
        let mut told = 0;
        let written = loop {
            let tick = tokio::time::sleep(Duration::from_millis(100));
            tokio::select! {
                written = &mut write => break written,
                () = tick => {
                    let now = copied.load(Ordering::Relaxed);
                    progress(now - told);
                    told = now;
                }
            }
        };
        let dataset = written.map_err(|e| {
            let hint = "its columns must be able to take path, name, size, mtime, mime_type and content (a Blob v2 column)";
            let hint = if matches!(mode, WriteMode::Append) { format!(" ({hint})") } else { String::new() };
            Error::caused(Kind::Invalid, format!("write {}{hint}", self.table), e)
        })?;
        Ok(dataset.manifest.version)
    }

    /// After a failed or interrupted run: takes away the folder of a table that was not there before
    /// and has no version. Files that were added to a table that was there belong to no version;
    /// the table's next cleanup removes them.
    pub fn undo(&self) {
        let Some(folder) = &self.created else { return };
        let published = std::fs::read_dir(folder.join("_versions"))
            .is_ok_and(|mut files| files.next().is_some());
        if !published
            && folder.exists()
            && let Err(error) = std::fs::remove_dir_all(folder)
        {
            tracing::warn!(folder = %folder.display(), %error, "cannot take away an unfinished table");
        }
    }

    async fn mode(&self) -> Result<WriteMode> {
        let options = Options { storage: self.options.clone(), ..Options::default() };
        let table = match Table::open(&self.table, options).await {
            Ok(table) => table,
            Err(error) if error.kind() == Kind::NotFound => return Ok(WriteMode::Create),
            Err(error) => return Err(error),
        };
        let latest = table.catalog.latest(None).await?;
        let snapshot = table.snapshot(table.numbers.slot(&latest.id)).await?;
        if self.storage == Storage::Managed && !snapshot.dataset.manifest.has_managed_blobs() {
            let text = format!(
                "{} is there and does not use Managed storage: --managed is for new tables",
                self.table
            );
            return Err(Error::new(Kind::Invalid, text));
        }
        Ok(WriteMode::Append)
    }

    fn schema(&self, mode: WriteMode) -> SchemaRef {
        let managed = self.storage == Storage::Managed && matches!(mode, WriteMode::Create);
        let metadata = managed.then(|| (MANAGED_BLOBS_META_KEY.to_owned(), "true".to_owned()));
        let fields = vec![
            Field::new("path", DataType::Utf8, true),
            Field::new("name", DataType::Utf8, true),
            Field::new("size", DataType::Int64, true),
            Field::new(
                "mtime",
                DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
                true,
            ),
            Field::new("mime_type", DataType::Utf8, true),
            blob_field("content", true),
        ];
        Arc::new(Schema::new_with_metadata(fields, metadata.into_iter().collect()))
    }

    fn params(&self, mode: WriteMode) -> Result<WriteParams> {
        let store = self.options.params();
        let version = STORAGE_VERSION.parse();
        let version =
            version.map_err(|e| Error::caused(Kind::Internal, "the storage version", e))?;
        Ok(WriteParams {
            mode,
            data_storage_version: matches!(mode, WriteMode::Create).then_some(version),
            external_blob_mode: ExternalBlobMode::Ingest,
            store_params: Some(store),
            ..WriteParams::default()
        })
    }

    /// The rows, batch by batch. When a batch is asked for, the one before has been copied.
    fn batches(
        &self,
        schema: SchemaRef,
        copied: Arc<AtomicU64>,
    ) -> impl Iterator<Item = Result<RecordBatch, ArrowError>> + Send + 'static {
        let mut before = 0;
        let chunks: Vec<Vec<Source>> =
            self.sources.chunks(BATCH_ROWS).map(<[Source]>::to_vec).collect();
        chunks.into_iter().map(move |chunk| {
            copied.fetch_add(before, Ordering::Relaxed);
            before = chunk.iter().map(|source| source.size).sum();
            batch(&schema, &chunk).map_err(|e| ArrowError::ExternalError(Box::new(e)))
        })
    }
}

fn batch(schema: &SchemaRef, sources: &[Source]) -> Result<RecordBatch> {
    let write = |e: lance::Error| Error::caused(Kind::Internal, "make a batch of rows", e);
    let mut content = BlobArrayBuilder::new(sources.len());
    let mut types = Vec::with_capacity(sources.len());
    for source in sources {
        types.push(mime_type(&source.path)?);
        let uri = Url::from_file_path(&source.path);
        let uri = uri.map_err(|()| {
            Error::new(Kind::Invalid, format!("{} is not absolute", source.path.display()))
        })?;
        if source.size == 0 { content.push_empty() } else { content.push_uri(uri.as_str()) }
            .map_err(write)?;
    }
    let name =
        |source: &Source| source.path.file_name().map(|name| name.to_string_lossy().into_owned());
    let sizes = sources.iter().map(|source| units::i64_of(source.size));
    let times = sources.iter().map(|source| source.mtime_micros);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(sources.iter().map(|source| &source.shown))),
        Arc::new(sources.iter().map(name).collect::<StringArray>()),
        Arc::new(PrimitiveArray::<Int64Type>::from_iter_values(sizes)),
        Arc::new(
            PrimitiveArray::<TimestampMicrosecondType>::from_iter_values(times)
                .with_timezone("UTC"),
        ),
        Arc::new(StringArray::from_iter_values(types)),
        content.finish().map_err(write)?,
    ];
    RecordBatch::try_new(schema.clone(), columns)
        .map_err(|e| Error::caused(Kind::Internal, "make a batch of rows", e))
}

fn mime_type(path: &Path) -> Result<String> {
    let what = || format!("read {}", path.display());
    let file = std::fs::File::open(path).context(Kind::NotFound, what)?;
    let mut head = Vec::new();
    file.take(media::HEAD).read_to_end(&mut head).context(Kind::Invalid, what)?;
    Ok(media::type_of(path.to_str(), &head))
}

/// Collects a file, or the files beneath a directory in the order of their names. Symlinks are
/// followed; devices, sockets and fifos are passed over.
fn find(given: &Path, sources: &mut Vec<Source>) -> Result<()> {
    let walk = walkdir::WalkDir::new(given).follow_links(true).sort_by_file_name();
    for entry in walk {
        let entry = entry.map_err(|e| {
            let absent = e.io_error().is_some_and(|io| io.kind() == std::io::ErrorKind::NotFound);
            Error::caused(
                if absent { Kind::NotFound } else { Kind::Invalid },
                format!("read {}", given.display()),
                e,
            )
        })?;
        if !entry.file_type().is_file() {
            continue;
        }
        let what = || format!("stat {}", entry.path().display());
        let meta = std::fs::metadata(entry.path()).context(Kind::NotFound, what)?;
        sources.push(source(entry.path(), &meta)?);
    }
    Ok(())
}

fn source(path: &Path, meta: &Metadata) -> Result<Source> {
    let shown = path
        .to_str()
        .ok_or_else(|| Error::new(Kind::Invalid, format!("{} is not UTF-8", path.display())))?;
    let absolute =
        std::path::absolute(path).context(Kind::Invalid, || format!("find {}", path.display()))?;
    let mtime: chrono::DateTime<chrono::Utc> =
        meta.modified().context(Kind::Invalid, || "read a time".to_owned())?.into();
    Ok(Source {
        path: absolute,
        shown: shown.to_owned(),
        size: meta.len(),
        mtime_micros: mtime.timestamp_micros(),
    })
}

/// The local folder that will be made for a table; `None` where it is there or the table is remote.
fn to_create(table: &str) -> Result<Option<PathBuf>> {
    if table.contains("://") || table.starts_with("file:/") {
        return Ok(None);
    }
    let path = std::path::absolute(table).context(Kind::Invalid, || format!("table {table}"))?;
    let Ok(meta) = std::fs::metadata(&path) else { return Ok(Some(path)) };
    let empty = || std::fs::read_dir(&path).is_ok_and(|mut entries| entries.next().is_none());
    if !meta.is_dir() {
        return Err(Error::new(
            Kind::Invalid,
            format!("{table} is a file; the last argument is the table"),
        ));
    }
    if !path.join("_versions").is_dir() && !empty() {
        return Err(Error::new(
            Kind::Invalid,
            format!("{table} is a directory with other things in it, and no Lance table"),
        ));
    }
    Ok(None)
}
