//! Whether a folder of versions is as it was when it was listed: of many versions a list takes long, and
//! who looks at one of them pays for it once per refresh.
//!
//! 1. A folder of this machine has another time when a name in it comes or goes, which is all that Lance
//!    does: it writes no manifest in its place. A bucket has nothing of the sort, and is listed.
//! 2. What changes while it is listed may have the same time, for clocks of disks are coarse: a folder that
//!    was changed just now is not believed to be as it was ([`SETTLED`]).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use lance_io::local::to_local_path;
use object_store::path::Path;

use super::sound::local::Stamp;
use super::source::{Source, is_local};

/// How long ago a folder must have been changed: far longer than the tick of a disk's clock.
const SETTLED: Duration = Duration::from_secs(2);

/// What the folders of the branches were when they were listed.
#[derive(Default)]
pub struct Stamps(Mutex<HashMap<Option<Arc<str>>, Stamp>>);

impl Stamps {
    /// Whether a branch's folder is as it was.
    pub fn are(&self, branch: Option<&Arc<str>>, now: Option<Stamp>) -> bool {
        let stamps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        now.is_some() && stamps.get(&branch.cloned()).copied() == now
    }

    /// Notes what it was before it was listed.
    pub fn note(&self, branch: Option<Arc<str>>, seen: Option<Stamp>) {
        let mut stamps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match seen {
            Some(seen) => stamps.insert(branch, seen),
            None => stamps.remove(&branch),
        };
    }
}

/// What a folder is, if that tells whether it will have changed.
pub fn stamp(source: &Source, folder: &Path) -> Option<Stamp> {
    if !is_local(source.store.scheme()) {
        return None;
    }
    let meta = std::fs::symlink_metadata(to_local_path(folder)).ok()?;
    let changed = [meta.modified().ok()?, Stamp::changed(&meta)?].into_iter().max()?;
    let age = SystemTime::now().duration_since(changed).ok()?;
    (meta.is_dir() && age > SETTLED).then(|| Stamp::of(&meta))
}

#[cfg(test)]
mod tests {
    use arrow_array::{Int64Array, RecordBatch, RecordBatchIterator};
    use arrow_schema::{DataType, Field, Schema};
    use lance::dataset::{Dataset, WriteMode, WriteParams};

    use super::*;
    use crate::table::{Catalog, Storage};

    async fn commit(uri: &str, mode: WriteMode) {
        let schema = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, true)]));
        let rows = RecordBatch::try_new(schema.clone(), vec![Arc::new(Int64Array::from(vec![1]))]);
        let rows = RecordBatchIterator::new([rows], schema);
        let params = WriteParams { mode, ..WriteParams::default() };
        Dataset::write(rows, uri, Some(params)).await.unwrap();
    }

    #[tokio::test]
    async fn versions_are_listed_again_when_one_has_come_or_gone() {
        let folder = tempfile::tempdir().unwrap();
        let uri = folder.path().join("t.lance").to_str().unwrap().to_owned();
        commit(&uri, WriteMode::Create).await;
        let source = Source::connect(&uri, &Storage::default(), Duration::MAX).await.unwrap();
        let catalog = Catalog::new(Arc::new(source), Duration::ZERO);
        let list = || async { catalog.versions(None).await.unwrap() };
        let (first, second) = (list().await, list().await);
        assert!(!Arc::ptr_eq(&first, &second), "it was changed just now");
        tokio::time::sleep(SETTLED + Duration::from_millis(200)).await;
        let settled = list().await;
        assert!(Arc::ptr_eq(&settled, &list().await), "and is not listed again");
        commit(&uri, WriteMode::Append).await;
        assert_eq!((settled.len(), list().await.len()), (1, 2));
        tokio::time::sleep(SETTLED + Duration::from_millis(200)).await;
        assert_eq!(list().await.len(), 2);
        let manifest = list().await.first_key_value().unwrap().1.manifest.clone();
        std::fs::remove_file(to_local_path(&manifest)).unwrap();
        assert_eq!(list().await.len(), 1);
    }
}
