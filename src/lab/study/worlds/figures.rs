//! Distributions over worlds: the results of policies, and the promises of Plimsoll's own policy.

use crate::study::file::Kind;
use crate::study::results::RunResult;
use crate::study::worlds::play::WorldRuns;

/// The policy that makes the promises, and the policies that it is compared with.
pub(crate) const OWN: &str = "plimsoll";
pub(crate) const FIXED: &str = "static:best";
pub(crate) const ONLY_UP: &str = "plimsoll-only-up";
pub(crate) const ORACLE: &str = "oracle";

/// The target for a world's share of requests within SLO.
pub(crate) const GOAL: f64 = 0.99;

/// The margins by which a peer must be better in the share of requests within SLO and in cost.
const BETTER_SHARE: f64 = 0.001;
const BETTER_COST: f64 = 0.99;

/// The rounding error of floating-point sums.
const ROUNDING: f64 = 1e-9;

/// The results of a policy over worlds.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    pub(crate) worlds: usize,
    /// The share of worlds with at least [`GOAL`] within SLO.
    pub(crate) at_goal: f64,
    /// Shares within SLO.
    pub(crate) share: Quantiles,
    /// Costs relative to those of the best fixed replica count.
    pub(crate) of_fixed: Quantiles,
    /// Costs relative to those of the oracle, if that was played.
    pub(crate) of_oracle: Option<Quantiles>,
    /// Changes per ten replica-hours.
    pub(crate) changes: Quantiles,
    /// The share of worlds in which it is better than Plimsoll's own policy in both share and cost.
    pub(crate) beats: f64,
}

/// Values, ascending.
#[derive(Clone, Debug, Default)]
pub(crate) struct Quantiles(Vec<f64>);

/// A promise with its measured value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WorldGate {
    pub(crate) promise: &'static str,
    pub(crate) worlds: usize,
    /// `None` if there is nothing to measure.
    pub(crate) measured: Option<MeasuredFigure>,
}

/// A figure with its bound.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MeasuredFigure {
    pub(crate) shown: String,
    pub(crate) holds: bool,
}

/// The results of a policy in these worlds; `None` if it played none.
pub(crate) fn figures(worlds: &[&WorldRuns], policy: &str) -> Option<Figures> {
    let runs: Vec<(&WorldRuns, &RunResult)> =
        worlds.iter().filter_map(|it| Some((*it, it.of(policy)?))).collect();
    let count = runs.len();
    if count == 0 {
        return None;
    }

    let at_goal = runs.iter().filter(|(it, _)| it.is_at_goal(policy)).count();
    let beaten = runs.iter().filter(|(it, _)| it.is_beaten_by(policy)).count();
    let of_fixed = runs.iter().filter_map(|(it, _)| it.cost_over(policy, FIXED));
    let of_oracle = runs.iter().filter_map(|(it, _)| it.cost_over(policy, ORACLE));
    let over_oracle = Quantiles::of(of_oracle);
    Some(Figures {
        worlds: count,
        at_goal: at_goal as f64 / count as f64,
        share: Quantiles::of(runs.iter().filter_map(|(_, run)| run.within_slo)),
        of_fixed: Quantiles::of(of_fixed),
        of_oracle: (!over_oracle.0.is_empty()).then_some(over_oracle),
        changes: Quantiles::of(runs.iter().map(|(_, run)| changes(run))),
        beats: beaten as f64 / count as f64,
    })
}

/// Changes per ten replica-hours.
fn changes(run: &RunResult) -> f64 {
    10.0 * f64::from(run.actions) / run.replica_hours.max(1e-9)
}

/// The worlds of a kind.
pub(crate) fn of_kind(worlds: &[WorldRuns], kind: Kind) -> Vec<&WorldRuns> {
    worlds.iter().filter(|it| it.world.kind == kind).collect()
}

fn gate(
    promise: &'static str,
    worlds: &[&WorldRuns],
    measured: Option<MeasuredFigure>,
) -> WorldGate {
    WorldGate { promise, worlds: worlds.len(), measured }
}

/// The promises, measured on these worlds.
pub(crate) fn gates(worlds: &[WorldRuns]) -> Vec<WorldGate> {
    let smooth = of_kind(worlds, Kind::Smooth);
    let jumps = of_kind(worlds, Kind::Jumps);
    let all: Vec<&WorldRuns> = worlds.iter().collect();
    let costs = Quantiles::of(smooth.iter().filter_map(|it| it.cost_over(OWN, FIXED)));
    let lost = Quantiles::of(jumps.iter().filter_map(|it| it.lost()));
    let of_oracle = Quantiles::of(jumps.iter().filter_map(|it| it.cost_over(OWN, ORACLE)));

    vec![
        gate(
            "smooth: 90% of worlds at 99% within SLO or better",
            &smooth,
            figures(&smooth, OWN).map(|it| MeasuredFigure::at_least(90.0, 100.0 * it.at_goal, "%")),
        ),
        gate(
            "smooth: median cost at most 0.95 of `static:best`",
            &smooth,
            costs.at(0.5).map(|it| MeasuredFigure::at_most(0.95, it, "")),
        ),
        gate(
            "smooth: worst decile of cost at most 1.25 of `static:best`",
            &smooth,
            costs.at(0.9).map(|it| MeasuredFigure::at_most(1.25, it, "")),
        ),
        gate(
            "jumps: median share within SLO at most 1 point below `plimsoll-only-up`",
            &jumps,
            lost.at(0.5).map(|it| MeasuredFigure::at_most(1.0, 100.0 * it, " points")),
        ),
        gate(
            "jumps: median cost at most 1.8 times `oracle`",
            &jumps,
            of_oracle.at(0.5).map(|it| MeasuredFigure::at_most(1.8, it, "")),
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

fn beaten(worlds: &[&WorldRuns], policy: &str) -> Option<MeasuredFigure> {
    figures(worlds, policy).map(|it| MeasuredFigure::at_most(3.0, 100.0 * it.beats, "%"))
}

// === impl WorldRuns ===

impl WorldRuns {
    /// The share of requests within SLO.
    pub(crate) fn share(&self, policy: &str) -> Option<f64> {
        self.of(policy)?.within_slo
    }

    /// The cost of a policy relative to the cost of another.
    pub(crate) fn cost_over(&self, policy: &str, other: &str) -> Option<f64> {
        self.times(self.of(policy)?, other)
    }

    /// The cost of a run relative to the cost of a policy.
    pub(crate) fn times(&self, run: &RunResult, other: &str) -> Option<f64> {
        let base = self.of(other).filter(|it| it.cost > 0.0)?;
        Some(run.cost / base.cost)
    }

    fn is_at_goal(&self, policy: &str) -> bool {
        self.share(policy).is_some_and(|share| share >= GOAL)
    }

    /// Returns true if a policy serves more at a lower cost than Plimsoll's own policy.
    pub(crate) fn is_beaten_by(&self, policy: &str) -> bool {
        let served = self.share(policy).zip(self.share(OWN));
        let cost = self.cost_over(policy, OWN);
        served.is_some_and(|(other, own)| other >= own + BETTER_SHARE - ROUNDING)
            && cost.is_some_and(|cost| cost <= BETTER_COST)
    }

    /// The share of requests that were lost by scaling down.
    fn lost(&self) -> Option<f64> {
        Some(self.share(ONLY_UP)? - self.share(OWN)?)
    }
}

// === impl Quantiles ===

impl Quantiles {
    pub(crate) fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.collect();
        sorted.sort_by(f64::total_cmp);
        Self(sorted)
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

// === impl MeasuredFigure ===

impl MeasuredFigure {
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
