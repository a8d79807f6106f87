//! The records of a trace as they are written, one JSON object a line.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::trace::Begins;
use crate::trace::reading::ReadingLine;
use crate::trace::word::{At, Number, Variant};

/// A record.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    /// The first of every file.
    Began(BeganLine),
    /// The configuration in force from here on, as YAML.
    Config(String),
    /// Numbers and memories that were put in force, in the shape of the state file.
    Restored(serde_json::Value),
    /// A tick.
    Tick(Box<TickLine>),
}

/// Which part of which trace a file is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct BeganLine {
    /// The version of the format.
    pub(super) version: u32,
    /// What wrote it.
    pub(super) by: String,
    /// When the process that wrote it began.
    pub(super) run: At,
    /// Which file of that process it is, from 1.
    pub(super) part: u32,
    /// What it begins with.
    pub(super) begins: Begins,
}

/// What a tick got and what it decided, where that differs from the tick before in the same file.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TickLine {
    /// The instant of the tick.
    pub(super) at: Option<At>,
    /// Replicas that are named for the first time in this file; later ones are their places.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) replicas: Vec<ReplicaLine>,
    /// All variants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fleet: Option<Vec<SpecLine>>,
    /// What objects wish of models, with all variants.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) wishes: Vec<WishLine>,
    /// The listings that differ in more than their age.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) listings: Vec<ListingLine>,
    /// Listings that differ in their age alone: the variant's place among those that are listed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) as_of: Vec<(usize, At)>,
    /// Listings that are no longer there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) unlisted: Vec<Variant>,
    /// What the cluster has of accelerators.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) inventory: Option<InventoryLine>,
    /// What all pod templates say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) templates: Option<Vec<TemplateLine>>,
    /// The scrapes since the last tick.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) scrapes: Vec<ScrapeLine>,
    /// All autoscalers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) autoscalers: Option<Vec<AutoscalerLine>>,
    /// All signals of demand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) demand: Option<Vec<DemandLine>>,
    /// All starts: the replica, when it was created, and since when it is ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) starts: Option<Vec<(usize, At, Option<At>)>>,
    /// The numbers that other replicas of the daemon have put in force; all of them, in each tick
    /// that follows them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) follows: Option<Vec<(String, String, u32, At)>>,
    /// What was decided about the variants of which it is not the same as before.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) decided: Vec<DecidedLine>,
    /// Variants of which nothing is said any more.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) unsaid: Vec<Variant>,
}

/// A replica: namespace, variant, name, and which life of that name.
pub(super) type ReplicaLine = (String, String, String, Option<String>);

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SpecLine {
    pub(super) key: Variant,
    pub(super) model: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) accelerator: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) gpus: Option<u32>,
    pub(super) role: String,
    pub(super) cost: Number,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) list_price: Option<Number>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) mismatch: Option<Number>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) start_time: Option<Number>,
    pub(super) bounds: BoundsLine,
}

/// Whether a model may have no replicas, as an object says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WishLine {
    /// Namespace and name.
    pub(super) model: (String, String),
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) may: Option<bool>,
    /// Seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) after: Option<Number>,
}

/// The smallest number and the largest.
pub(super) type BoundsLine = (u32, Option<u32>);

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListingLine {
    pub(super) key: Variant,
    /// The places of its replicas.
    pub(super) replicas: Vec<usize>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) unready: Vec<usize>,
    pub(super) scale: ScaleLine,
    /// Whether another server scrapes them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) relayed: bool,
    pub(super) as_of: At,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ScaleLine {
    Targets,
    /// Wanted, current, ready and pending replicas, and the bounds.
    Known(u32, u32, u32, u32, Option<BoundsLine>),
    NotListed,
    NoSuchTarget,
    Forbidden,
    DuplicateOwners(Vec<String>),
}

/// Product, allocatable and used accelerators.
pub(super) type NodeLine = (String, u32, u32);

/// Namespace, name, resource, limit and use.
pub(super) type QuotaLine = (String, String, String, u32, u32);

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct InventoryLine {
    /// When it was read, and product, allocatable and used accelerators of each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) nodes: Option<(At, Vec<NodeLine>)>,
    /// When they were read, and namespace, name, resource, limit and use of each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) quotas: Option<(At, Vec<QuotaLine>)>,
    /// What is free on each node, by product.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) free: Vec<(String, Vec<u32>)>,
    pub(super) units: Vec<(Variant, UnitLine)>,
    /// What the largest pod of a replica takes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) pods: Vec<(Variant, u32)>,
}

/// Resource, how many, the product, and whether a pod template says so.
pub(super) type UnitLine = (String, u32, Option<String>, bool);

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TemplateLine {
    pub(super) key: Variant,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) unit: Option<UnitLine>,
    pub(super) containers: Vec<ContainerLine>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ContainerLine {
    pub(super) image: String,
    pub(super) command: Vec<String>,
    pub(super) args: Vec<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) environment: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) files: BTreeMap<String, String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ScrapeLine {
    /// The replica's place.
    pub(super) of: usize,
    pub(super) at: At,
    /// Why there is nothing to read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) failed: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) page: Option<ReadingLine>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AutoscalerLine {
    pub(super) key: Variant,
    pub(super) name: String,
    /// Seconds of its stabilisation windows, up and down.
    pub(super) windows: (Number, Number),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DemandLine {
    /// Namespace and name of the model.
    pub(super) model: (String, String),
    /// Each signal, with how much there is and when that was seen.
    pub(super) signals: Vec<(String, Option<(Number, At)>)>,
    /// The places of those that count requests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) counting: Vec<usize>,
    /// The places of those that may be for any model and do not name this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) unnamed: Vec<usize>,
    /// The places of those that were read and said no number, and when.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) numberless: Vec<(usize, At)>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DecidedLine {
    pub(super) key: Variant,
    /// The number; none where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) desired: Option<u32>,
    /// Whether it was kept from before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) held: bool,
    /// Nanoseconds from the data that it rests on to the tick.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) age: Option<i64>,
    /// Each step as a sentence, or why there is no number; none where they are as before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) why: Option<Vec<String>>,
}
