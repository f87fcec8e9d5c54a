//! From a row's index to its fragment: prefix sums over the live rows of each fragment, built once
//! for each snapshot.

use crate::error::{Error, Kind, Result};
use crate::units::{self, RowIndex};

/// The live rows of a snapshot.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    /// `ends[i]` is the number of rows in fragments `0..=i`.
    ends: Vec<u64>,
}

/// A row's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Position of the fragment in the manifest.
    pub fragment: usize,
    /// Position among the live rows of the fragment.
    pub offset: u64,
    /// How many live rows the fragment has.
    pub rows: u64,
}

impl Rows {
    /// Sums the live rows of each fragment, in the manifest's order.
    ///
    /// # Errors
    /// [`Kind::Table`] where they are more than can be counted.
    pub fn new(live: impl IntoIterator<Item = u64>) -> Result<Self> {
        let mut total = 0_u64;
        let ends = live.into_iter().map(|rows| {
            total = total.checked_add(rows)?;
            Some(total)
        });
        let ends = ends.collect::<Option<_>>();
        let ends = ends.ok_or_else(|| Error::new(Kind::Table, "its rows cannot be counted"))?;
        Ok(Self { ends })
    }

    /// How many rows there are.
    pub fn count(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Where a row is; `None` past the end.
    pub fn place(&self, row: RowIndex) -> Option<Place> {
        let fragment = self.ends.partition_point(|end| *end <= row.get());
        let end = self.ends.get(fragment)?;
        let start = fragment.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(Place { fragment, offset: row.get() - start, rows: end - start })
    }

    /// The first row of a fragment.
    pub fn first_of(&self, fragment: usize) -> RowIndex {
        let before = fragment.checked_sub(1).and_then(|f| self.ends.get(f));
        RowIndex::new(before.copied().unwrap_or(0))
    }

    /// How many live rows a fragment has.
    pub fn live(&self, fragment: usize) -> u64 {
        let end = self.ends.get(fragment).copied().unwrap_or(0);
        end.saturating_sub(self.first_of(fragment).get())
    }

    /// How many fragments there are.
    pub fn fragments(&self) -> u64 {
        units::u64_of(self.ends.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_fragments_hold_no_row() {
        let rows = Rows::new([0, 3, 0, 2, 0]).unwrap();
        assert_eq!(rows.count(), 5);
        let at = |row| rows.place(RowIndex::new(row)).map(|p| (p.fragment, p.offset, p.rows));
        assert_eq!(at(0), Some((1, 0, 3)));
        assert_eq!(at(2), Some((1, 2, 3)));
        assert_eq!(at(3), Some((3, 0, 2)));
        assert_eq!(at(4), Some((3, 1, 2)));
        assert_eq!(at(5), None);
        assert_eq!(at(u64::MAX), None);
        assert_eq!(Rows::new([]).unwrap().place(RowIndex::new(0)), None);
        assert_eq!(rows.first_of(3), RowIndex::new(3));
        assert!(Rows::new([u64::MAX, 1]).is_err());
        assert_eq!([0, 1, 2, 3, 4, 5].map(|fragment| rows.live(fragment)), [0, 3, 0, 2, 0, 0]);
    }
}
