//! What else must be seen through a mount, by the numbers of the project's checklist of behaviours
//! of the Lance crate. What another test pins is not here again:
//!
//! ```text
//! 1 5–8 10 27–31      cells.rs, tables scalar, legacy_*, struct, nested, list
//! 3 28–30             s03, s04, s05 and cells.rs
//! 12                  bad_input.rs
//! 16 17 19            s25, s26
//! 32 34 37            s08, cells.rs, s30
//! 40 43 45            cells.rs, tables multibase*, external_ingest, external*
//! 59 66 70            cells.rs, tables compaction, legacy_stable, merge*, evolution
//! 60 84               s13 and s14, s15
//! 79–82 89            cells.rs, tables legacy_branch, legacy_clone_*, refs, panicking, names*
//! 20 21 23–25         src/store/cached/tests.rs, remote.rs
//! 64                  as 59 and 70: a column's data file of its own
//! 39 41 44 47 53 58 61–63 65 68 69 76–78   the library's own refusals and writes; nothing to mount
//! 86                  a measurement, not a test
//! ```

mod lifecycle;
mod tools;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::harness::{
    Mount, Tables, folder, names, python, run_python, sha256, tree, write_blobs, xattr,
};

fn attribute(path: &Path, name: &str) -> String {
    xattr(path, &format!("user.lancefs.{name}")).unwrap()
}

/// The local file that a value is in.
fn object(path: &Path) -> PathBuf {
    let object = attribute(path, "object");
    object.strip_prefix("file://").unwrap_or(&object).into()
}

/// The payload files beneath a directory.
fn values(directory: &Path) -> Vec<PathBuf> {
    let entries = walkdir::WalkDir::new(directory).sort_by_file_name().into_iter();
    let paths = entries.map(|entry| entry.unwrap().into_path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "bin")).collect()
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn n02_managed_values_are_objects_of_their_own() {
    let table = Tables::shared().path("managed");
    let mount = Mount::new(&table);
    let mut objects = BTreeSet::new();
    for path in values(&mount.at("1")) {
        let size = std::fs::metadata(&path).unwrap().len();
        let object = object(&path);
        if size <= 65_536 {
            assert_eq!(attribute(&path, "kind"), "inline", "{}", path.display());
            assert!(object.starts_with(table.join("data")), "{}", object.display());
            continue;
        }
        assert_eq!(attribute(&path, "kind"), "managed", "{}", path.display());
        assert_eq!(object.parent(), Some(&*table.join("_blobs")), "{}", path.display());
        assert_eq!(object.extension().unwrap(), "blob");
        objects.insert(object);
    }
    assert!(!objects.is_empty());
    assert!(objects.iter().all(|object| object.is_file()), "{objects:?}");
}

#[test]
fn n04_n35_rows_of_many_fragments_read_in_any_order() {
    let tables = Tables::shared();
    let mount = Mount::new(tables.path("many_fragments"));
    let rows = tables.expected("many_fragments")["versions"]["1"]["rows"].as_array().unwrap();
    // 119, 1, 0, 119, and then every row in the order of a stride that is prime to their number.
    for row in [119, 1, 0, 119].into_iter().chain((0..120).map(|i| i * 77 % 120)) {
        let read = std::fs::read(mount.at(format!("1/{row}/blob.bin")));
        let bytes = read.unwrap_or_else(|e| panic!("row {row}: {e}\n{}", mount.log()));
        assert_eq!(rows[row]["files"]["blob.bin"]["sha256"], sha256(&bytes), "row {row}");
    }
}

#[test]
fn n13_a_plain_binary_column_is_no_blob() {
    let folder = folder();
    let table = folder.path().join("t.lance");
    run_python(&format!(
        "schema = pa.schema([pa.field('raw', pa.large_binary()), blob_field('blob')])
rows = pa.table([pa.array([b'plain'], pa.large_binary()), blob_array([b'blob'])], schema=schema)
lance.write_dataset(rows, {table:?}, data_storage_version='2.2')"
    ));
    let mount = Mount::new(&table);
    assert_eq!(names(&mount.at("1/0")), ["blob.bin", "row.json"]);
    assert!(json(&mount.at("1/0/row.json"))["raw"].is_string());
    assert_eq!(crate::harness::errno(File::open(mount.at("1/0/raw.bin"))), 2);
}

#[test]
fn n14_n15_n74_n75_cursors_and_positions_do_not_disturb_each_other() {
    let mount = Mount::new(Tables::shared().path("legacy_2_1"));
    let path = mount.at("1/3/blob.bin");
    let whole = std::fs::read(&path).unwrap();
    let mut file = File::open(&path).unwrap();
    let mut one = [0];
    let mut at = [0; 5];
    for wanted in &whole[..3] {
        file.read_exact(&mut one).unwrap();
        assert_eq!(one[0], *wanted);
        for offset in [50_000, 7, 99_995, 7] {
            file.read_exact_at(&mut at, u64::try_from(offset).unwrap()).unwrap();
            assert_eq!(at, whole[offset..offset + 5], "at {offset}");
        }
    }
    file.seek(SeekFrom::Start(1)).unwrap();
    file.read_exact(&mut one).unwrap();
    assert_eq!(one[0], whole[1]);
    assert_eq!(file.stream_position().unwrap(), 2);
    assert_eq!(file.seek(SeekFrom::End(-1)).unwrap(), 99_999);
    file.read_exact(&mut one).unwrap();
    assert_eq!(one[0], whole[99_999]);
    file.seek(SeekFrom::End(10)).unwrap();
    assert_eq!(file.read(&mut one).unwrap(), 0);
}

#[test]
fn n18_an_offset_that_overflows_is_refused_and_harms_nobody() {
    let mount = Mount::new(Tables::shared().path("scalar"));
    let path = mount.at("1/6/blob.bin");
    let direct = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    for flags in [0, direct] {
        let file = File::options().read(true).custom_flags(flags).open(&path).unwrap();
        let last = u64::try_from(i64::MAX).unwrap();
        let mut buffer = [0; 100];
        for offset in [last - 10, last, last + 1, u64::MAX - 50] {
            let read = file.read_at(&mut buffer, offset);
            let refused = read.as_ref().is_err_and(|e| matches!(e.raw_os_error(), Some(22 | 75)));
            assert!(refused || matches!(read, Ok(0)), "at {offset}: {read:?}");
        }
        assert_eq!(file.read_at(&mut buffer, 4000).unwrap(), 97);
    }
}

#[test]
fn n24_one_byte_of_a_huge_value_reads_little() {
    let mount = Mount::new(Tables::shared().path("scalar"));
    let path = mount.at("1/12/blob.bin");
    let direct = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    let file = File::options().read(true).custom_flags(direct).open(path).unwrap();
    let daemon = format!("/proc/{}/io", mount.pid());
    let read = || -> u64 {
        let text = std::fs::read_to_string(&daemon).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap();
        line.parse().unwrap()
    };
    let before = read();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 2 << 20).unwrap();
    let after = read();
    // Requests of the kernel are read as well.
    assert!(after > before && after - before < 16 << 10, "{} bytes", after - before);
    let mut whole = vec![0; (4 << 20) + 1];
    file.read_exact_at(&mut whole, 0).unwrap();
    assert_eq!(whole[2 << 20], byte[0]);
    assert!(read() - after > 4 << 20, "what the daemon reads is not counted");
}

#[test]
fn n33_rows_around_deleted_stable_ids_keep_theirs() {
    let mount = Mount::new(Tables::shared().path("history"));
    let ids = |version: u32| -> Vec<(String, String)> {
        let files = values(&mount.at(version.to_string()));
        let id = |path: &PathBuf| json(&path.with_file_name("row.json"))["id"].to_string();
        files.iter().map(|path| (id(path), attribute(path, "row_id"))).collect()
    };
    let (before, after) = (ids(2), ids(3));
    let kept: Vec<_> = before.into_iter().filter(|(id, _)| id != "1" && id != "6").collect();
    assert_eq!(after, kept);
    assert_eq!(after.len(), 6);
    assert_eq!(names(&mount.at("3")), [".version.json", "0", "1", "2", "3", "4", "5"]);
}

#[test]
fn n42_a_reference_beneath_a_base_is_read_whole_and_in_part() {
    let tables = Tables::shared();
    let mount = tables.mount("external_base");
    let whole = std::fs::read(mount.at("1/0/blob.bin")).unwrap();
    assert_eq!(std::fs::read(mount.at("1/1/blob.bin")).unwrap(), whole[10..1010]);
    let target = tables.folder.join("_external/external_base/a.bin");
    for (row, offset, size) in [(0, "0", "100000"), (1, "10", "1000")] {
        let path = mount.at(format!("1/{row}/blob.bin"));
        assert_eq!(object(&path), target);
        assert_eq!((&*attribute(&path, "offset"), &*attribute(&path, "size")), (offset, size));
        assert_eq!(attribute(&path, "kind"), "external");
    }
}

#[test]
fn n71_batches_of_mixed_nullability() {
    let folder = folder();
    let table = folder.path().join("t.lance");
    run_python(&format!(
        "schema = pa.schema([blob_field('blob')])
batch = lambda *values: pa.record_batch([blob_array(list(values))], schema=schema)
batches = [batch(b'a', b'b'), batch(None, None), batch(b'', None, b'c' * 70_000), batch(None, b'd')]
reader = pa.RecordBatchReader.from_batches(schema, batches)
lance.write_dataset(reader, {table:?}, data_storage_version='2.2')"
    ));
    let mount = Mount::new(&table);
    let sizes: Vec<Option<u64>> = (0..9)
        .map(|row| std::fs::metadata(mount.at(format!("1/{row}/blob.bin"))).ok().map(|m| m.len()))
        .collect();
    let wanted = [Some(1), Some(1), None, None, Some(0), None, Some(70_000), None, Some(1)];
    assert_eq!(sizes, wanted);
    assert_eq!(std::fs::read(mount.at("1/8/blob.bin")).unwrap(), b"d");
}

#[test]
fn n72_legacy_values_lie_at_multiples_of_64_bytes() {
    let mount = Mount::new(Tables::shared().path("legacy_2_0"));
    let files = values(&mount.at("1"));
    let filled = files.iter().filter(|path| attribute(path, "size") != "0");
    let offsets: BTreeSet<u64> =
        filled.map(|path| attribute(path, "offset").parse().unwrap()).collect();
    assert_eq!(offsets.len(), 4);
    assert!(offsets.iter().all(|offset| offset % 64 == 0), "{offsets:?}");
}

#[test]
fn n87_thousands_of_versions_list_and_walk_in_bounded_memory() {
    let folder = folder();
    let arguments = ["--only", "versions_10k", "--versions", "2000"];
    let tables = Tables::make(folder.path(), &arguments);
    let mount = Mount::new(tables.path("versions_10k"));
    let requests = || mount.status()["requests"].as_u64().unwrap();
    let before = requests();
    let mut shown: Vec<u32> =
        names(&mount.path).iter().filter_map(|name| name.parse().ok()).collect();
    shown.sort_unstable();
    assert_eq!(shown, (1..=2000).collect::<Vec<_>>());
    let asked = requests() - before;
    assert!(asked < 200, "a listing was {asked} requests");
    for version in (1..=2000).step_by(23) {
        let bytes = std::fs::read(mount.at(format!("{version}/0/blob.bin"))).unwrap();
        assert_eq!(bytes, b"only", "version {version}");
        let about = json(&mount.at(format!("{version}/.version.json")));
        assert_eq!(about["version"], version);
    }
    let open = mount.status()["cache"]["open_snapshots"].as_u64().unwrap();
    assert!((1..=16).contains(&open), "{open} versions stayed open");
    assert_eq!(std::fs::read_link(mount.at("latest")).unwrap().to_str(), Some("2000"));
}

/// Page faults wait for the daemon in the kernel: with more of them than the daemon has threads,
/// every one must still be answered. `numpy` lets go of Python's lock while it adds up.
#[test]
fn n90_64_threads_fault_pages_of_shared_mappings() {
    let folder = folder();
    let table = folder.path().join("t.lance");
    let values = "[__import__('random').Random(seed).randbytes(6_000_000) for seed in (7, 8)]";
    write_blobs(&table, "create", values, "");
    let mount = Mount::with(&table, &["--threads", "2"]);
    let script = "import mmap, sys, threading, numpy
pairs = []
for path, object, start, size in zip(*[iter(sys.argv[1:])] * 4):
    wanted = numpy.fromfile(object, numpy.uint8, int(size), offset=int(start))
    stream = open(path, 'rb')
    pairs.append((wanted, numpy.frombuffer(mmap.mmap(stream.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ), numpy.uint8)))
bad, barrier = [], threading.Barrier(64)
def work(thread):
    barrier.wait()
    for wanted, found in pairs:
        order = numpy.random.default_rng(thread).permutation(range(0, len(wanted), 1 << 16))
        for at in map(int, order):
            if not numpy.array_equal(wanted[at:at + (1 << 16)], found[at:at + (1 << 16)]):
                bad.append((thread, at))
threads = [threading.Thread(target=work, args=(n,)) for n in range(64)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(len(pairs), bad)";
    let mut command = python();
    command.arg("-c").arg(script);
    for row in [0, 1] {
        let path = mount.at(format!("1/{row}/blob.bin"));
        command.arg(&path).arg(object(&path));
        command.arg(attribute(&path, "offset")).arg(attribute(&path, "size"));
    }
    let output = command.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "2 []\n", "{output:?}");
    assert_eq!(tree(&mount.at("1")).len(), 1 + 2 + 4);
}
