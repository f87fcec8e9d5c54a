//! S25 to S30: reading.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::object;
use crate::harness::{Mount, Tables, errno, folder, names, python, sha256, write_blobs, xattr};

/// A file whose reads all come to the daemon: nothing is answered from the kernel's cache.
fn uncached(path: &Path) -> File {
    let direct = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    OpenOptions::new().read(true).custom_flags(direct).open(path).unwrap()
}

#[test]
fn s25_reads_end_at_the_end() {
    let mount = Mount::new(Tables::shared().path("scalar"));
    let path = mount.at("latest/6/blob.bin");
    let wanted = std::fs::read(&path).unwrap();
    assert_eq!(wanted.len(), 4097);
    for file in [uncached(&path), File::open(&path).unwrap()] {
        let mut buffer = [7; 100];
        for offset in [4097, 4098, 8192, 1 << 40, u64::try_from(i64::MAX).unwrap() - 100] {
            assert_eq!(file.read_at(&mut buffer, offset).unwrap(), 0, "at {offset}");
        }
        assert_eq!(buffer, [7; 100]);
        assert_eq!(file.read_at(&mut buffer, 4090).unwrap(), 7);
        assert_eq!(buffer[..7], wanted[4090..]);
        assert_eq!(file.read_at(&mut buffer, 4096).unwrap(), 1);
        assert_eq!(file.read_at(&mut buffer, 3997).unwrap(), 100);
        assert_eq!(file.read_at(&mut [], 10).unwrap(), 0);
        let mut large = vec![0; 1 << 20];
        assert_eq!(file.read_at(&mut large, 0).unwrap(), 4097);
        assert_eq!(large[..4097], wanted);
    }
    let empty = mount.at("latest/0/blob.bin");
    assert_eq!(uncached(&empty).read_at(&mut [0; 10], 0).unwrap(), 0);
}

#[test]
fn s26_a_missing_or_short_payload_is_an_error() {
    let tables = Tables::shared();
    for table in ["damaged", "damaged_managed"] {
        let mount = Mount::new(tables.path(table));
        let latest = tables.expected(table)["latest"].to_string();
        let mut failing = 0;
        for (row, cells) in tables.expected(table)["versions"][&latest]["rows"]
            .as_array()
            .unwrap()
            .iter()
            .enumerate()
        {
            let path = mount.at(format!("latest/{row}/blob.bin"));
            let result = std::fs::read(&path);
            if cells["files"]["blob.bin"]["error"] == "EIO" {
                assert_eq!(errno(result), 5, "{table} row {row}");
                let dd = std::process::Command::new("dd")
                    .arg(format!("if={}", path.display()))
                    .args(["bs=4096", "count=1"])
                    .output();
                assert_eq!(dd.unwrap().stdout, b"", "{table} row {row}");
                failing += 1;
            } else {
                assert_eq!(cells["files"]["blob.bin"]["sha256"], sha256(&result.unwrap()));
            }
        }
        assert_eq!(failing, 4, "{table}");
    }
}

#[test]
fn s26_a_payload_that_is_cut_while_it_is_open_is_an_error() {
    let folder = folder();
    let table = folder.path().join("t.lance");
    write_blobs(&table, "create", "[b'0123456789' * 600_000, b'packed' * 50_000]", "");
    let mount = Mount::with(&table, &["--no-passthrough"]);
    for row in [0, 1] {
        let path = mount.at(format!("1/{row}/blob.bin"));
        let (stored, offset, size) = object(&path);
        let open = [File::open(&path).unwrap(), uncached(&path)];
        let cut = offset + size / 2;
        OpenOptions::new().write(true).open(&stored).unwrap().set_len(cut).unwrap();
        for file in open {
            let mut buffer = [1; 4096];
            assert_eq!(errno(file.read_at(&mut buffer, size - 4096)), 5, "row {row}");
            // Across the cut: what is still there must not be given as if it were all.
            let read = file.read_at(&mut buffer, size / 2 - 100);
            assert!(matches!(read, Ok(100..4097) | Err(_)), "row {row}: {read:?}");
            assert!(!buffer[100..].contains(&0), "row {row}: zeros");
            assert_ne!(read.ok(), Some(4096), "row {row}");
        }
        assert_eq!(errno(File::open(&path)), 5, "row {row} opens again");
    }
}

/// A generator of offsets: xorshift, so that a failure comes again.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// The bytes of a value by way of its object, so that reading them does not fill a cache of the mount.
fn stored(path: &Path) -> Vec<u8> {
    let (file, offset, size) = object(path);
    let mut bytes = vec![0; usize::try_from(size).unwrap()];
    File::open(file).unwrap().read_exact_at(&mut bytes, offset).unwrap();
    bytes
}

fn read_at_random(path: &Path, wanted: &[u8], seed: u64, count: u32, open: impl Fn(&Path) -> File) {
    let file = open(path);
    let size = u64::try_from(wanted.len()).unwrap();
    let mut state = seed | 1;
    let mut buffer = vec![0; 70_000];
    for _ in 0..count {
        let offset = next(&mut state) % (size + 10);
        let most = 1 << (next(&mut state) % 17);
        let len = usize::try_from(next(&mut state) % most).unwrap() + 1;
        let got = file.read_at(&mut buffer[..len], offset).unwrap();
        let start = usize::try_from(offset.min(size)).unwrap();
        let end = (start + len).min(wanted.len());
        assert!(
            buffer[..got] == wanted[start..end],
            "{}: {len} at {offset}: {got}",
            path.display()
        );
    }
}

#[test]
fn s27_ten_thousand_reads_at_any_offset_from_several_threads() {
    let mount = Mount::new(Tables::shared().path("scalar"));
    let paths: Vec<PathBuf> =
        [12, 11, 10, 9, 6].iter().map(|row| mount.at(format!("1/{row}/blob.bin"))).collect();
    let wanted: Vec<Vec<u8>> = paths.iter().map(|path| stored(path)).collect();
    let opens: [fn(&Path) -> File; 2] = [uncached, |path| File::open(path).unwrap()];
    std::thread::scope(|scope| {
        for (thread, (path, bytes)) in paths.iter().zip(&wanted).cycle().take(10).enumerate() {
            let seed = u64::try_from(thread).unwrap() * 7919 + 12345;
            scope.spawn(move || read_at_random(path, bytes, seed, 1000, opens[thread % 2]));
        }
    });
    for (path, bytes) in paths.iter().zip(&wanted) {
        assert_eq!(sha256(&std::fs::read(path).unwrap()), sha256(bytes));
    }
}

#[test]
fn s27_several_processes_read_the_same() {
    let mount = Mount::new(Tables::shared().path("scalar"));
    let path = mount.at("1/12/blob.bin");
    let script = "import os, random, sys
path, object, start, size, seed, flags = sys.argv[1:]
start, size, pick = int(start), int(size), random.Random(int(seed))
file, whole = os.open(path, os.O_RDONLY | int(flags)), os.open(object, os.O_RDONLY)
for _ in range(1500):
    offset, count = pick.randrange(size), pick.randrange(1, 200_000)
    wanted = os.pread(whole, min(count, size - offset), start + offset)
    found = os.pread(file, count, offset)
    assert found == wanted, (offset, count, len(found))";
    let (stored, offset, size) = object(&path);
    let direct = rustix::fs::OFlags::DIRECT.bits().to_string();
    let children: Vec<_> = (0..4)
        .map(|seed| {
            let numbers = [offset, size, seed].map(|number| number.to_string());
            let flags = if seed % 2 == 0 { direct.as_str() } else { "0" };
            let mut child = python();
            child.args(["-c", script]).arg(&path).arg(&stored).args(&numbers).arg(flags);
            child.spawn().unwrap()
        })
        .collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn s28_values_can_be_mapped_private_and_shared() {
    let mount = Mount::new(Tables::shared().path("scalar"));
    let script = "import mmap, os, sys
for path, object, start, size in zip(*[iter(sys.argv[1:])] * 4):
    start, size = int(start), int(size)
    with open(object, 'rb') as stream:
        stream.seek(start)
        wanted = stream.read(size)
    for flags in (mmap.MAP_SHARED, mmap.MAP_PRIVATE):
        with open(path, 'rb') as stream, mmap.mmap(stream.fileno(), 0, flags, mmap.PROT_READ) as found:
            assert len(found) == size
            assert found[-1] == wanted[-1] and found[size // 2:] == wanted[size // 2:] and found[:] == wanted
print('same')";
    let mut command = python();
    command.arg("-c").arg(script);
    for row in [1, 5, 6, 9, 10, 12] {
        let path = mount.at(format!("1/{row}/blob.bin"));
        let (stored, offset, size) = object(&path);
        command.arg(path).arg(stored).args([offset.to_string(), size.to_string()]);
    }
    let output = command.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "same\n", "{output:?}");
}

#[test]
fn s29_pages_stay_when_a_file_is_opened_again() {
    let mount = Mount::with(Tables::shared().path("scalar"), &["--no-passthrough"]);
    let path = mount.at("1/12/blob.bin");
    let given = || mount.status()["bytes_read"].as_u64().unwrap();
    // Reading the status counts too: some hundred bytes.
    let (size, slack) = ((4 << 20) + 1, 16 << 10);
    let before = given();
    assert_eq!(std::fs::read(&path).unwrap().len(), size);
    let between = given();
    let size = u64::try_from(size).unwrap();
    assert!((size..size + slack).contains(&(between - before)), "{}", between - before);
    for _ in 0..3 {
        assert_eq!(u64::try_from(std::fs::read(&path).unwrap().len()).unwrap(), size);
    }
    assert!(given() - between < slack, "{} bytes were read again", given() - between);
}

#[test]
fn s30_what_is_bad_fails_alone() {
    let tables = Tables::shared();
    let folder = folder();
    let table = tables.copy("refs", folder.path());
    std::fs::write(table.join("_refs/tags/broken.json"), b"{ not json").unwrap();
    std::fs::write(table.join("_refs/branches/broken.json"), b"\xff\xfe").unwrap();
    let mount = Mount::new(&table);
    let tags = names(&mount.at("tags"));
    assert!(tags.contains(&"broken".to_owned()) && tags.len() > 5, "{tags:?}");
    assert_eq!(errno(std::fs::read_link(mount.at("tags/broken"))), 5);
    for tag in tags.iter().filter(|tag| *tag != "broken") {
        assert!(mount.at("tags").join(tag).join("0/row.json").is_file(), "{tag}");
    }
    assert!(names(&mount.at("branches")).len() > 5);
    assert!(mount.at("branches/a/latest/0/row.json").is_file());

    let mount = Mount::new(tables.path("unopenable"));
    let shown = names(&mount.path);
    assert_eq!(
        shown,
        [".lancefs", "1", "2", "3", "4", "5", "branches", "commit", "latest", "staging", "tags"]
    );
    for version in [2, 3, 4] {
        assert_eq!(errno(std::fs::read_dir(mount.at(version.to_string()))), 5, "{version}");
    }
    assert!(mount.at("1/2/blob.bin").is_file() && mount.at("5/6/row.json").is_file());

    let mount = Mount::new(tables.path("panicking"));
    assert_eq!(names(&mount.at("1/0")), ["blob.bin", "row.json"]);
    assert_eq!(std::fs::read(mount.at("1/0/blob.bin")).unwrap().len(), 3);
    assert_eq!(errno(std::fs::read(mount.at("1/0/panicking[0].bin"))), 5);
}

/// README "Errors": the whole story is in `user.lancefs.error` of the file that failed.
#[test]
fn s30_a_file_that_fails_says_why() {
    let tables = Tables::shared();
    let mut faults = Vec::new();
    for (table, file, failure, words) in [
        ("damaged", "1/blob.bin", 5, "No such file"),
        ("damaged", "2/blob.bin", 5, "truncated"),
        ("external", "0/blob.bin", 13, "--allow-external"),
        ("external_outside", "0/blob.bin", 13, "--allow-external"),
        ("unknown_base", "0/blob.bin", 5, "base"),
        ("external_base", "7/blob.bin", 5, "does-not-exist.bin"),
        ("panicking", "0/panicking[0].bin", 5, "panicking"),
    ] {
        let mount = tables.mount(table);
        let path = mount.at("latest").join(file);
        assert_eq!(errno(std::fs::read(&path)), failure, "{table} {file}");
        assert!(mount.log().contains(words), "{table} {file}: not in the log");
        // Of a list that cannot be read not even the elements are known: its row says why.
        let told = if table == "panicking" { path.parent().unwrap() } else { &path };
        let why = xattr(told, "user.lancefs.error");
        if !why.as_ref().is_ok_and(|why| why.contains(words)) {
            faults.push(format!("{table} {file}: {why:?}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
