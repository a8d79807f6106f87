//! Numbers from responses, serialized so that each comes back with the same bits.
//!
//! Quantities are finite, but numbers in responses need not be. JSON has no form for the others, so
//! they are written as `"NaN"`, `"+Inf"` and `"-Inf"`. Whole numbers, as nearly all counts are, are
//! written without a fraction.
//!
//! For `#[serde(with = "crate::observe::exact")]`, or as [`Exact`].

use std::fmt;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Whole numbers below this value are exact both as `f64` and as `i64`.
const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;

/// A number in its written form.
#[derive(Clone, Copy)]
pub(super) struct Exact(pub(super) f64);

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
pub(super) fn serialize<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    Exact(*number).serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Exact::deserialize(deserializer).map(|number| number.0)
}

impl Serialize for Exact {
    #[expect(clippy::cast_possible_truncation, reason = "it is whole and within the exact range")]
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let number = self.0;
        let is_negative_zero = number == 0.0 && number.is_sign_negative();

        if number.is_nan() {
            serializer.serialize_str("NaN")
        } else if number.is_infinite() {
            serializer.serialize_str(if number > 0.0 { "+Inf" } else { "-Inf" })
        } else if number.fract() == 0.0 && number.abs() < WHOLE_MAX && !is_negative_zero {
            serializer.serialize_i64(number as i64)
        } else {
            serializer.serialize_f64(number)
        }
    }
}

impl<'de> Deserialize<'de> for Exact {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ExactVisitor)
    }
}

/// Reads a number, or the word for one that is not finite.
struct ExactVisitor;

impl Visitor<'_> for ExactVisitor {
    type Value = Exact;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, \"NaN\", \"+Inf\" or \"-Inf\"")
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Exact, E> {
        Ok(Exact(number))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Exact, E> {
        Ok(Exact(number as f64))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Exact, E> {
        Ok(Exact(number as f64))
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<Exact, E> {
        match word {
            "NaN" => Ok(Exact(f64::NAN)),
            "+Inf" => Ok(Exact(f64::INFINITY)),
            "-Inf" => Ok(Exact(f64::NEG_INFINITY)),
            _ => Err(E::invalid_value(Unexpected::Str(word), &self)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_with_the_same_bits() {
        for number in [0.0, -0.0, 1.0, 0.1, 1e300, 5e-324, 1e15, 1.5e16, f64::INFINITY, f64::MAX] {
            let text = serde_json::to_string(&Exact(number)).unwrap();
            let back: Exact = serde_json::from_str(&text).unwrap();
            assert_eq!(back.0.to_bits(), number.to_bits(), "{text}");
        }
        let text = serde_json::to_string(&Exact(f64::NAN)).unwrap();
        assert!(serde_json::from_str::<Exact>(&text).unwrap().0.is_nan());
        assert_eq!(serde_json::to_string(&Exact(17.0)).unwrap(), "17");
        assert!(serde_json::from_str::<Exact>("\"many\"").is_err());
    }
}
