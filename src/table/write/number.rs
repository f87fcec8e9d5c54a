//! Numbers of `row.json` as Arrow stores them. What is no such number is told in words.

use arrow_array::ArrowPrimitiveType;
use arrow_array::types::Float16Type;
use arrow_buffer::i256;
use serde_json::Value;

use super::shown;

/// Digits of a decimal fraction in JSON that a double certainly keeps.
const DOUBLE_DIGITS: usize = 15;
/// The largest power of ten that a decimal may name: no type of Arrow has more digits.
const MAX_DIGITS: i64 = 76;

/// The number of a 16 bit float.
pub type F16 = <Float16Type as ArrowPrimitiveType>::Native;

/// A whole number that the type holds.
///
/// # Errors
/// What would be right.
pub fn integer<N: TryFrom<i64> + TryFrom<u64>>(
    value: &Value,
    range: (i128, i128),
) -> Result<N, String> {
    let found = match (value.as_i64(), value.as_u64()) {
        (Some(number), _) => N::try_from(number).ok(),
        (_, Some(number)) => N::try_from(number).ok(),
        _ => None,
    };
    found.ok_or_else(|| {
        format!("must be a whole number from {} to {}, not {}", range.0, range.1, shown(value))
    })
}

/// A double.
///
/// # Errors
/// What would be right.
pub fn double(value: &Value) -> Result<f64, String> {
    word(value).or_else(|| value.as_f64()).ok_or_else(|| not_float(value))
}

/// The nearest single: by the number's digits, so that it is rounded once.
///
/// # Errors
/// What would be right.
pub fn single(value: &Value) -> Result<f32, String> {
    match word(value) {
        Some(word) if word.is_nan() => return Ok(f32::NAN),
        Some(word) if word > 0.0 => return Ok(f32::INFINITY),
        Some(_) => return Ok(f32::NEG_INFINITY),
        None => {}
    }
    let number = value.as_number().and_then(|number| number.to_string().parse::<f32>().ok());
    let number = number.ok_or_else(|| not_float(value))?;
    if number.is_finite() { Ok(number) } else { Err(too_large(value)) }
}

/// The nearest half.
///
/// # Errors
/// What would be right.
pub fn half(value: &Value) -> Result<F16, String> {
    let number = double(value)?;
    let half = F16::from_f64(number);
    if half.is_infinite() && number.is_finite() { Err(too_large(value)) } else { Ok(half) }
}

/// The unscaled value of a decimal. A string is exact; a number is taken where a double is.
///
/// # Errors
/// What would be right.
pub fn decimal(value: &Value, precision: u8, scale: i8) -> Result<i256, String> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return Err(format!("must be a decimal as a string, \"1.50\", not {}", shown(value))),
    };
    let Some(digits) = Digits::parse(&text) else {
        return Err(format!("must be a decimal, \"1.50\", not {}", shown(value)));
    };
    if value.is_f64() && digits.significant() > DOUBLE_DIGITS {
        return Err(format!("{text} has more digits than a JSON number keeps: write a string"));
    }
    digits.unscaled(precision, scale).ok_or_else(|| {
        format!("{} does not fit decimal({precision}, {scale}) without rounding", shown(value))
    })
}

/// A decimal number taken apart: its digits, as a whole number, × 10^`exponent`.
struct Digits {
    negative: bool,
    whole: String,
    exponent: i64,
}

impl Digits {
    fn parse(text: &str) -> Option<Self> {
        let (negative, unsigned) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let (mantissa, power) = match unsigned.split_once(['e', 'E']) {
            Some((mantissa, power)) => (mantissa, power.parse::<i32>().ok()?),
            None => (unsigned, 0),
        };
        let (before, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = format!("{before}{fraction}");
        if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
            return None;
        }
        let exponent = i64::from(power) - i64::try_from(fraction.len()).ok()?;
        let whole = digits.trim_start_matches('0').to_owned();
        Some(Self { negative, whole, exponent })
    }

    fn significant(&self) -> usize {
        self.whole.trim_end_matches('0').len()
    }

    /// As a whole number of units of 10^-`scale`; `None` where there are digits below the unit or
    /// more than `precision` above it.
    fn unscaled(&self, precision: u8, scale: i8) -> Option<i256> {
        if self.whole.is_empty() {
            return Some(i256::ZERO);
        }
        let shift = self.exponent + i64::from(scale);
        let digits = if shift >= 0 {
            let zeros = usize::try_from(shift.min(MAX_DIGITS)).ok()?;
            format!("{}{}", self.whole, "0".repeat(zeros))
        } else {
            let cut = usize::try_from(-shift).ok().filter(|cut| *cut < self.whole.len())?;
            let (kept, below) = self.whole.split_at(self.whole.len() - cut);
            below.bytes().all(|digit| digit == b'0').then(|| kept.to_owned())?
        };
        let magnitude =
            (digits.len() <= usize::from(precision)).then(|| i256::from_string(&digits));
        magnitude.flatten().map(|number| if self.negative { -number } else { number })
    }
}

fn word(value: &Value) -> Option<f64> {
    match value.as_str()? {
        "NaN" => Some(f64::NAN),
        "Infinity" => Some(f64::INFINITY),
        "-Infinity" => Some(f64::NEG_INFINITY),
        _ => None,
    }
}

fn not_float(value: &Value) -> String {
    format!("must be a number, \"NaN\", \"Infinity\" or \"-Infinity\", not {}", shown(value))
}

fn too_large(value: &Value) -> String {
    format!("{} is too large for the column's float", shown(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn i8_of(value: &Value) -> Result<i8, String> {
        integer(value, (i8::MIN.into(), i8::MAX.into()))
    }

    #[test]
    fn integers_are_whole_and_in_range() {
        assert_eq!(i8_of(&json!(-128)), Ok(-128));
        for wrong in [json!(128), json!(-129), json!(1.0), json!("1"), json!(true), json!(u64::MAX)]
        {
            let text = i8_of(&wrong).unwrap_err();
            assert!(text.contains("from -128 to 127"), "{text}");
        }
        let u64_of = |value: &Value| integer::<u64>(value, (0, u64::MAX.into()));
        assert_eq!(u64_of(&json!(u64::MAX)), Ok(u64::MAX));
        assert!(u64_of(&json!(-1)).is_err());
    }

    #[test]
    fn floats_know_their_range_and_their_words() {
        assert_eq!(single(&json!(0.1)), Ok(0.1));
        assert_eq!(single(&json!(1)), Ok(1.0));
        assert_eq!(single(&json!("-Infinity")), Ok(f32::NEG_INFINITY));
        assert!(single(&json!("NaN")).unwrap().is_nan() && double(&json!("NaN")).unwrap().is_nan());
        assert!(single(&json!(1e300)).is_err());
        assert_eq!(half(&json!(65504)), Ok(F16::MAX));
        assert!(half(&json!(65520)).is_err());
        assert!(double(&json!("1.5")).is_err() && double(&json!("inf")).is_err());
    }

    #[test]
    fn decimals_are_exact_or_refused() {
        let read = |value| decimal(&value, 5, 2).map(|number: i256| number.to_i128().unwrap());
        for (value, unscaled) in [
            (json!("1.50"), 150),
            (json!("-0.05"), -5),
            (json!("+999.99"), 99_999),
            (json!("1.5000"), 150),
            (json!("15e-1"), 150),
            (json!("0"), 0),
            (json!("-000.00"), 0),
            (json!(1.5), 150),
            (json!(12), 1200),
        ] {
            assert_eq!(read(value.clone()), Ok(unscaled), "{value}");
        }
        for value in [
            json!("1.505"),
            json!("1000.00"),
            json!("1e3"),
            json!("1e999999"),
            json!("1e-999999"),
            json!(""),
            json!("."),
            json!("1,5"),
            json!("NaN"),
            json!(true),
            json!(0.123_456_789_012_345_6),
        ] {
            assert!(read(value.clone()).is_err(), "{value}");
        }
        assert_eq!(decimal(&json!("12300"), 5, -2), Ok(i256::from_i128(123)));
        assert!(decimal(&json!("12350"), 5, -2).is_err());
        let nines = "9".repeat(76);
        assert_eq!(decimal(&json!(nines), 76, 0), Ok(i256::from_string(&nines).unwrap()));
    }
}
