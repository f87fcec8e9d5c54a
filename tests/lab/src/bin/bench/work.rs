//! The works, and who does them.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::Arguments;
use super::data::{Data, SMALL};
use super::report::{Better, Report};
use super::systems::{Endpoint, Mount, System};

mod commit;
mod limit;

/// One read of a program, in bytes; what `cat` uses.
const READ: usize = 128 << 10;
/// Random reads of one measurement.
const RANDOM: usize = 60;
/// The link that is far away.
const FAR: [&str; 4] = ["--latency-ms", "30", "--rate-mb", "100"];

/// Works on a table of this machine.
pub fn local(arguments: &Arguments, data: &Data, report: &mut Report) {
    let mib = arguments.mib as f64 * 1.048_576;
    if report.wants("local, whole object, sequential") {
        for round in 0..arguments.repeat {
            let mount = Mount::local(arguments, &data.big_table, &[]);
            // The very object, not a file with the same bytes: how the kernel has cut a file into
            // folios makes a difference of a fifth. Asking for it looks up the descriptor as well.
            let object = data.place(&mount.big()).0;
            if round == 0 {
                read_file(&object);
            }
            report.add("native", mib / sequential(&object));
            report.add("lancefs", mib / sequential(&mount.big()));
            drop(mount);
            let mount = Mount::local(arguments, &data.big_table, &["--no-passthrough"]);
            std::fs::metadata(mount.big()).expect("a file");
            report.add("lancefs --no-passthrough", mib / sequential(&mount.big()));
        }
        report.end("MB/s", Better::More, "native");
    }
    if report.wants("local, inside a data file, sequential") {
        for _ in 0..arguments.repeat {
            let mount = Mount::local(arguments, &data.inline_table, &[]);
            let value = mount.path.join("1/0/blob.bin");
            let place = data.place(&value);
            let mb = place.2 as f64 / 1e6;
            report.add("native", mb / part(&place.0, place.1, place.2));
            report.add("lancefs", mb / sequential(&value));
            drop(mount);
            let mount = Mount::bare(arguments, &place);
            report.add("bare loop", mb / sequential(&mount.path.join("value")));
        }
        report.end("MB/s", Better::More, "bare loop");
    }
    if let Some(table) = &data.rows_table
        && report.wants("local, find over all rows")
    {
        for _ in 0..arguments.repeat.min(2) {
            let mount = Mount::local(arguments, table, &[]);
            let begun = Instant::now();
            let output = Command::new("find").arg(mount.path.join("1")).output().expect("find");
            let entries = output.stdout.iter().filter(|byte| **byte == b'\n').count();
            report.add("lancefs", entries as f64 / begun.elapsed().as_secs_f64());
            report.add("peak MiB", mount.peak());
        }
        report.end("entries/s", Better::More, "lancefs");
    }
}

/// Works on an object store.
pub fn remote(arguments: &Arguments, data: &Data, report: &mut Report) {
    let server = Endpoint::server(arguments, &data.root);
    let far = Endpoint::link(arguments, &server, &FAR);
    sequential_remote(arguments, report, "S3, sequential, cold", &server);
    commit::works(arguments, data, report, &server);
    // What the commits wrote goes to the disk now, not while something else is measured.
    let _ = Command::new("sync").status();
    sequential_remote(arguments, report, "far S3, sequential, cold", &far);
    small(arguments, report, &far);
    random(arguments, report, &far);
    first_byte(arguments, report, &far);
}

fn sequential_remote(arguments: &Arguments, report: &mut Report, name: &str, endpoint: &Endpoint) {
    if !report.wants(name) {
        return;
    }
    let mb = arguments.mib as f64 * 1.048_576;
    let mut cpu = Vec::new();
    for _ in 0..arguments.repeat {
        report.add("limit, 16 GETs", mb / limit::sequential(endpoint, arguments.mib << 20));
        for system in System::here() {
            let mount = Mount::remote(arguments, system, endpoint, "big");
            report.add(system.name(), mb / sequential(&mount.big()));
            cpu.push((system.name(), mount.cpu() / (arguments.mib as f64 / 1024.0)));
            if system == System::Lancefs {
                report.add("lancefs, peak MiB", mount.peak());
            }
        }
        report.add("pylance", mb / limit::pylance_sequential(arguments, endpoint));
    }
    report.end("MB/s", Better::More, "limit, 16 GETs");
    report.begin(&format!("{name}: CPU of the mount"));
    for (system, seconds) in cpu {
        report.add(system, seconds);
    }
    report.end("s/GiB", Better::Less, "lancefs");
}

fn small(arguments: &Arguments, report: &mut Report, endpoint: &Endpoint) {
    let all = arguments.small;
    // Peers that take a round trip or two for each file are given fewer.
    let share = |system: System| if system == System::Lancefs { all } else { all.min(100) };
    if report.wants("far S3, small values in row order") {
        for _ in 0..arguments.repeat {
            for system in System::here() {
                let mount = Mount::remote(arguments, system, endpoint, "small");
                let count = share(system);
                let seconds = each(1, count, |n| read_file(&mount.small(n)));
                report.add(system.name(), count as f64 / seconds);
            }
            let count = all.min(100);
            report.add("pylance", count as f64 / limit::pylance_small(arguments, endpoint, count));
        }
        report.end("files/s", Better::More, "lancefs");
    }
    if report.wants("far S3, small values in random order, 16 threads") {
        for _ in 0..arguments.repeat {
            for system in System::here() {
                let mount = Mount::remote(arguments, system, endpoint, "small");
                let count = share(system).min(2000) * if system == System::Lancefs { 1 } else { 4 };
                let seconds = each(16, count, |n| read_file(&mount.small(shuffled(n, all))));
                report.add(system.name(), count as f64 / seconds);
            }
        }
        report.end("files/s", Better::More, "lancefs");
    }
}

fn random(arguments: &Arguments, report: &mut Report, endpoint: &Endpoint) {
    let blocks = (arguments.mib << 20) as usize / READ;
    if report.wants("far S3, random 128 KiB, one thread: median") {
        let mut fetched = Vec::new();
        for _ in 0..arguments.repeat {
            report.add("limit, one GET", limit::random(endpoint, RANDOM, READ, blocks));
            for system in System::here() {
                let mount = Mount::remote(arguments, system, endpoint, "big");
                let file = File::open(mount.big()).expect("a file");
                let before = endpoint.traffic();
                let mut times: Vec<f64> = (0..RANDOM)
                    .map(|n| timed(|| pread(&file, shuffled(n, blocks) * READ, READ)))
                    .collect();
                times.sort_by(f64::total_cmp);
                report.add(system.name(), times[RANDOM / 2] * 1000.0);
                let bytes = (endpoint.traffic().1 - before.1) as f64;
                fetched.push((system.name(), bytes / (RANDOM * READ) as f64));
            }
        }
        report.end("ms", Better::Less, "limit, one GET");
        report.begin("far S3, random 128 KiB: bytes fetched for each read");
        for (system, ratio) in fetched {
            report.add(system, ratio);
        }
        report.end("×", Better::Less, "lancefs");
    }
    // The peers fetch so much more than they give that this would take them an hour.
    if report.wants("far S3, random 128 KiB: 16 threads against one") {
        for _ in 0..arguments.repeat {
            let rate = |threads: usize| {
                let mount = Mount::remote(arguments, System::Lancefs, endpoint, "big");
                let file = File::open(mount.big()).expect("a file");
                let count = RANDOM * threads;
                let read = |n| pread(&file, shuffled(n, blocks) * READ, READ);
                count as f64 / each(threads, count, read)
            };
            report.add("lancefs", rate(16) / rate(1));
        }
        report.end("×", Better::More, "lancefs");
    }
}

fn first_byte(arguments: &Arguments, report: &mut Report, endpoint: &Endpoint) {
    if !report.wants("far S3, first byte of a file never seen") {
        return;
    }
    for _ in 0..arguments.repeat {
        for system in System::here() {
            let mount = Mount::remote(arguments, system, endpoint, "small");
            read_file(&mount.small(0));
            let byte = |n: usize| timed(|| pread(&File::open(mount.small(n)).expect("a file"), 0, 1));
            report.add(system.name(), byte(arguments.small - 1) * 1000.0);
            if system == System::Lancefs {
                report.add("lancefs, page known", byte(arguments.small - 9) * 1000.0);
            }
        }
    }
    report.end("ms", Better::Less, "lancefs");
}

fn timed(work: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    work();
    begun.elapsed().as_secs_f64()
}

/// Reads a file from end to end; gives seconds.
fn sequential(path: &Path) -> f64 {
    timed(|| read_file(path))
}

fn read_file(path: &Path) {
    let mut file = File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut buffer = vec![0; READ];
    let mut total = 0;
    loop {
        match file.read(&mut buffer).unwrap_or_else(|e| panic!("{}: {e}", path.display())) {
            0 => break,
            read => total += read,
        }
    }
    assert!(total >= SMALL, "{}: {total} bytes", path.display());
}

/// Reads a part of a file in order; gives seconds.
fn part(path: &Path, offset: u64, len: u64) -> f64 {
    let file = File::open(path).expect("an object");
    let whole = len as usize / READ * READ;
    timed(|| (0..whole / READ).for_each(|n| pread(&file, offset as usize + n * READ, READ)))
}

fn pread(file: &File, offset: usize, len: usize) {
    let mut buffer = vec![0; len];
    file.read_exact_at(&mut buffer, offset as u64).expect("bytes");
}

/// Does a work for each number, on so many threads; gives seconds.
fn each(threads: usize, count: usize, work: impl Fn(usize) + Sync) -> f64 {
    let next = AtomicUsize::new(0);
    timed(|| {
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while let Some(n) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|n| *n < count) {
                        work(n);
                    }
                });
            }
        });
    })
}

/// The n-th of `count` numbers in an order without runs, none twice before all were there.
fn shuffled(n: usize, count: usize) -> usize {
    let step = (count as f64 * 0.618_034) as usize | 1;
    let step = (step..).find(|step| gcd(*step, count) == 1).unwrap_or(1);
    (n + 1) * step % count
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
