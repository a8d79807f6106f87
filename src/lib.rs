//! Plimsoll decides how many replicas every LLM deployment should have.
//!
//! It observes inference engines, learns the capacity of each variant of a model, decides how many
//! replicas each should have, and publishes that number as Prometheus gauges and through the
//! Kubernetes external metrics API that it serves itself, so that a stock HPA does the scaling.
//!
//! This package is the command line over three crates: `plimsoll_core` decides, `plimsoll_daemon`
//! observes and publishes, and `plimsoll_lab` simulates. Their modules are re-exported here, so that
//! tests, benchmarks and fuzz targets need one name.

pub use plimsoll_core::{analyze, decide, fleet, observe, pipeline, settings, units};
pub use plimsoll_daemon::{
    clock, collect, config, daemon, leader, publish, server, telemetry, trace,
};
pub use plimsoll_lab::{backtest, demo, simulate, study};

pub mod cli;
