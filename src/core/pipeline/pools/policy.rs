//! The declared configuration of pools.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::decide::pools::adapters::{Adapter, AdapterActivity, AdapterTraffic, Copies, copies};
use crate::decide::pools::packing::PackingPolicy;
use crate::fleet::{Bounds, ModelName};
use crate::observe::engine::lora::Slots;
use crate::settings;
use crate::units::{Replicas, Seconds};

/// The declared configuration of a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterPool {
    /// The source of the copies.
    pub source: PoolSource,
    /// Adapters that a replica serves in one step; `None` to read it from the scrapes.
    pub slots: Option<Slots>,
    /// The minimum and maximum copies of an adapter that is not listed below.
    pub copies: Bounds,
    /// The declared configuration of single adapters.
    pub adapters: BTreeMap<ModelName, AdapterRule>,
    /// The time for which an adapter without requests keeps its copies.
    pub idle_after: Seconds,
    /// The conditions for a scale-down of the pool.
    pub packing: PackingPolicy,
}

/// The source of the copies that a pool hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PoolSource {
    /// The replicas' pages: adapters of vLLM.
    #[default]
    Pages,
    /// The `Model` objects of Seldon Core 2.
    Seldon,
}

settings! { plain: PoolSource; }

/// The declared configuration of one adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdapterRule {
    /// The minimum and maximum copies of the adapter.
    pub bounds: Bounds,
    /// The copies that it always gets, independent of its load.
    pub declared: Option<Replicas>,
}

// === impl AdapterPool ===

impl AdapterPool {
    pub(super) fn bounds_of(&self, name: &ModelName) -> Bounds {
        self.adapters.get(name).map_or(self.copies, |wish| wish.bounds)
    }

    pub(super) fn copies_of(
        &self,
        name: &ModelName,
        traffic: Option<AdapterTraffic>,
        seen: AdapterActivity,
    ) -> Copies {
        copies(&Adapter {
            name: name.clone(),
            bounds: self.bounds_of(name),
            declared: self.adapters.get(name).and_then(|wish| wish.declared),
            traffic,
            seen,
        })
    }
}
