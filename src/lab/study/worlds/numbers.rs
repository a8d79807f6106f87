//! Drawn numbers in the form of a scenario file: rounded, as counts, and as durations.

use std::time::Duration;

use plimsoll_core::settings::written::WrittenDuration;

/// A number with `count` significant digits.
pub(crate) fn digits(value: f64, count: u32) -> f64 {
    if value <= 0.0 {
        return 0.0;
    }

    let places = f64::from(count) - 1.0 - value.log10().floor();
    let factor = 10_f64.powf(places.abs());
    if places >= 0.0 {
        (value * factor).round() / factor
    } else {
        (value / factor).round() * factor
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts of priors are positive and small"
)]
pub(crate) fn count(value: f64) -> u32 {
    value.round() as u32
}

/// A duration; priors only have positive ones.
pub(crate) fn seconds(seconds: f64) -> WrittenDuration {
    WrittenDuration(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}
