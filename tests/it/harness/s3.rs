//! An S3 server on loopback behind a link that can be slow and can fail (`tests/lab`).

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use super::{Mount, copy_folder, folder};

const BUCKET: &str = "media";
pub const ACCESS_KEY: &str = "lab";
/// The key that the server takes.
pub const SECRET_KEY: &str = "laboratory";

/// The server, with its link.
pub struct S3 {
    folder: TempDir,
    server: Child,
    link: Child,
    /// Where the link listens.
    pub endpoint: String,
}

impl S3 {
    /// Starts both; `link` are arguments of `slowlink`.
    pub fn new(link: &[&str]) -> Self {
        let folder = folder();
        std::fs::create_dir_all(folder.path().join("root").join(BUCKET)).unwrap();
        let (server, direct) = start(
            tool("s3dev")
                .arg("--faults")
                .arg(folder.path().join("faults"))
                .arg("127.0.0.1:0")
                .arg(folder.path().join("root"))
                .args([ACCESS_KEY, SECRET_KEY]),
        );
        let to = direct.strip_prefix("http://").unwrap();
        let (link, endpoint) = start(
            tool("slowlink")
                .args(["--to", to])
                .arg("--stats")
                .arg(folder.path().join("stats"))
                .arg("--fault")
                .arg(folder.path().join("fault"))
                .args(link),
        );
        Self { folder, server, link, endpoint }
    }

    /// Where a bucket's objects are as files.
    pub fn bucket(&self) -> PathBuf {
        self.folder.path().join("root").join(BUCKET)
    }

    /// Puts a folder into the bucket, and gives its URI.
    pub fn put(&self, from: &Path, name: &str) -> String {
        copy_folder(from, &self.bucket().join(name));
        self.uri(name)
    }

    /// The URI of a name in the bucket.
    pub fn uri(&self, name: &str) -> String {
        format!("s3://{BUCKET}/{name}")
    }

    /// Options of the store, as pairs.
    pub fn options(&self) -> Vec<(&'static str, String)> {
        vec![
            ("aws_access_key_id", ACCESS_KEY.to_owned()),
            ("aws_secret_access_key", SECRET_KEY.to_owned()),
            ("aws_region", "us-east-1".to_owned()),
            ("aws_endpoint", self.endpoint.clone()),
            ("allow_http", "true".to_owned()),
        ]
    }

    /// Options of the store as a file, with this secret key: in capitals, as in the environment.
    pub fn options_file(&self, secret: &str) -> PathBuf {
        let file = self.folder.path().join("options");
        let lines = self.options().into_iter().map(|(key, value)| {
            let value = if key == "aws_secret_access_key" { secret.to_owned() } else { value };
            format!("{}={value}\n", key.to_uppercase())
        });
        std::fs::write(&file, lines.collect::<String>()).unwrap();
        file
    }

    /// Mounts a table of the bucket.
    pub fn mount(&self, name: &str, arguments: &[&str]) -> Mount {
        let options = self.arguments();
        let all: Vec<&str> =
            options.iter().map(String::as_str).chain(arguments.iter().copied()).collect();
        Mount::with(self.uri(name), &all)
    }

    /// How the link is from now on: `ok`, `hang`, `reset`, `503`, `trickle`, `cut`.
    pub fn fault(&self, fault: &str) {
        let (new, file) = (self.folder.path().join("fault.new"), self.folder.path().join("fault"));
        std::fs::write(&new, fault).unwrap();
        std::fs::rename(new, file).unwrap();
    }

    /// Lets requests go wrong at the server from now on, until [`S3::heal`]: `rule` as
    /// `tests/lab/src/bin/s3dev/faults.rs` has it, without `rule`.
    pub fn strike(&self, mut rule: Value) {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        rule["rule"] = NEXT.fetch_add(1, Ordering::Relaxed).into();
        let new = self.folder.path().join("faults.to-be");
        std::fs::write(&new, rule.to_string()).unwrap();
        let _ = std::fs::remove_file(self.folder.path().join("faults.seen"));
        std::fs::rename(new, self.folder.path().join("faults")).unwrap();
    }

    /// Lets requests succeed again.
    pub fn heal(&self) {
        let _ = std::fs::remove_file(self.folder.path().join("faults"));
    }

    /// The requests that the last rule named (`PUT /bucket/key?query`), and how many of them went
    /// wrong.
    pub fn struck(&self) -> (Vec<String>, u64) {
        let Ok(text) = std::fs::read(self.folder.path().join("faults.seen")) else {
            return (Vec::new(), 0);
        };
        let seen: Value = serde_json::from_slice(&text).unwrap();
        let requests = seen["seen"].as_array().unwrap().iter();
        let requests = requests.map(|request| request.as_str().unwrap().to_owned()).collect();
        (requests, seen["struck"].as_u64().unwrap())
    }

    /// How many requests the last rule's `then` named, and how many of them went wrong.
    pub fn struck_then(&self) -> (usize, u64) {
        let Ok(text) = std::fs::read(self.folder.path().join("faults.seen")) else { return (0, 0) };
        let seen: Value = serde_json::from_slice(&text).unwrap();
        let then = &seen["then"];
        (then["seen"].as_array().map_or(0, Vec::len), then["struck"].as_u64().unwrap_or(0))
    }

    /// The options of the store as a Python dictionary.
    pub fn python_options(&self) -> String {
        let options = self.options().into_iter();
        let pairs: Vec<String> =
            options.map(|(key, value)| format!("'{key}': '{value}'")).collect();
        format!("{{{}}}", pairs.join(", "))
    }

    /// The options of the store as arguments.
    pub fn arguments(&self) -> Vec<String> {
        let options = self.options().into_iter();
        options.map(|(key, value)| format!("--storage-option={key}={value}")).collect()
    }

    /// How many requests of all kinds have gone over the link until now.
    pub fn requests(&self) -> u64 {
        // The figures are written ten times a second.
        std::thread::sleep(Duration::from_millis(250));
        let text = std::fs::read(self.folder.path().join("stats")).unwrap();
        let stats: Value = serde_json::from_slice(&text).unwrap();
        ["get", "head", "put", "other"].map(|name| stats[name].as_u64().unwrap()).iter().sum()
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        for child in [&mut self.link, &mut self.server] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn tool(name: &str) -> Command {
    let folder = std::env::var_os("LANCEFS_TEST_LAB")
        .expect("LANCEFS_TEST_LAB is not set: run scripts/test, or LANCEFS_TEST_LAB=$(scripts/lab) cargo test");
    Command::new(Path::new(&folder).join(name))
}

/// Starts a server that prints where it listens.
fn start(command: &mut Command) -> (Child, String) {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on ");
    let address = address.unwrap_or_else(|| panic!("{command:?} said {line:?}")).to_owned();
    (child, address)
}
