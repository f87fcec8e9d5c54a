//! Two calls of one commit fail: the answer to a write is lost, and something after it fails too. Who
//! has to find out whether the batch is in the table then meets a store that does not tell.
//!
//! The fast tier takes the writes on which all depends, and what is asked right after them; the slow
//! tier every write, and every call after it.

use serde_json::{Value, json};

use super::faults::{Trial, is_slow_tier};

/// More calls than come after any write.
const MANY: usize = 200;

/// Lets the answer to one write be lost, and after it one call, or all from one on, fail. Gives
/// whether there was such a call.
fn pair(trial: &mut Trial, first: &Value, skip: usize, kind: &str, count: u64) -> bool {
    let mut rule = first.clone();
    rule["then"] = json!({ "skip": skip, "kind": kind, "count": count });
    let took_place = trial.commit_under(&rule);
    assert!(took_place, "{first} never took place");
    trial.s3.struck_then().1 > 0
}

#[test]
fn a_lost_answer_and_a_call_that_fails_after_it_lose_and_double_nothing() {
    let mut trial = Trial::new();
    trial.calls();
    let mut pairs = 0;
    for (lost, second, count, skips) in [
        ("apply-then-fail", "fail-403", 1000, 0..6),
        ("apply-then-drop", "fail-403", 1, 0..4),
        ("apply-then-hang", "fail-403", 1000, 0..1),
        ("apply-then-fail", "drop", 1000, 1..2),
    ] {
        let first = json!({ "method": "PUT", "key": "/_versions/", "kind": lost, "count": 1 });
        for skip in skips {
            pairs += u32::from(pair(&mut trial, &first, skip, second, count));
        }
    }
    assert!(pairs >= 9, "{pairs} pairs took place only");
    trial.end();
}

#[test]
fn every_pair_of_a_lost_answer_and_a_later_call_that_fails() {
    if !is_slow_tier() {
        return;
    }
    let mut trial = Trial::new();
    let calls = trial.calls();
    let writes: Vec<usize> = (0..calls.len())
        .filter(|at| !calls[*at].starts_with("GET") && !calls[*at].starts_with("HEAD"))
        .collect();
    let mut pairs = 0;
    for write in writes {
        for lost in ["apply-then-fail", "apply-then-hang"] {
            for (second, count) in [("fail-403", 1_u64), ("fail-403", 1000)] {
                let first = json!({ "skip": write, "kind": lost, "count": 1 });
                println!("{}: {lost}, then {second} × {count}", calls[write]);
                let took_place = |skip: &usize| pair(&mut trial, &first, *skip, second, count);
                pairs += (0..MANY).take_while(took_place).count();
            }
        }
    }
    println!("{pairs} pairs took place");
    assert!(pairs > 300, "{pairs} pairs took place only");
    trial.end();
}
