//! The anchor of the Workload Variant Autoscaler: one report made of two.
//!
//! WVA's optimizers size replicas by one report, the *anchor*. Its token analyzer says which
//! variants there are and how many replicas they have; the *binding* analyzer says what one carries
//! and what is asked for. That is the token analyzer where it votes and is alive, else the one other
//! that does and is; of two others neither binds, and the model is held. Source: WVA, commit
//! ff40965; its behaviour is described in `docs/decisions.md`.

use jiff::Timestamp;
use plimsoll::analyze::ballot::{Analyzer, Vote, VotingRight};
use plimsoll::analyze::capacity::{CapacityReport, VariantCapacity};
use plimsoll::units::{Amount, Seconds};

/// The report that WVA sizes replicas by.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Anchor {
    /// The analyzer that says what a replica carries.
    pub(crate) sized_by: Analyzer,
    /// The variants with their sizes.
    pub(crate) report: CapacityReport,
}

/// The anchor of a ballot; `None` when the model is held.
pub(crate) fn anchor(now: Timestamp, patience: Seconds, votes: &[Vote<'_>]) -> Option<Anchor> {
    let binds = |vote: &&Vote<'_>| {
        vote.franchise == VotingRight::Votes
            && vote.report.is_some()
            && vote.informed_at.is_some_and(|at| age(now, at) <= patience)
    };
    let carrier = votes.iter().find(|vote| vote.analyzer == Analyzer::Tokens);
    if let Some(report) = carrier.filter(binds).and_then(|carrier| carrier.report) {
        return Some(Anchor { sized_by: Analyzer::Tokens, report: report.clone() });
    }
    let mut others = votes.iter().filter(|vote| vote.analyzer != Analyzer::Tokens).filter(binds);
    let (binding, None) = (others.next()?, others.next()) else { return None };
    let binding_report = binding.report?;
    let (sized_by, identity) = (binding.analyzer, carrier.and_then(|carrier| carrier.report));
    let Some(identity) = identity else {
        return Some(Anchor { sized_by, report: binding_report.clone() });
    };
    let carrier_votes = carrier.is_some_and(|carrier| carrier.franchise == VotingRight::Votes);
    let variants = identity.variants.iter().map(|variant| {
        let sized = binding_report.variants.iter().find(|sized| sized.key == variant.key);
        let own = Some(variant).filter(|_| carrier_votes);
        resized(variant, sized.or(own))
    });
    let report = CapacityReport {
        unit: binding_report.unit,
        variants: variants.collect(),
        total: binding_report.total,
        roles: binding_report.roles.clone(),
    };
    Some(Anchor { sized_by, report })
}

/// The time since an instant; none where the clock was set back.
fn age(now: Timestamp, at: Timestamp) -> Seconds {
    Seconds::from_span(now.duration_since(at)).unwrap_or_default()
}

/// A variant with the size that another report gives it, which may be none.
fn resized(variant: &VariantCapacity, sized: Option<&VariantCapacity>) -> VariantCapacity {
    VariantCapacity {
        per_replica: sized.and_then(|sized| sized.per_replica),
        demand: sized.map_or(Amount::ZERO, |sized| sized.demand),
        confidence: sized.map_or(variant.confidence, |sized| sized.confidence),
        ..variant.clone()
    }
}
