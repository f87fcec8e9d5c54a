//! Tables in an object store: a real S3 server on loopback, behind a link that can be slow and fail.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::harness::{
    ACCESS_KEY, Mount, S3, SECRET_KEY, errno, eventually, folder, run_python, sha256,
};

const EIO: i32 = 5;
const EACCES: i32 = 13;
const ETIMEDOUT: i32 = 110;

/// Writes a table of values of one length in a few files to the bucket, by pylance through S3.
fn write(s3: &S3, name: &str, rows: usize, len: usize) {
    let options: Vec<String> =
        s3.options().iter().map(|(key, value)| format!("'{key}': '{value}'")).collect();
    run_python(&format!(
        "import random
source = random.Random(7)
schema = pa.schema([pa.field('id', pa.int64()), blob_field('blob')])
values = [source.randbytes({len}) for _ in range({rows})]
rows = pa.table([pa.array(range({rows}), pa.int64()), blob_array(values)], schema=schema)
lance.write_dataset(rows, '{}', data_storage_version='2.2', storage_options={{{}}})",
        s3.uri(name),
        options.join(", ")
    ));
}

fn read_all(mount: &Mount, row: usize) -> Vec<u8> {
    std::fs::read(mount.at(format!("1/{row}/blob.bin"))).unwrap()
}

/// How much each figure of what was asked of the store has grown.
fn grown_since(before: &serde_json::Value, mount: &Mount) -> impl Fn(&str) -> u64 {
    let (before, after) = (before.clone(), mount.status()["store"].clone());
    move |name| after[name].as_u64().unwrap() - before[name].as_u64().unwrap()
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let begun = Instant::now();
    (work(), begun.elapsed())
}

#[test]
fn looking_at_a_thousand_rows_asks_for_nothing_per_file() {
    let s3 = S3::new(&[]);
    write(&s3, "t", 1000, 30_000);
    let mount = s3.mount("t", &["--refresh", "1h"]);
    std::fs::metadata(mount.at("1/0/blob.bin")).unwrap();
    std::fs::metadata(mount.at("1/999/blob.bin")).unwrap();
    let before = s3.requests();
    for row in 0..1000 {
        for entry in std::fs::read_dir(mount.at(format!("1/{row}"))).unwrap() {
            let entry = entry.unwrap();
            if entry.file_name() == "blob.bin" {
                assert_eq!(entry.metadata().unwrap().len(), 30_000);
            }
        }
    }
    rustix::fs::statfs(&mount.path).unwrap();
    let after = s3.requests();
    // The attributes of a row.json are its text, which is scanned for many rows at once.
    assert_eq!(after - before, 0, "{before:?} {after:?}");
}

#[test]
fn a_walk_in_row_order_finds_the_next_page_there() {
    let s3 = S3::new(&[]);
    write(&s3, "t", 2000, 10);
    let mount = s3.mount("t", &["--refresh", "1h"]);
    let pages = || mount.status()["cache"]["pages"].as_u64().unwrap();
    let look = |row: u64| assert!(mount.at(format!("1/{row}/blob.bin")).is_file());
    for row in [400, 1300, 450] {
        look(row);
    }
    assert_eq!(pages(), 2, "looking here and there fetches what it needs");
    for row in 0..300 {
        look(row);
    }
    eventually("the next page is fetched", || pages() == 3);
}

#[test]
fn reading_in_row_order_streams_the_pack() {
    let s3 = S3::new(&[]);
    write(&s3, "t", 1000, 30_000);
    let mount = s3.mount("t", &["--refresh", "1h"]);
    read_all(&mount, 0);
    let before = mount.status()["store"].clone();
    let sums: Vec<_> = (0..1000).map(|row| sha256(&read_all(&mount, row))).collect();
    assert_eq!(sums.iter().collect::<std::collections::BTreeSet<_>>().len(), 1000);
    let grown = grown_since(&before, &mount);
    assert!(grown("gets") <= 100, "{} requests for 1000 files", grown("gets"));
    let wanted = 1000 * 30_000;
    assert!(grown("bytes_fetched") <= wanted * 102 / 100, "{} bytes", grown("bytes_fetched"));
    assert_eq!(grown("heads"), 0);
}

#[test]
fn random_reads_fetch_little_more_than_they_give() {
    let s3 = S3::new(&[]);
    write(&s3, "t", 1, 64 << 20);
    let mount = s3.mount("t", &["--refresh", "1h"]);
    let file = File::open(mount.at("1/0/blob.bin")).unwrap();
    let before = mount.status()["store"].clone();
    let (reads, len) = (100_u64, 128_u64 << 10);
    let mut buffer = vec![0; usize::try_from(len).unwrap()];
    for n in 0..reads {
        let offset = n * 7_919_000_003 % ((64 << 20) - len);
        file.read_exact_at(&mut buffer, offset).unwrap();
    }
    let grown = grown_since(&before, &mount);
    let percent = grown("bytes_fetched") * 100 / (reads * len);
    assert!(percent <= 130, "{percent} % fetched");
    assert!(grown("gets") <= 110, "{} requests", grown("gets"));
}

#[test]
fn many_streams_stay_within_the_memory_budget() {
    let s3 = S3::new(&[]);
    write(&s3, "t", 1, 192 << 20);
    let mount = s3.mount("t", &["--refresh", "1h", "--memory", "64MiB"]);
    let file = File::open(mount.at("1/0/blob.bin")).unwrap();
    let before = mount.peak();
    std::thread::scope(|scope| {
        for stream in 0..64 {
            let file = &file;
            scope.spawn(move || {
                let mut buffer = vec![0; 128 << 10];
                for n in 0..24 {
                    file.read_exact_at(&mut buffer, stream * (3 << 20) + (n << 17)).unwrap();
                }
            });
        }
    });
    let grown = (mount.peak() - before) >> 10;
    println!("64 streams: {grown} MiB more, {before} KiB before");
    // What the program itself takes was there before; connections and replies take the rest.
    assert!((32..64 + 100).contains(&grown), "{grown} MiB more");
    let fetched = mount.status()["store"]["bytes_fetched"].as_u64().unwrap();
    // With a MiB for each of them, some is dropped before it is read.
    assert!(fetched <= (192 << 20) * 130 / 100, "{fetched} bytes");
}

#[test]
fn a_file_never_seen_costs_three_round_trips_and_one_when_its_page_is_known() {
    let s3 = S3::new(&[]);
    write(&s3, "t", 3000, 30_000);
    let mount = s3.mount("t", &["--refresh", "1h"]);
    let first_byte = |row: usize| {
        let mut byte = [0];
        File::open(mount.at(format!("1/{row}/blob.bin")))
            .unwrap()
            .read_exact_at(&mut byte, 0)
            .unwrap();
    };
    first_byte(0);
    let before = s3.requests();
    first_byte(2500);
    let between = s3.requests();
    assert!(between - before <= 3, "{before:?} {between:?}");
    first_byte(2100);
    let after = s3.requests();
    assert_eq!(after - between, 1, "{between:?} {after:?}");
}

#[test]
fn a_link_that_hangs_ends_in_time_and_all_works_when_it_is_back() {
    let s3 = S3::new(&[]);
    write(&s3, "t", 2000, 30_000);
    let mount = s3.mount("t", &["--timeout", "3s", "--refresh", "1ms"]);
    assert_eq!(read_all(&mount, 5).len(), 30_000);
    s3.fault("hang");
    let listed = || {
        assert!(std::fs::read_dir(&mount.path).unwrap().count() >= 5);
        assert_eq!(std::fs::read_dir(mount.at("1")).unwrap().count(), 2001);
        assert_eq!(std::fs::metadata(mount.at("latest/7/blob.bin")).unwrap().len(), 30_000);
        rustix::fs::statfs(&mount.path).unwrap();
    };
    listed();
    let ((), took) = timed(listed);
    assert!(took < Duration::from_secs(2), "listed again in {took:?}");
    let (read, took) = timed(|| std::fs::read(mount.at("1/300/blob.bin")));
    assert_eq!(errno(read), ETIMEDOUT);
    assert!(took < Duration::from_secs(8), "{took:?}");
    let (seen, took) = timed(|| std::fs::metadata(mount.at("1/1999/blob.bin")));
    assert_eq!(errno(seen), ETIMEDOUT);
    assert!(took < Duration::from_secs(8), "{took:?}");
    assert_eq!(read_all(&mount, 5).len(), 30_000, "what was read is there");
    s3.fault("ok");
    eventually("reads again", || std::fs::read(mount.at("1/300/blob.bin")).is_ok());
    assert_eq!(read_all(&mount, 1999).len(), 30_000);
}

#[test]
fn a_link_that_fails_for_a_while_is_not_noticed() {
    let s3 = S3::new(&[]);
    write(&s3, "t", 40, 300_000);
    let mount = s3.mount("t", &["--refresh", "1h", "--read-ahead", "0"]);
    std::fs::metadata(mount.at("1/0/blob.bin")).unwrap();
    for (row, fault) in ["reset", "503", "cut", "trickle"].into_iter().enumerate() {
        let expected = sha256(&read_all(&mount, row + 20));
        assert_eq!(expected.len(), 64);
        let path = mount.at(format!("1/{row}/blob.bin"));
        s3.fault(fault);
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| std::fs::read(&path));
            std::thread::sleep(Duration::from_secs(1));
            s3.fault("ok");
            let bytes = reading.join().unwrap().unwrap_or_else(|e| panic!("{fault}: {e}"));
            assert_eq!(bytes.len(), 300_000, "{fault}");
        });
    }
}

#[test]
fn an_object_that_is_gone_or_short_is_an_error_and_its_siblings_read() {
    let s3 = S3::new(&[]);
    write(&s3, "t", 2, 6 << 20);
    let mount = s3.mount("t", &["--refresh", "1h"]);
    let mut objects: Vec<_> = walkdir::WalkDir::new(s3.bucket().join("t/data"))
        .into_iter()
        .map(|entry| entry.unwrap().into_path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "blob"))
        .collect();
    objects.sort();
    assert_eq!(objects.len(), 2);
    let of = |row: usize| {
        crate::harness::xattr(&mount.at(format!("1/{row}/blob.bin")), "user.lancefs.object")
            .unwrap()
    };
    let row_of =
        |path: &Path| usize::from(!of(0).ends_with(path.file_name().unwrap().to_str().unwrap()));
    let (short, fine) = (row_of(&objects[0]), row_of(&objects[1]));
    File::options().write(true).open(&objects[0]).unwrap().set_len(1 << 20).unwrap();
    assert_eq!(errno(std::fs::read(mount.at(format!("1/{short}/blob.bin")))), EIO);
    assert_eq!(read_all(&mount, fine).len(), 6 << 20);
}

#[test]
fn blocks_on_disk_survive_a_remount() {
    let s3 = S3::new(&[]);
    write(&s3, "t", 40, 300_000);
    let cache = folder();
    let folder = cache.path().join("cache");
    let arguments =
        ["--refresh", "1h", "--cache-dir", folder.to_str().unwrap(), "--cache-size", "256MiB"];
    let mount = s3.mount("t", &arguments);
    let before: Vec<_> = (0..40).map(|row| sha256(&read_all(&mount, row))).collect();
    let taken = s3_mount_fails(&s3, &arguments);
    assert!(taken.contains("used by another mount"), "{taken}");
    mount.unmount();
    drop(mount);
    let mount = s3.mount("t", &arguments);
    let after: Vec<_> = (0..40).map(|row| sha256(&read_all(&mount, row))).collect();
    assert_eq!(before, after);
    // What came faster than the disk took it was not kept; how much that is, is up to the disk.
    let status = mount.status();
    let figure = |of: &str, name: &str| status[of][name].as_u64().unwrap();
    assert!(figure("cache", "disk_hits") > 0, "{status:#}");
    assert!(figure("store", "bytes_fetched") < 40 * 300_000, "{status:#}");
}

#[test]
fn keys_that_are_rotated_are_picked_up_from_the_options_file() {
    let s3 = S3::new(&[]);
    write(&s3, "t", 100, 300_000);
    let file = relative(&s3.options_file(SECRET_KEY));
    let flags = ["--storage-options-file", file.to_str().unwrap(), "--refresh", "1h"];
    let mount = Mount::with(s3.uri("t"), &flags);
    assert_eq!(read_all(&mount, 0).len(), 300_000);
    if std::env::var_os("LANCEFS_TEST_SLOW").is_none() {
        return;
    }
    let read = |row: usize| std::fs::read(mount.at(format!("1/{row}/blob.bin")));
    s3.options_file("wrong");
    std::thread::sleep(Duration::from_secs(35));
    assert_eq!(errno(read(50)), EACCES);
    s3.options_file(SECRET_KEY);
    std::thread::sleep(Duration::from_secs(35));
    assert_eq!(read(50).unwrap().len(), 300_000);
}

/// The daemon does not stay in the folder that a path starts from.
fn relative(path: &Path) -> PathBuf {
    let here = std::env::current_dir().unwrap();
    let up: PathBuf = here.components().skip(1).map(|_| "..").collect();
    up.join(path.strip_prefix("/").unwrap())
}

#[test]
fn keys_of_a_profile_that_are_written_anew_are_picked_up() {
    let s3 = S3::new(&[]);
    write(&s3, "t", 100, 300_000);
    let folder = folder();
    let (keys, config) = (folder.path().join("credentials"), folder.path().join("config"));
    let profile = |secret: &str| {
        let text =
            format!("[lab]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {secret}\n");
        std::fs::write(&keys, text).unwrap();
    };
    profile(SECRET_KEY);
    std::fs::write(&config, "[profile lab]\nregion = us-east-1\n").unwrap();
    let is_key = |key: &str| key.contains("access_key");
    let options = s3.options().into_iter().filter(|(key, _)| !is_key(key));
    let flags: Vec<String> =
        options.map(|(key, value)| format!("--storage-option={key}={value}")).collect();
    let mut flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    flags.extend(["--refresh", "1h"]);
    let mount = Mount::unmounted();
    let variables = [
        ("AWS_PROFILE", "lab"),
        ("AWS_SHARED_CREDENTIALS_FILE", keys.to_str().unwrap()),
        ("AWS_CONFIG_FILE", config.to_str().unwrap()),
    ];
    mount.start_with(s3.uri("t"), &flags, &variables);
    assert_eq!(read_all(&mount, 0).len(), 300_000);
    let read = |row: usize| std::fs::read(mount.at(format!("1/{row}/blob.bin")));
    profile("wrong");
    std::thread::sleep(Duration::from_secs(6));
    assert_eq!(errno(read(50)), EACCES);
    profile(SECRET_KEY);
    std::thread::sleep(Duration::from_secs(6));
    assert_eq!(read(50).unwrap().len(), 300_000);
}

/// Mounts where it must fail, and gives what was said.
fn s3_mount_fails(s3: &S3, arguments: &[&str]) -> String {
    let place = crate::harness::Place::new();
    let mut command = place.command(s3.uri("t"));
    for (key, value) in s3.options() {
        command.arg(format!("--storage-option={key}={value}"));
    }
    let output = command.args(arguments).output().unwrap();
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}
