//! The replicas that saturation requires, and its reports.
//!
//! They decide if no analyzer is configured or has a result, such as while foresight has
//! learned nothing (`pipeline/sizing.rs` has all cases).

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::analyze::saturation::{
    self, SaturationAnalysis, SaturationOutcome, SaturationReplicaLoad, SaturationTarget,
    SaturationVariant, Thresholds, TransitionPatience, TransitionRule,
};
use crate::decide::{ModelReport, Reason, VariantReport};
use crate::fleet::{ModelKey, ReplicaKey, Role, VariantKey};
use crate::pipeline::group::{Member, VariantGroup};
use crate::pipeline::overrides;
use crate::pipeline::proposal::{Proposal, ProposalBasis, Proposals};
use crate::pipeline::supply::VariantSupply;
use crate::pipeline::tick::Tick;
use crate::units::{Fraction, Replicas, Requests};

/// The findings of saturation in one tick.
#[derive(Debug)]
pub(crate) struct SaturationFindings {
    /// The replicas that each variant requires.
    pub(crate) proposals: Proposals,
    /// The findings on each model and role with fresh data.
    pub(crate) models: BTreeMap<(ModelKey, Role), ModelReport>,
    /// The findings on each variant with fresh data.
    pub(crate) variants: BTreeMap<VariantKey, VariantReport>,
}

/// Analyzes the replicas of every group.
pub(crate) fn run(tick: &Tick<'_>, supply: &[VariantSupply]) -> SaturationFindings {
    let mut proposals = vec![None; tick.members.len()];
    let mut models = Vec::with_capacity(tick.groups.len());
    let mut variants = Vec::with_capacity(tick.members.len());
    let mut loads = GroupLoads::default();
    for group in &tick.groups {
        let thresholds = tick.policy.thresholds(group.model);
        loads.read(group);
        let analysis = saturation::analyze(&loads.replicas, thresholds);
        let states: SmallVec<[SaturationVariant; 2]> =
            group.members.iter().filter_map(|member| state(tick, supply, member)).collect();
        let targets = saturation::targets(&analysis, &states, tick.policy.transition);

        variants.extend(loads.reports(group, &analysis, thresholds));
        if analysis.measured > Replicas::ZERO {
            let report = report(&analysis, &targets, thresholds);
            models.push(((group.model.clone(), group.role), report));
        }

        propose(group, targets, &mut proposals);
    }

    SaturationFindings {
        proposals,
        models: models.into_iter().collect(),
        variants: variants.into_iter().collect(),
    }
}

/// Turns targets into proposals. Both are in the order of the group's members, but variants that
/// cannot be counted have no target.
fn propose(group: &VariantGroup<'_>, targets: Vec<SaturationTarget>, proposals: &mut Proposals) {
    let mut rest = targets.into_iter().peekable();
    for member in &group.members {
        if let Some(target) = rest.next_if(|it| it.variant == member.spec.key) {
            let reason = Reason::from(target.outcome);
            let proposal = Proposal::new(target.before, target.asked, reason, ProposalBasis::Peaks);
            proposals[member.place] = Some(proposal);
        }
    }
}

/// The loads of a group's replicas.
#[derive(Default)]
struct GroupLoads<'a> {
    /// The replicas with a known load, by variant.
    replicas: Vec<SaturationReplicaLoad<&'a ReplicaKey>>,
    /// The end of each variant's replicas.
    ends: SmallVec<[usize; 8]>,
}

// === impl GroupLoads ===

impl<'a> GroupLoads<'a> {
    /// Replaces the loads with those of another group.
    fn read(&mut self, group: &VariantGroup<'a>) {
        self.replicas.clear();
        self.ends.clear();
        for Member { observation, .. } in &group.members {
            self.replicas.extend(observation.replicas.iter().filter_map(|observed| {
                let (kv, queue) = observed.load()?;
                Some(SaturationReplicaLoad { replica: &observed.replica, kv, queue })
            }));
            self.ends.push(self.replicas.len());
        }
    }

    /// The report on each variant with a known load.
    fn reports(
        &self,
        group: &VariantGroup<'_>,
        analysis: &SaturationAnalysis,
        thresholds: &Thresholds,
    ) -> impl Iterator<Item = (VariantKey, VariantReport)> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let ranges = starts.zip(&self.ends);

        group.members.iter().zip(ranges).filter_map(|(member, (start, end))| {
            let key = &member.spec.key;
            let saturation = saturation_of(&self.replicas[start..*end], thresholds)?;
            let count = analysis.variants.get(key).map_or(0, |it| it.saturated.len());
            let saturated = Replicas::capped(count);
            Some((key.clone(), VariantReport { saturation, saturated }))
        })
    }
}

/// The state of a variant for the analyzer; `None` if its replicas cannot be counted.
fn state(
    tick: &Tick<'_>,
    supply: &[VariantSupply],
    member: &Member<'_>,
) -> Option<SaturationVariant> {
    let Member { place, spec, observation, measured, .. } = *member;
    let VariantSupply { is_overdue, surplus, waking, dormant, .. } = supply[place];
    let desired = match tick.policy.transition {
        // This rule needs no memory; see its documentation.
        TransitionRule::PendingOnly => None,
        TransitionRule::ModelWide | TransitionRule::PerVariant => tick.desired(member),
    };

    let requested = observation.wanted?;
    // Pods that never answer count as pending like those that are not ready, but not forever.
    let given_up = if is_overdue { observation.unheard } else { Replicas::ZERO };
    let starting = tick.starting(member, observation.pending.beyond(given_up));
    // A pod in addition to the wanted ones, as in a rollout, does not fill a deficit.
    let coming = requested.beyond(measured);
    Some(SaturationVariant {
        key: spec.key.clone(),
        current: requested.beyond(surplus),
        pending: (starting + waking).min(coming),
        asleep: dormant,
        desired,
        patience: if is_overdue { TransitionPatience::Exhausted } else { TransitionPatience::Left },
        cost: spec.cost,
        bounds: overrides::bounds(tick, member),
    })
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
fn saturation_of<K>(
    loads: &[SaturationReplicaLoad<K>],
    thresholds: &Thresholds,
) -> Option<Fraction> {
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
