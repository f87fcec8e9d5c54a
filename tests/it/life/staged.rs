//! Batches over the ends of mounts, and mounts that do not end.

use super::*;

/// A table that takes Managed payloads.
fn photo_table(folder: &Path) -> std::path::PathBuf {
    let table = folder.join("photos.lance");
    crate::harness::photos(&table);
    table
}

fn mount(place: &Place, table: &std::ffi::OsStr, staging: &Path) -> std::process::Output {
    let output = place.command(table).arg("--staging-dir").arg(staging).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    output
}

#[test]
fn a_table_has_its_batches_by_whichever_name_it_is_mounted() {
    let folder = crate::harness::folder();
    let (table, staging) = (photo_table(folder.path()), folder.path().join("staging"));
    let link = folder.path().join("link.lance");
    std::os::unix::fs::symlink(&table, &link).unwrap();
    let uri = format!("file://{}", table.display());
    let place = Place::new();
    let path = place.path.to_str().unwrap();
    mount(&place, table.as_os_str(), &staging);
    fs::create_dir_all(place.path.join("staging/monday/1")).unwrap();
    for name in [link.as_os_str(), uri.as_ref(), table.as_os_str()] {
        let output = run(&["unmount", path]);
        assert!(output.status.success(), "{}", stderr(&output));
        let said = stderr(&output);
        assert!(said.contains("monday") && said.contains(staging.to_str().unwrap()), "{said}");
        mount(&place, name, &staging);
        assert_eq!(names(&place.path.join("staging")), ["monday"], "{name:?}");
    }
    let other = Place::new();
    let output = mount(&other, table.as_os_str(), &staging);
    assert!(names(&other.path.join("staging")).is_empty());
    assert!(stderr(&output).contains("other batches of this table"), "{}", stderr(&output));
}

#[test]
fn a_mount_whose_folder_is_mounted_elsewhere_too_is_busy() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root mounts a folder elsewhere");
        return;
    }
    let place = mounted();
    let path = place.path.to_str().unwrap();
    let elsewhere = Place::new();
    let bind = ["--bind", &format!("{path}/1"), elsewhere.path.to_str().unwrap()];
    assert!(Command::new("mount").args(bind).status().unwrap().success());
    let output = run(&["unmount", path]);
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    assert!(stderr(&output).contains(elsewhere.path.to_str().unwrap()), "{}", stderr(&output));
    assert_eq!(place.mounts().len(), 1);
    assert!(Command::new("umount").arg(&elsewhere.path).status().unwrap().success());
    let daemon = place.pid();
    assert!(run(&["unmount", path]).status.success());
    ends(&place, daemon);
}
