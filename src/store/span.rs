//! Ranges of bytes and of blocks. Pure.

use std::ops::Range;

use crate::units::{self, BlockNumber, ByteLen};

/// The blocks that hold a range of bytes.
pub fn blocks_of(bytes: &Range<u64>, block: ByteLen) -> Range<u64> {
    bytes.start / block.get()..bytes.end.div_ceil(block.get())
}

/// The bytes that blocks hold.
pub fn bytes_of(blocks: &Range<u64>, block: ByteLen) -> Range<u64> {
    let offset = |number| BlockNumber::new(number).start(block).get();
    offset(blocks.start)..offset(blocks.end)
}

/// What two ranges share; it is empty where that is nothing.
pub fn common(one: &Range<u64>, other: &Range<u64>) -> Range<u64> {
    let start = one.start.max(other.start);
    start..one.end.min(other.end).max(start)
}

/// Where a range lies in a piece of memory that holds `len` bytes from `start` on, as far as it does.
pub fn within(bytes: &Range<u64>, start: u64, len: usize) -> Range<usize> {
    let part = common(bytes, &(start..start + units::u64_of(len)));
    if part.is_empty() {
        return 0..0;
    }
    units::usize_of(part.start - start)..units::usize_of(part.end - start)
}

/// A range cut at every so many after `origin`, which is not after its start; `every` is not 0.
pub fn cuts(range: Range<u64>, origin: u64, every: u64) -> impl Iterator<Item = Range<u64>> {
    let mut start = range.start;
    std::iter::from_fn(move || {
        let next = ((start - origin) / every + 1).saturating_mul(every);
        let end = origin.saturating_add(next).min(range.end);
        let cut = start..end;
        start = end;
        (!cut.is_empty()).then_some(cut)
    })
}

/// A number of bytes as the length of a piece of memory.
pub fn len(range: &Range<u64>) -> usize {
    units::usize_of(range.end - range.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_at_multiples() {
        let cut = |range, origin, every| cuts(range, origin, every).collect::<Vec<_>>();
        assert_eq!(cut(3..9, 0, 4), [3..4, 4..8, 8..9]);
        assert_eq!(cut(3..9, 3, 4), [3..7, 7..9]);
        assert_eq!(cut(4..9, 0, 4), [4..8, 8..9]);
        assert_eq!(cut(4..4, 4, 4), []);
        assert_eq!(cut(5..u64::MAX, 5, u64::MAX).len(), 1);
    }

    #[test]
    fn blocks_hold_all_bytes() {
        let block = ByteLen::new(10);
        assert_eq!(blocks_of(&(0..10), block), 0..1);
        assert_eq!(blocks_of(&(9..21), block), 0..3);
        assert_eq!(bytes_of(&(1..3), block), 10..30);
        assert_eq!(within(&(12..100), 10, 5), 2..5);
        assert_eq!(within(&(12..100), 10, 2), 0..0);
        assert_eq!(within(&(0..5), 10, 2), 0..0);
        assert_eq!(common(&(0..5), &(3..9)), 3..5);
        assert!(common(&(0..5), &(7..9)).is_empty());
    }
}
