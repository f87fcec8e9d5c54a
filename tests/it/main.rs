//! The integration tests: one binary, real mounts, real tables.
//!
//! They need root or `fusermount3`, `/dev/fuse`, and a Python with pylance (`scripts/test` makes
//! one and sets `LANCEFS_TEST_PYTHON`).

mod bad_input;
mod cells;
mod checklist;
mod cli;
mod harness;
mod layers;
mod life;
mod semantics;
