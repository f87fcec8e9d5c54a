//! How large an object can be, and in what parts it goes.
//!
//! ```text
//!               parts    a part, at most   an object, at most
//! S3, others   10,000    5 GiB             48.8 TiB            Amazon S3 user guide, "multipart upload limits"
//! GCS          10,000    5 GiB             5 TiB               Cloud Storage, "Quotas & limits"
//! Azure        50,000    4000 MiB          190.7 TiB           "Scalability targets for Blob storage"
//! ```
//!
//! 1. The crate counts neither parts nor bytes (`object_store` 0.14.2, `src/upload.rs`): what is
//!    too much is refused by the store, after the last byte. So it is refused here, before the first.
//! 2. A part is in memory as a whole. Parts are as small as the number of parts allows: [`PART`] up
//!    to 78 GiB, the whole [`BUDGET`] at 937 GiB, 525 MiB at 5 TiB.
//! 3. A part that is larger than the budget must not wait for more than there is: it takes the whole
//!    budget, and so is the only one in memory ([`permits`]).

use super::{BUDGET, PART, PERMIT};
use crate::error::{Error, Kind, Result};

const GIB: u64 = 1 << 30;

/// What a store takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many parts one object may have.
    parts: u64,
    /// How many bytes one part may have.
    part: u64,
    /// How many bytes one object may have.
    object: u64,
}

impl Limits {
    /// Those of S3, which stores that speak its language have too or leave further.
    pub const S3: Self = Self { parts: 10_000, part: 5 * GIB, object: 10_000 * 5 * GIB };
    const GCS: Self = Self { object: 5 * 1024 * GIB, ..Self::S3 };
    const AZURE: Self = Self { parts: 50_000, part: 4000 << 20, object: 50_000 * (4000 << 20) };
    /// Those of a disk, which says itself what it does not take.
    pub(super) const NONE: Self = Self { parts: u64::MAX, part: u64::MAX, object: u64::MAX };

    /// Those of the store of a scheme.
    pub fn of(scheme: &str) -> Self {
        match scheme {
            "gs" => Self::GCS,
            "az" | "abfss" => Self::AZURE,
            _ => Self::S3,
        }
    }

    #[cfg(test)]
    pub(super) const fn new(parts: u64, part: u64) -> Self {
        Self { parts, part, object: parts * part }
    }

    /// Refuses an object that the store would not take.
    ///
    /// # Errors
    /// [`Kind::Invalid`].
    pub fn check(&self, len: u64) -> Result<()> {
        if len <= self.object {
            return Ok(());
        }
        let text = format!(
            "{len} bytes are more than one object of the table's store can have, {}; cut it into \
             several values",
            self.object
        );
        Err(Error::new(Kind::Invalid, text))
    }

    /// The size of the parts of an object, but for the last one.
    pub(super) fn part_of(&self, len: u64) -> u64 {
        let least = len.div_ceil(self.parts).max(PART);
        // Round numbers, as long as there is room above.
        least.div_ceil(PERMIT).saturating_mul(PERMIT).min(self.part)
    }
}

/// How much of a budget of so many bytes is waited for before so many are in memory, in units of
/// [`PERMIT`].
pub(super) fn permits(size: u64) -> u32 {
    u32::try_from(size.min(BUDGET).div_ceil(PERMIT)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parts_are_as_small_as_they_may_be() {
        let gib = |len: u64| Limits::S3.part_of(len * GIB);
        assert_eq!(Limits::S3.part_of(1), PART);
        assert_eq!(Limits::S3.part_of(PART * 10_000), PART);
        assert!(gib(937) < BUDGET && gib(938) > BUDGET);
        assert_eq!(gib(5 * 1024).div_ceil(1 << 20), 525);
        assert_eq!(Limits::S3.part_of(Limits::S3.object), 5 * GIB);
        assert_eq!(Limits::AZURE.part_of(Limits::AZURE.object), 4000 << 20);
    }

    #[test]
    fn what_no_store_takes_is_refused() {
        for (scheme, tib) in [("s3", 48), ("gs", 5), ("az", 190), ("memory", 48)] {
            let limits = Limits::of(scheme);
            limits.check(tib << 40).unwrap();
            let error = limits.check((tib + 1) << 40).unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid, "{scheme}: {error}");
        }
    }

    proptest! {
        #[test]
        fn whatever_a_store_takes_goes_in_its_parts_and_in_the_memory_that_there_is(
            len in 1_u64..=Limits::AZURE.object,
            scheme in prop::sample::select(vec!["s3", "gs", "az", "oss"]),
        ) {
            let limits = Limits::of(scheme);
            if limits.check(len).is_ok() {
                let part = limits.part_of(len);
                prop_assert!(part <= limits.part);
                prop_assert!(len.div_ceil(part) <= limits.parts);
                prop_assert!(u64::from(permits(part)) * PERMIT <= BUDGET);
            }
        }
    }
}
