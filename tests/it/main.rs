//! The integration tests: one binary, a module for each thing that is tested.

mod demo;
mod simulate;
