//! From a name in a directory to a node.

use std::sync::Arc;
use std::time::Duration;

use super::{Fs, Looked, WITHIN_VERSION, not_directory};
use crate::error::{Error, Kind, Result};
use crate::name;
use crate::table::Snapshot;
use crate::tree::{self, Found, LeafIndex, Node, Slot};
use crate::units::{Ino, Ordinal, RowIndex, Version};

impl Fs {
    /// Finds a name in a directory.
    ///
    /// # Errors
    /// [`Kind::NotFound`] for a name that may appear later, [`Kind::NameTooLong`], and whatever
    /// reading the directory gives.
    pub async fn lookup(&self, parent: Ino, name: &str) -> Result<Looked> {
        if name.len() > name::NAME_MAX {
            return Err(Error::new(Kind::NameTooLong, format!("{} bytes are no name", name.len())));
        }
        let parent = self.node(parent)?;
        if let Node::Staging | Node::Staged(_) | Node::Commit = parent {
            return self.lookup_staged(&parent, name);
        }
        if matches!(parent, Node::Control)
            && let Some(ino) = self.generations.named(name)
        {
            let attr = self.bare(&self.node(ino)?, self.started)?;
            return Ok(Looked::Found(attr, Duration::ZERO));
        }
        let node = self.child(&parent, name).await?;
        let refresh = self.look.refresh;
        match (node, parent) {
            (Some(node @ Node::Row(..)), _) => {
                Ok(Looked::Found(self.attr(&node).await?, WITHIN_VERSION))
            }
            (Some(node), Node::Version(slot) | Node::Row(slot, _)) => {
                self.looked_file(node, slot).await
            }
            (Some(node), _) => Ok(Looked::Found(self.attr(&node).await?, refresh)),
            (None, Node::Version(_) | Node::Row(..)) => Ok(Looked::Never(WITHIN_VERSION)),
            (None, parent) => Err(Error::new(Kind::NotFound, format!("no {name:?} in {parent:?}"))),
        }
    }

    /// A file of a version: where it fails for a reason of its own, it is there all the same, and
    /// looked up again by the next who asks.
    async fn looked_file(&self, node: Node, slot: Slot) -> Result<Looked> {
        let error = match self.attr(&node).await {
            Ok(attr) => {
                if let Ok(generation) = u32::try_from(attr.generation) {
                    self.generations.tell(attr.ino, generation);
                }
                return Ok(Looked::Found(attr, WITHIN_VERSION));
            }
            Err(error) => error,
        };
        match error.kind() {
            Kind::NotFound => Ok(Looked::Never(WITHIN_VERSION)),
            Kind::Payload | Kind::Table | Kind::Descriptor | Kind::Denied | Kind::TooLarge => {
                let snapshot = self.snapshot(slot).await?;
                let attr = self.bare(&node, snapshot.committed)?;
                self.failed("lookup", attr.ino, &error);
                Ok(Looked::Failing(attr))
            }
            _ => Err(error),
        }
    }

    async fn child(&self, parent: &Node, name: &str) -> Result<Option<Node>> {
        match parent {
            Node::Root => self.child_of_root(name).await,
            Node::Tags => Ok(named(&self.table.catalog.tags().await?, name).map(Node::Tag)),
            Node::Branches => {
                Ok(named(&self.table.catalog.branches().await?, name).map(Node::Branch))
            }
            Node::Branch(branch) => {
                if name == tree::LATEST {
                    return Ok(Some(Node::Latest(Some(branch.clone()))));
                }
                self.version_named(Some(branch), name).await
            }
            Node::Control => Ok(match name {
                tree::STATUS => Some(Node::Status),
                tree::METRICS => Some(Node::Metrics),
                tree::COMMITS => Some(Node::Commits),
                _ => None,
            }),
            Node::Version(slot) => self.child_of_version(*slot, name).await,
            Node::Row(slot, row) => self.child_of_row(*slot, *row, name).await,
            Node::Latest(_)
            | Node::Tag(_)
            | Node::Status
            | Node::Metrics
            | Node::Commits
            | Node::Staging
            | Node::Staged(_)
            | Node::Refusal(_)
            | Node::Commit
            | Node::VersionJson(_)
            | Node::RowJson(..)
            | Node::Value(..) => Err(not_directory(parent)),
        }
    }

    async fn child_of_root(&self, name: &str) -> Result<Option<Node>> {
        let everything = !self.table.catalog.is_pinned();
        match name {
            tree::LATEST => Ok(Some(Node::Latest(None))),
            tree::CONTROL => Ok(Some(Node::Control)),
            tree::STAGING if everything => Ok(Some(Node::Staging)),
            tree::COMMIT if everything => Ok(Some(Node::Commit)),
            tree::TAGS if everything => Ok(Some(Node::Tags)),
            tree::BRANCHES if everything => Ok(Some(Node::Branches)),
            _ => self.version_named(None, name).await,
        }
    }

    async fn version_named(&self, branch: Option<&Arc<str>>, name: &str) -> Result<Option<Node>> {
        let Some(number) = name::decimal(name) else { return Ok(None) };
        match self.table.catalog.version(branch, Version::new(number)).await {
            Ok(entry) => Ok(Some(Node::Version(self.table.numbers.slot(&entry.id)))),
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn child_of_version(&self, slot: Slot, name: &str) -> Result<Option<Node>> {
        if name == tree::VERSION_JSON {
            return Ok(Some(Node::VersionJson(slot)));
        }
        let Some(row) = name::decimal(name).map(RowIndex::new) else { return Ok(None) };
        let snapshot = self.snapshot(slot).await?;
        Ok((row.get() < snapshot.rows.count()).then_some(Node::Row(slot, row)))
    }

    async fn child_of_row(&self, slot: Slot, row: RowIndex, name: &str) -> Result<Option<Node>> {
        if name == tree::ROW_JSON {
            return Ok(Some(Node::RowJson(slot, row)));
        }
        let snapshot = self.snapshot(slot).await?;
        let found = match snapshot.leaves.shape.find(name) {
            Some(Found::Value(leaf, indices)) => {
                ordinal(&snapshot, row, leaf, &indices).await?.map(|at| (leaf, at))
            }
            Some(Found::Compare(leaves)) => compare(&snapshot, row, &leaves, name).await?,
            None => None,
        };
        Ok(found.map(|(leaf, ordinal)| Node::Value(slot, row, leaf, ordinal)))
    }
}

async fn ordinal(
    snapshot: &Snapshot,
    row: RowIndex,
    leaf: LeafIndex,
    indices: &[u64],
) -> Result<Option<Ordinal>> {
    if indices.is_empty() {
        // Whether it is null is for its attributes to say; so a field that cannot be read is found.
        return Ok(Some(Ordinal::new(0)));
    }
    let row = snapshot.row(row).await?;
    Ok(row.page.chain(leaf)?.ordinal(row.at, indices))
}

/// Finds a name that was cut, by cutting the names of all values that it can be.
async fn compare(
    snapshot: &Snapshot,
    row: RowIndex,
    leaves: &[LeafIndex],
    name: &str,
) -> Result<Option<(LeafIndex, Ordinal)>> {
    let row = snapshot.row(row).await?;
    for &leaf in leaves {
        let Some(leaf_name) = snapshot.leaves.shape.leaf(leaf) else { continue };
        if leaf_name.lists() == 0 {
            if leaf_name.file_name(&[]) == name {
                return Ok(Some((leaf, Ordinal::new(0))));
            }
            continue;
        }
        let found = row
            .values(leaf, Ordinal::new(0))?
            .find(|value| leaf_name.file_name(&value.indices) == name);
        if let Some(value) = found {
            return Ok(Some((leaf, value.ordinal)));
        }
    }
    Ok(None)
}

/// The tag or branch that is shown under a name.
fn named(names: &[Arc<str>], shown: &str) -> Option<Arc<str>> {
    let by_escape = name::unescape(shown).and_then(|name| names.iter().find(|n| ***n == *name));
    let cut = || {
        shown.contains('~').then(|| names.iter().find(|n| name::fit(&name::escape(n), "") == shown))
    };
    by_escape.or_else(|| cut().flatten()).cloned()
}
