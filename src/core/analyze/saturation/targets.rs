//! From what the replicas say to how many of them each variant should have.
//!
//! At most one replica of a model and role moves at a time, up on the cheapest variant and down on
//! the dearest. What a variant already has is the starting point, so the same load gives the same
//! target however often it is looked at, and a wish that has not been carried out is not added to.

use std::cmp::Ordering;

use crate::analyze::saturation::explain::{
    Outcome, ScaleDown, SpareEnough, SpareKept, SpareLow, Transition, Unmeasured,
};
use crate::analyze::saturation::{Analysis, TransitionRule};
use crate::fleet::{Bounds, VariantKey};
use crate::units::{CostPerHour, Replicas};

/// What is known of a variant besides its load.
#[derive(Clone, Debug, PartialEq)]
pub struct VariantState {
    /// Which variant.
    pub key: VariantKey,
    /// The replicas that it has: what its scale target asks for where that is known, else what
    /// exists. With what exists alone, a replica that a quota keeps from being created would be
    /// asked for, given up and asked for again for ever.
    pub current: Replicas,
    /// Replicas that exist or are asked for and are not ready to be measured yet.
    pub pending: Replicas,
    /// The earlier wish that is still to be carried out; `None` when there is none, or when it no
    /// longer counts.
    pub desired: Option<Replicas>,
    /// How long its transition may still block others.
    pub patience: Patience,
    /// What one replica costs.
    pub cost: CostPerHour,
    /// What it may be scaled to.
    pub bounds: Bounds,
}

/// Whether a variant's transition may block others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Patience {
    /// It may.
    #[default]
    Left,
    /// It has lasted too long: a replica that never becomes ready or never reports must not keep a
    /// saturated model from growing elsewhere. The variant itself does not grow meanwhile.
    Exhausted,
}

/// What a variant should have.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// Which variant.
    pub variant: VariantKey,
    /// The replicas that it has.
    pub before: Replicas,
    /// The replicas that the load asks for; never more than one away from `before`, except where
    /// an earlier wish is kept.
    pub asked: Replicas,
    /// The same within the variant's bounds.
    pub after: Replicas,
    /// Why that many are asked for.
    pub outcome: Outcome,
}

/// A variant and how many of its replicas were measured.
#[derive(Clone, Copy)]
struct Candidate<'a> {
    state: &'a VariantState,
    measured: Replicas,
}

/// How many replicas each of these variants should have, in the order of their keys.
///
/// `states` are the variants of one model and one role, each once; `analysis` is of their replicas.
/// A replica of a variant without a state counts as load and as spare, but nothing is decided for
/// its variant.
#[must_use]
pub fn targets(analysis: &Analysis, states: &[VariantState], rule: TransitionRule) -> Vec<Target> {
    let mut candidates: Vec<Candidate<'_>> = states
        .iter()
        .map(|state| Candidate {
            state,
            measured: analysis.variants.get(&state.key).map_or(Replicas::ZERO, |v| v.measured),
        })
        .collect();
    candidates.sort_by(|a, b| a.state.key.cmp(&b.state.key));

    if analysis.measured == Replicas::ZERO {
        return candidates.iter().map(Candidate::unmeasured).collect();
    }
    if let Some(transition) = blocking(&candidates, rule) {
        return candidates.iter().map(|candidate| candidate.waiting(&transition)).collect();
    }
    let step = step(analysis, &candidates, rule);
    candidates
        .iter()
        .map(|candidate| {
            if candidate.may_move(rule) {
                candidate.stepping(&step)
            } else if candidate.keeps_wish() && rule == TransitionRule::PerVariant {
                candidate.waiting(&Transition::NotActuated(candidate.state.key.clone()))
            } else {
                candidate.unmeasured()
            }
        })
        .collect()
}

/// What the whole model waits for, if it waits: the first cause in the order of keys.
fn blocking(candidates: &[Candidate<'_>], rule: TransitionRule) -> Option<Transition> {
    candidates
        .iter()
        .filter(|candidate| candidate.state.patience == Patience::Left)
        .find_map(|candidate| candidate.blocks(rule))
}

/// The one move that a model makes.
enum Step<'a> {
    Up(&'a VariantKey, SpareLow),
    Wait(Transition),
    NoRoom(SpareLow),
    Down(&'a VariantKey, SpareEnough),
    Keep(SpareKept),
}

/// Picks the move: up before down, and at most one of them.
fn step<'a>(analysis: &Analysis, all: &[Candidate<'a>], rule: TransitionRule) -> Step<'a> {
    if let Some(low) = analysis.scale_up {
        // A variant that is all new is no reason to keep replicas that are not needed, but it is
        // the answer to the deficit that it was started for.
        if let Some(starting) = all.iter().find(|candidate| candidate.is_starting(rule)) {
            return Step::Wait(Transition::Pending(starting.state.key.clone()));
        }
        return match cheapest(all, rule) {
            None => Step::NoRoom(low),
            Some(pick) if pick.has_one_coming(rule) => {
                Step::Wait(Transition::NotReporting(pick.state.key.clone()))
            }
            Some(pick) => Step::Up(&pick.state.key, low),
        };
    }
    match analysis.scale_down {
        ScaleDown::Safe(enough) => dearest(all, rule)
            .map_or(Step::Keep(SpareKept::NoneToSpare(enough)), |key| Step::Down(key, enough)),
        ScaleDown::Unsafe(tight) => Step::Keep(SpareKept::Tight(tight)),
        ScaleDown::TooFew { non_saturated } => Step::Keep(SpareKept::TooFew { non_saturated }),
    }
}

/// The cheapest variant that can grow, the alphabetically first of equals.
fn cheapest<'a>(all: &[Candidate<'a>], rule: TransitionRule) -> Option<Candidate<'a>> {
    let growing = free(all, rule).copied().filter(|candidate| candidate.can_grow(rule));
    growing.min_by(Candidate::by_cost)
}

/// Those over which the load decides.
fn free<'c, 'a>(
    all: &'c [Candidate<'a>],
    rule: TransitionRule,
) -> impl Iterator<Item = &'c Candidate<'a>> {
    all.iter().filter(move |candidate| candidate.may_move(rule))
}

/// The dearest variant that can shrink, the alphabetically last of equals.
///
/// A variant above its maximum shrinks whatever the load is. It is then the one that shrinks, lest
/// the model lose one measured replica to the bounds and another to the load at once.
fn dearest<'a>(all: &[Candidate<'a>], rule: TransitionRule) -> Option<&'a VariantKey> {
    let above_max =
        |candidate: &&Candidate<'a>| candidate.measured > Replicas::ZERO && !candidate.within_max();
    let shrinking = free(all, rule).filter(above_max).max_by(|a, b| a.by_cost(b));
    shrinking
        .or_else(|| all.iter().find(above_max))
        .or_else(|| free(all, rule).filter(|c| c.can_shrink()).max_by(|a, b| a.by_cost(b)))
        .map(|candidate| &candidate.state.key)
}

// === impl Candidate ===

impl Candidate<'_> {
    /// Whether an earlier wish is still to be carried out.
    fn keeps_wish(&self) -> bool {
        self.state.patience == Patience::Left
            && self.state.desired.is_some_and(|desired| desired != self.state.current)
    }

    /// Whether this variant makes the whole model wait, and what for.
    fn blocks(&self, rule: TransitionRule) -> Option<Transition> {
        let Candidate { state: VariantState { key, current, pending, .. }, measured } = *self;
        match rule {
            TransitionRule::PerVariant => None,
            TransitionRule::ModelWide if self.keeps_wish() => {
                Some(Transition::NotActuated(key.clone()))
            }
            TransitionRule::ModelWide => {
                (measured != *current).then(|| Transition::NotReporting(key.clone()))
            }
            TransitionRule::PendingOnly if measured == Replicas::ZERO => None,
            TransitionRule::PendingOnly if self.keeps_wish() => {
                Some(Transition::NotActuated(key.clone()))
            }
            TransitionRule::PendingOnly => {
                (*pending > Replicas::ZERO).then(|| Transition::Pending(key.clone()))
            }
        }
    }

    /// Whether none of its replicas reports because they are starting, and the model waits for it.
    fn is_starting(&self, rule: TransitionRule) -> bool {
        rule == TransitionRule::PendingOnly
            && self.measured == Replicas::ZERO
            && self.state.pending > Replicas::ZERO
            && self.state.patience == Patience::Left
    }

    /// Whether the load decides over this variant.
    fn may_move(&self, rule: TransitionRule) -> bool {
        self.measured > Replicas::ZERO && !(rule == TransitionRule::PerVariant && self.keeps_wish())
    }

    /// Whether a replica may be added here. Under the rule that waits for nothing but what is
    /// pending, a replica that does not report does not keep the rest from getting help.
    fn can_grow(&self, rule: TransitionRule) -> bool {
        let given_up = rule != TransitionRule::PendingOnly
            && self.is_partly_silent()
            && self.state.patience == Patience::Exhausted;
        self.state.pending == Replicas::ZERO
            && self.state.bounds.allow_up(self.state.current)
            && !given_up
    }

    /// Whether a replica may be taken away here. The last one stays: no load is measured as nothing
    /// to serve.
    fn can_shrink(&self) -> bool {
        self.state.current > Replicas::ONE && self.state.bounds.allow_down(self.state.current)
    }

    /// Whether the maximum leaves what this variant has.
    fn within_max(&self) -> bool {
        self.state.bounds.max().is_none_or(|max| self.state.current <= max)
    }

    /// Whether growing here means waiting, because replicas that it has do not report yet.
    fn has_one_coming(&self, rule: TransitionRule) -> bool {
        match rule {
            // The documents count from the replicas that report, so that one that is starting is
            // not added to. Taken literally, that would take away two that do not report.
            TransitionRule::ModelWide | TransitionRule::PerVariant => self.is_partly_silent(),
            TransitionRule::PendingOnly => false,
        }
    }

    /// Whether it has replicas that were not measured.
    fn is_partly_silent(&self) -> bool {
        self.measured < self.state.current
    }

    /// By cost, then by key.
    fn by_cost(&self, other: &Self) -> Ordering {
        self.state.cost.compare(other.state.cost).then_with(|| self.state.key.cmp(&other.state.key))
    }

    fn target(&self, asked: Replicas, outcome: Outcome) -> Target {
        let VariantState { key, current, bounds, .. } = self.state;
        Target {
            variant: key.clone(),
            before: *current,
            asked,
            after: bounds.clamp(asked),
            outcome,
        }
    }

    fn unmeasured(&self) -> Target {
        let current = self.state.current;
        let why = if current == Replicas::ZERO {
            Unmeasured::NoReplicas
        } else {
            Unmeasured::NoFreshReplica
        };
        self.target(current, Outcome::Unmeasured(why))
    }

    fn waiting(&self, transition: &Transition) -> Target {
        let kept = if self.keeps_wish() { self.state.desired } else { None };
        let asked = kept.unwrap_or(self.state.current);
        self.target(asked, Outcome::Transition(transition.clone()))
    }

    /// What the model's move means for this variant.
    fn stepping(&self, step: &Step<'_>) -> Target {
        let VariantState { key, current, .. } = self.state;
        match step {
            Step::Up(picked, low) if *picked == key => {
                self.target(current.up(), Outcome::SpareLow(*low))
            }
            Step::Up(picked, _) => {
                self.target(*current, Outcome::SpareLowElsewhere((*picked).clone()))
            }
            Step::Wait(transition) => self.waiting(transition),
            Step::NoRoom(low) => self.target(*current, Outcome::SpareLowNoRoom(*low)),
            Step::Down(picked, enough) if *picked == key => {
                // The bounds may take more; the load never takes the last one.
                let asked = current.down().max(Replicas::ONE);
                self.target(asked, Outcome::SpareEnough(*enough))
            }
            Step::Down(picked, _) => {
                self.target(*current, Outcome::SpareEnoughElsewhere((*picked).clone()))
            }
            Step::Keep(kept) => self.target(*current, Outcome::SpareKept(*kept)),
        }
    }
}
