//! Rows of which `row.json` is long: what is made of them, and what that takes of memory.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::harness::{Mount, errno, folder, names, run_python, xattr};

const EFBIG: i32 = 27;

/// A table whose rows have so many bytes in a plain binary column, beside an id and a list.
fn table(lengths: &str) -> (TempDir, PathBuf) {
    let folder = folder();
    let table = folder.path().join("t.lance");
    run_python(&format!(
        "lengths = {lengths}
schema = pa.schema([pa.field('id', pa.int64()), pa.field('bytes', pa.large_binary()), pa.field('list', pa.list_(pa.int8()))])
def batches():
    for i, length in enumerate(lengths):
        yield pa.record_batch([[i], pa.array([bytes([i % 251]) * length], pa.large_binary()), [[i % 100] * 3]], schema=schema)
lance.write_dataset(pa.RecordBatchReader.from_batches(schema, batches()), '{}', data_storage_version='2.2')",
        table.display()
    ));
    (folder, table)
}

/// The length of a row's text, from that of its bytes.
fn length(bytes: usize) -> usize {
    let around =
        "{\n  \"id\": 0,\n  \"bytes\": \"\",\n  \"list\": [\n    0,\n    0,\n    0\n  ]\n}\n";
    bytes.div_ceil(3) * 4 + around.len()
}

#[test]
fn a_row_json_above_64_mib_is_refused_and_its_neighbours_are_read() {
    const FITS: usize = 47 << 20;
    let (_folder, table) = table(&format!("[3, {FITS}, 51 << 20, 140 << 20, 3]"));
    let mount = Mount::new(&table);
    let row = |row: u64| mount.at(format!("1/{row}/row.json"));
    assert_eq!(fs::read(row(0)).unwrap().len(), length(3));
    for large in [2, 3] {
        assert_eq!(errno(fs::read(row(large))), EFBIG);
        assert_eq!(names(&mount.at(format!("1/{large}"))), ["row.json"]);
        let why = xattr(&row(large), "user.lancefs.error").unwrap();
        assert!(why.contains("row.json") || why.contains("larger than"), "{why}");
    }
    let text = fs::read(row(1)).unwrap();
    assert_eq!(
        (text.len(), usize::try_from(fs::metadata(row(1)).unwrap().len()).unwrap()),
        (length(FITS), length(FITS))
    );
    assert!(text.ends_with(b"    1\n  ]\n}\n"));
    assert_eq!(fs::read(row(4)).unwrap().len(), length(3));
}

#[test]
fn memory_follows_what_is_shown_and_not_how_many_rows_look_small() {
    // By the first row, hundreds could be scanned at once.
    let (_folder, table) = table("[3] + [6 << 20] * 40");
    let mount = Mount::new(&table);
    let before = mount.peak();
    for row in 0..=40 {
        let text = fs::read(mount.at(format!("1/{row}/row.json"))).unwrap();
        assert_eq!(
            text.len(),
            length(if row == 0 { 3 } else { 6 << 20 }) + if row > 9 { 1 + 3 } else { 0 }
        );
    }
    let more = (mount.peak() - before) >> 20;
    assert!(more < 200, "{more} MiB for rows of 6 MiB");
}

#[test]
fn several_long_texts_at_once_are_made_one_after_another() {
    let (_folder, table) = table("[30 << 20] * 6");
    let mount = Mount::new(&table);
    let before = mount.peak();
    std::thread::scope(|scope| {
        for row in 0..6 {
            let path = mount.at(format!("1/{row}/row.json"));
            scope.spawn(move || assert_eq!(fs::read(path).unwrap().len(), length(30 << 20)));
        }
    });
    let more = (mount.peak() - before) >> 20;
    assert!(more < 500, "{more} MiB for six rows of 30 MiB");
}
