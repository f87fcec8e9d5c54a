//! Ranged reads of stored objects. This layer never hears of Lance.
//!
//! ```text
//! RangeRead   Local    a file of this machine; the kernel's page cache is the cache
//!             Cached   Blocks, Flight, Streams (read-ahead) ── Fetch   Meter ── Remote
//! ```
//!
//! 1. A value may lie in a file of this machine or in an object store: [`RangeRead`] is the one
//!    small trait for both.
//! 2. An object can be shorter than a descriptor says, or an answer shorter than what was asked
//!    for: every implementation gives exactly the bytes asked for or [`Kind::Payload`], never fewer
//!    and never zeros.
//! 3. An object that was deleted must stay readable for whoever has it open: a local object holds
//!    its file descriptor.
//! 4. A store is far away: [`Cached`] asks for each block once, however many want it, ahead of who
//!    reads in order, and in as few requests as it can.
//! 5. The same name in the same store can be another object tomorrow: a table is dropped and
//!    recreated, and its objects may have the names and lengths of the old ones. An object is known by
//!    its store, its path and the life of the table that names it ([`ObjectKey`], [`Origin`]), never
//!    by its URI: that is for people, and two endpoints have the same.
//! 6. A table's files have names that somebody else chose: a local object is opened beneath a folder
//!    and through no link ([`LocalPlace`]).
//!
//! 6. Objects of somebody else change when they like: who must know what one is now has it looked at
//!    ([`Opener::look`]) and opened as what it is ([`Opener::open_now`]), and is told when it becomes
//!    another one (`pinned`; `cached`, difficulty 4).
//!
//! [`Opener::open`] is the one place where a stack of layers is put together.

mod blocks;
mod buffers;
mod cached;
mod deposit;
mod descriptors;
mod disk;
mod fetch;
mod flight;
mod folder;
mod gate;
mod local;
pub mod lru;
mod meter;
mod opener;
mod pace;
mod pinned;
mod readahead;
mod remote;
mod renamed;
mod span;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use object_store::ObjectStore;

use crate::error::{Error, Kind, Result, causes};
use crate::units::{ByteLen, ObjectOffset};

pub use cached::{Cached, Sizes};
pub use deposit::{Deposit, Depot, Fingerprint, Limits, Piece, Progress};
pub use descriptors::raise_limit;
pub use disk::Disk;
pub use fetch::{Answer, Fetch, Meta};
pub use flight::Patience;
pub use folder::{Allowed, Folder, LocalPlace};
pub use gate::Gate;
pub use local::Local;
pub use meter::{Figures, Meter};
pub use opener::{Opener, Settings};
pub use remote::Remote;
pub use renamed::Renamed;

/// An interval of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// Where it starts.
    pub offset: ObjectOffset,
    /// How long it is; 0 needs no I/O.
    pub len: ByteLen,
}

/// Reads of one object, which does not change while it is open.
pub trait RangeRead: Send + Sync {
    /// The bytes of an interval, all of them.
    ///
    /// # Errors
    /// [`Kind::Payload`] where the object is gone or shorter, [`Kind::Denied`] where the store
    /// refuses, [`Kind::Timeout`] where the store gave up.
    fn read(&self, interval: Interval) -> BoxFuture<'_, Result<Bytes>>;

    /// The object's length in bytes: one HEAD in a remote store.
    ///
    /// # Errors
    /// As [`RangeRead::read`].
    fn length(&self) -> BoxFuture<'_, Result<ByteLen>>;

    /// The open file that the object is, where it is one of this machine.
    fn file(&self) -> Option<Arc<OwnedFd>> {
        None
    }
}

/// Where an object lies.
#[derive(Clone, Debug)]
pub enum Place {
    /// A file of this machine.
    Local(LocalPlace),
    /// An object of a store.
    Remote(Arc<dyn ObjectStore>, object_store::path::Path),
}

/// Who may change an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Nobody: Lance writes an object once, in the life of the table that names it.
    Lance(Origin),
    /// Somebody that Lance knows nothing of.
    Others,
}

/// The state of a table that names an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// A life of a table: snapshots with the same number are known to be of one table that was not
    /// dropped in between. Of this mount alone.
    pub life: u64,
    /// The snapshot, by its branch, number and manifest: the same in every mount.
    pub snapshot: Arc<str>,
}

/// An object by name: not opened, not known to exist.
#[derive(Clone, Debug)]
pub struct ObjectRef {
    /// For people: the URI without credentials.
    pub uri: Arc<str>,
    /// For machines.
    pub place: Place,
    /// The store that it is in: different for two endpoints, the same in every mount.
    pub store: Arc<str>,
    /// Whether it may change.
    pub owner: Owner,
}

/// What an object is known by within a mount.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectKey {
    store: Arc<str>,
    path: String,
    /// The life of the table that names it, if it is Lance's.
    life: Option<u64>,
}

impl ObjectRef {
    /// What it is known by.
    pub fn key(&self) -> ObjectKey {
        let life = match &self.owner {
            Owner::Lance(origin) => Some(origin.life),
            Owner::Others => None,
        };
        ObjectKey { store: self.store.clone(), path: self.path(), life }
    }

    /// What it is called on a disk that outlives the mount: whoever finds something there under this
    /// name has to make sure that it is of the same object.
    fn name(&self) -> String {
        format!("{} {}", self.store, self.path())
    }

    fn path(&self) -> String {
        match &self.place {
            Place::Local(place) => place.path.to_string_lossy().into_owned(),
            Place::Remote(_, path) => path.to_string(),
        }
    }
}

/// An `ETag` without what stores write around it: a listing of Azure gives it bare, an answer of the
/// same store in quotes.
pub fn bare_tag(tag: &str) -> &str {
    tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"')
}

/// Runs what waits for a disk where waiting holds up nothing else.
///
/// # Errors
/// Those of `work`; [`Kind::Internal`] where it panics.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|e| Error::caused(Kind::Internal, "read or write files", e))?
}

/// The kind of a failure of an object store while a payload was being read. What another try may
/// change is [`Kind::Timeout`]: it is an answer that has not come yet.
pub fn kind_of(error: &object_store::Error) -> Kind {
    match (decided(error), error) {
        (Some(kind), _) => kind,
        (None, object_store::Error::Generic { source, .. }) if !is_refusal(source.as_ref()) => {
            Kind::Timeout
        }
        (None, _) => Kind::Payload,
    }
}

/// Whether a failure is something that a store has said.
fn is_an_answer(error: &object_store::Error) -> bool {
    match error {
        object_store::Error::Generic { source, .. } => status(source.as_ref()).is_some(),
        _ => true,
    }
}

/// The codes of stores that have no such bucket; a 404 of a listing without one is a gateway's.
const NO_BUCKET: [&str; 2] = ["NoSuchBucket", "ContainerNotFound"];

/// The kind of a failure that a store has said plainly: it may not be done, or there is no such
/// object or bucket.
pub fn decided(error: &object_store::Error) -> Option<Kind> {
    use object_store::Error as E;
    match error {
        E::PermissionDenied { .. } | E::Unauthenticated { .. } => Some(Kind::Denied),
        E::NotFound { .. } => Some(Kind::Payload),
        E::Generic { store, source } if is_denial(store, source.as_ref()) => Some(Kind::Denied),
        E::Generic { source, .. } => {
            let status = status(source.as_ref()).filter(|status| status.starts_with("404"))?;
            NO_BUCKET.iter().any(|code| status.contains(code)).then_some(Kind::Payload)
        }
        _ => None,
    }
}

/// Whether a store has said that something may not be done, or nobody has a key to it: `store` and
/// `source` are those of a generic failure. Listings say it in this way only, as do the crates
/// between (`object_store_opendal` 0.60.5 names the store after the failure).
fn is_denial(store: &str, source: &(dyn std::error::Error + 'static)) -> bool {
    if store == "PermissionDenied" {
        return true;
    }
    match status(source) {
        Some(status) => {
            // S3 answers 400 to a session that is over.
            let is_over = |code| status.starts_with("400") && status.contains(code);
            ["401", "403"].iter().any(|s| status.starts_with(s))
                || ["ExpiredToken", "InvalidToken"].into_iter().any(is_over)
        }
        // A service of credentials that did not answer may answer later.
        None => chain(source).any(|text| {
            text.contains("Failed to get AWS credentials")
                && NO_CREDENTIALS.iter().any(|part| text.contains(part))
        }),
    }
}

/// What the AWS SDK says where asking again gives no other credentials (`aws-credential-types` 1.2,
/// `src/provider/error.rs`; codes of STS).
const NO_CREDENTIALS: [&str; 5] = [
    "CredentialsNotLoaded(",
    "InvalidConfiguration(",
    "AccessDenied",
    "ExpiredToken",
    "InvalidIdentityToken",
];

/// Whether a store has answered and would answer the same again; 408 and 429 ask for another try.
fn is_refusal(error: &(dyn std::error::Error + 'static)) -> bool {
    if let Some(status) = status(error) {
        return status.starts_with('4') && !["408", "429"].iter().any(|s| status.starts_with(s));
    }
    let final_ones = ["Received redirect without LOCATION", "Wanted range"];
    chain(error).any(|text| final_ones.iter().any(|part| text.contains(part)))
}

/// The status that a store has answered with, and what follows it. What says so has no public type
/// (`object_store` 0.14.2, `src/client/retry.rs:36`), only a text.
fn status(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let found = |text: String| {
        text.split_once("non-2xx status code: ").map(|(_, status)| status.to_owned())
    };
    chain(error).find_map(found)
}

/// The texts of an error and of every cause beneath it.
fn chain(error: &(dyn std::error::Error + 'static)) -> impl Iterator<Item = String> {
    causes(error).map(ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generic(store: &'static str, text: &str) -> object_store::Error {
        object_store::Error::Generic { store, source: text.into() }
    }

    #[test]
    fn a_tag_is_the_same_however_it_is_written() {
        for tag in ["0x8D", "\"0x8D\"", "W/\"0x8D\""] {
            assert_eq!(bare_tag(tag), "0x8D");
        }
    }

    #[test]
    fn a_failure_of_a_store_is_what_its_text_says() {
        let no_keys = |why: &str| format!("Failed to get AWS credentials: {why}");
        let answered = |status: &str| format!("Server returned non-2xx status code: {status}");
        for (store, text, kind) in [
            ("S3", answered("403 Forbidden"), Kind::Denied),
            ("S3", answered("400 Bad Request: <Code>ExpiredToken</Code>"), Kind::Denied),
            ("S3", answered("400 Bad Request: <Code>InvalidArgument</Code>"), Kind::Payload),
            ("S3", answered("404 Not Found: <Code>NoSuchBucket</Code>"), Kind::Payload),
            ("S3", answered("503 Slow Down"), Kind::Timeout),
            ("S3", answered("429 Too Many Requests"), Kind::Timeout),
            ("N/A", no_keys("CredentialsNotLoaded("), Kind::Denied),
            ("N/A", no_keys("ProviderError(503"), Kind::Timeout),
            ("PermissionDenied", "at list".to_owned(), Kind::Denied),
            ("S3", "connection reset".to_owned(), Kind::Timeout),
        ] {
            assert_eq!(kind_of(&generic(store, &text)), kind, "{store}: {text}");
        }
    }
}
