//! Targets: the replicas that each variant should have, from the analysis of its replicas.
//!
//! At most one replica of a model and role is added or removed at a time: added on the cheapest
//! variant, removed on the most expensive. A variant's current replicas are the starting point. So
//! the same load gives the same target however often it is analyzed, and a pending decision is not
//! added to.

use std::cmp::Ordering;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::analyze::saturation::analysis::SaturationAnalysis;
use crate::analyze::saturation::explain::{
    NoMeasurement, SaturationOutcome, ScaleDown, SpareEnough, SpareKept, SpareLow, Transition,
};
use crate::fleet::{Bounds, VariantKey};
use crate::settings;
use crate::units::{CostPerHour, Replicas};

/// The state of a variant apart from its load.
#[derive(Clone, Debug, PartialEq)]
pub struct SaturationVariant {
    /// The variant.
    pub key: VariantKey,
    /// The variant's replicas: the replicas that its scale target requests if known, otherwise the
    /// replicas that exist. With existing replicas alone, a replica blocked by a quota would be
    /// requested, given up and requested again forever.
    pub current: Replicas,
    /// Replicas that exist or are requested, and are not ready to be measured yet.
    pub pending: Replicas,
    /// Current replicas that sleep. They are known not to serve, and are not waited for.
    pub asleep: Replicas,
    /// The earlier decision that is not actuated yet; `None` if there is none, or if it no longer
    /// counts.
    pub desired: Option<Replicas>,
    /// The patience left for the variant's transition.
    pub patience: TransitionPatience,
    /// The cost per replica.
    pub cost: CostPerHour,
    /// The bounds on its replicas.
    pub bounds: Bounds,
}

/// What blocks new decisions while an earlier one is being carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TransitionRule {
    /// One variant whose replicas are not what was decided, or do not all report, blocks every
    /// variant of the model.
    ModelWide,
    /// A variant whose replicas are not what was decided keeps that decision; the others go on.
    PerVariant,
    /// The model waits while any of its variants has replicas that are not ready yet.
    // An earlier decision that is not actuated also blocks, if the caller states one. The pipeline
    // states none under this rule, because the rule needs no memory. A target is the current
    // replica count, one more or one less, so a repeated decision asks for the same.
    #[default]
    PendingOnly,
}

settings! { plain: TransitionRule; }

/// The patience for a variant's transition, during which the transition may block other variants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransitionPatience {
    /// The transition may block others.
    #[default]
    Left,
    /// The transition has lasted too long. A replica that never becomes ready or never reports must
    /// not block a saturated model's scale-up on other variants. The variant itself does not scale
    /// up meanwhile.
    Exhausted,
}

/// The desired replicas of a variant.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub struct SaturationTarget {
    /// The variant.
    pub variant: VariantKey,
    /// The variant's current replicas.
    pub before: Replicas,
    /// The replicas that the load requires. At most one away from `before`, unless an earlier
    /// decision is kept.
    pub asked: Replicas,
    /// `asked`, clamped to the variant's bounds.
    pub after: Replicas,
    /// The reason for `asked`.
    pub outcome: SaturationOutcome,
}

/// A variant and its number of measured replicas.
#[derive(Clone, Copy)]
struct MeasuredVariant<'a> {
    state: &'a SaturationVariant,
    measured: Replicas,
}

/// The target of each of these variants, in key order.
///
/// `states` are the variants of one model and one role, each once; `analysis` covers their
/// replicas. A replica of a variant without a state counts as load and as headroom, but its variant
/// gets no target.
#[must_use]
pub fn targets(
    analysis: &SaturationAnalysis,
    states: &[SaturationVariant],
    rule: TransitionRule,
) -> Vec<SaturationTarget> {
    let mut candidates: Vec<MeasuredVariant<'_>> = states
        .iter()
        .map(|state| MeasuredVariant {
            state,
            measured: analysis.variants.get(&state.key).map_or(Replicas::ZERO, |v| v.measured),
        })
        .collect();
    candidates.sort_by(|a, b| a.state.key.cmp(&b.state.key));

    if analysis.measured == Replicas::ZERO {
        return candidates.iter().map(MeasuredVariant::unmeasured).collect();
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

/// The transition that blocks the whole model, if any: the first in key order.
fn blocking(candidates: &[MeasuredVariant<'_>], rule: TransitionRule) -> Option<Transition> {
    candidates
        .iter()
        .filter(|candidate| candidate.state.patience == TransitionPatience::Left)
        .find_map(|candidate| candidate.blocks(rule))
}

/// The single step that a model takes.
enum ModelStep<'a> {
    Up(&'a VariantKey, SpareLow),
    Wait(Transition),
    NoRoom(SpareLow),
    Down(&'a VariantKey, SpareEnough),
    Keep(SpareKept),
}

/// Picks the step: up before down, and at most one of them.
fn step<'a>(
    analysis: &SaturationAnalysis,
    all: &[MeasuredVariant<'a>],
    rule: TransitionRule,
) -> ModelStep<'a> {
    if let Some(low) = analysis.scale_up {
        // A variant whose replicas are all starting does not block scale-down. It does block
        // scale-up, because it was started for the current shortfall.
        if let Some(starting) = all.iter().find(|candidate| candidate.is_starting(rule)) {
            return ModelStep::Wait(Transition::Pending(starting.state.key.clone()));
        }
        return match cheapest(all, rule) {
            None => ModelStep::NoRoom(low),
            Some(pick) if pick.has_one_coming(rule) => {
                ModelStep::Wait(Transition::NotReporting(pick.state.key.clone()))
            }
            Some(pick) => ModelStep::Up(&pick.state.key, low),
        };
    }

    match analysis.scale_down {
        ScaleDown::Safe(enough) => dearest(all, rule)
            .map_or(ModelStep::Keep(SpareKept::NoneToSpare(enough)), |key| {
                ModelStep::Down(key, enough)
            }),
        ScaleDown::Unsafe(tight) => ModelStep::Keep(SpareKept::Tight(tight)),
        ScaleDown::TooFew { non_saturated } => ModelStep::Keep(SpareKept::TooFew { non_saturated }),
    }
}

/// The cheapest variant that can scale up; of equals, the alphabetically first.
fn cheapest<'a>(all: &[MeasuredVariant<'a>], rule: TransitionRule) -> Option<MeasuredVariant<'a>> {
    let growing = free(all, rule).copied().filter(|candidate| candidate.can_grow(rule));
    growing.min_by(MeasuredVariant::by_cost)
}

/// The variants that the load may scale.
fn free<'c, 'a>(
    all: &'c [MeasuredVariant<'a>],
    rule: TransitionRule,
) -> impl Iterator<Item = &'c MeasuredVariant<'a>> {
    all.iter().filter(move |candidate| candidate.may_move(rule))
}

/// The most expensive variant that can scale down; of equals, the alphabetically last.
///
/// A variant above its maximum scales down regardless of the load, so it is picked first. Otherwise
/// the model could lose two measured replicas at once: one to the bounds and another to the load.
fn dearest<'a>(all: &[MeasuredVariant<'a>], rule: TransitionRule) -> Option<&'a VariantKey> {
    free(all, rule)
        .filter(|c| c.is_above_max())
        .max_by(|a, b| a.by_cost(b))
        .or_else(|| all.iter().find(|c| c.is_above_max()))
        .or_else(|| free(all, rule).filter(|c| c.can_shrink()).max_by(|a, b| a.by_cost(b)))
        .map(|candidate| &candidate.state.key)
}

// === impl MeasuredVariant ===

impl MeasuredVariant<'_> {
    /// Returns true if an earlier decision is not actuated yet.
    fn keeps_wish(&self) -> bool {
        self.state.patience == TransitionPatience::Left
            && self.state.desired.is_some_and(|desired| desired != self.state.current)
    }

    /// The transition of this variant that blocks the whole model, if any.
    fn blocks(&self, rule: TransitionRule) -> Option<Transition> {
        let MeasuredVariant { state, measured } = *self;
        let SaturationVariant { key, current, pending, asleep, .. } = state;

        match rule {
            TransitionRule::PerVariant => None,
            TransitionRule::ModelWide if self.keeps_wish() => {
                Some(Transition::NotActuated(key.clone()))
            }
            TransitionRule::ModelWide => {
                (measured + *asleep != *current).then(|| Transition::NotReporting(key.clone()))
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

    /// Returns true if no replica reports because all are starting, and the model waits for the
    /// variant.
    fn is_starting(&self, rule: TransitionRule) -> bool {
        rule == TransitionRule::PendingOnly
            && self.measured == Replicas::ZERO
            && self.state.pending > Replicas::ZERO
            && self.state.patience == TransitionPatience::Left
    }

    /// Returns true if the load may scale this variant.
    fn may_move(&self, rule: TransitionRule) -> bool {
        self.measured > Replicas::ZERO && !(rule == TransitionRule::PerVariant && self.keeps_wish())
    }

    /// Returns true if a replica may be added. Under [`TransitionRule::PendingOnly`], a replica
    /// that is not reporting does not block scale-up of its variant.
    fn can_grow(&self, rule: TransitionRule) -> bool {
        let given_up = rule != TransitionRule::PendingOnly
            && self.is_partly_silent()
            && self.state.patience == TransitionPatience::Exhausted;
        self.state.pending == Replicas::ZERO
            && self.state.bounds.allow_up(self.state.current)
            && !given_up
    }

    /// Returns true if a replica may be removed. The last replica stays, because no measured load
    /// shows that there is nothing to serve.
    fn can_shrink(&self) -> bool {
        self.state.current > Replicas::ONE && self.state.bounds.allow_down(self.state.current)
    }

    /// Returns true if the variant is measured and has more replicas than its maximum.
    fn is_above_max(&self) -> bool {
        let within_max = self.state.bounds.max().is_none_or(|max| self.state.current <= max);
        self.measured > Replicas::ZERO && !within_max
    }

    /// Returns true if scale-up must wait, because some of the variant's replicas are not reporting
    /// yet.
    fn has_one_coming(&self, rule: TransitionRule) -> bool {
        match rule {
            // WVA's documents count from the reporting replicas, so that no replica is added while
            // one is starting. Taken literally, that would remove two replicas that are not
            // reporting.
            TransitionRule::ModelWide | TransitionRule::PerVariant => self.is_partly_silent(),
            TransitionRule::PendingOnly => false,
        }
    }

    /// Returns true if the variant has replicas that were not measured and do not sleep.
    fn is_partly_silent(&self) -> bool {
        self.measured + self.state.asleep < self.state.current
    }

    /// Compares by cost, then by key.
    fn by_cost(&self, other: &Self) -> Ordering {
        self.state.cost.compare(other.state.cost).then_with(|| self.state.key.cmp(&other.state.key))
    }

    fn target(&self, asked: Replicas, outcome: SaturationOutcome) -> SaturationTarget {
        let SaturationVariant { key, current, bounds, .. } = self.state;

        SaturationTarget {
            variant: key.clone(),
            before: *current,
            asked,
            after: bounds.clamp(asked),
            outcome,
        }
    }

    fn unmeasured(&self) -> SaturationTarget {
        let current = self.state.current;
        let why = if current == Replicas::ZERO {
            NoMeasurement::NoReplicas
        } else {
            NoMeasurement::NoFreshReplica
        };
        self.target(current, SaturationOutcome::Unmeasured(why))
    }

    fn waiting(&self, transition: &Transition) -> SaturationTarget {
        let kept = if self.keeps_wish() { self.state.desired } else { None };
        let asked = kept.unwrap_or(self.state.current);
        self.target(asked, SaturationOutcome::Transition(transition.clone()))
    }

    /// The target that the model's step implies for this variant.
    fn stepping(&self, step: &ModelStep<'_>) -> SaturationTarget {
        let SaturationVariant { key, current, .. } = self.state;

        match step {
            ModelStep::Up(picked, low) if *picked == key => {
                self.target(current.up(), SaturationOutcome::SpareLow(*low))
            }
            ModelStep::Up(picked, _) => {
                self.target(*current, SaturationOutcome::SpareLowElsewhere((*picked).clone()))
            }
            ModelStep::Wait(transition) => self.waiting(transition),
            ModelStep::NoRoom(low) => {
                self.target(*current, SaturationOutcome::SpareLowNoRoom(*low))
            }
            ModelStep::Down(picked, enough) if *picked == key => {
                // The bounds may remove more; the load never removes the last replica.
                let asked = current.down().max(Replicas::ONE);
                self.target(asked, SaturationOutcome::SpareEnough(*enough))
            }
            ModelStep::Down(picked, _) => {
                self.target(*current, SaturationOutcome::SpareEnoughElsewhere((*picked).clone()))
            }
            ModelStep::Keep(kept) => self.target(*current, SaturationOutcome::SpareKept(*kept)),
        }
    }
}
