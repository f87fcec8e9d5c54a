//! Batches on a real disk, and what they mean.

mod leftovers;
mod places;

use std::fs;
use std::os::unix::fs::symlink;

use proptest::prelude::*;
use serde_json::json;
use tempfile::TempDir;

use super::fields::Fields;
use super::*;
use crate::staging::REFERENCE;
use crate::tree::Step;

fn path(text: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    for name in text.split('/') {
        let lists = name.matches("[]").count();
        steps.push(Step::Field(name.replace("[]", "")));
        steps.extend(std::iter::repeat_n(Step::Element, lists));
    }
    steps
}

/// A shape of fields that are written as `scenes[]/clip`.
fn shape(fields: &[&str]) -> Shape {
    let paths: Vec<Vec<Step>> = fields.iter().map(|field| path(field)).collect();
    Shape::new(paths.iter().map(Vec::as_slice))
}

const MEDIA: [&str; 5] = ["image", "info/thumb", "frames[]", "scenes[]/clip", "a[][]"];

/// A batch beneath a folder of its own.
struct Batch(TempDir, Key);

impl Batch {
    fn new(files: &[(&str, &str)]) -> Self {
        let batch = Self(tempfile::tempdir().unwrap(), Key::new());
        fs::create_dir(batch.path()).unwrap();
        for (name, bytes) in files {
            let path = batch.0.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            if !name.ends_with('/') {
                fs::write(path, bytes).unwrap();
            }
        }
        batch
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("b")
    }

    fn dir(self, name: &str) -> Self {
        fs::create_dir_all(self.path().join(name)).unwrap();
        self
    }

    fn link(self, name: &str, target: &str) -> Self {
        symlink(target, self.path().join(name)).unwrap();
        self
    }

    fn plan(&self, fields: &[&str]) -> Plan {
        let tree = fs::File::open(self.0.path()).unwrap();
        Plan::read(&tree, &self.path(), &self.1, &shape(fields), 10).unwrap()
    }

    /// The plan of a batch that has nothing wrong.
    fn good(&self, fields: &[&str]) -> Vec<Entry> {
        let plan = self.plan(fields);
        assert_eq!(plan.faults, []);
        plan.entries
    }

    /// The faults of a batch, as `place|field|text`.
    fn faults(&self, fields: &[&str]) -> Vec<String> {
        let faults = self.plan(fields).faults.into_iter();
        faults.map(|f| format!("{}|{}|{}", f.place, f.field, f.text)).collect()
    }
}

fn names(entries: &[Entry]) -> Vec<&str> {
    entries.iter().map(|entry| entry.name.as_str()).collect()
}

#[test]
fn names_find_their_fields() {
    let shape = shape(&MEDIA);
    let fields = Fields::new(&shape);
    for (name, leaf, indices) in [
        ("image.jpg", 0, &[][..]),
        ("image.tar.gz", 0, &[]),
        ("image", 0, &[]),
        ("image.bin", 0, &[]),
        ("image.", 0, &[]),
        ("info.thumb.png", 1, &[]),
        ("info.thumb", 1, &[]),
        ("frames[2].jpg", 2, &[2]),
        ("frames[0]", 2, &[0]),
        ("scenes[2].clip.mp4", 3, &[2]),
        ("a[0][1].x.y", 4, &[0, 1]),
    ] {
        assert_eq!(fields.find(name), Ok((LeafIndex::new(leaf), indices.to_vec())), "{name}");
    }
}

#[test]
fn a_name_of_no_field_says_which_there_are() {
    let shape = shape(&MEDIA);
    let fields = Fields::new(&shape);
    for (name, hint) in [
        ("imgae.jpg", "did you mean image?"),
        ("Image.JPG", "did you mean image?"),
        ("imagejpg", "did you mean image?"),
        ("image[0].jpg", "did you mean image?"),
        ("info.thum.png", "did you mean info.thumb?"),
        ("frames.jpg", "did you mean frames[0]?"),
        ("frames[].jpg", "did you mean frames[0]?"),
        ("frames[01].jpg", "did you mean frames[0]?"),
        ("frames[-1].jpg", "did you mean frames[0]?"),
        ("frames[0][0].jpg", "did you mean frames[0]?"),
        ("scenes.clip.mp4", "did you mean scenes[0].clip?"),
        (
            "qqq.jpg",
            "is for no field of the table. Its Blob fields are image, info.thumb, frames[0], scenes[0].clip, a[0][0]",
        ),
        ("", "is for no field"),
        (".jpg", "is for no field"),
        ("image.jpg.part", "a download"),
        (".image.jpg.Xa81bC", "rsync"),
        ("frames[1048576].jpg", "too high"),
        ("frames[18446744073709551615].bin", "too high"),
    ] {
        let error = fields.find(name).unwrap_err();
        assert!(error.contains(hint), "{name}: {error}");
    }
}

#[test]
fn fields_with_strange_names() {
    let shape =
        shape(&["50%", "x y", ".hidden", "s/a.b", "s/c/d", "s/c.d", "日本", "t/e%2Ef", "l[0]"]);
    let fields = Fields::new(&shape);
    for (name, leaf) in [
        ("50%25.bin", 0),
        ("50%.jpg", 0),
        ("x y.jpg", 1),
        ("%2Ehidden.jpg", 2),
        (".hidden.jpg", 2),
        ("s.a.b.jpg", 3),
        ("s.c.d.jpg", 4),
        ("s.c%2Ed.jpg", 5),
        ("日本.jpg", 6),
        ("t.e%252Ef", 7),
        ("t.e%2Ef", 7),
    ] {
        assert_eq!(fields.find(name), Ok((LeafIndex::new(leaf), vec![])), "{name}");
    }
}

#[test]
fn a_plain_name_of_two_fields_is_ambiguous() {
    // The list's own spelling is shown, so it wins; escapes that decode alike do not.
    let one = Shape::new([
        [Step::Field("l[0]".into())].as_slice(),
        &[Step::Field("l".into()), Step::Element],
    ]);
    assert_eq!(Fields::new(&one).find("l[0].jpg"), Ok((LeafIndex::new(1), vec![0])));
    assert_eq!(Fields::new(&one).find("l%5B0%5D.jpg"), Ok((LeafIndex::new(0), vec![])));
    let field = |name: &str| Step::Field(name.to_owned());
    let paths = [
        vec![field("s"), field("%"), field("x")],
        vec![field("s"), field("%.x")],
        vec![field("s"), field("%"), field("y")],
    ];
    let two = Shape::new(paths.iter().map(Vec::as_slice));
    let error = Fields::new(&two).find("s.%.x.jpg").unwrap_err();
    assert!(error.contains("s.%25.x.bin or s.%25%2Ex.bin"), "{error}");
}

#[test]
fn entries_are_rows_in_natural_order() {
    let batch = Batch::new(&[
        ("b/entry10/image.jpg", "10"),
        ("b/entry2/image.jpg", "22"),
        ("b/entry2/frames[2].jpg", ""),
        ("b/entry2/row.json", "{\"id\": 7}"),
        ("b/.DS_Store", "x"),
        ("b/entry2/._image.jpg", "x"),
        ("b/entry2/Thumbs.db", "x"),
        ("b/entry2/.image.jpg.swp", "x"),
        ("b/.version.json", "{}"),
        ("b/.Trash-0/files/gone.jpg", "x"),
        ("b/entry2/.AppleDouble/image.jpg", "x"),
    ])
    .dir("entry1");
    let entries = batch.good(&MEDIA);
    assert_eq!(names(&entries), ["entry1", "entry2", "entry10"]);
    assert_eq!(entries[0].payloads, []);
    let second = &entries[1];
    assert_eq!((second.place.as_str(), second.target), ("b/entry2", Target::New));
    assert_eq!(json!(second.json), json!({"id": 7}));
    let found: Vec<_> =
        second.payloads.iter().map(|p| (p.leaf.get(), p.indices.clone(), p.file.clone())).collect();
    let at = |name: &str| batch.path().join("entry2").join(name);
    assert_eq!(found, [(2, vec![2], at("frames[2].jpg")), (0, vec![], at("image.jpg"))]);
    let Source::File { len: 2, fingerprint } = second.payloads[1].source else { panic!() };
    let now = Fingerprint::of(&fs::metadata(at("image.jpg")).unwrap());
    assert_eq!(fingerprint, now);
    let meta = fs::metadata(at("image.jpg")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::ino(&meta), now.inode);
    fs::write(at("image.jpg"), "33").unwrap();
    let after = Fingerprint::of(&fs::metadata(at("image.jpg")).unwrap());
    assert_ne!(after, now);
}

#[test]
fn a_row_of_a_version_is_copied_as_it_is() {
    let entries = Batch::new(&[
        ("b/17/image.bin", "1"),
        ("b/17/info.thumb.bin", "2"),
        ("b/17/frames[0].bin", "3"),
        ("b/17/scenes[2].clip.bin", "4"),
        ("b/17/a[0][1].bin", "5"),
        ("b/17/row.json", "{\"image\": \"image.bin\", \"frames\": [\"frames[0].bin\", null]}"),
    ])
    .good(&MEDIA);
    assert_eq!(entries[0].payloads.len(), 5);
}

#[test]
fn files_alone_are_rows_of_the_one_column() {
    for fields in [&["image"][..], &["image", "info/thumb", "frames[]"]] {
        let batch =
            Batch::new(&[("b/photo10.jpg", "1"), ("b/photo2.jpg", "2"), ("b/e/image.png", "3")]);
        let entries = batch.link("x.jpg", "s3://k/v#bytes=1-2").good(fields);
        assert_eq!(names(&entries), ["e", "photo2.jpg", "photo10.jpg", "x.jpg"]);
        assert!(
            entries
                .iter()
                .all(|entry| entry.payloads.len() == 1 && entry.payloads[0].leaf.get() == 0)
        );
        let uri = Source::Uri { uri: "s3://k/v".into(), range: Some((1, 2)) };
        assert_eq!(entries[3].payloads[0].source, uri);
    }
    let batch = Batch::new(&[("b/photo.jpg", "1"), ("b/e/a.jpg", "3")]);
    let faults = batch.faults(&["a", "b"]);
    assert_eq!(faults.len(), 1);
    assert!(
        faults[0].starts_with("b/photo.jpg||a file alone") && faults[0].contains("(a, b)"),
        "{faults:?}"
    );
    for fields in [&["info/thumb"][..], &["frames[]"], &[]] {
        let faults = Batch::new(&[("b/photo.jpg", "1")]).faults(fields);
        assert!(faults[0].contains("has none"), "{fields:?}: {faults:?}");
    }
}

#[test]
fn a_batch_can_be_a_single_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("photo.jpg");
    fs::write(&file, "123").unwrap();
    let read = |file: &Path| {
        let tree = fs::File::open(folder.path()).unwrap();
        Plan::read(&tree, file, &Key::new(), &shape(&["image"]), 0)
    };
    let plan = read(&file).unwrap();
    assert_eq!((plan.faults, plan.batch.as_str(), plan.entries.len()), (vec![], "photo.jpg", 1));
    assert_eq!(
        (plan.entries[0].place.as_str(), &plan.entries[0].payloads[0].file),
        ("photo.jpg", &file)
    );
    let absent = read(&folder.path().join("absent")).unwrap_err();
    assert_eq!(absent.kind(), Kind::NotFound);
    for (name, hint) in [
        ("row.json", "directory of its row"),
        ("@2x.png", "@5/"),
        ("x.part", "a download"),
        (".DS_Store", "no batch"),
    ] {
        let file = folder.path().join(name);
        fs::write(&file, "{}").unwrap();
        let plan = read(&file).unwrap();
        assert!(plan.faults[0].text.contains(hint) && plan.entries.is_empty(), "{:?}", plan.faults);
    }
}

#[test]
fn rows_that_are_there_are_replaced_and_deleted() {
    let batch = Batch::new(&[
        ("b/@5/image.jpg", "1"),
        ("b/@0/row.json", "{\"id\": 1}"),
        ("b/@9/.delete", ""),
        ("b/@9/.DS_Store", "x"),
        ("b/5/image.jpg", "1"),
    ]);
    let targets: Vec<_> =
        batch.good(&MEDIA).iter().map(|entry| (entry.name.clone(), entry.target)).collect();
    let row = RowIndex::new;
    let wanted = [
        ("5", Target::New),
        ("@0", Target::Replace(row(0))),
        ("@5", Target::Replace(row(5))),
        ("@9", Target::Delete(row(9))),
    ];
    assert_eq!(targets, wanted.map(|(name, target)| (name.to_owned(), target)));
    let summary = batch.plan(&MEDIA).summary(0);
    assert_eq!(
        (summary.rows_new, summary.rows_replaced, summary.rows_deleted, summary.files),
        (1, 2, 1, 2)
    );
}

#[test]
fn every_fault_is_found_at_once() {
    let batch = Batch::new(&[
        ("b/1/image.jpg", "1"),
        ("b/1/image.png", "1"),
        ("b/2/qqq.jpg", "1"),
        ("b/3/row.json", "{\"a\": 1, \"a\": 2}"),
        ("b/4/frames/0.jpg", "1"),
        ("b/5/.delete", ""),
        ("b/@05/image.jpg", "1"),
        ("b/@00/image.jpg", "1"),
        ("b/@10/image.jpg", "1"),
        ("b/@4/.delete", ""),
        ("b/@4/image.jpg", ""),
        ("b/@me/image.jpg", ""),
        ("b/@99999999999999999999/image.jpg", ""),
        ("b/@/image.jpg", ""),
        ("b/@7.jpg", "1"),
        ("b/row.json", "{}"),
        ("b/.delete", ""),
    ])
    .dir("@6")
    .dir("6/row.json")
    .dir("8")
    .link("7", "../elsewhere")
    .link("8/image.jpg", "../1/image.jpg")
    .link("8/info.thumb.jpg", "/etc/passwd");
    std::os::unix::net::UnixListener::bind(batch.path().join("8/frames[0].jpg")).unwrap();
    let faults = batch.faults(&MEDIA);
    let wanted = [
        "b/.delete||.delete belongs into the directory @<row>",
        "b/1|image|image.jpg and image.png are for the same value",
        "b/2||qqq.jpg is for no field",
        "b/3||row.json: the key \"a\" is there twice at line 1",
        "b/4||frames is a directory",
        "b/5||.delete is for rows that are there",
        "b/6||row.json is a directory",
        "b/7|image|links inside a batch are not followed",
        "b/8|frames[0]|it is a socket",
        "b/8|image|links inside a batch are not followed: copy the file",
        "b/8|info.thumb|it is a link to the path /etc/passwd: for a reference to a file write file:///etc/passwd",
        "b/@||a name that begins with @",
        "b/@00||row 00 is written without zeros in front: @0",
        "b/@4||.delete deletes the row: nothing else",
        "b/@05||row 05 is written without zeros in front: @5",
        "b/@6||it replaces nothing of row 6",
        "b/@7.jpg||a name that begins with @ is a directory",
        "b/@10||there is no row 10 in the version that the batch was begun on: its rows are 0 to 9",
        "b/@99999999999999999999||a name that begins with @",
        "b/@me||a name that begins with @",
        "b/row.json||row.json belongs into the directory of its row",
    ];
    for (fault, start) in faults.iter().zip(wanted) {
        assert!(fault.starts_with(start), "{fault}\nshould start with\n{start}");
    }
    assert_eq!(faults.len(), wanted.len(), "{faults:#?}");
    assert!(
        Batch::new(&[("b/.DS_Store", "")]).faults(&MEDIA)[0].contains("nothing in it to commit")
    );
}

#[test]
fn a_file_of_the_table_is_adopted() {
    let batch = Batch::new(&[
        ("b/1/image.bin", ""),
        ("b/2/image.bin", "12"),
        ("b/3/image.bin", ""),
        ("b/4/image.bin", ""),
        ("b/5/image.bin", ""),
    ]);
    let reference = Reference {
        version: 5,
        manifest: "m".into(),
        base: None,
        path: "_blobs/u.blob".into(),
        offset: 7,
        len: 1 << 30,
    };
    let text = batch.1.mark(REFERENCE, &reference).unwrap();
    let set = |entry: &str, value: &[u8]| {
        let path = batch.path().join(entry).join("image.bin");
        rustix::fs::setxattr(path, REFERENCE, value, rustix::fs::XattrFlags::empty()).unwrap();
    };
    set("1", &text);
    set("2", &text);
    set("3", b"no json");
    // What tar --xattrs brings along: as it was before there were marks, and marked elsewhere.
    set("4", &serde_json::to_vec(&reference).unwrap());
    set("5", &Key::new().mark(REFERENCE, &reference).unwrap());
    let one = fs::File::options().write(true).open(batch.path().join("1/image.bin")).unwrap();
    one.set_len(1 << 30).unwrap();
    let plan = batch.plan(&MEDIA);
    assert_eq!(plan.entries[0].payloads[0].source, Source::Reference(reference));
    assert_eq!((plan.summary(0).bytes_adopted, plan.summary(0).bytes_upload), (1 << 30, 0));
    let faults = batch.faults(&MEDIA);
    assert!(
        faults[0].starts_with(
            "b/2|image|it stands for 1073741824 bytes of the table and is 2 bytes long"
        ),
        "{faults:?}"
    );
    assert!(
        faults[1].starts_with("b/3|image|what it was copied from cannot be told"),
        "{faults:?}"
    );
    for (fault, entry) in faults[2..].iter().zip(["4", "5"]) {
        let wanted = format!("b/{entry}|image|what it was copied from cannot be told");
        assert!(fault.starts_with(&wanted) && fault.contains("another program"), "{fault}");
    }
    assert_eq!((faults.len(), plan.payloads().count()), (4, 1), "{faults:?}");
}

#[test]
fn a_fifo_is_not_waited_for() {
    let batch = Batch::new(&[("b/1/frames[0].jpg", "")]);
    let fifo = batch.path().join("1/image.jpg");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    assert_eq!(batch.faults(&MEDIA), ["b/1|image|it is a fifo, which holds no data"]);
}

#[test]
fn a_cut_name_finds_its_list_position() {
    let long = "x".repeat(300);
    let shape = shape(&[&format!("a[]/{long}[]"), &format!("{long}[][]"), &format!("{long}1")]);
    let fields = Fields::new(&shape);
    for (leaf, indices) in
        [(0, vec![3, 5]), (0, vec![70_000, 4095]), (1, vec![0, 0]), (1, vec![3, 63]), (2, vec![])]
    {
        let leaf = LeafIndex::new(leaf);
        let shown = shape.leaf(leaf).unwrap().file_name(&indices);
        assert_eq!(shown.len(), 255);
        let stem = shown.strip_suffix(".bin").unwrap();
        for name in [shown.clone(), stem.to_owned(), format!("{stem}.jpg")] {
            assert_eq!(fields.find(&name), Ok((leaf, indices.clone())), "{name}");
        }
        let last = stem.len() - 1;
        let other = format!("{}{}.bin", &stem[..last], if stem.ends_with('0') { '1' } else { '0' });
        assert!(fields.find(&other).is_err(), "{other}");
    }
}

proptest! {
    // Trying positions is slow without optimisation.
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_name_that_is_shown_finds_its_value(
        paths in proptest::collection::vec(
            proptest::collection::vec(prop_oneof![
                4 => "[ab.%\\[\\]/0~]{0,3}".prop_map(Step::Field),
                1 => "(?s).{250,260}".prop_map(Step::Field),
                3 => Just(Step::Element)], 1..5),
            1..8),
        index in 0_u64..6,
    ) {
        let mut paths: Vec<Vec<Step>> = paths;
        for path in &mut paths {
            path.insert(0, Step::Field("c".to_owned()));
        }
        paths.sort_by_key(|p| format!("{p:?}"));
        paths.dedup();
        let shape = Shape::new(paths.iter().map(Vec::as_slice));
        let fields = Fields::new(&shape);
        for (leaf, name) in shape.indexed() {
            let indices: Vec<u64> = (0..name.lists()).map(|at| index + crate::units::u64_of(at)).collect();
            let shown = name.file_name(&indices);
            let wanted = Ok((leaf, indices));
            prop_assert_eq!(&fields.find(&shown), &wanted, "{}", shown);
            let stem = shown.strip_suffix(".bin").unwrap();
            // Where another field is called so, the extension is its.
            if !stem.ends_with('~') {
                prop_assert_eq!(&fields.find(&format!("{stem}.jpg")), &wanted, "{}.jpg", stem);
            }
        }
    }
}
