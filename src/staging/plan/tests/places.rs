//! Names in `row.json`, and the files that they mean.

use serde_json::json;

use super::{Batch, MEDIA, shape};
use crate::staging::plan::fields::Fields;
use crate::staging::plan::{Entry, Payload};
use crate::staging::{REFERENCE, Reference};

/// Where each file of an entry goes, as `place <- file`, and what of the replaced row goes where.
fn places(entry: &Entry, fields: &[&str]) -> Vec<String> {
    let shape = shape(fields);
    let fields = Fields::new(&shape);
    let file = |payload: &Payload| payload.file.file_name().unwrap().to_string_lossy().into_owned();
    let files = entry.payloads.iter().flat_map(|payload| {
        payload.places.iter().map(|place| format!("{} <- {}", fields.spell(place), file(payload)))
    });
    let names = entry.names.iter();
    let names = names.map(|(to, from)| format!("{} <= {}", fields.spell(to), fields.spell(from)));
    let mut all: Vec<String> = files.chain(names).collect();
    all.sort();
    all
}

#[test]
fn a_name_in_row_json_means_that_file_wherever_it_stands() {
    let scenes = ["scenes[0].clip.bin", "scenes[1].clip.bin", "scenes[2].clip.bin"];
    let frames = ["frames[0].bin", "frames[1].bin", "frames[2].bin"];
    for (files, json, wanted) in [
        // What `jq 'del(.scenes[0])'` and its like make of a row that was copied.
        (
            &scenes[..2],
            json!({"scenes": [{"clip": "scenes[1].clip.bin"}]}),
            &["scenes[0].clip <- scenes[1].clip.bin"][..],
        ),
        (
            &scenes,
            json!({"scenes": [{"clip": "scenes[0].clip.bin"}, {"clip": "scenes[2].clip.bin"}]}),
            &["scenes[0].clip <- scenes[0].clip.bin", "scenes[1].clip <- scenes[2].clip.bin"],
        ),
        (
            &frames,
            json!({"frames": ["frames[1].bin", "frames[2].bin"]}),
            &["frames[0] <- frames[1].bin", "frames[1] <- frames[2].bin"],
        ),
        (
            &frames[..2],
            json!({"frames": ["frames[1].bin", null, "frames[0].bin", "frames[1].bin"]}),
            &[
                "frames[0] <- frames[1].bin",
                "frames[2] <- frames[0].bin",
                "frames[3] <- frames[1].bin",
            ],
        ),
        // Fields can be swapped; a name needs no extension, and the very name of a file is one too.
        (
            &["image.jpg", "info.thumb.png"],
            json!({"image": "info.thumb.bin", "info": {"thumb": "image.jpg"}}),
            &["image <- info.thumb.png", "info.thumb <- image.jpg"],
        ),
        (&["image.jpg"], json!({"info": {"thumb": "image"}}), &["info.thumb <- image.jpg"]),
        // The file wins where nothing else is said.
        (&["image.jpg"], json!({"image": null}), &["image <- image.jpg"]),
        (
            &["scenes[1].clip.mp4"],
            json!({"scenes": [{"t": 1}, {"t": 2}]}),
            &["scenes[1].clip <- scenes[1].clip.mp4"],
        ),
        (&["frames[1].jpg"], json!({"frames": null}), &["frames[1] <- frames[1].jpg"]),
        (&["a[0][1].bin"], json!({"a": [["a[0][1].bin"], null]}), &["a[0][0] <- a[0][1].bin"]),
    ] {
        let text = json.to_string();
        let paths: Vec<String> = files.iter().map(|file| format!("b/1/{file}")).collect();
        let mut all: Vec<(&str, &str)> = paths.iter().map(|path| (path.as_str(), "x")).collect();
        all.push(("b/1/row.json", &text));
        let entries = Batch::new(&all).good(&MEDIA);
        assert_eq!(places(&entries[0], &MEDIA), wanted, "{files:?} {text}");
    }
}

#[test]
fn a_name_in_the_row_json_of_a_row_that_is_there_may_be_of_that_row() {
    let json = r#"{"frames": ["frames[1].bin", "frames[2].bin"], "image": "info.thumb.bin"}"#;
    let batch = Batch::new(&[("b/@3/row.json", json), ("b/@3/frames[2].jpg", "x")]);
    assert_eq!(
        places(&batch.good(&MEDIA)[0], &MEDIA),
        ["frames[0] <= frames[1]", "frames[1] <- frames[2].jpg", "image <= info.thumb"]
    );
}

#[test]
fn what_row_json_has_no_place_for_is_told() {
    for (entry, file, json, wanted) in [
        (
            "1",
            "image.jpg",
            r#"{"image": "imgae.bin"}"#,
            "image|row.json names imgae.bin, but there is no such file",
        ),
        (
            "1",
            "image.jpg",
            r#"{"frames": ["frames[0].bin"]}"#,
            "frames[0]|row.json names frames[0].bin, but",
        ),
        (
            "@2",
            "image.jpg",
            r#"{"frames": ["x"]}"#,
            "frames[0]|row.json names x, but there is no such file",
        ),
        (
            "1",
            "frames[1].jpg",
            r#"{"frames": [null]}"#,
            "frames[1]|row.json gives the list 1 element and does not name frames[1].jpg",
        ),
        ("1", "frames[0].jpg", r#"{"frames": []}"#, "frames[0]|row.json gives the list 0 elements"),
        (
            "@2",
            "frames[0].jpg",
            r#"{"frames": ["frames[1].bin"]}"#,
            "frames[0]|row.json names another file for it, and frames[0].jpg nowhere",
        ),
    ] {
        let (json_at, file_at) = (format!("b/{entry}/row.json"), format!("b/{entry}/{file}"));
        let faults = Batch::new(&[(&json_at, json), (&file_at, "x")]).faults(&MEDIA);
        assert_eq!(faults.len(), 1, "{json}: {faults:?}");
        assert!(faults[0].starts_with(&format!("b/{entry}|{wanted}")), "{json}: {faults:?}");
    }
}

#[test]
fn an_unchanged_copy_that_row_json_has_no_place_for_is_left_out() {
    let batch = Batch::new(&[
        ("b/1/frames[0].bin", "12"),
        ("b/1/frames[1].bin", "34"),
        ("b/1/row.json", r#"{"frames": ["frames[0].bin"]}"#),
    ]);
    let reference = Reference {
        version: 5,
        manifest: "m".into(),
        base: None,
        path: "_blobs/u.blob".into(),
        offset: 7,
        len: 2,
    };
    assert_eq!(batch.faults(&MEDIA).len(), 1);
    let path = batch.path().join("1/frames[1].bin");
    let value = batch.1.mark(REFERENCE, &reference).unwrap();
    rustix::fs::setxattr(path, REFERENCE, &value, rustix::fs::XattrFlags::empty()).unwrap();
    assert_eq!(places(&batch.good(&MEDIA)[0], &MEDIA), ["frames[0] <- frames[0].bin"]);
}
