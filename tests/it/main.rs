//! The integration tests: one binary, real mounts, real tables.
//!
//! They need root or `fusermount3`, `/dev/fuse`, a Python with pylance and the tools of `tests/lab`
//! (`scripts/test` makes both and sets `LANCEFS_TEST_PYTHON` and `LANCEFS_TEST_LAB`).

#![expect(
    clippy::large_stack_arrays,
    clippy::items_after_statements,
    clippy::unnecessary_debug_formatting,
    clippy::unused_self,
    reason = "tests are read from top to bottom, and Python takes a quoted path as it is"
)]

mod bad_input;
mod big;
mod cells;
mod checklist;
mod cli;
mod damage;
mod harness;
mod large_rows;
mod layers;
mod life;
mod objects;
mod passing;
mod remote;
mod semantics;
mod silent;
mod staging;
mod trust;
