//! How variants are chosen, as a file says it.

use crate::config::file;
use crate::decide::optimize::Rule;
use crate::decide::rank::{Policy, Preference};

/// The key and the section that give this rule. The section has the defaults where it has no say.
pub(crate) fn sections(rule: &Rule) -> (file::Optimizer, file::Rank) {
    let (key, policy) = match rule {
        Rule::LeastCost => (file::Optimizer::LeastCost, Policy::default()),
        Rule::Ranked(policy) => (file::Optimizer::Rank, *policy),
    };
    let Policy { preference, weight, unfitness_max, damper, cold } = policy;
    let Preference::Spread(replicas) = preference;
    let section = file::Rank {
        preferred_replicas: Some(replicas.count()),
        weight: Some(weight.fraction()),
        unfitness_max: Some(unfitness_max.fraction()),
        damper: Some(damper.fraction()),
        cold: Some(cold.fraction()),
    };
    (key, section)
}
