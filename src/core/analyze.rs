//! Analyzers compare the capacity of a model's replicas with its demand.

pub mod analyzers;
pub mod ballot;
pub mod capacity;
pub mod engine_args;
pub(crate) mod experience;
pub mod foresight;
pub mod queueing;
pub mod saturation;
pub mod sharing;
pub mod throughput;
pub mod tokens;
pub mod tuner;
