//! The section about limits of all variants together.

use std::collections::BTreeMap;

use plimsoll_core::decide::limit::Priority;
use plimsoll_core::pipeline::limits::LimitSwitch;
use plimsoll_core::settings;
use plimsoll_core::settings::Written;
use plimsoll_core::units::CostPerHour;

/// Accelerators by their kind.
type Kinds = BTreeMap<String, Option<u32>>;

settings! {
    /// Limits of all variants together; see docs/limits.md.
    pub struct LimitKeys {
        /// Cost of all replicas per hour beyond which nothing scales up above its minimum, in the
        /// currency of `cost`.
        budget_per_hour: Option<CostPerHour>, in 0.0..=1e12;

        /// Accelerators by their kind, all namespaces together; none of a kind that is not listed.
        accelerators: Option<Kinds>;

        /// Limits all variants by the accelerators on nodes, minus the accelerators of other pods.
        /// Needs `kubernetes.enabled`.
        nodes: LimitSwitch = LimitSwitch::Off;

        /// Limits the variants of a namespace by its `ResourceQuota`s. Needs `kubernetes.enabled`.
        quotas: LimitSwitch = LimitSwitch::Off;

        /// Names of products, by the names that nodes give them.
        names: BTreeMap<String, Option<String>>;

        /// The same for single namespaces.
        namespaces: BTreeMap<String, Option<Written<NamespaceLimitKeys>>>;

        /// Precedence of models if not all of them can be served, by `MODEL#NAMESPACE`.
        models: BTreeMap<String, Option<Written<Priority>>>;
    }

    /// Limits of the variants of one namespace.
    pub struct NamespaceLimitKeys {
        /// Cost of their replicas per hour beyond which nothing scales up above its minimum.
        budget_per_hour: Option<CostPerHour>, in 0.0..=1e12;

        /// Accelerators by their kind; none of a kind that is not listed.
        accelerators: Option<Kinds>;
    }
}
