//! Arrows between modules point down only: reads the `use crate::` lines.

use std::path::Path;

/// The layers, bottom first; modules of one layer may use each other.
const LAYERS: [&[&str]; 6] = [
    &["units", "name", "media", "error", "private", "config", "telemetry"],
    &["store", "tree"],
    &["table", "staging"],
    &["publish", "maintain"],
    &["fs"],
    &["fuse", "cli"],
];

fn level(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

#[test]
fn arrows_point_down() {
    let mut upward = Vec::new();
    let mut seen = 0;
    for entry in walkdir::WalkDir::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")) {
        let entry = entry.unwrap();
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let module = module_of(path);
        let Some(from) = level(&module) else {
            assert!(["lib", "main"].contains(&module.as_str()), "{module} is in no layer");
            continue;
        };
        for (number, line) in std::fs::read_to_string(path).unwrap().lines().enumerate() {
            for used in line.split("crate::").skip(1).filter_map(first_word) {
                let Some(to) = level(used) else { continue };
                seen += 1;
                if to > from {
                    upward.push(format!("{}:{}: {line}", path.display(), number + 1));
                }
            }
        }
    }
    assert!(upward.is_empty(), "arrows that point up:\n{}", upward.join("\n"));
    assert!(seen > 50, "only {seen} uses were read");
}

#[test]
fn only_the_table_knows_lance_and_arrow_and_only_the_adapter_knows_fuser() {
    for (library, homes) in [
        ("lance::", &["table", "maintain"][..]),
        ("arrow_array::", &["table", "maintain"]),
        ("fuser::", &["fuse", "cli"]),
        ("clap::", &["cli"]),
    ] {
        for entry in walkdir::WalkDir::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")) {
            let entry = entry.unwrap();
            if !entry.file_type().is_file() || homes.contains(&module_of(entry.path()).as_str()) {
                continue;
            }
            let text = std::fs::read_to_string(entry.path()).unwrap();
            let uses =
                text.lines().any(|line| line.trim_start().starts_with(&format!("use {library}")));
            assert!(!uses, "{} uses {library}", entry.path().display());
        }
    }
}

#[test]
fn no_file_is_over_500_lines() {
    for entry in walkdir::WalkDir::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")) {
        let entry = entry.unwrap();
        if entry.file_type().is_file() {
            let lines = std::fs::read_to_string(entry.path()).unwrap().lines().count();
            assert!(lines <= 500, "{} has {lines} lines", entry.path().display());
        }
    }
}

fn module_of(path: &Path) -> String {
    let below = path.strip_prefix(concat!(env!("CARGO_MANIFEST_DIR"), "/src")).unwrap();
    let first = below.components().next().unwrap().as_os_str().to_str().unwrap();
    first.trim_end_matches(".rs").to_owned()
}

fn first_word(text: &str) -> Option<&str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').next().filter(|word| !word.is_empty())
}
