//! Batches: files that are to become rows, kept on the staging disk until they are committed.
//!
//! ```text
//! <staging folder>/            one for each table (and for each mount that is there at once)
//!   lock                       locked (flock) by the mount that uses the folder
//!   key                        what our attributes are marked with: `mark`
//!   table                      the table's URI, for people
//!   tree/<batch>/…             what the mount shows as staging/; a batch is a directory or one file
//!   journal/<uuid>             the steps of a batch, one JSON line each: `journal`
//!   gone/<uuid>                batches that are published and being deleted
//!   commits.jsonl              what the mount shows as .lancefs/commits.jsonl
//!
//! extended attributes on the staging disk, which the mount does not show
//!   user.lancefs.batch         on a batch: [`Origin`], marked
//!   user.lancefs.reference     on a file whose bytes are still in the table: [`Reference`], marked
//! ```
//!
//! All of it is this user's alone, whatever the umask (`private`): the folder is 0700, and what the
//! mount shows of `tree/` has the modes that its users gave it.
//!
//! 1. A batch must survive everything: it is an ordinary tree on a local disk, and stays there until
//!    a version that holds it is published: [`spool`].
//! 2. Names become rows and fields, once, at the border: [`plan`].
//! 3. Payloads are uploaded before the commit, and again only if they changed: `upload`.
//! 4. Whatever happens, a batch is committed once or is still whole: [`journal`].
//! 5. The disk may hold what others brought there: [`mark`] tells our own words from theirs.
//!
//! Nothing here commits, and nothing here knows lance: `publish` puts the parts in order.

pub mod commit;
pub mod crash;
pub mod journal;
pub mod mark;
pub mod plan;
pub mod spool;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::tree::SnapshotId;

/// The attribute of a batch that holds its [`Origin`].
pub const ORIGIN: &str = "user.lancefs.batch";
/// The attribute of a staged file that holds its [`Reference`].
pub const REFERENCE: &str = "user.lancefs.reference";

/// Where a batch comes from; written when it is made, it survives renames and restarts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Names the batch in the journal and in the transaction that publishes it.
    pub batch: Uuid,
    /// The newest version of main when the batch was begun: `@<row>` entries count its rows.
    pub version: u64,
    /// The identity of that version's manifest (`tree::SnapshotId::manifest`).
    pub manifest: String,
}

impl Origin {
    /// A new batch that is begun on a version of main.
    pub fn begun_on(version: &SnapshotId) -> Self {
        Self {
            batch: Uuid::new_v4(),
            version: version.version.get(),
            manifest: version.manifest.to_string(),
        }
    }
}

/// A staged file without bytes: an interval of an object of the table that the commit adopts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reference {
    /// The version of main that it was copied from; protected by a tag until the batch is gone.
    pub version: u64,
    /// The identity of that version's manifest.
    pub manifest: String,
    /// The base that `path` is relative to; `None` is the table's root.
    pub base: Option<u32>,
    /// The object, as a Managed descriptor names it (spec, "Managed Resolution").
    pub path: String,
    /// Where the bytes start in the object.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
}
