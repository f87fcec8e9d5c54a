//! Dictionaries: one for each field of a file.
//!
//! 1. The file writer joins the arrays of a page. Where those have dictionaries of their own, that may
//!    take more keys than the key type has, and it writes wider ones, which no reader takes
//!    (lance-encoding 14.0.2, `src/data.rs:1642`). That values are the same does not help: Arrow tells
//!    them apart where it merges, as far as is cheap. So all arrays of a file share one dictionary, in one
//!    piece of memory, which is then not merged (arrow-select 58.4, `src/concat.rs:110`), and the writer
//!    is told to keep them as they are (`src/utils/accumulation.rs:72`). Where it cannot be told so, in
//!    an append, it gets one array ([`joined`]).
//! 2. Arrow joins no arrays with a dictionary that uses all of its keys, not even with itself
//!    (arrow-data 58.4, `src/transform/mod.rs:676`). So rows are built, mixed and padded as plain
//!    values, and get keys last; and a file with a full dictionary gets its rows in one array
//!    ([`Dictionaries::is_full`]).
//! 3. Values are known only when all rows are: they are collected first ([`Dictionaries::collect`]),
//!    then encoded. A value for which no key is left is told with the row that brings it.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::types::{
    ArrowDictionaryKeyType, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use arrow_array::{
    Array as _, ArrayRef, DictionaryArray, FixedSizeListArray, GenericListArray, MapArray,
    OffsetSizeTrait, PrimitiveArray, StructArray, UInt64Array, new_empty_array,
};
use arrow_buffer::{ArrowNativeType as _, OffsetBuffer};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Fields};

use super::super::schema;
use super::canonical;
use super::columns::with_type;
use crate::error::{Error, Kind, Result};
use crate::tree::Step;
use crate::units;

/// The dictionaries of one file, by field.
#[derive(Default)]
pub struct Dictionaries(HashMap<Vec<Step>, Dictionary>);

#[derive(Default)]
struct Dictionary {
    /// The number of each value, by its bytes.
    numbers: HashMap<Vec<u8>, u64>,
    /// The values in the order of their numbers.
    pieces: Vec<ArrayRef>,
    /// All of them, once no more come.
    values: Option<ArrayRef>,
    is_full: bool,
}

/// A value for which no key is left.
#[derive(Debug)]
pub struct Overflow {
    /// The row of the column.
    pub row: usize,
    /// The field.
    pub field: String,
    /// What is wrong.
    pub text: String,
}

/// Whether a dictionary is at or beneath a type.
pub fn is_in(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, _) => true,
        DataType::Struct(fields) => fields.iter().any(|field| is_in(field.data_type())),
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _) => is_in(field.data_type()),
        _ => false,
    }
}

/// A field with plain values where it has dictionaries.
pub fn plain(field: &Field) -> Field {
    let below = |field: &FieldRef| Arc::new(plain(field));
    let data_type = match field.data_type() {
        DataType::Dictionary(_, value) => value.as_ref().clone(),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(below).collect()),
        DataType::List(element) => DataType::List(below(element)),
        DataType::LargeList(element) => DataType::LargeList(below(element)),
        DataType::FixedSizeList(element, width) => DataType::FixedSizeList(below(element), *width),
        DataType::Map(entries, ordered) => DataType::Map(below(entries), *ordered),
        other => other.clone(),
    };
    with_type(field, data_type)
}

/// Parts of columns as one part (difficulties 1 and 2).
///
/// # Errors
/// [`Kind::Internal`], where Arrow does not join them.
pub fn joined(parts: &[Vec<(FieldRef, ArrayRef)>]) -> Result<Vec<(FieldRef, ArrayRef)>> {
    let Some(first) = parts.first() else { return Ok(Vec::new()) };
    let column = |at: usize| {
        let arrays: Vec<_> = parts.iter().map(|columns| columns[at].1.as_ref()).collect();
        let joined = arrow_select::concat::concat(&arrays).map_err(other_shape)?;
        Ok((first[at].0.clone(), joined))
    };
    (0..first.len()).map(column).collect()
}

impl Dictionaries {
    /// Collects the values of a column, given plain. Those for which no key is left are told.
    ///
    /// # Errors
    /// For an array of another shape than the field's.
    pub fn collect(&mut self, field: &Field, column: &ArrayRef) -> Result<Vec<Overflow>> {
        let owners: Vec<usize> = (0..column.len()).collect();
        let mut overflows = Vec::new();
        let path = vec![Step::Field(field.name().clone())];
        self.walk(field, column, path, &owners, &mut overflows)?;
        Ok(overflows)
    }

    /// Ends the collection.
    ///
    /// # Errors
    /// [`Kind::Internal`], where Arrow joins no values.
    pub fn seal(&mut self) -> Result<()> {
        for dictionary in self.0.values_mut() {
            let pieces: Vec<_> = dictionary.pieces.iter().map(AsRef::as_ref).collect();
            if !pieces.is_empty() {
                dictionary.values =
                    Some(arrow_select::concat::concat(&pieces).map_err(other_shape)?);
            }
        }
        Ok(())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a column has a dictionary that uses all of its keys (difficulty 2).
    pub fn is_full(&self, column: &str) -> bool {
        let of_column = |path: &[Step]| matches!(path.first(), Some(Step::Field(n)) if n == column);
        self.0.iter().any(|(path, dictionary)| of_column(path) && dictionary.is_full)
    }

    /// A column of plain values with its dictionaries, as `field` has them.
    ///
    /// # Errors
    /// [`Kind::Internal`] for a value that was not collected.
    pub fn encode(
        &self,
        field: &Field,
        built: &FieldRef,
        column: &ArrayRef,
    ) -> Result<(FieldRef, ArrayRef)> {
        self.encoded(field, built, column, vec![Step::Field(field.name().clone())])
    }

    fn walk(
        &mut self,
        field: &Field,
        array: &ArrayRef,
        path: Vec<Step>,
        owners: &[usize],
        overflows: &mut Vec<Overflow>,
    ) -> Result<()> {
        match field.data_type() {
            DataType::Dictionary(key, _) => {
                let full =
                    self.0.entry(path.clone()).or_default().add(array, capacity(key), owners)?;
                overflows.extend(full.map(|row| overflow(row, &path, key)));
                Ok(())
            }
            other if !is_in(other) => Ok(()),
            DataType::Struct(fields) => {
                let parts = array.as_struct_opt().ok_or_else(another_shape)?;
                for child in fields {
                    let column = parts.column_by_name(child.name()).ok_or_else(another_shape)?;
                    self.walk(child, column, below(&path, child), owners, overflows)?;
                }
                Ok(())
            }
            _ => {
                let (element, lengths, values) = opened(field, array)?;
                let repeated = owners.iter().zip(&lengths);
                let owners: Vec<usize> =
                    repeated.flat_map(|(owner, len)| std::iter::repeat_n(*owner, *len)).collect();
                let path = [path, vec![Step::Element]].concat();
                self.walk(element, &values, path, &owners, overflows)
            }
        }
    }

    fn encoded(
        &self,
        field: &Field,
        built: &FieldRef,
        array: &ArrayRef,
        path: Vec<Step>,
    ) -> Result<(FieldRef, ArrayRef)> {
        let data_type = field.data_type();
        if let DataType::Dictionary(key, value) = data_type {
            let built = with_type(built, data_type.clone());
            let array = match self.0.get(&path) {
                Some(dictionary) => dictionary.encode(key, value, array)?,
                None => Dictionary::default().encode(key, value, array)?,
            };
            return Ok((Arc::new(built), array));
        }
        if !is_in(data_type) {
            return Ok((built.clone(), array.clone()));
        }
        let nulls = array.nulls().cloned();
        let both = (data_type, built.data_type());
        let array = if let (DataType::Struct(fields), DataType::Struct(targets)) = both {
            let parts = array.as_struct_opt().ok_or_else(another_shape)?;
            let each = fields.iter().zip(targets).zip(parts.columns());
            let each = each.map(|((child, target), column)| {
                self.encoded(child, target, column, below(&path, child))
            });
            let (targets, columns): (Vec<_>, Vec<_>) =
                each.collect::<Result<Vec<_>>>()?.into_iter().unzip();
            let targets = Fields::from(targets);
            StructArray::try_new_with_length(targets, columns, nulls, array.len()).map(arc)
        } else {
            let (element, lengths, values) = opened(field, array)?;
            let target = element_of(built.data_type()).ok_or_else(another_shape)?;
            let path = [path, vec![Step::Element]].concat();
            let (target, values) = self.encoded(element, target, &values, path)?;
            closed(data_type, target, &lengths, values, array)
        };
        let array = array.map_err(other_shape)?;
        Ok((Arc::new(with_type(built, array.data_type().clone())), array))
    }
}

impl Dictionary {
    /// Numbers new values; gives the owners of those that have no key.
    fn add<'o>(
        &mut self,
        array: &ArrayRef,
        capacity: u64,
        owners: &'o [usize],
    ) -> Result<impl Iterator<Item = usize> + 'o> {
        let (mut new, mut without) = (Vec::new(), Vec::new());
        let mut bytes = Vec::new();
        for at in (0..array.len()).filter(|at| array.is_valid(*at)) {
            bytes.clear();
            canonical::cell(array, at, &mut bytes)?;
            if self.numbers.contains_key(&bytes) {
                continue;
            }
            let number = units::u64_of(self.numbers.len());
            if number >= capacity {
                without.push(at);
                continue;
            }
            self.numbers.insert(bytes.clone(), number);
            new.push(units::u64_of(at));
        }
        self.is_full = units::u64_of(self.numbers.len()) >= capacity;
        if !new.is_empty() {
            let piece = arrow_select::take::take(array, &UInt64Array::from(new), None);
            self.pieces.push(piece.map_err(other_shape)?);
        }
        Ok(without.into_iter().filter_map(|at| owners.get(at).copied()))
    }

    fn encode(&self, key: &DataType, value: &DataType, array: &ArrayRef) -> Result<ArrayRef> {
        let mut numbers = Vec::with_capacity(array.len());
        let mut bytes = Vec::new();
        for at in 0..array.len() {
            if array.is_null(at) {
                numbers.push(None);
                continue;
            }
            bytes.clear();
            canonical::cell(array, at, &mut bytes)?;
            let number = self.numbers.get(&bytes).copied();
            let text = "a value came that was not there when the dictionary was made";
            numbers.push(Some(number.ok_or_else(|| Error::new(Kind::Internal, text))?));
        }
        let values = self.values.clone().unwrap_or_else(|| new_empty_array(value));
        let array = match key {
            DataType::Int8 => with_keys::<Int8Type>(&numbers, values),
            DataType::Int16 => with_keys::<Int16Type>(&numbers, values),
            DataType::Int32 => with_keys::<Int32Type>(&numbers, values),
            DataType::Int64 => with_keys::<Int64Type>(&numbers, values),
            DataType::UInt8 => with_keys::<UInt8Type>(&numbers, values),
            DataType::UInt16 => with_keys::<UInt16Type>(&numbers, values),
            DataType::UInt32 => with_keys::<UInt32Type>(&numbers, values),
            DataType::UInt64 => with_keys::<UInt64Type>(&numbers, values),
            _ => return Err(another_shape()),
        };
        array.map_err(other_shape)
    }
}

fn with_keys<K: ArrowDictionaryKeyType>(
    numbers: &[Option<u64>],
    values: ArrayRef,
) -> Result<ArrayRef, ArrowError> {
    let key = |number: &Option<u64>| number.and_then(|n| K::Native::from_usize(units::usize_of(n)));
    let keys: PrimitiveArray<K> = numbers.iter().map(key).collect();
    DictionaryArray::try_new(keys, values).map(arc)
}

/// How many values a key type has keys for.
fn capacity(key: &DataType) -> u64 {
    match key {
        DataType::Int8 => 1 << 7,
        DataType::UInt8 => 1 << 8,
        DataType::Int16 => 1 << 15,
        DataType::UInt16 => 1 << 16,
        DataType::Int32 => 1 << 31,
        DataType::UInt32 => 1 << 32,
        _ => u64::MAX,
    }
}

fn overflow(row: usize, path: &[Step], key: &DataType) -> Overflow {
    let text = format!(
        "is a new value, and the dictionary of this column takes no more: its keys ({key}) are for {} values; use one that is there, or give the column a type with more keys",
        capacity(key)
    );
    Overflow { row, field: schema::display(path), text }
}

fn below(path: &[Step], child: &Field) -> Vec<Step> {
    [path, &[Step::Field(child.name().clone())]].concat()
}

fn arc<A: arrow_array::Array + 'static>(array: A) -> ArrayRef {
    Arc::new(array)
}

fn element_of(data_type: &DataType) -> Option<&FieldRef> {
    match data_type {
        DataType::List(element)
        | DataType::LargeList(element)
        | DataType::FixedSizeList(element, _)
        | DataType::Map(element, _) => Some(element),
        _ => None,
    }
}

/// The elements of lists of any kind, and how many each has.
fn opened<'f>(field: &'f Field, array: &ArrayRef) -> Result<(&'f Field, Vec<usize>, ArrayRef)> {
    fn lengths<O: OffsetSizeTrait>(offsets: &[O]) -> (usize, Vec<usize>) {
        let lengths = offsets.windows(2).map(|pair| pair[1].as_usize() - pair[0].as_usize());
        (offsets.first().map_or(0, |first| first.as_usize()), lengths.collect())
    }
    let element = element_of(field.data_type()).ok_or_else(another_shape)?;
    let ((start, lengths), values): (_, ArrayRef) = match array.data_type() {
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            (lengths(list.value_offsets()), list.values().clone())
        }
        DataType::LargeList(_) => {
            let list = array.as_list::<i64>();
            (lengths(list.value_offsets()), list.values().clone())
        }
        DataType::Map(_, _) => {
            let map = array.as_map();
            (lengths(map.value_offsets()), Arc::new(map.entries().clone()))
        }
        DataType::FixedSizeList(_, width) => {
            let width = usize::try_from(*width).map_err(|_| another_shape())?;
            ((0, vec![width; array.len()]), array.as_fixed_size_list().values().clone())
        }
        _ => return Err(another_shape()),
    };
    let values = values.slice(start, lengths.iter().sum());
    Ok((element, lengths, values))
}

/// Lists like `like`, of other elements.
fn closed(
    data_type: &DataType,
    element: FieldRef,
    lengths: &[usize],
    values: ArrayRef,
    like: &ArrayRef,
) -> Result<ArrayRef, ArrowError> {
    let nulls = like.nulls().cloned();
    let lengths = || lengths.iter().copied();
    match data_type {
        DataType::LargeList(_) => {
            let offsets = OffsetBuffer::<i64>::from_lengths(lengths());
            GenericListArray::try_new(element, offsets, values, nulls).map(arc)
        }
        DataType::FixedSizeList(_, width) => {
            FixedSizeListArray::try_new_with_length(element, *width, values, nulls, like.len())
                .map(arc)
        }
        DataType::Map(_, ordered) => {
            let offsets = OffsetBuffer::<i32>::from_lengths(lengths());
            let entries = values.as_struct().clone();
            MapArray::try_new(element, offsets, entries, nulls, *ordered).map(arc)
        }
        _ => {
            let offsets = OffsetBuffer::<i32>::from_lengths(lengths());
            GenericListArray::try_new(element, offsets, values, nulls).map(arc)
        }
    }
}

fn another_shape() -> Error {
    Error::new(Kind::Internal, "a column with a dictionary has another shape than its field")
}

fn other_shape(error: ArrowError) -> Error {
    Error::caused(Kind::Internal, "give a column its dictionary", error)
}
