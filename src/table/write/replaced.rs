//! Rows that are there, changed: other values in their places, or deleted.
//!
//! ```text
//! fragment          files: [a.lance: id, image, name]   deletions: 3
//! replace image of row 5, delete row 7
//! the same, after   files: [a.lance: id, ----, name] [b.lance: image]   deletions: 3, 7
//! ```
//!
//! 1. A replaced row keeps its position, address and id: for each fragment the touched columns are
//!    written anew, whole, and the old ones are crossed out in the old files, as the crate's own
//!    column rewrite does (lance 14.0.2, `L:dataset/fragment.rs:2579`). The crate's ways to do it
//!    take no stored Blobs: `update_columns` and `write_columns` project them to the logical layout,
//!    which has no place for a Managed descriptor (`L:dataset/fragment.rs:2786`). So the file is
//!    written with the crate's file writer: [`file`].
//! 2. Values of the other rows are carried over without their bytes, but for Inline ones: [`carry`].
//! 3. A column may be replaced in part, one element of a list: [`row`] lays the new over the old.
//! 4. Everything is one transaction, with appended rows and deletions: others see all of it or
//!    nothing. It conflicts with whoever changes the same fragments since the snapshot.
//! 5. An index covers a fragment until a transaction names its field as modified, and ids are
//!    compared as they are: a data file names leaves (of a packed struct, the struct), an index on a
//!    list names the list. So every field of a touched column is named, from the column down, as the
//!    crate's merge does (lance 14.0.2, `L:dataset/write/merge_insert.rs:2386`).
//!
//! The cost is by fragment: its touched columns are read and written once, however few rows change.

mod carry;
mod file;
mod row;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use arrow_array::{Array as _, ArrayRef, BooleanArray, RecordBatch};
use arrow_schema::{Field as ArrowField, FieldRef, Schema as ArrowSchema};
use futures::stream::BoxStream;
use futures::{StreamExt as _, TryStreamExt as _};
use lance::Dataset;
use lance::dataset::fragment::FileFragment;
use lance::dataset::transaction::{Operation, Transaction, UpdateMode, UpdatedFragmentOffsets};
use lance::dataset::{InsertBuilder, WriteMode, WriteParams};
use lance_core::datatypes::{Field, Schema};
use lance_table::format::Fragment;

use super::super::fault;
use super::super::scan::{self, Run};
use super::super::schema::Leaves;
use super::super::snapshot::Snapshot;
use super::super::sound::{self, Fields};
use super::columns::{Builder, Row};
use super::{Fault, NewRow};
use crate::error::{Error, Kind, Result};
use crate::tree::{LeafIndex, Step};
use crate::units::{self, RowAddress};
use file::ColumnFile;
use row::Old;

/// Rows of a run: they are scanned, built and written at once.
const ROWS: u64 = 512;
/// Runs that are on their way at once, for stores that are far. Their Inline values are in memory
/// meanwhile: at 64 KiB each, 128 MiB at the very worst.
const RUNS: usize = 4;

/// One row with other values.
#[derive(Clone, Debug)]
pub struct Change {
    /// Which row of the snapshot.
    pub address: RowAddress,
    /// Its new values. Columns that are not in its JSON stay as they are. In those that are, a Blob
    /// that the JSON names stays, and one that it does not name is removed.
    pub row: NewRow,
    /// Values that become null, by leaf and indices.
    pub removed: BTreeSet<(LeafIndex, Vec<u64>)>,
}

/// What one transaction does.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Rows that keep their places.
    pub replaced: Vec<Change>,
    /// Rows that go.
    pub deleted: BTreeSet<RowAddress>,
    /// Rows that come, as [`super::append`] makes them.
    pub appended: Vec<RecordBatch>,
}

/// Why there is no transaction.
#[derive(Debug)]
pub enum Refused {
    /// The changes are wrong: every fault of every row.
    Faults(Vec<Fault>),
    /// Reading or writing failed.
    Failed(Error),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// What is wrong with changes to existing rows; writes nothing.
///
/// # Errors
/// Where the old values cannot be read.
pub async fn faults(snapshot: &Snapshot, changes: &Changes) -> Result<Vec<Fault>> {
    let job = Job::new(&snapshot.dataset, &snapshot.leaves);
    let (touched, mut faults) = by_fragment(changes);
    snapshot.check_fragments(touched.keys())?;
    for (id, touched) in &touched {
        job.check(*id, touched, &mut faults).await?;
    }
    super::sort(&mut faults, changes.replaced.iter().map(|change| change.row.place.as_str()));
    Ok(faults)
}

/// Writes the files of changes to a snapshot, and gives the transaction that publishes them.
///
/// # Errors
/// [`Refused::Faults`] before anything is written; else whatever reading and writing gives. Files
/// of a failed attempt that could not be deleted belong to no version, and go with the table's next
/// cleanup.
pub async fn transaction(snapshot: &Snapshot, changes: &Changes) -> Result<Transaction, Refused> {
    let wrong = faults(snapshot, changes).await?;
    if !wrong.is_empty() {
        return Err(Refused::Faults(wrong));
    }
    let job = Job { target: snapshot.to_write(), ..Job::new(&snapshot.dataset, &snapshot.leaves) };
    Ok(job.transaction(changes).await?)
}

/// The changes of one fragment, by physical offset.
#[derive(Default)]
struct Touched<'a> {
    replaced: BTreeMap<u32, &'a Change>,
    deleted: BTreeSet<u32>,
}

fn by_fragment(changes: &Changes) -> (BTreeMap<u64, Touched<'_>>, Vec<Fault>) {
    let mut fragments: BTreeMap<u64, Touched<'_>> = BTreeMap::new();
    let mut faults = Vec::new();
    for address in &changes.deleted {
        fragments.entry(address.fragment()).or_default().deleted.insert(address.offset());
    }
    for change in &changes.replaced {
        let (fragment, offset) = (change.address.fragment(), change.address.offset());
        let touched = fragments.entry(fragment).or_default();
        let twice = touched.replaced.insert(offset, change).is_some();
        let text = match (twice, touched.deleted.contains(&offset)) {
            (_, true) => "replaces a row that another entry deletes",
            (true, _) => "replaces a row that another entry replaces: a row can have one entry",
            _ => continue,
        };
        let place = change.row.place.clone();
        faults.push(Fault { place, field: String::new(), text: text.to_owned() });
    }
    (fragments, faults)
}

/// A fragment, where its rows are and which are deleted.
struct Place {
    position: usize,
    fragment: FileFragment,
    rows: u64,
    deleted: Vec<u32>,
}

impl Place {
    fn live(&self) -> u64 {
        self.rows - units::u64_of(self.deleted.len())
    }

    /// The run of live rows that begins at an offset.
    fn run(&self, offset: u64) -> Run {
        Run { fragment: self.position, offset, rows: ROWS.min(self.live() - offset) }
    }

    /// The position of a row among the live ones.
    fn live_offset(&self, offset: u32) -> u64 {
        u64::from(offset) - units::u64_of(self.deleted.partition_point(|deleted| *deleted < offset))
    }
}

/// Column rewrites of one version.
struct Job<'a> {
    dataset: &'a Arc<Dataset>,
    /// What new rows are written to.
    target: Arc<Dataset>,
    scannable: Arc<Dataset>,
    leaves: &'a Leaves,
    table: ArrowSchema,
}

impl<'a> Job<'a> {
    fn new(dataset: &'a Arc<Dataset>, leaves: &'a Leaves) -> Self {
        let table = ArrowSchema::from(dataset.schema());
        Self {
            dataset,
            target: dataset.clone(),
            scannable: scan::scannable(dataset),
            leaves,
            table,
        }
    }

    async fn place(&self, id: u64) -> Result<Place> {
        let mut fragments = self.dataset.manifest.fragments.iter().enumerate();
        let found = fragments.find(|(_, fragment)| fragment.id == id);
        let (position, metadata) = found.ok_or_else(|| {
            Error::new(Kind::Invalid, format!("the version has no fragment {id}"))
        })?;
        let what = || format!("look at the rows of fragment {id}");
        let fragment = FileFragment::new(self.dataset.clone(), metadata.clone());
        sound::check(self.dataset, fragment.metadata(), Fields::All).await?;
        let rows = fragment.physical_rows().await.map_err(|e| fault::of(what(), e))?;
        let deleted = fragment.get_deletion_vector().await.map_err(|e| fault::of(what(), e))?;
        let mut deleted: Vec<u32> =
            deleted.iter().flat_map(|vector| vector.to_sorted_iter()).collect();
        deleted.sort_unstable();
        Ok(Place { position, fragment, rows: units::u64_of(rows), deleted })
    }

    /// The positions of the columns that changes touch.
    fn columns(&self, touched: &Touched<'_>) -> BTreeSet<usize> {
        let position = |name: &str| self.table.index_of(name).ok();
        let of_leaf = |leaf: &LeafIndex| match self
            .leaves
            .fields
            .get(units::usize_of(leaf.get()))?
            .path
            .first()?
        {
            Step::Field(name) => position(name),
            Step::Element => None,
        };
        let changes = touched.replaced.values();
        let columns = changes.flat_map(|change| {
            let named = change.row.json.keys().filter_map(|name| position(name));
            let values = change.row.blobs.keys().chain(&change.removed);
            named.chain(values.filter_map(|(leaf, _)| of_leaf(leaf)))
        });
        columns.collect()
    }

    /// Every field of columns, whatever of it a data file or an index names (difficulty 5).
    fn fields(&self, columns: &BTreeSet<usize>) -> BTreeSet<i32> {
        let mut fields = BTreeSet::new();
        let mut pending: Vec<&Field> =
            columns.iter().map(|at| &self.dataset.schema().fields[*at]).collect();
        while let Some(field) = pending.pop() {
            fields.insert(field.id);
            pending.extend(&field.children);
        }
        fields
    }

    async fn check(&self, id: u64, touched: &Touched<'_>, faults: &mut Vec<Fault>) -> Result<()> {
        if touched.replaced.is_empty() {
            return Ok(());
        }
        let place = self.place(id).await?;
        let columns = self.columns(touched);
        let mut runs = BTreeSet::new();
        for (offset, change) in &touched.replaced {
            let described = [Row::of(&change.row)];
            let mut builder = Builder { rows: &described, leaves: self.leaves, faults: Vec::new() };
            builder.unknown(&self.table);
            faults.append(&mut builder.faults);
            if place.deleted.binary_search(offset).is_ok() || u64::from(*offset) >= place.rows {
                let text = "replaces a row that is not in the version".to_owned();
                let row = change.row.place.clone();
                faults.push(Fault { place: row, field: String::new(), text });
            } else {
                runs.insert(place.live_offset(*offset) / ROWS * ROWS);
            }
        }
        let runs = runs.into_iter().map(|offset| place.run(offset));
        let mut built = self.runs(runs, touched, &columns, Which::Replaced);
        while let Some(mut run) = built.try_next().await? {
            faults.append(&mut run.faults);
        }
        Ok(())
    }

    /// Runs, several at once, in order.
    fn runs<'b>(
        &'b self,
        runs: impl Iterator<Item = Run> + Send + 'b,
        touched: &'b Touched<'_>,
        columns: &'b BTreeSet<usize>,
        which: Which,
    ) -> BoxStream<'b, Result<Built>> {
        let runs = futures::stream::iter(runs);
        runs.map(move |run| self.run(run, touched, columns, which)).buffered(RUNS).boxed()
    }

    /// The touched columns of a run of live rows.
    async fn run(
        &self,
        run: Run,
        touched: &Touched<'_>,
        columns: &BTreeSet<usize>,
        which: Which,
    ) -> Result<Built> {
        let (wanted, schema) = (self.dataset.schema(), self.scannable.schema());
        let single = |at: &usize| Schema {
            fields: vec![schema.fields[*at].clone()],
            metadata: schema.metadata.clone(),
        };
        let projection: Vec<Schema> = columns.iter().map(single).collect();
        let scanned = scan::scan(&self.scannable, &projection, run).await?;
        let offset = |address: &u64| RowAddress::new(*address).offset();
        let is_wanted = |address: &u64| match which {
            Which::All => true,
            Which::Replaced => touched.replaced.contains_key(&offset(address)),
        };
        let addresses = scanned.addresses.values();
        let kept: BooleanArray = addresses.iter().map(|a| Some(is_wanted(a))).collect();
        let addresses: Vec<u64> = addresses.iter().copied().filter(|a| is_wanted(a)).collect();
        let offsets: Vec<u32> = addresses.iter().map(offset).collect();
        let mut built = Built { columns: Vec::new(), offsets: Vec::new(), faults: Vec::new() };
        for (at, column) in columns.iter().zip(scanned.columns) {
            let array = arrow_select::filter::filter(&column?, &kept);
            let array = array.map_err(|e| Error::caused(Kind::Internal, "pick rows", e))?;
            let rows = Scanned { array, addresses: &addresses, offsets: &offsets };
            let column = self.column(&wanted.fields[*at], &rows, touched, &mut built.faults);
            built.columns.push(column.await?);
        }
        Ok(Built { offsets, ..built })
    }

    /// One column of a run, replaced rows in their places.
    async fn column(
        &self,
        field: &Field,
        scanned: &Scanned<'_>,
        touched: &Touched<'_>,
        faults: &mut Vec<Fault>,
    ) -> Result<(FieldRef, ArrayRef)> {
        let table_field = ArrowField::from(field);
        let mut target = Builder { rows: &[], leaves: self.leaves, faults: Vec::new() };
        let (target, _) = target.column(&table_field);
        let (array, addresses) = (scanned.array.clone(), scanned.addresses.to_vec());
        let carried = carry::carry(self.dataset, field, &target, array, addresses).await?;
        let old = Old {
            leaves: self.leaves,
            field: &table_field,
            scanned: &scanned.array,
            carried: &carried,
        };
        let mut replaced = Vec::new();
        let mut indices = Vec::with_capacity(carried.len());
        for (at, offset) in scanned.offsets.iter().enumerate() {
            match touched.replaced.get(offset).filter(|change| old.is_touched(change)) {
                Some(change) => {
                    indices.push((1, replaced.len()));
                    replaced.push(old.overlaid(at, change)?);
                }
                None => indices.push((0, at)),
            }
        }
        if replaced.is_empty() {
            return Ok((target, carried));
        }
        let rows: Vec<Row<'_>> = replaced.iter().map(row::Overlaid::row).collect();
        let mut builder = Builder { rows: &rows, leaves: self.leaves, faults: Vec::new() };
        let (_, new) = builder.column(&table_field);
        if !builder.faults.is_empty() {
            faults.append(&mut builder.faults);
            return Ok((target, carried));
        }
        let both = [carried.as_ref(), new.as_ref()];
        let mixed = arrow_select::interleave::interleave(&both, &indices);
        let mixed = mixed.map_err(|e| {
            Error::caused(Kind::Internal, format!("replace values of {}", field.name), e)
        })?;
        Ok((target, mixed))
    }

    async fn transaction(&self, changes: &Changes) -> Result<Transaction> {
        let (touched, _) = by_fragment(changes);
        let mut removed_fragment_ids = Vec::new();
        let mut updated_fragments = Vec::new();
        let mut fields_modified = BTreeSet::new();
        let mut offsets = HashMap::new();
        for (id, touched) in &touched {
            let place = self.place(*id).await?;
            let columns = self.columns(touched);
            let mut metadata = place.fragment.metadata().clone();
            if !columns.is_empty() {
                let file = self.rewrite(&place, touched, &columns).await?;
                let fields = self.fields(&columns);
                fields_modified.extend(fields.iter().filter_map(|id| u32::try_from(*id).ok()));
                file::attach(&mut metadata, file, &fields);
                offsets.insert(*id, touched.replaced.keys().copied().collect());
            }
            match self.delete(metadata, touched).await? {
                Some(fragment) => updated_fragments.push(fragment),
                None => removed_fragment_ids.push(*id),
            }
        }
        let operation = Operation::Update {
            removed_fragment_ids,
            updated_fragments,
            new_fragments: self.append(&changes.appended).await?,
            fields_modified: fields_modified.into_iter().collect(),
            compacted_sstables: Vec::new(),
            fields_for_preserving_frag_bitmap: Vec::new(),
            update_mode: Some(UpdateMode::RewriteColumns),
            inserted_rows_filter: None,
            updated_fragment_offsets: Some(UpdatedFragmentOffsets(offsets)),
        };
        Ok(Transaction::new(self.dataset.manifest.version, operation, None))
    }

    /// Writes the touched columns of a fragment.
    async fn rewrite(
        &self,
        place: &Place,
        touched: &Touched<'_>,
        columns: &BTreeSet<usize>,
    ) -> Result<lance_table::format::DataFile> {
        let mut file = ColumnFile::new(self.dataset, columns);
        let offsets = (0..place.live()).step_by(units::usize_of(ROWS));
        let runs = offsets.map(|offset| place.run(offset));
        let mut runs = self.runs(runs, touched, columns, Which::All);
        let written = async {
            while let Some(built) = runs.try_next().await? {
                if let Some(fault) = built.faults.first() {
                    let text = format!("{} {} {}", fault.place, fault.field, fault.text);
                    return Err(Error::new(Kind::Invalid, text));
                }
                file.write(built.columns, &built.offsets).await?;
            }
            Ok(())
        };
        match written.await {
            Ok(()) => file.finish(place.rows).await,
            Err(error) => {
                file.discard().await;
                Err(error)
            }
        }
    }

    /// The fragment with its deletions; `None` where no row is left.
    async fn delete(&self, metadata: Fragment, touched: &Touched<'_>) -> Result<Option<Fragment>> {
        if touched.deleted.is_empty() {
            return Ok(Some(metadata));
        }
        let what = format!("delete rows of fragment {}", metadata.id);
        let fragment = FileFragment::new(self.dataset.clone(), metadata);
        let left = fragment.extend_deletions(touched.deleted.iter().copied()).await;
        let left = left.map_err(|e| fault::of(what, e))?;
        Ok(left.map(|fragment| fragment.metadata().clone()))
    }

    async fn append(&self, batches: &[RecordBatch]) -> Result<Vec<Fragment>> {
        if batches.iter().all(|batch| batch.num_rows() == 0) {
            return Ok(Vec::new());
        }
        let params = WriteParams {
            mode: WriteMode::Append,
            allow_external_blob_outside_bases: true,
            ..WriteParams::default()
        };
        let insert = InsertBuilder::new(self.target.clone()).with_params(&params);
        let written = insert.execute_uncommitted(batches.to_vec()).await;
        let written = written.map_err(|e| fault::of("write rows", e))?;
        match written.operation {
            Operation::Append { fragments } => Ok(fragments),
            other => Err(Error::new(Kind::Internal, format!("an append became {other}"))),
        }
    }
}

/// Which rows of a run are built.
#[derive(Clone, Copy)]
enum Which {
    All,
    Replaced,
}

/// The touched columns of a run, and the rows' physical offsets.
struct Built {
    columns: Vec<(FieldRef, ArrayRef)>,
    offsets: Vec<u32>,
    faults: Vec<Fault>,
}

/// A column of a run as it was scanned.
struct Scanned<'a> {
    array: ArrayRef,
    addresses: &'a [u64],
    offsets: &'a [u32],
}
