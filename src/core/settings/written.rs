//! Human-readable durations and sizes: `30s`, `1h30m`, `8MiB`.
//!
//! A bare number is rejected, because `30` means seconds in one tool and milliseconds in the next.
//! Both types print themselves in a form that reads back as the same value.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use derive_more::Display;
use jiff::SignedDuration;
use jiff::fmt::friendly::{Spacing, SpanPrinter};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::units::Seconds;

/// The form of a duration, for messages.
const DURATION: &str = "a duration in d, h, m, s or ms, such as 900ms, 30s, 1h30m or 2d";

/// The unit of whole days, each of 24 hours, which come first.
const DAYS: char = 'd';

/// The seconds of a day.
const DAY: u64 = 24 * 60 * 60;

/// The other units of durations.
const UNITS: [&str; 7] = ["h", "m", "s", "ms", "us", "µs", "ns"];

/// The form of a size, for messages.
const SIZE: &str = "a size with a unit, such as 512KiB, 8MiB or 1GiB";

/// The units of sizes, from the largest, the binary ones first.
const SIZE_UNITS: [(&str, u64); 7] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

/// A duration as written.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, PartialOrd)]
#[display("{}", SpanPrinter::new().spacing(Spacing::None).unsigned_duration_to_string(_0))]
pub struct WrittenDuration(pub Duration);

/// A size in bytes as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub struct WrittenSize(pub u64);

// === impl WrittenDuration ===

impl From<Duration> for WrittenDuration {
    fn from(duration: Duration) -> Self {
        Self(duration)
    }
}

impl From<WrittenDuration> for Duration {
    fn from(written: WrittenDuration) -> Self {
        written.0
    }
}

impl WrittenDuration {
    /// Converts a length of time from the models. Configured ones are whole nanoseconds and far
    /// from the limits of either type, so nothing is lost.
    #[must_use]
    pub fn of(seconds: Seconds) -> Self {
        Self(Duration::try_from_secs_f64(seconds.seconds()).unwrap_or(Duration::MAX))
    }

    /// Reads a duration that is not negative. Of the forms that the parser knows, configurations have
    /// one, so that the schema accepts the same.
    pub fn parse(text: &str) -> Option<Self> {
        let Some((count, rest)) = text.split_once(DAYS) else { return Self::below_days(text) };
        if !count.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }

        let days = Duration::from_secs(count.parse::<u64>().ok()?.checked_mul(DAY)?);
        let below = if rest.is_empty() { Duration::ZERO } else { Self::below_days(rest)?.0 };
        days.checked_add(below).map(Self)
    }

    fn below_days(text: &str) -> Option<Self> {
        let mut units = text.split(|c: char| c.is_ascii_digit() || c == '.');
        if !units.all(|unit| unit.is_empty() || UNITS.contains(&unit)) {
            return None;
        }

        let duration: SignedDuration = text.parse().ok()?;
        Duration::try_from(duration).ok().map(Self)
    }
}

impl Serialize for WrittenDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for WrittenDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor { parse: Self::parse, expected: DURATION })
    }
}

impl JsonSchema for WrittenDuration {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let below_days = format!(r"([0-9]+(\.[0-9]+)?({}))", UNITS.join("|"));
        json_schema!({
            "type": "string",
            "pattern": format!("^([0-9]+{DAYS}{below_days}*|{below_days}+)$"),
        })
    }
}

// === impl WrittenSize ===

impl From<u64> for WrittenSize {
    fn from(bytes: u64) -> Self {
        Self(bytes)
    }
}

impl From<WrittenSize> for u64 {
    fn from(written: WrittenSize) -> Self {
        written.0
    }
}

impl WrittenSize {
    /// Reads a whole number with a unit.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.find(|c: char| !c.is_ascii_digit())?;
        let (number, unit) = text.split_at(digits);
        let (_, bytes) = SIZE_UNITS.iter().find(|(name, _)| *name == unit.trim_start())?;
        number.parse::<u64>().ok()?.checked_mul(*bytes).map(Self)
    }
}

impl fmt::Display for WrittenSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, bytes) = SIZE_UNITS
            .iter()
            .find(|(_, bytes)| self.0 >= *bytes && self.0.is_multiple_of(*bytes))
            .unwrap_or(&("B", 1));
        write!(f, "{}{unit}", self.0 / bytes)
    }
}

impl Serialize for WrittenSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for WrittenSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor { parse: Self::parse, expected: SIZE })
    }
}

impl JsonSchema for WrittenSize {
    fn schema_name() -> Cow<'static, str> {
        "Size".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^[0-9]+ *(B|kB|KiB|MB|MiB|GB|GiB)$" })
    }
}

/// Reads text through a function, and reports the expected form if the function fails.
struct TextVisitor<T> {
    parse: fn(&str) -> Option<T>,
    expected: &'static str,
}

impl<T> Visitor<'_> for TextVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.parse)(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit_and_print_as_they_are_read() {
        for (text, seconds, printed) in [
            ("30s", 30.0, "30s"),
            ("5m", 300.0, "5m"),
            ("90m", 5400.0, "1h30m"),
            ("1h30m", 5400.0, "1h30m"),
            ("900ms", 0.9, "900ms"),
            ("1.5s", 1.5, "1s500ms"),
            ("300us", 0.0003, "300µs"),
            ("0s", 0.0, "0s"),
            ("1d", 86_400.0, "24h"),
            ("3d12h", 302_400.0, "84h"),
        ] {
            let read = WrittenDuration::parse(text).unwrap();
            assert_eq!(read.0, Duration::from_secs_f64(seconds), "{text}");
            assert_eq!(read.to_string(), printed);
            assert_eq!(WrittenDuration::parse(printed), Some(read));
        }

        for refused in ["30", "", "5 parsecs", "-5s", "s", "NaN", "inf", "30 s s", "60 ms", "2sec"]
        {
            assert_eq!(WrittenDuration::parse(refused), None, "{refused}");
        }

        for refused in ["d", "1.5d", "-1d", "+1d", "1h1d", "1d1d", "1d5", "213503982334602d"] {
            assert_eq!(WrittenDuration::parse(refused), None, "{refused}");
        }
    }

    #[test]
    fn sizes_need_a_unit_and_print_as_they_are_read() {
        for (text, bytes, printed) in [
            ("8MiB", 8 << 20, "8MiB"),
            ("8 MiB", 8 << 20, "8MiB"),
            ("1536KiB", 1536 << 10, "1536KiB"),
            ("3MB", 3_000_000, "3MB"),
            ("17B", 17, "17B"),
            ("0B", 0, "0B"),
        ] {
            let read = WrittenSize::parse(text).unwrap();
            assert_eq!(read.0, bytes, "{text}");
            assert_eq!(read.to_string(), printed);
            assert_eq!(WrittenSize::parse(printed), Some(read));
        }

        for refused in ["8", "", "MiB", "8 miles", "-8MiB", "1.5MiB", "99999999999GiB"] {
            assert_eq!(WrittenSize::parse(refused), None, "{refused}");
        }
    }
}
