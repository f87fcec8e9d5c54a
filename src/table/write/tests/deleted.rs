//! Rows that are replaced beside deleted ones, in small fragments and in long ones.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow_schema::{DataType, Field};
use serde_json::{Value, json};

use super::super::Stored;
use super::super::replaced::Changes;
use super::lab::{Lab, every_shape, part, row};
use super::replaced::{address, by_id, bytes_of, change, commit, refused};

/// Deleted rows have places in a column file too, and a column may not be null there.
#[tokio::test]
async fn deleted_rows_keep_their_places_and_an_empty_fragment_goes() {
    let fields = vec![
        Field::new("id", DataType::Int64, false),
        lance::blob::blob_field("must", false),
        Field::new("j", DataType::Utf8, true)
            .with_metadata([("ARROW:extension:name".to_owned(), "arrow.json".to_owned())].into()),
    ];
    let mut lab = Lab::new(fields, false).await;
    let new = |id: i64| {
        row(
            "",
            json!({"id": id, "j": format!("{{\"a\":{id}}}")}),
            &[(0, &[], part(id.try_into().unwrap(), 1))],
        )
    };
    for ids in [0..8, 8..10] {
        lab.append(&ids.map(new).collect::<Vec<_>>()).await;
    }
    let mut dataset = lab.dataset.as_ref().clone();
    dataset.delete("id in (0, 3, 4, 7)").await.unwrap();
    lab.dataset = Arc::new(dataset);
    let changes = Changes {
        replaced: vec![change(
            address(&lab, 5).await,
            json!({"id": 50, "j": "[1]"}),
            &[(0, &[], Stored::Empty)],
            &[],
        )],
        deleted: BTreeSet::from([
            address(&lab, 8).await,
            address(&lab, 9).await,
            address(&lab, 2).await,
        ]),
        ..Changes::default()
    };
    commit(&mut lab, &changes).await;
    let rows = by_id(&lab).await;
    assert_eq!(rows.keys().copied().collect::<Vec<_>>(), [1, 6, 50]);
    assert_eq!(rows[&6].1, bytes_of(&[("must[]", Some(6))]));
    assert_eq!(rows[&50].1, bytes_of(&[("must[]", None)]));
    assert_eq!((&rows[&50].0["j"], &rows[&6].0["j"]), (&json!("[1]"), &json!("{\"a\":6}")));
    assert_eq!(lab.dataset.manifest.fragments.len(), 1);
    lab.dataset.get_fragments()[0].validate().await.unwrap();
    let must_not = Changes {
        replaced: vec![change(address(&lab, 6).await, json!({}), &[], &[(0, &[])])],
        ..Changes::default()
    };
    assert!(refused(&lab, &must_not).await[0].1.contains("cannot be null"));
}

/// More rows than are built at once, and none alive in a stretch as long.
#[tokio::test]
async fn a_large_fragment_with_a_gap_is_rewritten_run_by_run() {
    let mut lab = Lab::new(every_shape(), false).await;
    let value = |id: i64| part(u64::try_from(id % 36).unwrap(), 1);
    let new = |id: i64| row("", json!({"id": id, "frames": []}), &[(0, &[], value(id))]);
    lab.append(&(0..3000).map(new).collect::<Vec<_>>()).await;
    let mut dataset = lab.dataset.as_ref().clone();
    dataset.delete("id < 3 or (id >= 500 and id < 1800) or id >= 2990").await.unwrap();
    lab.dataset = Arc::new(dataset);
    let mut expected = by_id(&lab).await;
    let mut changes = Changes::default();
    for id in [3, 499, 1800, 2500, 2989] {
        let address = address(&lab, id).await;
        changes.replaced.push(change(address, json!({}), &[(2, &[0], value(id + 1))], &[(0, &[])]));
        let (json, values) = expected.get_mut(&id).unwrap();
        json["image"] = Value::Null;
        json["frames"] = json!(["frames[0].bin"]);
        *values = bytes_of(&[("frames[0]", Some(usize::try_from((id + 1) % 36).unwrap()))]);
    }
    commit(&mut lab, &changes).await;
    let after = by_id(&lab).await;
    assert_eq!(after.len(), expected.len());
    assert!(after == expected, "rows differ");
    lab.dataset.get_fragments()[0].validate().await.unwrap();
}
