//! The section about how variants are ranked by their price.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

sections! {
    /// How variants are ranked by their price.
    Rank {
        /// As many replicas a model should have; the preferred size is what each then carries.
        preferred_replicas: u32,
        /// How much it counts that a replica has not the preferred size: 1 as in the Cluster
        /// Autoscaler, 0 not at all.
        weight: f64,
        /// The most that a size counts, as a factor on the score.
        unfitness_max: f64,
        /// What keeps the score from exploding for little demand, in replicas of the smallest size
        /// at their list price.
        damper: f64,
        /// Factor on the score of a variant that has no replicas yet.
        cold: f64,
    }
}
