//! The integration tests: one binary, real mounts, real tables.
//!
//! They need root or `fusermount3`, `/dev/fuse`, and a Python with pylance (`scripts/test` makes
//! one and sets `LANCEFS_TEST_PYTHON`).

#![expect(
    clippy::large_stack_arrays,
    clippy::items_after_statements,
    clippy::unnecessary_debug_formatting,
    clippy::unused_self,
    reason = "tests are read from top to bottom, and Python takes a quoted path as it is"
)]

mod bad_input;
mod cells;
mod checklist;
mod cli;
mod harness;
mod layers;
mod life;
mod semantics;
