//! Deletion files (spec, "Deletion Files"): which rows of a fragment are deleted.
//!
//! ```text
//! .arrow   an Arrow IPC file of one batch of one column of u32, its buffers compressed or not:
//!          "ARROW1" … message, buffers … footer, i32 length of the footer, "ARROW1"
//! .bin     a Roaring bitmap; it is read piece by piece, and no piece is larger than 8 KiB
//! ```

use arrow_ipc::{Block, Message, RecordBatch, Type, root_as_footer, root_as_message};

use super::{Unsound, range};
use crate::units;

/// The most rows that one file may delete. The writer goes over to bitmaps at 5,000; a fragment of
/// so many rows would have a file of 64 MiB.
const MOST: u64 = 1 << 24;
/// The longest file that is looked at, in bytes: so many numbers, and some for what is around them.
pub const LONGEST: u64 = MOST * 4 + (1 << 20);
const MAGIC: &[u8; 6] = b"ARROW1";
/// A length of the footer, and the magic number.
const TRAILER: usize = 10;
/// What stands before a message that is not of the oldest form.
const CONTINUATION: [u8; 4] = [0xff; 4];
/// Buffers are padded to so many bytes at most.
const PADDING: u64 = 64;
/// Before a compressed buffer: how long it is without; this where it is not compressed.
const NOT_COMPRESSED: i64 = -1;

/// Looks at the whole of a deletion file in Arrow's form.
///
/// # Errors
/// What in it is larger than the file or than any such file is.
pub fn arrow(file: &[u8]) -> Result<(), Unsound> {
    let size = units::u64_of(file.len());
    let before = file.len().checked_sub(TRAILER).ok_or("it has no footer")?;
    let trailer = &file[before..];
    if &trailer[4..] != MAGIC {
        return Err("it has no footer".to_owned());
    }
    let length = i32::from_le_bytes([trailer[0], trailer[1], trailer[2], trailer[3]]);
    let length = usize::try_from(length).map_err(|_| format!("a footer of {length} bytes"))?;
    let start = before.checked_sub(length).ok_or_else(|| format!("a footer of {length} bytes"))?;
    let footer = root_as_footer(&file[start..before]).map_err(|e| format!("its footer: {e}"))?;
    let fields = footer.schema().and_then(|schema| schema.fields());
    let is_numbers = fields.is_some_and(|fields| {
        fields.len() == 1 && {
            let field = fields.get(0);
            let plain = field.children().is_none_or(|children| children.is_empty());
            field.type_type() == Type::Int && plain && field.dictionary().is_none()
        }
    });
    if !is_numbers || footer.dictionaries().is_some_and(|found| !found.is_empty()) {
        return Err("it is not one column of numbers".to_owned());
    }
    for block in footer.recordBatches().iter().flatten() {
        batch(file, size, block)?;
    }
    Ok(())
}

fn batch(file: &[u8], size: u64, block: &Block) -> Result<(), Unsound> {
    let number = |of: i64, what: &str| u64::try_from(of).map_err(|_| format!("{what} of {of}"));
    let offset = number(block.offset(), "an offset")?;
    let header = number(block.metaDataLength().into(), "a message")?;
    let body = number(block.bodyLength(), "a body")?;
    let header = range(offset, header, size, "a message")?;
    let body = range(header.end, body, size, "a body")?;
    let piece = |of: &std::ops::Range<u64>| -> &[u8] {
        let at = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX);
        file.get(at(of.start)..at(of.end)).unwrap_or_default()
    };
    let (header, body) = (piece(&header), piece(&body));
    let prefix = if header.starts_with(&CONTINUATION) { 8 } else { 4 };
    let header = header.get(prefix..).ok_or("a message without bytes")?;
    let message: Message<'_> = root_as_message(header).map_err(|e| format!("a message: {e}"))?;
    let batch = message.header_as_record_batch().ok_or("a message that is no batch")?;
    rows(&batch, body)
}

fn rows(batch: &RecordBatch<'_>, body: &[u8]) -> Result<(), Unsound> {
    let count = |rows: i64| match u64::try_from(rows) {
        Ok(rows) if rows <= MOST => Ok(rows),
        _ => Err(format!("{rows} rows")),
    };
    let most = count(batch.length())? * 4 + PADDING;
    for node in batch.nodes().iter().flatten() {
        count(node.length())?;
        count(node.null_count())?;
    }
    for buffer in batch.buffers().iter().flatten() {
        let number = |of: i64| u64::try_from(of).map_err(|_| format!("a buffer at or of {of}"));
        let (offset, length) = (number(buffer.offset())?, number(buffer.length())?);
        let place = range(offset, length, units::u64_of(body.len()), "a buffer")?;
        if batch.compression().is_none() || length == 0 {
            continue;
        }
        let start = usize::try_from(place.start).map_err(|e| e.to_string())?;
        let prefix = body.get(start..).and_then(|bytes| bytes.first_chunk::<8>());
        let plain = i64::from_le_bytes(*prefix.ok_or("a compressed buffer of too few bytes")?);
        if plain != NOT_COMPRESSED && !u64::try_from(plain).is_ok_and(|plain| plain <= most) {
            return Err(format!("a buffer of {plain} bytes when it is not compressed"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lance_core::utils::deletion::DeletionVector;
    use lance_io::object_store::ObjectStore;
    use lance_table::io::deletion::{deletion_file_path, read_deletion_file, write_deletion_file};
    use object_store::path::Path;

    /// Every length in the file, by turns, is one that no file has: either it is refused here, or the
    /// crate reads on and says what it thinks, and the process is there to hear it.
    #[tokio::test]
    async fn no_length_reaches_the_crate_that_the_file_cannot_have() {
        let (store, base) = (ObjectStore::memory(), Path::from("t"));
        let rows = DeletionVector::Set((0..1000).collect());
        let written = write_deletion_file(&base, 7, 3, &rows, &store).await.unwrap().unwrap();
        let path = deletion_file_path(&base, 7, &written);
        let whole = store.read_one_all(&path).await.unwrap();
        assert_eq!(arrow(&whole), Ok(()));
        let mut refused = 0;
        for at in 0..whole.len() - 7 {
            for length in [0, 1_u64 << 40, 1 << 63, u64::MAX] {
                let mut damaged = whole.to_vec();
                damaged[at..at + 8].copy_from_slice(&length.to_le_bytes());
                if arrow(&damaged).is_err() {
                    refused += 1;
                    continue;
                }
                store.put(&path, &damaged).await.unwrap();
                let store = store.clone();
                let (base, written) = (base.clone(), written.clone());
                let read = async move { read_deletion_file(7, &written, &base, &store).await };
                // It may panic.
                let _ = tokio::spawn(read).await;
            }
        }
        assert!(refused > 200, "{refused}");
    }
}
