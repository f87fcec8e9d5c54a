//! The lives of a table: which snapshots are of one table that was not dropped in between.
//!
//! Objects of a table never change while it lives, so what was read of one is good for every snapshot
//! of the same life; a table that was dropped and recreated may have other bytes under the same names.
//! Nothing in a table says which life it is in, so lists of versions are compared when a snapshot is
//! opened: one life goes on from a list to the next where a version is in both, with the same manifest,
//! and none has another manifest. Whatever is in doubt is a life of its own: that costs what was
//! cached, and nothing else.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::catalog::{Versions, replaced};
use crate::tree::SnapshotId;

/// The lives of the branches of one table. A branch is a life of its own: lists of two branches are of
/// different times.
#[derive(Default)]
pub struct Lives {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last: u64,
    branches: HashMap<Option<Arc<str>>, (u64, Arc<Versions>)>,
}

impl Lives {
    /// The life that a snapshot is of; `listed` are the versions of its branch.
    pub fn of(&self, id: &SnapshotId, listed: Option<Arc<Versions>>) -> u64 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |versions: &Arc<Versions>| {
            versions.get(&id.version).is_some_and(|entry| entry.id == *id)
        };
        let Some(listed) = listed.filter(is_it) else { return state.next() };
        let known = state.branches.get(&id.branch).filter(|(_, before)| goes_on(before, &listed));
        let life = known.map(|(life, _)| *life);
        let life = life.unwrap_or_else(|| state.next());
        state.branches.insert(id.branch.clone(), (life, listed));
        life
    }
}

impl State {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

fn goes_on(before: &Arc<Versions>, now: &Arc<Versions>) -> bool {
    let stays = || now.keys().any(|version| before.contains_key(version));
    Arc::ptr_eq(before, now) || (stays() && !replaced(before, now))
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::table::Entry;
    use crate::units::Version;

    fn id(version: u64, manifest: &str) -> SnapshotId {
        SnapshotId { branch: None, version: Version::new(version), manifest: manifest.into() }
    }

    fn list(versions: &[(u64, &str)]) -> Arc<Versions> {
        let entry = |&(version, manifest): &(u64, &str)| Entry {
            id: id(version, manifest),
            modified: UNIX_EPOCH,
            manifest: "m".into(),
            manifest_size: 1,
        };
        let entries = versions.iter().map(entry);
        Arc::new(entries.map(|entry| (entry.id.version, entry)).collect())
    }

    #[test]
    fn a_life_goes_on_while_a_version_stays_and_none_changes() {
        let lives = Lives::default();
        let first = lives.of(&id(1, "a"), Some(list(&[(1, "a")])));
        let grown = list(&[(1, "a"), (2, "b")]);
        assert_eq!(lives.of(&id(2, "b"), Some(grown.clone())), first);
        assert_eq!(lives.of(&id(1, "a"), Some(grown)), first);
        assert_eq!(
            lives.of(&id(3, "c"), Some(list(&[(2, "b"), (3, "c")]))),
            first,
            "1 was cleaned up"
        );
        let recreated = lives.of(&id(2, "x"), Some(list(&[(1, "w"), (2, "x")])));
        assert_ne!(recreated, first);
        assert_eq!(lives.of(&id(1, "w"), Some(list(&[(1, "w"), (2, "x")]))), recreated);
        let other = lives.of(&id(7, "y"), Some(list(&[(7, "y")])));
        assert!(other != recreated && other != first, "nothing tells that it is the same");
    }

    #[test]
    fn what_is_not_listed_is_a_life_of_its_own() {
        let lives = Lives::default();
        let first = lives.of(&id(1, "a"), Some(list(&[(1, "a")])));
        let others = [
            lives.of(&id(1, "b"), Some(list(&[(1, "a")]))),
            lives.of(&id(1, "a"), None),
            lives.of(&id(5, "a"), Some(list(&[(1, "a")]))),
        ];
        assert!(!others.contains(&first), "{others:?}");
        let branch = SnapshotId { branch: Some("b".into()), ..id(1, "a") };
        let listed = Arc::new(Versions::from([(
            branch.version,
            Entry { id: branch.clone(), ..list(&[(1, "a")])[&branch.version].clone() },
        )]));
        assert_ne!(lives.of(&branch, Some(listed)), first);
    }
}
