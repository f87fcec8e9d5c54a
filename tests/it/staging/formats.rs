//! Tables that are saved into although something about them is old, odd or large: files of an older
//! format, columns without a usable name, zones that nobody knows, long rows.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::users::copy_of_the_program;
use crate::harness::{Desk, Place, errno, folder, run, run_python, stderr, stdout, xattr};

const EUCLEAN: i32 = 117;

/// A table made by a piece of Python that has its path in `path`.
fn table(script: &str) -> (TempDir, PathBuf) {
    let folder = folder();
    let table = folder.path().join("t.lance");
    run_python(&format!("path = '{}'\n{script}", table.display()));
    (folder, table)
}

fn copy(desk: &Desk, row: u64, to: &str) {
    let row = desk.mount.at(format!("latest/{row}"));
    let copied = Command::new("cp").arg("-r").arg(row).arg(desk.staged(to)).status();
    assert!(copied.unwrap().success());
}

#[test]
fn a_table_with_files_of_an_older_format_is_saved_into() {
    for old in ["2.0", "2.1"] {
        let (_folder, table) = table(&format!(
            "marked = pa.schema([pa.field('id', pa.int64()), pa.field('blob', pa.large_binary(), metadata={{'lance-encoding:blob': 'true'}})])
lance.write_dataset(pa.table({{'id': [1, 2], 'blob': [b'old', None]}}, schema=marked), path, data_storage_version='{old}')
new = pa.schema([pa.field('id', pa.int64()), blob_field('blob')])
lance.write_dataset(pa.table([[3], blob_array([b'new'])], schema=new), path, mode='append', data_storage_version='2.2')"
        ));
        stdout(&run(&["table", "enable-managed", "--yes", table.to_str().unwrap()]));
        let desk = Desk::new(&table, &[]);
        desk.entry("b/added", &[("blob.bin", b"saved"), ("row.json", b"{\"id\": 4}")]);
        desk.entry("b/@1", &[("blob.bin", b"no null any more")]);
        copy(&desk, 0, "b/copied");
        desk.must_commit("b");
        desk.verify();
        let read = desk.python(
            "t = ds.to_table(blob_handling='all_binary')
print(list(zip(t['id'].to_pylist(), t['blob'].to_pylist())))
print([[(f.file_major_version, f.file_minor_version) for f in fragment.metadata.files] for fragment in ds.get_fragments()])",
        );
        let minor = &old[2..];
        assert_eq!(
            read,
            format!(
                "[(1, b'old'), (2, b'no null any more'), (3, b'new'), (4, b'saved'), (1, b'old')]
[[(2, {minor}), (2, 2)], [(2, 2)], [(2, 2)]]\n"
            )
        );
        let shown = |row| fs::read(desk.mount.at(format!("latest/{row}/blob.bin"))).unwrap();
        assert_eq!((shown(0), shown(1)), (b"old".to_vec(), b"no null any more".to_vec()));
    }
}

#[test]
fn a_column_that_the_library_does_not_find_by_name_is_a_fault_and_not_a_failure() {
    for name in ["", "a`b"] {
        let (_folder, table) = table(&format!(
            "schema = pa.schema([blob_field('blob'), pa.field('{name}', pa.int64())], metadata={{'lance.blob.managed': 'true'}})
lance.write_dataset(pa.table([blob_array([b'x', b'y']), [1, 2]], schema=schema), path, data_storage_version='2.2')"
        ));
        let desk = Desk::new(&table, &[]);
        desk.entry("b/new", &[("blob.bin", b"z")]);
        assert_eq!(errno(desk.commit("b")), EUCLEAN);
        let said = desk.error("b");
        let wanted = format!("b/new: the table has a column named {name:?}");
        assert!(said.contains(&wanted) && said.contains("rename it"), "{said}");
        assert_eq!(desk.newest(), 1);
        // Rows that are there are another matter.
        fs::remove_dir_all(desk.staged("b")).unwrap();
        desk.entry("c/@0", &[("blob.bin", b"other")]);
        desk.entry("c/@1", &[(".delete", b"")]);
        desk.must_commit("c");
        assert_eq!(fs::read(desk.mount.at("latest/0/blob.bin")).unwrap(), b"other");
        assert_eq!((desk.rows(), desk.row(0)[name].clone()), (1, json!(1)));
    }
}

#[test]
fn a_time_is_the_same_instant_in_whatever_zone() {
    const ZONES: [&str; 7] = [
        "utc",
        "Z",
        "UTC+2",
        "W. Europe Standard Time",
        "Africa/Monrovia",
        "Europe/Berlin",
        "+05:30",
    ];
    // 1960, when Monrovia was 44 minutes and 30 seconds behind.
    const SECONDS: i64 = -315_619_170;
    let (_folder, table) = table(&format!(
        "zones = {ZONES:?}
fields = [pa.field(zone, pa.timestamp('s', tz=zone)) for zone in zones]
schema = pa.schema([blob_field('blob'), *fields], metadata={{'lance.blob.managed': 'true'}})
columns = [pa.array([{SECONDS}], pa.int64()).cast(field.type) for field in fields]
schema = schema.set(4, pa.field('windows', fields[3].type))
lance.write_dataset(pa.table([blob_array([b'x']), *columns], schema=schema), path, data_storage_version='2.2')"
    ));
    let desk = Desk::new(&table, &[]);
    let shown = desk.row(0);
    let parsed = run_python(&format!(
        "import datetime, json
row = json.loads({:?})
print([v if isinstance(v, int) else int(datetime.datetime.fromisoformat(v).timestamp()) for k, v in row.items() if k != 'blob'])",
        shown.to_string()
    ));
    assert_eq!(parsed.trim(), format!("{:?}", [SECONDS; ZONES.len()]), "{shown}");
    assert_eq!(shown["Africa/Monrovia"], "1960-01-01T00:00:30Z");
    assert_eq!(shown["Europe/Berlin"], "1960-01-01T01:00:30+01:00");
    fs::create_dir(desk.staged("b")).unwrap();
    copy(&desk, 0, "b/numbers");
    let text = Value::Object(
        shown
            .as_object()
            .unwrap()
            .keys()
            .map(|key| (key.clone(), json!("1960-01-01T00:00:30Z")))
            .collect(),
    );
    let text = text.to_string().replace("\"blob\":\"1960-01-01T00:00:30Z\",", "");
    desk.entry("b/texts", &[("blob.bin", b"y"), ("row.json", text.as_bytes())]);
    desk.must_commit("b");
    let read = desk.python(
        "print({v for c in ds.to_table().drop_columns(['blob']).columns for v in c.cast(pa.int64()).to_pylist()})",
    );
    assert_eq!(read.trim(), format!("{{{SECONDS}}}"));
    assert_eq!(
        (desk.row(1).to_string(), desk.row(2).to_string()),
        (shown.to_string(), shown.to_string())
    );
}

#[test]
fn a_long_row_that_is_shown_can_be_staged() {
    let (_folder, table) = table(
        "schema = pa.schema([blob_field('blob'), pa.field('v', pa.list_(pa.float32())), pa.field('text', pa.string())], metadata={'lance.blob.managed': 'true'})
rows = [[i / 7 for i in range(1_500_000)]]
lance.write_dataset(pa.table([blob_array([b'x']), rows, ['t' * 5_000_000]], schema=schema), path, data_storage_version='2.2')",
    );
    let desk = Desk::new(&table, &[]);
    assert!(fs::metadata(desk.mount.at("latest/0/row.json")).unwrap().len() > 20_000_000);
    fs::create_dir(desk.staged("b")).unwrap();
    copy(&desk, 0, "b/copied");
    desk.must_commit("b");
    let same = desk.python("t = ds.to_table(columns=['v', 'text'])\nprint(t.slice(0, 1).equals(t.slice(1, 1)), len(t))");
    assert_eq!(same.trim(), "True 2");
}

/// Runs as root in a mount namespace of its own, where the table is read-only.
const READ_ONLY: &str = r#"
set -eu
mount --bind table.lance table.lance
mount -o remount,bind,ro table.lance
trap './lancefs unmount --lazy mnt' EXIT
./lancefs mount --log-file=mnt.log --staging-dir=staging table.lance mnt
cat mnt/latest/0/blob.bin
mkdir mnt/staging/b 2>&1 || true
"$LANCEFS_TEST_PYTHON" -c 'import os; print(os.getxattr("mnt/staging", "user.lancefs.error").decode())'
./lancefs table enable-managed --yes table.lance 2>&1 || true
"#;

#[test]
fn a_table_on_a_disk_that_is_read_only_offers_no_staging() {
    let place = Place::new();
    let folder: &Path = place.folder.path();
    copy_of_the_program(folder);
    crate::harness::write_blobs(&folder.join("table.lance"), "create", "[b'shown. ']", "");
    crate::harness::enable(&[folder.join("table.lance")]);
    let mut command = Command::new("unshare");
    command.args(["--mount", "bash", "-c", READ_ONLY]).current_dir(folder);
    let output = command.output().unwrap();
    let said = stdout(&output);
    assert!(said.starts_with("shown. mkdir: "), "{said}{}", stderr(&output));
    assert!(said.contains("Read-only file system"), "{said}");
    assert_eq!(said.matches("is on a file system that is mounted read-only").count(), 2, "{said}");
}

#[test]
fn a_file_of_this_machine_may_be_named_with_one_slash() {
    let (folder, table) = table(
        "schema = pa.schema([blob_field('blob')], metadata={'lance.blob.managed': 'true'})
lance.write_dataset(pa.table([blob_array([b'x'])], schema=schema), path, data_storage_version='2.2')",
    );
    let object = folder.path().join("object");
    fs::write(&object, b"of somebody else").unwrap();
    let allowed = format!("file:{}", folder.path().display());
    let desk =
        Desk::new(Path::new(&format!("file:{}", table.display())), &["--allow-external", &allowed]);
    fs::create_dir_all(desk.staged("b/e")).unwrap();
    let link = format!("file:{}", object.display());
    std::os::unix::fs::symlink(&link, desk.staged("b/e/blob.bin")).unwrap();
    desk.must_commit("b");
    let value = desk.mount.at("latest/1/blob.bin");
    assert_eq!(fs::read(&value).unwrap(), b"of somebody else");
    assert_eq!(
        xattr(&value, "user.lancefs.object").unwrap(),
        format!("file://{}", object.display())
    );
}
