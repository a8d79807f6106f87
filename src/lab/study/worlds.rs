//! Random worlds: complete scenarios that are drawn from documented priors.
//!
//! Policies are judged on worlds that were not chosen by hand. A world is drawn only from its seed
//! and its number, independently of the policies. It is an ordinary scenario file
//! ([`written`]), so it can be printed and played by `plimsoll simulate`. The priors
//! are data ([`priors`]); each aspect has its own random numbers.

mod arrivals;
mod batch;
mod belief;
mod capacity;
mod course;
mod distribution;
#[cfg(test)]
mod documented;
mod draft;
mod draw;
mod drift;
mod engines;
mod facts;
mod faults;
mod figures;
mod fleet;
mod lot;
mod machines;
mod numbers;
mod objectives;
mod page;
mod play;
mod priors;
mod recorded;
mod requests;
mod surroundings;
#[cfg(test)]
mod tests;
mod tuning;
mod written;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::Context as _;
use rayon::prelude::*;

use crate::output;
use crate::simulate::peers::Peer;
use crate::study::ablation;
use crate::study::args::ScoreboardArgs;
use crate::study::plan::PlanError;
use crate::study::policies::{once, peer};
use crate::study::worlds::belief::WorstMinute;
use crate::study::worlds::draw::WorldScenario;
use crate::study::worlds::figures::{FIXED, OWN};
use crate::study::worlds::lot::Lot;
use crate::study::worlds::page::WorldsReport;
use crate::study::worlds::play::{WorldOutcomes, WorldRuns};

/// The policies that are compared by default.
const POLICIES: [&str; 7] = [
    "static:best",
    "plimsoll",
    "plimsoll-only-up",
    "in-flight:20",
    "waiting:5",
    "kv:0.7",
    "keda-rate:best",
];

/// The number of worlds that are examined in detail.
const LOOKS: usize = 10;

/// The default path of the report.
const OUT: &str = "worlds";

/// Draws worlds, plays them with all policies, and writes the results.
///
/// # Errors
///
/// The arguments are not valid, or the report cannot be written.
pub(crate) fn run(args: &ScoreboardArgs, count: u32) -> anyhow::Result<()> {
    let peers = peers(&args.policy)?;
    let seeds = once(&args.seed);
    let lots: Vec<Lot> = seeds
        .iter()
        .flat_map(|&seed| (1..=count).map(move |number| Lot { seed, number }))
        .collect();
    let drawn = lots.len();

    let changes = if args.ablation { ablation::changes() } else { Vec::new() };
    let outcome = play::play(lots.into_par_iter().map(draw::draw).collect(), &peers, &changes)?;
    let policies = peers.iter().map(ToString::to_string).collect();
    let worst = lowest(&outcome, |it| it.share(OWN));
    let dearest = lowest(&outcome, |it| it.cost_over(OWN, FIXED).map(|cost| -cost));
    let minutes = minutes(&outcome, &[&worst[..], &dearest].concat())?;
    let report = WorldsReport { seeds, drawn, policies, changes, outcome, worst, dearest, minutes };

    let out = args.out.as_deref().unwrap_or(Path::new(OUT));
    for (extension, text) in [("md", page::markdown(&report)), ("csv", page::csv(&report))] {
        let mut path = out.to_owned().into_os_string();
        path.push(format!(".{extension}"));
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }

    output::print(&page::terminal(&report))
}

/// Prints a world, named by its seed and its number, as a scenario file.
///
/// # Errors
///
/// The text does not name a world.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let lot = Lot::parse(text)
        .ok_or_else(|| PlanError(format!("--world {text} must be SEED:NUMBER, such as 1:37")))?;
    output::print(&play::text(&draw::draw(lot)))
}

/// The compared policies, with the best fixed replica count first.
fn peers(named: &[String]) -> Result<Vec<Peer>, PlanError> {
    let texts: Vec<&str> = match named {
        [] => POLICIES.to_vec(),
        named => named.iter().map(String::as_str).collect(),
    };

    let named = texts.into_iter().map(|text| peer(text, "--policy"));
    let all: Vec<Peer> =
        std::iter::once(Ok(Peer::StaticBest)).chain(named).collect::<Result<_, _>>()?;
    Ok(once(&all))
}

/// The indices of the worlds with the lowest values.
fn lowest(outcome: &WorldOutcomes, value: fn(&WorldRuns) -> Option<f64>) -> Vec<usize> {
    let numbered = outcome.played.iter().enumerate();
    let mut values: Vec<(usize, f64)> =
        numbered.filter_map(|(at, played)| Some((at, value(played)?))).collect();
    values.sort_by(|a, b| a.1.total_cmp(&b.1));
    values.truncate(LOOKS);
    values.into_iter().map(|(at, _)| at).collect()
}

/// The worst minutes of the worlds at these indices, if they have requests that were not served
/// well.
fn minutes(
    outcome: &WorldOutcomes,
    places: &[usize],
) -> anyhow::Result<BTreeMap<usize, WorstMinute>> {
    let each: BTreeSet<usize> = places.iter().copied().collect();
    let minutes = each
        .into_par_iter()
        .map(|at| Ok((at, belief::worst(&outcome.played[at].world)?)))
        .collect::<anyhow::Result<Vec<_>>>()?;
    Ok(minutes.into_iter().filter_map(|(at, worst)| Some((at, worst?))).collect())
}

// === impl WorldScenario ===

impl WorldScenario {
    /// A description of the world, in a sentence.
    fn about(&self) -> &str {
        self.file.about.as_deref().unwrap_or_default()
    }
}
