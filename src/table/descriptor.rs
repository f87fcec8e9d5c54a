//! Descriptors: what a scan returns for one value, and what it says.
//!
//! Two layouts, told apart by their number of children:
//!
//! ```text
//! Blob v2 (spec, "Data File Schema")   kind u8, position u64, size u64, blob_id u32, blob_uri utf8
//! legacy  ("Blob Page Layout")         position u64, size u64
//! ```
//!
//! Their null rules differ (spec, "Null Descriptors"): v2 is null by the struct's validity or a
//! null `kind` and by nothing else; legacy is null by the struct, by either child, or by size 0 at
//! a position other than 0. Everything here is pure.

use arrow_array::cast::AsArray as _;
use arrow_array::types::{UInt8Type, UInt32Type, UInt64Type};
use arrow_array::{Array, StructArray};
use arrow_schema::DataType;
use lance_core::utils::blob::validate_managed_reference;

use crate::error::{Error, Kind, Result};
use crate::store::Interval;
use crate::units::{ByteLen, ObjectOffset};

/// The kind of a value, as `user.lancefs.kind` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlobKind {
    /// In the data file.
    Inline,
    /// In a sidecar shared with other values.
    Packed,
    /// In a sidecar of its own.
    Dedicated,
    /// In an object that Lance does not own.
    External,
    /// In an object of the table's base.
    Managed,
    /// In an object of a registered base.
    ManagedWithBase,
    /// In the data file, by the two-child layout.
    Legacy,
}

impl BlobKind {
    /// The word for people and programs.
    pub fn word(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::Packed => "packed",
            Self::Dedicated => "dedicated",
            Self::External => "external",
            Self::Managed => "managed",
            Self::ManagedWithBase => "managed-with-base",
            Self::Legacy => "legacy",
        }
    }
}

/// The object that a descriptor names, relative to what only the manifest knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The data file that supplies the field.
    DataFile,
    /// The sidecar of that data file with this id (spec, "Sidecar Resolution").
    Sidecar(u32),
    /// A path beneath a base; `None` is the base of the data file (spec, "Managed Resolution").
    Managed(Option<u32>, object_store::path::Path),
    /// An absolute URI (spec, "External Resolution").
    ExternalUri(String),
    /// A path beneath a registered base.
    ExternalPath(u32, object_store::path::Path),
}

/// How much of the object is the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// This interval.
    Known(Interval),
    /// From here, as many bytes as the whole object has: the External sentinel of size 0.
    WholeObject(ObjectOffset),
}

/// A descriptor of a value that is not null.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// How it is stored.
    pub kind: BlobKind,
    /// Where.
    pub target: Target,
    /// Which part.
    pub extent: Extent,
}

/// The descriptor at a position; `None` is a null value.
///
/// # Errors
/// [`Kind::Descriptor`] for an unknown kind, a child that its kind needs and that is null, an
/// interval that overflows, a managed path that is not canonical, a relative External URI without a
/// base; [`Kind::Table`] for a struct that has neither layout.
pub fn read(descriptors: &StructArray, position: usize) -> Result<Option<Descriptor>> {
    if descriptors.is_null(position) {
        return Ok(None);
    }
    match layout(descriptors)? {
        Layout::Legacy => read_legacy(descriptors, position),
        Layout::V2 => read_v2(descriptors, position),
    }
}

/// Whether the value at a position is null; never fails, so that listings can be told.
pub fn is_null(descriptors: &StructArray, position: usize) -> bool {
    matches!(read(descriptors, position), Ok(None))
}

enum Layout {
    Legacy,
    V2,
}

fn layout(descriptors: &StructArray) -> Result<Layout> {
    use DataType::{UInt8, UInt32, UInt64, Utf8};
    let types: Vec<_> = descriptors.columns().iter().map(|c| c.data_type().clone()).collect();
    match types.as_slice() {
        [UInt64, UInt64] => Ok(Layout::Legacy),
        [UInt8, UInt64, UInt64, UInt32, Utf8] => Ok(Layout::V2),
        other => {
            Err(Error::new(Kind::Table, format!("{other:?} is no layout of a Blob descriptor")))
        }
    }
}

fn read_legacy(descriptors: &StructArray, at: usize) -> Result<Option<Descriptor>> {
    let child = |i: usize| number(descriptors, i, at);
    let (Some(position), Some(size)) = (child(0), child(1)) else { return Ok(None) };
    if size == 0 && position != 0 {
        return Ok(None);
    }
    let extent = Extent::Known(interval(position, size)?);
    Ok(Some(Descriptor { kind: BlobKind::Legacy, target: Target::DataFile, extent }))
}

fn read_v2(descriptors: &StructArray, at: usize) -> Result<Option<Descriptor>> {
    let kinds = descriptors.column(0).as_primitive::<UInt8Type>();
    if kinds.is_null(at) {
        return Ok(None);
    }
    let need = |value: Option<u64>, name| value.ok_or_else(|| invalid(format!("{name} is null")));
    let position = || need(number(descriptors, 1, at), "position");
    let size = need(number(descriptors, 2, at), "size")?;
    let id = || {
        let ids = descriptors.column(3).as_primitive::<UInt32Type>();
        if ids.is_null(at) { Err(invalid("blob_id is null")) } else { Ok(ids.value(at)) }
    };
    let uri = || {
        let uris = descriptors.column(4).as_string::<i32>();
        if uris.is_null(at) { Err(invalid("blob_uri is null")) } else { Ok(uris.value(at)) }
    };
    let known = |position| Ok::<_, Error>(Extent::Known(interval(position, size)?));
    let (kind, target, extent) = match kinds.value(at) {
        0 => (BlobKind::Inline, Target::DataFile, known(position()?)?),
        1 => (BlobKind::Packed, sidecar(id()?)?, known(position()?)?),
        2 => (BlobKind::Dedicated, sidecar(id()?)?, known(0)?),
        3 => {
            let extent = if size == 0 {
                Extent::WholeObject(ObjectOffset::new(position()?))
            } else {
                known(position()?)?
            };
            (BlobKind::External, external(id()?, uri()?)?, extent)
        }
        4 => {
            let path = managed(uri()?, position()?, size)?;
            (BlobKind::Managed, Target::Managed(None, path), known(position()?)?)
        }
        5 => {
            let path = managed(uri()?, position()?, size)?;
            (BlobKind::ManagedWithBase, Target::Managed(Some(id()?), path), known(position()?)?)
        }
        other => return Err(invalid(format!("unknown kind {other}"))),
    };
    Ok(Some(Descriptor { kind, target, extent }))
}

fn number(descriptors: &StructArray, child: usize, at: usize) -> Option<u64> {
    let values = descriptors.column(child).as_primitive::<UInt64Type>();
    values.is_valid(at).then(|| values.value(at))
}

fn interval(position: u64, size: u64) -> Result<Interval> {
    let interval = Interval { offset: ObjectOffset::new(position), len: ByteLen::new(size) };
    match interval.offset.end(interval.len) {
        Some(_) => Ok(interval),
        None => Err(invalid(format!("position {position} + size {size} overflows"))),
    }
}

fn sidecar(id: u32) -> Result<Target> {
    if id == 0 {
        return Err(invalid("sidecar id 0"));
    }
    Ok(Target::Sidecar(id))
}

fn managed(uri: &str, position: u64, size: u64) -> Result<object_store::path::Path> {
    validate_managed_reference(uri, position, size)
        .map_err(|e| Error::caused(Kind::Descriptor, "invalid descriptor", e))
}

fn external(base: u32, uri: &str) -> Result<Target> {
    if uri.is_empty() {
        return Err(invalid("blob_uri of an External value is empty"));
    }
    if base == 0 {
        return Ok(Target::ExternalUri(uri.to_owned()));
    }
    let path = object_store::path::Path::parse(uri);
    let path = path.map_err(|e| {
        Error::caused(Kind::Descriptor, format!("invalid descriptor: path {uri:?}"), e)
    })?;
    Ok(Target::ExternalPath(base, path))
}

fn invalid(what: impl std::fmt::Display) -> Error {
    Error::new(Kind::Descriptor, format!("invalid descriptor: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{ArrayRef, StringArray, UInt8Array, UInt32Array, UInt64Array};
    use arrow_schema::{Field, Fields};
    use std::sync::Arc;

    type Row = (Option<u8>, Option<u64>, Option<u64>, Option<u32>, Option<&'static str>);

    fn v2(row: Row) -> StructArray {
        let columns: [(&str, ArrayRef); 5] = [
            ("kind", Arc::new(UInt8Array::from(vec![row.0]))),
            ("position", Arc::new(UInt64Array::from(vec![row.1]))),
            ("size", Arc::new(UInt64Array::from(vec![row.2]))),
            ("blob_id", Arc::new(UInt32Array::from(vec![row.3]))),
            ("blob_uri", Arc::new(StringArray::from(vec![row.4]))),
        ];
        nullable(columns, true)
    }

    fn legacy(position: Option<u64>, size: Option<u64>, valid: bool) -> StructArray {
        let columns: [(&str, ArrayRef); 2] = [
            ("position", Arc::new(UInt64Array::from(vec![position]))),
            ("size", Arc::new(UInt64Array::from(vec![size]))),
        ];
        nullable(columns, valid)
    }

    fn nullable<const N: usize>(columns: [(&str, ArrayRef); N], valid: bool) -> StructArray {
        let fields: Fields =
            columns.iter().map(|(n, a)| Field::new(*n, a.data_type().clone(), true)).collect();
        let arrays = columns.into_iter().map(|(_, a)| a).collect();
        StructArray::new(fields, arrays, Some(vec![valid].into()))
    }

    fn known(offset: u64, len: u64) -> Extent {
        Extent::Known(Interval { offset: ObjectOffset::new(offset), len: ByteLen::new(len) })
    }

    fn value(row: Row) -> Descriptor {
        read(&v2(row), 0).unwrap().unwrap()
    }

    fn fault(row: Row) -> String {
        let error = read(&v2(row), 0).unwrap_err();
        assert_eq!(error.kind(), Kind::Descriptor);
        error.to_string()
    }

    #[test]
    fn every_kind_names_its_object() {
        let path = |p: &str| object_store::path::Path::parse(p).unwrap();
        for (row, kind, target, extent) in [
            ((0, 64, 10, 0, ""), BlobKind::Inline, Target::DataFile, known(64, 10)),
            ((1, 7, 10, 3, ""), BlobKind::Packed, Target::Sidecar(3), known(7, 10)),
            (
                (2, 9, 10, u32::MAX, ""),
                BlobKind::Dedicated,
                Target::Sidecar(u32::MAX),
                known(0, 10),
            ),
            (
                (3, 7, 10, 0, "s3://b/k"),
                BlobKind::External,
                Target::ExternalUri("s3://b/k".into()),
                known(7, 10),
            ),
            (
                (3, 7, 0, 9, "o/k"),
                BlobKind::External,
                Target::ExternalPath(9, path("o/k")),
                Extent::WholeObject(ObjectOffset::new(7)),
            ),
            (
                (4, 7, 10, 5, "_blobs/u.blob"),
                BlobKind::Managed,
                Target::Managed(None, path("_blobs/u.blob")),
                known(7, 10),
            ),
            (
                (5, 0, 0, 0, "data/x"),
                BlobKind::ManagedWithBase,
                Target::Managed(Some(0), path("data/x")),
                known(0, 0),
            ),
            (
                (5, 1, 2, u32::MAX, "x"),
                BlobKind::ManagedWithBase,
                Target::Managed(Some(u32::MAX), path("x")),
                known(1, 2),
            ),
        ] {
            let (k, position, size, id, uri) = row;
            let found = value((Some(k), Some(position), Some(size), Some(id), Some(uri)));
            assert_eq!(found, Descriptor { kind, target, extent });
        }
    }

    #[test]
    fn v2_is_null_by_its_validity_or_its_kind_alone() {
        assert_eq!(read(&v2((None, Some(1), Some(1), Some(1), Some("x"))), 0).unwrap(), None);
        let zero = v2((Some(0), Some(0), Some(0), Some(0), Some("")));
        assert_eq!(read(&zero, 0).unwrap().unwrap().extent, known(0, 0));
        let empty_at = v2((Some(0), Some(64), Some(0), Some(0), Some("")));
        assert_eq!(read(&empty_at, 0).unwrap().unwrap().extent, known(64, 0));
        let hidden = StructArray::new(
            zero.fields().clone(),
            zero.columns().to_vec(),
            Some(vec![false].into()),
        );
        assert_eq!(read(&hidden, 0).unwrap(), None);
    }

    #[test]
    fn children_that_a_kind_does_not_use_may_be_null() {
        assert_eq!(value((Some(0), Some(64), Some(1), None, None)).extent, known(64, 1));
        assert_eq!(value((Some(2), None, Some(1), Some(1), None)).extent, known(0, 1));
        assert!(fault((Some(1), Some(0), Some(1), None, None)).contains("blob_id is null"));
        assert!(fault((Some(0), None, Some(1), None, None)).contains("position is null"));
        assert!(fault((Some(0), Some(0), None, None, None)).contains("size is null"));
        assert!(fault((Some(4), Some(0), Some(1), Some(0), None)).contains("blob_uri is null"));
    }

    #[test]
    fn descriptors_that_name_nothing_are_errors() {
        for kind in [6, 255] {
            let text = fault((Some(kind), Some(0), Some(1), Some(1), Some("x")));
            assert!(text.contains(&format!("unknown kind {kind}")), "{text}");
        }
        for kind in [0, 1, 3, 4, 5] {
            let text = fault((Some(kind), Some(u64::MAX), Some(1), Some(1), Some("x")));
            assert!(text.contains("overflows"), "{text}");
        }
        assert!(fault((Some(1), Some(0), Some(1), Some(0), Some(""))).contains("sidecar id 0"));
        for path in ["", "/a", "a/", "a//b", "a/../b", "..", "./a", "s3://b/k", "a\\b"] {
            fault((Some(4), Some(0), Some(1), Some(0), Some(path)));
            fault((Some(5), Some(0), Some(0), Some(0), Some(path)));
        }
        fault((Some(3), Some(0), Some(1), Some(2), Some("../escape")));
        fault((Some(3), Some(0), Some(1), Some(0), Some("")));
    }

    #[test]
    fn legacy_has_its_own_null_rule() {
        for null in [
            (None, Some(1), true),
            (Some(1), None, true),
            (Some(1), Some(0), true),
            (Some(65536), Some(0), true),
            (Some(0), Some(5), false),
        ] {
            assert_eq!(read(&legacy(null.0, null.1, null.2), 0).unwrap(), None, "{null:?}");
        }
        let read = |p, s| read(&legacy(Some(p), Some(s), true), 0).unwrap().unwrap();
        assert_eq!(read(0, 0).extent, known(0, 0));
        assert_eq!(
            read(64, 5),
            Descriptor { kind: BlobKind::Legacy, target: Target::DataFile, extent: known(64, 5) }
        );
    }
}
