//! From a row to the values that one leaf has in it, and back.
//!
//! Arrow keeps a list's elements behind offsets, so the elements that one row has at the leaf's
//! depth lie side by side, however many lists are above them: an element's [`Ordinal`] is its
//! distance from the first. Difficulties:
//!
//! 1. A null list may still span elements, and a null struct hides what is beneath it: every way
//!    down checks the validity of each level.
//! 2. A list of a million elements must not be walked to find one: [`Chain::at`] goes from an
//!    ordinal to indices by binary search, [`Chain::ordinal`] goes down by arithmetic.

use std::ops::Range;

use arrow_array::cast::AsArray as _;
use arrow_array::{Array, ArrayRef, LargeListArray, ListArray, StructArray};
use arrow_schema::DataType;

use crate::error::{Error, Kind, Result};
use crate::tree::Step;
use crate::units::{self, Ordinal};

enum Level {
    Struct(StructArray),
    List(ListArray),
    LargeList(LargeListArray),
}

/// One leaf in one page: the arrays from its column down to its descriptors.
pub struct Chain {
    levels: Vec<Level>,
    descriptors: StructArray,
}

/// A value that is there: where its descriptor is and what its indices are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    /// Position in [`Chain::descriptors`].
    pub position: usize,
    /// Position among the row's elements of this leaf.
    pub ordinal: Ordinal,
    /// One index for each list above it, outermost first.
    pub indices: Vec<u64>,
}

impl Chain {
    /// Follows a leaf's path through a column.
    ///
    /// # Errors
    /// [`Kind::Table`] where the scan returned another shape than the schema promises.
    pub fn new(column: &ArrayRef, path: &[Step]) -> Result<Self> {
        let mut array = column.clone();
        let mut levels = Vec::new();
        for step in &path[1..] {
            let (level, next) = match (step, array.data_type()) {
                (Step::Field(name), DataType::Struct(_)) => {
                    let array = array.as_struct();
                    let child = array
                        .column_by_name(name)
                        .ok_or_else(|| wrong_shape(path, array.data_type()))?;
                    (Level::Struct(array.clone()), child.clone())
                }
                (Step::Element, DataType::List(_)) => {
                    let list = array.as_list::<i32>();
                    (Level::List(list.clone()), list.values().clone())
                }
                (Step::Element, DataType::LargeList(_)) => {
                    let list = array.as_list::<i64>();
                    (Level::LargeList(list.clone()), list.values().clone())
                }
                (_, other) => return Err(wrong_shape(path, other)),
            };
            levels.push(level);
            array = next;
        }
        let descriptors =
            array.as_struct_opt().ok_or_else(|| wrong_shape(path, array.data_type()))?;
        Ok(Self { levels, descriptors: descriptors.clone() })
    }

    /// The descriptors of the page, indexed by [`Element::position`].
    pub fn descriptors(&self) -> &StructArray {
        &self.descriptors
    }

    /// How many elements the row has at this depth, nulls included; 1 without lists.
    pub fn count(&self, row: usize) -> u64 {
        let range = self.levels.iter().fold(row..row + 1, |range, level| level.descend(&range));
        units::u64_of(range.len())
    }

    /// The element with this ordinal, unless something above it is null or there are fewer.
    pub fn at(&self, row: usize, ordinal: Ordinal) -> Option<Element> {
        let mut ranges = Vec::with_capacity(self.levels.len() + 1);
        ranges.push(row..row + 1);
        for level in &self.levels {
            let below = level.descend(ranges.last()?);
            ranges.push(below);
        }
        let last = ranges.pop()?;
        let position = last.start.checked_add(units::usize_of(ordinal.get()))?;
        if position >= last.end {
            return None;
        }
        let mut indices = Vec::new();
        let mut at = position;
        for (level, range) in self.levels.iter().zip(&ranges).rev() {
            let (parent, index) = level.ascend(range, at);
            indices.extend(index);
            at = parent;
            if level.array().is_null(at) {
                return None;
            }
        }
        indices.reverse();
        Some(Element { position, ordinal, indices })
    }

    /// The element at these indices, unless something above it is null or an index is past the end.
    pub fn ordinal(&self, row: usize, indices: &[u64]) -> Option<Ordinal> {
        let first =
            self.levels.iter().fold(row..row + 1, |range, level| level.descend(&range)).start;
        let mut indices = indices.iter();
        let mut at = row;
        for level in &self.levels {
            if level.array().is_null(at) {
                return None;
            }
            let below = level.descend(&(at..at + 1));
            at = below.start;
            if level.is_list() {
                at = at.checked_add(units::usize_of(*indices.next()?))?;
                if at >= below.end {
                    return None;
                }
            }
        }
        Some(Ordinal::new(units::u64_of(at - first)))
    }
}

impl Level {
    fn array(&self) -> &dyn Array {
        match self {
            Self::Struct(array) => array,
            Self::List(array) => array,
            Self::LargeList(array) => array,
        }
    }

    fn is_list(&self) -> bool {
        !matches!(self, Self::Struct(_))
    }

    fn offset(&self, at: usize) -> usize {
        match self {
            Self::Struct(_) => at,
            // Arrow validates offsets to be non-negative and within memory.
            Self::List(list) => usize::try_from(list.value_offsets()[at]).unwrap_or(0),
            Self::LargeList(list) => usize::try_from(list.value_offsets()[at]).unwrap_or(0),
        }
    }

    /// The elements beneath a range of this level.
    fn descend(&self, range: &Range<usize>) -> Range<usize> {
        self.offset(range.start)..self.offset(range.end)
    }

    /// The parent of the element at `below`, among `range`, and its index there if this is a list.
    fn ascend(&self, range: &Range<usize>, below: usize) -> (usize, Option<u64>) {
        if !self.is_list() {
            return (below, None);
        }
        let (mut low, mut high) = (range.start, range.end);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.offset(middle) <= below {
                low = middle;
            } else {
                high = middle;
            }
        }
        (low, Some(units::u64_of(below - self.offset(low))))
    }
}

fn wrong_shape(path: &[Step], found: &DataType) -> Error {
    Error::new(
        Kind::Table,
        format!("field {path:?} was scanned as {found}, which is no Blob descriptor"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::UInt64Array;
    use arrow_array::types::UInt64Type;
    use arrow_schema::{Field, Fields};
    use std::sync::Arc;

    fn descriptors(n: usize) -> StructArray {
        let values =
            || -> ArrayRef { Arc::new(UInt64Array::from_iter_values(0..units::u64_of(n))) };
        StructArray::from(vec![
            (Arc::new(Field::new("position", DataType::UInt64, true)), values()),
            (Arc::new(Field::new("size", DataType::UInt64, true)), values()),
        ])
    }

    fn list_of(values: ArrayRef, offsets: &[i32], valid: &[bool]) -> ListArray {
        let field = Arc::new(Field::new("item", values.data_type().clone(), true));
        let offsets = arrow_buffer::OffsetBuffer::new(offsets.to_vec().into());
        ListArray::new(field, offsets, values, Some(valid.to_vec().into()))
    }

    fn field(name: &str) -> Step {
        Step::Field(name.to_owned())
    }

    #[test]
    fn a_list_of_lists_finds_its_elements_both_ways() {
        // row 0: [[d0, d1], null, [], [d2]], row 1: null over [[d3]], row 2: [[d4]]
        let inner = list_of(
            Arc::new(descriptors(5)),
            &[0, 2, 2, 2, 3, 4, 5],
            &[true, false, true, true, true, true],
        );
        let outer: ArrayRef =
            Arc::new(list_of(Arc::new(inner), &[0, 4, 5, 6], &[true, false, true]));
        let chain = Chain::new(&outer, &[field("a"), Step::Element, Step::Element]).unwrap();
        assert_eq!([0, 1, 2].map(|row| chain.count(row)), [3, 1, 1]);
        for (row, ordinal, position, indices) in
            [(0, 0, 0, [0, 0]), (0, 1, 1, [0, 1]), (0, 2, 2, [3, 0]), (2, 0, 4, [0, 0])]
        {
            let ordinal = Ordinal::new(ordinal);
            let element = chain.at(row, ordinal).unwrap();
            assert_eq!(
                (element.position, element.indices.as_slice()),
                (position, indices.as_slice())
            );
            assert_eq!(chain.ordinal(row, &indices), Some(ordinal));
        }
        assert_eq!(chain.at(0, Ordinal::new(3)), None);
        assert_eq!(chain.at(1, Ordinal::new(0)), None, "beneath a null list");
        for (row, indices) in
            [(0, [1, 0]), (0, [2, 0]), (0, [0, 2]), (0, [4, 0]), (1, [0, 0]), (0, [u64::MAX, 0])]
        {
            assert_eq!(chain.ordinal(row, &indices), None, "row {row} {indices:?}");
        }
    }

    #[test]
    fn a_null_struct_hides_its_value() {
        let inner: ArrayRef = Arc::new(descriptors(2));
        let fields = Fields::from(vec![Field::new("thumb", inner.data_type().clone(), true)]);
        let column: ArrayRef =
            Arc::new(StructArray::new(fields, vec![inner], Some(vec![true, false].into())));
        let chain = Chain::new(&column, &[field("info"), field("thumb")]).unwrap();
        assert_eq!(chain.at(0, Ordinal::new(0)).unwrap().indices, [0; 0]);
        assert_eq!(chain.at(1, Ordinal::new(0)), None);
        assert_eq!(chain.ordinal(1, &[]), None);
    }

    #[test]
    fn another_shape_than_the_schema_is_an_error() {
        let column: ArrayRef =
            Arc::new(arrow_array::PrimitiveArray::<UInt64Type>::from_iter_values([1]));
        for path in
            [vec![field("a")], vec![field("a"), Step::Element], vec![field("a"), field("b")]]
        {
            assert_eq!(Chain::new(&column, &path).err().unwrap().kind(), Kind::Table);
        }
    }
}
