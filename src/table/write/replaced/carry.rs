//! Values that stay: scanned descriptors as writers take them.
//!
//! 1. Packed and Dedicated objects belong to the data file that the column leaves: they are adopted
//!    as Managed ones, in place (spec, "Managed Resolution"), by the crate.
//! 2. Inline bytes are in that data file and have to be copied. The crate reads one after another, so
//!    a column is carried in chunks, several at once: else each value would cost a wait for a store.
//! 3. A null list may span elements and a null struct may hide some: what is beneath a null is null.

use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::{Array, ArrayRef, GenericListArray, OffsetSizeTrait, StructArray};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::{ArrowError, DataType, Field as ArrowField};
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _};
use lance::Dataset;
use lance::dataset::preserve_managed_descriptors;
use lance_core::datatypes::Field;

use super::super::super::fault;
use crate::error::{Error, Kind, Result};

/// Values that are carried by one call, one after another.
const CHUNK: usize = 16;
/// Calls at once: what a store answers well.
const CHUNKS: usize = 16;

/// The column of a fragment as it is, in the layout of `target`. `addresses` are its rows'.
///
/// # Errors
/// An Inline value that cannot be read, a descriptor that is invalid.
pub fn carry<'a>(
    dataset: &'a Arc<Dataset>,
    field: &'a Field,
    target: &'a ArrowField,
    array: ArrayRef,
    addresses: Vec<u64>,
) -> BoxFuture<'a, Result<ArrayRef>> {
    async move {
        if field.is_blob_v2() {
            return blobs(dataset, field, target, array.as_struct(), &addresses).await;
        }
        match target.data_type() {
            DataType::Struct(targets) => {
                let array = array.as_struct();
                let mut columns = Vec::with_capacity(targets.len());
                for (child, target) in field.children.iter().zip(targets) {
                    let column = array.column_by_name(&child.name);
                    let column = column.ok_or_else(|| missing(child))?;
                    let column = hidden(column, array.nulls())?;
                    columns.push(carry(dataset, child, target, column, addresses.clone()).await?);
                }
                let len = array.len();
                let nulls = array.nulls().cloned();
                let array = StructArray::try_new_with_length(targets.clone(), columns, nulls, len);
                Ok(Arc::new(array.map_err(|e| other_shape(field, e))?))
            }
            DataType::List(element) => {
                list::<i32>(dataset, field, element, array.as_list(), &addresses).await
            }
            DataType::LargeList(element) => {
                list::<i64>(dataset, field, element, array.as_list(), &addresses).await
            }
            same if same == array.data_type() => Ok(array),
            other => arrow_cast::cast(&array, other).map_err(|e| other_shape(field, e)),
        }
    }
    .boxed()
}

async fn list<O: OffsetSizeTrait>(
    dataset: &Arc<Dataset>,
    field: &Field,
    element: &Arc<ArrowField>,
    list: &GenericListArray<O>,
    addresses: &[u64],
) -> Result<ArrayRef> {
    let child = field.children.first().ok_or_else(|| missing(field))?;
    let offsets = list.value_offsets();
    let (start, end) = (offsets[0].as_usize(), offsets[list.len()].as_usize());
    let lengths: Vec<usize> =
        offsets.windows(2).map(|pair| pair[1].as_usize() - pair[0].as_usize()).collect();
    let repeated = addresses.iter().zip(&lengths);
    let below = repeated.flat_map(|(address, len)| std::iter::repeat_n(*address, *len)).collect();
    let visible = lengths.iter().enumerate();
    let visible: NullBuffer =
        visible.flat_map(|(at, len)| std::iter::repeat_n(list.is_valid(at), *len)).collect();
    let values = hidden(&list.values().slice(start, end - start), Some(&visible))?;
    let values = carry(dataset, child, element, values, below).await?;
    let offsets = OffsetBuffer::<O>::from_lengths(lengths);
    let nulls = list.nulls().cloned();
    let list = GenericListArray::try_new(element.clone(), offsets, values, nulls);
    Ok(Arc::new(list.map_err(|e| other_shape(field, e))?))
}

/// The array with nulls where something above it is null.
fn hidden(array: &ArrayRef, above: Option<&NullBuffer>) -> Result<ArrayRef> {
    let Some(above) = above.filter(|nulls| nulls.null_count() > 0) else {
        return Ok(array.clone());
    };
    let DataType::Struct(fields) = array.data_type() else { return Ok(array.clone()) };
    let parts = array.as_struct();
    let nulls = NullBuffer::union(Some(above), parts.nulls());
    let (columns, len) = (parts.columns().to_vec(), parts.len());
    let array = StructArray::try_new_with_length(fields.clone(), columns, nulls, len);
    Ok(Arc::new(
        array.map_err(|e| Error::caused(Kind::Internal, "hide what is beneath a null", e))?,
    ))
}

async fn blobs(
    dataset: &Arc<Dataset>,
    field: &Field,
    target: &ArrowField,
    descriptors: &StructArray,
    addresses: &[u64],
) -> Result<ArrayRef> {
    if addresses.is_empty() {
        return Ok(arrow_array::new_empty_array(target.data_type()));
    }
    let what = || format!("carry over the other values of field {}", field.name);
    let id = u32::try_from(field.id).map_err(|e| Error::caused(Kind::Table, what(), e))?;
    let starts = (0..addresses.len()).step_by(CHUNK);
    let chunks = futures::stream::iter(starts).map(|start| async move {
        let len = CHUNK.min(addresses.len() - start);
        let (values, rows) = (descriptors.slice(start, len), &addresses[start..start + len]);
        preserve_managed_descriptors(dataset, id, &values, rows, target, None).await
    });
    let chunks: Vec<ArrayRef> =
        chunks.buffered(CHUNKS).try_collect().await.map_err(|e| fault::of(what(), e))?;
    let chunks: Vec<&dyn Array> = chunks.iter().map(AsRef::as_ref).collect();
    arrow_select::concat::concat(&chunks).map_err(|e| other_shape(field, e))
}

fn missing(field: &Field) -> Error {
    Error::new(Kind::Table, format!("a scan came without field {}", field.name))
}

fn other_shape(field: &Field, error: ArrowError) -> Error {
    let text = format!("field {} was scanned in another shape than the schema's", field.name);
    Error::caused(Kind::Table, text, error)
}
