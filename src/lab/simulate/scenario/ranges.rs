//! Ranges of values that several sections of a scenario have.

use std::ops::RangeInclusive;
use std::time::Duration;

use plimsoll_core::settings::{hours, secs};

/// Spans of time that may be zero; the longest is a leap year.
pub const SPANS: RangeInclusive<Duration> = Duration::ZERO..=hours(24 * 366);

/// Factors by which something becomes longer or slower.
pub const FACTORS: RangeInclusive<f64> = 0.01..=100.0;

/// Spans of time per token.
pub const TOKEN_SPANS: RangeInclusive<Duration> = Duration::ZERO..=secs(1);
