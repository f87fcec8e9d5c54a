//! `lancefs verify`.

use std::collections::BTreeSet;
use std::process::Output;

use serde_json::Value;

use crate::harness::{Put, Tables, folder, run, run_python, stderr, stdout};

fn verified(name: &str, arguments: &[&str]) -> (Option<i32>, Value) {
    let table = Tables::shared().path(name);
    let output = run(&[&["verify", "--json", table.to_str().unwrap()], arguments].concat());
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let report = serde_json::from_str(&text);
    let report = report.unwrap_or_else(|e| panic!("{name}: {e} in {text:?} {}", stderr(&output)));
    (output.status.code(), report)
}

fn faults(report: &Value) -> BTreeSet<(u64, String)> {
    let fault = |fault: &Value| {
        assert!(fault["error"].as_str().is_some_and(|error| !error.is_empty()), "{fault}");
        (fault["row"].as_u64().unwrap(), fault["file"].as_str().unwrap().to_owned())
    };
    report["faults"].as_array().unwrap().iter().map(fault).collect()
}

/// The files of a table's newest version that must fail, and how many values it has in all and of
/// how many bytes.
fn wanted(name: &str, everything_allowed: bool) -> (BTreeSet<(u64, String)>, u64, u64) {
    let expected = Tables::shared().expected(name);
    let version = &expected["versions"][expected["latest"].to_string()];
    let (mut failing, mut values, mut bytes) = (BTreeSet::new(), 0, 0);
    for (row, index) in version["rows"].as_array().unwrap().iter().zip(0..) {
        for (file, cell) in row["files"].as_object().unwrap() {
            values += 1;
            let refused = cell["policy"] == "outside" && !everything_allowed;
            if cell["error"].is_string() || refused {
                failing.insert((index, file.clone()));
            } else {
                bytes += cell["size"].as_u64().unwrap();
            }
        }
    }
    (failing, values, bytes)
}

#[test]
fn verify_finds_what_is_broken_in_every_table_and_nothing_else() {
    let tables = Tables::shared();
    let mut broken = 0;
    for name in tables.names() {
        let newest =
            &tables.expected(name)["versions"][tables.expected(name)["latest"].to_string()];
        // Lists that a decoder fails on have no files, and a test of their own.
        if newest["error"] == true || !newest["rows"].is_array() || name == "panicking" {
            continue;
        }
        let arguments = tables.arguments(name, Put::Here);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let (code, report) = verified(name, &arguments);
        let (failing, values, bytes) = wanted(name, false);
        assert_eq!(faults(&report), failing, "{name}");
        assert_eq!(code, Some(if failing.is_empty() { 0 } else { 5 }), "{name}");
        let rows = newest["rows"].as_array().unwrap().len();
        assert_eq!(report["rows"], rows, "{name}");
        assert_eq!(report["values"], values, "{name}");
        assert_eq!(report["bytes"], bytes, "{name}");
        assert_eq!(report["version"], tables.expected(name)["latest"], "{name}");
        broken += usize::from(!failing.is_empty());
    }
    assert!(broken >= 4, "only {broken} tables are broken");
}

#[test]
fn verify_follows_what_the_policy_allows() {
    let (code, report) = verified("external", &["--allow-external", "*"]);
    let (failing, ..) = wanted("external", true);
    assert!(!failing.is_empty() && failing.len() < wanted("external", false).0.len());
    assert_eq!((code, faults(&report)), (Some(5), failing));
}

#[test]
fn verify_names_fields_that_no_decoder_reads() {
    let (code, report) = verified("panicking", &[]);
    assert_eq!(code, Some(5));
    let files: BTreeSet<_> = faults(&report);
    for row in 0..3 {
        for field in ["failing", "panicking", "panicking_too"] {
            assert!(files.contains(&(row, format!("{field}[0].bin"))), "{row}/{field}: {files:?}");
        }
        assert!(!files.contains(&(row, "blob.bin".to_owned())));
    }
}

#[test]
fn verify_prints_faults_and_a_summary() {
    let of = |name: &str| run(&["verify", Tables::shared().path(name).to_str().unwrap()]);
    let clean = of("scalar");
    assert_eq!(clean.status.code(), Some(0), "{}", stderr(&clean));
    let (_, values, bytes) = wanted("scalar", false);
    let text = stdout(&clean);
    let rows =
        Tables::shared().expected("scalar")["versions"]["1"]["rows"].as_array().unwrap().len();
    assert!(text.starts_with(&format!("version 1: {rows} rows, {values} values in ")), "{text}");
    assert!(text.ends_with(&format!(" objects, {bytes} bytes: 0 faults\n")), "{text}");
    let damaged = of("damaged");
    assert_eq!(damaged.status.code(), Some(5));
    let text = String::from_utf8(damaged.stdout).unwrap();
    let rows: Vec<_> = text.lines().map(|line| line.split_once(": ").unwrap().0).collect();
    let wanted = ["1/blob.bin", "2/blob.bin", "3/blob.bin", "4/blob.bin", "version 6"];
    assert_eq!(rows, wanted, "{text}");
    assert!(text.lines().last().unwrap().ends_with(": 4 faults"), "{text}");
}

#[test]
fn verify_decodes_every_column_if_asked() {
    let folder = folder();
    let table = folder.path().join("broken.lance");
    // Batches with dictionaries of their own: the writer joins them and runs out of keys.
    run_python(&format!(
        "schema = pa.schema([pa.field('id', pa.int64()), pa.field('label', pa.dictionary(pa.int8(), pa.string())), blob_field('blob')])
def part(p):
    words = pa.array([f'l{{(i * 7 + p * 13) % 100}}' for i in range(100)])
    label = pa.DictionaryArray.from_arrays(pa.array(range(100), pa.int8()), words)
    return pa.record_batch([pa.array(range(100)), label, blob_array([b'x'] * 100)], schema=schema)
def write(parts, mode): lance.write_dataset(pa.RecordBatchReader.from_batches(schema, parts), '{}', data_storage_version='2.2', mode=mode)
write([part(0)], 'create')
write([part(p) for p in range(20)], 'append')",
        table.display()
    ));
    let verify = |flags: &[&str]| run(&[&["verify", table.to_str().unwrap()], flags].concat());
    assert_eq!(verify(&[]).status.code(), Some(0), "the values are there");
    let output = verify(&["--columns"]);
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].starts_with("column label of fragment 1 (2000 rows from 100): "), "{text}");
    assert!(lines[0].contains("dictionary indices use 32 bits"), "{text}");
    assert!(lines[1].ends_with(": 1 faults"), "{text}");
    let output = verify(&["--columns", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let fault = &report["faults"][0];
    let found = (&fault["column"], &fault["fragment"], &fault["first_row"], &fault["rows"]);
    assert_eq!(found, (&"label".into(), &1.into(), &100.into(), &2000.into()), "{report}");
    let clean = run(&["verify", "--columns", Tables::shared().path("types").to_str().unwrap()]);
    assert_eq!(clean.status.code(), Some(0), "{}", stdout(&clean));
}

#[test]
fn verify_at_another_version() {
    let table = Tables::shared().path("damaged");
    let at = |reference: &str| run(&["verify", "--at", reference, table.to_str().unwrap()]);
    // Version 1 has the one row that is whole.
    let first = at("1");
    assert!(stdout(&first).starts_with("version 1: 1 rows, "), "{}", stdout(&first));
    assert_eq!(at("3").status.code(), Some(5));
    let refs = Tables::shared().path("refs");
    let tagged = run(&["verify", refs.to_str().unwrap(), "--at", "v1.0"]);
    assert!(stdout(&tagged).starts_with("version 2: "), "{}", stdout(&tagged));
}

#[test]
fn verify_of_what_cannot_be_opened() {
    let fails = |output: Output, code: i32, said: &str| {
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        assert!(stderr(&output).contains(said), "{}", stderr(&output));
        assert_eq!(output.stdout, b"");
    };
    fails(run(&["verify", "/no/such.lance"]), 3, "there is no Lance table at /no/such.lance");
    let damaged = Tables::shared().path("damaged");
    fails(run(&["verify", damaged.to_str().unwrap(), "--at", "99"]), 3, "\"99\"");
    let unopenable = Tables::shared().path("unopenable");
    for version in ["3", "4"] {
        let output = run(&["verify", unopenable.to_str().unwrap(), "--at", version]);
        fails(output, 1, &format!("version {version}"));
    }
}
