//! The commands beside `mount`: import, inspect, verify, and what tells about them all.

mod commit;
mod documents;
mod import;
mod inspect;
mod links;
mod managed;
mod output;
mod verify;
