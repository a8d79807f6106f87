//! Analyzers: what a model's replicas carry, against what is asked of them.

pub mod analyzers;
pub mod ballot;
pub mod capacity;
pub mod engine_args;
pub mod foresight;
pub mod queueing;
pub mod saturation;
pub mod throughput;
pub mod tokens;
pub mod tuner;
