//! 48 to 67: what the library's maintenance does to values, seen through a mount.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{attribute, json, object, values};
use crate::harness::{Mount, Tables, errno, folder, names, run_python, sha256, tree, write_blobs};

const MANAGED: &str = "ds.update_schema_metadata({'lance.blob.managed': 'true'})";
/// Of `reader_feature_flags`: Managed blobs.
const FLAG_MANAGED: u64 = 1 << 14;

/// Runs maintenance on a table, as `ds`.
fn maintain(table: &Path, script: &str) {
    run_python(&format!(
        "from datetime import timedelta
ds = lance.dataset('{}')
{script}",
        table.display()
    ));
}

/// The kinds of the values of a version.
fn kinds(version: &Path) -> Vec<String> {
    values(version).iter().map(|path| attribute(path, "kind")).collect()
}

/// The SHA-256 of the bytes of the values of a version, by path in it.
fn contents(version: &Path) -> BTreeMap<PathBuf, String> {
    let read = |path: PathBuf| {
        let content = sha256(&std::fs::read(&path).unwrap());
        (path.strip_prefix(version).unwrap().to_owned(), content)
    };
    values(version).into_iter().map(read).collect()
}

fn flags(version: &Path) -> u64 {
    json(&version.join(".version.json"))["reader_feature_flags"].as_u64().unwrap()
}

#[test]
fn n48_compaction_of_a_managed_table_leaves_payloads_where_they_are() {
    let folder = folder();
    let table = folder.path().join("t.lance");
    write_blobs(&table, "create", "[b'i', b'p' * 100_000, b'd' * 5_000_000]", "");
    write_blobs(&table, "append", "[b'q' * 80_000, None, b'']", "");
    maintain(&table, MANAGED);
    maintain(&table, "ds.optimize.compact_files()");
    let mount = Mount::new(&table);
    let latest = mount.at("latest/");
    assert_eq!(json(&latest.join(".version.json"))["fragments"], 1);
    assert_eq!(contents(&latest), contents(&mount.at("2")));
    assert_eq!(contents(&latest).len(), 5);
    for row in [1, 2, 3] {
        let [before, after] = ["2", "latest"].map(|v| mount.at(v).join(format!("{row}/blob.bin")));
        assert_eq!(object(&after), object(&before), "row {row} was copied");
        assert_eq!(attribute(&after, "offset"), attribute(&before, "offset"));
        assert_eq!(attribute(&after, "kind"), "managed");
        assert_ne!(attribute(&before, "kind"), "managed");
    }
    assert_eq!(attribute(&latest.join("0/blob.bin"), "kind"), "inline");
    // The objects outlive the versions that wrote them.
    maintain(&table, "ds.cleanup_old_versions(older_than=timedelta(0), retain_versions=1)");
    let after = Mount::new(&table);
    assert_eq!(contents(&after.at("latest/")), contents(&latest));
    let numbers = |m: &Mount| names(&m.path).iter().filter(|n| n.parse::<u32>().is_ok()).count();
    assert_eq!(numbers(&after), 1);
}

#[test]
fn n50_compaction_without_the_opt_in_makes_nothing_managed() {
    let folder = folder();
    let table = folder.path().join("t.lance");
    write_blobs(&table, "create", "[b'i', b'p' * 100_000, b'd' * 5_000_000]", "");
    write_blobs(&table, "append", "[b'q' * 80_000]", "");
    maintain(&table, "ds.optimize.compact_files()");
    let mount = Mount::new(&table);
    let latest = mount.at("latest/");
    assert_eq!(json(&latest.join(".version.json"))["fragments"], 1);
    assert_eq!(kinds(&latest), ["inline", "packed", "dedicated", "packed"]);
    assert_eq!(contents(&latest), contents(&mount.at("2")));
    assert_eq!(flags(&latest) & FLAG_MANAGED, 0);
}

#[test]
fn n51_n52_the_opt_in_outlives_restore_and_overwrite() {
    let folder = folder();
    let table = folder.path().join("t.lance");
    write_blobs(&table, "create", "[b'p' * 100_000]", "");
    maintain(&table, "ds.update_config({'unrelated': 'x'})");
    maintain(&table, MANAGED);
    maintain(&table, "lance.dataset(ds.uri, version=1).restore()");
    run_python(&format!(
        "lance.write_dataset(pa.table({{'n': [1]}}), {table:?}, mode='overwrite')"
    ));
    let mount = Mount::new(&table);
    let managed = [1, 2, 3, 4, 5].map(|v| flags(&mount.at(v.to_string())) & FLAG_MANAGED != 0);
    assert_eq!(managed, [false, false, true, true, true]);
    let whole = contents(&mount.at("1"));
    assert_eq!(whole.len(), 1);
    for version in ["2", "3", "4"] {
        assert_eq!(contents(&mount.at(version)), whole, "version {version}");
        assert_eq!(kinds(&mount.at(version)), ["packed"], "version {version}");
    }
    assert_eq!(names(&mount.at("5/0")), ["row.json"]);
}

#[test]
fn n55_a_deep_clone_needs_nothing_of_its_source() {
    let folder = folder();
    let (source, clone) = (folder.path().join("a.lance"), folder.path().join("b.lance"));
    write_blobs(&source, "create", "[b'i', b'p' * 100_000, b'd' * 5_000_000, None]", "");
    let before = contents(&Mount::new(&source).at("1"));
    maintain(&source, &format!("ds.deep_clone({clone:?}, 1)"));
    std::fs::remove_dir_all(&source).unwrap();
    let mount = Mount::new(&clone);
    assert_eq!(contents(&mount.at("latest/")), before);
    assert_eq!(before.len(), 3);
    for path in values(&mount.at("latest/")) {
        assert!(object(&path).starts_with(&clone), "{}", object(&path).display());
    }
}

#[test]
fn n56_a_tag_and_a_branch_keep_what_a_cleanup_would_remove() {
    let folder = folder();
    let table = folder.path().join("t.lance");
    let managed = "data_storage_version='2.2'";
    for (mode, letter) in [("create", 'a'), ("overwrite", 'b'), ("overwrite", 'c')] {
        write_blobs(&table, mode, &format!("[b'{letter}' * 100_000]"), managed);
        if mode == "create" {
            maintain(&table, MANAGED);
        }
    }
    write_blobs(&table, "overwrite", "[b'd' * 100_000]", managed);
    // 1 a, 2 opt-in, 3 b, 4 c, 5 d
    let mount = Mount::new(&table);
    let objects = ["2", "3", "4"].map(|version| object(&mount.at(version).join("0/blob.bin")));
    maintain(
        &table,
        "ds.tags.create('keep', 3)
ds.create_branch('side', 4)
ds.cleanup_old_versions(older_than=timedelta(0), retain_versions=1, error_if_tagged_old_versions=False)",
    );
    let mount = Mount::new(&table);
    let first =
        |path: &str| std::fs::read(mount.at(path).join("0/blob.bin")).map(|b| (b.len(), b[0]));
    assert_eq!(first("tags/keep").unwrap(), (100_000, b'b'));
    assert_eq!(first("branches/side/latest").unwrap(), (100_000, b'c'));
    assert_eq!(first("latest").unwrap(), (100_000, b'd'));
    assert_eq!(errno(first("2")), 2);
    assert_eq!(objects.map(|object| object.exists()), [false, true, true]);
}

#[test]
fn n57_a_dropped_column_is_read_in_the_versions_that_have_it() {
    let folder = folder();
    let table = folder.path().join("t.lance");
    write_blobs(&table, "create", "[b'p' * 100_000, b'i']", "");
    maintain(&table, MANAGED);
    maintain(&table, "ds.tags.create('with', 1)\nds.drop_columns(['blob'])");
    let clean = "ds.cleanup_old_versions(older_than=timedelta(0), retain_versions=1, error_if_tagged_old_versions=False)";
    maintain(&table, clean);
    let mount = Mount::new(&table);
    assert_eq!(names(&mount.at("latest/0")), ["row.json"]);
    let path = mount.at("tags/with/0/blob.bin");
    assert_eq!(std::fs::read(&path).unwrap(), b"p".repeat(100_000));
    let object = object(&path);
    maintain(&table, &format!("ds.tags.delete('with')\n{clean}"));
    let mount = Mount::new(&table);
    assert_eq!(names(&mount.at("latest/0")), ["row.json"]);
    assert_eq!(errno(std::fs::metadata(mount.at("tags/with"))), 2);
    assert_eq!(errno(std::fs::metadata(mount.at("1"))), 2);
    assert!(object.parent().unwrap().parent().unwrap().exists());
}

#[test]
fn n67_updating_another_column_keeps_nested_values() {
    let folder = folder();
    let table = Tables::shared().copy("nested", folder.path());
    let before = Mount::new(&table);
    let wanted = contents(&before.at("1"));
    assert!(wanted.len() > 20, "{wanted:?}");
    maintain(&table, "ds.update({'id': 'id + 100'})");
    let mount = Mount::new(&table);
    assert_eq!(json(&mount.at("latest/0/row.json"))["id"], 100);
    assert_eq!(contents(&mount.at("latest/")), wanted);
    assert_eq!(tree(&mount.at("1")), tree(&before.at("1")));
}
