//! A symbolic link in place of a file or folder of a table, and names that lead out of it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::{EACCES, faults};
use crate::harness::{Mount, errno, folder, names, run, run_python, stderr, write_blobs, xattr};

/// A table, and beside it a folder for what links lead to.
struct Linked {
    folder: tempfile::TempDir,
    table: PathBuf,
}

impl Linked {
    /// Rows with an inline, a packed and a dedicated value, and one that is deleted; Managed ones
    /// where `metadata` says so.
    fn new(metadata: &str) -> Self {
        let folder = folder();
        fs::create_dir(folder.path().join("out")).unwrap();
        let table = folder.path().join("t.lance");
        run_python(&format!(
            "schema = pa.schema([pa.field('id', pa.int64()), blob_field('blob')], metadata={metadata})
values = [b'small', b'p' * 100_000, b'd' * 5_000_000, b'deleted']
rows = pa.table([pa.array(range(4)), blob_array(values)], schema=schema)
d = lance.write_dataset(rows, '{0}', data_storage_version='2.2')
d.delete('id = 3')
lance.dataset('{0}').tags.create('tagged', 1)
lance.dataset('{0}').tags.create('other', 2)",
            table.display()
        ));
        Self { folder, table }
    }

    fn out(&self) -> PathBuf {
        self.folder.path().join("out")
    }

    /// Moves a path of the table out of it, and puts a link in its place.
    fn link(&self, path: &Path) {
        let to = self.out().join(path.file_name().unwrap());
        fs::rename(path, &to).unwrap();
        symlink(to, path).unwrap();
    }

    /// The only path in a folder of the table that ends like this.
    fn one(&self, folder: &str, ending: &str) -> PathBuf {
        let mut found = names(&self.table.join(folder));
        found.retain(|name| name.ends_with(ending));
        assert_eq!(found.len(), 1, "{folder}: {found:?}");
        self.table.join(folder).join(&found[0])
    }

    /// The object of a value of the newest version.
    fn object(&self, row: u32) -> PathBuf {
        let mount = Mount::new(&self.table);
        let path = mount.at(format!("latest/{row}/blob.bin"));
        let uri = xattr(&path, "user.lancefs.object").unwrap();
        uri.strip_prefix("file://").unwrap().into()
    }

    /// These rows are refused and the others read; `verify` finds as much; with the flag all read.
    fn refuses(&self, rows: &[usize]) {
        let mount = Mount::new(&self.table);
        let flag = format!("--allow-external {}", self.out().display());
        let found = faults(self.table.to_str().unwrap(), &[]);
        for (row, length) in [5, 100_000, 5_000_000].into_iter().enumerate() {
            let path = mount.at(format!("2/{row}/blob.bin"));
            let is_fault = |fault: &&String| fault.starts_with(&format!("{row}/"));
            let fault = found.iter().find(is_fault);
            if rows.contains(&row) {
                assert_eq!(errno(fs::read(&path)), EACCES, "row {row}");
                assert!(fault.is_some_and(|fault| fault.contains(&flag)), "row {row}: {found:?}");
            } else {
                let read = fs::read(&path);
                assert_eq!(read.map(|b| b.len()).ok(), Some(length), "{row}: {}", mount.log());
                assert_eq!(fault, None);
            }
        }
        assert!(rows.is_empty() || mount.log().contains(&flag), "{}", mount.log());
        self.reads_with_the_flag();
    }

    fn reads_with_the_flag(&self) {
        let out = self.out();
        let mount = Mount::with(&self.table, &["--allow-external", out.to_str().unwrap()]);
        for (row, length) in [5, 100_000, 5_000_000].into_iter().enumerate() {
            let read = fs::read(mount.at(format!("2/{row}/blob.bin")));
            assert_eq!(read.map(|b| b.len()).ok(), Some(length), "row {row}: {}", mount.log());
        }
        assert_eq!(names(&mount.at("1")).len(), 5);
        let flags = ["--allow-external", out.to_str().unwrap()];
        assert_eq!(faults(self.table.to_str().unwrap(), &flags), [""; 0]);
    }
}

const MANAGED: &str = "{'lance.blob.managed': 'true'}";

#[test]
fn s47_a_managed_object_that_is_a_link_is_refused() {
    let linked = Linked::new(MANAGED);
    linked.link(&linked.object(2));
    linked.refuses(&[2]);
}

#[test]
fn s47_a_folder_of_objects_that_is_a_link_is_refused() {
    let linked = Linked::new(MANAGED);
    linked.link(&linked.table.join("_blobs"));
    linked.refuses(&[1, 2]);
}

#[test]
fn s47_a_sidecar_that_is_a_link_is_refused() {
    let linked = Linked::new("None");
    linked.link(&linked.object(2));
    linked.refuses(&[2]);
    linked.link(linked.object(1).parent().unwrap());
    linked.refuses(&[1, 2]);
}

#[test]
fn s47_a_data_file_that_is_a_link_is_refused() {
    let linked = Linked::new("None");
    linked.link(&linked.one("data", ".lance"));
    linked.refuses(&[0, 1, 2]);
}

#[test]
fn s47_a_folder_of_data_that_is_a_link_is_refused() {
    let linked = Linked::new("None");
    linked.link(&linked.table.join("data"));
    linked.refuses(&[0, 1, 2]);
}

#[test]
fn s47_a_list_of_deleted_rows_that_is_a_link_is_refused() {
    let linked = Linked::new("None");
    linked.link(&linked.one("_deletions", ".arrow"));
    linked.refuses(&[0, 1, 2]);
    // The version before has nothing to do with it.
    assert_eq!(fs::read(Mount::new(&linked.table).at("1/3/blob.bin")).unwrap(), b"deleted");
}

#[test]
fn s47_a_file_of_other_columns_that_is_a_link_is_a_fault() {
    let linked = Linked::new("None");
    run_python(&format!(
        "lance.dataset('{}').add_columns({{'more': 'id + 1'}})",
        linked.table.display()
    ));
    let old = linked.object(0).file_name().unwrap().to_str().unwrap().to_owned();
    let mut files = names(&linked.table.join("data"));
    files.retain(|name| linked.table.join("data").join(name).is_file() && *name != old);
    assert_eq!(files.len(), 1);
    linked.link(&linked.table.join("data").join(&files[0]));
    let mount = Mount::new(&linked.table);
    for (row, length) in [5, 100_000, 5_000_000].into_iter().enumerate() {
        assert_eq!(fs::read(mount.at(format!("3/{row}/blob.bin"))).unwrap().len(), length);
    }
    let json = fs::read(mount.at("3/0/row.json")).unwrap_or_default();
    assert!(!String::from_utf8(json).unwrap().contains("\"more\": 1"));
    let found = faults(linked.table.to_str().unwrap(), &[]);
    let flag = format!("--allow-external {}", linked.out().display());
    assert!(found.len() == 1 && found[0].starts_with("0/row.json: "), "{found:?}");
    assert!(found[0].contains(&flag), "{found:?}");
    linked.reads_with_the_flag();
}

#[test]
fn s47_a_manifest_that_is_a_link_fails_alone() {
    let linked = Linked::new("None");
    // Numbers count down in names: the last one is version 1.
    let manifests = names(&linked.table.join("_versions"));
    let first = manifests.iter().rfind(|name| name.ends_with(".manifest")).unwrap();
    linked.link(&linked.table.join("_versions").join(first));
    let mount = Mount::new(&linked.table);
    assert_eq!(errno(fs::read_dir(mount.at("1"))), EACCES);
    let why = xattr(&mount.at("1"), "user.lancefs.error").unwrap();
    assert!(why.contains(&format!("--allow-external {}", linked.out().display())), "{why}");
    assert_eq!(fs::read(mount.at("2/0/blob.bin")).unwrap(), b"small");
    let output = run(&["verify", linked.table.to_str().unwrap(), "--at", "1"]);
    assert_eq!(output.status.code(), Some(6), "{}", stderr(&output));
    linked.reads_with_the_flag();
}

#[test]
fn s47_a_folder_of_versions_that_is_a_link_is_no_table() {
    let linked = Linked::new("None");
    linked.link(&linked.table.join("_versions"));
    let mountpoint = folder();
    let (table, at) = (linked.table.to_str().unwrap(), mountpoint.path().to_str().unwrap());
    for arguments in [&["mount", table, at][..], &["verify", table]] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(6), "{}", stderr(&output));
        let flag = format!("--allow-external {}", linked.folder.path().display());
        assert!(stderr(&output).contains(&flag), "{}", stderr(&output));
    }
    linked.reads_with_the_flag();
}

#[test]
fn s47_a_tag_that_is_a_link_fails_alone() {
    let linked = Linked::new("None");
    linked.link(&linked.table.join("_refs/tags/tagged.json"));
    let mount = Mount::new(&linked.table);
    assert_eq!(errno(fs::read_link(mount.at("tags/tagged"))), EACCES);
    assert_eq!(fs::read_link(mount.at("tags/other")).unwrap().to_str(), Some("../2"));
    linked.reads_with_the_flag();
    let out = linked.out();
    let mount = Mount::with(&linked.table, &["--allow-external", out.to_str().unwrap()]);
    assert_eq!(fs::read_link(mount.at("tags/tagged")).unwrap().to_str(), Some("../1"));
}

#[test]
fn s47_a_data_file_whose_name_leads_out_is_not_read() {
    let folder = folder();
    for (number, name) in ["../../{}", "..%2f..%2f{}", "%2e%2e/%2e%2e/{}"].into_iter().enumerate() {
        let (table, other) =
            (folder.path().join(format!("{number}.lance")), folder.path().join("other.lance"));
        write_blobs(&table, "create", "[b'its own']", "{}");
        write_blobs(&table, "append", "[b'to be patched']", "{}");
        write_blobs(&other, "overwrite", "[b'of another!!!']", "{}");
        let only = |table: &Path| names(&table.join("data")).pop().unwrap();
        let mut files = names(&table.join("data"));
        files.sort_by_key(|name| {
            fs::metadata(table.join("data").join(name)).unwrap().modified().unwrap()
        });
        let old = files.pop().unwrap();
        // A file out of the table, of a name that fits in the place of the old one.
        let short = "x".repeat(old.len() - name.len() + "{}".len());
        fs::copy(other.join("data").join(only(&other)), folder.path().join(&short)).unwrap();
        let manifest = names(&table.join("_versions")).into_iter().next().unwrap();
        let manifest = table.join("_versions").join(manifest);
        let mut bytes = fs::read(&manifest).unwrap();
        let new = name.replace("{}", &short);
        let found: Vec<_> =
            (0..bytes.len()).filter(|at| bytes[*at..].starts_with(old.as_bytes())).collect();
        assert!(!found.is_empty(), "{old} is not in {}", manifest.display());
        for at in found {
            bytes[at..at + new.len()].copy_from_slice(new.as_bytes());
        }
        fs::write(&manifest, bytes).unwrap();
        let mount = Mount::new(&table);
        assert_eq!(fs::read(mount.at("2/0/blob.bin")).unwrap(), b"its own", "{name}");
        let refused = errno(fs::read(mount.at("2/1/blob.bin")));
        assert!([5, EACCES].contains(&refused), "{name}: {refused}");
        fs::remove_dir_all(other).unwrap();
    }
}

#[test]
fn s47_nothing_is_written_through_a_link() {
    for name in ["data", "_blobs"] {
        let linked = Linked::new(MANAGED);
        linked.link(&linked.table.join(name));
        let before = names(&linked.out().join(name));
        let staging = folder();
        let staging = format!("--staging-dir={}", staging.path().display());
        let mount = Mount::with(&linked.table, &[&staging, "--upload-delay=1h"]);
        let batch = mount.at("staging/b");
        fs::create_dir(&batch).unwrap();
        fs::write(batch.join("x.bin"), vec![7; 100_000]).unwrap();
        assert_eq!(errno(fs::rename(&batch, mount.at("commit/b"))), EACCES);
        let why = xattr(&batch, "user.lancefs.error").unwrap();
        assert!(why.contains(&format!("--allow-external {}", linked.out().display())), "{why}");
        assert_eq!(names(&mount.path).iter().filter(|name| *name == "3").count(), 0);
        assert_eq!(fs::read(batch.join("x.bin")).unwrap().len(), 100_000);
        let out = names(&linked.out().join(name));
        assert_eq!(out, before, "nothing is there that was not before");
    }
}
