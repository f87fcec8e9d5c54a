//! Damaged files of every kind that is decoded: whatever is in a file, the daemon lives, what is
//! beside it reads, and no more memory is asked for than a machine has.
//!
//! One table has many data files, each with a deletion file, and a version for each; every file is
//! damaged in its own way, and one mount is asked for all of it. What is tried follows from a seed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::harness::{
    LANCEFS, Mount, Place, S3, Tables, copy_folder, errno, eventually, folder, names, run_python,
    stderr, xattr,
};

/// What the program may take of its address space, in KiB: some times what it has when it is idle,
/// and far less than any of the lengths that are put into files.
const ADDRESS_SPACE: u64 = 8 << 20;
/// Data files of the table, and rows of each before one is deleted.
const FILES: usize = 40;
const ROWS: usize = 12;
const LENGTHS: [u64; 5] = [1 << 40, 1 << 63, u64::MAX, 0, (1 << 31) + 7];

/// The table, made once.
fn template() -> &'static Path {
    static TEMPLATE: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let table = Tables::shared().folder.join("template-of-damage");
        run_python(&format!(
            "import datetime
zstd = {{'lance-encoding:compression': 'zstd'}}
schema = pa.schema([pa.field('id', pa.int64()), pa.field('name', pa.string()),
    pa.field('text', pa.large_string(), metadata=zstd), pa.field('number', pa.float32()),
    pa.field('vector', pa.list_(pa.float32(), 4)), pa.field('tags', pa.list_(pa.string())),
    pa.field('time', pa.timestamp('us')), pa.field('flag', pa.bool_()),
    pa.field('word', pa.dictionary(pa.int8(), pa.string())),
    blob_field('blob'), pa.field('frames', pa.list_(blob_field('item')))])
for file in range({FILES}):
    ids = list(range(file * {ROWS}, (file + 1) * {ROWS}))
    frames = pa.ListArray.from_arrays(pa.array(range(0, 2 * {ROWS} + 1, 2), pa.int32()),
        blob_array([b'f%d' % i for i in range(2 * {ROWS})]), type=schema.field('frames').type)
    columns = [pa.array(ids), pa.array([f'name {{i}}' for i in ids]),
        pa.array([f'text {{i}} ' * 40 for i in ids], pa.large_string()), pa.array([i / 3 for i in ids], pa.float32()),
        pa.array([[float(i)] * 4 for i in ids], schema.field('vector').type), pa.array([['a', str(i)][:i % 3] for i in ids], schema.field('tags').type),
        pa.array([datetime.datetime(2024, 1, 1 + i % 28) for i in ids], pa.timestamp('us')), pa.array([i % 2 == 0 for i in ids]),
        pa.array([f'w{{i % 5}}' for i in ids]).dictionary_encode().cast(schema.field('word').type),
        blob_array([None if i % 7 == 3 else b'%d' % i * 50 for i in ids]), frames]
    rows = pa.Table.from_arrays(columns, schema=schema)
    ds = lance.write_dataset(rows, {table:?}, mode='append' if file else 'create', data_storage_version='2.2',
        enable_stable_row_ids=True)
ds.delete('id % {ROWS} = 7')
ds.tags.create('one', 1)
ds.create_branch('side', 2)"
        ));
        table
    })
}

/// xorshift, so that a failure comes again.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(end.max(1)).unwrap()).unwrap()
    }
}

/// Where a number stands that can be an offset or a length in the file.
fn numbers(file: &[u8]) -> Vec<usize> {
    let len = u64::try_from(file.len()).unwrap();
    let is_one = |at: &usize| {
        let number = u64::from_le_bytes(file[*at..*at + 8].try_into().unwrap());
        (1..=len).contains(&number)
    };
    (0..file.len().saturating_sub(7)).filter(is_one).collect()
}

/// Where a file is damaged.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Where it says what is where: at its end.
    End,
    Any,
}

/// Damages a file, and says how.
fn damage(path: &Path, part: Part, way: usize, random: &mut Random) -> String {
    let mut bytes = fs::read(path).unwrap();
    let is_text = path.extension().is_some_and(|extension| extension == "json");
    let said = match if is_text { 2 + way % 2 } else { way % 4 } {
        0 | 1 => {
            let all = numbers(&bytes);
            // Of the many, those near the end are the ones that say where everything else is.
            let near = part == Part::End || way.is_multiple_of(4);
            let from = if near { all.len().saturating_sub(40) } else { 0 };
            let Some(&at) = all.get(from + random.below(all.len() - from)) else {
                return String::new();
            };
            let number = LENGTHS[random.below(LENGTHS.len())];
            bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
            format!("{number} at {at}")
        }
        2 => {
            let near = part == Part::End || random.below(2) == 0;
            let from = if near { bytes.len().saturating_sub(1200) } else { 0 };
            let at = from + random.below(bytes.len() - from);
            let end = (at + 1 + random.below(9)).min(bytes.len());
            bytes[at..end].fill(0xff);
            format!("0xff at {at}..{end}")
        }
        _ => {
            let mut at = Vec::new();
            for _ in 0..=random.below(6) {
                let from = if part == Part::End { bytes.len().saturating_sub(1200) } else { 0 };
                let bit = from * 8 + random.below((bytes.len() - from) * 8);
                bytes[bit / 8] ^= 1 << (bit % 8);
                at.push(bit / 8);
            }
            format!("bits at {at:?}")
        }
    };
    fs::write(path, bytes).unwrap();
    format!("{}: {said}", path.file_name().unwrap().display())
}

/// Runs the program with an end to its memory.
fn limited(arguments: &[&str]) -> Output {
    let script = format!("ulimit -v {ADDRESS_SPACE}; exec \"$0\" \"$@\"");
    Command::new("sh").args(["-c", &script, &LANCEFS]).args(arguments).output().unwrap()
}

fn files(table: &Path, below: &str, extension: &str) -> Vec<PathBuf> {
    let paths = names(&table.join(below)).into_iter().map(|name| table.join(below).join(name));
    let mut files: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|e| e == extension)).collect();
    files.sort();
    files
}

/// Mounts a damaged table, looks at everything, and gives how many files read and how many failed.
fn walk(table: &Path, told: &[String]) -> (usize, usize) {
    let place = Place::new();
    let log = place.log_path();
    let mounted = limited(&[
        "mount",
        table.to_str().unwrap(),
        place.path.to_str().unwrap(),
        "--log-file",
        log.to_str().unwrap(),
    ]);
    assert!(mounted.status.success(), "{}\n{told:#?}", stderr(&mounted));
    let (mut read, mut failed) = (0, 0);
    let mut note = |what: &Path, result: std::io::Result<()>| match result {
        Ok(()) => read += 1,
        Err(error) => {
            failed += 1;
            let number = error.raw_os_error();
            let log = || fs::read_to_string(&log).unwrap_or_default();
            let is_said = matches!(number, Some(2 | 5 | 13 | 116));
            assert!(is_said, "{}: {error}\n{told:#?}\n{}", what.display(), log());
        }
    };
    let list = |path: &Path| -> std::io::Result<Vec<PathBuf>> {
        fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect()
    };
    let numbered =
        |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().parse::<u64>().is_ok();
    for version in list(&place.path).unwrap().iter().filter(|path| numbered(path)) {
        let listed = list(version);
        let rows = listed.as_ref().map(Clone::clone).unwrap_or_default();
        note(version, listed.map(drop));
        note(version, fs::read(version.join(".version.json")).map(drop));
        let newest = version.ends_with((FILES + 1).to_string());
        for row in rows.iter().filter(|path| numbered(path) && newest) {
            match list(row) {
                Ok(all) => all.iter().for_each(|file| note(file, fs::read(file).map(drop))),
                Err(error) => note(row, Err(error)),
            }
        }
    }
    for path in ["tags/one", "branches/side/latest"] {
        note(&place.path.join(path), fs::read_link(place.path.join(path)).map(drop));
    }
    assert!(place.pid() > 0, "{told:#?}");
    (read, failed)
}

fn is_slow_tier() -> bool {
    std::env::var_os("LANCEFS_TEST_SLOW").is_some()
}

/// A copy of the table with files damaged by `choose`, seed by seed.
fn lives(kind: &str, part: Part, choose: impl Fn(&Path) -> Vec<PathBuf>) {
    let seeds: u64 = if is_slow_tier() { 30 } else { 1 };
    let mut failures = 0;
    for seed in 1..=seeds {
        let folder = folder();
        let table = folder.path().join("t.lance");
        copy_folder(template(), &table);
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let told: Vec<String> = choose(&table)
            .iter()
            .enumerate()
            .map(|(way, path)| damage(path, part, way, &mut random))
            .collect();
        let (read, failed) = walk(&table, &told);
        assert!(read > FILES, "{kind}, seed {seed}: only {read} read\n{told:#?}");
        failures += failed;
        let verified = limited(&["verify", table.to_str().unwrap()]);
        let code = verified.status.code();
        assert!(matches!(code, Some(0 | 1 | 5)), "{code:?} {}\n{told:#?}", stderr(&verified));
    }
    assert!(failures > 0, "{kind}: nothing was damaged that anybody looked at");
}

#[test]
fn damaged_deletion_files_fail_alone() {
    lives("deletion files", Part::Any, |table| files(table, "_deletions", "arrow"));
}

#[test]
fn s54_damaged_data_files_fail_alone() {
    lives("data files", Part::End, |table| files(table, "data", "lance"));
    lives("pages of data files", Part::Any, |table| files(table, "data", "lance"));
}

/// Puts a tebibyte in the place of how long a piece of a compressed column is without compression.
fn ask_for_a_tebibyte_of_text(data: &Path) {
    const ZSTD_FRAME: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
    let mut bytes = fs::read(data).unwrap();
    let frames: Vec<usize> =
        (8..bytes.len()).filter(|at| bytes[*at..].starts_with(&ZSTD_FRAME)).collect();
    assert!(!frames.is_empty(), "nothing is compressed in {}", data.display());
    for at in frames {
        bytes[at - 8..at].copy_from_slice(&(1_u64 << 40).to_le_bytes());
    }
    fs::write(data, bytes).unwrap();
}

#[test]
fn a_page_that_asks_for_a_tebibyte_is_an_error_of_its_column() {
    let folder = folder();
    let table = folder.path().join("t.lance");
    let data = run_python(&format!(
        "import random
zstd = {{'lance-encoding:compression': 'zstd'}}
schema = pa.schema([pa.field('text', pa.large_string(), metadata=zstd), blob_field('blob')])
for file in range(2):
    texts = [''.join(random.Random(row).choices('abcdefgh ', k=4000)) for row in range(12)]
    rows = pa.table([pa.array(texts, pa.large_string()), blob_array([b'%d' % file] * 12)], schema=schema)
    ds = lance.write_dataset(rows, {table:?}, mode='append' if file else 'create', data_storage_version='2.2')
print(ds.get_fragments()[1].data_files()[0].path)"
    ));
    ask_for_a_tebibyte_of_text(&table.join("data").join(data.trim()));
    let s3 = S3::new(&[]);
    s3.put(&table, "t");
    for mount in [Mount::new(&table), s3.mount("t", &["--refresh", "1h"])] {
        let damaged = mount.at("latest/13");
        for _ in 0..2 {
            assert_eq!(errno(fs::read(damaged.join("row.json"))), 5);
        }
        let why = xattr(&damaged.join("row.json"), "user.lancefs.error").unwrap();
        let is_said = why.contains("\"text\"") && why.contains("allocation of 1099511627776");
        assert!(is_said, "{why}");
        let listed = names(&damaged);
        let blob = listed.iter().find(|name| name.starts_with("blob.")).unwrap();
        assert_eq!(fs::read(damaged.join(blob)).unwrap(), b"1");
        let beside = fs::read(mount.at("latest/3/row.json")).unwrap();
        assert!(beside.starts_with(b"{\n"), "{}", mount.log());
        assert!(mount.pid() > 0);
    }
    let verified = limited(&["verify", "--columns", table.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&verified.stdout).into_owned() + &stderr(&verified);
    assert_eq!(verified.status.code(), Some(5), "{said}");
    let faults: Vec<_> =
        said.lines().filter(|line| line.contains("allocation of 1099511627776")).collect();
    assert!(faults.len() == 1 && faults[0].contains(data.trim()), "{said}");
}

/// The processes that a process has started and not yet seen end.
fn children(pid: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let lists =
        tasks.map(|task| fs::read_to_string(task.unwrap().path().join("children")).unwrap());
    let lists: Vec<String> = lists.collect();
    lists.iter().flat_map(|list| list.split_whitespace()).map(|pid| pid.parse().unwrap()).collect()
}

#[test]
fn a_decoder_that_is_killed_is_started_again_and_ends_with_its_mount() {
    let mount = Mount::new(template());
    let read = |row: usize| fs::read(mount.at(format!("latest/{row}/row.json"))).unwrap();
    read(0);
    let pid = mount.pid();
    let first = children(pid);
    assert_eq!(first.len(), 1, "{first:?}");
    let kill = |pid: i32, signal| {
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    };
    kill(first[0], rustix::process::Signal::KILL);
    (1..FILES).for_each(|file| drop(read(file * (ROWS - 1))));
    let second = children(pid);
    assert!(second.len() == 1 && second != first, "{first:?} {second:?}");
    kill(pid, rustix::process::Signal::KILL);
    let is_gone = || !Path::new(&format!("/proc/{}", second[0])).exists();
    eventually("the decoder ends with its mount", is_gone);
}

#[test]
fn damaged_manifests_fail_alone() {
    lives("manifests", Part::Any, |table| {
        let mut manifests = files(table, "_versions", "manifest");
        // The newest one comes first by name, and is what the others are compared with.
        manifests.remove(0);
        manifests
    });
}

#[test]
fn a_damaged_newest_manifest_fails_alone() {
    let mut said = BTreeSet::new();
    let rounds = if is_slow_tier() { 400 } else { 16 };
    let folder = folder();
    let table = folder.path().join("t.lance");
    copy_folder(template(), &table);
    let newest = files(&table, "_versions", "manifest").remove(0);
    let whole = fs::read(&newest).unwrap();
    let mut random = Random(7);
    for way in 0..rounds {
        fs::write(&newest, &whole).unwrap();
        let told = damage(&newest, Part::Any, way, &mut random);
        let output = limited(&["verify", table.to_str().unwrap()]);
        let code = output.status.code();
        assert!(matches!(code, Some(0 | 1 | 5)), "{code:?} {told}: {}", stderr(&output));
        said.insert(code);
    }
    assert!(said.contains(&Some(1)), "{said:?}");
}

#[test]
fn damaged_tags_and_branches_fail_alone() {
    lives("tags and branches", Part::Any, |table| {
        [files(table, "_refs/tags", "json"), files(table, "_refs/branches", "json")].concat()
    });
}

/// Puts a tebibyte in the place of the length of what a deletion file deletes: the smallest input of
/// the issue.
fn ask_for_a_tebibyte(deletions: &Path) {
    let mut bytes = fs::read(deletions).unwrap();
    // One row is deleted, the seventh: four bytes, which are no less when they are compressed.
    let written = [[0xff; 8].as_slice(), &7_u32.to_le_bytes()].concat();
    let at: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(&written)).collect();
    assert_eq!(at.len(), 1, "{bytes:?}");
    bytes[at[0]..at[0] + 8].copy_from_slice(&(1_u64 << 40).to_le_bytes());
    fs::write(deletions, bytes).unwrap();
}

#[test]
fn a_deletion_file_that_asks_for_a_tebibyte_is_an_error_of_its_rows() {
    let folder = folder();
    let table = folder.path().join("t.lance");
    copy_folder(template(), &table);
    ask_for_a_tebibyte(&files(&table, "_deletions", "arrow")[0]);
    let output = limited(&["verify", table.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &stderr(&output);
    assert_eq!(output.status.code(), Some(5), "{said}");
    let faults = said.lines().filter(|line| line.contains("cannot be: a buffer of 1099511627776"));
    assert_eq!(faults.count(), ROWS - 1, "{said}");
}

#[test]
fn objects_with_lengths_that_cannot_be_are_errors_of_their_rows() {
    let s3 = S3::new(&[]);
    s3.put(template(), "t");
    let table = s3.bucket().join("t");
    let first = |fragment: u32| {
        let all = files(&table, "_deletions", "arrow");
        let name = format!("{fragment}-");
        let is_its =
            |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(&name);
        all.into_iter().find(is_its).unwrap()
    };
    ask_for_a_tebibyte(&first(0));
    let data = run_python(&format!(
        "for fragment in lance.dataset({table:?}).get_fragments()[1:3]: print(fragment.data_files()[0].path)"
    ));
    // How many global buffers and columns there are: sixteen bytes for each of four thousand million.
    for (file, from_end) in data.lines().zip([16, 12]) {
        let path = table.join("data").join(file);
        let mut bytes = fs::read(&path).unwrap();
        let at = bytes.len() - from_end;
        bytes[at..at + 4].fill(0xff);
        fs::write(path, bytes).unwrap();
    }
    let mount = s3.mount("t", &["--refresh", "1h"]);
    let of_fragment = ROWS - 1;
    for row in 0..of_fragment * 5 {
        let read = fs::read(mount.at(format!("latest/{row}/row.json")));
        let path = mount.at(format!("latest/{row}/row.json"));
        if row >= of_fragment * 3 {
            assert!(read.is_ok(), "row {row}: {read:?}\n{}", mount.log());
            continue;
        }
        assert_eq!(errno(read), 5, "row {row}");
        let why = xattr(&path, "user.lancefs.error").unwrap();
        assert!(why.contains("cannot be: "), "row {row}: {why}");
    }
    assert!(mount.pid() > 0);
}

#[test]
fn a_newest_version_of_an_unknown_type_fails_alone() {
    let folder = folder();
    let table = folder.path().join("t.lance");
    copy_folder(template(), &table);
    let newest = files(&table, "_versions", "manifest").remove(0);
    let mut bytes = fs::read(&newest).unwrap();
    let at = bytes.windows(5).position(|word| word == b"int64").unwrap();
    bytes[at + 3] = b'9';
    fs::write(&newest, bytes).unwrap();
    let mount = Mount::new(&table);
    let latest = mount.at((FILES + 1).to_string());
    assert_eq!(fs::read_link(mount.at("latest")).unwrap(), Path::new(&(FILES + 1).to_string()));
    assert_eq!(errno(fs::read_dir(&latest)), 5);
    let why = xattr(&latest, "user.lancefs.error").unwrap();
    assert!(why.contains("\"id\" is of the type int94") && why.contains("newer"), "{why}");
    let before = mount.at(FILES.to_string());
    assert_eq!(names(&before).len(), FILES * ROWS + 1);
    assert!(fs::read(before.join("3/row.json")).unwrap().starts_with(b"{\n"));
    let verified = limited(&["verify", table.to_str().unwrap()]);
    assert_eq!(verified.status.code(), Some(1), "{}", stderr(&verified));
    assert!(stderr(&verified).contains("is of the type int94"), "{}", stderr(&verified));
}
