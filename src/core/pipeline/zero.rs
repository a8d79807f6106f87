//! Scale to zero and back. Removes all replicas of a model that is proved idle, and wakes a model
//! without replicas when requests queue in front of it.
//!
//! This stage follows windows and step limits. The proof of idleness spans a longer time than any
//! of them. A request that waits for a replica to start should not also wait for a window. Bounds
//! come later, so a minimum above zero always holds.
//!
//! A woken model has served nothing yet and would look as idle as before. So its silence restarts.
//! The woken variant keeps its replica until it reports metrics, and at least for the configured
//! time.

pub(crate) mod policy;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::decide::limit::LimitRoom;
use crate::decide::zero::{
    self, Idleness, Move, ObservedWork, Wake, WakeCandidate, WakeRoom, ZeroOutcome, ZeroPolicy,
    ZeroVariant,
};
use crate::decide::{Basis, Decision, Reason, Stage, Step};
use crate::fleet::{ModelKey, Role, VariantKey};
use crate::observe::{Inputs, Scrape};
use crate::pipeline::group::{Member, VariantGroup};
use crate::pipeline::guard::incomplete;
use crate::pipeline::limits::TickLimits;
use crate::pipeline::overrides;
use crate::pipeline::proposal::ProposalBasis;
use crate::pipeline::silence::Silences;
use crate::pipeline::silence::saved::SavedSilence;
use crate::pipeline::supply::VariantSupply;
use crate::pipeline::tick::Tick;
use crate::units::{Replicas, Seconds};

pub use crate::pipeline::zero::policy::{Zero, ZeroRule};

/// The remembered state of models that may scale to zero.
#[derive(Clone, Debug, Default)]
pub(crate) struct Zeros {
    silences: Silences,
    woken: BTreeMap<ModelKey, WokenModel>,
}

/// A model that was woken.
#[derive(Clone, Debug)]
struct WokenModel {
    at: Timestamp,
    variants: Vec<VariantKey>,
}

/// A model that may scale to zero, in one tick.
struct ZeroCandidate<'a> {
    now: Timestamp,
    model: &'a ModelKey,
    groups: &'a [VariantGroup<'a>],
    rule: ZeroRule,
    retention: Seconds,
    /// The supply of each variant, by place.
    supply: &'a [VariantSupply],
    /// The room in all limits.
    room: &'a LimitRoom<'a>,
}

// === impl Zeros ===

impl Zeros {
    /// Moves models to zero and back, and leaves all others unchanged.
    pub(crate) fn run(
        &mut self,
        tick: &Tick<'_>,
        supply: &[VariantSupply],
        limits: &TickLimits<'_>,
        mut decisions: Vec<Decision>,
    ) -> Vec<Decision> {
        let Inputs { fleet, listings, .. } = tick.inputs;
        if tick.policy.zero.is_off() && !fleet.has_wishes() {
            *self = Self::default();
            return decisions;
        }

        let scrapes = by_variant(&tick.inputs.scrapes);
        let room = &limits.room(tick);
        let mut models = BTreeSet::new();
        for (model, groups) in tick.models() {
            let rule = tick.policy.zero.in_fleet(fleet, model);
            let ZeroPolicy::AfterIdle(retention) = rule.policy else { continue };
            models.insert(model.clone());
            let now = tick.now;
            let case = ZeroCandidate { now, model, groups, rule, retention, supply, room };
            let (work, signal) =
                self.silences.listen(tick, &scrapes, groups, model, case.starting());
            self.wake(tick, &case, &work, signal.as_deref(), &mut decisions);
            self.lower(tick, &case, &work, &mut decisions);
        }

        let replicas = listings.values().flat_map(|listing| &listing.replicas).collect();
        self.silences.keep(&models, &replicas);
        self.woken.retain(|model, _| models.contains(model));
        decisions
    }

    /// Restarts every silence after an unobserved time.
    pub(crate) fn begin_anew(&mut self) {
        self.silences.begin_anew();
    }

    /// The silence of a model as one of its variants knows it.
    pub(crate) fn saved(&self, model: &ModelKey, variant: &VariantKey) -> Option<SavedSilence> {
        // A woken variant has yet to serve, and its silence begins then.
        self.silences.save(model, variant).filter(|_| !self.woken.contains_key(model))
    }

    /// Restores a saved silence.
    pub(crate) fn recall(
        &mut self,
        now: Timestamp,
        model: &ModelKey,
        variant: &VariantKey,
        saved: &SavedSilence,
    ) {
        self.silences.recall(now, model, variant, saved);
    }
}

// === waking and lowering ===

impl Zeros {
    /// Wakes a model with a queue in front of it, and keeps a woken model awake.
    fn wake(
        &mut self,
        tick: &Tick<'_>,
        case: &ZeroCandidate<'_>,
        work: &ObservedWork,
        signal: Option<&str>,
        decisions: &mut [Decision],
    ) {
        let sleepers = case.sleepers(tick, self.woken.get(case.model));
        let room = WakeRoom {
            fits: &|set| case.room.fits(set),
            alike: &|one, other| case.room.is_alike(one, other),
        };
        let wake = zero::wake_whole(work.in_front, &sleepers, room);
        let mut queued = None;
        if let (Wake::Woken { variants: cheapest, queued: amount }, Some(signal)) = (wake, signal) {
            let variants = case.sized(decisions, cheapest);
            queued = Some((amount, signal));
            let known = self.woken.get(case.model);
            // Until the wake-up is actuated, the same variants are found asleep.
            if known.is_none_or(|known| known.variants != variants) {
                self.woken.insert(case.model.clone(), WokenModel { at: case.now, variants });
                self.silences.break_off(case.now, case.model);
            }
        }

        // A variant that has left the fleet since serves nothing.
        if let Some(woken) = self.woken.get_mut(case.model) {
            woken.variants.retain(|key| case.knows(key));
        }

        let Some(woken) = self.woken.get(case.model) else { return };
        let Some(ago) = Seconds::from_span(case.now.duration_since(woken.at)) else {
            // The clock went back, so the time since the wake-up is not known.
            self.woken.remove(case.model);
            return;
        };
        let at_least = case.rule.awake_min;
        let served = woken.variants.iter().all(|key| case.serves(key));
        if served && ago >= at_least {
            self.woken.remove(case.model);
            return;
        }

        for decision in decisions.iter_mut().filter(|it| woken.variants.contains(&it.variant)) {
            let moved = match queued {
                Some((queued, signal)) => Move::Woken { queued, signal: signal.to_owned() },
                None => Move::KeptAwake { ago, at_least },
            };
            let at_least_one = decision.desired().max(Replicas::ONE);
            step(decision, at_least_one, moved, StepRecording::Unchanged);
        }
    }

    /// Scales all variants of a model that is proved idle to zero.
    fn lower(
        &self,
        tick: &Tick<'_>,
        case: &ZeroCandidate<'_>,
        work: &ObservedWork,
        decisions: &mut [Decision],
    ) {
        let candidates = case.candidates(decisions);
        if candidates.iter().all(|candidate| candidate.target == Replicas::ZERO) {
            case.keep_what_is_there(work, decisions);
            return;
        }

        let complete = candidates.len() == case.members().count();
        let is_woken = self.woken.contains_key(case.model);
        let may_lower = complete && !is_woken && !case.is_guarded(tick);
        let settled = zero::settle(ZeroPolicy::AfterIdle(case.retention), work, &candidates);
        let ours = decisions.iter_mut().filter(|decision| decision.model == *case.model);
        match settled.outcome {
            ZeroOutcome::ToZero(idleness) if may_lower => {
                for decision in ours {
                    let place = candidates.iter().position(|it| it.variant == decision.variant);
                    let target = place.map_or(decision.desired(), |at| settled.targets[at]);
                    match case.paired(decision) {
                        Some(moved) => {
                            step(decision, decision.desired(), moved, StepRecording::Said);
                        }
                        None => {
                            step(
                                decision,
                                target,
                                Move::ToZero(idleness),
                                StepRecording::Unchanged,
                            );
                        }
                    }
                }
            }
            ZeroOutcome::NotIdle(idleness @ Idleness::Unproved(_)) if !is_woken => {
                for decision in ours.filter(|it| it.basis == Basis::Fresh) {
                    if decision.desired() > decision.bounds.min() {
                        let desired = decision.desired();
                        step(decision, desired, Move::Stays(idleness), StepRecording::Said);
                    }
                }
            }
            _ => {}
        }
    }
}

// === impl ZeroCandidate ===

impl<'a> ZeroCandidate<'a> {
    fn members(&self) -> impl Iterator<Item = &'a Member<'a>> {
        self.groups.iter().flat_map(|group| &group.members)
    }

    /// Returns true if any guard blocks a scale-down.
    fn is_guarded(&self, tick: &Tick<'_>) -> bool {
        self.groups.iter().any(|group| {
            let settling = tick.settling(group, ProposalBasis::Peaks);
            incomplete(tick.now, group).or(settling).is_some()
        })
    }

    /// The replicas of a variant that do not start, or sleep on.
    fn stuck(&self, member: &Member<'_>) -> Replicas {
        let VariantSupply { stalls, dormant, .. } = self.supply[member.place];
        stalls.all + dormant
    }

    /// The replicas that are starting, waking, or about to start.
    fn starting(&self) -> Replicas {
        let each = self.members().map(|member| {
            let VariantSupply { starting, waking, .. } = self.supply[member.place];
            starting + waking
        });

        each.sum()
    }

    /// Returns true if the variant is in the fleet.
    fn knows(&self, variant: &VariantKey) -> bool {
        self.members().any(|it| it.spec.key == *variant)
    }

    /// Returns true if the variant has a replica whose load is known.
    fn serves(&self, variant: &VariantKey) -> bool {
        let member = self.members().find(|it| it.spec.key == *variant);
        member.is_some_and(|member| member.measured > Replicas::ZERO)
    }

    /// The variants that may wake, of which some have been woken. An override at zero keeps its
    /// variant asleep, so that another one wakes.
    fn sleepers(&self, tick: &Tick<'_>, woken: Option<&WokenModel>) -> Vec<WakeCandidate> {
        self.members()
            .map(|member| WakeCandidate {
                variant: member.spec.key.clone(),
                role: member.spec.role,
                cost: member.spec.cost,
                current: member.observation.wanted,
                stuck: self.stuck(member),
                bounds: overrides::narrowed(tick, member).unwrap_or(member.observation.bounds),
                woken: woken.is_some_and(|woken| woken.variants.contains(&member.spec.key)),
            })
            .collect()
    }

    /// The variants to wake. For each role, these are the sleeping variants that analyzers already
    /// gave replicas, otherwise the cheapest one.
    fn sized(&self, decisions: &[Decision], cheapest: Vec<VariantKey>) -> Vec<VariantKey> {
        let mut woken = Vec::with_capacity(cheapest.len());
        for variant in cheapest {
            let role = self.members().find(|it| it.spec.key == variant).map(|it| it.spec.role);
            let of_role = self.members().filter(|it| Some(it.spec.role) == role);
            let asleep = of_role.filter(|it| it.observation.wanted == Some(Replicas::ZERO));
            let sized = asleep.map(|it| &it.spec.key).filter(|key| {
                let decision = Decision::find(decisions, key);
                decision.is_some_and(|it| it.basis == Basis::Fresh && it.desired() > Replicas::ZERO)
            });

            let before = woken.len();
            woken.extend(sized.cloned());
            if woken.len() == before {
                woken.push(variant);
            }
        }

        woken
    }

    /// The variants with fresh decisions.
    fn candidates(&self, decisions: &[Decision]) -> Vec<ZeroVariant> {
        self.members()
            .filter_map(|member| {
                let decision = Decision::find(decisions, &member.spec.key)?;
                (decision.basis == Basis::Fresh).then(|| ZeroVariant {
                    variant: member.spec.key.clone(),
                    cost: Some(member.spec.cost),
                    current: member.observation.wanted,
                    target: decision.desired(),
                    bounds: decision.bounds,
                })
            })
            .collect()
    }

    /// The reason to keep a variant because a variant with the other role must have replicas.
    fn paired(&self, decision: &Decision) -> Option<Move> {
        let role = self.members().find(|it| it.spec.key == decision.variant)?.spec.role;
        let other = match role {
            Role::Both => return None,
            Role::Prefill => Role::Decode,
            Role::Decode => Role::Prefill,
        };

        let mut others = self.members().filter(|it| it.spec.role == other);
        let found = others.find(|it| it.observation.bounds.min() > Replicas::ZERO)?;
        let with = found.spec.key.variant.clone();
        Some(Move::Paired { with, min: found.observation.bounds.min() })
    }

    /// A target of zero that is not yet actuated is valid only while the proof of idleness holds.
    /// The remaining replicas may have received requests since. Replicas that are no longer listed
    /// have not, and their scale target often says so later than their list.
    fn keep_what_is_there(&self, work: &ObservedWork, decisions: &mut [Decision]) {
        let idleness = zero::idleness(work, self.retention);
        if matches!(idleness, Idleness::Proved { .. }) {
            return;
        }
        let mut ours = decisions.iter().filter(|decision| decision.model == *self.model);
        if ours.any(|decision| decision.desired() > Replicas::ZERO) {
            return;
        }

        for member in self.members() {
            if !member.is_unlisted() && member.observation.replicas.is_empty() {
                continue;
            }

            let there = member.observation.current.unwrap_or_default();
            let wanted = member.observation.wanted.unwrap_or_default();
            let decision = decisions.iter_mut().find(|it| it.variant == member.spec.key);
            if let Some(decision) = decision
                && there.min(wanted) > Replicas::ZERO
            {
                step(decision, Replicas::ONE, Move::Stays(idleness), StepRecording::Unchanged);
            }
        }
    }
}

/// The scrapes of each variant.
fn by_variant(scrapes: &[Scrape]) -> BTreeMap<&VariantKey, Vec<&Scrape>> {
    let mut sorted: BTreeMap<&VariantKey, Vec<&Scrape>> = BTreeMap::new();
    for scrape in scrapes {
        sorted.entry(&scrape.replica.variant).or_default().push(scrape);
    }
    sorted
}

/// The handling of a step that changes nothing: omitted or reported.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StepRecording {
    Unchanged,
    Said,
}

fn step(decision: &mut Decision, after: Replicas, moved: Move, silent: StepRecording) {
    let before = decision.desired();
    if before != after || silent == StepRecording::Said {
        let reason = Reason::Zero(moved);
        decision.steps.push(Step { stage: Stage::Zero, before, after, reason });
    }
}
