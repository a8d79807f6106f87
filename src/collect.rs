//! Collecting: everything that arrives from outside, turned into [`crate::observe::Inputs`].

pub mod cluster;
pub mod exposition;
mod file;
pub mod scrape;
pub mod targets;
