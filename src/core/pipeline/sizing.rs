//! Sizing: from what analyzers say of a model to a number for each of its variants.
//!
//! Each analyzer that votes says, in its own unit, what the replicas of a model carry and what is
//! asked of them. Every one of them is a constraint for the optimizer, which finds the numbers that
//! meet them all at the least cost. So one analyzer can make a model grow, and it shrinks only as
//! far as all of them agree. The [ballot](ballot) names the one that binds.
//!
//! Replicas that take twice the time that starts usually take are [*stuck*](crate::pipeline): they are
//! counted neither as supply nor as coming, and stay on top of what the plan asks for.

pub(crate) mod analyzers;
pub(crate) mod bridged;
mod exchange;
mod queued;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use crate::analyze::analyzers::each_analyzer;
use crate::analyze::ballot::{self, Analyzer, Ballot, Franchise, Verdict, Vote};
use crate::analyze::capacity::{CapacityReport, Unit};
use crate::analyze::foresight::card::Card;
use crate::analyze::foresight::policy::{Steps, Window};
use crate::decide::optimize::{self, Candidate, Consent, Model, Standing, Voice};
use crate::decide::sized::{Shortfall, Sized, Unmeetable};
use crate::fleet::{Bounds, Fleet, ModelKey, Role, VariantKey, VariantSpec};
use crate::observe::stride::Stride;
use crate::observe::{Demand, Inputs, Observation, ReplicaObservation};
use crate::pipeline::Pipeline;
use crate::pipeline::group::{Group, Member};
use crate::pipeline::limits::{Planned, Room, Shared, rank};
use crate::pipeline::sizing::analyzers::{Analyzers, Outlook, Roster, Scene};
use crate::pipeline::sizing::bridged::Bridged;
use crate::pipeline::sizing::exchange::Exchange;
use crate::pipeline::sizing::queued::Fronts;
use crate::pipeline::startup::Stalls;
use crate::pipeline::workloads::Workloads;
use crate::units::{Amount, Gpus, Replicas, Seconds};

/// The default of [`Sizing::patience`].
const PATIENCE: Seconds = Seconds::literal(300);

macro_rules! sizing {
    ($($(#[$doc:meta])* $Name:ident $word:ident,)*) => {
        /// Which analyzers vote, and by what they judge.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Sizing {
            /// Those that vote, each once.
            pub analyzers: Vec<Analyzer>,
            $($(#[$doc])* pub $word: crate::analyze::$word::Policy,)*
            /// What was learned elsewhere of engines like these.
            pub cards: Arc<[Arc<Card>]>,
            /// How the cheapest numbers are looked for.
            pub optimizer: optimize::Policy,
            /// Age from which what an analyzer knew has no say.
            pub patience: Seconds,
        }

        impl Default for Sizing {
            fn default() -> Self {
                Self {
                    analyzers: vec![Analyzer::Foresight],
                    $($word: Default::default(),)*
                    cards: Arc::default(),
                    optimizer: optimize::Policy::default(),
                    patience: PATIENCE,
                }
            }
        }
    };
}
each_analyzer!(sizing);

/// One variant as the analyzers see it.
#[derive(Clone, Debug)]
pub(crate) struct Sizable<'a> {
    pub(crate) spec: &'a VariantSpec,
    pub(crate) observation: &'a Observation,
    /// What its scale target asks for.
    pub(crate) wanted: Replicas,
    /// Those of them that are not there yet.
    pub(crate) pending: Replicas,
    /// Those of the pending that take too long.
    pub(crate) stuck: Replicas,
    /// Those of them for which no node has room.
    pub(crate) unplaced: Replicas,
    /// Those of the others that an earlier plan does without.
    pub(crate) leaving: Replicas,
    /// How long its replicas take to serve, where that was measured.
    pub(crate) startup: Option<Seconds>,
    /// The longest that one of them took or has taken so far, beyond what was measured.
    pub(crate) slowest_start: Option<Seconds>,
    /// Losses of one of its replicas in an hour.
    pub(crate) losses: f64,
    /// What it may be scaled to.
    pub(crate) bounds: Bounds,
}

/// What is asked for one variant.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Asked {
    pub(crate) before: Replicas,
    pub(crate) after: Replicas,
    pub(crate) why: Sized,
    /// What it gets instead, where limits leave less or something else.
    pub(crate) shared: Option<Shared>,
    /// What carries load until others serve, beside that.
    pub(crate) bridged: Option<Bridged>,
}

/// What the analyzers say of one model.
#[derive(Debug)]
pub(crate) struct Judged<'a> {
    model: ModelKey,
    members: Vec<Sizable<'a>>,
    reports: Vec<(Analyzer, CapacityReport)>,
    ballot: Ballot,
    outlook: Outlook,
    shrinking: Shrinking,
}

/// What was learned of models and variants.
#[derive(Clone, Debug, Default)]
pub(crate) struct Learned {
    pub(crate) analyzers: Analyzers,
    pub(crate) informed: BTreeMap<(ModelKey, Analyzer), Timestamp>,
    /// Of variants whose idle replicas already miss a latency target, who says so.
    pub(crate) floors: BTreeMap<VariantKey, BTreeMap<Analyzer, Unmeetable>>,
    pub(crate) fronts: Fronts,
    pub(crate) workloads: Workloads,
}

/// Whether a model may shrink, whatever the plan says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shrinking {
    /// It may.
    Allowed,
    /// Some of its variants cannot be counted, or what their replicas carry is of a card, so nobody
    /// knows it.
    Forbidden,
}

/// When a model is sized, and over which time its replicas are seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment<'a> {
    pub(crate) now: Timestamp,
    pub(crate) window: Seconds,
    /// What queues in front of models.
    pub(crate) demand: &'a BTreeMap<ModelKey, Vec<Demand>>,
}

// === impl Sizing ===

impl Sizing {
    /// Where numbers have been held already when they get lower, the time in which they must not
    /// jitter: where `foresight` decides alone, and the window of scaling down is not waited for
    /// beside its hold.
    pub(crate) fn holds_alone(&self) -> Option<Seconds> {
        let hold = self.foresight.hold.filter(|hold| hold.replaces_window == Window::Replaced)?;
        self.is_foreseen().then_some(hold.jitter)
    }

    /// Whether numbers that are sized grow without limits of steps: where `foresight` decides alone,
    /// and no policies for scaling up are written.
    pub(crate) fn grows_at_once(&self) -> bool {
        self.is_foreseen() && self.foresight.replaces_steps == Steps::Unlimited
    }

    /// Whether `foresight` decides alone.
    pub(crate) fn is_foreseen(&self) -> bool {
        self.analyzers == [Analyzer::Foresight]
    }
}

// === impl Pipeline ===

impl Pipeline {
    /// What is asked for each variant, where analyzers size the models.
    pub(crate) fn size(
        &mut self,
        now: Timestamp,
        groups: &[Group<'_>],
        room: &mut Room,
        (inputs, observations): (&Inputs, &BTreeMap<VariantKey, Observation>),
    ) -> (BTreeMap<VariantKey, Asked>, Vec<Exchange>) {
        let Some(policy) = self.policy.sizing.clone() else { return Default::default() };
        let mut judged = Vec::new();
        let mut learned = std::mem::take(&mut self.learned);
        learned.forget(now, groups);
        let moment = Moment { now, window: self.policy.window, demand: &inputs.demand };
        for groups in groups.chunk_by(|a, b| a.model == b.model) {
            let Some(first) = groups.first() else { continue };
            let members = groups.iter().flat_map(|group| &group.members);
            // A variant without a scale target has no replicas that could carry anything.
            let members = members.filter(|member| member.has_target());
            let sizable = |member| self.sizable(now, member);
            let sizable: Vec<Sizable<'_>> = members.clone().filter_map(sizable).collect();
            let shrinking = if sizable.len() == members.count() {
                Shrinking::Allowed
            } else {
                Shrinking::Forbidden
            };
            judged.extend(learned.judge(moment, &policy, &first.model, sizable, shrinking));
        }
        self.learned = learned;
        let (judged, models): (Vec<&Judged<'_>>, Vec<Model<'_>>) =
            judged.iter().filter_map(|judged| Some((judged, judged.model()?))).unzip();
        room.sizes = models.iter().flat_map(sizes).collect();
        let consents: BTreeMap<&VariantKey, Consent> = judged
            .iter()
            .flat_map(|judged| judged.members.iter().map(|it| (&it.spec.key, judged.consent())))
            .collect();
        let consent = |key: &VariantKey, _| consents.get(key).copied().unwrap_or(Consent::Refused);
        let seen: (&Fleet, _) = (&inputs.fleet, observations);
        let plans = self.share(models, room, seen, &policy.optimizer, &consent);
        let asked = judged.iter().zip(&plans).flat_map(|(judged, planned)| {
            judged.members.iter().filter_map(|it| judged.asked(it, planned))
        });
        let exchanges = judged.iter().zip(&plans);
        let exchanges = exchanges.filter_map(|(judged, planned)| judged.exchange(&planned.alone));
        (asked.collect(), exchanges.collect())
    }

    /// A variant as the analyzers see it; `None` when its replicas cannot be counted.
    fn sizable<'a>(&self, now: Timestamp, member: &Member<'a>) -> Option<Sizable<'a>> {
        let Member { spec, observation, .. } = *member;
        let wanted = observation.wanted?;
        let pending = member.coming();
        let Stalls { all: stuck, unplaced } = self.stuck(now, member);
        let startup = self.startups.serves_after(&spec.key);
        let slowest_start = self.slowest_start(now, spec);
        let losses = self.absences.per_hour(&spec.key);
        let bounds = observation.bounds;
        let leaving = self.leaving.get(&spec.key).copied().unwrap_or_default();
        let leaving = leaving.min(wanted.beyond(stuck));
        Some(Sizable {
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

// === impl Learned ===

impl Learned {
    /// Forgets what is of no use any more, and variants that are gone.
    pub(crate) fn forget(&mut self, now: Timestamp, groups: &[Group<'_>]) {
        let members = groups.iter().flat_map(|group| &group.members);
        let roster = Roster {
            models: groups.iter().map(|group| &group.model).collect(),
            variants: members.map(|member| &member.spec.key).collect(),
        };

        self.informed.retain(|(model, _), _| roster.models.contains(model));
        self.floors.retain(|variant, _| roster.variants.contains(variant));
        self.analyzers.forget(now, &roster);
    }

    /// What the analyzers say of one model; `None` while none has anything to say.
    pub(crate) fn judge<'a>(
        &mut self,
        moment: Moment<'_>,
        policy: &Sizing,
        model: &ModelKey,
        members: Vec<Sizable<'a>>,
        shrinking: Shrinking,
    ) -> Option<Judged<'a>> {
        let mut outlook = Outlook::default();
        let mut reports = Vec::with_capacity(policy.analyzers.len());
        for &analyzer in &policy.analyzers {
            let mut scene = Scene {
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

        if shrinking == Shrinking::Forbidden {
            // A variant that cannot be counted serves requests as well.
            outlook.admissible.values_mut().for_each(|rate| rate.model = None);
        }

        // What is remembered of a variant is no data: somebody must be heard. A queue that no replica
        // serves is, by those who look at it.
        let heard = members.iter().any(|member| member.measured().next().is_some());
        let queues = !heard && is_awaited(&moment, policy, model, &members);
        for (analyzer, report) in &reports {
            let has_data = heard || (queues && *analyzer == Analyzer::Foresight);
            if has_data && report.variants.iter().any(|variant| variant.per_replica.is_some()) {
                self.informed.insert((model.clone(), *analyzer), moment.now);
            }
        }
        let votes: Vec<Vote<'_>> = reports
            .iter()
            .map(|(analyzer, report)| Vote {
                analyzer: *analyzer,
                franchise: self.franchise(*analyzer, report),
                informed_at: self.informed.get(&(model.clone(), *analyzer)).copied(),
                report: Some(report),
            })
            .collect();
        let ballot = ballot::cast(moment.now, policy.patience, &votes);
        let model = model.clone();
        // What others have taught takes nothing away.
        let forbidden = members
            .iter()
            .any(|it| it.counted() > Replicas::ZERO && outlook.bound.contains(&it.spec.key));
        let shrinking = if forbidden { Shrinking::Forbidden } else { shrinking };
        let judged = Judged { model, members, reports, ballot, outlook, shrinking };
        (judged.ballot.model != Verdict::Held).then_some(judged)
    }

    /// Notes that no number of replicas meets a target, or that some does.
    fn floor(&mut self, variant: &VariantKey, analyzer: Analyzer, floor: Option<Unmeetable>) {
        if let Some(floor) = floor {
            self.floors.entry(variant.clone()).or_default().insert(analyzer, floor);
        } else if let Some(floors) = self.floors.get_mut(variant) {
            floors.remove(&analyzer);
        }
    }

    /// Whether an analyzer has a say. A latency target that no number of replicas meets asks for
    /// none, and must not keep the model from shrinking to what the others ask for.
    fn franchise(&self, analyzer: Analyzer, report: &CapacityReport) -> Franchise {
        let knows = report.variants.iter().any(|variant| variant.per_replica.is_some());
        let of =
            |key: &VariantKey| self.floors.get(key).is_some_and(|it| it.contains_key(&analyzer));
        let floor = !knows && report.variants.iter().any(|variant| of(&variant.key));
        if floor { Franchise::Shown } else { Franchise::Votes }
    }
}

// === impl Judged ===

impl Judged<'_> {
    /// The model as the optimizer sees it; `None` while nobody knows what a replica carries.
    fn model(&self) -> Option<Model<'_>> {
        let voices: Vec<Voice<'_>> = self
            .reports
            .iter()
            .map(|(analyzer, report)| {
                let standing = standing(&self.ballot, *analyzer);
                Voice { report, standing }
            })
            .collect();
        let (_, sizing) = self
            .reports
            .iter()
            .find(|(_, report)| report.variants.iter().any(|it| it.per_replica.is_some()))?;
        let candidates = self.members.iter().map(|member| self.candidate(sizing, member)).collect();
        Some(Model { key: self.model.clone(), candidates, sizing, voices })
    }

    /// A variant as the optimizer sees it. One whose replicas do not start gets no more of them while
    /// another may grow.
    fn candidate(&self, sizing: &CapacityReport, member: &Sizable<'_>) -> Candidate {
        let is_sized = |key: &VariantKey| {
            sizing.variants.iter().any(|it| it.key == *key && it.per_replica.is_some())
        };
        let can_replace = |other: &&Sizable<'_>| {
            other.spec.role == member.spec.role
                && other.room() > Replicas::ZERO
                && is_sized(&other.spec.key)
        };
        let is_replaced =
            member.stuck > Replicas::ZERO && self.members.iter().any(|it| can_replace(&it));

        let candidate = member.candidate();
        let most = candidate.current.max(candidate.bounds.min());
        let bounds = Bounds::new(candidate.bounds.min(), Some(most));
        match bounds.filter(|_| is_replaced) {
            Some(bounds) => Candidate { bounds, ..candidate },
            None => candidate,
        }
    }

    /// What is asked for one variant.
    fn asked(&self, member: &Sizable<'_>, planned: &Planned) -> Option<(VariantKey, Asked)> {
        let Self { ballot, outlook, .. } = self;
        let Planned { alone: plan, shared } = planned;
        let key = &member.spec.key;
        let placement = plan.placements.iter().find(|it| it.key == *key)?;
        let verdict = match member.spec.role {
            Role::Both => None,
            role @ (Role::Prefill | Role::Decode) => ballot.roles.get(&role).copied(),
        };
        let why = Sized {
            verdict: verdict.unwrap_or(ballot.model),
            because: member.because(placement),
            method: plan.method,
            stuck: member.stuck,
            unplaced: member.unplaced,
            absent: ballot
                .voters
                .iter()
                .filter(|(_, standing)| *standing != ballot::Standing::Live)
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
        let shared = shared.get(key).cloned();
        let shared = shared.map(|it| Shared { after: member.with_stuck(it.after), ..it });
        let bridged = bridge.map(|it| Bridged::of(it, member.stuck));
        Some((key.clone(), Asked { before: member.wanted, after, why, shared, bridged }))
    }

    /// Whether replicas that the plan does without may go.
    fn consent(&self) -> Consent {
        let agreed = match self.ballot.model {
            Verdict::Grow(_)
            | Verdict::Shrink(_)
            | Verdict::Stay(ballot::Stay::NothingSpare(_)) => Consent::Given,
            Verdict::Stay(ballot::Stay::NotHeard(_)) | Verdict::Held => Consent::Refused,
        };
        let all_live = self.ballot.voters.iter().all(|(_, it)| *it == ballot::Standing::Live);
        match self.shrinking {
            Shrinking::Allowed if all_live => agreed,
            Shrinking::Allowed | Shrinking::Forbidden => Consent::Refused,
        }
    }
}

// === impl Sizable ===

impl<'a> Sizable<'a> {
    /// The replicas whose load is known.
    fn measured(&self) -> impl Iterator<Item = &'a ReplicaObservation> {
        self.observation.replicas.iter().filter(|replica| replica.load().is_some())
    }

    /// A number that the plan asks for, with the replicas that do not start on top. What is missing is
    /// asked for twice at most: if its replacements do not start either, more of them are no help. In
    /// place of those for which no node has room, none are asked for: they would have no node either.
    fn with_stuck(&self, planned: Replicas) -> Replicas {
        let serving = self.counted().beyond(self.coming());
        let replaced = planned + self.stuck.min(planned.beyond(serving));

        let all = (planned + self.stuck).min(replaced.max(self.wanted));
        let grown = planned.beyond(self.counted());
        all.beyond(self.unplaced.min(grown)).max(all.min(self.wanted))
    }

    /// Replicas that have served and do not report how loaded they are.
    fn silent(&self) -> Replicas {
        let Observation { ready, unheard, replicas, .. } = self.observation;
        let measured = self.observation.measured();
        let ready = ready.unwrap_or_default().beyond(*unheard).beyond(measured);
        let lost = replicas.iter().filter(|replica| replica.is_lost()).count();

        ready.max(Replicas::saturating(u32::try_from(lost).unwrap_or(u32::MAX)))
    }

    /// Counts of replicas that are not ready, and may still get requests.
    fn unready(&self) -> impl Iterator<Item = &'a [Stride]> {
        let unready = |it: &&ReplicaObservation| it.unready && it.freshness.is_fresh();
        self.observation.replicas.iter().filter(unready).map(|it| it.strides.as_slice())
    }

    fn candidate(&self) -> Candidate {
        let stuck = self.stuck;
        let max = self.bounds.max().map(|max| max.beyond(stuck));
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

/// Whether requests queue in front of a model that no replica serves, which foresight counts.
fn is_awaited(
    moment: &Moment<'_>,
    policy: &Sizing,
    model: &ModelKey,
    members: &[Sizable<'_>],
) -> bool {
    let counts = policy.foresight.gateway.is_some();
    let none_serves = members.iter().all(|member| member.silent() == Replicas::ZERO);
    counts && none_serves && Fronts::has_queue(moment, model)
}

/// Whether what an analyzer says can be relied on to take replicas away. One that has no vote has
/// nothing to say, and one whose data is old keeps nothing; neither lets anything go.
fn standing(ballot: &Ballot, analyzer: Analyzer) -> Standing {
    let known = ballot.voters.iter().find(|(known, _)| *known == analyzer);
    match known.map(|(_, standing)| standing) {
        Some(ballot::Standing::Live) => Standing::Live,
        Some(ballot::Standing::Stale(_) | ballot::Standing::Uninformed) | None => Standing::Stale,
    }
}

// === what is asked ===

/// What a replica of each variant carries.
fn sizes(model: &Model<'_>) -> Vec<(VariantKey, (Amount, Unit))> {
    let unit = model.sizing.unit;
    let variants = model.sizing.variants.iter();
    variants.filter_map(|it| Some((it.key.clone(), (it.per_replica?, unit)))).collect()
}
