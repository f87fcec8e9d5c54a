//! Blob v2 fields as writers take them: descriptors of values that are stored already.
//!
//! 1. The crate tells a prepared column from a logical one by its children (lance-core 14.0.2,
//!    `datatypes.rs:103`), so the field keeps the table's name, nullability and metadata, and takes
//!    the prepared type.

use arrow_array::ArrayRef;
use arrow_array::cast::AsArray as _;
use arrow_schema::{ArrowError, Field, FieldRef};
use bytes::Bytes;
use lance::blob::{BlobDescriptor, BlobDescriptorArrayBuilder};
use lance_core::datatypes::BLOB_V2_PREPARED_TYPE;
use serde_json::Value;

use super::columns::{Builder, with_type};
use super::level::Level;
use super::{Stored, shown};
use crate::tree::LeafIndex;

/// The cells of a Blob field.
pub fn column<'a>(
    builder: &mut Builder<'a>,
    field: &Field,
    level: &Level<'_, 'a>,
    leaf: LeafIndex,
) -> (FieldRef, ArrayRef) {
    let mut descriptors = Vec::with_capacity(level.cells.len());
    for (at, cell) in level.cells.iter().enumerate() {
        let (row, indices) = level.place(at);
        let stored = builder.rows[row].blobs.get(&(leaf, indices));
        match (stored, cell.json) {
            (None, Some(Value::String(name))) => {
                builder.fault(
                    level,
                    at,
                    format!("row.json names {name}, but there is no such file"),
                );
            }
            (None, Some(value)) => {
                let text = format!(
                    "is a Blob, whose bytes are in a file of its own, not {}",
                    shown(value)
                );
                builder.fault(level, at, text);
            }
            (None, None) if !field.is_nullable() && !cell.masked => {
                builder.fault(level, at, "has no file and cannot be null: add one");
            }
            (Some(_), _) | (None, None) => {}
        }
        descriptors.push(stored.cloned().unwrap_or(BlobDescriptor::Null));
    }
    let built = with_type(field, BLOB_V2_PREPARED_TYPE.clone());
    match prepared(field.name(), descriptors) {
        Ok(array) => builder.checked(built, level, Ok(array.as_struct().clone())),
        Err(error) => {
            let error = ArrowError::ExternalError(Box::new(error));
            builder.refused(&built, level, &format!("cannot be written: {error}"))
        }
    }
}

/// An array of prepared descriptors.
///
/// # Errors
/// A path, URI or interval that the crate does not take.
fn prepared(name: &str, descriptors: Vec<BlobDescriptor>) -> lance::Result<ArrayRef> {
    let mut builder = BlobDescriptorArrayBuilder::new(name);
    builder.extend(descriptors)?;
    Ok(builder.finish()?.into_parts().1)
}

/// A stored value as the crate's writer takes it (spec, "Data File Schema").
pub fn descriptor(stored: &Stored) -> BlobDescriptor {
    match stored {
        Stored::Managed { base, path, interval } => BlobDescriptor::Managed {
            base_id: *base,
            uri: path.clone(),
            offset: interval.offset.get(),
            size: interval.len.get(),
        },
        // A size of 0 would mean the whole object.
        Stored::External { interval: Some(interval), .. } if interval.len.get() == 0 => {
            BlobDescriptor::Inline { data: Bytes::new() }
        }
        Stored::External { base, uri, interval } => BlobDescriptor::External {
            base_id: *base,
            uri: uri.clone(),
            offset: interval.map_or(0, |interval| interval.offset.get()),
            size: interval.map_or(0, |interval| interval.len.get()),
        },
        Stored::Empty => BlobDescriptor::Inline { data: Bytes::new() },
    }
}
