//! Every index that pylance builds, asked after rows were replaced, deleted and added: it finds what a
//! scan finds.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::harness::{Desk, folder, python, stdout};

/// Runs `tests/tables/indices.py`.
fn script(arguments: &[&str]) -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tables/indices.py");
    let output = python().arg(script).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    stdout(&output)
}

/// A mount of a table with every index, and what its rows are replaced by.
struct Indexed {
    desk: Desk,
    replacements: Map<String, Value>,
}

impl Indexed {
    fn new(folder: &Path, flags: &[&str]) -> Self {
        let table = folder.join("indexed.lance");
        let made = script(&[&["make", table.to_str().unwrap()], flags].concat());
        let replacements = serde_json::from_str(&made).unwrap();
        Self { desk: Desk::new(&table, &[]), replacements }
    }

    fn replace(&self, batch: &str, row: &str) {
        let text = self.replacements[row].to_string();
        self.desk.entry(&format!("{batch}/@{row}"), &[("row.json", text.as_bytes())]);
    }

    fn delete(&self, batch: &str, row: u64) {
        self.desk.entry(&format!("{batch}/@{row}"), &[(".delete", b"")]);
    }

    fn agrees(&self, when: &str, flags: &[&str]) {
        let said = script(&[&["compare", &self.desk.table], flags].concat());
        assert_eq!(said.trim(), "all agree", "{when}: {said}");
    }
}

fn every_index_follows(flags: &[&str]) {
    let folder = folder();
    let indexed = Indexed::new(folder.path(), flags);
    indexed.agrees("as it was made", &[]);
    indexed.replace("a", "3");
    indexed.desk.must_commit("a");
    assert_eq!(indexed.desk.row(3)["tags_label_list"], json!(["unique1003x", "common"]));
    indexed.agrees("after a replacement", &[]);
    indexed.delete("b", 5);
    indexed.desk.must_commit("b");
    indexed.agrees("after a deletion", &[]);
    // Row 19 of this version is the one with id 20.
    let text = indexed.replacements["20"].to_string();
    indexed.desk.entry("c/@19", &[("row.json", text.as_bytes())]);
    indexed.delete("c", 40);
    let added =
        json!({"id": 2000, "int_btree": 2000, "tags_label_list": ["unique2000x", "common"]});
    indexed.desk.entry("c/new", &[("row.json", added.to_string().as_bytes())]);
    indexed.desk.must_commit("c");
    assert_eq!(indexed.desk.row(19)["id"], 20);
    indexed.agrees("after both", &[]);
    indexed.agrees("after the indices were optimized", &["optimize"]);
}

#[test]
fn s52_every_index_finds_what_a_scan_finds() {
    every_index_follows(&[]);
}

#[test]
fn s52_every_index_finds_what_a_scan_finds_by_stable_row_ids() {
    every_index_follows(&["stable"]);
}
