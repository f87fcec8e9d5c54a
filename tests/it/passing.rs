//! Failures that pass: what failed is right at the next look, in the same mount, in the daemon and in
//! the kernel.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::harness::{Mount, S3, Seen, errno, folder, run_python, tree, xattr};

const EIO: i32 = 5;
const ESTALE: i32 = 116;
/// Rows of each data file, and data files.
const ROWS: usize = 24;
const FILES: usize = 3;

/// A table of three data files: a number, a text, inline values of which some are null, and lists of
/// them. Its rows are few enough that a listing shows all.
fn write(table: &str, options: &str) {
    run_python(&format!(
        "schema = pa.schema([pa.field('id', pa.int64()), pa.field('name', pa.string()), blob_field('blob'),
    pa.field('frames', pa.list_(blob_field('item')))])
def rows(first):
    ids = list(range(first, first + {ROWS}))
    value = lambda i: None if i % 7 == 3 else b'%d' % i
    lists = [value(i + k) for i in ids for k in range(i % 3)]
    offsets = [0]
    for i in ids: offsets.append(offsets[-1] + i % 3)
    frames = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), blob_array(lists),
        type=pa.list_(blob_field('item')))
    return pa.Table.from_arrays([pa.array(ids, pa.int64()), pa.array([f'n{{i}}' for i in ids]),
        blob_array([value(i) for i in ids]), frames], schema=schema)
for file in range({FILES}):
    lance.write_dataset(rows(file * {ROWS}), '{table}', mode='append' if file else 'create',
        data_storage_version='2.2', storage_options={options})"
    ));
}

/// The data files of a table, sorted.
fn data_files(table: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(table.join("data")).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "lance"));
    files.sort();
    assert_eq!(files.len(), FILES);
    files
}

/// Looks at everything of a version in every way, and gives how often that failed.
fn look(version: &Path) -> usize {
    let mut failed = 0;
    for row in 0..ROWS * FILES {
        let folder = version.join(row.to_string());
        let listed = fs::read_dir(&folder).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        failed += usize::from(listed.is_err());
        for name in ["row.json", "blob.bin", "frames[0].bin", "frames[1].bin"] {
            let path = folder.join(name);
            let _ = fs::metadata(&path);
            let read = fs::read(&path);
            failed += usize::from(read.is_err_and(|error| error.raw_os_error() != Some(2)));
        }
    }
    failed
}

fn away(file: &Path) -> PathBuf {
    file.with_extension("away")
}

/// A version as it is; another mount has shown it.
struct Wanted(BTreeMap<PathBuf, Seen>);

impl Wanted {
    fn of(mount: &Mount, version: &str) -> Self {
        let wanted = tree(&mount.at(version));
        assert!(wanted.len() > ROWS * FILES * 2, "{}", wanted.len());
        Self(wanted)
    }

    fn is(&self, mount: &Mount, version: &str) {
        let found = tree(&mount.at(version));
        for (path, wanted) in &self.0 {
            assert_eq!(found.get(path), Some(wanted), "{}", path.display());
        }
        assert_eq!(found.len(), self.0.len());
    }
}

/// Files go away and come back while a mount looks at them: `mount` makes the mount.
fn all_is_right_again(table: &Path, mount: impl Fn() -> Mount) {
    let wanted = Wanted::of(&mount(), "3");
    let files = data_files(table);
    let mount = mount();
    for file in &files {
        fs::rename(file, away(file)).unwrap();
    }
    let row = mount.at("3/5/row.json");
    assert_eq!(errno(fs::read(&row)), EIO);
    assert!(xattr(&row, "user.lancefs.error").unwrap().contains("row 5"));
    let failed = look(&mount.at("3"));
    assert!(failed > ROWS * FILES, "only {failed} failures");
    fs::rename(away(&files[0]), &files[0]).unwrap();
    let fewer = look(&mount.at("3"));
    assert!((1..failed).contains(&fewer), "{fewer} failures");
    for file in &files[1..] {
        fs::rename(away(file), file).unwrap();
    }
    wanted.is(&mount, "3");
    assert_eq!(look(&mount.at("3")), 0);
    // What was read is kept; what is looked at later is as right.
    wanted.is(&mount, "3");
}

#[test]
fn s45_data_files_that_come_back_are_read_at_once() {
    let folder = folder();
    let table = folder.path().join("t.lance");
    write(table.to_str().unwrap(), "None");
    all_is_right_again(&table, || Mount::with(&table, &["--refresh", "1h"]));
}

#[test]
fn objects_of_data_that_come_back_are_read_at_once() {
    let s3 = S3::new(&[]);
    write(&s3.uri("t"), &s3.python_options());
    all_is_right_again(&s3.bucket().join("t"), || s3.mount("t", &["--refresh", "1h"]));
}

#[test]
fn answers_that_were_cut_short_leave_nothing_behind() {
    let s3 = S3::new(&[]);
    write(&s3.uri("t"), &s3.python_options());
    let wanted = Wanted::of(&s3.mount("t", &[]), "3");
    for skip in 0..4 {
        let mount = s3.mount("t", &["--refresh", "1h", "--timeout", "4s"]);
        s3.strike(json!({ "kind": "truncate", "method": "GET", "key": "/data/", "skip": skip }));
        let rows = [0, ROWS, ROWS * 2];
        let failed = rows.iter().filter(|row| {
            fs::metadata(mount.at(format!("3/{row}/blob.bin"))).is_err()
                | fs::read(mount.at(format!("3/{row}/row.json"))).is_err()
        });
        let failed = failed.count();
        let (_, struck) = s3.struck();
        s3.heal();
        assert!(failed > 0 && struck > 0, "skip {skip}: {failed} failures, {struck} cut");
        wanted.is(&mount, "3");
    }
}

#[test]
fn an_object_that_is_not_there_at_first_access_is_read_at_the_next() {
    let s3 = S3::new(&[]);
    write(&s3.uri("t"), &s3.python_options());
    let wanted = Wanted::of(&s3.mount("t", &[]), "3");
    for file in data_files(&s3.bucket().join("t")) {
        let mount = s3.mount("t", &["--refresh", "1h"]);
        fs::rename(&file, away(&file)).unwrap();
        let reads =
            (0..FILES).map(|file| fs::read(mount.at(format!("3/{}/row.json", file * ROWS))));
        let failed: Vec<_> = reads.filter_map(Result::err).collect();
        assert_eq!(failed.len(), 1);
        assert_eq!(failed[0].raw_os_error(), Some(EIO));
        fs::rename(away(&file), &file).unwrap();
        wanted.is(&mount, "3");
    }
}

#[test]
fn what_was_removed_with_its_version_is_stale() {
    let folder = folder();
    let table = folder.path().join("t.lance");
    write(table.to_str().unwrap(), "None");
    let mount = Mount::with(&table, &["--refresh", "1h"]);
    assert!(mount.at("1/0").is_dir() && mount.at("3/0").is_dir());
    fs::remove_file(table.join(format!("_versions/{:020}.manifest", u64::MAX - 1))).unwrap();
    for file in data_files(&table) {
        fs::remove_file(file).unwrap();
    }
    for file in ["row.json", "blob.bin"] {
        assert_eq!(errno(fs::read(mount.at("1/0").join(file))), ESTALE, "{file} of version 1");
        assert_eq!(errno(fs::read(mount.at("3/0").join(file))), EIO, "{file} of version 3");
    }
}

#[test]
fn a_time_that_could_not_be_read_is_read_again() {
    let folder = folder();
    let table = folder.path().join("t.lance");
    write(table.to_str().unwrap(), "None");
    let manifest = table.join(format!("_versions/{:020}.manifest", u64::MAX - 1));
    fs::File::open(&manifest).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    let time = |mount: &Mount| fs::metadata(mount.at("1")).unwrap().modified().unwrap();
    let wanted = time(&Mount::new(&table));
    let mount = Mount::with(&table, &["--refresh", "1h"]);
    fs::rename(&manifest, away(&manifest)).unwrap();
    assert_eq!(time(&mount), std::time::UNIX_EPOCH);
    fs::rename(away(&manifest), &manifest).unwrap();
    assert_eq!(time(&mount), wanted);
    assert_ne!(wanted, std::time::UNIX_EPOCH);
}

#[test]
fn a_table_that_is_away_is_back_at_once() {
    let folder = folder();
    let table = folder.path().join("t.lance");
    write(table.to_str().unwrap(), "None");
    let mount = Mount::with(&table, &["--refresh", "200ms"]);
    let wanted = Wanted::of(&mount, "3");
    fs::rename(&table, away(&table)).unwrap();
    crate::harness::eventually("its versions leave the listing", || !mount.at("3").exists());
    fs::rename(away(&table), &table).unwrap();
    wanted.is(&mount, "3");
}
