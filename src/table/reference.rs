//! Values that a commit adopts without moving their bytes (spec, "Rewrites": Packed and Dedicated
//! become Managed by their path relative to the base).

use object_store::path::Path;

use super::descriptor::{self, Descriptor, Target};
use super::locate::Locator;
use super::{Row, Snapshot, Table};
use crate::error::{Error, Kind, Result};
use crate::staging::Reference;
use crate::store::{Interval, ObjectRef, bare_tag};
use crate::tree::{LeafIndex, SnapshotId};
use crate::units::{Ordinal, Version};

impl Snapshot {
    /// A value as a staged file refers to it; `None` for one that no commit can adopt: Inline,
    /// External, of a legacy column or of a branch.
    ///
    /// # Errors
    /// As [`Snapshot::value`].
    pub fn reference(
        &self,
        row: &Row,
        (leaf, ordinal): (LeafIndex, Ordinal),
        interval: Interval,
    ) -> Result<Option<Reference>> {
        if self.id.branch.is_some() {
            return Ok(None);
        }
        let chain = row.page.chain(leaf)?;
        let Some(element) = chain.at(row.at, ordinal) else { return Ok(None) };
        let Some(found) = descriptor::read(chain.descriptors(), element.position)? else {
            return Ok(None);
        };
        let field = self.leaf(leaf)?.field_id;
        let adopted = self.locator.adoptable(row.page.fragment(), field, &found)?;
        Ok(adopted.map(|(base, path)| Reference {
            version: self.id.version.get(),
            manifest: self.id.manifest.to_string(),
            base,
            path,
            offset: interval.offset.get(),
            len: interval.len.get(),
        }))
    }
}

impl Locator {
    /// The base of an object and its path there, as a Managed descriptor names it.
    fn adoptable(
        &self,
        fragment: usize,
        field_id: i32,
        descriptor: &Descriptor,
    ) -> Result<Option<(Option<u32>, String)>> {
        match &descriptor.target {
            Target::Sidecar(id) => {
                let (base, path) = self.sidecar(fragment, field_id, *id)?;
                let root = self.base_root(base)?;
                let beneath = path.prefix_match(&root).ok_or_else(|| {
                    Error::new(Kind::Descriptor, format!("{path} is not beneath its base {root}"))
                })?;
                let parts: Vec<_> = beneath.map(|part| part.as_ref().to_owned()).collect();
                Ok(Some((base, parts.join("/"))))
            }
            Target::Managed(None, path) => {
                Ok(Some((self.data_file(fragment, field_id)?.base_id, path.to_string())))
            }
            Target::Managed(base, path) => Ok(Some((*base, path.to_string()))),
            Target::DataFile | Target::ExternalUri(_) | Target::ExternalPath(..) => Ok(None),
        }
    }
}

impl Table {
    /// The object that a staged file refers to.
    ///
    /// # Errors
    /// [`Kind::Stale`] where its version is gone, [`Kind::Descriptor`] for a path or base that
    /// cannot be.
    pub async fn referred(&self, reference: &Reference) -> Result<ObjectRef> {
        let id = SnapshotId {
            branch: None,
            version: Version::new(reference.version),
            manifest: bare_tag(&reference.manifest).into(),
        };
        let snapshot = self.snapshot(self.numbers.slot(&id)).await?;
        let path = Path::parse(&reference.path).map_err(|e| {
            Error::caused(Kind::Descriptor, format!("reference to {:?}", reference.path), e)
        })?;
        snapshot.locator.beneath_base(reference.base, &path).await
    }
}
