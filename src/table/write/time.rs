//! Dates, times, timestamps and durations of `row.json` as Arrow stores them.
//!
//! 1. A text with an offset names an instant, whatever the zone of its column: RFC 3339. A zone whose
//!    offset has seconds (before 1900 most had) is shown in UTC (`super::super::json`), and a zone
//!    that Arrow does not know (`utc`, `UTC+2`, names of Windows) takes such texts too ([`instant`]).
//! 2. What no calendar can show is shown as the stored number, and a number is read as that
//!    ([`stored`]).

use std::str::FromStr;

use arrow_schema::TimeUnit;
use chrono::{FixedOffset, NaiveDate, NaiveDateTime, NaiveTime};
use serde_json::Value;

use super::shown;

/// Nanoseconds in a second.
const NANOS: i128 = 1_000_000_000;
/// Seconds in a day.
const DAY: i64 = 86_400;
/// The length of `+02:00`.
const OFFSET_LEN: usize = 6;

/// How many nanoseconds a unit has.
const fn nanos_in(unit: TimeUnit) -> i128 {
    match unit {
        TimeUnit::Second => NANOS,
        TimeUnit::Millisecond => 1_000_000,
        TimeUnit::Microsecond => 1000,
        TimeUnit::Nanosecond => 1,
    }
}

/// A value in text or, where no text can show it, as the stored number.
///
/// # Errors
/// What would be right, with `example`.
fn stored<N: TryFrom<i64>>(
    value: &Value,
    example: &str,
    read: impl Fn(&str) -> Option<Result<i128, String>>,
) -> Result<N, String> {
    let wrong = || format!("must be written like {example:?}, not {}", shown(value));
    let number = match value {
        Value::Number(number) => number.as_i64().ok_or_else(wrong)?.into(),
        Value::String(text) => read(text).ok_or_else(wrong)??,
        _ => return Err(wrong()),
    };
    let number = i64::try_from(number).ok().and_then(|number| N::try_from(number).ok());
    number.ok_or_else(|| format!("{} is out of the column's range", shown(value)))
}

/// A count of nanoseconds in a coarser unit, if nothing is lost.
fn in_units(nanos: i128, unit: TimeUnit) -> Result<i128, String> {
    let size = nanos_in(unit);
    if nanos % size == 0 {
        Ok(nanos / size)
    } else {
        Err(format!("is finer than the column's unit, a {unit:?}").to_lowercase())
    }
}

fn nanos_of(time: NaiveDateTime) -> i128 {
    let utc = time.and_utc();
    i128::from(utc.timestamp()) * NANOS + i128::from(utc.timestamp_subsec_nanos())
}

/// Days since 1970.
///
/// # Errors
/// What would be right.
pub fn date32(value: &Value) -> Result<i32, String> {
    stored(value, "2024-01-31", |text| {
        let midnight = NaiveDate::from_str(text).ok()?.and_time(NaiveTime::MIN);
        Some(Ok(i128::from(midnight.and_utc().timestamp() / DAY)))
    })
}

/// Milliseconds since 1970.
///
/// # Errors
/// What would be right.
pub fn date64(value: &Value) -> Result<i64, String> {
    stored(value, "2024-01-31", |text| {
        let time = match NaiveDate::from_str(text) {
            Ok(date) => date.and_time(NaiveTime::MIN),
            Err(_) => NaiveDateTime::from_str(text).ok()?,
        };
        Some(in_units(nanos_of(time), TimeUnit::Millisecond))
    })
}

/// Units since midnight.
///
/// # Errors
/// What would be right.
pub fn time<N: TryFrom<i64>>(value: &Value, unit: TimeUnit) -> Result<N, String> {
    stored(value, "23:59:59", |text| {
        let time = NaiveTime::from_str(text).ok()?.signed_duration_since(NaiveTime::MIN);
        Some(in_units(time.num_nanoseconds()?.into(), unit))
    })
}

/// Units since 1970, in UTC where the column has a zone.
///
/// # Errors
/// What would be right.
pub fn timestamp(value: &Value, unit: TimeUnit, zone: Option<&str>) -> Result<i64, String> {
    let (example, read): (_, fn(&str) -> Option<NaiveDateTime>) = match zone {
        None => ("2024-01-31T23:59:59", |text| NaiveDateTime::from_str(text).ok()),
        Some(_) => ("2024-01-31T23:59:59Z", instant),
    };
    stored(value, example, |text| Some(in_units(nanos_of(read(text)?), unit)))
}

/// The instant, in UTC, that a text with an offset names.
fn instant(text: &str) -> Option<NaiveDateTime> {
    if let Some(utc) = text.strip_suffix('Z') {
        return NaiveDateTime::from_str(utc).ok();
    }
    let at = text.len().checked_sub(OFFSET_LEN).filter(|at| text.is_char_boundary(*at))?;
    let (local, offset) = text.split_at(at);
    let offset = FixedOffset::from_str(offset).ok()?;
    NaiveDateTime::from_str(local).ok()?.checked_sub_offset(offset)
}

/// A duration in units: ISO 8601, of weeks, days, hours, minutes and seconds.
///
/// # Errors
/// What would be right.
pub fn duration(value: &Value, unit: TimeUnit) -> Result<i64, String> {
    stored(value, "PT1.5S", |text| Some(in_units(iso_nanos(text)?, unit)))
}

fn iso_nanos(text: &str) -> Option<i128> {
    let (sign, text) = text.strip_prefix('-').map_or((1, text), |rest| (-1, rest));
    let (days, clock) = {
        let text = text.strip_prefix('P').filter(|rest| !rest.is_empty())?;
        match text.split_once('T') {
            Some((_, "")) => return None,
            Some((days, clock)) => (days, clock),
            None => (text, ""),
        }
    };
    let days = components(days, &[('W', 7 * DAY), ('D', DAY)])?;
    let clock = components(clock, &[('H', 3600), ('M', 60), ('S', 1)])?;
    days.checked_add(clock)?.checked_mul(sign)
}

/// The sum of `3H2M1.5S` in nanoseconds: each unit at most once, in this order.
fn components(mut text: &str, units: &[(char, i64)]) -> Option<i128> {
    let mut sum: i128 = 0;
    for (letter, seconds) in units {
        let Some((amount, rest)) = text.split_once(*letter) else { continue };
        let (whole, fraction) = amount.split_once('.').unwrap_or((amount, "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !digits(whole) || !digits(fraction) || fraction.len() > 9 {
            return None;
        }
        let nanos: i128 = format!("{whole}{fraction:0<9}").parse().ok()?;
        sum = sum.checked_add(nanos.checked_mul((*seconds).into())?)?;
        text = rest;
    }
    text.is_empty().then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn times_are_read_in_their_unit_or_refused() {
        assert_eq!(date32(&json!("1970-01-02")), Ok(1));
        assert_eq!(date32(&json!("-0001-12-31")), Ok(-719_529));
        assert_eq!(date32(&json!(i32::MAX)), Ok(i32::MAX));
        assert!(date32(&json!(i64::MAX)).is_err() && date32(&json!("2023-02-29")).is_err());
        assert_eq!(date64(&json!("1970-01-02")), Ok(86_400_000));
        assert_eq!(date64(&json!("1970-01-01T00:00:00.001")), Ok(1));
        assert_eq!(time::<i32>(&json!("00:01:00.5"), TimeUnit::Millisecond), Ok(60_500));
        let text = time::<i32>(&json!("00:00:00.5"), TimeUnit::Second).unwrap_err();
        assert!(text.contains("finer"), "{text}");
        assert!(time::<i64>(&json!("24:00:00"), TimeUnit::Nanosecond).is_err());
    }

    #[test]
    fn a_timestamp_has_a_zone_where_its_column_has_one() {
        let read = |text: &str, zone| timestamp(&json!(text), TimeUnit::Second, zone);
        assert_eq!(read("1970-01-01T00:00:01", None), Ok(1));
        assert!(read("1970-01-01T00:00:01Z", None).is_err());
        assert_eq!(read("1970-01-01T00:00:01Z", Some("UTC")), Ok(1));
        assert_eq!(read("1970-01-01T02:00:01+02:00", Some("UTC")), Ok(1));
        assert!(read("1970-01-01T00:00:01", Some("UTC")).is_err());
        assert_eq!(timestamp(&json!(i64::MIN), TimeUnit::Second, Some("+01:00")), Ok(i64::MIN));
    }

    #[test]
    fn an_offset_is_exact_in_whatever_zone() {
        let read = |text: &str, zone| timestamp(&json!(text), TimeUnit::Second, Some(zone));
        let first = read("2024-10-27T02:30:00+02:00", "Europe/Berlin").unwrap();
        assert_eq!(read("2024-10-27T02:30:00+01:00", "Europe/Berlin"), Ok(first + 3600));
        // Monrovia was 44 minutes and 30 seconds behind until 1972.
        for zone in ["Africa/Monrovia", "utc", "Z", "UTC+2", "W. Europe Standard Time"] {
            assert_eq!(read("1960-01-01T00:00:30Z", zone), Ok(-315_619_170), "{zone}");
            assert_eq!(read("1960-01-01T00:00:00-00:45", zone), Ok(-315_619_200 + 2700), "{zone}");
            assert_eq!(timestamp(&json!(-7), TimeUnit::Second, Some(zone)), Ok(-7), "{zone}");
            assert!(read("1960-01-01T00:00:00", zone).is_err(), "{zone}");
        }
    }

    #[test]
    fn durations_are_iso_8601_without_months() {
        let read = |text: &str| duration(&json!(text), TimeUnit::Millisecond);
        for (text, millis) in [
            ("PT1.5S", 1500),
            ("-PT0.001S", -1),
            ("P0D", 0),
            ("P1W1DT1H1M1S", 8 * 86_400_000 + 3_661_000),
        ] {
            assert_eq!(read(text), Ok(millis), "{text}");
        }
        for text in ["", "P", "PT", "P1M", "P1Y", "1.5", "PT1", "PT1S1H", "PT-1S", "PT1.S"] {
            assert!(read(text).is_err(), "{text}");
        }
        assert!(read("PT0.0001S").unwrap_err().contains("finer"));
    }
}
