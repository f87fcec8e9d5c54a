//! `staging/`: files that are to become rows, and what their commit makes of them.

mod batches;
mod commits;
mod crash;
mod dictionaries;
mod faults;
mod formats;
mod indices;
mod leftovers;
mod model;
mod names;
mod pairs;
mod pins;
mod private;
mod races;
mod reference;
mod refused;
mod roundtrip;
mod suites;
mod tree;
mod unclear;
mod unfinished;
mod users;
mod waiting;

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::harness::{Mount, Tables, folder};

/// A mount of a Managed table with a staging folder of its own.
struct Staged {
    mount: Mount,
    /// What `--staging-dir` names; a test may look behind the mount.
    disk: TempDir,
    table: PathBuf,
    arguments: Vec<String>,
}

impl Staged {
    fn new() -> Self {
        Self::with(&[])
    }

    fn with(arguments: &[&str]) -> Self {
        let disk = folder();
        let table = Tables::shared().path("managed");
        let mut all = vec!["--staging-dir".to_owned(), disk.path().to_str().unwrap().to_owned()];
        all.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        let borrowed: Vec<&str> = all.iter().map(String::as_str).collect();
        let mount = Mount::with(&table, &borrowed);
        Self { mount, disk, table, arguments: all }
    }

    /// A path in `staging/`.
    fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        self.mount.at("staging").join(path)
    }

    /// A new batch.
    fn batch(&self, name: &str) -> PathBuf {
        let path = self.at(name);
        std::fs::create_dir(&path).unwrap();
        path
    }

    /// The table's own staging folder.
    fn folder(&self) -> PathBuf {
        let status = self.mount.status();
        status["staging"]["folder"].as_str().unwrap().into()
    }

    fn mount_again(&self) {
        let borrowed: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        self.mount.start(&self.table, &borrowed);
    }
}
