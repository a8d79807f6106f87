//! Load: the arrival times of requests and their lengths.
//!
//! Arrivals are open-loop unless the workload is closed. Requests come at their own times whether
//! or not earlier ones have been answered, because clients that wait for answers hide every
//! overload. Times and lengths each have their own generator, so a different arrival rate gets the
//! same sequence of lengths.

mod arrival;
pub mod clients;
pub mod drift;
mod lengths;
pub mod load;
pub mod rate;
pub mod round;

pub use crate::simulate::workload::load::Load;
