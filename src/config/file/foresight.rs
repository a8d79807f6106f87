//! The section about what `foresight` judges by. Every constant that it has is a key.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::written::WrittenDuration;

sections! {
    /// What `foresight` judges by. The defaults were found together, by simulation over many
    /// workloads.
    Foresight {
        /// The share of each limit of an engine (time between tokens, places in the batch, KV cache,
        /// tokens of an iteration) that may be used.
        limit_share: f64,
        /// How long it takes until a number is acted on: a tick, and the sync period of an HPA.
        reaction_time: WrittenDuration,
        /// Time in which growth, the peak that caps it, and unevenness are looked for.
        look_back: WrittenDuration,
        /// What the load has grown by before, in the time that a start takes, is expected again.
        growth: Growth,
        /// A load that rises steadily goes on to do so.
        ramp: Ramp,
        /// Strides of 15 s differ, and the next may be a large one.
        unevenness: Unevenness,
        /// What is held ready while little is known.
        young: Young,
        /// Requests that come close together are served in their own time.
        bursts: Bursts,
        /// A queue is worked off.
        backlog: Backlog,
        /// What queues at a gateway is worked off by new replicas.
        gateway: Gateway,
        /// More is asked for while too many first tokens come late. Off without this section.
        error_budget: ErrorBudget,
        /// What has come at this time of the day and of the week comes again.
        schedule: Schedule,
        /// What was needed once is held for some start-up times.
        hold: Hold,
        /// How much must be known at least before anything is spare.
        history_min: WrittenDuration,
        /// How needs become whole replicas.
        rounding: Rounding,
        /// A fleet of which nothing is known but its queues grows by what is in flight.
        cold_start: ColdStart,
        /// How fast what was seen is forgotten.
        memory: Memory,
        /// How the time of an iteration is learned.
        learning: Learning,
    }

    /// What the load has grown by before, in the time that a start takes, is expected again.
    Growth {
        /// Whether it is.
        enabled: bool,
        /// The share of past growths that the expected one is not below.
        quantile: f64,
        /// How far it may go where the past has no higher peak, as a multiple of the present rate.
        cap: f64,
    }

    /// A load that rises steadily goes on to do so.
    Ramp {
        /// Whether it is expected to.
        enabled: bool,
        /// Standard errors that a slope must exceed.
        certainty: f64,
        /// The share of a rise that a single stride may make; beyond, it is a jump.
        jump: f64,
        /// The share of the slope with which the second half must still rise.
        still_rising: f64,
        /// How much steeper than its second half a ramp is extrapolated at most.
        bend: f64,
        /// How far it is extrapolated at most, as a multiple of the present rate.
        cap: f64,
    }

    /// Strides of 15 s differ, and the next may be a large one.
    Unevenness {
        /// Whether that is prepared for.
        enabled: bool,
        /// Standard deviations that are held ready.
        deviations: f64,
    }

    /// What is held ready while little is known.
    Young {
        /// Whether anything is.
        enabled: bool,
        /// How much, in square roots of the load in replicas.
        margin: f64,
        /// Start-up times of history below which little is known.
        horizons: f64,
    }

    /// Requests that come close together are served in their own time.
    Bursts {
        /// Whether they are.
        enabled: bool,
        /// The share of requests whose burst is served in time.
        quantile: f64,
        /// Time in which bursts are looked for.
        over: WrittenDuration,
        /// What the first tokens of a burst may take beyond its own length, as a share of
        /// `capacity.slo.ttft`.
        ttft_share: f64,
    }

    /// A queue is worked off.
    Backlog {
        /// Whether replicas are asked for to work it off.
        enabled: bool,
        /// Requests that wait at a replica as a matter of course.
        usual: f64,
        /// Time in which what waits should be worked off.
        drain: WrittenDuration,
        /// The share of the present rate that this may ask for in addition.
        cap: f64,
    }

    /// What queues at a gateway is worked off by new replicas, and is part of what has arrived. It is
    /// known by signals of `scale_to_zero.wake` that count requests.
    Gateway {
        /// Whether it is.
        enabled: bool,
        /// Time in which what queues should be worked off.
        drain: WrittenDuration,
        /// The share of the present rate, or of what a replica carries, that this may ask for in
        /// addition.
        cap: f64,
    }

    /// More is asked for while too many first tokens come late.
    ErrorBudget {
        /// Whether it is.
        enabled: bool,
        /// The share of requests that may miss `capacity.slo.ttft`.
        share: f64,
        /// The share of the need that is asked for in addition for each 15 s in which more do.
        step: f64,
        /// That is forgotten to a third in this time.
        decay: WrittenDuration,
        /// The most that is asked for in addition, as a share of the need.
        cap: f64,
    }

    /// What has come at this time of the day and of the week comes again.
    Schedule {
        /// Whether it does.
        enabled: bool,
        /// Of what came before, the share that is prepared for.
        share: f64,
        /// How far growth may exceed what came at this time before, as a multiple of it.
        cap: f64,
    }

    /// What was needed once is held for some start-up times.
    Hold {
        /// Whether it is.
        enabled: bool,
        /// How long, in start-up times.
        starts: f64,
        /// How long at least.
        min: WrittenDuration,
        /// For how long of that it is the largest number of replicas that is held, so that one which
        /// jitters does not turn with each look.
        jitter: WrittenDuration,
        /// Whether a lower number that foresight alone finds waits for
        /// `enforce.scale_down.stabilization_window` no more. By default it does not wait, unless
        /// that window is written.
        replaces_window: bool,
    }

    /// How needs become whole replicas.
    Rounding {
        /// How much of a replica a need may exceed a whole number by.
        excess: f64,
        /// How much of a replica must be spare beside the one that goes.
        spare: f64,
    }

    /// A fleet of which nothing is known but its queues grows by what is in flight.
    ColdStart {
        /// Whether it does.
        enabled: bool,
        /// Requests that wait at each replica from which it does.
        waiting: f64,
        /// What it is given, as a multiple of what it has in flight.
        margin: f64,
        /// The most that it grows to at once, as a multiple of what it is.
        times: f64,
    }

    /// How fast what was seen is forgotten.
    Memory {
        /// Half of the lengths of requests is forgotten in this time.
        lengths: WrittenDuration,
        /// KV tokens of running requests are forgotten to a third in this time.
        kv: WrittenDuration,
    }

    /// How the time of an iteration is learned.
    Learning {
        /// Mean number of generated tokens an iteration below which an engine is too idle to learn
        /// from.
        batch_min: f64,
        /// How far a mean of many iterations is off, as a share of it.
        noise: f64,
        /// How far a coefficient drifts from one lesson to the next, as a share of it.
        drift: f64,
        /// Standard deviations beyond which a lesson counts as that far away only.
        clip: f64,
    }
}
