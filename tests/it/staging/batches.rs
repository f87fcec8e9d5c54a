//! Batches made by hand: what each kind of name in a batch becomes.

use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::json;

use crate::harness::{Desk, errno, folder, names, photos, run_python, sha256, stdout, xattr};

/// "Structure needs cleaning": the batch has faults.
const EUCLEAN: i32 = 117;
const EBUSY: i32 = 16;

/// A row of the newest version by its `id`.
fn row_of(desk: &Desk, id: i64) -> u64 {
    let is_it = |row: &u64| desk.row(*row)["id"] == id;
    (0..desk.rows()).find(is_it).unwrap_or_else(|| panic!("there is no row with id {id}"))
}

fn shown(desk: &Desk, id: i64) -> Vec<String> {
    names(&desk.mount.at(format!("latest/{}", row_of(desk, id))))
}

fn read(desk: &Desk, id: i64, file: &str) -> Vec<u8> {
    std::fs::read(desk.mount.at(format!("latest/{}/{file}", row_of(desk, id)))).unwrap()
}

fn photo_desk(folder: &Path, flags: &[&str]) -> Desk {
    let table = folder.join("photos.lance");
    photos(&table);
    Desk::new(&table, flags)
}

#[test]
fn extensions_gaps_and_short_forms_become_rows() {
    let folder = folder();
    let desk = photo_desk(folder.path(), &[]);
    desk.entry("b/a", &[("row.json", br#"{"id": 1}"#), ("blob.tar.gz", b"one")]);
    desk.entry(
        "b/b",
        &[("row.json", br#"{"id": 2}"#), ("frames[2].jpg", b"f"), ("frames[0]", b"")],
    );
    desk.entry("b/c", &[("row.json", br#"{"id": 3, "frames": []}"#), ("blob", b"")]);
    desk.entry("b/d", &[("row.json", br#"{"id": 4, "frames": [null]}"#), (".DS_Store", b"litter")]);
    desk.entry("b/e", &[]);
    std::fs::write(desk.staged("b/short.jpg"), b"short").unwrap();
    std::fs::write(desk.staged("b/._short.jpg"), b"litter").unwrap();
    assert_eq!(desk.must_commit("b"), 2);
    assert_eq!(desk.rows(), 6);
    assert_eq!(shown(&desk, 1), ["blob.bin", "row.json"]);
    assert_eq!(read(&desk, 1, "blob.bin"), b"one");
    assert_eq!(shown(&desk, 2), ["frames[0].bin", "frames[2].bin", "row.json"]);
    assert_eq!(read(&desk, 2, "frames[2].bin"), b"f");
    assert_eq!(shown(&desk, 3), ["blob.bin", "row.json"]);
    let all = desk.python(
        "rows = ds.to_table(blob_handling='all_binary').to_pylist()
print(sorted(rows, key=lambda row: (row['id'] or 9, row['blob'] or b'')))",
    );
    assert_eq!(
        all.trim(),
        "[{'id': 1, 'blob': b'one', 'frames': None}, {'id': 2, 'blob': None, 'frames': [b'', None, b'f']}, \
         {'id': 3, 'blob': b'', 'frames': []}, {'id': 4, 'blob': None, 'frames': [None]}, \
         {'id': None, 'blob': None, 'frames': None}, {'id': None, 'blob': b'short', 'frames': None}]"
    );
    desk.settles();
}

#[test]
fn a_file_can_be_a_batch() {
    let folder = folder();
    let desk = photo_desk(folder.path(), &[]);
    std::fs::write(desk.staged("photo.jpg"), b"alone").unwrap();
    desk.must_commit("photo.jpg");
    assert_eq!(desk.rows(), 1);
    assert_eq!(std::fs::read(desk.mount.at("latest/0/blob.bin")).unwrap(), b"alone");
    desk.settles();
}

#[test]
fn blobs_in_structs_and_lists_are_found_by_their_paths() {
    let folder = folder();
    let table = folder.path().join("nested.lance");
    run_python(&format!(
        "clip = pa.struct([blob_field('clip'), pa.field('note', pa.string())])
info = pa.struct([blob_field('thumb'), pa.field('width', pa.int32())])
schema = pa.schema([pa.field('scenes', pa.list_(pa.field('item', clip))), pa.field('info', info)],
    metadata={{'lance.blob.managed': 'true'}})
lance.write_dataset(pa.RecordBatchReader.from_batches(schema, []), '{}', data_storage_version='2.2')",
        table.display()
    ));
    let desk = Desk::new(&table, &[]);
    let json = br#"{"info": {"width": 640}, "scenes": [{"note": "x"}, null, {"note": "z"}]}"#;
    desk.entry(
        "b/1",
        &[("row.json", json), ("info.thumb.png", b"thumb"), ("scenes[2].clip.mp4", b"third")],
    );
    desk.entry("b/2", &[("scenes[1].clip.mp4", b"second")]);
    desk.must_commit("b");
    let all = desk.python("print(ds.to_table(blob_handling='all_binary').to_pylist())");
    assert_eq!(
        all.trim(),
        "[{'scenes': [{'clip': None, 'note': 'x'}, None, {'clip': b'third', 'note': 'z'}], \
         'info': {'thumb': b'thumb', 'width': 640}}, \
         {'scenes': [None, {'clip': b'second', 'note': None}], 'info': None}]"
    );
}

#[test]
fn links_to_uris_become_external_references() {
    let folder = folder();
    let outside = folder.path().join("outside.bin");
    std::fs::write(&outside, b"0123456789").unwrap();
    let uri = format!("file://{}", outside.display());
    let desk = photo_desk(folder.path(), &["--allow-external", folder.path().to_str().unwrap()]);
    desk.entry("b/whole", &[("row.json", br#"{"id": 1}"#)]);
    desk.entry("b/part", &[("row.json", br#"{"id": 2}"#)]);
    symlink(&uri, desk.staged("b/whole/blob.bin")).unwrap();
    symlink(format!("{uri}#bytes=2-4"), desk.staged("b/part/blob.bin")).unwrap();
    desk.must_commit("b");
    assert_eq!(
        (read(&desk, 1, "blob.bin"), read(&desk, 2, "blob.bin")),
        (b"0123456789".to_vec(), b"234".to_vec())
    );
    for id in [1, 2] {
        let file = desk.mount.at(format!("latest/{}/blob.bin", row_of(&desk, id)));
        assert_eq!(xattr(&file, "user.lancefs.kind").unwrap(), "external");
    }
    let blobs = desk.python("print([b.readall() for b in ds.take_blobs('blob', indices=[0, 1])])");
    assert!(blobs.contains("b'234'") && blobs.contains("b'0123456789'"), "{blobs}");
    desk.verify();
}

#[test]
fn a_target_that_the_policy_refuses_keeps_the_batch() {
    let folder = folder();
    let outside = folder.path().join("outside.bin");
    std::fs::write(&outside, b"0123456789").unwrap();
    let desk = photo_desk(folder.path(), &[]);
    desk.entry("b/1", &[]);
    let uri = format!("file://{}", outside.display());
    symlink(&uri, desk.staged("b/1/blob.bin")).unwrap();
    assert!(matches!(errno(desk.commit("b")), EUCLEAN | 13));
    assert!(desk.error("b").contains("--allow-external"), "{}", desk.error("b"));
    assert_eq!(std::fs::read_link(desk.staged("b/1/blob.bin")).unwrap(), Path::new(&uri));
    assert_eq!((desk.newest(), desk.rows()), (1, 0));
}

#[test]
fn ingest_copies_what_a_link_names() {
    let folder = folder();
    let outside = folder.path().join("outside.bin");
    std::fs::write(&outside, b"0123456789").unwrap();
    let allowed = folder.path().to_str().unwrap();
    let desk =
        photo_desk(folder.path(), &["--allow-external", allowed, "--external-mode", "ingest"]);
    desk.entry("b/1", &[]);
    let target = format!("file://{}#bytes=2-4", outside.display());
    symlink(target, desk.staged("b/1/blob.bin")).unwrap();
    desk.must_commit("b");
    std::fs::remove_file(outside).unwrap();
    let file = desk.mount.at("latest/0/blob.bin");
    assert_eq!(std::fs::read(&file).unwrap(), b"234");
    assert_eq!(xattr(&file, "user.lancefs.kind").unwrap(), "managed");
}

#[test]
fn every_fault_of_a_batch_is_told_at_once_and_the_batch_is_kept() {
    let folder = folder();
    let desk = photo_desk(folder.path(), &[]);
    desk.entry("b/1", &[("row.json", br#"{"id": "x"}"#), ("blob.jpg", b"1"), ("blob.png", b"2")]);
    desk.entry("b/2", &[("bolb.jpg", b"3")]);
    desk.entry("b/@9", &[("blob.jpg", b"4")]);
    let before = crate::harness::tree(&desk.staged("b"));
    assert_eq!(errno(desk.commit("b")), EUCLEAN);
    let said = desk.error("b");
    for wanted in ["blob.png", "id", "bolb.jpg", "@9"] {
        assert!(said.contains(wanted), "{wanted} is not in {said}");
    }
    std::fs::remove_file(desk.staged("b/COMMIT-REFUSED.txt")).unwrap();
    assert_eq!(crate::harness::tree(&desk.staged("b")), before);
    assert_eq!((desk.newest(), desk.rows()), (1, 0));
    let last = desk.commits().pop().unwrap();
    assert!(last["batch"] == "b" && last["error"].is_string(), "{last}");
    std::fs::write(desk.staged("b/1/row.json"), br#"{"id": 5}"#).unwrap();
    std::fs::remove_file(desk.staged("b/1/blob.png")).unwrap();
    std::fs::rename(desk.staged("b/2/bolb.jpg"), desk.staged("b/2/blob.jpg")).unwrap();
    std::fs::remove_dir_all(desk.staged("b/@9")).unwrap();
    desk.must_commit("b");
    assert_eq!(desk.rows(), 2);
}

/// A table of five rows in two files: ids 0 to 4, `note` is the id's word.
fn noted(table: &Path) {
    run_python(&format!(
        "schema = pa.schema([pa.field('id', pa.int64()), pa.field('note', pa.string()), blob_field('blob')],
    metadata={{'lance.blob.managed': 'true'}})
def part(ids): return pa.table([pa.array(ids, pa.int64()), pa.array([f'n{{i}}' for i in ids]),
    blob_array([b'old%d' % i for i in ids])], schema=schema)
lance.write_dataset(part([0, 1, 2]), '{table}', data_storage_version='2.2')
lance.write_dataset(part([3, 4]), '{table}', mode='append')",
        table = table.display()
    ));
}

#[test]
fn entries_with_a_row_number_replace_and_delete() {
    let folder = folder();
    let table = folder.path().join("noted.lance");
    noted(&table);
    let desk = Desk::new(&table, &[]);
    desk.entry("b/@1", &[("blob.jpg", b"new")]);
    desk.entry("b/@3", &[(".delete", b"")]);
    desk.entry("b/@4", &[("row.json", br#"{"note": "changed"}"#)]);
    desk.entry("b/new", &[("row.json", br#"{"id": 9}"#), ("blob.jpg", b"nine")]);
    assert_eq!(desk.must_commit("b"), 3, "one version");
    let all = desk.python(
        "rows = ds.to_table(blob_handling='all_binary').to_pylist()
print(sorted((row['id'], row['note'], row['blob']) for row in rows if row['id'] != 9), ds.count_rows())",
    );
    assert_eq!(
        all.trim(),
        "[(0, 'n0', b'old0'), (1, 'n1', b'new'), (2, 'n2', b'old2'), (4, 'changed', b'old4')] 5"
    );
    // The version before is as it was.
    assert_eq!(std::fs::read(desk.mount.at("2/1/blob.bin")).unwrap(), b"old1");
    assert_eq!(std::fs::read(desk.mount.at("2/3/blob.bin")).unwrap(), b"old3");
    let last = desk.commits().pop().unwrap();
    assert_eq!((&last["version"], &last["rows"]), (&json!(3), &json!(4)));
    desk.verify();
    desk.settles();
}

#[test]
fn a_row_that_another_writer_changed_since_is_not_replaced() {
    let folder = folder();
    let table = folder.path().join("noted.lance");
    noted(&table);
    let desk = Desk::new(&table, &[]);
    desk.entry("b/@1", &[("blob.jpg", b"new")]);
    desk.python("ds.update({'note': \"'theirs'\"}, where='id = 1')");
    assert_eq!(errno(desk.commit("b")), EBUSY);
    assert_eq!(std::fs::read(desk.staged("b/@1/blob.jpg")).unwrap(), b"new");
    let row = desk.python(
        "print([r for r in ds.to_table(blob_handling='all_binary').to_pylist() if r['id'] == 1])",
    );
    assert_eq!(row.trim(), "[{'id': 1, 'note': 'theirs', 'blob': b'old1'}]");
}

#[test]
fn a_row_is_replaced_though_another_writer_changed_others() {
    let folder = folder();
    let table = folder.path().join("noted.lance");
    noted(&table);
    let desk = Desk::new(&table, &[]);
    desk.entry("b/@4", &[("blob.jpg", b"new")]);
    desk.python("ds.delete('id = 0')");
    desk.must_commit("b");
    let all = desk.python(
        "rows = ds.to_table(blob_handling='all_binary').to_pylist()
print(sorted((row['id'], row['note'], row['blob']) for row in rows))",
    );
    assert_eq!(
        all.trim(),
        "[(1, 'n1', b'old1'), (2, 'n2', b'old2'), (3, 'n3', b'old3'), (4, 'n4', b'new')]"
    );
}

#[test]
fn copies_of_values_are_adopted_without_moving_a_byte() {
    let folder = folder();
    let table = folder.path().join("photos.lance");
    photos(&table);
    let desk = Desk::new(&table, &[]);
    let big: Vec<u8> = (0..5_u32 << 20).map(|n| u8::try_from(n * 7 % 251).unwrap()).collect();
    desk.entry("b/1", &[("blob.bin", &big)]);
    desk.entry("b/2", &[("blob.bin", &big[..100_000])]);
    desk.must_commit("b");
    desk.settles();
    let objects = || names(&table.join("_blobs"));
    let (before, from) = (objects(), desk.newest());
    std::fs::create_dir_all(desk.staged("c/x")).unwrap();
    std::fs::create_dir_all(desk.staged("c/y")).unwrap();
    let copy = |row: u64, to: &str| {
        let from = desk.mount.at(format!("{from}/{row}/blob.bin"));
        let copied = std::process::Command::new("cp").arg(from).arg(desk.staged(to)).output();
        stdout(&copied.unwrap());
    };
    copy(0, "c/x/blob.bin");
    copy(1, "c/y/blob.bin");
    let staged = std::fs::read(desk.staged("c/x/blob.bin")).unwrap();
    assert_eq!(sha256(&staged), sha256(&big), "the staged copy has the bytes");
    let tags = || desk.python("print(sorted((tag['version']) for tag in ds.tags.list().values()))");
    assert_eq!(tags().trim(), format!("[{from}]"), "the source is protected");
    // Whoever cleans up now does not take it away, and the staging disk holds none of it.
    let plan: serde_json::Value =
        serde_json::from_str(&xattr(&desk.staged("c"), "user.lancefs.plan").unwrap()).unwrap();
    assert_eq!((&plan["bytes_upload"], &plan["bytes_adopted"]), (&json!(0), &json!(5_342_880)));
    desk.must_commit("c");
    desk.settles();
    assert_eq!(objects(), before, "no new object");
    assert_eq!(tags().trim(), "[]", "the protection is gone");
    let object = |row: u64| {
        let file = desk.mount.at(format!("latest/{row}/blob.bin"));
        assert!(xattr(&file, "user.lancefs.kind").unwrap().starts_with("managed"));
        (xattr(&file, "user.lancefs.object").unwrap(), xattr(&file, "user.lancefs.offset").unwrap())
    };
    assert_eq!((object(2), object(3)), (object(0), object(1)));
    assert_eq!(std::fs::read(desk.mount.at("latest/2/blob.bin")).unwrap(), big);
    assert_eq!(std::fs::read(desk.mount.at("latest/3/blob.bin")).unwrap(), big[..100_000]);
    desk.python(
        "from datetime import timedelta
ds.cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)",
    );
    desk.verify();
}

#[test]
fn a_copy_that_is_written_to_has_bytes_of_its_own() {
    let folder = folder();
    let table = folder.path().join("photos.lance");
    photos(&table);
    let desk = Desk::new(&table, &[]);
    let mut bytes = vec![b'x'; 200_000];
    desk.entry("b/1", &[("blob.bin", &bytes)]);
    desk.must_commit("b");
    std::fs::create_dir_all(desk.staged("c/1")).unwrap();
    let copied = std::process::Command::new("cp")
        .arg(desk.mount.at("latest/0/blob.bin"))
        .arg(desk.staged("c/1/blob.bin"))
        .output();
    stdout(&copied.unwrap());
    let file = std::fs::File::options().write(true).open(desk.staged("c/1/blob.bin")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"middle", 100_000).unwrap();
    drop(file);
    bytes[100_000..100_006].copy_from_slice(b"middle");
    assert_eq!(std::fs::read(desk.staged("c/1/blob.bin")).unwrap(), bytes);
    desk.must_commit("c");
    assert_eq!(std::fs::read(desk.mount.at("latest/1/blob.bin")).unwrap(), bytes);
    assert_eq!(std::fs::read(desk.mount.at("latest/0/blob.bin")).unwrap(), vec![b'x'; 200_000]);
}

#[test]
fn a_row_json_of_the_largest_size_does_not_take_the_daemon_down() {
    let folder = folder();
    let desk = photo_desk(folder.path(), &[]);
    let peak = || {
        let path = format!("/proc/{}/status", desk.mount.pid());
        let status = std::fs::read_to_string(path).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap().to_owned();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
    };
    let before = peak();
    // As many values as there may be, and more.
    for (column, values) in [("id", 1 << 20), ("frames", 1 << 20), ("id", (1 << 22) + 1)] {
        let text = format!("{{\"{column}\": [{}1]}}", "1,".repeat(values));
        desk.entry("b/1", &[("row.json", text.as_bytes())]);
        let begun = std::time::Instant::now();
        assert_eq!(errno(desk.commit("b")), EUCLEAN);
        assert!(begun.elapsed().as_secs() < 30, "{column} {values}: {:?}", begun.elapsed());
    }
    assert!(peak() < before + 512, "{} MiB after {before}", peak());
    let larger = format!("{{\"id\": \"{}\"}}", "1".repeat(64 << 20));
    desk.entry("b/1", &[("row.json", larger.as_bytes())]);
    assert_eq!(errno(desk.commit("b")), EUCLEAN);
    assert!(desk.error("b").contains("larger than 64 MiB"), "{}", desk.error("b"));
}
