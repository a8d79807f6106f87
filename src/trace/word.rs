//! Numbers, instants and names as a trace writes them: exact, and short where they can be.

use std::fmt;

use jiff::Timestamp;
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::fleet::{Namespace, VariantKey, VariantName};

/// Whole numbers up to here are the same as `f64` and as `i64`.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// A number that comes back with the same bits: whole ones are written without a fraction, and those
/// that JSON has no word for as texts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Number(pub(super) f64);

/// An instant: nanoseconds since the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct At(pub(super) Timestamp);

/// Namespace and name of a variant.
pub(super) type Variant = (String, String);

// === impl Number ===

impl PartialEq for Number {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Serialize for Number {
    #[expect(clippy::cast_possible_truncation, reason = "it is whole and within the exact range")]
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let value = self.0;
        if value.is_nan() {
            return serializer.serialize_str("NaN");
        }
        if value.is_infinite() {
            return serializer.serialize_str(if value > 0.0 { "+Inf" } else { "-Inf" });
        }
        let negative_zero = value == 0.0 && value.is_sign_negative();
        if value.fract() == 0.0 && value.abs() < EXACT && !negative_zero {
            return serializer.serialize_i64(value as i64);
        }
        serializer.serialize_f64(value)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl Visitor<'_> for Any {
            type Value = Number;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, \"NaN\", \"+Inf\" or \"-Inf\"")
            }

            fn visit_f64<E: Error>(self, value: f64) -> Result<Number, E> {
                Ok(Number(value))
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<Number, E> {
                Ok(Number(value as f64))
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<Number, E> {
                Ok(Number(value as f64))
            }

            fn visit_str<E: Error>(self, value: &str) -> Result<Number, E> {
                match value {
                    "NaN" => Ok(Number(f64::NAN)),
                    "+Inf" => Ok(Number(f64::INFINITY)),
                    "-Inf" => Ok(Number(f64::NEG_INFINITY)),
                    _ => Err(E::custom(format!("{value:?} is not a number"))),
                }
            }
        }

        deserializer.deserialize_any(Any)
    }
}

// === impl At ===

impl Serialize for At {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match i64::try_from(self.0.as_nanosecond()) {
            Ok(nanos) => serializer.serialize_i64(nanos),
            // Before 1677 or after 2262, where only a broken clock is.
            Err(_) => serializer.collect_str(&self.0),
        }
    }
}

impl<'de> Deserialize<'de> for At {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl Visitor<'_> for Any {
            type Value = At;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an instant")
            }

            fn visit_i64<E: Error>(self, nanos: i64) -> Result<At, E> {
                Timestamp::from_nanosecond(i128::from(nanos)).map(At).map_err(E::custom)
            }

            fn visit_u64<E: Error>(self, nanos: u64) -> Result<At, E> {
                Timestamp::from_nanosecond(i128::from(nanos)).map(At).map_err(E::custom)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<At, E> {
                text.parse().map(At).map_err(E::custom)
            }
        }

        deserializer.deserialize_any(Any)
    }
}

/// A variant's key as it is written.
pub(super) fn variant(key: &VariantKey) -> Variant {
    (key.namespace.as_str().to_owned(), key.variant.as_str().to_owned())
}

/// The key of a variant that was written.
pub(super) fn variant_key(written: &Variant) -> Option<VariantKey> {
    let (namespace, variant) = written;
    let (namespace, variant) = (Namespace::new(namespace)?, VariantName::new(variant)?);
    Some(VariantKey { namespace, variant })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_with_the_same_bits() {
        for value in [0.0, -0.0, 1.0, 0.1, 1e300, 5e-324, 1e15, 1.5e16, f64::INFINITY, f64::MAX] {
            let text = serde_json::to_string(&Number(value)).unwrap();
            let back: Number = serde_json::from_str(&text).unwrap();
            assert_eq!(back.0.to_bits(), value.to_bits(), "{text}");
        }
        let text = serde_json::to_string(&Number(f64::NAN)).unwrap();
        assert!(serde_json::from_str::<Number>(&text).unwrap().0.is_nan());
        assert_eq!(serde_json::to_string(&Number(17.0)).unwrap(), "17");
        assert!(serde_json::from_str::<Number>("\"many\"").is_err());
    }

    #[test]
    fn instants_come_back_to_the_nanosecond() {
        for at in [Timestamp::UNIX_EPOCH, Timestamp::MAX, Timestamp::MIN] {
            let text = serde_json::to_string(&At(at)).unwrap();
            assert_eq!(serde_json::from_str::<At>(&text).unwrap().0, at);
        }
    }
}
