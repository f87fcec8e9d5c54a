//! `lancefs inspect`.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::harness::{Mount, Tables, run, stderr, stdout, xattr};

fn inspected(path: &Path) -> Value {
    let output = run(&["inspect", "--json", path.to_str().unwrap()]);
    serde_json::from_str(&stdout(&output)).unwrap()
}

/// The first file of each kind in a table's newest version.
fn one_of_each_kind(name: &str) -> BTreeMap<String, String> {
    let expected = Tables::shared().expected(name);
    let mut found = BTreeMap::new();
    let rows = expected["versions"][expected["latest"].to_string()]["rows"].as_array().unwrap();
    for (row, index) in rows.iter().zip(0..) {
        for (file, cell) in row["files"].as_object().unwrap() {
            // An empty value may be in no object.
            if let (Some(kind), true) = (cell["kind"].as_str(), cell["size"] != 0) {
                found.entry(kind.to_owned()).or_insert_with(|| format!("{index}/{file}"));
            }
        }
    }
    found
}

#[test]
fn inspect_tells_of_every_kind_where_its_bytes_are() {
    let mut seen = Vec::new();
    for name in ["scalar", "managed", "managed_with_base", "external_base", "legacy_2_1"] {
        let mount = Tables::shared().mount(name);
        for (kind, file) in one_of_each_kind(name) {
            let path = mount.at("latest").join(file);
            let found = inspected(&path);
            assert_eq!(found["kind"], kind, "{name}");
            assert!(found.get("error").is_none(), "{found}");
            for attribute in ["object", "offset", "size", "row_address", "row_id", "field_id"] {
                let value = xattr(&path, &format!("user.lancefs.{attribute}")).unwrap();
                assert_eq!(found[attribute], value, "{name}: {attribute}");
            }
            assert_eq!(found["mime_type"], xattr(&path, "user.mime_type").unwrap());
            holds(&found, &std::fs::read(&path).unwrap());
            seen.push(kind);
        }
    }
    seen.sort();
    seen.dedup();
    let all =
        ["dedicated", "external", "inline", "legacy", "managed", "managed-with-base", "packed"];
    assert_eq!(seen, all);
}

/// The object that was told of holds these bytes at the interval that was told of.
fn holds(found: &Value, bytes: &[u8]) {
    let number = |name: &str| found[name].as_str().unwrap().parse::<usize>().unwrap();
    let uri = url(found["object"].as_str().unwrap());
    let object = std::fs::read(&uri).unwrap_or_else(|e| panic!("{uri}: {e}"));
    let (offset, size) = (number("offset"), number("size"));
    assert!(object[offset..offset + size] == *bytes, "{found} is not where the bytes are");
}

fn url(uri: &str) -> String {
    let path = uri.strip_prefix("file://").unwrap_or_else(|| panic!("{uri}"));
    let path = lancefs::name::unescape(path).unwrap_or_else(|| path.to_owned());
    assert!(path.starts_with('/'), "{path}");
    path
}

#[test]
fn inspect_prints_one_attribute_a_line() {
    let mount = Mount::new(Tables::shared().path("scalar"));
    let path = mount.at("latest/1/blob.bin");
    let text = stdout(&run(&["inspect", path.to_str().unwrap()]));
    let lines: Vec<_> = text.lines().map(|line| line.split_once("  ").unwrap()).collect();
    let names: Vec<_> = lines.iter().map(|(name, _)| name.trim()).collect();
    assert_eq!(
        names,
        ["kind", "object", "offset", "size", "row_address", "row_id", "field_id", "mime_type"]
    );
    for (name, value) in lines {
        assert_eq!(inspected(&path)[name.trim()], value.trim());
    }
}

#[test]
fn inspect_of_a_failing_file_tells_why() {
    for (name, file, cause) in [
        ("damaged", "latest/1/blob.bin", "No such file"),
        ("damaged", "latest/2/blob.bin", "is truncated"),
        ("damaged", "latest/3/blob.bin", "is truncated"),
        ("unknown_base", "latest/0/blob.bin", "unknown base_id 1"),
        ("external", "latest/0/blob.bin", "--allow-external"),
        ("unopenable", "2", "version 2"),
        ("unopenable", "3", "version 3"),
    ] {
        let mount = Mount::new(Tables::shared().path(name));
        let path = mount.at(file);
        std::fs::read(&path).expect_err("it fails");
        std::fs::read_dir(&path).expect_err("it fails as a directory too");
        let output = run(&["inspect", path.to_str().unwrap()]);
        assert!(output.status.success(), "{name}/{file}: {}", stderr(&output));
        let text = stdout(&output);
        let error = text.lines().find(|line| line.starts_with("error"));
        assert!(error.is_some_and(|line| line.contains(cause)), "{name}/{file}: {text}");
    }
}

#[test]
fn inspect_needs_no_read_before_to_tell_why_a_file_fails() {
    for name in ["damaged_managed", "unknown_base"] {
        let mount = Mount::new(Tables::shared().path(name));
        let row = i32::from(name != "unknown_base");
        let path = mount.at(format!("latest/{row}/blob.bin"));
        let output = run(&["inspect", "--json", path.to_str().unwrap()]);
        assert!(output.status.success(), "{name}: {}", stderr(&output));
        let found: Value = serde_json::from_str(&stdout(&output)).unwrap();
        assert!(found["error"].is_string(), "{name}: {found}");
    }
}

#[test]
fn inspect_of_what_is_no_value() {
    let mount = Mount::new(Tables::shared().path("scalar"));
    let row = mount.at("latest/1");
    for (path, code, said) in [
        (Path::new("/etc/hostname"), 1, "no value of a lancefs mount"),
        (&row, 1, "no value of a lancefs mount"),
        (&row.join("row.json"), 1, "no value of a lancefs mount"),
        (&mount.path, 1, "no value of a lancefs mount"),
        (&row.join("absent.bin"), 3, "absent.bin"),
        (&mount.at("latest/99/blob.bin"), 3, "latest/99/blob.bin"),
        (Path::new("/no/such/path"), 3, "/no/such/path"),
    ] {
        let output = run(&["inspect", path.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(code), "{}: {}", path.display(), stderr(&output));
        assert!(stderr(&output).contains(said), "{}: {}", path.display(), stderr(&output));
        assert_eq!(output.stdout, b"", "{}", path.display());
    }
}
