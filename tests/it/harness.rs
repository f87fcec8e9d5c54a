//! Tables and mounts for tests. A mount is taken away when it is dropped, also by a failing test.

mod desk;
mod s3;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{LazyLock, OnceLock};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

pub use desk::{Desk, enable, photos};
pub use s3::{ACCESS_KEY, S3, SECRET_KEY};

/// The program under test; the slow tier names the release build.
pub static LANCEFS: LazyLock<String> = LazyLock::new(|| {
    let built = || env!("CARGO_BIN_EXE_lancefs").to_owned();
    std::env::var("LANCEFS_TEST_BINARY").unwrap_or_else(|_| built())
});

/// A folder for one test, beneath `TMPDIR`.
pub fn folder() -> TempDir {
    tempfile::Builder::new().prefix("lancefs-test-").tempdir().unwrap()
}

/// The Python of the tests.
pub fn python() -> Command {
    let python = std::env::var_os("LANCEFS_TEST_PYTHON")
        .expect("LANCEFS_TEST_PYTHON is not set: run scripts/test, or LANCEFS_TEST_PYTHON=$(scripts/venv) cargo test");
    let mut command = Command::new(python);
    // The decoder's panics that some tables provoke in pylance are no news.
    command.env("RUST_BACKTRACE", "0");
    command
}

/// Runs a piece of Python with `lance` and `pa` at hand, and gives what it printed.
pub fn run_python(script: &str) -> String {
    let script =
        format!("import lance, pyarrow as pa\nfrom lance import blob_array, blob_field\n{script}");
    let output = python().arg("-c").arg(&script).output().unwrap();
    assert!(output.status.success(), "{script}\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs lancefs on a terminal of its own, types a line when it asks, and gives its exit code and all
/// that stood there.
pub fn on_terminal(arguments: &[&str], prompt: &str, line: &str) -> String {
    let words: Vec<String> = arguments.iter().map(|word| format!(", '{word}'")).collect();
    run_python(&format!(
        "import os, pty
pid, terminal = pty.fork()
if pid == 0:
    os.execv('{}', ['lancefs'{}])
said = b''
while b'{prompt}' not in said:
    said += os.read(terminal, 4096)
os.write(terminal, bytes({:?}))
try:
    while piece := os.read(terminal, 4096):
        said += piece
except OSError:
    pass
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said)",
        *LANCEFS,
        words.concat(),
        line.as_bytes()
    ))
}

/// The most memory that a process has had at once, in KiB; none where it has ended.
pub fn peak(pid: i32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Tables that pylance wrote, with what a mount of each must show.
pub struct Tables {
    /// Where they are.
    pub folder: PathBuf,
    manifest: Value,
}

impl Tables {
    /// The tables of the default set, made once for all tests; they are not to be changed.
    pub fn shared() -> &'static Self {
        static TABLES: OnceLock<Tables> = OnceLock::new();
        TABLES.get_or_init(|| {
            remove_abandoned_tables();
            let name = format!("{SHARED}{}", std::process::id());
            Self::make(&std::env::temp_dir().join(name), &[])
        })
    }

    /// Makes tables in a folder.
    pub fn make(folder: &Path, arguments: &[&str]) -> Self {
        let generator = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tables/make_tables.py");
        let output =
            python().arg(generator).arg("--out").arg(folder).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let manifest = std::fs::read(folder.join("manifest.json")).unwrap();
        Self { folder: folder.to_owned(), manifest: serde_json::from_slice(&manifest).unwrap() }
    }

    /// The names of all tables.
    pub fn names(&self) -> Vec<&str> {
        self.manifest["tables"].as_object().unwrap().keys().map(String::as_str).collect()
    }

    /// What a mount of a table must show.
    pub fn expected(&self, name: &str) -> &Value {
        let table = &self.manifest["tables"][name];
        assert!(table.is_object(), "there is no table {name}");
        table
    }

    /// The path of a table.
    pub fn path(&self, name: &str) -> PathBuf {
        self.expected(name)["uri"].as_str().unwrap().into()
    }

    /// The arguments that let a mount of a table read its bases, which lie beside it. From a bucket,
    /// branches and clones are files of this machine to it too.
    pub fn arguments(&self, name: &str, place: Put) -> Vec<String> {
        let folder = |name: &str| self.folder.join(name);
        let mut places = match name {
            "external_base" => vec![folder("_external")],
            _ => vec![folder(&format!("_base_{name}"))],
        };
        places.retain(|place| place.is_dir());
        if place == Put::InABucket {
            places.extend(self.names().into_iter().map(|name| self.path(name)));
        }
        let flag =
            |place: PathBuf| ["--allow-external".to_owned(), place.to_str().unwrap().to_owned()];
        places.into_iter().flat_map(flag).collect()
    }

    /// Mounts a table where it was made, with its bases.
    pub fn mount(&self, name: &str) -> Mount {
        let arguments = self.arguments(name, Put::Here);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        Mount::with(self.path(name), &arguments)
    }

    /// A copy of a table that a test may change.
    pub fn copy(&self, name: &str, to: &Path) -> PathBuf {
        let copy = to.join(format!("{name}.lance"));
        copy_folder(&self.path(name), &copy);
        copy
    }
}

/// Where a table is, from where it was made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// Where it was made.
    Here,
    /// Copied into a bucket.
    InABucket,
}

/// The tables of all tests of one process; nothing runs when a process of tests ends, so the next
/// one takes them away.
const SHARED: &str = "lancefs-test-tables-";

fn remove_abandoned_tables() {
    for entry in std::fs::read_dir(std::env::temp_dir()).unwrap().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(SHARED));
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Copies a folder with everything beneath it.
pub fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// A mounted table.
pub struct Mount {
    folder: TempDir,
    /// Where it is mounted.
    pub path: PathBuf,
}

impl Mount {
    /// Mounts a table.
    pub fn new(table: impl AsRef<OsStr>) -> Self {
        Self::with(table, &[])
    }

    /// Mounts a table with arguments.
    pub fn with(table: impl AsRef<OsStr>, arguments: &[&str]) -> Self {
        let mount = Self::unmounted();
        mount.start(table, arguments);
        mount
    }

    /// A place for a mount: [`Mount::start_with`] makes it.
    pub fn unmounted() -> Self {
        let folder = folder();
        let path = folder.path().join("mnt");
        std::fs::create_dir(&path).unwrap();
        Self { folder, path }
    }

    /// Mounts at the same place again, after [`Mount::unmount`] or a death of the daemon.
    pub fn start(&self, table: impl AsRef<OsStr>, arguments: &[&str]) {
        self.start_with(table, arguments, &[]);
    }

    /// [`Mount::start`] with variables of the environment.
    pub fn start_with(
        &self,
        table: impl AsRef<OsStr>,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) {
        let output = lancefs(["mount".as_ref(), table.as_ref(), self.path.as_os_str()])
            .arg("--log-file")
            .arg(self.folder.path().join("log"))
            .args(arguments)
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Unmounts, and waits until the daemon has ended.
    pub fn unmount(&self) {
        let output = lancefs(["unmount".as_ref(), self.path.as_os_str()]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// What the daemon has logged so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// `.lancefs/status.json`.
    pub fn status(&self) -> Value {
        serde_json::from_slice(&std::fs::read(self.path.join(".lancefs/status.json")).unwrap())
            .unwrap()
    }

    /// The daemon's process.
    pub fn pid(&self) -> i32 {
        self.status()["pid"].as_i64().unwrap().try_into().unwrap()
    }

    /// The most memory that the daemon has had at once, in KiB.
    pub fn peak(&self) -> u64 {
        peak(self.pid()).unwrap()
    }

    /// A path in the mount.
    pub fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        self.path.join(path)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = lancefs(["unmount".as_ref(), self.path.as_os_str(), "--lazy".as_ref()]).output();
    }
}

/// The program with arguments, not run yet; its standard streams are not ours.
pub fn lancefs<const N: usize>(arguments: [&OsStr; N]) -> Command {
    let mut command = Command::new(&*LANCEFS);
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs the program and gives what it printed.
pub fn run(arguments: &[&str]) -> Output {
    Command::new(&*LANCEFS).args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// Standard output as text, of a run that must have succeeded.
pub fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Standard error as text.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Waits until something holds, for at most 20 seconds.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not within 20 seconds");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The names in a directory, sorted, without `.` and `..`.
pub fn names(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// What a path is and holds, as programs see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its inode number.
    pub ino: u64,
    /// `st_mode`: what it is, and its permissions.
    pub mode: u32,
    /// `st_size` in bytes.
    pub size: u64,
    /// Modification time: seconds, and nanoseconds within the second.
    pub mtime: (i64, i64),
    /// The SHA-256 of a file's bytes; where a symlink points; nothing for a directory.
    pub content: String,
}

/// Everything beneath a directory by relative path, without `.lancefs`, which tells about the mount.
pub fn tree(root: &Path) -> BTreeMap<PathBuf, Seen> {
    use std::os::unix::fs::MetadataExt as _;
    let entries = walkdir::WalkDir::new(root).min_depth(1).into_iter();
    let seen = entries.filter_entry(|entry| entry.file_name() != ".lancefs").map(|entry| {
        let path = entry.unwrap().into_path();
        let meta = std::fs::symlink_metadata(&path).unwrap();
        let content = if meta.is_dir() {
            String::new()
        } else if meta.is_symlink() {
            std::fs::read_link(&path).unwrap().to_str().unwrap().to_owned()
        } else {
            sha256(&std::fs::read(&path).unwrap())
        };
        let mtime = (meta.mtime(), meta.mtime_nsec());
        let seen = Seen { ino: meta.ino(), mode: meta.mode(), size: meta.len(), mtime, content };
        (path.strip_prefix(root).unwrap().to_owned(), seen)
    });
    seen.collect()
}

/// Writes rows of an `id` and a blob column `blob`; `values` is a Python list of bytes, None and
/// `Blob.from_uri(…)`, `mode` and `options` are what `write_dataset` takes.
pub fn write_blobs(table: &Path, mode: &str, values: &str, options: &str) {
    run_python(&format!(
        "from lance import Blob
values = {values}
schema = pa.schema([pa.field('id', pa.int64()), blob_field('blob')])
rows = pa.table([pa.array(range(len(values)), pa.int64()), blob_array(values)], schema=schema)
options = {{'data_storage_version': '2.2'}} | dict({options})
lance.write_dataset(rows, '{}', mode='{mode}', **options)",
        table.display()
    ));
}

/// The errno of a failed operation.
pub fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

/// An extended attribute as text.
pub fn xattr(path: &Path, name: &str) -> Result<String, rustix::io::Errno> {
    let mut buffer = [0_u8; 4096];
    let len = rustix::fs::getxattr(path, name, &mut buffer)?;
    Ok(String::from_utf8(buffer[..len].to_vec()).unwrap())
}

/// The SHA-256 of bytes, in lower-case hex.
pub fn sha256(bytes: &[u8]) -> String {
    use sha2::{Digest as _, Sha256};
    use std::fmt::Write as _;
    Sha256::digest(bytes).iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").unwrap();
        hex
    })
}

/// A place to mount at. Whatever is mounted there is taken away when it is dropped.
pub struct Place {
    /// A folder for the test's other files, which other users may enter.
    pub folder: TempDir,
    /// The mountpoint, an empty directory.
    pub path: PathBuf,
}

impl Place {
    /// Makes one.
    pub fn new() -> Self {
        let folder = folder();
        let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), everybody).unwrap();
        let path = folder.path().join("mnt");
        std::fs::create_dir(&path).unwrap();
        Self { folder, path }
    }

    /// `lancefs mount` of a table here, not run yet.
    pub fn command(&self, table: impl AsRef<OsStr>) -> Command {
        let mut command = lancefs(["mount".as_ref(), table.as_ref(), self.path.as_os_str()]);
        command.env("LANCEFS_LOG_FILE", self.log_path());
        command
    }

    /// Where the daemon logs to.
    pub fn log_path(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    /// The lines of the kernel's list of mounts that are about this place.
    pub fn mounts(&self) -> Vec<String> {
        let list = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let here = |line: &&str| line.split(' ').nth(4) == self.path.to_str();
        list.lines().filter(here).map(ToOwned::to_owned).collect()
    }

    /// The daemon's process.
    pub fn pid(&self) -> i32 {
        let text = std::fs::read(self.path.join(".lancefs/status.json")).unwrap();
        let status: Value = serde_json::from_slice(&text).unwrap();
        status["pid"].as_i64().unwrap().try_into().unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = lancefs(["unmount".as_ref(), self.path.as_os_str(), "--lazy".as_ref()]).output();
    }
}

/// A process that is killed when it is dropped.
pub struct Running(pub std::process::Child);

impl Running {
    /// Starts one.
    pub fn start(command: &mut Command) -> Self {
        Self(command.spawn().unwrap())
    }

    /// Waits until it has ended, and gives its exit code; `None` if a signal ended it.
    pub fn ended(&mut self, what: &str) -> Option<i32> {
        let mut status = None;
        eventually(what, || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().code()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: rustix::process::Signal) {
        kill(self.0.id().try_into().unwrap(), signal);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends a signal to a process.
pub fn kill(pid: i32, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// Whether a process is there and not a zombie.
pub fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| !stat.rsplit(") ").next().unwrap().starts_with('Z'))
}
