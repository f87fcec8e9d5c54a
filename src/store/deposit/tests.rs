//! Objects are what their pieces were, in a folder and in a store.

use std::sync::atomic::Ordering;

use object_store::memory::InMemory;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::store::{Folder, Interval, LocalPlace, ObjectRef, Owner, Place, Settings};
use crate::units::{ByteLen, ObjectOffset};

async fn deposit(depot: Depot) -> Deposit {
    let opener = Arc::new(Opener::new(Settings::default()).await.unwrap());
    Deposit::new(depot, opener, Duration::from_secs(10))
}

fn file(folder: &TempDir, name: &str, bytes: &[u8]) -> Piece {
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    let print = Fingerprint::of(&std::fs::metadata(&path).unwrap());
    Piece::File(path, print)
}

/// Bytes that differ at every place where parts could be mixed up.
fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from((at / 1021 + at * 7 + seed) % 251).unwrap()).collect()
}

#[tokio::test]
async fn an_object_of_many_parts_comes_out_as_it_went_in() {
    let folder = tempfile::tempdir().unwrap();
    let part = usize::try_from(PART).unwrap();
    let lengths = [part * 2 + 5, 0, 3, 70_000, part, 1];
    let bytes: Vec<Vec<u8>> =
        lengths.iter().enumerate().map(|(seed, len)| pattern(*len, seed)).collect();
    let mut pieces: Vec<Piece> =
        bytes.iter().enumerate().map(|(at, b)| file(&folder, &at.to_string(), b)).collect();
    let source = folder.path().join("source");
    std::fs::write(&source, pattern(100_000, 9)).unwrap();
    let place = Place::Local(LocalPlace::within(Folder::named("/"), source, Arc::default()));
    pieces.push(Piece::Object(
        ObjectRef { uri: "source".into(), place, store: "file".into(), owner: Owner::Others },
        Interval { offset: ObjectOffset::new(10), len: ByteLen::new(99_000) },
    ));
    let expected = [bytes.concat(), pattern(100_000, 9)[10..99_010].to_vec()].concat();

    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let table = folder.path().join("table");
    for depot in [
        Depot::Remote(store.clone(), Path::from("a/table"), Limits::S3),
        Depot::Local(table.clone(), Arc::default()),
    ] {
        let deposit = deposit(depot).await;
        let progress = Progress::default();
        deposit.put("_blobs/x.blob", &pieces, &progress).await.unwrap();
        assert_eq!(progress.done.load(Ordering::Relaxed), u64::try_from(expected.len()).unwrap());
        assert_eq!(
            deposit.length("_blobs/x.blob").await.unwrap(),
            Some(progress.done.into_inner())
        );
    }
    let stored = store.get(&Path::from("a/table/_blobs/x.blob")).await.unwrap();
    assert!(stored.bytes().await.unwrap() == expected);
    assert!(std::fs::read(table.join("_blobs/x.blob")).unwrap() == expected);
}

#[tokio::test]
async fn a_file_that_changed_is_not_stored() {
    let folder = tempfile::tempdir().unwrap();
    let store = Depot::Remote(Arc::new(InMemory::new()), Path::from("t"), Limits::S3);
    for depot in [store, Depot::Local(folder.path().join("table"), Arc::default())] {
        let deposit = deposit(depot).await;
        for change in [&b"longer than before"[..], b"less", b"the same!!"] {
            let piece = file(&folder, "f", b"0123456789");
            // The clock of the file system is coarse.
            std::thread::sleep(Duration::from_millis(20));
            std::fs::write(folder.path().join("f"), change).unwrap();
            let name = format!("_blobs/{}.blob", change.len());
            let failed = deposit.put(&name, &[piece], &Progress::default()).await.unwrap_err();
            assert_eq!(failed.kind(), Kind::Busy, "{failed}");
        }
    }
}

#[tokio::test]
async fn an_object_whose_parts_are_larger_than_the_budget_is_stored() {
    let folder = tempfile::tempdir().unwrap();
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    // Two such objects at once, and a small one beside them.
    let part = BUDGET + (1 << 20);
    let deposit = deposit(Depot::Remote(store, Path::from("t"), Limits::new(2, part))).await;
    let sizes = [("large", part + 70_000), ("other", part + 3), ("small", 9)];
    let put = sizes.map(|(name, len)| {
        let path = folder.path().join(name);
        std::fs::File::create(&path).unwrap().set_len(len).unwrap();
        let print = Fingerprint::of(&std::fs::metadata(&path).unwrap());
        let (deposit, piece) = (&deposit, Piece::File(path, print));
        async move { deposit.put(name, &[piece], &Progress::default()).await }
    });
    let stored = futures::future::join_all(put);
    for stored in tokio::time::timeout(Duration::from_mins(1), stored).await.unwrap() {
        stored.unwrap();
    }
    for (name, len) in sizes {
        assert_eq!(deposit.length(name).await.unwrap(), Some(len));
    }
}

#[tokio::test]
async fn what_the_store_would_not_take_is_refused_before_the_first_byte() {
    let folder = tempfile::tempdir().unwrap();
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let depot = Depot::Remote(store.clone(), Path::from("t"), Limits::new(2, PART));
    let path = folder.path().join("f");
    std::fs::File::create(&path).unwrap().set_len(2 * PART + 1).unwrap();
    let print = Fingerprint::of(&std::fs::metadata(&path).unwrap());
    let progress = Progress::default();
    let put = deposit(depot).await.put("o", &[Piece::File(path, print)], &progress).await;
    assert_eq!(put.unwrap_err().kind(), Kind::Invalid);
    assert_eq!(progress.done.into_inner(), 0);
    assert!(store.head(&Path::from("t/o")).await.is_err());
}

#[tokio::test]
async fn a_name_is_used_once_in_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let deposit = deposit(Depot::Local(folder.path().to_owned(), Arc::default())).await;
    let piece = file(&folder, "f", b"bytes");
    deposit.put("_blobs/x.blob", std::slice::from_ref(&piece), &Progress::default()).await.unwrap();
    assert!(deposit.put("_blobs/x.blob", &[piece], &Progress::default()).await.is_err());
    deposit.delete("_blobs/x.blob").await.unwrap();
    deposit.delete("_blobs/x.blob").await.unwrap();
    assert_eq!(deposit.length("_blobs/x.blob").await.unwrap(), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_pieces_make_their_concatenation(lengths in prop::collection::vec(0_usize..3_000_000, 0..12)) {
        let folder = tempfile::tempdir().unwrap();
        let bytes: Vec<Vec<u8>> =
            lengths.iter().enumerate().map(|(seed, len)| pattern(*len, seed)).collect();
        let pieces: Vec<Piece> =
            bytes.iter().enumerate().map(|(at, b)| file(&folder, &at.to_string(), b)).collect();
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let stored = runtime.block_on(async {
            let deposit = deposit(Depot::Remote(store.clone(), Path::from("t"), Limits::S3)).await;
            deposit.put("o", &pieces, &Progress::default()).await.unwrap();
            store.get(&Path::from("t/o")).await.unwrap().bytes().await.unwrap()
        });
        prop_assert!(stored == bytes.concat());
    }
}
