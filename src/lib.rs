//! lancefs: a Lance table as a file system.
//!
//! Every Blob value of every row of every version of a table is a file with an exact size; a read
//! fetches only the bytes asked for. The layers, from the top; arrows point down only, and
//! `tests/it/layers.rs` reads the `use crate::` lines and says so:
//!
//! ```text
//! cli                       parse and print                                             L5
//! fuse                      kernel adapter: convert, reply, errno                       L5
//! fs                        every file operation, async; knows no fuser, no lance       L4
//! publish maintain          batches to versions, exactly once; whole-table jobs         L3
//! table   staging           versions, rows, objects (knows lance, arrow); batches       L2
//! store   tree              ranged reads, block cache; names and inode numbers, pure    L1
//! units name media error private config telemetry                                       L0
//! ```
//!
//! Where to start: [`tree`] for what is shown, [`table::descriptor`] for how a value is found,
//! [`fs`] for the life of an operation.

// The checks of futures that reach from a commit down into the query engine are deep.
#![recursion_limit = "256"]
#![warn(clippy::unwrap_used)]

pub mod cli;
pub mod config;
pub mod error;
pub mod fs;
pub mod fuse;
pub mod maintain;
pub mod media;
pub mod name;
pub mod private;
pub mod publish;
pub mod staging;
pub mod store;
pub mod table;
pub mod telemetry;
pub mod tree;
pub mod units;
