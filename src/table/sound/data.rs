//! Data files of the formats 2.0 and later (`file2.proto` of the format): what is where.
//!
//! ```text
//! pages …  │ global buffers │ column metadata │ column table │ buffer table │ footer, 40 bytes
//!          the first: schema  one for each      16 bytes each   16 bytes each
//!
//! footer   column metadata at u64 │ column table at u64 │ buffer table at u64 │
//!          buffers u32 │ columns u32 │ major u16 │ minor u16 │ "LANC"
//! ```

use std::ops::Range;

use lance_file::format::pbfile::ColumnMetadata;
use prost::Message as _;

use super::{Unsound, range};
use crate::units;

/// The footer's length, in bytes.
pub const FOOTER: u64 = 40;
const MAGIC: &[u8; 4] = b"LANC";
/// An entry of either table: an offset and a length.
const ENTRY: u64 = 16;
/// A row's offset in its fragment has 32 bits (spec, "Row Address").
const MOST_ROWS: u64 = 1 << 32;
/// The oldest version with this footer: 2.0, which is written as 0.3.
const FIRST: (u16, u16) = (0, 3);

/// The end of a data file, from some offset on.
pub struct Tail<'a> {
    /// The bytes.
    pub bytes: &'a [u8],
    /// The file's length in bytes.
    pub size: u64,
}

impl Tail<'_> {
    /// The bytes of a range of the file, if the tail has all of them.
    fn get(&self, of: &Range<u64>) -> Option<&[u8]> {
        let start = self.size.checked_sub(units::u64_of(self.bytes.len()))?;
        let at = |offset: u64| usize::try_from(offset.checked_sub(start)?).ok();
        self.bytes.get(at(of.start)?..at(of.end)?)
    }
}

/// Looks at the end of a data file. Gives what more of it must be there to look at the rest: nothing
/// once all has been looked at, or where it is no file of these formats.
///
/// # Errors
/// What in it is larger than the file, or than any such file is.
pub fn tail(tail: &Tail<'_>) -> Result<Option<u64>, Unsound> {
    let Some(footer) = Footer::of(tail) else { return Ok(None) };
    let (columns, buffers) = footer.tables(tail.size)?;
    let Some(table) = tail.get(&buffers) else { return Ok(Some(buffers.start)) };
    for (offset, length) in entries(table) {
        range(offset, length, tail.size, "a global buffer")?;
    }
    let Some(table) = tail.get(&columns) else { return Ok(Some(footer.metadata)) };
    let Some(all) = tail.get(&(footer.metadata..columns.start)) else {
        return Ok(Some(footer.metadata));
    };
    for (offset, length) in entries(table) {
        let relative = offset.checked_sub(footer.metadata);
        let relative = relative.ok_or_else(|| format!("a column's metadata at {offset}"))?;
        let place = range(relative, length, units::u64_of(all.len()), "a column's metadata")?;
        let at = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX);
        let metadata = ColumnMetadata::decode(&all[at(place.start)..at(place.end)]);
        column(&metadata.map_err(|e| format!("a column's metadata: {e}"))?, tail.size)?;
    }
    Ok(None)
}

struct Footer {
    metadata: u64,
    columns_at: u64,
    buffers_at: u64,
    buffers: u32,
    columns: u32,
}

impl Footer {
    fn of(tail: &Tail<'_>) -> Option<Self> {
        let footer = tail.get(&(tail.size.checked_sub(FOOTER)?..tail.size))?;
        let wide = |at: usize| Some(u64::from_le_bytes(*footer[at..].first_chunk()?));
        let word = |at: usize| Some(u32::from_le_bytes(*footer[at..].first_chunk()?));
        let half = |at: usize| Some(u16::from_le_bytes(*footer[at..].first_chunk()?));
        if !footer.ends_with(MAGIC) || (half(32)?, half(34)?) < FIRST {
            return None;
        }
        Some(Self {
            metadata: wide(0)?,
            columns_at: wide(8)?,
            buffers_at: wide(16)?,
            buffers: word(24)?,
            columns: word(28)?,
        })
    }

    /// Where the two tables are.
    fn tables(&self, size: u64) -> Result<(Range<u64>, Range<u64>), Unsound> {
        let end = size - FOOTER;
        let columns = range(self.columns_at, u64::from(self.columns) * ENTRY, end, "columns")?;
        let buffers = range(self.buffers_at, u64::from(self.buffers) * ENTRY, end, "buffers")?;
        if self.metadata > columns.start || columns.end != buffers.start {
            return Err(format!(
                "its parts at {}, {} and {} of {size} bytes",
                self.metadata, self.columns_at, self.buffers_at
            ));
        }
        Ok((columns, buffers))
    }
}

fn entries(table: &[u8]) -> impl Iterator<Item = (u64, u64)> + '_ {
    let (entries, _) = table.as_chunks::<16>();
    entries.iter().filter_map(|entry| {
        let (offset, length) = (entry.first_chunk::<8>()?, entry.last_chunk::<8>()?);
        Some((u64::from_le_bytes(*offset), u64::from_le_bytes(*length)))
    })
}

fn column(metadata: &ColumnMetadata, size: u64) -> Result<(), Unsound> {
    let pairs = |offsets: &[u64], sizes: &[u64]| {
        if offsets.len() != sizes.len() {
            return Err(format!("{} buffers and {} lengths", offsets.len(), sizes.len()));
        }
        offsets.iter().zip(sizes).try_for_each(|(offset, length)| {
            range(*offset, *length, size, "a page's buffer").map(drop)
        })
    };
    pairs(&metadata.buffer_offsets, &metadata.buffer_sizes)?;
    for page in &metadata.pages {
        pairs(&page.buffer_offsets, &page.buffer_sizes)?;
        if page.length > MOST_ROWS {
            return Err(format!("a page of {} rows", page.length));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of one page of eight bytes, and of what describes it.
    fn file(page: (u64, u64), rows: u64) -> Vec<u8> {
        let metadata = ColumnMetadata {
            pages: vec![lance_file::format::pbfile::column_metadata::Page {
                buffer_offsets: vec![page.0],
                buffer_sizes: vec![page.1],
                length: rows,
                ..Default::default()
            }],
            ..Default::default()
        };
        let metadata = metadata.encode_to_vec();
        let mut file = vec![0; 8];
        let at = units::u64_of(file.len());
        file.extend(&metadata);
        let columns = units::u64_of(file.len());
        file.extend([at, units::u64_of(metadata.len())].map(u64::to_le_bytes).concat());
        let buffers = units::u64_of(file.len());
        file.extend([0_u64, 8].map(u64::to_le_bytes).concat());
        file.extend([at, columns, buffers].map(u64::to_le_bytes).concat());
        file.extend([1_u32, 1].map(u32::to_le_bytes).concat());
        file.extend([2_u16, 1].map(u16::to_le_bytes).concat());
        file.extend(MAGIC);
        file
    }

    fn look(file: &[u8]) -> Result<Option<u64>, Unsound> {
        tail(&Tail { bytes: file, size: units::u64_of(file.len()) })
    }

    #[test]
    fn every_part_lies_in_the_file() {
        assert_eq!(look(&file((0, 8), 2)), Ok(None));
        assert!(look(&file((0, 1 << 40), 2)).unwrap_err().contains("1099511627776 bytes at 0"));
        assert!(look(&file((u64::MAX, 8), 2)).is_err());
        assert!(look(&file((0, 8), u64::MAX)).unwrap_err().contains("rows"));
        let whole = file((0, 8), 2);
        let footer = whole.len() - 40;
        for at in
            [footer - 32, footer - 24, footer - 16, footer - 8, footer, footer + 8, footer + 16]
        {
            for length in [1_u64 << 40, 1 << 63, u64::MAX] {
                let mut damaged = whole.clone();
                damaged[at..at + 8].copy_from_slice(&length.to_le_bytes());
                assert!(look(&damaged).is_err(), "{length} at {at}");
            }
        }
        for at in [footer + 24, footer + 28] {
            let mut damaged = whole.clone();
            damaged[at..at + 4].fill(0xff);
            assert!(look(&damaged).is_err(), "at {at}");
        }
    }

    #[test]
    fn a_tail_that_is_too_short_says_what_is_missing() {
        let whole = file((0, 8), 2);
        let size = units::u64_of(whole.len());
        for short in 40..whole.len() {
            let bytes = &whole[whole.len() - short..];
            match tail(&Tail { bytes, size }) {
                Ok(None) => assert!(short >= whole.len() - 8),
                Ok(Some(from)) => assert!(from < size - units::u64_of(short) && from >= 8),
                Err(why) => panic!("{short}: {why}"),
            }
        }
        assert_eq!(look(b"LANC"), Ok(None));
        assert_eq!(look(b""), Ok(None));
    }
}
