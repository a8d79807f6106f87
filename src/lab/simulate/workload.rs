//! Load: when requests arrive, and how long they are.
//!
//! Arrivals are open-loop unless clients wait for their answers: they come at their own times whether
//! or not earlier requests have been answered, because clients that wait for each other hide every
//! overload.
//! Times and lengths come from a generator each, so that another rate of load meets the same
//! sequence of lengths.

pub mod clients;
pub mod drift;
pub mod load;
pub mod rate;
pub mod round;

pub use crate::simulate::workload::load::Load;
