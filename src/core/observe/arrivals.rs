//! The requests that a gateway routes to the models of a pool, as rates.
//!
//! A gateway counts requests by the name that they ask for, from the start of its process on. The
//! difference of two counts is the traffic between them, if both are of one process and no count
//! has fallen. Otherwise the time between them is not measured, because two processes behind one
//! address answer in turn.
//!
//! # Model
//!
//! With `r` the requests and `t` the measured time in the window:
//!
//! ```text
//! rate     = r / t                       known if t >= window / 2 and the last count is fresh
//! arriving = the highest rate of the last idle_after
//! ```
//!
//! The highest rate counts because a copy takes as long to load for a short break as for a long one.
//!
//! # Units
//!
//! Counts are requests, rates are requests/s.

use std::collections::{BTreeMap, VecDeque};

use jiff::Timestamp;

use crate::fleet::ModelName;
use crate::observe::DemandSignal;
use crate::observe::adapters::AdapterHorizon;
use crate::observe::routed::RoutedCounts;
use crate::units::{RequestRate, Seconds};

/// The parts of the horizon whose highest rates are kept.
const PARTS: f64 = 16.0;

/// Measured spans that are kept: those of an hour at one per five seconds.
const SPANS_MAX: usize = 720;

/// The requests of a pool over time.
#[derive(Clone, Debug, Default)]
pub struct RoutedRecorder {
    last: Option<RoutedCounts>,
    spans: VecDeque<MeasuredSpan>,
    peaks: BTreeMap<ModelName, VecDeque<PeakRate>>,
}

/// The requests between two counts.
#[derive(Clone, Debug)]
struct MeasuredSpan {
    from: Timestamp,
    to: Timestamp,
    requests: BTreeMap<ModelName, f64>,
    others: f64,
}

/// The highest rate of a part of the horizon.
#[derive(Clone, Copy, Debug)]
struct PeakRate {
    since: Timestamp,
    until: Timestamp,
    rate: f64,
}

/// The traffic of a pool at one instant.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RoutedTraffic {
    /// The rate of each named model; `None` if it is unknown.
    rates: Option<BTreeMap<ModelName, RequestRate>>,
    /// True if models without a name of their own have had requests.
    others: bool,
}

// === impl RoutedRecorder ===

impl RoutedRecorder {
    /// Records the gateway's last counts, and returns the traffic as known at `now`.
    pub fn observe(
        &mut self,
        now: Timestamp,
        counts: Option<&RoutedCounts>,
        horizon: AdapterHorizon,
    ) -> RoutedTraffic {
        if let Some(counts) = counts.filter(|it| self.last.as_ref() != Some(*it)) {
            self.spans.extend(self.last.as_ref().and_then(|last| MeasuredSpan::new(last, counts)));
            self.last = Some(counts.clone());
        }

        let surplus = self.spans.len().saturating_sub(SPANS_MAX);
        self.spans.drain(..surplus);
        self.spans.retain(|it| it.to <= now && Seconds::between(it.to, now) < horizon.window);

        for peaks in self.peaks.values_mut() {
            peaks.retain(|it| {
                it.until <= now && Seconds::between(it.until, now) <= horizon.idle_after
            });
        }
        self.peaks.retain(|_, peaks| !peaks.is_empty());

        self.traffic(now, horizon)
    }

    fn traffic(&mut self, now: Timestamp, horizon: AdapterHorizon) -> RoutedTraffic {
        let measured: f64 =
            self.spans.iter().map(|it| Seconds::between(it.from, it.to).seconds()).sum();
        let fresh = self
            .last
            .as_ref()
            .filter(|it| it.at <= now && Seconds::between(it.at, now) <= DemandSignal::STALE)
            .filter(|_| measured * 2.0 >= horizon.window.seconds());
        let Some(last) = fresh else {
            return RoutedTraffic::default();
        };

        let part = horizon.idle_after.seconds() / PARTS;
        let rates = last.requests.keys().map(|name| {
            let requests: f64 = self.spans.iter().filter_map(|it| it.requests.get(name)).sum();
            let rate = requests / measured;
            if rate > 0.0 {
                note(self.peaks.entry(name.clone()).or_default(), now, rate, part);
            }

            let peaks = self.peaks.get(name).into_iter().flatten();
            let highest = peaks.map(|peak| peak.rate).fold(rate, f64::max);
            (name.clone(), RequestRate::new(highest).unwrap_or_default())
        });

        RoutedTraffic {
            rates: Some(rates.collect()),
            others: self.spans.iter().any(|it| it.others > 0.0),
        }
    }
}

// === impl MeasuredSpan ===

impl MeasuredSpan {
    /// Returns the requests between two counts; `None` if their difference is not the traffic.
    fn new(before: &RoutedCounts, after: &RoutedCounts) -> Option<Self> {
        let passed = Seconds::between(before.at, after.at);
        if before.process != after.process
            || passed == Seconds::ZERO
            || passed > DemandSignal::STALE
        {
            return None;
        }

        let others = after.others - before.others;
        let fell = before
            .requests
            .iter()
            .any(|(name, was)| after.requests.get(name).is_none_or(|is| is < was));
        if fell || others < 0.0 {
            return None;
        }

        let requests = after.requests.iter().filter_map(|(name, is)| {
            let grown = is - before.requests.get(name).copied().unwrap_or_default();
            (grown > 0.0).then(|| (name.clone(), grown))
        });

        Some(Self { from: before.at, to: after.at, requests: requests.collect(), others })
    }
}

// === impl RoutedTraffic ===

impl RoutedTraffic {
    /// Returns true if the gateway's counts are known.
    #[must_use]
    pub const fn is_known(&self) -> bool {
        self.rates.is_some()
    }

    /// Returns the requests that arrive for a model; `None` if unknown. A model that the gateway
    /// has never named has had none, unless it counts some without a name.
    #[must_use]
    pub fn of(&self, model: &ModelName) -> Option<RequestRate> {
        let rates = self.rates.as_ref()?;
        let unnamed = (!self.others).then_some(RequestRate::ZERO);
        rates.get(model).copied().or(unnamed)
    }
}

// === helpers ===

/// Adds a rate to the peaks, of which each is that of a part of the horizon.
fn note(peaks: &mut VecDeque<PeakRate>, now: Timestamp, rate: f64, part: f64) {
    match peaks.back_mut() {
        Some(last) if Seconds::between(last.since, now).seconds() < part => {
            last.until = if rate >= last.rate { now } else { last.until };
            last.rate = last.rate.max(rate);
        }
        _ => peaks.push_back(PeakRate { since: now, until: now, rate }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HORIZON: AdapterHorizon =
        AdapterHorizon { idle_after: Seconds::literal(160), window: Seconds::literal(20) };

    fn model(name: &str) -> ModelName {
        ModelName::new(name).unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    fn counts(second: i64, requests: &[(&str, f64)], others: f64) -> RoutedCounts {
        let requests = requests.iter().map(|(name, count)| (model(name), *count)).collect();
        RoutedCounts { at: at(second), process: Some(1.0), requests, others }
    }

    fn rate(traffic: &RoutedTraffic, name: &str) -> Option<f64> {
        traffic.of(&model(name)).map(RequestRate::requests_per_second)
    }

    /// Feeds a count every five seconds, and returns the rate of `a` after each.
    fn rates(of: &mut RoutedRecorder, from: i64, counted: &[f64]) -> Vec<Option<f64>> {
        let fed = (0..).map(|it| from + 5 * it).zip(counted).map(|(second, count)| {
            let counts = counts(second, &[("a", *count)], 0.0);
            rate(&of.observe(at(second), Some(&counts), HORIZON), "a")
        });
        fed.collect()
    }

    #[test]
    fn a_rate_is_known_after_half_a_window_and_its_peak_counts() {
        let mut recorder = RoutedRecorder::default();
        let found = rates(&mut recorder, 0, &[7.0, 17.0, 27.0, 27.0, 27.0, 27.0, 27.0]);
        // 20 requests in 10 s are the highest rate, and none is known before.
        let two = Some(2.0);
        assert_eq!(found, [None, None, two, two, two, two, two]);

        let idle = rates(&mut recorder, 35, &[27.0; 40]);
        assert_eq!(idle.last(), Some(&Some(0.0)), "the peak is older than idle_after: {idle:?}");
    }

    #[test]
    fn a_restart_or_another_process_adds_no_requests() {
        let mut fell = RoutedRecorder::default();
        let found = rates(&mut fell, 0, &[1000.0, 1005.0, 1010.0, 3.0, 8.0, 13.0]);
        assert_eq!(found, [None, None, Some(1.0), Some(1.0), Some(1.0), Some(1.0)]);

        let mut two = RoutedRecorder::default();
        for second in 0..20 {
            let process = f64::from(u32::try_from(second % 2).unwrap());
            let requests = [(model("a"), 1000.0 * process + second as f64)].into();
            let counts =
                RoutedCounts { at: at(second), process: Some(process), requests, others: 0.0 };
            let traffic = two.observe(at(second), Some(&counts), HORIZON);
            assert!(!traffic.is_known(), "two processes that answer in turn");
        }
    }

    #[test]
    fn a_stale_count_is_unknown_and_a_gap_is_not_measured() {
        let mut recorder = RoutedRecorder::default();
        assert_eq!(rates(&mut recorder, 0, &[0.0, 5.0, 10.0])[2], Some(1.0));
        assert!(recorder.observe(at(15), None, HORIZON).is_known());
        assert!(!recorder.observe(at(41), None, HORIZON).is_known());
        assert_eq!(rates(&mut recorder, 100, &[900.0, 905.0]), [None, None]);
    }

    #[test]
    fn a_model_without_a_name_has_no_requests_unless_some_are_counted_without_one() {
        for (others, known) in [(0.0, Some(0.0)), (1.0, None)] {
            let mut recorder = RoutedRecorder::default();
            let mut traffic = RoutedTraffic::default();
            for turn in 0_u32..4 {
                let second = i64::from(5 * turn);
                let counts = counts(second, &[("a", 0.0)], others * f64::from(turn));
                traffic = recorder.observe(at(second), Some(&counts), HORIZON);
            }
            assert_eq!((rate(&traffic, "a"), rate(&traffic, "b")), (Some(0.0), known));
        }
    }
}
