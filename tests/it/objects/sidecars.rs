//! Sidecars under the names that release 2.0.1 gave them: eight hex digits in place of 32 binary ones.

use std::fs;
use std::path::Path;

use crate::harness::{Mount, S3, errno, folder, names, run_python, write_blobs, xattr};

const VALUES: &str =
    "[b'inline', b'p' * 100_000, b'q' * 100_000, b'd' * 5_000_000, None, b'e' * 5_000_001]";
const LENGTHS: [Option<u64>; 6] =
    [Some(6), Some(100_000), Some(100_000), Some(5_000_000), None, Some(5_000_001)];

/// Gives every sidecar of a table its older name.
fn rename(table: &Path) {
    run_python(&format!(
        "import glob, os
found = glob.glob('{}/data/*/*.blob')
assert len(found) >= 3
for path in found:
    folder, name = os.path.split(path)
    os.rename(path, os.path.join(folder, f'{{int(name[:32][::-1], 2):08x}}.blob'))",
        table.display()
    ));
}

/// Every value is whole, and afterwards the mount knows what the objects are called.
fn reads(mount: &Mount) {
    let row = |row: usize| mount.at(format!("1/{row}/blob.bin"));
    for (at, len) in LENGTHS.iter().enumerate() {
        let found = fs::read(row(at)).ok().map(|bytes| u64::try_from(bytes.len()).unwrap());
        assert_eq!(found, *len, "row {at}");
    }
    let object = xattr(&row(3), "user.lancefs.object").unwrap();
    let name = object.rsplit('/').next().unwrap();
    assert_eq!(name.len(), "00000001.blob".len(), "{object}");
}

#[test]
fn sidecars_of_release_2_0_1_are_found() {
    let folder = folder();
    let table = folder.path().join("t.lance");
    write_blobs(&table, "create", VALUES, "");
    rename(&table);
    let mount = Mount::new(&table);
    reads(&mount);
    let verified = crate::harness::run(&["verify", table.to_str().unwrap()]);
    assert!(verified.status.success(), "{verified:?}");
    // One of the usual names beside them.
    write_blobs(&table, "append", "[b'n' * 100_000]", "");
    let newer = mount.at("latest/6/blob.bin");
    crate::harness::eventually("the new row is there", || newer.exists());
    assert_eq!(fs::read(newer).unwrap(), vec![b'n'; 100_000]);
}

#[test]
fn sidecars_of_release_2_0_1_are_found_in_a_bucket() {
    let (s3, folder) = (S3::new(&[]), folder());
    let table = folder.path().join("t.lance");
    write_blobs(&table, "create", VALUES, "");
    rename(&table);
    s3.put(&table, "t");
    reads(&s3.mount("t", &[]));
}

#[test]
fn a_sidecar_that_has_neither_name_is_missing_under_its_own() {
    let folder = folder();
    let table = folder.path().join("t.lance");
    write_blobs(&table, "create", "[b'd' * 5_000_000]", "");
    for file in names(&table.join("data")) {
        let _ = fs::remove_dir_all(table.join("data").join(file));
    }
    let mount = Mount::new(&table);
    assert_eq!(errno(fs::read(mount.at("1/0/blob.bin"))), 5);
    let why = xattr(&mount.at("1/0/blob.bin"), "user.lancefs.error").unwrap();
    assert!(why.contains("10000000000000000000000000000000.blob"), "{why}");
}
