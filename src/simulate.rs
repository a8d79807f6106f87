//! The simulator: fleets of engines under load, over the same pipeline.

pub mod replica;
pub mod scaler;
pub mod workload;
