//! How much of the staging disk batches use, and may use.
//!
//! 1. What counts is what is allocated, not lengths: files are sparse while programs write them.
//!    [`Quota::account`] is told of each file's allocation after it changed.
//! 2. A write is refused before it is made, and a file's allocation is known only after: a write
//!    that would not fit if all of it were new is looked at more closely by its caller.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Kind};
use crate::units::ByteLen;

/// The unit in which disks allocate, in bytes: what a write of one byte may take.
const UNIT: u64 = 4096;

/// Bytes that are allocated beneath `tree/`, files only.
#[derive(Debug)]
pub struct Quota {
    limit: Option<ByteLen>,
    used: AtomicU64,
}

impl Quota {
    /// Nothing is used yet; without a limit the disk is.
    pub fn new(limit: Option<ByteLen>) -> Self {
        Self { limit, used: AtomicU64::new(0) }
    }

    /// The limit, if there is one.
    pub fn limit(&self) -> Option<ByteLen> {
        self.limit
    }

    /// What is used.
    pub fn used(&self) -> ByteLen {
        ByteLen::new(self.used.load(Ordering::Relaxed))
    }

    /// What is left of the limit; `None` without one.
    pub fn left(&self) -> Option<ByteLen> {
        let limit = self.limit?;
        Some(ByteLen::new(limit.get().saturating_sub(self.used().get())))
    }

    /// Whether so many bytes fit if all of them are new.
    pub fn fits(&self, len: ByteLen) -> bool {
        let units = len.get().div_ceil(UNIT).saturating_mul(UNIT);
        self.left().is_none_or(|left| units <= left.get())
    }

    /// Notes that the allocation of a file changed.
    pub fn account(&self, before: ByteLen, after: ByteLen) {
        let change =
            |used: u64| Some(used.saturating_sub(before.get()).saturating_add(after.get()));
        // The function always gives a value.
        let _ = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
    }

    /// The error of a write that does not fit.
    pub fn exceeded(&self) -> Error {
        let limit = self.limit.unwrap_or_default();
        let text = format!(
            "--staging-limit of {limit} bytes: {} are used; commit or remove a batch",
            self.used()
        );
        Error::new(Kind::Quota, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_what_is_not_allocated() {
        let quota = Quota::new(Some(ByteLen::kib(64)));
        assert!(quota.fits(ByteLen::kib(64)) && !quota.fits(ByteLen::kib(65)));
        quota.account(ByteLen::new(0), ByteLen::kib(60));
        assert_eq!(quota.left(), Some(ByteLen::kib(4)));
        assert!(quota.fits(ByteLen::new(1)) && !quota.fits(ByteLen::kib(5)));
        assert_eq!(quota.exceeded().kind(), Kind::Quota);
        quota.account(ByteLen::kib(60), ByteLen::new(0));
        assert_eq!(quota.used(), ByteLen::new(0));
        assert!(Quota::new(None).fits(ByteLen::new(u64::MAX)));
    }
}
