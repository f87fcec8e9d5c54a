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
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map, Value};

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

/// Where in a row a cell is.
#[derive(Clone, Default)]
struct Place {
    path: Vec<Step>,
    indices: Vec<u64>,
}

impl Renderer<'_> {
    /// The cell of a top-level column.
    ///
    /// # Errors
    /// [`Kind::Table`] for an Arrow type that cannot be shown.
    pub fn cell(&self, column: &str, array: &dyn Array, at: usize) -> Result<Value> {
        self.value(
            array,
            at,
            &Place { path: vec![Step::Field(column.to_owned())], indices: vec![] },
        )
    }

    fn value(&self, array: &dyn Array, at: usize, place: &Place) -> Result<Value> {
        if let Some(leaf) = self.leaf(&place.path) {
            return Ok(self.blob(leaf, array, at, &place.indices));
        }
        if array.is_null(at) {
            return Ok(Value::Null);
        }
        downcast_integer_array! {
            array => return Ok(array.value(at).into()),
            _ => {}
        }
        Ok(match array.data_type() {
            DataType::Null => Value::Null,
            DataType::Boolean => array.as_boolean().value(at).into(),
            DataType::Float16 => float(array.as_primitive::<Float16Type>().value(at).to_f64()),
            DataType::Float32 => float32(array.as_primitive::<Float32Type>().value(at)),
            DataType::Float64 => float(array.as_primitive::<Float64Type>().value(at)),
            DataType::Utf8 => array.as_string::<i32>().value(at).into(),
            DataType::LargeUtf8 => array.as_string::<i64>().value(at).into(),
            DataType::Utf8View => array.as_string_view().value(at).into(),
            DataType::Binary => BASE64.encode(array.as_binary::<i32>().value(at)).into(),
            DataType::LargeBinary => BASE64.encode(array.as_binary::<i64>().value(at)).into(),
            DataType::BinaryView => BASE64.encode(array.as_binary_view().value(at)).into(),
            DataType::FixedSizeBinary(_) => {
                BASE64.encode(array.as_fixed_size_binary().value(at)).into()
            }
            DataType::List(_) => self.elements(&array.as_list::<i32>().value(at), place)?,
            DataType::LargeList(_) => self.elements(&array.as_list::<i64>().value(at), place)?,
            DataType::ListView(_) => {
                self.elements(&array.as_list_view::<i32>().value(at), place)?
            }
            DataType::LargeListView(_) => {
                self.elements(&array.as_list_view::<i64>().value(at), place)?
            }
            DataType::FixedSizeList(_, _) => {
                self.elements(&array.as_fixed_size_list().value(at), place)?
            }
            DataType::Map(_, _) => self.entries(&array.as_map().value(at), place)?,
            DataType::Struct(_) => self.members(array.as_struct(), at, place)?,
            DataType::Dictionary(_, _) => self.dictionary(array, at, place)?,
            // A Date64 is a day, in milliseconds; one that is none keeps its time.
            DataType::Date64 => match text(array, at) {
                Ok(day) => day.as_str().map(|t| t.trim_end_matches("T00:00:00")).into(),
                Err(e) => number(array, at).ok_or(e)?,
            },
            _ => text(array, at).or_else(|e| number(array, at).ok_or(e))?,
        })
    }

    fn leaf(&self, path: &[Step]) -> Option<LeafIndex> {
        let at = self.paths.iter().position(|leaf| *leaf == path)?;
        Some(LeafIndex::new(units::u64_of(at)))
    }

    /// The file of a Blob; an invalid descriptor has one too, which fails when it is opened.
    fn blob(&self, leaf: LeafIndex, array: &dyn Array, at: usize, indices: &[u64]) -> Value {
        let is_there = array.as_struct_opt().is_some_and(|all| !descriptor::is_null(all, at));
        let listed = self.listed.as_ref().is_none_or(|row| row.lists(leaf, indices));
        match self.shape.leaf(leaf) {
            Some(leaf) if is_there && listed => leaf.file_name(indices).into(),
            _ => Value::Null,
        }
    }

    fn elements(&self, elements: &dyn Array, place: &Place) -> Result<Value> {
        let mut below = place.clone();
        below.path.push(Step::Element);
        below.indices.push(0);
        let mut values = Vec::with_capacity(elements.len());
        for at in 0..elements.len() {
            if let Some(index) = below.indices.last_mut() {
                *index = units::u64_of(at);
            }
            values.push(self.value(elements, at, &below)?);
        }
        Ok(Value::Array(values))
    }

    fn members(&self, array: &StructArray, at: usize, place: &Place) -> Result<Value> {
        let mut object = Map::new();
        for (field, column) in array.fields().iter().zip(array.columns()) {
            let mut below = place.clone();
            below.path.push(Step::Field(field.name().clone()));
            object.insert(field.name().clone(), self.value(column, at, &below)?);
        }
        Ok(Value::Object(object))
    }

    fn entries(&self, entries: &StructArray, place: &Place) -> Result<Value> {
        let entry = |at| {
            let mut object = Map::new();
            object.insert("key".to_owned(), self.value(entries.column(0), at, place)?);
            object.insert("value".to_owned(), self.value(entries.column(1), at, place)?);
            Ok(Value::Object(object))
        };
        (0..entries.len()).map(entry).collect::<Result<_>>().map(Value::Array)
    }

    fn dictionary(&self, array: &dyn Array, at: usize, place: &Place) -> Result<Value> {
        fn key<K: ArrowDictionaryKeyType>(
            array: &arrow_array::DictionaryArray<K>,
            at: usize,
        ) -> Option<usize> {
            array.key(at)
        }
        downcast_dictionary_array! {
            array => match key(array, at) {
                Some(key) => self.value(array.values(), key, place),
                None => Ok(Value::Null),
            },
            _ => text(array, at),
        }
    }
}

fn float(value: f64) -> Value {
    let word = if value.is_nan() {
        "NaN"
    } else if value == f64::INFINITY {
        "Infinity"
    } else if value == f64::NEG_INFINITY {
        "-Infinity"
    } else {
        return value.into();
    };
    word.into()
}

/// The shortest digits that give the same `f32`: 0.1 is shown as 0.1, not as 0.10000000149011612.
fn float32(value: f32) -> Value {
    match value.to_string().parse() {
        Ok(shortest) if value.is_finite() => float(shortest),
        _ => float(value.into()),
    }
}

/// A time that no calendar can show, as the number that is stored.
fn number(array: &dyn Array, at: usize) -> Option<Value> {
    let number = arrow_cast::cast(&array.slice(at, 1), &DataType::Int64).ok()?;
    Some(number.as_primitive::<Int64Type>().value(0).into())
}

fn text(array: &dyn Array, at: usize) -> Result<Value> {
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
    Ok(shown.into())
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
