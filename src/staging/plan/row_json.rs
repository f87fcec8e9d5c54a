//! `row.json` of an entry: one JSON object, and not a byte of it guessed.
//!
//! 1. A key that is there twice has two values, and the parser would take the last: it is an error.
//! 2. The parser rounds some numbers twice, so that a float with 17 digits comes out one bit off
//!    (`serde_json` without its feature `float_roundtrip`, which would rebuild every other user of
//!    the crate). Each number is read from its text, which is found beside the parser ([`Numbers`]).
//! 3. An integer with more than 64 bits has no exact JSON number here: it is an error that says to
//!    write a string.

use std::cell::Cell;
use std::fmt;
use std::io::Read;
use std::str::FromStr as _;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::tree::ROW_JSON_MAX;

/// How many values it may have: each takes some 70 bytes of memory, and a digit and a comma of text.
const MAX_VALUES: usize = 1 << 22;

/// How much of a wrong text a message shows, in characters.
const SHOWN: usize = 60;

/// Reads it.
///
/// # Errors
/// What is wrong with it, for people, with line and column where there are such.
pub fn read(file: impl Read) -> Result<Map<String, Value>, String> {
    let mut bytes = Vec::new();
    let read = file.take(ROW_JSON_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|e| format!("row.json cannot be read: {e}"))?;
    if u64::try_from(bytes.len()).is_ok_and(|len| len > ROW_JSON_MAX) {
        return Err(format!(
            "row.json is larger than {} MiB: larger values belong into a Blob",
            ROW_JSON_MAX >> 20
        ));
    }
    let text = String::from_utf8(bytes).map_err(|e| {
        format!("row.json is not UTF-8: byte {} is none", e.utf8_error().valid_up_to())
    })?;
    // Some editors put a byte order mark in front (RFC 8259, 8.1: a reader may pass over it).
    parse(text.trim_start_matches('\u{feff}'))
}

fn parse(text: &str) -> Result<Map<String, Value>, String> {
    let numbers = Numbers { text, at: Cell::new(0), values: Cell::new(0) };
    let mut parser = serde_json::Deserializer::from_str(text);
    let parsed = Exact(&numbers).deserialize(&mut parser);
    let value = parsed.and_then(|value| parser.end().map(|()| value));
    match value.map_err(|e| format!("row.json: {e}"))? {
        Value::Object(object) => Ok(object),
        other => Err(format!(
            "row.json must be an object, {{\"column\": value}}, and is {}",
            word(&other)
        )),
    }
}

/// The beginning of a text, for messages.
pub fn cut(text: &str) -> &str {
    text.char_indices().nth(SHOWN).map_or(text, |(end, _)| &text[..end])
}

fn word(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// The texts of the numbers, one after another, as far as the text is JSON.
struct Numbers<'a> {
    text: &'a str,
    /// Where the next one is looked for, in bytes.
    at: Cell<usize>,
    /// How many values were met, numbers and others.
    values: Cell<usize>,
}

impl<'a> Numbers<'a> {
    fn next(&self) -> Option<&'a str> {
        let bytes = self.text.as_bytes();
        let mut at = self.at.get();
        loop {
            match bytes.get(at)? {
                b'"' => {
                    at += 1;
                    while bytes.get(at).is_some_and(|byte| *byte != b'"') {
                        at += if bytes[at] == b'\\' { 2 } else { 1 };
                    }
                    at += 1;
                }
                b'-' | b'0'..=b'9' => {
                    let part = |b: &&u8| b.is_ascii_digit() || b"+-.eE".contains(b);
                    let len = bytes[at..].iter().take_while(part).count();
                    self.at.set(at + len);
                    return Some(&self.text[at..at + len]);
                }
                _ => at += 1,
            }
        }
    }
}

/// Builds a value; the parser meets the numbers in the order of their texts.
#[derive(Clone, Copy)]
struct Exact<'a>(&'a Numbers<'a>);

impl Exact<'_> {
    fn number<E: serde::de::Error>(self) -> Result<Value, E> {
        let text = self.0.next();
        let text = text.ok_or_else(|| E::custom("a number that is not in the text"))?;
        if !text.contains(['.', 'e', 'E']) && text != "-0" {
            let whole = text
                .parse::<u64>()
                .map(Number::from)
                .or_else(|_| text.parse::<i64>().map(Number::from));
            return whole.map(Value::Number).map_err(|_| {
                E::custom(format_args!("{} does not fit 64 bits: write it as a string", cut(text)))
            });
        }
        let number = f64::from_str(text).ok().and_then(Number::from_f64);
        number
            .map(Value::Number)
            .ok_or_else(|| E::custom(format_args!("{} is out of range", cut(text))))
    }
}

impl<'de> DeserializeSeed<'de> for Exact<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.0.values.set(self.0.values.get() + 1);
        if self.0.values.get() > MAX_VALUES {
            let text = format!("more than {MAX_VALUES} values: so many belong into a Blob");
            return Err(D::Error::custom(text));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Exact<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: serde::de::Error>(self, _: i64) -> Result<Value, E> {
        self.number()
    }

    fn visit_u64<E: serde::de::Error>(self, _: u64) -> Result<Value, E> {
        self.number()
    }

    fn visit_f64<E: serde::de::Error>(self, _: f64) -> Result<Value, E> {
        self.number()
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = members.next_key::<String>()? {
            if object.contains_key(&key) {
                return Err(A::Error::custom(format_args!(
                    "the key {:?} is there twice",
                    cut(&key)
                )));
            }
            let value = members.next_value_seed(self)?;
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn of(text: &str) -> Result<Map<String, Value>, String> {
        read(text.as_bytes())
    }

    #[test]
    fn an_object_is_read_as_it_is() {
        let text = "\u{feff} {\"b\": [1, -2.5e3, {\"x\\\"7\": null}], \"a\": \"1.50\", \"t\": true, \"z\": -0}\n";
        let object = of(text).unwrap();
        assert_eq!(
            Value::Object(object.clone()),
            json!({"b": [1, -2500.0, {"x\"7": null}], "a": "1.50", "t": true, "z": -0.0})
        );
        assert_eq!(object.keys().collect::<Vec<_>>(), ["b", "a", "t", "z"], "the order is kept");
    }

    #[test]
    fn integers_of_64_bits_are_exact() {
        let object = of("{\"a\": 18446744073709551615, \"b\": -9223372036854775808}").unwrap();
        assert_eq!(object["a"].as_u64(), Some(u64::MAX));
        assert_eq!(object["b"].as_i64(), Some(i64::MIN));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, hint) in [
            ("", "EOF"),
            ("[1]", "must be an object"),
            ("{\"a\": 1} x", "trailing"),
            ("{\"a\": 1}{}", "trailing"),
            ("{\"a\": 1, \"a\": 2}", "\"a\" is there twice"),
            ("{\"s\": [{\"k\": 1, \"k\": 1}]}", "\"k\" is there twice"),
            ("{\"a\": 18446744073709551616}", "write it as a string"),
            ("{\"a\": 1e999}", "out of range"),
            ("{\"a\": 01}", "line 1"),
            ("{\"a\": NaN}", "line 1"),
            ("{'a': 1}", "line 1"),
        ] {
            let error = of(text).unwrap_err();
            assert!(error.contains(hint), "{text}: {error}");
        }
        let long = "7".repeat(1 << 20);
        for text in [format!("{{\"a\": {long}}}"), format!("{{\"{long}\": 1, \"{long}\": 1}}")] {
            assert!(of(&text).unwrap_err().len() < 200, "a message is for people");
        }
        assert!(read(&[b'{', 0xff, b'}'][..]).unwrap_err().contains("UTF-8"));
        assert!(of(&"[".repeat(100_000)).unwrap_err().contains("recursion"));
        let many = |count| of(&format!("{{\"a\": [{}1]}}", "1,".repeat(count)));
        assert!(many(MAX_VALUES).unwrap_err().contains("belong into a Blob"));
        assert_eq!(many(MAX_VALUES - 3).unwrap()["a"].as_array().unwrap().len(), MAX_VALUES - 2);
        let endless = std::io::repeat(b' ');
        assert!(read(endless).unwrap_err().contains("64 MiB: larger values belong into a Blob"));
    }

    proptest! {
        #[test]
        fn every_float_comes_back_to_the_bit(value in any::<f64>().prop_filter("no number", |v| v.is_finite())) {
            let object = of(&json!({ "x": value }).to_string()).unwrap();
            prop_assert_eq!(object["x"].as_f64().unwrap().to_bits(), value.to_bits());
        }

        #[test]
        fn numbers_keep_their_places(values in proptest::collection::vec((any::<i64>(), any::<f32>(), "[-0-9.e\"\\\\]{0,6}"), 0..6)) {
            let floats = values.iter().filter(|(_, f, _)| f.is_finite());
            let list: Vec<Value> = floats.map(|(i, f, s)| json!([i, {s.as_str(): f64::from(*f)}, s])).collect();
            let object = of(&json!({ "list": list }).to_string()).unwrap();
            prop_assert_eq!(&object["list"], &Value::Array(list));
        }
    }
}
