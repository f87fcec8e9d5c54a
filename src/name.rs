//! File names for fields, tags and branches, and the way back.
//!
//! A name is shown as it is, with four difficulties:
//!
//! 1. Some characters cannot stand in a file name (`/`, NUL), hurt people (control characters) or
//!    mean something in our own names (`%`, `[`, `]`, a leading `.`): [`escape`] writes them as
//!    `%` and the upper-case hex of their UTF-8 bytes, and [`unescape`] reads them back.
//! 2. The empty name has no bytes to escape: it is a lone `%`, which no other name gives.
//! 3. A directory entry holds 255 bytes: [`fit`] cuts on a character boundary, never within an
//!    escape, and ends in `~` and 8 hex digits of the SHA-256 of the whole escaped name.
//! 4. A value's name carries its place in lists: [`ValueName`] is `scenes[2].clip`, parsed once.
//!
//! Everything here is pure.

use std::fmt::Write as _;

use percent_encoding::percent_decode_str;
use sha2::{Digest, Sha256};

/// The longest directory entry that Linux holds, in bytes (`NAME_MAX`).
pub const NAME_MAX: usize = 255;

/// The suffix under which a value always resolves.
pub const VALUE_SUFFIX: &str = ".bin";

/// Escapes one field, tag or branch name. Injective: distinct names stay distinct.
pub fn escape(name: &str) -> String {
    if name.is_empty() {
        return "%".to_owned();
    }
    if name == "." || name == ".." {
        return name.replace('.', "%2E");
    }
    let mut out = String::with_capacity(name.len());
    for (at, c) in name.char_indices() {
        let special = matches!(c, '/' | '%' | '[' | ']') || c.is_control() || (c == '.' && at == 0);
        if special {
            push_escaped(&mut out, c);
        } else {
            out.push(c);
        }
    }
    out
}

/// As [`escape`], and every `.` too: for a field whose name holds a dot that would otherwise read
/// as the path of another field.
pub fn escape_dots(name: &str) -> String {
    escape(name).replace('.', "%2E")
}

fn push_escaped(out: &mut String, c: char) {
    let mut utf8 = [0; 4];
    for byte in c.encode_utf8(&mut utf8).bytes() {
        // Writing to a String cannot fail.
        let _ = write!(out, "%{byte:02X}");
    }
}

/// The name that [`escape`] was given; `None` where no name escapes to this text.
pub fn unescape(text: &str) -> Option<String> {
    if text == "%" {
        return Some(String::new());
    }
    let name = percent_decode_str(text).decode_utf8().ok()?.into_owned();
    (escape(&name) == text).then_some(name)
}

/// `escaped` followed by `suffix` where that fits a directory entry, else cut as the module says.
pub fn fit(escaped: &str, suffix: &str) -> String {
    if escaped.len() + suffix.len() <= NAME_MAX {
        return format!("{escaped}{suffix}");
    }
    let hash = short_hash(escaped);
    let mut end = NAME_MAX - suffix.len() - hash.len() - 1;
    while !escaped.is_char_boundary(end) || splits_escape(escaped, end) {
        end -= 1;
    }
    format!("{}~{hash}{suffix}", &escaped[..end])
}

/// 8 hex digits that tell long names apart.
pub fn short_hash(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest[..4].iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

fn splits_escape(text: &str, end: usize) -> bool {
    let tail = &text.as_bytes()[end.saturating_sub(2)..end];
    tail.contains(&b'%')
}

/// The name of a value: its field's path with a list index after each field that is a list.
///
/// `a`, `info.thumb`, `frames[3]`, `scenes[2].clip`, `a[0][1]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueName<'a> {
    /// The path without its indices, as `tree::Shape` spells it: `scenes[].clip`.
    pub pattern: String,
    /// The indices, outermost first.
    pub indices: Vec<u64>,
    /// The text that was parsed.
    pub text: &'a str,
}

impl<'a> ValueName<'a> {
    /// Splits a stem (a file name without its suffix) into pattern and indices. `None` where an
    /// index is not a plain decimal number: `[01]`, `[-1]` and `[]` name nothing.
    pub fn parse(text: &'a str) -> Option<Self> {
        let mut pattern = String::with_capacity(text.len());
        let mut indices = Vec::new();
        let mut rest = text;
        while let Some(open) = rest.find('[') {
            let close = open + rest[open..].find(']')?;
            let digits = &rest[open + 1..close];
            let canonical = digits == "0" || !digits.starts_with('0');
            if digits.is_empty() || !canonical || !digits.bytes().all(|b| b.is_ascii_digit()) {
                return None;
            }
            indices.push(digits.parse().ok()?);
            pattern.push_str(&rest[..=open]);
            pattern.push(']');
            rest = &rest[close + 1..];
        }
        pattern.push_str(rest);
        Some(Self { pattern, indices, text })
    }
}

/// Puts indices into a pattern: the inverse of [`ValueName::parse`].
pub fn with_indices(pattern: &str, indices: &[u64]) -> String {
    let mut out = String::with_capacity(pattern.len() + indices.len() * 3);
    let mut next = indices.iter();
    let mut pieces = pattern.split("[]");
    out.push_str(pieces.next().unwrap_or_default());
    for piece in pieces {
        if let Some(index) = next.next() {
            let _ = write!(out, "[{index}]");
        }
        out.push_str(piece);
    }
    out
}

/// A directory name that is a plain decimal number, as rows and versions are: no sign, no leading
/// zero.
pub fn decimal(text: &str) -> Option<u64> {
    let canonical = text == "0" || !text.starts_with('0');
    (canonical && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn escapes_what_the_design_lists() {
        for (name, shown) in [
            ("image", "image"),
            ("a/b", "a%2Fb"),
            ("", "%"),
            (".", "%2E"),
            ("..", "%2E%2E"),
            (".hidden", "%2Ehidden"),
            ("x.y", "x.y"),
            ("50%", "50%25"),
            ("a[0]", "a%5B0%5D"),
            ("line\nbreak", "line%0Abreak"),
            ("nul\0", "nul%00"),
            ("\u{85}", "%C2%85"),
            ("日本", "日本"),
        ] {
            assert_eq!(escape(name), shown);
            assert_eq!(unescape(shown).as_deref(), Some(name));
        }
    }

    #[test]
    fn text_that_no_name_gives_names_nothing() {
        for text in ["%2f", "%41", "a%", "%zz", "a/b", "[", "%FF", "%%"] {
            assert_eq!(unescape(text), None, "{text}");
        }
    }

    #[test]
    fn a_cut_name_stays_within_the_entry_and_whole_characters() {
        for name in ["x".repeat(300), "ü".repeat(200), "\u{1}".repeat(200), "日%".repeat(100)] {
            let escaped = escape(&name);
            let cut = fit(&escaped, VALUE_SUFFIX);
            assert!(cut.len() <= NAME_MAX, "{}", cut.len());
            assert!(cut.len() > NAME_MAX - 8, "{}", cut.len());
            let stem = cut.strip_suffix(VALUE_SUFFIX).unwrap();
            let (kept, hash) = stem.rsplit_once('~').unwrap();
            assert_eq!(hash, short_hash(&escaped));
            assert!(name.starts_with(&unescape(kept).unwrap()));
        }
    }

    #[test]
    fn indices_are_plain_numbers() {
        let parsed = ValueName::parse("scenes[2].clip[10]").unwrap();
        assert_eq!(parsed.pattern, "scenes[].clip[]");
        assert_eq!(parsed.indices, [2, 10]);
        for bad in ["a[]", "a[01]", "a[-1]", "a[1", "a[x]", "a[99999999999999999999]"] {
            assert_eq!(ValueName::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn directory_numbers_have_one_spelling() {
        assert_eq!(decimal("0"), Some(0));
        assert_eq!(decimal("18446744073709551615"), Some(u64::MAX));
        for bad in ["", "00", "01", "+1", "-1", " 1", "1 ", "18446744073709551616", "１"] {
            assert_eq!(decimal(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn escaping_round_trips(name in any::<String>()) {
            let shown = escape(&name);
            prop_assert!(!shown.is_empty() && shown != "." && shown != "..");
            prop_assert!(!shown.contains(['/', '\0', '[', ']']) && !shown.starts_with('.'));
            prop_assert_eq!(unescape(&shown), Some(name));
        }

        #[test]
        fn distinct_names_stay_distinct(a in "[./%\\[a\u{1}~]{0,4}", b in "[./%\\[a\u{1}~]{0,4}") {
            prop_assert_eq!(a == b, escape(&a) == escape(&b));
        }

        #[test]
        fn cutting_never_exceeds_an_entry(name in "(?s).{0,400}") {
            prop_assert!(fit(&escape(&name), VALUE_SUFFIX).len() <= NAME_MAX);
        }

        #[test]
        fn value_names_round_trip(names in proptest::collection::vec("[a-z%.\\[/]{1,6}", 1..4),
                                  lists in proptest::collection::vec(proptest::collection::vec(any::<u64>(), 0..3), 1..4)) {
            let mut pattern = String::new();
            let mut indices = Vec::new();
            for (name, list) in names.iter().zip(&lists) {
                pattern.push_str(&escape(name));
                pattern.push_str(&"[]".repeat(list.len()));
                indices.extend(list);
                pattern.push('.');
            }
            let text = with_indices(&pattern, &indices);
            let parsed = ValueName::parse(&text).unwrap();
            prop_assert_eq!(parsed.pattern, pattern);
            prop_assert_eq!(parsed.indices, indices);
        }
    }
}
