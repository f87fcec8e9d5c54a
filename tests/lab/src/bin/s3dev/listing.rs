//! Listings: what a prefix covers, and pages of it from one state.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use super::objects::Objects;

/// Listings of which a page is still to come; the oldest go.
const OPEN: usize = 64;

/// An object, or with a delimiter a common prefix.
pub struct Entry {
    pub name: String,
    /// Length, time and `ETag`; a common prefix has none.
    pub object: Option<(u64, SystemTime, String)>,
}

/// Everything that a prefix covers, by name; `delimited` stops at the next `/`.
pub fn list(objects: &Objects, bucket: &str, prefix: &str, delimited: bool) -> Vec<Entry> {
    let base = objects.root.join(bucket);
    let mut found = Vec::new();
    let mut folders = vec![prefix.rfind('/').map_or("", |end| &prefix[..=end]).to_owned()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(base.join(&folder)) else { continue };
        for entry in entries.flatten() {
            let (Ok(name), Ok(kind)) = (entry.file_name().into_string(), entry.file_type()) else {
                continue;
            };
            let key = format!("{folder}{name}");
            if kind.is_dir() {
                let key = key + "/";
                if delimited && key.starts_with(prefix) {
                    if holds_a_file(&entry.path()) {
                        found.push(Entry { name: key, object: None });
                    }
                } else if key.starts_with(prefix) || prefix.starts_with(&key) {
                    folders.push(key);
                }
            } else if key.starts_with(prefix)
                && let Ok(meta) = entry.metadata()
            {
                let modified = meta.modified().unwrap_or(UNIX_EPOCH);
                let tag = objects.tag(bucket, &key, meta.len(), modified);
                found.push(Entry { name: key, object: Some((meta.len(), modified, tag)) });
            }
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

fn holds_a_file(folder: &Path) -> bool {
    let is_or_holds = |entry: std::fs::DirEntry| {
        entry.file_type().is_ok_and(|kind| kind.is_file() || holds_a_file(&entry.path()))
    };
    std::fs::read_dir(folder).is_ok_and(|entries| entries.flatten().any(is_or_holds))
}

/// Listings whose next page somebody may ask for.
#[derive(Default)]
pub struct Pages {
    open: Mutex<BTreeMap<u64, Arc<Vec<Entry>>>>,
    next: AtomicU64,
}

/// One page: a listing, and the part of it to show.
pub struct Page {
    pub entries: Arc<Vec<Entry>>,
    pub start: usize,
    pub end: usize,
    /// What to ask for the next one with.
    pub token: Option<String>,
}

impl Pages {
    /// The page of a token; `None` for a token that is not known any more.
    pub fn go_on(&self, token: &str, most: usize) -> Option<Page> {
        let (id, start) = token.split_once('-')?;
        let (id, start) = (id.parse().ok()?, start.parse().ok()?);
        let entries = self.open.lock().unwrap().get(&id)?.clone();
        Some(self.page(id, entries, start, most))
    }

    /// The first page of a new listing, after a name.
    pub fn begin(&self, entries: Vec<Entry>, after: Option<&str>, most: usize) -> Page {
        let start =
            after.map_or(0, |after| entries.partition_point(|entry| entry.name.as_str() <= after));
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.page(id, Arc::new(entries), start, most)
    }

    fn page(&self, id: u64, entries: Arc<Vec<Entry>>, start: usize, most: usize) -> Page {
        let end = (start + most).min(entries.len());
        let more = end < entries.len() && most > 0;
        let mut open = self.open.lock().unwrap();
        if more {
            open.insert(id, entries.clone());
            while open.len() > OPEN {
                open.pop_first();
            }
        } else {
            open.remove(&id);
        }
        Page { entries, start, end, token: more.then(|| format!("{id}-{end}")) }
    }
}
