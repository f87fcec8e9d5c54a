//! Tables that are broken or hostile: one bad thing fails alone, says why, and the mount lives on.
//!
//! Files that nobody may read are not tested: the tests run as root, who may.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use crate::harness::{
    Mount, Place, Tables, copy_folder, errno, eventually, folder, names, run_python, stderr, xattr,
};

const EIO: i32 = 5;
const EACCES: i32 = 13;
const ENOENT: i32 = 2;
const ENAMETOOLONG: i32 = 36;
/// Bytes of each value of [`Small`]: too many to be inline.
const SIZE: usize = 100_000;

/// A table of rows that were appended one by one: row `i` has its own data file and its own
/// sidecar, and came with version `i + 1`.
struct Small {
    _folder: tempfile::TempDir,
    path: PathBuf,
    /// The data file of each row.
    data: Vec<PathBuf>,
}

impl Small {
    fn new(rows: usize) -> Self {
        let folder = folder();
        let path = folder.path().join("small.lance");
        let printed = run_python(&format!(
            "f = pa.schema([pa.field('id', pa.int64()), blob_field('blob')])
for i in range({rows}):
    t = pa.table([pa.array([i]), blob_array([bytes([65 + i]) * {SIZE}])], schema=f)
    d = lance.write_dataset(t, {path:?}, mode='append' if i else 'create', data_storage_version='2.2')
for f in d.get_fragments():
    print(f.data_files()[0].path)"
        ));
        let data: Vec<_> = printed.lines().map(|file| path.join("data").join(file)).collect();
        assert_eq!(data.len(), rows, "{printed}");
        Self { _folder: folder, path, data }
    }

    fn sidecar(&self, row: usize) -> PathBuf {
        let sidecars = self.data[row].with_extension("");
        sidecars.join(&names(&sidecars)[0])
    }

    fn manifest(&self, version: u64) -> PathBuf {
        self.path.join(format!("_versions/{:020}.manifest", u64::MAX - version))
    }
}

/// What must be said about a failure, in one line of the log and in `user.lancefs.error`.
fn says(mount: &Mount, path: &Path, words: &[&str]) {
    let error = xattr(path, "user.lancefs.error");
    let log = mount.log();
    let has_all = |text: &str| words.iter().all(|word| text.contains(word));
    assert!(log.lines().any(has_all), "{}: no line with {words:?} in\n{log}", path.display());
    let error = error.unwrap_or_else(|e| panic!("{}: user.lancefs.error: {e}", path.display()));
    assert!(has_all(&error), "{}: {error:?} without {words:?}", path.display());
}

/// The file of a row's value in the newest version.
fn value(mount: &Mount, row: usize) -> PathBuf {
    mount.at(format!("latest/{row}/blob.bin"))
}

/// The file fails as it is opened or read, and the failure names row, field and cause.
fn fails(mount: &Mount, row: usize, number: i32, cause: &str) {
    let path = value(mount, row);
    assert_eq!(errno(fs::read(&path)), number, "{}", path.display());
    says(mount, &path, &[&format!("row {row}"), "field blob", cause]);
}

/// A row of [`Small`] is as it was written.
fn is_whole(mount: &Mount, row: usize) {
    let (path, byte) = (value(mount, row), b'A' + u8::try_from(row).unwrap());
    assert_eq!(names(path.parent().unwrap()), ["blob.bin", "row.json"]);
    let bytes = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    assert!(bytes.len() == SIZE && bytes.iter().all(|b| *b == byte), "row {row} has other bytes");
    let json: serde_json::Value =
        serde_json::from_slice(&fs::read(path.with_file_name("row.json")).unwrap()).unwrap();
    assert_eq!(json["id"], row);
}

#[test]
fn a_corrupt_manifest_fails_alone() {
    let small = Small::new(5);
    fs::write(small.manifest(2), [0xA5; 400]).unwrap();
    fs::write(small.manifest(3), b"").unwrap();
    let whole = fs::read(small.manifest(4)).unwrap();
    fs::write(small.manifest(4), &whole[..whole.len() / 2]).unwrap();
    let mount = Mount::new(&small.path);
    let shown = names(&mount.path);
    assert_eq!(shown[1..6], ["1", "2", "3", "4", "5"]);
    for version in ["2", "3", "4"] {
        assert_eq!(errno(fs::read_dir(mount.at(version))), EIO, "version {version}");
        says(
            &mount,
            &mount.at(version),
            &[&format!("version {version}"), small.path.to_str().unwrap()],
        );
        let row = mount.at(version).join("0/blob.bin");
        assert_eq!(errno(fs::read(&row)), EIO, "{}", row.display());
    }
    (0..5).for_each(|row| is_whole(&mount, row));
    assert_eq!(fs::read(mount.at("1/0/blob.bin")).unwrap().len(), SIZE);
}

#[test]
fn a_corrupt_newest_manifest_spoils_no_older_version() {
    let small = Small::new(2);
    fs::write(small.manifest(2), b"no manifest at all").unwrap();
    let mount = Mount::new(&small.path);
    assert_eq!(fs::read_link(mount.at("latest")).unwrap(), Path::new("2"));
    assert_eq!(errno(fs::read_dir(mount.at("latest/"))), EIO);
    assert_eq!(fs::read(mount.at("1/0/blob.bin")).unwrap(), [b'A'; SIZE]);
    assert_eq!(mount.status()["latest"], 2);
}

#[test]
fn a_broken_data_file_fails_for_its_rows_alone() {
    let small = Small::new(5);
    fs::remove_file(&small.data[1]).unwrap();
    let whole = fs::read(&small.data[2]).unwrap();
    fs::write(&small.data[2], &whole[..whole.len() / 2]).unwrap();
    fs::write(&small.data[3], b"").unwrap();
    let mount = Mount::new(&small.path);
    assert_eq!(names(&mount.at("latest/")), [".version.json", "0", "1", "2", "3", "4"]);
    for row in [1, 2, 3] {
        let folder = mount.at(format!("latest/{row}"));
        assert_eq!(names(&folder), ["blob.bin", "row.json"]);
        assert_eq!(errno(fs::read(value(&mount, row))), EIO);
        let file = small.data[row].file_name().unwrap().to_str().unwrap();
        says(&mount, &value(&mount, row), &[&format!("row {row}"), "blob", file]);
        // Its columns cannot be read either: there is no text, not even about that.
        let json = folder.join("row.json");
        assert_eq!(errno(fs::read(&json)), EIO);
        says(&mount, &json, &[&format!("row {row}"), "id", file]);
    }
    is_whole(&mount, 0);
    is_whole(&mount, 4);
}

#[test]
fn a_row_lists_what_was_missing_once_it_is_back() {
    let folder = folder();
    let table = Tables::shared().copy("list", folder.path());
    let whole = {
        let mount = Mount::new(&table);
        let rows = names(&mount.at("latest/"));
        let list = |row: &String| (row.clone(), names(&mount.at("latest").join(row)));
        rows.iter().filter(|row| row.parse::<u64>().is_ok()).map(list).collect::<Vec<_>>()
    };
    let (data, away) = (table.join("data"), folder.path().join("away"));
    fs::rename(&data, &away).unwrap();
    fs::create_dir(&data).unwrap();
    let mount = Mount::new(&table);
    let shown = |row: &str| names(&mount.at("latest").join(row));
    assert!(whole.iter().any(|(row, all)| shown(row).len() < all.len()), "nothing is missing");
    fs::remove_dir(&data).unwrap();
    fs::rename(&away, &data).unwrap();
    for (row, all) in &whole {
        assert_eq!(&shown(row), all, "row {row}");
    }
}

#[test]
fn a_broken_sidecar_fails_for_its_values_alone() {
    let small = Small::new(7);
    fs::remove_file(small.sidecar(1)).unwrap();
    File::options().write(true).open(small.sidecar(2)).unwrap().set_len(99_999).unwrap();
    let in_place_of = |row: usize| {
        let path = small.sidecar(row);
        fs::remove_file(&path).unwrap();
        path
    };
    fs::create_dir(in_place_of(3)).unwrap();
    let fifo = in_place_of(4);
    rustix::fs::mknodat(rustix::fs::CWD, fifo, rustix::fs::FileType::Fifo, 0o644.into(), 0)
        .unwrap();
    let looped = in_place_of(5);
    std::os::unix::fs::symlink(&looped, &looped).unwrap();
    let mount = Mount::new(&small.path);
    for (row, cause) in [
        (1, "No such file"),
        (2, "99999 bytes"),
        (3, "is a Directory"),
        (4, "is a Fifo"),
        (5, "symbolic links"),
    ] {
        assert_eq!(names(&mount.at(format!("latest/{row}"))), ["blob.bin", "row.json"]);
        fails(&mount, row, EIO, cause);
        let json = fs::read_to_string(mount.at(format!("latest/{row}/row.json"))).unwrap();
        assert!(json.contains("blob.bin"), "{json}");
    }
    is_whole(&mount, 0);
    is_whole(&mount, 6);
    assert!(mount.status()["failures"].as_u64() >= Some(5));
}

#[test]
fn a_value_that_is_cut_while_it_is_open_is_an_error_and_no_zeros() {
    let small = Small::new(1);
    let mount = Mount::with(&small.path, &["--no-passthrough"]);
    let mut open = File::open(value(&mount, 0)).unwrap();
    File::options().write(true).open(small.sidecar(0)).unwrap().set_len(10).unwrap();
    let mut bytes = Vec::new();
    assert_eq!(errno(open.read_to_end(&mut bytes)), EIO, "{} bytes", bytes.len());
    says(&mount, &value(&mount, 0), &["row 0", "field blob", "10 bytes"]);
}

#[test]
fn an_unknown_base_fails_for_its_value_alone() {
    let mount = Mount::new(Tables::shared().path("unknown_base"));
    assert_eq!(names(&mount.at("latest/0")), ["blob.bin", "row.json"]);
    fails(&mount, 0, EIO, "unknown base_id 1");
    assert_eq!(errno(fs::metadata(value(&mount, 0))), EIO);
    assert_eq!(fs::read(value(&mount, 1)).unwrap(), b"inline");
    let json = fs::read_to_string(mount.at("latest/0/row.json")).unwrap();
    assert!(json.contains("\"external\""), "{json}");
}

#[test]
fn a_field_whose_decoder_panics_fails_alone() {
    let mount = Mount::new(Tables::shared().path("panicking"));
    for row in 0..3 {
        let folder = mount.at(format!("latest/{row}"));
        assert_eq!(names(&folder), ["blob.bin", "row.json"]);
        assert_eq!(errno(fs::read(folder.join("panicking[0].bin"))), EIO);
        fs::read(folder.join("blob.bin")).unwrap();
        let json = folder.join("row.json");
        assert_eq!(errno(fs::read(&json)), EIO);
        let error = xattr(&json, "user.lancefs.error").unwrap();
        assert!(error.contains(&format!("row {row}")) && error.contains("failing"), "{error}");
        let error = xattr(&folder, "user.lancefs.error").unwrap();
        assert!(["failing", "panicking"].iter().any(|field| error.contains(field)), "{error}");
    }
    let log = mount.log();
    let named = |line: &str| line.contains("\"panicking\"") && line.contains("panicked");
    assert!(log.lines().any(named), "{log}");
    assert!(mount.status()["failures"].as_u64() > Some(0));
}

/// A table with Managed storage of one value that a prepared descriptor names by this path.
fn managed_by(path: &str, folder: &Path) -> PathBuf {
    let table = folder.join("managed.lance");
    let written = "_blobs/pack.blob";
    assert_eq!(path.len(), written.len(), "the descriptor is patched in its place");
    let file = run_python(&format!(
        "import os
from lance import BlobDescriptorArrayBuilder
f = [pa.field('id', pa.int64()), blob_field('blob')]
def append(id, column, field):
    schema = pa.schema([f[0], field], metadata={{'lance.blob.managed': 'true'}})
    t = pa.Table.from_arrays([pa.array([id]), column], schema=schema)
    return lance.write_dataset(t, {table:?}, mode='append', data_storage_version='2.2')
append(0, blob_array([b'before']), f[1])
os.makedirs({table:?} + '/_blobs', exist_ok=True)
open({table:?} + '/{written}', 'wb').write(b'x' * 1000)
b = BlobDescriptorArrayBuilder('blob')
b.append_managed('{written}', 0, 1000)
print(append(1, b.finish(), b.field).get_fragments()[1].data_files()[0].path)"
    ));
    patch(&table.join("data").join(file.trim()), written, path);
    table
}

/// Puts other bytes of the same length in the place of bytes that must be there once.
fn patch(file: &Path, from: &str, to: &str) {
    assert_eq!(from.len(), to.len());
    let mut bytes = fs::read(file).unwrap();
    let at: Vec<_> =
        (0..bytes.len()).filter(|at| bytes[*at..].starts_with(from.as_bytes())).collect();
    assert_eq!(at.len(), 1, "{from:?} in {}", file.display());
    bytes[at[0]..at[0] + to.len()].copy_from_slice(to.as_bytes());
    fs::write(file, bytes).unwrap();
}

#[test]
fn a_managed_path_that_is_not_canonical_is_refused() {
    let folder = folder();
    for path in ["_blobs/../k.blob", "/etc/./passwd///", "../managed.lance", "_blobs//ack.blob"] {
        let table = managed_by(path, folder.path());
        let mount = Mount::new(&table);
        assert_eq!(names(&mount.at("latest/1")), ["blob.bin", "row.json"]);
        fails(&mount, 1, EIO, path);
        assert_eq!(fs::read(value(&mount, 0)).unwrap(), b"before");
        fs::remove_dir_all(table).unwrap();
    }
}

/// A table of External references, each patched into the place of another after it was written.
fn references(folder: &Path, references: &[String]) -> PathBuf {
    let table = folder.join("external.lance");
    for (row, reference) in references.iter().enumerate() {
        let written = format!("file:///{}", "w".repeat(reference.len() - "file:///".len()));
        let file = run_python(&format!(
            "f = pa.schema([pa.field('id', pa.int64()), blob_field('blob')])
t = pa.table([pa.array([{row}]), blob_array([lance.Blob.from_uri('{written}', 0, 20)])], schema=f)
d = lance.write_dataset(t, {table:?}, mode='append', data_storage_version='2.2',
    allow_external_blob_outside_bases=True)
print(d.get_fragments()[-1].data_files()[0].path)"
        ));
        patch(&table.join("data").join(file.trim()), &written, reference);
    }
    table
}

#[test]
fn a_hostile_external_reference_is_refused() {
    let folder = folder();
    let allowed = folder.path().join("allowed");
    fs::create_dir(&allowed).unwrap();
    fs::write(allowed.join("fine"), [b'f'; 100]).unwrap();
    fs::write(folder.path().join("secret"), [b's'; 100]).unwrap();
    let uri = |path: &str| format!("file://{}/{path}", allowed.display());
    let references = references(
        folder.path(),
        &[
            "file:///etc/passwd".to_owned(),
            uri("../secret"),
            uri("%2e%2e/secret"),
            uri("..%2fsecret"),
            "../../../../../etc/passwd".to_owned(),
            "no-such-scheme://host/path".to_owned(),
            uri("fine"),
        ],
    );
    let flag = allowed.to_str().unwrap();
    let mount = Mount::with(references, &["--allow-external", flag]);
    fails(&mount, 0, EACCES, "--allow-external file:///etc");
    fails(&mount, 1, EACCES, "--allow-external");
    fails(&mount, 2, EACCES, "--allow-external");
    fails(&mount, 3, EIO, "..%2fsecret");
    fails(&mount, 4, EIO, "../etc/passwd");
    fails(&mount, 5, EACCES, "no-such-scheme");
    assert_eq!(fs::read(value(&mount, 6)).unwrap(), [b'f'; 20]);
    let status = mount.status();
    assert_eq!(status["allow_external"], serde_json::json!([flag]));
}

#[test]
fn a_store_of_no_known_scheme_is_an_error_of_its_value() {
    let folder = folder();
    let mount = Mount::with(
        references(folder.path(), &["no-such-scheme://host/path".to_owned()]),
        &["--allow-external", "*"],
    );
    fails(&mount, 0, EIO, "no-such-scheme");
}

#[test]
fn an_unreadable_tag_fails_alone() {
    let folder = folder();
    let table = Tables::shared().copy("refs", folder.path());
    let tags = table.join("_refs/tags");
    fs::write(tags.join("v1.0.json"), b"{ garbage").unwrap();
    fs::write(tags.join("empty.json"), b"").unwrap();
    fs::create_dir(tags.join("folder.json")).unwrap();
    let whole = fs::read_to_string(tags.join("3.json")).unwrap();
    let gone = whole
        .replace("\"version\": 1", "\"version\":1")
        .replace("\"version\":1", "\"version\":999");
    assert_ne!(whole, gone);
    fs::write(tags.join("gone.json"), gone).unwrap();
    let mount = Mount::new(&table);
    let shown = names(&mount.at("tags"));
    for tag in ["v1.0", "empty", "gone", "3", "on-a"] {
        assert!(shown.contains(&tag.to_owned()), "{tag} is not in {shown:?}");
    }
    for tag in ["v1.0", "empty"] {
        let link = mount.at("tags").join(tag);
        assert_eq!(errno(fs::read_link(&link)), EIO, "{tag}");
        let log = mount.log();
        assert!(log.lines().any(|line| line.contains(&format!("read tag {tag}"))), "{log}");
    }
    assert_eq!(fs::read_link(mount.at("tags/gone")).unwrap(), Path::new("../999"));
    assert_eq!(errno(fs::metadata(mount.at("tags/gone"))), ENOENT);
    assert_eq!(fs::read_link(mount.at("tags/3")).unwrap(), Path::new("../1"));
    assert!(!names(&mount.at("tags/on-a/")).is_empty());
}

#[test]
fn foreign_files_beside_the_manifests_are_no_versions() {
    let small = Small::new(2);
    let versions = small.path.join("_versions");
    let manifest = fs::read(small.manifest(1)).unwrap();
    for name in [
        "README",
        "x.manifest",
        ".manifest",
        "7.manifest.tmp",
        "18446744073709551608.manifest-a1b2",
    ] {
        fs::write(versions.join(name), &manifest).unwrap();
    }
    copy_folder(&versions, &small.path.join("_copy"));
    fs::create_dir(versions.join("backup")).unwrap();
    fs::write(versions.join("backup/18446744073709551600.manifest"), &manifest).unwrap();
    let mount = Mount::new(&small.path);
    assert_eq!(
        names(&mount.path),
        [".lancefs", "1", "2", "branches", "commit", "latest", "staging", "tags"]
    );
    assert_eq!(fs::read_link(mount.at("latest")).unwrap(), Path::new("2"));
    is_whole(&mount, 0);
    is_whole(&mount, 1);
}

#[test]
fn a_table_that_is_dropped_while_mounted_leaves_an_empty_listing() {
    let small = Small::new(2);
    let mount = Mount::with(&small.path, &["--refresh", "100ms"]);
    let mut open = File::open(value(&mount, 1)).unwrap();
    let mut head = [0; 10];
    open.read_exact(&mut head).unwrap();
    fs::remove_dir_all(&small.path).unwrap();
    eventually("the versions leave the listing", || {
        names(&mount.path) == [".lancefs", "branches", "commit", "latest", "staging", "tags"]
    });
    eventually("names that were looked up are forgotten", || {
        ["2", "1/0", "latest/"].iter().all(|path| {
            fs::metadata(mount.at(path)).is_err_and(|e| e.raw_os_error() == Some(ENOENT))
        })
    });
    assert!(names(&mount.at("tags")).is_empty() && names(&mount.at("branches")).is_empty());
    let mut rest = Vec::new();
    open.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, [b'B'; SIZE - 10]);
    assert!(fs::read(mount.at("2/0/blob.bin")).is_err());
    assert_eq!(mount.status()["versions"], 0);
}

#[test]
fn huge_and_odd_names_are_no_files() {
    let mount = Mount::new(Tables::shared().path("refs"));
    let (longest, too_long) = ("9".repeat(255), "a".repeat(256));
    for folder in ["", "1", "1/0", "tags", "branches", "branches/a", ".lancefs"] {
        let folder = mount.at(folder);
        let numbers = ["18446744073709551615", "18446744073709551616", "-1", "0x1", "1 ", "٣"];
        for name in numbers.into_iter().chain([longest.as_str(), "a[0].bin", "%2F", "~"]) {
            let path = folder.join(name);
            assert_eq!(errno(fs::metadata(&path)), ENOENT, "{}", path.display());
        }
        assert_eq!(errno(fs::metadata(folder.join(&too_long))), ENAMETOOLONG);
        use std::os::unix::ffi::OsStrExt as _;
        let not_text = folder.join(std::ffi::OsStr::from_bytes(b"\xff\xfe"));
        assert_eq!(errno(fs::metadata(not_text)), ENOENT);
    }
    assert!(mount.status()["pid"].is_number());
}

#[test]
fn a_symlink_loop_is_no_mountpoint() {
    let place = Place::new();
    let looped = place.folder.path().join("loop");
    std::os::unix::fs::symlink("loop", &looped).unwrap();
    let table = Tables::shared().path("scalar");
    let output = place.command(&table).arg("--").output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let output = crate::harness::run(&["mount", table.to_str().unwrap(), looped.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("loop"), "{}", stderr(&output));
    assert!(fs::symlink_metadata(&looped).unwrap().is_symlink());
}

#[test]
fn a_mount_with_a_long_name_has_its_log() {
    let place = Place::new();
    let mountpoint = place.path.join("ü".repeat(127)).join("b".repeat(255));
    fs::create_dir_all(&mountpoint).unwrap();
    let state = place.folder.path().join("state");
    let table = Tables::shared().path("scalar");
    let mut command =
        crate::harness::lancefs(["mount".as_ref(), table.as_ref(), mountpoint.as_ref()]);
    let output = command.env("XDG_STATE_HOME", &state).output().unwrap();
    let logs = state.join("lancefs/log");
    let logged = output.status.success().then(|| names(&logs));
    let unmounted = crate::harness::run(&["unmount", mountpoint.to_str().unwrap()]);
    assert!(unmounted.status.success(), "{}", stderr(&unmounted));
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(logged.unwrap().len(), 1);
}

#[test]
fn a_manifest_that_another_process_left_half_written_fails_alone() {
    let small = Small::new(1);
    let mount = Mount::with(&small.path, &["--refresh", "100ms"]);
    let whole = fs::read(small.manifest(1)).unwrap();
    let mut half = File::create(small.manifest(2)).unwrap();
    half.write_all(&whole[..whole.len() / 2]).unwrap();
    eventually("the version is listed", || names(&mount.path).contains(&"2".to_owned()));
    assert_eq!(errno(fs::read_dir(mount.at("2"))), EIO);
    assert_eq!(fs::read(mount.at("1/0/blob.bin")).unwrap(), [b'A'; SIZE]);
}
