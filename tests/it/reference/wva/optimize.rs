//! WVA's optimizers: replicas are added where one is cheapest for its capacity, and never exchanged.
//!
//! [`cost_aware`] plans one model, [`greedy_by_score`] several inside free accelerators, and
//! [`water_fill`] shares contended accelerators.
//!
//! # Source
//!
//! The optimizers of the Workload Variant Autoscaler. `docs/decisions.md` has the reasons for the
//! differences: ties are broken by name, and those of [`Defects`].

mod cost_aware;
mod greedy;
mod rescale;
mod sheet;

mod tests;

use plimsoll::analyze::capacity::CapacityReport;
use plimsoll::decide::optimize::{Candidate, ReportFreshness};
use plimsoll::fleet::{ModelKey, VariantKey};
use plimsoll::units::{Replicas, Weight};

pub(crate) use cost_aware::cost_aware;
pub(crate) use greedy::{Rescale, Share, greedy_by_score};
pub(crate) use rescale::{Claim, water_fill};

/// Whether the defects of WVA that decide numbers hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defects {
    /// They are mended: each voice's need is reduced in its own unit, a role that misses nothing
    /// cannot keep another from growing, roles take from one budget, and a model with two roles has
    /// as many turns as any other.
    Mended,
    /// They are kept: every need is reduced in the unit of the report that sizes the variants, no
    /// role grows while another is at its maximum, each role is held against the whole budget, and
    /// a model with two roles has one turn.
    Kept,
}

/// A model whose replicas are to be placed.
#[derive(Clone)]
pub(crate) struct Model<'a> {
    pub(crate) key: ModelKey,
    /// How much it counts beside other models.
    pub(crate) priority: Weight,
    /// Its variants, in any order.
    pub(crate) candidates: Vec<Candidate>,
    /// The report that sizes the variants.
    pub(crate) sizing: &'a CapacityReport,
    /// The reports that vote.
    pub(crate) voices: Vec<Voice<'a>>,
}

/// An analyzer that votes.
#[derive(Clone)]
pub(crate) struct Voice<'a> {
    pub(crate) report: &'a CapacityReport,
    /// How much it counts beside other analyzers.
    pub(crate) score: Weight,
    /// Whether its data is fresh enough to take replicas away.
    pub(crate) standing: ReportFreshness,
}

/// The numbers of one model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    pub(crate) model: ModelKey,
    pub(crate) method: Method,
    /// Each variant with its replicas, in the order of their keys.
    pub(crate) targets: Vec<(VariantKey, Replicas)>,
}

/// How a plan was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// Replicas were added by cost per capacity, or removed from the most expensive.
    CostAware,
    /// As [`Method::CostAware`], inside free accelerators, the model with the largest weighted need
    /// first.
    GreedyByScore,
    /// The accelerators of a contended kind were shared by weight and demand.
    Rescale,
}

impl Plan {
    /// The replicas of a variant.
    pub(crate) fn target(&self, key: &VariantKey) -> Option<Replicas> {
        self.targets.iter().find(|(variant, _)| variant == key).map(|(_, replicas)| *replicas)
    }
}
