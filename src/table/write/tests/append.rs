//! Batches as real tables take them, and what is told where they cannot be made.

use arrow_array::ArrayRef;
use arrow_array::cast::AsArray as _;
use arrow_schema::{DataType, Field};
use lance::blob::blob_field;
use lance::dataset::{InsertBuilder, WriteMode, WriteParams};
use lance_core::datatypes::Schema;
use serde_json::{Value, json};

use super::super::{Fault, NewRow, Stored, batches};
use super::lab::{Lab, OBJECT, element, every_shape, part, row};
use crate::store::Interval;
use crate::table::row_json;
use crate::table::schema::Leaves;
use crate::tree::LeafIndex;
use crate::units::{ByteLen, ObjectOffset, Ordinal, RowIndex};

#[tokio::test]
async fn values_in_every_shape_are_appended_and_read_back() {
    let mut lab = Lab::new(every_shape(), false).await;
    let rows = rows_of_every_shape(&lab);
    lab.append(&rows).await;

    let shown = lab.rows().await;
    let json: Vec<&Value> = shown.iter().map(|row| &row.json).collect();
    let nothing = |id| json!({"id": id, "image": null, "info": null, "frames": null, "scenes": null, "large": null, "grid": null, "vector": null});
    let with = |id, members: Value| {
        let mut row = nothing(id);
        row.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        row
    };
    assert_eq!(json[0], &nothing(1));
    let second = json!({"image": "image.bin", "info": {"n": 0.1, "thumb": "info.thumb.bin"}, "frames": [],
        "scenes": [null, {"clip": null, "name": "x"}, null, {"clip": "scenes[3].clip.bin", "name": null}],
        "grid": [null, [], [null, "grid[2][1].bin"]], "vector": [1.5, null]});
    assert_eq!(json[1], &with(2, second));
    let third = json!({"image": "image.bin", "info": {"n": null, "thumb": "info.thumb.bin"}, "frames": [null, "frames[1].bin", null],
        "scenes": [{"clip": "scenes[0].clip.bin", "name": null}], "large": [null, "large[1].bin"], "grid": [["grid[0][0].bin"]]});
    assert_eq!(json[2], &with(3, third));

    let value = |row: usize, leaf: &str, indices: &[u64]| {
        let (kind, bytes) = &shown[row].values[&(leaf.to_owned(), indices.to_vec())];
        (kind.as_str(), bytes.as_ref())
    };
    assert_eq!(value(1, "image", &[]), ("managed", &OBJECT[..10]));
    assert_eq!(value(1, "info.thumb", &[]), ("inline", &b""[..]));
    assert_eq!(value(1, "scenes.clip", &[3]), ("managed", &OBJECT[10..12]));
    assert_eq!(value(1, "grid", &[2, 1]), ("managed", &OBJECT[12..13]));
    assert_eq!(value(2, "image", &[]), ("external", OBJECT));
    assert_eq!(value(2, "info.thumb", &[]), ("inline", &b""[..]));
    assert_eq!(value(2, "frames", &[1]), ("external", &OBJECT[10..13]));
    assert_eq!(value(2, "large", &[1]), ("managed", OBJECT));
    assert_eq!(shown.iter().map(|row| row.values.len()).collect::<Vec<_>>(), [0, 4, 6]);
    let taken = lab.dataset.take_blobs_by_indices(&[1], "image").await.unwrap();
    assert_eq!(taken[0].as_ref().unwrap().read().await.unwrap(), OBJECT[..10]);
}

/// Nothing; the first two elements of lists and what JSON says; External values and files only.
fn rows_of_every_shape(lab: &Lab) -> [NewRow; 3] {
    let external = |interval| Stored::External { base: 0, uri: lab.outside(), interval };
    let some = Interval { offset: ObjectOffset::new(10), len: ByteLen::new(3) };
    let none = Interval { offset: ObjectOffset::new(10), len: ByteLen::new(0) };
    [
        row("b/0", json!({"id": 1}), &[]),
        row(
            "b/1",
            json!({"id": 2, "info": {"n": 0.1}, "frames": [], "scenes": [null, {"name": "x"}], "vector": [1.5, null],
                   "grid": [null, []]}),
            &[
                (0, &[], part(0, 10)),
                (1, &[], Stored::Empty),
                (3, &[3], part(10, 2)),
                (5, &[2, 1], part(12, 1)),
            ],
        ),
        row(
            "b/2",
            json!({"id": 3, "frames": [null, "frames[1].bin", null], "image": null}),
            &[
                (0, &[], external(None)),
                (1, &[], external(Some(none))),
                (2, &[1], external(Some(some))),
                (3, &[0], part(35, 1)),
                (4, &[1], part(0, 36)),
                (5, &[0, 0], Stored::Empty),
            ],
        ),
    ]
}

/// More rows than one batch of Arrow holds, with 120 of the 128 values that the keys allow.
#[tokio::test]
async fn twenty_thousand_rows_share_one_dictionary() {
    let dictionary = |key| DataType::Dictionary(Box::new(key), Box::new(DataType::Utf8));
    let words = element(Field::new("item", dictionary(DataType::Int16), true));
    let fields = vec![
        blob_field("image", true),
        Field::new("word", dictionary(DataType::Int8), true),
        Field::new("words", DataType::List(words), true),
    ];
    let lab = Lab::new(fields, false).await;
    let word = |n: usize| format!("w{}", n * 7 % 120);
    let new = |n: usize| {
        let json = json!({"word": word(n), "words": [word(n), null, format!("x{}", n % 1000)]});
        row(&format!("b/{n}"), json, &[])
    };
    let rows: Vec<NewRow> = (0..20_000).map(new).collect();
    let schema = lab.dataset.schema();
    let written = batches(schema, &Leaves::of(schema, schema), &rows, 8192).unwrap();
    let params = WriteParams { mode: WriteMode::Append, ..WriteParams::default() };
    let insert = InsertBuilder::new(lab.dataset.clone());
    let dataset = insert.with_params(&params).execute(written).await.unwrap();
    let mut scanner = dataset.scan();
    let read = scanner.project(&["word", "words"]).unwrap().try_into_batch().await.unwrap();
    let texts = |array: &ArrayRef| {
        let plain = arrow_cast::cast(array, &DataType::Utf8).unwrap();
        plain.as_string::<i32>().iter().map(|text| text.map(ToOwned::to_owned)).collect::<Vec<_>>()
    };
    let wanted: Vec<_> = (0..20_000).map(|n| Some(word(n))).collect();
    assert_eq!(texts(&read["word"]), wanted);
    let lists = read["words"].as_list::<i32>();
    assert_eq!(texts(&lists.value(19_999)), [Some(word(19_999)), None, Some("x999".into())]);
    // One value too many, in the last of several batches.
    let mut many: Vec<NewRow> = (0..9000).map(|n| new(n % 100)).collect();
    many.extend((0..29).map(|n| row(&format!("c/{n}"), json!({"word": format!("y{n}")}), &[])));
    let faults = batches(schema, &Leaves::of(schema, schema), &many, 8192).unwrap_err();
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert_eq!((faults[0].place.as_str(), faults[0].field.as_str()), ("c/28", "word"));
}

/// What `cp -r` of a row does: its `row.json` as it is shown, and its files.
#[tokio::test]
async fn a_row_that_is_copied_is_the_same_row() {
    let json_field = Field::new("j", DataType::Utf8, true)
        .with_metadata([("ARROW:extension:name".to_owned(), "arrow.json".to_owned())].into());
    let word = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8));
    let mut fields = every_shape();
    fields.extend([
        json_field,
        Field::new("word", word, true),
        Field::new("view", DataType::Utf8View, true),
    ]);
    let entries = DataType::Struct(
        vec![Field::new("key", DataType::Utf8, false), Field::new("value", DataType::Int32, true)]
            .into(),
    );
    fields.push(Field::new(
        "map",
        DataType::Map(Field::new("entries", entries, false).into(), false),
        true,
    ));
    fields.push(Field::new("day", DataType::Date64, true));
    let mut lab = Lab::new(fields, false).await;
    let first = row(
        "b/0",
        json!({"id": i64::MIN, "info": {"n": 5e-324}, "scenes": [{"name": "é"}, null], "j": "{\"a\":[1,null]}", "word": "w",
               "view": "v", "map": [{"key": "k", "value": null}, {"key": "l", "value": -1}], "day": "2024-01-31"}),
        &[(3, &[0], part(1, 2)), (2, &[1], part(3, 4))],
    );
    lab.append(std::slice::from_ref(&first)).await;
    let Value::Object(json) = lab.rows().await.remove(0).json else { panic!() };
    lab.append(&[NewRow { json, ..first.clone() }, NewRow { place: "b/1".into(), ..first }]).await;
    let rows = lab.rows().await;
    assert_eq!(
        rows[0].json["map"],
        json!([{"key": "k", "value": null}, {"key": "l", "value": -1}])
    );
    assert_eq!(rows[0].json["word"], "w");
    assert_eq!(rows[0].values.len(), 2);
    assert_eq!(rows[1], rows[0]);
    assert_eq!(rows[2], rows[0]);
}

fn faults(fields: Vec<Field>, rows: &[NewRow]) -> Vec<(String, String, String)> {
    let schema = Schema::try_from(&arrow_schema::Schema::new(fields)).unwrap();
    let faults = batches(&schema, &Leaves::of(&schema, &schema), rows, 2).unwrap_err();
    faults.into_iter().map(|Fault { place, field, text }| (place, field, text)).collect()
}

#[test]
fn every_fault_of_every_row_is_told_with_its_place() {
    let point = DataType::Struct(vec![Field::new("x", DataType::Int8, false)].into());
    let mut fields = every_shape();
    fields.push(Field::new("points", DataType::List(Field::new("item", point, true).into()), true));
    fields.push(blob_field("must", false));
    let rows = [
        row(
            "b/0",
            json!({"id": "1", "nope": 1, "image": "image.bin", "info": {"n": 1, "m": 2}, "frames": {}, "vector": [1, 2, 3],
                   "points": [{"x": 1}, {"x": 128}, {}, null, 7], "scenes": [{"clip": 5}]}),
            &[(6, &[], Stored::Empty)],
        ),
        row("b/1", json!({"id": 1}), &[(6, &[], Stored::Empty), (2, &[1 << 40], Stored::Empty)]),
        row(
            "b/2",
            json!({"image": {"error": "gone"}, "vector": {"error": "boom"}}),
            &[(0, &[], Stored::Empty), (9, &[], Stored::Empty)],
        ),
    ];
    let told = faults(fields, &rows);
    let expected = [
        ("b/0", "nope", "no column of the table"),
        ("b/0", "id", "whole number from -9223372036854775808 to"),
        ("b/0", "image", "names image.bin, but there is no such file"),
        ("b/0", "info", "has no member \"m\"; it has n, thumb"),
        ("b/0", "frames", "must be an array"),
        ("b/0", "scenes[0].clip", "in a file of its own"),
        ("b/0", "vector", "must have 2 elements, not 3"),
        ("b/0", "points[4]", "must be an object"),
        ("b/0", "points[1].x", "from -128 to 127, not 128"),
        ("b/0", "points[2].x", "has no value and cannot be null"),
        ("b/1", "frames", "has a file for element 1099511627776"),
        ("b/2", "9[]", "no Blob field"),
        ("b/2", "id", "has no value and cannot be null"),
        ("b/2", "image", "could not be read where row.json was copied from (gone)"),
        ("b/2", "vector", "could not be read where row.json was copied from (boom)"),
        ("b/2", "must", "has no file and cannot be null"),
    ];
    for (told, expected) in told.iter().zip(&expected) {
        assert_eq!((told.0.as_str(), told.1.as_str()), (expected.0, expected.1), "{told:?}");
        assert!(told.2.contains(expected.2), "{told:?}");
    }
    assert_eq!(told.len(), expected.len(), "{told:#?}");
}

#[test]
fn a_table_with_a_legacy_blob_column_is_refused_once() {
    let legacy = Field::new("photo", DataType::LargeBinary, true)
        .with_metadata([("lance-encoding:blob".to_owned(), "true".to_owned())].into());
    let told = faults(vec![legacy], &[row("b/0", json!({}), &[]), row("b/1", json!({}), &[])]);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].0.is_empty() && told[0].1 == "photo" && told[0].2.contains("legacy"),
        "{told:?}"
    );
}

/// The crate cannot decode a run of lists without elements beside lists with some; found when a row
/// of an empty list was to be replaced.
#[tokio::test]
async fn lists_without_elements_are_read_beside_one_with_some() {
    let mut lab = Lab::new(every_shape(), false).await;
    let mut rows: Vec<_> =
        (0..1500).map(|id| row("", json!({"id": id, "large": []}), &[])).collect();
    rows.push(row("", json!({"id": 1500}), &[(2, &[1], part(0, 1))]));
    lab.append(&rows).await;
    let snapshot = lab.snapshot().await;
    let first = snapshot.row(RowIndex::new(0)).await.unwrap();
    for leaf in 0..6 {
        assert_eq!(first.values(LeafIndex::new(leaf), Ordinal::new(0)).unwrap().count(), 0);
    }
    let text = row_json(&snapshot, RowIndex::new(7)).await.unwrap();
    let json: Value = serde_json::from_slice(&text).unwrap();
    assert_eq!((&json["frames"], &json["large"]), (&Value::Null, &json!([])));
    let last = snapshot.row(RowIndex::new(1500)).await.unwrap();
    assert_eq!(last.values(LeafIndex::new(2), Ordinal::new(0)).unwrap().count(), 1);
}
