//! How a URI that somebody wants a row to refer to is recorded (spec, "Writer Policy").
//!
//! ```text
//! beneath a registered base that is trusted or allowed, and is no dataset root
//!                                                      its id, and the path below: the longest base wins
//! else, where --allow-external covers it               0, and the absolute URI
//! else                                                 refused; the refusal names the flag
//! ```
//!
//! 1. A reading mount follows what lies in the table's own bucket; writing does not take that for a
//!    permission: a reference outside of the bases has to be allowed by name.
//! 2. What lies beneath the table itself is the table's: a cleanup may delete it, so it is never
//!    referred to, whatever is allowed.
//! 3. Two spellings of one store are one store: which is which only the crate knows
//!    ([`Source::locate`]), and the crate's own writer compares by the same two functions (lance 14.0.2,
//!    `L:dataset/blob/external.rs:56`).

use std::collections::HashMap;
use std::sync::Arc;

use lance_io::object_store::{ObjectStore, ObjectStoreRegistry};
use lance_table::format::BasePath;
use object_store::path::Path;
use url::Url;

use super::Snapshot;
use super::external::lies_beneath;
use super::source::Source;
use super::uri::redacted;
use super::write::Stored;
use crate::error::{Error, Kind, Result};
use crate::store::Interval;

/// An object's store, as the crate tells stores apart, and its path in it.
type Spot = (String, Path);

impl Snapshot {
    /// How a row of this version refers to an object of somebody else. `interval` is the part of it
    /// that is the value, of at least one byte; `None` is the whole object, and its length is
    /// recorded as unknown (position 0, size 0). Nothing is asked of the object's store.
    ///
    /// # Errors
    /// [`Kind::Denied`] with the flag that would allow it; [`Kind::Invalid`] where it is no absolute
    /// URI of a store that Lance reads, or lies in the table itself.
    pub fn external_target(&self, uri: &str, interval: Option<Interval>) -> Result<Stored> {
        let source = &self.locator.source;
        let url = parse(uri)?;
        let spot = source.locate(url.as_str())?;
        let inside = beneath(&spot, &source.locate(&source.uri)?).is_some();
        if inside || lies_beneath(url.as_str(), &source.uri) {
            let text = format!(
                "{} lies in the table itself, whose files only the table may name: copy the value out of a version directory",
                redacted(uri)
            );
            return Err(Error::new(Kind::Invalid, text));
        }
        let bases = self.dataset.manifest.base_paths.values();
        let bases = bases.filter(|base| self.locator.trusts(base));
        if let Some((base, path)) = longest(&spot, bases, |base| source.locate(base)) {
            return Ok(Stored::External { base, uri: path.to_string(), interval });
        }
        self.locator.policy.permit(url.as_str())?;
        Ok(Stored::External { base: 0, uri: url.into(), interval })
    }
}

impl Source {
    /// The store and path of a URI, without connecting to it.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for a scheme that no store has.
    pub(super) fn locate(&self, uri: &str) -> Result<Spot> {
        locate(self.session().store_registry(), self.params.storage_options(), uri)
    }
}

fn locate(
    registry: Arc<ObjectStoreRegistry>,
    options: Option<&HashMap<String, String>>,
    uri: &str,
) -> Result<Spot> {
    let what = |e| Error::caused(Kind::Invalid, format!("find the store of {}", redacted(uri)), e);
    let store = registry.calculate_object_store_prefix(uri, options).map_err(what)?;
    let path = ObjectStore::extract_path_from_uri(registry, uri).map_err(what)?;
    Ok((store, path))
}

/// An absolute URI without tricks.
fn parse(uri: &str) -> Result<Url> {
    let wrong = |why: &str| Error::new(Kind::Invalid, format!("{} {why}", redacted(uri)));
    let url = Url::parse(uri).map_err(|_| wrong("is no absolute URI"))?;
    // Literal dots are gone after parsing; encoded slashes can hide some.
    let decoded = percent_encoding::percent_decode_str(url.path()).decode_utf8();
    let decoded = decoded.map_err(|_| wrong("has a path that is not UTF-8"))?;
    if decoded.split('/').any(|part| part == ".." || part == ".") {
        return Err(wrong("has a path with .. or . in it"));
    }
    Ok(url)
}

/// The base that a spot lies beneath, and its path from there.
fn longest<'a>(
    spot: &Spot,
    bases: impl Iterator<Item = &'a BasePath>,
    locate: impl Fn(&str) -> Result<Spot>,
) -> Option<(u32, Path)> {
    let mut best: Option<(usize, u32, Path)> = None;
    for base in bases.filter(|base| !base.is_dataset_root) {
        // A base that cannot be understood is nobody's reason to refuse what lies elsewhere.
        let Ok(root) = locate(&base.path) else { continue };
        let Some(path) = beneath(spot, &root) else { continue };
        let depth = root.1.parts().count();
        // Two bases at one place: the lower id, so that the same URI is always recorded alike.
        let better = best
            .as_ref()
            .is_none_or(|(known, id, _)| depth > *known || depth == *known && base.id < *id);
        if better {
            best = Some((depth, base.id, path));
        }
    }
    best.map(|(_, id, path)| (id, path))
}

/// The path of a spot from a root, compared by components; `None` where it is not beneath it.
fn beneath((store, path): &Spot, (root_store, root): &Spot) -> Option<Path> {
    let below: Path = path.prefix_match(root).filter(|_| store == root_store)?.collect();
    (!below.as_ref().is_empty()).then_some(below)
}

#[cfg(test)]
mod tests {
    use arrow_array::{RecordBatch, RecordBatchIterator};
    use arrow_schema::Schema;
    use lance::blob::{BlobArrayBuilder, blob_field};
    use lance::dataset::{Dataset, WriteParams};

    use super::*;
    use crate::table::{Options, Policy, Storage, Table};
    use crate::units::{ByteLen, ObjectOffset};

    /// A table with a value and these bases: id, is it a dataset root, path.
    async fn table(folder: &std::path::Path, bases: &[(u32, bool, &str)]) -> String {
        let uri = folder.join("t.lance").to_str().unwrap().to_owned();
        let schema = Arc::new(Schema::new(vec![blob_field("blob", true)]));
        let mut blobs = BlobArrayBuilder::new(1);
        blobs.push_bytes(b"x").unwrap();
        let batch = RecordBatch::try_new(schema.clone(), vec![blobs.finish().unwrap()]).unwrap();
        let base = |(id, root, path): &(u32, bool, &str)| {
            BasePath::new(*id, (*path).to_owned(), Some(format!("base{id}")), *root)
        };
        let params = WriteParams {
            data_storage_version: Some("2.2".parse().unwrap()),
            initial_bases: Some(bases.iter().map(base).collect()),
            ..WriteParams::default()
        };
        let batches = RecordBatchIterator::new([Ok(batch)], schema);
        Dataset::write(batches, &uri, Some(params)).await.unwrap();
        uri
    }

    async fn target(table: &str, allow: &[&str], uri: &str) -> Result<Stored> {
        let allow: Vec<String> = allow.iter().map(|text| (*text).to_owned()).collect();
        let options = Options {
            policy: Policy::new(&allow).unwrap(),
            storage: Storage::new(HashMap::new(), None).unwrap(),
            ..Options::default()
        };
        let table = Table::open(table, options).await.unwrap();
        let entry = table.catalog.latest(None).await.unwrap();
        let snapshot = table.snapshot(table.numbers.slot(&entry.id)).await.unwrap();
        snapshot.external_target(uri, None)
    }

    fn external(base: u32, uri: &str) -> Stored {
        Stored::External { base, uri: uri.to_owned(), interval: None }
    }

    #[test]
    fn the_longest_base_is_found() {
        let registry = Arc::new(ObjectStoreRegistry::default());
        let spot = |uri: &str| locate(registry.clone(), None, uri);
        let bases = [
            BasePath::new(7, "s3://b/media/a/".to_owned(), None, false),
            BasePath::new(1, "s3://b/media".to_owned(), None, false),
            BasePath::new(2, "s3://b/media/a".to_owned(), None, false),
            BasePath::new(3, "s3://b/media/a/set.lance".to_owned(), None, true),
            BasePath::new(4, "/srv/media".to_owned(), None, false),
            BasePath::new(5, "nowhere://x".to_owned(), None, false),
            BasePath::new(6, "s3://whole".to_owned(), None, false),
        ];
        for (uri, wanted) in [
            ("s3://b/media/x.jpg", Some((1, "x.jpg"))),
            ("s3://b/media/a/x.jpg", Some((2, "x.jpg"))),
            ("s3://b/media/a/deep/x%20y.jpg", Some((2, "deep/x y.jpg"))),
            // A dataset root is no base of references; the one around it is.
            ("s3://b/media/a/set.lance/x", Some((2, "set.lance/x"))),
            ("s3://b/media/ab/x", Some((1, "ab/x"))),
            ("file:///srv/media/x", Some((4, "x"))),
            ("s3://whole/x", Some((6, "x"))),
            ("s3://b/mediax/x", None),
            ("s3://c/media/x", None),
            ("gs://b/media/x", None),
            ("s3://b/media", None),
            ("s3://b/x", None),
            ("file:///srv/mediax", None),
        ] {
            let found = longest(&spot(uri).unwrap(), bases.iter(), spot);
            let found = found.map(|(base, path)| (base, path.to_string()));
            assert_eq!(found, wanted.map(|(base, path)| (base, path.to_owned())), "{uri}");
        }
    }

    #[tokio::test]
    async fn what_no_base_holds_needs_the_flag() {
        let folder = tempfile::tempdir().unwrap();
        let table = table(folder.path(), &[(1, false, "file:///srv/media")]).await;
        // The table's own bucket is no permission to write, nor is another table's root.
        for uri in ["s3://b/x", "file:///srv/mediax", "file:///srv/media/x", "file:///etc/passwd"] {
            let error = target(&table, &[], uri).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Denied, "{uri}: {error}");
            assert!(error.to_string().contains("--allow-external"), "{error}");
        }
        for uri in ["s3://b/x", "file:///srv/mediax", "file:///srv/media", "file:///etc/passwd"] {
            assert_eq!(target(&table, &["*"], uri).await.unwrap(), external(0, uri), "{uri}");
        }
        for flag in ["/srv", "/srv/media", "*"] {
            let dots = target(&table, &[flag], "file:///srv/./media/y/../x").await.unwrap();
            assert_eq!(dots, external(1, "x"), "{flag}");
        }
        // A flag for a part of a base is none for the base.
        let part = target(&table, &["/srv/media/y"], "file:///srv/media/y/x").await.unwrap();
        assert_eq!(part, external(0, "file:///srv/media/y/x"));
    }

    #[tokio::test]
    async fn what_is_the_tables_own_is_not_referred_to() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().to_str().unwrap();
        let table = table(folder.path(), &[(1, false, base)]).await;
        for scheme in ["file", "file+uring"] {
            for path in ["data/x", "tree/branch/data/x", "_blobs/x.blob"] {
                let uri = format!("{scheme}://{table}/{path}");
                let error = target(&table, &["*"], &uri).await.unwrap_err();
                assert_eq!(error.kind(), Kind::Invalid, "{uri}");
                assert!(error.to_string().contains("in the table itself"), "{error}");
            }
        }
        let beside = target(&table, &[base], &format!("file://{base}/beside")).await.unwrap();
        assert_eq!(beside, external(1, "beside"));
    }

    #[tokio::test]
    async fn no_trick_leaves_a_base_and_no_unknown_store_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let table = table(folder.path(), &[(1, false, "file:///srv/media")]).await;
        for (uri, hint) in [
            ("file:///srv/media/..%2f..%2fetc/passwd", "with .. or . in it"),
            ("file:///srv/media/%ff", "not UTF-8"),
            ("https://host/x", "find the store of https://host/x"),
            ("nowhere://x/y", "find the store of"),
            ("relative", "is no absolute URI"),
        ] {
            let error = target(&table, &["*"], uri).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid, "{uri}");
            assert!(error.to_string().contains(hint), "{error}");
        }
        let error = target(&table, &[], "file:///srv/media/../../etc/passwd").await.unwrap_err();
        assert_eq!(error.kind(), Kind::Denied);
    }

    #[tokio::test]
    async fn a_range_is_recorded() {
        let folder = tempfile::tempdir().unwrap();
        let table = table(folder.path(), &[(1, false, "file:///srv/media")]).await;
        let interval = Interval { offset: ObjectOffset::new(100), len: ByteLen::new(50) };
        let policy = Policy::new(&["/srv/media".to_owned()]).unwrap();
        let table = Table::open(&table, Options { policy, ..Options::default() }).await.unwrap();
        let entry = table.catalog.latest(None).await.unwrap();
        let snapshot = table.snapshot(table.numbers.slot(&entry.id)).await.unwrap();
        let stored = snapshot.external_target("file:///srv/media/x", Some(interval)).unwrap();
        assert_eq!(stored, Stored::External { base: 1, uri: "x".into(), interval: Some(interval) });
    }
}
