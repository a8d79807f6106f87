//! Why a number is cut to what may be used, in numbers that make a sentence.

use std::fmt;

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::analyze::capacity::Unit;
use crate::decide::limit::{Cut, LimitName};
use crate::decide::rank::Rank;
use crate::fleet::{Accelerator, VariantKey, VariantName};
use crate::units::{Amount, Seconds};

/// Why a variant does not get what is asked for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limited {
    /// A limit keeps it from having more.
    Cut {
        /// The limit and what is short.
        cut: Cut,
        /// How long ago the limit was read, when it cannot be read any more.
        age: Option<Seconds>,
        /// What one more would buy, where that is known.
        price: Option<Price>,
    },
    /// A limit keeps another variant of its model from having more, so the model is planned with
    /// what it can have.
    Instead {
        /// The other variant.
        of: VariantName,
        /// The limit.
        limit: LimitName,
        /// How this one fared when they were ranked again, if they were.
        rank: Option<Box<Rank>>,
    },
}

/// What one more of what is short would buy: the limit's shadow price.
#[derive(Clone, Debug, Display, PartialEq, Serialize, Deserialize)]
#[display("{of} would carry {carries:.1} {unit} more, on {next}")]
pub struct Price {
    /// Of what one more.
    pub of: Short,
    /// The variant that would get it.
    pub next: VariantKey,
    /// How much more that variant would carry.
    pub carries: Amount,
    /// In which unit.
    pub unit: Unit,
}

/// What is short.
#[derive(Clone, Debug, Display, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Short {
    /// Accelerators of a kind; `None` where all kinds count together.
    #[display("one {} more", _0.as_ref().map_or("accelerator", Accelerator::as_str))]
    Accelerator(Option<Accelerator>),
    /// Money for an hour.
    #[display("1.00 more an hour")]
    CostPerHour,
}

impl fmt::Display for Limited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cut { cut, age, price } => {
                write!(f, "{cut}")?;
                if let Some(age) = age {
                    write!(f, ", as it was read {age:.0} s ago")?;
                }
                price.as_ref().map_or(Ok(()), |price| write!(f, "; {price}"))
            }
            Self::Instead { of, limit, rank } => {
                write!(
                    f,
                    "planned with what is left, because {limit} keeps {of} from having more"
                )?;
                rank.as_ref().map_or(Ok(()), |rank| write!(f, "; {rank}"))
            }
        }
    }
}
