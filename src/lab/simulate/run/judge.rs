//! Autoscalers that write the scale directly: their observations and decisions.

use crate::simulate::peers::law::Rule;
use crate::simulate::peers::sight::{ReplicaSight, Sight};
use crate::simulate::run::pods::PodState;
use crate::simulate::run::{Happening, Simulation};
use crate::simulate::scenario::Actuator;

impl Simulation<'_> {
    /// The autoscaler of a variant makes a decision.
    pub(crate) fn judge(&mut self, variant: usize) {
        let described = &self.scenario.variants[variant];
        let Actuator::Law(rule) = &described.actuator else { return };
        self.plan(self.now + rule.every(), Happening::Judge(variant));
        let blind = self.scenario.control.outage.is_some_and(|outage| outage.covers(self.now));
        // A schedule needs no observations.
        if blind && !matches!(rule, Rule::Schedule(_)) {
            return;
        }

        let replicas = self.sights(variant);
        let sight = Sight {
            now: self.now,
            scale: self.scale_of(variant),
            replicas: &replicas,
            sent: self.crews[variant].sent,
            service: &self.services[described.model],
        };

        let bounds = described.spec.bounds;
        let law = self.controller.laws.get_mut(variant).and_then(Option::as_mut);
        if let Some(wanted) = law.and_then(|law| law.decide(&sight, bounds)) {
            self.scale(variant, wanted);
        }
    }

    /// The observations of the serving replicas.
    fn sights(&mut self, variant: usize) -> Vec<ReplicaSight> {
        let pods = self.crews[variant].pods.clone();
        let ready: Vec<usize> = pods
            .into_iter()
            .filter(|&pod| self.pods[pod].state == PodState::Ready && !self.is_silent(pod))
            .collect();

        let mut sights = Vec::with_capacity(ready.len());
        for pod in ready {
            self.advance(pod);
            let Some(replica) = &self.pods[pod].replica else { continue };
            let gauges = replica.gauges();
            let counters = replica.counters();
            sights.push(ReplicaSight {
                running: f64::from(gauges.running),
                waiting: f64::from(gauges.waiting),
                kv_usage: gauges.kv_usage,
                kv_tokens: gauges.kv_usage * replica.kv_tokens() as f64,
                queued_tokens: replica.queued_tokens() as f64,
                prefill_tokens: counters.prefill_tokens,
                steps: counters.steps,
            });
        }

        sights
    }
}
