//! The reason for a variant's desired replicas when analyzers size its model: their joint verdict,
//! and the variant's part in the plan.

use std::fmt;

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::analyze::ballot::{Analyzer, BallotVerdict, VoterStanding};
use crate::analyze::foresight::Floor;
use crate::analyze::foresight::card::CardTitle;
use crate::analyze::queueing::QueueingRefusal;
use crate::decide::optimize::{PlanMethod, PlanReason};
use crate::decide::rank::Rank;
use crate::units::{Fraction, Replicas};

pub use crate::analyze::foresight::DemandForecast;
pub use crate::analyze::foresight::admissible::AdmissibleRate;
pub use crate::analyze::foresight::capacity::CapacityBound;
pub use crate::analyze::foresight::demand::DemandTerm;
pub use crate::analyze::foresight::estimate::{CapacityEstimate, CapacityInterval};
pub use crate::analyze::foresight::outlier::SlowestReplica;
pub use crate::analyze::foresight::starving::Starvation;

/// The reason for a variant's desired replicas, as values that form a sentence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SizedReason {
    /// The analyzers' verdict on its model, or on its role.
    pub verdict: BallotVerdict,
    /// The effect of the plan on the variant.
    pub because: PlanReason,
    /// The method that found the plan.
    pub method: PlanMethod,
    /// Replicas that do not start and are not counted on.
    pub stuck: Replicas,
    /// The replicas among them for which no node has room.
    #[serde(default)]
    pub unplaced: Replicas,
    /// Analyzers that vote and do not count, with the reason for each.
    pub absent: Vec<(Analyzer, VoterStanding)>,
    /// The part of the demand that the plan leaves unserved, if any.
    pub short: Shortfall,
    /// The variant's rank among the variants of its model, if they were ranked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<Box<Rank>>,
    /// The forecast for its role, if `foresight` votes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub foreseen: Option<Box<DemandForecast>>,
    /// The capacity card that provides the capacity per replica until it is measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub card: Option<CardTitle>,
    /// The capacity per replica by `foresight`, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub carries: Option<CapacityEstimate>,
    /// Its slowest replica, while `foresight` has enough observations of enough replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slowest: Option<Box<SlowestReplica>>,
    /// Evidence that it starves next to idle variants, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starving: Option<Box<Starvation>>,
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

impl fmt::Display for SizedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verdict, because, method, stuck, unplaced, absent, short, .. } = self;
        let Self { rank, foreseen, card, carries, starving, .. } = self;
        write!(f, "{verdict}; {because}")?;
        if matches!(because, PlanReason::Added | PlanReason::Removed | PlanReason::Replaced) {
            write!(f, ", {method}")?;
        }
        if let Some(rank) = rank {
            write!(f, "; {rank}")?;
        }
        if *stuck > Replicas::ZERO {
            write!(f, "; {stuck} replicas are stuck in startup and do not count as capacity")?;
        }
        if *unplaced > Replicas::ZERO {
            write!(f, ", {unplaced} of them because no node has room")?;
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
        match self.slowest.as_deref().filter(|it| it.is_outlier()) {
            None => Ok(()),
            Some(slowest) => write!(f, "; {slowest}"),
        }
    }
}
