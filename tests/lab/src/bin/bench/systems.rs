//! Servers, links and mounts: started here, ended when they are dropped.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::Arguments;
use super::data::BUCKET;

/// Credentials of the server.
pub const KEYS: (&str, &str) = ("lab", "laboratory");

/// A process that is ended with us.
pub struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The S3 server, or a link to it.
pub struct Endpoint {
    /// `http://…`
    pub url: String,
    stats: Option<PathBuf>,
    _process: Running,
}

impl Endpoint {
    /// Starts the server over a folder.
    pub fn server(arguments: &Arguments, root: &Path) -> Self {
        let mut command = Command::new(arguments.lab.join("s3dev"));
        command.arg("127.0.0.1:0").arg(root).args([KEYS.0, KEYS.1]);
        Self::start(command, None)
    }

    /// Starts a link to a server.
    pub fn link(arguments: &Arguments, to: &Self, flags: &[&str]) -> Self {
        let stats = arguments.folder.join("stats");
        let mut command = Command::new(arguments.lab.join("slowlink"));
        command.args(["--to", to.url.trim_start_matches("http://")]).args(flags);
        command.arg("--stats").arg(&stats);
        Self::start(command, Some(stats))
    }

    fn start(mut command: Command, stats: Option<PathBuf>) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the lab is built");
        let mut line = String::new();
        let output = child.stdout.take().expect("a pipe");
        BufReader::new(output).read_line(&mut line).expect("it says where it listens");
        let url = line.trim().trim_start_matches("listening on ").to_owned();
        Self { url, stats, _process: Running(child) }
    }

    /// Requests, and bytes of answers, since the start.
    pub fn traffic(&self) -> (u64, u64) {
        let Some(stats) = &self.stats else { return (0, 0) };
        std::thread::sleep(Duration::from_millis(250));
        let text = std::fs::read(stats).unwrap_or_default();
        let stats: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
        let figure = |name: &str| stats[name].as_u64().unwrap_or(0);
        (["get", "head", "put", "other"].map(figure).iter().sum(), figure("bytes_down"))
    }
}

/// A system that shows objects or values as files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    Lancefs,
    Rclone,
    S3fs,
    Mountpoint,
}

impl System {
    pub const ALL: [Self; 4] = [Self::Lancefs, Self::Rclone, Self::S3fs, Self::Mountpoint];

    pub fn name(self) -> &'static str {
        match self {
            Self::Lancefs => "lancefs",
            Self::Rclone => "rclone",
            Self::S3fs => "s3fs",
            Self::Mountpoint => "mountpoint-s3",
        }
    }

    /// Those that are on this machine.
    pub fn here() -> Vec<Self> {
        let there = |program: &str| {
            Command::new("sh").args(["-c", &format!("command -v {program}")]).output()
                .is_ok_and(|output| output.status.success())
        };
        let found = Self::ALL.into_iter().filter(|system| match system {
            Self::Lancefs => true,
            Self::Rclone => there("rclone"),
            Self::S3fs => there("s3fs"),
            Self::Mountpoint => there("mount-s3"),
        });
        found.collect()
    }
}

/// A fresh mount.
pub struct Mount {
    /// Where.
    pub path: PathBuf,
    process: Option<Running>,
    system: System,
}

impl Mount {
    /// Mounts the bucket, or of lancefs a table of it.
    pub fn remote(arguments: &Arguments, system: System, endpoint: &Endpoint, table: &str) -> Self {
        let (access, secret) = KEYS;
        let path = arguments.folder.join("mnt");
        let url = &endpoint.url;
        let mut command = match system {
            System::Lancefs => {
                let mut command = Command::new(&arguments.lancefs);
                command.args(["mount", "--foreground", "--refresh", "1h"]);
                command.arg(format!("s3://{BUCKET}/{table}.lance")).arg(&path);
                for option in ["allow_http=true".to_owned(), format!("aws_endpoint={url}")] {
                    command.arg(format!("--storage-option={option}"));
                }
                command
            }
            System::Rclone => {
                let mut command = Command::new("rclone");
                let remote = format!(
                    ":s3,provider=Other,access_key_id={access},secret_access_key={secret},endpoint=\"{url}\":{BUCKET}/objects"
                );
                command.arg("mount").arg(remote).arg(&path);
                command.args(["--read-only", "--config", "/dev/null", "--vfs-read-chunk-streams", "16"]);
                command.args(["--vfs-read-chunk-size", "4M"]);
                command
            }
            System::S3fs => {
                let mut command = Command::new("s3fs");
                command.arg(format!("{BUCKET}:/objects")).arg(&path).arg("-f");
                command.arg("-o").arg(format!("url={url},use_path_request_style,ro,complement_stat"));
                command.env("AWSACCESSKEYID", access).env("AWSSECRETACCESSKEY", secret);
                command
            }
            System::Mountpoint => {
                let mut command = Command::new("mount-s3");
                command.args(["--foreground", "--read-only", "--force-path-style"]);
                command.args(["--endpoint-url", url, "--prefix", "objects/", BUCKET]).arg(&path);
                command
            }
        };
        command.env("AWS_ACCESS_KEY_ID", access).env("AWS_SECRET_ACCESS_KEY", secret);
        command.env("AWS_REGION", "us-east-1");
        Self::start(command, system, path)
    }

    /// Mounts a table of the bucket, to be written to.
    pub fn writable(arguments: &Arguments, endpoint: &Endpoint, table: &str) -> Self {
        let path = arguments.folder.join("mnt");
        let mut command = Command::new(&arguments.lancefs);
        // What is measured is a commit that has everything left to do.
        command.args(["mount", "--foreground", "--upload-delay", "1h", "--staging-dir"]);
        command.arg(arguments.folder.join("staging"));
        // The server takes its time to put the parts of 4 GiB together.
        command.args(["--timeout", "10m", "--storage-option=timeout=10m"]);
        command.arg(format!("s3://{BUCKET}/{table}.lance")).arg(&path);
        let url = &endpoint.url;
        for option in ["allow_http=true".to_owned(), format!("aws_endpoint={url}")] {
            command.arg(format!("--storage-option={option}"));
        }
        command.env("AWS_ACCESS_KEY_ID", KEYS.0).env("AWS_SECRET_ACCESS_KEY", KEYS.1);
        command.env("AWS_REGION", "us-east-1");
        Self::start(command, System::Lancefs, path)
    }

    /// Mounts a table of this machine.
    pub fn local(arguments: &Arguments, table: &Path, flags: &[&str]) -> Self {
        let path = arguments.folder.join("mnt");
        let mut command = Command::new(&arguments.lancefs);
        command.args(["mount", "--foreground"]).args(flags).arg(table).arg(&path);
        Self::start(command, System::Lancefs, path)
    }

    /// Mounts one interval of a file through a loop that does nothing but `pread`.
    pub fn bare(arguments: &Arguments, (object, offset, len): &(PathBuf, u64, u64)) -> Self {
        let path = arguments.folder.join("mnt");
        let mut command = Command::new(arguments.lab.join("bareloop"));
        command.arg(object).arg(offset.to_string()).arg(len.to_string()).arg(&path);
        Self::start(command, System::Lancefs, path)
    }

    fn start(mut command: Command, system: System, path: PathBuf) -> Self {
        unmount(&path);
        std::fs::create_dir_all(&path).expect("the folder can be written");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let mount = Self { path, process: Some(Running(child)), system };
        let deadline = Instant::now() + Duration::from_secs(30);
        let is_there = || {
            let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
            mounts.contains(&format!(" {} ", mount.path.display()))
                && std::fs::read_dir(&mount.path).is_ok_and(|mut entries| entries.next().is_some())
        };
        while !is_there() {
            assert!(Instant::now() < deadline, "{command:?} did not mount");
            std::thread::sleep(Duration::from_millis(20));
        }
        mount
    }

    /// The large value or object.
    pub fn big(&self) -> PathBuf {
        match self.system {
            System::Lancefs => self.path.join("1/0/content.bin"),
            _ => self.path.join("big.bin"),
        }
    }

    /// The n-th small value or object.
    pub fn small(&self, n: usize) -> PathBuf {
        match self.system {
            System::Lancefs => self.path.join(format!("1/{n}/content.bin")),
            _ => self.path.join(format!("small/{n:05}.bin")),
        }
    }

    /// CPU seconds that its process has used.
    pub fn cpu(&self) -> f64 {
        let Some(Running(child)) = &self.process else { return 0.0 };
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
        let ticks: f64 = [11, 12].iter().filter_map(|at| fields.get(*at)?.parse::<f64>().ok()).sum();
        ticks / 100.0
    }

    /// The most memory that its process has had, in MiB.
    pub fn peak(&self) -> f64 {
        let Some(Running(child)) = &self.process else { return 0.0 };
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()));
        let status = status.unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        kib.unwrap_or(0.0) / 1024.0
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        unmount(&self.path);
        self.process = None;
    }
}

fn unmount(path: &Path) {
    let quiet = || Command::new("umount").arg(path).stderr(Stdio::null()).status();
    for _ in 0..50 {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        if !mounts.contains(&format!(" {} ", path.display())) {
            return;
        }
        let _ = quiet();
        std::thread::sleep(Duration::from_millis(50));
    }
    let _ = Command::new("umount").arg("-l").arg(path).status();
}
