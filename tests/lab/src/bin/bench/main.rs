//! The benchmark: lancefs beside the limit, pylance and its peers, on the same bytes in one run.
//! `scripts/bench` prepares what it needs and runs it; README "Performance" shows what it printed.
//!
//! 1. Figures of one run are compared, never those of two: each work is done by every system in
//!    turn, as often as `--repeat` says, and a cell is the median with the smallest and the largest.
//! 2. Cold means a mount of its own for every time; the server's files stay in its page cache.
//! 3. A link that is far away is `slowlink` (30 ms to the first byte, 100 MB/s for each connection).

mod data;
mod report;
mod systems;
mod work;

use std::path::PathBuf;

use data::Data;
use report::Report;

/// What `scripts/bench` gives.
pub struct Arguments {
    /// The release build.
    pub lancefs: PathBuf,
    /// A Python with pylance.
    pub python: PathBuf,
    /// Where the other tools of the lab are.
    pub lab: PathBuf,
    /// Where the data and the report go.
    pub folder: PathBuf,
    /// How often each cell is measured.
    pub repeat: usize,
    /// The large value, in MiB.
    pub mib: u64,
    /// The small values, 30,000 bytes each.
    pub small: usize,
    /// Rows of the table that `find` walks; 0 leaves it out.
    pub rows: u64,
    /// Only works whose name holds this.
    pub only: String,
}

fn main() {
    let mut arguments = Arguments {
        lancefs: PathBuf::new(),
        python: PathBuf::new(),
        lab: PathBuf::new(),
        folder: PathBuf::new(),
        repeat: 3,
        mib: 1024,
        small: 10_000,
        rows: 1_000_000,
        only: String::new(),
    };
    let mut given = std::env::args().skip(1);
    while let Some(name) = given.next() {
        let value = given.next().unwrap_or_else(|| usage(&name));
        let number = || value.parse::<u64>().unwrap_or_else(|_| usage(&name));
        match name.as_str() {
            "--lancefs" => arguments.lancefs = value.into(),
            "--python" => arguments.python = value.into(),
            "--lab" => arguments.lab = value.into(),
            "--folder" => arguments.folder = value.into(),
            "--repeat" => arguments.repeat = number() as usize,
            "--mib" => arguments.mib = number(),
            "--small" => arguments.small = number() as usize,
            "--rows" => arguments.rows = number(),
            "--only" => arguments.only = value,
            _ => usage(&name),
        }
    }
    let data = Data::prepare(&arguments);
    let mut report = Report::new(&arguments);
    work::local(&arguments, &data, &mut report);
    work::remote(&arguments, &data, &mut report);
    report.finish();
}

fn usage(name: &str) -> ! {
    eprintln!("bench: {name}: not known, or without a value; see src/bin/bench/main.rs");
    std::process::exit(2);
}
