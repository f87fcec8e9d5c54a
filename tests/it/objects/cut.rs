//! Local objects that are cut or written to while somebody has them open, at default settings.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::harness::{Mount, errno, eventually, folder, python, run_python, xattr};

const EIO: i32 = 5;
const SIGBUS: i32 = 7;
const LENGTH: usize = 6_000_000;

/// The bytes of a row's value.
fn value(row: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| u8::try_from((i * 7 + row) % 251).unwrap()).collect()
}

/// Writes a table of values that are whole objects each.
fn write(table: &Path, rows: usize, len: usize, managed: bool) {
    let metadata = if managed { "{'lance.blob.managed': 'true'}" } else { "None" };
    let field = if managed {
        "blob_field('blob')"
    } else {
        "blob_field('blob', dedicated_size_threshold=4096, inline_size_threshold=64)"
    };
    run_python(&format!(
        "schema = pa.schema([pa.field('id', pa.int64()), {field}], metadata={metadata})
values = [bytes((i * 7 + row) % 251 for i in range({len})) for row in range({rows})]
rows = pa.table([pa.array(range({rows}), pa.int64()), blob_array(values)], schema=schema)
lance.write_dataset(rows, '{}', data_storage_version='2.2')",
        table.display()
    ));
}

fn object(value: &Path) -> PathBuf {
    let uri = xattr(value, "user.lancefs.object").unwrap();
    url::Url::parse(&uri).unwrap().to_file_path().unwrap()
}

/// Cuts a file as another process does.
fn cut(path: &Path, len: u64) {
    let script = "import os, sys; os.truncate(sys.argv[1], int(sys.argv[2]))";
    let cut = python().args(["-c", script]).arg(path).arg(len.to_string()).status().unwrap();
    assert!(cut.success());
}

/// Whether the kernel reads a value by itself: what it does is not counted. The part is one that
/// nobody has read before.
fn is_passed_through(mount: &Mount, file: &File, mebibyte: u64) -> bool {
    let given = || mount.status()["bytes_read"].as_u64().unwrap();
    let before = given();
    let mut part = vec![0; 1 << 20];
    file.read_exact_at(&mut part, mebibyte << 20).unwrap();
    // Reading the status counts too.
    given() - before < 64 << 10
}

fn one_value() -> (tempfile::TempDir, Mount, PathBuf) {
    let folder = folder();
    let table = folder.path().join("t.lance");
    write(&table, 1, LENGTH, true);
    let mount = Mount::new(&table);
    let path = mount.at("1/0/blob.bin");
    assert_eq!(xattr(&path, "user.lancefs.kind").unwrap(), "managed");
    (folder, mount, path)
}

#[test]
fn s26_an_object_that_is_cut_while_it_is_read_is_an_error_and_no_short_end() {
    let (_folder, mount, path) = one_value();
    let object = object(&path);
    let mut file = File::open(&path).unwrap();
    let mut other = File::open(&path).unwrap();
    if rustix::process::geteuid().is_root() {
        assert!(is_passed_through(&mount, &file, 2), "the default is as fast as it can be");
    }
    let mut head = vec![0; 50_000];
    file.read_exact(&mut head).unwrap();
    assert_eq!(head, value(0, LENGTH)[..50_000]);
    cut(&object, 100_000);
    let mut rest = Vec::new();
    assert_eq!(errno(file.read_to_end(&mut rest)), EIO, "after {} bytes", rest.len());
    assert_eq!(errno(other.read(&mut head)), EIO, "whoever has it open");
    assert_eq!(errno(other.metadata()), EIO);
    assert_eq!(errno(std::fs::read(&path)), EIO, "and who opens it now");
    let why = xattr(&path, "user.lancefs.error").unwrap();
    assert!(why.contains("truncated: 100000 bytes"), "{why}");
}

#[test]
fn s26_an_object_that_grows_while_it_is_read_is_an_error_for_who_has_it_open() {
    let (_folder, _mount, path) = one_value();
    let mut file = File::open(&path).unwrap();
    let mut head = [0; 100];
    file.read_exact(&mut head).unwrap();
    File::options().append(true).open(object(&path)).unwrap().write_all(b"more").unwrap();
    assert_eq!(errno(file.read(&mut head)), EIO);
    assert!(std::fs::read(&path).unwrap() == value(0, LENGTH), "the value is what it was");
}

#[test]
fn s26_a_cut_object_ends_who_has_it_mapped() {
    let (_folder, _mount, path) = one_value();
    let script = "import mmap, sys
with open(sys.argv[1], 'rb') as stream, mmap.mmap(stream.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as found:
    assert len(found) == 6000000 and found[0] == 0
    print('mapped', flush=True)
    sys.stdin.readline()
    print(found[5000000])";
    let mut child = python()
        .args(["-c", script])
        .arg(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert_eq!(line, "mapped\n");
    cut(&object(&path), 100_000);
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    let ended = child.wait().unwrap();
    assert_eq!(ended.signal(), Some(SIGBUS), "{ended}");
}

#[test]
fn s26_an_object_that_was_opened_for_writing_and_left_as_it_was_reads_again() {
    let (_folder, mount, path) = one_value();
    let object = object(&path);
    let file = File::open(&path).unwrap();
    let mut part = [0; 10];
    file.read_exact_at(&mut part, 0).unwrap();
    let writer = File::options().write(true).open(&object).unwrap();
    assert_eq!(errno(file.read_at(&mut part, 0)), EIO, "nobody knows what will be written");
    let opened = File::open(&path).unwrap();
    assert!(!is_passed_through(&mount, &opened, 0), "no lease, no passthrough");
    drop(writer);
    let second = File::open(&path).unwrap();
    assert!(!is_passed_through(&mount, &second, 4), "all opens of an inode are of one sort");
    drop((opened, second));
    if rustix::process::geteuid().is_root() {
        // The kernel tells of a file that was closed when it likes.
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(is_passed_through(&mount, &File::open(&path).unwrap(), 2), "by the kernel again");
    }
    assert!(std::fs::read(&path).unwrap() == value(0, LENGTH));
}

/// README "Semantics", S26: a value that is copied by `sendfile` may end early, but never in silence.
#[test]
fn s26_who_copies_by_sendfile_is_told_at_the_end() {
    let (folder, _mount, path) = one_value();
    let script = "import os, sys
source, target = os.open(sys.argv[1], os.O_RDONLY), os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT)
assert os.sendfile(target, source, 0, 1000) == 1000
os.truncate(sys.argv[3], 100000)
told = []
for call in (lambda: os.fstat(source), lambda: os.read(source, 1), lambda: os.close(source)):
    try:
        call()
    except OSError as error:
        told.append(error.errno)
print(told)";
    let copy = folder.path().join("copy");
    let told =
        python().args(["-c", script]).arg(&path).arg(copy).arg(object(&path)).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&told.stdout), "[5, 5, 5]\n", "{told:?}");
}

/// `truncate(1)` does not wait: it is refused once, and by then nobody reads the object any more.
#[test]
fn who_would_not_wait_is_refused_once_and_may_cut_then() {
    let (_folder, _mount, path) = one_value();
    let mut file = File::open(&path).unwrap();
    let mut head = [0; 100];
    file.read_exact(&mut head).unwrap();
    eventually("it is cut", || {
        let mut cut = Command::new("truncate");
        cut.args(["-s", "100000"]).arg(object(&path)).stderr(Stdio::null());
        cut.status().unwrap().success()
    });
    assert_eq!(errno(file.read(&mut head)), EIO);
}

#[test]
fn s14_an_object_that_is_renamed_or_removed_is_read_to_its_end() {
    let (_folder, mount, path) = one_value();
    let object = object(&path);
    let mut file = File::open(&path).unwrap();
    let moved = object.with_extension("moved");
    std::fs::rename(&object, &moved).unwrap();
    std::fs::remove_file(&moved).unwrap();
    let mut all = Vec::new();
    file.read_to_end(&mut all).unwrap();
    assert!(all == value(0, LENGTH));
    assert!(!mount.log().contains("is being cut"), "{}", mount.log());
}

#[test]
fn s26_of_many_open_files_the_one_that_is_cut_fails_and_no_other() {
    const ROWS: usize = 400;
    const OPENS: usize = 5;
    let folder = folder();
    let table = folder.path().join("t.lance");
    write(&table, ROWS, 5_000, false);
    let mount = Mount::new(&table);
    let path = |row: usize| mount.at(format!("1/{row}/blob.bin"));
    assert_eq!(xattr(&path(0), "user.lancefs.kind").unwrap(), "dedicated");
    let rows = (0..ROWS * OPENS).map(|n| n % ROWS);
    let files: Vec<(usize, File)> = rows.map(|row| (row, File::open(path(row)).unwrap())).collect();
    let bad = [3, 200, 399];
    for row in bad {
        cut(&object(&path(row)), 10);
    }
    let mut bytes = vec![0; 5_000];
    for (row, file) in &files {
        let read = file.read_exact_at(&mut bytes, 0);
        if bad.contains(row) {
            assert_eq!(errno(read), EIO, "row {row}");
        } else {
            read.unwrap();
            assert!(bytes == value(*row, 5_000), "row {row}");
        }
    }
}
