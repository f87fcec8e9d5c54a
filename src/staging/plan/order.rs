//! The natural order of names: numbers in them count as numbers.
//!
//! No crate that is here already does this; it is a dozen lines.

use std::cmp::Ordering;

/// Compares names as people sort them: `entry2` before `entry10`. A total order: names that differ
/// only in leading zeros are ordered by their bytes.
pub fn natural(a: &[u8], b: &[u8]) -> Ordering {
    let (mut left, mut right) = (runs(a), runs(b));
    loop {
        match (left.next(), right.next()) {
            (None, None) => return a.cmp(b),
            (None, _) => return Ordering::Less,
            (_, None) => return Ordering::Greater,
            (Some(one), Some(other)) => match compare(one, other) {
                Ordering::Equal => {}
                decided => return decided,
            },
        }
    }
}

/// A name in pieces that are all digits or hold none.
fn runs(name: &[u8]) -> impl Iterator<Item = &[u8]> {
    name.chunk_by(|x, y| x.is_ascii_digit() == y.is_ascii_digit())
}

fn compare(a: &[u8], b: &[u8]) -> Ordering {
    if a[0].is_ascii_digit() && b[0].is_ascii_digit() {
        // Of any length: compared as digits, never as an integer that could overflow.
        let (a, b) = (significant(a), significant(b));
        return a.len().cmp(&b.len()).then_with(|| a.cmp(b));
    }
    a.cmp(b)
}

fn significant(digits: &[u8]) -> &[u8] {
    let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
    &digits[zeros..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_count_as_numbers() {
        let sorted = [
            "",
            "0",
            "1",
            "01",
            "2",
            "10",
            "99999999999999999999999",
            "a",
            "a1b2",
            "a1b10",
            "a2b1",
            "entry",
            "entry1",
            "entry2",
            "entry02",
            "entry10",
            "entry 1",
            "é1",
        ];
        for (at, one) in sorted.iter().enumerate() {
            for (other_at, other) in sorted.iter().enumerate() {
                let wanted = match (*one, *other) {
                    // Leading zeros decide only what is equal else.
                    ("1", "01") | ("entry2", "entry02") => Ordering::Greater,
                    ("01", "1") | ("entry02", "entry2") => Ordering::Less,
                    _ => at.cmp(&other_at),
                };
                assert_eq!(natural(one.as_bytes(), other.as_bytes()), wanted, "{one} {other}");
            }
        }
    }

    proptest! {
        #[test]
        fn it_is_a_total_order(mut names in proptest::collection::vec("[a01]{0,5}", 3)) {
            names.sort_by(|a, b| natural(a.as_bytes(), b.as_bytes()));
            for (i, a) in names.iter().enumerate() {
                for b in &names[i..] {
                    prop_assert_ne!(natural(a.as_bytes(), b.as_bytes()), Ordering::Greater);
                    prop_assert_eq!(natural(a.as_bytes(), b.as_bytes()).reverse(), natural(b.as_bytes(), a.as_bytes()));
                }
            }
        }
    }
}
