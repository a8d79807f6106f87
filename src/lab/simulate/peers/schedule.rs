//! Numbers of replicas over time that somebody planned before.

use std::sync::Arc;

use crate::simulate::Micros;
use plimsoll_core::units::Replicas;

/// The time between two looks at a schedule: numbers are planned for whole steps.
pub(crate) const STEP: Micros = Micros::from_secs(15);

/// A number for each [step](STEP); the last one stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule(Arc<[Replicas]>);

impl Schedule {
    /// A schedule of these numbers; without any, of one replica.
    #[must_use]
    pub fn new(numbers: Vec<Replicas>) -> Self {
        Self(if numbers.is_empty() { vec![Replicas::ONE] } else { numbers }.into())
    }

    /// The number for a time.
    #[must_use]
    pub fn at(&self, time: Micros) -> Replicas {
        let step = usize::try_from(time.micros() / STEP.micros()).unwrap_or(usize::MAX);
        self.0[step.min(self.0.len() - 1)]
    }
}
