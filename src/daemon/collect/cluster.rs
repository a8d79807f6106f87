//! The cluster: watches of scale targets, their pods and their HPAs.
//!
//! The variants determine the watches: the kinds of their scale targets, the scalers in their
//! namespaces, and the pods of these namespaces, which are divided among the targets by their
//! selectors. Plimsoll watches nothing in a namespace without a variant. A namespace that denies
//! access does not affect the others. The scale subresource cannot be watched, so it is read
//! whenever its object has changed. If discovery is enabled, the same watches also see every object
//! that may declare a variant. Discovery over a whole cluster uses one watch per kind instead of one
//! per namespace, and one watch of all pods if many namespaces have variants.
//!
//! A listing has an `as_of`: the last instant at which every watch behind it was connected and up
//! to date. While the watches are healthy, it advances with the heartbeat. It stops if one breaks
//! or reports nothing for longer than a healthy watch can, and the last state is kept. An API
//! server that is unavailable therefore looks like a listing that grows old, never like an empty
//! cluster. A connection that dies silently is noticed by its pings, within [`LinkTiming`]'s
//! `ping_interval` plus `ping_timeout`. Until then, `as_of` is too recent by at most that time.

mod client;
mod config_maps;
pub mod discovery;
mod document;
mod follow;
mod hpa;
mod inventory;
pub(crate) mod keda;
mod keys;
mod needs;
mod pod;
mod registration;
mod run;
mod scale;
mod scalers;
mod seldon;
mod served;
mod state;
mod target;
mod template;
mod watched;
mod world;

pub use crate::collect::cluster::client::{KubernetesClientError, LinkTiming, client, connect};
pub use crate::collect::cluster::discovery::Discovery;
pub use crate::collect::cluster::document::{DocumentVersion, document};
pub use crate::collect::cluster::follow::WatchTiming;
pub use crate::collect::cluster::hpa::{
    BoundsChange, ChangeTime, Direction, Finding, HpaCondition, HpaFollower, HpaPace, HpaPolicy,
    HpaReaction, IgnoredChange, PolicyAmount, PolicyChoice, Tolerances, Windows,
};
pub use crate::collect::cluster::keda::ScaledObjectPause;
pub use crate::collect::cluster::keda::fault::ScaledObjectFault;
pub use crate::collect::cluster::needs::{Accelerators, ClusterNeeds};
pub use crate::collect::cluster::pod::{ClusterPod, PodPhase};
pub use crate::collect::cluster::registration::{
    API_SERVICE, ApiServiceFields, OBJECT_API_SERVICE, Registration, authentication, registration,
};
pub use crate::collect::cluster::run::watch;
pub use crate::collect::cluster::seldon::is_server;
pub use crate::collect::cluster::state::{ClusterState, VariantState};
pub use crate::collect::cluster::target::{WantedTarget, WatchedVariant};
pub use crate::collect::cluster::template::pod_template;
