//! `lancefs table enable-managed` and `mount --enable-managed`, checked by pylance.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{
    Mount, Place, folder, on_terminal, run, run_python, stderr, stdout, write_blobs,
};

const FLAG_MANAGED: u64 = 1 << 14;
const VALUES: &str = "[b'inline', b'p' * 100_000, None, b'', b'd' * 5_000_000]";

/// A table with values of every placement, not opted in.
fn table() -> (TempDir, PathBuf) {
    let folder = folder();
    let table = folder.path().join("t.lance");
    write_blobs(&table, "create", VALUES, "");
    (folder, table)
}

fn enable(table: &Path, arguments: &[&str]) -> std::process::Output {
    run(&[&["table", "enable-managed", table.to_str().unwrap()], arguments].concat())
}

/// The newest version and what pylance reads from it, as text.
fn by_pylance(table: &Path) -> (u64, String) {
    let printed = run_python(&format!(
        "import hashlib
ds = lance.dataset('{}')
print(ds.version)
for row, blob in zip(ds.to_table(columns=['id'])['id'].to_pylist(), ds.take_blobs('blob', indices=list(range(ds.count_rows())))):
    print(row, None if blob is None else hashlib.sha256(blob.readall()).hexdigest())",
        table.display()
    ));
    let (version, rows) = printed.split_once('\n').unwrap();
    (version.parse().unwrap(), rows.to_owned())
}

/// Both feature words of the newest version, as a mount shows them.
fn flags(table: &Path) -> (u64, u64) {
    let mount = Mount::new(table);
    let text = fs::read(mount.at("latest/.version.json")).unwrap();
    let version: Value = serde_json::from_slice(&text).unwrap();
    let word = |name: &str| version[name].as_u64().unwrap() & FLAG_MANAGED;
    (word("reader_feature_flags"), word("writer_feature_flags"))
}

/// Changes the message of the newest manifest by a Python expression in `m`.
fn tamper(table: &Path, change: &str) {
    run_python(&format!(
        "import glob
path = sorted(glob.glob('{}/_versions/*.manifest'))[0]
file = open(path, 'rb').read()
at = int.from_bytes(file[-16:-8], 'little')
length = int.from_bytes(file[at:at + 4], 'little')
m = file[at + 4:at + 4 + length]
changed = {change}
assert changed != m, m
open(path, 'wb').write(file[:at] + len(changed).to_bytes(4, 'little') + changed + file[at + 4 + length:])",
        table.display()
    ));
}

/// It fails so, and no version is added.
fn refused(table: &Path, hint: &str) {
    let versions = || fs::read_dir(table.join("_versions")).unwrap().count();
    let before = versions();
    let output = enable(table, &["--yes"]);
    assert_eq!(output.status.code(), Some(1), "{}", stdout_of(&output));
    assert!(stderr(&output).contains(hint), "{}", stderr(&output));
    assert_eq!(versions(), before);
}

fn stdout_of(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn both_bits_are_set_at_once_and_reads_stay_the_same() {
    let (_folder, table) = table();
    let before = by_pylance(&table);
    assert_eq!(flags(&table), (0, 0));
    let output = enable(&table, &["--yes", "--json"]);
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let shown = table.to_str().unwrap();
    assert_eq!(report, json!({ "table": shown, "managed": true, "version": 2, "changed": true }));
    for word in ["older than Lance 14", "cannot be undone", "cleans up or compacts"] {
        assert!(stderr(&output).contains(word), "{}", stderr(&output));
    }
    assert_eq!(flags(&table), (FLAG_MANAGED, FLAG_MANAGED));
    assert_eq!(by_pylance(&table), (2, before.1.clone()));
    // A second time nothing is written or warned of.
    let output = enable(&table, &["--json"]);
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!((&report["version"], &report["changed"]), (&json!(2), &json!(false)));
    assert_eq!((stderr(&output).as_str(), by_pylance(&table)), ("", (2, before.1)));
    // And the next payloads are Managed.
    write_blobs(&table, "append", "[b'm' * 100_000]", "");
    let kind = Mount::new(&table);
    assert_eq!(
        crate::harness::xattr(&kind.at("latest/5/blob.bin"), "user.lancefs.kind").unwrap(),
        "managed"
    );
}

#[test]
fn without_a_terminal_it_is_not_done_unasked() {
    let (_folder, table) = table();
    let output = enable(&table, &[]);
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    assert!(said.contains("cannot be undone") && said.contains("--yes"), "{said}");
    assert_eq!((stdout_of(&output).as_str(), by_pylance(&table).0), ("", 1));
}

#[test]
fn on_a_terminal_it_asks() {
    let (_folder, table) = table();
    let answer =
        |line| on_terminal(&["table", "enable-managed", table.to_str().unwrap()], "[y/N]", line);
    for line in ["n\n", "\n", "what?\nn\n", "\u{4}"] {
        let said = answer(line);
        assert!(said.starts_with("1 ") && said.contains("nothing was changed"), "{line:?}: {said}");
        assert_eq!(by_pylance(&table).0, 1);
    }
    let said = answer("y\n");
    assert!(
        said.starts_with("0 ") && said.contains("Managed storage is on in version 2"),
        "{said}"
    );
    assert_eq!(by_pylance(&table).0, 2);
}

#[test]
fn a_damaged_opt_in_is_an_error() {
    let (_folder, table) = table();
    stdout(&enable(&table, &["--yes"]));
    tamper(
        &table,
        r"m.replace(b'lance.blob.managed\x12\x04true', b'lance.blob.managed\x12\x04maye')",
    );
    refused(&table, "must be true or false");
    let output = run(&[
        "mount",
        "--enable-managed",
        table.to_str().unwrap(),
        Place::new().path.to_str().unwrap(),
    ]);
    assert!(output.status.code() == Some(1) && stderr(&output).contains("must be true or false"));
}

#[test]
fn one_bit_without_the_other_is_refused() {
    for word in [r"\x48", r"\x50"] {
        let (_folder, table) = table();
        stdout(&enable(&table, &["--yes"]));
        tamper(&table, &format!(r"m.replace(b'{word}\x80\x80\x01', b'')"));
        refused(&table, "only one of the Managed Blob reader and writer feature bits");
    }
}

#[test]
fn metadata_of_an_old_client_is_made_good() {
    let (_folder, table) = table();
    stdout(&enable(&table, &["--yes"]));
    tamper(&table, r"m.replace(b'\x48\x80\x80\x01', b'').replace(b'\x50\x80\x80\x01', b'')");
    assert_eq!(flags(&table), (0, 0));
    let output = enable(&table, &["--yes"]);
    assert!(stdout(&output).contains("Managed storage is on in version 3"), "{output:?}");
    assert_eq!(flags(&table), (FLAG_MANAGED, FLAG_MANAGED));
}

#[test]
fn a_table_that_cannot_have_it_says_why() {
    let folder = folder();
    let write = |name: &str, schema: &str, column: &str, version: &str| {
        let table = folder.path().join(name);
        run_python(&format!(
            "schema = pa.schema([{schema}])
lance.write_dataset(pa.table([{column}], schema=schema), '{}', data_storage_version='{version}')",
            table.display()
        ));
        table
    };
    let legacy = "pa.field('blob', pa.large_binary(), metadata={'lance-encoding:blob': 'true'})";
    let old = write("old", legacy, "pa.array([b'x'], pa.large_binary())", "2.1");
    refused(&old, "blob is stored in the format 2.1, and Managed storage needs 2.2");
    let none = write("none", "pa.field('id', pa.int64())", "pa.array([1])", "2.2");
    refused(&none, "has no Blob column");
    let output = enable(&folder.path().join("absent"), &["--yes"]);
    assert_eq!(output.status.code(), Some(3));
}

#[test]
fn a_mount_can_turn_it_on() {
    let (_folder, table) = table();
    let place = Place::new();
    let mut mount = place.command(&table);
    let output = mount.arg("--enable-managed").output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("cannot be undone"), "{}", stderr(&output));
    assert_eq!(fs::read_link(place.path.join("latest")).unwrap(), Path::new("2"));
    assert_eq!(flags(&table), (FLAG_MANAGED, FLAG_MANAGED));
    let again = Place::new();
    let output = again.command(&table).arg("-o").arg("enable_managed").output().unwrap();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    let both =
        run(&["mount", "--enable-managed", "--at", "1", table.to_str().unwrap(), "/nowhere"]);
    assert_eq!(both.status.code(), Some(2));
}
