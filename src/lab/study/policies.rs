//! The policies that a study compares, by their names.

use crate::simulate::peers::Peer;
use crate::study::plan::PlanError;

pub(super) fn peer(text: &str, named_by: &str) -> Result<Peer, PlanError> {
    Peer::parse(text).map_err(|error| PlanError(format!("{named_by} {text} {error}")))
}

/// The distinct items, each at its first place. A policy that is named twice would be simulated
/// twice, and count twice in a mean.
pub(super) fn once<T: Clone + PartialEq>(named: &[T]) -> Vec<T> {
    let mut found: Vec<T> = Vec::new();
    for one in named {
        if !found.contains(one) {
            found.push(one.clone());
        }
    }
    found
}
