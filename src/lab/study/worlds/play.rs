//! Plays worlds with all policies, without worlds that no fixed replica count serves well.

use serde_json::{Map, Value};

use crate::simulate::peers::Peer;
use crate::study::ablation::AblationChange;
use crate::study::execute::{self, ExecutedRuns, PreparedRun};
use crate::study::plan::{Plan, Shard};
use crate::study::results::RunResult;
use crate::study::source::Study;
use crate::study::worlds::draw::WorldScenario;
use crate::study::worlds::written;
use plimsoll_daemon::config::yaml;
use plimsoll_daemon::config::yaml::lines::Lines;

/// A world that was played.
pub(crate) struct WorldRuns {
    pub(crate) world: WorldScenario,
    /// One run per policy that can play it.
    pub(crate) runs: Vec<RunResult>,
    /// One run of Plimsoll's own policy with each of the changes.
    pub(crate) changed: Vec<RunResult>,
}

/// A world that was not played, with the reason.
pub(crate) struct RejectedWorld {
    pub(crate) world: WorldScenario,
    pub(crate) why: String,
}

/// The outcome of all worlds.
pub(crate) struct WorldOutcomes {
    pub(crate) played: Vec<WorldRuns>,
    pub(crate) rejected: Vec<RejectedWorld>,
    /// Worlds with runs that are missing because of an interruption.
    pub(crate) interrupted: usize,
}

/// Plays worlds with these policies. The best fixed replica count plays first, and rejects worlds.
pub(crate) fn play(
    worlds: Vec<WorldScenario>,
    peers: &[Peer],
    changes: &[AblationChange],
) -> anyhow::Result<WorldOutcomes> {
    let ExecutedRuns { runs, left_out, .. } = each(&worlds, &as_they_are(&[Peer::StaticBest]))?;
    let mut played = Vec::new();
    let mut rejected = Vec::new();
    let mut interrupted = 0;
    for (at, world) in worlds.into_iter().enumerate() {
        if let Some(run) = left_out.iter().find(|run| run.index == at) {
            rejected.push(RejectedWorld { world, why: run.why.clone() });
        } else if let Some(run) = runs.iter().find(|run| run.index == at && run.complete) {
            played.push(WorldRuns { world, runs: vec![run.clone()], changed: Vec::new() });
        } else {
            interrupted += 1;
        }
    }

    let others: Vec<Peer> = peers.iter().copied().filter(|it| *it != Peer::StaticBest).collect();
    let left: Vec<WorldScenario> = played.iter().map(|it| it.world.clone()).collect();
    let mut tries = as_they_are(&others);
    tries.extend(changes.iter().map(|it| (Peer::Scenario, it.over(&Map::new()))));
    let ExecutedRuns { runs, .. } = each(&left, &tries)?;
    for run in runs.into_iter().filter(|run| run.complete) {
        let WorldRuns { runs, changed, .. } = &mut played[run.index / tries.len()];
        if run.index % tries.len() < others.len() { runs.push(run) } else { changed.push(run) }
    }

    let before = played.len();
    played.retain(|it| it.is_whole(&others) && it.changed.len() == changes.len());
    interrupted += before - played.len();
    Ok(WorldOutcomes { played, rejected, interrupted })
}

/// A policy, with settings on top of those of a world.
pub(crate) type PolicyTrial = (Peer, Map<String, Value>);

/// Policies without their own settings.
pub(crate) fn as_they_are(peers: &[Peer]) -> Vec<PolicyTrial> {
    peers.iter().map(|&peer| (peer, Map::new())).collect()
}

/// The runs of all tries in all worlds. The index of a run is the world's index times the number of
/// tries, plus the try's index.
fn each(worlds: &[WorldScenario], tries: &[PolicyTrial]) -> anyhow::Result<ExecutedRuns> {
    let mut ready = Vec::new();
    for (at, world) in worlds.iter().enumerate() {
        let mut runs = prepare(world, tries)?;
        for run in &mut runs {
            run.plan.index += at * tries.len();
        }
        ready.append(&mut runs);
    }

    execute::play(&ready, None)
}

/// The runs of a world that can begin, which are those of policies that can play it.
pub(crate) fn prepare(
    world: &WorldScenario,
    tries: &[PolicyTrial],
) -> anyhow::Result<Vec<PreparedRun>> {
    let study = study(world);
    let numbered = tries.iter().cloned().enumerate();
    let plans =
        numbered.map(|(index, (peer, settings))| Plan { index, settings, peer, seed: 0 }).collect();
    execute::prepare(&study, plans, Shard::WHOLE, None)
}

/// A world as if it had been read from a file.
pub(crate) fn study(world: &WorldScenario) -> Study {
    let text = text(world);
    let value = written::value(&world.file);
    Study { path: format!("world {}", world.lot).into(), value, lines: Lines::of(&text) }
}

/// A world as YAML.
pub(crate) fn text(world: &WorldScenario) -> String {
    yaml::write(&written::value(&world.file)).expect("writing to memory does not fail")
}

// === impl WorldRuns ===

impl WorldRuns {
    /// The run of a policy.
    pub(crate) fn of(&self, policy: &str) -> Option<&RunResult> {
        self.runs.iter().find(|run| run.policy == policy)
    }

    fn is_whole(&self, peers: &[Peer]) -> bool {
        peers.iter().all(|peer| self.of(&peer.to_string()).is_some())
    }
}
