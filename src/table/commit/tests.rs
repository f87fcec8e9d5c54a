//! Exactly once, against a table on disk.

use arrow_array::{Int32Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use futures::future::join_all;
use lance::dataset::transaction::Operation;
use tempfile::TempDir;

use super::*;
use crate::table::Options;

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
    Publication { change, batch, searched: 1, patience: Duration::from_secs(30) }
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
    let Operation::Append { fragments } = &written.operation else { panic!("{written:?}") };
    let file = folder.path().join("t.lance/data").join(&fragments[0].files[0].path);
    let file = std::fs::File::options().write(true).open(file).unwrap();
    file.set_len(file.metadata().unwrap().len() - 1).unwrap();
    let error = whole::check(&newest.dataset, &written).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Payload, "{error}");
}

#[tokio::test]
async fn a_batch_that_is_in_the_table_is_not_published_again() {
    let (_folder, table) = table().await;
    let batch = Uuid::new_v4();
    let change = prepared(&table, &[1, 2]).await;
    assert!(matches!(table.find_batch(batch, 1).await.unwrap(), Found::NotUpTo(_)));
    let mut tried = Vec::new();
    let trying = |on| {
        tried.push(on);
        Ok(())
    };
    assert_eq!(table.publish(&publication(&change, batch), trying).await.unwrap(), 2);
    assert_eq!(tried, [1]);
    assert_eq!(table.find_batch(batch, 1).await.unwrap(), Found::In(2));
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
    let publication = publication(&change, batch);
    table.attempt(&publication, dataset.clone(), 2).await.unwrap();
    let (second, written) = table.attempt(&publication, dataset, 2).await.unwrap_err();
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
        assert_eq!(table.find_batch(*batch, 1).await.unwrap(), Found::In(version));
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
    assert!(matches!(table.find_batch(batch, 1).await.unwrap(), Found::NotUpTo(_)));
    let versions = table.catalog.look().await.unwrap();
    let third = &versions[&Version::new(3)].manifest;
    let name = third.filename().unwrap();
    std::fs::remove_file(folder.path().join("t.lance/_versions").join(name)).unwrap();
    assert_eq!(table.find_batch(batch, 1).await.unwrap_err().kind(), Kind::Busy);
    assert_eq!(table.find_batch(batch, 3).await.unwrap(), Found::NotUpTo(4));
}
