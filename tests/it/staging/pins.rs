//! `--pin` where the store hangs when the mount ends.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::{Desk, S3, eventually, folder, is_alive, names, photos};

fn tags(desk: &Desk) -> Vec<String> {
    let listed = desk.python("print(*sorted(ds.tags.list()))");
    listed.split_whitespace().map(ToOwned::to_owned).collect()
}

#[test]
fn a_pin_that_a_hanging_store_keeps_is_taken_away_by_the_next_mount() {
    let (s3, folder) = (S3::new(&[]), folder());
    let table = folder.path().join("photos.lance");
    photos(&table);
    s3.put(&table, "t");
    let staging = folder.path().join("staging");
    let pinned = Desk::remote_with_staging(&s3, "t", &staging, &["--pin"]);
    assert_eq!(tags(&pinned).len(), 1);
    // A mount beside it leaves its tag alone.
    let beside = Desk::remote_with_staging(&s3, "t", &staging, &[]);
    let records = || {
        let below = names(&staging.join("pins"));
        below.iter().flat_map(|table| names(&staging.join("pins").join(table))).collect::<Vec<_>>()
    };
    assert_eq!((records().len(), tags(&pinned).len()), (1, 1));
    beside.mount.unmount();
    let pid = pinned.mount.pid();
    s3.strike(json!({ "kind": "hang", "method": "any" }));
    let begun = Instant::now();
    pinned.mount.unmount();
    eventually("the daemon ends", || !is_alive(pid));
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    assert!(pinned.mount.log().contains("the pin stays"), "{}", pinned.mount.log());
    s3.heal();
    assert_eq!((records().len(), tags(&pinned).len()), (1, 1));
    // Any mount of the table, at another place too.
    beside.start();
    eventually("the tag is taken away", || tags(&beside).is_empty() && records().is_empty());
    // One that was killed.
    pinned.start();
    assert_eq!(tags(&pinned).len(), 1);
    pinned.kill(pinned.mount.pid());
    beside.mount.unmount();
    pinned.start();
    assert_eq!(tags(&pinned).len(), 1, "it is taken over");
    pinned.mount.unmount();
    assert_eq!((records().len(), tags(&pinned).len()), (0, 0));
}
