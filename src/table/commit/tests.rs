//! Exactly once, against a table on disk.

use std::path::PathBuf;

use arrow_array::{Array as _, Int32Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use async_trait::async_trait;
use futures::future::join_all;
use lance::dataset::transaction::Operation;
use lance_table::format::{IndexMetadata, Manifest};
use lance_table::io::commit::{
    CommitError, ManifestLocation, ManifestNamingScheme, ManifestWriter,
};
use tempfile::TempDir;

use super::*;
use crate::table::Options;

const PATIENCE: Duration = Duration::from_secs(30);

fn rows(values: &[i32]) -> RecordBatch {
    let schema = Arc::new(Schema::new(vec![Field::new("n", DataType::Int32, true)]));
    RecordBatch::try_new(schema, vec![Arc::new(Int32Array::from(values.to_vec()))]).unwrap()
}

/// A table of one version with one row.
async fn table() -> (TempDir, Table) {
    let folder = tempfile::tempdir().unwrap();
    let uri = folder.path().join("t.lance").to_str().unwrap().to_owned();
    InsertBuilder::new(uri.as_str()).execute(vec![rows(&[0])]).await.unwrap();
    let table = Table::open(&uri, Options::default()).await.unwrap();
    (folder, table)
}

async fn contents(table: &Table) -> (u64, usize) {
    let newest = table.look_newest().await.unwrap();
    (newest.id.version.get(), newest.dataset.count_rows(None).await.unwrap())
}

/// Publishes a change, whose batch is in no version up to 1.
async fn publish(table: &Table, change: &Prepared, batch: Uuid) -> u64 {
    table.publish(&publication(change, batch), |_| Ok(())).await.unwrap()
}

fn publication(change: &Prepared, batch: Uuid) -> Publication<'_> {
    let chances = Chances::none_up_to(1);
    Publication { change, batch, chances, patience: PATIENCE }
}

async fn find(table: &Table, batch: Uuid, since: u64) -> Result<Found> {
    table.find_batch(batch, &mut Chances::none_up_to(since), PATIENCE).await
}

async fn prepared(table: &Table, values: &[i32]) -> Prepared {
    let newest = table.look_newest().await.unwrap();
    let changes = Changes { appended: vec![rows(values)], ..Changes::default() };
    table.prepare(&newest, changes).await.unwrap()
}

#[tokio::test]
async fn a_change_whose_file_is_short_is_not_published() {
    let (folder, table) = table().await;
    let newest = table.look_newest().await.unwrap();
    let written = table.write_append(newest.dataset.clone(), vec![rows(&[1])]).await.unwrap();
    whole::check(&newest.dataset, &written).await.unwrap();
    let Operation::Append { fragments } = &written.transaction.operation else {
        panic!("{written:?}")
    };
    let file = folder.path().join("t.lance/data").join(&fragments[0].files[0].path);
    let file = std::fs::File::options().write(true).open(file).unwrap();
    file.set_len(file.metadata().unwrap().len() - 1).unwrap();
    let error = whole::check(&newest.dataset, &written).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Payload, "{error}");
}

#[tokio::test]
async fn a_change_that_reads_back_otherwise_is_not_published() {
    let (folder, table) = table().await;
    let newest = table.look_newest().await.unwrap();
    let values = [0x1122_3344, 5, 6];
    let written = table.write_append(newest.dataset.clone(), vec![rows(&values)]).await.unwrap();
    let Operation::Append { fragments } = &written.transaction.operation else { panic!() };
    let file = folder.path().join("t.lance/data").join(&fragments[0].files[0].path);
    let mut bytes = std::fs::read(&file).unwrap();
    let value = values[0].to_le_bytes();
    let at = bytes.windows(4).position(|window| window == value).unwrap();
    bytes[at] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let error = whole::check(&newest.dataset, &written).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Payload, "{error}");
    assert!(error.chain().contains("column n has other values"), "{}", error.chain());
    assert!(!file.exists(), "what no version names is taken away");
}

#[tokio::test]
async fn a_change_that_nobody_can_decode_is_not_published() {
    use arrow_array::types::Int8Type;
    use arrow_array::{DictionaryArray, Int8Array, StringArray};
    let folder = tempfile::tempdir().unwrap();
    let uri = folder.path().join("t.lance").to_str().unwrap().to_owned();
    // Dictionaries of their own: the file writer joins them, and runs out of keys.
    let batch = |first: usize| {
        let words: Vec<String> = (0..100).map(|n| format!("w{}", (n * 7 + first) % 100)).collect();
        let keys = Int8Array::from_iter_values(0..100);
        let words = DictionaryArray::<Int8Type>::new(keys, Arc::new(StringArray::from(words)));
        let field = Field::new("word", words.data_type().clone(), true);
        RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![Arc::new(words)]).unwrap()
    };
    InsertBuilder::new(uri.as_str()).execute(vec![batch(0)]).await.unwrap();
    let table = Table::open(&uri, Options::default()).await.unwrap();
    let newest = table.look_newest().await.unwrap();
    let appended = (0..20).map(|n| batch(n * 13)).collect();
    let changes = Changes { appended, ..Changes::default() };
    let error = table.prepare(&newest, changes).await.unwrap_err();
    assert!(error.chain().contains("does not come back"), "{}", error.chain());
    assert_eq!(contents(&table).await, (1, 100));
}

#[tokio::test]
async fn a_batch_that_is_in_the_table_is_not_published_again() {
    let (_folder, table) = table().await;
    let batch = Uuid::new_v4();
    let change = prepared(&table, &[1, 2]).await;
    assert!(matches!(find(&table, batch, 1).await.unwrap(), Found::NotUpTo(_)));
    let mut tried = Vec::new();
    let trying = |on| {
        tried.push(on);
        Ok(())
    };
    assert_eq!(table.publish(&publication(&change, batch), trying).await.unwrap(), 2);
    assert_eq!(tried, [1]);
    assert_eq!(find(&table, batch, 1).await.unwrap(), Found::In(2));
    // Another process, which does not know that it took place, with files of its own.
    let again = prepared(&table, &[1, 2]).await;
    let never = |_| panic!("it was tried again");
    assert_eq!(table.publish(&publication(&again, batch), never).await.unwrap(), 2);
    assert_eq!(contents(&table).await, (2, 3));
}

#[tokio::test]
async fn a_write_that_was_lost_on_its_way_excludes_the_next_attempt() {
    let (_folder, table) = table().await;
    let batch = Uuid::new_v4();
    let change = prepared(&table, &[1]).await;
    let dataset = table.look_newest().await.unwrap().dataset.clone();
    // It was looked for in every version up to 1; then the lost write arrives as version 2.
    let (publication, handler) = (publication(&change, batch), table.source.handler());
    table.attempt(&handler, &publication, dataset.clone(), 2).await.unwrap();
    let (second, written) = table.attempt(&handler, &publication, dataset, 2).await.unwrap_err();
    assert!(is_conflict(&second), "{second}");
    assert_eq!(written, Written::No);
    assert_eq!(contents(&table).await, (2, 2));
}

#[tokio::test]
async fn many_writers_at_once_all_land_once() {
    let (_folder, table) = table().await;
    let batches: Vec<Uuid> = (0..12).map(|_| Uuid::new_v4()).collect();
    let published = join_all(batches.iter().map(|batch| async {
        let change = prepared(&table, &[7]).await;
        publish(&table, &change, *batch).await
    }))
    .await;
    let mut versions = published.clone();
    versions.sort_unstable();
    versions.dedup();
    assert_eq!(versions.len(), 12, "{published:?}");
    assert_eq!(contents(&table).await, (13, 13));
    for (batch, version) in batches.iter().zip(published) {
        assert_eq!(find(&table, *batch, 1).await.unwrap(), Found::In(version));
    }
}

#[tokio::test]
async fn where_versions_were_removed_nobody_says_that_the_batch_is_not_there() {
    let (folder, table) = table().await;
    let batch = Uuid::new_v4();
    for n in 1..4 {
        let change = prepared(&table, &[n]).await;
        publish(&table, &change, Uuid::new_v4()).await;
    }
    assert!(matches!(find(&table, batch, 1).await.unwrap(), Found::NotUpTo(_)));
    let versions = table.catalog.look().await.unwrap();
    let third = &versions[&Version::new(3)].manifest;
    let name = third.filename().unwrap();
    std::fs::remove_file(folder.path().join("t.lance/_versions").join(name)).unwrap();
    assert_eq!(find(&table, batch, 1).await.unwrap_err().kind(), Kind::Busy);
    assert_eq!(find(&table, batch, 3).await.unwrap(), Found::NotUpTo(4));
}

/// Writes a manifest, and then says that somebody else had done so, in a store that says nothing more.
#[derive(Debug)]
struct Lossy {
    inner: Arc<dyn CommitHandler>,
    versions: PathBuf,
}

#[async_trait]
impl CommitHandler for Lossy {
    fn is_version_not_found_definitive(&self) -> bool {
        true
    }

    async fn commit(
        &self,
        manifest: &mut Manifest,
        indices: Option<Vec<IndexMetadata>>,
        base_path: &object_store::path::Path,
        object_store: &lance_io::object_store::ObjectStore,
        manifest_writer: ManifestWriter,
        naming_scheme: ManifestNamingScheme,
        transaction: Option<lance_table::format::Transaction>,
    ) -> std::result::Result<ManifestLocation, CommitError> {
        let write = self.inner.commit(
            manifest,
            indices,
            base_path,
            object_store,
            manifest_writer,
            naming_scheme,
            transaction,
        );
        write.await?;
        std::fs::rename(&self.versions, self.versions.with_extension("away")).unwrap();
        Err(CommitError::CommitConflict)
    }
}

#[tokio::test]
async fn after_a_write_whose_answer_is_lost_no_other_failure_says_that_it_is_not_there() {
    let (folder, table) = table().await;
    let batch = Uuid::new_v4();
    let change = prepared(&table, &[1]).await;
    let versions = folder.path().join("t.lance/_versions");
    let lossy: Arc<dyn CommitHandler> =
        Arc::new(Lossy { inner: table.source.handler(), versions: versions.clone() });
    let publication = publication(&change, batch);
    let mut tried = Vec::new();
    let trying = |on| {
        tried.push(on);
        Ok(())
    };
    let failed = table.publish_through(&lossy, &publication, trying).await.unwrap_err();
    let Unpublished::Unclear(error) = failed else { panic!("{failed:?}") };
    // The first failure was a conflict, which would be tried again; what ends it is the search.
    assert_eq!((error.kind(), &tried[..]), (Kind::Stale, &[1][..]), "{error}");
    std::fs::rename(versions.with_extension("away"), &versions).unwrap();
    let again = Publication { chances: Chances::after(1, 1), ..publication };
    let never = |_| panic!("it was tried again");
    assert_eq!(table.publish(&again, never).await.unwrap(), 2);
    assert_eq!(contents(&table).await, (2, 2));
}

#[tokio::test]
async fn what_may_still_arrive_is_unclear_until_its_version_is_anothers() {
    let (_folder, table) = table().await;
    let batch = Uuid::new_v4();
    let change = prepared(&table, &[1]).await;
    let open = Publication { chances: Chances::after(1, 1), ..publication(&change, batch) };
    let refuse = |_| Err(Error::new(Kind::Internal, "the journal cannot be written"));
    let failed = table.publish(&open, refuse).await.unwrap_err();
    assert!(matches!(failed, Unpublished::Unclear(_)), "{failed:?}");
    let other = prepared(&table, &[2]).await;
    assert_eq!(publish(&table, &other, Uuid::new_v4()).await, 2);
    let failed = table.publish(&open, refuse).await.unwrap_err();
    assert!(matches!(failed, Unpublished::Refused(_)), "{failed:?}");
}
