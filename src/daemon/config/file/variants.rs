//! The entries of variants.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::file::capacity::START_TIMES;
use crate::config::file::scrape::VariantScrapeKeys;
use crate::config::file::targets::TargetKeys;
use crate::config::names::{self, is_dns_label, is_label_text};
use plimsoll_core::fleet::Role;
use plimsoll_core::settings;
use plimsoll_core::settings::text;
use plimsoll_core::units::{CostPerHour, Fraction, Gpus, Replicas, Seconds};

settings! {
    /// A variant: one scalable workload that serves one model.
    pub struct VariantKeys {
        /// Its name, unique in its namespace.
        name: String, in text(names::is_variant_name, names::VARIANT_NAME),
            required "is missing";

        /// The Kubernetes namespace; without Kubernetes, a name of the same form that groups variants.
        namespace: String = "default", in text(is_dns_label, names::DNS_LABEL);

        /// The model that it serves, by the name that its engines use.
        model: String, in text(names::is_model_name, names::MODEL_NAME), required "is missing";

        /// Other names of the model in its engines' metrics.
        model_aliases: Vec<String>, in text(is_label_text, names::LABEL_TEXT);

        /// The kind of accelerator that it runs on.
        accelerator: Option<String>, in text(is_label_text, names::LABEL_TEXT);

        /// Accelerators that one replica takes, all of its pods together.
        // More than any group of nodes that serves one replica.
        gpus: Option<Gpus>, in 0..=4096;

        /// Part of a request that it serves.
        role: Role = Role::Both;

        /// Cost of one replica per hour, in any currency that all variants share.
        // If no variant has a price, all cost the same.
        cost: CostPerHour = 1.0, in 0.0..=1e9;

        /// Cost of one replica per hour without a discount, such as that of spot nodes, if `cost`
        /// has one; for `capacity.optimizer: rank`.
        list_price: Option<CostPerHour>, in 0.0..=1e9;

        /// Factor on its score if it has something scarce that the model does not need, such as
        /// much memory for a small model; for `capacity.optimizer: rank`.
        // Below 1 it would be a preference, which is expressed by the price. With 1000 the variant
        // is the last choice; the Cluster Autoscaler uses that factor to keep GPU nodes for the
        // pods that need them.
        mismatch: Fraction = 1.0, in 1.0..=1000.0;

        /// Time from asking for one of its replicas until it serves, until three of its starts were
        /// measured; `capacity.start_time` without it.
        start_time: Option<Seconds>, in START_TIMES;

        /// The replica counts between which it may be scaled.
        replicas: ReplicaBoundKeys;

        /// Location of its replicas. Required: exactly one key.
        targets: TargetKeys;

        /// Scrapes of its replicas; absent keys come from the global section.
        scrape: VariantScrapeKeys;

        /// Reader of its replicas' metrics: `prometheus` if that section exists, otherwise
        /// `scrape`.
        source: Option<ReadBy>;
    }

    /// The replica counts between which a variant may be scaled, both included.
    #[derive(Copy)]
    pub struct ReplicaBoundKeys {
        /// The smallest, if no autoscaler scales the target.
        min: u32 = 1, in 0..=Replicas::LIMIT.count();

        /// The largest, if no autoscaler scales the target. Without it, there is no limit.
        max: Option<u32>, in 1..=Replicas::LIMIT.count();
    }
}

/// Who reads the metrics of a variant's replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReadBy {
    /// Plimsoll itself, from their pages.
    Scrape,
    /// A Prometheus that has scraped them already.
    Prometheus,
}

settings! { plain: ReadBy; }
