//! `lancefs commit`: its plan, its question, its result, and what it says where there is no batch.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{
    Mount, folder, names, on_terminal, run, run_python, stderr, stdout, write_blobs,
};

/// A table with Managed storage and one row, mounted with a staging folder of its own.
struct Staged {
    mount: Mount,
    table: PathBuf,
    _folder: TempDir,
}

impl Staged {
    fn new() -> Self {
        let folder = folder();
        let table = folder.path().join("t.lance");
        write_blobs(&table, "create", "[b'first']", "");
        stdout(&run(&["table", "enable-managed", "--yes", table.to_str().unwrap()]));
        let staging = folder.path().join("staging");
        let mount = Mount::with(&table, &["--staging-dir", staging.to_str().unwrap()]);
        Self { mount, table, _folder: folder }
    }

    fn put(&self, name: &str, bytes: impl AsRef<[u8]>) {
        let path = self.mount.at("staging").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    /// `lancefs commit` of a batch.
    fn commit(&self, batch: &str, arguments: &[&str]) -> std::process::Output {
        let path = self.mount.at("staging").join(batch);
        run(&[&["commit", path.to_str().unwrap()], arguments].concat())
    }

    /// The newest version, and its rows as pylance reads them.
    fn rows(&self) -> Vec<String> {
        let printed = run_python(&format!(
            "ds = lance.dataset('{}')
print(ds.version)
for id, blob in zip(ds.to_table(columns=['id'])['id'].to_pylist(), ds.take_blobs('blob', indices=list(range(ds.count_rows())))):
    print(id, blob.readall())",
            self.table.display()
        ));
        printed.lines().map(ToOwned::to_owned).collect()
    }
}

#[test]
fn a_batch_is_planned_and_committed() {
    let staged = Staged::new();
    staged.put("b/2/blob.txt", "second");
    staged.put("b/2/row.json", "{\"id\": 7}");
    staged.put("b/10/blob.bin", "third");
    staged.put("b/10/Thumbs.db", "litter");
    let plan = stdout(&staged.commit("b", &["--dry-run"]));
    assert!(plan.starts_with("b: add 2 rows, 2 files, 11 B to upload"), "{plan}");
    let output = stdout(&staged.commit("b", &["-n", "--json"]));
    let told: Value = serde_json::from_str(&output).unwrap();
    assert_eq!((&told["result"], &told["plan"]["rows_new"]), (&Value::Null, &json!(2)));
    assert_eq!(told["plan"]["bytes_upload"], 11);
    assert_eq!(staged.rows(), ["2", "0 b'first'"]);
    // Nobody is asked where there is no terminal.
    let said = stdout(&staged.commit("b", &[]));
    let last = said.lines().last().unwrap();
    assert!(last.starts_with("version 3: 2 rows, 11 B in "), "{said}");
    assert_eq!(staged.rows(), ["3", "0 b'first'", "7 b'second'", "None b'third'"]);
    assert_eq!(names(&staged.mount.at("staging")), [""; 0]);
    assert_eq!(fs::read(staged.mount.at("3/1/blob.bin")).unwrap(), b"second");
}

#[test]
fn the_result_is_json() {
    let staged = Staged::new();
    staged.put("photo.jpg", "alone");
    let output = stdout(&staged.commit("photo.jpg", &["--json"]));
    let told: Value = serde_json::from_str(&output).unwrap();
    assert_eq!((&told["plan"]["files"], &told["plan"]["faults"]), (&json!(1), &json!([])));
    let result = &told["result"];
    assert_eq!(
        (&result["version"], &result["rows"], &result["bytes"]),
        (&json!(3), &json!(1), &json!(5))
    );
    let record = fs::read_to_string(staged.mount.at(".lancefs/commits.jsonl")).unwrap();
    assert_eq!(&serde_json::from_str::<Value>(record.trim()).unwrap(), result);
}

#[test]
fn every_fault_is_printed_and_nothing_is_committed() {
    let staged = Staged::new();
    staged.put("b/1/blob.jpg", "x");
    staged.put("b/1/blob.png", "x");
    staged.put("b/2/bolb.jpg", "x");
    staged.put("b/3/blob.jpg", "x");
    staged.put("b/3/row.json", "{\"id\": \"seven\"}");
    for arguments in [&["--yes"][..], &["--dry-run"]] {
        let output = staged.commit("b", arguments);
        assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
        let said = String::from_utf8(output.stdout).unwrap();
        for line in [
            "\nb/1: blob: blob.jpg and blob.png are for the same value",
            "\nb/2: bolb.jpg is for no field of the table: did you mean blob?",
            "\nb/3: id: ",
        ] {
            assert!(said.contains(line), "{line} is not in {said}");
        }
    }
    let output = staged.commit("b", &["--json"]);
    let told: Value = serde_json::from_str(&String::from_utf8(output.stdout).unwrap()).unwrap();
    assert_eq!((output.status.code(), &told["result"]), (Some(5), &Value::Null));
    let faults = told["plan"]["faults"].as_array().unwrap();
    assert_eq!(
        (faults.len(), &faults[0]["place"], &faults[0]["field"]),
        (3, &json!("b/1"), &json!("blob"))
    );
    assert_eq!(staged.rows(), ["2", "0 b'first'"]);
    assert_eq!(names(&staged.mount.at("staging/b")), ["1", "2", "3"]);
}

#[test]
fn on_a_terminal_it_asks() {
    let staged = Staged::new();
    staged.put("b/1/blob.jpg", "x");
    let batch = staged.mount.at("staging/b");
    let answer = |line| on_terminal(&["commit", batch.to_str().unwrap()], "[Y/n]", line);
    let said = answer("n\n");
    assert!(said.starts_with("1 ") && said.contains("nothing was committed"), "{said}");
    assert_eq!(staged.rows(), ["2", "0 b'first'"]);
    let said = answer("\n");
    assert!(said.starts_with("0 ") && said.contains("version 3: 1 row, "), "{said}");
}

/// It fails so and says this.
fn refused(path: &Path, code: i32, hint: &str) {
    for arguments in [&["commit"][..], &["commit", "--dry-run"], &["commit", "--json", "--yes"]] {
        let output = run(&[arguments, &[path.to_str().unwrap()]].concat());
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{}: {said}", path.display());
        assert!(said.contains(hint), "{}: {said}", path.display());
        assert_eq!(output.stdout, b"");
    }
}

#[test]
fn what_is_no_batch_is_said_to_be_none() {
    let staged = Staged::new();
    let mount = &staged.mount;
    refused(&staged.table, 1, "is not in a lancefs mount");
    refused(&staged.table.join("absent/too"), 1, "is not in a lancefs mount");
    let staging = format!("batches are what is in {}", mount.at("staging").display());
    for path in ["", "latest", "1/0", "1/0/blob.bin", "staging", "staging/"] {
        refused(&mount.at(path), 1, &staging);
    }
    staged.put("b/1/blob.jpg", "x");
    let deeper = format!("lancefs commit {}", mount.at("staging/b").display());
    refused(&mount.at("staging/b/1/blob.jpg"), 1, &deeper);
    refused(&mount.at("staging/absent"), 3, "there is no batch");
}

#[test]
fn where_nothing_can_be_staged_it_says_why() {
    let folder = folder();
    let table = folder.path().join("t.lance");
    write_blobs(&table, "create", "[b'x']", "");
    let mount = Mount::new(&table);
    refused(&mount.at("staging/b"), 1, "lancefs table enable-managed");
}
