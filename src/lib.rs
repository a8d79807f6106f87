//! Plimsoll decides how many replicas every LLM deployment should have.
//!
//! It observes inference engines, learns the capacity of each variant of a model, and decides how
//! many replicas each variant should have. It publishes the desired replicas as Prometheus gauges
//! and through its own Kubernetes external metrics API, so that a stock HPA does the scaling.
//!
//! This package is the command line over three crates: `plimsoll_core` decides, `plimsoll_daemon`
//! observes and publishes, and `plimsoll_lab` simulates. It re-exports most of their modules, so
//! that tests, benchmarks and fuzz targets need one name.

pub use plimsoll_core::{analyze, decide, fleet, observe, pipeline, settings, units};
pub use plimsoll_daemon::{
    clock, collect, config, daemon, leader, publish, server, telemetry, trace,
};
pub use plimsoll_lab::{backtest, demo, engine, simulate, study};

pub mod cli;
