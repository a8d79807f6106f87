//! Sizing: from the analyzers' reports on a model to the desired replicas of each variant.
//!
//! Each voting analyzer reports the capacity of a model's replicas and the demand on them, in its
//! own unit. Each report is a constraint for the optimizer, which finds the cheapest replicas that
//! meet all of them. So a single analyzer can make a model scale up, but a scale-down goes only as
//! far as all of them agree. The [ballot] names the binding analyzer.
//!
//! Replicas whose start takes twice the usual time are *stuck* (`pipeline/startup.rs`). They count
//! neither as supply nor as pending, and stay on top of the planned replicas. A pin or a pause
//! bounds its variant in the plan (`pipeline/overrides.rs`), so that the others provide the rest.
//!
//! # While foresight has learned nothing
//!
//! Foresight has learned nothing while no capacity per replica is known, neither measured nor from
//! a card. The first case that applies decides a scale-up:
//!
//! - No replica serves, and more requests queue at a gateway than one replica has places for:
//!   enough replicas for the whole queue (`by_places` in `analyze/foresight/waking.rs`).
//! - Requests wait at replicas whose engines report the time of outputs: enough replicas for all
//!   requests in flight (`analyze/foresight/cold.rs`).
//! - Anything else, also engines without the time of outputs: no analyzer has a result, so the
//!   ballot is [`BallotVerdict::Held`] and there is no proposal. Saturation decides instead, one
//!   replica at a time (`pipeline/saturate.rs`, `analyze/saturation/targets.rs`).
//!
//! The first two need `capacity.foresight.cold_start`. Other analyzers in `capacity.analyzers` vote
//! as usual. A model that scaled to zero gets its first replica from `pipeline/zero.rs`.

pub(crate) mod analyzers;
mod assessment;
mod exchange;
mod input;
mod learner;
mod outlook;
pub(crate) mod policy;
mod queued;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use crate::analyze::ballot::{self, Analyzer, BallotVerdict, Vote, VotingRight};
use crate::analyze::capacity::CapacityReport;
use crate::analyze::foresight::card::Card;
use crate::decide::optimize::{Consent, PlanModel};
use crate::decide::outlook::VariantOutlook;
use crate::decide::sized::UnmeetableTarget;
use crate::decide::{Decision, Reason};
use crate::fleet::{ModelKey, VariantKey};
use crate::pipeline::group::VariantGroup;
use crate::pipeline::limits::TickLimits;
use crate::pipeline::proposal::{ProposalBasis, Proposals};
use crate::pipeline::sizing::analyzers::{Analyzers, SavedAnalyzers};
use crate::pipeline::sizing::assessment::{ModelAssessment, ScaleDownPermission, sizes};
use crate::pipeline::sizing::exchange::Exchange;
use crate::pipeline::sizing::input::VariantInput;
use crate::pipeline::sizing::learner::{AnalyzerInput, ForesightFindings, Roster};
use crate::pipeline::sizing::queued::QueueSignals;
use crate::pipeline::supply::VariantSupply;
use crate::pipeline::tick::Tick;
use crate::pipeline::workloads::Workloads;
use crate::units::Replicas;

pub use crate::pipeline::sizing::policy::{PATIENCE, Sizing};

/// The sizing of all models, with its learned state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sizer {
    analyzers: Analyzers,
    /// The last time when each analyzer knew the capacity of a model's replicas.
    informed: BTreeMap<(ModelKey, Analyzer), Timestamp>,
    floors: LatencyFloors,
    queues: QueueSignals,
    /// The outlooks of the current tick.
    outlooks: BTreeMap<VariantKey, VariantOutlook>,
    /// Replicas that the last plan removes. They stay until their replacements serve load.
    leaving: BTreeMap<VariantKey, Replicas>,
}

/// Variants whose idle replicas already miss a latency target, with each analyzer that found it.
pub(crate) type LatencyFloors = BTreeMap<VariantKey, BTreeMap<Analyzer, UnmeetableTarget>>;

/// The result of sizing in one tick.
#[derive(Debug)]
pub(crate) struct SizingResult {
    /// The proposal for each variant that analyzers have sized.
    pub(crate) proposals: Proposals,
    /// The plans that remove current replicas.
    pub(crate) exchanges: Exchanges,
    /// The outlook of each variant that `foresight` votes on.
    pub(crate) outlooks: BTreeMap<VariantKey, VariantOutlook>,
}

/// The plans of a tick that remove current replicas.
#[derive(Debug, Default)]
pub(crate) struct Exchanges(Vec<Exchange>);

// === impl Sizer ===

impl Sizer {
    /// Sizes each variant if analyzers are configured.
    pub(crate) fn run(
        &mut self,
        tick: &Tick<'_>,
        supply: &[VariantSupply],
        workloads: &Workloads,
        limits: &mut TickLimits<'_>,
    ) -> SizingResult {
        self.queues.note(&tick.inputs.demand);
        self.leaving.retain(|key, _| tick.inputs.fleet.get(key).is_some());
        let mut proposals = vec![None; tick.members.len()];
        let Some(policy) = &tick.policy.sizing else {
            self.floors.clear();
            return SizingResult {
                proposals,
                exchanges: Exchanges::default(),
                outlooks: BTreeMap::new(),
            };
        };

        self.forget(tick, policy);
        let assessments: Vec<ModelAssessment<'_>> = tick
            .models()
            .filter_map(|(model, groups)| {
                self.assess(tick, policy, supply, workloads, model, groups)
            })
            .collect();

        let (assessments, models): (Vec<&ModelAssessment<'_>>, Vec<PlanModel<'_>>) =
            assessments.iter().filter_map(|it| Some((it, it.plan_model()?))).unzip();
        limits.sizes = models.iter().flat_map(sizes).collect();
        let consents = consents(&assessments);
        let plans = limits.share(tick, supply, models, &policy.optimizer, &|key, _| {
            consents.get(key).copied().unwrap_or(Consent::Refused)
        });

        let basis = if policy.is_foreseen() { ProposalBasis::Need } else { ProposalBasis::Peaks };
        let mut exchanges = Vec::new();
        for (assessment, planned) in assessments.iter().zip(&plans) {
            for member in &assessment.members {
                proposals[member.place] = assessment.proposal(member, planned, basis);
            }
            exchanges.extend(Exchange::of(assessment, &planned.alone));
        }

        let outlooks = std::mem::take(&mut self.outlooks);
        SizingResult { proposals, exchanges: Exchanges(exchanges), outlooks }
    }

    /// Records the replicas that are leaving from now on, given the published decisions.
    pub(crate) fn note_exchanges(&mut self, exchanges: &Exchanges, decisions: &[Decision]) {
        self.leaving.clear();
        self.leaving.extend(exchanges.0.iter().flat_map(|it| it.leaving(decisions)));
    }

    /// After an unobserved time, forgets the replicas that an earlier plan removes.
    pub(crate) fn unsettle(&mut self) {
        self.leaving.clear();
    }

    /// Forgets the observations after an instant, to which the clock was set back.
    pub(crate) fn rewind(&mut self, now: Timestamp) {
        self.analyzers.foresight.rewind(now);
    }

    /// The latency targets that no replica count meets.
    pub(crate) const fn floors(&self) -> &LatencyFloors {
        &self.floors
    }

    /// The reason why the group must not scale down while a signal that counts its queue is not
    /// reporting.
    pub(crate) fn unreported(&self, tick: &Tick<'_>, group: &VariantGroup<'_>) -> Option<Reason> {
        self.queues.unreported(tick, group)
    }

    /// Multiplies the past load of a model, as far as foresight knows it.
    pub(crate) fn scale_load(&mut self, model: &ModelKey, factor: f64) {
        self.analyzers.foresight.scale_load(model, factor);
    }

    /// The capacity cards: learned coefficients, for other engines of the same kind.
    pub(crate) fn cards(&self) -> impl Iterator<Item = &Arc<Card>> {
        self.analyzers.foresight.cards()
    }

    /// The last time when each analyzer knew the capacity of a model's replicas.
    pub(crate) fn informed(&self, model: &ModelKey) -> BTreeMap<Analyzer, Timestamp> {
        let informed = Analyzer::ALL.iter().filter_map(|analyzer| {
            let at = self.informed.get(&(model.clone(), *analyzer))?;
            Some((*analyzer, *at))
        });
        informed.collect()
    }

    /// The learned state of the analyzers for one variant.
    pub(crate) fn learned(&self, model: &ModelKey, variant: &VariantKey) -> SavedAnalyzers {
        self.analyzers.save(model, variant)
    }

    /// The signals that have counted requests of a model.
    pub(crate) fn named(&self, model: &ModelKey) -> Vec<String> {
        self.queues.save(model)
    }

    /// Restores the learned state of a variant. Existing state stays unless it is shorter experience.
    pub(crate) fn recall(
        &mut self,
        model: &ModelKey,
        variant: &VariantKey,
        informed: &BTreeMap<Analyzer, Timestamp>,
        learned: &SavedAnalyzers,
    ) {
        for (analyzer, at) in informed {
            let known = self.informed.entry((model.clone(), *analyzer)).or_insert(*at);
            *known = (*known).max(*at);
        }

        self.analyzers.recall(model, variant, learned);
    }

    /// Restores the signals that have counted requests of a model.
    pub(crate) fn recall_named(&mut self, model: &ModelKey, named: &[String]) {
        self.queues.recall(model, named);
    }

    /// Forgets state that is of no further use, and variants that are gone.
    fn forget(&mut self, tick: &Tick<'_>, policy: &Sizing) {
        let roster = Roster {
            models: tick.groups.iter().map(|group| group.model).collect(),
            variants: tick.members.iter().map(|member| &member.spec.key).collect(),
        };

        self.informed.retain(|(model, _), _| roster.models.contains(model));
        self.floors.retain(|variant, _| roster.variants.contains(variant));
        for floors in self.floors.values_mut() {
            floors.retain(|analyzer, _| policy.analyzers.contains(analyzer));
        }
        self.analyzers.forget(tick.now, &roster);
    }

    /// Collects the analyzers' reports on one model; `None` while none has a result.
    fn assess<'a>(
        &mut self,
        tick: &Tick<'a>,
        policy: &Sizing,
        supply: &[VariantSupply],
        workloads: &Workloads,
        model: &ModelKey,
        groups: &[VariantGroup<'a>],
    ) -> Option<ModelAssessment<'a>> {
        // A variant without a scale target has no replicas that could serve load.
        let with_target = groups.iter().flat_map(|it| &it.members).filter(|it| it.has_target());
        let members: Vec<VariantInput<'a>> = with_target
            .clone()
            .filter_map(|member| {
                let leaving = self.leaving.get(&member.spec.key).copied().unwrap_or_default();
                VariantInput::of(tick, member, &supply[member.place], leaving)
            })
            .collect();
        let all_counted = members.len() == with_target.count();

        let mut outlook = ForesightFindings::default();
        let mut reports = Vec::with_capacity(policy.analyzers.len());
        for &analyzer in &policy.analyzers {
            let mut input = AnalyzerInput {
                tick,
                model,
                members: &members,
                workloads,
                queues: &mut self.queues,
                cards: &policy.cards,
            };

            let found = self.analyzers.judge(analyzer, &mut input, policy);

            for member in &members {
                let key = &member.spec.key;
                self.note_floor(key, analyzer, found.floors.get(key).copied());
            }

            if let Some(foreseen) = found.outlook {
                self.note_outlooks(policy, &members, &foreseen);
                outlook = foreseen;
            }
            reports.push((analyzer, found.report));
        }

        if !all_counted {
            // A variant that cannot be counted also serves requests, so the model's total is not
            // known.
            outlook.admissible.values_mut().for_each(|rate| rate.model = None);
        }

        self.note_informed(tick, policy, model, &members, &reports);
        let ballot = ballot::cast(tick.now, policy.patience, &self.votes(model, &reports));
        if ballot.model == BallotVerdict::Held {
            return None;
        }

        // A capacity card from other engines never removes replicas.
        let is_bound = members
            .iter()
            .any(|it| it.counted() > Replicas::ZERO && outlook.bound.contains(&it.spec.key));
        let shrinking = if all_counted && !is_bound {
            ScaleDownPermission::Allowed
        } else {
            ScaleDownPermission::Forbidden
        };
        Some(ModelAssessment { model: model.clone(), members, reports, ballot, outlook, shrinking })
    }

    /// Records the outlooks of a model's variants.
    fn note_outlooks(
        &mut self,
        policy: &Sizing,
        members: &[VariantInput<'_>],
        found: &ForesightFindings,
    ) {
        for member in members {
            let key = &member.spec.key;
            let outlook = member.outlook(&policy.foresight, found.estimates.get(key));
            self.outlooks.insert(key.clone(), outlook);
        }
    }

    /// Records which analyzers know the capacity of the model's replicas now. Remembered state is
    /// not data: at least one replica must be reporting. If no replica serves, a queue is data for
    /// the analyzer that counts queues.
    fn note_informed(
        &mut self,
        tick: &Tick<'_>,
        policy: &Sizing,
        model: &ModelKey,
        members: &[VariantInput<'_>],
        reports: &[(Analyzer, CapacityReport)],
    ) {
        let heard = members.iter().any(|member| member.measured().next().is_some());
        let queues = !heard && is_awaited(tick, policy, model, members);

        for (analyzer, report) in reports {
            let has_data = heard || (queues && *analyzer == Analyzer::Foresight);
            if has_data && report.variants.iter().any(|variant| variant.per_replica.is_some()) {
                self.informed.insert((model.clone(), *analyzer), tick.now);
            }
        }
    }

    /// The votes of the analyzers on one model.
    fn votes<'r>(
        &self,
        model: &ModelKey,
        reports: &'r [(Analyzer, CapacityReport)],
    ) -> Vec<Vote<'r>> {
        reports
            .iter()
            .map(|(analyzer, report)| Vote {
                analyzer: *analyzer,
                franchise: self.franchise(*analyzer, report),
                informed_at: self.informed.get(&(model.clone(), *analyzer)).copied(),
                report: Some(report),
            })
            .collect()
    }

    /// Records that no replica count meets a target, or clears the record.
    fn note_floor(
        &mut self,
        variant: &VariantKey,
        analyzer: Analyzer,
        floor: Option<UnmeetableTarget>,
    ) {
        if let Some(floor) = floor {
            self.floors.entry(variant.clone()).or_default().insert(analyzer, floor);
        } else if let Some(floors) = self.floors.get_mut(variant) {
            floors.remove(&analyzer);
        }
    }

    /// Decides if an analyzer votes. If no replica count meets its latency target, the target is
    /// ignored. The model can then still scale down as far as the other analyzers allow.
    fn franchise(&self, analyzer: Analyzer, report: &CapacityReport) -> VotingRight {
        let knows = report.variants.iter().any(|variant| variant.per_replica.is_some());
        let mut floors = report.variants.iter().filter_map(|it| self.floors.get(&it.key));
        let has_floor = !knows && floors.any(|it| it.contains_key(&analyzer));
        if has_floor { VotingRight::Shown } else { VotingRight::Votes }
    }
}

/// The consent of each variant's role to remove replicas.
fn consents<'a>(assessments: &[&'a ModelAssessment<'_>]) -> BTreeMap<&'a VariantKey, Consent> {
    assessments
        .iter()
        .flat_map(|it| {
            let members = it.members.iter();
            members.map(|member| (&member.spec.key, it.consent(member.spec.role)))
        })
        .collect()
}

/// Returns true if requests queue in front of a model that no replica serves, and foresight counts
/// them.
fn is_awaited(
    tick: &Tick<'_>,
    policy: &Sizing,
    model: &ModelKey,
    members: &[VariantInput<'_>],
) -> bool {
    let counts = policy.foresight.gateway.is_some();
    let none_serves = members.iter().all(|member| member.silent() == Replicas::ZERO);
    counts && none_serves && QueueSignals::has_queue(tick, model)
}
