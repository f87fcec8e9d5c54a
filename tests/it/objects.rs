//! Objects that become others: recreated under their names, cut, grown, replaced.

mod foreign;
mod recreated;
