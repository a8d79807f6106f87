//! Distributions over worlds: what policies came to, and what is promised of Plimsoll's own.

use crate::study::file::Kind;
use crate::study::results::RunResult;
use crate::study::worlds::play::Played;

/// Whose promises they are, and with whom costs are compared.
pub(crate) const OWN: &str = "plimsoll";
pub(crate) const FIXED: &str = "static:best";
pub(crate) const ONLY_UP: &str = "plimsoll-only-up";
pub(crate) const ORACLE: &str = "oracle";

/// The share of requests within SLO that a world is to have.
pub(crate) const GOAL: f64 = 0.99;

/// By how much a peer must be better in the share of requests within SLO, and in cost, to count.
const BETTER_SHARE: f64 = 0.001;
const BETTER_COST: f64 = 0.99;

/// What floating-point sums may be off by.
const ROUNDING: f64 = 1e-9;

/// What a policy came to over worlds.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    pub(crate) worlds: usize,
    /// The share of worlds with at least [`GOAL`] within SLO.
    pub(crate) at_goal: f64,
    /// Shares within SLO.
    pub(crate) share: Quantiles,
    /// Costs over those of the best fixed number.
    pub(crate) of_fixed: Quantiles,
    /// Costs over those of the oracle, where that was played.
    pub(crate) of_oracle: Option<Quantiles>,
    /// Changes in ten replica-hours.
    pub(crate) changes: Quantiles,
    /// The share of worlds in which it is better than Plimsoll's own policy in both.
    pub(crate) beats: f64,
}

/// Values, ascending.
#[derive(Clone, Debug, Default)]
pub(crate) struct Quantiles(Vec<f64>);

/// A promise that was measured.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Gate {
    pub(crate) promise: &'static str,
    pub(crate) worlds: usize,
    /// `None` where there is nothing to measure it by.
    pub(crate) measured: Option<Measured>,
}

/// A figure beside its bound.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Measured {
    pub(crate) shown: String,
    pub(crate) holds: bool,
}

/// What a policy came to in these worlds; `None` where it played none.
pub(crate) fn figures(worlds: &[&Played], policy: &str) -> Option<Figures> {
    let runs: Vec<(&Played, &RunResult)> =
        worlds.iter().filter_map(|it| Some((*it, it.of(policy)?))).collect();
    let count = runs.len();
    if count == 0 {
        return None;
    }
    let portion = |of: usize| of as f64 / count as f64;
    let of = |other| Quantiles::of(runs.iter().filter_map(|(it, _)| it.cost_over(policy, other)));
    let of_oracle = of(ORACLE);
    Some(Figures {
        worlds: count,
        at_goal: portion(runs.iter().filter(|(it, _)| it.is_at_goal(policy)).count()),
        share: Quantiles::of(runs.iter().filter_map(|(_, run)| run.within_slo)),
        of_fixed: of(FIXED),
        of_oracle: (!of_oracle.0.is_empty()).then_some(of_oracle),
        changes: Quantiles::of(runs.iter().map(|(_, run)| changes(run))),
        beats: portion(runs.iter().filter(|(it, _)| it.is_beaten_by(policy)).count()),
    })
}

/// Changes in ten replica-hours.
fn changes(run: &RunResult) -> f64 {
    10.0 * f64::from(run.actions) / run.replica_hours.max(1e-9)
}

/// What is promised, of these worlds.
pub(crate) fn gates(worlds: &[Played]) -> Vec<Gate> {
    let of =
        |kind: Kind| -> Vec<&Played> { worlds.iter().filter(|it| it.world.kind == kind).collect() };
    let (smooth, jumps) = (of(Kind::Smooth), of(Kind::Jumps));
    let all: Vec<&Played> = worlds.iter().collect();
    let costs = Quantiles::of(smooth.iter().filter_map(|it| it.cost_over(OWN, FIXED)));
    let lost = Quantiles::of(jumps.iter().filter_map(|it| it.lost()));
    let of_oracle = Quantiles::of(jumps.iter().filter_map(|it| it.cost_over(OWN, ORACLE)));
    let gate =
        |promise, worlds: &[&Played], measured| Gate { promise, worlds: worlds.len(), measured };
    vec![
        gate(
            "smooth: 90% of worlds at 99% within SLO or better",
            &smooth,
            figures(&smooth, OWN).map(|it| Measured::at_least(90.0, 100.0 * it.at_goal, "%")),
        ),
        gate(
            "smooth: median cost at most 0.95 of `static:best`",
            &smooth,
            costs.at(0.5).map(|it| Measured::at_most(0.95, it, "")),
        ),
        gate(
            "smooth: worst decile of cost at most 1.25 of `static:best`",
            &smooth,
            costs.at(0.9).map(|it| Measured::at_most(1.25, it, "")),
        ),
        gate(
            "jumps: median share within SLO at most 1 point below `plimsoll-only-up`",
            &jumps,
            lost.at(0.5).map(|it| Measured::at_most(1.0, 100.0 * it, " points")),
        ),
        gate(
            "jumps: median cost at most 1.8 times `oracle`",
            &jumps,
            of_oracle.at(0.5).map(|it| Measured::at_most(1.8, it, "")),
        ),
        gate(
            "all: `in-flight:20` better in both in at most 3% of worlds",
            &all,
            beaten(&all, "in-flight:20"),
        ),
        gate(
            "all: `keda-rate:best` better in both in at most 3% of worlds",
            &all,
            beaten(&all, "keda-rate:best"),
        ),
    ]
}

fn beaten(worlds: &[&Played], policy: &str) -> Option<Measured> {
    figures(worlds, policy).map(|it| Measured::at_most(3.0, 100.0 * it.beats, "%"))
}

// === impl Played ===

impl Played {
    /// The share of requests within SLO.
    pub(crate) fn share(&self, policy: &str) -> Option<f64> {
        self.of(policy)?.within_slo
    }

    /// What a policy cost over what another did.
    pub(crate) fn cost_over(&self, policy: &str, other: &str) -> Option<f64> {
        self.times(self.of(policy)?, other)
    }

    /// What a run cost over what a policy did.
    pub(crate) fn times(&self, run: &RunResult, other: &str) -> Option<f64> {
        let other = self.of(other).filter(|it| it.cost > 0.0)?;
        Some(run.cost / other.cost)
    }

    fn is_at_goal(&self, policy: &str) -> bool {
        self.share(policy).is_some_and(|share| share >= GOAL)
    }

    /// Whether a policy serves more for less than Plimsoll's own.
    pub(crate) fn is_beaten_by(&self, policy: &str) -> bool {
        let served = self.share(policy).zip(self.share(OWN));
        let cost = self.cost_over(policy, OWN);
        served.is_some_and(|(other, own)| other >= own + BETTER_SHARE - ROUNDING)
            && cost.is_some_and(|cost| cost <= BETTER_COST)
    }

    /// The share of requests that scaling down lost.
    fn lost(&self) -> Option<f64> {
        Some(self.share(ONLY_UP)? - self.share(OWN)?)
    }
}

// === impl Quantiles ===

impl Quantiles {
    pub(crate) fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        Self(values)
    }

    pub(crate) fn mean(&self) -> Option<f64> {
        let count = self.0.len();
        (count > 0).then(|| self.0.iter().sum::<f64>() / count as f64)
    }

    /// The value that this share of all values does not exceed; `None` without values.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a count is a rank, and the cast saturates"
    )]
    pub(crate) fn at(&self, share: f64) -> Option<f64> {
        let rank = (share * self.0.len() as f64 - ROUNDING).ceil() as usize;
        self.0.get(rank.saturating_sub(1)).copied()
    }
}

// === impl Measured ===

impl Measured {
    fn at_least(bound: f64, value: f64, unit: &str) -> Self {
        Self { shown: format!("{value:.2}{unit}"), holds: value >= bound - ROUNDING }
    }

    fn at_most(bound: f64, value: f64, unit: &str) -> Self {
        Self { shown: format!("{value:.2}{unit}"), holds: value <= bound + ROUNDING }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_the_value_that_a_share_does_not_exceed() {
        let values = Quantiles::of((1..=10).rev().map(f64::from));
        for (share, value) in [(0.01, 1.0), (0.1, 1.0), (0.5, 5.0), (0.9, 9.0), (1.0, 10.0)] {
            assert_eq!(values.at(share), Some(value), "{share}");
        }
        assert_eq!(Quantiles::default().at(0.5), None);
    }
}
