//! The rank of variants by price.
//!
//! A [`Formula`] scores the options of one round, and [`rank_variants`] takes the best option of
//! each round until the demand is served.

mod explain;
mod preferred;
mod residual;
mod score;

#[cfg(test)]
mod tests;

pub use crate::decide::rank::preferred::Preference;
pub use crate::decide::rank::residual::{
    Policy, Rank, RankOption, RankRound, RankedVariant, Ranking, Residual, ResidualDemand, Warmth,
    rank_variants,
};
pub use crate::decide::rank::score::{
    Formula, NoScore, Offer, RankRecord, RankStart, SUPPRESSION, suppress,
};
