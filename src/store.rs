//! Ranged reads of stored objects. This layer never hears of Lance.
//!
//! 1. A value may lie in a file of this machine or in an object store: [`RangeRead`] is the one
//!    small trait for both, [`local`] and [`remote`] implement it.
//! 2. An object can be shorter than a descriptor says, or an answer shorter than what was asked
//!    for: every implementation gives exactly the bytes asked for or [`Kind::Payload`], never fewer
//!    and never zeros.
//! 3. An object that was deleted must stay readable for whoever has it open: a local object holds
//!    its file descriptor.
//!
//! [`open`] is the one place where a stack of layers is put together.

mod local;
pub mod lru;
mod remote;

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use object_store::ObjectStore;

use crate::error::{Kind, Result};
use crate::units::{ByteLen, ObjectOffset};

pub use local::Local;
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
}

/// Where an object lies.
#[derive(Clone, Debug)]
pub enum Place {
    /// A file of this machine.
    Local(PathBuf),
    /// An object of a store.
    Remote(Arc<dyn ObjectStore>, object_store::path::Path),
}

/// An object by name: not opened, not known to exist.
#[derive(Clone, Debug)]
pub struct ObjectRef {
    /// For people: the URI without credentials.
    pub uri: Arc<str>,
    /// For machines.
    pub place: Place,
}

/// Opens an object for reading. A local object is opened here and now; a remote one is not asked
/// for until it is read.
///
/// # Errors
/// [`Kind::Payload`] where a local object is absent or no regular file, [`Kind::Denied`] where the
/// file system refuses.
pub fn open(object: &ObjectRef) -> Result<Arc<dyn RangeRead>> {
    Ok(match &object.place {
        Place::Local(path) => Arc::new(Local::open(path)?),
        Place::Remote(store, path) => {
            Arc::new(Remote::new(store.clone(), path.clone(), object.uri.clone()))
        }
    })
}

/// The kind of a failure of an object store while a payload was being read.
pub fn kind_of(error: &object_store::Error) -> Kind {
    use object_store::Error as E;
    match error {
        E::PermissionDenied { .. } | E::Unauthenticated { .. } => Kind::Denied,
        _ => Kind::Payload,
    }
}
