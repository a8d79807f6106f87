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
pub(super) mod model;
mod plan;
mod ranked;
pub(super) mod room;
mod rule;
mod sheet;

#[cfg(test)]
mod tests;

pub(crate) use crate::decide::optimize::cover::SLACK;
pub(crate) use crate::decide::optimize::sheet::whole_count;

pub use crate::decide::optimize::fleet::{Contender, FleetPlan, plan_all};
pub use crate::decide::optimize::least_cost::{
    Consent, GrowthRule, KeptMin, OptimizerPolicy, Switching, least_cost,
};
pub use crate::decide::optimize::model::{Candidate, PlanModel, ReportFreshness, VotingReport};
pub use crate::decide::optimize::plan::{
    DemandCover, ModelPlan, Placement, PlanMethod, PlanReason,
};
pub use crate::decide::optimize::ranked::ranked;
pub use crate::decide::optimize::room::{FreeBudget, Headroom, SupplyHeadroom};
pub use crate::decide::optimize::rule::plan;
