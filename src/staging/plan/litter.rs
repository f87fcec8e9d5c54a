//! What a name says of its file or directory, before anybody looks into it: one function, [`class`],
//! over tables.
//!
//! 1. Desktops, editors and file servers leave files that nobody means to be a row. A name is litter
//!    only if no person would give it to data: it becomes neither a row, nor a value, nor a fault.
//! 2. `photo.jpg.part`, `.photo.jpg.Xa81bC` and the like are half a file: passing over one would commit
//!    a batch without the file that it was to become, and taking it would commit half. They are faults:
//!    a batch with one is not committed by itself, and who asks is told its name.
//! 3. Any other hidden file or directory is for the program that hid it. It is no batch and no row. In
//!    an entry it is a fault where it names no field (`fields`).
//!
//! No name that the read side shows is any of these: those never begin with a dot and end in `.bin`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

/// Whole names, compared without regard to case: Windows does not keep it.
const NAMES: &[&[u8]] = &[
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
    // This program: what a batch says whose commit found faults, where it was copied along.
    crate::tree::REFUSED.as_bytes(),
    // Windows: thumbnails, a folder's look, its trash.
    b"Thumbs.db",
    b"ehthumbs.db",
    b"ehthumbs_vista.db",
    b"desktop.ini",
    b"$RECYCLE.BIN",
    // KDE: a folder's look.
    b".directory",
    // Synology and QNAP: thumbnails and indexes, trash, snapshots.
    b"@eaDir",
    b"#recycle",
    b"#snapshot",
    b"@Recycle",
    b"@Recently-Snapshot",
    // The roots of disks: what a check found, Windows' and macOS' own.
    b"lost+found",
    b"System Volume Information",
    b"RECYCLER",
    b".VolumeIcon.icns",
    b".metadata_never_index",
    b"Network Trash Folder",
    b"Temporary Items",
    // Media scanners and thumbnails of desktops and telephones.
    b".nomedia",
    b".thumbnails",
    b".picasa.ini",
    // Version control, and what keeps an empty directory in it.
    b".git",
    b".gitignore",
    b".gitattributes",
    b".gitkeep",
    b".keep",
    b".svn",
    b".hg",
    // Programs that keep folders alike: Syncthing, Dropbox.
    b".stfolder",
    b".stignore",
    b".stversions",
    b".dropbox",
    b".dropbox.attr",
    b".dropbox.cache",
];

/// What a name begins with.
const BEGINNINGS: &[&[u8]] = &[
    // macOS: a file's resource fork on a disk that has none (AppleDouble).
    b"._",
    // freedesktop.org: the trash of a user on this disk.
    b".Trash-",
    // NFS, FUSE and Samba: a file that was removed while somebody has it open.
    b".nfs",
    b".fuse_hidden",
    b".smbdelete",
    // Android: what is in its trash.
    b".trashed-",
    // Emacs: who edits the file (a dangling symlink).
    b".#",
    // LibreOffice and Microsoft Office: the same.
    b".~lock.",
    b"~$",
];

/// What the names of half files end with, without regard to case, and who leaves them.
const UNFINISHED_ENDINGS: &[(&[u8], &str)] = &[
    (b".part", "a download"),
    (b".partial", "a download"),
    (b".crdownload", "a download"),
    (b".opdownload", "a download"),
    (b".download", "a download"),
    (b".fdmdownload", "a download"),
    (b".dtapart", "a download"),
    (b".part.met", "eMule"),
    (b".aria2", "aria2"),
    (b".ytdl", "yt-dlp"),
    (b".!qB", "qBittorrent"),
    (b".!ut", "uTorrent"),
    (b".!bt", "BitTorrent"),
    (b".bc!", "BitComet"),
    (b".jc!", "FlashGet"),
    (b".xltd", "Xunlei"),
    (b".!sync", "Resilio Sync"),
    (b".drivedownload", "Google Drive"),
    (b".lftp-pget-status", "lftp"),
    (b".filepart", "WinSCP"),
    (b"_exiftool_tmp", "ExifTool"),
    (b".kate-swp", "Kate"),
    // What most programs call a file until it is whole.
    (b".tmp", "a program that saves"),
    (b".temp", "a program that saves"),
];

/// What they begin with.
const UNFINISHED_BEGINNINGS: &[(&[u8], &str)] = &[
    (b"~syncthing~", "Syncthing"),
    (b".syncthing.", "Syncthing"),
    // `--partial-dir` and `--delay-updates`.
    (b".rsync-", "rsync"),
    (b".~tmp", "rsync"),
    (b".goutputstream-", "a program of GNOME that saves"),
    (b".pending-", "Android"),
    (b".com.google.Chrome.", "a download"),
    (b".org.chromium.Chromium.", "a download"),
    (b".unison.", "Unison"),
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

/// What a name says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Nothing: it is data.
    Data,
    /// Some system left it, and nobody means it.
    Litter,
    /// It is hidden, for a reason that is not known.
    Hidden,
    /// It has not become what it is going to be; who is at it.
    Unfinished(&'static str),
}

/// What a name says of its file or directory.
pub fn class(name: impl AsRef<OsStr>) -> Class {
    let name = name.as_ref();
    if litter(name) {
        return Class::Litter;
    }
    if let Some(by) = unfinished(name) {
        return Class::Unfinished(by);
    }
    if name.as_bytes().starts_with(b".") { Class::Hidden } else { Class::Data }
}

/// Who leaves something of that name that has not ended; `None` for a whole file or directory.
pub fn unfinished(name: impl AsRef<OsStr>) -> Option<&'static str> {
    let name = name.as_ref().as_bytes();
    let ends = |(end, _): &&(&[u8], _)| {
        name.len() > end.len() && name[name.len() - end.len()..].eq_ignore_ascii_case(end)
    };
    let begins = |(begin, _): &&(&[u8], _)| name.len() > begin.len() && name.starts_with(begin);
    let ending = UNFINISHED_ENDINGS.iter().find(ends);
    let found = ending.or_else(|| UNFINISHED_BEGINNINGS.iter().find(begins));
    if let Some((_, by)) = found {
        return Some(by);
    }
    match name {
        _ if fragment(name) => Some("a download"),
        _ if safe_save(name) => Some("a program of macOS that saves"),
        _ if rsync(name) => Some("rsync"),
        _ if nextcloud(name) => Some("Nextcloud"),
        _ => None,
    }
}

/// The fault of something that has not ended.
pub fn not_ended(name: &str, by: &str) -> String {
    format!(
        "{name} looks like what {by} leaves that has not ended: wait for it, or rename or remove it"
    )
}

/// Why nothing of this name is a batch; `None` where it may be one.
pub fn no_batch(name: &str) -> Option<String> {
    match class(name) {
        Class::Data => None,
        Class::Unfinished(by) => Some(not_ended(name, by)),
        Class::Hidden => Some(format!(
            "{name} is no batch: its name begins with a dot, and what is hidden never becomes rows; \
             rename it to commit it"
        )),
        Class::Litter => Some(format!(
            "{name} is no batch: systems leave what is called so, and it never becomes rows; rename \
             it to commit it"
        )),
    }
}

/// What Vim makes and removes to find out whether it can write; a directory of that name is row 4913.
pub const PROBE_OF_VIM: &str = "4913";

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
fn rsync(name: &[u8]) -> bool {
    let Some((stem, ending)) = last_dot(name) else { return false };
    stem.len() > 1
        && stem.starts_with(b".")
        && ending.len() == 6
        && ending.iter().all(u8::is_ascii_alphanumeric)
}

/// `name.part-Frag12` (yt-dlp).
fn fragment(name: &[u8]) -> bool {
    let Some((stem, ending)) = last_dot(name) else { return false };
    let number = ending.strip_prefix(b"part-Frag").unwrap_or_default();
    !stem.is_empty() && !number.is_empty() && number.iter().all(u8::is_ascii_digit)
}

/// `name.sb-1a2b3c4d-XXXXXX` (macOS).
fn safe_save(name: &[u8]) -> bool {
    let Some((stem, ending)) = last_dot(name) else { return false };
    let digits = ending.strip_prefix(b"sb-").and_then(|rest| rest.split_at_checked(8));
    !stem.is_empty()
        && digits.is_some_and(|(hex, rest)| {
            hex.iter().all(u8::is_ascii_hexdigit) && rest.len() == 7 && rest.starts_with(b"-")
        })
}

/// `.name.~1a2b`.
fn nextcloud(name: &[u8]) -> bool {
    let Some((stem, ending)) = last_dot(name) else { return false };
    let digits = ending.strip_prefix(b"~").unwrap_or_default();
    stem.len() > 1
        && stem.starts_with(b".")
        && digits.len() >= 3
        && digits.iter().all(u8::is_ascii_hexdigit)
}

/// What is before and after the last dot.
fn last_dot(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = name.iter().rposition(|byte| *byte == b'.')?;
    Some((&name[..at], &name[at + 1..]))
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
            ".nomedia",
            ".gitignore",
            ".trashed-1700000000-photo.jpg",
            "lost+found",
            "System Volume Information",
            "#recycle",
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
    fn half_a_file_is_told_from_a_whole_one() {
        use Class::{Data, Hidden, Litter, Unfinished};
        for (name, wanted) in [
            ("photo.jpg.part", Unfinished("a download")),
            ("photo.jpg.partial", Unfinished("a download")),
            ("photo.crdownload", Unfinished("a download")),
            ("Unconfirmed 1.CRDOWNLOAD", Unfinished("a download")),
            ("x.opdownload", Unfinished("a download")),
            ("x.jpg.download", Unfinished("a download")),
            ("x.mp4.part-Frag12", Unfinished("a download")),
            ("c.jpg.aria2", Unfinished("aria2")),
            ("c.mp4.ytdl", Unfinished("yt-dlp")),
            ("b.jpg.!qB", Unfinished("qBittorrent")),
            ("b.jpg.!ut", Unfinished("uTorrent")),
            ("b.jpg.bc!", Unfinished("BitComet")),
            ("photo.jpg.filepart", Unfinished("WinSCP")),
            ("~syncthing~b.jpg.tmp", Unfinished("a program that saves")),
            ("~syncthing~b.jpg", Unfinished("Syncthing")),
            (".syncthing.b.jpg.tmp", Unfinished("a program that saves")),
            ("photo.jpg_exiftool_tmp", Unfinished("ExifTool")),
            (".photo.svg.kate-swp", Unfinished("Kate")),
            (".goutputstream-ABC123", Unfinished("a program of GNOME that saves")),
            (".pending-1700000000-photo.jpg", Unfinished("Android")),
            ("photo.jpg.tmp", Unfinished("a program that saves")),
            ("photo.jpg.sb-1a2b3c4d-AbC123", Unfinished("a program of macOS that saves")),
            (".photo.jpg.Xa81bC", Unfinished("rsync")),
            (".photo.XXXXXX", Unfinished("rsync")),
            (".rsync-partial", Unfinished("rsync")),
            (".~tmp~", Litter),
            (".photo.jpg.~1a2b", Unfinished("Nextcloud")),
            ("photo.XXXXXX", Data),
            ("..XXXXXX", Hidden),
            (".photo.jpg", Hidden),
            (".hidden", Hidden),
            (".delete", Hidden),
            ("part", Data),
            (".part", Hidden),
            ("photo.party", Data),
            ("photo.part.bin", Data),
            ("photo.jpg", Data),
            ("tmp", Data),
            ("4913", Data),
            ("@5", Data),
            ("._photo.jpg", Litter),
        ] {
            assert_eq!(class(name), wanted, "{name}");
        }
    }
}
