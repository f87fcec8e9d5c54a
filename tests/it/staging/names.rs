//! Names of blobs in an edited `row.json`: of a row that was copied, and of a row that is there.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{Desk, errno, folder, names, run_python, stdout};

const EUCLEAN: i32 = 117;

/// A table with one row: `a`, `b`, three frames, two scenes of a clip and a text; the values are
/// small (in the data file) or large (in objects of their own, which copies refer to).
fn media(table: &Path, large: bool) {
    run_python(&format!(
        "pad = b'.' * ({} if {} else 0)
scene = pa.struct([blob_field('clip'), pa.field('t', pa.string())])
schema = pa.schema([pa.field('id', pa.int64()), blob_field('a'), blob_field('b'), pa.field('frames', pa.list_(blob_field('item'))),
    pa.field('scenes', pa.list_(pa.field('item', scene)))], metadata={{'lance.blob.managed': 'true'}})
clips = pa.StructArray.from_arrays([blob_array([b'clip0' + pad, b'clip1' + pad]), pa.array(['t0', 't1'])], fields=list(scene))
frames = pa.ListArray.from_arrays(pa.array([0, 3], pa.int32()), blob_array([b'f%d' % n + pad for n in range(3)]), type=schema.field('frames').type)
scenes = pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), clips, type=schema.field('scenes').type)
lance.write_dataset(pa.table([pa.array([1]), blob_array([b'A' + pad]), blob_array([b'B' + pad]), frames, scenes], schema=schema),
    '{}', data_storage_version='2.2')",
        5_000_000,
        if large { "True" } else { "False" },
        table.display()
    ));
}

fn desk(folder: &Path, large: bool) -> Desk {
    let table = folder.join("media.lance");
    media(&table, large);
    Desk::new(&table, &[])
}

/// Copies row 0 into an entry, and edits its `row.json`.
fn copy(desk: &Desk, entry: &str, edit: impl Fn(&mut Value)) {
    let to = desk.staged(entry);
    std::fs::create_dir_all(to.parent().unwrap()).unwrap();
    let copied = Command::new("cp").arg("-r").arg(desk.mount.at("latest/0")).arg(&to).output();
    stdout(&copied.unwrap());
    let mut json: Value =
        serde_json::from_slice(&std::fs::read(to.join("row.json")).unwrap()).unwrap();
    edit(&mut json);
    std::fs::write(to.join("row.json"), json.to_string()).unwrap();
}

/// The first bytes of a row's value, up to the padding.
fn value(desk: &Desk, row: u64, file: &str) -> String {
    let bytes = std::fs::read(desk.mount.at(format!("latest/{row}/{file}"))).unwrap();
    String::from_utf8(bytes).unwrap().trim_end_matches('.').to_owned()
}

/// What a row shows: its files and their values.
fn shown(desk: &Desk, row: u64) -> Vec<(String, String)> {
    let files = names(&desk.mount.at(format!("latest/{row}"))).into_iter();
    let files = files.filter(|name| name != "row.json");
    files.map(|name| (name.trim_end_matches(".bin").to_owned(), value(desk, row, &name))).collect()
}

fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter().map(|(file, value)| ((*file).to_owned(), (*value).to_owned())).collect()
}

/// Everything but the part that a test is about.
const A: (&str, &str) = ("a", "A");
const B: (&str, &str) = ("b", "B");
const FRAMES: [(&str, &str); 3] = [("frames[0]", "f0"), ("frames[1]", "f1"), ("frames[2]", "f2")];
const SCENES: [(&str, &str); 2] = [("scenes[0].clip", "clip0"), ("scenes[1].clip", "clip1")];

fn a_copied_row_follows_its_row_json(large: bool) {
    let folder = folder();
    let desk = desk(folder.path(), large);
    copy(&desk, "b/1", |json| drop(json["scenes"].as_array_mut().unwrap().remove(0)));
    copy(&desk, "b/2", |json| drop(json["frames"].as_array_mut().unwrap().remove(1)));
    copy(&desk, "b/3", |json| {
        let (a, b) = (json["a"].take(), json["b"].take());
        (json["a"], json["b"]) = (b, a);
        json["frames"].as_array_mut().unwrap().reverse();
    });
    copy(&desk, "b/4", |json| {
        json["a"] = Value::Null;
        json["frames"] = json!(["a.bin", "frames[0].bin", "a.bin"]);
    });
    desk.must_commit("b");
    let wanted = [A, B].into_iter().chain(FRAMES).chain([("scenes[0].clip", "clip1")]);
    assert_eq!(shown(&desk, 1), pairs(&wanted.collect::<Vec<_>>()));
    assert_eq!(desk.row(1)["scenes"], json!([{"clip": "scenes[0].clip.bin", "t": "t1"}]));
    let wanted = [A, B, FRAMES[0], ("frames[1]", "f2")].into_iter().chain(SCENES);
    assert_eq!(shown(&desk, 2), pairs(&wanted.collect::<Vec<_>>()));
    let frames = [("frames[0]", "f2"), ("frames[1]", "f1"), ("frames[2]", "f0")];
    let wanted = [("a", "B"), ("b", "A")].into_iter().chain(frames).chain(SCENES);
    assert_eq!(shown(&desk, 3), pairs(&wanted.collect::<Vec<_>>()));
    assert_eq!(value(&desk, 4, "frames[0].bin"), "A");
    assert_eq!(value(&desk, 4, "frames[2].bin"), "A");
    assert!(
        !desk.mount.at("latest/4/a.bin").exists(),
        "a file that is named goes where it is named"
    );
    desk.verify();
    desk.settles();
}

#[test]
fn s50_a_copied_row_of_small_values_follows_its_row_json() {
    a_copied_row_follows_its_row_json(false);
}

#[test]
fn s50_a_copied_row_of_objects_follows_its_row_json() {
    a_copied_row_follows_its_row_json(true);
}

#[test]
fn s50_the_last_element_of_a_copied_row_is_taken_out_or_told() {
    let folder = folder();
    // Copies of objects are known for what they are: nothing is lost where they are left out.
    let desk = desk(folder.path(), true);
    copy(&desk, "b/1", |json| drop(json["scenes"].as_array_mut().unwrap().pop()));
    desk.must_commit("b");
    let wanted = [A, B].into_iter().chain(FRAMES).chain([SCENES[0]]);
    assert_eq!(shown(&desk, 1), pairs(&wanted.collect::<Vec<_>>()));
    // A file of its own may be an element that somebody put in.
    copy(&desk, "c/1", |_| {});
    std::fs::write(desk.staged("c/1/frames[3].jpg"), b"new").unwrap();
    assert_eq!(errno(desk.commit("c")), EUCLEAN);
    let said = desk.error("c");
    assert!(said.contains("c/1: frames[3]: row.json gives the list 3 elements"), "{said}");
    let mut json = desk.row(0);
    json["frames"].as_array_mut().unwrap().push(json!("frames[3].jpg"));
    std::fs::write(desk.staged("c/1/row.json"), json.to_string()).unwrap();
    desk.must_commit("c");
    assert_eq!(value(&desk, 2, "frames[3].bin"), "new");
}

#[test]
fn s50_a_replaced_row_picks_from_what_it_has() {
    let folder = folder();
    let desk = desk(folder.path(), false);
    let first = br#"{"frames": ["frames[1].bin", "frames[2].bin"], "a": "b.bin", "b": "a.bin"}"#;
    desk.entry("b/@0", &[("row.json", first)]);
    desk.must_commit("b");
    let frames = [("frames[0]", "f1"), ("frames[1]", "f2")];
    let wanted = [("a", "B"), ("b", "A")].into_iter().chain(frames).chain(SCENES);
    assert_eq!(shown(&desk, 0), pairs(&wanted.collect::<Vec<_>>()));
    // From a column that is not in row.json, and from a file of the entry.
    let second = br#"{"frames": ["frames[1].bin", "a.bin", "new.bin"]}"#;
    desk.entry("c/@0", &[("row.json", second)]);
    assert_eq!(errno(desk.commit("c")), EUCLEAN);
    let said = desk.error("c");
    assert!(
        said.contains("c/@0: frames[2]: row.json names new.bin, but there is no such file"),
        "{said}"
    );
    let second = br#"{"frames": ["frames[1].bin", "a.bin", "frames[2].bin"]}"#;
    desk.entry("c/@0", &[("row.json", second), ("frames[2].png", b"mine")]);
    desk.must_commit("c");
    let frames = [("frames[0]", "f2"), ("frames[1]", "B"), ("frames[2]", "mine")];
    let wanted = [("a", "B"), ("b", "A")].into_iter().chain(frames).chain(SCENES);
    assert_eq!(shown(&desk, 0), pairs(&wanted.collect::<Vec<_>>()));
    // What the row does not have is a fault, and so is a swap of which one half is nowhere.
    desk.entry("d/@0", &[("row.json", br#"{"a": "b.bin", "b": "frames[7].bin"}"#)]);
    assert_eq!(errno(desk.commit("d")), EUCLEAN);
    let said = desk.error("d");
    assert!(
        said.contains("d/@0: b: row.json names frames[7].bin, but there is no such file"),
        "{said}"
    );
    desk.verify();
}
