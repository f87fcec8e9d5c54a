//! Which External references are followed.
//!
//! A table is data that somebody else may have written: it must not be able to publish a
//! workstation's files, or to make the mount talk to whatever host it names. So a reference is
//! followed when
//!
//! 1. its object lies beneath a base that the table registers, and the base is one that is trusted
//!    ([`Locator::ground`](super::locate::Locator)), or
//! 2. it lies in the same store and bucket (on Hugging Face, repository) as the table, which is no
//!    local file, or
//! 3. a `--allow-external` prefix covers it.
//!
//! Prefixes are compared by path component: `s3://b/pub` covers `s3://b/pub/x`, not
//! `s3://b/public`. `..` has no meaning in any of them, since a URL is normalised when parsed. A
//! local file is allowed by where it is: a link that leaves the prefix is another place.

use std::path::PathBuf;
use std::sync::Arc;

use url::Url;

use super::uri::{parts_of_store, redacted};
use crate::error::{Error, Kind, Result};
use crate::store::Allowed;

/// What the user allows beyond what the table may do by itself.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    everything: bool,
    prefixes: Vec<Location>,
    texts: Vec<String>,
    local: Arc<Allowed>,
}

impl Policy {
    /// Parses `--allow-external` values: a URI, an absolute path, or `*` for all.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for a value that is none of these.
    pub fn new(allowed: &[String]) -> Result<Self> {
        let mut policy = Self { texts: allowed.to_vec(), ..Self::default() };
        for text in allowed {
            if text == "*" {
                policy.everything = true;
                continue;
            }
            let location = Location::parse(text).ok_or_else(|| {
                let hint = "give an absolute path, a URI such as s3://bucket/prefix, or * for all";
                Error::new(Kind::Invalid, format!("--allow-external {text:?}: {hint}"))
            })?;
            policy.prefixes.push(location);
        }
        let local = policy.prefixes.iter().filter(|prefix| prefix.is_local());
        let places = local.map(Location::local_path).collect();
        policy.local = Arc::new(Allowed { everything: policy.everything, places });
        Ok(policy)
    }

    /// The values as they were given, for the status file.
    pub fn texts(&self) -> &[String] {
        &self.texts
    }

    /// The places of this machine among them.
    pub fn local(&self) -> Arc<Allowed> {
        self.local.clone()
    }

    /// Whether a reference that no trusted base covers may be followed.
    ///
    /// # Errors
    /// [`Kind::Denied`] with the flag that would allow it, [`Kind::Descriptor`] where it is no
    /// absolute URI.
    pub fn check(&self, uri: &str, table: &str) -> Result<()> {
        let target = Location::parse(uri).ok_or_else(|| {
            Error::new(
                Kind::Descriptor,
                format!("invalid descriptor: {:?} is no absolute URI", redacted(uri)),
            )
        })?;
        let same_bucket = |table: &Location| !target.is_local() && target.same_store(table);
        let allowed =
            self.covers(&target) || Location::parse(table).as_ref().is_some_and(same_bucket);
        if allowed { Ok(()) } else { Err(refusal(uri, &target)) }
    }

    /// Whether a reference to an absolute URI may be written: only a flag allows that (spec,
    /// "Writer Policy").
    ///
    /// # Errors
    /// [`Kind::Denied`] with the flag that would allow it, [`Kind::Invalid`] where it is no absolute
    /// URI.
    pub fn permit(&self, uri: &str) -> Result<()> {
        let target = Location::parse(uri).ok_or_else(|| {
            Error::new(Kind::Invalid, format!("{:?} is no absolute URI", redacted(uri)))
        })?;
        if self.covers(&target) { Ok(()) } else { Err(refusal(uri, &target)) }
    }

    /// Whether a base that is not trusted may be used: only a flag allows that.
    ///
    /// # Errors
    /// [`Kind::Denied`] with the flag that would allow it.
    pub fn permit_base(&self, id: u32, uri: &str) -> Result<()> {
        let place = Location::parse(uri);
        if self.everything || place.as_ref().is_some_and(|place| self.covers(place)) {
            return Ok(());
        }
        let shown = redacted(uri);
        let prefix = place.map_or_else(|| "*".to_owned(), |_| shown.clone());
        let text = format!(
            "base {id} at {shown} is outside the table's own store and folder, and not trusted; allow it with --allow-external {prefix}"
        );
        Err(Error::new(Kind::Denied, text))
    }

    fn covers(&self, target: &Location) -> bool {
        self.everything || self.prefixes.iter().any(|prefix| prefix.covers(target))
    }
}

/// Whether a URI lies beneath a root, under whichever of the names that local files have.
pub fn lies_beneath(uri: &str, root: &str) -> bool {
    let (target, root) = (Location::parse(uri), Location::parse(root));
    target.zip(root).is_some_and(|(target, root)| root.covers(&target))
}

fn refusal(uri: &str, target: &Location) -> Error {
    let text = format!(
        "External reference to {} is outside the table's trusted bases; allow it with --allow-external {}",
        redacted(uri),
        target.parent()
    );
    Error::new(Kind::Denied, text)
}

/// A URI as store and path components.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Location {
    scheme: String,
    authority: String,
    path: Vec<String>,
}

impl Location {
    fn parse(text: &str) -> Option<Self> {
        let mut url = if text.starts_with('/') {
            Url::from_file_path(text).ok()?
        } else {
            Url::parse(text).ok()?
        };
        // Lance knows a local file under several schemes: file, file+uring, file-object-store.
        let scheme =
            if url.scheme().starts_with("file") { "file" } else { url.scheme() }.to_owned();
        // An encoded slash is one to the stores.
        let decoded = percent_encoding::percent_decode_str(url.path()).decode_utf8_lossy();
        let segments = decoded.split('/').filter(|segment| !segment.is_empty());
        let path: Vec<String> = segments.map(ToOwned::to_owned).collect();
        if path.iter().any(|segment| segment == "..") {
            return None;
        }
        // A user's name is part of some stores' place (abfss://container@account), its password
        // of none.
        let _ = url.set_password(None);
        Some(Self { scheme, authority: url.authority().to_owned(), path })
    }

    fn is_local(&self) -> bool {
        self.scheme == "file"
    }

    fn same_store(&self, other: &Self) -> bool {
        let depth = parts_of_store(&self.scheme);
        self.same_host(other) && self.path.iter().take(depth).eq(other.path.iter().take(depth))
    }

    fn same_host(&self, other: &Self) -> bool {
        self.scheme == other.scheme && self.authority == other.authority
    }

    fn covers(&self, other: &Self) -> bool {
        self.same_host(other) && other.path.starts_with(&self.path)
    }

    fn local_path(&self) -> PathBuf {
        std::iter::once("/").chain(self.path.iter().map(String::as_str)).collect()
    }

    fn parent(&self) -> String {
        let above = &self.path[..self.path.len().saturating_sub(1)];
        format!("{}://{}/{}", self.scheme, self.authority, above.join("/"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(flags: &[&str], uri: &str, table: &str) -> bool {
        let flags: Vec<String> = flags.iter().map(|f| (*f).to_owned()).collect();
        let result = Policy::new(&flags).unwrap().check(uri, table);
        if let Err(error) = &result {
            assert!(matches!(error.kind(), Kind::Denied | Kind::Descriptor), "{error}");
        }
        result.is_ok()
    }

    #[test]
    fn a_local_file_needs_the_flag() {
        let table = "/tables/t.lance";
        assert!(!allowed(&[], "file:///etc/passwd", table));
        assert!(!allowed(&[], "/etc/passwd", table));
        assert!(!allowed(&[], "file:///tables/t.lance/data/x", table));
        assert!(allowed(&["file:///media"], "file:///media/a", table));
        assert!(allowed(&["/media"], "file+uring:///media/a", table));
        assert!(!allowed(&["/media"], "file:///media/../etc/passwd", table));
        assert!(!allowed(&["/media"], "file:///media/%2e%2e/etc/passwd", table));
        assert!(!allowed(&["/media"], "file:///media/..%2fetc/passwd", table));
        assert!(allowed(&["/etc"], "file:///etc/passwd", table));
        assert!(allowed(&["*"], "file:///etc/passwd", table));
    }

    #[test]
    fn a_base_that_is_not_trusted_needs_the_flag() {
        let permitted = |flags: &[&str], uri: &str| {
            let flags: Vec<String> = flags.iter().map(|f| (*f).to_owned()).collect();
            Policy::new(&flags).unwrap().permit_base(7, uri)
        };
        for (base, flag) in [
            ("file:///etc", "file:///etc"),
            ("/etc", "/etc"),
            ("s3://key:secret@private/t", "s3://key@private/t"),
            ("~/.ssh", "*"),
        ] {
            let error = permitted(&["/media", "s3://b"], base).unwrap_err();
            assert_eq!(error.kind(), Kind::Denied);
            let text = error.to_string();
            assert!(text.ends_with(&format!("--allow-external {flag}")), "{text}");
            assert!(text.contains("base 7") && !text.contains("secret"), "{text}");
            permitted(&[flag], base).unwrap();
        }
        permitted(&["s3://b/media"], "s3://b/media/a").unwrap();
        assert!(permitted(&["s3://b/media/a"], "s3://b/media").is_err());
    }

    #[test]
    fn prefixes_are_compared_by_component() {
        let table = "/t";
        assert!(allowed(&["s3://b/pub/"], "s3://b/pub/x", table));
        assert!(allowed(&["s3://b"], "s3://b/pub/x", table));
        assert!(!allowed(&["s3://b/pub"], "s3://b/public", table));
        assert!(!allowed(&["s3://b"], "s3://bb/x", table));
        assert!(allowed(&["/media/sub dir"], "file:///media/sub%20dir/b", table));
    }

    #[test]
    fn the_tables_own_bucket_is_followed() {
        assert!(allowed(&[], "s3://b/other/x", "s3://b/t.lance"));
        assert!(!allowed(&[], "s3://c/other/x", "s3://b/t.lance"));
        assert!(!allowed(&[], "gs://b/other/x", "s3://b/t.lance"));
    }

    #[test]
    fn a_repository_is_a_bucket() {
        let table = "hf://datasets/acme/pub/t.lance";
        assert!(allowed(&[], "hf://datasets/acme/pub/media/x", table));
        for other in ["datasets/acme/pub2/x", "datasets/other/pub/x", "models/acme/pub/x"] {
            let uri = format!("hf://{other}");
            assert!(!allowed(&[], &uri, table), "{uri}");
            assert!(allowed(&[&uri], &uri, table), "{uri}");
        }
        assert!(allowed(&["hf://datasets/acme"], "hf://datasets/acme/pub2/x", table));
    }

    #[test]
    fn only_a_flag_permits_a_new_reference() {
        let policy = |flags: &[&str]| {
            Policy::new(&flags.iter().map(|f| (*f).to_owned()).collect::<Vec<_>>()).unwrap()
        };
        let error = policy(&[]).permit("s3://b/dir/x").unwrap_err();
        assert_eq!(error.kind(), Kind::Denied);
        assert!(error.to_string().contains("--allow-external s3://b/dir"), "{error}");
        assert!(policy(&["s3://b/di"]).permit("s3://b/dir/x").is_err());
        policy(&["s3://b/dir"]).permit("s3://b/dir/x").unwrap();
        policy(&["*"]).permit("file:///etc/passwd").unwrap();
        assert_eq!(policy(&["*"]).permit("a/b").unwrap_err().kind(), Kind::Invalid);
    }

    #[test]
    fn a_table_is_known_by_all_names_of_local_files() {
        for uri in [
            "file:///t/x.lance/data/a",
            "file+uring:///t/x.lance/a",
            "file-object-store:///t/x.lance/a",
        ] {
            assert!(
                lies_beneath(uri, "/t/x.lance") && lies_beneath(uri, "file:///t/x.lance"),
                "{uri}"
            );
            assert!(!lies_beneath(uri, "/t/x") && !lies_beneath(uri, "s3://t/x.lance"), "{uri}");
        }
    }

    #[test]
    fn a_relative_reference_is_no_reference() {
        assert!(!allowed(&["*"], "a/b", "/t"));
        assert_eq!(Policy::new(&["relative".into()]).unwrap_err().kind(), Kind::Invalid);
    }

    #[test]
    fn a_refusal_names_the_flag() {
        let error = Policy::default().check("file:///etc/passwd", "/t").unwrap_err();
        assert!(error.to_string().contains("--allow-external file:///etc"), "{error}");
    }
}
