//! What a file is, from its name and its first bytes together.
//!
//! 1. Most formats begin with bytes of their own, and then the name does not matter (`infer`).
//! 2. Some are containers for others: a docx is a zip, an svg is XML. There the name decides, or what
//!    is in the container.
//! 3. Texts begin with anything: their name decides; without one, what they look like.

/// How many bytes are looked at: the longest signature that `infer` knows ends before.
pub const HEAD: u64 = 8192;

/// What is not recognised.
pub const UNKNOWN: &str = "application/octet-stream";
const ZIP: &str = "application/zip";
const XML: &str = "text/xml";
const SVG: &str = "image/svg+xml";
/// Formats that others are made of.
const CONTAINERS: [&str; 4] = [ZIP, XML, "application/x-ole-storage", "application/gzip"];
/// What is in the zips of Office Open XML, and what they are then.
const OFFICE: [(&[u8], &str); 3] = [
    (b"word/", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
    (b"xl/", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
    (b"ppt/", "application/vnd.openxmlformats-officedocument.presentationml.presentation"),
];
/// How many lines have to have as many separators as the first for a table.
const TABLE_LINES: usize = 10;

/// How long a text of one line has to be to be taken for one, in bytes.
const LONG_TEXT: usize = 16;

/// The type of a file with these first bytes ([`HEAD`] of them, or all), whose name may be known.
pub fn type_of(name: Option<&str>, head: &[u8]) -> String {
    if let Some(certain) = by_content(head) {
        return certain.to_owned();
    }
    let by_name = name.and_then(|name| mime_guess::from_path(name).first());
    let by_name = by_name.map(|guess| guess.essence_str().to_owned());
    by_name.unwrap_or_else(|| unnamed(head).to_owned())
}

/// The type that the first bytes alone make certain.
pub fn by_content(head: &[u8]) -> Option<&'static str> {
    infer::get(head).map(|kind| kind.mime_type()).filter(|found| !CONTAINERS.contains(found))
}

/// The likeliest type without a name.
fn unnamed(head: &[u8]) -> &'static str {
    let container = infer::get(head).map(|kind| kind.mime_type());
    match (container, text(head)) {
        (Some(ZIP), _) => office(head).unwrap_or(ZIP),
        (Some(XML), Some(text)) if text.contains("<svg") => SVG,
        (Some(container), _) => container,
        (None, Some(text)) => of_text(text),
        (None, None) => UNKNOWN,
    }
}

fn office(head: &[u8]) -> Option<&'static str> {
    let holds = |part: &[u8]| head.windows(part.len()).any(|bytes| bytes == part);
    let found = OFFICE.iter().find(|(folder, _)| holds(folder))?;
    holds(b"[Content_Types].xml").then_some(found.1)
}

/// The bytes as a text, where they are one; a character may be cut at the end.
fn text(head: &[u8]) -> Option<&str> {
    let whole = match std::str::from_utf8(head) {
        Ok(text) => text,
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&head[..error.valid_up_to()]).ok()?
        }
        Err(_) => return None,
    };
    let is_text = |c: char| !c.is_control() || matches!(c, '\n' | '\r' | '\t' | '\u{c}' | '\u{1b}');
    (!whole.is_empty() && whole.chars().all(is_text)).then_some(whole)
}

fn of_text(text: &str) -> &'static str {
    let start = text.trim_start_matches('\u{feff}').trim_start();
    if start.starts_with('<') && start.contains("<svg") {
        return SVG;
    }
    if is_json(start) {
        return "application/json";
    }
    match (is_table(start), text.contains('\n') || text.len() >= LONG_TEXT) {
        (true, _) => "text/csv",
        (false, true) => "text/plain",
        // A few letters tell nothing.
        (false, false) => UNKNOWN,
    }
}

/// Whether a text is JSON, or its beginning.
fn is_json(text: &str) -> bool {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<serde::de::IgnoredAny>();
    let is_structure = text.starts_with(['{', '[']);
    is_structure
        && match values.next() {
            Some(Ok(_)) => true,
            // It was cut.
            Some(Err(error)) => error.is_eof(),
            None => false,
        }
}

/// Whether every line has as many commas, semicolons or tabs.
fn is_table(text: &str) -> bool {
    let lines: Vec<&str> = text.lines().take(TABLE_LINES).collect();
    // The last one may be cut, unless the text is shorter.
    let whole = if text.ends_with('\n') { &lines[..] } else { &lines[..lines.len().max(1) - 1] };
    [',', ';', '\t'].into_iter().any(|separator| {
        let counts = || whole.iter().map(|line| line.matches(separator).count());
        whole.len() > 1 && counts().all(|count| count > 0 && Some(count) == counts().next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_and_content_tell_together() {
        let docx = b"PK\x03\x04\x14\0\0\0\x08\0aaaaaaaaaaaaaaaa\x13\0\0\0[Content_Types].xml word/document.xml";
        let zip = b"PK\x03\x04\x14\0\0\0\x08\0aaaaaaaaaaaaaaaa\x05\0\0\0a.txtPK";
        let svg: &[u8] = b"<?xml version=\"1.0\"?><svg xmlns=\"http://www.w3.org/2000/svg\"/>";
        let word = OFFICE[0].1;
        for (name, head, wanted) in [
            (None, &b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"[..], "image/png"),
            (Some("photo.txt"), b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "image/png"),
            (None, b"{\"a\": [1, 2", "application/json"),
            (None, b"[1, 2]\n", "application/json"),
            (None, b"[section]\nkey = 1\n", "text/plain"),
            (Some("a.json"), b"{\"a\": 1}", "application/json"),
            (None, b"a,b\n1,2\n3,4\n", "text/csv"),
            (None, b"a\tb\n1\t2\n3", "text/csv"),
            (Some("a.csv"), b"a\n1\n", "text/csv"),
            (None, b"Dear all,\nno.\n", "text/plain"),
            (Some("README.md"), b"# Hello\n", "text/markdown"),
            (None, "gr\u{fc}n ist die Hoffnung".as_bytes(), "text/plain"),
            (None, b"?", UNKNOWN),
            (None, svg, SVG),
            (None, b"<svg xmlns='x'/>", SVG),
            (Some("a.svg"), svg, SVG),
            (Some("a.docx"), docx, word),
            (None, docx, word),
            (None, zip, ZIP),
            (Some("a.epub"), zip, "application/epub+zip"),
            (None, b"\0\x01\x02\x03", UNKNOWN),
            (None, b"", UNKNOWN),
            (Some("a.bin"), b"\0\x01\x02\x03", UNKNOWN),
        ] {
            assert_eq!(type_of(name, head), wanted, "{name:?} {:?}", String::from_utf8_lossy(head));
        }
    }

    #[test]
    fn a_text_may_be_cut_within_a_character() {
        let whole = "auch sehr gr\u{fc}n ist gr\u{fc}";
        let (_, cut) = whole.as_bytes().split_last().unwrap();
        assert_eq!(type_of(None, cut), "text/plain");
        assert_eq!(type_of(None, b"gr\xfcn is in Latin-1 here"), UNKNOWN);
    }
}
