//! Compares the outcome of a change with the fleet of today.
//!
//! Both are played on the same requests, and compared in equal parts of the time. The interval of
//! the difference is that of its mean over these parts, by Student's t distribution.

use serde::Serialize;

use crate::advise::change::Trial;
use crate::advise::estimate::Estimate;
use crate::advise::play::TrialOutcome;
use crate::advise::scene::ModelScene;

/// Hours of a month: 365 days divided by 12.
pub(crate) const MONTH: f64 = 730.0;

/// The smallest change of the cost that is worth a change, as a share of the cost.
const MONEY_MIN: f64 = 0.01;

/// The smallest gain of requests within their objectives that is worth a change.
const GAIN_MIN: f64 = 0.005;

/// The loss of requests within their objectives that does not count.
const LOSS_MAX: f64 = 0.001;

/// One group of models today.
pub(crate) struct Before<'a> {
    played: &'a TrialOutcome,
    /// What the output shows of it.
    pub(crate) summary: ModelToday,
}

/// The models of a group today.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ModelToday {
    /// The models, each as `model#namespace`.
    pub(crate) models: String,
    /// The simulated cost per month.
    pub(crate) cost_per_month: Estimate,
    /// The recorded cost of the same time, per month.
    pub(crate) recorded_cost_per_month: f64,
    /// The share of simulated requests within their objectives; null without requests.
    pub(crate) attainment: Option<f64>,
}

/// The verdict on a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// It saves money, and no fewer requests are served in time than is good enough.
    Saves,
    /// More requests are served in time.
    Serves,
    /// It saves money if fewer requests within today's objectives are acceptable.
    Tradeoff,
    /// The mean is better, but its interval includes no change.
    Uncertain,
    /// It is not better.
    NoGain,
}

/// A judged change.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct AdvisedChange {
    /// The name of the lever.
    pub(crate) lever: &'static str,
    /// The variant or the model that it changes.
    pub(crate) subject: String,
    /// The change in words.
    pub(crate) change: String,
    /// The verdict.
    pub(crate) verdict: Verdict,
    /// The difference of the cost per month; negative if it saves.
    pub(crate) per_month: Estimate,
    /// The share of requests within their objectives today; null without requests.
    pub(crate) attainment_before: Option<f64>,
    /// The share after the change.
    pub(crate) attainment_after: Option<f64>,
    /// The difference between both, over the parts of the time; null without requests.
    pub(crate) attainment_change: Option<Estimate>,
    /// What has to be true for it, and is not in the trace.
    pub(crate) assumes: Vec<String>,
}

// === impl Before ===

impl<'a> Before<'a> {
    /// The fleet of today.
    pub(crate) fn new(scene: &ModelScene<'_>, played: &'a TrialOutcome) -> Self {
        let (from, to) = scene.fleet.counted();
        let hours = (to.duration_since(from).as_secs_f64() / 3600.0).max(1e-9);
        let recorded: f64 =
            scene.scenario.variants.iter().map(|it| scene.fleet.recorded_cost(it)).sum();
        let summary = ModelToday {
            models: scene.name(),
            cost_per_month: Estimate::of(&played.costs()).unwrap_or_default().times(MONTH),
            recorded_cost_per_month: recorded / hours * MONTH,
            attainment: played.attainment(),
        };
        Self { played, summary }
    }
}

/// Judges a change by its outcome.
pub(crate) fn judged(
    before: &Before<'_>,
    trial: Trial,
    after: &TrialOutcome,
    target: f64,
) -> AdvisedChange {
    let parts = || before.played.parts.iter().zip(&after.parts);
    let money: Vec<f64> =
        parts().map(|(then, now)| now.cost_per_hour() - then.cost_per_hour()).collect();
    let shares: Vec<f64> = parts()
        .filter_map(|(then, now)| Some(now.attainment_against(then)? - then.attainment()?))
        .collect();
    let per_month = Estimate::of(&money).unwrap_or_default().times(MONTH);
    let change = Estimate::of(&shares);

    let Trial { lever, subject, what, assumes, relaxes, changes: _ } = trial;
    let proposal = AdvisedChange {
        lever,
        subject,
        change: what,
        verdict: Verdict::NoGain,
        per_month,
        attainment_before: before.played.attainment(),
        attainment_after: after.attainment_against(before.played),
        attainment_change: change,
        assumes,
    };
    let cost = before.summary.cost_per_month.mean;
    AdvisedChange { verdict: proposal.verdict(cost, target, relaxes), ..proposal }
}

// === impl AdvisedChange ===

impl AdvisedChange {
    fn verdict(&self, cost: f64, target: f64, relaxes: bool) -> Verdict {
        let money = &self.per_month;
        let shares = self.attainment_before.zip(self.attainment_after);
        let gain = shares.map_or(0.0, |(before, after)| after - before);
        let keeps = shares.is_some_and(|(before, after)| after >= before.min(target) - LOSS_MAX);
        let saves = money.mean < -MONEY_MIN * cost;
        let serves = gain >= GAIN_MIN && shares.is_some_and(|(before, _)| before < target);
        let is_served = self.attainment_change.is_some_and(|it| it.is_positive());

        if relaxes {
            return match (saves, money.is_negative()) {
                (true, true) => Verdict::Tradeoff,
                (true, false) => Verdict::Uncertain,
                (false, _) => Verdict::NoGain,
            };
        }
        if saves && keeps && money.is_negative() {
            return Verdict::Saves;
        }
        if serves && is_served {
            return Verdict::Serves;
        }
        if saves && keeps || serves { Verdict::Uncertain } else { Verdict::NoGain }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proposal(money: &[f64], before: f64, after: f64) -> AdvisedChange {
        AdvisedChange {
            lever: "lower_minimum",
            subject: String::new(),
            change: String::new(),
            verdict: Verdict::NoGain,
            per_month: Estimate::of(money).unwrap(),
            attainment_before: Some(before),
            attainment_after: Some(after),
            attainment_change: Estimate::of(&[after - before, (after - before) * 1.1]),
            assumes: Vec::new(),
        }
    }

    #[test]
    fn a_change_is_advised_only_if_it_surely_saves_or_serves() {
        let cheaper = [-10.0, -11.0, -12.0];
        for (money, before, after, relaxes, verdict) in [
            (&cheaper[..], 0.995, 0.995, false, Verdict::Saves),
            (&cheaper[..], 0.999, 0.991, false, Verdict::Saves),
            (&cheaper[..], 0.999, 0.980, false, Verdict::NoGain),
            (&cheaper[..], 0.950, 0.940, false, Verdict::NoGain),
            (&cheaper[..], 0.999, 0.900, true, Verdict::Tradeoff),
            (&[-30.0, 10.0, -3.0][..], 0.995, 0.995, false, Verdict::Uncertain),
            (&[-0.1, -0.1, -0.1][..], 0.995, 0.995, false, Verdict::NoGain),
            (&[10.0, 11.0, 12.0][..], 0.950, 0.980, false, Verdict::Serves),
            (&[10.0, 11.0, 12.0][..], 0.995, 1.0, false, Verdict::NoGain),
        ] {
            let found = proposal(money, before, after).verdict(100.0, 0.99, relaxes);
            assert_eq!(found, verdict, "{money:?}, {before} -> {after}, {relaxes}");
        }
    }
}
