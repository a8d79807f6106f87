//! The inputs of the analyzer of forecast demand.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::analyze::engine_args::EngineArguments;
use crate::analyze::foresight::admissible::admissible;
use crate::analyze::foresight::saved::SavedForesight;
use crate::analyze::foresight::{self, EngineLimits, Foresight, ReplicaStrides, VariantStrides};
use crate::decide::sized::UnmeetableTarget;
use crate::fleet::{ModelKey, VariantKey};
use crate::observe::ReplicaObservation;
use crate::pipeline::sizing::learner::{
    AnalyzerFindings, AnalyzerInput, ForesightFindings, Learner, Roster, Savable,
};
use crate::units::Seconds;

pub(crate) use crate::analyze::foresight::Foresight as State;
pub(crate) use crate::analyze::foresight::saved::SavedForesight as SavedState;

impl Learner for Foresight {
    type Policy = foresight::ForesightPolicy;
    type Saved = SavedForesight;

    fn judge(&mut self, scene: &mut AnalyzerInput<'_>, policy: &Self::Policy) -> AnalyzerFindings {
        let variants: Vec<VariantStrides<'_>> = scene
            .members
            .iter()
            .map(|member| {
                let arguments = scene.workloads.arguments(&member.spec.key);

                VariantStrides {
                    spec: member.spec,
                    gpus: member.gpus,
                    current: member.counted(),
                    pending: member.coming(),
                    leaving: member.leaving,
                    silent: member.silent(),
                    min: member.bounds.min(),
                    room: member.room(),
                    startup: member.startup,
                    slowest_start: member.slowest_start,
                    losses: member.losses,
                    told: told(arguments.map(Arc::as_ref)),
                    arguments,
                    ttft: member.observation.ttft.as_ref(),
                    replicas: member.measured().map(strides).collect(),
                    unready: member.unready().collect(),
                }
            })
            .collect();

        self.import(scene.cards);
        let now = scene.tick.now;
        let front = scene.queues.front(scene.tick, scene.model);
        let through = through(scene);
        let found = foresight::analyze(now, through, front, policy, scene.model, &variants, self);
        let admissible = admissible(policy, front, &variants, &found.estimates, self);

        let floors =
            found.floors.into_iter().map(|(key, it)| (key, UnmeetableTarget::Foresight(it)));
        AnalyzerFindings {
            report: found.report,
            floors: floors.collect(),
            outlook: Some(ForesightFindings {
                foreseen: found.foreseen,
                cards: found.cards,
                estimates: found.estimates,
                admissible,
                slowest: found.slowest,
                bridges: found.bridges,
                bound: found.bound,
                starving: found.starving,
            }),
        }
    }

    fn forget(&mut self, now: Timestamp, roster: &Roster<'_>) {
        self.retain(now, &roster.models, &roster.variants);
    }

    fn save(&self, model: &ModelKey, variant: &VariantKey) -> Option<SavedForesight> {
        self.save(model, variant)
    }

    fn recall(&mut self, model: &ModelKey, variant: &VariantKey, saved: &SavedForesight) {
        self.recall(model, variant, saved);
    }
}

impl Savable for SavedForesight {
    fn is_sound(&self) -> bool {
        self.is_sound()
    }

    fn shorten(&mut self) {
        self.shorten();
    }
}

/// The instant up to which every replica has reported.
fn through(scene: &AnalyzerInput<'_>) -> Timestamp {
    let now = scene.tick.now;
    let ages = scene.members.iter().filter_map(|member| member.observation.oldest_measured());
    let oldest = ages.fold(Seconds::ZERO, Seconds::max);

    SignedDuration::try_from_secs_f64(oldest.seconds())
        .ok()
        .and_then(|age| now.checked_sub(age).ok())
        .unwrap_or(now)
}

fn strides(replica: &ReplicaObservation) -> ReplicaStrides<'_> {
    ReplicaStrides {
        replica: &replica.replica,
        strides: &replica.strides,
        waiting: replica.waiting.map(|waiting| waiting.last),
        running: replica.running.map(|running| running.last),
    }
}

/// The engine settings that bound the capacity of a replica.
fn told(arguments: Option<&EngineArguments>) -> EngineLimits {
    EngineLimits {
        seats: arguments.and_then(|it| it.sequences),
        budget: arguments.and_then(|it| it.step_tokens),
    }
}
