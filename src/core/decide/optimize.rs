//! The plan of a model: replicas per variant that cover its demand.
//!
//! A [`PlanModel`] has its variants ([`Candidate`]), the reports of the voting analyzers
//! ([`VotingReport`]), and the report that sizes the variants. A rule turns it into a
//! [`ModelPlan`]: desired replicas per variant, the demand, the plan's capacity and cost, and the
//! method that found it.
//!
//! - [`least_cost()`] finds the cheapest replicas that cover the demand of every voice. It is exact
//!   for common problem sizes, and reports when it is not.
//! - [`ranked()`] adds replicas by the price rank of [`rank`](crate::decide::rank), round by round.
//! - [`plan_all`] plans several models by either rule, inside limits that they share.
//!
//! # Model
//!
//! A variant has `x` replicas, and its scale target asks for `now`. `p` is the capacity per replica
//! in the unit of a voice, and `c` the cost per replica and hour:
//!
//! ```text
//! minimize    sum of  c * x  +  start * c * max(0, x - now)  +  drain * c * max(0, now - x)
//! such that   sum of  p * x  >=  wanted         for each voice and role
//!             min <= x <= max                   for each variant
//!             sum of  gpus * max(0, x - now)  <=  free      for each limited accelerator
//!             sum of  c * max(0, x - now)  <=  left         for each budget
//! ```
//!
//! `wanted` is the present and pending capacity plus the shortfall. If there is headroom, it is the
//! present capacity without the headroom. Between the two thresholds of an analyzer there is
//! neither, and `wanted` is the present and pending capacity. Replicas that are being replaced are
//! not part of it, or each plan would replace them again. While it is unknown which replicas these
//! are ([`Candidate::leaving`]), pending replicas are no reason to replace others. Each voice has
//! its own constraints in its own unit, so tokens are never subtracted from requests.
//!
//! # Units
//!
//! Cost is per hour, in the currency of the configuration. Multiplying every cost by one factor
//! changes no plan. `start` and `drain` are shares of a replica's cost ([`Switching`]).
//!
//! # Source
//!
//! Covering integer programs are solved by branch and bound (Land and Doig 1960) over the linear
//! relaxation. The optimizers of llm-d's Workload Variant Autoscaler only add replicas where they
//! are cheapest for their capacity; `docs/decisions.md` compares them.

mod cover;
mod explain;
mod fleet;
mod least_cost;
mod ranked;
mod room;
mod sheet;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use derive_more::Display;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::analyze::capacity::{CapacityReport, Unit};
use crate::decide::rank::Ranking;
use crate::fleet::{Accelerator, Bounds, ModelKey, Role, VariantKey};
use crate::units::{Amount, CostPerHour, Fraction, Gpus, Replicas};

pub(crate) use crate::decide::optimize::sheet::{SLACK, whole_count};

pub use crate::decide::optimize::fleet::{Contender, FleetPlan, plan_all};
pub use crate::decide::optimize::least_cost::{
    Consent, GrowthRule, KeptMin, OptimizerPolicy, Switching, least_cost,
};
pub use crate::decide::optimize::ranked::ranked;
pub use crate::decide::optimize::room::{FreeBudget, Headroom, SupplyHeadroom};

/// A list with an entry per variant of a model. Nearly all models have a handful of variants, for
/// which nothing is allocated. A plan creates dozens of such lists.
type Few<T> = SmallVec<[T; 8]>;

/// A variant that a plan can place replicas in.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The variant.
    pub key: VariantKey,
    /// The part of a request that it serves.
    pub role: Role,
    /// Its accelerator; `None` if unknown.
    pub accelerator: Option<Accelerator>,
    /// Accelerators per replica.
    pub gpus: Gpus,
    /// Cost per replica.
    pub cost: CostPerHour,
    /// Cost per replica without a discount.
    pub list_price: CostPerHour,
    /// Factor on its rank for scarce hardware that its model does not need.
    pub mismatch: Fraction,
    /// The bounds of its replicas.
    pub bounds: Bounds,
    /// Replicas that its scale target asks for.
    pub current: Replicas,
    /// Of these, replicas that do not serve load yet.
    pub pending: Replicas,
    /// Of these, replicas that an earlier plan removes and that stay until others serve load. No
    /// report counts them as supply, so they are not replaced twice.
    pub leaving: Replicas,
    /// True if none of its replicas is asked for, so that one may be tried.
    pub untried: bool,
}

/// A model to plan.
#[derive(Clone, Debug)]
pub struct PlanModel<'a> {
    /// The model.
    pub key: ModelKey,
    /// Its variants, in any order.
    pub candidates: Vec<Candidate>,
    /// The report that sizes the variants, for steps that need a single report.
    pub sizing: &'a CapacityReport,
    /// The reports of the voting analyzers.
    pub voices: Vec<VotingReport<'a>>,
}

/// A voting analyzer.
#[derive(Clone, Debug)]
pub struct VotingReport<'a> {
    /// Its report.
    pub report: &'a CapacityReport,
    /// The freshness of the report, which decides whether it can block scale-down.
    pub standing: ReportFreshness,
}

/// The freshness of an analyzer's report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportFreshness {
    /// Fresh: the report can ask for more, and scale-down needs its consent.
    Live,
    /// Stale: the demand of the report still counts, and it blocks no scale-down.
    Stale,
}

/// The result of one rule for one model.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub struct ModelPlan {
    /// The model.
    pub model: ModelKey,
    /// The method that found the plan.
    pub method: PlanMethod,
    /// Each variant, in key order.
    pub placements: Vec<Placement>,
    /// The demand of each voice in each role, and the capacity of the plan.
    pub covers: Vec<DemandCover>,
    /// Cost of all replicas before the plan.
    pub cost_before: CostPerHour,
    /// Cost of all replicas after the plan.
    pub cost_after: CostPerHour,
    /// The rankings of the variants, if replicas were added by rank.
    pub rankings: Arc<[Ranking]>,
}

/// The method that found a plan.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlanMethod {
    /// No cheaper plan exists.
    #[display("the least cost, exactly ({steps} step{})", if *steps == 1 { "" } else { "s" })]
    Exact {
        /// Partial plans that were examined.
        steps: u32,
    },
    /// The search ended early. The result is the best plan found, which never costs more than
    /// adding replicas in the order of the search.
    #[display("the best of {steps} steps, perhaps not the least cost")]
    Bounded {
        /// Partial plans that were examined.
        steps: u32,
    },
    /// Replicas were added by price rank, or removed at the least cost.
    #[display("by the rank of its price")]
    Ranked,
}

/// The effect of a plan on one variant.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    /// The variant.
    pub key: VariantKey,
    /// Replicas that its scale target asks for.
    pub before: Replicas,
    /// Replicas that it should ask for.
    pub after: Replicas,
    /// Cost per replica.
    pub cost: CostPerHour,
    /// The reason for the change, or for keeping the replicas.
    pub because: PlanReason,
}

/// The reason for a variant's desired replicas.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlanReason {
    /// The plan keeps the current replicas.
    #[display("the plan needs no other number")]
    Kept,
    /// Replicas are added for the shortfall.
    #[display("for what is missing")]
    Added,
    /// A replica is added to learn its capacity, because the variants of known capacity are not
    /// enough.
    #[display("to learn what one carries, as the others do not suffice")]
    Tried,
    /// Replicas are removed, because the others cover the demand.
    #[display("the others carry what is wanted")]
    Removed,
    /// Replicas are removed, because their replacements serve load.
    #[display("those that replace them carry load")]
    Replaced,
    /// Replicas that the plan removes stay until their replacements serve load.
    #[display("{planned} once what replaces the others carries load")]
    Serving {
        /// Replicas in the final plan.
        planned: Replicas,
    },
    /// Replicas that the plan removes stay, because a check refuses to remove them.
    #[display(
        "{planned} {} enough, but a check does not let the others go",
        if *planned == Replicas::ONE { "is" } else { "are" }
    )]
    Refused {
        /// Replicas in the final plan.
        planned: Replicas,
    },
    /// The capacity per replica is unknown, so the replicas stay inside their bounds.
    #[display("what one replica carries is unknown")]
    Unknown,
}

/// The demand of one voice on the variants of one role.
#[derive(Clone, Debug, PartialEq)]
pub struct DemandCover {
    /// The unit of the amounts.
    pub unit: Unit,
    /// The role; `None` if all variants serve whole requests.
    pub role: Option<Role>,
    /// The capacity that the voice asks for.
    pub wanted: Amount,
    /// The capacity of the plan, once all its replicas serve.
    pub planned: Amount,
}

/// Plans one model by the policy's rule, inside the free room if that is limited.
pub fn plan(
    model: &PlanModel<'_>,
    room: Option<&SupplyHeadroom>,
    policy: &OptimizerPolicy,
    check: &dyn Fn(&VariantKey, Replicas) -> Consent,
) -> ModelPlan {
    match &policy.rule {
        GrowthRule::LeastCost => least_cost(model, room, policy, check),
        GrowthRule::Ranked(by) => ranked(model, room, policy, by, check),
    }
}

impl ModelPlan {
    /// Returns the largest share of the demand that the plan does not cover; `None` if it covers
    /// all demand.
    #[must_use]
    pub fn shortfall(&self) -> Option<(&DemandCover, Fraction)> {
        self.covers
            .iter()
            .filter_map(|cover| Some((cover, cover.missing()?)))
            .max_by(|a, b| a.1.compare(b.1))
    }
}

impl DemandCover {
    /// Returns the share of the demand that is not covered, if there is any.
    fn missing(&self) -> Option<Fraction> {
        let wanted = self.wanted.amount();
        let missing = (wanted - self.planned.amount()) / wanted;
        Fraction::new(missing).filter(|share| share.fraction() > sheet::SLACK)
    }
}
