//! Requests of a workload: their arrival times, lengths and prompts.

use crate::simulate::Micros;
use crate::simulate::replica::prefix::PromptId;

/// One recorded request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The arrival time, from the trace's start.
    pub at: Micros,
    /// The length of the request.
    pub size: Size,
    /// The contents of its prompt, if the trace has them.
    pub prompt: Option<PromptId>,
}

/// The arrival of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestArrival {
    /// The time of the arrival.
    pub at: Micros,
    /// The length of the request.
    pub size: Size,
    /// The contents of its prompt, if known.
    pub prompt: Option<PromptId>,
}

/// The length of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Prompt tokens.
    pub prompt: u32,
    /// Answer tokens.
    pub output: u32,
}
