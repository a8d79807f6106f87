//! Numbers and instants of the history, in a few bytes each.

use std::num::NonZeroU32;
use std::time::Duration;

use plimsoll_core::units::Replicas;

/// A monotonic clock reading in whole milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Millis(u64);

/// An optional count or quantity in four bytes.
///
/// A count is below [`Replicas::LIMIT`], and a quantity is finite and not negative. So the bits of
/// either plus one fit in four bytes and are never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PackedNumber(Option<NonZeroU32>);

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

    #[expect(clippy::cast_possible_truncation, reason = "a chart shows three digits")]
    pub(super) fn of(quantity: Option<f64>) -> Self {
        let bits = quantity.map(|it| (it as f32).min(f32::MAX).to_bits());
        Self(bits.and_then(|bits| NonZeroU32::new(bits + 1)))
    }

    pub(super) fn quantity(self) -> Option<f64> {
        self.0.map(|it| f64::from(f32::from_bits(it.get() - 1)))
    }

    pub(super) const fn is_some(self) -> bool {
        self.0.is_some()
    }
}
