//! Random operations in `staging/` against a model in memory, then a commit against what the model
//! says that the batch means.
//!
//! The model knows files, directories and links, nothing else; every operation gives the error that
//! the model foresees, and the tree looks like the model in the end.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, symlink};
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestError, TestRunner};

use crate::harness::{Desk, errno, folder, photos};

const ENOENT: i32 = 2;
const EEXIST: i32 = 17;
const ENOTDIR: i32 = 20;
const EISDIR: i32 = 21;
const EINVAL: i32 = 22;
const EUCLEAN: i32 = 117;
const ENOTEMPTY: i32 = 39;

/// One thing in a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    Folder,
    File(Vec<u8>),
    Link(String),
}

/// A path in a batch: its components.
type Place = Vec<&'static str>;

/// What is done to a batch.
#[derive(Clone, Debug)]
enum Act {
    /// Make a file; fail if there is one.
    Create(Place, Vec<u8>),
    /// Write a file anew.
    Write(Place, Vec<u8>),
    Append(Place, Vec<u8>),
    WriteAt(Place, u16, Vec<u8>),
    Truncate(Place, u16),
    Rename(Place, Place),
    Unlink(Place),
    Mkdir(Place),
    Rmdir(Place),
    Link(Place, String),
    Copy(Place, Place),
}

/// A batch in memory.
#[derive(Clone, Debug, Default)]
struct Model {
    nodes: BTreeMap<Place, Node>,
}

impl Model {
    /// The errno of a missing or wrong parent.
    fn parent(&self, place: &Place) -> Result<(), i32> {
        let above = &place[..place.len() - 1];
        for end in 1..=above.len() {
            match self.nodes.get(&above[..end]) {
                Some(Node::Folder) => {}
                // What a link names is never there: it is a URI.
                Some(Node::Link(_)) | None => return Err(ENOENT),
                Some(Node::File(_)) => return Err(ENOTDIR),
            }
        }
        Ok(())
    }

    /// The file at a place, as `open` follows it.
    fn file(&mut self, place: &Place) -> Result<&mut Vec<u8>, i32> {
        self.parent(place)?;
        match self.nodes.get_mut(place) {
            Some(Node::File(bytes)) => Ok(bytes),
            Some(Node::Folder) => Err(EISDIR),
            Some(Node::Link(_)) | None => Err(ENOENT),
        }
    }

    fn is_empty(&self, place: &Place) -> bool {
        !self.nodes.keys().any(|other| other.len() > place.len() && other.starts_with(place))
    }

    fn make(&mut self, place: &Place, node: Node) -> Result<(), i32> {
        self.parent(place)?;
        if self.nodes.contains_key(place) {
            return Err(EEXIST);
        }
        self.nodes.insert(place.clone(), node);
        Ok(())
    }

    /// Opens for writing; makes a file where there is nothing.
    fn open(&mut self, place: &Place) -> Result<&mut Vec<u8>, i32> {
        self.parent(place)?;
        match self.nodes.entry(place.clone()).or_insert_with(|| Node::File(Vec::new())) {
            Node::File(bytes) => Ok(bytes),
            Node::Folder => Err(EISDIR),
            // A link to what is not there is followed, and there is no directory to make it in.
            Node::Link(_) => Err(ENOENT),
        }
    }

    fn rename(&mut self, from: &Place, to: &Place) -> Result<(), i32> {
        self.parent(from)?;
        self.parent(to)?;
        let node = self.nodes.get(from).cloned().ok_or(ENOENT)?;
        if to.len() > from.len() && to.starts_with(from) {
            return Err(EINVAL);
        }
        if from.len() > to.len() && from.starts_with(to) {
            return Err(ENOTEMPTY);
        }
        match (&node, self.nodes.get(to)) {
            _ if from == to => return Ok(()),
            (Node::Folder, Some(Node::Folder)) if !self.is_empty(to) => return Err(ENOTEMPTY),
            (Node::Folder, Some(Node::File(_) | Node::Link(_))) => return Err(ENOTDIR),
            (Node::File(_) | Node::Link(_), Some(Node::Folder)) => return Err(EISDIR),
            _ => {}
        }
        let moved: Vec<Place> =
            self.nodes.keys().filter(|place| place.starts_with(from)).cloned().collect();
        for place in moved {
            let node = self.nodes.remove(&place).unwrap();
            self.nodes.insert([to, &place[from.len()..]].concat(), node);
        }
        Ok(())
    }

    fn act(&mut self, act: &Act) -> Result<(), i32> {
        match act {
            Act::Create(place, bytes) => self.make(place, Node::File(bytes.clone())),
            Act::Mkdir(place) => self.make(place, Node::Folder),
            Act::Link(place, target) => self.make(place, Node::Link(target.clone())),
            Act::Write(place, bytes) => self.open(place).map(|file| file.clone_from(bytes)),
            Act::Append(place, bytes) => self.open(place).map(|file| file.extend(bytes)),
            // Nothing at an offset is nothing: it makes no file longer.
            Act::WriteAt(place, _, bytes) if bytes.is_empty() => self.file(place).map(drop),
            Act::WriteAt(place, at, bytes) => self.file(place).map(|file| {
                let end = usize::from(*at) + bytes.len();
                file.resize(file.len().max(end), 0);
                file[usize::from(*at)..end].copy_from_slice(bytes);
            }),
            Act::Truncate(place, len) => {
                self.file(place).map(|file| file.resize(usize::from(*len), 0))
            }
            Act::Copy(from, to) => {
                let bytes = self.file(from)?.clone();
                self.open(to).map(|file| *file = bytes)
            }
            Act::Rename(from, to) => self.rename(from, to),
            Act::Unlink(place) => {
                self.parent(place)?;
                match self.nodes.get(place) {
                    None => Err(ENOENT),
                    Some(Node::Folder) => Err(EISDIR),
                    Some(_) => self.nodes.remove(place).map(drop).ok_or(ENOENT),
                }
            }
            Act::Rmdir(place) => {
                self.parent(place)?;
                match self.nodes.get(place) {
                    None => Err(ENOENT),
                    Some(Node::Folder) if !self.is_empty(place) => Err(ENOTEMPTY),
                    Some(Node::Folder) => self.nodes.remove(place).map(drop).ok_or(ENOENT),
                    Some(_) => Err(ENOTDIR),
                }
            }
        }
    }

    /// The rows that the batch means, or `None` where it cannot be committed.
    fn rows(&self) -> Option<Vec<Row>> {
        let mut rows = Vec::new();
        for (place, node) in self.nodes.iter().filter(|(place, _)| place.len() == 1) {
            let mut row = Row::default();
            if is_litter(place[0]) {
                continue;
            }
            match node {
                _ if place[0] == "row.json" => return None,
                Node::File(bytes) => row.blob = Some(bytes.clone()),
                Node::Folder => self.entry(place, &mut row)?,
                Node::Link(_) => return None,
            }
            rows.push(row);
        }
        rows.sort();
        (!rows.is_empty()).then_some(rows)
    }

    fn entry(&self, entry: &Place, row: &mut Row) -> Option<()> {
        let within = self.nodes.iter().filter(|(place, _)| place.len() > 1 && place[0] == entry[0]);
        let mut frames = BTreeMap::new();
        for (place, node) in within {
            if is_litter(place[1]) {
                continue;
            }
            let Node::File(bytes) = node else { return None };
            let is_new = match place[1] {
                "row.json" => {
                    let json: serde_json::Value = serde_json::from_slice(bytes).ok()?;
                    row.id = json.as_object()?.get("id").map_or(Some(None), |id| {
                        if id.is_null() { Some(None) } else { id.as_i64().map(Some) }
                    })?;
                    true
                }
                "blob.bin" | "blob.tar.gz" => row.blob.replace(bytes.clone()).is_none(),
                "frames[0].jpg" => frames.insert(0, bytes.clone()).is_none(),
                "frames[2]" => frames.insert(2, bytes.clone()).is_none(),
                _ => false,
            };
            if !is_new {
                return None;
            }
        }
        if let Some((last, _)) = frames.last_key_value() {
            row.frames = Some((0..=*last).map(|at| frames.get(&at).cloned()).collect());
        }
        Some(())
    }
}

fn is_litter(name: &str) -> bool {
    matches!(name, ".DS_Store" | "._x")
}

/// A row of the table.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    id: Option<i64>,
    blob: Option<Vec<u8>>,
    frames: Option<Vec<Option<Vec<u8>>>>,
}

/// The rows of the newest version from one on, read through the mount.
fn committed(desk: &Desk, from: u64) -> Vec<Row> {
    let row = |row: u64| {
        let (json, folder) = (desk.row(row), desk.mount.at(format!("latest/{row}")));
        let file = |name: &serde_json::Value| {
            name.as_str().map(|name| std::fs::read(folder.join(name)).unwrap())
        };
        let frames = json["frames"].as_array().map(|frames| frames.iter().map(file).collect());
        Row { id: json["id"].as_i64(), blob: file(&json["blob"]), frames }
    };
    let mut rows: Vec<Row> = (from..desk.rows()).map(row).collect();
    rows.sort();
    rows
}

/// Does it for real.
fn act(batch: &Path, act: &Act) -> std::io::Result<()> {
    let at = |place: &Place| batch.join(place.iter().collect::<PathBuf>());
    match act {
        Act::Create(place, bytes) => File::create_new(at(place))?.write_all(bytes),
        Act::Write(place, bytes) => std::fs::write(at(place), bytes),
        Act::Append(place, bytes) => {
            File::options().append(true).create(true).open(at(place))?.write_all(bytes)
        }
        Act::WriteAt(place, offset, bytes) => {
            let file = File::options().write(true).open(at(place))?;
            file.write_all_at(bytes, u64::from(*offset))
        }
        Act::Truncate(place, len) => {
            File::options().write(true).open(at(place))?.set_len(u64::from(*len))
        }
        Act::Rename(from, to) => std::fs::rename(at(from), at(to)),
        Act::Unlink(place) => std::fs::remove_file(at(place)),
        Act::Mkdir(place) => std::fs::create_dir(at(place)),
        Act::Rmdir(place) => std::fs::remove_dir(at(place)),
        Act::Link(place, target) => symlink(target, at(place)),
        Act::Copy(from, to) => {
            // Not `fs::copy`, which copies the mode too and looks at it first.
            let bytes = File::options()
                .read(true)
                .write(true)
                .open(at(from))
                .and_then(|_| std::fs::read(at(from)))?;
            std::fs::write(at(to), bytes)
        }
    }
}

fn shown(batch: &Path) -> BTreeMap<PathBuf, Node> {
    let entries = walkdir::WalkDir::new(batch).min_depth(1).into_iter();
    let node = |entry: walkdir::Result<walkdir::DirEntry>| {
        let path = entry.unwrap().into_path();
        let kind = std::fs::symlink_metadata(&path).unwrap().file_type();
        let node = if kind.is_dir() {
            Node::Folder
        } else if kind.is_symlink() {
            Node::Link(std::fs::read_link(&path).unwrap().to_str().unwrap().to_owned())
        } else {
            Node::File(std::fs::read(&path).unwrap())
        };
        (path.strip_prefix(batch).unwrap().to_owned(), node)
    };
    entries.map(node).collect()
}

fn places() -> impl Strategy<Value = Place> {
    let entry = prop::sample::select(vec!["a", "b", "c", "row.json", ".DS_Store"]);
    let names =
        vec!["blob.bin", "blob.tar.gz", "frames[0].jpg", "frames[2]", "row.json", "._x", "what"];
    let name = prop::sample::select(names);
    prop_oneof![
        2 => entry.clone().prop_map(|entry| vec![entry]),
        5 => (entry, name).prop_map(|(entry, name)| vec![entry, name]),
    ]
}

fn contents() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        1 => Just(Vec::new()),
        3 => prop::collection::vec(any::<u8>(), 1..40),
        1 => (1_usize..200_000).prop_map(|len| vec![b'z'; len]),
        2 => (0_i64..1000).prop_map(|id| format!("{{\"id\": {id}}}").into_bytes()),
    ]
}

fn acts() -> impl Strategy<Value = Act> {
    let link = prop::sample::select(vec!["s3://nowhere/x".to_owned(), "no/where".to_owned()]);
    prop_oneof![
        2 => (places(), contents()).prop_map(|(at, bytes)| Act::Create(at, bytes)),
        4 => (places(), contents()).prop_map(|(at, bytes)| Act::Write(at, bytes)),
        2 => (places(), contents()).prop_map(|(at, bytes)| Act::Append(at, bytes)),
        2 => (places(), any::<u16>(), contents()).prop_map(|(at, o, b)| Act::WriteAt(at, o, b)),
        2 => (places(), any::<u16>()).prop_map(|(at, len)| Act::Truncate(at, len)),
        2 => (places(), places()).prop_map(|(from, to)| Act::Rename(from, to)),
        2 => places().prop_map(Act::Unlink),
        5 => places().prop_map(Act::Mkdir),
        1 => places().prop_map(Act::Rmdir),
        1 => (places(), link).prop_map(|(at, target)| Act::Link(at, target)),
        2 => (places(), places()).prop_map(|(from, to)| Act::Copy(from, to)),
    ]
}

/// One batch from its first operation to its commit.
fn check(desk: &Desk, name: &str, list: &[Act]) -> Result<(), TestCaseError> {
    let batch = desk.staged(name);
    std::fs::create_dir(&batch).unwrap();
    let mut model = Model::default();
    for step in list {
        let found = act(&batch, step).map_err(|e| e.raw_os_error().unwrap());
        prop_assert_eq!(found, model.act(step), "{:?}", step);
    }
    let wanted: BTreeMap<PathBuf, Node> =
        model.nodes.iter().map(|(place, node)| (place.iter().collect(), node.clone())).collect();
    prop_assert_eq!(&shown(&batch), &wanted);
    let before = desk.rows();
    if let Some(rows) = model.rows() {
        let done = desk.commit(name);
        prop_assert!(done.is_ok(), "{:?}: {}", done, desk.error(name));
        prop_assert_eq!(committed(desk, before), rows);
    } else {
        prop_assert_eq!(errno(desk.commit(name)), EUCLEAN);
        std::fs::remove_file(batch.join("COMMIT-REFUSED.txt")).unwrap();
        prop_assert_eq!(&shown(&batch), &wanted, "a batch that is refused stays");
        prop_assert_eq!(desk.rows(), before);
        std::fs::remove_dir_all(&batch).unwrap();
    }
    Ok(())
}

#[test]
fn random_batches_are_what_a_model_says() {
    let cases = if std::env::var_os("LANCEFS_TEST_SLOW").is_some() { 400 } else { 24 };
    let folder = folder();
    let table = folder.path().join("photos.lance");
    photos(&table);
    let desk = Desk::new(&table, &["--upload-delay", "100ms"]);
    let config =
        Config { cases, failure_persistence: None, max_shrink_iters: 2000, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let number = std::cell::Cell::new(0);
    let outcome = runner.run(&prop::collection::vec(acts(), 5..60), |list| {
        number.set(number.get() + 1);
        check(&desk, &format!("batch{}", number.get()), &list)
    });
    if let Err(error) = outcome {
        let text = match error {
            TestError::Fail(why, list) => format!("{why}\n{list:#?}"),
            TestError::Abort(why) => why.to_string(),
        };
        panic!("{text}\n{}", desk.mount.log());
    }
    desk.verify();
}
