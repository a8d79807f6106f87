//! The sizing of a variant by the analyzers: its values, and the reason that states them.
//!
//! [`SizingValues`] has the values: the joint verdict, the forecast, and the variant's part in the
//! plan. Proposals and decisions have it, and everything that compares or publishes a value takes it
//! from there. [`SizedReason`] only states the same values in words. Its values are private to this
//! stage, so that no other code can read them out of an explanation.

use std::fmt;
use std::sync::Arc;

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::analyze::ballot::{Analyzer, BallotVerdict, VoterStanding};
use crate::analyze::foresight::Floor;
use crate::analyze::foresight::card::CardTitle;
use crate::analyze::queueing::QueueingRefusal;
use crate::decide::optimize::{PlanMethod, PlanReason};
use crate::decide::rank::Rank;
use crate::units::{Fraction, NounCount, Replicas};

pub use crate::analyze::foresight::DemandForecast;
pub use crate::analyze::foresight::admissible::AdmissibleRate;
pub use crate::analyze::foresight::capacity::CapacityBound;
pub use crate::analyze::foresight::demand::DemandTerm;
pub use crate::analyze::foresight::estimate::{CapacityEstimate, CapacityInterval};
pub use crate::analyze::foresight::outlier::SlowestReplica;
pub use crate::analyze::foresight::starving::Starvation;

/// The values behind a variant's desired replicas when analyzers size its model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SizingValues {
    /// The analyzers' verdict on its model, or on its role.
    pub verdict: BallotVerdict,
    /// The method that found the plan.
    pub method: PlanMethod,
    /// Replicas that do not start and are not counted on.
    pub stuck: Replicas,
    /// The replicas among them for which no node has room.
    #[serde(default)]
    pub unplaced: Replicas,
    /// Replicas that sleep and are not counted on.
    #[serde(default)]
    pub asleep: Replicas,
    /// Analyzers that vote and do not count, with the reason for each.
    pub absent: Vec<(Analyzer, VoterStanding)>,
    /// The result of comparing the plan with the demand on its model, or on its role.
    pub short: Shortfall,
    /// The variant's rank among the variants of its model, if they were ranked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<Box<Rank>>,
    /// The forecast for its role, if `foresight` votes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub foreseen: Option<DemandForecast>,
    /// The capacity card that provides the capacity per replica until it is measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub card: Option<CardTitle>,
    /// The capacity per replica by `foresight`, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub carries: Option<CapacityEstimate>,
    /// Its slowest replica, while `foresight` has enough observations of enough replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slowest: Option<SlowestReplica>,
    /// Evidence that it starves next to idle variants, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starving: Option<Starvation>,
}

/// The reason for a variant's desired replicas when analyzers size its model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SizedReason {
    /// The effect of the plan on the variant.
    pub because: PlanReason,
    /// The values that it states. A file has them only here.
    #[serde(flatten)]
    pub(super) sizing: Arc<SizingValues>,
}

/// The result of comparing a plan with the demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shortfall {
    /// The plan covers the demand.
    None,
    /// The plan does not cover the demand within the bounds.
    Some,
}

/// The reason why no number of replicas meets a latency target, from the analyzer that applies it.
#[derive(Clone, Copy, Debug, Display, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnmeetableTarget {
    /// According to the queueing model.
    Queueing(QueueingRefusal),
    /// According to the duration of an iteration.
    Foresight(Floor),
}

// === impl SizedReason ===

impl SizedReason {
    /// The reason that states these values.
    #[must_use]
    pub const fn new(because: PlanReason, sizing: Arc<SizingValues>) -> Self {
        Self { because, sizing }
    }

    /// Returns true if the analyzers find capacity short.
    pub(super) fn is_short(&self) -> bool {
        matches!(self.sizing.verdict, BallotVerdict::Grow(_))
    }

    /// Returns true if the plan does not cover the demand.
    pub(super) fn leaves_demand(&self) -> bool {
        self.sizing.short == Shortfall::Some
    }

    /// The same reason without the ranking of the model's variants.
    pub(super) fn without_rank(&self) -> Self {
        let sizing = SizingValues { rank: None, ..SizingValues::clone(&self.sizing) };
        Self { because: self.because, sizing: Arc::new(sizing) }
    }
}

impl fmt::Display for SizedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { because, sizing } = self;
        let SizingValues { verdict, method, stuck, unplaced, asleep, absent, .. } = &**sizing;
        let SizingValues { short, rank, foreseen, card, carries, slowest, starving, .. } =
            &**sizing;

        match because {
            // Its display names a shortfall.
            PlanReason::Added if !self.is_short() => write!(f, "{verdict}; more of this variant")?,
            // After a lower maximum, the others don't have enough.
            PlanReason::Removed if *short == Shortfall::Some => {
                write!(f, "{verdict}; fewer of this variant")?;
            }
            because => write!(f, "{verdict}; {because}")?,
        }
        if matches!(because, PlanReason::Added | PlanReason::Removed | PlanReason::Replaced) {
            write!(f, ", {method}")?;
        }
        if let Some(rank) = rank {
            write!(f, "; {rank}")?;
        }
        if *stuck > Replicas::ZERO {
            let stuck = NounCount(
                stuck.count(),
                "replica is stuck in startup and does not count as capacity",
                "replicas are stuck in startup and do not count as capacity",
            );
            write!(f, "; {stuck}")?;
        }
        if *unplaced > Replicas::ZERO {
            write!(f, ", {unplaced} of them because no node has room")?;
        }
        if *asleep > Replicas::ZERO {
            let sleepers = NounCount(
                asleep.count(),
                "replica sleeps and does not count as capacity",
                "replicas sleep and do not count as capacity",
            );
            write!(f, "; {sleepers}")?;
        }
        for (analyzer, standing) in absent {
            write!(f, "; {analyzer} is ignored, because {standing}")?;
        }
        if let Some(starving) = starving {
            write!(f, "; {starving}")?;
        }
        if carries.is_some_and(|it| it.usable == Fraction::ZERO) {
            f.write_str(
                "; it is unused, because the router would fill it before the other variants",
            )?;
        }

        match short {
            Shortfall::None => {}
            Shortfall::Some => f.write_str("; demand exceeds capacity at max replicas")?,
        }

        if let Some(foreseen) = foreseen {
            write!(f, " ({foreseen})")?;
        }
        if let Some(card) = card {
            write!(f, "; capacity per replica taken from {card} until measured")?;
        }
        match slowest.as_ref().filter(|it| it.is_outlier()) {
            None => Ok(()),
            Some(slowest) => write!(f, "; {slowest}"),
        }
    }
}
