//! Whether a row of an older version is still the same in a newer one, in the same place.
//!
//! 1. Most of the time nothing happened to its fragment: then the fragment has the same files, and
//!    no value is looked at.
//! 2. Somebody may have replaced other rows of the fragment: then the row's own values are compared,
//!    by where their bytes are, and Inline ones by their bytes.
//! 3. Compaction moves rows: a row that is in another fragment counts as changed.

use lance_table::format::Fragment;

use super::descriptor::BlobKind;
use super::snapshot::{Row, Snapshot, Value};
use super::sound::{self, Fields};
use super::{describe, guard};
use crate::error::{Kind, Result};
use crate::tree::LeafIndex;
use crate::units::{self, Ordinal, RowAddress, RowIndex};

impl Snapshot {
    /// Where a row is.
    ///
    /// # Errors
    /// As [`Snapshot::row`].
    pub async fn address(&self, row: RowIndex) -> Result<RowAddress> {
        Ok(self.row(row).await?.address())
    }

    /// Whether a row of this version is in a later one as it is here, at the same address.
    ///
    /// # Errors
    /// Where values of either cannot be read.
    pub async fn is_unchanged_in(&self, later: &Self, row: RowIndex) -> Result<bool> {
        if self.id == later.id {
            return Ok(true);
        }
        let address = self.address(row).await?;
        let of = |snapshot: &Self| -> Option<(usize, Fragment)> {
            let fragments = snapshot.dataset.manifest.fragments.iter().cloned().enumerate();
            fragments.into_iter().find(|(_, fragment)| fragment.id == address.fragment())
        };
        let (Some((_, here)), Some((position, there))) = (of(self), of(later)) else {
            return Ok(false);
        };
        let Some(deleted_before) = later.deleted_before(&there, address).await? else {
            return Ok(false);
        };
        if here.files == there.files {
            return Ok(true);
        }
        let offset = u64::from(address.offset()) - deleted_before;
        let now = RowIndex::new(later.rows.first_of(position).get() + offset);
        Ok(describe::row_json(self, row).await? == describe::row_json(later, now).await?
            && self.has_same_values(row, later, now).await?)
    }

    /// How many rows before an address are deleted in its fragment; `None` where it is itself.
    async fn deleted_before(
        &self,
        fragment: &Fragment,
        address: RowAddress,
    ) -> Result<Option<u64>> {
        let file = self.dataset.get_fragment(units::usize_of(fragment.id));
        let Some(file) = file else { return Ok(None) };
        self.locator.check_rows(fragment)?;
        sound::check(&self.dataset, fragment, Fields::Of(Vec::new())).await?;
        let what = || "read which rows are deleted".to_owned();
        let deleted = guard::within(what, file.get_deletion_vector()).await?;
        let Some(deleted) = deleted else { return Ok(Some(0)) };
        if deleted.contains(address.offset()) {
            return Ok(None);
        }
        let before = deleted.iter().filter(|offset| *offset < address.offset()).count();
        Ok(Some(units::u64_of(before)))
    }

    async fn has_same_values(&self, row: RowIndex, later: &Self, now: RowIndex) -> Result<bool> {
        let (here, there) = (self.row(row).await?, later.row(now).await?);
        for (leaf, _) in self.leaves.shape.indexed() {
            let count = here.page.chain(leaf)?.count(here.at);
            if later.leaf(leaf).is_err() || count != there.page.chain(leaf)?.count(there.at) {
                return Ok(false);
            }
            for ordinal in (0..count).map(Ordinal::new) {
                let before = self.value_or_none(&here, leaf, ordinal).await?;
                let after = later.value_or_none(&there, leaf, ordinal).await?;
                let same = match (before, after) {
                    (None, None) => true,
                    (Some(before), Some(after)) => self.are_same(&before, &after).await?,
                    _ => false,
                };
                if !same {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    async fn value_or_none(
        &self,
        row: &Row,
        leaf: LeafIndex,
        ordinal: Ordinal,
    ) -> Result<Option<Value>> {
        match self.value(row, leaf, ordinal).await {
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            value => value.map(Some),
        }
    }

    async fn are_same(&self, before: &Value, after: &Value) -> Result<bool> {
        let is_inline = |value: &Value| value.located.kind == BlobKind::Inline;
        if !is_inline(before) || !is_inline(after) {
            let place = |value: &Value| {
                let object = &value.located.object;
                (object.store.clone(), object.uri.clone(), value.interval)
            };
            return Ok(place(before) == place(after));
        }
        if before.interval.len != after.interval.len {
            return Ok(false);
        }
        let bytes = async |value: &Value| {
            self.opener.open(&value.located.object)?.read(value.interval).await
        };
        Ok(bytes(before).await? == bytes(after).await?)
    }
}
