//! Blocks of a span, and the bytes of an interval out of blocks. Pure.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

use super::Interval;
use crate::units::{self, BlockNumber, ByteLen};

/// The blocks that hold a range of bytes.
pub fn blocks_of(bytes: &Range<u64>, block: ByteLen) -> Range<u64> {
    bytes.start / block.get()..bytes.end.div_ceil(block.get())
}

/// The runs of side by side numbers of a range that `wanted` picks, each of `most` at most.
pub fn runs(range: Range<u64>, most: u64, wanted: impl Fn(BlockNumber) -> bool) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for number in range.filter(|number| wanted(BlockNumber::new(*number))) {
        match runs.last_mut() {
            Some(run) if run.end == number && run.end - run.start < most => run.end += 1,
            _ => runs.push(number..number + 1),
        }
    }
    runs
}

/// Puts the bytes of an interval together from its blocks, which come in order.
pub struct Taking {
    /// What is still to be skipped of the next block.
    skip: usize,
    left: usize,
    block: usize,
    taken: Vec<Bytes>,
    complete: bool,
}

impl Taking {
    /// For an interval whose first block is the next to be given.
    pub fn new(interval: Interval, block: ByteLen) -> Self {
        Self {
            skip: units::usize_of(interval.offset.get() % block.get()),
            left: units::usize_of(interval.len.get()),
            block: units::usize_of(block.get()),
            taken: Vec::new(),
            complete: true,
        }
    }

    /// Takes what is needed of the next block.
    pub fn take(&mut self, block: &Bytes) {
        let end = (self.skip + self.left).min(self.block);
        if end > block.len() {
            self.complete = false;
            return;
        }
        self.taken.push(block.slice(self.skip..end));
        self.left -= end - self.skip;
        self.skip = 0;
    }

    /// All bytes; `None` if a block was too short or there were too few.
    pub fn done(mut self) -> Option<Bytes> {
        if !self.complete || self.left > 0 {
            return None;
        }
        if self.taken.len() == 1 {
            return self.taken.pop();
        }
        let mut all = BytesMut::with_capacity(self.taken.iter().map(Bytes::len).sum());
        for part in &self.taken {
            all.extend_from_slice(part);
        }
        Some(all.freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::ObjectOffset;
    use proptest::prelude::*;

    #[test]
    fn runs_are_cut_at_gaps_and_at_their_most() {
        let wanted = |n: BlockNumber| n.get() != 3;
        assert_eq!(runs(0..9, 10, wanted), [0..3, 4..9]);
        assert_eq!(runs(0..9, 2, wanted), [0..2, 2..3, 4..6, 6..8, 8..9]);
        assert_eq!(runs(3..4, 2, wanted), []);
    }

    proptest! {
        #[test]
        fn blocks_give_the_interval(len in 1_usize..200, block in 1_usize..40, from in 0_usize..200, take in 1_usize..200) {
            let object: Vec<u8> = (0..len).map(|n| u8::try_from(n % 251).unwrap()).collect();
            let interval = Interval {
                offset: ObjectOffset::new(units::u64_of(from)),
                len: ByteLen::new(units::u64_of(take)),
            };
            let block_len = ByteLen::new(units::u64_of(block));
            let span = blocks_of(&(units::u64_of(from)..units::u64_of(from + take)), block_len);
            let mut taking = Taking::new(interval, block_len);
            for number in span {
                let start = units::usize_of(number) * block;
                if start < len {
                    taking.take(&Bytes::copy_from_slice(&object[start..len.min(start + block)]));
                }
            }
            let expected = object.get(from..from + take).map(Bytes::copy_from_slice);
            prop_assert_eq!(taking.done(), expected);
        }
    }
}
