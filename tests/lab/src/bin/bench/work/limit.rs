//! What the link allows, by plain ranged GETs of the object, and what pylance makes of it.

use std::ops::Range;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

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
