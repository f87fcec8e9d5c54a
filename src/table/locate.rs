//! From a descriptor to the object and interval that hold the value.
//!
//! The crate's own resolution is private, resolves a whole selection at once so that one missing
//! object fails all, cannot address elements of lists, and ignores the base of legacy files (lance
//! 14.0.2, `L:dataset/blob/locate.rs`). The rules are the spec's: "External Resolution", "Managed
//! Resolution", "Sidecar Resolution". Beneath what an object is opened `bases` decides.
//!
//! Release 2.0.1 named sidecars in another way (`00000001.blob`: eight hex digits of the id), and no
//! file says which release wrote it. So a sidecar is looked for under both names, until one of its
//! data file is found under the older ([`Located::older`]).

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use lance::Dataset;
use lance_core::utils::blob::blob_path;
use lance_io::local::to_local_path;
use lance_io::object_store::ObjectStore;
use lance_table::format::{BasePath, DataFile};
use object_store::path::Path;
use url::Url;

use super::bases::Ground;
use super::descriptor::{BlobKind, Descriptor, Extent, Target};
use super::external::{Policy, lies_beneath};
use super::fault;
use super::source::{Source, is_local};
use super::storage::told_apart;
use super::uri::{parts_of_store, redacted};
use crate::error::{Error, Kind, Result};
use crate::store::{LocalPlace, ObjectRef, Origin, Owner, Place};

/// A value's place.
#[derive(Clone, Debug)]
pub struct Located {
    /// How it is stored.
    pub kind: BlobKind,
    /// In which object.
    pub object: ObjectRef,
    /// In which part.
    pub extent: Extent,
    /// A sidecar that is not there under its name may be here.
    pub older: Option<Older>,
}

/// Another name of a sidecar.
#[derive(Clone, Debug)]
pub struct Older {
    /// The object of that name.
    pub object: ObjectRef,
    /// The data file that it belongs to, whose other sidecars then are named alike.
    pub data_file: String,
}

/// Resolves the descriptors of one snapshot.
pub struct Locator {
    /// The snapshot.
    pub dataset: Arc<Dataset>,
    /// The table's store and storage options.
    pub source: Arc<Source>,
    /// Which External references are followed.
    pub policy: Arc<Policy>,
    /// What names its objects.
    origin: Origin,
    /// What tells the stores of the table and of its bases apart, beyond their names.
    pub(super) stores: HashMap<Option<u32>, String>,
}

impl Locator {
    /// Resolves the descriptors of a snapshot that is open.
    pub fn new(
        dataset: Arc<Dataset>,
        source: Arc<Source>,
        policy: Arc<Policy>,
        origin: Origin,
    ) -> Self {
        let bases = dataset.manifest.base_paths.keys().copied().map(Some).chain([None]);
        let stores = bases.map(|base| (base, told_apart(&source.params, base))).collect();
        Self { dataset, source, policy, origin, stores }
    }

    /// Resolves a descriptor of a row in a fragment. Only a base or bucket that is met for the
    /// first time costs a wait (for credentials); no request is sent.
    ///
    /// # Errors
    /// [`Kind::Descriptor`] for an unknown base or an unusable URI, [`Kind::Denied`] by policy or for
    /// a base that is not trusted.
    pub async fn locate(
        &self,
        fragment: usize,
        field_id: i32,
        descriptor: &Descriptor,
    ) -> Result<Located> {
        let mut older = None;
        let object = match &descriptor.target {
            Target::DataFile => {
                let file = self.data_file(fragment, field_id)?;
                let directory = self.data_directory(file)?;
                self.object(file.base_id, directory.join(file.path.as_str())).await?
            }
            Target::Sidecar(id) => {
                let (base, path) = self.sidecar(fragment, field_id, *id)?;
                let data_file = &self.data_file(fragment, field_id)?.path;
                if !self.source.has_renamed(data_file) {
                    let path = older_name(&path, *id);
                    let (object, data_file) = (self.object(base, path).await?, data_file.clone());
                    older = Some(Older { object, data_file });
                }
                self.object(base, path).await?
            }
            Target::Managed(None, path) => {
                let base = self.data_file(fragment, field_id)?.base_id;
                self.beneath_base(base, path).await?
            }
            Target::Managed(Some(base), path) | Target::ExternalPath(base, path) => {
                self.beneath_base(Some(*base), path).await?
            }
            Target::ExternalUri(uri) => self.external(uri).await?,
        };
        let object = match descriptor.kind {
            BlobKind::External => ObjectRef { owner: Owner::Others, ..object },
            _ => object,
        };
        Ok(Located { kind: descriptor.kind, object, extent: descriptor.extent, older })
    }

    /// The object at a path beneath a base; `None` is the root of the snapshot's branch.
    ///
    /// # Errors
    /// [`Kind::Descriptor`] for an unknown base.
    pub(super) async fn beneath_base(&self, base: Option<u32>, path: &Path) -> Result<ObjectRef> {
        self.object(base, beneath(&self.base_root(base)?, path)).await
    }

    /// The base and the whole path of a sidecar (spec, "Sidecar Resolution").
    pub(super) fn sidecar(
        &self,
        fragment: usize,
        field_id: i32,
        id: u32,
    ) -> Result<(Option<u32>, Path)> {
        let file = self.data_file(fragment, field_id)?;
        let path = blob_path(&self.data_directory(file)?, data_file_key(&file.path), id);
        let is_renamed = self.source.has_renamed(&file.path);
        Ok((file.base_id, if is_renamed { older_name(&path, id) } else { path }))
    }

    /// The file that supplies a field of a fragment.
    pub(super) fn data_file(&self, fragment: usize, field_id: i32) -> Result<&DataFile> {
        let fragment = self.dataset.manifest.fragments.get(fragment);
        let file =
            fragment.and_then(|f| f.files.iter().find(|file| file.fields.contains(&field_id)));
        file.ok_or_else(|| {
            Error::new(Kind::Table, format!("no data file supplies field {field_id}"))
        })
    }

    /// `<root>/data`, `<base>/data` or `<base>`: spec, "Sidecar Resolution".
    pub(super) fn data_directory(&self, file: &DataFile) -> Result<Path> {
        let Some(id) = file.base_id else { return Ok(self.dataset.data_dir()) };
        let root = self.base_root(Some(id))?;
        Ok(if self.base(id)?.is_dataset_root { root.join("data") } else { root })
    }

    /// The root of a base; without one, of the snapshot's branch.
    pub(super) fn base_root(&self, base: Option<u32>) -> Result<Path> {
        let Some(id) = base else { return Ok(self.dataset.branch_location().path) };
        let base = self.base(id)?;
        let path = base.extract_path(self.source.session().store_registry());
        path.map_err(|e| {
            Error::caused(Kind::Descriptor, format!("base {id} at {}", redacted(&base.path)), e)
        })
    }

    pub(super) fn base(&self, id: u32) -> Result<&BasePath> {
        self.dataset.manifest.base_paths.get(&id).ok_or_else(|| {
            Error::new(Kind::Descriptor, format!("invalid descriptor: unknown base_id {id}"))
        })
    }

    async fn object(&self, base: Option<u32>, path: Path) -> Result<ObjectRef> {
        let ground = self.ground(base)?;
        let store = self.dataset.object_store(base).await;
        let store = store.map_err(|e| fault::of(format!("open the store of base {base:?}"), e))?;
        let root = match base {
            Some(id) => self.base(id)?.path.as_str(),
            None => &self.source.uri,
        };
        Ok(self.object_in(&store, base, Some(ground), path, root))
    }

    /// The object of a path in a store that is a base's, on its ground; without one, where the user
    /// allowed it to be.
    fn object_in(
        &self,
        store: &ObjectStore,
        base: Option<u32>,
        ground: Option<Ground>,
        path: Path,
        within: &str,
    ) -> ObjectRef {
        let (uri, place) = if is_local(store.scheme()) {
            self.local(ground, &path)
        } else {
            let uri = uri_of(&path, within);
            (uri, Place::Remote(store.inner.clone(), path))
        };
        let options = self.stores.get(&base).map_or("", String::as_str);
        let store = format!("{} {options}", store.store_prefix).into();
        ObjectRef { uri, place, store, owner: Owner::Lance(self.origin.clone()) }
    }

    fn local(&self, ground: Option<Ground>, path: &Path) -> (Arc<str>, Place) {
        let (path, allowed) = (PathBuf::from(to_local_path(path)), self.policy.local());
        let uri =
            Url::from_file_path(&path).map_or_else(|()| path.display().to_string(), String::from);
        let place = match ground {
            Some(Ground::Folder(folder)) => LocalPlace::within(folder, path, allowed),
            Some(Ground::Store) | None => LocalPlace::allowed(path, allowed),
        };
        (uri.into(), Place::Local(place))
    }

    /// The object of an absolute URI, if the policy lets it be read (spec, "External Resolution").
    ///
    /// # Errors
    /// [`Kind::Denied`] by policy, [`Kind::Descriptor`] for an unusable URI.
    pub async fn external(&self, uri: &str) -> Result<ObjectRef> {
        let bases = self.dataset.manifest.base_paths.values();
        let mut around = bases.filter(|base| lies_beneath(uri, &base.path));
        let ground = around.find_map(|base| self.ground_of(base).ok());
        if ground.is_none() {
            self.policy.check(uri, &self.source.uri)?;
        }
        let unusable = || {
            Error::new(
                Kind::Descriptor,
                format!("invalid descriptor: {:?} is no absolute URI", redacted(uri)),
            )
        };
        let url =
            if uri.starts_with('/') { Url::from_file_path(uri).ok() } else { Url::parse(uri).ok() };
        let url = url.ok_or_else(unusable)?;
        let (store, path) = self.source.resolve(&url).await?;
        let object = self.object_in(&store, None, ground, path, uri);
        Ok(ObjectRef { owner: Owner::Others, ..object })
    }
}

/// The URI of an object of a store, for people.
fn uri_of(path: &Path, within: &str) -> Arc<str> {
    let uri = Url::parse(within).map_or_else(
        |_| path.to_string(),
        |mut url| {
            let depth = parts_of_store(url.scheme());
            let store = url.path().split('/').filter(|part| !part.is_empty()).take(depth);
            let whole: Vec<&str> = store.chain([path.as_ref()]).collect();
            let whole = whole.join("/");
            url.set_path(&whole);
            redacted(url.as_str())
        },
    );
    uri.into()
}

fn beneath(base: &Path, relative: &Path) -> Path {
    base.parts().chain(relative.parts()).collect()
}

/// The name that release 2.0.1 gave a sidecar.
fn older_name(path: &Path, id: u32) -> Path {
    let parts: Vec<_> = path.parts().collect();
    let folder = &parts[..parts.len().saturating_sub(1)];
    folder.iter().cloned().chain([format!("{id:08x}.blob").into()]).collect()
}

/// The final component of a data file's path without `.lance`: spec, "Sidecar Resolution".
fn data_file_key(path: &str) -> &str {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.strip_suffix(".lance").unwrap_or(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_named_by_its_whole_uri() {
        let uri = |within, path| uri_of(&Path::from(path), within).to_string();
        assert_eq!(uri("s3://b/t.lance", "t.lance/data/x"), "s3://b/t.lance/data/x");
        let repository = "hf://datasets/acme/pub/t.lance";
        assert_eq!(uri(repository, "t.lance/x"), format!("{repository}/x"));
    }

    #[test]
    fn a_sidecar_had_another_name_once() {
        let path = blob_path(&Path::from("t.lance/data"), "a", 26);
        assert_eq!(older_name(&path, 26), Path::from("t.lance/data/a/0000001a.blob"));
    }

    #[test]
    fn sidecars_are_named_by_the_stem_of_the_data_file() {
        assert_eq!(data_file_key("a.lance"), "a");
        assert_eq!(data_file_key("sub/dir/a.b.lance"), "a.b");
        assert_eq!(data_file_key("plain"), "plain");
    }
}
