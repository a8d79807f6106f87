//! The inputs of the analyzer of latency at a request rate, and the learned state of its tuners.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::analyze::engine_args::EngineArguments;
use crate::analyze::experience::{Experience, continue_from};
use crate::analyze::queueing::{self, MeanLengths, MeanRequest, QueueingRefusal, SizingFailure};
use crate::analyze::tuner::{Latencies, OperatingPoint, SavedTuner, Tuner};
use crate::decide::sized::UnmeetableTarget;
use crate::fleet::{ModelKey, VariantKey};
use crate::observe::ReplicaObservation;
use crate::pipeline::sizing::input::VariantInput;
use crate::pipeline::sizing::learner::{AnalyzerFindings, AnalyzerInput, Learner, Roster, Savable};
use crate::pipeline::tick::Tick;
use crate::units::Seconds;

pub(crate) use crate::pipeline::sizing::analyzers::queueing::{
    SavedTrainedTuner as SavedState, Tuners as State,
};

/// The tuner of each variant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tuners(BTreeMap<VariantKey, TrainedTuner>);

/// A tuner and the time of its last lesson.
#[derive(Clone, Debug, Default)]
struct TrainedTuner {
    tuner: Tuner,
    at: Option<Timestamp>,
}

/// The learned cost of an iteration of a variant's engines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedTrainedTuner {
    /// The learned state.
    pub tuner: SavedTuner,
    /// The time of the last lesson.
    #[serde(default, with = "crate::units::instants")]
    pub at: Option<Timestamp>,
}

impl Learner for Tuners {
    type Policy = queueing::QueueingPolicy;
    type Saved = SavedTrainedTuner;

    fn judge(&mut self, scene: &mut AnalyzerInput<'_>, policy: &Self::Policy) -> AnalyzerFindings {
        let variants: Vec<queueing::QueueingVariantLoad> = scene
            .members
            .iter()
            .map(|member| {
                let taught = self.0.entry(member.spec.key.clone()).or_default();
                let batch = scene.workloads.arguments(&member.spec.key).and_then(|it| batch(it));
                taught.learn(scene.tick, member, batch.unwrap_or(queueing::BATCH_DEFAULT));
                let estimate = taught.tuner.estimate();

                queueing::QueueingVariantLoad {
                    key: member.spec.key.clone(),
                    role: member.spec.role,
                    cost: member.spec.cost,
                    replicas: member.staying().beyond(member.coming()),
                    pending: member.coming().min(member.staying()),
                    learned: estimate.map(|it| (it.coefficients, it.confidence)),
                    loads: member.measured().filter_map(|it| load(it, batch)).collect(),
                }
            })
            .collect();
        let found = queueing::analyze(&variants, policy);

        let floors = found.variants.iter().filter_map(|it| Some((it.key.clone(), floor(it)?)));
        AnalyzerFindings { floors: floors.collect(), ..AnalyzerFindings::of(found.report) }
    }

    fn forget(&mut self, _: Timestamp, roster: &Roster<'_>) {
        self.0.retain(|variant, _| roster.variants.contains(variant));
    }

    fn save(&self, _: &ModelKey, variant: &VariantKey) -> Option<SavedTrainedTuner> {
        let TrainedTuner { tuner, at } = self.0.get(variant)?;
        Some(SavedTrainedTuner { tuner: tuner.save(), at: *at })
    }

    fn recall(&mut self, _: &ModelKey, variant: &VariantKey, saved: &SavedTrainedTuner) {
        if let Some(tuner) = Tuner::restore(&saved.tuner) {
            continue_from(&mut self.0, variant, TrainedTuner { tuner, at: saved.at });
        }
    }
}

impl Savable for SavedTrainedTuner {
    fn shorten(&mut self) {
        self.tuner.points.clear();
    }
}

/// The reason why no replica count meets a target; `None` if one does.
fn floor(variant: &queueing::VariantSizing) -> Option<UnmeetableTarget> {
    match variant.sizing {
        queueing::Sizing::Unsized(SizingFailure::Refused(
            floor @ QueueingRefusal::IdleFloor { .. },
        )) => Some(UnmeetableTarget::Queueing(floor)),
        queueing::Sizing::Sized { .. } | queueing::Sizing::Unsized(_) => None,
    }
}

impl Experience for TrainedTuner {
    fn knows_less_than(&self, other: &Self) -> bool {
        self.tuner.knows_less_than(&other.tuner)
    }
}

impl TrainedTuner {
    /// Learns from the replicas' observations, once per half window. Observations a second apart
    /// are nearly the same, and would count as independent.
    fn learn(&mut self, tick: &Tick<'_>, member: &VariantInput<'_>, batch: NonZeroU32) {
        let now = tick.now;
        let since = self.at.and_then(|at| Seconds::from_span(now.duration_since(at)));
        let half = tick.policy.window.seconds() / 2.0;
        if since.is_some_and(|since| since.seconds() < half) {
            return;
        }

        let mut learned = false;
        for replica in member.measured() {
            let Some(point) = operating_point(replica, batch) else { continue };
            let started = replica.work.and_then(|work| work.started);
            let served = started.and_then(|at| Seconds::from_span(now.duration_since(at)));
            let _lesson = self.tuner.learn(served, &point);
            learned = true;
        }

        if learned {
            self.at = Some(now);
        }
    }
}

/// The requests in a batch that the engine's arguments set.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is a whole number, and the cast saturates"
)]
fn batch(arguments: &EngineArguments) -> Option<NonZeroU32> {
    NonZeroU32::new(arguments.sequences?.requests() as u32)
}

fn operating_point(replica: &ReplicaObservation, batch: NonZeroU32) -> Option<OperatingPoint> {
    let latencies = Latencies { ttft: replica.ttft_mean?, itl: replica.itl_mean? };
    OperatingPoint::new(replica.arrivals?, shape(replica)?, batch, latencies)
}

/// The shape of the queueing model. Tokens in the prefix cache are not computed again, but are
/// resident all the same. The model has one length for both, and the tuner learns the resulting
/// cost.
fn shape(replica: &ReplicaObservation) -> Option<MeanRequest> {
    let work = replica.work?;
    MeanRequest::new(MeanLengths { input: work.prompt_length?, output: work.generation_length? })
}

fn load(
    replica: &ReplicaObservation,
    batch: Option<NonZeroU32>,
) -> Option<queueing::QueueingReplicaLoad> {
    Some(queueing::QueueingReplicaLoad {
        replica: replica.replica.clone(),
        arrival: replica.arrivals?,
        shape: shape(replica),
        ttft: replica.ttft_mean,
        itl: replica.itl_mean,
        batch,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::VariantSpec;
    use crate::observe::engine::Engine;
    use crate::units::Requests;

    #[test]
    fn the_batch_is_that_of_the_arguments() {
        let unset = EngineArguments::default_of(Engine::Vllm);
        assert_eq!(batch(&unset), None);

        for (most, expected) in [(64.0, NonZeroU32::new(64)), (1e12, Some(NonZeroU32::MAX))] {
            let set = EngineArguments { sequences: Requests::new(most), ..unset.clone() };
            assert_eq!(batch(&set), expected, "{most}");
        }
    }

    /// A saved tuner with this many accepted observations.
    fn saved(accepted: u32) -> SavedTrainedTuner {
        let tuner = SavedTuner { accepted, ..SavedTuner::default() };
        SavedTrainedTuner { tuner, at: Timestamp::from_second(90).ok() }
    }

    #[test]
    fn a_tuner_of_a_few_ticks_continues_from_a_longer_one_that_is_read_late() {
        let spec = VariantSpec::example("a");
        let model = spec.model_key();
        let mut tuners = Tuners::default();
        tuners.0.insert(spec.key.clone(), TrainedTuner::default());

        for (read, expected) in [(5, 5), (4, 5), (6, 6)] {
            tuners.recall(&model, &spec.key, &saved(read));
            assert_eq!(tuners.save(&model, &spec.key), Some(saved(expected)));
        }
    }
}
