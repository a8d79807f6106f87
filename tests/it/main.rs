//! The integration tests: one binary, a module for each thing that is tested.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod pipeline;
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod vectors;
mod exposition;
mod pages;
mod simulate;
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod scrape;
mod targets;
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod selector;
mod cluster;
