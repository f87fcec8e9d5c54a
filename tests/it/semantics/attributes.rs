//! S17 to S24: attributes.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use super::{json, object};
use crate::harness::{
    LANCEFS, Mount, Tables, errno, folder, names, run_python, stderr, tree, write_blobs, xattr,
};

#[test]
fn s17_the_same_path_has_the_same_number_after_a_remount() {
    let tables = Tables::shared();
    for table in ["refs", "nested", "wide_list"] {
        let mount = Mount::new(tables.path(table));
        let before = tree(&mount.path);
        mount.unmount();
        mount.start(tables.path(table), &[]);
        // Looked at from the other end first: a number does not depend on what was seen before.
        let numbers = before.iter().rev().map(|(path, seen)| {
            let now = std::fs::symlink_metadata(mount.at(path)).unwrap().ino();
            (path, seen.ino, now)
        });
        let moved: Vec<_> = numbers.filter(|(_, then, now)| then != now).collect();
        assert!(moved.is_empty(), "{table}: {moved:?}");
        assert!(before.len() > 30, "{table} shows {} paths only", before.len());
    }
}

#[test]
fn s18_a_number_names_one_content() {
    let tables = Tables::shared();
    for table in ["refs", "evolution", "nested", "wide_list", "deletes"] {
        let mount = Mount::new(tables.path(table));
        let all = tree(&mount.path);
        let mut by_number = BTreeMap::new();
        for (path, seen) in &all {
            let other = by_number.insert(seen.ino, path);
            assert_eq!(other, None, "{table}: {} has the same number", path.display());
            assert!(seen.ino > 1, "{}", path.display());
        }
        // The number that a listing gives is that of the file.
        for entry in walkdir::WalkDir::new(mount.at("1/0")).min_depth(1) {
            use walkdir::DirEntryExt as _;
            let entry = entry.unwrap();
            let path = entry.path();
            assert_eq!(entry.ino(), std::fs::metadata(path).unwrap().ino(), "{}", path.display());
        }
    }
}

#[test]
fn s19_all_times_are_the_commit_time_of_the_version() {
    let tables = Tables::shared();
    let mount = Mount::new(tables.path("evolution"));
    let versions: Vec<_> =
        names(&mount.path).into_iter().filter(|name| name.parse::<u32>().is_ok()).collect();
    let mut times = BTreeSet::new();
    for version in &versions {
        let about = json(&mount.at(version).join(".version.json"));
        let said = chrono::DateTime::parse_from_rfc3339(about["timestamp"].as_str().unwrap());
        let wanted = said.unwrap().timestamp_nanos_opt().unwrap();
        for path in ["", ".version.json", "0", "0/row.json", "0/blob.bin", "0/image.bin"] {
            let path = mount.at(version).join(path);
            let Ok(meta) = std::fs::metadata(&path) else { continue };
            let seconds = [meta.mtime(), meta.ctime(), meta.atime()];
            let rest = [meta.mtime_nsec(), meta.ctime_nsec(), meta.atime_nsec()];
            for (seconds, rest) in seconds.into_iter().zip(rest) {
                assert_eq!(seconds * 1_000_000_000 + rest, wanted, "{}", path.display());
            }
        }
        times.insert(wanted);
    }
    let script = format!(
        "from datetime import datetime, timedelta
for v in lance.dataset({:?}).versions():
    print((v['timestamp'] - datetime.fromtimestamp(0)) // timedelta(microseconds=1))",
        tables.path("evolution")
    );
    let known: Vec<i64> = run_python(&script).lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(times.len(), versions.len());
    assert_eq!(times.len(), known.len());
    for (time, known) in times.iter().zip(known) {
        // Python's time went through a float, which is good for a microsecond.
        assert!((time / 1000 - known).abs() <= 1, "{time} ns, {known} us");
    }
}

fn modes(mount: &Mount) -> Vec<(String, u32)> {
    let paths = ["", "tags", "branches", ".lancefs", "1", "1/0", "branches/a", "1/0/blob.bin"];
    let files = ["1/0/row.json", "1/.version.json", ".lancefs/status.json", ".lancefs/metrics"];
    let mode = |path: &str| std::fs::metadata(mount.at(path)).unwrap().mode() & 0o7777;
    paths.into_iter().chain(files).map(|path| (path.to_owned(), mode(path))).collect()
}

#[test]
fn s20_directories_are_0755_and_files_0644_unless_told_otherwise() {
    let table = Tables::shared().path("refs");
    let check = |arguments: &[&str], directory, file| {
        let mount = Mount::with(&table, arguments);
        for (path, mode) in modes(&mount) {
            let wanted = if mount.at(&path).is_dir() { directory } else { file };
            assert_eq!(mode, wanted, "{path} {mode:o}");
        }
    };
    check(&[], 0o755, 0o644);
    check(&["--dir-mode", "0750", "--file-mode", "0640"], 0o750, 0o640);
}

#[test]
fn s21_files_belong_to_the_user_who_mounted_unless_told_otherwise() {
    let table = Tables::shared().path("refs");
    let check = |arguments: &[&str], uid: u32, gid: u32| {
        let mount = Mount::with(&table, arguments);
        for path in ["", "latest", "tags", "tags/v1.0", "1", "1/0", "1/0/blob.bin", "1/0/row.json"]
        {
            let meta = std::fs::symlink_metadata(mount.at(path)).unwrap();
            assert_eq!((meta.uid(), meta.gid()), (uid, gid), "{path}");
        }
    };
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    check(&[], uid, gid);
    check(&["--uid", "12345", "--gid", "54321"], 12345, 54321);
    check(&["--gid", "54321"], uid, 54321);
}

#[test]
fn s22_one_link_and_blocks_of_512_bytes_rounded_up() {
    let mount = Mount::new(Tables::shared().path("scalar"));
    let mut sizes = Vec::new();
    for row in (0..13).filter(|row| *row != 3) {
        for file in ["blob.bin", "row.json"] {
            let meta = std::fs::metadata(mount.at(format!("1/{row}/{file}"))).unwrap();
            assert_eq!(meta.nlink(), 1, "{row}/{file}");
            assert_eq!(meta.blocks(), meta.len().div_ceil(512), "{row}/{file}");
            assert!(meta.blksize() >= 4096, "{row}/{file}: {}", meta.blksize());
            sizes.push(meta.len());
        }
    }
    assert!(sizes.contains(&0) && sizes.contains(&1) && sizes.contains(&4097));
}

#[test]
fn s23_every_value_says_what_it_is_and_where() {
    let tables = Tables::shared();
    let wanted = ["field_id", "kind", "object", "offset", "row_address", "row_id", "size"]
        .map(|name| format!("user.lancefs.{name}"));
    let mut count = 0;
    for table in ["history", "managed", "struct", "list", "legacy_2_1", "multibase", "prepared"] {
        let mount = tables.mount(table);
        let latest = mount.at(std::fs::read_link(mount.at("latest")).unwrap());
        for entry in walkdir::WalkDir::new(&latest).into_iter().map(Result::unwrap) {
            let path = entry.path();
            if path.extension().is_none_or(|extension| extension != "bin") {
                continue;
            }
            let mut shown = attributes(path);
            shown.retain(|name| name != "user.lancefs.error");
            assert_eq!(shown, [&wanted[..], &["user.mime_type".to_owned()]].concat(), "{table}");
            let Ok(bytes) = std::fs::read(path) else { continue };
            let (file, offset, size) = object(path);
            let mut stored = vec![0; usize::try_from(size).unwrap()];
            if size > 0 {
                let file = std::fs::File::open(&file);
                file.unwrap().read_exact_at(&mut stored, offset).unwrap();
            }
            assert!(bytes == stored, "{}: {file:?} {offset} {size}", path.display());
            count += 1;
        }
        assert_eq!(attributes(&latest), [""; 0]);
        assert_eq!(attributes(&latest.join("0/row.json")), [""; 0]);
    }
    assert!(count > 40, "{count} values");
}

/// The names of a file's extended attributes, sorted.
fn attributes(path: &Path) -> Vec<String> {
    let mut buffer = [0_u8; 4096];
    let len = rustix::fs::listxattr(path, &mut buffer).unwrap();
    let list = std::str::from_utf8(&buffer[..len]).unwrap();
    let mut names: Vec<_> = list.split_terminator('\0').map(ToOwned::to_owned).collect();
    names.sort();
    names
}

#[test]
fn s23_addresses_and_ids_are_those_of_the_table() {
    let table = Tables::shared().path("history");
    let mount = Mount::new(&table);
    let script = format!(
        "ds = lance.dataset({table:?})
found = ds.to_table(columns=['id'], with_row_id=True, with_row_address=True).to_pydict()
field, = [f.id() for f in ds.lance_schema.fields() if f.name() == 'blob']
for at in zip(found['_rowaddr'], found['_rowid']): print(*at, field)"
    );
    let text = run_python(&script);
    assert_eq!(text.lines().count(), 6);
    let mut compared = 0;
    for (line, row) in text.lines().zip(0..) {
        let path = mount.at(format!("latest/{row}/blob.bin"));
        if !path.exists() {
            continue;
        }
        let shown = ["row_address", "row_id", "field_id"]
            .map(|name| xattr(&path, &format!("user.lancefs.{name}")).unwrap())
            .join(" ");
        assert_eq!(shown, line, "row {row}");
        compared += 1;
    }
    assert_eq!(compared, 6);
}

#[test]
fn s23_the_mime_type_is_that_of_the_bytes() {
    let folder = folder();
    let table = folder.path().join("t.lance");
    let values = r"[b'\x89PNG\r\n\x1a\n' + bytes(100_000), b'\xff\xd8\xff\xe0' + bytes(9), b'%PDF-1.7', b'?', b'']";
    write_blobs(&table, "create", values, "");
    let mount = Mount::new(&table);
    let unknown = "application/octet-stream";
    let types = ["image/png", "image/jpeg", "application/pdf", unknown, unknown];
    for (row, wanted) in types.into_iter().enumerate() {
        let path = mount.at(format!("1/{row}/blob.bin"));
        assert_eq!(xattr(&path, "user.mime_type").unwrap(), wanted, "row {row}");
    }
    let nodata = Err(rustix::io::Errno::NODATA);
    for path in ["1/0/blob.bin", "1/0/row.json", "1/0", "1", "", "latest", "tags"] {
        assert_eq!(xattr(&mount.at(path), "user.absent"), nodata, "{path}");
        assert_eq!(xattr(&mount.at(path), "user.lancefs.error"), nodata, "{path}");
        assert_eq!(xattr(&mount.at(path), "security.capability"), nodata, "{path}");
    }
    for path in ["1/0/row.json", "1/0", "1", ""] {
        assert_eq!(xattr(&mount.at(path), "user.lancefs.kind"), nodata, "{path}");
    }
}

/// Everything that a mount tells about itself and about values that fail.
fn told(mount: &Mount) -> Vec<String> {
    let mut told = vec![mount.log()];
    for row in 0..3 {
        for name in ["user.lancefs.error", "user.lancefs.object"] {
            told.extend(xattr(&mount.at(format!("1/{row}/blob.bin")), name).ok());
        }
        told.push(std::fs::read_to_string(mount.at(format!("1/{row}/row.json"))).unwrap());
    }
    for path in [".lancefs/status.json", ".lancefs/metrics", "1/.version.json"] {
        told.push(std::fs::read_to_string(mount.at(path)).unwrap());
    }
    told.push(std::fs::read_to_string("/proc/self/mountinfo").unwrap());
    told
}

#[test]
fn s24_nothing_that_is_shown_holds_a_credential() {
    let folder = folder();
    let table = folder.path().join("t.lance");
    // The second is of a store that lancefs is built without.
    let values = "[Blob.from_uri('s3://user:SECRET-1@lancefs-no-such-bucket/o?X-Amz-Signature=SECRET-2', 0, 10),
        Blob.from_uri('oss://user:SECRET-3@lancefs-no-such-host/o?sig=SECRET-4#SECRET-5', 0, 10), b'inline']";
    write_blobs(&table, "create", values, "allow_external_blob_outside_bases=True");
    let secrets = folder.path().join("secrets");
    // With a key of its own nobody looks for one elsewhere on this machine.
    std::fs::write(&secrets, "aws_access_key_id=key\naws_secret_access_key=SECRET-6\n").unwrap();
    let arguments = [
        ["--storage-options-file", secrets.to_str().unwrap()],
        // Nobody listens there, so nothing leaves this machine.
        ["--storage-option", "aws_endpoint=http://127.0.0.1:9"],
        ["--storage-option", "aws_session_token=SECRET-7"],
        ["--storage-option", "aws_region=eu-central-1"],
        ["--timeout", "5s"],
    ]
    .concat();
    let mut told_by_all = Vec::new();
    for policy in ["s3://lancefs-another-bucket", "*"] {
        let mount = Mount::with(&table, &[&arguments[..], &["--allow-external", policy]].concat());
        for row in [0, 1] {
            let failed = errno(std::fs::read(mount.at(format!("1/{row}/blob.bin"))));
            let wanted: &[i32] = if policy == "*" { &[5, 110] } else { &[13] };
            assert!(wanted.contains(&failed), "{policy} row {row}: errno {failed}");
        }
        assert!(mount.log().contains("lancefs-no-such-bucket"), "{}", mount.log());
        assert!(mount.log().contains("lancefs-no-such-host"), "{}", mount.log());
        told_by_all.extend(told(&mount));
    }
    let uri = "s3://user:SECRET-8@lancefs-no-such-bucket/t.lance?sig=SECRET-9";
    let mut mounting = std::process::Command::new(&*LANCEFS);
    mounting.arg("mount").arg(uri).arg(folder.path()).args(arguments);
    let output = mounting.arg("--log-file").arg(folder.path().join("log")).output().unwrap();
    assert!(!output.status.success());
    assert!(stderr(&output).contains("lancefs-no-such-bucket"), "{}", stderr(&output));
    told_by_all.push(stderr(&output));
    told_by_all.extend(std::fs::read_to_string(folder.path().join("log")));
    let leaks: Vec<_> = told_by_all
        .iter()
        .flat_map(|text| text.lines())
        .filter(|line| line.contains("SECRET"))
        .collect();
    assert!(leaks.is_empty(), "{leaks:#?}");
}

#[test]
fn s23_texts_and_containers_are_told_by_what_is_in_them_and_by_the_row() {
    let folder = folder();
    let table = folder.path().join("t.lance");
    run_python(&format!(
        "values = [b'{{\"a\": 1}}', b'a,b\\n1,2\\n', b'<svg/>', b'some words, and more of them', b'PK\\x03\\x04' + bytes(99), bytes(9)]
names = ['', '', '', 'notes.md', 'report.docx', 'unknown']
types = [None] * 5 + ['model/gltf-binary']
schema = pa.schema([pa.field('name', pa.string()), pa.field('mime_type', pa.string()), blob_field('blob')])
rows = pa.table([names, pa.array(types, pa.string()), blob_array(values)], schema=schema)
lance.write_dataset(rows, {table:?}, data_storage_version='2.2')"
    ));
    let mount = Mount::new(&table);
    let docx = "application/vnd.openxmlformats-officedocument.wordprocessingml.document";
    let types = [
        "application/json",
        "text/csv",
        "image/svg+xml",
        "text/markdown",
        docx,
        "model/gltf-binary",
    ];
    for (row, wanted) in types.into_iter().enumerate() {
        let path = mount.at(format!("1/{row}/blob.bin"));
        assert_eq!(xattr(&path, "user.mime_type").unwrap(), wanted, "row {row}");
    }
}
