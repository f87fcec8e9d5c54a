//! `.lancefs/status.json`, `.lancefs/metrics`, and the file system's own size.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::json;

use super::Fs;
use crate::table::redacted;
use crate::tree::Node;
use crate::units;

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
    /// Bytes of the newest version that was opened, from its manifest: what `statfs` calls used.
    pub fn used_bytes(&self) -> u64 {
        self.table.newest_bytes()
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
            "staging": { "enabled": false, "reason": "this mount is read-only" },
            "cache": { "open_snapshots": snapshots, "pages": pages, "page_bytes": page_bytes },
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
        for (counter, name, help) in COUNTERS {
            let value = self.counters.get(counter);
            // Writing to a String cannot fail.
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {value}");
        }
        let gauges = [
            ("lancefs_open_files", "Open files.", units::u64_of(self.handles.count())),
            ("lancefs_open_snapshots", "Versions that are open.", snapshots),
            ("lancefs_page_cache_bytes", "Memory held by pages of descriptors.", page_bytes),
        ];
        for (name, help, value) in gauges {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}");
        }
        text
    }
}
