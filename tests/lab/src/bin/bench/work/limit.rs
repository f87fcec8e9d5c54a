//! What the link allows, by plain ranged GETs and by plain uploads, and what pylance makes of it.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use futures::stream::FuturesUnordered;
use futures::{StreamExt as _, stream};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{ObjectStore as _, ObjectStoreExt as _};

use super::super::Arguments;
use super::super::data::BUCKET;
use super::super::systems::{Endpoint, KEYS};
use super::shuffled;

/// A part of a sequential read, in bytes, and how many are fetched at once.
const PART: u64 = 8 << 20;
const PARALLEL: usize = 16;
/// Parts of uploads that are under way at once, and objects that are made at once.
const PARTS_AT_ONCE: usize = 12;
const OBJECTS_AT_ONCE: usize = 4;

fn store(endpoint: &Endpoint) -> Arc<AmazonS3> {
    let builder = AmazonS3Builder::new()
        .with_bucket_name(BUCKET)
        .with_endpoint(&endpoint.url)
        .with_allow_http(true)
        .with_region("us-east-1")
        .with_access_key_id(KEYS.0)
        .with_secret_access_key(KEYS.1);
    Arc::new(builder.build().expect("a store"))
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Runtime::new().expect("a runtime").block_on(work)
}

async fn get(store: &AmazonS3, range: Range<u64>) -> usize {
    let options = object_store::GetOptions { range: Some(range.into()), ..Default::default() };
    let got = store.get_opts(&Path::from("objects/big.bin"), options).await.expect("an object");
    // Pieces are looked at as they come, and dropped: nothing is put together.
    got.into_stream().fold(0, |sum, piece| async move { sum + piece.expect("bytes").len() }).await
}

/// The whole object by parallel GETs; gives seconds.
pub fn sequential(endpoint: &Endpoint, len: u64) -> f64 {
    let store = store(endpoint);
    block_on(async {
        let begun = Instant::now();
        let parts = (0..len.div_ceil(PART)).map(|n| n * PART..((n + 1) * PART).min(len));
        let total: usize = stream::iter(parts)
            .map(|range| get(&store, range))
            .buffered(PARALLEL)
            .fold(0, |sum, read| async move { sum + read })
            .await;
        assert_eq!(total as u64, len);
        begun.elapsed().as_secs_f64()
    })
}

/// A part of a file that becomes an object: path, offset and length.
pub type Piece = (PathBuf, u64, u64);

/// Objects from parts of files by plain parallel uploads, with the parts and the parallelism of
/// lancefs (`src/store/deposit.rs`, `src/publish/upload.rs`); gives seconds.
pub fn upload(endpoint: &Endpoint, pieces: &[Piece]) -> f64 {
    let store = store(endpoint);
    let parts = Arc::new(tokio::sync::Semaphore::new(PARTS_AT_ONCE));
    block_on(async {
        let begun = Instant::now();
        stream::iter(pieces.iter().enumerate())
            .for_each_concurrent(OBJECTS_AT_ONCE, |(n, piece)| {
                upload_one(&store, &parts, format!("objects/upload/{n}"), piece)
            })
            .await;
        begun.elapsed().as_secs_f64()
    })
}

async fn upload_one(
    store: &AmazonS3,
    parts: &Arc<tokio::sync::Semaphore>,
    name: String,
    (path, offset, len): &Piece,
) {
    let file = Arc::new(File::open(path).expect("a file"));
    let mut upload = store.put_multipart(&Path::from(name)).await.expect("an upload");
    let mut under_way = FuturesUnordered::new();
    for start in (0..*len).step_by(PART as usize) {
        let permit = parts.clone();
        let permit = {
            let acquire = permit.acquire_owned();
            tokio::pin!(acquire);
            loop {
                tokio::select! {
                    permit = &mut acquire => break permit.expect("a semaphore"),
                    Some(()) = under_way.next() => {}
                }
            }
        };
        let mut bytes = vec![0; PART.min(len - start) as usize];
        let (file, at) = (file.clone(), offset + start);
        let read = tokio::task::spawn_blocking(move || {
            file.read_exact_at(&mut bytes, at).expect("bytes");
            bytes
        });
        let put = upload.put_part(read.await.expect("bytes").into());
        under_way.push(async move {
            put.await.expect("a part");
            drop(permit);
        });
    }
    while under_way.next().await.is_some() {}
    upload.complete().await.expect("an object");
}

/// Random GETs one after another; gives the median in milliseconds.
pub fn random(endpoint: &Endpoint, count: usize, len: usize, blocks: usize) -> f64 {
    let store = store(endpoint);
    block_on(async {
        let mut times = Vec::new();
        for n in 0..count {
            let start = (shuffled(n, blocks) * len) as u64;
            let begun = Instant::now();
            let path = Path::from("objects/big.bin");
            store.get_range(&path, start..start + len as u64).await.expect("an object");
            times.push(begun.elapsed().as_secs_f64() * 1000.0);
        }
        times.sort_by(f64::total_cmp);
        times[count / 2]
    })
}

/// The large value by pylance's `BlobFile`; gives seconds.
pub fn pylance_sequential(arguments: &Arguments, endpoint: &Endpoint) -> f64 {
    let work = "blob, = table.take_blobs('content', indices=[0])
buffer = bytearray(8 << 20)
begun = time.time()
while blob.readinto(buffer): pass";
    pylance(arguments, endpoint, "big", work)
}

/// The first small values by pylance, one after another; gives seconds.
pub fn pylance_small(arguments: &Arguments, endpoint: &Endpoint, count: usize) -> f64 {
    let work = format!(
        "begun = time.time()
for row in range({count}): table.take_blobs('content', indices=[row])[0].readall()"
    );
    pylance(arguments, endpoint, "small", &work)
}

fn pylance(arguments: &Arguments, endpoint: &Endpoint, table: &str, work: &str) -> f64 {
    let script = format!(
        "import time, lance
table = lance.dataset('s3://{BUCKET}/{table}.lance', storage_options={{'aws_access_key_id': '{}', 'aws_secret_access_key': '{}', 'aws_region': 'us-east-1', 'aws_endpoint': '{}', 'allow_http': 'true'}})
{work}
print(time.time() - begun)",
        KEYS.0, KEYS.1, endpoint.url
    );
    let output = Command::new(&arguments.python).args(["-c", &script]).output().expect("python");
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)))
}
