//! Numbers and instants of the history, in a few bytes each.

use std::num::{NonZeroU16, NonZeroU32};
use std::time::Duration;

use plimsoll_core::units::Replicas;

/// A monotonic clock reading in whole milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Millis(u64);

/// An optional count in four bytes.
///
/// A count is below [`Replicas::LIMIT`], so the count plus one fits in four bytes and is never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PackedNumber(Option<NonZeroU32>);

/// An optional quantity in two bytes, rounded to 11 significant bits, which are more than three
/// digits. Whole numbers up to 2,048 are exact.
///
/// The code of a quantity is 1 for zero. Above that, it is the upper bits of the quantity as an
/// `f32`, less those of [`SMALLEST`]. A smaller quantity counts as zero, and one above 5e11 as that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PackedQuantity(Option<NonZeroU16>);

/// The smallest quantity above zero: 2^-25, or 3e-8.
const SMALLEST: f32 = 1.0 / (1 << 25) as f32;

/// The bits of an `f32` that a code leaves out.
const DROPPED: u32 = 13;

/// The code of [`SMALLEST`].
const FIRST: u32 = 2;

// === impl Millis ===

impl Millis {
    pub(super) fn of(elapsed: Duration) -> Self {
        Self(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX))
    }

    pub(super) const fn beyond(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    pub(crate) fn age(self, elapsed: Duration) -> Duration {
        Self::of(elapsed).beyond(self)
    }
}

// === impl PackedNumber ===

impl PackedNumber {
    pub(super) fn of_count(count: Option<Replicas>) -> Self {
        Self(count.and_then(|count| NonZeroU32::new(count.count() + 1)))
    }

    pub(super) fn count(self) -> Option<Replicas> {
        self.0.map(|it| Replicas::saturating(it.get() - 1))
    }

    pub(super) const fn is_some(self) -> bool {
        self.0.is_some()
    }
}

// === impl PackedQuantity ===

impl PackedQuantity {
    #[expect(clippy::cast_possible_truncation, reason = "a chart shows three digits")]
    pub(super) fn of(quantity: Option<f64>) -> Self {
        Self(quantity.and_then(|it| NonZeroU16::new(code(it as f32))))
    }

    pub(super) fn quantity(self) -> Option<f64> {
        self.0.map(|code| match u32::from(code.get()).checked_sub(FIRST) {
            Some(above) => {
                let upper = above + (SMALLEST.to_bits() >> DROPPED);
                f64::from(f32::from_bits(upper << DROPPED))
            }
            None => 0.0,
        })
    }
}

/// The code of a quantity, which is not negative.
fn code(quantity: f32) -> u16 {
    let bits = quantity.min(f32::MAX).to_bits();
    let rounded = (bits + (1 << (DROPPED - 1))) >> DROPPED;
    let above = rounded.checked_sub(SMALLEST.to_bits() >> DROPPED);
    above.map_or(1, |above| u16::try_from(above + FIRST).unwrap_or(u16::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn through(quantity: f64) -> f64 {
        PackedQuantity::of(Some(quantity)).quantity().unwrap()
    }

    #[test]
    fn whole_numbers_are_exact_and_what_does_not_fit_is_the_nearest_that_does() {
        for number in (0..=2048).map(f64::from) {
            assert_eq!(PackedQuantity::of(Some(number)).quantity(), Some(number));
        }
        assert_eq!(PackedQuantity::of(None).quantity(), None);
        assert_eq!(PackedQuantity::of(Some(1e-9)).quantity(), Some(0.0));
        assert!((5e11..6e11).contains(&through(1e300)));
    }

    proptest! {
        #[test]
        fn a_quantity_keeps_three_digits(digits in 1.0..10.0, power in -7..11) {
            let quantity = digits * 10_f64.powi(power);
            prop_assert!((through(quantity) / quantity - 1.0).abs() < 0.000_5, "{quantity}");
        }
    }
}
