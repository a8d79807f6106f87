//! The saved arrivals of a model, from which the next daemon process continues.

use serde::{Deserialize, Serialize};

use crate::analyze::capacity::are_amounts;
use crate::analyze::foresight::arrivals::{ArrivalHistory, HORIZON_MAX, KEPT, STRIDE, StrideRate};

/// The year 2255. A later instant is not a valid measurement.
const SECONDS_MAX: i64 = 9_000_000_000;

/// Rates are saved to 1/10,000 request per second. With more digits, a day of rates would not fit.
const TOLD: f64 = 1e4;

/// Past arrivals, in plain numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedArrivals {
    /// The second, since the epoch, from which arrivals are known.
    pub begun: i64,
    /// Seconds between scrapes.
    pub spacing: f64,
    /// The last known stride, in whole strides since the epoch.
    pub closed: i64,
    /// Requests per second in that stride and in those before it, in order of time.
    pub rates: Vec<f64>,
}

impl SavedArrivals {
    /// Returns true if all values are possible.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let Self { begun, spacing, closed, rates } = self;
        let most = (KEPT + HORIZON_MAX) / STRIDE + 1;
        let fits = i64::try_from(rates.len()).is_ok_and(|length| length <= most);
        let seconds = 0..=SECONDS_MAX;

        fits && seconds.contains(begun)
            && seconds.contains(&closed.saturating_mul(STRIDE))
            && are_amounts(&[*spacing])
            && are_amounts(rates)
    }

    /// Keeps only the last quarter of an hour.
    pub(crate) fn shorten(&mut self) {
        let kept = usize::try_from(KEPT / STRIDE).unwrap_or_default();
        self.rates.drain(..self.rates.len().saturating_sub(kept));
    }

    pub(crate) fn restore(&self) -> ArrivalHistory {
        let Self { begun, spacing, closed, rates } = self;
        let behind = i64::try_from(rates.len()).unwrap_or_default();

        ArrivalHistory {
            points: (closed - behind + 1..)
                .zip(rates)
                .map(|(stride, &rate)| StrideRate { stride, rate })
                .collect(),
            closed: Some(*closed),
            spacing: *spacing,
            begun: Some(*begun),
            ..ArrivalHistory::default()
        }
    }
}

// === impl ArrivalHistory ===

impl ArrivalHistory {
    /// The past arrivals; `None` while no stride is known.
    pub(crate) fn save(&self) -> Option<SavedArrivals> {
        let rates = self.points.iter().map(|point| (point.rate * TOLD).round() / TOLD);
        Some(SavedArrivals {
            begun: self.begun?,
            spacing: (self.spacing * TOLD).round() / TOLD,
            closed: self.points.back()?.stride,
            rates: rates.collect(),
        })
    }

    /// Returns true if fewer strides are known than saved ones.
    pub(in crate::analyze::foresight) fn is_shorter_than(&self, saved: &SavedArrivals) -> bool {
        self.points.len() < saved.rates.len()
    }

    /// Takes in earlier arrivals, unless the time between is too long to bridge.
    pub(in crate::analyze::foresight) fn precede(&mut self, earlier: &SavedArrivals) {
        let mut before = earlier.restore();
        if let Some(first) = self.points.front().copied() {
            before.points.retain(|point| point.stride < first.stride);
            before.bridge(first);
            if before.points.is_empty() {
                return;
            }
        }

        before.points.append(&mut self.points);
        self.points = before.points;
        self.closed = self.closed.or(before.closed);
        self.begun = before.begun;
        self.spacing = self.spacing.max(before.spacing);
    }
}
