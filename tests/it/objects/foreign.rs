//! External objects whose rows record no size, and that become others.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use crate::harness::{
    Mount, S3, errno, eventually, folder, run, run_python, stdout, write_blobs, xattr,
};

const EIO: i32 = 5;
const ESTALE: i32 = 116;

fn bytes(text: &[u8], len: usize) -> Vec<u8> {
    text.iter().copied().cycle().take(len).collect()
}

/// All that shows how long a value is.
fn sizes(path: &Path) -> [String; 3] {
    let inspected = run(&["inspect", "--json", path.to_str().unwrap()]);
    let inspected: serde_json::Value = serde_json::from_str(&stdout(&inspected)).unwrap();
    let stat = std::fs::metadata(path).unwrap().size().to_string();
    let found = inspected["size"].as_str().unwrap().to_owned();
    [stat, xattr(path, "user.lancefs.size").unwrap(), found]
}

fn shows(path: &Path, expected: &[u8]) {
    assert!(std::fs::read(path).unwrap() == expected, "the whole object, and nothing else");
    assert_eq!(sizes(path), [(); 3].map(|()| expected.len().to_string()));
}

/// A local table of two rows that refer to one file, with and without its size.
fn local() -> (tempfile::TempDir, Mount) {
    let folder = folder();
    std::fs::write(folder.path().join("o"), bytes(b"first ", 10_004)).unwrap();
    let table = folder.path().join("t.lance");
    let uri = format!("file://{}/o", folder.path().display());
    let values = format!("[Blob.from_uri('{uri}'), Blob.from_uri('{uri}', 0, 10_004)]");
    write_blobs(&table, "create", &values, "allow_external_blob_outside_bases=True");
    let mount = Mount::with(&table, &["--allow-external", "*"]);
    (folder, mount)
}

#[test]
fn s48_a_local_object_that_became_another_one_is_read_whole() {
    let (folder, mount) = local();
    let (object, path) = (folder.path().join("o"), mount.at("1/0/blob.bin"));
    let recorded = mount.at("1/1/blob.bin");
    shows(&path, &bytes(b"first ", 10_004));
    shows(&recorded, &bytes(b"first ", 10_004));
    let grown = bytes(b"second ", 20_000);
    std::fs::write(&object, &grown).unwrap();
    shows(&path, &grown);
    shows(&recorded, &grown[..10_004]);
    let small = bytes(b"third ", 500);
    std::fs::write(&object, &small).unwrap();
    shows(&path, &small);
    assert_eq!(errno(std::fs::read(&recorded)), EIO);
    let new = folder.path().join("new");
    for text in [&b"fourth "[..], b"fifth "] {
        // The same length again, and another file.
        std::fs::write(&new, bytes(text, 30_000)).unwrap();
        std::fs::rename(&new, &object).unwrap();
        shows(&path, &bytes(text, 30_000));
    }
    let table = folder.path().join("t.lance");
    stdout(&run(&["verify", "--allow-external", "*", table.to_str().unwrap()]));
    let copy = folder.path().join("copy");
    std::fs::copy(&path, &copy).unwrap();
    assert!(std::fs::read(&copy).unwrap() == bytes(b"fifth ", 30_000));
    std::fs::write(&object, b"").unwrap();
    shows(&path, b"");
    std::fs::remove_file(&object).unwrap();
    assert_eq!(errno(std::fs::read(&path)), EIO);
    std::fs::write(&object, b"it is back").unwrap();
    shows(&path, b"it is back");
}

#[test]
fn s49_who_has_a_local_object_open_gets_no_mix() {
    let (folder, mount) = local();
    let (object, path) = (folder.path().join("o"), mount.at("1/0/blob.bin"));
    std::fs::write(&object, bytes(b"first ", 3_000_000)).unwrap();
    let mut file = File::open(&path).unwrap();
    let mut part = vec![0; 1000];
    file.read_exact(&mut part).unwrap();
    let new = folder.path().join("new");
    std::fs::write(&new, bytes(b"other ", 4_000_000)).unwrap();
    std::fs::rename(&new, &object).unwrap();
    let mut rest = Vec::new();
    file.read_to_end(&mut rest).unwrap();
    assert!([part.clone(), rest].concat() == bytes(b"first ", 3_000_000), "it holds the file");
    let mut file = File::open(&path).unwrap();
    file.read_exact(&mut part).unwrap();
    File::options().append(true).open(&object).unwrap().write_all(b"more").unwrap();
    let far = file.read_exact_at(&mut part, 3_500_000);
    assert!([EIO, ESTALE].contains(&errno(far)), "it is written to");
    assert_eq!(std::fs::read(&path).unwrap().len(), 4_000_004);
}

#[test]
fn s48_s49_an_object_of_a_store_that_became_another_one_is_read_whole() {
    let s3 = S3::new(&[]);
    let object = s3.bucket().join("media/o");
    std::fs::create_dir_all(object.parent().unwrap()).unwrap();
    std::fs::write(&object, bytes(b"first ", 10_004)).unwrap();
    run_python(&format!(
        "from lance import Blob
uri = '{}'
schema = pa.schema([pa.field('id', pa.int64()), blob_field('blob')])
values = [Blob.from_uri(uri), Blob.from_uri(uri, 0, 10_004)]
rows = pa.table([pa.array(range(2), pa.int64()), blob_array(values)], schema=schema)
lance.write_dataset(rows, '{}', data_storage_version='2.2', allow_external_blob_outside_bases=True, storage_options={})",
        s3.uri("media/o"),
        s3.uri("t"),
        s3.python_options(),
    ));
    let mount = s3.mount("t", &["--allow-external", "*"]);
    let path = mount.at("1/0/blob.bin");
    shows(&path, &bytes(b"first ", 10_004));
    let mut open = File::open(&path).unwrap();
    let mut part = vec![0; 100];
    open.read_exact(&mut part).unwrap();
    let heads = || mount.status()["store"]["heads"].as_u64().unwrap();
    let before = heads();
    assert_eq!(std::fs::read(&path).unwrap().len(), 10_004);
    assert_eq!(heads() - before, 1, "an open looks at the object once");
    for (text, len) in [(&b"second "[..], 20_000), (b"third ", 500), (b"other ", 500)] {
        std::fs::write(&object, bytes(text, len)).unwrap();
        shows(&path, &bytes(text, len));
    }
    let mut rest = Vec::new();
    let read = open.read_to_end(&mut rest);
    assert!([EIO, ESTALE].contains(&errno(read)), "after {} bytes", rest.len());
    let recorded = mount.at("1/1/blob.bin");
    for text in [&b"recorded "[..], b"RECORDED "] {
        // As long as what was recorded, and longer.
        std::fs::write(&object, bytes(text, 10_004 + text.len())).unwrap();
        eventually("the new bytes are read", || {
            std::fs::read(&recorded).is_ok_and(|read| read == bytes(text, 10_004))
        });
    }
    let big = bytes(b"large ", 3_000_000);
    std::fs::write(&object, &big).unwrap();
    let file = File::open(&path).unwrap();
    file.read_exact_at(&mut part, 0).unwrap();
    std::fs::write(&object, bytes(b"LARGE ", 3_000_000)).unwrap();
    let far = file.read_exact_at(&mut part, 2_900_000);
    assert!(
        [EIO, ESTALE].contains(&errno(far)),
        "no byte of the new one for who has the old one open"
    );
    shows(&path, &bytes(b"LARGE ", 3_000_000));
    std::fs::remove_file(&object).unwrap();
    assert_eq!(errno(std::fs::read(&path)), EIO);
}

/// A program that only looks sees the new size when what was seen last is old enough.
#[test]
fn s48_the_size_of_a_changed_object_is_seen_without_opening_it() {
    let (folder, mount) = local();
    let (object, path) = (folder.path().join("o"), mount.at("1/0/blob.bin"));
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 10_004);
    std::fs::write(&object, bytes(b"second ", 20_000)).unwrap();
    eventually("the new size is seen", || std::fs::metadata(&path).unwrap().len() == 20_000);
}
