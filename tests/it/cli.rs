//! The commands beside `mount`: import, inspect, verify, and what tells about them all.

mod documents;
mod import;
mod inspect;
mod verify;
