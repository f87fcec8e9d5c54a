//! What a failure of the lance crate means to us.
//!
//! The crate wraps what its object store said in several layers (lance 14.0.2, `lance-core/src/
//! error.rs`), so the kind is found by walking the chain down to the first cause that decides.

use std::error::Error as StdError;

use crate::error::{Error, Kind, causes, no_descriptor};
use crate::store::decided;

/// Wraps a failure of the crate, with what was being done.
pub fn of(what: impl Into<String>, error: lance::Error) -> Error {
    Error::caused(kind(&error), what, error)
}

/// The kind of a failure of the crate; [`Kind::Table`] where nothing in it decides.
pub fn kind(error: &lance::Error) -> Kind {
    match error {
        lance::Error::Timeout { .. } => return Kind::Timeout,
        lance::Error::DatasetNotFound { .. }
        | lance::Error::VersionNotFound { .. }
        | lance::Error::RefNotFound { .. } => return Kind::NotFound,
        _ => {}
    }
    // A cause that several tasks share (`Error::Shared`) hides what is beneath it.
    let hidden = || if error.is_not_found() { Kind::Payload } else { Kind::Table };
    causes(error).find_map(decides).unwrap_or_else(hidden)
}

/// Whether it is certain from the bytes that were read: nothing was missing, refused or cut off, so
/// the same bytes fail again.
pub fn is_of_content(error: &Error) -> bool {
    let is_of_reading = |cause: &(dyn StdError + 'static)| {
        cause.is::<object_store::Error>() || cause.is::<std::io::Error>()
    };
    error.kind() == Kind::Table && !error.causes().any(is_of_reading)
}

fn decides(cause: &(dyn StdError + 'static)) -> Option<Kind> {
    if let Some(failure) = cause.downcast_ref::<object_store::Error>() {
        return decided(failure);
    }
    let failure = cause.downcast_ref::<std::io::Error>()?;
    match failure.kind() {
        std::io::ErrorKind::PermissionDenied => Some(Kind::Denied),
        std::io::ErrorKind::ReadOnlyFilesystem => Some(Kind::ReadOnly),
        std::io::ErrorKind::StorageFull => {
            Some(Kind::Disk(rustix::io::Errno::NOSPC.raw_os_error()))
        }
        std::io::ErrorKind::TimedOut => Some(Kind::Timeout),
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => Some(Kind::Payload),
        _ => no_descriptor(failure),
    }
}
