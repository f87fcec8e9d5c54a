//! Jobs on a whole table: files into rows, every value against its object.

pub mod import;
pub mod verify;
