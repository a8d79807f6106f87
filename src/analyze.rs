//! Analyzers: what a model's replicas carry, against what is asked of them.

pub mod capacity;
pub mod queueing;
pub mod saturation;
pub mod tuner;
