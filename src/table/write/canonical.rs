//! Cells as bytes: equal values have equal bytes, however Arrow lays them out.
//!
//! What is to be written is compared with what is read back by these, and values of a dictionary are
//! told apart by them. Difficulties:
//!
//! 1. What is read back has another layout: a dictionary of its own, lists that begin elsewhere,
//!    garbage beneath nulls. So values are walked, and nothing beneath a null is looked at.
//! 2. A Blob goes in as a prepared descriptor and comes back as a stored one: both become kind, length
//!    and place ([`blob`]). Where Inline bytes lie in the file is the writer's choice, and not compared.
//! 3. Vectors have thousands of numbers: those without nulls are one piece ([`run`]).

use arrow_array::cast::AsArray as _;
use arrow_array::types::{ArrowDictionaryKeyType, UInt8Type, UInt32Type, UInt64Type};
use arrow_array::{Array, DictionaryArray, NullArray, StructArray, downcast_dictionary_array};
use arrow_schema::DataType;
use lance_core::datatypes::{BLOB_V2_DESC_FIELDS, BLOB_V2_PREPARED_FIELDS, BlobKind};

use crate::error::{Error, Kind, Result};
use crate::units;

/// What a cell begins with.
const NULL: u8 = 0;
const VALUE: u8 = 1;
/// What the elements of a list begin with, by whether they are one piece.
const EACH: u8 = 2;
const PIECE: u8 = 3;

/// Appends the bytes of a cell.
///
/// # Errors
/// For a type that is in no Lance table.
pub fn cell(array: &dyn Array, at: usize, out: &mut Vec<u8>) -> Result<()> {
    if array.is_null(at) || *array.data_type() == DataType::Null {
        out.push(NULL);
        return Ok(());
    }
    if let Some(parts) = array.as_struct_opt() {
        return structure(parts, at, out);
    }
    if let DataType::Dictionary(_, _) = array.data_type() {
        return keyed(array, at, out);
    }
    out.push(VALUE);
    match array.data_type() {
        DataType::Boolean => out.push(u8::from(array.as_boolean().value(at))),
        DataType::Utf8 => bytes(array.as_string::<i32>().value(at).as_bytes(), out),
        DataType::LargeUtf8 => bytes(array.as_string::<i64>().value(at).as_bytes(), out),
        DataType::Utf8View => bytes(array.as_string_view().value(at).as_bytes(), out),
        DataType::Binary => bytes(array.as_binary::<i32>().value(at), out),
        DataType::LargeBinary => bytes(array.as_binary::<i64>().value(at), out),
        DataType::BinaryView => bytes(array.as_binary_view().value(at), out),
        DataType::FixedSizeBinary(_) => bytes(array.as_fixed_size_binary().value(at), out),
        DataType::List(_) => run(&array.as_list::<i32>().value(at), out)?,
        DataType::LargeList(_) => run(&array.as_list::<i64>().value(at), out)?,
        DataType::FixedSizeList(_, _) => run(&array.as_fixed_size_list().value(at), out)?,
        DataType::Map(_, _) => run(&array.as_map().value(at), out)?,
        other => {
            let text = || format!("values of the type {other} cannot be compared");
            let number = numbers(&array.slice(at, 1));
            out.extend(number.ok_or_else(|| Error::new(Kind::Internal, text()))?);
        }
    }
    Ok(())
}

fn keyed(array: &dyn Array, at: usize, out: &mut Vec<u8>) -> Result<()> {
    fn key<K: ArrowDictionaryKeyType>(array: &DictionaryArray<K>, at: usize) -> Option<usize> {
        array.key(at)
    }
    downcast_dictionary_array! {
        array => match key(array, at) {
            Some(key) => cell(array.values(), key, out),
            None => cell(&NullArray::new(1), 0, out),
        },
        other => Err(Error::new(Kind::Internal, format!("{other} is no dictionary"))),
    }
}

fn bytes(value: &[u8], out: &mut Vec<u8>) {
    out.extend(units::u64_of(value.len()).to_le_bytes());
    out.extend(value);
}

/// The elements of a list.
fn run(elements: &dyn Array, out: &mut Vec<u8>) -> Result<()> {
    out.extend(units::u64_of(elements.len()).to_le_bytes());
    if elements.null_count() == 0
        && let Some(piece) = numbers(elements)
    {
        out.push(PIECE);
        out.extend(piece);
        return Ok(());
    }
    out.push(EACH);
    (0..elements.len()).try_for_each(|at| cell(elements, at, out))
}

/// The bytes of all values, if those are numbers of a fixed width.
fn numbers(array: &dyn Array) -> Option<Vec<u8>> {
    let width = array.data_type().primitive_width()?;
    let data = array.to_data();
    let start = data.offset() * width;
    data.buffers().first()?.as_slice().get(start..start + data.len() * width).map(<[u8]>::to_vec)
}

fn structure(parts: &StructArray, at: usize, out: &mut Vec<u8>) -> Result<()> {
    if *parts.fields() == *BLOB_V2_PREPARED_FIELDS {
        return blob(parts, ["kind", "blob_size", "uri"], at, out);
    }
    let stored = parts.fields().iter().map(|field| field.name());
    if stored.eq(BLOB_V2_DESC_FIELDS.iter().map(|field| field.name())) {
        return blob(parts, ["kind", "size", "blob_uri"], at, out);
    }
    out.push(VALUE);
    parts.columns().iter().try_for_each(|column| cell(column, at, out))
}

/// A Blob that is prepared or stored, by the names of its children (spec, "Data File Schema").
fn blob(parts: &StructArray, names: [&str; 3], at: usize, out: &mut Vec<u8>) -> Result<()> {
    let wrong = || Error::new(Kind::Internal, "a Blob's descriptor has another layout");
    let column = |name: &str| parts.column_by_name(name).ok_or_else(wrong);
    let [kind, size, uri] = names;
    let kind = column(kind)?;
    if kind.is_null(at) {
        out.push(NULL);
        return Ok(());
    }
    let kind = kind.as_primitive_opt::<UInt8Type>().ok_or_else(wrong)?.value(at);
    let size = column(size)?.as_primitive_opt::<UInt64Type>().ok_or_else(wrong)?;
    out.extend([VALUE, kind]);
    if matches!(BlobKind::try_from(kind), Ok(BlobKind::Inline)) {
        // A prepared one holds its bytes instead of saying how many.
        let len = match parts.column_by_name("data") {
            Some(data) => units::u64_of(data.as_binary::<i64>().value(at).len()),
            None => size.value(at),
        };
        out.extend(len.to_le_bytes());
        return Ok(());
    }
    let position = column("position")?.as_primitive_opt::<UInt64Type>().ok_or_else(wrong)?;
    let base = column("blob_id")?.as_primitive_opt::<UInt32Type>().ok_or_else(wrong)?;
    let uri = column(uri)?.as_string_opt::<i32>().ok_or_else(wrong)?;
    // What a kind has no use for is null in one layout and 0 in the other.
    let base = if base.is_null(at) { 0 } else { base.value(at) };
    out.extend(size.value(at).to_le_bytes());
    out.extend(position.value(at).to_le_bytes());
    out.extend(base.to_le_bytes());
    bytes(uri.value(at).as_bytes(), out);
    Ok(())
}
