//! Arrow values as JSON, for `row.json`.
//!
//! ```text
//! int, float, bool, string   as they are; NaN and infinities as "NaN", "Infinity", "-Infinity"
//! binary                     base64 (standard alphabet, padded)
//! decimal                    "1.50": all digits, as a string
//! date, time, timestamp      ISO 8601; with a zone, in that zone ("…Z" for UTC, and where the zone's
//!                            offset had seconds, which ISO 8601 has no place for)
//! duration                   ISO 8601 ("PT1.5S"); interval as Arrow prints it
//! list, vector               array;  struct: object;  map: [{"key": …, "value": …}, …]
//! Blob                       the name of its file; null where it is null
//! ```
//!
//! What `serde_json` would do to a number (a 64-bit integer stays exact, a float keeps its shortest
//! digits) is what happens here.

mod zone;

use arrow_array::cast::AsArray as _;
use arrow_array::types::{
    ArrowDictionaryKeyType, Float16Type, Float32Type, Float64Type, Int64Type,
};
use arrow_array::{Array, StructArray, downcast_dictionary_array, downcast_integer_array};
use arrow_cast::display::{ArrayFormatter, DurationFormat, FormatOptions};
use arrow_schema::DataType;
use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::ser::{Error as _, SerializeMap as _, SerializeSeq as _};
use serde::{Serialize, Serializer};
use serde_json::Value;

use super::descriptor;
use super::snapshot::Row;
use crate::error::{Error, Kind, Result};
use crate::tree::{LeafIndex, Shape, Step};
use crate::units;

/// What Arrow prints for a duration that is too long for its own type, instead of an error
/// (arrow-cast 58.4.1, `display.rs:876`).
const OUT_OF_RANGE: &str = "<invalid>";

/// Renders the cells of one snapshot.
pub struct Renderer<'a> {
    /// The names of its Blob fields.
    pub shape: &'a Shape,
    /// Their paths, in the same order.
    pub paths: Vec<&'a [Step]>,
    /// The row as it is listed, where the two could differ: of a null Blob in a struct that a release
    /// 8.0 wrote, a scan of the Blob alone says that it is null, and one of the whole struct does not.
    pub listed: Option<Row>,
}

/// Where in a row a cell is, above or at a Blob.
#[derive(Clone, Default)]
struct Place {
    path: Vec<Step>,
    indices: Vec<u64>,
}

impl Renderer<'_> {
    /// The cell of a top-level column, as a value.
    ///
    /// # Errors
    /// [`Kind::Table`] for an Arrow type that cannot be shown.
    pub fn cell(&self, column: &str, array: &dyn Array, at: usize) -> Result<Value> {
        serde_json::to_value(self.shown(column, array, at))
            .map_err(|e| Error::new(Kind::Table, e.to_string()))
    }

    /// The cell of a top-level column, to be written.
    pub fn shown<'c>(&'c self, column: &str, array: &'c dyn Array, at: usize) -> Cell<'c> {
        let place = Place { path: vec![Step::Field(column.to_owned())], indices: vec![] };
        Cell { renderer: self, array, at, place: self.kept(place) }
    }

    /// A place, where a Blob is at it or beneath; other values are not asked where they are.
    fn kept(&self, place: Place) -> Option<Place> {
        self.paths.iter().any(|leaf| leaf.starts_with(&place.path)).then_some(place)
    }

    fn leaf(&self, path: &[Step]) -> Option<LeafIndex> {
        let at = self.paths.iter().position(|leaf| *leaf == path)?;
        Some(LeafIndex::new(units::u64_of(at)))
    }

    /// The file of a Blob; an invalid descriptor has one too, which fails when it is opened.
    fn blob(
        &self,
        leaf: LeafIndex,
        array: &dyn Array,
        at: usize,
        indices: &[u64],
    ) -> Option<String> {
        let is_there = array.as_struct_opt().is_some_and(|all| !descriptor::is_null(all, at));
        let listed = self.listed.as_ref().is_none_or(|row| row.lists(leaf, indices));
        let leaf = self.shape.leaf(leaf).filter(|_| is_there && listed)?;
        Some(leaf.file_name(indices))
    }
}

/// One value, which is written without being made into a tree of values first: a row may have
/// millions.
pub struct Cell<'c> {
    renderer: &'c Renderer<'c>,
    array: &'c dyn Array,
    at: usize,
    place: Option<Place>,
}

impl Serialize for Cell<'_> {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        let (array, at) = (self.array, self.at);
        if let Some(place) = &self.place
            && let Some(leaf) = self.renderer.leaf(&place.path)
        {
            return self.renderer.blob(leaf, array, at, &place.indices).serialize(out);
        }
        if array.is_null(at) {
            return out.serialize_unit();
        }
        downcast_integer_array! {
            array => return array.value(at).serialize(out),
            _ => {}
        }
        match array.data_type() {
            DataType::Null => out.serialize_unit(),
            DataType::Boolean => out.serialize_bool(array.as_boolean().value(at)),
            DataType::Float16 => float(array.as_primitive::<Float16Type>().value(at).to_f64(), out),
            DataType::Float32 => float32(array.as_primitive::<Float32Type>().value(at), out),
            DataType::Float64 => float(array.as_primitive::<Float64Type>().value(at), out),
            DataType::Utf8 => out.serialize_str(array.as_string::<i32>().value(at)),
            DataType::LargeUtf8 => out.serialize_str(array.as_string::<i64>().value(at)),
            DataType::Utf8View => out.serialize_str(array.as_string_view().value(at)),
            DataType::Binary => bytes(array.as_binary::<i32>().value(at), out),
            DataType::LargeBinary => bytes(array.as_binary::<i64>().value(at), out),
            DataType::BinaryView => bytes(array.as_binary_view().value(at), out),
            DataType::FixedSizeBinary(_) => bytes(array.as_fixed_size_binary().value(at), out),
            DataType::List(_) => self.elements(&array.as_list::<i32>().value(at), out),
            DataType::LargeList(_) => self.elements(&array.as_list::<i64>().value(at), out),
            DataType::ListView(_) => self.elements(&array.as_list_view::<i32>().value(at), out),
            DataType::LargeListView(_) => {
                self.elements(&array.as_list_view::<i64>().value(at), out)
            }
            DataType::FixedSizeList(_, _) => {
                self.elements(&array.as_fixed_size_list().value(at), out)
            }
            DataType::Map(_, _) => self.entries(&array.as_map().value(at), out),
            DataType::Struct(_) => self.members(array.as_struct(), out),
            DataType::Dictionary(_, _) => self.dictionary(out),
            // A Date64 is a day, in milliseconds; one that is none keeps its time.
            DataType::Date64 => written(array, at, out, |day| day.trim_end_matches("T00:00:00")),
            _ => written(array, at, out, |text| text),
        }
    }
}

impl Cell<'_> {
    fn elements<S: Serializer>(&self, elements: &dyn Array, out: S) -> Result<S::Ok, S::Error> {
        let below = self.place.as_ref().and_then(|place| {
            let mut below = place.clone();
            below.path.push(Step::Element);
            below.indices.push(0);
            self.renderer.kept(below)
        });
        let mut cell = Cell { renderer: self.renderer, array: elements, at: 0, place: below };
        let mut list = out.serialize_seq(Some(elements.len()))?;
        for at in 0..elements.len() {
            if let Some(index) = cell.place.as_mut().and_then(|place| place.indices.last_mut()) {
                *index = units::u64_of(at);
            }
            cell.at = at;
            list.serialize_element(&cell)?;
        }
        list.end()
    }

    fn members<S: Serializer>(&self, array: &StructArray, out: S) -> Result<S::Ok, S::Error> {
        let mut object = out.serialize_map(Some(array.num_columns()))?;
        for (field, column) in array.fields().iter().zip(array.columns()) {
            let place = self.place.as_ref().and_then(|place| {
                let mut below = place.clone();
                below.path.push(Step::Field(field.name().clone()));
                self.renderer.kept(below)
            });
            let cell = Cell { array: column, place, ..*self };
            object.serialize_entry(field.name(), &cell)?;
        }
        object.end()
    }

    fn entries<S: Serializer>(&self, entries: &StructArray, out: S) -> Result<S::Ok, S::Error> {
        let mut list = out.serialize_seq(Some(entries.len()))?;
        for at in 0..entries.len() {
            let cell = |column| Cell { array: entries.column(column), at, place: None, ..*self };
            list.serialize_element(&Entry { key: cell(0), value: cell(1) })?;
        }
        list.end()
    }

    fn dictionary<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        fn key<K: ArrowDictionaryKeyType>(
            array: &arrow_array::DictionaryArray<K>,
            at: usize,
        ) -> Option<usize> {
            array.key(at)
        }
        let (array, at) = (self.array, self.at);
        downcast_dictionary_array! {
            array => match key(array, at) {
                Some(key) => {
                    Cell { array: array.values(), at: key, place: None, ..*self }.serialize(out)
                }
                None => out.serialize_unit(),
            },
            _ => written(array, at, out, |text| text),
        }
    }
}

/// An entry of a map.
#[derive(Serialize)]
struct Entry<'c> {
    key: Cell<'c>,
    value: Cell<'c>,
}

fn bytes<S: Serializer>(value: &[u8], out: S) -> Result<S::Ok, S::Error> {
    out.collect_str(&Base64Display::new(value, &BASE64))
}

fn float<S: Serializer>(value: f64, out: S) -> Result<S::Ok, S::Error> {
    let word = if value.is_nan() {
        "NaN"
    } else if value == f64::INFINITY {
        "Infinity"
    } else if value == f64::NEG_INFINITY {
        "-Infinity"
    } else {
        return out.serialize_f64(value);
    };
    out.serialize_str(word)
}

/// The shortest digits that give the same `f32`: 0.1 is shown as 0.1, not as 0.10000000149011612.
fn float32<S: Serializer>(value: f32, out: S) -> Result<S::Ok, S::Error> {
    match value.to_string().parse() {
        Ok(shortest) if value.is_finite() => float(shortest, out),
        _ => float(value.into(), out),
    }
}

/// What Arrow prints, cut; a time that no calendar can show, as the number that is stored.
fn written<S: Serializer>(
    array: &dyn Array,
    at: usize,
    out: S,
    cut: impl Fn(&str) -> &str,
) -> Result<S::Ok, S::Error> {
    let error = match text(array, at) {
        Ok(text) => return out.serialize_str(cut(&text)),
        Err(error) => error,
    };
    match number(array, at) {
        Some(number) => out.serialize_i64(number),
        None => Err(S::Error::custom(error)),
    }
}

fn number(array: &dyn Array, at: usize) -> Option<i64> {
    let number = arrow_cast::cast(&array.slice(at, 1), &DataType::Int64).ok()?;
    Some(number.as_primitive::<Int64Type>().value(0))
}

fn text(array: &dyn Array, at: usize) -> Result<String> {
    if let Some(alone) = zone::in_utc(array, at) {
        return text(&alone, 0);
    }
    let options = FormatOptions::new().with_duration_format(DurationFormat::ISO8601);
    let formatter = ArrayFormatter::try_new(array, &options).map_err(|e| {
        Error::caused(Kind::Table, format!("show a value of type {}", array.data_type()), e)
    })?;
    let shown = formatter.value(at).try_to_string();
    let shown = shown.map_err(|e| Error::caused(Kind::Table, "show a value", e))?;
    if shown == OUT_OF_RANGE {
        return Err(Error::new(Kind::Table, "show a duration that is out of range"));
    }
    Ok(shown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::types::{Int32Type, TimestampMicrosecondType};
    use arrow_array::{
        ArrayRef, BinaryArray, Decimal128Array, DictionaryArray, DurationMillisecondArray,
        Float32Array, Float64Array, Int64Array, ListArray, PrimitiveArray, UInt64Array,
    };
    use serde_json::json;
    use std::sync::Arc;

    fn cells(array: &dyn Array) -> Vec<Value> {
        let shape = Shape::default();
        let renderer = Renderer { shape: &shape, paths: vec![], listed: None };
        (0..array.len()).map(|at| renderer.cell("c", array, at).unwrap()).collect()
    }

    #[test]
    fn numbers_stay_exact() {
        assert_eq!(
            cells(&Int64Array::from(vec![Some(i64::MIN), None])),
            [json!(i64::MIN), json!(null)]
        );
        assert_eq!(cells(&UInt64Array::from(vec![u64::MAX])), [json!(u64::MAX)]);
        let floats = Float64Array::from(vec![0.1, f64::NAN, f64::INFINITY, f64::NEG_INFINITY]);
        assert_eq!(
            cells(&floats),
            [json!(0.1), json!("NaN"), json!("Infinity"), json!("-Infinity")]
        );
        assert_eq!(cells(&Float32Array::from(vec![0.1])), [json!(0.1)]);
        let decimals =
            Decimal128Array::from(vec![150, -5]).with_precision_and_scale(10, 2).unwrap();
        assert_eq!(cells(&decimals), [json!("1.50"), json!("-0.05")]);
    }

    #[test]
    fn bytes_are_base64_and_times_are_iso_8601() {
        assert_eq!(cells(&BinaryArray::from(vec![&b"\x00\xff"[..]])), [json!("AP8=")]);
        let time = PrimitiveArray::<TimestampMicrosecondType>::from(vec![1_704_164_645_678_901]);
        assert_eq!(cells(&time), [json!("2024-01-02T03:04:05.678901")]);
        assert_eq!(
            cells(&time.clone().with_timezone("UTC")),
            [json!("2024-01-02T03:04:05.678901Z")]
        );
        assert_eq!(
            cells(&time.with_timezone("+02:00")),
            [json!("2024-01-02T05:04:05.678901+02:00")]
        );
        assert_eq!(cells(&DurationMillisecondArray::from(vec![1500])), [json!("PT1.5S")]);
    }

    #[test]
    fn nested_values_keep_their_nulls() {
        let list = ListArray::from_iter_primitive::<Int32Type, _, _>([
            Some(vec![Some(1), None]),
            None,
            Some(vec![]),
        ]);
        assert_eq!(cells(&list), [json!([1, null]), json!(null), json!([])]);
        let words: DictionaryArray<Int32Type> =
            vec![Some("a"), None, Some("b")].into_iter().collect();
        let words: ArrayRef = Arc::new(words);
        assert_eq!(cells(&words), [json!("a"), json!(null), json!("b")]);
    }
}
