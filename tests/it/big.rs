//! Tables of a million and of ten million rows: what listing and looking cost does not depend on
//! the size. The figures are printed; the slow tier runs these.

use std::os::unix::fs::MetadataExt as _;
use std::time::Instant;

use crate::harness::{Mount, Tables, folder};

fn is_slow_tier() -> bool {
    std::env::var_os("LANCEFS_TEST_SLOW").is_some()
}

fn table_of(rows: &str, folder: &std::path::Path) -> std::path::PathBuf {
    Tables::make(folder, &["--only", "million", "--rows", rows]).path("million")
}

#[test]
fn a_walk_over_a_million_rows_keeps_memory_flat() {
    if !is_slow_tier() {
        return;
    }
    let folder = folder();
    let mount = Mount::new(table_of("1000000", folder.path()));
    let files = |rows: std::ops::Range<u64>| -> usize {
        rows.map(|row| std::fs::read_dir(mount.at(format!("1/{row}"))).unwrap().count()).sum()
    };
    assert_eq!(files(0..100_000), 200_000);
    let early = mount.peak();
    let started = Instant::now();
    let find = std::process::Command::new("find")
        .arg(mount.at("1"))
        .args(["-type", "f"])
        .output()
        .unwrap();
    let seconds = started.elapsed().as_secs_f64();
    assert!(find.status.success());
    let found = find.stdout.split(|byte| *byte == b'\n').count() - 1;
    assert_eq!(found, 2 * 1_000_000 + 1, "a value and a row.json for each row, and .version.json");
    let late = mount.peak();
    println!(
        "find over 1,000,000 rows: {seconds:.1} s, peak {late} KiB, after a tenth {early} KiB"
    );
    // The cache of descriptors is bounded by 64 MiB; nothing else may grow.
    assert!(late < early + (80 << 10), "{early} KiB after a tenth, {late} KiB at the end");
}

#[test]
fn looking_at_one_of_ten_million_rows_costs_one_page() {
    if !is_slow_tier() {
        return;
    }
    let folder = folder();
    let table = table_of("10000000", folder.path());
    let started = Instant::now();
    let mount = Mount::new(&table);
    let mounted = started.elapsed();
    let before = mount.peak();
    let started = Instant::now();
    let meta = std::fs::metadata(mount.at("1/7654321/blob.bin")).unwrap();
    let seen = started.elapsed();
    println!(
        "10,000,000 rows: mounted in {mounted:?}, one file seen {seen:?} later, peak {} KiB",
        mount.peak()
    );
    assert!(meta.size() > 0 && meta.ino() != 0);
    let first: Vec<_> = std::fs::read_dir(mount.at("1")).unwrap().take(1000).collect();
    assert_eq!(first.len(), 1000);
    assert!(mount.peak() < before + (64 << 10), "{before} KiB, then {} KiB", mount.peak());
}
