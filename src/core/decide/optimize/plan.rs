//! The plan of one model: the replicas of each variant, with their reasons, and the cost.

use std::sync::Arc;

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::analyze::capacity::Unit;
use crate::decide::optimize::cover::SLACK;
use crate::decide::rank::Ranking;
use crate::fleet::{ModelKey, Role, VariantKey};
use crate::units::{Amount, CostPerHour, Fraction, Replicas};

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
    #[display("cheapest plan (optimal, {steps} step{})", if *steps == 1 { "" } else { "s" })]
    Exact {
        /// Partial plans that were examined.
        steps: u32,
    },
    /// The search ended early. The result is the best plan found, which never costs more than
    /// adding replicas in the order of the search.
    #[display("cheapest of {steps} steps, perhaps not optimal")]
    Bounded {
        /// Partial plans that were examined.
        steps: u32,
    },
    /// Replicas were added by price rank, or removed at the least cost.
    #[display("ranked by price")]
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
    #[display("the plan keeps the current replicas")]
    Kept,
    /// Replicas are added for the shortfall.
    #[display("added for the shortfall")]
    Added,
    /// A replica is added to learn its capacity, because the variants of known capacity are not
    /// enough.
    #[display("added to learn the capacity per replica, because the other variants are not enough")]
    Tried,
    /// Replicas are removed, because the others cover the demand.
    #[display("the other replicas have enough capacity")]
    Removed,
    /// Replicas are removed, because their replacements serve load.
    #[display("their replacements serve")]
    Replaced,
    /// Replicas that the plan removes stay until their replacements serve load.
    #[display("{planned} once the replacements serve")]
    Serving {
        /// Replicas in the final plan.
        planned: Replicas,
    },
    /// Replicas that the plan removes stay, because a check refuses to remove them.
    #[display("{planned} would be enough, but scale-down is blocked")]
    Refused {
        /// Replicas in the final plan.
        planned: Replicas,
    },
    /// The capacity per replica is unknown, so the replicas stay inside their bounds.
    #[display("capacity per replica is unknown")]
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

impl ModelPlan {
    /// Returns true if the plan does not cover the demand on the variants of a role.
    #[must_use]
    pub fn is_short_of(&self, role: Role) -> bool {
        let mut of_role = self.covers.iter().filter(|cover| cover.role.is_none_or(|it| it == role));
        of_role.any(|cover| cover.missing().is_some())
    }

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
        Fraction::new(missing).filter(|share| share.fraction() > SLACK)
    }
}
