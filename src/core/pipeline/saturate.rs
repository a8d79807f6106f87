//! The replicas that saturation requires, and its reports.

use std::collections::BTreeMap;

use jiff::Timestamp;
use smallvec::SmallVec;

use crate::analyze::saturation::{
    self, SaturationAnalysis, SaturationOutcome, SaturationReplicaLoad, SaturationTarget,
    SaturationVariant, Thresholds, TransitionPatience, TransitionRule,
};
use crate::decide::{ModelReport, VariantReport};
use crate::fleet::{ModelKey, Role, VariantKey};
use crate::pipeline::Pipeline;
use crate::pipeline::group::{Member, VariantGroup};
use crate::pipeline::startup::patience_unmeasured;
use crate::units::{Fraction, Replicas, Requests};

/// The findings of the analysis, in the order in which they were made.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    models: Vec<((ModelKey, Role), ModelReport)>,
    variants: Vec<(VariantKey, VariantReport)>,
}

impl Reports {
    /// The findings on each model and role, and on each variant.
    pub(crate) fn by_key(
        self,
    ) -> (BTreeMap<(ModelKey, Role), ModelReport>, BTreeMap<VariantKey, VariantReport>) {
        (self.models.into_iter().collect(), self.variants.into_iter().collect())
    }
}

// === impl Pipeline ===

impl Pipeline {
    /// Analyzes the replicas of a group and returns the replicas that they require.
    pub(crate) fn saturate(
        &self,
        now: Timestamp,
        group: &VariantGroup<'_>,
        reports: &mut Reports,
    ) -> Vec<SaturationTarget> {
        let thresholds = self.thresholds(&group.model);
        let mut loads = Vec::new();
        let mut ends = SmallVec::<[usize; 8]>::new();
        for Member { observation, .. } in &group.members {
            loads.extend(observation.replicas.iter().filter_map(|replica| {
                let (kv, queue) = replica.load()?;
                Some(SaturationReplicaLoad { replica: replica.replica.clone(), kv, queue })
            }));
            ends.push(loads.len());
        }

        let analysis = saturation::analyze(&loads, thresholds);
        let states: Vec<SaturationVariant> =
            group.members.iter().filter_map(|member| self.state(now, member)).collect();
        let targets = saturation::targets(&analysis, &states, self.policy.transition);
        let mut start = 0;
        for (member, end) in group.members.iter().zip(ends) {
            if let Some(saturation) = saturation_of(&loads[start..end], thresholds) {
                let key = &member.spec.key;
                let count = analysis.variants.get(key).map_or(0, |it| it.saturated.len());
                let saturated = Replicas::saturating(u32::try_from(count).unwrap_or(u32::MAX));
                reports.variants.push((key.clone(), VariantReport { saturation, saturated }));
            }

            start = end;
        }

        if analysis.measured > Replicas::ZERO {
            let report = report(&analysis, &targets, thresholds);
            reports.models.push(((group.model.clone(), group.role), report));
        }

        targets
    }

    /// The state of a variant for the analyzer; `None` if its replicas cannot be counted.
    fn state(&self, now: Timestamp, member: &Member<'_>) -> Option<SaturationVariant> {
        let &Member { place, spec, observation, measured } = member;
        let waited = self.unsettled.get(&spec.key).map(|it| now.duration_since(it.since));
        let measured_patience = self.startups.patience(&spec.key);
        let usual = self.policy.transition_patience;
        let patience = measured_patience.unwrap_or_else(|| patience_unmeasured(spec, usual));
        let exhausted = waited.is_some_and(|waited| waited.as_secs_f64() >= patience.seconds());
        let desired = match self.policy.transition {
            // This rule needs no memory; see its documentation.
            TransitionRule::PendingOnly => None,
            TransitionRule::ModelWide | TransitionRule::PerVariant => {
                self.in_force.get_at(place, &spec.key).map(|in_force| in_force.desired)
            }
        };

        let current = observation.wanted?;
        // Pods that never answer count as pending like those that are not ready, but not forever.
        let given_up = if exhausted { observation.unheard } else { Replicas::ZERO };
        // A pod in addition to the wanted ones, as in a rollout, does not fill a deficit.
        let coming = current.beyond(measured);
        Some(SaturationVariant {
            key: spec.key.clone(),
            current,
            pending: observation.pending.beyond(given_up).min(coming),
            desired,
            patience: if exhausted {
                TransitionPatience::Exhausted
            } else {
                TransitionPatience::Left
            },
            cost: spec.cost,
            bounds: observation.bounds,
        })
    }
}

/// The report on a model with at least one measured replica.
fn report(
    analysis: &SaturationAnalysis,
    targets: &[SaturationTarget],
    thresholds: &Thresholds,
) -> ModelReport {
    let missing_kv = thresholds.kv_spare.fraction() - analysis.spare.kv.fraction();
    let missing_queue = thresholds.queue_spare.requests() - analysis.spare.queue.requests();
    let transition = targets.iter().find_map(|target| match &target.outcome {
        SaturationOutcome::Transition(blocked) => Some(blocked.clone()),
        _ => None,
    });

    ModelReport {
        thresholds: *thresholds,
        spare_kv: analysis.spare.kv,
        spare_queue: analysis.spare.queue,
        required_kv: Fraction::new(missing_kv).unwrap_or_default(),
        required_queue: Requests::new(missing_queue).unwrap_or_default(),
        transition,
    }
}

/// The average saturation of replicas: the mean of the larger of both shares.
///
/// `saturation = mean(max(kv / kv threshold, queue / queue threshold))`, a ratio without unit; 1 is
/// the threshold. `None` without replicas. A threshold of zero saturates every replica.
fn saturation_of(loads: &[SaturationReplicaLoad], thresholds: &Thresholds) -> Option<Fraction> {
    let total: f64 = loads
        .iter()
        .map(|load| {
            let kv = share(load.kv.fraction(), thresholds.kv_cache.fraction());
            kv.max(share(load.queue.requests(), thresholds.queue_length.requests()))
        })
        .sum();

    if loads.is_empty() { None } else { Fraction::new(total / loads.len() as f64) }
}

fn share(load: f64, threshold: f64) -> f64 {
    if threshold > 0.0 { load / threshold } else { 1.0 }
}
