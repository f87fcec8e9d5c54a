//! The steps of each batch, so that a restart finishes it or gives it back.
//!
//! ```text
//! journal/<uuid>      one JSON line for each step, synced before the step is taken (opened,
//!                     protect, publishing) or after it is done (stored, published)
//!
//! opened ─▶ stored ─▶ … ─▶ publishing ─▶ published ─▶ the file is deleted
//!    └─ may be repeated ─┘      └─▶ withdrawn, where it certainly did not take place
//! ```
//!
//! 1. A process may die between any two steps: a step that leaves something behind is written down
//!    before it is taken, so what it left can be found.
//! 2. It may die within a line: what follows the last line end is no step.
//! 3. Whether a commit took place cannot be seen from here once it was tried: [`State::tried`]
//!    says which versions of the table can hold the batch.
//! 4. Objects that no commit ever named are certainly of no version: [`State::abandoned`].

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::crash;
use crate::error::{Error, IoContext as _, Kind, Result};
use crate::private::Folder;
use crate::store::Fingerprint;

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "step")]
pub enum Step {
    /// An object is going to be made.
    Opened {
        /// Its path, relative to the table's root.
        object: Arc<str>,
    },
    /// An object is whole, and these files are in it.
    Stored {
        /// Its path, relative to the table's root.
        object: Arc<str>,
        /// Each file, with the offset of its bytes in the object.
        files: Vec<(Fingerprint, u64)>,
    },
    /// A version is going to be protected by a tag until the batch is gone.
    Protect {
        /// The tag's name.
        tag: String,
        /// The version of main.
        version: u64,
    },
    /// A commit is going to be tried.
    Publishing {
        /// The newest version when it was tried: the batch can only be in a later one.
        on: u64,
        /// The objects that it names.
        objects: BTreeSet<Arc<str>>,
    },
    /// No attempt so far took place, and none can any more.
    Withdrawn,
    /// The batch is in a version.
    Published {
        /// Which one.
        version: u64,
    },
}

/// What the steps add up to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Where the bytes of each file are that was uploaded.
    pub stored: HashMap<Fingerprint, (Arc<str>, u64)>,
    /// Tags that protect versions.
    pub tags: BTreeSet<(String, u64)>,
    /// On top of which versions a commit was tried, the first and the last, if one may have taken
    /// place or still take it.
    pub tried: Option<(u64, u64)>,
    /// The version that holds the batch, if that is known.
    pub published: Option<u64>,
    opened: BTreeSet<Arc<str>>,
    named: BTreeSet<Arc<str>>,
}

impl Step {
    fn word(&self) -> &'static str {
        match self {
            Self::Opened { .. } => "opened",
            Self::Stored { .. } => "stored",
            Self::Protect { .. } => "protect",
            Self::Publishing { .. } => "publishing",
            Self::Withdrawn => "withdrawn",
            Self::Published { .. } => "published",
        }
    }
}

impl State {
    /// Objects that were begun and that no commit named: no version can hold them.
    pub fn abandoned(&self) -> impl Iterator<Item = &Arc<str>> {
        self.opened.difference(&self.named)
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Opened { object } => {
                self.opened.insert(object);
            }
            Step::Stored { object, files } => {
                let places = files.into_iter().map(|(file, at)| (file, (object.clone(), at)));
                self.stored.extend(places);
            }
            Step::Protect { tag, version } => {
                self.tags.insert((tag, version));
            }
            Step::Publishing { on, objects } => {
                let (first, last) = self.tried.unwrap_or((on, on));
                self.tried = Some((first.min(on), last.max(on)));
                self.named.extend(objects);
            }
            Step::Withdrawn => self.tried = None,
            Step::Published { version } => self.published = Some(version),
        }
    }
}

/// The journal of one batch.
#[derive(Debug)]
pub struct Journal {
    file: File,
    folder: Arc<Folder>,
    name: String,
    path: PathBuf,
    state: State,
}

impl Journal {
    /// Opens the journal of a batch, and makes it where there is none.
    ///
    /// # Errors
    /// Where the staging disk fails; [`Kind::Internal`] for a line that is no step.
    pub fn open(folder: &Arc<Folder>, batch: Uuid) -> Result<Self> {
        let name = batch.to_string();
        let path = folder.path().join(&name);
        let what = || format!("open the journal {}", path.display());
        let flags = OFlags::RDWR | OFlags::APPEND;
        let mut file = match folder.open(&name, flags) {
            Err(error) if error.kind() == Kind::NotFound => {
                let made = folder.open(&name, flags | OFlags::CREATE)?;
                folder.sync()?;
                made
            }
            opened => opened?,
        };
        let mut text = Vec::new();
        file.read_to_end(&mut text).context(Kind::Internal, what)?;
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        if whole < text.len() {
            file.set_len(crate::units::u64_of(whole)).context(Kind::Internal, what)?;
        }
        let mut state = State::default();
        for line in text[..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            state.take(
                serde_json::from_slice(line)
                    .map_err(std::io::Error::from)
                    .context(Kind::Internal, || {
                        format!("{} is damaged; keep it and ask for help", path.display())
                    })?,
            );
        }
        Ok(Self { file, folder: folder.clone(), name, path, state })
    }

    /// The batches that have a journal in a folder.
    ///
    /// # Errors
    /// Where the folder cannot be read.
    pub fn all(folder: &Folder) -> Result<Vec<Uuid>> {
        Ok(folder.names()?.iter().filter_map(|name| name.parse().ok()).collect())
    }

    /// What is known.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Writes a step down, and returns when the disk has it.
    ///
    /// # Errors
    /// Where the staging disk fails; then the step must not be taken.
    pub fn write(&mut self, step: Step) -> Result<()> {
        let what = || format!("write the journal {}", self.path.display());
        let word = step.word();
        crash::at("before", word);
        let mut line = serde_json::to_vec(&step)
            .map_err(std::io::Error::from)
            .context(Kind::Internal, what)?;
        line.push(b'\n');
        let before = self.file.metadata().context(Kind::Internal, what)?.len();
        let written = self.file.write_all(&line).and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            // Half a line would spoil the next one.
            self.file.set_len(before).context(Kind::Internal, what)?;
            let kind = error.raw_os_error().map_or(Kind::Internal, Kind::Disk);
            return Err(Error::caused(kind, what(), error));
        }
        self.state.take(step);
        crash::at("after", word);
        Ok(())
    }

    /// Takes a step for taken although it cannot be written down.
    pub fn assume(&mut self, step: Step) {
        self.state.take(step);
    }

    /// Takes the journal away: the batch is settled.
    ///
    /// # Errors
    /// Where the staging disk fails.
    pub fn delete(&self) -> Result<()> {
        crash::at("before", "settled");
        self.folder
            .remove(&self.name)
            .context(Kind::Internal, || format!("delete the journal {}", self.path.display()))?;
        crash::at("after", "settled");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn home() -> (tempfile::TempDir, Arc<Folder>) {
        let above = tempfile::tempdir().unwrap();
        let folder = Folder::make(&above.path().join("journal")).unwrap();
        (above, Arc::new(folder))
    }

    fn fingerprint(inode: u64) -> Fingerprint {
        Fingerprint { inode, len: 3, mtime: (1, 999_999_999), ctime: (-1, 0) }
    }

    fn steps() -> Vec<Step> {
        let [a, b]: [Arc<str>; 2] = ["_blobs/a.blob".into(), "_blobs/b.blob".into()];
        vec![
            Step::Opened { object: a.clone() },
            Step::Stored {
                object: a.clone(),
                files: vec![(fingerprint(1), 0), (fingerprint(2), 3)],
            },
            Step::Protect { tag: "t".to_owned(), version: 4 },
            Step::Opened { object: b },
            Step::Publishing { on: 3, objects: BTreeSet::new() },
            Step::Withdrawn,
            Step::Publishing { on: 7, objects: [a].into() },
            Step::Publishing { on: 9, objects: BTreeSet::new() },
            Step::Published { version: 10 },
        ]
    }

    #[test]
    fn a_journal_says_after_a_restart_what_it_said_before() {
        let (_above, folder) = home();
        let batch = Uuid::new_v4();
        let mut journal = Journal::open(&folder, batch).unwrap();
        for step in steps() {
            journal.write(step).unwrap();
        }
        let state = journal.state().clone();
        assert_eq!(Journal::open(&folder, batch).unwrap().state(), &state);
        assert_eq!((state.tried, state.published), (Some((7, 9)), Some(10)));
        assert_eq!(state.stored[&fingerprint(2)], ("_blobs/a.blob".into(), 3));
        assert_eq!(state.abandoned().map(|o| &**o).collect::<Vec<_>>(), ["_blobs/b.blob"]);
        assert_eq!(Journal::all(&folder).unwrap(), [batch]);
        journal.delete().unwrap();
        assert_eq!(Journal::all(&folder).unwrap(), Vec::<Uuid>::new());
    }

    proptest! {
        #[test]
        fn a_torn_write_loses_its_own_step_alone(cut in 1_usize..400) {
            let (_above, folder) = home();
            let batch = Uuid::new_v4();
            let mut journal = Journal::open(&folder, batch).unwrap();
            let mut states = vec![State::default()];
            let mut lengths = vec![0];
            for step in steps() {
                journal.write(step).unwrap();
                states.push(journal.state().clone());
                lengths.push(journal.file.metadata().unwrap().len());
            }
            let len = lengths.last().unwrap().saturating_sub(u64::try_from(cut).unwrap());
            journal.file.set_len(len).unwrap();
            let whole = lengths.iter().rposition(|end| *end <= len).unwrap();
            let mut again = Journal::open(&folder, batch).unwrap();
            prop_assert_eq!(again.state(), &states[whole]);
            // And it can be written on.
            again.write(Step::Published { version: 99 }).unwrap();
            let last = Journal::open(&folder, batch).unwrap();
            prop_assert_eq!(last.state().published, Some(99));
        }
    }
}
