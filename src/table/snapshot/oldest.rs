//! Blobs in data files of the format 0.1, which has no descriptors: their values stand in a column of
//! bytes, and the crate's scan for descriptors panics there.
//!
//! ```text
//! values of a page │ n + 1 positions, i64 each │ … │ metadata │ … │ metadata at u64 │ major, minor │ "LANC"
//!                    ▲                               page table at u64; rows of each page
//! page table: for each field id from the file's first on, for each page: positions at i64 │ n i64
//! ```
//!
//! 1. A value must be read in part, and a page of rows must not bring their bytes along: positions are
//!    read instead, and become the descriptors that later formats have.
//! 2. Null and empty are one: no bytes. A column that may be null has nulls then, as the crate gives
//!    them (lance-file 14.0.2, `versions/v1/encoding/binary.rs:151`).
//! 3. Nothing in the file is believed: what lies outside of it, or ends before it begins, is an error
//!    of the column, and no number asks for more memory than the file has bytes.
//! 4. A column may have members beside a Blob: those come from the crate, and are put around it
//!    ([`assemble`]). A list has another layout; the crate's error stays.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::{Array as _, ArrayRef, StructArray, UInt64Array};
use arrow_buffer::NullBuffer;
use arrow_schema::{DataType, Field as ArrowField, Fields};
use lance_core::datatypes::{Field, Schema};
use lance_file::format::pb::Metadata;
use lance_file::version::ConcreteFileVersion;
use lance_table::format::DataFile;
use prost::Message as _;

use super::Snapshot;
use crate::error::{Error, Kind, Result};
use crate::store::{Interval, RangeRead};
use crate::table::descriptor::{BlobKind, Descriptor, Extent, Target};
use crate::table::scan::{Run, Scanned};
use crate::units::{self, ByteLen, ObjectOffset, RowAddress};

/// The footer's length, in bytes: where the metadata is, the version, four letters.
const FOOTER: u64 = 16;
/// The length of a position.
const WORD: u64 = 8;

impl Snapshot {
    /// Scans the first rows of a run that weigh no more than `most`, Blobs as descriptors, in files of
    /// every format.
    ///
    /// # Errors
    /// As `Locator::scan`.
    pub(in crate::table) async fn scan_run(
        &self,
        columns: &[Schema],
        run: Run,
        most: u64,
    ) -> Result<Scanned> {
        let blobs: Vec<Vec<i32>> =
            columns.iter().map(|column| self.without_descriptors(column, run.fragment)).collect();
        if blobs.iter().all(Vec::is_empty) {
            return self.locator.scan(&self.scannable, columns, run, most).await;
        }
        let rest: Vec<Schema> = columns
            .iter()
            .zip(&blobs)
            .map(|(column, blobs)| without(column, blobs))
            .filter(|column| !column.fields.is_empty())
            .collect();
        let mut scanned = self.locator.scan(&self.scannable, &rest, run, most).await?;
        let mut read = std::mem::take(&mut scanned.columns).into_iter();
        for (column, blobs) in columns.iter().zip(&blobs) {
            let is_bare = without(column, blobs).fields.is_empty();
            let rest = if is_bare { None } else { read.next() };
            let whole = self.put_together(column, blobs, rest, run, scanned.addresses.values());
            scanned.columns.push(whole.await);
        }
        Ok(scanned)
    }

    /// The Blob fields of a column that are in a file of the format 0.1, unless one is in a list.
    fn without_descriptors(&self, column: &Schema, fragment: usize) -> Vec<i32> {
        let mut blobs = Vec::new();
        if !column.fields.iter().all(|field| blobs_of(field, &mut blobs)) {
            return Vec::new();
        }
        let is_oldest = |id: &i32| {
            let file = self.locator.data_file(fragment, *id);
            file.and_then(|file| Ok(version(file)? == ConcreteFileVersion::V1)).unwrap_or(false)
        };
        blobs.retain(is_oldest);
        blobs
    }

    async fn put_together(
        &self,
        column: &Schema,
        blobs: &[i32],
        rest: Option<Result<ArrayRef>>,
        run: Run,
        addresses: &[u64],
    ) -> Result<ArrayRef> {
        let rest = rest.transpose()?;
        let mut made = BTreeMap::new();
        for id in blobs {
            let nullable = column.field_by_id(*id).is_none_or(|field| field.nullable);
            let positions = self.positions(run.fragment, *id, addresses).await?;
            made.insert(*id, descriptors(&positions, nullable));
        }
        let field = column.fields.first();
        field
            .and_then(|field| assemble(field, rest.as_ref(), &made, addresses.len()))
            .ok_or_else(|| Error::new(Kind::Table, "a column of the format 0.1 lacks a member"))
    }

    /// Where each row's value begins and ends.
    async fn positions(
        &self,
        fragment: usize,
        field: i32,
        addresses: &[u64],
    ) -> Result<Vec<Range<u64>>> {
        let descriptor = Descriptor {
            kind: BlobKind::Legacy,
            target: Target::DataFile,
            extent: Extent::WholeObject(ObjectOffset::new(0)),
        };
        let object = self.locator.locate(fragment, field, &descriptor).await?.object;
        let fields = &self.locator.data_file(fragment, field)?.fields;
        let read = match File::open(self.opener.open(&object)?).await {
            Ok(file) => file.positions(fields, field, addresses).await,
            Err(error) => Err(error),
        };
        read.map_err(|error| error.at(format!("{} of the format 0.1", object.uri)))
    }
}

fn version(file: &DataFile) -> Result<ConcreteFileVersion> {
    file.file_version().map_err(|e| Error::caused(Kind::Table, file.path.as_str(), e))
}

/// Collects the Blobs beneath a field; whether none is in a list.
fn blobs_of(field: &Field, blobs: &mut Vec<i32>) -> bool {
    if field.is_blob() {
        blobs.push(field.id);
        return true;
    }
    let before = blobs.len();
    let children = field.children.iter().all(|child| blobs_of(child, blobs));
    children && (blobs.len() == before || matches!(field.data_type(), DataType::Struct(_)))
}

/// A column without some of its leaves, and without what is then bare.
fn without(column: &Schema, leaves: &[i32]) -> Schema {
    let kept = column.fields_pre_order().filter(|field| field.children.is_empty());
    let kept: Vec<i32> = kept.map(|field| field.id).filter(|id| !leaves.contains(id)).collect();
    column.project_by_ids(&kept, true)
}

fn descriptors(positions: &[Range<u64>], nullable: bool) -> ArrayRef {
    let is_there = |place: &Range<u64>| !nullable || !place.is_empty();
    let nulls: NullBuffer = positions.iter().map(is_there).collect();
    let starts = UInt64Array::from_iter_values(positions.iter().map(|place| place.start));
    let sizes = positions.iter().map(|place| place.end - place.start);
    let field = |name| ArrowField::new(name, DataType::UInt64, true);
    let fields = Fields::from(vec![field("position"), field("size")]);
    let sizes = UInt64Array::from_iter_values(sizes);
    Arc::new(StructArray::new(fields, vec![Arc::new(starts), Arc::new(sizes)], Some(nulls)))
}

/// A field of its parts: what was scanned, and the Blobs that were made.
fn assemble(
    field: &Field,
    rest: Option<&ArrayRef>,
    made: &BTreeMap<i32, ArrayRef>,
    rows: usize,
) -> Option<ArrayRef> {
    if let Some(blob) = made.get(&field.id) {
        return Some(blob.clone());
    }
    let mut blobs = Vec::new();
    blobs_of(field, &mut blobs);
    if !blobs.iter().any(|id| made.contains_key(id)) {
        return rest.cloned();
    }
    let rest = rest.and_then(|rest| rest.as_struct_opt());
    let mut columns = Vec::with_capacity(field.children.len());
    for child in &field.children {
        let scanned = rest.and_then(|rest| rest.column_by_name(&child.name));
        let column = assemble(child, scanned, made, rows)?;
        let named = ArrowField::new(&child.name, column.data_type().clone(), true);
        columns.push((Arc::new(named), column));
    }
    let (fields, columns): (Vec<_>, Vec<_>) = columns.into_iter().unzip();
    let nulls = rest.and_then(|rest| rest.nulls().cloned());
    let whole = StructArray::try_new_with_length(fields.into(), columns, nulls, rows);
    Some(Arc::new(whole.ok()?))
}

/// A data file, as far as its values have to be found.
struct File {
    object: Arc<dyn RangeRead>,
    length: u64,
    metadata: Metadata,
}

impl File {
    async fn open(object: Arc<dyn RangeRead>) -> Result<Self> {
        let length = object.length().await?.get();
        let mut file = Self { object, length, metadata: Metadata::default() };
        let footer = length.checked_sub(FOOTER).ok_or_else(|| damaged("it has no footer"))?;
        let metadata = file.words(footer, 1).await?.first().copied().unwrap_or_default();
        let size =
            u32::from_le_bytes(*file.read(metadata, 4).await?.first_chunk().unwrap_or(&[0; 4]));
        let bytes = file.read(metadata.saturating_add(4), size.into()).await?;
        let decoded = Metadata::decode(bytes.as_ref());
        file.metadata = decoded.map_err(|e| Error::caused(Kind::Table, "its metadata", e))?;
        Ok(file)
    }

    async fn positions(
        &self,
        fields: &[i32],
        field: i32,
        addresses: &[u64],
    ) -> Result<Vec<Range<u64>>> {
        let first = fields.first().copied().unwrap_or_default();
        let pages = units::u64_of(self.metadata.batch_offsets.len().saturating_sub(1));
        let column = u64::try_from(i64::from(field) - i64::from(first));
        let column = column.map_err(|_| damaged("a field id that its page table cannot have"))?;
        let table = column.checked_mul(pages).and_then(|pages| pages.checked_mul(2 * WORD));
        let table = table.and_then(|table| table.checked_add(self.metadata.page_table_position));
        let table = table.ok_or_else(|| damaged("its page table"))?;
        let table = self.words(table, pages.saturating_mul(2)).await?;
        let mut found = Vec::with_capacity(addresses.len());
        let offset = |address: &u64| RowAddress::new(*address).offset();
        for (page, ends) in table.chunks_exact(2).zip(self.metadata.batch_offsets.windows(2)) {
            let (Ok(start), Ok(end)) = (u32::try_from(ends[0]), u32::try_from(ends[1])) else {
                return Err(damaged("its pages have other rows than there can be"));
            };
            let rows = addresses[found.len()..].iter().map(offset);
            let here: Vec<u64> = rows
                .take_while(|row| (start..end).contains(row))
                .map(|row| u64::from(row - start))
                .collect();
            let (Some(low), Some(high)) = (here.first(), here.last()) else { continue };
            let words = self.words(page[0].saturating_add(low * WORD), high - low + 2).await?;
            for row in &here {
                let at = units::usize_of(row - low);
                found.push(self.value(words[at]..words[at + 1])?);
            }
        }
        if found.len() != addresses.len() {
            return Err(damaged("it has fewer rows than its fragment"));
        }
        Ok(found)
    }

    fn value(&self, place: Range<u64>) -> Result<Range<u64>> {
        if place.start <= place.end && place.end <= self.length {
            return Ok(place);
        }
        Err(damaged(&format!("a value from {} to {} of {}", place.start, place.end, self.length)))
    }

    /// So many numbers of eight bytes.
    async fn words(&self, at: u64, count: u64) -> Result<Vec<u64>> {
        let bytes = self.read(at, count.saturating_mul(WORD)).await?;
        let word = |bytes: &[u8]| bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        Ok(bytes.chunks_exact(units::usize_of(WORD)).map(word).collect())
    }

    async fn read(&self, at: u64, count: u64) -> Result<bytes::Bytes> {
        if at.checked_add(count).is_none_or(|end| end > self.length) {
            return Err(damaged(&format!("{count} bytes at {at} of {}", self.length)));
        }
        let interval = Interval { offset: ObjectOffset::new(at), len: ByteLen::new(count) };
        self.object.read(interval).await
    }
}

fn damaged(what: &str) -> Error {
    Error::new(Kind::Table, format!("is damaged: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use futures::FutureExt as _;
    use futures::future::BoxFuture;

    struct Memory(Bytes);

    impl RangeRead for Memory {
        fn read(&self, interval: Interval) -> BoxFuture<'_, Result<Bytes>> {
            let start = units::usize_of(interval.offset.get());
            let bytes = self.0.slice(start..start + units::usize_of(interval.len.get()));
            async move { Ok(bytes) }.boxed()
        }

        fn length(&self) -> BoxFuture<'_, Result<ByteLen>> {
            async { Ok(ByteLen::new(units::u64_of(self.0.len()))) }.boxed()
        }
    }

    /// A file of the fields 3 and 4, of which 4 has the values "abc", "" and "de" in two pages.
    fn sample() -> Vec<u8> {
        let mut file = b"abc".to_vec();
        let words = |file: &mut Vec<u8>, words: &[u64]| {
            let at = units::u64_of(file.len());
            file.extend(words.iter().flat_map(|word| word.to_le_bytes()));
            at
        };
        let first = words(&mut file, &[0, 3, 3]);
        let values = units::u64_of(file.len());
        file.extend(b"de");
        let second = words(&mut file, &[values, values + 2]);
        let table = words(&mut file, &[0, 2, 0, 1, first, 2, second, 1]);
        let metadata = Metadata {
            batch_offsets: vec![0, 2, 3],
            page_table_position: table,
            ..Metadata::default()
        }
        .encode_to_vec();
        let at = units::u64_of(file.len());
        file.extend(u32::try_from(metadata.len()).unwrap().to_le_bytes());
        file.extend(metadata);
        words(&mut file, &[at]);
        file.extend(b"\0\0\x02\0LANC");
        file
    }

    async fn places(file: Vec<u8>, rows: &[u64]) -> Result<Vec<Range<u64>>> {
        let file = File::open(Arc::new(Memory(file.into()))).await?;
        file.positions(&[3, 4], 4, rows).await
    }

    #[tokio::test]
    async fn every_value_is_found_whatever_rows_are_asked_for() {
        let value = |range: &Range<u64>| {
            let range = units::usize_of(range.start)..units::usize_of(range.end);
            sample()[range].to_vec()
        };
        for (rows, values) in [
            (&[0, 1, 2][..], &["abc", "", "de"][..]),
            (&[0, 2], &["abc", "de"]),
            (&[2], &["de"]),
            (&[], &[]),
        ] {
            let found = places(sample(), rows).await.unwrap();
            let values: Vec<_> = values.iter().map(|text| text.as_bytes().to_vec()).collect();
            assert_eq!(found.iter().map(value).collect::<Vec<_>>(), values, "{rows:?}");
        }
        assert_eq!(places(sample(), &[1, 3]).await.unwrap_err().kind(), Kind::Table);
    }

    #[tokio::test]
    async fn whatever_is_in_the_file_a_value_is_within_it_or_an_error() {
        let whole = sample();
        let length = units::u64_of(whole.len());
        for at in 0..whole.len() {
            for byte in [0, 1, 2, 0x7f, 0x80, 0xff] {
                let mut file = whole.clone();
                file[at] = byte;
                match places(file, &[0, 1, 2]).await {
                    Ok(found) => assert!(found.iter().all(|place| place.end <= length)),
                    Err(error) => assert_eq!(error.kind(), Kind::Table, "{at} {byte}: {error}"),
                }
            }
        }
        for len in 0..whole.len() {
            assert!(places(whole[whole.len() - len..].to_vec(), &[0]).await.is_err(), "{len}");
        }
    }

    #[test]
    fn no_bytes_are_null_where_a_column_may_be() {
        let made = |nullable| descriptors(&[5..5, 5..7], nullable);
        assert_eq!((made(true).null_count(), made(false).null_count()), (1, 0));
    }
}
