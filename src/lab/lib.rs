//! Plimsoll's lab: the modules that simulate engines and load instead of observing them.
//!
//! The daemon does not depend on it.

pub mod simulate;

pub mod study;

pub mod backtest;

pub mod advise;

pub mod report;

pub mod demo;

pub mod engine;

pub mod output;

#[cfg(test)]
mod fixtures;
