//! The daemon of Plimsoll: it observes inference engines, has `plimsoll_core` decide how many
//! replicas each variant should have, and publishes the desired replicas.
//!
//! Each outside system has a module. [`daemon`] puts them together.

pub mod clock;
pub mod telemetry;

pub mod config;

pub mod collect;

pub mod leader;
pub mod publish;
pub mod server;
pub mod trace;

pub mod daemon;

#[cfg(test)]
mod fixtures;
