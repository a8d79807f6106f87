//! The integration tests: one binary, a module for each thing that is tested.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod alerts;
mod allocations;
mod api;
mod architecture;
mod chart;
mod cli;
mod cluster;
mod config;
mod corpus;
mod daemon;
mod dashboards;
mod demo;
mod discovery;
mod documents;
mod enforce;
mod events;
mod examples;
mod exposition;
mod external_metrics;
mod external_metrics_auth;
mod external_metrics_harness;
mod external_metrics_transport;
mod failures;
mod grammars;
mod leader;
mod pages;
mod pipeline;
mod prometheus;
mod recordings;
mod scrape;
mod selector;
mod simulate;
mod sizing;
mod targets;
mod vectors;
