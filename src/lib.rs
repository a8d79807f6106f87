//! Plimsoll decides how many replicas every LLM deployment should have.
//!
//! It observes inference engines, learns what each variant of a model carries, decides how many
//! replicas each should have, and publishes that number as Prometheus gauges and through the
//! Kubernetes external metrics API that it serves itself, so that a stock HPA does the scaling.
//!
//! Read the modules from top to bottom: they are in the order of the data flow.

pub mod units;

pub mod settings;

pub mod fleet;

pub mod observe;

pub mod analyze;

pub mod decide;

pub mod pipeline;

pub mod clock;
pub mod collect;
pub mod config;
pub mod leader;
pub mod publish;
pub mod server;
pub mod telemetry;
pub mod trace;

pub mod backtest;
pub mod daemon;
pub mod demo;
pub mod simulate;
pub mod study;

pub mod cli;
