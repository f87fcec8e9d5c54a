//! Cells of types that hold no others.

use std::sync::Arc;

use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Date64Type, Decimal32Type, Decimal64Type, Decimal128Type,
    Decimal256Type, DurationMicrosecondType, DurationMillisecondType, DurationNanosecondType,
    DurationSecondType, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, IntervalDayTimeType, IntervalMonthDayNanoType, IntervalYearMonthType,
    Time32MillisecondType, Time32SecondType, Time64MicrosecondType, Time64NanosecondType,
    TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
    TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{
    ArrayRef, BinaryArray, BinaryViewArray, BooleanArray, FixedSizeBinaryArray, LargeBinaryArray,
    LargeStringArray, NullArray, PrimitiveArray, StringArray, StringViewArray,
};
use arrow_buffer::i256;
use arrow_cast::parse::{
    parse_interval_day_time, parse_interval_month_day_nano, parse_interval_year_month,
};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, IntervalUnit, TimeUnit};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::Value;

use super::columns::{Builder, with_type};
use super::level::Level;
use super::{number, shown, time};

/// The key of a field's metadata that names its extension type.
const EXTENSION: &str = "ARROW:extension:name";
/// JSON as the crate stores it: JSONB in a large binary.
const STORED_JSON: &str = "lance.json";
/// JSON as the crate reads it and takes it: text.
const TEXT_JSON: &str = "arrow.json";

/// One field, while its cells are read.
struct Reader<'b, 'l, 'c, 'a> {
    builder: &'b mut Builder<'a>,
    field: &'c Field,
    level: &'c Level<'l, 'a>,
}

/// The cells of a field of a plain type.
pub fn column<'a>(
    builder: &mut Builder<'a>,
    field: &Field,
    level: &Level<'_, 'a>,
) -> (FieldRef, ArrayRef) {
    if field.metadata().get(EXTENSION).is_some_and(|name| name == STORED_JSON) {
        let mut metadata = field.metadata().clone();
        metadata.insert(EXTENSION.to_owned(), TEXT_JSON.to_owned());
        let built = with_type(field, DataType::Utf8).with_metadata(metadata);
        let mut reader = Reader { builder, field, level };
        let texts: StringArray = reader.values(json_text).into_iter().collect();
        return (Arc::new(built), Arc::new(texts));
    }
    let mut reader = Reader { builder, field, level };
    let array = reader
        .numbers()
        .or_else(|| reader.decimals())
        .or_else(|| reader.times())
        .or_else(|| reader.timestamps())
        .or_else(|| reader.words());
    if let Some(array) = array {
        return (Arc::new(field.clone()), array);
    }
    let text = format!("is of the type {}, which row.json cannot give", field.data_type());
    builder.refused(field, level, &text)
}

impl<'a> Reader<'_, '_, '_, 'a> {
    /// Reads each cell; one that is wrong is noted and null.
    fn values<T>(&mut self, read: impl Fn(&'a Value) -> Result<T, String>) -> Vec<Option<T>> {
        let mut values = Vec::with_capacity(self.level.cells.len());
        for (at, cell) in self.level.cells.iter().enumerate() {
            values.push(match cell.json.map(&read) {
                Some(Ok(value)) => Some(value),
                Some(Err(text)) => {
                    self.builder.fault(self.level, at, text);
                    None
                }
                None => {
                    if !self.field.is_nullable() && !cell.masked {
                        self.builder.missing(self.level, at);
                    }
                    None
                }
            });
        }
        values
    }

    fn primitive<T: ArrowPrimitiveType>(
        &mut self,
        read: impl Fn(&'a Value) -> Result<T::Native, String>,
    ) -> ArrayRef {
        let values: PrimitiveArray<T> = self.values(read).into_iter().collect();
        // Decimals and zones are part of the type.
        Arc::new(values.with_data_type(self.field.data_type().clone()))
    }

    fn numbers(&mut self) -> Option<ArrayRef> {
        macro_rules! integer {
            ($arrow:ty, $native:ty) => {
                self.primitive::<$arrow>(|value| {
                    number::integer(value, (<$native>::MIN.into(), <$native>::MAX.into()))
                })
            };
        }
        Some(match self.field.data_type() {
            DataType::Int8 => integer!(Int8Type, i8),
            DataType::Int16 => integer!(Int16Type, i16),
            DataType::Int32 => integer!(Int32Type, i32),
            DataType::Int64 => integer!(Int64Type, i64),
            DataType::UInt8 => integer!(UInt8Type, u8),
            DataType::UInt16 => integer!(UInt16Type, u16),
            DataType::UInt32 => integer!(UInt32Type, u32),
            DataType::UInt64 => integer!(UInt64Type, u64),
            DataType::Float16 => self.primitive::<Float16Type>(number::half),
            DataType::Float32 => self.primitive::<Float32Type>(number::single),
            DataType::Float64 => self.primitive::<Float64Type>(number::double),
            _ => return None,
        })
    }

    fn decimals(&mut self) -> Option<ArrayRef> {
        fn fit<N>(number: i256, narrow: impl Fn(i128) -> Option<N>) -> Result<N, String> {
            let narrowed = number.to_i128().and_then(narrow);
            narrowed.ok_or_else(|| "is out of the column's range".to_owned())
        }
        Some(match *self.field.data_type() {
            DataType::Decimal32(precision, scale) => self.primitive::<Decimal32Type>(|value| {
                fit(number::decimal(value, precision, scale)?, |number| number.try_into().ok())
            }),
            DataType::Decimal64(precision, scale) => self.primitive::<Decimal64Type>(|value| {
                fit(number::decimal(value, precision, scale)?, |number| number.try_into().ok())
            }),
            DataType::Decimal128(precision, scale) => self.primitive::<Decimal128Type>(|value| {
                fit(number::decimal(value, precision, scale)?, Some)
            }),
            DataType::Decimal256(precision, scale) => {
                self.primitive::<Decimal256Type>(|value| number::decimal(value, precision, scale))
            }
            _ => return None,
        })
    }

    fn times(&mut self) -> Option<ArrayRef> {
        use TimeUnit::{Microsecond, Millisecond, Nanosecond, Second};
        Some(match self.field.data_type() {
            DataType::Date32 => self.primitive::<Date32Type>(time::date32),
            DataType::Date64 => self.primitive::<Date64Type>(time::date64),
            DataType::Time32(Second) => {
                self.primitive::<Time32SecondType>(|v| time::time(v, Second))
            }
            DataType::Time32(Millisecond) => {
                self.primitive::<Time32MillisecondType>(|v| time::time(v, Millisecond))
            }
            DataType::Time64(Microsecond) => {
                self.primitive::<Time64MicrosecondType>(|v| time::time(v, Microsecond))
            }
            DataType::Time64(Nanosecond) => {
                self.primitive::<Time64NanosecondType>(|v| time::time(v, Nanosecond))
            }
            DataType::Duration(Second) => {
                self.primitive::<DurationSecondType>(|v| time::duration(v, Second))
            }
            DataType::Duration(Millisecond) => {
                self.primitive::<DurationMillisecondType>(|v| time::duration(v, Millisecond))
            }
            DataType::Duration(Microsecond) => {
                self.primitive::<DurationMicrosecondType>(|v| time::duration(v, Microsecond))
            }
            DataType::Duration(Nanosecond) => {
                self.primitive::<DurationNanosecondType>(|v| time::duration(v, Nanosecond))
            }
            DataType::Interval(unit) => self.intervals(*unit),
            _ => return None,
        })
    }

    fn intervals(&mut self, unit: IntervalUnit) -> ArrayRef {
        fn read<N>(
            value: &Value,
            parse: impl Fn(&str) -> Result<N, ArrowError>,
        ) -> Result<N, String> {
            let text = value.as_str().ok_or_else(|| {
                format!("must be an interval like \"1 days 2.5 secs\", not {}", shown(value))
            })?;
            parse(text).map_err(|error| error.to_string())
        }
        match unit {
            IntervalUnit::YearMonth => self
                .primitive::<IntervalYearMonthType>(|value| read(value, parse_interval_year_month)),
            IntervalUnit::DayTime => {
                self.primitive::<IntervalDayTimeType>(|value| read(value, parse_interval_day_time))
            }
            IntervalUnit::MonthDayNano => self.primitive::<IntervalMonthDayNanoType>(|value| {
                read(value, parse_interval_month_day_nano)
            }),
        }
    }

    fn timestamps(&mut self) -> Option<ArrayRef> {
        let DataType::Timestamp(unit, zone) = self.field.data_type() else { return None };
        let read = |value: &Value| time::timestamp(value, *unit, zone.as_deref());
        Some(match unit {
            TimeUnit::Second => self.primitive::<TimestampSecondType>(read),
            TimeUnit::Millisecond => self.primitive::<TimestampMillisecondType>(read),
            TimeUnit::Microsecond => self.primitive::<TimestampMicrosecondType>(read),
            TimeUnit::Nanosecond => self.primitive::<TimestampNanosecondType>(read),
        })
    }

    /// Texts, bytes, truth values and the type that has no values.
    fn words(&mut self) -> Option<ArrayRef> {
        Some(match *self.field.data_type() {
            DataType::Null => {
                self.values(|value| Err::<(), _>(format!("must be null, not {}", shown(value))));
                Arc::new(NullArray::new(self.level.cells.len()))
            }
            DataType::Boolean => {
                let values: BooleanArray = self.values(truth).into_iter().collect();
                Arc::new(values)
            }
            DataType::Utf8 => Arc::new(StringArray::from(self.values(text))),
            DataType::LargeUtf8 => Arc::new(LargeStringArray::from(self.values(text))),
            DataType::Utf8View => {
                Arc::new(self.values(text).into_iter().collect::<StringViewArray>())
            }
            DataType::Binary => Arc::new(self.values(bytes).into_iter().collect::<BinaryArray>()),
            DataType::LargeBinary => {
                Arc::new(self.values(bytes).into_iter().collect::<LargeBinaryArray>())
            }
            DataType::BinaryView => {
                Arc::new(self.values(bytes).into_iter().collect::<BinaryViewArray>())
            }
            DataType::FixedSizeBinary(width) => {
                let len = usize::try_from(width).unwrap_or(0);
                let values = self.values(|value| sized(value, len));
                let values =
                    FixedSizeBinaryArray::try_from_sparse_iter_with_size(values.into_iter(), width);
                // All are of that size.
                Arc::new(values.ok()?)
            }
            _ => return None,
        })
    }
}

fn truth(value: &Value) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| format!("must be true or false, not {}", shown(value)))
}

fn text(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or_else(|| format!("must be a string, not {}", shown(value)))
}

fn bytes(value: &Value) -> Result<Vec<u8>, String> {
    let decoded = value.as_str().and_then(|text| BASE64.decode(text).ok());
    decoded.ok_or_else(|| format!("must be bytes in base64, with padding, not {}", shown(value)))
}

fn sized(value: &Value, len: usize) -> Result<Vec<u8>, String> {
    let found = bytes(value)?;
    if found.len() == len {
        Ok(found)
    } else {
        Err(format!("must be {len} bytes in base64, not {}", found.len()))
    }
}

/// A JSON value in a string, as the crate shows such columns.
fn json_text(value: &Value) -> Result<&str, String> {
    let text = text(value)?;
    match serde_json::from_str::<serde::de::IgnoredAny>(text) {
        Ok(_) => Ok(text),
        Err(error) => Err(format!("must be a string that holds JSON: {error}")),
    }
}
