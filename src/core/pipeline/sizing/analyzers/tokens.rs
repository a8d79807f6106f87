//! The inputs of the analyzer of tokens in the KV cache.

use std::sync::Arc;

use jiff::Timestamp;

use crate::analyze::tokens::knowledge::{Knowledge, SavedKnowledge};
use crate::analyze::tokens::{self, TokenReplicaLoad, TokenVariantLoad};
use crate::fleet::{ModelKey, VariantKey};
use crate::observe::ReplicaObservation;
use crate::pipeline::sizing::analyzers::loads::request_shape;
use crate::pipeline::sizing::learner::{AnalyzerFindings, AnalyzerInput, Learner, Roster, Savable};

pub(crate) use crate::analyze::tokens::knowledge::{
    Knowledge as State, SavedKnowledge as SavedState,
};

impl Learner for Knowledge {
    type Policy = tokens::TokenPolicy;
    type Saved = SavedKnowledge;

    fn judge(&mut self, scene: &mut AnalyzerInput<'_>, policy: &Self::Policy) -> AnalyzerFindings {
        let loads: Vec<Vec<TokenReplicaLoad>> =
            scene.members.iter().map(|member| member.measured().map(load).collect()).collect();
        let variants: Vec<TokenVariantLoad<'_>> = scene
            .members
            .iter()
            .zip(&loads)
            .map(|(member, replicas)| TokenVariantLoad {
                spec: member.spec,
                gpus: None,
                current: member.counted(),
                pending: member.coming(),
                leaving: member.leaving,
                arguments: scene.workloads.arguments(&member.spec.key).map(Arc::as_ref),
                replicas,
            })
            .collect();

        let now = scene.tick.now;
        AnalyzerFindings::of(
            tokens::analyze(now, policy, scene.model, &variants, None, self).report,
        )
    }

    fn forget(&mut self, now: Timestamp, _: &Roster<'_>) {
        self.forget(now);
    }

    fn save(&self, model: &ModelKey, variant: &VariantKey) -> Option<SavedKnowledge> {
        Some(self.save(&model.model, variant)).filter(|saved| *saved != SavedKnowledge::default())
    }

    fn recall(&mut self, model: &ModelKey, variant: &VariantKey, saved: &SavedKnowledge) {
        self.recall(&model.model, variant, saved);
    }
}

impl Savable for SavedKnowledge {}

fn load(replica: &ReplicaObservation) -> TokenReplicaLoad {
    TokenReplicaLoad {
        kv_usage: replica.kv_usage,
        kv_capacity: replica.work.and_then(|work| work.kv_capacity),
        waiting: replica.waiting,
        running: replica.running,
        generation_rate: replica.generation_rate,
        requests: request_shape(replica),
    }
}
