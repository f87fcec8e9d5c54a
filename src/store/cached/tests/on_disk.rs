//! With a disk cache beneath.

use super::*;

/// Not with a paused clock: the disk cache has threads of its own.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_on_disk_in_part_is_fetched_for_the_rest_and_kept() {
    let (folder, size) = (tempfile::tempdir().unwrap(), ByteLen::mib(128));
    let object = bytes(300_000);
    let whole = units::u64_of(object.len());
    for (end, fetched) in [(40_000, 49_152), (whole, whole - 49_152), (whole, 0)] {
        let disk = Disk::open(folder.path(), size).await.unwrap();
        let store = Store::of(object.clone());
        let case = Case::with(store, SIZES, Buffers::of(100_000), Some(disk));
        assert!(case.read(0, end).await.unwrap() == object[..units::usize_of(end)]);
        // A reader has its bytes before the rest has come and all of it is kept.
        while !case.object.0.lock().flights.is_empty() {
            tokio::task::yield_now().await;
        }
        assert_eq!(case.fetched(), fetched, "up to {end}");
        case.shared.disk.as_ref().unwrap().close().await;
    }
}

/// What another snapshot kept is believed after one HEAD, and only with the same tag.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_on_disk_is_believed_for_the_same_snapshot_or_the_same_tag() {
    let (folder, size) = (tempfile::tempdir().unwrap(), ByteLen::mib(128));
    let (old, new) = (bytes(40_000), vec![7; 40_000]);
    let same = units::u64_of(old.len());
    for (snapshot, tag, has_tags, heads, fetched) in [
        ("1@a", "a", true, 0, same),
        ("1@a", "a", true, 0, 0),
        ("2@b", "a", true, 1, 0),
        ("2@b", "a", true, 0, 0),
        ("3@c", "a", false, 1, same),
        ("1@d", "b", true, 1, same),
        ("1@d", "b", true, 0, 0),
    ] {
        let disk = Disk::open(folder.path(), size).await.unwrap();
        let object = if tag == "a" { &old } else { &new };
        let store = Store::of(object.clone());
        store.object.lock().unwrap().1 = tag;
        store.describes.store(heads == 1, Ordering::Relaxed);
        store.tags.store(has_tags, Ordering::Relaxed);
        let shared = Shared::new(SIZES, Patience::within(Duration::from_mins(1)), Some(disk));
        let shared = Arc::new(shared);
        let from = Arc::new(Meter::new(store, shared.figures.clone()));
        let cached = Cached::new(ObjectId(1), &named("o", snapshot), from, shared.clone());
        let what = format!("{snapshot} with tag {tag}");
        assert!(read(&cached, 0, same).await.unwrap() == *object, "{what}");
        assert_eq!(Figures::get(&shared.figures.fetched), fetched, "{what}");
        assert_eq!(Figures::get(&shared.figures.heads), heads, "{what}");
        while !cached.0.lock().flights.is_empty() {
            tokio::task::yield_now().await;
        }
        shared.disk.as_ref().unwrap().close().await;
    }
}
