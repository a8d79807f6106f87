//! The rules of llm-d's Workload Variant Autoscaler as of August 2026 (commit ff40965), with the
//! defects that decide numbers.

pub(crate) mod ballot;
pub(crate) mod engine_args;
pub(crate) mod optimize;
pub(crate) mod queueing;
pub(crate) mod throughput;
pub(crate) mod tuner;
pub(crate) mod zero;

mod tests;

use plimsoll::analyze::queueing::{MeanLengths, MeanRequest};
use plimsoll::units::Tokens;

/// The shape of requests with these mean lengths; `None` without an output token.
pub(crate) fn shape(input: f64, output: f64) -> Option<MeanRequest> {
    MeanRequest::new(MeanLengths { input: Tokens::new(input)?, output: Tokens::new(output)? })
}
