//! Listings, streamed: an entry's cookie says where the next one starts, so that no list is built,
//! and a directory of ten million rows costs what is asked for.
//!
//! ```text
//! root      0 .  1 ..  2 .lancefs  3 latest  4 tags  5 branches  6 staging  7 commit
//!                                                                 8+v  version v
//! branch    0 .  1 ..  2 latest                                   8+v  version v
//! version   0 .  1 ..  2 .version.json                            8+r  row r
//! row       0 .  1 ..  2 row.json       8 + (leaf << 40 | ordinal)     value
//! tags, branches, .lancefs   0 .  1 ..                            8+i  the i-th name
//! staging/ and below         0 .  1 ..                            2+i  the i-th name at opendir
//! ```

use std::ops::ControlFlow;
use std::sync::Arc;

use super::attr::row_exists;
use super::{FileKind, Fs, Handle, not_directory, place};
use crate::error::{Error, Kind, Result};
use crate::name;
use crate::table::Versions;
use crate::tree::{self, Node, Slot};
use crate::units::{self, Ino, Ordinal, RowIndex, Version};

/// The first cookie after the fixed entries.
const FIRST: u64 = 8;
const ORDINAL_BITS: u32 = 40;

/// Takes entries until it is full.
pub trait Sink {
    /// Adds an entry; `next` is the cookie of the entry after it. `Break` if there was no room.
    fn add(&mut self, ino: Ino, next: u64, kind: FileKind, name: &str) -> ControlFlow<()>;
}

impl Fs {
    /// Opens a directory. A list that can change is held, so that what is listed is one state.
    ///
    /// # Errors
    /// [`Kind::NotDirectory`]; where the list cannot be read and was never known.
    pub async fn opendir(&self, ino: Ino) -> Result<Handle> {
        let node = self.node(ino)?;
        if let Node::Staging | Node::Staged(_) = node {
            return self.opendir_staged(&node);
        }
        let names = match &node {
            Node::Tags => Some(self.table.catalog.tags().await?),
            Node::Branches => Some(self.table.catalog.branches().await?),
            Node::Version(slot) => {
                self.snapshot(*slot).await?;
                None
            }
            Node::Root
            | Node::Branch(_)
            | Node::Control
            | Node::Commit
            | Node::Staging
            | Node::Staged(_)
            | Node::Row(..) => None,
            Node::Latest(_)
            | Node::Tag(_)
            | Node::Status
            | Node::Metrics
            | Node::Commits
            | Node::Refusal(_)
            | Node::VersionJson(_)
            | Node::RowJson(..)
            | Node::Value(..) => {
                return Err(not_directory(&node));
            }
        };
        Ok(self.handles.open_directory(names))
    }

    /// Whether what a directory lists can never change, and is long enough to be worth a place in
    /// the kernel's cache. A row's is not: it takes a page, which drives out what was read, and a
    /// first walk with `find` was a seventh slower (a second one twice as fast).
    pub fn is_worth_caching(&self, ino: Ino) -> bool {
        matches!(self.node(ino), Ok(Node::Version(_)))
    }

    /// Whether a number is that of a file, which nobody may run.
    pub fn is_plain_file(&self, ino: Ino) -> bool {
        matches!(
            self.node(ino),
            Ok(Node::Value(..)
                | Node::RowJson(..)
                | Node::VersionJson(_)
                | Node::Status
                | Node::Metrics
                | Node::Refusal(_)
                | Node::Commits)
        )
    }

    /// Lists from a cookie on, until the sink is full.
    ///
    /// # Errors
    /// [`Kind::Stale`] where the version is gone; where a page of descriptors cannot be read.
    pub async fn readdir(
        &self,
        ino: Ino,
        handle: Handle,
        cookie: u64,
        sink: &mut (dyn Sink + Send),
    ) -> Result<()> {
        let node = self.node(ino)?;
        if let Node::Staging | Node::Staged(_) = node {
            return self.readdir_staged(&node, handle, cookie, sink);
        }
        let mut fixed: Vec<(Node, &str)> = vec![(node.clone(), "."), (self.parent(&node), "..")];
        let everything = !self.table.catalog.is_pinned();
        match &node {
            Node::Root => {
                fixed.extend([(Node::Control, tree::CONTROL), (Node::Latest(None), tree::LATEST)]);
                if everything {
                    fixed.extend([(Node::Tags, tree::TAGS), (Node::Branches, tree::BRANCHES)]);
                    fixed.extend([(Node::Staging, tree::STAGING), (Node::Commit, tree::COMMIT)]);
                }
            }
            Node::Branch(branch) => fixed.push((Node::Latest(Some(branch.clone())), tree::LATEST)),
            Node::Version(slot) => fixed.push((Node::VersionJson(*slot), tree::VERSION_JSON)),
            Node::Row(slot, row) => {
                // Its numbers need the snapshot's layout.
                self.snapshot(*slot).await?;
                fixed.push((Node::RowJson(*slot, *row), tree::ROW_JSON));
            }
            _ => {}
        }
        if self.list_fixed(&fixed, cookie, sink)?.is_break() {
            return Ok(());
        }
        let from = cookie.saturating_sub(FIRST);
        match &node {
            Node::Root => {
                self.list_versions(&*self.table.catalog.versions(None).await?, from, sink)
            }
            Node::Branch(branch) => {
                self.list_versions(&*self.table.catalog.versions(Some(branch)).await?, from, sink)
            }
            Node::Tags => self.list_names(handle, Node::Tag, FileKind::Symlink, from, sink),
            Node::Branches => {
                self.list_names(handle, Node::Branch, FileKind::Directory, from, sink)
            }
            Node::Control => self.list_control(from, sink),
            Node::Commit => Ok(()),
            Node::Version(slot) => self.list_rows(*slot, from, sink).await,
            Node::Row(slot, row) => self.list_values(*slot, *row, from, sink).await,
            _ => Err(not_directory(&node)),
        }
    }

    fn parent(&self, node: &Node) -> Node {
        match node {
            Node::Branch(_) => Node::Branches,
            Node::Row(slot, _) => Node::Version(*slot),
            Node::Version(slot) => {
                match self.table.numbers.snapshot(*slot).and_then(|id| id.branch) {
                    Some(branch) => Node::Branch(branch),
                    None => Node::Root,
                }
            }
            _ => Node::Root,
        }
    }

    fn list_fixed(
        &self,
        fixed: &[(Node, &str)],
        cookie: u64,
        sink: &mut (dyn Sink + Send),
    ) -> Result<ControlFlow<()>> {
        for ((node, name), at) in fixed.iter().zip(0_u64..).skip(units::usize_of(cookie)) {
            let last = at + 1 == units::u64_of(fixed.len());
            let next = if last { FIRST } else { at + 1 };
            let kind = match node {
                Node::Latest(_) => FileKind::Symlink,
                Node::VersionJson(_) | Node::RowJson(..) => FileKind::File,
                _ => FileKind::Directory,
            };
            if sink.add(self.number(node)?, next, kind, name).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn list_versions(
        &self,
        versions: &Versions,
        from: u64,
        sink: &mut (dyn Sink + Send),
    ) -> Result<()> {
        for (version, entry) in versions.range(Version::new(from)..) {
            let ino = self.number(&Node::Version(self.table.numbers.slot(&entry.id)))?;
            let next = FIRST.saturating_add(version.get()).saturating_add(1);
            if sink.add(ino, next, FileKind::Directory, &version.to_string()).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn list_names(
        &self,
        handle: Handle,
        node: fn(Arc<str>) -> Node,
        kind: FileKind,
        from: u64,
        sink: &mut (dyn Sink + Send),
    ) -> Result<()> {
        let names = self.handles.names(handle)?;
        for (name, at) in names.iter().zip(FIRST..).skip(units::usize_of(from)) {
            let shown = name::fit(&name::escape(name), "");
            if sink.add(self.number(&node(name.clone()))?, at + 1, kind, &shown).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn list_control(&self, from: u64, sink: &mut (dyn Sink + Send)) -> Result<()> {
        let files = [
            (Node::Status, tree::STATUS),
            (Node::Metrics, tree::METRICS),
            (Node::Commits, tree::COMMITS),
        ];
        for ((node, name), at) in files.iter().zip(FIRST..).skip(units::usize_of(from)) {
            if sink.add(self.number(node)?, at + 1, FileKind::File, name).is_break() {
                break;
            }
        }
        Ok(())
    }

    async fn list_rows(&self, slot: Slot, from: u64, sink: &mut (dyn Sink + Send)) -> Result<()> {
        let snapshot = self.snapshot(slot).await?;
        for row in from..snapshot.rows.count() {
            let ino = self.number(&Node::Row(slot, RowIndex::new(row)))?;
            if sink.add(ino, FIRST + row + 1, FileKind::Directory, &row.to_string()).is_break() {
                break;
            }
        }
        Ok(())
    }

    async fn list_values(
        &self,
        slot: Slot,
        index: RowIndex,
        from: u64,
        sink: &mut (dyn Sink + Send),
    ) -> Result<()> {
        let snapshot = self.snapshot(slot).await?;
        if snapshot.leaves.fields.is_empty() {
            return row_exists(&snapshot, index);
        }
        snapshot.look_ahead(index);
        let located = |error: Error| error.at(place(&snapshot, index));
        let row = match snapshot.row(index).await.map_err(located) {
            Ok(row) => row,
            Err(error) => {
                // A fragment that cannot be read: its rows stay, with the names that are certain.
                return self.list_unread(&snapshot.leaves.shape, slot, index, from, sink, &error);
            }
        };
        for (leaf, name) in
            snapshot.leaves.shape.indexed().skip(units::usize_of(from >> ORDINAL_BITS))
        {
            let first = if leaf.get() == from >> ORDINAL_BITS {
                from & ((1 << ORDINAL_BITS) - 1)
            } else {
                0
            };
            let values = match row.values(leaf, Ordinal::new(first)).map_err(located) {
                Ok(values) => values,
                Err(error) => {
                    if first == 0
                        && self.list_unreadable(slot, index, leaf, name, sink, &error)?.is_break()
                    {
                        return Ok(());
                    }
                    continue;
                }
            };
            for value in values {
                let ino = self.number(&Node::Value(slot, index, leaf, value.ordinal))?;
                let next = FIRST + (leaf.get() << ORDINAL_BITS) + value.ordinal.get() + 1;
                if sink.add(ino, next, FileKind::File, &name.file_name(&value.indices)).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn list_unread(
        &self,
        shape: &tree::Shape,
        slot: Slot,
        row: RowIndex,
        from: u64,
        sink: &mut (dyn Sink + Send),
        error: &Error,
    ) -> Result<()> {
        if !matches!(error.kind(), Kind::Payload | Kind::Table | Kind::Descriptor) {
            return Err(error.clone());
        }
        for (leaf, name) in shape.indexed() {
            let position = leaf.get() << ORDINAL_BITS;
            if position >= from
                && self.list_unreadable(slot, row, leaf, name, sink, error)?.is_break()
            {
                break;
            }
        }
        Ok(())
    }

    /// A field that cannot be read: its file is listed and fails alone. Of a list not even the
    /// number of elements is known; the row carries the error.
    fn list_unreadable(
        &self,
        slot: Slot,
        row: RowIndex,
        leaf: tree::LeafIndex,
        name: &tree::LeafName,
        sink: &mut (dyn Sink + Send),
        error: &Error,
    ) -> Result<ControlFlow<()>> {
        if name.lists() > 0 {
            self.failed("readdir", self.number(&Node::Row(slot, row))?, error);
            return Ok(ControlFlow::Continue(()));
        }
        let ino = self.number(&Node::Value(slot, row, leaf, Ordinal::new(0)))?;
        let next = FIRST + (leaf.get() << ORDINAL_BITS) + 1;
        Ok(sink.add(ino, next, FileKind::File, &name.file_name(&[])))
    }
}
