//! The sizes of External objects whose rows record none.
//!
//! 1. Such a size is the object's own, and the object is somebody else's: it may be another one at any
//!    time. What was found is believed for a refresh period, and never by who opens the object
//!    ([`Sizes::open`]): whoever reads it gets all of it, or an error.
//! 2. A walk over rows must not ask a store twice for one object: whoever asks at once shares one
//!    HEAD ([`Refreshed`]). A local object is looked at each time, which costs less than to remember it.
//! 3. What was read of an object may be in memory and old, also where its size is recorded
//!    ([`Sizes::refresh`]).
//! 4. While the store hangs, the size that was found last is shown.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::refreshed::Refreshed;
use crate::error::{Error, Kind, Result};
use crate::store::lru::Lru;
use crate::store::{Meta, ObjectKey, ObjectRef, Opener, Owner, Place, RangeRead};

/// Objects that are remembered.
const REMEMBERED: u64 = 65_536;

/// What External objects were when they were looked at last.
pub struct Sizes {
    found: Lru<ObjectKey, Arc<Refreshed<Meta>>>,
    period: Duration,
}

impl Sizes {
    /// Nothing is known yet; what is found is believed for `period`.
    pub fn new(period: Duration) -> Self {
        Self { found: Lru::new(REMEMBERED), period }
    }

    /// What an object is, or was less than a period ago.
    ///
    /// # Errors
    /// As [`RangeRead::length`].
    pub async fn of(&self, opener: &Arc<Opener>, object: &ObjectRef) -> Result<Meta> {
        if matches!(object.place, Place::Local(_)) {
            return opener.look(object).await;
        }
        let (opener, asked) = (opener.clone(), object.clone());
        // What is gone is no failure that leaves the last one in its place.
        let gone = |error: Error| match error.kind() {
            Kind::Payload => error.of_kind(Kind::NotFound),
            _ => error,
        };
        let load = move || async move { opener.look(&asked).await.map_err(gone) };
        let found = self.remembered(object).await.get(self.period, load).await;
        match found {
            Ok(meta) => Ok((*meta).clone()),
            Err(error) if error.kind() == Kind::NotFound => Err(error.of_kind(Kind::Payload)),
            Err(error) => Err(error),
        }
    }

    /// Opens an object as what it is now.
    ///
    /// # Errors
    /// As [`RangeRead::length`].
    pub async fn open(
        &self,
        opener: &Opener,
        object: &ObjectRef,
    ) -> Result<(Arc<dyn RangeRead>, Meta)> {
        let started = Instant::now();
        let (found, meta) = opener.open_now(object).await?;
        if matches!(object.place, Place::Remote(..)) {
            self.remembered(object).await.set(started, Arc::new(meta.clone()));
        }
        Ok((found, meta))
    }

    /// Sees to it that nothing is read from memory of an object that became another one more than a
    /// period ago.
    pub async fn refresh(&self, opener: &Arc<Opener>, object: &ObjectRef) {
        let is_far = matches!(object.place, Place::Remote(..));
        if object.owner == Owner::Others && is_far && opener.is_known(object) {
            // Where that fails, whoever reads what is not in memory gets the reason.
            let _ = self.of(opener, object).await;
        }
    }

    async fn remembered(&self, object: &ObjectRef) -> Arc<Refreshed<Meta>> {
        let cell = self.found.cell(&object.key());
        cell.get_or_init(|| async { Arc::default() }).await.clone()
    }
}
