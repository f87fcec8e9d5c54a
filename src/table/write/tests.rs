//! Values through JSON and back, for every type.

mod append;
mod deleted;
mod lab;
mod replaced;

use std::sync::Arc;

use arrow_array::builder::{
    BinaryBuilder, BooleanBuilder, FixedSizeBinaryBuilder, PrimitiveBuilder, StringBuilder,
};
use arrow_array::cast::AsArray as _;
use arrow_array::types::*;
use arrow_array::{
    Array, ArrayRef, DictionaryArray, FixedSizeListArray, LargeListArray, ListArray, MapArray,
    NullArray, StructArray,
};
use arrow_buffer::{NullBuffer, i256};
use arrow_schema::{DataType, Field, TimeUnit};
use proptest::prelude::*;

use super::*;
use crate::table::json::Renderer;

/// Random numbers from a seed (`SplitMix64`), of which many are at the ends of their range.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(end).unwrap()).unwrap()
    }

    /// 64 bits, small ones, large ones and the ends.
    fn bits(&mut self) -> i64 {
        let bits = i64::from_ne_bytes(self.next().to_ne_bytes());
        match self.below(5) {
            0 => [0, 1, -1, i64::MIN, i64::MAX][self.below(5)],
            shift => bits >> (16 * (shift - 1)),
        }
    }

    fn low<const N: usize>(&mut self) -> [u8; N] {
        self.bits().to_le_bytes()[..N].try_into().unwrap()
    }

    fn word(&mut self) -> String {
        let letters = ['a', '"', '\\', '\u{0}', 'é', '\n', '1', '.', '漢', '🦀', ' '];
        (0..self.below(6)).map(|_| letters[self.below(letters.len())]).collect()
    }

    fn valid(&mut self, nullable: bool, len: usize) -> Option<NullBuffer> {
        let valid: Vec<bool> = (0..len).map(|_| !nullable || self.below(4) > 0).collect();
        nullable.then(|| valid.into())
    }
}

macro_rules! primitive {
    ($arrow:ty, $field:expr, $valid:expr, $value:expr) => {{
        let mut builder =
            PrimitiveBuilder::<$arrow>::new().with_data_type($field.data_type().clone());
        for valid in $valid {
            if valid { builder.append_value($value) } else { builder.append_null() }
        }
        Arc::new(builder.finish())
    }};
}

/// A random array of a field.
fn array(random: &mut Random, field: &Field, len: usize) -> ArrayRef {
    let nulls = random.valid(field.is_nullable(), len);
    let valid: Vec<bool> = match &nulls {
        Some(nulls) => nulls.iter().collect(),
        None => vec![true; len],
    };
    let lengths = |random: &mut Random| -> Vec<usize> {
        valid.iter().map(|valid| if *valid { random.below(4) } else { 0 }).collect()
    };
    match field.data_type() {
        DataType::Struct(fields) => {
            let columns = fields.iter().map(|field| array(random, field, len)).collect();
            Arc::new(StructArray::try_new_with_length(fields.clone(), columns, nulls, len).unwrap())
        }
        DataType::List(element) => {
            let lengths = lengths(random);
            let values = array(random, element, lengths.iter().sum());
            Arc::new(ListArray::new(
                element.clone(),
                columns::offsets(&lengths).unwrap(),
                values,
                nulls,
            ))
        }
        DataType::LargeList(element) => {
            let lengths = lengths(random);
            let values = array(random, element, lengths.iter().sum());
            let offsets = columns::offsets(&lengths).unwrap();
            Arc::new(LargeListArray::new(element.clone(), offsets, values, nulls))
        }
        DataType::FixedSizeList(element, width) => {
            let values = array(random, element, len * usize::try_from(*width).unwrap());
            let list = FixedSizeListArray::try_new_with_length(
                element.clone(),
                *width,
                values,
                nulls,
                len,
            );
            Arc::new(list.unwrap())
        }
        DataType::Map(entries, ordered) => {
            let lengths = lengths(random);
            let pairs = array(random, entries, lengths.iter().sum());
            let offsets = columns::offsets(&lengths).unwrap();
            let pairs = pairs.as_struct().clone();
            Arc::new(MapArray::new(entries.clone(), offsets, pairs, nulls, *ordered))
        }
        DataType::Dictionary(_, value) => {
            // Arrow tells a null value from a null key, JSON does not.
            let values = array(random, &Field::new("v", *value.clone(), false), 5);
            let keys =
                valid.iter().map(|valid| valid.then(|| i16::try_from(random.below(5)).unwrap()));
            Arc::new(DictionaryArray::<Int16Type>::new(keys.collect(), values))
        }
        _ => plain(random, field, &valid),
    }
}

fn plain(random: &mut Random, field: &Field, valid: &[bool]) -> ArrayRef {
    let each = valid.iter().copied();
    match field.data_type() {
        DataType::Null => Arc::new(NullArray::new(valid.len())),
        DataType::Boolean => {
            let mut builder = BooleanBuilder::new();
            each.for_each(|valid| builder.append_option(valid.then(|| random.below(2) == 1)));
            Arc::new(builder.finish())
        }
        DataType::Utf8 => {
            let mut builder = StringBuilder::new();
            each.for_each(|valid| builder.append_option(valid.then(|| random.word())));
            Arc::new(builder.finish())
        }
        DataType::Binary => {
            let mut builder = BinaryBuilder::new();
            each.for_each(|valid| builder.append_option(valid.then(|| random.low::<5>())));
            Arc::new(builder.finish())
        }
        DataType::FixedSizeBinary(3) => {
            let mut builder = FixedSizeBinaryBuilder::new(3);
            for valid in each {
                if valid {
                    builder.append_value(random.low::<3>()).unwrap();
                } else {
                    builder.append_null();
                }
            }
            Arc::new(builder.finish())
        }
        other @ (DataType::LargeUtf8 | DataType::Utf8View) => {
            let texts = plain(random, &with_type(field, DataType::Utf8), valid);
            arrow_cast::cast(&texts, other).unwrap()
        }
        other @ (DataType::LargeBinary | DataType::BinaryView) => {
            let bytes = plain(random, &with_type(field, DataType::Binary), valid);
            arrow_cast::cast(&bytes, other).unwrap()
        }
        _ => numbers(random, field, valid).unwrap_or_else(|| times(random, field, valid)),
    }
}

fn numbers(random: &mut Random, field: &Field, valid: &[bool]) -> Option<ArrayRef> {
    let valid = valid.iter().copied();
    Some(match field.data_type() {
        DataType::Int8 => primitive!(Int8Type, field, valid, i8::from_le_bytes(random.low())),
        DataType::Int16 => primitive!(Int16Type, field, valid, i16::from_le_bytes(random.low())),
        DataType::Int32 => primitive!(Int32Type, field, valid, i32::from_le_bytes(random.low())),
        DataType::Int64 => primitive!(Int64Type, field, valid, random.bits()),
        DataType::UInt8 => primitive!(UInt8Type, field, valid, u8::from_le_bytes(random.low())),
        DataType::UInt16 => primitive!(UInt16Type, field, valid, u16::from_le_bytes(random.low())),
        DataType::UInt32 => primitive!(UInt32Type, field, valid, u32::from_le_bytes(random.low())),
        DataType::UInt64 => primitive!(UInt64Type, field, valid, u64::from_le_bytes(random.low())),
        DataType::Float16 => primitive!(Float16Type, field, valid, half(random)),
        DataType::Float32 => primitive!(Float32Type, field, valid, canonical32(random)),
        DataType::Float64 => primitive!(Float64Type, field, valid, canonical64(random)),
        DataType::Decimal32(5, _) => {
            primitive!(Decimal32Type, field, valid, i32::from_le_bytes(random.low()) % 100_000)
        }
        DataType::Decimal64(16, _) => {
            primitive!(Decimal64Type, field, valid, random.bits() % 10_i64.pow(16))
        }
        DataType::Decimal128(38, _) => {
            primitive!(
                Decimal128Type,
                field,
                valid,
                i128::from(random.bits()) * i128::from(random.bits()) % 10_i128.pow(38)
            )
        }
        DataType::Decimal256(76, _) => {
            primitive!(
                Decimal256Type,
                field,
                valid,
                i256::from(random.bits()) * i256::from(random.bits()) * i256::from(random.bits())
            )
        }
        _ => return None,
    })
}

fn times(random: &mut Random, field: &Field, valid: &[bool]) -> ArrayRef {
    use TimeUnit::{Microsecond, Millisecond, Nanosecond, Second};
    let valid = valid.iter().copied();
    match field.data_type() {
        DataType::Date32 => primitive!(Date32Type, field, valid, i32::from_le_bytes(random.low())),
        DataType::Date64 => primitive!(Date64Type, field, valid, random.bits()),
        DataType::Time32(Second) => {
            primitive!(Time32SecondType, field, valid, i32::from_le_bytes(random.low()))
        }
        DataType::Time32(_) => {
            primitive!(Time32MillisecondType, field, valid, i32::from_le_bytes(random.low()))
        }
        DataType::Time64(Microsecond) => {
            primitive!(Time64MicrosecondType, field, valid, random.bits())
        }
        DataType::Time64(_) => primitive!(Time64NanosecondType, field, valid, random.bits()),
        DataType::Timestamp(Second, _) => {
            primitive!(TimestampSecondType, field, valid, random.bits())
        }
        DataType::Timestamp(Millisecond, _) => {
            primitive!(TimestampMillisecondType, field, valid, random.bits())
        }
        DataType::Timestamp(Microsecond, _) => {
            primitive!(TimestampMicrosecondType, field, valid, random.bits())
        }
        DataType::Timestamp(Nanosecond, _) => {
            primitive!(TimestampNanosecondType, field, valid, random.bits())
        }
        DataType::Duration(Second) => primitive!(DurationSecondType, field, valid, random.bits()),
        DataType::Duration(Millisecond) => {
            primitive!(DurationMillisecondType, field, valid, random.bits())
        }
        DataType::Duration(Microsecond) => {
            primitive!(DurationMicrosecondType, field, valid, random.bits())
        }
        DataType::Duration(Nanosecond) => {
            primitive!(DurationNanosecondType, field, valid, random.bits())
        }
        other => panic!("no values of {other}"),
    }
}

fn half(random: &mut Random) -> number::F16 {
    let value = number::F16::from_le_bytes(random.low());
    if value.is_nan() { number::F16::NAN } else { value }
}

/// Any single; JSON shows one NaN.
fn canonical32(random: &mut Random) -> f32 {
    let value = f32::from_le_bytes(random.low());
    if value.is_nan() { f32::NAN } else { value }
}

fn canonical64(random: &mut Random) -> f64 {
    let value = f64::from_le_bytes(random.low());
    if value.is_nan() { f64::NAN } else { value }
}

fn with_type(field: &Field, data_type: DataType) -> Field {
    field.clone().with_data_type(data_type)
}

fn leaf_type() -> impl Strategy<Value = DataType> {
    let unit = || {
        prop_oneof![
            Just(TimeUnit::Second),
            Just(TimeUnit::Millisecond),
            Just(TimeUnit::Microsecond),
            Just(TimeUnit::Nanosecond)
        ]
    };
    let zone = prop_oneof![
        Just(None),
        Just(Some("UTC")),
        Just(Some("+02:00")),
        Just(Some("-09:30")),
        Just(Some("Europe/Berlin")),
        Just(Some("America/New_York")),
        Just(Some("Asia/Kolkata")),
    ];
    let plain = [
        DataType::Null,
        DataType::Boolean,
        DataType::Int8,
        DataType::Int16,
        DataType::Int32,
        DataType::Int64,
        DataType::UInt8,
        DataType::UInt16,
        DataType::UInt32,
        DataType::UInt64,
        DataType::Float16,
        DataType::Float32,
        DataType::Float64,
        DataType::Utf8,
        DataType::LargeUtf8,
        DataType::Utf8View,
        DataType::Binary,
        DataType::LargeBinary,
        DataType::BinaryView,
        DataType::FixedSizeBinary(3),
        DataType::Date32,
        DataType::Date64,
        DataType::Decimal32(5, 2),
        DataType::Decimal64(16, 16),
        DataType::Decimal128(38, 10),
        DataType::Decimal128(38, -3),
        DataType::Decimal256(76, 5),
        DataType::Time32(TimeUnit::Second),
        DataType::Time32(TimeUnit::Millisecond),
        DataType::Time64(TimeUnit::Microsecond),
        DataType::Time64(TimeUnit::Nanosecond),
    ];
    prop_oneof![
        4 => proptest::sample::select(plain.to_vec()),
        1 => (unit(), zone).prop_map(|(unit, zone)| DataType::Timestamp(unit, zone.map(Into::into))),
        1 => unit().prop_map(DataType::Duration),
    ]
}

fn data_type() -> impl Strategy<Value = DataType> {
    leaf_type().prop_recursive(3, 12, 3, |inner| {
        let field = |name: &'static str| {
            (inner.clone(), any::<bool>()).prop_map(move |(data_type, nullable)| {
                let nullable = nullable || data_type == DataType::Null;
                Arc::new(Field::new(name, data_type, nullable))
            })
        };
        let key = prop_oneof![Just(DataType::Utf8), Just(DataType::Int64), Just(DataType::Date32)];
        prop_oneof![
            field("item").prop_map(DataType::List),
            field("item").prop_map(DataType::LargeList),
            (field("item"), 0..4_i32)
                .prop_map(|(field, width)| DataType::FixedSizeList(field, width)),
            (field("a"), field("b.c")).prop_map(|(a, b)| DataType::Struct(vec![a, b].into())),
            (key, field("val")).prop_map(|(key, value)| {
                let key = Arc::new(Field::new("k", key, false));
                let entries = DataType::Struct(vec![key, value].into());
                DataType::Map(Arc::new(Field::new("entries", entries, false)), false)
            }),
            Just(DataType::Dictionary(Box::new(DataType::Int16), Box::new(DataType::Utf8))),
            Just(DataType::Dictionary(Box::new(DataType::Int16), Box::new(DataType::Float32))),
        ]
    })
}

/// The array as its rows' `row.json` shows it, read back.
fn through_json(field: &Field, array: &ArrayRef) -> Result<ArrayRef, Vec<Fault>> {
    let shape = crate::tree::Shape::default();
    let renderer = Renderer { shape: &shape, paths: vec![], listed: None };
    let row = |at| {
        let cell = renderer.cell(field.name(), array, at).unwrap();
        let json = [(field.name().clone(), cell)].into_iter().collect();
        NewRow { place: format!("b/{at}"), json, ..NewRow::default() }
    };
    let rows: Vec<NewRow> = (0..array.len()).map(row).collect();
    let (leaves, rows) = (Leaves::default(), rows.iter().map(Row::of).collect::<Vec<_>>());
    let mut builder = Builder { rows: &rows, leaves: &leaves, faults: vec![] };
    let (built, column) = builder.column(field);
    assert_eq!(*built, dictionary::plain(field));
    if !builder.faults.is_empty() {
        return Err(builder.faults);
    }
    let mut dictionaries = Dictionaries::default();
    assert!(dictionaries.collect(field, &column).unwrap().is_empty());
    dictionaries.seal().unwrap();
    let (built, column) = dictionaries.encode(field, &built, &column).unwrap();
    assert_eq!(&*built, field);
    Ok(column)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]
    #[test]
    fn every_array_comes_back_from_json(data_type in data_type(), nullable: bool, seed: u64, len in 0..9_usize) {
        let field = Field::new("c", data_type.clone(), nullable || data_type == DataType::Null);
        let array = array(&mut Random(seed), &field, len);
        let read = through_json(&field, &array).unwrap();
        prop_assert_eq!(&read, &array);
    }
}

/// No table holds intervals, so they need no more than their usual forms.
#[test]
fn intervals_are_read_as_arrow_prints_them() {
    use arrow_array::{IntervalDayTimeArray, IntervalMonthDayNanoArray, IntervalYearMonthArray};
    let months: ArrayRef = Arc::new(IntervalYearMonthArray::from(vec![0, 14, -1, -25]));
    let days = [(0, 0), (3, -1500), (-2, 86_400_001)]
        .map(|(d, ms)| IntervalDayTimeType::make_value(d, ms));
    let days: ArrayRef = Arc::new(IntervalDayTimeArray::from(days.to_vec()));
    let all = [(1, -2, 3), (0, 0, i64::MIN), (0, 0, i64::MAX)];
    let all = all.map(|(m, d, ns)| IntervalMonthDayNanoType::make_value(m, d, ns));
    let all: ArrayRef = Arc::new(IntervalMonthDayNanoArray::from(all.to_vec()));
    for array in [months, days, all] {
        let field = Field::new("c", array.data_type().clone(), true);
        assert_eq!(&through_json(&field, &array).unwrap(), &array);
    }
}
