//! What is wrong with changes, and the dictionaries of the files that they need.
//!
//! 1. A dictionary must be known before the first row of a file is written, and all rows of the
//!    fragment are in the file: the values of the rows that stay are read first, and no others with them
//!    ([`Job::collect`]).

use std::collections::{BTreeMap, BTreeSet};

use arrow_array::{ArrayRef, BooleanArray};
use arrow_schema::Field as ArrowField;
use futures::{StreamExt as _, TryStreamExt as _};
use lance_core::datatypes::{Field, Schema};

use super::super::super::scan;
use super::super::columns::{Builder, Row};
use super::super::dictionary::{self, Dictionaries, Overflow};
use super::super::{Fault, sort};
use super::{Built, Changes, Job, Place, ROWS, RUNS, Touched, Which};
use crate::error::{Error, Kind, Result};
use crate::units::{self, RowAddress};

/// The dictionaries of each fragment's new files.
pub type ByFragment = BTreeMap<u64, Dictionaries>;

impl Job<'_> {
    /// Looks at the changes of all fragments.
    pub(super) async fn check_all(
        &self,
        changes: &Changes,
        touched: &BTreeMap<u64, Touched<'_>>,
        mut faults: Vec<Fault>,
    ) -> Result<(ByFragment, Vec<Fault>)> {
        let mut dictionaries = ByFragment::new();
        for (id, touched) in touched {
            let of_fragment = self.check(*id, touched, &mut faults).await?;
            dictionaries.insert(*id, of_fragment);
        }
        sort(&mut faults, changes.replaced.iter().map(|change| change.row.place.as_str()));
        Ok((dictionaries, faults))
    }

    async fn check(
        &self,
        id: u64,
        touched: &Touched<'_>,
        faults: &mut Vec<Fault>,
    ) -> Result<Dictionaries> {
        let mut dictionaries = Dictionaries::default();
        if touched.replaced.is_empty() {
            return Ok(dictionaries);
        }
        let place = self.place(id).await?;
        let columns = self.columns(touched);
        let runs = self.runs_of(&place, touched, faults);
        let before = self.collect(&place, touched, &columns, &mut dictionaries).await?;
        let first = touched.replaced.first_key_value().map(|(_, change)| change.row.place.as_str());
        faults
            .extend(before.into_iter().map(|overflow| fault(first.unwrap_or_default(), overflow)));
        let mut built = self.runs(runs.into_iter(), touched, &columns, Which::Replaced);
        while let Some(mut run) = built.try_next().await? {
            let is_good = run.faults.is_empty();
            faults.append(&mut run.faults);
            if is_good {
                self.without_key(&run, touched, &columns, &mut dictionaries, faults)?;
            }
        }
        dictionaries.seal()?;
        Ok(dictionaries)
    }

    /// The runs with the rows that are replaced; rows that are not there are faults.
    fn runs_of(
        &self,
        place: &Place,
        touched: &Touched<'_>,
        faults: &mut Vec<Fault>,
    ) -> Vec<scan::Run> {
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
        runs.into_iter().map(|offset| place.run(offset)).collect()
    }

    /// Collects the dictionaries of the rows that stay.
    async fn collect(
        &self,
        place: &Place,
        touched: &Touched<'_>,
        columns: &BTreeSet<usize>,
        dictionaries: &mut Dictionaries,
    ) -> Result<Vec<Overflow>> {
        let holds = |at: &&usize| dictionary::is_in(self.table.field(**at).data_type());
        let columns: Vec<usize> = columns.iter().filter(holds).copied().collect();
        if columns.is_empty() {
            return Ok(Vec::new());
        }
        let projection: Vec<Schema> = columns.iter().map(|at| self.dictionaries_of(*at)).collect();
        let offsets = (0..place.live()).step_by(units::usize_of(ROWS));
        let mut scans = futures::stream::iter(offsets.map(|offset| place.run(offset)))
            .map(|run| scan::scan(&self.scannable, &projection, run))
            .buffered(RUNS);
        let mut overflows = Vec::new();
        while let Some(scanned) = scans.try_next().await? {
            let stays =
                |address: &u64| !touched.replaced.contains_key(&RowAddress::new(*address).offset());
            let stays: BooleanArray =
                scanned.addresses.values().iter().map(|address| Some(stays(address))).collect();
            for ((at, schema), array) in columns.iter().zip(&projection).zip(scanned.columns) {
                let field =
                    ArrowField::from(&schema.fields[0]).with_name(self.table.field(*at).name());
                let array = plain(&field, &array?, &stays)?;
                overflows.append(&mut dictionaries.collect(&field, &array)?);
            }
        }
        Ok(overflows)
    }

    /// A column, cut down to what has dictionaries.
    fn dictionaries_of(&self, at: usize) -> Schema {
        let mut fields = Vec::new();
        holders(&self.scannable.schema().fields[at], &mut fields);
        self.scannable.schema().project_by_ids(&fields, true)
    }

    fn without_key(
        &self,
        run: &Built,
        touched: &Touched<'_>,
        columns: &BTreeSet<usize>,
        dictionaries: &mut Dictionaries,
        faults: &mut Vec<Fault>,
    ) -> Result<()> {
        for (at, (_, column)) in columns.iter().zip(&run.columns) {
            for overflow in dictionaries.collect(self.table.field(*at), column)? {
                let change = run.offsets.get(overflow.row).and_then(|at| touched.replaced.get(at));
                let place = change.map_or("", |change| change.row.place.as_str());
                faults.push(fault(place, overflow));
            }
        }
        Ok(())
    }
}

fn fault(place: &str, overflow: Overflow) -> Fault {
    Fault { place: place.to_owned(), field: overflow.field, text: overflow.text }
}

/// The rows that stay, their values plain.
fn plain(field: &ArrowField, array: &ArrayRef, stays: &BooleanArray) -> Result<ArrayRef> {
    let target = dictionary::plain(field);
    let array = arrow_cast::cast(array, target.data_type());
    let array = array.and_then(|array| arrow_select::filter::filter(&array, stays));
    array.map_err(|e| {
        Error::caused(Kind::Table, format!("read the dictionary of {}", field.name()), e)
    })
}

/// The fields beneath which a scan is to look for dictionaries: they, and maps and vectors of them,
/// which are scanned whole.
fn holders(field: &Field, ids: &mut Vec<i32>) {
    use arrow_schema::DataType;
    let data_type = field.data_type();
    match &data_type {
        DataType::Struct(_) | DataType::List(_) | DataType::LargeList(_) => {
            field.children.iter().for_each(|child| holders(child, ids));
        }
        other if dictionary::is_in(other) => ids.push(field.id),
        _ => {}
    }
}
