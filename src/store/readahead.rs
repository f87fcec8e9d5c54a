//! Finds sequential readers in the reads of one object, and says what to fetch before they ask.
//!
//! Pure: offsets in, an interval out. Difficulties, and what answers each:
//!
//! 1. One object holds many values, and many readers read it at once: a player probes head and
//!    tail, a walk over rows reads value after value through another handle each time. So a
//!    [`Stream`] belongs to the object, not to a handle, and an object has several.
//! 2. Random reads must not fetch more than they need: a stream fetches nothing ahead until a second
//!    read goes on where the first one ended ([`GAP`], [`RECENT`]), and never more ahead than eight
//!    times what it has read.
//! 3. Readers skip a little and go back a little (alignment, a header, a table of contents): a read
//!    close to where a stream is that has gone on before belongs to it ([`SKIP`], [`BACK`]).
//! 4. A stream through a large object must not drive out what others come back to, nor take memory
//!    that it never looks at again: it says what it has left behind ([`Streams::left_behind`]).
//! 5. The kernel reads ahead as well, several reads at once, and they come in any order: a stream that
//!    comes to where another one began takes it over ([`Streams::join`]).
//! 6. Requests must be few: what is ahead is extended in steps of a quarter of the window, not with
//!    every read.

use std::ops::Range;

/// Streams that an object remembers; the longest unused goes. 64 readers of one pack fit.
const STREAMS: usize = 64;
/// How far past the first read's end a second one makes a stream of them, in bytes. Values in one
/// object are up to 64 bytes apart; with more, random reads of a small object meet by chance.
const GAP: u64 = 4 << 10;
/// How many reads of the object may come in between, from other readers. With more, too, random
/// reads meet by chance; with less, so many readers that take turns would not be seen.
const RECENT: u64 = 16;
/// How far past its end a read still goes on with a stream, in bytes.
const SKIP: u64 = 64 << 10;
/// How far back a read may go without being another stream's, in bytes: players re-read a header.
const BACK: u64 = 1 << 20;
/// The window in multiples of what the stream has read, by how often a read has gone on with it. The
/// kernel cuts a large or unaligned read in two, so two are no proof yet of more than as much again;
/// from the fourth, each round trip makes the window nine times as large.
const GROWTH: [u64; 4] = [0, 1, 4, 8];
/// The least that is asked for ahead, in bytes: below, requests cost more than bytes.
const LEAST_STEP: u64 = 256 << 10;
/// What is ahead is extended when this part of the window has been used.
const STEPS: u64 = 4;

/// What is asked for ahead is a multiple of the largest of these, in bytes, that it is not less than:
/// an extent (`buffers`), and as much as the kernel reads at once. So extents end where the reads of
/// a large value end, and a read is a slice of one; what lies in two has to be copied together.
const WHOLE: [u64; 2] = [2 << 20, 1 << 20];

/// A stream that was used in so many reads of the object is still on its way: a player reads once a
/// second while a copy reads a thousand times.
const ON_ITS_WAY: u64 = 4096;

/// What to fetch before it is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// For which stream of the object.
    pub stream: u64,
    /// These bytes.
    pub span: Range<u64>,
}

/// One sequential reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stream {
    /// Its number, never used again.
    id: u64,
    /// Where it began.
    from: u64,
    /// Where it goes on.
    next: u64,
    /// What has been asked for ahead ends here; not before `next`.
    ahead: u64,
    /// Bytes that it has read.
    run: u64,
    /// What is before is known to be left behind.
    behind: u64,
    /// How often a read has gone on with it.
    went_on: usize,
    /// When it was last used, by the object's count of reads.
    used: u64,
}

/// The sequential readers of one object.
#[derive(Clone, Debug, Default)]
pub struct Streams {
    streams: Vec<Stream>,
    reads: u64,
}

impl Streams {
    /// Notes a read of `span`, and gives what should be fetched beyond it now, if anything. `limit`
    /// is the largest window, in bytes; with 0 nothing is ever fetched ahead.
    pub fn note(&mut self, span: Range<u64>, limit: u64) -> Option<Ahead> {
        self.reads += 1;
        let Some(found) = self.nearest(span.start) else {
            self.begin(&span);
            return None;
        };
        let stream = &mut self.streams[found];
        stream.used = self.reads;
        let gained = span.end.saturating_sub(stream.next.max(span.start));
        if gained == 0 {
            return None;
        }
        stream.run += gained;
        stream.went_on += 1;
        stream.next = span.end;
        stream.ahead = stream.ahead.max(stream.next);
        let stream = self.join(found);
        let growth = GROWTH[stream.went_on.min(GROWTH.len() - 1)];
        let window = stream.run.saturating_mul(growth).min(limit);
        let target = stream.next.saturating_add(window);
        let step = (window / STEPS).max(LEAST_STEP.min(window));
        if window == 0 || target.saturating_sub(stream.ahead) < step {
            return None;
        }
        let wanted = stream.ahead..stream.ahead + whole(target - stream.ahead);
        stream.ahead = wanted.end;
        Some(Ahead { stream: stream.id, span: wanted })
    }

    /// A stream, with that which began after it where it goes on now, if there is one.
    fn join(&mut self, found: usize) -> &mut Stream {
        let Stream { id, next, .. } = self.streams[found];
        let goes_on = |other: &Stream| {
            // One that began before is where somebody was who reads backwards.
            let is_later = other.id > id && self.reads - other.used <= RECENT;
            is_later && (next..=next.saturating_add(GAP)).contains(&other.from)
        };
        let other = self.streams.iter().enumerate().find(|(_, stream)| goes_on(stream));
        let Some((at, &other)) = other else { return &mut self.streams[found] };
        let stream = &mut self.streams[found];
        stream.next = other.next;
        stream.ahead = stream.ahead.max(other.ahead);
        stream.run += other.run;
        stream.went_on += 1 + other.went_on;
        self.streams.swap_remove(at);
        // The last one is now where the other was.
        let found = if found == self.streams.len() { at } else { found };
        &mut self.streams[found]
    }

    /// What a stream that has come to `at` has left behind since it last said so: what is more than
    /// `keep` bytes back, if it is `step` bytes at least and no other stream is on its way there.
    pub fn left_behind(&mut self, at: u64, keep: u64, step: u64) -> Option<Range<u64>> {
        let until = at.saturating_sub(keep);
        let found = self.streams.iter().position(|stream| stream.next == at)?;
        let left = self.streams[found].behind..until;
        let follows = |stream: &Stream| {
            let is_stream = stream.went_on + 1 >= GROWTH.len();
            is_stream && self.reads - stream.used < ON_ITS_WAY && stream.next < until
        };
        if until < left.start.saturating_add(step) || self.streams.iter().any(follows) {
            return None;
        }
        self.streams[found].behind = until;
        Some(left)
    }

    /// Says that what was to be fetched ahead from here on was not: the stream may ask again.
    pub fn not_fetched(&mut self, from: u64) {
        for stream in &mut self.streams {
            if stream.ahead > from && stream.next <= from {
                stream.ahead = from;
            }
        }
    }

    fn nearest(&self, start: u64) -> Option<usize> {
        let near = |stream: &Stream| {
            let (back, skip) = match stream.went_on > 0 {
                false if self.reads - stream.used > RECENT => return None,
                false => (stream.next, stream.next.saturating_add(GAP)),
                true => (
                    stream.next.saturating_sub(BACK.min(stream.run)),
                    stream.ahead.max(stream.next.saturating_add(SKIP)),
                ),
            };
            (back..=skip).contains(&start).then(|| start.abs_diff(stream.next))
        };
        let distances = self.streams.iter().enumerate().filter_map(|(i, s)| Some((near(s)?, i)));
        distances.min().map(|(_, i)| i)
    }

    fn begin(&mut self, span: &Range<u64>) {
        if self.streams.len() >= STREAMS {
            let oldest = self.streams.iter().enumerate().min_by_key(|(_, stream)| stream.used);
            if let Some((oldest, _)) = oldest {
                self.streams.swap_remove(oldest);
            }
        }
        let run = span.end - span.start;
        let id = self.reads;
        let Range { start: from, end: next } = *span;
        let (ahead, behind) = (next, from);
        self.streams.push(Stream { id, from, next, ahead, run, behind, went_on: 0, used: id });
    }
}

/// How much of a length is asked for.
fn whole(len: u64) -> u64 {
    let unit = WHOLE.into_iter().find(|unit| len >= *unit);
    unit.map_or(len, |unit| len - len % unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const READ: u64 = 128 << 10;
    const LIMIT: u64 = 128 << 20;

    fn note(streams: &mut Streams, span: Range<u64>) -> Option<Range<u64>> {
        streams.note(span, LIMIT).map(|ahead| ahead.span)
    }

    /// Reads an object from end to end and gives what was fetched ahead.
    fn sequential(streams: &mut Streams, from: u64, reads: u64) -> Vec<Range<u64>> {
        (0..reads).filter_map(|n| note(streams, from + n * READ..from + (n + 1) * READ)).collect()
    }

    #[test]
    fn the_first_read_fetches_nothing_ahead_and_then_the_window_grows_to_the_limit() {
        let mut streams = Streams::default();
        assert_eq!(note(&mut streams, 0..READ), None);
        assert_eq!(note(&mut streams, READ..2 * READ), Some(2 * READ..4 * READ));
        let ahead = sequential(&mut streams, 2 * READ, 8192);
        assert!(ahead.windows(2).all(|pair| pair[0].end == pair[1].start), "no gap, no overlap");
        assert!(ahead.len() < 60, "{} steps for 1 GiB", ahead.len());
        let ahead = ahead.last().unwrap().end - (8192 + 2) * READ;
        assert!((LIMIT - LIMIT / STEPS..=LIMIT).contains(&ahead), "{ahead}");
    }

    #[test]
    fn random_reads_fetch_nothing_ahead() {
        let mut streams = Streams::default();
        let far = SKIP + BACK + READ;
        for n in (0..200).rev() {
            assert_eq!(note(&mut streams, n * far..n * far + READ), None);
        }
        assert_eq!(streams.streams.len(), STREAMS);
    }

    #[test]
    fn a_seek_does_not_reset_the_streams_of_others() {
        let mut streams = Streams::default();
        sequential(&mut streams, 0, 64);
        let tail = 1 << 30;
        assert_eq!(note(&mut streams, tail..tail + READ), None);
        sequential(&mut streams, 64 * READ, 12);
        assert!(note(&mut streams, tail + READ..tail + 2 * READ).is_some(), "the tail goes on");
        assert!(!sequential(&mut streams, 76 * READ, 12).is_empty(), "and so does the head");
    }

    #[test]
    fn values_side_by_side_are_one_stream() {
        let mut streams = Streams::default();
        let value = |n: u64| n * 30_016..n * 30_016 + 30_000;
        let ahead: Vec<_> = (0..1000).filter_map(|n| note(&mut streams, value(n))).collect();
        assert_eq!(streams.streams.len(), 1);
        assert!(ahead.last().unwrap().end > 1000 * 30_016);
    }

    #[test]
    fn small_seeks_keep_the_stream() {
        let mut streams = Streams::default();
        sequential(&mut streams, 0, 16);
        assert_eq!(note(&mut streams, 10 * READ..11 * READ), None, "back, to what was read");
        note(&mut streams, 17 * READ..18 * READ);
        assert_eq!(streams.streams.len(), 1);
        assert_eq!(streams.streams[0].next, 18 * READ);
    }

    #[test]
    fn random_reads_that_meet_by_chance_are_no_stream() {
        let mut streams = Streams::default();
        let far = 10 * READ;
        for n in 0..40 {
            note(&mut streams, n * far..n * far + READ);
        }
        assert_eq!(note(&mut streams, READ..2 * READ), None, "40 reads ago");
        assert!(note(&mut streams, 39 * far + READ..39 * far + 2 * READ).is_some(), "just now");
    }

    #[test]
    fn reads_that_come_in_another_order_are_one_stream() {
        let mut streams = Streams::default();
        note(&mut streams, 0..2 * READ);
        assert_eq!(note(&mut streams, 6 * READ..14 * READ), None, "what comes before is not there");
        assert_eq!(note(&mut streams, 2 * READ..6 * READ), Some(14 * READ..62 * READ));
        assert_eq!(streams.streams.len(), 1);
        // Four readers take turns, and each comes to where the next one began.
        let mut streams = Streams::default();
        for turn in 0..4 {
            for reader in 0..4 {
                let at = (reader * 4 + turn) * READ;
                note(&mut streams, at..at + READ);
            }
        }
        let ends: Vec<u64> = streams.streams.iter().map(|stream| stream.next).collect();
        assert_eq!(ends, [16 * READ]);
        // Who reads backwards in steps of four reads does not fetch what lies before it.
        let mut streams = Streams::default();
        let mut fetched = 0;
        for step in (0..64).rev() {
            for read in 0..4 {
                let at = (step * 4 + read) * READ;
                let ahead = note(&mut streams, at..at + READ).unwrap_or_default();
                fetched += ahead.end.saturating_sub(((step + 1) * 4 * READ).max(ahead.start));
            }
        }
        assert!(fetched <= 64 * 4 * READ * 9, "{fetched}");
    }

    #[test]
    fn what_is_long_read_is_left_behind_once_unless_somebody_follows() {
        let mut streams = Streams::default();
        let (keep, step) = (16 * READ, 32 * READ);
        sequential(&mut streams, 5 * READ, 40);
        assert_eq!(streams.left_behind(45 * READ, keep, step), None, "less than a step");
        sequential(&mut streams, 45 * READ, 16);
        assert_eq!(streams.left_behind(61 * READ, keep, step), Some(5 * READ..45 * READ));
        assert_eq!(streams.left_behind(61 * READ, keep, step), None);
        assert_eq!(streams.left_behind(60 * READ, 0, 0), None, "there is no stream");
        // Another reader begins where the first one was long ago.
        sequential(&mut streams, 20 * READ, 4);
        sequential(&mut streams, 61 * READ, 100);
        assert_eq!(streams.left_behind(161 * READ, keep, step), None);
        sequential(&mut streams, 161 * READ, ON_ITS_WAY);
        let at = 161 + ON_ITS_WAY;
        let left = streams.left_behind(at * READ, keep, step);
        assert_eq!(left, Some(45 * READ..(at - 16) * READ), "it never came");
    }

    #[test]
    fn without_a_window_nothing_is_fetched_ahead() {
        let mut streams = Streams::default();
        assert!((0..64).all(|n| streams.note(n * READ..(n + 1) * READ, 0).is_none()));
    }

    #[test]
    fn what_was_not_fetched_is_asked_for_again() {
        let mut streams = Streams::default();
        sequential(&mut streams, 0, 8);
        let ahead = streams.streams[0].ahead;
        streams.not_fetched(ahead - READ);
        assert_eq!(streams.streams[0].ahead, ahead - READ);
    }

    proptest! {
        #[test]
        fn never_more_ahead_than_a_few_times_what_was_read(
            reads in proptest::collection::vec((0_u64..1 << 24, 1_u64..1 << 20), 1..200),
            limit in 0_u64..1 << 26,
        ) {
            let mut streams = Streams::default();
            let (mut read, mut ahead, mut furthest) = (0, 0, 0);
            for (start, len) in reads {
                read += len;
                furthest = furthest.max(start + len);
                if let Some(Ahead { span: wanted, .. }) = streams.note(start..start + len, limit) {
                    prop_assert!(wanted.start >= start + len);
                    prop_assert!(wanted.end.saturating_sub(furthest) <= limit);
                    ahead += wanted.end - wanted.start;
                }
            }
            prop_assert!(ahead <= 9 * read);
        }
    }
}
