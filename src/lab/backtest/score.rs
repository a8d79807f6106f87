//! Scores policies in the simulator, with the load and the engines of a trace.

use std::fmt::Write as _;

use anyhow::Context as _;
use rayon::prelude::*;

use crate::backtest::args::AssumptionArgs;
use crate::backtest::demand::{RecordedVariant, TraceDemand};
use crate::backtest::fleet::{self, TraceScenario};
use crate::backtest::interrupt::Interrupt;
use crate::backtest::policies::{CandidatePolicy, Candidates};
use crate::simulate::run;
use crate::simulate::scenario::{Scenario, Slo};
use crate::simulate::score::{Outcome, share};

/// A row of the table.
struct PolicyRow {
    name: String,
    within: Option<f64>,
    replica_hours: f64,
    cost: f64,
    changes: u32,
    flips: u32,
    at_max: f64,
}

/// Returns the table of all policies.
///
/// # Errors
///
/// The trace has too little data about its load or engines, an engine cannot be built, or it was
/// interrupted.
pub(crate) fn table(
    gathered: &TraceDemand,
    candidates: &Candidates,
    args: &AssumptionArgs,
    interrupt: &Interrupt,
) -> anyhow::Result<String> {
    let TraceScenario { scenario, slo, notes } = fleet::scenario(gathered, candidates, args)?;
    let outcomes: Vec<Result<Outcome, _>> = candidates
        .policies
        .par_iter()
        .map(|candidate| {
            let mut played = scenario.clone();
            played.control.policy = fleet::playable(&candidate.policy);
            run::run(&played, args.seed, &mut |_| !interrupt.is_heard())
        })
        .collect();
    interrupt.check()?;
    let mut lines = vec![as_it_was(gathered, &scenario)];
    for (candidate, outcome) in candidates.policies.iter().zip(outcomes) {
        let scored = outcome.context("an engine cannot be built")?;
        lines.push(line(candidate, &scenario, &scored));
    }

    Ok(written(&lines, &slo, &notes))
}

/// The row for the real fleet. It includes only the simulated variants, because others would make
/// the sums incomparable.
fn as_it_was(gathered: &TraceDemand, scenario: &Scenario) -> PolicyRow {
    let crews: Vec<&RecordedVariant> =
        gathered.variants.values().filter(|crew| is_simulated(crew, scenario)).collect();
    let (first, last) = gathered.span.unwrap_or_default();
    let length = last.duration_since(first).as_secs_f64().max(1e-6) * crews.len().max(1) as f64;

    PolicyRow {
        name: "as it was".to_owned(),
        within: None,
        replica_hours: crews.iter().map(|crew| hours(crew)).sum(),
        cost: crews.iter().map(|crew| hours(crew) * crew.spec.cost.per_hour()).sum(),
        changes: crews.iter().map(|crew| crew.changes).sum(),
        flips: crews.iter().map(|crew| crew.flips).sum(),
        at_max: crews.iter().map(|crew| crew.at_max).sum::<f64>() / length,
    }
}

fn is_simulated(crew: &RecordedVariant, scenario: &Scenario) -> bool {
    scenario.variants.iter().any(|it| it.spec.key == crew.spec.key)
}

/// The replica-hours of a variant in the trace.
fn hours(crew: &RecordedVariant) -> f64 {
    crew.replica_seconds / 3600.0
}

/// The row for a policy.
fn line(candidate: &CandidatePolicy, scenario: &Scenario, outcome: &Outcome) -> PolicyRow {
    let crews: Vec<_> = scenario.variants.iter().zip(&outcome.variants).collect();
    let looks = (outcome.series.len() * scenario.variants.len()).max(1) as f64;
    let seen = outcome.series.iter().flat_map(|sample| sample.variants.iter().enumerate());
    let at_max = seen.filter(|(at, seen)| {
        let max = scenario.variants[*at].spec.bounds.max();
        max.is_some_and(|max| seen.wanted >= max.count())
    });

    PolicyRow {
        name: candidate.name.clone(),
        within: share(&outcome.models, |service| service.good),
        replica_hours: crews.iter().map(|(_, crew)| crew.replica_hours()).sum(),
        cost: crews.iter().map(|(it, crew)| crew.replica_hours() * it.spec.cost.per_hour()).sum(),
        changes: crews.iter().map(|(_, crew)| crew.ups + crew.downs).sum(),
        flips: crews.iter().map(|(_, crew)| crew.flips).sum(),
        at_max: at_max.count() as f64 / looks,
    }
}

// Writing to a string cannot fail, so the result is dropped.

fn written(lines: &[PolicyRow], slo: &Slo, notes: &[String]) -> String {
    let mut text = String::new();
    let width = lines.iter().map(|line| line.name.chars().count()).max().unwrap_or(0).max(6);
    let _ = writeln!(
        text,
        "\n{:<width$}  {:>10}  {:>13}  {:>10}  {:>7}  {:>5}  {:>10}",
        "policy", "within SLO", "replica-hours", "cost", "changes", "flips", "at maximum"
    );
    for line in lines {
        let PolicyRow { name, within, replica_hours, cost, changes, flips, at_max } = line;
        let percent_within = within.map_or("-".to_owned(), |it| format!("{:.2}%", it * 100.0));
        let percent_at_max = format!("{:.1}%", at_max * 100.0);
        let _ = writeln!(
            text,
            "{name:<width$}  {percent_within:>10}  {replica_hours:>13.2}  {cost:>10.2}  \
             {changes:>7}  {flips:>5}  {percent_at_max:>10}"
        );
    }

    let _ = writeln!(
        text,
        "\nThe first line shows the recorded variants that can be simulated. The other lines are \
         simulated:\nrecorded arrivals and lengths on engines learned from recorded scrapes. Compare \
         them with each other,\nand \"recorded\" with the first line to judge the simulation. \
         Requests that never reached an engine\nare not in the trace. Within SLO: {}.",
        fleet::written_objectives(slo)
    );
    for note in notes {
        let _ = writeln!(text, "- {note}");
    }

    text
}
