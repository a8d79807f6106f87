//! Why a variant gets its number where analyzers size its model: what they say together, and what
//! became of the variant in the plan that meets it.

use std::fmt;

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::analyze::ballot::{Analyzer, Standing, Verdict};
use crate::analyze::foresight::Floor;
use crate::analyze::foresight::card::CardTitle;
use crate::analyze::queueing::Refusal;
use crate::decide::optimize::{Because, Method};
use crate::decide::rank::Rank;
use crate::units::{Fraction, Replicas};

pub use crate::analyze::foresight::Foreseen;
pub use crate::analyze::foresight::admissible::Admissible;
pub use crate::analyze::foresight::capacity::Bound;
pub use crate::analyze::foresight::demand::Term;
pub use crate::analyze::foresight::estimate::{Estimate, Interval};
pub use crate::analyze::foresight::outlier::Slowest;
pub use crate::analyze::foresight::starving::Starvation;

/// Why a variant gets its number, in numbers that make a sentence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sized {
    /// What the analyzers say of its model, or of its role.
    pub verdict: Verdict,
    /// What becomes of the variant in the plan.
    pub because: Because,
    /// How the plan was found.
    pub method: Method,
    /// Replicas that do not start, and are not counted on.
    pub stuck: Replicas,
    /// Those of them for which no node has room.
    #[serde(default)]
    pub unplaced: Replicas,
    /// The analyzers that vote and do not count, and why.
    pub absent: Vec<(Analyzer, Standing)>,
    /// Whether the plan leaves a part of what is asked uncarried.
    pub short: Shortfall,
    /// How it fared when its model's variants were ranked, if they were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<Box<Rank>>,
    /// What is foreseen for its role, where `foresight` votes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub foreseen: Option<Box<Foreseen>>,
    /// The card that says what its replicas carry, until they have shown it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub card: Option<CardTitle>,
    /// What one of its replicas carries by `foresight`, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub carries: Option<Estimate>,
    /// The rate of requests that its serving replicas can take in time, if `foresight` knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admissible: Option<Box<Admissible>>,
    /// Its slowest replica, while `foresight` has enough lessons of enough replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slowest: Option<Box<Slowest>>,
    /// That it starves next to idle variants, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starving: Option<Box<Starvation>>,
}

/// Whether a plan carries what is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shortfall {
    /// It does.
    None,
    /// It does not, inside the bounds.
    Some,
}

/// Why no number of replicas meets a latency target, as the analyzer says that judges by it.
#[derive(Clone, Copy, Debug, Display, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unmeetable {
    /// By the queueing model.
    Queueing(Refusal),
    /// By what an iteration takes.
    Foresight(Floor),
}

impl fmt::Display for Sized {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verdict, because, method, stuck, unplaced, absent, short, .. } = self;
        let Self { rank, foreseen, card, carries, starving, .. } = self;
        write!(f, "{verdict}; {because}")?;
        if matches!(because, Because::Added | Because::Removed | Because::Replaced) {
            write!(f, ", {method}")?;
        }
        if let Some(rank) = rank {
            write!(f, "; {rank}")?;
        }
        if *stuck > Replicas::ZERO {
            write!(f, "; {stuck} do not start and are not counted on")?;
        }
        if *unplaced > Replicas::ZERO {
            write!(f, ", {unplaced} of them because no node has room")?;
        }
        for (analyzer, standing) in absent {
            write!(f, "; {analyzer} has no say, because {standing}")?;
        }
        if let Some(starving) = starving {
            write!(f, "; {starving}")?;
        }
        if carries.is_some_and(|it| it.usable == Fraction::ZERO) {
            f.write_str(
                "; it is not to be used, because the router would fill it before the others",
            )?;
        }
        match short {
            Shortfall::None => {}
            Shortfall::Some => f.write_str("; within the bounds not all of it can be carried")?,
        }
        if let Some(foreseen) = foreseen {
            write!(f, " ({foreseen})")?;
        }
        if let Some(card) = card {
            write!(f, "; what a replica carries is of {card}, until its own show it")?;
        }
        match self.slowest.as_deref().filter(|it| it.is_outlier()) {
            None => Ok(()),
            Some(slowest) => write!(f, "; {slowest}"),
        }
    }
}
