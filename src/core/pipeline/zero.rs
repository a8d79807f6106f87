//! To zero and back: lowers the numbers of a model that is proved to be idle, and wakes one that
//! has no replicas when something queues in front of it.
//!
//! It comes after windows and step limits: the proof spans a time that is longer than any of them,
//! and a request that waits for a replica to start should not wait for a window as well. Bounds come
//! after it, so a minimum above zero always holds.
//!
//! A model that was woken has served nothing yet and would look as idle as before. So its silence
//! begins anew, and the variant that was woken keeps its replica until it has served, and for the
//! configured time in any case.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::decide::zero::{
    self, Candidate, Idleness, Move, Outcome, Sleeper, Wake, Work, ZeroPolicy,
};
use crate::decide::{Basis, Decision, Reason, Stage, Step};
use crate::fleet::{Fleet, ModelKey, Rest, Role, VariantKey};
use crate::observe::{Inputs, Scrape};
use crate::pipeline::group::{Group, Member};
use crate::pipeline::silence::saved::SavedSilence;
use crate::pipeline::silence::{Hearing, Silences};
use crate::pipeline::{Pipeline, RestsOn, guard};
use crate::units::{Replicas, Seconds};

/// Which models may have no replicas.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Zero {
    /// What holds for models without a rule of their own.
    pub default: Rule,
    /// Rules of single models.
    pub overrides: BTreeMap<ModelKey, Rule>,
    /// How long a model must be proved to be idle that only an object allows to have none, and that
    /// names no time.
    pub after: Seconds,
}

/// Whether and when one model may have no replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rule {
    /// Whether it may, and after how long.
    pub policy: ZeroPolicy,
    /// For how long a variant that was woken stays in any case.
    pub awake_min: Seconds,
}

/// What is remembered of models that may have no replicas.
#[derive(Clone, Debug, Default)]
pub(crate) struct Zeros {
    silences: Silences,
    woken: BTreeMap<ModelKey, Woken>,
}

/// A model that was woken.
#[derive(Clone, Debug)]
struct Woken {
    at: Timestamp,
    variants: Vec<VariantKey>,
}

/// A model that may have no replicas, in one tick.
struct Case<'a> {
    now: Timestamp,
    model: &'a ModelKey,
    groups: &'a [Group<'a>],
    rule: Rule,
    retention: Seconds,
    /// Of each variant, the replicas that do not start.
    stuck: BTreeMap<&'a VariantKey, Replicas>,
    /// Whether something speaks against lowering any number.
    guarded: bool,
}

// === impl Zero ===

impl Zero {
    /// The rule that holds for a model.
    #[must_use]
    pub fn of(&self, model: &ModelKey) -> Rule {
        self.overrides.get(model).copied().unwrap_or(self.default)
    }

    /// The rule that holds for a model of a fleet: its own, else the default with what the objects
    /// that declare its variants wish. Of several that differ, one that forbids decides, and else
    /// the longest time.
    #[must_use]
    pub fn in_fleet(&self, fleet: &Fleet, model: &ModelKey) -> Rule {
        let rule = self.of(model);
        let wishes = fleet.wishes(model);
        if wishes.is_empty() || self.overrides.contains_key(model) {
            return rule;
        }
        let says = |what: Rest| wishes.iter().any(|wish| wish.may == Some(what));
        let usual = match rule.policy {
            ZeroPolicy::AfterIdle(after) => Some(after),
            ZeroPolicy::KeepOne => says(Rest::Allowed).then_some(self.after),
        };
        let longest = wishes.iter().filter_map(|wish| wish.after).reduce(Seconds::max);
        let policy = match usual.filter(|_| !says(Rest::Forbidden)) {
            Some(usual) => ZeroPolicy::AfterIdle(longest.unwrap_or(usual)),
            None => ZeroPolicy::KeepOne,
        };
        Rule { policy, ..rule }
    }

    /// Whether no model of any fleet may have no replicas, but those whose objects allow it.
    #[must_use]
    pub fn is_off(&self) -> bool {
        let keeps_one = |rule: &Rule| rule.policy == ZeroPolicy::KeepOne;
        keeps_one(&self.default) && self.overrides.values().all(keeps_one)
    }
}

// === impl Zeros ===

impl Zeros {
    /// Lets every silence begin anew: there was a time that nobody saw.
    pub(crate) fn begin_anew(&mut self) {
        self.silences.begin_anew();
    }

    /// Since when a model has had nothing to do, as a variant of it knows.
    pub(crate) fn saved(&self, model: &ModelKey, variant: &VariantKey) -> Option<SavedSilence> {
        // What was woken has yet to serve, and its silence begins with that.
        self.silences.save(model, variant).filter(|_| !self.woken.contains_key(model))
    }

    /// Goes on from that.
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

// === impl Pipeline ===

impl Pipeline {
    /// Moves the numbers of models that may have no replicas, and keeps all others.
    pub(crate) fn move_to_zero_and_back(
        &mut self,
        now: Timestamp,
        inputs: &Inputs,
        groups: &[Group<'_>],
        decisions: &mut [Decision],
    ) {
        let mut zeros = std::mem::take(&mut self.zeros);
        if self.policy.zero.is_off() && !inputs.fleet.has_wishes() {
            return;
        }
        let mut scrapes: BTreeMap<&VariantKey, Vec<&Scrape>> = BTreeMap::new();
        for scrape in &inputs.scrapes {
            scrapes.entry(&scrape.replica.variant).or_default().push(scrape);
        }
        let (gap_scraped, gap_relayed) = (self.policy.stale_after, self.policy.stale_after_relayed);
        let hearing = Hearing { now, inputs, scrapes, gap_scraped, gap_relayed };
        let mut models = BTreeSet::new();
        for groups in groups.chunk_by(|a, b| a.model == b.model) {
            let Some(model) = groups.first().map(|group| &group.model) else { continue };
            let rule = self.policy.zero.in_fleet(&inputs.fleet, model);
            let ZeroPolicy::AfterIdle(retention) = rule.policy else { continue };
            models.insert(model.clone());
            let members = || groups.iter().flat_map(|group| &group.members);
            let stuck = members().map(|it| (&it.spec.key, self.stuck(now, it).all)).collect();
            let guards = |group| {
                let settling = self.settling(now, group, RestsOn::Peaks);
                guard(now, group).or(settling)
            };
            let guarded = groups.iter().any(|group| guards(group).is_some());
            let case = Case { now, model, groups, rule, retention, stuck, guarded };
            let (work, signal) = zeros.silences.listen(&hearing, groups, model, case.starting());
            zeros.wake(&case, &work, signal.as_deref(), decisions);
            zeros.lower(&case, &work, decisions);
        }
        let replicas = inputs.listings.values().flat_map(|listing| &listing.replicas).collect();
        zeros.silences.keep(&models, &replicas);
        zeros.woken.retain(|model, _| models.contains(model));
        self.zeros = zeros;
    }
}

impl Zeros {
    /// Wakes a model in front of which something queues, and keeps one awake that was woken.
    fn wake(
        &mut self,
        case: &Case<'_>,
        work: &Work,
        signal: Option<&str>,
        decisions: &mut [Decision],
    ) {
        let wake = zero::wake_whole(work.in_front, &case.sleepers());
        let mut queued = None;
        if let (Wake::Woken { variants, queued: amount }, Some(signal)) = (wake, signal) {
            let variants = case.sized(decisions, variants);
            queued = Some((amount, signal));
            let known = self.woken.get(case.model);
            // Until somebody carries it out, the same variants are found to be asleep.
            if known.is_none_or(|known| known.variants != variants) {
                self.woken.insert(case.model.clone(), Woken { at: case.now, variants });
                self.silences.break_off(case.now, case.model);
            }
        }
        let Some(woken) = self.woken.get(case.model) else { return };
        let Some(ago) = Seconds::from_span(case.now.duration_since(woken.at)) else {
            // The clock went back, and nobody knows how long ago it was.
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
            step(decision, at_least_one, moved, Silent::Unchanged);
        }
    }

    /// Lowers every number of a model that is proved to be idle.
    fn lower(&mut self, case: &Case<'_>, work: &Work, decisions: &mut [Decision]) {
        let candidates = case.candidates(decisions);
        if candidates.iter().all(|candidate| candidate.target == Replicas::ZERO) {
            case.keep_what_is_there(work, decisions);
            return;
        }
        let complete = candidates.len() == case.members().count();
        let is_woken = self.woken.contains_key(case.model);
        let may_lower = complete && !case.guarded && !is_woken;
        let settled = zero::settle(ZeroPolicy::AfterIdle(case.retention), work, &candidates);
        let ours = decisions.iter_mut().filter(|decision| decision.model == *case.model);
        match settled.outcome {
            Outcome::ToZero(idleness) if may_lower => {
                for decision in ours {
                    let target = candidates.iter().position(|it| it.variant == decision.variant);
                    let target = target.map_or(decision.desired(), |at| settled.targets[at]);
                    match case.paired(decision) {
                        Some(moved) => step(decision, decision.desired(), moved, Silent::Said),
                        None => step(decision, target, Move::ToZero(idleness), Silent::Unchanged),
                    }
                }
            }
            Outcome::NotIdle(idleness @ Idleness::Unproved(_)) if !is_woken => {
                for decision in ours.filter(|it| it.basis == Basis::Fresh) {
                    if decision.desired() > decision.bounds.min() {
                        let desired = decision.desired();
                        step(decision, desired, Move::Stays(idleness), Silent::Said);
                    }
                }
            }
            _ => {}
        }
    }
}

// === impl Case ===

impl<'a> Case<'a> {
    fn members(&self) -> impl Iterator<Item = &'a Member<'a>> {
        self.groups.iter().flat_map(|group| &group.members)
    }

    fn stuck(&self, variant: &VariantKey) -> Replicas {
        self.stuck.get(variant).copied().unwrap_or_default()
    }

    /// The replicas that start, and will.
    fn starting(&self) -> Replicas {
        self.members().map(|it| it.coming().beyond(self.stuck(&it.spec.key))).sum()
    }

    /// Whether the variant has a replica whose load is known.
    fn serves(&self, variant: &VariantKey) -> bool {
        let member = self.members().find(|it| it.spec.key == *variant);
        member.is_some_and(|member| member.measured > Replicas::ZERO)
    }

    fn sleepers(&self) -> Vec<Sleeper> {
        let sleeper = |member: &Member<'_>| Sleeper {
            variant: member.spec.key.clone(),
            role: member.spec.role,
            cost: member.spec.cost,
            current: member.observation.wanted,
            stuck: self.stuck(&member.spec.key),
            bounds: member.observation.bounds,
        };
        self.members().map(sleeper).collect()
    }

    /// The variants that wake: of each role those that get replicas already, or else this one.
    fn sized(&self, decisions: &[Decision], cheapest: Vec<VariantKey>) -> Vec<VariantKey> {
        let mut woken = Vec::with_capacity(cheapest.len());
        for variant in cheapest {
            let role = self.members().find(|it| it.spec.key == variant).map(|it| it.spec.role);
            let of_role = self.members().filter(|it| Some(it.spec.role) == role);
            let asleep = of_role.filter(|it| it.observation.wanted == Some(Replicas::ZERO));
            let sized = asleep.map(|it| &it.spec.key).filter(|key| {
                let decision = decisions.iter().find(|it| it.variant == **key);
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
    fn candidates(&self, decisions: &[Decision]) -> Vec<Candidate> {
        let candidate = |member: &Member<'_>| {
            let decision = decisions.iter().find(|it| it.variant == member.spec.key)?;
            (decision.basis == Basis::Fresh).then(|| Candidate {
                variant: member.spec.key.clone(),
                cost: Some(member.spec.cost),
                current: member.observation.wanted,
                target: decision.desired(),
                bounds: decision.bounds,
            })
        };
        self.members().filter_map(candidate).collect()
    }

    /// A variant of the other half of the model that must have replicas.
    fn paired(&self, decision: &Decision) -> Option<Move> {
        let role = self.members().find(|it| it.spec.key == decision.variant)?.spec.role;
        let other = match role {
            Role::Both => return None,
            Role::Prefill => Role::Decode,
            Role::Decode => Role::Prefill,
        };
        let mut others = self.members().filter(|it| it.spec.role == other);
        let with = others.find(|it| it.observation.bounds.min() > Replicas::ZERO)?;
        let (with, min) = (with.spec.key.variant.clone(), with.observation.bounds.min());
        Some(Move::Paired { with, min })
    }

    /// A number of zero that nobody has carried out yet stands only as long as what proved it: what
    /// is there may have been asked to do something since.
    fn keep_what_is_there(&self, work: &Work, decisions: &mut [Decision]) {
        let idleness = zero::idleness(work, self.retention);
        if matches!(idleness, Idleness::Proved { .. }) {
            return;
        }
        let all_zero = |decisions: &[Decision]| {
            let mut ours = decisions.iter().filter(|decision| decision.model == *self.model);
            ours.all(|decision| decision.desired() == Replicas::ZERO)
        };
        if !all_zero(decisions) {
            return;
        }
        for member in self.members() {
            let there = member.observation.current.unwrap_or_default();
            let wanted = member.observation.wanted.unwrap_or_default();
            let decision = decisions.iter_mut().find(|it| it.variant == member.spec.key);
            if let Some(decision) = decision
                && there.min(wanted) > Replicas::ZERO
            {
                step(decision, Replicas::ONE, Move::Stays(idleness), Silent::Unchanged);
            }
        }
    }
}

/// Whether a step that changes nothing is worth a word.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Silent {
    Unchanged,
    Said,
}

fn step(decision: &mut Decision, after: Replicas, moved: Move, silent: Silent) {
    let before = decision.desired();
    if before != after || silent == Silent::Said {
        let reason = Reason::Zero(moved);
        decision.steps.push(Step { stage: Stage::Zero, before, after, reason });
    }
}
