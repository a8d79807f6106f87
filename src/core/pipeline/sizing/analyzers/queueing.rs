//! What is shown to the analyzer of latency at a rate of requests, and what its tuners learn.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::analyze::queueing::{self, Lengths, Refusal, Shape, Unsized};
use crate::analyze::tuner::{Latencies, OperatingPoint, SavedTuner, Tuner};
use crate::decide::sized::Unmeetable;
use crate::fleet::{ModelKey, VariantKey};
use crate::observe::ReplicaObservation;
use crate::pipeline::sizing::analyzers::{Judgment, Learner, Roster, Savable, Scene};
use crate::pipeline::sizing::{Moment, Sizable};
use crate::units::Seconds;

pub(crate) use crate::pipeline::sizing::analyzers::queueing::{
    SavedTaught as SavedState, Tuners as State,
};

/// The tuner of each variant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tuners(BTreeMap<VariantKey, Taught>);

/// A tuner, and when it last learned.
#[derive(Clone, Debug, Default)]
struct Taught {
    tuner: Tuner,
    at: Option<Timestamp>,
}

/// What an iteration of a variant's engines costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedTaught {
    /// What was learned.
    pub tuner: SavedTuner,
    /// When something was learned last.
    #[serde(default, with = "crate::units::instants")]
    pub at: Option<Timestamp>,
}

impl Learner for Tuners {
    type Policy = queueing::Policy;
    type Saved = SavedTaught;

    fn judge(&mut self, scene: &mut Scene<'_>, policy: &Self::Policy) -> Judgment {
        let variants: Vec<queueing::VariantLoad> = scene
            .members
            .iter()
            .map(|member| {
                let taught = self.0.entry(member.spec.key.clone()).or_default();
                taught.learn(scene.moment, member);
                let estimate = taught.tuner.estimate();

                queueing::VariantLoad {
                    key: member.spec.key.clone(),
                    role: member.spec.role,
                    cost: member.spec.cost,
                    replicas: member.staying().beyond(member.coming()),
                    pending: member.coming().min(member.staying()),
                    learned: estimate.map(|it| (it.coefficients, it.confidence)),
                    loads: member.measured().filter_map(load).collect(),
                }
            })
            .collect();
        let found = queueing::analyze(&variants, policy);

        let floors = found.variants.iter().filter_map(|it| Some((it.key.clone(), floor(it)?)));
        Judgment { floors: floors.collect(), ..Judgment::of(found.report) }
    }

    fn forget(&mut self, _: Timestamp, roster: &Roster<'_>) {
        self.0.retain(|variant, _| roster.variants.contains(variant));
    }

    fn save(&self, _: &ModelKey, variant: &VariantKey) -> Option<SavedTaught> {
        let Taught { tuner, at } = self.0.get(variant)?;
        Some(SavedTaught { tuner: tuner.save(), at: *at })
    }

    fn recall(&mut self, _: &ModelKey, variant: &VariantKey, saved: &SavedTaught) {
        if let Some(tuner) = Tuner::restore(&saved.tuner) {
            let taught = Taught { tuner, at: saved.at };
            self.0.entry(variant.clone()).or_insert(taught);
        }
    }
}

impl Savable for SavedTaught {
    fn shorten(&mut self) {
        self.tuner.points.clear();
    }
}

/// Why no number of replicas meets a target, where none does.
fn floor(variant: &queueing::VariantSizing) -> Option<Unmeetable> {
    match variant.sizing {
        queueing::Sizing::Unsized(Unsized::Refused(floor @ Refusal::IdleFloor { .. })) => {
            Some(Unmeetable::Queueing(floor))
        }
        queueing::Sizing::Sized { .. } | queueing::Sizing::Unsized(_) => None,
    }
}

impl Taught {
    /// Learns from what the replicas did, once in half a window: what is seen a second later is
    /// nearly the same, and would count as if it were not.
    fn learn(&mut self, moment: Moment<'_>, member: &Sizable<'_>) {
        let Moment { now, window, .. } = moment;
        let since = self.at.and_then(|at| Seconds::from_span(now.duration_since(at)));
        if since.is_some_and(|since| since.seconds() < window.seconds() / 2.0) {
            return;
        }

        let mut learned = false;
        for replica in member.measured() {
            let Some(point) = operating_point(replica) else { continue };
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

fn operating_point(replica: &ReplicaObservation) -> Option<OperatingPoint> {
    let latencies = Latencies { ttft: replica.ttft_mean?, itl: replica.itl_mean? };
    OperatingPoint::new(replica.arrivals?, shape(replica)?, queueing::BATCH_DEFAULT, latencies)
}

/// The shape of the queueing model. What is in the prefix cache is not computed again, and is
/// resident all the same; the model has one length for both, and the tuner learns what it takes.
fn shape(replica: &ReplicaObservation) -> Option<Shape> {
    let work = replica.work?;
    Shape::new(Lengths { input: work.prompt_length?, output: work.generation_length? })
}

fn load(replica: &ReplicaObservation) -> Option<queueing::ReplicaLoad> {
    Some(queueing::ReplicaLoad {
        replica: replica.replica.clone(),
        arrival: replica.arrivals?,
        shape: shape(replica),
        ttft: replica.ttft_mean,
        itl: replica.itl_mean,
        batch: None,
    })
}
