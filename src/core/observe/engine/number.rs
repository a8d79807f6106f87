//! Numbers as responses contain them, and their validity.

use jiff::{SignedDuration, Timestamp, Unit};

use crate::observe::engine::unreadable::SampleError;

/// A Unix time. For current times, digits beyond the microsecond are noise of the `f64`.
pub(super) fn timestamp(seconds: f64) -> Option<Timestamp> {
    let since_epoch = SignedDuration::try_from_secs_f64(seconds).ok()?;
    let timestamp = Timestamp::from_duration(since_epoch).ok()?;
    timestamp.round(Unit::Microsecond).ok().filter(|timestamp| *timestamp > Timestamp::UNIX_EPOCH)
}

/// A number in a value or in a label; `NaN` and `Inf` in any case.
#[must_use]
pub fn number(text: &[u8]) -> Option<f64> {
    decimal(text).or_else(|| std::str::from_utf8(text).ok()?.parse().ok())
}

/// A short number without sign and exponent, such as `443.0`. Nearly all numbers are short. They
/// are faster to read than numbers in general, and as exact.
#[inline]
#[must_use]
pub fn decimal(text: &[u8]) -> Option<f64> {
    let (value, length) = leading_decimal(text)?;
    (length == text.len()).then_some(value)
}

/// The short number that a text starts with, as [`decimal`] reads it, and its length in bytes.
///
/// Digits and power of ten are both whole numbers that an `f64` holds exactly, and IEEE division
/// rounds their quotient correctly.
#[inline]
#[must_use]
pub fn leading_decimal(text: &[u8]) -> Option<(f64, usize)> {
    /// Digits that always stay below 2^53.
    const DIGITS_MAX: usize = 15;
    const POWERS: [f64; DIGITS_MAX + 1] =
        [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15];
    let near = text.get(..=DIGITS_MAX).unwrap_or(text);
    let (number, whole) = digits(0, near);
    let (number, length, places) = match near.get(whole..) {
        Some([b'.', rest @ ..]) => {
            let (number, places) = digits(number, rest);
            (number, whole + 1 + places, places)
        }
        _ => (number, whole, 0),
    };

    let is_short = (1..=DIGITS_MAX).contains(&(whole + places)) && length <= DIGITS_MAX;
    is_short.then(|| (number as f64 / POWERS[places], length))
}

/// A number extended by the digits at the start of a text, and the count of those digits.
#[inline]
fn digits(mut number: u64, text: &[u8]) -> (u64, usize) {
    let mut length = 0;
    for byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            break;
        }
        number = number * 10 + u64::from(digit);
        length += 1;
    }

    (number, length)
}

/// A number that has only ever been added to.
pub(super) fn cumulative(value: f64) -> Result<f64, SampleError> {
    gauge(value).ok_or(SampleError::NotCumulative { value })
}

/// A gauge's value, if it is valid.
pub(super) fn gauge(value: f64) -> Option<f64> {
    (value.is_finite() && value >= 0.0).then_some(value)
}

/// A rank label: a number of at most nine digits.
pub(super) fn rank_label(label: &'static str, value: &[u8]) -> Result<u32, SampleError> {
    let digits = !value.is_empty() && value.len() <= 9 && value.iter().all(u8::is_ascii_digit);
    if !digits {
        return Err(SampleError::bad_label(label, value, "a rank such as \"0\""));
    }
    Ok(value.iter().fold(0, |rank, digit| rank * 10 + u32::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_are_those_that_prometheus_accepts() {
        for (text, value) in [
            ("443.0", 443.0),
            ("1.", 1.0),
            (".5", 0.5),
            ("1.79522493492e+09", 1.795_224_934_92e9),
            ("+Inf", f64::INFINITY),
            ("-inf", f64::NEG_INFINITY),
            ("-0", 0.0),
        ] {
            assert!(
                number(text.as_bytes())
                    .is_some_and(|got| (got - value).abs() <= 0.0 || got.total_cmp(&value).is_eq()),
                "{text}"
            );
        }

        assert!(number(b"NaN").is_some_and(f64::is_nan));
        for text in ["", ".", "1.2.3", "1_0", "0x1", "one", "1 "] {
            assert_eq!(number(text.as_bytes()), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn the_quick_way_to_read_a_number_is_exact(text in "[0-9]{0,9}[.]?[0-9]{0,9}") {
            if let Some(quick) = decimal(text.as_bytes()) {
                let exact: f64 = text.parse().expect("a decimal is a number");
                prop_assert_eq!(quick.to_bits(), exact.to_bits());
            }
        }
    }
}
