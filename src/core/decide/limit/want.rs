//! The demand of one variant, and the priority of its model.

use crate::fleet::{Accelerator, Bounds, ModelKey, Namespace, VariantKey};
use crate::settings;
use crate::units::{Amount, CostPerHour, Gpus, Replicas, Weight};

/// The demand of one variant.
#[derive(Clone, Debug, PartialEq)]
pub struct Want {
    /// The variant.
    pub key: VariantKey,
    /// The model that it serves.
    pub model: ModelKey,
    /// The priority of the model.
    pub priority: Priority,
    /// Its accelerator; `None` if unknown.
    pub accelerator: Option<Accelerator>,
    /// Accelerators per replica.
    pub gpus: Gpus,
    /// Cost per replica.
    pub cost: CostPerHour,
    /// Capacity per replica, in the unit of its model's analysis; `None` if unknown.
    pub size: Option<Amount>,
    /// The bounds of its replicas.
    pub bounds: Bounds,
    /// Replicas that its scale target asks for.
    pub current: Replicas,
    /// Desired replicas.
    pub desired: Replicas,
}

settings! {
    /// Precedence of a model if not all of them can be served.
    #[derive(Copy)]
    pub struct Priority {
        /// Class. Beyond minima and guarantees, a model of a lower class gets no new replica that one
        /// of a higher class can use.
        class as "priority": u32 = 0, in 0..=1_000_000;

        /// Weight of a model's share among the models of its class.
        // A model with a weight of zero would get nothing. A quota serves that purpose.
        weight: Weight = 1.0, in 0.001..=1000.0;

        /// Accelerators up to which the model comes before all others, as far as it needs them.
        guaranteed: Gpus = 0, in 0..=1_000_000;
    }
}

impl Want {
    /// Returns the desired replicas. A scale-up stays inside the maximum.
    pub(super) fn wanted(&self) -> Replicas {
        match self.bounds.max() {
            Some(max) if self.desired > self.current => self.desired.min(max),
            Some(_) | None => self.desired,
        }
    }

    /// Returns true if the variant takes accelerators of this kind in this namespace.
    pub(super) fn takes(&self, namespace: &Namespace, kind: &Accelerator) -> bool {
        self.key.namespace == *namespace && self.accelerator.as_ref() == Some(kind)
    }
}

impl Priority {
    /// Returns the higher of two priorities.
    pub(super) fn above(self, other: Self) -> Self {
        let Self { class, weight, guaranteed } = self;
        let order = class
            .cmp(&other.class)
            .then(weight.compare(other.weight))
            .then(guaranteed.cmp(&other.guaranteed));
        if order.is_lt() { other } else { self }
    }
}
