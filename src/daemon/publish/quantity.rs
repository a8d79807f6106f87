//! Kubernetes quantities: the text form of numbers in metric values.
//!
//! A [`Quantity`] holds thousandths in 64 bits, because HPA controllers compute with them. A
//! controller reads every value through `MilliValue()`, which rounds *up* to the next thousandth.
//! So parsing rounds up as well, and formatting is exact. Desired replicas are whole numbers by
//! type, so this rounding never applies to them. Otherwise it would turn 3.0000001 into 4 replicas.
//!
//! # Source
//!
//! The grammar follows `apimachinery/pkg/api/resource/quantity.go`, and the canonical form its
//! `DecimalSI`.

use std::fmt;
use std::str::FromStr;

use plimsoll_core::units::{Replicas, RequestRate};

/// Digits of a number that count exactly; digits after them can only round the result up. With 21
/// digits, no product below overflows 128 bits before the result overflows 64.
const DIGITS_MAX: usize = 21;

/// The longest accepted text. No real quantity is longer.
const LENGTH_MAX: usize = 64;

/// The suffixes of the canonical form, largest first, with their powers of ten.
const SUFFIXES: [(&str, u32); 8] =
    [("E", 18), ("P", 15), ("T", 12), ("G", 9), ("M", 6), ("k", 3), ("", 0), ("m", 0)];

/// A fixed-point number with three decimal places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity {
    milli: i64,
}

impl Quantity {
    /// Returns the number in thousandths.
    #[must_use]
    pub const fn milli(self) -> i64 {
        self.milli
    }
}

impl From<Replicas> for Quantity {
    fn from(replicas: Replicas) -> Self {
        Self { milli: i64::from(replicas.count()) * 1000 }
    }
}

impl From<RequestRate> for Quantity {
    /// Rounds down to thousandths, so that the text never states a higher rate than the one
    /// allowed.
    #[expect(clippy::cast_possible_truncation, reason = "the cast saturates")]
    fn from(rate: RequestRate) -> Self {
        Self { milli: (rate.requests_per_second() * 1000.0).floor() as i64 }
    }
}

impl fmt::Display for Quantity {
    /// Writes the canonical form: an integer mantissa with the largest suffix that loses no
    /// precision.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let milli = i128::from(self.milli);
        if milli == 0 {
            return f.pad("0");
        }
        if milli % 1000 != 0 {
            return f.pad(&format!("{milli}m"));
        }

        let whole = milli / 1000;
        let (suffix, power) = SUFFIXES
            .into_iter()
            .find(|(_, power)| whole % 10_i128.pow(*power) == 0)
            .unwrap_or(("", 0));
        f.pad(&format!("{}{suffix}", whole / 10_i128.pow(power)))
    }
}

/// The reason why a text is not a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseQuantityError {
    /// The text does not follow the grammar.
    #[error("not a quantity")]
    Malformed,
    /// The text follows the grammar, but the number is out of range.
    #[error("the quantity is out of range")]
    OutOfRange,
}

/// The factor that a suffix stands for.
#[derive(Clone, Copy)]
enum SuffixScale {
    /// A power of ten.
    Ten(i32),
    /// A power of two.
    Two(u32),
}

impl FromStr for Quantity {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() > LENGTH_MAX {
            return Err(ParseQuantityError::Malformed);
        }
        let (negative, rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        let number_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(number_end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) {
            return Err(ParseQuantityError::Malformed);
        }

        let scale = scale(suffix).ok_or(ParseQuantityError::Malformed)?;
        milli(negative, whole, fraction, scale)
            .map(|milli| Self { milli })
            .ok_or(ParseQuantityError::OutOfRange)
    }
}

fn scale(suffix: &str) -> Option<SuffixScale> {
    Some(match suffix {
        "n" => SuffixScale::Ten(-9),
        "u" => SuffixScale::Ten(-6),
        "m" => SuffixScale::Ten(-3),
        "" => SuffixScale::Ten(0),
        "k" => SuffixScale::Ten(3),
        "M" => SuffixScale::Ten(6),
        "G" => SuffixScale::Ten(9),
        "T" => SuffixScale::Ten(12),
        "P" => SuffixScale::Ten(15),
        "E" => SuffixScale::Ten(18),
        "Ki" => SuffixScale::Two(10),
        "Mi" => SuffixScale::Two(20),
        "Gi" => SuffixScale::Two(30),
        "Ti" => SuffixScale::Two(40),
        "Pi" => SuffixScale::Two(50),
        "Ei" => SuffixScale::Two(60),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            if digits.is_empty() || digits.bytes().any(|byte| !byte.is_ascii_digit()) {
                return None;
            }

            // A power beyond this range underflows or overflows in any case.
            SuffixScale::Ten(
                exponent.parse::<i64>().unwrap_or(999).clamp(-999, 999).try_into().ok()?,
            )
        }
    })
}

/// Returns `whole.fraction * scale` in thousandths, rounded up; `None` if it does not fit.
fn milli(negative: bool, whole: &str, fraction: &str, scale: SuffixScale) -> Option<i64> {
    let decimals = fraction.trim_end_matches('0');
    let integer = whole.trim_start_matches('0');
    let mut mantissa: i128 = 0;
    let mut digits = 0;
    let mut dropped = false;
    let mut power: i32 = 3;
    for (place, digit) in integer.bytes().chain(decimals.bytes()).enumerate() {
        let is_fraction = place >= integer.len();
        if digits < DIGITS_MAX {
            mantissa = mantissa * 10 + i128::from(digit - b'0');
            digits += usize::from(mantissa != 0);
            power -= i32::from(is_fraction);
        } else {
            dropped |= digit != b'0';
            power += i32::from(!is_fraction);
        }
    }

    if mantissa == 0 {
        return Some(0);
    }

    let scaled = match scale {
        SuffixScale::Ten(exponent) => {
            power += exponent;
            mantissa
        }
        SuffixScale::Two(bits) => mantissa.checked_mul(1 << bits)?,
    };

    let tens = 10_i128.checked_pow(power.unsigned_abs());
    let (below, exact) = if power >= 0 {
        (scaled.checked_mul(tens?)?, !dropped)
    } else {
        // If the divisor does not fit, the result is less than one smallest unit.
        let divisor = tens.unwrap_or(i128::MAX);
        (scaled / divisor, !dropped && scaled % divisor == 0)
    };

    // Rounding up means away from zero for positive numbers and toward zero for negative numbers.
    let rounded = if negative { -below } else { below + i128::from(!exact) };
    i64::try_from(rounded).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn writing_uses_the_largest_suffix_that_loses_nothing() {
        for (milli, text) in [
            (0, "0"),
            (3_000, "3"),
            (1_500, "1500m"),
            (250, "250m"),
            (-1_500, "-1500m"),
            (1_000_000, "1k"),
            (1_500_000, "1500"),
            (12_000_000, "12k"),
            (1_234_567_000, "1234567"),
            (2_000_000_000, "2M"),
            (1_000_000_500, "1000000500m"),
            (1_000_000_000_000_000_000, "1P"),
            (i64::MIN, "-9223372036854775808m"),
            (i64::MAX, "9223372036854775807m"),
        ] {
            assert_eq!(Quantity { milli }.to_string(), text);
        }

        assert_eq!(Quantity::from(Replicas::LIMIT).to_string(), "1M");
        let rate = RequestRate::new(1.234_9).unwrap();
        assert_eq!(Quantity::from(rate).to_string(), "1234m", "never a higher rate");
    }

    #[test]
    fn reading_accepts_the_whole_grammar_and_rounds_up_as_an_hpa_does() {
        for (text, milli) in [
            ("7.5", 7_500),
            ("1e1", 10_000),
            ("1E1", 10_000),
            ("1e-3", 1),
            ("1e+3", 1_000_000),
            ("5", 5_000),
            ("+5", 5_000),
            (".5", 500),
            ("5.", 5_000),
            ("100m", 100),
            ("1u", 1),
            ("1n", 1),
            ("0n", 0),
            ("1000u", 1),
            ("1001u", 2),
            ("-1001u", -1),
            ("-1n", 0),
            ("3.0000001", 3_001),
            ("3.000000000000000000000000001", 3_001),
            ("-3.000000000000000000000000001", -3_000),
            ("1Ki", 1_024_000),
            ("1.5Mi", 1_572_864_000),
            ("1Gi", 1_073_741_824_000),
            ("1k", 1_000_000),
            ("1M", 1_000_000_000),
            ("1G", 1_000_000_000_000),
            ("1T", 1_000_000_000_000_000),
            ("1P", 1_000_000_000_000_000_000),
            ("0.001E", 1_000_000_000_000_000_000),
            ("1Ti", 1_099_511_627_776_000),
            ("1Pi", 1_125_899_906_842_624_000),
            ("0.001Ei", 1_152_921_504_606_846_976),
            ("0001", 1_000),
            ("1e-999999999999", 1),
            ("0e999", 0),
            ("9223372036854775.807", i64::MAX),
            ("-9223372036854775.808", i64::MIN),
        ] {
            assert_eq!(text.parse(), Ok(Quantity { milli }), "{text}");
        }
    }

    #[test]
    fn reading_refuses_what_is_no_quantity() {
        for text in [
            "", "-", "+", ".", "e1", "1e", "1e+", "1 ", " 1", "1_0", "0x1", "١", "1..2", "1.2.3",
            "1K", "1ki", "1mm", "1m1", "--1", "NaN", "Inf", "1e1e1", "1e1.5", "1,5",
        ] {
            assert_eq!(text.parse::<Quantity>(), Err(ParseQuantityError::Malformed), "{text}");
        }

        for text in
            ["9223372036854775.808", "1e16", "1E", "1Ei", "1e999", "99999999999999999999999999"]
        {
            assert_eq!(text.parse::<Quantity>(), Err(ParseQuantityError::OutOfRange), "{text}");
        }
    }

    proptest! {
        #[test]
        fn reading_what_was_written_gives_it_back(milli: i64) {
            let quantity = Quantity { milli };
            prop_assert_eq!(quantity.to_string().parse(), Ok(quantity));
        }

        #[test]
        fn reading_never_panics_and_is_never_below_the_number(
            negative: bool, whole in 0_u64..1_000_000, fraction in "[0-9]{0,30}",
        ) {
            let sign = if negative { "-" } else { "" };
            let text = format!("{sign}{whole}.{fraction}");
            let read = text.parse::<Quantity>().unwrap().milli() as f64;
            let exact = text.parse::<f64>().unwrap() * 1000.0;
            // Half a unit in the last place of a float of this size (1e9) is 6e-8.
            prop_assert!(read >= exact - 1e-6 && read < exact + 1.0 + 1e-6, "{} {}", read, exact);
        }

        #[test]
        fn no_text_makes_reading_panic(text in "[-+.0-9eEinumkKMGTP ]{0,40}") {
            let _ = text.parse::<Quantity>();
        }
    }
}
