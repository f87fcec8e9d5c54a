//! A plan as rows of the table: what each value is stored as.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use super::{Externals, Publisher, Work, upload};
use crate::error::{Error, Kind, Result};
use crate::staging::Reference;
use crate::staging::journal::Step;
use crate::staging::plan::{Entry, Payload, Plan, Source, Target};
use crate::staging::spool::Batch;
use crate::store::{Interval, Piece};
use crate::table::write::replaced::{self, Change, Changes, Refused};
use crate::table::write::{self, Fault, NewRow, Stored};
use crate::table::{Prepared, Snapshot};
use crate::units::{self, ByteLen, ObjectOffset, RowIndex};

/// Stands for an object that is not uploaded yet, while a plan is checked.
const TO_COME: &str = "_blobs/00000000-0000-0000-0000-000000000000.blob";

/// How much a batch is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Rows that are added, replaced or deleted.
    pub rows: u64,
    /// Bytes of payload, uploaded or adopted.
    pub bytes: u64,
}

impl Tally {
    pub fn of(plan: &Plan) -> Self {
        let len = |payload: &Payload| match &payload.source {
            Source::File { len, .. } => *len,
            Source::Reference(reference) => reference.len,
            Source::Uri { .. } => 0,
        };
        let payloads = plan.payloads();
        Self { rows: units::u64_of(plan.entries.len()), bytes: payloads.map(len).sum() }
    }
}

/// What each staged file is stored as.
pub struct Values<'a> {
    stored: HashMap<&'a Path, Stored>,
}

impl Values<'_> {
    /// The new objects that a commit of these names.
    pub fn objects(&self) -> BTreeSet<Arc<str>> {
        let path = |stored: &Stored| match stored {
            Stored::Managed { base: None, path, .. } => Some(Arc::from(path.as_str())),
            _ => None,
        };
        self.stored.values().filter_map(path).collect()
    }
}

impl Publisher {
    /// Everything that is wrong with a plan.
    pub(super) async fn faults(
        &self,
        batch: &Batch,
        plan: &Plan,
        newest: &Arc<Snapshot>,
    ) -> Result<Vec<Fault>> {
        let mut faults = plan.faults.clone();
        let mut stored = HashMap::new();
        for entry in &plan.entries {
            for payload in &entry.payloads {
                let value = match &payload.source {
                    Source::File { len, .. } => {
                        self.deposit.limits().check(*len).map(|()| of_file(TO_COME, 0, *len))
                    }
                    Source::Reference(reference) => Ok(adopted(reference)),
                    Source::Uri { uri, range } => self.check_uri(newest, uri, *range),
                };
                match value {
                    Ok(value) => drop(stored.insert(payload.file.as_path(), value)),
                    Err(error) => faults.push(Fault {
                        place: entry.place.clone(),
                        field: field(newest, payload),
                        text: error.to_string(),
                    }),
                }
            }
        }
        match self.changes(batch, plan, &Values { stored }, newest).await {
            Ok(changes) => faults.extend(replaced::faults(newest, &changes).await?),
            Err(Refused::Faults(more)) => faults.extend(more),
            Err(Refused::Failed(error)) => return Err(error),
        }
        Ok(faults)
    }

    /// What a plan does to the table, once it is known what each value is stored as.
    async fn changes(
        &self,
        batch: &Batch,
        plan: &Plan,
        values: &Values<'_>,
        newest: &Arc<Snapshot>,
    ) -> Result<Changes, Refused> {
        let mut changes = Changes::default();
        let mut new = Vec::new();
        let mut begun = None;
        for entry in &plan.entries {
            let (Target::Replace(row) | Target::Delete(row)) = entry.target else {
                new.push(new_row(entry, values));
                continue;
            };
            let begun: &Arc<Snapshot> = match &begun {
                Some(begun) => begun,
                None => begun.insert(self.begun(batch).await?),
            };
            if !begun.is_unchanged_in(newest, row).await? {
                return Err(moved_on(&entry.place, row, begun).into());
            }
            let address = begun.address(row).await?;
            if entry.target == Target::Delete(row) {
                changes.deleted.insert(address);
                continue;
            }
            let removed = BTreeSet::new();
            changes.replaced.push(Change { address, row: new_row(entry, values), removed });
        }
        changes.appended = write::append(newest, &new).map_err(Refused::Faults)?;
        Ok(changes)
    }

    /// What each value is stored as, after everything was uploaded. References to others' objects
    /// that are to be copied are copied here.
    pub(super) async fn values<'a>(
        &self,
        work: &Work,
        plan: &'a Plan,
        newest: &Arc<Snapshot>,
    ) -> Result<Values<'a>> {
        let mut stored = HashMap::new();
        for payload in plan.payloads() {
            let value = match &payload.source {
                Source::File { len: 0, .. } => Stored::Empty,
                Source::File { len, fingerprint } => {
                    let place = work.state(|state| state.stored.get(fingerprint).cloned());
                    let (object, offset) = place.ok_or_else(|| {
                        let text =
                            format!("{} changed while it was committed", payload.file.display());
                        Error::new(Kind::Busy, text)
                    })?;
                    of_file(&object, offset, *len)
                }
                Source::Reference(reference) => adopted(reference),
                Source::Uri { uri, range } => match self.options.externals {
                    Externals::Reference => external(newest, uri, *range)?,
                    Externals::Ingest => {
                        let copied = self.ingest(work, newest, uri, *range).await;
                        copied.map_err(|e| e.at(payload.file.display()))?
                    }
                },
            };
            stored.insert(payload.file.as_path(), value);
        }
        Ok(Values { stored })
    }

    /// Copies an object of somebody else into the table.
    async fn ingest(
        &self,
        work: &Work,
        newest: &Snapshot,
        uri: &str,
        range: Option<(u64, u64)>,
    ) -> Result<Stored> {
        let source = newest.foreign(uri).await?;
        let before = self.table.opener.look(&source).await?;
        let interval = match range {
            Some((offset, len)) => {
                Interval { offset: ObjectOffset::new(offset), len: ByteLen::new(len) }
            }
            None => Interval { offset: ObjectOffset::new(0), len: before.length },
        };
        if interval.len.get() == 0 {
            return Ok(Stored::Empty);
        }
        let object = upload::object_name();
        work.write(Step::Opened { object: object.clone() })?;
        let piece = Piece::Object(source.clone(), interval);
        self.deposit.put(&object, &[piece], &work.progress).await?;
        if self.table.opener.look(&source).await? != before {
            let text = format!("{} was changed while it was copied; commit again", source.uri);
            return Err(Error::new(Kind::Payload, text));
        }
        Ok(of_file(&object, 0, interval.len.get()))
    }

    /// What a link to somebody else's object would be stored as, if it may.
    fn check_uri(&self, newest: &Snapshot, uri: &str, range: Option<(u64, u64)>) -> Result<Stored> {
        match self.options.externals {
            Externals::Reference => external(newest, uri, range),
            Externals::Ingest => {
                self.deposit.limits().check(range.map_or(0, |(_, len)| len))?;
                Ok(of_file(TO_COME, 0, 1))
            }
        }
    }

    /// Writes the files of a change that no version names yet.
    pub(super) async fn prepare(
        &self,
        batch: &Batch,
        plan: &Plan,
        values: &Values<'_>,
        newest: &Arc<Snapshot>,
    ) -> Result<Prepared> {
        match self.changes(batch, plan, values, newest).await {
            Ok(changes) => self.table.prepare(newest, changes).await,
            Err(Refused::Failed(error)) => Err(error),
            Err(Refused::Faults(faults)) => Err(super::order::invalid(&plan.batch, &faults)),
        }
    }
}

fn external(newest: &Snapshot, uri: &str, range: Option<(u64, u64)>) -> Result<Stored> {
    let interval = range.map(|(offset, len)| Interval {
        offset: ObjectOffset::new(offset),
        len: ByteLen::new(len),
    });
    newest.external_target(uri, interval)
}

fn moved_on(place: &str, row: RowIndex, begun: &Snapshot) -> Error {
    let text = format!(
        "{place}: row {row} of version {}, on which the batch was begun, was changed or moved since; look at the row, make a new batch, and move this entry into it",
        begun.id.version
    );
    Error::new(Kind::Busy, text)
}

fn new_row(entry: &Entry, values: &Values<'_>) -> NewRow {
    let placed = |payload: &Payload| {
        let stored = values.stored.get(payload.file.as_path())?.clone();
        Some(
            payload
                .places
                .iter()
                .map(move |place| (place.clone(), stored.clone()))
                .collect::<Vec<_>>(),
        )
    };
    NewRow {
        place: entry.place.clone(),
        json: entry.json.clone(),
        blobs: entry.payloads.iter().filter_map(placed).flatten().collect(),
        named: entry.names.clone(),
    }
}

fn of_file(object: &str, offset: u64, len: u64) -> Stored {
    if len == 0 {
        return Stored::Empty;
    }
    let interval = Interval { offset: ObjectOffset::new(offset), len: ByteLen::new(len) };
    Stored::Managed { base: None, path: object.to_owned(), interval }
}

fn adopted(reference: &Reference) -> Stored {
    Stored::Managed {
        base: reference.base,
        path: reference.path.clone(),
        interval: Interval {
            offset: ObjectOffset::new(reference.offset),
            len: ByteLen::new(reference.len),
        },
    }
}

fn field(snapshot: &Snapshot, payload: &Payload) -> String {
    snapshot.leaf(payload.leaf).map_or_else(|_| String::new(), |leaf| leaf.display.clone())
}
