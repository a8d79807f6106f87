//! Quantities: the numbers that cross module boundaries, each with its unit as a type.
//!
//! A quantity is finite and not negative by construction. No comparison in the models can meet a
//! NaN, and no sum can overflow into infinity unnoticed. External values pass through `new`, which
//! returns `None` for others, so "absent" stays distinct from zero. Internal units are SI base
//! units (seconds, tokens, requests). Conversions happen where data enters and leaves.

pub mod instants;

use std::fmt;
use std::ops::{Add, AddAssign};

use derive_more::Display;
use serde::{Deserialize, Serialize};

/// A number that is not finite, is negative, or is above the limit of its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("out of range for {0}")]
pub struct OutOfRange(&'static str);

macro_rules! quantities {
    ($($(#[$doc:meta])* $name:ident, $getter:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, Display, PartialEq, PartialOrd, Serialize, Deserialize)]
        #[serde(try_from = "f64", into = "f64")]
        pub struct $name(f64);

        impl TryFrom<f64> for $name {
            type Error = OutOfRange;

            fn try_from(value: f64) -> Result<Self, OutOfRange> {
                Self::new(value).ok_or(OutOfRange(stringify!($name)))
            }
        }

        impl From<$name> for f64 {
            fn from(quantity: $name) -> Self {
                quantity.0
            }
        }

        impl $name {
            /// Zero.
            pub const ZERO: Self = Self(0.0);

            /// Accepts a finite number that is not negative.
            #[must_use]
            pub fn new(value: f64) -> Option<Self> {
                // `+ 0.0` turns a negative zero into zero.
                (0.0..=f64::MAX).contains(&value).then_some(Self(value + 0.0))
            }

            /// The value, in the unit in the method's name.
            #[must_use]
            pub const fn $getter(self) -> f64 {
                self.0
            }

            /// The larger of the two.
            #[must_use]
            pub const fn max(self, other: Self) -> Self {
                Self(self.0.max(other.0))
            }

            /// The smaller of the two.
            #[must_use]
            pub const fn min(self, other: Self) -> Self {
                Self(self.0.min(other.0))
            }

            /// A total order, which exists because the values are finite.
            #[must_use]
            pub fn compare(self, other: Self) -> std::cmp::Ordering {
                self.0.total_cmp(&other.0)
            }
        }

        impl Add for $name {
            type Output = Self;

            /// Saturates at the largest finite number, so that a sum stays a quantity.
            fn add(self, other: Self) -> Self {
                Self((self.0 + other.0).min(f64::MAX))
            }
        }

        sums!($name);
    )*};
}

/// Sums of quantities that can be added.
macro_rules! sums {
    ($name:ident) => {
        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }

        impl std::iter::Sum for $name {
            fn sum<I: Iterator<Item = Self>>(values: I) -> Self {
                values.fold(Self::ZERO, Add::add)
            }
        }
    };
}

/// The cost or the capacity of several replicas.
macro_rules! shares {
    ($($name:ident),*) => {$(
        impl $name {
            /// The total for `replicas` replicas, each with this value.
            #[must_use]
            pub fn times(self, replicas: Replicas) -> Self {
                Self((self.0 * f64::from(replicas.count())).min(f64::MAX))
            }

            /// The excess over `other`; zero if there is none.
            #[must_use]
            pub fn beyond(self, other: Self) -> Self {
                Self((self.0 - other.0).max(0.0))
            }
        }
    )*};
}

/// Counts over a time, and their rates.
macro_rules! rates {
    ($($name:ident => $rate:ident),*) => {$(
        impl $name {
            /// The rate of this count in `time`; `None` over no time.
            #[must_use]
            pub fn per(self, time: Seconds) -> Option<$rate> {
                (time.0 > 0.0).then(|| $rate::new(self.0 / time.0)).flatten()
            }
        }
    )*};
}

quantities! {
    /// A length of time in a model's arithmetic; wall-clock instants are `jiff::Timestamp`.
    Seconds, seconds;
    /// A number of tokens; fractional, because averages are.
    Tokens, tokens;
    /// Tokens processed per unit of time.
    TokenRate, tokens_per_second;
    /// A number of requests; fractional, because averages are.
    Requests, requests;
    /// The time that a model spends per token.
    TimePerToken, seconds_per_token;
    /// Requests that arrive or finish per unit of time.
    RequestRate, requests_per_second;
    /// A share of a whole. Usually at most 1, but a sum of shares may be more.
    Fraction, fraction;
    /// An amount of capacity, in the unit that an analyzer measures in.
    Amount, amount;
    /// The cost of one replica per hour, in the currency of the configuration.
    CostPerHour, per_hour;
    /// The relative importance of one item; only the ratio of two weights matters.
    Weight, weight;
}

impl Fraction {
    /// The whole.
    pub const ONE: Self = Self(1.0);
}

impl Seconds {
    /// A whole number of seconds, for constants.
    #[must_use]
    pub const fn literal(seconds: u32) -> Self {
        // Not `f64::from`, which is not const.
        Self(seconds as f64)
    }

    /// The length of a span of wall-clock time; `None` when it is negative.
    #[must_use]
    pub fn from_span(span: jiff::SignedDuration) -> Option<Self> {
        Self::new(span.as_secs_f64())
    }

    /// The time from one instant to another; zero if the other one is earlier.
    #[must_use]
    pub fn between(from: jiff::Timestamp, to: jiff::Timestamp) -> Self {
        Self::from_span(to.duration_since(from)).unwrap_or_default()
    }
}

impl CostPerHour {
    /// The number of replicas at price `each` that it pays for; `None` if they are free. The rest
    /// of a budget is a difference, so its last digits do not count: 0.30 pays for three times
    /// 0.10.
    #[must_use]
    pub fn replicas_of(self, each: Self) -> Option<Replicas> {
        let count = (self.0 / each.0 * (1.0 + 1e-10)).floor();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
        let paid = count.clamp(0.0, f64::from(Replicas::LIMIT.count())) as u32;
        (each.0 > 0.0).then(|| Replicas::saturating(paid))
    }
}

shares!(CostPerHour, Amount);

impl Weight {
    /// The default weight.
    pub const ONE: Self = Self(1.0);
}

rates!(Requests => RequestRate, Tokens => TokenRate);

/// A count with its noun, first in the singular and then in the plural: `1 copy`, `2 copies`.
#[derive(Clone, Copy, Debug)]
pub struct NounCount<N>(pub N, pub &'static str, pub &'static str);

impl<N: fmt::Display + PartialEq + From<u8>> fmt::Display for NounCount<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(count, one, several) = self;
        write!(f, "{count} {}", if *count == N::from(1) { one } else { several })
    }
}

/// A number of replicas.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    Display,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
)]
#[serde(try_from = "u32", into = "u32")]
pub struct Replicas(u32);

impl TryFrom<u32> for Replicas {
    type Error = OutOfRange;

    fn try_from(count: u32) -> Result<Self, OutOfRange> {
        Self::new(count).ok_or(OutOfRange("Replicas"))
    }
}

impl From<Replicas> for u32 {
    fn from(replicas: Replicas) -> Self {
        replicas.0
    }
}

impl Replicas {
    /// No replica.
    pub const ZERO: Self = Self(0);
    /// One replica.
    pub const ONE: Self = Self(1);
    /// More replicas than any scale target has. A higher value is an error, and large numbers have
    /// made HPA controllers overflow and scale *down*.
    pub const LIMIT: Self = Self(1_000_000);

    /// The count with its noun.
    #[must_use]
    pub const fn counted(self) -> NounCount<u32> {
        NounCount(self.0, "replica", "replicas")
    }

    /// Accepts a count up to [`Replicas::LIMIT`].
    #[must_use]
    pub const fn new(count: u32) -> Option<Self> {
        if count <= Self::LIMIT.0 { Some(Self(count)) } else { None }
    }

    /// The count, capped at the limit.
    #[must_use]
    pub const fn saturating(count: u32) -> Self {
        if count <= Self::LIMIT.0 { Self(count) } else { Self::LIMIT }
    }

    /// The same for other types, such as the length of a list. A negative count becomes the limit.
    #[must_use]
    pub fn capped(count: impl TryInto<u32>) -> Self {
        Self::saturating(count.try_into().unwrap_or(u32::MAX))
    }

    /// The count.
    #[must_use]
    pub const fn count(self) -> u32 {
        self.0
    }

    /// One more, up to the limit.
    #[must_use]
    pub const fn up(self) -> Self {
        Self::saturating(self.0 + 1)
    }

    /// One less, down to zero.
    #[must_use]
    pub const fn down(self) -> Self {
        Self(self.0.saturating_sub(1))
    }

    /// The excess over `other`; zero if there is none.
    #[must_use]
    pub const fn beyond(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

sums!(Replicas);

impl Add for Replicas {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self::saturating(self.0.saturating_add(other.0))
    }
}

/// A number of accelerators of one kind: whole devices, or partitions of one size.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    Display,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
)]
pub struct Gpus(u32);

impl Gpus {
    /// No accelerator.
    pub const ZERO: Self = Self(0);
    /// One accelerator.
    pub const ONE: Self = Self(1);

    /// Creates a count.
    #[must_use]
    pub const fn new(count: u32) -> Self {
        Self(count)
    }

    /// The count.
    #[must_use]
    pub const fn count(self) -> u32 {
        self.0
    }

    /// The accelerators of `replicas` replicas with this many each.
    #[must_use]
    pub const fn times(self, replicas: Replicas) -> Self {
        Self(self.0.saturating_mul(replicas.count()))
    }

    /// The excess over `other`; zero if there is none.
    #[must_use]
    pub const fn beyond(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The number of replicas of size `each` that fit; `None` if a replica needs no accelerators,
    /// so that there is no limit.
    #[must_use]
    pub const fn replicas_of(self, each: Self) -> Option<Replicas> {
        match self.0.checked_div(each.0) {
            Some(count) => Some(Replicas::saturating(count)),
            None => None,
        }
    }
}

sums!(Gpus);

impl Add for Gpus {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantity_is_finite_and_not_negative() {
        for refused in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.001] {
            assert_eq!(Tokens::new(refused), None, "{refused}");
        }
        assert!(Tokens::new(-0.0).unwrap().tokens().is_sign_positive());
        assert_eq!(
            Tokens::new(f64::MAX).unwrap() + Tokens::new(f64::MAX).unwrap(),
            Tokens::new(f64::MAX).unwrap()
        );
    }

    #[test]
    fn a_rate_over_no_time_is_absent() {
        assert_eq!(Requests::new(3.0).unwrap().per(Seconds::ZERO), None);
        assert_eq!(
            Requests::new(3.0).unwrap().per(Seconds::new(2.0).unwrap()),
            RequestRate::new(1.5)
        );
    }

    #[test]
    fn replica_counts_never_wrap() {
        assert_eq!(Replicas::ZERO.down(), Replicas::ZERO);
        assert_eq!(Replicas::LIMIT.up(), Replicas::LIMIT);
        assert_eq!(Replicas::new(1_000_001), None);
        assert_eq!(Replicas::saturating(u32::MAX), Replicas::LIMIT);
    }
}
