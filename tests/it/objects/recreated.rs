//! A table that is dropped and recreated with the same object names and lengths.

use std::path::{Path, PathBuf};

use crate::harness::{Mount, S3, eventually, folder, run_python};

/// Inline, packed, and in an object of its own.
const LENGTHS: [usize; 3] = [30_000, 300_000, 5 << 20];
const OLD: &[u8] = b"the old one ";
const NEW: &[u8] = b"THE NEW ONE ";

/// Writes a table whose values are one text again and again.
fn write(table: &Path, mode: &str) {
    run_python(&format!(
        "values = [(b'{}' * n)[:n] for n in {LENGTHS:?}]
schema = pa.schema([pa.field('id', pa.int64()), blob_field('blob')])
rows = pa.table([pa.array(range(3), pa.int64()), blob_array(values)], schema=schema)
lance.write_dataset(rows, '{}', data_storage_version='2.2', mode='{mode}')",
        std::str::from_utf8(OLD).unwrap(),
        table.display()
    ));
}

fn expected(text: &[u8], len: usize) -> Vec<u8> {
    text.iter().copied().cycle().take(len).collect()
}

/// Writes the same table once more: the same names and lengths, other bytes.
fn recreate(table: &Path) {
    let files = walkdir::WalkDir::new(table).into_iter().map(|entry| entry.unwrap().into_path());
    let files: Vec<PathBuf> = files.filter(|path| path.is_file()).collect();
    let kept: Vec<Vec<u8>> = files.iter().map(|file| std::fs::read(file).unwrap()).collect();
    std::fs::remove_dir_all(table).unwrap();
    let mut changed = 0;
    for (file, mut bytes) in files.iter().zip(kept) {
        let mut at = 0;
        while let Some(found) = bytes[at..].windows(OLD.len()).position(|w| w == OLD) {
            // The next ones follow at once.
            at += found;
            while bytes[at..].starts_with(OLD) {
                bytes[at..at + OLD.len()].copy_from_slice(NEW);
                at += OLD.len();
            }
            let rest = bytes[at..].iter().zip(OLD).take_while(|(a, b)| a == b).count();
            bytes[at..at + rest].copy_from_slice(&NEW[..rest]);
            changed += 1;
        }
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, bytes).unwrap();
    }
    assert!(changed >= LENGTHS.len(), "{changed} values were found");
}

fn holds(mount: &Mount, version: u64, text: &[u8]) {
    for (row, len) in LENGTHS.into_iter().enumerate() {
        let read = std::fs::read(mount.at(format!("{version}/{row}/blob.bin"))).unwrap();
        assert!(read == expected(text, len), "row {row} begins {:?}", &read[..24]);
    }
}

/// A figure of `.lancefs/status.json`.
fn figure(mount: &Mount, of: &str, name: &str) -> u64 {
    mount.status()[of][name].as_u64().unwrap()
}

#[test]
fn s15_a_recreated_table_never_shows_the_old_ones_bytes() {
    let (s3, disk) = (S3::new(&[]), folder());
    let table = disk.path().join("t.lance");
    write(&table, "create");
    s3.put(&table, "t");
    let cache = disk.path().join("cache");
    let arguments =
        ["--refresh", "100ms", "--cache-dir", cache.to_str().unwrap(), "--cache-size", "256MiB"];
    let mount = s3.mount("t", &arguments);
    holds(&mount, 1, OLD);
    recreate(&s3.bucket().join("t"));
    let first = || std::fs::read(mount.at("1/0/blob.bin"));
    eventually("the new table is seen", || {
        first().is_ok_and(|read| read == expected(NEW, LENGTHS[0]))
    });
    holds(&mount, 1, NEW);
    mount.unmount();
    mount.start(s3.uri("t"), &as_str(&with(&s3, &arguments)));
    holds(&mount, 1, NEW);
    assert!(figure(&mount, "cache", "disk_hits") > 0, "the disk cache was of use");
}

#[test]
fn a_table_recreated_while_nothing_is_mounted_is_not_read_from_the_old_ones_cache() {
    let (s3, disk) = (S3::new(&[]), folder());
    let table = disk.path().join("t.lance");
    write(&table, "create");
    s3.put(&table, "t");
    let cache = disk.path().join("cache");
    let arguments = ["--cache-dir", cache.to_str().unwrap(), "--cache-size", "256MiB"];
    let mount = s3.mount("t", &arguments);
    holds(&mount, 1, OLD);
    mount.unmount();
    recreate(&s3.bucket().join("t"));
    mount.start(s3.uri("t"), &as_str(&with(&s3, &arguments)));
    holds(&mount, 1, NEW);
}

/// What was read of one version is there for the next of the same table: in memory without a
/// request, on disk after a HEAD for each object.
#[test]
fn versions_of_one_table_share_what_was_read() {
    let (s3, disk) = (S3::new(&[]), folder());
    let table = disk.path().join("t.lance");
    write(&table, "create");
    s3.put(&table, "t");
    let cache = disk.path().join("cache");
    let arguments =
        ["--refresh", "100ms", "--cache-dir", cache.to_str().unwrap(), "--cache-size", "256MiB"];
    let mount = s3.mount("t", &arguments);
    holds(&mount, 1, OLD);
    let before = (figure(&mount, "store", "bytes_fetched"), figure(&mount, "store", "heads"));
    write(&table, "append");
    let bucket = s3.bucket().join("t");
    // As a writer does: what is there stays as it is.
    for entry in walkdir::WalkDir::new(&table).into_iter().map(Result::unwrap) {
        let to = bucket.join(entry.path().strip_prefix(&table).unwrap());
        if entry.file_type().is_dir() {
            std::fs::create_dir_all(&to).unwrap();
        } else if !to.exists() {
            std::fs::copy(entry.path(), &to).unwrap();
        }
    }
    eventually("version 2 is there", || mount.at("2").is_dir());
    holds(&mount, 2, OLD);
    let after = (figure(&mount, "store", "bytes_fetched"), figure(&mount, "store", "heads"));
    assert_eq!(after, before, "bytes and HEADs");
    mount.unmount();
    mount.start(s3.uri("t"), &as_str(&with(&s3, &arguments)));
    holds(&mount, 2, OLD);
    let objects = 3;
    assert_eq!(figure(&mount, "store", "heads"), objects);
    let fetched = figure(&mount, "store", "bytes_fetched");
    let all: u64 = LENGTHS.iter().map(|len| u64::try_from(*len).unwrap()).sum();
    assert!(fetched < all, "{fetched} of {all} bytes were fetched again");
}

/// A table whose root and whose base are one URI at two endpoints.
#[test]
fn one_uri_at_two_endpoints_is_two_objects() {
    let (here, there) = (S3::new(&[]), S3::new(&[]));
    run_python(&format!(
        "from lance import BlobDescriptorArrayBuilder, DatasetBasePath
uri, options = '{}', {}
schema = pa.schema([pa.field('id', pa.int64()), blob_field('blob')], metadata={{'lance.blob.managed': 'true'}})
rows = pa.table([pa.array([0], pa.int64()), blob_array([b'x'])], schema=schema)
base = DatasetBasePath(uri, name='second', is_dataset_root=False)
table = lance.write_dataset(rows, uri, data_storage_version='2.2', initial_bases=[base], storage_options=options)
second = next(iter(table._ds.base_paths()))
assert second == 1, second
values = BlobDescriptorArrayBuilder('blob')
values.append_managed('_blobs/x.blob', 0, 300000)
values.append_managed('_blobs/x.blob', 0, 300000, base_id=second)
schema = pa.schema([pa.field('id', pa.int64()), values.field])
rows = pa.Table.from_arrays([pa.array([1, 2], pa.int64()), values.finish()], schema=schema)
lance.write_dataset(rows, table, mode='append', storage_options=options)",
        here.uri("t"),
        here.python_options(),
    ));
    for (s3, text) in [(&here, OLD), (&there, NEW)] {
        let folder = s3.bucket().join("t/_blobs");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("x.blob"), expected(text, 300_000)).unwrap();
    }
    let disk = folder();
    let cache = disk.path().join("cache");
    let endpoint = format!("--storage-option=base_1.aws_endpoint={}", there.endpoint);
    let arguments = [
        &*endpoint,
        "--allow-external",
        "*",
        "--cache-dir",
        cache.to_str().unwrap(),
        "--cache-size",
        "256MiB",
    ];
    let mount = here.mount("t", &arguments);
    for round in 0..2 {
        for (row, text) in [(1, OLD), (2, NEW)] {
            let read = std::fs::read(mount.at(format!("2/{row}/blob.bin"))).unwrap();
            assert!(read == expected(text, 300_000), "round {round}: row {row}");
        }
        mount.unmount();
        mount.start(here.uri("t"), &as_str(&with(&here, &arguments)));
    }
}

fn with(s3: &S3, arguments: &[&str]) -> Vec<String> {
    s3.arguments().into_iter().chain(arguments.iter().map(|a| (*a).to_owned())).collect()
}

fn as_str(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}
