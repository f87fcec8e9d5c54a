//! What all connections share: how the link is, and what went over it.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::pace::Pace;

/// How the link is.
pub struct Link {
    pub to: String,
    pub latency: Duration,
    pub connect: Duration,
    /// For each connection, in MB/s; 0 is without limit.
    pub rate: f64,
    pub fault: Option<PathBuf>,
}

/// What goes wrong just now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    Hang,
    Reset,
    Unavailable,
    Trickle,
    Cut,
}

/// Counts since the start.
#[derive(Default)]
pub struct Figures {
    pub connections: AtomicU64,
    pub get: AtomicU64,
    pub head: AtomicU64,
    pub put: AtomicU64,
    pub other: AtomicU64,
    pub up: AtomicU64,
    pub down: AtomicU64,
}

pub struct Shared {
    pub link: Link,
    pub total: Option<Mutex<Pace>>,
    pub figures: Figures,
}

impl Shared {
    pub fn new(link: Link, total_mb: f64) -> Self {
        let total = (total_mb > 0.0).then(|| Mutex::new(Pace::new(total_mb)));
        Self { link, total, figures: Figures::default() }
    }

    pub fn fault(&self) -> Fault {
        let Some(file) = &self.link.fault else { return Fault::None };
        match std::fs::read_to_string(file).unwrap_or_default().trim() {
            "hang" => Fault::Hang,
            "reset" => Fault::Reset,
            "503" => Fault::Unavailable,
            "trickle" => Fault::Trickle,
            "cut" => Fault::Cut,
            _ => Fault::None,
        }
    }
}

impl Figures {
    /// Counts a request by what a client sent; false if it is the rest of one.
    pub fn count(&self, sent: &[u8]) -> bool {
        let method = sent.split(|byte| *byte == b' ').next().unwrap_or_default();
        let counter = match method {
            b"GET" => &self.get,
            b"HEAD" => &self.head,
            b"PUT" => &self.put,
            b"POST" | b"DELETE" => &self.other,
            _ => return false,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        true
    }

    pub fn write_for_ever(&self, file: &Path) {
        let new = file.with_extension("new");
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        loop {
            let text = serde_json::json!({
                "connections": get(&self.connections), "get": get(&self.get), "head": get(&self.head),
                "put": get(&self.put), "other": get(&self.other),
                "bytes_up": get(&self.up), "bytes_down": get(&self.down),
            });
            if std::fs::write(&new, text.to_string()).is_ok() {
                let _ = std::fs::rename(&new, file);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}
