//! Files that desktops, editors and file servers leave, and that nobody means to be a row.
//!
//! A name is litter only if no person would give it to data. So these are none:
//!
//! - `photo.jpg.part`, `.photo.jpg.Xa81bC` and the like are half a transfer: passing over one would
//!   commit a batch without the file that it was to become. They are faults ([`unfinished`]).
//! - `.anything` else: a hidden file that somebody put there is a fault, as it names no field.
//!
//! No name that the read side shows is litter: those never begin with a dot and end in `.bin`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

/// Whole names, compared without regard to case: Windows does not keep it.
const NAMES: [&[u8]; 21] = [
    // macOS: a folder's look, its trash, its indexes and its temporary items.
    b".DS_Store",
    b".Trashes",
    b".Trash",
    b".fseventsd",
    b".Spotlight-V100",
    b".TemporaryItems",
    b".DocumentRevisions-V100",
    b".localized",
    b"Icon\r",
    // What macOS puts into archives.
    b"__MACOSX",
    // netatalk and macOS on file servers.
    b".AppleDouble",
    b".AppleDB",
    b".AppleDesktop",
    b".apdisk",
    // Windows: thumbnails, a folder's look, its trash.
    b"Thumbs.db",
    b"ehthumbs.db",
    b"ehthumbs_vista.db",
    b"desktop.ini",
    b"$RECYCLE.BIN",
    // KDE: a folder's look.
    b".directory",
    // Synology: thumbnails and indexes.
    b"@eaDir",
];

/// What a name begins with.
const BEGINNINGS: [&[u8]; 9] = [
    // macOS: a file's resource fork on a disk that has none (AppleDouble).
    b"._",
    // freedesktop.org: the trash of a user on this disk.
    b".Trash-",
    // NFS, FUSE and Samba: a file that was removed while somebody has it open.
    b".nfs",
    b".fuse_hidden",
    b".smbdelete",
    // GLib: what it writes before the rename.
    b".goutputstream-",
    // Emacs: who edits the file (a dangling symlink).
    b".#",
    // LibreOffice and Microsoft Office: the same.
    b".~lock.",
    b"~$",
];

/// What Windows notes about a file that was downloaded, where it is copied as a file of its own.
const ZONE: &[u8] = b":Zone.Identifier";

/// Whether a name is litter: it becomes neither a row nor a value nor a fault.
pub fn litter(name: impl AsRef<OsStr>) -> bool {
    let name = name.as_ref().as_bytes();
    NAMES.iter().any(|whole| whole.eq_ignore_ascii_case(name))
        || BEGINNINGS.iter().any(|begin| name.len() > begin.len() && name.starts_with(begin))
        || backup(name)
        || swap(name)
        || name.len() > ZONE.len() && name[name.len() - ZONE.len()..].eq_ignore_ascii_case(ZONE)
}

/// What a transfer that has not ended leaves, by whom; `None` for a whole file.
pub fn unfinished(name: &str) -> Option<&'static str> {
    let ending = name.rsplit_once('.').map(|(_, ending)| ending)?;
    match ending {
        "part" | "partial" | "crdownload" => Some("a download"),
        "filepart" => Some("WinSCP"),
        _ => rsync(name).then_some("rsync"),
    }
}

/// `x~` (Emacs, Vim, gedit) and `#x#` (Emacs).
fn backup(name: &[u8]) -> bool {
    name.len() > 1 && name.ends_with(b"~")
        || name.len() > 2 && name.starts_with(b"#") && name.ends_with(b"#")
}

/// `.x.swp`, and `.swo`, `.swn`, … where there are several (Vim).
fn swap(name: &[u8]) -> bool {
    let Some(at) = name.len().checked_sub(4).filter(|at| *at > 0) else { return false };
    let (stem, ending) = name.split_at(at);
    stem.starts_with(b".") && ending.starts_with(b".sw") && ending[3].is_ascii_lowercase()
}

/// `.name.XXXXXX`, which rsync writes before the rename.
fn rsync(name: &str) -> bool {
    let Some((stem, ending)) = name.rsplit_once('.') else { return false };
    stem.len() > 1
        && stem.starts_with('.')
        && ending.len() == 6
        && ending.bytes().all(|b| b.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn litter_is_litter() {
        for name in [
            ".DS_Store",
            "Thumbs.db",
            "thumbs.DB",
            "desktop.ini",
            "Desktop.ini",
            "ehthumbs.db",
            "._photo.jpg",
            "._",
            ".Trash-1000",
            ".Trashes",
            ".fseventsd",
            ".Spotlight-V100",
            ".directory",
            ".nfs000000000012ab4f00000001",
            ".fuse_hidden0000001200000001",
            ".image.jpg.swp",
            ".row.json.swo",
            ".x.swp",
            "image.jpg~",
            "row.json~",
            "#row.json#",
            ".#row.json",
            ".~lock.sheet.ods#",
            "~$report.docx",
            ".goutputstream-ABC123",
            "$RECYCLE.BIN",
            ".AppleDouble",
            "__MACOSX",
            "Icon\r",
            "@eaDir",
            ".smbdeleteAAA1",
            "photo.jpg:Zone.Identifier",
            "photo.jpg:zone.identifier",
        ] {
            // A bare beginning is nobody's.
            assert_eq!(litter(name), name != "._", "{name}");
        }
    }

    #[test]
    fn data_is_not_litter() {
        for name in [
            "image.jpg",
            "image.bin",
            "row.json",
            ".delete",
            ".version.json",
            "image",
            "@5",
            "~",
            "#",
            "##",
            "a#",
            "#a",
            ".swp",
            "image.swp",
            "x.part",
            ".photo.jpg.Xa81bC",
            ".hidden",
            "Thumbs.bin",
            "thumbs",
            "DS_Store",
            ".nf",
            "a~b.bin",
            "~home",
            "nfs1",
            ":Zone.Identifier",
            "Icon",
            "Zone.Identifier",
            "..",
        ] {
            assert!(!litter(name), "{name}");
        }
    }

    #[test]
    fn half_a_transfer_is_told() {
        for (name, by) in [
            ("photo.jpg.part", Some("a download")),
            ("photo.crdownload", Some("a download")),
            ("photo.jpg.filepart", Some("WinSCP")),
            (".photo.jpg.Xa81bC", Some("rsync")),
            (".photo.XXXXXX", Some("rsync")),
            ("photo.XXXXXX", None),
            ("..XXXXXX", None),
            (".photo.jpg", None),
            ("part", None),
            ("photo.party", None),
        ] {
            assert_eq!(unfinished(name), by, "{name}");
        }
    }
}
