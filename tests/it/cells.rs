//! Every cell of every table that the generator writes, against its manifest: size, SHA-256, kind,
//! absence, `row.json`, in every version, tag and branch.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Map, Value, json};

use crate::harness::{Mount, Put, S3, Tables, copy_folder, errno, folder, names, sha256, xattr};

#[derive(Default)]
struct Count {
    cells: AtomicUsize,
    rows: AtomicUsize,
    versions: AtomicUsize,
    faults: Mutex<Vec<String>>,
}

impl Count {
    fn check(&self, holds: bool, fault: impl FnOnce() -> String) {
        if !holds {
            self.faults.lock().unwrap().push(fault());
        }
    }
}

/// Whether the mount allows every External target.
#[derive(Clone, Copy, PartialEq, Eq)]
enum External {
    Default,
    Everything,
}

#[test]
fn every_cell_of_every_table_is_shown_as_written() {
    let tables = Tables::shared();
    let count = Count::default();
    let next = AtomicUsize::new(0);
    let all = tables.names();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(name) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    check_table(tables, name, External::Default, &count);
                }
            });
        }
    });
    let faults = count.faults.into_inner().unwrap();
    let (cells, rows, versions) =
        (count.cells.into_inner(), count.rows.into_inner(), count.versions.into_inner());
    println!("{} tables, {versions} versions, {rows} rows, {cells} cells", all.len());
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    assert!(cells > 2900, "the generator wrote {cells} cells only");
}

#[test]
fn allow_external_shows_what_the_policy_refused() {
    let count = Count::default();
    check_table(Tables::shared(), "external", External::Everything, &count);
    let faults = count.faults.into_inner().unwrap();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_cell_of_every_table_is_shown_as_written_from_an_object_store() {
    let (tables, s3, count) = (Tables::shared(), S3::new(&[]), Count::default());
    for name in tables.names() {
        // Files of this machine that a table beside the bucket names are where they were.
        s3.put(&tables.path(name), name);
        let arguments = tables.arguments(name, Put::InABucket);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        check_mount(&s3.mount(name, &arguments), tables, name, External::Default, &count);
    }
    let faults = count.faults.into_inner().unwrap();
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

fn check_table(tables: &Tables, name: &str, external: External, count: &Count) {
    let mount = match external {
        External::Default => tables.mount(name),
        External::Everything => Mount::with(tables.path(name), &["--allow-external", "*"]),
    };
    check_mount(&mount, tables, name, external, count);
}

fn check_mount(mount: &Mount, tables: &Tables, name: &str, external: External, count: &Count) {
    let expected = tables.expected(name);
    let latest = expected["latest"].as_u64().unwrap().to_string();
    let link = std::fs::read_link(mount.at("latest")).unwrap();
    count.check(link.as_os_str() == latest.as_str(), || {
        format!("{name}: latest -> {}", link.display())
    });
    let shown: Vec<_> =
        names(&mount.path).into_iter().filter(|n| n.bytes().all(|b| b.is_ascii_digit())).collect();
    let versions = expected["versions"].as_object().unwrap();
    let mut wanted: Vec<_> = versions.keys().cloned().collect();
    wanted.sort();
    count.check(shown == wanted, || format!("{name}: versions {shown:?}, not {wanted:?}"));
    for (number, version) in versions {
        check_version(&format!("{name}/{number}"), &mount.at(number), version, external, count);
    }
    for (tag, target) in expected["tags"].as_object().unwrap() {
        let link = std::fs::read_link(mount.at("tags").join(tag))
            .map(|l| l.to_string_lossy().into_owned());
        let wanted = match target["branch"].as_str() {
            None => format!("../{}", target["version"]),
            Some(branch) => {
                format!("../branches/{}/{}", branch.replace('/', "%2F"), target["version"])
            }
        };
        count.check(link.as_ref().is_ok_and(|l| *l == wanted), || {
            format!("{name}: tag {tag} -> {link:?}, not {wanted}")
        });
        count.check(names(&mount.at("tags")).contains(tag), || {
            format!("{name}: tag {tag} is not listed")
        });
    }
    for (branch, content) in expected["branches"].as_object().unwrap() {
        let shown = branch.replace('/', "%2F");
        count.check(names(&mount.at("branches")).contains(&shown), || {
            format!("{name}: branch {branch} is not listed")
        });
        let folder = mount.at("branches").join(&shown);
        let link = std::fs::read_link(folder.join("latest")).unwrap();
        count.check(link.to_string_lossy() == content["latest"].to_string(), || {
            format!("{name}: branch {branch} latest {}", link.display())
        });
        for (number, version) in content["versions"].as_object().unwrap() {
            check_version(
                &format!("{name}@{branch}/{number}"),
                &folder.join(number),
                version,
                external,
                count,
            );
        }
    }
}

fn check_version(place: &str, folder: &Path, version: &Value, external: External, count: &Count) {
    count.versions.fetch_add(1, Ordering::Relaxed);
    if version["error"] == true {
        count.check(std::fs::read_dir(folder).is_err(), || format!("{place}: opens"));
        return;
    }
    let Some(rows) = version["rows"].as_array() else { return };
    let mut shown: Vec<usize> = names(folder).iter().filter_map(|n| n.parse().ok()).collect();
    shown.sort_unstable();
    count.check(shown.iter().copied().eq(0..rows.len()), || {
        format!("{place}: rows {shown:?}, not 0..{}", rows.len())
    });
    let about: Value =
        serde_json::from_slice(&std::fs::read(folder.join(".version.json")).unwrap()).unwrap();
    count.check(about["rows"] == rows.len(), || {
        format!("{place}: .version.json says {} rows", about["rows"])
    });
    for (index, row) in rows.iter().enumerate() {
        count.rows.fetch_add(1, Ordering::Relaxed);
        check_row(
            &format!("{place}/{index}"),
            &folder.join(index.to_string()),
            row,
            external,
            count,
        );
    }
}

fn check_row(place: &str, folder: &Path, row: &Value, external: External, count: &Count) {
    let files = row["files"].as_object().unwrap();
    let mut wanted: Vec<_> = files
        .iter()
        .filter(|(_, cell)| cell["listed"] != false)
        .map(|(file, _)| file.clone())
        .collect();
    wanted.push("row.json".to_owned());
    wanted.sort();
    let shown = names(folder);
    count.check(shown == wanted, || format!("{place}: files {shown:?}, not {wanted:?}"));
    for (file, cell) in files {
        count.cells.fetch_add(1, Ordering::Relaxed);
        check_cell(&format!("{place}/{file}"), &folder.join(file), cell, external, count);
    }
    if row["unmade"] == true {
        let read = std::fs::read(folder.join("row.json"));
        let is_eio = read.as_ref().is_err_and(|e| e.raw_os_error() == Some(5));
        count.check(is_eio, || format!("{place}/row.json: {read:?}, not EIO"));
        return;
    }
    let text =
        std::fs::read(folder.join("row.json")).unwrap_or_else(|e| panic!("{place}/row.json: {e}"));
    let size = std::fs::metadata(folder.join("row.json")).unwrap().len();
    count.check(usize::try_from(size) == Ok(text.len()), || {
        format!("{place}/row.json: size {size}, {} bytes", text.len())
    });
    let json: Value =
        serde_json::from_slice(&text).unwrap_or_else(|e| panic!("{place}/row.json: {e}"));
    count.check(same(&row["json"], &json), || {
        format!("{place}/row.json: {json}, not {}", row["json"])
    });
}

fn check_cell(place: &str, path: &Path, cell: &Value, external: External, count: &Count) {
    let refused = cell["policy"] == "outside" && external == External::Default;
    let wanted_error = if refused { Some("EACCES") } else { cell["error"].as_str() };
    let read = std::fs::read(path);
    if let Some(wanted) = wanted_error {
        let number = match wanted {
            "EACCES" if external == External::Default => 13,
            _ => 5,
        };
        match read {
            Ok(bytes) => {
                count.check(false, || format!("{place}: {} bytes, not {wanted}", bytes.len()));
            }
            Err(e) => count
                .check(e.raw_os_error() == Some(number), || format!("{place}: {e}, not {wanted}")),
        }
        return;
    }
    let bytes = match read {
        Ok(bytes) => bytes,
        Err(e) => {
            let why = xattr(path, "user.lancefs.error").unwrap_or_default();
            return count.check(false, || format!("{place}: {e} {why}"));
        }
    };
    let size = std::fs::metadata(path).unwrap().len();
    count.check(cell["size"] == size, || format!("{place}: size {size}, not {}", cell["size"]));
    count.check(cell["sha256"] == sha256(&bytes), || {
        format!("{place}: other bytes ({})", bytes.len())
    });
    let kind = xattr(path, "user.lancefs.kind");
    count.check(kind.as_deref() == Ok(cell["kind"].as_str().unwrap_or_default()), || {
        format!("{place}: kind {kind:?}, not {}", cell["kind"])
    });
}

/// Whether JSON is as wanted, where `{"any": true}` stands for anything.
fn same(wanted: &Value, found: &Value) -> bool {
    let any = Map::from_iter([("any".to_owned(), Value::Bool(true))]);
    match (wanted, found) {
        (Value::Object(wanted), _) if *wanted == any => true,
        (Value::Object(wanted), Value::Object(found)) => {
            wanted.keys().eq(found.keys())
                && wanted.iter().all(|(key, value)| same(value, &found[key]))
        }
        (Value::Array(wanted), Value::Array(found)) => {
            wanted.len() == found.len() && wanted.iter().zip(found).all(|(w, f)| same(w, f))
        }
        (Value::Number(wanted), Value::Number(found)) => {
            wanted == found
                || (wanted.as_f64() == found.as_f64() && (wanted.is_f64() || found.is_f64()))
        }
        _ => wanted == found,
    }
}

#[test]
fn a_row_that_is_not_there_is_enoent() {
    let mount = Mount::new(Tables::shared().path("scalar"));
    for path in [
        "latest/15",
        "latest/015",
        "latest/-1",
        "latest/x",
        "2",
        "01",
        "latest/0/nothing.bin",
        "latest/0/blob",
        "latest/3/blob.bin",
    ] {
        assert_eq!(errno(std::fs::metadata(mount.at(path))), 2, "{path}");
    }
}

/// `tests/tables/released/README.md` says what is in it.
#[test]
fn row_json_names_what_is_listed_where_the_files_say_two_things() {
    let (folder, name) = (folder(), "null_in_struct_8_0_1.lance");
    let table = folder.path().join(name);
    let released = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tables/released").join(name);
    copy_folder(&released, &table);
    let mount = Mount::new(&table);
    for (row, text, named) in [(0, "a", true), (1, "b", false), (2, "c", true)] {
        let row = mount.at(format!("1/{row}"));
        assert_eq!(names(&row).contains(&"info.thumb.bin".to_owned()), named, "{text}");
        let shown: Value =
            serde_json::from_slice(&std::fs::read(row.join("row.json")).unwrap()).unwrap();
        let thumb = if named { json!("info.thumb.bin") } else { Value::Null };
        assert_eq!(shown["info"], json!({ "n": text, "thumb": thumb }));
    }
}
