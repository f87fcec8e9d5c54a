//! `lancefs inspect`: what a file of a mount is, from its extended attributes.

use std::path::Path;

use serde_json::{Map, Value};

use super::args::InspectArgs;
use super::{Exit, output};
use crate::error::{Error, IoContext as _, Kind, Result};

const PREFIX: &str = "user.";
const ERROR: &str = "user.lancefs.error";
/// The longest value of an attribute that Linux gives.
const VALUE_MAX: usize = 64 << 10;

/// Runs the command.
pub fn run(args: &InspectArgs) -> Result<Exit> {
    let path = &args.path;
    let what = || format!("inspect {}", path.display());
    std::fs::symlink_metadata(path)
        .or_else(|error| {
            // A value that cannot be resolved has no attributes of a file, and the more to say.
            if error.kind() == std::io::ErrorKind::NotFound {
                Err(error)
            } else {
                path.parent().map_or(Err(error), std::fs::symlink_metadata)
            }
        })
        .map_err(|e| Error::caused(Kind::NotFound, what(), e))?;
    let names = list(path)?;
    let mut found = Map::new();
    for name in names {
        let shown = name.trim_start_matches(PREFIX).trim_start_matches("lancefs.").to_owned();
        if let Some(value) = get(path, &name) {
            found.insert(shown, value.into());
        }
    }
    // Reading the others may just have failed, which is worth knowing.
    if let Some(error) = get(path, ERROR) {
        found.insert("error".to_owned(), error.into());
    }
    if found.is_empty() {
        return Err(Error::new(
            Kind::Invalid,
            format!("{} is no value of a lancefs mount", path.display()),
        ));
    }
    if args.json {
        output::say(format_args!("{:#}", Value::Object(found)));
    } else {
        let width = found.keys().map(String::len).max().unwrap_or(0);
        for (name, value) in &found {
            output::say(format_args!("{name:width$}  {}", value.as_str().unwrap_or_default()));
        }
    }
    Ok(Exit::Success)
}

fn list(path: &Path) -> Result<Vec<String>> {
    let mut buffer = vec![0_u8; VALUE_MAX];
    let len = rustix::fs::listxattr(path, &mut buffer).map_err(std::io::Error::from);
    let len =
        len.context(Kind::Invalid, || format!("list the attributes of {}", path.display()))?;
    let names = buffer[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    Ok(names
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .filter(|name| name.starts_with(PREFIX))
        .collect())
}

fn get(path: &Path, name: &str) -> Option<String> {
    let mut buffer = vec![0_u8; VALUE_MAX];
    let len = rustix::fs::getxattr(path, name, &mut buffer).ok()?;
    Some(String::from_utf8_lossy(&buffer[..len]).into_owned())
}
