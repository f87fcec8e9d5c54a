//! One entry of a batch: a directory that is a row, or a file that is one.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use serde_json::Map;

use super::fields::{Fields, Slot};
use super::look::{Folder, Thing};
use super::{Class, Entry, Payload, Source, Target, class, link, litter, places, row_json};
use crate::name;
use crate::staging::mark::{self, Key};
use crate::store::Fingerprint;
use crate::table::write::Fault;
use crate::tree::{ROW_JSON, Shape, VERSION_JSON};
use crate::units::RowIndex;

/// The file that makes an entry delete its row.
pub const DELETE: &str = ".delete";
/// What the name of an entry begins with that is about a row that is there.
const EXISTING: char = '@';

/// Reads the entries of one batch, and collects what is wrong with them.
pub struct Reader<'a> {
    /// The entries so far.
    pub entries: Vec<Entry>,
    /// The faults so far.
    pub faults: Vec<Fault>,
    /// What is hidden in the batch's directory.
    pub hidden: Vec<String>,
    batch: &'a str,
    key: &'a Key,
    shape: &'a Shape,
    fields: Fields<'a>,
    rows: u64,
}

impl<'a> Reader<'a> {
    /// Reads for a version with these Blob fields and so many rows; `key` is that of the folder.
    pub fn new(batch: &'a str, key: &'a Key, shape: &'a Shape, rows: u64) -> Self {
        let fields = Fields::new(shape);
        let (entries, faults, hidden) = (vec![], vec![], vec![]);
        Self { entries, faults, hidden, batch, key, shape, fields, rows }
    }

    /// Reads what one name in the batch's directory is.
    pub fn entry(&mut self, batch: &Folder, path: &Path, name: &OsStr) {
        let shown = name.to_string_lossy().into_owned();
        let place = format!("{}/{shown}", self.batch);
        match class(name) {
            _ if name == DELETE || name == VERSION_JSON => {}
            Class::Litter => return,
            Class::Hidden => return self.hidden.push(shown),
            Class::Unfinished(by) => {
                let text = litter::not_ended(&shown, by);
                return self.fault(&place, "", text);
            }
            Class::Data => {}
        }
        match batch.look(name) {
            Ok(_) if name == VERSION_JSON => {}
            Err(error) => self.fault(&place, "", format!("it cannot be read: {error}")),
            Ok(Thing::Folder) if [DELETE, ROW_JSON].iter().any(|taken| name == *taken) => {
                let text = "it is a directory, and the name of a file in the directory of a row";
                self.fault(&place, "", text.to_owned());
            }
            Ok(Thing::Folder) => match batch.below(name) {
                Ok(folder) => self.row(&folder, &path.join(name), shown, place),
                Err(error) => self.fault(&place, "", format!("it cannot be read: {error}")),
            },
            Ok(thing) => self.short(path.join(name), shown, place, thing),
        }
    }

    /// Reads a batch that is a file itself.
    pub fn single(&mut self, path: &Path, thing: Thing) {
        self.short(path.to_owned(), self.batch.to_owned(), self.batch.to_owned(), thing);
    }

    /// A file where a directory is the rule: a row of the one Blob column.
    fn short(&mut self, path: PathBuf, name: String, place: String, thing: Thing) {
        let misplaced = match name.as_str() {
            ROW_JSON => Some(
                "row.json belongs into the directory of its row, and this is a batch, which holds such \
                 directories: if it is a row itself, move it into a batch (mkdir staging/b && mv \
                 staging/<row> staging/b/)",
            ),
            DELETE => {
                Some(".delete belongs into the directory @<row> of the row that is to be deleted")
            }
            _ if name.starts_with(EXISTING) => {
                Some("a name that begins with @ is a directory that replaces a row: @5/")
            }
            _ => None,
        };
        if let Some(text) = misplaced {
            return self.fault(&place, "", text.to_owned());
        }
        if name == litter::PROBE_OF_VIM {
            return self.fault(&place, "", litter::not_ended(&name, "Vim"));
        }
        let leaf = match self.fields.single() {
            Ok(leaf) => leaf,
            Err(text) => return self.fault(&place, "", text),
        };
        let slot = (leaf, Vec::new());
        let payloads: Vec<Payload> = self.payload(path, &place, slot, thing).into_iter().collect();
        let (json, names) = (Map::new(), BTreeMap::new());
        self.entries.push(Entry { name, place, target: Target::New, json, payloads, names });
    }

    /// A directory that is a row.
    fn row(&mut self, folder: &Folder, path: &Path, name: String, place: String) {
        let existing = match self.existing(&name) {
            Ok(row) => row,
            Err(text) => return self.fault(&place, "", text),
        };
        let names = match folder.names() {
            Ok(names) => names,
            Err(error) => return self.fault(&place, "", format!("it cannot be read: {error}")),
        };
        let target = existing.map_or(Target::New, Target::Replace);
        let (json, payloads) = (Map::new(), Vec::new());
        let mut entry = Entry { name, place, target, json, payloads, names: BTreeMap::new() };
        let mut taken: HashMap<Slot, String> = HashMap::new();
        let (mut seen, mut deletes) = (0, false);
        for file in names.iter().filter(|name| !litter::litter(name)) {
            let thing = match folder.look(file) {
                // What comes along with a copied version.
                Ok(Thing::File(..)) if file == VERSION_JSON => continue,
                Ok(thing) => thing,
                Err(error) => {
                    seen += 1;
                    let text = format!("{} cannot be read: {error}", file.to_string_lossy());
                    self.fault(&entry.place, "", text);
                    continue;
                }
            };
            seen += 1;
            if file == DELETE {
                deletes = true;
                if let Err(text) = is_bare(&thing) {
                    self.fault(&entry.place, "", text);
                }
            } else if file == ROW_JSON {
                self.row_json(&mut entry, thing);
            } else {
                self.value(&mut entry, &mut taken, path, file, thing);
            }
        }
        let files = taken.into_iter().map(|(slot, name)| (name, slot)).collect();
        for (slot, text) in places::assign(&mut entry, &files, &self.fields, self.shape) {
            self.fault(&entry.place, &self.fields.spell(&slot), text);
        }
        self.decide(&mut entry, existing, deletes, seen);
        self.entries.push(entry);
    }

    /// What an entry with so many files does, if one of them is `.delete` or not.
    fn decide(&mut self, entry: &mut Entry, existing: Option<RowIndex>, deletes: bool, seen: u64) {
        match (existing, deletes) {
            (Some(row), true) if seen == 1 => entry.target = Target::Delete(row),
            (Some(_), true) => {
                self.fault(
                    &entry.place,
                    "",
                    ".delete deletes the row: nothing else can be beside it".to_owned(),
                );
            }
            (None, true) => {
                self.fault(
                    &entry.place,
                    "",
                    ".delete is for rows that are there: in a directory @<row>".to_owned(),
                );
            }
            (Some(row), false) if seen == 0 => {
                let text = format!(
                    "it replaces nothing of row {row}: put files or row.json in it, or .delete"
                );
                self.fault(&entry.place, "", text);
            }
            (_, false) => {}
        }
    }

    /// The row that an entry is about; `None` for a new one.
    fn existing(&self, name: &str) -> Result<Option<RowIndex>, String> {
        let Some(digits) = name.strip_prefix(EXISTING) else { return Ok(None) };
        let Some(row) = name::decimal(digits) else {
            let zeros = digits.starts_with('0') && digits.bytes().all(|b| b.is_ascii_digit());
            if !zeros {
                return Err(
                    "a name that begins with @ is for a row that is there: @5 is row 5".to_owned()
                );
            }
            let bare = digits.trim_start_matches('0');
            let bare = if bare.is_empty() { "0" } else { bare };
            return Err(format!("row {digits} is written without zeros in front: @{bare}"));
        };
        if row >= self.rows {
            let last = match self.rows.checked_sub(1) {
                Some(last) => format!("its rows are 0 to {last}"),
                None => "it has no rows".to_owned(),
            };
            return Err(format!(
                "there is no row {row} in the version that the batch was begun on: {last}"
            ));
        }
        Ok(Some(RowIndex::new(row)))
    }

    fn row_json(&mut self, entry: &mut Entry, thing: Thing) {
        let read = match thing {
            Thing::File(file, _) => row_json::read(file),
            Thing::Link(_) => {
                Err("row.json is a link: links inside a batch are not followed, copy the file"
                    .to_owned())
            }
            Thing::Folder => Err("row.json is a directory".to_owned()),
            Thing::Special(what) => Err(format!("row.json is {what}")),
        };
        match read {
            Ok(json) => entry.json = json,
            Err(text) => self.fault(&entry.place, "", text),
        }
    }

    fn value(
        &mut self,
        entry: &mut Entry,
        taken: &mut HashMap<Slot, String>,
        path: &Path,
        file: &OsStr,
        thing: Thing,
    ) {
        let Some(name) = file.to_str() else {
            let text = format!("{} is not UTF-8, so it is for no field", file.to_string_lossy());
            return self.fault(&entry.place, "", text);
        };
        if matches!(thing, Thing::Folder) {
            let text = format!(
                "{name} is a directory, and a row holds files alone: move a file up out of it and name \
                 it after its field ({}.<extension>); an element of a list is {name}[0].<extension>; directories \
                 that are rows go into the batch itself",
                self.fields.example()
            );
            return self.fault(&entry.place, "", text);
        }
        let slot = match self.fields.find(name) {
            Ok(slot) => slot,
            Err(_) if name.eq_ignore_ascii_case(ROW_JSON) => {
                let text = format!("{name} is no {ROW_JSON}: rename it, in small letters");
                return self.fault(&entry.place, "", text);
            }
            Err(text) => return self.fault(&entry.place, "", text),
        };
        if let Some(other) = taken.insert(slot.clone(), name.to_owned()) {
            let text = format!("{other} and {name} are for the same value: remove one of them");
            return self.fault(&entry.place, &self.fields.spell(&slot), text);
        }
        entry.payloads.extend(self.payload(path.join(file), &entry.place, slot, thing));
    }

    /// A file or link as a value; nothing where it is none, which is then a fault.
    fn payload(&mut self, file: PathBuf, place: &str, slot: Slot, thing: Thing) -> Option<Payload> {
        match source(self.key, thing) {
            Ok(source) => {
                let places = vec![slot.clone()];
                Some(Payload { leaf: slot.0, indices: slot.1, places, file, source })
            }
            Err(text) => {
                self.fault(place, &self.fields.spell(&slot), text);
                None
            }
        }
    }

    /// Notes what is wrong.
    pub fn fault(&mut self, place: &str, field: &str, text: String) {
        self.faults.push(Fault { place: place.to_owned(), field: field.to_owned(), text });
    }
}

/// Whether `.delete` is nothing but a name: what is in it would be gone with the row.
fn is_bare(thing: &Thing) -> Result<(), String> {
    let what = match thing {
        Thing::File(_, fingerprint) if fingerprint.len == 0 => return Ok(()),
        Thing::File(_, fingerprint) => format!("has {} bytes", fingerprint.len),
        Thing::Folder => "is a directory".to_owned(),
        Thing::Link(_) => "is a link".to_owned(),
        Thing::Special(what) => format!("is {what}"),
    };
    Err(format!(".delete {what}: an empty file of that name deletes the row (touch)"))
}

fn source(key: &Key, thing: Thing) -> Result<Source, String> {
    match thing {
        Thing::File(file, fingerprint) => staged(key, &file, fingerprint),
        Thing::Link(target) => {
            let text = std::str::from_utf8(target.as_bytes());
            let text = text.map_err(|_| "it is a link to a name that is not UTF-8".to_owned())?;
            link::parse(text).map(|(uri, range)| Source::Uri { uri, range })
        }
        Thing::Folder => Err("it is a directory".to_owned()),
        Thing::Special(what) => Err(format!("it is {what}, which holds no data")),
    }
}

/// A staged file: its own bytes, or the bytes of the table that it stands for.
fn staged(key: &Key, file: &File, fingerprint: Fingerprint) -> Result<Source, String> {
    let reference = mark::reference_of(key, file);
    let reference = reference
        .map_err(|e| format!("what it was copied from cannot be told: {e}; copy it again"))?;
    match reference {
        Some(reference) if reference.len != fingerprint.len => Err(format!(
            "it stands for {} bytes of the table and is {} bytes long: copy it again",
            reference.len, fingerprint.len
        )),
        Some(reference) => Ok(Source::Reference(reference)),
        None => Ok(Source::File { len: fingerprint.len, fingerprint }),
    }
}
