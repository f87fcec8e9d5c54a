//! Rows of real tables, replaced and deleted, beside rows that must not change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::types::{Int64Type, UInt64Type};
use arrow_array::{ArrayRef, Int64Array, ListArray, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema as ArrowSchema};
use lance::blob::{BlobArrayBuilder, BlobFieldOptions, blob_field_with_options};
use lance::dataset::cleanup::CleanupPolicy;
use lance::dataset::optimize::{CompactionOptions, compact_files};
use lance::dataset::{CommitBuilder, Dataset};
use lance::index::DatasetIndexExt as _;
use lance_index::IndexType;
use lance_index::scalar::ScalarIndexParams;
use serde_json::{Value, json};

use super::super::replaced::{Change, Changes, Refused, transaction};
use super::super::{NewRow, Stored, columns};
use super::lab::{Lab, OBJECT, Shown, element, every_shape, part, row};
use crate::tree::LeafIndex;
use crate::units::RowAddress;

/// Bytes of a value of each kind that the crate chooses by size, by the fields' thresholds.
const PACKED: &[u8] = b"a packed value";
const DEDICATED: &[u8] = b"a value that is so large that it has an object of its own";

fn blob(name: &str) -> Field {
    let options = BlobFieldOptions::default()
        .with_inline_size_threshold(8)
        .with_dedicated_size_threshold(32.try_into().unwrap());
    blob_field_with_options(name, true, options)
}

/// Eight rows of all kinds that the crate writes by itself, in one fragment: ids 0 to 7.
fn rows_of_all_kinds(outside: &str) -> RecordBatch {
    let blobs = |values: &[Option<&[u8]>]| {
        let mut builder = BlobArrayBuilder::new(values.len());
        for value in values {
            match value {
                None => builder.push_null(),
                Some(b"") => builder.push_empty(),
                Some(b"external") => builder.push_uri(outside),
                Some(bytes) => builder.push_bytes(*bytes),
            }
            .unwrap();
        }
        builder.finish().unwrap()
    };
    let image: [Option<&[u8]>; 8] = [
        None,
        Some(b""),
        Some(b"inline"),
        Some(b"gone"),
        Some(PACKED),
        Some(DEDICATED),
        Some(b"external"),
        Some(PACKED),
    ];
    let frames: [Option<&[u8]>; 8] = [
        Some(PACKED),
        None,
        Some(b""),
        Some(b"in"),
        Some(DEDICATED),
        Some(b"external"),
        Some(b"x"),
        Some(b"y"),
    ];
    let item = element(blob("item"));
    let lists = ListArray::new(
        item.clone(),
        columns::offsets(&[0, 3, 0, 0, 2, 2, 1, 0]).unwrap(),
        blobs(&frames),
        Some(vec![true, true, false, true, true, true, true, true].into()),
    );
    let fields = vec![
        Field::new("id", DataType::Int64, false),
        blob("image"),
        Field::new("frames", DataType::List(item), true),
        Field::new("word", DataType::Utf8, true),
    ];
    let words = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from_iter_values(0..8)),
        blobs(&image),
        Arc::new(lists),
        Arc::new(StringArray::from(words.to_vec())),
    ];
    RecordBatch::try_new(Arc::new(ArrowSchema::new(fields)), columns).unwrap()
}

/// Those rows, without the one of id 3, and a second fragment of Managed values: ids 8 to 10.
async fn lab_of_all_kinds(stable: bool) -> Lab {
    let mut lab = Lab::new_unmanaged(rows_of_all_kinds, stable).await;
    let managed = |id: i64| {
        row(
            "",
            json!({"id": id, "word": "m"}),
            &[(0, &[], part(id.try_into().unwrap(), 3)), (1, &[1], part(0, 1))],
        )
    };
    lab.append(&[managed(8), managed(9), managed(10)]).await;
    let mut dataset = lab.dataset.as_ref().clone();
    dataset.delete("id = 3").await.unwrap();
    let params = ScalarIndexParams::default();
    for column in ["word", "id"] {
        dataset.create_index(&[column], IndexType::BTree, None, &params, true).await.unwrap();
    }
    lab.dataset = Arc::new(dataset);
    lab
}

/// Row ids, addresses and version of the last change by `id`.
async fn places(dataset: &Dataset) -> BTreeMap<i64, (u64, u64, Option<u64>)> {
    let mut scanner = dataset.scan();
    let stable = dataset.manifest.uses_stable_row_ids();
    let columns = if stable { vec!["id", "_row_last_updated_at_version"] } else { vec!["id"] };
    scanner.project(&columns).unwrap().with_row_id().with_row_address();
    let batch = scanner.try_into_batch().await.unwrap();
    let number =
        |name: &str| batch.column_by_name(name).map(|c| c.as_primitive::<UInt64Type>().clone());
    let (ids, addresses) = (number("_rowid").unwrap(), number("_rowaddr").unwrap());
    let versions = number("_row_last_updated_at_version");
    let keys = batch["id"].as_primitive::<Int64Type>();
    let place =
        |at: usize| (ids.value(at), addresses.value(at), versions.as_ref().map(|v| v.value(at)));
    (0..batch.num_rows()).map(|at| (keys.value(at), place(at))).collect()
}

pub(super) async fn address(lab: &Lab, id: i64) -> RowAddress {
    RowAddress::new(places(&lab.dataset).await[&id].1)
}

pub(super) fn change(
    address: RowAddress,
    json: Value,
    blobs: &[(u64, &[u64], Stored)],
    removed: &[(u64, &[u64])],
) -> Change {
    let removed = removed.iter().map(|(leaf, indices)| (LeafIndex::new(*leaf), indices.to_vec()));
    Change { address, row: row("b/@", json, blobs), removed: removed.collect() }
}

/// Commits changes to the newest version.
pub(super) async fn commit(lab: &mut Lab, changes: &Changes) {
    let snapshot = lab.snapshot().await;
    let transaction = transaction(&snapshot, changes).await.unwrap().transaction;
    let committed =
        CommitBuilder::new(lab.dataset.clone()).with_max_retries(0).execute(transaction).await;
    lab.dataset = Arc::new(committed.unwrap());
}

/// Rows by id: their JSON, and their values by name. Kinds are left out: what is adopted becomes
/// Managed.
type Rows = BTreeMap<i64, (Value, BTreeMap<String, Vec<u8>>)>;

pub(super) async fn by_id(lab: &Lab) -> Rows {
    let row = |shown: Shown| {
        let values = shown.values.into_iter();
        let values =
            values.map(|((leaf, at), (_, bytes))| (format!("{leaf}{at:?}"), bytes.to_vec()));
        (shown.json["id"].as_i64().unwrap(), (shown.json, values.collect()))
    };
    lab.rows().await.into_iter().map(row).collect()
}

async fn found(lab: &Lab, filter: &str) -> Vec<i64> {
    let batch = lab
        .dataset
        .scan()
        .project(&["id"])
        .unwrap()
        .filter(filter)
        .unwrap()
        .try_into_batch()
        .await
        .unwrap();
    batch["id"].as_primitive::<Int64Type>().values().to_vec()
}

async fn one_transaction_changes_some_rows_and_leaves_the_others(stable: bool) {
    let mut lab = lab_of_all_kinds(stable).await;
    let (mut rows, mut expected) = (by_id(&lab).await, places(&lab.dataset).await);
    let changes = Changes {
        replaced: vec![
            change(address(&lab, 2).await, json!({}), &[(0, &[], part(0, 5))], &[]),
            change(address(&lab, 4).await, json!({"word": "new"}), &[], &[]),
            change(address(&lab, 5).await, json!({}), &[(1, &[3], part(5, 5))], &[(0, &[])]),
        ],
        deleted: BTreeSet::from([address(&lab, 7).await, address(&lab, 9).await]),
        appended: vec![
            lab.batch(&[row("", json!({"id": 20, "word": "last"}), &[(0, &[], part(1, 1))])])
                .unwrap(),
        ],
    };
    commit(&mut lab, &changes).await;

    let version = lab.dataset.manifest.version;
    rows.retain(|id, _| ![7, 9].contains(id));
    let (_, two) = rows.get_mut(&2).unwrap();
    two.insert("image[]".to_owned(), OBJECT[..5].to_vec());
    rows.get_mut(&4).unwrap().0["word"] = json!("new");
    let (json, five) = rows.get_mut(&5).unwrap();
    five.remove("image[]").unwrap();
    five.insert("frames[3]".to_owned(), OBJECT[5..10].to_vec());
    json["image"] = Value::Null;
    json["frames"] = json!(["frames[0].bin", "frames[1].bin", null, "frames[3].bin"]);
    let after = by_id(&lab).await;
    let last = after[&20].clone();
    assert_eq!((&last.0["word"], &last.1["image[]"]), (&json!("last"), &OBJECT[1..2].to_vec()));
    rows.insert(20, last);
    assert_eq!(after, rows);

    let found_places = places(&lab.dataset).await;
    expected.retain(|id, _| ![7, 9].contains(id));
    for (id, place) in &mut expected {
        if [2, 4, 5].contains(id) && stable {
            place.2 = Some(version);
        }
    }
    expected.insert(20, found_places[&20]);
    assert_eq!(found_places, expected, "rows keep their ids and addresses");
    indexes_and_maintenance(&mut lab, rows).await;
}

/// What comes later: queries by index, the crate's own reader, compaction, cleanup.
async fn indexes_and_maintenance(lab: &mut Lab, rows: Rows) {
    assert_eq!(found(lab, "word = 'new'").await, [4]);
    assert_eq!(found(lab, "word = 'e'").await, [0; 0]);
    assert_eq!(found(lab, "word = 'f'").await, [5]);
    assert_eq!(found(lab, "id = 4").await, [4]);
    assert_eq!(found(lab, "id = 7 or id = 3 or id = 9").await, [0; 0]);
    let dataset = &lab.dataset;
    let taken = dataset.take_blobs_by_indices(&[2, 3, 4], "image").await.unwrap();
    assert_eq!(taken[0].as_ref().unwrap().read().await.unwrap(), OBJECT[..5]);
    assert_eq!(taken[1].as_ref().unwrap().read().await.unwrap(), PACKED);
    assert!(taken[2].is_none());
    for fragment in dataset.get_fragments() {
        fragment.validate().await.unwrap();
    }
    let mut dataset = lab.dataset.as_ref().clone();
    let options =
        CompactionOptions { materialize_deletions_threshold: 0.0, ..CompactionOptions::default() };
    compact_files(&mut dataset, options, None).await.unwrap();
    let policy = CleanupPolicy {
        before_version: Some(dataset.manifest.version),
        delete_unverified: true,
        ..CleanupPolicy::default()
    };
    dataset.cleanup(policy).execute().await.unwrap();
    assert_eq!(dataset.count_versions().await.unwrap(), 1);
    lab.dataset = Arc::new(dataset);
    assert_eq!(by_id(lab).await, rows);
    assert_eq!(found(lab, "word = 'new'").await, [4]);
}

#[tokio::test]
async fn changes_by_address() {
    one_transaction_changes_some_rows_and_leaves_the_others(false).await;
}

#[tokio::test]
async fn changes_by_stable_row_id() {
    one_transaction_changes_some_rows_and_leaves_the_others(true).await;
}

/// Data and deletion files of the table.
fn files(lab: &Lab) -> usize {
    let folders = ["data", "_deletions"].map(|name| std::path::Path::new(&lab.uri()).join(name));
    folders.iter().flat_map(std::fs::read_dir).flatten().count()
}

pub(super) async fn refused(lab: &Lab, changes: &Changes) -> Vec<(String, String)> {
    let snapshot = lab.snapshot().await;
    match transaction(&snapshot, changes).await {
        Err(Refused::Faults(faults)) => faults.into_iter().map(|f| (f.field, f.text)).collect(),
        other => panic!("{other:?}"),
    }
}

/// A row with values in every shape, of one byte each.
fn full(id: i64) -> NewRow {
    let scenes = json!([{"name": "a"}, null, {"name": "c"}]);
    let json = json!({"id": id, "info": {"n": 0.1}, "scenes": scenes, "vector": [1, 2]});
    let values: [(u64, &[u64], Stored); 5] = [
        (2, &[1], part(0, 1)),
        (3, &[0], part(1, 1)),
        (3, &[2], part(2, 1)),
        (1, &[], part(3, 1)),
        (5, &[0, 1], part(4, 1)),
    ];
    row("b/0", json, &values)
}

/// Values by name: the byte of the object at a position, or nothing.
pub(super) fn bytes_of(values: &[(&str, Option<usize>)]) -> BTreeMap<String, Vec<u8>> {
    let value = |(name, at): &(&str, Option<usize>)| {
        ((*name).to_owned(), at.iter().map(|at| OBJECT[*at]).collect())
    };
    values.iter().map(value).collect()
}

#[tokio::test]
async fn a_list_is_replaced_in_part_and_a_column_by_its_json() {
    let mut lab = Lab::new(every_shape(), false).await;
    lab.append(&[full(0), full(1), full(2)]).await;
    let before = by_id(&lab).await;
    let changes = Changes {
        replaced: vec![
            // One element more, one less; everything around them stays.
            change(
                address(&lab, 0).await,
                json!({}),
                &[(2, &[3], part(10, 1)), (5, &[2, 0], Stored::Empty)],
                &[(3, &[2])],
            ),
            // Other JSON: what it names stays, what it does not name goes.
            change(
                address(&lab, 1).await,
                json!({"scenes": [{"clip": null, "name": "z"}, {"name": "y"}, {"clip": "scenes[2].clip.bin"}], "info": null, "vector": [3, null]}),
                &[(3, &[1], part(11, 1))],
                &[],
            ),
        ],
        ..Changes::default()
    };
    commit(&mut lab, &changes).await;
    let after = by_id(&lab).await;
    assert_eq!(after[&2], before[&2]);
    let zero = [
        ("frames[1]", Some(0)),
        ("frames[3]", Some(10)),
        ("grid[0, 1]", Some(4)),
        ("grid[2, 0]", None),
        ("info.thumb[]", Some(3)),
        ("scenes.clip[0]", Some(1)),
    ];
    assert_eq!(after[&0].1, bytes_of(&zero));
    let one = [
        ("frames[1]", Some(0)),
        ("grid[0, 1]", Some(4)),
        ("scenes.clip[1]", Some(11)),
        ("scenes.clip[2]", Some(2)),
    ];
    assert_eq!(after[&1].1, bytes_of(&one));
    assert_eq!(
        after[&0].0["scenes"],
        json!([{"clip": "scenes[0].clip.bin", "name": "a"}, null, {"clip": null, "name": "c"}])
    );
    assert_eq!(after[&0].0["info"]["n"], 0.1);
    assert_eq!(after[&1].0["scenes"][0], json!({"clip": null, "name": "z"}));
    assert_eq!((&after[&1].0["info"], &after[&1].0["vector"]), (&Value::Null, &json!([3.0, null])));
}

#[tokio::test]
async fn wrong_changes_are_told_all_and_write_nothing() {
    let mut lab = Lab::new(every_shape(), false).await;
    lab.append(&[
        row("", json!({"id": 0}), &[]),
        row("", json!({"id": 1}), &[]),
        row("", json!({"id": 2}), &[]),
    ])
    .await;
    let mut dataset = lab.dataset.as_ref().clone();
    dataset.delete("id = 2").await.unwrap();
    lab.dataset = Arc::new(dataset);
    let before = files(&lab);
    let at = |offset: u64| RowAddress::new(offset);
    let changes = Changes {
        replaced: vec![
            change(at(0), json!({"id": "x", "nope": 1, "image": "image.bin"}), &[], &[]),
            change(at(1), json!({"id": null}), &[], &[]),
            change(at(1), json!({"vector": [1]}), &[], &[]),
            change(at(2), json!({"id": 5}), &[], &[]),
            change(at(3), json!({"id": 5}), &[], &[]),
        ],
        deleted: BTreeSet::from([at(0)]),
        ..Changes::default()
    };
    let told = refused(&lab, &changes).await;
    let expected = [
        ("", "another entry deletes"),
        ("", "another entry replaces"),
        ("nope", "no column"),
        ("", "not in the version"),
        ("", "not in the version"),
        ("id", "whole number"),
        ("image", "no such file"),
        ("vector", "2 elements"),
    ];
    for (told, expected) in told.iter().zip(&expected) {
        assert!(told.0 == expected.0 && told.1.contains(expected.1), "{told:?} {expected:?}");
    }
    assert_eq!(told.len(), expected.len(), "{told:#?}");
    assert_eq!(files(&lab), before);
}

#[tokio::test]
async fn whoever_changes_the_same_fragment_meanwhile_is_a_conflict() {
    let mut lab = lab_of_all_kinds(false).await;
    let old = lab.snapshot().await;
    let second =
        Changes { deleted: BTreeSet::from([address(&lab, 1).await]), ..Changes::default() };
    let elsewhere = Changes {
        replaced: vec![change(address(&lab, 8).await, json!({"word": "x"}), &[], &[])],
        ..Changes::default()
    };
    let (second, elsewhere) =
        (transaction(&old, &second).await.unwrap(), transaction(&old, &elsewhere).await.unwrap());
    let (second, elsewhere) = (second.transaction, elsewhere.transaction);
    let first = Changes {
        replaced: vec![change(address(&lab, 0).await, json!({}), &[(0, &[], part(0, 1))], &[])],
        ..Changes::default()
    };
    commit(&mut lab, &first).await;
    lab.append(&[row("", json!({"id": 30}), &[])]).await;
    let late = CommitBuilder::new(lab.dataset.clone()).with_max_retries(0).execute(second).await;
    assert!(late.is_err(), "a deletion file of an older version hides a newer column");
    let other =
        CommitBuilder::new(lab.dataset.clone()).with_max_retries(0).execute(elsewhere).await;
    lab.dataset = Arc::new(other.unwrap());
    let rows = by_id(&lab).await;
    assert_eq!(rows[&8].0["word"], "x");
    assert_eq!(rows[&0].1["image[]"], OBJECT[..1]);
    assert!(rows.contains_key(&1) && rows.contains_key(&30));
}
