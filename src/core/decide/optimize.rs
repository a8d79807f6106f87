//! Which variants carry a model's load: replicas per variant that meet what is required.
//!
//! A [`Model`] brings its variants ([`Candidate`]), the reports of the analyzers that have a say
//! ([`Voice`]), and which of them sizes the variants. A rule turns it into a [`Plan`]: a number a
//! variant, with what was asked, what the plan carries and costs, and how it was found.
//!
//! - [`least_cost`] finds the cheapest numbers that carry what every voice asks for. It is exact
//!   for the sizes that occur, and says so when it is not.
//! - [`ranked`] adds by the rank of price of [`rank`](crate::decide::rank), round by round.
//! - [`plan_all`] plans several models by either, inside limits that they share.
//!
//! # Model
//!
//! With `x` replicas of a variant, `p` what one carries in the unit of a voice, `c` what one costs
//! an hour, and `now` what the scale target asks for:
//!
//! ```text
//! minimise    sum of  c * x  +  start * c * max(0, x - now)  +  drain * c * max(0, now - x)
//! such that   sum of  p * x  >=  wanted         for each voice and role
//!             min <= x <= max                   for each variant
//!             sum of  gpus * max(0, x - now)  <=  free      for each limited accelerator
//!             sum of  c * max(0, x - now)  <=  left         for each budget
//! ```
//!
//! `wanted` is what is there or coming, plus what is missing; when something is spare, what is
//! there without it. Between the two thresholds of an analyzer neither is the case, and `wanted` is
//! what is there or coming. Replicas that are being replaced are no part of it, or each plan would
//! replace them once more; and while nobody knows which of them are ([`Candidate::leaving`]) nothing
//! that is coming is taken for an occasion to replace anything. Each voice has constraints of its own
//! in its own unit, so tokens are never subtracted from requests.
//!
//! # Units
//!
//! Cost is per hour, in the currency of the configuration; multiplying every cost by one factor
//! changes no plan. `start` and `drain` are shares of a replica's cost ([`Switching`]).
//!
//! # Source
//!
//! Covering integer programs are solved by branch and bound (Land and Doig 1960) over the linear
//! relaxation. The optimizers of llm-d's Workload Variant Autoscaler only add where a replica is
//! cheapest for its capacity; `docs/decisions.md` compares.

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
    Consent, KeptMin, Policy, Rule, Switching, least_cost,
};
pub use crate::decide::optimize::ranked::ranked;
pub use crate::decide::optimize::room::{Headroom, Purse, Room};

/// Something of each variant of a model. Nearly all models have a handful, and for those nothing is
/// allocated; a plan makes dozens of such lists.
type Few<T> = SmallVec<[T; 8]>;

/// A variant that replicas can be put in.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The variant.
    pub key: VariantKey,
    /// What part of a request it serves.
    pub role: Role,
    /// What it runs on; `None` when nobody can say.
    pub accelerator: Option<Accelerator>,
    /// Accelerators that one replica takes.
    pub gpus: Gpus,
    /// What one replica costs.
    pub cost: CostPerHour,
    /// What one replica costs without a discount.
    pub list_price: CostPerHour,
    /// Factor on its rank for something scarce that its model does not need.
    pub mismatch: Fraction,
    /// What it may be scaled to.
    pub bounds: Bounds,
    /// Replicas that its scale target asks for.
    pub current: Replicas,
    /// Those of them that do not carry load yet.
    pub pending: Replicas,
    /// Those of them that an earlier plan does without, and that stay until others carry load. No
    /// report counts them as supply, so that nothing takes their place twice.
    pub leaving: Replicas,
    /// Whether nobody asks for any of it, so that one may be tried.
    pub untried: bool,
}

/// A model whose replicas are to be placed.
#[derive(Clone, Debug)]
pub struct Model<'a> {
    /// The model.
    pub key: ModelKey,
    /// Its variants, in any order.
    pub candidates: Vec<Candidate>,
    /// The report that sizes the variants, where a single one is needed.
    pub sizing: &'a CapacityReport,
    /// The reports that have a say.
    pub voices: Vec<Voice<'a>>,
}

/// An analyzer that has a say.
#[derive(Clone, Debug)]
pub struct Voice<'a> {
    /// What it found.
    pub report: &'a CapacityReport,
    /// Whether what it says can be relied on to take replicas away.
    pub standing: Standing,
}

/// Whether an analyzer's report rests on fresh data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It does: it can ask for more, and nothing goes without its consent.
    Live,
    /// It does not: what it asked for still counts, and it keeps nothing.
    Stale,
}

/// What one rule makes of one model.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The model.
    pub model: ModelKey,
    /// How the numbers were found.
    pub method: Method,
    /// Each variant, in the order of their keys.
    pub placements: Vec<Placement>,
    /// What each voice asked of each role, and what the plan carries.
    pub covers: Vec<Cover>,
    /// What all replicas cost before.
    pub cost_before: CostPerHour,
    /// What all replicas of the plan cost.
    pub cost_after: CostPerHour,
    /// How variants were ranked, where replicas were added by rank.
    pub rankings: Arc<[Ranking]>,
}

/// How a plan was found.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// No cheaper plan exists.
    #[display("the least cost, exactly ({steps} step{})", if *steps == 1 { "" } else { "s" })]
    Exact {
        /// Partial plans that were looked at.
        steps: u32,
    },
    /// The search ended before it could tell; the best plan that it met, which is never dearer than
    /// adding by cost per capacity.
    #[display("the best of {steps} steps, perhaps not the least cost")]
    Bounded {
        /// Partial plans that were looked at.
        steps: u32,
    },
    /// Replicas were added by the rank of their price, or removed at the least cost.
    #[display("by the rank of its price")]
    Ranked,
}

/// What becomes of one variant.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    /// The variant.
    pub key: VariantKey,
    /// What its scale target asks for.
    pub before: Replicas,
    /// What it should ask for.
    pub after: Replicas,
    /// What one replica costs.
    pub cost: CostPerHour,
    /// Why.
    pub because: Because,
}

/// Why a variant gets its number.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Because {
    /// The plan needs no other number.
    #[display("the plan needs no other number")]
    Kept,
    /// Replicas are added for what is missing.
    #[display("for what is missing")]
    Added,
    /// Nobody knows what one carries, and those of which somebody does do not suffice.
    #[display("to learn what one carries, as the others do not suffice")]
    Tried,
    /// Replicas go, because the rest carries what is asked.
    #[display("the others carry what is wanted")]
    Removed,
    /// Replicas go, because those that replace them carry load.
    #[display("those that replace them carry load")]
    Replaced,
    /// Replicas that the plan does without stay until those that replace them carry load.
    #[display("{planned} once what replaces the others carries load")]
    Serving {
        /// What the plan wants in the end.
        planned: Replicas,
    },
    /// Replicas that the plan does without stay, because a check does not let them go.
    #[display(
        "{planned} {} enough, but a check does not let the others go",
        if *planned == Replicas::ONE { "is" } else { "are" }
    )]
    Refused {
        /// What the plan wants in the end.
        planned: Replicas,
    },
    /// Nobody knows what one replica carries, so the number stays inside its bounds.
    #[display("what one replica carries is unknown")]
    Unknown,
}

/// What one voice asked of the variants of one role.
#[derive(Clone, Debug, PartialEq)]
pub struct Cover {
    /// The unit of the amounts.
    pub unit: Unit,
    /// The role; `None` where all variants serve whole requests.
    pub role: Option<Role>,
    /// How much must be carried.
    pub wanted: Amount,
    /// How much the plan carries, once all its replicas do.
    pub planned: Amount,
}

/// Plans one model by the rule of the policy, inside what is free if that is limited.
pub fn plan(
    model: &Model<'_>,
    room: Option<&Room>,
    policy: &Policy,
    check: &dyn Fn(&VariantKey, Replicas) -> Consent,
) -> Plan {
    match &policy.rule {
        Rule::LeastCost => least_cost(model, room, policy, check),
        Rule::Ranked(by) => ranked(model, room, policy, by, check),
    }
}

impl Plan {
    /// The largest share of what was asked that the plan leaves uncarried; `None` when it carries
    /// everything.
    #[must_use]
    pub fn shortfall(&self) -> Option<(&Cover, Fraction)> {
        let short = |cover: &Cover| {
            let wanted = cover.wanted.amount();
            let missing = (wanted - cover.planned.amount()) / wanted;
            Fraction::new(missing).filter(|share| share.fraction() > sheet::SLACK)
        };
        self.covers
            .iter()
            .filter_map(|cover| Some((cover, short(cover)?)))
            .max_by(|a, b| a.1.compare(b.1))
    }
}
