//! The models that objects of the cluster assign to the replicas of a server.
//!
//! A multi-model server hosts several models on each of its replicas. Each model asks for a number
//! of copies, and no replica holds two copies of one model. Nothing here is measured: the numbers
//! are those that the objects declare.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::fleet::{Bounds, ModelName};
use crate::units::Replicas;

/// The models of one server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostedModels {
    /// The models, in the order of their names.
    pub models: Vec<HostedModel>,
    /// The replica counts that the server's own object allows.
    pub bounds: Option<Bounds>,
    /// The time when all of this was last known to be true.
    pub as_of: Timestamp,
}

/// One model of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostedModel {
    /// Its name.
    pub name: ModelName,
    /// The copies that it asks for.
    pub copies: Replicas,
    /// The certainty that this server hosts it.
    pub assignment: ModelAssignment,
}

/// The certainty that a server hosts a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelAssignment {
    /// The model names the server, or no other server can host it.
    Certain,
    /// Another server can host it as well.
    Possible,
}
