//! The requests that a gateway has routed to the models of a pool.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::fleet::ModelName;

/// The requests that a gateway has counted since its start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoutedCounts {
    /// The time of the reading.
    pub at: Timestamp,
    /// The start of the gateway's process as a Unix time in seconds; `None` if it is not reported.
    pub process: Option<f64>,
    /// The requests of each named model.
    pub requests: BTreeMap<ModelName, f64>,
    /// The requests of all models that are not named.
    pub others: f64,
}
