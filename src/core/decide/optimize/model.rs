//! A model to plan: its variants, and the reports of the analyzers.

use smallvec::SmallVec;

use crate::analyze::capacity::CapacityReport;
use crate::fleet::{Accelerator, Bounds, ModelKey, Role, VariantKey};
use crate::units::{CostPerHour, Fraction, Gpus, Replicas};

/// A list with an entry per variant of a model. Nearly all models have a handful of variants, for
/// which nothing is allocated. A plan creates dozens of such lists.
pub(super) type Few<T> = SmallVec<[T; 8]>;

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
