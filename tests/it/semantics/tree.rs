//! S1 to S10: the tree.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{SOON, cell, json};
use crate::harness::{
    Mount, Tables, errno, eventually, folder, names, run_python, sha256, tree, write_blobs, xattr,
};

#[test]
fn s01_a_value_is_a_file_named_by_its_path() {
    let mount = Mount::new(Tables::shared().path("nested"));
    let wanted = [
        "album.tracks[0].raw.bin",
        "album.tracks[3].raw.bin",
        "deep.beside.bin",
        "deep.in.blob.bin",
        "grid[0][0].clip.bin",
        "ll[0][0].bin",
        "ll[0][1].bin",
        "row.json",
        "scenes[0].clip.bin",
    ];
    assert_eq!(names(&mount.at("latest/0")), wanted);
    for name in wanted {
        let meta = std::fs::symlink_metadata(mount.at("latest/0").join(name)).unwrap();
        assert!(meta.is_file(), "{name}: {meta:?}");
    }
}

#[test]
fn s02_the_size_is_exact_and_the_bytes_are_the_values() {
    let tables = Tables::shared();
    let mount = Mount::new(tables.path("scalar"));
    let sizes = [0, 1, 100, 4095, 4096, 4097, 65_535, 65_536, 65_537, 300_000, 4 << 20];
    let rows = (0..).filter(|row| *row != 3);
    for (size, row) in sizes.into_iter().chain([(4 << 20) + 1]).zip(rows) {
        let path = mount.at(format!("latest/{row}/blob.bin"));
        assert_eq!(std::fs::metadata(&path).unwrap().len(), size, "row {row}");
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(u64::try_from(bytes.len()).unwrap(), size, "row {row}");
        assert_eq!(cell(tables, "scalar", 1, row, "blob.bin")["sha256"], sha256(&bytes));
    }
}

#[test]
fn s03_null_has_no_file_and_empty_is_a_file_of_0_bytes() {
    let mount = Mount::new(Tables::shared().path("scalar"));
    assert_eq!(names(&mount.at("latest/3")), ["row.json"]);
    assert_eq!(errno(std::fs::metadata(mount.at("latest/3/blob.bin"))), 2);
    assert_eq!(errno(std::fs::File::open(mount.at("latest/3/blob.bin"))), 2);
    assert_eq!(names(&mount.at("latest/0")), ["blob.bin", "row.json"]);
    assert_eq!(std::fs::read(mount.at("latest/0/blob.bin")).unwrap(), b"");
    assert_eq!(json(&mount.at("latest/3/row.json"))["blob"], Value::Null);
    assert_eq!(json(&mount.at("latest/0/row.json"))["blob"], "blob.bin");
}

#[test]
fn s04_a_null_list_is_null_and_an_empty_list_is_empty() {
    let mount = Mount::new(Tables::shared().path("list"));
    let frames = |row: u32| json(&mount.at(format!("latest/{row}/row.json")))["frames"].clone();
    assert_eq!(frames(1), Value::Array(vec![]));
    assert_eq!(frames(2), Value::Null);
    assert_eq!(frames(3), Value::Array(vec![Value::Null]));
}

#[test]
fn s05_elements_keep_their_positions_around_null_and_empty_ones() {
    let mount = Mount::new(Tables::shared().path("list"));
    let frames = |row: u32| {
        let mut all = names(&mount.at(format!("latest/{row}")));
        all.retain(|name| name.starts_with("frames"));
        all
    };
    assert_eq!(frames(3), [""; 0]);
    assert_eq!(frames(5), ["frames[0].bin", "frames[2].bin"]);
    assert_eq!(errno(std::fs::metadata(mount.at("latest/5/frames[1].bin"))), 2);
    assert_eq!(frames(7), ["frames[3].bin"]);
    assert_eq!(frames(4), ["frames[0].bin", "frames[1].bin"]);
    let size = |path: &str| std::fs::metadata(mount.at(path)).unwrap().len();
    assert_eq!(size("latest/4/frames[0].bin"), 0);
    assert_eq!(size("latest/5/frames[0].bin"), 70_000);
    assert_eq!(size("latest/7/frames[3].bin"), 10);
    assert_eq!([size("latest/4/frames[1].bin"), size("latest/5/frames[2].bin")], [300_000, 1]);
}

#[test]
fn s06_row_json_holds_every_column_of_every_type() {
    let tables = Tables::shared();
    let typed = ["types", "types_time", "types_containers", "types_fixed_structs"];
    let mut columns = 0;
    for table in typed.into_iter().chain(["types_extensions", "names_plain", "nested"]) {
        let mount = Mount::new(tables.path(table));
        let about = json(&mount.at("latest/.version.json"));
        let fields = about["schema"].as_array().unwrap();
        let wanted: BTreeSet<_> =
            fields.iter().map(|field| field["name"].as_str().unwrap()).collect();
        let rows = about["rows"].as_u64().unwrap();
        assert!(rows > 0, "{table} has no rows");
        for row in 0..rows {
            let shown = json(&mount.at(format!("latest/{row}/row.json")));
            let object = shown.as_object().unwrap();
            let columns: BTreeSet<_> = object.keys().map(String::as_str).collect();
            assert_eq!(columns, wanted, "{table} row {row}");
            for (column, value) in object {
                assert!(value.get("error").is_none(), "{table} row {row} {column}: {value}");
            }
        }
        columns += wanted.len();
    }
    assert!(columns > 60, "only {columns} columns were looked at");
    let mount = Mount::new(tables.path("panicking"));
    let row = mount.at("latest/0/row.json");
    assert_eq!(errno(std::fs::read(&row)), 5);
    assert!(xattr(&row, "user.lancefs.error").unwrap().contains("failing"));
}

#[test]
fn s07_a_row_is_named_by_the_index_that_take_uses() {
    let tables = Tables::shared();
    let mount = Mount::new(tables.path("many_fragments"));
    let script = format!(
        "ds = lance.dataset({:?})
print(*ds.take(list(range(ds.count_rows())), columns=['id'])['id'].to_pylist())",
        tables.path("many_fragments")
    );
    let taken: Vec<i64> =
        run_python(&script).split_whitespace().map(|id| id.parse().unwrap()).collect();
    assert_eq!(taken.len(), 111);
    for (row, id) in taken.iter().enumerate() {
        assert_eq!(json(&mount.at(format!("latest/{row}/row.json")))["id"], *id, "row {row}");
    }
    assert_eq!(errno(std::fs::metadata(mount.at("latest/111"))), 2);
    assert_eq!(names(&mount.at("latest")).len(), 112);
}

#[test]
fn s08_deleting_a_row_changes_later_versions_only() {
    let folder = folder();
    let table = folder.path().join("t.lance");
    write_blobs(&table, "create", "[b'zero', b'one', b'two' * 30_000, b'three']", "");
    let mount = Mount::with(&table, &SOON);
    let before = tree(&mount.at("1"));
    run_python(&format!("lance.dataset({table:?}).delete('id = 1')"));
    eventually("version 2", || mount.at("2").is_dir());
    assert_eq!(tree(&mount.at("1")), before);
    assert_eq!(names(&mount.at("2")), [".version.json", "0", "1", "2"]);
    let two = std::fs::read(mount.at("2/1/blob.bin")).unwrap();
    assert_eq!(two, b"two".repeat(30_000));
    assert_eq!(std::fs::read(mount.at("2/2/blob.bin")).unwrap(), b"three");
}

#[test]
fn s09_awkward_field_names_are_escaped_and_never_meet() {
    let tables = Tables::shared();
    for (table, nulls, wanted) in [
        ("names", 0, vec!["a%2Fb.bin", "x%25y.bin", "%2541.bin", "%5B0%5D.bin", "new%0Aline.bin"]),
        ("names_long", 0, vec![]),
        ("names_nested", 1, vec!["s.%2E.bin", "s.%2E%2E.bin", "s.%2Ehidden.bin", "s.a%2Fb.bin"]),
    ] {
        let mount = Mount::new(tables.path(table));
        let shown = names(&mount.at("latest/0"));
        for name in wanted {
            assert!(shown.iter().any(|n| n == name), "{table}: no {name} in {shown:?}");
        }
        for name in shown.iter().filter(|name| *name != "row.json") {
            assert!(name.len() <= 255, "{table}: {} bytes: {name}", name.len());
            let bytes = std::fs::read(mount.at("latest/0").join(name)).unwrap();
            assert_eq!(cell(tables, table, 1, 0, name)["sha256"], sha256(&bytes), "{table} {name}");
        }
        let fields = json(&mount.at("latest/.version.json"))["blob_fields"].clone();
        assert_eq!(shown.len() - 1, fields.as_array().unwrap().len() - nulls, "{table}");
    }
}

#[test]
fn s10_a_slash_in_a_branch_is_escaped() {
    // The library refuses a tag with a slash, so one comes from elsewhere: as a file of that name.
    let folder = folder();
    let table = Tables::shared().copy("refs", folder.path());
    let tags = table.join("_refs/tags");
    std::fs::copy(tags.join("v1.0.json"), tags.join("x%2Fy.json")).unwrap();
    let mount = Mount::new(&table);
    assert!(names(&mount.at("branches")).contains(&"a%2Fb".to_owned()));
    assert_eq!(errno(std::fs::metadata(mount.at("branches/a/b"))), 2);
    assert!(mount.at("branches/a%2Fb/latest/0/row.json").is_file());
    let link = |tag: &str| std::fs::read_link(mount.at("tags").join(tag)).unwrap();
    assert_eq!(link("on-ab").to_str(), Some("../branches/a%2Fb/5"));
    assert_eq!(link("x%2Fy").to_str(), Some("../2"));
    assert!(mount.at("tags/x%2Fy/0/row.json").is_file());
}
