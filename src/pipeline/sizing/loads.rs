//! What replicas show and were told, as each analyzer looks at it.

use crate::analyze::engine_args::EngineArguments;
use crate::analyze::foresight::Told;
use crate::analyze::queueing::{self, Lengths, Shape};
use crate::analyze::throughput::ReplicaPace;
use crate::analyze::tokens::ReplicaLoad;
use crate::analyze::tokens::capacity::RequestShape;
use crate::observe::ReplicaObservation;

fn shape_of(replica: &ReplicaObservation) -> RequestShape {
    let work = replica.work.unwrap_or_default();
    RequestShape {
        prompt: work.prompt_length,
        output: work.generation_length,
        prefix_hits: work.prefix_hits,
    }
}

pub(crate) fn token_load(replica: &ReplicaObservation) -> ReplicaLoad {
    ReplicaLoad {
        kv_usage: replica.kv_usage,
        kv_capacity: replica.work.and_then(|work| work.kv_capacity),
        waiting: replica.waiting,
        running: replica.running,
        generation_rate: replica.generation_rate,
        requests: shape_of(replica),
    }
}

pub(crate) fn pace(replica: &ReplicaObservation) -> ReplicaPace {
    ReplicaPace {
        kv_usage: replica.kv_usage.map(|kv| kv.mean),
        kv_capacity: replica.work.and_then(|work| work.kv_capacity),
        itl: replica.itl_mean,
        requests: shape_of(replica),
        arrivals: replica.arrivals,
        completions: replica.completions,
        generation: replica.generation_rate,
    }
}

/// The shape of the queueing model. What is in the prefix cache is not computed again, and is
/// resident all the same; the model has one length for both, and the tuner learns what it takes.
pub(crate) fn queue_shape(replica: &ReplicaObservation) -> Option<Shape> {
    let work = replica.work?;
    Shape::new(Lengths { input: work.prompt_length?, output: work.generation_length? })
}

pub(crate) fn queue_load(replica: &ReplicaObservation) -> Option<queueing::ReplicaLoad> {
    Some(queueing::ReplicaLoad {
        replica: replica.replica.clone(),
        arrival: replica.arrivals?,
        shape: queue_shape(replica),
        ttft: replica.ttft_mean,
        itl: replica.itl_mean,
        batch: None,
    })
}

/// What engines were told that bounds what they carry.
pub(crate) fn told(arguments: Option<&EngineArguments>) -> Told {
    Told {
        seats: arguments.and_then(|it| it.sequences),
        budget: arguments.and_then(|it| it.step_tokens),
    }
}
