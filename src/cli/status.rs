//! `lancefs status`: the mounts of this machine, each from its own `.lancefs/status.json`.

use std::path::Path;

use serde_json::{Value, json};

use super::args::StatusArgs;
use super::{Exit, mount as command, output};
use crate::error::{Error, Kind, Result};
use crate::fuse::mount::{self, Mounted};
use crate::tree;

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
    let told: Vec<(Mounted, Option<Value>)> =
        mounts.into_iter().map(|m| (m.clone(), read(&m.mountpoint))).collect();
    if args.json {
        let list: Vec<_> =
            told.iter().map(|(mount, status)| as_json(mount, status.as_ref())).collect();
        output::say(format_args!("{:#}", Value::Array(list)));
    } else {
        for (mount, status) in &told {
            output::say(line(mount, status.as_ref()));
        }
    }
    Ok(Exit::Success)
}

/// The process that serves a mount; `None` where nobody does.
pub fn daemon(mountpoint: &Path) -> Option<u64> {
    read(mountpoint)?.get("pid")?.as_u64()
}

fn read(mountpoint: &Path) -> Option<Value> {
    let text = std::fs::read(mountpoint.join(tree::CONTROL).join(tree::STATUS)).ok()?;
    serde_json::from_slice(&text).ok()
}

fn as_json(mount: &Mounted, status: Option<&Value>) -> Value {
    json!({ "mountpoint": mount.mountpoint.to_string_lossy(), "source": mount.source, "alive": status.is_some(), "status": status })
}

fn line(mount: &Mounted, status: Option<&Value>) -> String {
    let place = format!("{} on {}", mount.source, mount.mountpoint.display());
    let Some(status) = status else {
        return format!("{place}: its daemon has died; lancefs unmount takes it away");
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
