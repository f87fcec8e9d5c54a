//! The options that `mount(8)`, fstab and `mount.fuse3` have for every file system.
//!
//! Each is one of three: it says what is so anyway, it stands for one of our flags, or it cannot be
//! had, and then who wrote it is told why: a line of fstab that is taken without a word promises what
//! the mount does not do.

use super::Pair;
use crate::error::{Error, Kind, Result};

/// What it says is so anyway, or concerns `mount(8)` and the boot alone.
const SO_ANYWAY: [&str; 39] = [
    "defaults",
    "rw",
    "nosuid",
    "nodev",
    "noexec",
    // Lists in fstab have these beside `user`; the mount is nosuid,nodev,noexec all the same.
    "suid",
    "dev",
    "exec",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "nofail",
    "_netdev",
    "noatime",
    "atime",
    "relatime",
    "norelatime",
    "nodiratime",
    "diratime",
    "strictatime",
    "nostrictatime",
    "lazytime",
    "nolazytime",
    "async",
    "sync",
    "dirsync",
    "iversion",
    "noiversion",
    "silent",
    "loud",
    "symfollow",
    "nonempty",
    "auto_unmount",
    "nomand",
    "default_permissions",
];
/// The same, with an ending of their own. What `mount` shows as the source is always the table.
const SO_ANYWAY_IF: [&str; 5] = ["x-", "X-", "comment=", "subtype=", "fsname="];

const NO_LABELS: &str = "lancefs passes no security labels on";
/// What cannot be had, and why.
const REFUSED: [(&str, &str); 17] = [
    ("mand", "the kernel has no mandatory locks any more"),
    ("remount", "unmount and mount again"),
    ("bind", "bind a folder of the mount with mount --bind"),
    ("rbind", "bind a folder of the mount with mount --rbind"),
    ("move", "unmount and mount again"),
    ("loop", "a table is no disk image"),
    ("allow_root", "there is only allow_other; --dir-mode and --file-mode keep others out"),
    ("nosymfollow", "latest, tags and staged references are symlinks"),
    ("context", NO_LABELS),
    ("fscontext", NO_LABELS),
    ("defcontext", NO_LABELS),
    ("rootcontext", NO_LABELS),
    ("seclabel", NO_LABELS),
    ("blkdev", "a table is no block device"),
    ("fd", "lancefs opens /dev/fuse itself"),
    ("rootmode", "lancefs says what its root is; --dir-mode sets its permissions"),
    ("user_id", "it is the user who mounts; --uid sets the owner of the files"),
];

/// An option of `-o` as a flag of ours; `None` where it changes nothing, and where it is not known here
/// it is taken for a flag.
///
/// # Errors
/// [`Kind::Invalid`] with the reason, for what cannot be had.
pub(super) fn understood(option: &str) -> Result<Option<Pair>> {
    let name = option.split('=').next().unwrap_or_default();
    let flag = |name: &str, value: Option<&str>| Some((name.to_owned(), value.map(str::to_owned)));
    if SO_ANYWAY.contains(&option) || SO_ANYWAY_IF.iter().any(|start| option.starts_with(start)) {
        return Ok(None);
    }
    if let Some((_, why)) = REFUSED.iter().find(|(refused, _)| *refused == name) {
        return Err(Error::new(Kind::Invalid, format!("-o {option} cannot be had: {why}")));
    }
    Ok(match option {
        "ro" => flag("read-only", None),
        _ => match option.split_once('=') {
            Some((name, value)) => flag(&name.replace('_', "-"), Some(value)),
            None => flag(&option.replace('_', "-"), None),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(name: &str, value: Option<&str>) -> Pair {
        (name.to_owned(), value.map(ToOwned::to_owned))
    }

    #[test]
    fn what_fstab_says_is_taken_or_refused() {
        for option in [
            "defaults",
            "rw",
            "nodiratime",
            "lazytime",
            "strictatime",
            "owner",
            "group",
            "nonempty",
            "auto_unmount",
            "comment=x",
            "X-mount.mkdir",
            "x-systemd.automount",
            "noatime",
            "user",
            "fsname=media",
            "default_permissions",
        ] {
            assert_eq!(understood(option).unwrap(), None, "{option}");
        }
        assert_eq!(understood("ro").unwrap(), Some(pair("read-only", None)));
        for option in ["remount", "nosymfollow", "allow_root", "fd=3", "context=a:b:c:s0"] {
            let error = understood(option).unwrap_err().to_string();
            assert!(error.contains(option) && error.contains("cannot be had: "), "{error}");
        }
        assert_eq!(understood("file_mode=0400").unwrap(), Some(pair("file-mode", Some("0400"))));
        assert_eq!(understood("no_such").unwrap(), Some(pair("no-such", None)));
    }
}
