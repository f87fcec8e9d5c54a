//! What systems leave in batches, and what has not become a file yet.

use super::*;

const PHOTOS: [&str; 1] = ["image"];

#[test]
fn what_is_hidden_or_litter_is_no_row_and_what_is_hidden_is_told() {
    let batch = Batch::new(&[
        ("b/a.jpg", "1"),
        ("b/.nomedia", ""),
        ("b/.gitignore", "*"),
        ("b/.secret.jpg", "1"),
        ("b/.thumbnails/image.jpg", "1"),
        ("b/.cache/image.jpg", "1"),
        ("b/lost+found/image.jpg", "1"),
        ("b/$RECYCLE.BIN/image.jpg", "1"),
        ("b/System Volume Information/image.jpg", "1"),
        ("b/.version.json", "{}"),
        ("b/2/image.jpg", "1"),
        ("b/2/.nomedia", ""),
        ("b/2/.version.json", "{}"),
    ]);
    let plan = batch.plan(&PHOTOS);
    assert_eq!(plan.faults, []);
    assert_eq!(names(&plan.entries), ["2", "a.jpg"]);
    assert_eq!(plan.hidden, [".cache", ".secret.jpg"], "what may be missed");
    assert_eq!(plan.summary(0).hidden, plan.hidden);
    // In an entry it is for whoever put it there to say.
    let faults = Batch::new(&[("b/1/.secret.jpg", "1")]).faults(&PHOTOS);
    assert!(faults[0].starts_with("b/1||.secret.jpg is for no field"), "{faults:?}");
    let faults = Batch::new(&[("b/.secret.jpg", "1")]).faults(&PHOTOS);
    assert!(faults[0].contains("nothing in it to commit"), "{faults:?}");
}

#[test]
fn near_misses_are_told_what_to_do() {
    let faults =
        Batch::new(&[("b/1/Row.json", "{}"), ("b/2/photos/image.jpg", "1"), ("b/row.json", "{}")])
            .faults(&PHOTOS);
    for (fault, said) in faults.iter().zip([
        "b/1||Row.json is no row.json: rename it, in small letters",
        "b/2||photos is a directory, and a row holds files alone: move a file up out of it and name it \
         after its field (image.<extension>)",
        "b/row.json||row.json belongs into the directory of its row, and this is a batch",
    ]) {
        assert!(fault.starts_with(said), "{fault}");
    }
    assert_eq!(faults.len(), 3);
}

#[test]
fn what_has_not_ended_is_named_wherever_it_is() {
    let batch = Batch::new(&[
        ("b/.syncthing.b.jpg.tmp", "1"),
        ("b/4913", "1"),
        ("b/b.jpg.!qB", "1"),
        ("b/c.jpg.aria2", "1"),
        ("b/good/image.jpg", "1"),
        ("b/photo.jpg.download/image.jpg", "1"),
        ("b/row/image.jpg.crdownload", "1"),
        ("b/row/image.jpg_exiftool_tmp", "1"),
    ]);
    let faults = batch.faults(&PHOTOS);
    let wanted = [
        "b/.syncthing.b.jpg.tmp||.syncthing.b.jpg.tmp looks like what",
        "b/4913||4913 looks like what Vim leaves",
        "b/b.jpg.!qB||b.jpg.!qB looks like what qBittorrent leaves",
        "b/c.jpg.aria2||c.jpg.aria2 looks like what aria2 leaves",
        "b/photo.jpg.download||photo.jpg.download looks like what a download leaves",
        "b/row||image.jpg.crdownload looks like what a download leaves",
        "b/row||image.jpg_exiftool_tmp looks like what ExifTool leaves",
    ];
    for (fault, start) in faults.iter().zip(wanted) {
        assert!(fault.starts_with(start), "{fault}\nshould start with\n{start}");
    }
    assert_eq!(faults.len(), wanted.len(), "{faults:#?}");
    // A directory of that name is row 4913 of a version that was copied.
    assert_eq!(names(&Batch::new(&[("b/4913/image.jpg", "1")]).good(&PHOTOS)), ["4913"]);
    // A field may be called like half a file: its own name is the value's, and no other.
    let fields = ["s/part", "s/x"];
    let entries = Batch::new(&[("b/1/s.part", "1"), ("b/2/s.part.bin", "1")]).good(&fields);
    assert_eq!(entries.iter().map(|entry| entry.payloads.len()).sum::<usize>(), 2);
    let faults = Batch::new(&[("b/1/s.x.part", "1")]).faults(&fields);
    assert!(faults[0].contains("what a download leaves"), "{faults:?}");
}

#[test]
fn a_litter_folder_is_no_batch() {
    let folder = tempfile::tempdir().unwrap();
    let tree = fs::File::open(folder.path()).unwrap();
    for (name, why) in [
        (".Trashes", "systems leave what is called so"),
        (".Spotlight-V100", "systems leave"),
        ("lost+found", "systems leave"),
        ("$RECYCLE.BIN", "systems leave"),
        ("System Volume Information", "systems leave"),
        (".Trash-1000", "systems leave"),
        (".mine", "begins with a dot"),
        ("upload.tmp", "has not ended"),
    ] {
        let path = folder.path().join(name);
        fs::create_dir_all(path.join("501")).unwrap();
        fs::write(path.join("501/image.jpg"), "1").unwrap();
        let plan = Plan::read(&tree, &path, &Key::new(), &shape(&PHOTOS), 0).unwrap();
        let text = &plan.faults[0].text;
        assert!(text.starts_with(name) && text.contains(why) && text.contains("rename"), "{text}");
        assert_eq!((plan.faults.len(), plan.entries.len()), (1, 0), "{name}");
    }
}

#[test]
fn a_deletion_is_an_empty_file_and_nothing_else() {
    let batch = Batch::new(&[
        ("b/.delete/image.jpg", "1"),
        ("b/5/.delete/image.jpg", "1"),
        ("b/@0/.delete/content.jpg", "1"),
        ("b/@1/.delete", "because"),
        ("b/@2/.delete", ""),
        ("b/@2/.DS_Store", ""),
        ("b/@4/.delete", ""),
        ("b/@4/image.jpg", "1"),
        ("b/@6/.version.json/image.jpg", "1"),
        ("b/@6/image.jpg", "1"),
        ("b/row.json/image.jpg", "1"),
    ])
    .dir("@3")
    .link("@3/.delete", "s3://b/k");
    let faults = batch.faults(&PHOTOS);
    let wanted = [
        "b/.delete||it is a directory",
        "b/5||.delete is a directory: an empty file",
        "b/5||.delete is for rows that are there",
        "b/@0||.delete is a directory: an empty file",
        "b/@1||.delete has 7 bytes: an empty file",
        "b/@3||.delete is a link: an empty file",
        "b/@4||.delete deletes the row: nothing else can be beside it",
        "b/@6||.version.json is a directory",
        "b/row.json||it is a directory",
    ];
    for (fault, start) in faults.iter().zip(wanted) {
        assert!(fault.starts_with(start), "{fault}\nshould start with\n{start}");
    }
    assert_eq!(faults.len(), wanted.len(), "{faults:#?}");
}
