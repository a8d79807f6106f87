//! A predetermined schedule of replica counts over time.

use std::sync::Arc;

use crate::simulate::Micros;
use plimsoll_core::units::Replicas;

/// The time between two decisions of a schedule, which has one count per step.
pub(crate) const STEP: Micros = Micros::from_secs(15);

/// A replica count for each [step](STEP); the last one stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaSchedule(Arc<[Replicas]>);

impl ReplicaSchedule {
    /// A schedule of these replica counts; if there are none, of one replica.
    #[must_use]
    pub fn new(numbers: Vec<Replicas>) -> Self {
        Self(if numbers.is_empty() { vec![Replicas::ONE] } else { numbers }.into())
    }

    /// The replica count at a time.
    #[must_use]
    pub fn at(&self, time: Micros) -> Replicas {
        let step = usize::try_from(time.micros() / STEP.micros()).unwrap_or(usize::MAX);
        self.0[step.min(self.0.len() - 1)]
    }
}
