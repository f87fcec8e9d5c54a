//! What is read: the same bytes as objects and as values of tables.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Arguments;

/// The bucket of everything.
pub const BUCKET: &str = "bench";
/// Bytes of a small value.
pub const SMALL: usize = 30_000;

/// Where it is.
pub struct Data {
    /// The server's folder.
    pub root: PathBuf,
    /// The large object, as a file.
    pub big: PathBuf,
    /// A table whose one value is a large object of its own.
    pub big_table: PathBuf,
    /// A table whose one value is large and inside a data file.
    pub inline_table: PathBuf,
    /// A table for `find`.
    pub rows_table: Option<PathBuf>,
}

impl Data {
    /// Makes it in the folder, unless it is there.
    pub fn prepare(arguments: &Arguments) -> Self {
        let root = arguments.folder.join("root");
        let bucket = root.join(BUCKET);
        let data = Self {
            big: bucket.join("objects/big.bin"),
            big_table: bucket.join("big.lance"),
            inline_table: bucket.join("inline.lance"),
            rows_table: (arguments.rows > 0).then(|| bucket.join("rows.lance")),
            root,
        };
        let made = format!("{} {} {}", arguments.mib, arguments.small, arguments.rows);
        let mark = arguments.folder.join("made");
        if std::fs::read_to_string(&mark).is_ok_and(|found| found == made) {
            return data;
        }
        eprintln!("making the data in {}", arguments.folder.display());
        let _ = std::fs::remove_dir_all(&data.root);
        let small = bucket.join("objects/small");
        std::fs::create_dir_all(&small).expect("the folder can be written");
        noise(&data.big, arguments.mib << 20, 1);
        for n in 0..arguments.small {
            noise(&small.join(format!("{n:05}.bin")), SMALL as u64, n as u64 + 2);
        }
        import(arguments, &data.big, &data.big_table);
        import(arguments, &small, &bucket.join("small.lance"));
        inline(arguments, &data);
        std::fs::write(mark, made).expect("the folder can be written");
        data
    }

    /// Where a value's bytes are: object, offset and length, as lancefs says.
    pub fn place(&self, file: &Path) -> (PathBuf, u64, u64) {
        let attribute = |name: &str| {
            let output = Command::new("getfattr")
                .args(["--only-values", "--absolute-names", "-n", name])
                .arg(file)
                .output()
                .expect("getfattr (package attr)");
            String::from_utf8(output.stdout).expect("text")
        };
        let object = attribute("user.lancefs.object");
        let object = object.strip_prefix("file://").expect("a local object").into();
        let number = |name: &str| attribute(name).parse().expect("a number");
        (object, number("user.lancefs.offset"), number("user.lancefs.size"))
    }
}

fn import(arguments: &Arguments, from: &Path, table: &Path) {
    let status = Command::new(&arguments.lancefs).arg("import").arg(from).arg(table).status();
    assert!(status.expect("lancefs runs").success(), "import {}", from.display());
}

/// Tables that import does not make: a large legacy value, and many rows.
fn inline(arguments: &Arguments, data: &Data) {
    let script = "import sys, pyarrow as pa, lance
big, inline, rows, count = sys.argv[1:]
blob = {b'lance-encoding:blob': b'true'}
schema = pa.schema([pa.field('blob', pa.large_binary(), metadata=blob)])
value = open(big, 'rb').read(256 << 20)
lance.write_dataset(pa.table([pa.array([value], pa.large_binary())], schema=schema), inline, data_storage_version='2.0')
if int(count):
    schema = pa.schema([pa.field('id', pa.int64()), lance.blob_field('blob')])
    def batches():
        for start in range(0, int(count), 100_000):
            ids = range(start, min(start + 100_000, int(count)))
            yield pa.record_batch([pa.array(ids), lance.blob_array([b'x'] * len(ids))], schema=schema)
    lance.write_dataset(pa.RecordBatchReader.from_batches(schema, batches()), rows, data_storage_version='2.2')";
    let rows = data.rows_table.clone().unwrap_or_default();
    let status = Command::new(&arguments.python)
        .args(["-c", script])
        .args([&data.big, &data.inline_table, &rows])
        .arg(arguments.rows.to_string())
        .status();
    assert!(status.expect("python runs").success(), "write tables by pylance");
}

/// A file that does not compress, the same for the same seed.
pub fn noise(path: &Path, len: u64, seed: u64) {
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("the folder can be written");
    let mut file = std::io::BufWriter::with_capacity(1 << 20, std::fs::File::create(path).expect("a file"));
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut left = len as usize;
    while left > 0 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let bytes = state.to_le_bytes();
        let now = left.min(bytes.len());
        file.write_all(&bytes[..now]).expect("the disk has room");
        left -= now;
    }
    file.flush().expect("the disk has room");
}
