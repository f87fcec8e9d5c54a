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
    /// The object became another one since the kernel was told of it: whoever looks the name up anew
    /// gets that one. Most programs never see it, because the kernel does so by itself.
    Renewed,
    /// Refused by the External policy or by the store's credentials.
    Denied,
    /// No answer within the deadline, retries included.
    Timeout,
    /// Not done within the deadline, and it goes on without being waited for.
    Continues,
    /// The caller was told to end; what it asked for may go on.
    Interrupted,
    /// The caller's arguments make no sense.
    Invalid,
    /// A batch has faults: its rows do not fit the table.
    Faulty,
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
    /// A text would be larger than any that is made.
    TooLarge,
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
    hint: Option<String>,
}

/// The result type of every layer below the kernel adapter.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error that has no cause beneath it.
    pub fn new(kind: Kind, what: impl Into<String>) -> Self {
        Self { kind, what: what.into(), source: None, hint: None }
    }

    /// An error with the failure that caused it.
    pub fn caused(
        kind: Kind,
        what: impl Into<String>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self { kind, what: what.into(), source: Some(Arc::from(source.into())), hint: None }
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

    /// The same failure as another kind, where more is known than its cause says.
    #[must_use]
    pub fn of_kind(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }

    /// The same failure with what may help against it.
    #[must_use]
    pub fn hint(self, hint: impl fmt::Display) -> Self {
        Self { hint: Some(hint.to_string()), ..self }
    }

    /// Every cause beneath it.
    pub fn causes(&self) -> impl Iterator<Item = &(dyn StdError + 'static)> {
        self.source.iter().flat_map(|source| causes(source.as_ref()))
    }

    /// The text, every cause beneath it, and what may help, in one line. A cause is a library's text:
    /// it is shown without its places in source code, and without an answer that holds credentials.
    pub fn chain(&self) -> String {
        let mut text = without_credentials(&self.what);
        for cause in self.causes() {
            let cause_text = presentable(&cause.to_string());
            if !text.contains(&cause_text) {
                text.push_str(": ");
                text.push_str(&cause_text);
            }
        }
        if let Some(hint) = &self.hint {
            text.push_str("; ");
            text.push_str(hint);
        }
        text.replace('\n', " ")
    }
}

/// A failure and every cause beneath it.
pub fn causes<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&cause| cause.source())
}

/// The text of a library's error, for people.
///
/// 1. Lance puts the file and line of its own source behind each text.
/// 2. The AWS SDK shows the whole answer of a credentials service that it cannot parse, secrets
///    and all (`aws-smithy-runtime-api` 1.12.3, `src/client/result.rs:118`).
/// 3. A URL is shown as it was asked for: with the password of an endpoint, with the
///    signature of a link that was signed ahead.
fn presentable(text: &str) -> String {
    let text = text.split("raw: Response").next().unwrap_or_default();
    let text = without_credentials(text);
    let mut shown = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(at) = rest.find(".rs:") {
        let (before, after) = rest.split_at(at);
        let numbers = after[4..].trim_start_matches(|c: char| c.is_ascii_digit() || c == ':');
        let place = after[..after.len() - numbers.len()].trim_end_matches(':');
        let tail = &after[place.len()..];
        let path = |comma: &usize| {
            let path = &before[comma + 2..];
            !path.strip_prefix("location: ").unwrap_or(path).contains(' ')
        };
        let is_place = place.len() > ".rs:".len();
        match before.rfind(", ").filter(path).filter(|_| is_place) {
            Some(comma) => shown.push_str(&before[..comma]),
            None => shown.extend([before, place]),
        }
        rest = tail;
    }
    shown.push_str(rest);
    shown
}

/// Where a URL in a text ends, besides at a blank.
const ENDS_URL: [char; 7] = ['"', '\'', '`', '<', '>', ')', ','];
/// Parameters of a query that are credentials, in small letters.
const SIGNATURES: [&str; 6] =
    ["x-amz-signature=", "x-amz-security-token=", "x-goog-signature=", "sig=", "token=", "secret="];

/// A text whose URLs name no password, and end before a query that signs.
pub fn without_credentials(text: &str) -> String {
    const SCHEME_END: &str = "://";
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(SCHEME_END) {
        let (before, after) = rest.split_at(at + SCHEME_END.len());
        let end = after.find(|c: char| c.is_whitespace() || ENDS_URL.contains(&c));
        let (url, tail) = after.split_at(end.unwrap_or(after.len()));
        let authority = url.split(['/', '?', '#']).next().unwrap_or_default();
        // The user's name is part of some stores' place (abfss://container@account).
        let host = authority.rfind('@').unwrap_or(0);
        let user = authority[..host].split(':').next().unwrap_or_default();
        let url = &url[host..];
        let unsigned = url.split_once('?').filter(|(_, query)| {
            let query = query.to_ascii_lowercase();
            SIGNATURES.iter().any(|name| query.contains(name))
        });
        shown.extend([before, user]);
        shown.push_str(unsigned.map_or(url, |(path, _)| path));
        rest = tail;
    }
    shown.push_str(rest);
    shown
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
                _ => no_descriptor(&e).unwrap_or(otherwise),
            };
            Error::caused(kind, what(), e)
        })
    }
}

/// The kind of a failure for want of a descriptor: it is nobody's but ours, and passes.
pub fn no_descriptor(error: &io::Error) -> Option<Kind> {
    let wants = [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE];
    let errno = rustix::io::Errno::from_io_error(error).filter(|errno| wants.contains(errno))?;
    Some(Kind::Disk(errno.raw_os_error()))
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

    #[test]
    fn neither_source_code_nor_a_raw_answer_is_shown() {
        for (text, shown) in [
            ("it failed, /root/.cargo/registry/src/x-1/lance-io/src/a.rs:15:12", "it failed"),
            ("a, src/b.rs:1:2: c, /d e.rs:3:4", "a: c, /d e.rs:3:4"),
            ("no such table, location: /x/b.rs:1:2", "no such table"),
            ("open, row.rs: is a file", "open, row.rs: is a file"),
            ("x.rs:7:1", "x.rs:7:1"),
            ("cannot parse { raw: Response { body: \"<SecretAccessKey>s\" } }", "cannot parse { "),
            (
                "for url (http://me:pa%40ss@h:9/b?x=1): refused",
                "for url (http://me@h:9/b?x=1): refused",
            ),
            ("at https://a:b@c@h/x, at s3://u@h/y@z", "at https://a@h/x, at s3://u@h/y@z"),
            ("\"https://h/b?sv=1&Sig=abc\": no", "\"https://h/b\": no"),
        ] {
            assert_eq!(presentable(text), shown);
        }
    }
}
