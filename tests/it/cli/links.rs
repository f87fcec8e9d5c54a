//! Staged symlinks to URIs: References that pylance follows, or copies, or refusals.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Output;

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{Mount, folder, run, run_python, stderr, stdout};

/// A table with a registered base, files in it and beside it, mounted with options.
struct Linked {
    folder: TempDir,
    mount: Mount,
}

impl Linked {
    fn new(options: &[&str]) -> Self {
        Self::allowing(&[], options)
    }

    /// Mounted with leave to use these folders.
    fn allowing(folders: &[&str], options: &[&str]) -> Self {
        let folder = folder();
        for directory in ["media/deep", "outside"] {
            fs::create_dir_all(folder.path().join(directory)).unwrap();
        }
        for (name, bytes) in [
            ("media/a b.txt", "in the base"),
            ("media/deep/c.txt", "0123456789"),
            ("outside/d.txt", "outside"),
        ] {
            fs::write(folder.path().join(name), bytes).unwrap();
        }
        let table = folder.path().join("t.lance");
        run_python(&format!(
            "from lance import DatasetBasePath
schema = pa.schema([pa.field('id', pa.int64()), blob_field('blob')], metadata={{'lance.blob.managed': 'true'}})
rows = pa.table([pa.array([0]), blob_array([b'first'])], schema=schema)
bases = [DatasetBasePath('{}', name='media', is_dataset_root=False)]
lance.write_dataset(rows, '{}', data_storage_version='2.2', initial_bases=bases)",
            folder.path().join("media").display(),
            table.display()
        ));
        let staging = folder.path().join("staging");
        let flag = |name: &&str| format!("--allow-external={}", folder.path().join(name).display());
        let allowed: Vec<String> = folders.iter().map(flag).collect();
        let allowed: Vec<&str> = allowed.iter().map(String::as_str).collect();
        let options =
            [&["--staging-dir", staging.to_str().unwrap()], &allowed[..], options].concat();
        let mount = Mount::with(&table, &options);
        Self { folder, mount }
    }

    fn uri(&self, name: &str) -> String {
        format!("file://{}", self.folder.path().join(name).display())
    }

    fn link(&self, entry: &str, target: &str) {
        let directory = self.mount.at("staging/b").join(entry);
        fs::create_dir_all(&directory).unwrap();
        symlink(target, directory.join("blob.bin")).unwrap();
    }

    fn commit(&self) -> Output {
        run(&["commit", "--json", self.mount.at("staging/b").to_str().unwrap()])
    }

    /// The faults of a batch that must not be committed.
    fn faults(&self) -> Vec<String> {
        let output = self.commit();
        assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
        let told: Value = serde_json::from_slice(&output.stdout).unwrap();
        let faults = told["plan"]["faults"].as_array().unwrap().iter();
        faults
            .map(|f| format!("{}|{}", f["place"].as_str().unwrap(), f["text"].as_str().unwrap()))
            .collect()
    }

    /// Kind, base, position, size and URI of every row but the first, and what pylance reads.
    fn rows(&self) -> Vec<String> {
        let table = self.folder.path().join("t.lance");
        let printed = run_python(&format!(
            "ds = lance.dataset('{}')
values = ds.take_blobs('blob', indices=list(range(ds.count_rows())))
for d, blob in list(zip(ds.scanner(columns=['blob'], blob_handling='blobs_descriptions').to_table()['blob'].to_pylist(), values))[1:]:
    print(d['kind'], d['blob_id'], d['position'], d['size'], d['blob_uri'], blob.readall(), sep='|')",
            table.display()
        ));
        printed.lines().map(ToOwned::to_owned).collect()
    }
}

#[test]
fn a_link_is_recorded_by_its_base() {
    let linked = Linked::allowing(&["media"], &[]);
    linked.link("1", &linked.uri("media/a%20b.txt"));
    linked.link("2", &format!("{}#bytes=2-5", linked.uri("media/deep/c.txt")));
    let told: Value = serde_json::from_str(&stdout(&linked.commit())).unwrap();
    assert_eq!((&told["plan"]["external"], &told["plan"]["files"]), (&2.into(), &0.into()));
    assert_eq!(linked.rows(), ["3|1|0|0|a b.txt|b'in the base'", "3|1|2|4|deep/c.txt|b'2345'"]);
    assert_eq!(fs::read(linked.mount.at("latest/2/blob.bin")).unwrap(), b"2345");
}

#[test]
fn what_no_base_holds_needs_the_flag() {
    let linked = Linked::new(&[]);
    linked.link("1", &linked.uri("outside/d.txt"));
    linked.link("2", &linked.uri("t.lance/data/x"));
    linked.link("3", "../../elsewhere");
    linked.link("4", "https://host.example/x");
    // Nor is a base that is not trusted one.
    linked.link("5", &linked.uri("media/deep/c.txt"));
    let mut faults = linked.faults();
    faults.sort();
    let outside = linked.uri("outside");
    for (fault, (place, hint)) in faults.iter().zip([
        ("b/1|", format!("allow it with --allow-external {outside}")),
        ("b/2|", "in the table itself".to_owned()),
        ("b/3|", "links inside a batch are not followed".to_owned()),
        ("b/4|", "find the store of https://host.example/x".to_owned()),
        ("b/5|", format!("allow it with --allow-external {}", linked.uri("media/deep"))),
    ]) {
        assert!(fault.starts_with(place) && fault.contains(&hint), "{fault}");
    }
    assert_eq!(faults.len(), 5);
}

#[test]
fn with_the_flag_the_uri_is_recorded_as_it_is() {
    let linked = Linked::allowing(&["outside"], &[]);
    let uri = linked.uri("outside/d.txt");
    linked.link("1", &uri);
    linked.link("2", &format!("{uri}#bytes=0-2"));
    stdout(&linked.commit());
    assert_eq!(
        linked.rows(),
        [format!("3|0|0|0|{uri}|b'outside'"), format!("3|0|0|3|{uri}|b'out'")]
    );
}

#[test]
fn ingest_copies() {
    let linked = Linked::allowing(&["media"], &["--external-mode", "ingest"]);
    linked.link("1", &format!("{}#bytes=2-5", linked.uri("media/deep/c.txt")));
    linked.link("2", &linked.uri("media/a%20b.txt"));
    stdout(&linked.commit());
    fs::remove_dir_all(linked.folder.path().join("media")).unwrap();
    fs::create_dir(linked.folder.path().join("media")).unwrap();
    let rows = linked.rows();
    assert!(rows[0].starts_with("4|0|0|4|_blobs/") && rows[0].ends_with("|b'2345'"), "{rows:?}");
    assert!(
        rows[1].starts_with("4|0|0|11|_blobs/") && rows[1].ends_with("|b'in the base'"),
        "{rows:?}"
    );
}
