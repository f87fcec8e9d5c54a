//! Symlinks in a batch: External references, with a range of bytes where one is given.
//!
//! ```text
//! s3://bucket/key                  the whole object
//! s3://bucket/key#bytes=100-199    100 bytes: both ends are included, as in HTTP's Range
//! file:/path, file:///path         a file of this machine, stored in the longer way
//! ```

use url::Url;

/// A URI and the part of its object: offset and length in bytes; `None` is the whole object.
pub type Link = (String, Option<(u64, u64)>);

/// Before a range; what else stands behind a `#` is no part of any object's name.
const RANGE: &str = "#bytes=";

/// Reads where a symlink points.
///
/// # Errors
/// What is wrong with it and what would be right, for people.
pub fn parse(target: &str) -> Result<Link, String> {
    if target.starts_with('/') {
        return Err(format!(
            "it is a link to the path {target}: for a reference to a file write file://{target}, else copy the file"
        ));
    }
    if let Some(path) = target.strip_prefix("file:").filter(|path| is_rooted(path)) {
        return parse(&format!("file://{path}"));
    }
    if !target.contains("://") {
        return Err("links inside a batch are not followed: copy the file".to_owned());
    }
    let (uri, range) = match target.rsplit_once(RANGE) {
        Some((uri, range)) => (uri, Some(interval(range)?)),
        None => (target, None),
    };
    let url =
        Url::parse(uri).map_err(|e| format!("it is a link to {uri:?}, which is no URI: {e}"))?;
    if url.fragment().is_some() {
        return Err(
            "behind a # only bytes=<first>-<last> can stand; a # in a name is %23".to_owned()
        );
    }
    if url.password().is_some() {
        return Err("a URI is stored in the table for everybody to read: take the password out of it, and give credentials as options of the store".to_owned());
    }
    // A slash at the end is a directory's.
    if url.path().is_empty() || url.path().ends_with('/') {
        return Err(format!("it is a link to {uri}, which names no object"));
    }
    Ok((uri.to_owned(), range))
}

/// Whether a path begins at the root, and is no host.
fn is_rooted(path: &str) -> bool {
    path.starts_with('/') && !path.starts_with("//")
}

/// `100-199` as offset and length.
fn interval(text: &str) -> Result<(u64, u64), String> {
    let wrong = |why: &str| {
        format!(
            "the range bytes={text} {why}; write it as bytes=<first>-<last>, both counted from 0"
        )
    };
    let (first, last) = text.split_once('-').ok_or_else(|| wrong("has no end"))?;
    if first.is_empty() || last.is_empty() {
        return Err(wrong("is open, and its length would not be known"));
    }
    let number = |digits: &str| {
        if !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(wrong("is no range"));
        }
        digits.parse::<u64>().map_err(|_| wrong("is too large"))
    };
    let (first, last) = (number(first)?, number(last)?);
    let len = last.checked_sub(first).ok_or_else(|| wrong("ends before it begins"))?;
    // The end of the interval is one more than the last byte, and must be a number too.
    last.checked_add(1).ok_or_else(|| wrong("is too large"))?;
    Ok((first, len + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_with_and_without_a_range() {
        for (target, uri, range) in [
            ("s3://b/k", "s3://b/k", None),
            ("s3://b/k#bytes=100-199", "s3://b/k", Some((100, 100))),
            ("s3://b/k#bytes=0-0", "s3://b/k", Some((0, 1))),
            ("file:///a/b%23c", "file:///a/b%23c", None),
            ("file:/a/b", "file:///a/b", None),
            ("file:/a/b#bytes=2-3", "file:///a/b", Some((2, 2))),
            ("gs://b/dir/k.jpg?x=1", "gs://b/dir/k.jpg?x=1", None),
            ("abfss://c@a.example/k", "abfss://c@a.example/k", None),
            ("s3://b/k#bytes=0-18446744073709551614", "s3://b/k", Some((0, u64::MAX))),
        ] {
            assert_eq!(parse(target), Ok((uri.to_owned(), range)), "{target}");
        }
    }

    #[test]
    fn what_is_no_reference_says_what_to_do() {
        for (target, hint) in [
            ("../a.jpg", "copy the file"),
            ("a.jpg", "copy the file"),
            ("file:a.jpg", "copy the file"),
            ("file:/", "names no object"),
            ("/data/a.jpg", "file:///data/a.jpg"),
            ("s3://b/k#bytes=100-", "open"),
            ("s3://b/k#bytes=-100", "open"),
            ("s3://b/k#bytes=100", "bytes=<first>-<last>"),
            ("s3://b/k#bytes=9-3", "ends before it begins"),
            ("s3://b/k#bytes=+1-3", "is no range"),
            ("s3://b/k#bytes=1-3,5-6", "is no range"),
            ("s3://b/k#bytes=0-18446744073709551615", "too large"),
            ("s3://b/k#bytes=0-99999999999999999999", "too large"),
            ("s3://b/k#1.jpg", "%23"),
            ("s3://key:secret@b/k", "password"),
            ("s3://b/", "names no object"),
            ("s3://b", "names no object"),
            ("file:///", "names no object"),
            ("file:///data/", "names no object"),
            ("://b/k", "is no URI"),
        ] {
            let error = parse(target).unwrap_err();
            assert!(error.contains(hint), "{target}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
