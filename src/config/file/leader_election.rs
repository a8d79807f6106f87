//! How one of several replicas is chosen, as written.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::written::WrittenDuration;

sections! {
    /// Several replicas, of which one decides; see docs/high-availability.md.
    LeaderElection {
        /// Whether there may be several replicas.
        enabled: bool,
        /// Where the Lease and the shared decisions are; without it, the pod's own namespace.
        namespace: String,
        /// Name of the Lease; that of the shared decisions is NAME-decisions.
        name: String,
        /// Who this replica is; without it, the name of its pod or machine. A random part is added.
        identity: String,
        /// How long the others wait for a leader that says nothing.
        lease_duration: WrittenDuration,
        /// How long a leader that cannot renew the Lease goes on.
        renew_deadline: WrittenDuration,
        /// How often the Lease is looked at and renewed.
        retry_period: WrittenDuration,
    }
}
