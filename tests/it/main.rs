//! The integration tests: one binary, a module for each thing that is tested.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod cluster;
mod exposition;
mod pages;
mod pipeline;
mod scrape;
mod selector;
mod simulate;
mod targets;
mod vectors;

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod architecture;
mod cli;
mod config;
mod external_metrics;
mod external_metrics_auth;
mod external_metrics_harness;
mod external_metrics_transport;
mod selector;
