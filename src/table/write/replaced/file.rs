//! A data file of some columns of a fragment.
//!
//! 1. It has a row for each row that the fragment ever had: a deleted one is null, or, where the
//!    column may not be, a copy of a neighbour.
//! 2. A file that is not finished must not stay: [`ColumnFile::discard`].
//! 3. Its dictionaries are given with the last step: rows are mixed and padded as plain values
//!    (`super::super::dictionary`). One that is full needs all rows in one piece ([`Pieces::One`]).
//! 4. Nobody has to believe that what was written is there: the rows are digested on the way
//!    ([`Written::digests`]).
//! 5. The columns that it holds are crossed out in the fragment's other files ([`attach`]), as the
//!    crate does after its own rewrite (lance 14.0.2, `L:dataset/fragment.rs:2579`).

use std::collections::BTreeSet;
use std::num::NonZero;
use std::sync::Arc;

use arrow_array::{Array as _, ArrayRef, RecordBatch, new_null_array};
use arrow_schema::{Field as ArrowField, FieldRef, Schema as ArrowSchema};
use lance::Dataset;
use lance_arrow::json::convert_json_columns;
use lance_core::datatypes::Schema;
use lance_file::versions::{create_writer, data_file_columns};
use lance_file::writer::{FileWriter, FileWriterOptions};
use lance_table::format::{DataFile, Fragment};
use object_store::path::Path;
use uuid::Uuid;

use super::super::super::fault;
use super::super::super::managed::format_of_new_files;
use super::super::dictionary::{self, Dictionaries};
use super::super::digest::{self, Digest};
use crate::error::{Error, Kind, Result};
use crate::units;

/// Rows of padding that are written at once.
const PADDING: u64 = 1024;
/// Stands for a field that another file holds (lance 14.0.2, `L:dataset/fragment.rs:2588`).
const CROSSED_OUT: i32 = -2;

/// A column of rows, without dictionaries.
type Column = (FieldRef, ArrayRef);

/// In how many pieces the file writer gets the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pieces {
    /// Each as it comes.
    Many,
    /// All of them at the end.
    One,
}

/// A data file that was written.
pub struct Written {
    /// Its description.
    pub file: DataFile,
    /// The live rows of each column.
    pub digests: Vec<Digest>,
}

/// A data file that is being written.
pub struct ColumnFile<'a> {
    dataset: &'a Arc<Dataset>,
    schema: Schema,
    dictionaries: &'a Dictionaries,
    pieces: Pieces,
    name: String,
    writer: Option<FileWriter>,
    digests: Vec<Digest>,
    /// Rows that wait for the others.
    held: Vec<Vec<Column>>,
    /// The last row that was written.
    last: Vec<Column>,
    /// Rows so far.
    rows: u64,
}

impl<'a> ColumnFile<'a> {
    /// A file of the columns at these positions of the schema.
    pub fn new(
        dataset: &'a Arc<Dataset>,
        columns: &BTreeSet<usize>,
        dictionaries: &'a Dictionaries,
        pieces: Pieces,
    ) -> Self {
        let fields = columns.iter().map(|at| dataset.schema().fields[*at].clone()).collect();
        let schema = Schema { fields, metadata: dataset.schema().metadata.clone() };
        Self {
            dataset,
            schema,
            dictionaries,
            pieces,
            name: format!("{}.lance", Uuid::new_v4()),
            writer: None,
            digests: vec![Digest::default(); columns.len()],
            held: Vec::new(),
            last: Vec::new(),
            rows: 0,
        }
    }

    /// Writes rows, whose physical offsets ascend.
    ///
    /// # Errors
    /// Whatever the store or the encoder gives.
    pub async fn write(&mut self, columns: Vec<Column>, offsets: &[u32]) -> Result<()> {
        let mut indices = Vec::with_capacity(offsets.len());
        let mut next = self.rows;
        for (at, offset) in offsets.iter().enumerate() {
            let gap = u64::from(*offset).saturating_sub(next);
            indices.extend((0..gap).map(|_| (1, at)));
            indices.push((0, at));
            next = u64::from(*offset) + 1;
        }
        let Some(end) = offsets.len().checked_sub(1) else { return Ok(()) };
        digest::add(&batch_of(columns.clone())?, self.digests.iter_mut())?;
        self.last =
            columns.iter().map(|(field, array)| (field.clone(), array.slice(end, 1))).collect();
        let padded = columns.into_iter().map(|(field, array)| {
            if indices.len() == array.len() {
                return Ok((field, array));
            }
            let blank = if field.is_nullable() {
                new_null_array(field.data_type(), array.len())
            } else {
                array.clone()
            };
            let padded =
                arrow_select::interleave::interleave(&[array.as_ref(), blank.as_ref()], &indices);
            padded.map(|array| (field, array))
        });
        let padded: Result<Vec<Column>, _> = padded.collect();
        let padded =
            padded.map_err(|e| Error::caused(Kind::Internal, "keep the places of rows", e))?;
        self.add(padded).await
    }

    /// Ends the file after so many rows, and describes it.
    ///
    /// # Errors
    /// As [`ColumnFile::write`]; then the file is gone.
    pub async fn finish(mut self, rows: u64) -> Result<Written> {
        let finished = self.end(rows).await;
        match finished {
            Ok(file) => Ok(Written { file, digests: std::mem::take(&mut self.digests) }),
            Err(error) => {
                self.discard().await;
                Err(error)
            }
        }
    }

    /// Takes the unfinished file away.
    pub async fn discard(mut self) {
        if self.writer.take().is_none() {
            return;
        }
        let path = self.path();
        if let Ok(store) = self.dataset.object_store(None).await
            && let Err(error) = store.delete(&path).await
        {
            tracing::debug!(%path, %error, "an unfinished file is left to the next cleanup");
        }
    }

    async fn end(&mut self, rows: u64) -> Result<DataFile> {
        while self.rows < rows {
            let count = units::usize_of(PADDING.min(rows - self.rows));
            let mut padding = Vec::with_capacity(self.last.len());
            for (field, last) in &self.last {
                let blank = if field.is_nullable() {
                    Ok(new_null_array(field.data_type(), count))
                } else {
                    arrow_select::interleave::interleave(&[last.as_ref()], &vec![(0, 0); count])
                };
                let blank =
                    blank.map_err(|e| Error::caused(Kind::Internal, "fill deleted rows", e))?;
                padding.push((field.clone(), blank));
            }
            self.add(padding).await?;
        }
        let held = std::mem::take(&mut self.held);
        if !held.is_empty() {
            self.put(dictionary::joined(&held)?).await?;
        }
        let what = format!("write {}", self.path());
        let what = || what.clone();
        let Some(writer) = &mut self.writer else {
            return Err(Error::new(Kind::Internal, "a column file without rows"));
        };
        let summary = writer.finish().await;
        summary.map_err(|e| fault::of(what(), e))?;
        let store = self.dataset.object_store(None).await.map_err(|e| fault::of(what(), e))?;
        let size = store.size(&self.path()).await.map_err(|e| fault::of(what(), e))?;
        let version = format_of_new_files(self.dataset);
        let (fields, columns) = data_file_columns(version, &self.schema);
        let name = self.name.as_str();
        Ok(DataFile::new(name, fields, columns, version, NonZero::new(size), None))
    }

    async fn add(&mut self, columns: Vec<Column>) -> Result<()> {
        self.rows += columns.first().map_or(0, |(_, array)| units::u64_of(array.len()));
        match self.pieces {
            Pieces::Many => self.put(columns).await,
            Pieces::One => {
                self.held.push(columns);
                Ok(())
            }
        }
    }

    async fn put(&mut self, columns: Vec<Column>) -> Result<()> {
        let what = format!("write {}", self.path());
        let fields = self.schema.fields.iter().map(ArrowField::from);
        let encoded = fields
            .zip(&columns)
            .map(|(field, (built, array))| self.dictionaries.encode(&field, built, array));
        let batch = batch_of(encoded.collect::<Result<Vec<_>>>()?)?;
        // JSON is stored in a form of its own.
        let batch = convert_json_columns(&batch);
        let batch = batch.map_err(|e| Error::caused(Kind::Internal, what.as_str(), e))?;
        if self.writer.is_none() {
            let writer = self.open(&batch).await;
            self.writer = Some(writer.map_err(|e| fault::of(what.as_str(), e))?);
        }
        if let Some(writer) = &mut self.writer {
            writer.write_batch(&batch).await.map_err(|e| fault::of(what, e))?;
        }
        Ok(())
    }

    async fn open(&mut self, batch: &RecordBatch) -> lance::Result<FileWriter> {
        let store = self.dataset.object_store(None).await?;
        let object = store.create(&self.path()).await?;
        let version = format_of_new_files(self.dataset);
        let schema = Schema::try_from(batch.schema().as_ref())?;
        // Copies would have dictionaries of their own.
        let keep_original_array = (!self.dictionaries.is_empty()).then_some(true);
        let options = FileWriterOptions { keep_original_array, ..FileWriterOptions::default() };
        create_writer(version, object, schema, options)
    }

    fn path(&self) -> Path {
        self.dataset.data_dir().join(self.name.as_str())
    }
}

fn batch_of(columns: Vec<Column>) -> Result<RecordBatch> {
    let (fields, arrays): (Vec<_>, Vec<_>) = columns.into_iter().unzip();
    let batch = RecordBatch::try_new(Arc::new(ArrowSchema::new(fields)), arrays);
    batch.map_err(|e| Error::caused(Kind::Internal, "put columns together", e))
}

/// Adds a file to a fragment in the place of what the other files have of its columns, of which
/// these are all fields: files of the format 2.0 name lists and structs beside their leaves.
pub fn attach(fragment: &mut Fragment, file: DataFile, fields: &BTreeSet<i32>) {
    for other in &mut fragment.files {
        let left =
            other.fields.iter().map(|id| if fields.contains(id) { CROSSED_OUT } else { *id });
        other.fields = left.collect();
    }
    fragment.files.retain(|other| other.fields.iter().any(|id| *id != CROSSED_OUT));
    fragment.files.push(file);
}
