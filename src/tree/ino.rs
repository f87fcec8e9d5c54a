//! Inode numbers: computed from what they name, decoded when the kernel brings them back.
//!
//! ```text
//!  bit 63   62 ........ 38   37 ........................... 0
//!  +-----+---------------+-------------------------------+
//!  |  0  |  slot (25)    |  local (38)                   |
//!  +-----+---------------+-------------------------------+
//!  slot 0           local = a fixed number below 64, or a hash of (kind, name) for `latest`
//!                           of a branch, a tag, a branch directory, the refusal that a batch shows
//!  slot of (S, 0)   local = (row + 1) << item_bits | item     item 0 directory, 1 row.json,
//!                           block 0: the version directory (0) and .version.json (1)
//!                           item = 2 + ordinal * leaves + leaf
//!  slot of (S, k)   local as above, with the items k << item_bits and up
//!
//!  bit 63 set       what is beneath staging/: the other bits are the file's number on the staging disk
//! ```
//!
//! Difficulties, and what answers each:
//!
//! 1. A number must survive a remount and never name other content: a slot is the SHA-256 of the
//!    snapshot's identity ([`SnapshotId`]), which includes the manifest's `e_tag`. Two snapshots whose
//!    hashes meet (one pair in 3,400 for 100 versions) are told apart by rehashing with a counter,
//!    so only then does a number depend on which of the two was seen first.
//! 2. Numbers for rows and for list elements compete for 38 bits: a snapshot's own row count
//!    decides ([`Layout`]). Elements past what is left move to a further slot of the same snapshot.
//! 3. Memory: one entry per snapshot seen, per tag, per branch and per refusal ([`Numbers`]); rows and
//!    values have none.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use sha2::{Digest, Sha256};

use super::{LeafIndex, Node, Slot, SnapshotId};
use crate::error::{Error, Kind, Result};
use crate::units::{Ino, Ordinal, RowIndex};

const LOCAL_BITS: u32 = 38;
const SLOT_BITS: u32 = 25;
const LOCAL_MASK: u64 = (1 << LOCAL_BITS) - 1;
/// Numbers of slot 0 below this are fixed; hashes of names lie above.
const FIXED: u64 = 64;
/// Items of a row (or of block 0) before the first value.
const FIRST_VALUE: u64 = 2;
/// At least directory, `row.json` and six values share a block.
const MIN_ITEM_BITS: u32 = 3;

const ROOT: u64 = 1;
const LATEST: u64 = 2;
const TAGS: u64 = 3;
const BRANCHES: u64 = 4;
const CONTROL: u64 = 5;
const STATUS: u64 = 6;
const METRICS: u64 = 7;
const STAGING: u64 = 8;
const COMMIT: u64 = 9;
const COMMITS: u64 = 10;
/// Set in the numbers of everything beneath `staging/`.
const STAGED: u64 = 1 << 63;

/// The number of `staging/` itself.
pub const STAGING_ROOT: Ino = Ino::new(STAGING);

/// The number of something beneath `staging/`, from its inode number on the staging disk. No file
/// system gives a file a number with the highest bit set.
pub fn staged(on_disk: u64) -> Ino {
    Ino::new(STAGED | on_disk)
}

/// How the local bits of one snapshot are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    item_bits: u32,
    leaves: u64,
}

impl Layout {
    /// The layout of a snapshot of `rows` live rows and `leaves` Blob fields.
    ///
    /// # Errors
    /// [`Kind::Table`] for more than 2^35 rows.
    pub fn new(rows: u64, leaves: usize) -> Result<Self> {
        let row_bits = u64::BITS - rows.leading_zeros();
        if row_bits + MIN_ITEM_BITS > LOCAL_BITS {
            let most = 1_u64 << (LOCAL_BITS - MIN_ITEM_BITS);
            let text = format!("{rows} rows are more than the {most} that can be numbered");
            return Err(Error::new(Kind::Table, text));
        }
        Ok(Self { item_bits: LOCAL_BITS - row_bits, leaves: crate::units::u64_of(leaves).max(1) })
    }

    /// Block, page and item within the page.
    fn place(&self, block: u64, item: u64) -> (u64, u64) {
        let local = (block << self.item_bits) | (item & ((1 << self.item_bits) - 1));
        (item >> self.item_bits, local)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Page {
    snapshot: SnapshotId,
    number: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Named {
    Latest(Arc<str>),
    Tag(Arc<str>),
    Branch(Arc<str>),
    /// By the number of the batch that shows it.
    Refusal(Ino),
}

#[derive(Default)]
struct Tables {
    slot_of: HashMap<Page, u32>,
    page_in: HashMap<u32, Page>,
    layouts: HashMap<u32, Layout>,
    number_of: HashMap<Named, u64>,
    named_by: HashMap<u64, Named>,
}

/// The numbers of one mount.
#[derive(Default)]
pub struct Numbers {
    tables: RwLock<Tables>,
}

impl Numbers {
    /// The slot of a snapshot, the same for every caller and every mount (difficulty 1).
    pub fn slot(&self, snapshot: &SnapshotId) -> Slot {
        self.page_slot(&Page { snapshot: snapshot.clone(), number: 0 })
    }

    /// The snapshot of a slot; `None` for a slot that this mount never gave out.
    pub fn snapshot(&self, slot: Slot) -> Option<SnapshotId> {
        self.read(|t| t.page_in.get(&slot.0).map(|page| page.snapshot.clone()))
    }

    /// Records how a snapshot's numbers are divided; must precede numbers for its rows.
    pub fn set_layout(&self, snapshot: &SnapshotId, layout: Layout) {
        let slot = self.slot(snapshot);
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        tables.layouts.insert(slot.0, layout);
    }

    /// The number of a node.
    ///
    /// # Errors
    /// [`Kind::Internal`] for a row or value whose snapshot has no layout yet.
    pub fn number(&self, node: &Node) -> Result<Ino> {
        let fixed = |n| Ok(Ino::new(n));
        match node {
            Node::Root => fixed(ROOT),
            Node::Latest(None) => fixed(LATEST),
            Node::Tags => fixed(TAGS),
            Node::Branches => fixed(BRANCHES),
            Node::Control => fixed(CONTROL),
            Node::Status => fixed(STATUS),
            Node::Metrics => fixed(METRICS),
            Node::Staging => Ok(STAGING_ROOT),
            Node::Commit => fixed(COMMIT),
            Node::Commits => fixed(COMMITS),
            Node::Staged(ino) => Ok(*ino),
            Node::Refusal(batch) => Ok(self.named(Named::Refusal(*batch))),
            Node::Latest(Some(branch)) => Ok(self.named(Named::Latest(branch.clone()))),
            Node::Tag(tag) => Ok(self.named(Named::Tag(tag.clone()))),
            Node::Branch(branch) => Ok(self.named(Named::Branch(branch.clone()))),
            Node::Version(slot) => Ok(join(slot.0, 0)),
            Node::VersionJson(slot) => Ok(join(slot.0, 1)),
            Node::Row(slot, row) => self.item(*slot, *row, |_| 0),
            Node::RowJson(slot, row) => self.item(*slot, *row, |_| 1),
            Node::Value(slot, row, leaf, ordinal) => self.item(*slot, *row, |layout| {
                FIRST_VALUE + ordinal.get() * layout.leaves + leaf.get()
            }),
        }
    }

    /// What a number names.
    ///
    /// # Errors
    /// [`Kind::Stale`] for a number that this mount never gave out.
    pub fn node(&self, ino: Ino) -> Result<Node> {
        if ino.get() & STAGED != 0 {
            return Ok(Node::Staged(ino));
        }
        let slot = u32::try_from(ino.get() >> LOCAL_BITS).map_err(|_| unknown(ino))?;
        let local = ino.get() & LOCAL_MASK;
        if slot == 0 {
            return self.static_node(ino, local);
        }
        let found = self.read(|t| {
            let page = t.page_in.get(&slot)?;
            let first = match page.number {
                0 => slot,
                _ => *t.slot_of.get(&page_zero(page))?,
            };
            Some((first, page.number, t.layouts.get(&first).copied()))
        });
        let (first, page, layout) = found.ok_or_else(|| unknown(ino))?;
        let slot = Slot(first);
        match (page, local, layout) {
            (0, 0, _) => Ok(Node::Version(slot)),
            (0, 1, _) => Ok(Node::VersionJson(slot)),
            (_, _, None) => Err(unknown(ino)),
            (page, local, Some(layout)) => {
                item_node(slot, page, local, layout).ok_or_else(|| unknown(ino))
            }
        }
    }

    fn static_node(&self, ino: Ino, local: u64) -> Result<Node> {
        Ok(match local {
            ROOT => Node::Root,
            LATEST => Node::Latest(None),
            TAGS => Node::Tags,
            BRANCHES => Node::Branches,
            CONTROL => Node::Control,
            STATUS => Node::Status,
            METRICS => Node::Metrics,
            STAGING => Node::Staging,
            COMMIT => Node::Commit,
            COMMITS => Node::Commits,
            _ => {
                match self.read(|t| t.named_by.get(&local).cloned()).ok_or_else(|| unknown(ino))? {
                    Named::Latest(branch) => Node::Latest(Some(branch)),
                    Named::Tag(tag) => Node::Tag(tag),
                    Named::Branch(branch) => Node::Branch(branch),
                    Named::Refusal(batch) => Node::Refusal(batch),
                }
            }
        })
    }

    fn item(&self, slot: Slot, row: RowIndex, item: impl FnOnce(&Layout) -> u64) -> Result<Ino> {
        let known = self.read(|t| t.layouts.get(&slot.0).copied());
        let layout = known.ok_or_else(|| {
            Error::new(Kind::Internal, format!("slot {} has no inode layout", slot.0))
        })?;
        let (page, local) = layout.place(row.get() + 1, item(&layout));
        if page == 0 {
            return Ok(join(slot.0, local));
        }
        let snapshot = self.snapshot(slot).ok_or_else(|| unknown(join(slot.0, local)))?;
        Ok(join(self.page_slot(&Page { snapshot, number: page }).0, local))
    }

    fn page_slot(&self, page: &Page) -> Slot {
        if let Some(slot) = self.read(|t| t.slot_of.get(page).copied()) {
            return Slot(slot);
        }
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = tables.slot_of.get(page) {
            return Slot(*slot);
        }
        let branch = page.snapshot.branch.as_deref().unwrap_or_default();
        let free = |tables: &Tables, attempt: u64| {
            let version = page.snapshot.version.get().to_le_bytes();
            let hash = hash(&[
                b"slot",
                branch.as_bytes(),
                &version,
                page.snapshot.manifest.as_bytes(),
                &page.number.to_le_bytes(),
                &attempt.to_le_bytes(),
            ]);
            let slot = u32::try_from(hash >> (u64::BITS - SLOT_BITS)).unwrap_or(0);
            (slot != 0 && !tables.page_in.contains_key(&slot)).then_some(slot)
        };
        let slot = (0..).find_map(|attempt| free(&tables, attempt)).unwrap_or(0);
        tables.slot_of.insert(page.clone(), slot);
        tables.page_in.insert(slot, page.clone());
        Slot(slot)
    }

    fn named(&self, named: Named) -> Ino {
        if let Some(number) = self.read(|t| t.number_of.get(&named).copied()) {
            return Ino::new(number);
        }
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        let (kind, name) = match &named {
            Named::Latest(name) => ("latest", name.to_string()),
            Named::Tag(name) => ("tag", name.to_string()),
            Named::Branch(name) => ("branch", name.to_string()),
            Named::Refusal(batch) => ("refusal", batch.to_string()),
        };
        let taken_by_other = |tables: &Tables, number: &u64| {
            *number < FIXED || tables.named_by.get(number).is_some_and(|other| *other != named)
        };
        // A number of attempts that no set of names can use up.
        let number = (0..u64::from(u32::MAX))
            .map(|attempt| {
                hash(&[kind.as_bytes(), name.as_bytes(), &attempt.to_le_bytes()]) & LOCAL_MASK
            })
            .find(|number| !taken_by_other(&tables, number))
            .unwrap_or(FIXED);
        tables.number_of.insert(named.clone(), number);
        tables.named_by.insert(number, named);
        Ino::new(number)
    }

    fn read<T>(&self, look: impl FnOnce(&Tables) -> T) -> T {
        look(&self.tables.read().unwrap_or_else(PoisonError::into_inner))
    }
}

fn page_zero(page: &Page) -> Page {
    Page { snapshot: page.snapshot.clone(), number: 0 }
}

fn item_node(slot: Slot, page: u64, local: u64, layout: Layout) -> Option<Node> {
    let row = RowIndex::new((local >> layout.item_bits).checked_sub(1)?);
    let item = (page << layout.item_bits) | (local & ((1 << layout.item_bits) - 1));
    Some(match item {
        0 => Node::Row(slot, row),
        1 => Node::RowJson(slot, row),
        _ => {
            let value = item - FIRST_VALUE;
            let leaf = LeafIndex::new(value % layout.leaves);
            Node::Value(slot, row, leaf, Ordinal::new(value / layout.leaves))
        }
    })
}

fn join(slot: u32, local: u64) -> Ino {
    Ino::new((u64::from(slot) << LOCAL_BITS) | local)
}

fn unknown(ino: Ino) -> Error {
    Error::new(Kind::Stale, format!("inode {ino} is not of this mount"))
}

/// The first 8 bytes of a SHA-256 over length-prefixed parts: stable across builds and machines.
fn hash(parts: &[&[u8]]) -> u64 {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update(crate::units::u64_of(part.len()).to_le_bytes());
        digest.update(part);
    }
    let mut first = [0; 8];
    first.copy_from_slice(&digest.finalize()[..8]);
    u64::from_be_bytes(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Version;
    use proptest::prelude::*;

    fn snapshot(version: u64, manifest: &str) -> SnapshotId {
        SnapshotId { branch: None, version: Version::new(version), manifest: manifest.into() }
    }

    fn opened(numbers: &Numbers, id: &SnapshotId, rows: u64, leaves: usize) -> Slot {
        numbers.set_layout(id, Layout::new(rows, leaves).unwrap());
        numbers.slot(id)
    }

    #[test]
    fn numbers_are_equal_in_every_mount_and_differ_for_a_recreated_table() {
        let (here, there) = (Numbers::default(), Numbers::default());
        let old = snapshot(1, "etag-a");
        let a = opened(&here, &old, 1000, 2);
        opened(&there, &snapshot(9, "other"), 5, 1);
        let b = opened(&there, &old, 1000, 2);
        let node = |slot| Node::Value(slot, RowIndex::new(17), LeafIndex::new(1), Ordinal::new(0));
        assert_eq!(here.number(&node(a)).unwrap(), there.number(&node(b)).unwrap());
        let recreated = opened(&here, &snapshot(1, "etag-b"), 1000, 2);
        assert_ne!(here.number(&node(a)).unwrap(), here.number(&node(recreated)).unwrap());
    }

    #[test]
    fn a_number_of_no_node_is_stale() {
        let numbers = Numbers::default();
        for ino in [0, 11, 63, 1 << 40, (1 << 63) - 1] {
            assert_eq!(numbers.node(Ino::new(ino)).unwrap_err().kind(), Kind::Stale);
        }
    }

    #[test]
    fn more_rows_than_numbers_are_refused() {
        assert!(Layout::new((1 << 35) - 1, 1).is_ok());
        assert_eq!(Layout::new(1 << 35, 1).unwrap_err().kind(), Kind::Table);
    }

    #[test]
    fn meeting_slots_are_told_apart() {
        let numbers = Numbers::default();
        let slots: std::collections::HashSet<_> =
            (0..40_000).map(|v| numbers.slot(&snapshot(v, "m"))).collect();
        assert_eq!(slots.len(), 40_000);
    }

    proptest! {
        #[test]
        fn every_node_comes_back(rows in 1_u64..(1 << 35), at: u64, leaves in 1_usize..40,
                                 leaf in 0_u64..40, ordinal in 0_u64..1_000_000_000, version: u64) {
            let numbers = Numbers::default();
            let slot = opened(&numbers, &snapshot(version, "m"), rows, leaves);
            let row = RowIndex::new(at % rows);
            let leaf = LeafIndex::new(leaf % u64::try_from(leaves).unwrap());
            for node in [
                Node::Version(slot), Node::VersionJson(slot), Node::Row(slot, row), Node::RowJson(slot, row),
                Node::Value(slot, row, leaf, Ordinal::new(ordinal)), Node::Tag("t".into()),
                Node::Branch("t".into()), Node::Latest(Some("t".into())), Node::Latest(None), Node::Root,
                Node::Staging, Node::Commit, Node::Commits, Node::Staged(staged(at >> 1)),
                Node::Refusal(staged(at >> 1)),
            ] {
                let number = numbers.number(&node).unwrap();
                prop_assert_eq!(number.get() >= 1 << 63, matches!(node, Node::Staged(_)));
                prop_assert_eq!(numbers.node(number).unwrap(), node);
            }
        }
    }
}
