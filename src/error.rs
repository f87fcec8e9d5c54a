//! What went wrong, in words for people and in a kind for the kernel.
//!
//! Every layer below the kernel adapter returns this one type. The [`Kind`] is small and closed: it
//! is what `fuse::errno` turns into an errno, in one match. The text says what was being done and
//! to what; the source keeps the whole chain beneath it.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;

/// What a caller can act on. `fuse::errno` gives each its errno (DESIGN section 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// No such version, row, field or element, or the value is null.
    NotFound,
    /// A write to something that never changes.
    ReadOnly,
    /// A payload object is missing, too short, or answered with the wrong length.
    Payload,
    /// The table's own files cannot be read or decoded.
    Table,
    /// A descriptor that names nothing that can exist: unknown kind or base, overflow, bad path.
    Descriptor,
    /// The version was removed, or the table recreated, beneath an inode the kernel still holds.
    Stale,
    /// Refused by the External policy or by the store's credentials.
    Denied,
    /// No answer within the deadline, retries included.
    Timeout,
    /// The caller's arguments make no sense.
    Invalid,
    /// A mountpoint is in use.
    Busy,
    /// A directory was needed.
    NotDirectory,
    /// A file was needed.
    IsDirectory,
    /// No such extended attribute.
    NoAttribute,
    /// A name is longer than a directory entry can be.
    NameTooLong,
    /// The staging disk refused, with this errno: it is passed on as it is.
    Disk(i32),
    /// `--staging-limit` would be exceeded.
    Quota,
    /// Staging refuses it on purpose: a hard link, a device, a fifo.
    Refused,
    /// It cannot be done this way; the caller has another.
    Unsupported,
    /// A part of lancefs or of a library panicked or broke its word.
    Internal,
}

/// An error with its kind, its text and what caused it. Cheap to clone, so that one failure can
/// answer every caller that waited for it.
#[derive(Clone)]
pub struct Error {
    kind: Kind,
    what: String,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// The result type of every layer below the kernel adapter.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error that has no cause beneath it.
    pub fn new(kind: Kind, what: impl Into<String>) -> Self {
        Self { kind, what: what.into(), source: None }
    }

    /// An error with the failure that caused it.
    pub fn caused(
        kind: Kind,
        what: impl Into<String>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self { kind, what: what.into(), source: Some(Arc::from(source.into())) }
    }

    /// The same failure with the place where it was met put in front.
    #[must_use]
    pub fn at(self, place: impl fmt::Display) -> Self {
        Self { what: format!("{place}: {}", self.what), ..self }
    }

    /// The kind, for the errno.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The text and every cause beneath it, in one line.
    pub fn chain(&self) -> String {
        let mut text = self.what.clone();
        let mut next: Option<&dyn StdError> = None;
        if let Some(source) = &self.source {
            next = Some(source.as_ref());
        }
        while let Some(cause) = next {
            let cause_text = cause.to_string();
            if !text.contains(&cause_text) {
                text.push_str(": ");
                text.push_str(&cause_text);
            }
            next = cause.source();
        }
        text.replace('\n', " ")
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.chain())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.chain())
    }
}

impl StdError for Error {}

/// Says what was being done when an operation of the operating system failed.
pub trait IoContext<T> {
    /// Wraps an I/O failure.
    ///
    /// # Errors
    /// The failure; its kind follows it (permission, time), else it is `otherwise`.
    fn context(self, otherwise: Kind, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn context(self, otherwise: Kind, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|e| {
            let kind = match e.kind() {
                io::ErrorKind::PermissionDenied => Kind::Denied,
                io::ErrorKind::TimedOut => Kind::Timeout,
                _ => otherwise,
            };
            Error::caused(kind, what(), e)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_names_every_cause_once() {
        let io = io::Error::new(io::ErrorKind::NotFound, "no such file");
        let inner = Error::caused(Kind::Payload, "open /a/b", io);
        let outer = Error::caused(Kind::Payload, "read row 3 field image", inner).at("version 7");
        assert_eq!(outer.chain(), "version 7: read row 3 field image: open /a/b: no such file");
        assert_eq!(outer.kind(), Kind::Payload);
    }
}
