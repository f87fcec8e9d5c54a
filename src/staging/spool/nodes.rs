//! Which path each inode number has that the kernel has been told.
//!
//! 1. The kernel names a file by its number alone, and a rename must not change the number: the
//!    table keeps parent and name, and a path is put together when it is needed ([`Nodes::path`]).
//! 2. A file without a name goes on to work for whoever has it: its descriptor takes the place of
//!    its name ([`Nodes::gone`]). That also keeps the disk from using its number again.
//! 3. Memory: a number is forgotten with the last lookup that the kernel remembers
//!    ([`Nodes::forget`]), but not while something beneath it is known.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;

use super::disk::failed;
use crate::error::Result;
use crate::tree::ino::STAGING_ROOT;
use crate::units::Ino;

/// The numbers that the kernel knows.
#[derive(Debug, Default)]
pub struct Nodes {
    known: HashMap<Ino, Known>,
}

#[derive(Debug)]
struct Known {
    /// Lookups that the kernel has not taken back.
    lookups: u64,
    /// Known numbers whose parent this is.
    children: u64,
    place: Place,
}

#[derive(Debug)]
enum Place {
    Named(Ino, Arc<str>),
    Gone(Arc<OwnedFd>),
}

/// Where a number is: names from `tree/` down, or from something that has no name any more.
#[derive(Clone, Debug)]
pub struct Path {
    /// What has no name any more; `None` is `tree/`.
    pub base: Option<Arc<OwnedFd>>,
    /// The names beneath it.
    pub names: Vec<Arc<str>>,
}

impl Path {
    /// The batch that it is in; `None` for `staging/` itself and for what has no name any more.
    pub fn batch(&self) -> Option<&Arc<str>> {
        self.names.first().filter(|_| self.base.is_none())
    }

    /// Refuses what has left the tree, and what is beneath it.
    ///
    /// # Errors
    /// ENOENT, as in a directory that was removed.
    pub fn in_tree(&self) -> Result<()> {
        match self.base {
            None => Ok(()),
            Some(_) => Err(failed(format!("{:?} is gone", self.shown()), Errno::NOENT)),
        }
    }

    /// For messages: the path beneath `staging/`.
    pub fn shown(&self) -> String {
        self.names.join("/")
    }
}

impl Nodes {
    /// Notes that the kernel was told of a number under a name.
    pub fn seen(&mut self, ino: Ino, parent: Ino, name: &str) {
        self.place(ino, parent, name);
        if let Some(known) = self.known.get_mut(&ino) {
            known.lookups += 1;
        }
    }

    /// Takes lookups back. What is given back is to be dropped without a lock: it may be the last
    /// hold on a large file, whose blocks are freed then.
    pub fn forget(&mut self, ino: Ino, lookups: u64) -> Option<Arc<OwnedFd>> {
        let known = self.known.get_mut(&ino)?;
        known.lookups = known.lookups.saturating_sub(lookups);
        let held = match &known.place {
            Place::Gone(file) => Some(file.clone()),
            Place::Named(..) => None,
        };
        self.drop_unused(ino);
        held
    }

    /// Whether the kernel knows a number.
    pub fn knows(&self, ino: Ino) -> bool {
        self.known.contains_key(&ino)
    }

    /// Gives a known number another name.
    pub fn moved(&mut self, ino: Ino, parent: Ino, name: &str) {
        if self.knows(ino) {
            self.place(ino, parent, name);
        }
    }

    /// Lets a descriptor take the place of the name of a known number.
    pub fn gone(&mut self, ino: Ino, file: Arc<OwnedFd>) {
        let Some(known) = self.known.get_mut(&ino) else { return };
        if let Place::Named(parent, _) = std::mem::replace(&mut known.place, Place::Gone(file)) {
            self.lose_child(parent);
        }
    }

    /// Where a number is.
    ///
    /// # Errors
    /// ESTALE for a number that the kernel was not told.
    pub fn path(&self, ino: Ino) -> Result<Path> {
        let mut names = Vec::new();
        let mut at = ino;
        while at != STAGING_ROOT {
            match self.known.get(&at).map(|known| &known.place) {
                Some(Place::Named(parent, name)) => {
                    names.push(name.clone());
                    at = *parent;
                }
                Some(Place::Gone(file)) => {
                    names.reverse();
                    return Ok(Path { base: Some(file.clone()), names });
                }
                None => return Err(failed(format!("inode {ino} is not known"), Errno::STALE)),
            }
        }
        names.reverse();
        Ok(Path { base: None, names })
    }

    fn place(&mut self, ino: Ino, parent: Ino, name: &str) {
        let known = self.known.entry(ino);
        let mut is_new = false;
        let known = known.or_insert_with(|| {
            is_new = true;
            Known { lookups: 0, children: 0, place: Place::Named(parent, name.into()) }
        });
        if !is_new && matches!(&known.place, Place::Named(p, n) if *p == parent && **n == *name) {
            return;
        }
        let old = std::mem::replace(&mut known.place, Place::Named(parent, name.into()));
        if let Some(parent) = self.known.get_mut(&parent) {
            parent.children += 1;
        }
        if let Place::Named(before, _) = old
            && !is_new
        {
            self.lose_child(before);
        }
    }

    fn lose_child(&mut self, parent: Ino) {
        if let Some(known) = self.known.get_mut(&parent) {
            known.children = known.children.saturating_sub(1);
            self.drop_unused(parent);
        }
    }

    fn drop_unused(&mut self, ino: Ino) {
        let unused = |known: &Known| known.lookups == 0 && known.children == 0;
        if self.known.get(&ino).is_some_and(unused)
            && let Some(Known { place: Place::Named(parent, _), .. }) = self.known.remove(&ino)
        {
            self.lose_child(parent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ino(n: u64) -> Ino {
        crate::tree::ino::staged(n)
    }

    #[test]
    fn a_path_follows_renames_above_it() {
        let mut nodes = Nodes::default();
        nodes.seen(ino(1), STAGING_ROOT, "batch");
        nodes.seen(ino(2), ino(1), "entry");
        nodes.seen(ino(3), ino(2), "a.bin");
        nodes.moved(ino(1), STAGING_ROOT, "other");
        nodes.moved(ino(3), ino(1), "b.bin");
        let path = nodes.path(ino(3)).unwrap();
        assert_eq!(path.shown(), "other/b.bin");
        assert_eq!(path.batch().unwrap().as_ref(), "other");
        assert!(nodes.path(STAGING_ROOT).unwrap().batch().is_none());
    }

    #[test]
    fn what_is_forgotten_leaves_nothing_behind() {
        let mut nodes = Nodes::default();
        nodes.seen(ino(1), STAGING_ROOT, "batch");
        nodes.seen(ino(2), ino(1), "a");
        nodes.seen(ino(2), ino(1), "a");
        nodes.forget(ino(1), 1);
        assert_eq!(nodes.path(ino(2)).unwrap().shown(), "batch/a", "its child is known");
        nodes.forget(ino(2), 2);
        assert!(nodes.known.is_empty(), "{nodes:?}");
        assert_eq!(
            nodes.path(ino(2)).unwrap_err().kind(),
            crate::error::Kind::Disk(Errno::STALE.raw_os_error())
        );
    }

    #[test]
    fn a_file_without_a_name_is_in_no_batch() {
        let mut nodes = Nodes::default();
        nodes.seen(ino(1), STAGING_ROOT, "batch");
        nodes.seen(ino(2), ino(1), "a");
        let file = Arc::new(OwnedFd::from(tempfile::tempfile().unwrap()));
        nodes.gone(ino(2), file);
        assert!(nodes.path(ino(2)).unwrap().batch().is_none());
        nodes.forget(ino(1), 1);
        nodes.forget(ino(2), 1);
        assert!(nodes.known.is_empty());
    }
}
