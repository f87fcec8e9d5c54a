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
//!
//! [`Opener::open`] is the one place where a stack of layers is put together.

mod blocks;
mod buffers;
mod cached;
mod deposit;
mod disk;
mod fetch;
mod flight;
mod local;
pub mod lru;
mod meter;
mod opener;
mod pace;
mod readahead;
mod remote;
mod span;

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use object_store::ObjectStore;

use crate::error::{Error, Kind, Result};
use crate::units::{ByteLen, ObjectOffset};

pub use cached::{Cached, Sizes};
pub use deposit::{Deposit, Depot, Fingerprint, Piece, Progress};
pub use disk::Disk;
pub use fetch::{Answer, Fetch, Meta};
pub use flight::Patience;
pub use local::Local;
pub use meter::{Figures, Meter};
pub use opener::{Opener, Settings};
pub use remote::Remote;

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
    /// [`Kind::Payload`] where the object is gone or shorter, [`Kind::Denied`] for 401 and 403,
    /// [`Kind::Timeout`] where the store gave up.
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
    Local(PathBuf),
    /// An object of a store.
    Remote(Arc<dyn ObjectStore>, object_store::path::Path),
}

/// Who may change an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Nobody: Lance writes an object once.
    Lance,
    /// Somebody that Lance knows nothing of.
    Others,
}

/// An object by name: not opened, not known to exist.
#[derive(Clone, Debug)]
pub struct ObjectRef {
    /// For people: the URI without credentials.
    pub uri: Arc<str>,
    /// For machines.
    pub place: Place,
    /// Whether it may change.
    pub owner: Owner,
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
    use object_store::Error as E;
    match error {
        E::PermissionDenied { .. } | E::Unauthenticated { .. } => Kind::Denied,
        E::Generic { source, .. } if is_denial(source.as_ref()) => Kind::Denied,
        E::Generic { source, .. } if !is_refusal(source.as_ref()) => Kind::Timeout,
        _ => Kind::Payload,
    }
}

/// Whether a store has said that something may not be done: listings say it in this way only.
pub fn is_denial(error: &(dyn std::error::Error + 'static)) -> bool {
    status(error).is_some_and(|status| ["401", "403"].iter().any(|s| status.starts_with(s)))
}

/// Whether a store has answered and would answer the same again; 408 and 429 ask for another try.
fn is_refusal(error: &(dyn std::error::Error + 'static)) -> bool {
    if let Some(status) = status(error) {
        return status.starts_with('4') && !["408", "429"].iter().any(|s| status.starts_with(s));
    }
    let mut next = Some(error);
    while let Some(cause) = next {
        let text = cause.to_string();
        if text.contains("Received redirect without LOCATION") || text.contains("Wanted range") {
            return true;
        }
        next = cause.source();
    }
    false
}

/// The status that a store has answered with, and what follows it. What says so has no public type
/// (`object_store` 0.14.2, `src/client/retry.rs:36`), only a text.
fn status(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let mut next = Some(error);
    while let Some(cause) = next {
        if let Some((_, status)) = cause.to_string().split_once("non-2xx status code: ") {
            return Some(status.to_owned());
        }
        next = cause.source();
    }
    None
}
