//! Integers that must not be added to each other, one type each.
//!
//! 1. An offset inside a value and an offset inside the object that holds it are both bytes and
//!    differ by the value's position: [`BlobOffset`] and [`ObjectOffset`], and the only way from one
//!    to the other is [`ObjectOffset::plus`].
//! 2. A row has an index (its directory name), an address (fragment and offset) and, in some
//!    tables, a stable id: [`RowIndex`], [`RowAddress`], [`RowId`].
//! 3. A version number means nothing without its branch: [`Version`] is only the number, the whole
//!    identity is `tree::SnapshotId`.

use std::fmt;

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u64);

        impl $name {
            /// Wraps a plain number that is known to be of this unit.
            pub const fn new(value: u64) -> Self {
                Self(value)
            }

            /// The plain number, for arithmetic at a border.
            pub const fn get(self) -> u64 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

unit!(
    /// Bytes from the start of a value.
    BlobOffset
);
unit!(
    /// Bytes from the start of a stored object.
    ObjectOffset
);
unit!(
    /// A number of bytes.
    ByteLen
);
unit!(
    /// The number of a block of an object: its offset divided by the block size.
    BlockNumber
);
unit!(
    /// The 0-based position of a live row in its snapshot: the name of its directory.
    RowIndex
);
unit!(
    /// Lance's `_rowaddr`: fragment in the upper 32 bits, physical offset in the lower.
    RowAddress
);
unit!(
    /// Lance's `_rowid`; equal to the address unless the table has stable row ids.
    RowId
);
unit!(
    /// The number of a version on its branch.
    Version
);
unit!(
    /// An inode number (see `tree::ino`).
    Ino
);
unit!(
    /// The flat position of a value among all elements that one leaf field has in one row; 0 for a
    /// field that is not beneath a list.
    Ordinal
);

impl ObjectOffset {
    /// This offset moved on by an offset inside the value that starts here; `None` on overflow.
    pub fn plus(self, within: BlobOffset) -> Option<Self> {
        self.0.checked_add(within.0).map(Self)
    }

    /// The exclusive end of an interval of `len` bytes that starts here; `None` on overflow.
    pub fn end(self, len: ByteLen) -> Option<Self> {
        self.0.checked_add(len.0).map(Self)
    }
}

impl ByteLen {
    /// So many KiB.
    pub const fn kib(n: u64) -> Self {
        Self(n << 10)
    }

    /// So many MiB.
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }
}

impl BlockNumber {
    /// The block of an offset.
    pub fn holding(offset: ObjectOffset, block: ByteLen) -> Self {
        Self(offset.0 / block.0)
    }

    /// Where the block starts.
    pub fn start(self, block: ByteLen) -> ObjectOffset {
        ObjectOffset(self.0.saturating_mul(block.0))
    }
}

impl RowAddress {
    /// The id of the fragment that holds the row.
    pub fn fragment(self) -> u64 {
        self.0 >> 32
    }

    /// The row's position in its fragment, deleted rows counted.
    pub fn offset(self) -> u32 {
        // Masked to 32 bits.
        u32::try_from(self.0 & u64::from(u32::MAX)).unwrap_or(u32::MAX)
    }
}

impl ByteLen {
    /// What is left of `len` bytes asked for at `offset` of a value of this length: POSIX `read`.
    #[must_use]
    pub fn clamp(self, offset: BlobOffset, len: ByteLen) -> ByteLen {
        ByteLen(len.0.min(self.0.saturating_sub(offset.0)))
    }
}

/// A `usize` as `u64`; every platform that this crate runs on has at most 64 bits.
pub fn u64_of(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// A `u64` as `usize`, at most `usize::MAX`: for indices into memory that is known to be as large.
pub fn usize_of(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// A count as `i64`, at most `i64::MAX`: Lance's scanner takes limits in this type.
pub fn i64_of(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_clamped_to_the_value() {
        let size = ByteLen::new(10);
        let clamp = |off, len| size.clamp(BlobOffset::new(off), ByteLen::new(len)).get();
        assert_eq!(clamp(0, 4), 4);
        assert_eq!(clamp(8, 4), 2);
        assert_eq!(clamp(10, 4), 0);
        assert_eq!(clamp(11, 4), 0);
        assert_eq!(clamp(u64::MAX, u64::MAX), 0);
        assert_eq!(clamp(3, u64::MAX), 7);
    }

    #[test]
    fn intervals_do_not_wrap() {
        assert_eq!(ObjectOffset::new(u64::MAX).end(ByteLen::new(1)), None);
        assert_eq!(ObjectOffset::new(5).plus(BlobOffset::new(6)), Some(ObjectOffset::new(11)));
    }
}
