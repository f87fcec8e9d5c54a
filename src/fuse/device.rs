//! How much the kernel asks for in one request: the read-ahead of the mount's backing device.
//!
//! It is 128 KiB when a mount begins, whatever a file system says, and a single read that is larger
//! (33 pages, for 128 KiB at an odd offset) counts as sequential: the kernel then reads on by itself,
//! several times what was asked for. Larger requests also cost less for each byte.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::error::{IoContext as _, Kind, Result};

/// Read-ahead of the kernel in KiB: the 256 pages that one request can carry.
const READ_AHEAD_KIB: u32 = 1024;

/// Raises the read-ahead of a mount; needs root. Asks the mount for the attributes of its root, so
/// it must be served.
///
/// # Errors
/// [`Kind::Denied`] for others than root; where there is no such device, as in some containers.
pub fn raise_read_ahead(mountpoint: &Path) -> Result<()> {
    let what = || format!("raise the read-ahead of {}", mountpoint.display());
    let device = std::fs::metadata(mountpoint).context(Kind::Invalid, what)?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let file = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    std::fs::write(file, READ_AHEAD_KIB.to_string()).context(Kind::Invalid, what)
}
