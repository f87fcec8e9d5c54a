//! A mount that can be written to, with a staging disk that outlives it.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::Value;
use tempfile::TempDir;

use super::{
    Mount, S3, Tables, copy_folder, eventually, folder, is_alive, kill, lancefs, run_python,
    stderr, xattr,
};

/// A writable mount of a table.
pub struct Desk {
    /// The mount.
    pub mount: Mount,
    /// The table's path or URI.
    pub table: String,
    arguments: Vec<String>,
    storage: Vec<String>,
    python_options: String,
    /// Kept for as long as the mount.
    _folder: TempDir,
    staging: PathBuf,
}

impl Desk {
    /// Mounts a table of this machine.
    pub fn new(table: &Path, arguments: &[&str]) -> Self {
        let folder = folder();
        let staging = folder.path().to_owned();
        Self::open(table.to_str().unwrap(), Vec::new(), "None", arguments, folder, staging)
    }

    /// Mounts a table of this machine with a staging disk that is there already.
    pub fn with_staging(table: &Path, staging: &Path, arguments: &[&str]) -> Self {
        let staging = staging.to_owned();
        Self::open(table.to_str().unwrap(), Vec::new(), "None", arguments, folder(), staging)
    }

    /// Mounts a table of the bucket.
    pub fn remote(s3: &S3, name: &str, arguments: &[&str]) -> Self {
        let folder = folder();
        let staging = folder.path().to_owned();
        let python_options = s3.python_options();
        Self::open(&s3.uri(name), s3.arguments(), &python_options, arguments, folder, staging)
    }

    /// Mounts a table of the bucket with a staging disk that is there already.
    pub fn remote_with_staging(s3: &S3, name: &str, staging: &Path, arguments: &[&str]) -> Self {
        let (options, staging) = (s3.python_options(), staging.to_owned());
        Self::open(&s3.uri(name), s3.arguments(), &options, arguments, folder(), staging)
    }

    fn open(
        table: &str,
        storage: Vec<String>,
        python_options: &str,
        arguments: &[&str],
        folder: TempDir,
        staging: PathBuf,
    ) -> Self {
        let arguments: Vec<String> =
            std::iter::once(format!("--staging-dir={}", staging.display()))
                .chain(storage.iter().cloned())
                .chain(arguments.iter().map(ToString::to_string))
                .collect();
        let mount = Mount::with(table, &all(&arguments));
        let (table, python_options) = (table.to_owned(), python_options.to_owned());
        let desk =
            Self { mount, table, arguments, storage, python_options, _folder: folder, staging };
        let staging = desk.mount.status()["staging"].clone();
        assert_eq!(staging["enabled"], true, "{staging}");
        desk
    }

    /// Mounts again, with the same staging disk.
    pub fn start(&self) {
        self.mount.start(&self.table, &all(&self.arguments));
    }

    /// Mounts again with a daemon that kills itself at a step (`src/staging/crash.rs`).
    pub fn start_to_die(&self, step: &str) {
        let variables = [("_LANCEFS_CRASH", step)];
        self.mount.start_with(&self.table, &all(&self.arguments), &variables);
    }

    /// Kills the daemon.
    pub fn kill(&self, pid: i32) {
        kill(pid, rustix::process::Signal::KILL);
        eventually("the daemon is dead", || !is_alive(pid));
    }

    /// A path beneath `staging/`.
    pub fn staged(&self, path: &str) -> PathBuf {
        self.mount.at("staging").join(path)
    }

    /// Makes an entry of a batch of files by name.
    pub fn entry(&self, path: &str, files: &[(&str, &[u8])]) {
        let entry = self.staged(path);
        std::fs::create_dir_all(&entry).unwrap();
        for (name, bytes) in files {
            std::fs::write(entry.join(name), bytes).unwrap();
        }
    }

    /// Commits a batch by moving it.
    pub fn commit(&self, batch: &str) -> std::io::Result<()> {
        std::fs::rename(self.staged(batch), self.mount.at("commit").join(batch))
    }

    /// Commits a batch, which must succeed, and gives the newest version afterwards.
    pub fn must_commit(&self, batch: &str) -> u64 {
        if let Err(error) = self.commit(batch) {
            panic!("commit {batch}: {error}: {}\n{}", self.error(batch), self.mount.log());
        }
        self.newest()
    }

    /// Why the last commit of a batch failed.
    pub fn error(&self, batch: &str) -> String {
        xattr(&self.staged(batch), "user.lancefs.error").unwrap_or_default()
    }

    /// The newest version.
    pub fn newest(&self) -> u64 {
        let link = std::fs::read_link(self.mount.at("latest")).unwrap();
        link.to_str().unwrap().parse().unwrap()
    }

    /// How many rows the newest version has.
    pub fn rows(&self) -> u64 {
        let about = std::fs::read(self.mount.at("latest/.version.json")).unwrap();
        let about: Value = serde_json::from_slice(&about).unwrap();
        about["rows"].as_u64().unwrap()
    }

    /// The text of a row's `row.json`.
    pub fn row(&self, row: u64) -> Value {
        let text = std::fs::read(self.mount.at(format!("latest/{row}/row.json"))).unwrap();
        serde_json::from_slice(&text).unwrap()
    }

    /// The lines of `.lancefs/commits.jsonl`.
    pub fn commits(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.mount.at(".lancefs/commits.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The table's folder on the staging disk.
    pub fn folder(&self) -> PathBuf {
        let entries = std::fs::read_dir(&self.staging).unwrap();
        let mut folders = entries
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.is_dir() && !path.ends_with("pins"));
        let folder = folders.next().expect("a folder for the table");
        assert!(folders.next().is_none(), "one folder for one table");
        folder
    }

    /// What the staging disk still has of batches that are gone; nothing once all is settled.
    pub fn left_over(&self) -> Vec<PathBuf> {
        let below = ["tree", "journal", "gone"].map(|name| self.folder().join(name));
        let entries = below.iter().flat_map(|path| std::fs::read_dir(path).into_iter().flatten());
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    /// Waits until the staging disk has nothing of any batch.
    pub fn settles(&self) {
        eventually("staging is settled", || self.left_over().is_empty());
    }

    /// Checks every value of the newest version against its object.
    pub fn verify(&self) {
        let mut command = lancefs(["verify".as_ref(), self.table.as_ref()]);
        let output = command.args(["--allow-external", "*"]).args(&self.storage).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}{}\n{}", stderr(&output), self.mount.log());
    }

    /// Runs a piece of Python with the table's newest version as `ds`.
    pub fn python(&self, script: &str) -> String {
        run_python(&format!(
            "options = {}
def newest(): return lance.dataset('{}', storage_options=options)
ds = newest()
{script}",
            self.python_options, self.table
        ))
    }
}

fn all(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}

/// Turns Managed payloads on in tables of this machine, by pylance.
pub fn enable(tables: &[PathBuf]) {
    run_python(&format!(
        "for table in {tables:?}: lance.dataset(table).update_schema_metadata({{'lance.blob.managed': 'true'}})"
    ));
}

/// Makes an empty table that takes Managed payloads: `id`, the Blob `blob`, the list of Blobs
/// `frames`.
pub fn photos(table: &Path) {
    static TEMPLATE: OnceLock<PathBuf> = OnceLock::new();
    let template = TEMPLATE.get_or_init(|| {
        let template = Tables::shared().folder.join("template-of-photos");
        make_photos(&template);
        template
    });
    copy_folder(template, table);
}

fn make_photos(table: &Path) {
    run_python(&format!(
        "schema = pa.schema([pa.field('id', pa.int64()), blob_field('blob'),
    pa.field('frames', pa.list_(blob_field('item')))], metadata={{'lance.blob.managed': 'true'}})
lance.write_dataset(pa.RecordBatchReader.from_batches(schema, []), '{}', data_storage_version='2.2')",
        table.display()
    ));
}
