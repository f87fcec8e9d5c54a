//! Programs that know nothing of Lance.

use std::path::Path;
use std::process::{Command, Output};

use crate::harness::{Mount, Tables, folder, tree};

fn tool(program: &str, arguments: &[&str]) -> Output {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|e| panic!("{program}: {e}"));
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    output
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A copy shows the same names, sizes, modification times and bytes; numbers are its own.
fn assert_same(copy: &Path, original: &Path) {
    let alike = |root: &Path| {
        let mut all = tree(root);
        for seen in all.values_mut() {
            seen.ino = 0;
            // Directories differ in size between file systems.
            if seen.content.is_empty() {
                seen.size = 0;
            }
        }
        all
    };
    let (copied, wanted) = (alike(copy), alike(original));
    assert!(wanted.len() > 20, "{wanted:?}");
    assert_eq!(copied, wanted);
}

#[test]
fn cp_copies_a_version_with_its_attributes() {
    let mount = Mount::new(Tables::shared().path("nested"));
    let folder = folder();
    let copy = folder.path().join("copy");
    tool("cp", &["-a", text(&mount.at("1")), text(&copy)]);
    assert_same(&copy, &mount.at("1"));
}

#[test]
fn tar_packs_and_unpacks_a_version() {
    let mount = Mount::new(Tables::shared().path("scalar"));
    let folder = folder();
    let archive = folder.path().join("a.tar");
    // The format that keeps fractions of seconds.
    let pack = ["-C", text(&mount.path), "--format=posix", "-cf", text(&archive), "1"];
    let output = tool("tar", &pack);
    assert!(output.stderr.is_empty(), "{output:?}");
    tool("tar", &["-C", text(folder.path()), "-xpf", text(&archive)]);
    assert_same(&folder.path().join("1"), &mount.at("1"));
    // It compares types, modes, owners, times, sizes and bytes.
    tool("tar", &["-C", text(&mount.path), "-df", text(&archive)]);
}

#[test]
fn find_and_cmp_and_du_see_sizes() {
    let mount = Mount::new(Tables::shared().path("scalar"));
    let version = mount.at("1");
    let found = |arguments: &[&str]| {
        let output = tool("find", &[&[text(&version)], arguments].concat()).stdout;
        String::from_utf8(output).unwrap().lines().count()
    };
    assert_eq!(found(&["-name", "*.bin"]), 12);
    assert_eq!(found(&["-name", "*.bin", "-size", "+4096k"]), 1);
    assert_eq!(found(&["-name", "*.bin", "-empty"]), 1);
    assert_eq!(found(&["-type", "d"]), 15);
    assert_eq!(found(&["-perm", "/022"]), 0, "only their owner could write to them");
    let [a, b] = ["7", "8"].map(|row| version.join(row).join("blob.bin"));
    tool("cmp", &[text(&a), text(&a)]);
    let differ = Command::new("cmp").args(["-s", text(&a), text(&b)]).status().unwrap();
    assert_eq!(differ.code(), Some(1));
    let du = tool("du", &["-s", "--apparent-size", "-B1", text(&b)]).stdout;
    assert!(String::from_utf8(du).unwrap().starts_with("65536\t"));
}

#[test]
fn dd_reads_at_odd_offsets() {
    let mount = Mount::new(Tables::shared().path("scalar"));
    let path = mount.at("1/12/blob.bin");
    let whole = std::fs::read(&path).unwrap();
    for (flags, skip, count, block) in [
        ("skip_bytes", 1, 3, 777),
        ("skip_bytes", 4_194_300, 9, 5),
        ("skip_bytes,direct", 131_071, 2, 131_075),
        ("skip_bytes,direct", 4_194_304, 1, 4096),
        ("skip_bytes", 4_194_305, 1, 4096),
    ] {
        let numbers = [format!("skip={skip}"), format!("count={count}"), format!("bs={block}")];
        let [skipped, counted, sized] = &numbers;
        let input = format!("if={}", path.display());
        let flags = format!("iflag={flags}");
        let output = tool("dd", &[&input, &flags, skipped, counted, sized, "status=none"]);
        let end = (skip + count * block).min(whole.len());
        assert!(output.stdout == whole[skip..end], "{numbers:?}: {}", output.stdout.len());
    }
}

#[test]
fn stat_tells_about_the_file_system() {
    let mount = Mount::new(Tables::shared().path("scalar"));
    // The newest version that was opened says how many bytes there are.
    std::fs::read_dir(mount.at("1")).unwrap();
    let output = tool("stat", &["-f", "-c", "%T %l %S %b %f %a", text(&mount.path)]).stdout;
    let line = String::from_utf8(output).unwrap();
    let fields: Vec<&str> = line.split_whitespace().collect();
    assert!(fields[0].starts_with("fuse"), "{line}");
    assert_eq!(fields[1], "255");
    let number = |at: usize| fields[at].parse::<u64>().unwrap();
    assert!(number(2) * number(3) > 60_000, "{line}");
    assert_eq!((number(4), number(5)), (0, 0), "{line}");
}
