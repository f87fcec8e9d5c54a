//! Where each file of an entry goes, by its own name and by what `row.json` says.
//!
//! A name in `row.json` at the place of a Blob means that file, wherever it stands: of the entry, or,
//! where the entry replaces a row and has no such file, of that row. So lists are shortened, turned and
//! picked from by editing `row.json` alone. Everything else follows from what a file without a name
//! there could mean:
//!
//! ```text
//! named anywhere                            it goes there, and only there
//! not named, and its own place …
//!   is null or not spoken of                it goes there: the file wins
//!   is another file's by name               a new row leaves it out, as a copied row must be able to
//!                                             lose an element; in @<row>, a fault
//!   is beyond the end of a list that        a fault, as it may be an element that was taken out or
//!     row.json gives                          one that was put in; a copy of a value that the table
//!                                             has is left out
//! ```
//!
//! 1. A file that is left out is gone when the batch is, so only what cannot be meant otherwise, or is
//!    in the table anyway, is left out without a word.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::Value;

use super::fields::{Fields, Slot};
use super::{Entry, Payload, Source, Target, row_json};
use crate::name;
use crate::tree::{Shape, Step};

/// How many names that are nowhere are told: a list of a million strings has a million.
const FAULTS: usize = 1000;

/// What is wrong, with the field that it is about.
type Wrong = (Slot, String);

/// Gives the files of an entry their places. `files` are their names.
pub fn assign(
    entry: &mut Entry,
    files: &HashMap<String, Slot>,
    fields: &Fields<'_>,
    shape: &Shape,
) -> Vec<Wrong> {
    let mut wrong = Vec::new();
    let broken: HashSet<&Slot> = files.values().collect();
    let mut places: HashMap<Slot, Vec<Slot>> = HashMap::new();
    let known: HashSet<Slot> = entry.payloads.iter().map(Payload::slot).collect();
    let mut names = BTreeMap::new();
    for (place, name) in named(entry, shape) {
        if wrong.len() >= FAULTS {
            break;
        }
        // What is longer is no file's name, and may be megabytes of something else.
        let is_name = name.len() <= name::NAME_MAX;
        let slot = files.get(name).cloned();
        let slot = slot.or_else(|| if is_name { fields.find(name).ok() } else { None });
        match (slot, entry.target) {
            (Some(slot), _) if known.contains(&slot) => places.entry(slot).or_default().push(place),
            (Some(slot), Target::Replace(_)) => drop(names.insert(place, slot)),
            // What is wrong with the file itself is said already.
            (Some(slot), _) if broken.contains(&slot) => {}
            _ => {
                let name = row_json::cut(name);
                wrong.push((place, format!("row.json names {name}, but there is no such file")));
            }
        }
    }
    let payloads = std::mem::take(&mut entry.payloads);
    let given: HashSet<Slot> = places.values().flatten().chain(names.keys()).cloned().collect();
    for payload in payloads {
        let slot = payload.slot();
        let places = match places.remove(&slot) {
            Some(places) => places,
            None => match alone(entry, &payload, &given, shape) {
                Alone::Goes => vec![slot],
                Alone::IsLeftOut => {
                    tracing::info!(file = %payload.file.display(), "row.json has no place for it");
                    continue;
                }
                Alone::Wrong(text) => {
                    wrong.push((slot, text));
                    continue;
                }
            },
        };
        entry.payloads.push(Payload { places, ..payload });
    }
    entry.names = names;
    wrong
}

/// What becomes of a file that `row.json` does not name.
enum Alone {
    Goes,
    IsLeftOut,
    Wrong(String),
}

fn alone(entry: &Entry, payload: &Payload, given: &HashSet<Slot>, shape: &Shape) -> Alone {
    let slot = payload.slot();
    let file = payload.file.file_name().unwrap_or_default().to_string_lossy();
    let is_copy = matches!(payload.source, Source::Reference(_));
    if given.contains(&slot) {
        if is_copy || entry.target == Target::New {
            return Alone::IsLeftOut;
        }
        return Alone::Wrong(format!(
            "row.json names another file for it, and {file} nowhere: name {file} there, or remove it"
        ));
    }
    let path = shape.leaf(slot.0).map_or(&[][..], |leaf| leaf.path());
    let column = match path.first() {
        Some(Step::Field(column)) => entry.json.get(column),
        _ => None,
    };
    let Some(len) = column.and_then(|value| end_before(value, &path[1..], &slot.1)) else {
        return Alone::Goes;
    };
    if is_copy {
        return Alone::IsLeftOut;
    }
    let elements = if len == 1 { "element" } else { "elements" };
    Alone::Wrong(format!(
        "row.json gives the list {len} {elements} and does not name {file}: name it there if it is one, or remove it"
    ))
}

/// The length of the list at whose end a value would be, if `row.json` gives that list.
fn end_before(value: &Value, path: &[Step], indices: &[u64]) -> Option<usize> {
    let (step, path) = path.split_first()?;
    match step {
        Step::Field(name) => end_before(value.as_object()?.get(name)?, path, indices),
        Step::Element => {
            let (index, indices) = indices.split_first()?;
            let list = value.as_array()?;
            match usize::try_from(*index).ok().and_then(|index| list.get(index)) {
                Some(element) => end_before(element, path, indices),
                None => Some(list.len()),
            }
        }
    }
}

/// Every place of a Blob where `row.json` has a name.
fn named<'e>(entry: &'e Entry, shape: &Shape) -> Vec<(Slot, &'e str)> {
    let mut found = Vec::new();
    for (leaf, name) in shape.indexed() {
        let Some((Step::Field(column), path)) = name.path().split_first() else { continue };
        let Some(value) = entry.json.get(column) else { continue };
        walk(value, path, &mut Vec::new(), &mut |indices, name| {
            found.push(((leaf, indices.to_vec()), name));
        });
    }
    found
}

fn walk<'v>(
    value: &'v Value,
    path: &[Step],
    indices: &mut Vec<u64>,
    found: &mut impl FnMut(&[u64], &'v str),
) {
    match path.split_first() {
        None => {
            if let Value::String(name) = value {
                found(indices, name);
            }
        }
        Some((Step::Field(name), path)) => {
            if let Some(value) = value.get(name) {
                walk(value, path, indices, found);
            }
        }
        Some((Step::Element, path)) => {
            for (index, value) in (0..).zip(value.as_array().into_iter().flatten()) {
                indices.push(index);
                walk(value, path, indices, found);
                indices.pop();
            }
        }
    }
}
