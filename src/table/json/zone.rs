//! Times whose zone has an offset that a text cannot show.
//!
//! Before the railways a zone's offset had seconds (Monrovia's until 1972), and RFC 3339 has minutes:
//! Arrow rounds (arrow-cast 58.4.1, `display.rs:747`), so that who reads the text finds another
//! instant, up to 30 s away. Such a time is shown in UTC.

use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::timezone::Tz;
use arrow_array::types::{
    TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
    TimestampSecondType,
};
use arrow_array::{Array, ArrayRef};
use arrow_schema::{DataType, TimeUnit};
use chrono::{NaiveDateTime, Offset as _, TimeZone as _};

/// Seconds in a minute.
const MINUTE: i32 = 60;

/// The value at a position alone, in UTC, where its own zone has an offset with seconds then.
pub fn in_utc(array: &dyn Array, at: usize) -> Option<ArrayRef> {
    let DataType::Timestamp(unit, Some(zone)) = array.data_type() else { return None };
    let zone: Tz = zone.parse().ok()?;
    let offset = zone.offset_from_utc_datetime(&instant(array, at, *unit)?).fix();
    if offset.local_minus_utc() % MINUTE == 0 {
        return None;
    }
    let utc = DataType::Timestamp(*unit, Some(Arc::from("UTC")));
    arrow_cast::cast(&array.slice(at, 1), &utc).ok()
}

fn instant(array: &dyn Array, at: usize, unit: TimeUnit) -> Option<NaiveDateTime> {
    match unit {
        TimeUnit::Second => array.as_primitive::<TimestampSecondType>().value_as_datetime(at),
        TimeUnit::Millisecond => {
            array.as_primitive::<TimestampMillisecondType>().value_as_datetime(at)
        }
        TimeUnit::Microsecond => {
            array.as_primitive::<TimestampMicrosecondType>().value_as_datetime(at)
        }
        TimeUnit::Nanosecond => {
            array.as_primitive::<TimestampNanosecondType>().value_as_datetime(at)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::PrimitiveArray;

    #[test]
    fn only_an_offset_with_seconds_is_left() {
        let times = PrimitiveArray::<TimestampSecondType>::from(vec![-315_619_170, 315_619_200]);
        for (zone, are_left) in [
            ("Africa/Monrovia", [true, false]),
            ("Europe/Berlin", [false, false]),
            ("+02:00", [false, false]),
            ("UTC+2", [false, false]),
        ] {
            let times = times.clone().with_timezone(zone);
            assert_eq!([0, 1].map(|at| in_utc(&times, at).is_some()), are_left, "{zone}");
        }
        let utc = in_utc(&times.with_timezone("Africa/Monrovia"), 0).unwrap();
        assert_eq!(utc.as_primitive::<TimestampSecondType>().value(0), -315_619_170);
    }
}
