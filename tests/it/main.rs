//! The integration tests: one binary, a module for each thing that is tested.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod cluster;
mod exposition;
mod pages;
mod pipeline;
mod recordings;
mod scrape;
mod selector;
mod simulate;
mod targets;
mod vectors;
