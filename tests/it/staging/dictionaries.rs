//! Columns with dictionaries: what is replaced and added is read by pylance, and a dictionary that is
//! full takes no new value.

use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{Desk, errno, folder, photos, run, run_python, stdout};

const EUCLEAN: i32 = 117;

/// A table of 2,000 rows in one file, with dictionaries of so many labels at the top, in a struct beside
/// a Blob, and in a list, and some with other keys and values.
fn labelled(table: &Path, labels: usize) {
    run_python(&format!(
        "{MAKE}
make('{}', {labels})",
        table.display()
    ));
}

const MAKE: &str = "
ROWS = 2000
def row(n, labels):
    label = f'l{n % labels}'
    return {'id': n, 'label': label if n % 50 else None, 's': {'label': label, 'blob': b'blob%d' % n},
            'l': [label, None, f'l{(n + 1) % labels}'][:n % 4], 'n': n % 200, 'b': b'%d' % (n % 9)}
def make(table, labels):
    label = pa.dictionary(pa.int8(), pa.string())
    s = pa.struct([pa.field('label', label), blob_field('blob')])
    schema = pa.schema([pa.field('id', pa.int64()), pa.field('label', label), pa.field('s', s),
        pa.field('l', pa.list_(pa.dictionary(pa.int16(), pa.string()))),
        pa.field('n', pa.dictionary(pa.uint8(), pa.int64())), pa.field('b', pa.dictionary(pa.int32(), pa.binary()))],
        metadata={'lance.blob.managed': 'true'})
    rows = [row(n, labels) for n in range(ROWS)]
    def column(f):
        values = [r[f.name] for r in rows]
        if f.name == 's':
            parts = [pa.array([v['label'] for v in values]).dictionary_encode().cast(label), blob_array([v['blob'] for v in values])]
            return pa.StructArray.from_arrays(parts, fields=list(s))
        if f.name == 'l':
            flat = pa.array([e for v in values for e in v]).dictionary_encode().cast(f.type.value_type)
            ends = [0]
            for v in values: ends.append(ends[-1] + len(v))
            return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), flat, type=f.type)
        return pa.array(values, f.type.value_type).dictionary_encode().cast(f.type) if f.name != 'id' else pa.array(values)
    lance.write_dataset(pa.table([column(f) for f in schema], schema=schema), table, data_storage_version='2.2')
";

/// What differs in the newest version from the rows that were made and these changes to them.
fn differences(desk: &Desk, labels: usize, changes: &Value, gone: &[u64]) -> String {
    desk.python(&format!(
        "{MAKE}
import json
changes = json.loads(r'''{changes}''')
wanted = []
for n in range(ROWS):
    if n in {gone:?}: continue
    r, change = row(n, {labels}), changes.get(str(n), {{}})
    for name, value in change.items():
        if name == 's': r['s'].update({{k: v.encode() if k == 'blob' else v for k, v in value.items()}})
        else: r[name] = value
    wanted.append(r)
found = ds.to_table(blob_handling='all_binary').to_pylist()
print(len(found), [(a, b) for a, b in zip(found, wanted) if a != b][:2])"
    ))
}

#[test]
fn s53_replaced_labels_and_blobs_beside_them_leave_the_column_readable() {
    let folder = folder();
    let table = folder.path().join("labelled.lance");
    labelled(&table, 100);
    let desk = Desk::new(&table, &[]);
    desk.entry("a/@3", &[("row.json", br#"{"label": "l7"}"#)]);
    desk.entry("a/@900", &[("row.json", br#"{"label": "brand new"}"#)]);
    desk.entry("a/@1999", &[("row.json", br#"{"label": null}"#)]);
    desk.must_commit("a");
    let mut changes =
        json!({"3": {"label": "l7"}, "900": {"label": "brand new"}, "1999": {"label": null}});
    assert_eq!(differences(&desk, 100, &changes, &[]).trim(), "2000 []");
    // Only a blob in the same struct.
    desk.entry("b/@5", &[("s.blob.jpg", b"other")]);
    desk.entry("b/@1500", &[("s.blob.jpg", b"another")]);
    desk.entry("b/@10", &[(".delete", b"")]);
    desk.must_commit("b");
    changes["5"] = json!({"s": {"blob": "other"}});
    changes["1500"] = json!({"s": {"blob": "another"}});
    assert_eq!(differences(&desk, 100, &changes, &[10]).trim(), "1999 []");
    // A list, other keys and values, and a struct, in a file that has deleted rows.
    let json = br#"{"l": ["l1", "a new one", null], "n": 250, "b": "OA=="}"#;
    desk.entry("c/@1234", &[("row.json", json)]);
    desk.must_commit("c");
    changes["1235"] = json!({"l": ["l1", "a new one", null], "n": 250});
    let said = differences(&desk, 100, &changes, &[10]);
    assert!(said.starts_with("1999 [({'id': 1235,") && said.matches("'id'").count() == 2, "{said}");
    assert!(said.contains("'b': b'8'"), "{said}");
    let verified = run(&["verify", "--columns", table.to_str().unwrap()]);
    assert!(verified.status.success(), "{}", stdout(&verified));
}

#[test]
fn s53_a_full_dictionary_takes_its_own_values_and_no_others() {
    let folder = folder();
    let table = folder.path().join("full.lance");
    labelled(&table, 128);
    let desk = Desk::new(&table, &["--upload-delay", "1h"]);
    desk.entry(
        "a/@3",
        &[("row.json", br#"{"label": "l7", "s": {"label": "l9", "blob": "s.blob.bin"}}"#)],
    );
    desk.must_commit("a");
    let changes = json!({"3": {"label": "l7", "s": {"label": "l9"}}});
    assert_eq!(differences(&desk, 128, &changes, &[]).trim(), "2000 []");
    let objects = || std::fs::read_dir(table.join("_blobs")).map_or(0, Iterator::count);
    let (before, newest) = (objects(), desk.newest());
    desk.entry(
        "b/@4",
        &[
            ("row.json", br#"{"label": "new", "s": {"label": "newer", "blob": null}}"#),
            ("s.blob.jpg", b"bytes"),
        ],
    );
    assert_eq!(errno(desk.commit("b")), EUCLEAN);
    let said = desk.error("b");
    for part in [
        "b/@4: label: is a new value",
        "b/@4: s.label: is a new value",
        "(Int8) are for 128 values",
    ] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
    assert_eq!((objects(), desk.newest()), (before, newest), "nothing was uploaded or published");
    // Where a value goes, another may come.
    let labels = 2000 / 128 + 1;
    for n in (0..labels).map(|n| n * 128 + 5).filter(|n| *n < 2000) {
        desk.entry(&format!("c/@{n}"), &[("row.json", br#"{"label": "l6"}"#)]);
    }
    desk.entry("c/@4", &[("row.json", br#"{"label": "new"}"#)]);
    desk.must_commit("c");
    let found = desk.python("print(len(set(ds.to_table(columns=['label'])['label'].to_pylist())))");
    assert_eq!(found.trim(), "129", "128 labels and null");
}

#[test]
fn s53_thousands_of_new_rows_share_one_dictionary() {
    let folder = folder();
    let table = folder.path().join("labelled.lance");
    labelled(&table, 100);
    let desk = Desk::new(&table, &[]);
    let count = 8500;
    std::thread::scope(|scope| {
        for part in 0..4 {
            let desk = &desk;
            scope.spawn(move || {
                for n in (part..count).step_by(4) {
                    let json = json!({"id": n, "label": format!("l{}", n * 7 % 120), "l": [format!("x{}", n % 300)]});
                    desk.entry(&format!("b/{n:05}"), &[("row.json", json.to_string().as_bytes())]);
                }
            });
        }
    });
    desk.must_commit("b");
    let found = desk.python(&format!(
        "rows = ds.to_table(columns=['id', 'label', 'l'], offset=2000).to_pylist()
print(len(rows), [r for n, r in enumerate(rows) if r != {{'id': n, 'label': f'l{{n * 7 % 120}}', 'l': [f'x{{n % 300}}']}}][:3], {count})"
    ));
    assert_eq!(found.trim(), format!("{count} [] {count}"));
    // One value more than there are keys.
    for n in 0..129 {
        let json = json!({"label": format!("y{n}")});
        desk.entry(&format!("c/{n:03}"), &[("row.json", json.to_string().as_bytes())]);
    }
    assert_eq!(errno(desk.commit("c")), EUCLEAN);
    assert!(desk.error("c").contains("c/128: label: is a new value"), "{}", desk.error("c"));
    std::fs::remove_dir_all(desk.staged("c/128")).unwrap();
    desk.must_commit("c");
    let found = desk.python("print(ds.to_table(columns=['label'], offset=10500)['label'].to_pylist() == [f'y{n}' for n in range(128)])");
    assert_eq!(found.trim(), "True", "128 values, of all keys");
}

#[test]
fn s51_what_cannot_be_read_back_is_not_published() {
    let s3 = crate::harness::S3::new(&[]);
    let local = folder();
    let table = local.path().join("photos.lance");
    photos(&table);
    s3.put(&table, "t");
    let desk = Desk::remote(&s3, "t", &[]);
    desk.entry("b/1", &[("row.json", br#"{"id": 1}"#), ("blob.jpg", b"one")]);
    s3.strike(json!({ "kind": "fail-403", "method": "GET", "key": "/data/" }));
    assert!(desk.commit("b").is_err(), "the new data file was not read");
    let said = desk.error("b");
    assert!(said.contains("was written does not come back"), "{said}");
    assert_eq!((desk.newest(), desk.rows()), (1, 0));
    assert_eq!(std::fs::read(desk.staged("b/1/blob.jpg")).unwrap(), b"one");
    s3.strike(json!({ "kind": "none" }));
    assert_eq!(desk.must_commit("b"), 2);
    assert_eq!(std::fs::read(desk.mount.at("latest/0/blob.bin")).unwrap(), b"one");
}
