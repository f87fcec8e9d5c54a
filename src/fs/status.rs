//! `.lancefs/status.json`, `.lancefs/metrics`, and the file system's own size.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::json;

use super::Fs;
use crate::store::Figures;
use crate::table::redacted;
use crate::tree::Node;
use crate::units::{self, ByteLen, Ino};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Requests of the kernel.
    Requests,
    /// Files opened.
    Opens,
    /// Bytes given to readers.
    BytesRead,
    /// Operations that failed for another reason than an absent name.
    Failures,
}

/// The figures of one mount.
#[derive(Debug, Default)]
pub struct Counters {
    values: [AtomicU64; 4],
}

const COUNTERS: [(Counter, &str, &str); 4] = [
    (Counter::Requests, "lancefs_requests_total", "Requests of the kernel."),
    (Counter::Opens, "lancefs_opens_total", "Files opened."),
    (Counter::BytesRead, "lancefs_read_bytes_total", "Bytes given to readers."),
    (
        Counter::Failures,
        "lancefs_failures_total",
        "Operations that failed for another reason than an absent name.",
    ),
];

/// What is used and free, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Used.
    pub used: ByteLen,
    /// Free for whoever writes.
    pub free: ByteLen,
}

impl Counters {
    /// Adds to a figure.
    pub fn add(&self, counter: Counter, n: u64) {
        self.cell(counter).fetch_add(n, Ordering::Relaxed);
    }

    /// A figure as it is now.
    pub fn get(&self, counter: Counter) -> u64 {
        self.cell(counter).load(Ordering::Relaxed)
    }

    fn cell(&self, counter: Counter) -> &AtomicU64 {
        match counter {
            Counter::Requests => &self.values[0],
            Counter::Opens => &self.values[1],
            Counter::BytesRead => &self.values[2],
            Counter::Failures => &self.values[3],
        }
    }
}

impl Fs {
    /// What `statfs` tells. Of the mount: bytes of the newest version that was opened, from its
    /// manifest, and the free space of the staging disk; of what is in `staging/`: what batches use
    /// and may still use.
    pub fn space(&self, ino: Ino) -> Space {
        let table = ByteLen::new(self.table.newest_bytes());
        let space = self.spool().and_then(|spool| spool.space().ok());
        let Some(space) = space else { return Space { used: table, free: ByteLen::new(0) } };
        match self.node(ino) {
            Ok(Node::Staging | Node::Staged(_)) => Space { used: space.used, free: space.free },
            _ => Space { used: table, free: space.free_on_disk },
        }
    }

    /// The text of a file that tells about the mount. From memory: it never asks the store.
    pub(super) fn report(&self, node: &Node) -> String {
        match node {
            Node::Metrics => self.metrics(),
            _ => self.status(),
        }
    }

    fn status(&self) -> String {
        let ((snapshots, _), (pages, page_bytes)) = self.table.sizes();
        let versions = self.table.catalog.known_versions();
        let (held, coming) = self.table.opener.size();
        let figures = self.table.opener.figures();
        let allowed: Vec<_> = self.table.policy.texts().iter().map(|text| redacted(text)).collect();
        let started: chrono::DateTime<chrono::Utc> = self.started.into();
        let status = json!({
            "table": self.table.source.shown,
            "lancefs": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "mounted_at": started.to_rfc3339_opts(chrono::SecondsFormat::Secs, true),
            "refresh_seconds": self.look.refresh.as_secs_f64(),
            "versions": versions.len(),
            "latest": versions.last(),
            "allow_external": allowed,
            "staging": self.staging_status(),
            "cache": {
                "open_snapshots": snapshots, "pages": pages, "page_bytes": page_bytes,
                "block_bytes": held.get(), "coming_bytes": coming.get(),
                "hits": Figures::get(&figures.hits), "misses": Figures::get(&figures.misses),
                "disk_hits": Figures::get(&figures.disk_hits),
            },
            "store": {
                "gets": Figures::get(&figures.gets), "heads": Figures::get(&figures.heads),
                "bytes_fetched": Figures::get(&figures.fetched),
                "bytes_given": Figures::get(&figures.read),
            },
            "open_files": self.handles.count(),
            "requests": self.counters.get(Counter::Requests),
            "bytes_read": self.counters.get(Counter::BytesRead),
            "failures": self.counters.get(Counter::Failures),
        });
        format!("{status:#}\n")
    }

    fn metrics(&self) -> String {
        let ((snapshots, _), (_, page_bytes)) = self.table.sizes();
        let mut text = String::new();
        let own = COUNTERS
            .iter()
            .map(|(counter, name, help)| (*name, *help, self.counters.get(*counter)));
        let figures = self.table.opener.figures();
        let of_store = [
            ("lancefs_store_gets_total", "Ranged GETs for payloads.", &figures.gets),
            ("lancefs_store_heads_total", "HEADs for payloads.", &figures.heads),
            (
                "lancefs_store_fetched_bytes_total",
                "Payload bytes that came from stores.",
                &figures.fetched,
            ),
            (
                "lancefs_store_given_bytes_total",
                "Of them and of the cache, bytes given to readers.",
                &figures.read,
            ),
            ("lancefs_block_hits_total", "Blocks that a reader found in memory.", &figures.hits),
            (
                "lancefs_block_misses_total",
                "Blocks that a reader had to wait for.",
                &figures.misses,
            ),
            (
                "lancefs_disk_hits_total",
                "Blocks that came from the disk cache.",
                &figures.disk_hits,
            ),
        ];
        let of_store = of_store.map(|(name, help, figure)| (name, help, Figures::get(figure)));
        for (name, help, value) in own.chain(of_store) {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {value}");
        }
        let (held, coming) = self.table.opener.size();
        let gauges = [
            ("lancefs_open_files", "Open files.", units::u64_of(self.handles.count())),
            ("lancefs_open_snapshots", "Versions that are open.", snapshots),
            ("lancefs_page_cache_bytes", "Memory held by pages of descriptors.", page_bytes),
            ("lancefs_block_cache_bytes", "Memory held by blocks of payloads.", held.get()),
            (
                "lancefs_coming_bytes",
                "Payload bytes that were asked for and have not come yet.",
                coming.get(),
            ),
        ];
        for (name, help, value) in gauges {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}");
        }
        text
    }
}
