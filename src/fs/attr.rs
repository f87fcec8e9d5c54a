//! Attributes, and where symlinks point.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::{Attr, FileKind, Fs, WITHIN_VERSION, place};
use crate::error::{Error, Kind, Result};
use crate::name;
use crate::table::{Committed, Row, Snapshot, Value};
use crate::tree::{BRANCHES, LeafIndex, Node, Slot};
use crate::units::{self, ByteLen, Ino, Ordinal, RowIndex, Version};

impl Fs {
    /// The attributes of a node.
    ///
    /// # Errors
    /// [`Kind::Stale`] for a number whose version is gone; for a value, why it cannot be resolved.
    pub async fn getattr(&self, ino: Ino) -> Result<Attr> {
        let node = self.node(ino)?;
        let attr = self.attr(&node).await?;
        self.is_told(&node, &attr)?;
        Ok(attr)
    }

    /// Where a symlink points.
    ///
    /// # Errors
    /// [`Kind::NotFound`] where the branch has no version or the tag is gone, [`Kind::Table`] for
    /// an unreadable tag, [`Kind::Invalid`] for another node.
    pub async fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        match self.node(ino)? {
            Node::Staged(ino) => self.staged_link(ino),
            node => Ok(self.link(&node).await?.into_bytes()),
        }
    }

    pub(super) async fn attr(&self, node: &Node) -> Result<Attr> {
        let refresh = self.look.refresh;
        match node {
            Node::Root | Node::Tags | Node::Branches | Node::Branch(_) | Node::Control => {
                let time = self.newest(node).await;
                self.plain(node, FileKind::Directory, 0, time, refresh)
            }
            Node::Latest(_) | Node::Tag(_) => {
                let target = self.link(node).await?;
                let time = self.newest(node).await;
                self.plain(
                    node,
                    FileKind::Symlink,
                    units::u64_of(target.len()),
                    time,
                    Duration::ZERO,
                )
            }
            Node::Status | Node::Metrics => {
                let text = self.report(node);
                let size = units::u64_of(text.len());
                self.plain(node, FileKind::File, size, SystemTime::now(), Duration::ZERO)
            }
            Node::Commits => {
                let size = units::u64_of(self.commits().await?.len());
                self.plain(node, FileKind::File, size, SystemTime::now(), Duration::ZERO)
            }
            Node::Staging => self.attr_of_staging(),
            Node::Staged(ino) => self.staged_attr(*ino),
            Node::Refusal(batch) => self.attr_of_refusal(*batch),
            Node::Commit => self.attr_of_commit(),
            Node::Version(slot) => {
                let (time, ttl) = believed(self.version_time(*slot).await?);
                self.plain(node, FileKind::Directory, 0, time, ttl)
            }
            Node::Row(slot, row) => {
                let snapshot = self.snapshot(*slot).await?;
                row_exists(&snapshot, *row)?;
                self.plain(node, FileKind::Directory, 0, snapshot.committed, WITHIN_VERSION)
            }
            Node::VersionJson(slot) | Node::RowJson(slot, _) => {
                let snapshot = self.snapshot(*slot).await?;
                let text = self.text(node).await?;
                self.plain(
                    node,
                    FileKind::File,
                    units::u64_of(text.len()),
                    snapshot.committed,
                    WITHIN_VERSION,
                )
            }
            Node::Value(slot, row, leaf, ordinal) => {
                self.attr_of_value(node, *slot, *row, (*leaf, *ordinal)).await
            }
        }
    }

    async fn attr_of_value(
        &self,
        node: &Node,
        slot: Slot,
        row: RowIndex,
        (leaf, ordinal): (LeafIndex, Ordinal),
    ) -> Result<Attr> {
        let snapshot = self.snapshot(slot).await?;
        let (_, value) = self.value(&snapshot, row, leaf, ordinal).await?;
        let size = value.interval.len.get();
        let attr = self.plain(node, FileKind::File, size, snapshot.committed, WITHIN_VERSION)?;
        Ok(match &value.looked {
            // The object may become another one.
            Some(meta) => Attr { generation: meta.digest().into(), ttl: self.look.refresh, ..attr },
            None => Attr { generation: self.generations.of(attr.ino).into(), ..attr },
        })
    }

    /// The attributes of a file that cannot be made: there, and nothing else is known.
    pub(super) fn bare(&self, node: &Node, time: SystemTime) -> Result<Attr> {
        let attr = self.plain(node, FileKind::File, 0, time, Duration::ZERO)?;
        Ok(Attr { generation: self.generations.of(attr.ino).into(), ..attr })
    }

    /// Whether the kernel was told of a value as what it is; else it must look the name up anew.
    pub(super) fn is_told(&self, node: &Node, attr: &Attr) -> Result<()> {
        if matches!(node, Node::Value(..))
            && attr.generation != u64::from(self.generations.of(attr.ino))
        {
            return Err(Error::new(Kind::Renewed, format!("{node:?} is another object now")));
        }
        Ok(())
    }

    /// A value, with its row.
    pub(super) async fn value(
        &self,
        snapshot: &Arc<Snapshot>,
        row: RowIndex,
        leaf: LeafIndex,
        ordinal: Ordinal,
    ) -> Result<(Row, Value)> {
        snapshot.look_ahead(row);
        let found = async {
            let page = snapshot.row(row).await?;
            let value = snapshot.value(&page, leaf, ordinal).await?;
            Ok((page, value))
        };
        found.await.map_err(|e: Error| e.at(place(snapshot, row)))
    }

    pub(super) fn plain(
        &self,
        node: &Node,
        kind: FileKind,
        size: u64,
        time: SystemTime,
        ttl: Duration,
    ) -> Result<Attr> {
        let (mode, links) = match kind {
            FileKind::Directory => (self.look.dir_mode, 2),
            FileKind::File => (self.look.file_mode, 1),
            FileKind::Symlink => (0o777, 1),
        };
        Ok(Attr {
            ino: self.number(node)?,
            generation: 0,
            kind,
            mode,
            links,
            uid: self.look.uid,
            gid: self.look.gid,
            size: ByteLen::new(size),
            allocated: ByteLen::new(size),
            accessed: time,
            modified: time,
            changed: time,
            ttl,
        })
    }

    async fn link(&self, node: &Node) -> Result<String> {
        match node {
            Node::Latest(branch) => {
                Ok(self.table.catalog.latest(branch.as_ref()).await?.id.version.to_string())
            }
            Node::Tag(tag) => {
                let target = self.table.catalog.tag(tag).await?;
                Ok(match target.branch {
                    None => format!("../{}", target.version),
                    Some(branch) => {
                        let shown = name::fit(&name::escape(&branch), "");
                        format!("../{BRANCHES}/{shown}/{}", target.version)
                    }
                })
            }
            _ => Err(Error::new(Kind::Invalid, format!("{node:?} is no symlink"))),
        }
    }

    /// The time of a directory that changes: when its branch's newest version was committed.
    async fn newest(&self, node: &Node) -> SystemTime {
        let branch = match node {
            Node::Branch(branch) | Node::Latest(Some(branch)) => Some(branch),
            _ => None,
        };
        match self.table.catalog.latest(branch).await {
            Ok(entry) => believed(self.table.committed(&entry).await).0,
            Err(_) => self.started,
        }
    }

    async fn version_time(&self, slot: Slot) -> Result<Committed> {
        let gone = || Error::new(Kind::Stale, format!("slot {slot:?} is not of this mount"));
        let id = self.table.numbers.snapshot(slot).ok_or_else(gone)?;
        let branch: Option<Arc<str>> = id.branch.clone();
        let entry =
            self.table.catalog.version(branch.as_ref(), Version::new(id.version.get())).await;
        match entry {
            Ok(entry) if entry.id == id => Ok(self.table.committed(&entry).await),
            Ok(_) => Err(Error::new(Kind::Stale, format!("version {} was replaced", id.version))),
            Err(e) if e.kind() == Kind::NotFound => {
                Err(Error::new(Kind::Stale, format!("version {} was removed", id.version)))
            }
            Err(e) => Err(e),
        }
    }
}

/// A version's time, and for how long.
fn believed(committed: Committed) -> (SystemTime, Duration) {
    match committed {
        Committed::Known(time) => (time, WITHIN_VERSION),
        Committed::Unread(time) => (time, Duration::ZERO),
    }
}

/// Whether a snapshot has a row.
pub(super) fn row_exists(snapshot: &Snapshot, row: RowIndex) -> Result<()> {
    if row.get() < snapshot.rows.count() {
        return Ok(());
    }
    Err(Error::new(Kind::NotFound, format!("version {} has no row {row}", snapshot.id.version)))
}
