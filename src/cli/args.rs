//! The arguments, as the parser makes them.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use clap::builder::{BoolishValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};

/// Mount a Lance table: every value of every row of every version is a file.
#[derive(Clone, Debug, Parser)]
#[command(name = "lancefs", version, propagate_version = true)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Show a table as files
    Mount(Box<MountArgs>),
    /// Take a mount away
    #[command(visible_alias = "umount")]
    Unmount(UnmountArgs),
    /// Say what is mounted
    Status(StatusArgs),
    /// Say what a file of a mount is and where its bytes are
    Inspect(InspectArgs),
    /// Check every value of a version against its object
    Verify(VerifyArgs),
    /// Make a row of each file
    Import(ImportArgs),
    /// Publish a batch of staged files as a new version
    Commit(CommitArgs),
    /// Work on a table without mounting it
    Table(TableArgs),
    /// Print a completion script
    Completions {
        /// For this shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    Man,
}

/// What is passed to the object store.
#[derive(Args, Clone, Debug, Default)]
pub struct StorageArgs {
    /// Option of the object store (credentials, endpoint, region); repeatable
    #[arg(long, value_name = "KEY=VALUE", value_parser = KeyValue)]
    pub storage_option: Vec<(String, String)>,
    /// File of KEY=VALUE lines with options of the object store, to keep secrets off the command line
    #[arg(long, value_name = "FILE", env = "LANCEFS_STORAGE_OPTIONS_FILE")]
    pub storage_options_file: Option<PathBuf>,
}

/// Which External references are followed.
#[derive(Args, Clone, Debug, Default)]
pub struct PolicyArgs {
    /// Follow External references, bases and links that lead beneath this path or URI; * for all; repeatable
    #[arg(long, value_name = "PREFIX", env = "LANCEFS_ALLOW_EXTERNAL", value_delimiter = ',')]
    pub allow_external: Vec<String>,
}

/// What becomes of a staged symlink to a URI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExternalMode {
    /// The row refers to the object, whoever owns it
    Reference,
    /// The bytes are copied into an object of the table
    Ingest,
}

/// `lancefs mount`.
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
#[derive(Args, Clone, Debug)]
pub struct MountArgs {
    /// Path or s3://, gs://, az://, hf:// URI of the table
    pub table: String,
    /// Existing directory to mount at
    pub mountpoint: PathBuf,
    /// Stay in the foreground, log to standard error, tell systemd when ready
    #[arg(long, short, env = "LANCEFS_FOREGROUND", value_parser = BoolishValueParser::new())]
    pub foreground: bool,
    /// Stage batches in a folder of the table's own beneath this one [default: beneath $`XDG_STATE_HOME/lancefs`]
    #[arg(long, value_name = "DIR", env = "LANCEFS_STAGING_DIR")]
    pub staging_dir: Option<PathBuf>,
    /// How much of its disk batches may take [default: as much as it has]
    #[arg(long, value_name = "SIZE", env = "LANCEFS_STAGING_LIMIT")]
    pub staging_limit: Option<ByteSize>,
    /// Mount without staging
    #[arg(long, env = "LANCEFS_READ_ONLY", value_parser = BoolishValueParser::new())]
    pub read_only: bool,
    /// Turn Managed storage on first, which staging needs; clients older than Lance 14 cannot open the table afterwards
    #[arg(long, env = "LANCEFS_ENABLE_MANAGED", conflicts_with = "at", value_parser = BoolishValueParser::new())]
    pub enable_managed: bool,
    /// How long a staged file must have been closed and quiet before it is uploaded; the commit uploads what is left
    #[arg(long, value_name = "DURATION", env = "LANCEFS_UPLOAD_DELAY", value_parser = duration, default_value = "2s")]
    pub upload_delay: Duration,
    /// Commit a batch by itself when nothing has changed in it for so long [default: only when asked]
    #[arg(long, value_name = "DURATION", env = "LANCEFS_AUTO_COMMIT", value_parser = duration)]
    pub auto_commit: Option<Duration>,
    /// What becomes of a staged symlink to a URI: `reference`, an External value, or `ingest`, a copy of the object in the table
    #[arg(
        long,
        value_name = "MODE",
        env = "LANCEFS_EXTERNAL_MODE",
        hide_possible_values = true,
        default_value = "reference"
    )]
    pub external_mode: ExternalMode,
    /// Show this version, tag or branch only, as it is now
    #[arg(long, value_name = "REF", env = "LANCEFS_AT")]
    pub at: Option<String>,
    /// Tag the newest version (or that of --at) for the life of the mount, so that no cleanup removes it
    #[arg(long, env = "LANCEFS_PIN", value_parser = BoolishValueParser::new())]
    pub pin: bool,
    /// How long a list of versions, tags or branches is believed [default: 1s for a local table, else 5s]
    #[arg(long, value_name = "DURATION", env = "LANCEFS_REFRESH", value_parser = duration)]
    pub refresh: Option<Duration>,
    /// How long one operation may take, all retries included
    #[arg(long, value_name = "DURATION", env = "LANCEFS_TIMEOUT", value_parser = duration, default_value = "60s")]
    pub timeout: Duration,
    /// Memory for what is fetched from a store: the block cache, and what is on its way
    #[arg(long, value_name = "SIZE", env = "LANCEFS_MEMORY", default_value = "512MiB")]
    pub memory: ByteSize,
    /// How far ahead of a sequential reader a store is read at most; 0 turns read-ahead off
    #[arg(long, value_name = "SIZE", env = "LANCEFS_READ_AHEAD", default_value = "128MiB")]
    pub read_ahead: ByteSize,
    /// What is fetched from a store is cached in blocks of this size; small ones waste less on random reads
    #[arg(long, value_name = "SIZE", env = "LANCEFS_BLOCK_SIZE", value_parser = block_size, default_value = "16KiB")]
    pub block_size: ByteSize,
    /// Keep what is fetched from a store in this folder, so that it is there after a remount; for one mount alone
    #[arg(long, value_name = "FOLDER", env = "LANCEFS_CACHE_DIR")]
    pub cache_dir: Option<PathBuf>,
    /// How large that folder may grow
    #[arg(long, value_name = "SIZE", env = "LANCEFS_CACHE_SIZE", default_value = "10GiB")]
    pub cache_size: ByteSize,
    /// Policy for External values
    #[command(flatten)]
    pub policy: PolicyArgs,
    /// Read whole local objects in the daemon, not in the kernel: slower, and who writes to one waits for nobody
    #[arg(long, env = "LANCEFS_NO_PASSTHROUGH", value_parser = BoolishValueParser::new())]
    pub no_passthrough: bool,
    /// Let other users look into the mount
    #[arg(long, env = "LANCEFS_ALLOW_OTHER", value_parser = BoolishValueParser::new())]
    pub allow_other: bool,
    /// Owner of all files [default: who mounts]
    #[arg(long, value_name = "UID", env = "LANCEFS_UID")]
    pub uid: Option<u32>,
    /// Group of all files [default: of who mounts]
    #[arg(long, value_name = "GID", env = "LANCEFS_GID")]
    pub gid: Option<u32>,
    /// Permissions of files, octal
    #[arg(long, value_name = "MODE", env = "LANCEFS_FILE_MODE", value_parser = mode, default_value = "0644")]
    pub file_mode: u16,
    /// Permissions of directories, octal
    #[arg(long, value_name = "MODE", env = "LANCEFS_DIR_MODE", value_parser = mode, default_value = "0755")]
    pub dir_mode: u16,
    /// Threads that read requests of the kernel
    #[arg(long, value_name = "N", env = "LANCEFS_THREADS", value_parser = clap::value_parser!(u8).range(1..=64), default_value = "4")]
    pub threads: u8,
    /// Log of the daemon [default: beneath $`XDG_STATE_HOME/lancefs`]
    #[arg(long, value_name = "FILE", env = "LANCEFS_LOG_FILE")]
    pub log_file: Option<PathBuf>,
    /// Options as fstab writes them: `allow_other,refresh=5s`
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// File with options, one key for each long flag (TOML)
    #[arg(long, value_name = "FILE", env = "LANCEFS_CONFIG")]
    pub config: Option<PathBuf>,
    /// What is passed to the object store
    #[command(flatten)]
    pub storage: StorageArgs,
}

/// `lancefs unmount`.
#[derive(Args, Clone, Debug)]
pub struct UnmountArgs {
    /// Where it is mounted
    pub mountpoint: PathBuf,
    /// Take it from the tree although it is in use; it ends with its last user
    #[arg(long)]
    pub lazy: bool,
}

/// `lancefs status`.
#[derive(Args, Clone, Debug)]
pub struct StatusArgs {
    /// Only this mount
    pub mountpoint: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `lancefs inspect`.
#[derive(Args, Clone, Debug)]
pub struct InspectArgs {
    /// A file in a mount
    pub path: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `lancefs verify`.
#[derive(Args, Clone, Debug)]
pub struct VerifyArgs {
    /// Path or URI of the table
    pub table: String,
    /// Version, tag or branch [default: the newest version]
    #[arg(long, value_name = "REF")]
    pub at: Option<String>,
    /// Decode every other column too, fragment by fragment
    #[arg(long)]
    pub columns: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Policy for External values
    #[command(flatten)]
    pub policy: PolicyArgs,
    /// What is passed to the object store
    #[command(flatten)]
    pub storage: StorageArgs,
}

/// `lancefs import`.
#[derive(Args, Clone, Debug)]
pub struct ImportArgs {
    /// Files, and directories with all files beneath them
    #[arg(required = true, value_name = "FILES")]
    pub files: Vec<PathBuf>,
    /// Path or URI of the table, made if it is not there
    pub table: String,
    /// Make the table with Managed storage (clients older than 14 cannot read it)
    #[arg(long)]
    pub managed: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// What is passed to the object store
    #[command(flatten)]
    pub storage: StorageArgs,
}

/// `lancefs commit`.
#[derive(Args, Clone, Debug)]
pub struct CommitArgs {
    /// The batch: a directory or file in `staging/` of a mount
    #[arg(value_name = "BATCH")]
    pub path: PathBuf,
    /// Do it without asking; where there is no terminal, nothing is asked either
    #[arg(long, short)]
    pub yes: bool,
    /// Only say what would be done, and what is wrong
    #[arg(long, short = 'n')]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `lancefs table`.
#[derive(Args, Clone, Debug)]
pub struct TableArgs {
    /// What to do
    #[command(subcommand)]
    pub command: TableCommand,
}

/// The commands of `lancefs table`.
#[derive(Clone, Debug, Subcommand)]
pub enum TableCommand {
    /// Keep new payloads as Managed objects, which staging needs; says what that means and asks first
    EnableManaged(EnableManagedArgs),
}

/// `lancefs table enable-managed`.
#[derive(Args, Clone, Debug)]
pub struct EnableManagedArgs {
    /// Path or URI of the table
    pub table: String,
    /// Do it without asking
    #[arg(long, short)]
    pub yes: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// What is passed to the object store
    #[command(flatten)]
    pub storage: StorageArgs,
}

/// `KEY=VALUE`. What is none may be a secret that somebody forgot to name, so its fault does not show
/// it, as the parser's own would.
#[derive(Clone, Debug)]
struct KeyValue;

impl TypedValueParser for KeyValue {
    type Value = (String, String);

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<Self::Value, clap::Error> {
        let pair = value.to_str().and_then(|text| text.split_once('='));
        pair.map(|(key, value)| (key.to_owned(), value.to_owned())).ok_or_else(|| {
            let flag = argument.map(ToString::to_string).unwrap_or_default();
            let text = format!("a value of {flag} is not KEY=VALUE\n");
            clap::Error::raw(clap::error::ErrorKind::ValueValidation, text).with_cmd(command)
        })
    }
}

/// `500ms`, `5s`, `2min`; a plain number is seconds.
fn duration(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string());
    }
    humantime::parse_duration(text).map_err(|e| e.to_string())
}

/// A block is no smaller than a page, and no larger than a read of the kernel.
fn block_size(text: &str) -> Result<ByteSize, String> {
    match text.parse::<ByteSize>()? {
        size if (ByteSize::kib(4)..=ByteSize::mib(1)).contains(&size) => Ok(size),
        _ => Err("expected 4KiB to 1MiB".to_owned()),
    }
}

fn mode(text: &str) -> Result<u16, String> {
    match u16::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err("expected octal permissions, 0000 to 0777".to_owned()),
    }
}
