//! A rate in bytes per second.

use std::time::{Duration, Instant};

/// Lateness that is made good, so that the scheduler's hiccups do not lower the mean rate.
const CREDIT: Duration = Duration::from_millis(20);
/// After a pause of this length there is no credit.
const PAUSE: Duration = Duration::from_millis(10);

/// Says when bytes may go.
pub struct Pace {
    rate: f64,
    next: Instant,
    last: Instant,
}

impl Pace {
    /// `rate_mb` is in 10^6 bytes per second, not 0.
    pub fn new(rate_mb: f64) -> Self {
        let now = Instant::now();
        Self { rate: rate_mb * 1e6, next: now, last: now }
    }

    /// Reserves bytes; gives when they may go.
    pub fn reserve(&mut self, bytes: usize) -> Instant {
        let now = Instant::now();
        let floor = if now - self.last > PAUSE { now } else { now - CREDIT };
        self.next = self.next.max(floor) + Duration::from_secs_f64(bytes as f64 / self.rate);
        self.last = self.next.max(now);
        self.next
    }
}

/// Sleeps until then.
pub fn until(then: Instant) {
    std::thread::sleep(then.saturating_duration_since(Instant::now()));
}
