//! Each sentence of README "Semantics" from S1 to S32, by its number. `life.rs` has S33 to S36,
//! `staging` S37 to S44, S50 to S53, and S55 to S58, `passing.rs` S45, `trust` S46 and S47, `objects` S48
//! and S49, `damage.rs` S54.

mod attributes;
mod reading;
mod tree;
mod versions;
mod writing;

use std::path::Path;

use serde_json::Value;

use crate::harness::Tables;

/// What makes a mount look at the table soon, and how long that is in milliseconds.
const SOON: [&str; 2] = ["--refresh", "200ms"];
const SOON_MS: u64 = 200;

/// A cell of the manifest: version, row and file.
fn cell<'a>(tables: &'a Tables, table: &str, version: u64, row: usize, file: &str) -> &'a Value {
    &tables.expected(table)["versions"][version.to_string()]["rows"][row]["files"][file]
}

/// A JSON file of a mount.
fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// A file that a value is in, by its `user.lancefs.object`, with the value's offset and size there.
fn object(value: &Path) -> (std::path::PathBuf, u64, u64) {
    let attribute = |name| crate::harness::xattr(value, name).unwrap();
    let object = attribute("user.lancefs.object");
    let path = object.strip_prefix("file://").unwrap_or(&object).into();
    let number = |name| attribute(name).parse().unwrap();
    (path, number("user.lancefs.offset"), number("user.lancefs.size"))
}
