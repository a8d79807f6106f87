//! Worlds, played: each by all policies, without those that no fixed number of replicas serves.

use serde_json::{Map, Value};

use crate::simulate::peers::Peer;
use crate::study::Study;
use crate::study::ablation::Change;
use crate::study::execute::{self, Executed, Ready};
use crate::study::plan::{Plan, Shard};
use crate::study::results::RunResult;
use crate::study::worlds::draw::World;
use crate::study::worlds::written;
use plimsoll_daemon::config::yaml;
use plimsoll_daemon::config::yaml::lines::Lines;

/// A world that was played.
pub(crate) struct Played {
    pub(crate) world: World,
    /// One of each policy that can play it.
    pub(crate) runs: Vec<RunResult>,
    /// One of Plimsoll's own policy with each of the changes.
    pub(crate) changed: Vec<RunResult>,
}

/// A world that was not.
pub(crate) struct Rejected {
    pub(crate) world: World,
    pub(crate) why: String,
}

/// What became of worlds.
pub(crate) struct Outcome {
    pub(crate) played: Vec<Played>,
    pub(crate) rejected: Vec<Rejected>,
    /// Worlds of which not everything was played, because of an interruption.
    pub(crate) interrupted: usize,
}

/// Plays worlds with these policies. The best fixed number comes first, and rejects worlds.
pub(crate) fn play(
    worlds: Vec<World>,
    peers: &[Peer],
    changes: &[Change],
) -> anyhow::Result<Outcome> {
    let Executed { runs, left_out, .. } = each(&worlds, &as_they_are(&[Peer::StaticBest]))?;
    let mut played = Vec::new();
    let mut rejected = Vec::new();
    let mut interrupted = 0;
    for (at, world) in worlds.into_iter().enumerate() {
        if let Some(run) = left_out.iter().find(|run| run.index == at) {
            rejected.push(Rejected { world, why: run.why.clone() });
        } else if let Some(run) = runs.iter().find(|run| run.index == at && run.complete) {
            played.push(Played { world, runs: vec![run.clone()], changed: Vec::new() });
        } else {
            interrupted += 1;
        }
    }

    let others: Vec<Peer> = peers.iter().copied().filter(|it| *it != Peer::StaticBest).collect();
    let left: Vec<World> = played.iter().map(|it| it.world.clone()).collect();
    let mut tries = as_they_are(&others);
    tries.extend(changes.iter().map(|it| (Peer::Scenario, it.over(&Map::new()))));
    let Executed { runs, .. } = each(&left, &tries)?;
    for run in runs.into_iter().filter(|run| run.complete) {
        let Played { runs, changed, .. } = &mut played[run.index / tries.len()];
        if run.index % tries.len() < others.len() { runs.push(run) } else { changed.push(run) }
    }
    let before = played.len();
    played.retain(|it| it.is_whole(&others) && it.changed.len() == changes.len());
    interrupted += before - played.len();
    Ok(Outcome { played, rejected, interrupted })
}

/// A policy with settings that it gets beside those of a world.
pub(crate) type Try = (Peer, Map<String, Value>);

/// Policies without settings of their own.
pub(crate) fn as_they_are(peers: &[Peer]) -> Vec<Try> {
    peers.iter().map(|&peer| (peer, Map::new())).collect()
}

/// The runs of all tries in all worlds. The index of a run is that of the world times the number of
/// tries, and the try's.
fn each(worlds: &[World], tries: &[Try]) -> anyhow::Result<Executed> {
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

/// The runs of a world that can begin: those of policies that can play it.
pub(crate) fn prepare(world: &World, tries: &[Try]) -> anyhow::Result<Vec<Ready>> {
    let study = study(world);
    let tries = tries.iter().cloned().enumerate();
    let plans =
        tries.map(|(index, (peer, settings))| Plan { index, settings, peer, seed: 0 }).collect();
    execute::prepare(&study, plans, Shard::WHOLE, None)
}

/// A world as if it had been read from a file.
pub(crate) fn study(world: &World) -> Study {
    let text = text(world);
    let value = written::value(&world.file);
    Study { path: format!("world {}", world.lot).into(), value, lines: Lines::of(&text) }
}

/// A world as YAML.
pub(crate) fn text(world: &World) -> String {
    yaml::write(&written::value(&world.file)).expect("writing to memory does not fail")
}

// === impl Played ===

impl Played {
    /// What a policy came to.
    pub(crate) fn of(&self, policy: &str) -> Option<&RunResult> {
        self.runs.iter().find(|run| run.policy == policy)
    }

    fn is_whole(&self, peers: &[Peer]) -> bool {
        peers.iter().all(|peer| self.of(&peer.to_string()).is_some())
    }
}
