//! Against a store in memory that counts, and fails, hangs, breaks off or lies when told to.

mod on_disk;

use std::collections::VecDeque;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use proptest::prelude::*;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::*;
use crate::store::{Answer, Meter, Origin, Place};
use crate::units::ObjectOffset;

/// What goes wrong with one request.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Nothing.
    None,
    /// The request fails in a way that may pass.
    Fail,
    /// The request fails for good.
    Refuse,
    /// No answer ever comes.
    Hang,
    /// The body fails after so many bytes.
    Break(usize),
    /// The body stops coming after so many bytes.
    Stall(usize),
    /// The body ends after so many bytes, as if that were all.
    Shorten(usize),
}

struct Store {
    object: Mutex<(Vec<u8>, &'static str)>,
    asked: Mutex<Vec<Range<u64>>>,
    faults: Mutex<VecDeque<Fault>>,
    describes: AtomicBool,
    /// Whether a description has the tag.
    tags: AtomicBool,
    piece: usize,
}

impl Store {
    fn of(object: Vec<u8>) -> Arc<Self> {
        let (asked, faults, describes, tags) = Default::default();
        let object = Mutex::new((object, "a"));
        Arc::new(Self { object, asked, faults, describes, tags, piece: 10_000 })
    }

    fn failing(self: Arc<Self>, faults: impl IntoIterator<Item = Fault>) -> Arc<Self> {
        self.faults.lock().unwrap().extend(faults);
        self
    }

    fn asked(&self) -> Vec<Range<u64>> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }
}

impl Fetch for Store {
    fn get(&self, interval: Interval) -> BoxFuture<'_, Result<Answer>> {
        let range = interval.offset.get()..interval.offset.get() + interval.len.get();
        self.asked.lock().unwrap().push(range.clone());
        let fault = self.faults.lock().unwrap().pop_front().unwrap_or(Fault::None);
        async move {
            // As far away as another machine, so that others get their turn.
            tokio::time::sleep(Duration::from_millis(30)).await;
            let passing = || Error::new(Kind::Timeout, "injected");
            match fault {
                Fault::Fail => return Err(passing()),
                Fault::Refuse => return Err(Error::new(Kind::Denied, "injected")),
                Fault::Hang => return std::future::pending().await,
                _ => {}
            }
            let (mut bytes, length, tag) = {
                let (object, tag) = &*self.object.lock().unwrap();
                let length = units::u64_of(object.len());
                let (start, end) = (range.start.min(length), range.end.min(length));
                (object[units::usize_of(start)..units::usize_of(end)].to_vec(), length, *tag)
            };
            let cut = match fault {
                Fault::Break(at) | Fault::Stall(at) | Fault::Shorten(at) => at.min(bytes.len()),
                _ => bytes.len(),
            };
            bytes.truncate(cut);
            let pieces: Vec<_> =
                bytes.chunks(self.piece).map(|c| Ok(Bytes::copy_from_slice(c))).collect();
            let end = match fault {
                Fault::Break(_) => stream::iter([Err(passing())]).boxed(),
                Fault::Stall(_) => stream::pending().boxed(),
                _ => stream::empty().boxed(),
            };
            let meta = Meta { length: ByteLen::new(length), tag: Some(tag.into()) };
            Ok(Answer { meta, body: stream::iter(pieces).chain(end).boxed() })
        }
        .boxed()
    }

    fn head(&self) -> BoxFuture<'_, Result<Meta>> {
        assert!(self.describes.swap(false, Ordering::Relaxed), "a HEAD that nobody needs");
        let (object, tag) = &*self.object.lock().unwrap();
        let length = ByteLen::new(units::u64_of(object.len()));
        let tag = self.tags.load(Ordering::Relaxed).then(|| (*tag).into());
        async move { Ok(Meta { length, tag }) }.boxed()
    }
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|n| u8::try_from((n * 31 + n / 251) % 251).unwrap()).collect()
}

const SIZES: Sizes =
    Sizes { memory: ByteLen::mib(64), block: ByteLen::kib(16), read_ahead: ByteLen::mib(16) };

/// An object of a path, as a snapshot names it.
fn named(path: &str, snapshot: &str) -> ObjectRef {
    let store = Arc::new(object_store::memory::InMemory::new());
    let origin = Origin { life: 1, snapshot: snapshot.into() };
    ObjectRef {
        uri: format!("test:{path}").into(),
        place: Place::Remote(store, path.into()),
        store: "test".into(),
        owner: Owner::Lance(origin),
    }
}

struct Case {
    store: Arc<Store>,
    shared: Arc<Shared>,
    object: Cached,
}

impl Case {
    fn new(store: Arc<Store>, sizes: Sizes) -> Self {
        Self::with(store, sizes, Buffers::default(), None)
    }

    fn with(store: Arc<Store>, sizes: Sizes, buffers: Buffers, disk: Option<Disk>) -> Self {
        let patience = Patience::within(Duration::from_mins(1));
        let shared = Shared::new(sizes, patience, disk);
        let shared = Arc::new(Shared { buffers: Arc::new(buffers), ..shared });
        let from = Arc::new(Meter::new(store.clone(), shared.figures.clone()));
        let object = Cached::new(ObjectId(1), &named("o", "1@a"), from, shared.clone());
        Self { store, shared, object }
    }

    async fn read(&self, offset: u64, len: u64) -> Result<Bytes> {
        read(&self.object, offset, len).await
    }

    fn fetched(&self) -> u64 {
        Figures::get(&self.shared.figures.fetched)
    }
}

async fn read(object: &Cached, offset: u64, len: u64) -> Result<Bytes> {
    object.read(Interval { offset: ObjectOffset::new(offset), len: ByteLen::new(len) }).await
}

const READ: u64 = 128 << 10;

#[tokio::test(start_paused = true)]
async fn sequential_reading_fetches_each_byte_once_in_few_requests() {
    let object = bytes(32 << 20);
    let case = Case::new(Store::of(object.clone()), SIZES);
    let begun = Instant::now();
    let mut got = Vec::new();
    for n in 0..256 {
        got.extend_from_slice(&case.read(n * READ, READ).await.unwrap());
    }
    assert!(got == object);
    assert_eq!(case.fetched(), 32 << 20);
    let asked = case.store.asked();
    assert_eq!(asked[0], 0..READ, "the first read fetches what it needs");
    assert_eq!(asked.len(), 35, "{asked:?}");
    // Round trips of 30 ms while the window grows, none after.
    assert!(begun.elapsed() < Duration::from_millis(30 * 8), "{:?}", begun.elapsed());
    for n in 0..256 {
        case.read(n * READ, READ).await.unwrap();
    }
    assert!(case.store.asked().is_empty(), "warm, nothing is fetched");
}

#[tokio::test(start_paused = true)]
async fn a_stream_through_an_object_larger_than_the_cache_leaves_others_their_blocks() {
    let case = Case::new(Store::of(bytes(80 << 20)), SIZES);
    let from = Arc::new(Meter::new(Store::of(bytes(20 << 20)), case.shared.figures.clone()));
    let small = Cached::new(ObjectId(2), &named("s", "1@a"), from, case.shared.clone());
    read(&small, 0, 20 << 20).await.unwrap();
    for n in 0..640 {
        case.read(n * READ, READ).await.unwrap();
    }
    let (held, _) = case.shared.blocks.size();
    // An eighth of the cache, what has come ahead of it, and a step.
    let most = (20 + 8 + 16 + 5) << 20;
    assert!(held.get() < most, "{held} of {most}");
    let before = case.fetched();
    read(&small, 0, 20 << 20).await.unwrap();
    let recent = 8 << 20;
    case.read((80 << 20) - recent, recent).await.unwrap();
    assert_eq!(case.fetched(), before, "nothing is fetched again");
}

#[tokio::test(start_paused = true)]
async fn a_reader_whose_window_was_driven_out_streams_again() {
    let case = Case::new(Store::of(bytes(32 << 20)), SIZES);
    for n in 0..32 {
        case.read(n * READ, READ).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let from = Arc::new(Meter::new(Store::of(bytes(64 << 20)), case.shared.figures.clone()));
    let other = Cached::new(ObjectId(2), &named("p", "1@a"), from, case.shared.clone());
    read(&other, 0, 64 << 20).await.unwrap();
    case.store.asked();
    for n in 32..256 {
        case.read(n * READ, READ).await.unwrap();
    }
    let asked = case.store.asked();
    assert!(asked.len() <= 33, "{} requests for 28 MiB: {asked:?}", asked.len());
}

#[tokio::test(start_paused = true)]
async fn many_streams_together_ask_for_so_much_ahead_at_once_and_get_everything() {
    let sizes =
        Sizes { memory: ByteLen::mib(512), block: ByteLen::kib(16), read_ahead: ByteLen::mib(128) };
    let object = Arc::new(bytes(128 << 20));
    let case = Case::new(Store::of(object.to_vec()), sizes);
    let mut readers = JoinSet::new();
    for stream in 0..64 {
        let (cached, object) = (case.object.clone(), object.clone());
        readers.spawn(async move {
            for n in stream * 16..stream * 16 + 16 {
                let at = units::usize_of(n * READ);
                let got = read(&cached, n * READ, READ).await.unwrap();
                assert!(got == object[at..at + units::usize_of(READ)]);
            }
        });
    }
    let (mut most, mut looked) = (0, tokio::time::interval(Duration::from_millis(1)));
    while !readers.is_empty() {
        looked.tick().await;
        most = most.max(case.object.0.lock().flights.len());
        while readers.try_join_next().is_some_and(|done| done.is_ok()) {}
    }
    // One that each reader waits for, and those ahead of all.
    assert!((64..=64 + pace::REQUESTS_AHEAD).contains(&most), "{most} requests at once");
    assert_eq!(case.shared.requests_ahead.available_permits(), pace::REQUESTS_AHEAD);
    assert_eq!(case.fetched(), 128 << 20);
}

#[tokio::test(start_paused = true)]
async fn random_reading_fetches_little_more_than_is_read() {
    let object = bytes(32 << 20);
    let case = Case::new(Store::of(object.clone()), SIZES);
    let mut at: u64 = 12_345;
    let reads = 100;
    for _ in 0..reads {
        at = (at * 6_364_136_223 + 1_442_695_041) % ((32 << 20) - READ);
        let start = units::usize_of(at);
        let expected = &object[start..start + units::usize_of(READ)];
        assert!(case.read(at, READ).await.unwrap() == expected);
    }
    let ratio = case.fetched() * 100 / (reads * READ);
    assert!(ratio <= 130, "{ratio} % of what was read");
    assert!(case.store.asked().len() <= 110);
}

#[tokio::test(start_paused = true)]
async fn values_of_consecutive_rows_stream_the_object() {
    let (values, value, apart) = (1000, 30_000, 30_016);
    let case = Case::new(Store::of(bytes(1000 * 30_016)), SIZES);
    let begun = Instant::now();
    for n in 0..values {
        assert_eq!(case.read(n * apart, value).await.unwrap().len(), 30_000);
    }
    assert_eq!(case.fetched(), values * apart);
    assert_eq!(case.store.asked().len(), 34);
    assert!(begun.elapsed() < Duration::from_millis(30 * 10), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_player_that_probes_head_and_tail_loses_neither() {
    let len = 32 << 20;
    let case = Case::new(Store::of(bytes(32 << 20)), SIZES);
    for offset in [0, READ, len - READ, len - 2 * READ, 2 * READ, len - READ] {
        case.read(offset, READ).await.unwrap();
    }
    let waited = case.store.asked();
    assert!(waited.iter().all(|range| range.end <= 16 * READ || range.start >= len - 2 * READ));
    case.read(3 * READ, READ).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let misses = Figures::get(&case.shared.figures.misses);
    case.read(4 * READ, READ).await.unwrap();
    assert_eq!(Figures::get(&case.shared.figures.misses), misses, "read ahead of the head");
}

#[tokio::test(start_paused = true)]
async fn readers_of_a_block_share_one_fetch_and_one_that_goes_leaves_the_others() {
    let case = Case::new(Store::of(bytes(1 << 20)), SIZES);
    let mut readers = JoinSet::new();
    for n in 0..10 {
        let object = case.object.clone();
        readers.spawn(async move { read(&object, n, READ - 16).await });
    }
    let gone = case.read(0, READ);
    assert!(timeout(Duration::from_millis(1), gone).await.is_err());
    while let Some(got) = readers.join_next().await {
        assert_eq!(got.unwrap().unwrap().len(), units::usize_of(READ - 16));
    }
    assert_eq!(case.store.asked(), vec![0..READ], "one request");
}

#[tokio::test(start_paused = true)]
async fn a_fault_that_passes_is_not_seen() {
    let object = bytes(256 << 10);
    for fault in [Fault::Fail, Fault::Hang, Fault::Break(50_000), Fault::Stall(50_000)] {
        let case = Case::new(Store::of(object.clone()).failing([fault, fault]), SIZES);
        let got = case.read(1000, 200_000).await;
        assert!(got.unwrap() == object[1000..201_000], "{fault:?}");
        let asked = case.store.asked();
        assert_eq!(asked.len(), 3, "{fault:?}");
        if let Fault::Break(_) | Fault::Stall(_) = fault {
            assert_eq!(asked[1].start, 50_000, "it goes on from where it broke off");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_fault_that_lasts_is_an_error_in_time_and_passes_with_its_cause() {
    let object = bytes(256 << 10);
    for (fault, kind) in [
        (Fault::Fail, Kind::Timeout),
        (Fault::Hang, Kind::Timeout),
        (Fault::Stall(0), Kind::Timeout),
        (Fault::Refuse, Kind::Denied),
        (Fault::Shorten(10), Kind::Payload),
    ] {
        let case = Case::new(Store::of(object.clone()).failing([fault; 1000]), SIZES);
        let reading = case.read(0, READ);
        let error = timeout(Duration::from_secs(121), reading).await.unwrap();
        assert_eq!(error.unwrap_err().kind(), kind, "{fault:?}");
        case.store.faults.lock().unwrap().clear();
        assert_eq!(case.read(0, READ).await.unwrap(), object[..units::usize_of(READ)]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_too_short_is_an_error() {
    let case = Case::new(Store::of(bytes(100_000)), SIZES);
    let error = case.read(90_000, 10_001).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Payload);
    assert!(error.to_string().contains("100000 bytes, and 90000..100001 are needed"), "{error}");
    assert_eq!(case.read(90_000, 10_000).await.unwrap().len(), 10_000);
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_replaced_never_gives_bytes_of_both() {
    let case = Case::new(Store::of(bytes(1 << 20)), SIZES);
    case.read(0, READ).await.unwrap();
    *case.store.object.lock().unwrap() = (vec![0; 1 << 20], "b");
    assert_eq!(case.read(0, READ).await.unwrap(), bytes(1 << 20)[..units::usize_of(READ)]);
    assert_eq!(case.read(0, 3 * READ).await.unwrap_err().kind(), Kind::Stale);
    assert!(case.object.is_replaced());
}

#[tokio::test(start_paused = true)]
async fn a_length_without_a_tag_is_asked_for_once_and_held_against_what_is_read() {
    for (now, kind) in [(1 << 20, None), ((1 << 20) + 1, Some(Kind::Stale))] {
        let case = Case::new(Store::of(bytes(1 << 20)), SIZES);
        case.store.describes.store(true, Ordering::Relaxed);
        for _ in 0..2 {
            assert_eq!(case.object.length().await.unwrap(), ByteLen::mib(1));
        }
        *case.store.object.lock().unwrap() = (bytes(now), "b");
        assert_eq!(case.read(0, READ).await.err().map(|error| error.kind()), kind);
    }
}

#[derive(Clone, Debug)]
struct Plan {
    len: usize,
    sizes: Sizes,
    buffer: usize,
    reads: Vec<Vec<(u64, u64)>>,
    faults: Vec<Fault>,
}

fn plan() -> impl Strategy<Value = Plan> {
    let fault = prop_oneof![
        4 => Just(Fault::None),
        1 => Just(Fault::Fail),
        1 => Just(Fault::Refuse),
        1 => Just(Fault::Hang),
        1 => (0_usize..100_000).prop_map(Fault::Break),
        1 => (0_usize..100_000).prop_map(Fault::Stall),
        1 => (0_usize..100_000).prop_map(Fault::Shorten),
    ];
    let read = (0_u64..400_000, 1_u64..150_000);
    // Some readers jump, some go on from where they were.
    let reader = proptest::collection::vec((read, any::<bool>()), 1..20).prop_map(|reads| {
        let mut at = 0;
        let place = |((offset, len), jumps): ((u64, u64), bool)| {
            let start = if jumps { offset } else { at };
            at = start + len;
            (start, len)
        };
        reads.into_iter().map(place).collect::<Vec<_>>()
    });
    let sizes = (0_u64..1_000_000, 1_u64..70_000, 0_u64..500_000).prop_map(|(m, b, r)| Sizes {
        memory: ByteLen::new(m),
        block: ByteLen::new(b),
        read_ahead: ByteLen::new(r),
    });
    let readers = proptest::collection::vec(reader, 1..6);
    let faults = proptest::collection::vec(fault, 0..30);
    (1_usize..400_000, sizes, 1_usize..200_000, readers, faults)
        .prop_map(|(len, sizes, buffer, reads, faults)| Plan { len, sizes, buffer, reads, faults })
}

async fn carry_out(plan: Plan) -> Result<(), TestCaseError> {
    let object = Arc::new(bytes(plan.len));
    let store = Store::of(object.to_vec()).failing(plan.faults);
    let case = Case::with(store, plan.sizes, Buffers::of(plan.buffer), None);
    let mut readers = JoinSet::new();
    for reads in plan.reads {
        let (cached, object) = (case.object.clone(), object.clone());
        readers.spawn(async move {
            for (offset, len) in reads {
                let got = read(&cached, offset, len).await;
                let (start, end) = (units::usize_of(offset), units::usize_of(offset + len));
                match (got, object.get(start..end)) {
                    (Ok(bytes), Some(expected)) => prop_assert!(bytes == expected, "other bytes"),
                    (Ok(_), None) => prop_assert!(false, "bytes past the end"),
                    (Err(error), _) => prop_assert!(
                        matches!(error.kind(), Kind::Timeout | Kind::Denied | Kind::Payload),
                        "{error:?}"
                    ),
                }
            }
            Ok(())
        });
    }
    while let Some(done) = readers.join_next().await {
        done.unwrap()?;
    }
    // What is still on its way lands, and all that was set aside is given back.
    tokio::time::sleep(Duration::from_mins(5)).await;
    let (held, reserved) = case.shared.blocks.size();
    prop_assert_eq!(reserved, ByteLen::new(0));
    prop_assert!(held <= plan.sizes.memory, "{} held", held);
    prop_assert!(case.object.0.lock().flights.is_empty());
    Ok(())
}

#[test]
fn a_panic_while_a_read_is_planned_leaves_the_object_usable() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_time().build().unwrap();
    let sizes =
        Sizes { memory: ByteLen::mib(8), block: ByteLen::kib(16), read_ahead: ByteLen::mib(1) };
    let content = bytes(1 << 20);
    let case = Case::new(Store::of(content.clone()), sizes);
    let object = case.object.clone();
    object.0.lock().panics = true;
    // On a thread of its own: what this is against is a lock that is never given back.
    let (says, said) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _in_runtime = runtime.enter();
        let planned =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| object.0.plan(&(0..100))));
        let is_free = object.0.lock().flights.is_empty();
        let read = runtime.block_on(read(&object, 0, 100));
        says.send((planned.is_err(), is_free, read)).unwrap();
    });
    let (panicked, is_free, read) = said.recv_timeout(Duration::from_mins(1)).unwrap();
    assert!(panicked && is_free);
    assert_eq!(read.unwrap(), content[..100]);
    assert_eq!(case.shared.blocks.size().1, ByteLen::new(0), "what was set aside is given back");
}

proptest! {
    #[test]
    fn right_bytes_or_an_error(plan in plan()) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(carry_out(plan))?;
    }
}
