//! `lancefs status`: the mounts of this machine, each from its own `.lancefs/status.json`.

use std::path::Path;

use serde_json::{Value, json};

use super::args::StatusArgs;
use super::{Exit, mount as command, output};
use crate::error::{Error, Kind, Result};
use crate::fuse::mount::asked::{self, Seen};
use crate::fuse::mount::{self, Mounted};

/// Runs the command.
pub fn run(args: &StatusArgs) -> Result<Exit> {
    let mut mounts = mount::mounts()?;
    if let Some(mountpoint) = &args.mountpoint {
        let mountpoint = command::resolved(mountpoint)?;
        mounts.retain(|mount| mount.mountpoint == mountpoint);
        if mounts.is_empty() {
            return Err(Error::new(
                Kind::NotFound,
                format!("nothing is mounted at {}", mountpoint.display()),
            ));
        }
    }
    let told: Vec<(Mounted, Told)> =
        mounts.into_iter().map(|m| (m.clone(), Told::by(&m.mountpoint))).collect();
    if args.json {
        let list: Vec<_> = told.iter().map(|(mount, told)| as_json(mount, told)).collect();
        output::say(format_args!("{:#}", Value::Array(list)));
    } else {
        for (mount, told) in &told {
            output::say(line(mount, told));
        }
    }
    Ok(Exit::Success)
}

/// What a daemon tells of itself.
pub enum Told {
    /// Its status; null where that cannot be read.
    Status(Value),
    /// It has died.
    Dead,
    /// It is one of these, and does not answer.
    Silent(Vec<u32>),
}

impl Told {
    /// Asks the daemon of a mount, for a few seconds at most.
    pub fn by(mountpoint: &Path) -> Self {
        match asked::ask(mountpoint) {
            Seen::Dead => Self::Dead,
            Seen::Silent(pids) => Self::Silent(pids),
            Seen::Alive(text) => {
                let status = text.and_then(|text| serde_json::from_slice(&text).ok());
                Self::Status(status.unwrap_or_default())
            }
        }
    }
}

fn as_json(mount: &Mounted, told: &Told) -> Value {
    let (status, silent) = match told {
        Told::Status(status) => (status.clone(), Vec::new()),
        Told::Dead => (Value::Null, Vec::new()),
        Told::Silent(pids) => (Value::Null, pids.clone()),
    };
    json!({
        "mountpoint": mount.mountpoint.to_string_lossy(),
        "source": mount.source,
        "alive": matches!(told, Told::Status(_)),
        "silent_pids": silent,
        "status": status,
    })
}

fn line(mount: &Mounted, told: &Told) -> String {
    let place = format!("{} on {}", mount.source, mount.mountpoint.display());
    let status = match told {
        Told::Status(status) => status,
        Told::Dead => {
            return format!("{place}: its daemon has died; lancefs unmount takes it away");
        }
        Told::Silent(pids) => {
            return format!("{place}: {}", asked::silence(&mount.mountpoint, pids));
        }
    };
    let number = |key: &str| status.get(key).and_then(Value::as_u64).unwrap_or_default();
    format!(
        "{place}: latest version {}, {} versions, {} open files, {} bytes read, {} failures, pid {}",
        number("latest"),
        number("versions"),
        number("open_files"),
        number("bytes_read"),
        number("failures"),
        number("pid"),
    )
}
