//! Files of a batch to objects: large ones alone, small ones many to an object; and whether all that
//! a commit is going to name is there.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use uuid::Uuid;

use super::{Publisher, Work};
use crate::error::{Error, Kind, Result};
use crate::staging::Reference;
use crate::staging::journal::{Journal, Step};
use crate::staging::plan::{Plan, Source};
use crate::store::{Deposit, Fingerprint, Piece, Progress};

/// Files up to this many bytes share an object: where Lance too begins to give a value an object of
/// its own.
const SMALL: u64 = 4 << 20;
/// What a shared object has at the most, in bytes: a whole number of parts of an upload, small
/// enough that deleting its rows gives room back one day, large enough that a thousand small files
/// are one object.
pub const PACK: u64 = 64 << 20;
/// Objects that are made at once. Their parts share one budget of memory.
const AT_ONCE: usize = 4;

/// How old an object may be that a commit is going to name. A cleanup takes what no version names
/// and is older than seven days (lance 14.0.2, `L:dataset/cleanup.rs`), and may do so between our look
/// at it and the manifest: a day is enough for all that comes between, and for clocks that differ.
const OLDEST: Duration = Duration::from_hours(6 * 24);
/// How often what was uploaded is looked at again.
const ROUNDS: u32 = 5;
/// How many objects are looked at at once.
const LOOKS_AT_ONCE: usize = 16;

/// A file that has to be stored.
pub type Waiting = (PathBuf, Fingerprint);

/// Files that become one object.
pub type Group = Vec<Waiting>;

/// Puts files into groups, each of which becomes one object.
pub fn groups(files: impl IntoIterator<Item = Waiting>) -> Vec<Group> {
    let (small, large): (Vec<_>, Vec<_>) =
        files.into_iter().partition(|(_, fingerprint)| fingerprint.len <= SMALL);
    let mut groups: Vec<Group> = large.into_iter().map(|file| vec![file]).collect();
    let mut group = Group::new();
    let mut len = 0;
    for (path, fingerprint) in small {
        if len + fingerprint.len > PACK {
            groups.push(std::mem::take(&mut group));
            len = 0;
        }
        len += fingerprint.len;
        group.push((path, fingerprint));
    }
    if !group.is_empty() {
        groups.push(group);
    }
    groups
}

/// Whether a group is as large as it gets.
pub fn is_full(group: &Group) -> bool {
    group.iter().map(|(_, print)| print.len).sum::<u64>() > PACK - SMALL
        || group.iter().any(|(_, print)| print.len > SMALL)
}

/// The name of a new object, relative to the table's root (spec, "Managed Object Layout").
pub fn object_name() -> Arc<str> {
    format!("_blobs/{}.blob", Uuid::new_v4()).into()
}

/// Makes an object of each group and writes it down in the journal.
///
/// # Errors
/// As [`Deposit::put`]; groups that were stored before the failure stay written down.
pub async fn store(
    deposit: &Deposit,
    journal: &Mutex<Journal>,
    groups: Vec<Group>,
    progress: &Progress,
) -> Result<()> {
    // A failure ends the rest, but nothing in its middle: an upload that is dropped leaves parts in
    // the store that nobody takes away.
    let failure: Mutex<Option<Error>> = Mutex::new(None);
    let failure = &failure;
    let lock = || failure.lock().unwrap_or_else(PoisonError::into_inner);
    futures::stream::iter(groups)
        .for_each_concurrent(AT_ONCE, |group| async move {
            if lock().is_some() {
                return;
            }
            if let Err(error) = store_group(deposit, journal, group, progress).await {
                lock().get_or_insert(error);
            }
        })
        .await;
    lock().take().map_or(Ok(()), Err)
}

async fn store_group(
    deposit: &Deposit,
    journal: &Mutex<Journal>,
    group: Group,
    progress: &Progress,
) -> Result<()> {
    let object = object_name();
    let step = |step| journal.lock().unwrap_or_else(PoisonError::into_inner).write(step);
    step(Step::Opened { object: object.clone() })?;
    let pieces: Vec<Piece> =
        group.iter().map(|(path, print)| Piece::File(path.clone(), *print)).collect();
    deposit.put(&object, &pieces, progress).await?;
    let mut offset = 0;
    let place = |(_, print): &Waiting| {
        let at = offset;
        offset += print.len;
        (*print, at)
    };
    let files = group.iter().map(place).collect();
    step(Step::Stored { object, files })
}

impl Publisher {
    /// Uploads every file that has not been, or whose object is not whole any more or so old that the
    /// table's cleanup could take it before a version names it. As that may take hours, everything is
    /// looked at again afterwards, until nothing is missing.
    pub(super) async fn upload_rest(&self, work: &Work, plan: &Plan) -> Result<()> {
        for _ in 0..ROUNDS {
            if self.upload_missing(work, plan).await? == 0 {
                return Ok(());
            }
        }
        let text = "the store loses what is uploaded: is a cleanup removing unverified files?";
        Err(Error::new(Kind::Payload, text))
    }

    /// Uploads what is missing, and gives how many files that were.
    async fn upload_missing(&self, work: &Work, plan: &Plan) -> Result<usize> {
        let files: Vec<_> = plan
            .payloads()
            .filter_map(|payload| match &payload.source {
                Source::File { len: 1.., fingerprint } => Some((&payload.file, *fingerprint)),
                _ => None,
            })
            .collect();
        let stored = |print: &Fingerprint| work.state(|state| state.stored.get(print).cloned());
        let mut ends: HashMap<Arc<str>, u64> = HashMap::new();
        for (_, print) in &files {
            if let Some((object, offset)) = stored(print) {
                let end = ends.entry(object).or_default();
                *end = (*end).max(offset + print.len);
            }
        }
        let whole = self.whole(ends).await?;
        let mut waiting = Vec::new();
        for (path, print) in &files {
            if !stored(print).is_some_and(|(object, _)| whole.contains(&object)) {
                waiting.push(((*path).clone(), *print));
            }
        }
        let total: u64 = files.iter().map(|(_, print)| print.len).sum();
        let left: u64 = waiting.iter().map(|(_, print)| print.len).sum();
        work.begin_upload(total, total - left);
        let missing = waiting.len();
        store(&self.deposit, &work.journal, groups(waiting), &work.progress).await?;
        Ok(missing)
    }

    /// Whether the objects that a batch adopts are there, and as long as they have to be.
    pub(super) async fn check_references(&self, plan: &Plan) -> Result<()> {
        let mut ends: BTreeMap<_, (u64, &Reference)> = BTreeMap::new();
        for payload in plan.payloads() {
            let Source::Reference(reference) = &payload.source else { continue };
            let end = reference.offset.saturating_add(reference.len);
            let known = ends.entry((reference.base, &reference.path)).or_insert((end, reference));
            known.0 = known.0.max(end);
        }
        futures::stream::iter(ends.into_values().map(Ok))
            .try_for_each_concurrent(LOOKS_AT_ONCE, |(end, reference)| async move {
                let object = self.table.referred(reference).await?;
                // Looked at now: what was read of it before does not say that it is there.
                let len = self.table.opener.look(&object).await?.length.get();
                if len >= end {
                    return Ok(());
                }
                let text = format!(
                    "{} has {len} bytes, and {end} are referred to by a copy; copy the value again",
                    object.uri
                );
                Err(Error::new(Kind::Payload, text))
            })
            .await
    }

    /// Those of these objects that are as long as they have to be, and not too old.
    async fn whole(&self, ends: HashMap<Arc<str>, u64>) -> Result<HashSet<Arc<str>>> {
        let looked = futures::stream::iter(ends).map(|(object, end)| async move {
            let seen = self.deposit.look(&object).await?;
            let is_usable = seen.is_some_and(|seen| seen.len >= end && seen.age() < OLDEST);
            Ok(is_usable.then_some(object))
        });
        let looked: Vec<_> = looked.buffer_unordered(LOOKS_AT_ONCE).try_collect().await?;
        Ok(looked.into_iter().flatten().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(lengths: &[u64]) -> Vec<Waiting> {
        let file = |(at, len): (usize, &u64)| {
            let inode = u64::try_from(at).unwrap();
            let print = Fingerprint { inode, len: *len, mtime: (0, 0), ctime: (0, 0) };
            (PathBuf::from(at.to_string()), print)
        };
        lengths.iter().enumerate().map(file).collect()
    }

    #[test]
    fn small_files_share_objects_and_large_ones_do_not() {
        let sizes =
            |lengths: &[u64]| groups(files(lengths)).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(sizes(&[]), Vec::<usize>::new());
        assert_eq!(sizes(&[1, SMALL + 1, SMALL, 7]), [1, 3]);
        assert_eq!(sizes(&vec![20_000; 10_000]), [3355, 3355, 3290]);
        let whole = vec![SMALL; 16];
        assert_eq!(sizes(&whole), [16], "a pack is filled to its last byte");
        assert_eq!(sizes(&[SMALL; 17]), [16, 1]);
    }
}
