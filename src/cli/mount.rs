//! `lancefs mount`: starts the daemon and waits until it is ready, or is the daemon.
//!
//! The daemon is this program again, told so by a variable ([`DAEMON`]): a process that has threads cannot fork. It
//! reports on its standard output, which is a pipe to us: lines that its user should read and the line `ready`, or why not.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::OFlags;
use url::Url;

use super::args::MountArgs;
use super::{Exit, output, serve, table};
use crate::error::{Error, IoContext as _, Kind, Result};
use crate::fuse::mount;
use crate::private::Folder;
use crate::telemetry;

/// What a daemon says when its mount is usable.
pub const READY: &str = "ready";

/// Tells the program that it is the daemon; not one of the options that start with `LANCEFS_`.
const DAEMON: &str = "_LANCEFS_DAEMON";

/// How many symlinks one after another lead to a mountpoint, as the kernel has it.
const LINKS: usize = 40;

/// The first descriptor after the standard streams.
const FIRST: libc::c_uint = 3;

/// The mode of a log that is made: names of files and batches are nobody else's business.
const LOG_MODE: u32 = 0o600;

/// Whether this process was started as the daemon.
pub fn is_daemon() -> bool {
    std::env::var_os(DAEMON).is_some()
}

/// Runs the command. `log` is the filter of the log.
pub fn run(args: &MountArgs, log: Option<&str>) -> Result<Exit> {
    telemetry::start(log);
    let mountpoint = resolved(&args.mountpoint)?;
    is_beside(&args.table, &mountpoint)?;
    if args.enable_managed && !is_daemon() {
        mount::look(&mountpoint)?;
        table::enable_for_mount(args)?;
    }
    if args.foreground || is_daemon() {
        return serve::run(args, &mountpoint);
    }
    // Said here too, so that what is plainly wrong is said without starting anything.
    mount::look(&mountpoint)?;
    let (code, report) = start_daemon(args, &mountpoint)?;
    if let Some(remarks) = before_ready(&report) {
        remarks.lines().for_each(output::remark);
        return Ok(Exit::Success);
    }
    let exit = Exit::ALL.into_iter().find(|exit| Some(i32::from(exit.code())) == code);
    output::remark(report.trim());
    Ok(exit.filter(|exit| *exit != Exit::Success).unwrap_or(Exit::Failure))
}

/// Refuses a mountpoint that would hide the table, or its own files.
fn is_beside(table: &str, mountpoint: &Path) -> Result<()> {
    let local = match Url::parse(table) {
        Ok(uri) if uri.scheme() == "file" => uri.to_file_path().ok(),
        Ok(_) => None,
        Err(_) => Some(PathBuf::from(table)),
    };
    let Some(local) = local.and_then(|path| path.canonicalize().ok()) else { return Ok(()) };
    let (shown, table) = (mountpoint.display(), local.display());
    let text = if local.starts_with(mountpoint) {
        format!("a mount at {shown} would hide the table {table}: give another mountpoint")
    } else if mountpoint.starts_with(&local) {
        format!("{shown} lies within the table {table}: give a mountpoint outside of it")
    } else {
        return Ok(());
    };
    Err(Error::new(Kind::Invalid, text))
}

/// Starts the daemon and waits for its report. Gives its exit code, if it has ended.
fn start_daemon(args: &MountArgs, mountpoint: &Path) -> Result<(Option<i32>, String)> {
    let program =
        std::env::current_exe().context(Kind::Internal, || "find this program".to_owned())?;
    let log = daemon_log(args, mountpoint)?;
    keep_to_ourselves();
    let mut daemon = Command::new(program);
    daemon
        .args(std::env::args_os().skip(1))
        .env(DAEMON, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log);
    let mut daemon = daemon.spawn().context(Kind::Internal, || "start the daemon".to_owned())?;
    let mut report = String::new();
    if let Some(mut pipe) = daemon.stdout.take() {
        pipe.read_to_string(&mut report)
            .context(Kind::Internal, || "hear from the daemon".to_owned())?;
    }
    if before_ready(&report).is_some() {
        return Ok((None, report));
    }
    let status = daemon.wait().context(Kind::Internal, || "wait for the daemon".to_owned())?;
    if report.trim().is_empty() {
        report = format!("the daemon ended without a word: {status}");
    }
    Ok((status.code(), report))
}

/// Lets nothing that we were started with go to the daemon, which outlives whoever gave it to us: a lock
/// would never be let go, a pipe never end. What it needs it gets as its standard streams.
fn keep_to_ourselves() {
    #[expect(unsafe_code, reason = "rustix 1.1 and nix 0.31 do not have this call")]
    // SAFETY: no descriptor is closed, each is only not inherited from now on; no pointer is passed.
    // Where the kernel is too old for it, they are inherited as before.
    let _ = unsafe {
        libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)
    };
}

/// What a daemon has said before it said that it is ready; `None` where it is not.
fn before_ready(report: &str) -> Option<&str> {
    report
        .trim_end()
        .strip_suffix(READY)
        .filter(|before| before.is_empty() || before.ends_with('\n'))
}

/// Where the daemon logs to: the file that was asked for, else one for the mountpoint beneath the
/// user's state folder, which is the user's alone, else nowhere.
fn daemon_log(args: &MountArgs, mountpoint: &Path) -> Result<Stdio> {
    if let Some(path) = &args.log_file {
        return Ok(asked_log(path)?.into());
    }
    let Some(folder) = state_folder() else { return Ok(Stdio::null()) };
    let name = crate::name::fit(&crate::name::escape(&mountpoint.to_string_lossy()), ".log");
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
    let opened = Folder::make(&folder.join("log")).and_then(|folder| folder.open(&name, flags));
    Ok(match opened {
        Ok(file) => file.into(),
        // Nobody asked for this one: a mount without a log is better than none.
        Err(error) => {
            output::remark(format_args!("nothing is logged: {error}"));
            Stdio::null()
        }
    })
}

/// Opens the log that was asked for, which may be a terminal or a pipe.
fn asked_log(path: &Path) -> Result<File> {
    let what = || format!("open the log {}", path.display());
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).context(Kind::Invalid, what)?;
    }
    File::options().create(true).append(true).mode(LOG_MODE).open(path).context(Kind::Invalid, what)
}

/// The folder for what outlives a mount: `$XDG_STATE_HOME/lancefs`, or beneath the home folder.
pub fn state_folder() -> Option<PathBuf> {
    let folder = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = folder("XDG_STATE_HOME").or_else(|| Some(folder("HOME")?.join(".local/state")))?;
    Some(state.join("lancefs"))
}

/// A mountpoint as the kernel lists it: absolute and without symlinks. What is mounted there is not
/// asked for anything: its daemon may have died, or not answer.
pub fn resolved(mountpoint: &Path) -> Result<PathBuf> {
    let what = || format!("mountpoint {}", mountpoint.display());
    let mut path = std::path::absolute(mountpoint).context(Kind::Invalid, what)?;
    for _ in 0..LINKS {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return path.canonicalize().context(Kind::Invalid, what);
        };
        let Ok(parent) = parent.canonicalize() else { return Ok(path) };
        let place = parent.join(name);
        match std::fs::read_link(&place) {
            Ok(target) => path = parent.join(target),
            Err(_) => return Ok(place),
        }
    }
    Err(Error::new(Kind::Invalid, format!("{}: too many symlinks", mountpoint.display())))
}
