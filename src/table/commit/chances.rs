//! In which versions a batch may be, as far as its attempts are known.
//!
//! ```text
//! versions   … 5    6    7    8    9 …       in none up to 5; attempts were made on top of 6 and of 7
//!            certain└── may be it ──┘        so it may be 7 or 8, now or later; 9 is out of question
//! ```
//!
//! 1. An attempt on top of version n becomes n + 1 or nothing, and n + 1 can be written once. So
//!    what an attempt may have become is decided as soon as n + 1 is there and was read.
//! 2. Until then no failure says that the batch is not in the table, however certain it is of its
//!    own attempt: whoever wants to say so has to ask [`Chances::is_open`].
//! 3. A search that begins later than the first attempt would pass over what that one has become:
//!    where it begins is kept here ([`Chances::not_up_to`]) and moves on only when nothing is open.

/// Where a batch may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chances {
    not_up_to: u64,
    /// The last version on top of which an attempt may have been written.
    open: Option<u64>,
}

impl Chances {
    /// Of a batch that was never tried, or of which no attempt can be there: it is in no version up
    /// to this one.
    pub fn none_up_to(version: u64) -> Self {
        Self { not_up_to: version, open: None }
    }

    /// Of a batch that was tried on top of versions, of which these are the first and the last.
    pub fn after(first: u64, last: u64) -> Self {
        Self { not_up_to: first, open: Some(last) }
    }

    /// Whether it may be in the table, or may come into it still.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// It is in no version up to this one: later ones have to be searched.
    pub(super) fn not_up_to(&self) -> u64 {
        self.not_up_to
    }

    /// An attempt on top of a version has begun to write.
    pub(super) fn begun(&mut self, on: u64) {
        self.open = self.open.max(Some(on));
    }

    /// Every version up to the newest was read, and none is it.
    pub(super) fn read_up_to(&mut self, newest: u64) {
        if self.open.is_none_or(|last| last < newest) {
            *self = Self::none_up_to(newest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_is_out_of_question_once_its_version_is_anothers() {
        let mut chances = Chances::none_up_to(5);
        chances.read_up_to(6);
        assert_eq!(chances, Chances::none_up_to(6));
        chances.begun(6);
        chances.read_up_to(6);
        assert_eq!(chances, Chances::after(6, 6), "7 may still be written");
        chances.begun(7);
        chances.read_up_to(7);
        assert_eq!(chances, Chances::after(6, 7), "the search still begins with 7");
        chances.read_up_to(8);
        assert_eq!(chances, Chances::none_up_to(8));
        chances.begun(8);
        chances.begun(8);
        assert_eq!(chances, Chances::after(8, 8));
    }
}
