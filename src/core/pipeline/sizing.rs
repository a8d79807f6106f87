//! Sizing: from the analyzers' reports on a model to the desired replicas of each variant.
//!
//! Each voting analyzer reports the capacity of a model's replicas and the demand on them, in its
//! own unit. Each report is a constraint for the optimizer, which finds the cheapest replicas that
//! meet all of them. So a single analyzer can make a model scale up, but a scale-down goes only as
//! far as all of them agree. The [ballot] names the binding analyzer.
//!
//! Replicas whose start takes twice the usual time are [*stuck*](crate::pipeline). They count
//! neither as supply nor as pending, and stay on top of the planned replicas.

pub(crate) mod analyzers;
pub(crate) mod bridged;
mod exchange;
mod queued;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use crate::analyze::analyzers::each_analyzer;
use crate::analyze::ballot::{self, Analyzer, Ballot, BallotVerdict, Vote, VotingRight};
use crate::analyze::capacity::{CapacityReport, Unit};
use crate::analyze::foresight::card::Card;
use crate::analyze::foresight::policy::{ScaleDownWindow, Steps};
use crate::decide::optimize::{self, Candidate, Consent, PlanModel, ReportFreshness, VotingReport};
use crate::decide::sized::{Shortfall, SizedReason, UnmeetableTarget};
use crate::fleet::{Bounds, ModelKey, Role, VariantKey, VariantSpec};
use crate::observe::stride::IntervalDelta;
use crate::observe::{DemandSignal, Inputs, Observation, ReplicaObservation};
use crate::pipeline::Pipeline;
use crate::pipeline::group::{Member, VariantGroup};
use crate::pipeline::limits::{FleetView, PlannedModel, TickLimits, VariantShare, rank};
use crate::pipeline::sizing::analyzers::{AnalyzerInput, Analyzers, ForesightFindings, Roster};
use crate::pipeline::sizing::bridged::BridgeTarget;
use crate::pipeline::sizing::exchange::Exchange;
use crate::pipeline::sizing::queued::QueueSignals;
use crate::pipeline::startup::Stalls;
use crate::pipeline::workloads::Workloads;
use crate::units::{Amount, Gpus, Replicas, Seconds};

/// The default of [`Sizing::patience`].
const PATIENCE: Seconds = Seconds::literal(300);

macro_rules! sizing {
    ($($(#[$doc:meta])* $Name:ident $word:ident,)*) => {
        /// The voting analyzers and their policies.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Sizing {
            /// The analyzers that vote, each listed once.
            pub analyzers: Vec<Analyzer>,
            $($(#[$doc])* pub $word: analyzers::$word::Policy,)*
            /// Capacity cards: coefficients learned elsewhere from engines like these.
            pub cards: Arc<[Arc<Card>]>,
            /// The policy of the search for the cheapest replicas.
            pub optimizer: optimize::OptimizerPolicy,
            /// Age from which the last report of an analyzer is ignored.
            pub patience: Seconds,
        }

        impl Default for Sizing {
            fn default() -> Self {
                Self {
                    analyzers: vec![Analyzer::Foresight],
                    $($word: Default::default(),)*
                    cards: Arc::default(),
                    optimizer: optimize::OptimizerPolicy::default(),
                    patience: PATIENCE,
                }
            }
        }
    };
}
each_analyzer!(sizing);

/// One variant as the analyzers see it.
#[derive(Clone, Debug)]
pub(crate) struct VariantInput<'a> {
    pub(crate) spec: &'a VariantSpec,
    pub(crate) observation: &'a Observation,
    /// The replicas that its scale target requests.
    pub(crate) wanted: Replicas,
    /// The wanted replicas that are not there yet.
    pub(crate) pending: Replicas,
    /// The pending replicas that take too long to start.
    pub(crate) stuck: Replicas,
    /// The stuck replicas for which no node has room.
    pub(crate) unplaced: Replicas,
    /// The replicas, not counting stuck ones, that an earlier plan removes.
    pub(crate) leaving: Replicas,
    /// The measured time from start to serving, if known.
    pub(crate) startup: Option<Seconds>,
    /// The longest start in progress, or measured while `startup` has too few samples.
    pub(crate) slowest_start: Option<Seconds>,
    /// Losses per replica and hour.
    pub(crate) losses: f64,
    /// The bounds of its scaling.
    pub(crate) bounds: Bounds,
}

/// The sizing result of one variant.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SizingProposal {
    pub(crate) before: Replicas,
    pub(crate) after: Replicas,
    pub(crate) why: SizedReason,
    /// The share of the variant, if limits make it differ from `after`.
    pub(crate) shared: Option<VariantShare>,
    /// Bridging replicas that serve until others are ready, in addition to `after`.
    pub(crate) bridged: Option<BridgeTarget>,
}

/// The analyzers' reports and the vote for one model.
#[derive(Debug)]
pub(crate) struct ModelAssessment<'a> {
    model: ModelKey,
    members: Vec<VariantInput<'a>>,
    reports: Vec<(Analyzer, CapacityReport)>,
    ballot: Ballot,
    outlook: ForesightFindings,
    shrinking: ScaleDownPermission,
}

/// Learned state of models and variants.
#[derive(Clone, Debug, Default)]
pub(crate) struct LearnedState {
    pub(crate) analyzers: Analyzers,
    pub(crate) informed: BTreeMap<(ModelKey, Analyzer), Timestamp>,
    /// Variants whose idle replicas already miss a latency target, with each analyzer that found
    /// it.
    pub(crate) floors: BTreeMap<VariantKey, BTreeMap<Analyzer, UnmeetableTarget>>,
    pub(crate) fronts: QueueSignals,
    pub(crate) workloads: Workloads,
}

/// Permission for a model to scale down, independent of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScaleDownPermission {
    /// The model may scale down.
    Allowed,
    /// The model must not scale down. Some of its variants cannot be counted, or their capacity per
    /// replica comes from a card and was not measured.
    Forbidden,
}

/// The instant of sizing, and the window of observations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SizingInputs<'a> {
    pub(crate) now: Timestamp,
    pub(crate) window: Seconds,
    /// The queues in front of models.
    pub(crate) demand: &'a BTreeMap<ModelKey, Vec<DemandSignal>>,
}

// === impl Sizing ===

impl Sizing {
    /// The time during which held desired replicas must not jitter on a scale-down. `None` unless
    /// `foresight` decides alone and its hold replaces the stabilization window.
    pub(crate) fn holds_alone(&self) -> Option<Seconds> {
        let hold =
            self.foresight.hold.filter(|it| it.replaces_window == ScaleDownWindow::Replaced)?;
        self.is_foreseen().then_some(hold.jitter)
    }

    /// Returns true if sized variants scale up without step limits: `foresight` decides alone, and
    /// no scale-up policies are configured.
    pub(crate) fn grows_at_once(&self) -> bool {
        self.is_foreseen() && self.foresight.replaces_steps == Steps::Unlimited
    }

    /// Returns true if `foresight` decides alone.
    pub(crate) fn is_foreseen(&self) -> bool {
        self.analyzers == [Analyzer::Foresight]
    }
}

// === impl Pipeline ===

impl Pipeline {
    /// Sizes each variant if analyzers are configured.
    pub(crate) fn size(
        &mut self,
        now: Timestamp,
        groups: &[VariantGroup<'_>],
        room: &mut TickLimits,
        inputs: &Inputs,
        observations: &BTreeMap<VariantKey, Observation>,
    ) -> (BTreeMap<VariantKey, SizingProposal>, Vec<Exchange>) {
        let Some(policy) = self.policy.sizing.clone() else { return Default::default() };
        let mut judged = Vec::new();
        let mut learned = std::mem::take(&mut self.learned);
        learned.forget(now, groups);
        let moment = SizingInputs { now, window: self.policy.window, demand: &inputs.demand };
        for groups in groups.chunk_by(|a, b| a.model == b.model) {
            let Some(first) = groups.first() else { continue };
            // A variant without a scale target has no replicas that could serve load.
            let members = groups.iter().flat_map(|it| &it.members).filter(|it| it.has_target());
            let sizable: Vec<VariantInput<'_>> =
                members.clone().filter_map(|it| self.sizable(now, it)).collect();
            let shrinking = if sizable.len() == members.count() {
                ScaleDownPermission::Allowed
            } else {
                ScaleDownPermission::Forbidden
            };
            judged.extend(learned.judge(moment, &policy, &first.model, sizable, shrinking));
        }

        self.learned = learned;
        let (judged, models): (Vec<&ModelAssessment<'_>>, Vec<PlanModel<'_>>) =
            judged.iter().filter_map(|judged| Some((judged, judged.model()?))).unzip();
        room.sizes = models.iter().flat_map(sizes).collect();
        let consents: BTreeMap<&VariantKey, Consent> = judged
            .iter()
            .flat_map(|judged| judged.members.iter().map(|it| (&it.spec.key, judged.consent())))
            .collect();
        let view = FleetView { fleet: &inputs.fleet, observations };
        let plans = self.share(models, room, view, &policy.optimizer, &|key, _| {
            consents.get(key).copied().unwrap_or(Consent::Refused)
        });

        let asked = judged.iter().zip(&plans).flat_map(|(judged, planned)| {
            judged.members.iter().filter_map(|it| judged.asked(it, planned))
        });
        let exchanges = judged
            .iter()
            .zip(&plans)
            .filter_map(|(judged, planned)| judged.exchange(&planned.alone));
        (asked.collect(), exchanges.collect())
    }

    /// A variant as the analyzers see it; `None` when its replicas cannot be counted.
    fn sizable<'a>(&self, now: Timestamp, member: &Member<'a>) -> Option<VariantInput<'a>> {
        let Member { spec, observation, .. } = *member;
        let wanted = observation.wanted?;
        let pending = member.coming();
        let Stalls { all: stuck, unplaced } = self.stuck(now, member);
        let startup = self.startups.serves_after(&spec.key);
        let slowest_start = self.slowest_start(now, spec);
        let losses = self.absences.per_hour(&spec.key);
        let bounds = observation.bounds;
        let marked = self.leaving.get(&spec.key).copied().unwrap_or_default();
        let leaving = marked.min(wanted.beyond(stuck));

        Some(VariantInput {
            spec,
            observation,
            wanted,
            pending,
            stuck,
            unplaced,
            leaving,
            startup,
            slowest_start,
            losses,
            bounds,
        })
    }
}

// === impl LearnedState ===

impl LearnedState {
    /// Forgets state that is of no further use, and variants that are gone.
    pub(crate) fn forget(&mut self, now: Timestamp, groups: &[VariantGroup<'_>]) {
        let members = groups.iter().flat_map(|group| &group.members);
        let roster = Roster {
            models: groups.iter().map(|group| &group.model).collect(),
            variants: members.map(|member| &member.spec.key).collect(),
        };

        self.informed.retain(|(model, _), _| roster.models.contains(model));
        self.floors.retain(|variant, _| roster.variants.contains(variant));
        self.analyzers.forget(now, &roster);
    }

    /// Collects the analyzers' reports on one model; `None` while none has a result.
    pub(crate) fn judge<'a>(
        &mut self,
        moment: SizingInputs<'_>,
        policy: &Sizing,
        model: &ModelKey,
        members: Vec<VariantInput<'a>>,
        shrinking: ScaleDownPermission,
    ) -> Option<ModelAssessment<'a>> {
        let mut outlook = ForesightFindings::default();
        let mut reports = Vec::with_capacity(policy.analyzers.len());
        for &analyzer in &policy.analyzers {
            let mut scene = AnalyzerInput {
                moment,
                model,
                members: &members,
                workloads: &self.workloads,
                fronts: &mut self.fronts,
                cards: &policy.cards,
            };

            let found = self.analyzers.judge(analyzer, &mut scene, policy);

            for member in &members {
                let key = &member.spec.key;
                self.floor(key, analyzer, found.floors.get(key).copied());
            }

            outlook = found.outlook.unwrap_or(outlook);
            reports.push((analyzer, found.report));
        }

        if shrinking == ScaleDownPermission::Forbidden {
            // A variant that cannot be counted also serves requests, so the model's total is not
            // known.
            outlook.admissible.values_mut().for_each(|rate| rate.model = None);
        }

        // Remembered state is not data: at least one replica must be reporting. If no replica
        // serves, a queue is data for the analyzer that counts queues.
        let heard = members.iter().any(|member| member.measured().next().is_some());
        let queues = !heard && is_awaited(&moment, policy, model, &members);
        for (analyzer, report) in &reports {
            let has_data = heard || (queues && *analyzer == Analyzer::Foresight);
            if has_data && report.variants.iter().any(|variant| variant.per_replica.is_some()) {
                self.informed.insert((model.clone(), *analyzer), moment.now);
            }
        }

        let ballot = ballot::cast(moment.now, policy.patience, &self.votes(model, &reports));
        // A capacity card from other engines never removes replicas.
        let forbidden = members
            .iter()
            .any(|it| it.counted() > Replicas::ZERO && outlook.bound.contains(&it.spec.key));
        let judged = ModelAssessment {
            model: model.clone(),
            members,
            reports,
            ballot,
            outlook,
            shrinking: if forbidden { ScaleDownPermission::Forbidden } else { shrinking },
        };
        (judged.ballot.model != BallotVerdict::Held).then_some(judged)
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
    fn floor(&mut self, variant: &VariantKey, analyzer: Analyzer, floor: Option<UnmeetableTarget>) {
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

// === impl ModelAssessment ===

impl ModelAssessment<'_> {
    /// The model as the optimizer sees it; `None` while the capacity per replica is not known.
    fn model(&self) -> Option<PlanModel<'_>> {
        let voices: Vec<VotingReport<'_>> = self
            .reports
            .iter()
            .map(|(analyzer, report)| {
                let standing = standing(&self.ballot, *analyzer);
                VotingReport { report, standing }
            })
            .collect();

        let (_, sizing) = self
            .reports
            .iter()
            .find(|(_, report)| report.variants.iter().any(|it| it.per_replica.is_some()))?;

        let candidates = self.members.iter().map(|member| self.candidate(sizing, member)).collect();
        Some(PlanModel { key: self.model.clone(), candidates, sizing, voices })
    }

    /// A variant as the optimizer sees it. A variant whose replicas do not start gets no additional
    /// ones while another variant can scale up.
    fn candidate(&self, sizing: &CapacityReport, member: &VariantInput<'_>) -> Candidate {
        let is_replaced = member.stuck > Replicas::ZERO
            && self.members.iter().any(|other| {
                other.spec.role == member.spec.role
                    && other.room() > Replicas::ZERO
                    && is_sized(sizing, &other.spec.key)
            });

        let candidate = member.candidate();
        let most = candidate.current.max(candidate.bounds.min());
        let bounds = Bounds::new(candidate.bounds.min(), Some(most));
        match bounds.filter(|_| is_replaced) {
            Some(bounds) => Candidate { bounds, ..candidate },
            None => candidate,
        }
    }

    /// The sizing result of one variant.
    fn asked(
        &self,
        member: &VariantInput<'_>,
        planned: &PlannedModel,
    ) -> Option<(VariantKey, SizingProposal)> {
        let Self { ballot, outlook, .. } = self;
        let PlannedModel { alone: plan, shared } = planned;
        let key = &member.spec.key;
        let placement = plan.placements.iter().find(|it| it.key == *key)?;
        let verdict = match member.spec.role {
            Role::Both => None,
            role @ (Role::Prefill | Role::Decode) => ballot.roles.get(&role).copied(),
        };
        let why = SizedReason {
            verdict: verdict.unwrap_or(ballot.model),
            because: member.because(placement),
            method: plan.method,
            stuck: member.stuck,
            unplaced: member.unplaced,
            absent: ballot
                .voters
                .iter()
                .filter(|(_, standing)| *standing != ballot::VoterStanding::Live)
                .copied()
                .collect(),
            short: if plan.shortfall().is_some() { Shortfall::Some } else { Shortfall::None },
            rank: rank(key, &plan.rankings),
            foreseen: outlook.foreseen.get(&member.spec.role).copied().map(Box::new),
            card: outlook.cards.get(key).map(|card| card.title()),
            carries: outlook.estimates.get(key).copied(),
            admissible: outlook.admissible.get(key).copied().map(Box::new),
            slowest: outlook.slowest.get(key).cloned().map(Box::new),
            starving: outlook.starving.get(key).copied().map(Box::new),
        };

        let bridge = outlook.bridges.get(key).copied();
        let after = member.with_stuck(placement.after);
        let differing = shared.get(key).cloned();
        let shared = differing.map(|it| VariantShare { after: member.with_stuck(it.after), ..it });
        let bridged = bridge.map(|it| BridgeTarget::of(it, member.stuck));
        Some((key.clone(), SizingProposal { before: member.wanted, after, why, shared, bridged }))
    }

    /// Decides if replicas that the plan removes may go.
    fn consent(&self) -> Consent {
        let agreed = match self.ballot.model {
            BallotVerdict::Grow(_)
            | BallotVerdict::Shrink(_)
            | BallotVerdict::Stay(ballot::StayReason::NothingSpare(_)) => Consent::Given,
            BallotVerdict::Stay(ballot::StayReason::NotHeard(_)) | BallotVerdict::Held => {
                Consent::Refused
            }
        };

        let all_live = self.ballot.voters.iter().all(|(_, it)| *it == ballot::VoterStanding::Live);
        match self.shrinking {
            ScaleDownPermission::Allowed if all_live => agreed,
            ScaleDownPermission::Allowed | ScaleDownPermission::Forbidden => Consent::Refused,
        }
    }
}

// === impl VariantInput ===

impl<'a> VariantInput<'a> {
    /// The replicas whose load is known.
    fn measured(&self) -> impl Iterator<Item = &'a ReplicaObservation> {
        self.observation.replicas.iter().filter(|replica| replica.load().is_some())
    }

    /// The planned replicas, plus those that do not start. The shortfall is requested at most
    /// twice: if the replacements do not start either, more of them do not help. Replicas that no
    /// node has room for are not replaced, because the replacements would have no node either.
    fn with_stuck(&self, planned: Replicas) -> Replicas {
        let serving = self.counted().beyond(self.coming());
        let replaced = planned + self.stuck.min(planned.beyond(serving));

        let all = (planned + self.stuck).min(replaced.max(self.wanted));
        let grown = planned.beyond(self.counted());
        all.beyond(self.unplaced.min(grown)).max(all.min(self.wanted))
    }

    /// Replicas that have served and are not reporting their load.
    fn silent(&self) -> Replicas {
        let Observation { ready, unheard, replicas, .. } = self.observation;
        let measured = self.observation.measured();
        let unmeasured = ready.unwrap_or_default().beyond(*unheard).beyond(measured);
        let lost = replicas.iter().filter(|replica| replica.is_lost()).count();

        unmeasured.max(Replicas::saturating(u32::try_from(lost).unwrap_or(u32::MAX)))
    }

    /// Counters of replicas that are not ready but may still receive requests.
    fn unready(&self) -> impl Iterator<Item = &'a [IntervalDelta]> {
        let replicas = self.observation.replicas.iter();
        replicas.filter(|it| it.unready && it.freshness.is_fresh()).map(|it| it.strides.as_slice())
    }

    fn candidate(&self) -> Candidate {
        let stuck = self.stuck;
        let max = self.bounds.max().map(|it| it.beyond(stuck));
        let min = self.bounds.min().beyond(stuck);

        Candidate {
            key: self.spec.key.clone(),
            role: self.spec.role,
            accelerator: self.spec.accelerator.clone(),
            gpus: self.spec.gpus.unwrap_or(Gpus::ONE),
            cost: self.spec.cost,
            list_price: self.spec.list_price.unwrap_or(self.spec.cost),
            mismatch: self.spec.mismatch,
            bounds: Bounds::new(min, max).unwrap_or(self.bounds),
            current: self.counted(),
            pending: self.coming(),
            leaving: self.leaving,
            untried: self.wanted == Replicas::ZERO,
        }
    }
}

/// Returns true if requests queue in front of a model that no replica serves, and foresight counts
/// them.
fn is_awaited(
    moment: &SizingInputs<'_>,
    policy: &Sizing,
    model: &ModelKey,
    members: &[VariantInput<'_>],
) -> bool {
    let counts = policy.foresight.gateway.is_some();
    let none_serves = members.iter().all(|member| member.silent() == Replicas::ZERO);
    counts && none_serves && QueueSignals::has_queue(moment, model)
}

/// Decides if an analyzer's report is reliable enough to remove replicas. An analyzer without a
/// vote has no result, and an analyzer with stale data keeps no replicas. Neither allows a
/// scale-down.
fn standing(ballot: &Ballot, analyzer: Analyzer) -> ReportFreshness {
    let known = ballot.voters.iter().find(|(voter, _)| *voter == analyzer);
    match known.map(|(_, standing)| standing) {
        Some(ballot::VoterStanding::Live) => ReportFreshness::Live,
        Some(ballot::VoterStanding::Stale(_) | ballot::VoterStanding::Uninformed) | None => {
            ReportFreshness::Stale
        }
    }
}

// === capacity per replica ===

/// Returns true if a report knows the capacity per replica of a variant.
fn is_sized(report: &CapacityReport, key: &VariantKey) -> bool {
    report.variants.iter().any(|it| it.key == *key && it.per_replica.is_some())
}

/// The capacity per replica of each variant.
fn sizes(model: &PlanModel<'_>) -> Vec<(VariantKey, (Amount, Unit))> {
    let unit = model.sizing.unit;
    let variants = model.sizing.variants.iter();
    variants.filter_map(|it| Some((it.key.clone(), (it.per_replica?, unit)))).collect()
}
