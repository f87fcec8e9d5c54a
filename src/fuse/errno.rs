//! The one table from what happened to an errno (README "Errors").

use fuser::Errno;

use crate::error::Kind;

/// The errno of a kind of error.
pub fn errno(kind: Kind) -> Errno {
    match kind {
        Kind::NotFound => Errno::ENOENT,
        Kind::ReadOnly => Errno::EROFS,
        Kind::Payload | Kind::Table | Kind::Descriptor | Kind::Internal => Errno::EIO,
        Kind::Stale | Kind::Renewed => Errno::ESTALE,
        Kind::Denied => Errno::EACCES,
        Kind::Timeout | Kind::Continues => Errno::ETIMEDOUT,
        Kind::Interrupted => Errno::EINTR,
        Kind::Invalid => Errno::EINVAL,
        // What programs make of EINVAL of a rename is that a folder was moved into itself.
        Kind::Faulty => Errno::from_i32(rustix::io::Errno::UCLEAN.raw_os_error()),
        Kind::Busy => Errno::EBUSY,
        Kind::NotDirectory => Errno::ENOTDIR,
        Kind::IsDirectory => Errno::EISDIR,
        Kind::NoAttribute => Errno::ENODATA,
        Kind::NameTooLong => Errno::ENAMETOOLONG,
        Kind::Disk(errno) => Errno::from_i32(errno),
        Kind::TooLarge => Errno::EFBIG,
        Kind::Quota => Errno::EDQUOT,
        Kind::Refused => Errno::EPERM,
        Kind::Unsupported => Errno::EOPNOTSUPP,
    }
}
