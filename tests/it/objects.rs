//! Objects that become others: recreated under their names, cut, grown, replaced.

mod cut;
mod foreign;
mod many;
mod recreated;
mod sidecars;
