//! The decisions of Plimsoll: the desired replicas of every variant of every model.
//!
//! This crate is pure. It does no IO, reads no clock, uses no randomness and logs nothing: the same
//! state, instant and inputs give the same decisions. The daemon, the simulator, the backtest and
//! the demo all tick the same [`pipeline::Pipeline`].
//!
//! Read the modules from top to bottom: they are in the order of the data flow.

pub mod units;

pub mod settings;

pub mod fleet;

pub mod observe;

pub mod analyze;

pub mod decide;

pub mod pipeline;
