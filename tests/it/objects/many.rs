//! More objects open at once than a process may have descriptors.

use std::fs::{self, File};

use crate::harness::{LANCEFS, Place, eventually, folder, stderr, write_blobs};

const EMFILE: i32 = 24;
const OBJECTS: usize = 400;
/// How many descriptors the daemon may have.
const LIMIT: usize = 300;

#[test]
fn too_many_open_files_are_told_as_such_and_leave_the_mount_at_work() {
    let folder = folder();
    let table = folder.path().join("t.lance");
    for object in 0..OBJECTS {
        fs::write(folder.path().join(object.to_string()), format!("object {object}")).unwrap();
    }
    let values = format!(
        "[Blob.from_uri('file://{}/%d' % n) for n in range({OBJECTS})]",
        folder.path().display()
    );
    write_blobs(&table, "create", &values, "allow_external_blob_outside_bases=True");
    let place = Place::new();
    let script = format!("ulimit -n {LIMIT}; exec \"$@\"");
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &script, "sh"]).arg(&*LANCEFS).arg("mount").arg(&table).arg(&place.path);
    command.args(["--no-passthrough", "--allow-external", "*", "--log-file"]).arg(place.log_path());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let path = |row: usize| place.path.join(format!("1/{row}/blob.bin"));
    let same: Vec<File> = (0..OBJECTS).map(|_| File::open(path(0)).unwrap()).collect();
    let mut opened = 0;
    let open: Vec<_> = (0..OBJECTS).map(|row| File::open(path(row))).collect();
    for result in &open {
        match result {
            Ok(_) => opened += 1,
            Err(error) => assert_eq!(error.raw_os_error(), Some(EMFILE), "{error}"),
        }
    }
    assert!(opened > LIMIT / 2 && opened < LIMIT, "{opened} of {OBJECTS} were opened");
    // The mount still does its own work.
    fs::create_dir(place.path.join("1/0/x")).unwrap_err();
    assert!(fs::read(place.path.join("1/9/row.json")).unwrap().starts_with(b"{"));
    drop((same, open));
    let last = OBJECTS - 1;
    eventually("what was closed makes room", || File::open(path(last)).is_ok());
    assert_eq!(fs::read(path(last)).unwrap(), format!("object {last}").into_bytes());
}
