//! What tells this program's own words on the staging disk from those of others.
//!
//! ```text
//! <staging folder>/key            64 hex digits, made with the folder
//! user.lancefs.batch, .reference  64 hex digits, a blank, JSON: the digits are the HMAC-SHA-256 (RFC
//!                                 2104) of the attribute's name, a NUL and the JSON under the key
//! ```
//!
//! 1. The mount lets nobody set these attributes; but `tar --xattrs`, `rsync -X` and `cp -a` bring
//!    them along to the disk itself, from another table's folder or out of an archive that somebody
//!    else made. A reference that is believed makes a commit adopt the object that it names, and an
//!    origin decides whether a batch counts as published: so only what is marked is believed.
//! 2. A folder may be moved to another disk as a whole: the key goes with it, and what it marked is
//!    good there too. So a mark is not bound to an inode; a copy within one folder says what its
//!    original says, and means it.
//! 3. What is not marked is never taken for its opposite: a file with the reference of somebody else
//!    has no bytes of its own, and would be read as zeros. It is an error ([`reference`]).

use std::fs::File;
use std::io::{self, Seek as _, Write as _};

use hmac::{Hmac, Mac as _};
use rustix::fs::OFlags;
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::Sha256;
use uuid::Uuid;

use super::{REFERENCE, Reference};
use crate::error::{Error, IoContext as _, Kind, Result};
use crate::private::Folder;

/// The file that holds the key.
const KEY: &str = "key";
/// How long a key is, and a mark: 256 bits in hex.
const DIGITS: usize = 64;
/// The longest attribute that is read, in bytes: a path in an object store has 1 KiB at most, one of
/// this machine 4.
pub const LONGEST: usize = 8 << 10;

/// What the words of one staging folder are marked with.
#[derive(Clone)]
pub struct Key([u8; DIGITS]);

/// Whether a folder had its key before it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keyed {
    /// It had one: what has no mark is somebody else's.
    Before,
    /// It has one from now on.
    Now,
}

/// Whose word an attribute is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word<T> {
    /// This program's.
    Ours(T),
    /// That of whoever put it there.
    Others(T),
}

impl Key {
    /// A new one.
    pub fn new() -> Self {
        let mut digits = [0; DIGITS];
        for half in digits.chunks_exact_mut(DIGITS / 2) {
            // Each has 122 random bits.
            Uuid::new_v4().simple().encode_lower(half);
        }
        Self(digits)
    }

    /// The key of a folder, made where there is none, or half of one that was never used.
    ///
    /// # Errors
    /// Where the disk fails, or something else is in its place.
    pub fn of(folder: &Folder) -> Result<(Self, Keyed)> {
        let known = folder.read(KEY)?.and_then(|bytes| bytes.try_into().ok());
        if let Some(key) = known {
            return Ok((Self(key), Keyed::Before));
        }
        let key = Self::new();
        let mut file = folder.open(KEY, OFlags::WRONLY | OFlags::CREATE)?;
        let mut write = || {
            file.set_len(0)?;
            file.rewind()?;
            file.write_all(&key.0)?;
            file.sync_all()
        };
        write()
            .context(Kind::Internal, || format!("write {KEY} in {}", folder.path().display()))?;
        folder.sync()?;
        Ok((key, Keyed::Now))
    }

    /// The bytes of an attribute that says something.
    ///
    /// # Errors
    /// [`Kind::Internal`] where it cannot be said in JSON.
    pub fn mark(&self, attribute: &str, value: &impl Serialize) -> Result<Vec<u8>> {
        let json = serde_json::to_string(value)
            .map_err(|e| Error::caused(Kind::Internal, format!("write {attribute}"), e))?;
        let mark = self.hmac(attribute, json.as_bytes()).finalize().into_bytes();
        Ok(format!("{mark:x} {json}").into_bytes())
    }

    /// What an attribute says, and whose word it is.
    ///
    /// # Errors
    /// Where nobody can have meant it.
    pub fn read<T: DeserializeOwned>(
        &self,
        attribute: &str,
        bytes: &[u8],
    ) -> Result<Word<T>, serde_json::Error> {
        let marked = bytes.split_at_checked(DIGITS);
        let marked = marked.and_then(|(mark, rest)| Some((unhex(mark)?, rest.strip_prefix(b" ")?)));
        let Some((mark, json)) = marked else {
            return serde_json::from_slice(bytes).map(Word::Others);
        };
        let value = serde_json::from_slice(json)?;
        let is_ours = self.hmac(attribute, json).verify_slice(&mark).is_ok();
        Ok(if is_ours { Word::Ours(value) } else { Word::Others(value) })
    }

    fn hmac(&self, attribute: &str, json: &[u8]) -> Hmac<Sha256> {
        let hmac = Hmac::<Sha256>::new(&self.0.into());
        hmac.chain_update(attribute).chain_update([0]).chain_update(json)
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(…)")
    }
}

impl Default for Key {
    fn default() -> Self {
        Self::new()
    }
}

/// The reference that a staged file is, if it is one. Its bytes are then in the table.
///
/// # Errors
/// What the operating system says; [`io::ErrorKind::InvalidData`] where the attribute is damaged or
/// was not written by this program: then nobody knows the bytes.
pub fn reference(
    key: &Key,
    get: impl FnOnce(&mut [u8]) -> rustix::io::Result<usize>,
) -> io::Result<Option<Reference>> {
    let mut buffer = [0; LONGEST];
    let len = match get(&mut buffer) {
        Ok(len) => len,
        // A disk without attributes holds no references either.
        Err(Errno::NODATA | Errno::OPNOTSUPP) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    match key.read(REFERENCE, &buffer[..len])? {
        Word::Ours(reference) => Ok(Some(reference)),
        Word::Others(Reference { .. }) => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("its attribute {REFERENCE} was put there by another program"),
        )),
    }
}

/// [`reference`] of an open file.
///
/// # Errors
/// As [`reference`].
pub fn reference_of(key: &Key, file: &File) -> io::Result<Option<Reference>> {
    reference(key, |buffer| rustix::fs::fgetxattr(file, REFERENCE, buffer))
}

fn unhex(digits: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(digits).ok()?;
    let byte = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    (0..text.len()).step_by(2).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::staging::{ORIGIN, Origin};

    fn origin(version: u64) -> Origin {
        Origin { batch: Uuid::from_u128(7), version, manifest: "m".to_owned() }
    }

    #[test]
    fn only_what_was_marked_under_the_key_and_the_name_is_ours() {
        let key = Key::new();
        let bytes = key.mark(ORIGIN, &origin(3)).unwrap();
        assert_eq!(key.read(ORIGIN, &bytes).unwrap(), Word::Ours(origin(3)));
        assert_eq!(Key::new().read(ORIGIN, &bytes).unwrap(), Word::Others(origin(3)));
        assert_eq!(key.read(REFERENCE, &bytes).unwrap(), Word::Others(origin(3)));
        let text = String::from_utf8(bytes).unwrap();
        let other = text.replace(":3,", ":4,");
        assert_eq!(key.read(ORIGIN, other.as_bytes()).unwrap(), Word::Others(origin(4)));
        let bare = text.split_once(' ').unwrap().1;
        assert_eq!(key.read(ORIGIN, bare.as_bytes()).unwrap(), Word::Others(origin(3)));
        assert!(key.read::<Origin>(ORIGIN, &text.as_bytes()[..70]).is_err());
        assert!(key.read::<Origin>(ORIGIN, b"").is_err());
    }

    #[test]
    fn a_mark_is_the_hmac_of_name_and_text() {
        let key = Key([b'k'; DIGITS]);
        let mut hmac = Hmac::<Sha256>::new_from_slice(&[b'k'; DIGITS]).unwrap();
        hmac.update(b"a\0\"x\"");
        let marked = String::from_utf8(key.mark("a", &"x").unwrap()).unwrap();
        assert_eq!(marked, format!("{:x} \"x\"", hmac.finalize().into_bytes()));
    }

    #[test]
    fn a_folder_keeps_its_key_and_half_a_key_is_none() {
        let above = tempfile::tempdir().unwrap();
        let folder = Folder::make(&above.path().join("f")).unwrap();
        let (key, keyed) = Key::of(&folder).unwrap();
        assert_eq!(keyed, Keyed::Now);
        let (again, keyed) = Key::of(&folder).unwrap();
        assert_eq!((again.0, keyed), (key.0, Keyed::Before));
        std::fs::write(folder.path().join(KEY), &key.0[..20]).unwrap();
        let (other, keyed) = Key::of(&folder).unwrap();
        assert_eq!(keyed, Keyed::Now);
        assert_ne!(other.0, key.0);
    }
}
