//! The effect of a limit on desired replicas, as values that form a sentence.

use std::fmt;

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::analyze::capacity::Unit;
use crate::decide::limit::refusal::Cut;
use crate::decide::rank::Rank;
use crate::fleet::{Accelerator, LimitName, VariantKey, VariantName};
use crate::units::{Amount, Seconds};

/// The reason why a variant does not get its desired replicas.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitedReason {
    /// A limit keeps the variant from having more replicas.
    Cut {
        /// The limit and the shortfall.
        cut: Cut,
        /// Time since the limit was last read, if it can no longer be read.
        age: Option<Seconds>,
        /// The gain from one more unit of the scarce resource, if known.
        price: Option<ShadowPrice>,
    },
    /// A limit keeps another variant of the model from having more replicas. The model is planned
    /// again with the replicas that it can have.
    Instead {
        /// The other variant.
        of: VariantName,
        /// The limit.
        limit: LimitName,
        /// The rank of this variant when the variants were ranked again, if they were.
        rank: Option<Box<Rank>>,
    },
}

/// The gain from one more unit of a scarce resource: the limit's shadow price.
#[derive(Clone, Debug, Display, PartialEq, Serialize, Deserialize)]
#[display("{of} would add capacity for {carries:.1} {unit} on {next}")]
pub struct ShadowPrice {
    /// The scarce resource.
    pub of: ScarceResource,
    /// The variant that would get the unit.
    pub next: VariantKey,
    /// The additional capacity of that variant.
    pub carries: Amount,
    /// The unit of the capacity.
    pub unit: Unit,
}

/// A scarce resource.
#[derive(Clone, Debug, Display, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScarceResource {
    /// Accelerators of one kind; `None` if all kinds count together.
    #[display("one more {}", _0.as_ref().map_or("accelerator", Accelerator::as_str))]
    Accelerator(Option<Accelerator>),
    /// Money per hour.
    #[display("1.00 more per hour")]
    CostPerHour,
}

impl fmt::Display for LimitedReason {
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
                write!(f, "planned with the remaining variants, because {limit} limits {of}")?;
                rank.as_ref().map_or(Ok(()), |rank| write!(f, "; {rank}"))
            }
        }
    }
}
