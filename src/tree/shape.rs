//! The names of a snapshot's Blob fields.
//!
//! A leaf is one Blob field, wherever it is nested. Its pattern is its escaped path with `[]` for
//! each list: `scenes[].clip`. Two difficulties:
//!
//! 1. A name that holds a dot (`{"a.b": blob}`) can spell the path of another field. Paths without
//!    such names are served first; of one with, the dots are escaped if its spelling is taken. A
//!    spelling with all dots escaped can be taken apart again, so it is no other path's.
//! 2. A name that was cut to fit a directory entry cannot be parsed back: it is found by comparing
//!    ([`Found::Compare`]), which only fields with such names pay for.

use std::collections::{HashMap, HashSet};

use crate::name::{self, VALUE_SUFFIX, ValueName};
use crate::units;

/// The position of a leaf among the leaves of its snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeafIndex(u64);

impl LeafIndex {
    /// The index of a leaf in [`Shape::leaves`].
    pub const fn new(index: u64) -> Self {
        Self(index)
    }

    /// The plain number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// One step of a leaf's path, from the table down.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// A column, or a child of a struct.
    Field(String),
    /// The elements of a list.
    Element,
}

/// How one leaf is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafName {
    path: Vec<Step>,
    pattern: String,
    lists: usize,
}

impl LeafName {
    /// The field, from the column down.
    pub fn path(&self) -> &[Step] {
        &self.path
    }

    /// How many lists lie above the value.
    pub fn lists(&self) -> usize {
        self.lists
    }

    /// The escaped path with `[]` for each list: `scenes[].clip`.
    pub fn pattern(&self) -> &str {
        &self.pattern
    }

    /// The file name of the value at these indices (one for each list, outermost first).
    pub fn file_name(&self, indices: &[u64]) -> String {
        name::fit(&name::with_indices(&self.pattern, indices), VALUE_SUFFIX)
    }

    /// Whether a name of this leaf can be long enough to be cut (difficulty 2).
    fn may_be_cut(&self) -> bool {
        // An index of 20 digits is the longest there is.
        self.pattern.len() + self.lists * 20 + VALUE_SUFFIX.len() > name::NAME_MAX
    }
}

/// What a file name in a row directory can be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The value of this leaf at these indices, if the row has it.
    Value(LeafIndex, Vec<u64>),
    /// A cut name: one of these leaves' names, if it is equal to one that the row lists.
    Compare(Vec<LeafIndex>),
}

/// The leaves of one snapshot, in schema order.
#[derive(Clone, Debug, Default)]
pub struct Shape {
    leaves: Vec<LeafName>,
    by_pattern: HashMap<String, LeafIndex>,
}

impl Shape {
    /// Names the leaves at these paths.
    pub fn new<'a>(paths: impl IntoIterator<Item = &'a [Step]>) -> Self {
        let paths: Vec<&[Step]> = paths.into_iter().collect();
        let spelled = |path: &&[Step]| (spell(path, name::escape), spell(path, name::escape_dots));
        let spellings: Vec<(String, String)> = paths.iter().map(spelled).collect();
        let mut taken: HashSet<&String> = spellings
            .iter()
            .filter(|(plain, dotless)| plain == dotless)
            .map(|(plain, _)| plain)
            .collect();
        let mut shape = Self::default();
        for ((plain, dotless), path) in spellings.iter().zip(&paths) {
            let free = plain == dotless || taken.insert(plain);
            let pattern = if free { plain } else { dotless }.clone();
            let lists = path.iter().filter(|step| **step == Step::Element).count();
            let index = LeafIndex(units::u64_of(shape.leaves.len()));
            shape.by_pattern.insert(pattern.clone(), index);
            shape.leaves.push(LeafName { path: path.to_vec(), pattern, lists });
        }
        shape
    }

    /// The leaves, in schema order.
    pub fn leaves(&self) -> &[LeafName] {
        &self.leaves
    }

    /// The leaf at an index that this shape gave out.
    pub fn leaf(&self, index: LeafIndex) -> Option<&LeafName> {
        self.leaves.get(units::usize_of(index.0))
    }

    /// Every leaf with its index.
    pub fn indexed(&self) -> impl Iterator<Item = (LeafIndex, &LeafName)> {
        (0..).map(LeafIndex).zip(&self.leaves)
    }

    /// What a file name can be; `None` where it is no value's name.
    pub fn find(&self, file_name: &str) -> Option<Found> {
        let stem = file_name.strip_suffix(VALUE_SUFFIX)?;
        let parsed = ValueName::parse(stem);
        if let Some(parsed) = parsed
            && let Some(index) = self.by_pattern.get(&parsed.pattern)
            && self.leaf(*index)?.file_name(&parsed.indices) == file_name
        {
            return Some(Found::Value(*index, parsed.indices));
        }
        let cut: Vec<_> =
            self.indexed().filter(|(_, leaf)| leaf.may_be_cut()).map(|(i, _)| i).collect();
        (!cut.is_empty() && stem.contains('~')).then_some(Found::Compare(cut))
    }
}

fn spell(path: &[Step], escape: fn(&str) -> String) -> String {
    let mut pattern = String::new();
    for (at, step) in path.iter().enumerate() {
        match step {
            Step::Field(field) => {
                if at > 0 {
                    pattern.push('.');
                }
                pattern.push_str(&escape(field));
            }
            Step::Element => pattern.push_str("[]"),
        }
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn field(name: &str) -> Step {
        Step::Field(name.to_owned())
    }

    fn shape(paths: &[&[Step]]) -> Shape {
        Shape::new(paths.iter().copied())
    }

    #[test]
    fn names_follow_the_design() {
        let shape = shape(&[
            &[field("image")],
            &[field("info"), field("thumb")],
            &[field("frames"), Step::Element],
            &[field("scenes"), Step::Element, field("clip")],
            &[field("a"), Step::Element, Step::Element],
        ]);
        let names: Vec<_> =
            shape.leaves().iter().map(|leaf| leaf.file_name(&vec![3; leaf.lists()])).collect();
        assert_eq!(
            names,
            ["image.bin", "info.thumb.bin", "frames[3].bin", "scenes[3].clip.bin", "a[3][3].bin"]
        );
    }

    #[test]
    fn a_dot_in_a_name_never_hides_another_field() {
        let shape = shape(&[
            &[field("a"), field("b.c")],
            &[field("a"), field("b"), field("c")],
            &[field("a"), field("x.y")],
        ]);
        let names: Vec<_> = shape.leaves().iter().map(|leaf| leaf.file_name(&[])).collect();
        assert_eq!(names, ["a.b%2Ec.bin", "a.b.c.bin", "a.x.y.bin"]);
    }

    #[test]
    fn an_index_that_the_field_does_not_have_names_nothing() {
        let shape = shape(&[&[field("image")], &[field("frames"), Step::Element]]);
        for name in [
            "image[0].bin",
            "frames.bin",
            "frames[].bin",
            "frames[0][0].bin",
            "image",
            "frames[00].bin",
            ".bin",
        ] {
            assert_eq!(shape.find(name), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn every_name_finds_its_leaf(
            paths in proptest::collection::vec(
                proptest::collection::vec(prop_oneof![
                    "[ab.%\\[\\]/]{0,3}".prop_map(Step::Field),
                    "(?s).{250,260}".prop_map(Step::Field),
                    Just(Step::Element)], 1..5),
                1..8),
            index in 0_u64..100,
        ) {
            let mut paths: Vec<Vec<Step>> = paths;
            for path in &mut paths {
                path.insert(0, Step::Field("c".to_owned()));
            }
            paths.dedup();
            paths.sort_by_key(|p| format!("{p:?}"));
            paths.dedup();
            let shape = Shape::new(paths.iter().map(Vec::as_slice));
            let mut seen = HashSet::new();
            for (at, leaf) in shape.indexed() {
                let indices = vec![index; leaf.lists()];
                let name = leaf.file_name(&indices);
                prop_assert!(seen.insert(name.clone()), "{name} twice");
                match shape.find(&name) {
                    Some(Found::Value(found, at_indices)) => {
                        prop_assert_eq!(found, at);
                        prop_assert_eq!(at_indices, indices);
                    }
                    Some(Found::Compare(candidates)) => prop_assert!(candidates.contains(&at)),
                    None => prop_assert!(false, "{name} names nothing"),
                }
            }
        }
    }
}
