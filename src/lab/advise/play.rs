//! Plays a scenario, and measures it in equal parts of the time.

use anyhow::Context as _;

use crate::advise::span::Blocks;
use crate::backtest::interrupt::Interrupt;
use crate::simulate::run;
use crate::simulate::scenario::Scenario;
use crate::simulate::score::FleetSample;

/// The outcome of one part of the time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct TimePart {
    /// The sum of the cost per hour over all samples.
    cost: f64,
    samples: f64,
    /// Requests that were judged.
    judged: f64,
    /// Requests that were served within their objectives.
    good: f64,
}

/// The outcome of a scenario, over all seeds.
#[derive(Clone, Debug, Default)]
pub(crate) struct TrialOutcome {
    /// The parts of the time.
    pub(crate) parts: Vec<TimePart>,
    /// The share of samples in which each variant was at its maximum.
    pub(crate) at_max: Vec<f64>,
    /// The most replicas of each variant.
    pub(crate) peaks: Vec<u32>,
    seeds: f64,
}

/// Plays a scenario with one seed.
///
/// # Errors
///
/// An engine cannot be built.
pub(crate) fn play(
    scenario: &Scenario,
    seed: u64,
    blocks: &Blocks,
    interrupt: &Interrupt,
) -> anyhow::Result<TrialOutcome> {
    let outcome = run::run(scenario, seed, &mut |_| !interrupt.is_heard())
        .context("an engine cannot be built")?;
    interrupt.check()?;

    let mut parts = vec![TimePart::default(); blocks.count as usize];
    let mut at_max = vec![0.0; scenario.variants.len()];
    let mut counted = 0.0;
    for sample in &outcome.series {
        let Some(part) = blocks.at(sample.at) else { continue };
        parts[part].take(sample, scenario);
        counted += 1.0;
        for (variant, (seen, share)) in
            scenario.variants.iter().zip(sample.variants.iter().zip(&mut at_max))
        {
            let max = variant.spec.bounds.max();
            *share += f64::from(max.is_some_and(|max| seen.wanted >= max.count()));
        }
    }

    // Requests that are still not answered at the end, although it is late.
    let overdue: f64 = outcome.models.iter().map(|it| it.overdue as f64).sum();
    if let Some(last) = parts.last_mut() {
        last.judged += overdue;
    }

    for share in &mut at_max {
        *share /= f64::max(counted, 1.0);
    }
    let peaks = outcome.variants.iter().map(|it| it.peak).collect();
    Ok(TrialOutcome { parts, at_max, peaks, seeds: 1.0 })
}

// === impl TimePart ===

impl TimePart {
    fn take(&mut self, sample: &FleetSample, scenario: &Scenario) {
        for (variant, seen) in scenario.variants.iter().zip(&sample.variants) {
            let existing = f64::from(seen.ready + seen.starting + seen.draining);
            self.cost += existing * variant.spec.cost.per_hour();
        }

        self.samples += 1.0;
        self.judged += sample.models.iter().map(|it| it.judged as f64).sum::<f64>();
        self.good += sample.models.iter().map(|it| it.good as f64).sum::<f64>();
    }

    fn plus(self, other: Self) -> Self {
        Self {
            cost: self.cost + other.cost,
            samples: self.samples + other.samples,
            judged: self.judged + other.judged,
            good: self.good + other.good,
        }
    }

    /// The mean cost per hour.
    pub(crate) fn cost_per_hour(&self) -> f64 {
        self.cost / self.samples.max(1.0)
    }

    /// The share of requests within their objectives; `None` without a request.
    pub(crate) fn attainment(&self) -> Option<f64> {
        self.attainment_against(self)
    }

    /// The same share for a change. Requests that are judged today and not after the change are
    /// not served.
    pub(crate) fn attainment_against(&self, today: &Self) -> Option<f64> {
        let judged = self.judged.max(today.judged);
        (judged > 0.0).then(|| self.good / judged)
    }
}

// === impl TrialOutcome ===

impl TrialOutcome {
    /// Adds the outcome of another seed.
    pub(crate) fn add(&mut self, other: Self) {
        if self.parts.is_empty() {
            *self = other;
            return;
        }

        let parts = self.parts.iter().zip(&other.parts);
        self.parts = parts.map(|(one, two)| one.plus(*two)).collect();
        for (share, more) in self.at_max.iter_mut().zip(&other.at_max) {
            *share = (*share * self.seeds + more) / (self.seeds + 1.0);
        }
        for (peak, more) in self.peaks.iter_mut().zip(&other.peaks) {
            *peak = (*peak).max(*more);
        }
        self.seeds += 1.0;
    }

    /// The share of all requests within their objectives; `None` without a request.
    pub(crate) fn attainment(&self) -> Option<f64> {
        self.whole().attainment()
    }

    /// The same share for a change of the fleet of today.
    pub(crate) fn attainment_against(&self, today: &Self) -> Option<f64> {
        self.whole().attainment_against(&today.whole())
    }

    fn whole(&self) -> TimePart {
        self.parts.iter().fold(TimePart::default(), |all, part| all.plus(*part))
    }

    /// The mean cost per hour in each part.
    pub(crate) fn costs(&self) -> Vec<f64> {
        self.parts.iter().map(TimePart::cost_per_hour).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_a_change_never_answers_are_not_served() {
        let part = |judged: f64, good: f64| TimePart { judged, good, ..TimePart::default() };
        let today = part(100.0, 90.0);
        assert_eq!(today.attainment(), Some(0.9));
        assert_eq!(part(0.0, 0.0).attainment_against(&today), Some(0.0), "no replica serves");
        assert_eq!(part(50.0, 50.0).attainment_against(&today), Some(0.5), "half wait for ever");
        assert_eq!(part(0.0, 0.0).attainment(), None, "there were no requests");
    }
}
