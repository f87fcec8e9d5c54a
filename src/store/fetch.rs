//! What a store is asked for: a stretch of an object, whose bytes come as they arrive.
//!
//! This is the seam beneath the block cache. [`super::Remote`] implements it, [`super::Meter`]
//! counts what goes through it, and tests put a layer here that fails, hangs, truncates or trickles.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use sha2::{Digest as _, Sha256};

use super::Interval;
use crate::error::Result;
use crate::units::ByteLen;

/// What is known of an object from any answer about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    /// The whole object's length in bytes.
    pub length: ByteLen,
    /// The `ETag`, else the time at which it was written, where the store gives either: another tag
    /// is another object under the same name.
    pub tag: Option<Arc<str>>,
}

impl Meta {
    /// A number that another object is most unlikely to have.
    pub fn digest(&self) -> u32 {
        let tag = self.tag.as_deref().unwrap_or_default();
        let [a, b, c, d, ..] = Sha256::digest(format!("{} {tag}", self.length))[..] else {
            return 1;
        };
        u32::from_be_bytes([a, b, c, d])
    }
}

/// An answer whose bytes are on their way.
pub struct Answer {
    /// What the store says of the object.
    pub meta: Meta,
    /// The bytes in order; an error in it ends it.
    pub body: BoxStream<'static, Result<Bytes>>,
}

/// One object of a store.
pub trait Fetch: Send + Sync {
    /// Starts to fetch an interval. Of one that reaches past the object's end there comes what is
    /// there; a body may also end early for a worse reason, and whoever reads it has to count.
    ///
    /// # Errors
    /// `Kind::Payload` where the object is gone or starts to be asked for past its end,
    /// `Kind::Denied` where the store refuses the credentials or nobody has any, `Kind::Timeout` where another try may succeed.
    fn get(&self, interval: Interval) -> BoxFuture<'_, Result<Answer>>;

    /// What the store says of the object: one HEAD.
    ///
    /// # Errors
    /// As [`Fetch::get`].
    fn head(&self) -> BoxFuture<'_, Result<Meta>>;
}
