//! What a table may show by itself: nothing of the machine that mounts it, and nothing of stores and
//! buckets that are not its own. README "Semantics" S46, and S47 in `links`.

mod links;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::json;

use crate::harness::{Mount, S3, errno, folder, names, run, run_python, stderr, xattr};

const EACCES: i32 = 13;
const SECRET: &[u8] = b"0123456789 of the secret";

/// Writes a table that registers a base and has a value of its own in row 0, and values that the base
/// is asked for: an External one, a Managed one and a data file, which is the whole of row 3. The base
/// has the object `secret`.
fn table_of(uri: &str, base: &str, options: &str) {
    run_python(&format!(
        "from lance import BlobDescriptorArrayBuilder, Blob, DatasetBasePath
options = {{'data_storage_version': '2.2', 'storage_options': {options}}}
f = [pa.field('id', pa.int64()), blob_field('blob')]
managed = {{'lance.blob.managed': 'true'}}
def write(id, column, field, **more):
    schema = pa.schema([f[0], field], metadata=managed)
    t = pa.Table.from_arrays([pa.array([id]), column], schema=schema)
    return lance.write_dataset(t, '{uri}', **options, **more)
base = DatasetBasePath('{base}', name='base', is_dataset_root=False)
d = write(0, blob_array([b'its own']), f[1], mode='create', initial_bases=[base])
write(1, blob_array([Blob.from_uri('{base}/secret', 0, 10)]), f[1], mode='append')
b = BlobDescriptorArrayBuilder('blob')
b.append_managed('secret', 0, 10, base_id=next(iter(d._ds.base_paths())))
write(2, b.finish(), b.field, mode='append')
write(3, blob_array([b'in a file']), f[1], mode='append', target_bases=['base'])"
    ));
}

/// A folder with the secret, which root alone can read.
fn secrets(folder: &Path) -> String {
    let secrets = folder.join("secrets");
    fs::create_dir(&secrets).unwrap();
    fs::write(secrets.join("secret"), SECRET).unwrap();
    fs::set_permissions(&secrets, fs::Permissions::from_mode(0o700)).unwrap();
    secrets.to_str().unwrap().to_owned()
}

/// Rows 1 to 3 are refused with a word on the flag, whoever reads, and row 0 reads.
fn refuses(mount: &Mount, flag: &str) {
    assert_eq!(fs::read(mount.at("latest/0/blob.bin")).unwrap(), b"its own");
    assert!(fs::read(mount.at("latest/0/row.json")).unwrap().starts_with(b"{"));
    let wanted = format!("--allow-external {flag}");
    for row in [1, 2, 3] {
        let path = mount.at(format!("latest/{row}/blob.bin"));
        assert_eq!(errno(fs::read(&path)), EACCES, "row {row}");
        let as_nobody = cat_as_nobody(&path);
        assert!(stderr(&as_nobody).contains("Permission denied"), "{}", stderr(&as_nobody));
        assert_eq!(as_nobody.stdout, b"");
    }
    let row = mount.at("latest/3");
    assert_eq!(names(&row), ["blob.bin", "row.json"]);
    let json = fs::read(row.join("row.json")).unwrap_or_default();
    assert!(!String::from_utf8(json).unwrap().contains("\"id\": 3"));
    assert!(mount.log().contains(&wanted), "{}", mount.log());
}

/// The files that were refused say so. (Where the kernel checks modes itself, it asks for those of a
/// file first, and the log alone says it.)
fn tells(mount: &Mount, flag: &str) {
    for row in [1, 2, 3] {
        let path = mount.at(format!("latest/{row}/blob.bin"));
        let why = xattr(&path, "user.lancefs.error").unwrap();
        assert!(why.ends_with(&format!("--allow-external {flag}")), "row {row}: {why}");
    }
}

fn shows(mount: &Mount) {
    for (row, bytes) in
        [(0, &b"its own"[..]), (1, &SECRET[..10]), (2, &SECRET[..10]), (3, b"in a file")]
    {
        assert_eq!(fs::read(mount.at(format!("latest/{row}/blob.bin"))).unwrap(), bytes, "{row}");
    }
}

fn cat_as_nobody(path: &Path) -> Output {
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups", "cat"];
    Command::new("setpriv").args(nobody).arg(path).output().unwrap()
}

/// Others may enter the folder of the mount, whose own modes decide then.
fn open_to_everybody(mount: &Mount) {
    let everybody = fs::Permissions::from_mode(0o755);
    fs::set_permissions(mount.path.parent().unwrap(), everybody).unwrap();
}

/// Faults that `verify` finds, as `row/file: error`.
fn faults(table: &str, arguments: &[&str]) -> Vec<String> {
    let output = run(&[&["verify", table], arguments].concat());
    assert!(matches!(output.status.code(), Some(0 | 5)), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines: Vec<_> = text.lines().map(ToOwned::to_owned).collect();
    let summary = lines.pop().unwrap();
    assert!(summary.contains(&format!("{} faults", lines.len())), "{summary}");
    assert_eq!(output.status.code(), Some(if lines.is_empty() { 0 } else { 5 }));
    lines
}

#[test]
fn s46_a_table_in_a_bucket_publishes_no_file_of_the_machine() {
    let (s3, folder) = (S3::new(&[]), folder());
    let secrets = secrets(folder.path());
    table_of(&s3.uri("t"), &format!("file://{secrets}"), &s3.python_options());
    for arguments in [&["--allow-other"][..], &["--allow-other", "--read-only"]] {
        let mount = s3.mount("t", arguments);
        open_to_everybody(&mount);
        refuses(&mount, &format!("file://{secrets}"));
        if arguments.len() > 1 {
            tells(&mount, &format!("file://{secrets}"));
        }
    }
    let arguments = s3.arguments();
    let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let found = faults(&s3.uri("t"), &arguments);
    for row in ["1/blob.bin", "2/blob.bin", "3/blob.bin", "3/row.json"] {
        let named = |fault: &&String| fault.starts_with(row) && fault.contains("--allow-external");
        assert!(found.iter().any(|fault| named(&fault)), "{row} is not in {found:?}");
    }
    assert!(!found.iter().any(|fault| fault.starts_with('0')), "{found:?}");

    shows(&s3.mount("t", &["--allow-external", &secrets]));
    arguments.extend(["--allow-external", &secrets]);
    assert_eq!(faults(&s3.uri("t"), &arguments), [""; 0]);
}

#[test]
fn s46_a_base_in_another_bucket_is_not_asked() {
    let s3 = S3::new(&[]);
    let private = s3.bucket().parent().unwrap().join("private/base");
    fs::create_dir_all(&private).unwrap();
    fs::write(private.join("secret"), SECRET).unwrap();
    table_of(&s3.uri("t"), "s3://private/base", &s3.python_options());
    s3.strike(json!({ "count": 0, "method": "any", "key": "/private", "kind": "none" }));
    let staging = folder();
    let staging = format!("--staging-dir={}", staging.path().display());
    // Options for a base say nothing of where it is.
    for option in ["aws_region=us-east-1", "base_1.aws_region=us-east-1"] {
        let mount = s3.mount("t", &[&staging, "--storage-option", option]);
        refuses(&mount, "s3://private/base");
        tells(&mount, "s3://private/base");
        let walked = walkdir::WalkDir::new(mount.at("latest/")).into_iter();
        assert!(walked.filter_map(Result::ok).count() > 8);
        let batch = mount.at("staging/b");
        fs::create_dir(&batch).unwrap();
        fs::write(batch.join("x.bin"), b"new").unwrap();
        fs::rename(&batch, mount.at("commit/b")).unwrap();
    }
    let (asked, _) = s3.struck();
    assert_eq!(asked, [""; 0]);

    let mount = s3.mount("t", &["--allow-external", "s3://private/base"]);
    shows(&mount);
    assert_eq!(fs::read(mount.at("latest/5/blob.bin")).unwrap(), b"new");
    assert!(s3.struck().0.iter().any(|request| request.contains("/private/base/secret")));
}

#[test]
fn s46_a_base_in_the_tables_own_bucket_is_trusted_at_the_same_endpoint() {
    let s3 = S3::new(&[]);
    fs::create_dir(s3.bucket().join("base")).unwrap();
    fs::write(s3.bucket().join("base/secret"), SECRET).unwrap();
    table_of(&s3.uri("t"), &s3.uri("base"), &s3.python_options());
    shows(&s3.mount("t", &[]));
    let elsewhere = "base_1.aws_endpoint=http://127.0.0.1:9";
    let mount = s3.mount("t", &["--storage-option", elsewhere]);
    refuses(&mount, &s3.uri("base"));
}

#[test]
fn s46_a_local_table_shows_what_lies_beneath_it() {
    let folder = folder();
    let table = folder.path().join("t.lance");
    let within = |uri: &Path, base: &str| table_of(uri.to_str().unwrap(), base, "None");

    let secrets = secrets(folder.path());
    within(&table, &secrets);
    let mount = Mount::with(&table, &["--allow-other"]);
    open_to_everybody(&mount);
    refuses(&mount, &secrets);
    // A flag for one object of a base is none for the base.
    for arguments in [&[][..], &[&*format!("--allow-external={secrets}/secret")]] {
        let mount = Mount::with(&table, arguments);
        refuses(&mount, &secrets);
        tells(&mount, &secrets);
    }
    shows(&Mount::with(&table, &["--allow-external", &secrets]));

    let (name, real) = (folder.path().join("name.lance"), folder.path().join("real.lance"));
    fs::create_dir_all(real.join("media")).unwrap();
    fs::write(real.join("media/secret"), SECRET).unwrap();
    std::os::unix::fs::symlink(&real, &name).unwrap();
    // By the table's own name, and by another that leads to it.
    within(&real, real.join("media").to_str().unwrap());
    for path in [&real, &name] {
        shows(&Mount::new(path));
    }
    // `..` leads out of the table, and is seen when the base is opened.
    let out = folder.path().join("out.lance");
    within(&out, &format!("{}/../secrets", out.display()));
    let mount = Mount::new(&out);
    for row in [1, 2, 3] {
        let path = mount.at(format!("latest/{row}/blob.bin"));
        assert_eq!(errno(fs::read(path)), EACCES, "row {row}");
    }
}

#[test]
fn s46_a_shallow_clone_reads_where_its_source_has_the_same_owner() {
    let folder = folder();
    let (source, clone) = (folder.path().join("a.lance"), folder.path().join("b.lance"));
    run_python(&format!(
        "schema = pa.schema([pa.field('id', pa.int64()), blob_field('blob')])
values = [b'small', b'p' * 100_000, b'deleted', b'd' * 5_000_000]
rows = pa.table([pa.array(range(4)), blob_array(values)], schema=schema)
d = lance.write_dataset(rows, '{0}', data_storage_version='2.2')
d.delete('id = 2')
d = lance.dataset('{0}')
d.shallow_clone('{1}', d.version)",
        source.display(),
        clone.display()
    ));
    let lengths = [5, 100_000, 5_000_000];
    let reads = |arguments: &[&str]| {
        let mount = Mount::with(&clone, arguments);
        for (row, length) in lengths.iter().enumerate() {
            let read = fs::read(mount.at(format!("latest/{row}/blob.bin")));
            assert_eq!(read.map(|bytes| bytes.len()).ok(), Some(*length), "{}", mount.log());
            assert!(mount.at(format!("latest/{row}/row.json")).is_file());
        }
        assert_eq!(faults(clone.to_str().unwrap(), arguments), [""; 0]);
    };
    let refused = |why: &str| {
        let mount = Mount::new(&clone);
        for (row, _) in lengths.iter().enumerate() {
            let path = mount.at(format!("latest/{row}/blob.bin"));
            assert_eq!(errno(fs::read(path)), EACCES, "{why}: row {row}");
        }
        let flag = format!("--allow-external {}", source.display());
        assert!(mount.log().contains(&flag), "{why}: {}", mount.log());
        assert!(!faults(clone.to_str().unwrap(), &[]).is_empty(), "{why}");
        reads(&["--allow-external", source.to_str().unwrap()]);
    };
    let owned = |path: &Path, by: u32| std::os::unix::fs::chown(path, Some(by), None).unwrap();
    reads(&[]);
    owned(&source, 65534);
    refused("another owner's folder");
    owned(&clone, 65534);
    refused("another owner's list of versions");
    owned(&source.join("_versions"), 65534);
    reads(&[]);
    fs::rename(source.join("_versions"), source.join("other")).unwrap();
    refused("no table");
    std::os::unix::fs::symlink("other", source.join("_versions")).unwrap();
    std::os::unix::fs::lchown(source.join("_versions"), Some(65534), None).unwrap();
    refused("a link in place of a list of versions");
}
