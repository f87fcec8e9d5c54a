//! Which batch of which mount a path is.

use std::ffi::{OsStr, OsString};
use std::path::{Component, Path, PathBuf};

use rustix::io::Errno;

use super::{ERROR, get};
use crate::error::{Error, IoContext as _, Kind, Result};
use crate::fuse::mount;

/// The directory of a mount that holds the batches.
const STAGING: &str = "staging";

/// A batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The mount that it is in.
    pub mountpoint: PathBuf,
    /// Its name in `staging/`.
    pub batch: OsString,
}

impl Place {
    /// Finds the batch that a path names.
    ///
    /// # Errors
    /// [`Kind::Invalid`] where it names none, with what would.
    pub fn find(path: &Path) -> Result<Self> {
        let absolute = resolved(path)?;
        let mounts: Vec<PathBuf> = mount::mounts()?.into_iter().map(|m| m.mountpoint).collect();
        Self::among(&absolute, &mounts)
    }

    /// Finds the batch that an absolute path names, in one of these mounts.
    fn among(path: &Path, mounts: &[PathBuf]) -> Result<Self> {
        let wrong =
            |text: String| Err(Error::new(Kind::Invalid, format!("{} {text}", path.display())));
        // Of mounts within each other the innermost one; of several at one place any.
        let holding = mounts.iter().filter(|mount| path.starts_with(mount));
        let Some(mountpoint) = holding.max_by_key(|mount| mount.as_os_str().len()) else {
            return wrong("is not in a lancefs mount; lancefs status lists the mounts".to_owned());
        };
        let staging = mountpoint.join(STAGING);
        let below = path.strip_prefix(mountpoint).unwrap_or(Path::new(""));
        let mut parts = below.components().map(Component::as_os_str);
        let first = parts.next();
        match (first == Some(OsStr::new(STAGING)), parts.next(), parts.next()) {
            (true, Some(batch), None) => {
                Ok(Self { mountpoint: mountpoint.clone(), batch: batch.to_owned() })
            }
            (true, Some(batch), Some(_)) => {
                let batch = staging.join(batch);
                wrong(format!(
                    "is in the batch {0}, and a batch is committed whole: lancefs commit {0}",
                    batch.display()
                ))
            }
            _ => wrong(format!("is no batch: batches are what is in {}", staging.display())),
        }
    }

    /// The batch in its mount.
    pub fn path(&self) -> PathBuf {
        self.staging().join(&self.batch)
    }

    /// Why a path has no batch's attributes: staging is off, or nothing is there.
    pub fn no_batch(&self, errno: Errno) -> Error {
        let path = self.path();
        let staging = std::fs::metadata(self.staging());
        if staging.is_ok_and(|meta| meta.permissions().readonly())
            && let Ok(reason) = get(&self.staging(), ERROR)
        {
            let text = format!("nothing can be staged in {}: {reason}", self.mountpoint.display());
            return Error::new(Kind::Invalid, text);
        }
        match errno {
            Errno::NOENT => {
                Error::new(Kind::NotFound, format!("there is no batch {}", path.display()))
            }
            _ => super::failed(&path, "look at", errno),
        }
    }

    fn staging(&self) -> PathBuf {
        self.mountpoint.join(STAGING)
    }
}

/// A path as the kernel lists mounts: absolute and without symlinks, but for its last component.
fn resolved(path: &Path) -> Result<PathBuf> {
    let absolute =
        std::path::absolute(path).context(Kind::Invalid, || format!("find {}", path.display()))?;
    let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        return Ok(absolute.canonicalize().unwrap_or(absolute));
    };
    Ok(parent.canonicalize().unwrap_or_else(|_| parent.to_owned()).join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn among(path: &str) -> Result<Place> {
        let mounts = ["/m", "/m/inner/n", "/other"].map(PathBuf::from);
        Place::among(Path::new(path), &mounts)
    }

    #[test]
    fn a_batch_is_a_child_of_staging() {
        for (path, mountpoint, batch) in [
            ("/m/staging/b", "/m", "b"),
            ("/m/inner/n/staging/photo.jpg", "/m/inner/n", "photo.jpg"),
            ("/other/staging/staging", "/other", "staging"),
        ] {
            let place = among(path).unwrap();
            assert_eq!(
                place,
                Place { mountpoint: mountpoint.into(), batch: batch.into() },
                "{path}"
            );
            assert_eq!(place.path(), Path::new(path));
        }
    }

    #[test]
    fn every_other_path_says_what_it_is() {
        for (path, hint) in [
            ("/m/staging/b/1", "is in the batch /m/staging/b, "),
            ("/m/staging/b/1/image.jpg", "lancefs commit /m/staging/b"),
            ("/m/staging", "batches are what is in /m/staging"),
            ("/m", "batches are what is in /m/staging"),
            ("/m/57/0", "batches are what is in /m/staging"),
            ("/mm/staging/b", "not in a lancefs mount"),
            ("/", "not in a lancefs mount"),
        ] {
            let error = among(path).unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid);
            assert!(error.to_string().contains(hint), "{path}: {error}");
        }
    }
}
