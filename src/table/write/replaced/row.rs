//! One row's column: the new laid over the old.
//!
//! 1. What is not replaced must stay what it is, within a list too: the old value is shown as JSON,
//!    whose inverse is exact (`super::super`), and its Blobs are taken from the carried column.
//! 2. A name in the new JSON may be of a value elsewhere in the old row, also of another column: those
//!    are given ([`Values`]).

use std::collections::BTreeMap;

use arrow_array::cast::AsArray as _;
use arrow_array::types::{UInt8Type, UInt32Type, UInt64Type};
use arrow_array::{Array as _, ArrayRef, StructArray};
use arrow_schema::Field;
use bytes::Bytes;
use lance::blob::BlobDescriptor;
use lance_core::datatypes::BlobKind;
use serde_json::{Map, Value};

use super::super::super::json::Renderer;
use super::super::super::schema::{Leaf, Leaves};
use super::super::super::values::Chain;
use super::super::columns::Row;
use super::Change;
use crate::error::{Error, Kind, Result};
use crate::tree::{LeafIndex, Step};
use crate::units::{self, Ordinal};

/// A column of a run of rows, as it is.
pub struct Old<'a> {
    /// The table's Blob fields.
    pub leaves: &'a Leaves,
    /// The column.
    pub field: &'a Field,
    /// With Blobs as they are scanned.
    pub scanned: &'a ArrayRef,
    /// With Blobs as they are written.
    pub carried: &'a ArrayRef,
}

/// Blobs of a row, by leaf and indices.
pub type Values = BTreeMap<(LeafIndex, Vec<u64>), BlobDescriptor>;

/// A row's values of one column.
pub struct Overlaid<'a> {
    place: &'a str,
    json: Map<String, Value>,
    blobs: Values,
}

impl Overlaid<'_> {
    /// As a row to be written.
    pub fn row(&self) -> Row<'_> {
        Row { place: self.place, json: &self.json, blobs: self.blobs.clone() }
    }
}

impl Old<'_> {
    /// Whether a change says anything of this column.
    pub fn is_touched(&self, change: &Change) -> bool {
        let mut values = change.row.blobs.keys().chain(&change.removed);
        change.row.json.contains_key(self.field.name())
            || values.any(|(leaf, _)| self.leaf(*leaf).is_some())
    }

    /// The row at a position with a change laid over it.
    ///
    /// # Errors
    /// Where the old value cannot be shown.
    pub fn overlaid<'c>(
        &self,
        at: usize,
        change: &'c Change,
        named: &Values,
    ) -> Result<Overlaid<'c>> {
        let name = self.field.name();
        let given = change.row.json.get(name);
        let mut value = match given {
            Some(value) => value.clone(),
            None => self.json(at)?,
        };
        let of_column = |(leaf, _): &&(LeafIndex, Vec<u64>)| self.leaf(*leaf).is_some();
        let places = change.row.named.iter().filter(|(place, _)| of_column(place));
        let mut blobs: Values = places
            .filter_map(|(place, slot)| Some((place.clone(), named.get(slot)?.clone())))
            .collect();
        for (key, descriptor) in self.blobs(at)? {
            let Some(leaf) = self.leaf(key.0).filter(|_| !change.row.named.contains_key(&key))
            else {
                continue;
            };
            let stays = find(&mut value, &leaf.path[1..], &key.1).is_some_and(|v| !v.is_null());
            if stays {
                blobs.insert(key, descriptor);
            }
        }
        for key in &change.removed {
            blobs.remove(key);
            let Some(leaf) = self.leaf(key.0) else { continue };
            if let Some(value) = find(&mut value, &leaf.path[1..], &key.1) {
                *value = Value::Null;
            }
        }
        let new = Row::of(&change.row).blobs;
        blobs.extend(new.into_iter().filter(|((leaf, _), _)| self.leaf(*leaf).is_some()));
        let json = [(name.clone(), value)].into_iter().collect();
        Ok(Overlaid { place: &change.row.place, json, blobs })
    }

    /// A leaf, if it is of this column.
    fn leaf(&self, leaf: LeafIndex) -> Option<&Leaf> {
        let leaf = self.leaves.fields.get(units::usize_of(leaf.get()))?;
        matches!(leaf.path.first(), Some(Step::Field(name)) if name == self.field.name())
            .then_some(leaf)
    }

    fn json(&self, at: usize) -> Result<Value> {
        let paths = self.leaves.fields.iter().map(|leaf| leaf.path.as_slice()).collect();
        let renderer = Renderer { shape: &self.leaves.shape, paths, listed: None };
        renderer.cell(self.field.name(), self.scanned, at)
    }

    /// The row's Blobs.
    ///
    /// # Errors
    /// Where a value was not carried as it should be.
    pub fn blobs(&self, at: usize) -> Result<Values> {
        let mut found = Values::new();
        for (index, _) in self.leaves.shape.indexed() {
            let Some(leaf) = self.leaf(index) else { continue };
            let chain = Chain::new(self.carried, &leaf.path)?;
            let elements = (0..chain.count(at)).filter_map(|n| chain.at(at, Ordinal::new(n)));
            for element in elements {
                if let Some(value) = described(chain.descriptors(), element.position)? {
                    found.insert((index, element.indices), value);
                }
            }
        }
        Ok(found)
    }
}

/// What is at a path within a column's JSON.
fn find<'v>(value: &'v mut Value, path: &[Step], indices: &[u64]) -> Option<&'v mut Value> {
    let Some((step, path)) = path.split_first() else { return Some(value) };
    match step {
        Step::Field(name) => find(value.as_object_mut()?.get_mut(name)?, path, indices),
        Step::Element => {
            let (index, indices) = indices.split_first()?;
            find(value.as_array_mut()?.get_mut(usize::try_from(*index).ok()?)?, path, indices)
        }
    }
}

/// A carried value; `None` where it is null (spec, "Data File Schema"; the prepared layout is
/// lance-core 14.0.2, `datatypes.rs:103`).
fn described(prepared: &StructArray, at: usize) -> Result<Option<BlobDescriptor>> {
    if prepared.is_null(at) {
        return Ok(None);
    }
    let column = |name: &str| {
        let column = prepared.column_by_name(name);
        column.ok_or_else(|| Error::new(Kind::Internal, format!("a prepared Blob has no {name}")))
    };
    let number = |name| Ok::<_, Error>(column(name)?.as_primitive::<UInt64Type>().value(at));
    let uri = || Ok::<_, Error>(column("uri")?.as_string::<i32>().value(at).to_owned());
    let id = || Ok::<_, Error>(column("blob_id")?.as_primitive::<UInt32Type>().value(at));
    let kind = BlobKind::try_from(column("kind")?.as_primitive::<UInt8Type>().value(at));
    let kind = kind.map_err(|e| Error::caused(Kind::Internal, "carry over a value", e))?;
    Ok(Some(match kind {
        BlobKind::Inline => {
            let data = column("data")?.as_binary::<i64>().value(at);
            BlobDescriptor::Inline { data: Bytes::copy_from_slice(data) }
        }
        BlobKind::Managed | BlobKind::ManagedWithBase => BlobDescriptor::Managed {
            base_id: (kind == BlobKind::ManagedWithBase).then(id).transpose()?,
            uri: uri()?,
            offset: number("position")?,
            size: number("blob_size")?,
        },
        BlobKind::External => BlobDescriptor::External {
            base_id: id()?,
            uri: uri()?,
            offset: number("position")?,
            size: number("blob_size")?,
        },
        BlobKind::Packed | BlobKind::Dedicated => {
            let text = "a value that was carried over is still in its file's sidecar";
            return Err(Error::new(Kind::Internal, text));
        }
    }))
}
