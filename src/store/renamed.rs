//! An object that may have another name.
//!
//! Which of the two it has is known by looking, and a look costs a request: so it is asked for under
//! its first name, and only where there is none under the second. An error is that of the first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;

use super::{Interval, RangeRead};
use crate::error::{Kind, Result};
use crate::units::ByteLen;

/// An object of a store with two names.
pub struct Renamed {
    first: Arc<dyn RangeRead>,
    second: Arc<dyn RangeRead>,
    /// Whether it was found under the second name.
    is_second: AtomicBool,
    /// Is told when it is.
    found: Box<dyn Fn() + Send + Sync>,
}

impl Renamed {
    /// An object that is at `first`, or else at `second`; `found` is told when it is there.
    pub fn new(
        first: Arc<dyn RangeRead>,
        second: Arc<dyn RangeRead>,
        found: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        Self { first, second, is_second: AtomicBool::new(false), found: Box::new(found) }
    }

    async fn either<'s, T>(
        &'s self,
        ask: impl Fn(&'s dyn RangeRead) -> BoxFuture<'s, Result<T>>,
    ) -> Result<T> {
        if self.is_second.load(Ordering::Relaxed) {
            return ask(&*self.second).await;
        }
        let error = match ask(&*self.first).await {
            Err(error) if error.kind() == Kind::Payload => error,
            answer => return answer,
        };
        let answer = ask(&*self.second).await;
        if answer.is_ok() {
            self.is_second.store(true, Ordering::Relaxed);
            (self.found)();
        }
        answer.map_err(|_| error)
    }
}

impl RangeRead for Renamed {
    fn read(&self, interval: Interval) -> BoxFuture<'_, Result<Bytes>> {
        self.either(move |object| object.read(interval)).boxed()
    }

    fn length(&self) -> BoxFuture<'_, Result<ByteLen>> {
        self.either(|object| object.length()).boxed()
    }
}
