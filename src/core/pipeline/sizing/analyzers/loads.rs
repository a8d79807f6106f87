//! Replica observations in a form that several analyzers use.

use crate::analyze::tokens::capacity::RequestShape;
use crate::observe::ReplicaObservation;

pub(super) fn request_shape(replica: &ReplicaObservation) -> RequestShape {
    let work = replica.work.unwrap_or_default();
    RequestShape {
        prompt: work.prompt_length,
        output: work.generation_length,
        prefix_hits: work.prefix_hits,
    }
}
