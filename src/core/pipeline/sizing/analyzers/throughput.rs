//! The inputs of the analyzer of generated tokens per second.

use jiff::Timestamp;

use crate::analyze::throughput::{self, Curve, Curves, FrontDemand, ReplicaPace, VariantPace};
use crate::fleet::{ModelKey, VariantKey};
use crate::observe::ReplicaObservation;
use crate::pipeline::sizing::analyzers::loads::request_shape;
use crate::pipeline::sizing::learner::{AnalyzerFindings, AnalyzerInput, Learner, Roster, Savable};

pub(crate) use crate::analyze::throughput::{Curve as SavedState, Curves as State};

impl Learner for Curves {
    type Policy = throughput::ThroughputPolicy;
    type Saved = Curve;

    fn judge(&mut self, scene: &mut AnalyzerInput<'_>, policy: &Self::Policy) -> AnalyzerFindings {
        let paces: Vec<Vec<ReplicaPace>> =
            scene.members.iter().map(|member| member.measured().map(pace).collect()).collect();
        let variants: Vec<VariantPace<'_>> = scene
            .members
            .iter()
            .zip(&paces)
            .map(|(member, replicas)| VariantPace {
                spec: member.spec,
                current: member.counted(),
                pending: member.coming(),
                leaving: member.leaving,
                replicas,
            })
            .collect();

        let now = scene.tick.now;
        let arrivals = FrontDemand::default();
        AnalyzerFindings::of(throughput::analyze(now, policy, &variants, arrivals, self).report)
    }

    fn forget(&mut self, now: Timestamp, _: &Roster<'_>) {
        self.forget(now);
    }

    fn save(&self, _: &ModelKey, variant: &VariantKey) -> Option<Curve> {
        self.get(variant).cloned()
    }

    fn recall(&mut self, _: &ModelKey, variant: &VariantKey, saved: &Curve) {
        self.recall(variant, saved);
    }
}

impl Savable for Curve {
    fn shorten(&mut self) {
        self.shorten();
    }
}

fn pace(replica: &ReplicaObservation) -> ReplicaPace {
    ReplicaPace {
        kv_usage: replica.kv_usage.map(|kv| kv.mean),
        kv_capacity: replica.work.and_then(|work| work.kv_capacity),
        itl: replica.itl_mean,
        requests: request_shape(replica),
        arrivals: replica.arrivals,
        completions: replica.completions,
        generation: replica.generation_rate,
    }
}
