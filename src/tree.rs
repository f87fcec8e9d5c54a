//! The directory model: what nodes there are, how they are called and numbered. No I/O.
//!
//! ```text
//! <root>/                                  Node::Root
//!   latest -> 57                           Node::Latest(branch)
//!   57/                                    Node::Version(snapshot)
//!     .version.json                        Node::VersionJson(snapshot)
//!     1234/                                Node::Row(snapshot, row)
//!       image.bin  frames[2].bin           Node::Value(snapshot, row, leaf, ordinal)
//!       row.json                           Node::RowJson(snapshot, row)
//!   tags/<tag> -> ../57                    Node::Tags, Node::Tag
//!   branches/<branch>/…                    Node::Branches, Node::Branch
//!   staging/…                              Node::Staging, Node::Staged(number)
//!   staging/<batch>/COMMIT-REFUSED.txt     Node::Refusal(number)
//!   commit/                                Node::Commit
//!   .lancefs/status.json, metrics          Node::Control, Node::Status, Node::Metrics
//!   .lancefs/commits.jsonl                 Node::Commits
//! ```
//!
//! Difficulties, and what answers each:
//!
//! 1. Ten million files must cost no memory, so an inode number is computed and decoded, not
//!    allocated: [`ino`].
//! 2. Distinct fields never share a file name: [`Shape`].

pub mod ino;
mod shape;

use std::fmt;
use std::sync::Arc;

use crate::units::{Ino, Ordinal, RowIndex, Version};

pub use shape::{Found, LeafIndex, LeafName, Shape, Step};

/// One version of one branch of one incarnation of the table. Two snapshots with the same identity
/// have the same bytes for ever.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SnapshotId {
    /// The branch, `None` for main.
    pub branch: Option<Arc<str>>,
    /// The version's number on that branch.
    pub version: Version,
    /// What tells a recreated manifest of the same number apart: its `e_tag`, or size and time.
    pub manifest: Arc<str>,
}

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(branch) = &self.branch {
            write!(f, "{branch}/")?;
        }
        write!(f, "{}@{}", self.version, self.manifest)
    }
}

/// A snapshot's place in inode numbers (see [`ino`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot(pub(crate) u32);

/// What a directory entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// A symbolic link.
    Symlink,
}

/// One thing in the mounted tree.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Node {
    /// The mountpoint.
    Root,
    /// The symlink to a branch's newest version; `None` is main's, at the root.
    Latest(Option<Arc<str>>),
    /// `tags/`.
    Tags,
    /// A tag, a symlink.
    Tag(Arc<str>),
    /// `branches/`.
    Branches,
    /// A branch's directory.
    Branch(Arc<str>),
    /// `.lancefs/`.
    Control,
    /// `.lancefs/status.json`.
    Status,
    /// `.lancefs/metrics`.
    Metrics,
    /// `.lancefs/commits.jsonl`.
    Commits,
    /// `staging/`.
    Staging,
    /// Something beneath `staging/`, by its own number.
    Staged(Ino),
    /// `COMMIT-REFUSED.txt` in a batch, by the batch's number.
    Refusal(Ino),
    /// `commit/`.
    Commit,
    /// A version's directory.
    Version(Slot),
    /// `.version.json`.
    VersionJson(Slot),
    /// A row's directory.
    Row(Slot, RowIndex),
    /// `row.json`.
    RowJson(Slot, RowIndex),
    /// A value's file.
    Value(Slot, RowIndex, LeafIndex, Ordinal),
}

/// The name of the symlink to the newest version.
pub const LATEST: &str = "latest";
/// The name of the directory of tags.
pub const TAGS: &str = "tags";
/// The name of the directory of branches.
pub const BRANCHES: &str = "branches";
/// The name of the directory of batches.
pub const STAGING: &str = "staging";
/// The name of the directory that a batch is moved into to commit it.
pub const COMMIT: &str = "commit";
/// The file in a batch whose commit found faults that says which.
pub const REFUSED: &str = "COMMIT-REFUSED.txt";
/// The name of the directory about the mount itself.
pub const CONTROL: &str = ".lancefs";
/// The file in [`CONTROL`] that says what is mounted.
pub const STATUS: &str = "status.json";
/// The file in [`CONTROL`] with figures in Prometheus's text format.
pub const METRICS: &str = "metrics";
/// The file in [`CONTROL`] with a line for each attempt to commit.
pub const COMMITS: &str = "commits.jsonl";
/// The file in a version's directory that describes the version.
pub const VERSION_JSON: &str = ".version.json";
/// The file in a row's directory with the values of its other columns.
pub const ROW_JSON: &str = "row.json";
/// How large a `row.json` may be, in bytes, where it is read and where it is staged: larger ones are
/// no text that a program could take, and several at once would be more memory than there is.
pub const ROW_JSON_MAX: u64 = 64 << 20;
