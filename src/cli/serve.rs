//! The process that serves a mount, in the foreground or as a daemon.
//!
//! ```text
//! open the table ─▶ mount ─▶ serve (threads) ─▶ list the mountpoint ─▶ ready
//!                                │
//!                SIGTERM, SIGINT ┴ unmounted by somebody ─▶ take the mount away ─▶ end
//! ```

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytesize::ByteSize;
use fuser::Session;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use super::args::{ExternalMode, MountArgs, PolicyArgs, StorageArgs};
use super::pins::Pins;
use super::{Exit, mount as command, output, staging};
use crate::error::{Error, IoContext as _, Kind, Result};
use crate::fs::{Fs, Look, Staging};
use crate::fuse::device;
use crate::fuse::mount::{self, Access, How, Modes, Mounting, Writes};
use crate::fuse::{Adapter, Answering, Passthrough};
use crate::publish::{self, Externals};
use crate::store::{self, Patience, Settings, Sizes};
use crate::table::{self, Policy, Storage, Table, remedy};
use crate::units::ByteLen;

const REFRESH_LOCAL: Duration = Duration::from_secs(1);
const REFRESH_REMOTE: Duration = Duration::from_secs(5);

/// Serves until it is told to end or unmounted. As a daemon, reports on standard output.
pub fn run(args: &MountArgs, mountpoint: &Path) -> Result<Exit> {
    if !command::is_daemon() {
        return serve(args, mountpoint, Life::Foreground);
    }
    rustix::process::setsid()
        .map_err(std::io::Error::from)
        .context(Kind::Internal, || "leave the session".to_owned())?;
    let served = serve(args, mountpoint, Life::Daemon);
    if let Err(error) = &served {
        // Goes to whoever started us if that was before the mount was ready, else to the log.
        output::say(error);
        tracing::error!(%error, "ended");
        return Ok(Exit::of(error));
    }
    served
}

/// How a serving process lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Foreground,
    Daemon,
}

fn serve(args: &MountArgs, mountpoint: &Path, life: Life) -> Result<Exit> {
    mount::look(mountpoint)?;
    store::raise_limit();
    let runtime = Runtime::new().context(Kind::Internal, || "start the runtime".to_owned())?;
    let table = runtime.block_on(open_table(args))?;
    let table = Arc::new(table);
    let look = look(args, &table);
    let staged = runtime.block_on(staging::open(args, &table, &look, mountpoint))?;
    let folder = staged.as_ref().ok().map(|spool| spool.folder().path().to_owned());
    let elsewhere = folder.and_then(|ours| staging::elsewhere(args, &table, &ours));
    let is_unknown = staged.as_ref().is_err_and(|off| off.is_unknown);
    let may_stage = staged.is_ok() || is_unknown;
    let mounting = Mounting {
        mountpoint: mountpoint.to_owned(),
        source: table.source.shown.clone(),
        access: if args.allow_other { Access::Everybody } else { Access::Owner },
        modes: modes(args, may_stage),
        writes: if may_stage { Writes::Staged } else { Writes::Refused },
        threads: args.threads.into(),
    };
    let staging = match staged {
        Ok(spool) => {
            let _in_runtime = runtime.enter();
            staging::begin(&table, spool, publishing(args))?
        }
        Err(off) => Staging::Off(off.reason),
    };
    let pins = pins(args, &table, mountpoint)?;
    let pinned = match &pins {
        Some(pins) if args.pin => Some(runtime.block_on(pins.pin(&table, args.timeout))?),
        _ => None,
    };
    if let Some(pins) = pins.clone() {
        let table = table.clone();
        runtime.spawn(async move { pins.take_back(&table).await });
    }
    let fs = Arc::new(Fs::new(table, look, staging));
    if is_unknown {
        let (args, place) = (args.clone(), mountpoint.to_owned());
        let options = publishing(&args);
        runtime.spawn(staging::look_again(args, fs.clone(), place, options));
    }
    let answering =
        Answering { fs: fs.clone(), runtime: runtime.handle().clone(), timeout: args.timeout };
    let passthrough = if args.no_passthrough { Passthrough::Off } else { Passthrough::Wanted };
    let adapter = Adapter::new(answering, passthrough, args.threads.into(), mountpoint.to_owned());
    let mounted = mounting.mount(adapter);
    let served = mounted.and_then(|(session, remark)| {
        for remark in remark.into_iter().chain(elsewhere) {
            tell(&remark, life);
        }
        runtime.block_on(attend(session, mountpoint, life))
    });
    if let (Some(pins), Some(pinned)) = (&pins, pinned) {
        runtime.block_on(pins.unpin(fs.table(), pinned));
    }
    runtime.block_on(fs.table().opener.close());
    // Tasks that still wait for a store must not keep the process.
    runtime.shutdown_background();
    served
}

/// Where the tags of `--pin` are written down. Only who wants one must have a place for it.
fn pins(args: &MountArgs, table: &Table, mountpoint: &Path) -> Result<Option<Arc<Pins>>> {
    match Pins::of(args, table, mountpoint) {
        Ok(None) if args.pin => {
            let text = "there is no home folder to write the pin down in: give --staging-dir";
            Err(Error::new(Kind::Invalid, text))
        }
        Err(error) if !args.pin => {
            tracing::debug!(%error, "pins of ended mounts stay");
            Ok(None)
        }
        pins => Ok(pins?.map(Arc::new)),
    }
}

/// Tells whoever mounts something that is no failure.
fn tell(remark: &str, life: Life) {
    tracing::warn!("{remark}");
    if life == Life::Daemon {
        output::say(remark);
    }
}

/// Runs the session and ends it, whichever of the ways to end comes first.
async fn attend(session: Session<Adapter>, mountpoint: &Path, life: Life) -> Result<Exit> {
    let (ended, mut end) = oneshot::channel();
    let run = move || {
        let _ = ended.send(session.run());
    };
    std::thread::Builder::new()
        .name("session".to_owned())
        .spawn(run)
        .context(Kind::Internal, || "start a thread".to_owned())?;
    let stop = |kind| signal(kind).context(Kind::Internal, || "listen for signals".to_owned());
    let (mut terminate, mut interrupt) =
        (stop(SignalKind::terminate())?, stop(SignalKind::interrupt())?);
    if let Err(error) = ready(mountpoint, life).await {
        let _ = mount::unmount(mountpoint, How::Lazily);
        return Err(error);
    }
    tokio::select! {
        served = &mut end => {
            mount::uncover(mountpoint);
            return report(served);
        }
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("told to end");
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    if mount::unmount(mountpoint, How::IfIdle).is_err() {
        mount::unmount(mountpoint, How::Lazily)?;
        // Whoever has it open keeps nothing that could be lost; they see the end of the mount.
        return Ok(Exit::Success);
    }
    report((&mut end).await)
}

fn report(served: Result<std::io::Result<()>, oneshot::error::RecvError>) -> Result<Exit> {
    match served {
        Ok(result) => {
            result.context(Kind::Internal, || "serve the kernel".to_owned()).map(|()| Exit::Success)
        }
        Err(_) => Err(Error::new(Kind::Internal, "the session ended without a word")),
    }
}

/// Lists the mountpoint, as its first user would, and tells whoever waits.
async fn ready(mountpoint: &Path, life: Life) -> Result<()> {
    let path = mountpoint.to_owned();
    let listing = tokio::task::spawn_blocking(move || {
        if let Err(error) = device::raise_read_ahead(&path) {
            tracing::debug!(%error, "the kernel reads in small pieces");
        }
        std::fs::read_dir(path).map(Iterator::count)
    });
    let listed = listing.await.map_err(|e| Error::caused(Kind::Internal, "list the mount", e))?;
    listed.context(Kind::Internal, || format!("list {}", mountpoint.display()))?;
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    if life == Life::Daemon {
        output::say(command::READY);
        // The pipe is closed by putting something else in its place: who started us sees its end.
        let null = mount::null()?;
        // Nor is a folder held that somebody may want to unmount.
        rustix::process::chdir("/")
            .map_err(std::io::Error::from)
            .context(Kind::Internal, || "leave the working directory".to_owned())?;
        rustix::stdio::dup2_stdout(&null)
            .map_err(std::io::Error::from)
            .context(Kind::Internal, || "let go of the pipe".to_owned())?;
    }
    tracing::info!(mountpoint = %mountpoint.display(), "mounted");
    Ok(())
}

/// Opens the table that is to be mounted, within the time that an operation may take.
pub async fn open_table(args: &MountArgs) -> Result<Table> {
    let local = !args.table.contains("://") || args.table.starts_with("file");
    let options = table::Options {
        refresh: args.refresh.unwrap_or(if local { REFRESH_LOCAL } else { REFRESH_REMOTE }),
        policy: policy(&args.policy)?,
        storage: storage(&args.storage)?,
        at: args.at.clone(),
        reading: reading(args),
    };
    let opening = Table::open(&args.table, options);
    let late = |_| {
        let seconds = args.timeout.as_secs_f64();
        let late = Error::new(Kind::Timeout, format!("no answer within {seconds} s"));
        remedy::of(late, &args.table)
    };
    tokio::time::timeout(args.timeout, opening).await.map_err(late)?
}

fn publishing(args: &MountArgs) -> publish::Options {
    publish::Options {
        upload_delay: args.upload_delay,
        auto_commit: args.auto_commit,
        externals: match args.external_mode {
            ExternalMode::Reference => Externals::Reference,
            ExternalMode::Ingest => Externals::Ingest,
        },
        patience: args.timeout,
    }
}

fn reading(args: &MountArgs) -> Settings {
    let len = |size: ByteSize| ByteLen::new(size.as_u64());
    let sizes = Sizes {
        memory: len(args.memory),
        block: len(args.block_size),
        read_ahead: len(args.read_ahead),
    };
    let disk = args.cache_dir.clone().map(|folder| (folder, len(args.cache_size)));
    Settings { sizes, patience: Patience::within(args.timeout), disk }
}

/// The policy that flags ask for.
pub fn policy(args: &PolicyArgs) -> Result<Policy> {
    Policy::new(&args.allow_external)
}

/// The options of the object store; flags go before the file.
pub fn storage(args: &StorageArgs) -> Result<Storage> {
    Storage::new(args.storage_option.iter().cloned().collect(), args.storage_options_file.clone())
}

fn modes(args: &MountArgs, is_staging: bool) -> Modes {
    let open = args.file_mode & 0o444 == 0o444 && args.dir_mode & 0o555 == 0o555;
    // What is staged has modes of its own, and where others come in they must keep them out.
    if open && !(is_staging && args.allow_other) { Modes::Open } else { Modes::Restricting }
}

fn look(args: &MountArgs, table: &Table) -> Look {
    Look {
        uid: args.uid.unwrap_or_else(|| rustix::process::getuid().as_raw()),
        gid: args.gid.unwrap_or_else(|| rustix::process::getgid().as_raw()),
        file_mode: args.file_mode,
        dir_mode: args.dir_mode,
        refresh: table.catalog.refresh(),
    }
}
