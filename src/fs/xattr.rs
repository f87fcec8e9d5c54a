//! Extended attributes: what a value is and where its bytes are.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use super::{Fs, place_of_value};
use crate::error::{Error, Kind, Result};
use crate::media;
use crate::store::{Interval, RangeRead};
use crate::table::{self, Row, Snapshot};
use crate::tree::Node;
use crate::units::{ByteLen, Ino, RowIndex};

pub(super) const ERROR: &str = "user.lancefs.error";
/// The namespace of the attributes that programs may set on what is staged.
const USER: &str = "user.";
const KIND: &str = "user.lancefs.kind";
const OBJECT: &str = "user.lancefs.object";
const OFFSET: &str = "user.lancefs.offset";
const SIZE: &str = "user.lancefs.size";
const ROW_ADDRESS: &str = "user.lancefs.row_address";
const ROW_ID: &str = "user.lancefs.row_id";
const FIELD_ID: &str = "user.lancefs.field_id";
const MIME_TYPE: &str = "user.mime_type";

/// The attributes of every value.
const OF_VALUE: [&str; 8] = [KIND, OBJECT, OFFSET, SIZE, ROW_ADDRESS, ROW_ID, FIELD_ID, MIME_TYPE];

/// Columns in which tables say what type a row's value has, and what it was called.
const TOLD_TYPES: [&str; 4] = ["mime_type", "mimetype", "content_type", "media_type"];
const TOLD_NAMES: [&str; 4] = ["name", "filename", "file_name", "path"];

impl Fs {
    /// Whether a node can have an attribute of that name; every other is answered without looking
    /// at anything.
    pub fn may_have_xattr(&self, ino: Ino, name: &str) -> bool {
        let staged = || matches!(self.node(ino), Ok(Node::Staging | Node::Staged(_)));
        name == ERROR || OF_VALUE.contains(&name) || (name.starts_with(USER) && staged())
    }

    /// Whether a name tells about a value. Programs that copy a payload copy these too; a staged
    /// file takes them without a word and without keeping them.
    pub(super) fn tells_of_value(name: &str) -> bool {
        name != MIME_TYPE && OF_VALUE.contains(&name)
    }

    /// The value of an attribute.
    ///
    /// # Errors
    /// [`Kind::NoAttribute`] where the node has none of that name; for a value, why it cannot be
    /// resolved.
    pub async fn getxattr(&self, ino: Ino, name: &str) -> Result<Vec<u8>> {
        match self.node(ino)? {
            node @ (Node::Staging | Node::Staged(_)) => self.staged_xattr(&node, name).await,
            _ => Ok(self.table_xattr(ino, name).await?.into_bytes()),
        }
    }

    async fn table_xattr(&self, ino: Ino, name: &str) -> Result<String> {
        let none = || Error::new(Kind::NoAttribute, format!("no attribute {name:?}"));
        if name == ERROR {
            return self.error_of(ino).ok_or_else(none);
        }
        if !OF_VALUE.contains(&name) {
            return Err(none());
        }
        let Node::Value(slot, row, leaf, ordinal) = self.node(ino)? else { return Err(none()) };
        let snapshot = self.snapshot(slot).await?;
        if name == MIME_TYPE {
            let page = snapshot.row(row).await?;
            let head = async {
                let (value, object) = snapshot.open(&page, leaf, ordinal).await?;
                head(object, &value).await
            };
            let place = place_of_value(&snapshot, row, leaf)?;
            let head = head.await.map_err(|e: Error| e.at(place))?;
            return Ok(self.type_of(&snapshot, row, &head).await);
        }
        let (page, value) = self.value(&snapshot, row, leaf, ordinal).await?;
        let field_id = snapshot.leaf(leaf)?.field_id;
        Ok(describe(&page, &value, field_id)
            .into_iter()
            .find_map(|(n, v)| (n == name).then_some(v))
            .unwrap_or_default())
    }

    /// The type of a value that begins so. Where that alone does not tell, a row with one value tells
    /// what it is called, or its type.
    async fn type_of(&self, snapshot: &Snapshot, row: RowIndex, head: &[u8]) -> String {
        let is_only = snapshot.leaves.shape.leaves().len() == 1;
        if !is_only || media::by_content(head).is_some() {
            return media::type_of(None, head);
        }
        let text = self.text(&Node::RowJson(snapshot.slot, row)).await;
        let told = text.ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok());
        let told = |key: &str| told.as_ref()?.get(key)?.as_str().map(ToOwned::to_owned);
        let is_type = |told: &String| told.contains('/') && told != media::UNKNOWN;
        match TOLD_TYPES.iter().find_map(|key| told(key)).filter(is_type) {
            Some(told) => told,
            None => media::type_of(TOLD_NAMES.iter().find_map(|key| told(key)).as_deref(), head),
        }
    }

    /// The names of a node's attributes.
    ///
    /// # Errors
    /// [`Kind::Stale`] for a number of no node.
    pub fn listxattr(&self, ino: Ino) -> Result<Vec<String>> {
        let mut names = match self.node(ino)? {
            Node::Value(..) => OF_VALUE.map(ToOwned::to_owned).to_vec(),
            node @ (Node::Staging | Node::Staged(_)) => self.staged_xattrs(&node)?,
            _ => Vec::new(),
        };
        if self.error_of(ino).is_some() {
            names.push(ERROR.to_owned());
        }
        Ok(names)
    }
}

fn describe(row: &Row, value: &table::Value, field_id: i32) -> [(&'static str, String); 7] {
    [
        (KIND, value.located.kind.word().to_owned()),
        (OBJECT, value.located.object.uri.to_string()),
        (OFFSET, value.interval.offset.to_string()),
        (SIZE, value.interval.len.to_string()),
        (ROW_ADDRESS, row.address().to_string()),
        (ROW_ID, row.id().to_string()),
        (FIELD_ID, field_id.to_string()),
    ]
}

/// The first bytes of a value.
async fn head(object: Option<Arc<dyn RangeRead>>, value: &table::Value) -> Result<Bytes> {
    let len = value.interval.len.get().min(media::HEAD);
    let Some(object) = object.filter(|_| len > 0) else { return Ok(Bytes::new()) };
    object.read(Interval { offset: value.interval.offset, len: ByteLen::new(len) }).await
}
