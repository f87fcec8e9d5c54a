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
//! 6. New and old values share a dictionary, for which the whole column must be known: [`check`].
//!
//! The cost is by fragment: its touched columns are read, written and read back once, however few rows
//! change, and dictionaries beneath them are read twice more.

mod carry;
mod check;
mod file;
mod files;
mod row;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow_array::{Array as _, ArrayRef, BooleanArray, RecordBatch};
use arrow_schema::{Field as ArrowField, FieldRef, Schema as ArrowSchema};
use futures::StreamExt as _;
use futures::stream::BoxStream;
use lance::Dataset;
use lance::dataset::fragment::FileFragment;
use lance::dataset::transaction::Transaction;
use lance_core::datatypes::{Field, Schema};

use super::super::decoder::Scannable;
use super::super::fault;
use super::super::scan::{self, Run};
use super::super::schema::Leaves;
use super::super::snapshot::Snapshot;
use super::super::sound::{self, Fields};
use super::columns::{Builder, Row};
use super::digest::Expected;
use super::{Fault, NewRow};
use crate::error::{Error, Kind, Result};
use crate::tree::{LeafIndex, Step};
use crate::units::{self, RowAddress};
use row::{Old, Values};

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
    /// that the JSON names is what [`NewRow::named`] says of its place, or else stays, and one that it
    /// does not name is removed.
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
    let (touched, faults) = by_fragment(changes);
    snapshot.check_fragments(touched.keys())?;
    Ok(job.check_all(changes, &touched, faults).await?.1)
}

/// A transaction whose files are written, and what is to be in them.
#[derive(Debug)]
pub struct Written {
    /// What publishes them.
    pub transaction: Transaction,
    /// What they are to hold.
    pub expected: Vec<Expected>,
}

/// Writes the files of changes to a snapshot, and gives the transaction that publishes them.
///
/// # Errors
/// [`Refused::Faults`] before anything is written; else whatever reading and writing gives. Files
/// of a failed attempt that could not be deleted belong to no version, and go with the table's next
/// cleanup.
pub async fn transaction(snapshot: &Snapshot, changes: &Changes) -> Result<Written, Refused> {
    let job = Job { target: snapshot.to_write(), ..Job::new(&snapshot.dataset, &snapshot.leaves) };
    let (touched, faults) = by_fragment(changes);
    snapshot.check_fragments(touched.keys())?;
    let (dictionaries, faults) = job.check_all(changes, &touched, faults).await?;
    if !faults.is_empty() {
        return Err(Refused::Faults(faults));
    }
    Ok(job.transaction(changes, &touched, &dictionaries).await?)
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
    scannable: Scannable,
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
        let changes = touched.replaced.values();
        let columns = changes.flat_map(|change| {
            let named = change.row.json.keys().filter_map(|name| position(name));
            let values = change.row.blobs.keys().chain(&change.removed);
            named.chain(values.filter_map(|(leaf, _)| self.column_of(*leaf)))
        });
        columns.collect()
    }

    /// The position of the column that has a Blob field.
    fn column_of(&self, leaf: LeafIndex) -> Option<usize> {
        match self.leaves.fields.get(units::usize_of(leaf.get()))?.path.first()? {
            Step::Field(name) => self.table.index_of(name).ok(),
            Step::Element => None,
        }
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
        let is_wanted = |offset: u32| match which {
            Which::All => true,
            Which::Replaced => touched.replaced.contains_key(&offset),
        };
        let old = self.carried(run, columns, is_wanted).await?;
        let named = self.named(run, touched, columns, &old).await?;
        let mut built = Built { columns: Vec::new(), offsets: Vec::new(), faults: Vec::new() };
        for column in &old.columns {
            built.columns.push(self.mixed(
                column,
                &old.offsets,
                touched,
                &named,
                &mut built.faults,
            )?);
        }
        Ok(Built { offsets: old.offsets, ..built })
    }

    /// Columns of some rows of a run as they are.
    async fn carried(
        &self,
        run: Run,
        columns: &BTreeSet<usize>,
        is_wanted: impl Fn(u32) -> bool + Send,
    ) -> Result<Carried> {
        let (wanted, schema) = (self.dataset.schema(), self.scannable.schema());
        let single = |at: &usize| Schema {
            fields: vec![schema.fields[*at].clone()],
            metadata: schema.metadata.clone(),
        };
        let projection: Vec<Schema> = columns.iter().map(single).collect();
        let scanned = scan::scan(&self.scannable, &projection, run).await?;
        let offset = |address: &u64| RowAddress::new(*address).offset();
        let addresses = scanned.addresses.values();
        let kept: BooleanArray = addresses.iter().map(|a| Some(is_wanted(offset(a)))).collect();
        let addresses: Vec<u64> =
            addresses.iter().copied().filter(|a| is_wanted(offset(a))).collect();
        let offsets = addresses.iter().map(offset).collect();
        let mut carried = Carried { columns: Vec::new(), offsets };
        for (at, column) in columns.iter().zip(scanned.columns) {
            let array = arrow_select::filter::filter(&column?, &kept);
            let array = array.map_err(|e| Error::caused(Kind::Internal, "pick rows", e))?;
            let field = ArrowField::from(&wanted.fields[*at]);
            let mut target = Builder { rows: &[], leaves: self.leaves, faults: Vec::new() };
            let (target, _) = target.column(&field);
            let addresses = addresses.clone();
            let values =
                carry::carry(self.dataset, &wanted.fields[*at], &target, array.clone(), addresses);
            let values = values.await?;
            carried.columns.push(Column { field, target, scanned: array, carried: values });
        }
        Ok(carried)
    }

    /// The values that changes of a run take over by name, wherever in their rows those are.
    async fn named(
        &self,
        run: Run,
        touched: &Touched<'_>,
        columns: &BTreeSet<usize>,
        old: &Carried,
    ) -> Result<Named> {
        let has_names = |offset: &u32| {
            touched.replaced.get(offset).is_some_and(|change| !change.row.named.is_empty())
        };
        let mut found = Named::new();
        if !old.offsets.iter().any(has_names) {
            return Ok(found);
        }
        let changes = old.offsets.iter().filter_map(|offset| touched.replaced.get(offset));
        let sources = changes.flat_map(|change| change.row.named.values());
        let others = sources.filter_map(|(leaf, _)| self.column_of(*leaf));
        let others: BTreeSet<usize> = others.filter(|at| !columns.contains(at)).collect();
        let others = self.carried(run, &others, |offset| has_names(&offset)).await?;
        for rows in [old, &others] {
            for (at, offset) in rows.offsets.iter().enumerate() {
                let Some(change) = touched.replaced.get(offset) else { continue };
                for column in rows.columns.iter().filter(|_| !change.row.named.is_empty()) {
                    let values = self.old(column).blobs(at)?.into_iter();
                    let wanted =
                        values.filter(|(slot, _)| change.row.named.values().any(|s| s == slot));
                    found.entry(*offset).or_default().extend(wanted);
                }
            }
        }
        Ok(found)
    }

    fn old<'o>(&'o self, column: &'o Column) -> Old<'o> {
        Old {
            leaves: self.leaves,
            field: &column.field,
            scanned: &column.scanned,
            carried: &column.carried,
        }
    }

    /// One column of a run, replaced rows in their places.
    fn mixed(
        &self,
        column: &Column,
        offsets: &[u32],
        touched: &Touched<'_>,
        named: &Named,
        faults: &mut Vec<Fault>,
    ) -> Result<(FieldRef, ArrayRef)> {
        let (target, carried) = (column.target.clone(), column.carried.clone());
        let old = self.old(column);
        let none = Values::new();
        let mut replaced = Vec::new();
        let mut indices = Vec::with_capacity(carried.len());
        for (at, offset) in offsets.iter().enumerate() {
            match touched.replaced.get(offset).filter(|change| old.is_touched(change)) {
                Some(change) => {
                    indices.push((1, replaced.len()));
                    replaced.push(old.overlaid(at, change, named.get(offset).unwrap_or(&none))?);
                }
                None => indices.push((0, at)),
            }
        }
        if replaced.is_empty() {
            return Ok((target, carried));
        }
        let rows: Vec<Row<'_>> = replaced.iter().map(row::Overlaid::row).collect();
        let mut builder = Builder { rows: &rows, leaves: self.leaves, faults: Vec::new() };
        let (_, new) = builder.column(&column.field);
        if !builder.faults.is_empty() {
            faults.append(&mut builder.faults);
            return Ok((target, carried));
        }
        let both = [carried.as_ref(), new.as_ref()];
        let mixed = arrow_select::interleave::interleave(&both, &indices);
        let mixed = mixed.map_err(|e| {
            Error::caused(Kind::Internal, format!("replace values of {}", column.field.name()), e)
        })?;
        Ok((target, mixed))
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

/// Values of rows that are named, by the rows' physical offsets.
type Named = BTreeMap<u32, Values>;

/// Columns of a run as they are, and the rows' physical offsets.
struct Carried {
    columns: Vec<Column>,
    offsets: Vec<u32>,
}

/// A column as it is.
struct Column {
    /// As the table has it.
    field: ArrowField,
    /// As it is written, without dictionaries.
    target: FieldRef,
    /// With Blobs as they are scanned.
    scanned: ArrayRef,
    /// As `target`.
    carried: ArrayRef,
}
