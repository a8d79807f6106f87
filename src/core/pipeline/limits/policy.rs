//! The configured limits, and the names of accelerator products.

use std::collections::BTreeMap;

use crate::decide::limit::{Priority, SupplyLimit, normalised};
use crate::fleet::{Accelerator, ModelKey};
use crate::observe::inventory::NodeStock;
use crate::settings;
use crate::units::Gpus;

/// The usable resources, and the priority of models when resources are short.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LimitPolicy {
    /// Limits variants to the resources of the nodes.
    pub nodes: LimitSwitch,
    /// Limits variants to the `ResourceQuota`s.
    pub quotas: LimitSwitch,
    /// Names of accelerator products. A product that is not listed gets its normalized name.
    pub names: BTreeMap<Accelerator, Accelerator>,
    /// The configured budgets and quotas.
    pub configured: Vec<SupplyLimit>,
    /// The priority of each model. A model that is not listed has [`Priority::default`].
    pub priorities: BTreeMap<ModelKey, Priority>,
}

/// The switch that makes a cluster resource a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LimitSwitch {
    /// Not watched, and therefore not a limit.
    #[default]
    Off,
    /// Watched. Until the first successful read, variants that use the resource do not scale up.
    On,
}

settings! { switch: LimitSwitch, LimitSwitch::On, LimitSwitch::Off }

// === impl LimitPolicy ===

impl LimitPolicy {
    /// Returns true if variants share any limit.
    pub(crate) fn is_limited(&self) -> bool {
        let Self { nodes, quotas, configured, .. } = self;
        *nodes == LimitSwitch::On || *quotas == LimitSwitch::On || !configured.is_empty()
    }

    pub(crate) fn priority(&self, model: &ModelKey) -> Priority {
        self.priorities.get(model).copied().unwrap_or_default()
    }

    /// The name of a product: the configured name, otherwise the normalized one. A name that is
    /// configured for some product maps to itself.
    #[must_use]
    pub fn named(&self, product: &Accelerator) -> Accelerator {
        self.names
            .get(product)
            .or_else(|| self.names.values().find(|name| *name == product))
            .cloned()
            .unwrap_or_else(|| normalised(product))
    }

    /// The resources of the nodes, with one row per product name.
    pub(crate) fn stock(&self, nodes: &[NodeStock]) -> Vec<NodeStock> {
        let mut kinds: BTreeMap<Accelerator, (Gpus, Gpus)> = BTreeMap::new();
        for NodeStock { product, allocatable, used_by_others } in nodes {
            let (has, others) = kinds.entry(self.named(product)).or_default();
            *has += *allocatable;
            *others += *used_by_others;
        }

        kinds
            .into_iter()
            .map(|(product, (allocatable, used_by_others))| NodeStock {
                product,
                allocatable,
                used_by_others,
            })
            .collect()
    }
}
