//! Where the crate is let at a table's files: what panics in it is an error of who asked.
//!
//! The crate panics on some files that are damaged or newer than itself (lance 14.0.2:
//! `L:dataset.rs:800`, `LC:datatypes/field.rs` for a logical type that it does not know, many of its
//! decoders). Difficulties:
//!
//! 1. A panic must end neither the mount nor a task that others wait for: it is caught where the
//!    crate is entered, and is of the kind of a file that cannot be read.
//! 2. Decoding keeps a thread busy that answers the kernel: it is a task of its own ([`apart`]).

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use futures::FutureExt as _;
use tokio::task::JoinError;

use super::fault;
use crate::error::{Error, Kind, Result};

/// Does something with the crate that takes no time.
///
/// # Errors
/// Those of `work`; [`Kind::Table`] where it panics.
pub fn here<T>(what: impl FnOnce() -> String, work: impl FnOnce() -> Result<T>) -> Result<T> {
    // What `work` was changing when it panicked is dropped with it.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(panicked(&what(), &*panic)))
}

/// Waits for something of the crate that reads and decodes little.
///
/// # Errors
/// Its failure, by its kind; [`Kind::Table`] where it panics.
pub async fn within<T>(
    what: impl FnOnce() -> String,
    work: impl Future<Output = lance::Result<T>>,
) -> Result<T> {
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(done) => done.map_err(|error| fault::of(what(), error)),
        Err(panic) => Err(panicked(&what(), &*panic)),
    }
}

/// Waits for something of the crate that decodes, as a task of its own.
///
/// # Errors
/// As [`within`].
pub async fn apart<T: Send + 'static>(
    what: impl FnOnce() -> String,
    work: impl Future<Output = lance::Result<T>> + Send + 'static,
) -> Result<T> {
    match tokio::spawn(work).await {
        Ok(done) => done.map_err(|error| fault::of(what(), error)),
        Err(ended) => Err(ended_early(what(), ended)),
    }
}

fn ended_early(what: String, ended: JoinError) -> Error {
    match ended.try_into_panic() {
        Ok(panic) => panicked(&what, &*panic),
        Err(ended) => Error::caused(Kind::Internal, what, ended),
    }
}

fn panicked(what: &str, panic: &(dyn Any + Send)) -> Error {
    let said = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let said = said.or_else(|| panic.downcast_ref::<String>().cloned());
    Error::new(
        Kind::Table,
        format!("{what}: a decoder panicked: {}", said.as_deref().unwrap_or("without a word")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn what() -> String {
        "read x".to_owned()
    }

    async fn fails(text: String) -> lance::Result<()> {
        tokio::task::yield_now().await;
        if text.is_empty() {
            return Err(lance::Error::invalid_input("empty"));
        }
        panic!("{text}")
    }

    #[tokio::test]
    async fn a_panic_is_an_error_that_says_what_was_done_and_what_was_said() {
        let panics = || fails("no such type".to_owned());
        let said = "read x: a decoder panicked: no such type";
        for error in [
            within(what, panics()).await.unwrap_err(),
            apart(what, panics()).await.unwrap_err(),
            here::<()>(what, || panic!("no such type")).unwrap_err(),
        ] {
            assert_eq!((error.kind(), error.to_string().as_str()), (Kind::Table, said));
            assert!(fault::is_of_content(&error));
        }
    }

    #[tokio::test]
    async fn a_failure_stays_what_it_is() {
        let error = apart(what, fails(String::new())).await.unwrap_err();
        assert!(error.to_string().contains("empty"), "{error}");
        let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
        let missing = async { Err::<(), _>(lance::Error::from(missing)) };
        let error = within(what, missing).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Payload);
        assert!(!fault::is_of_content(&error));
    }
}
