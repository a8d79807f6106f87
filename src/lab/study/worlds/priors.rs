//! The priors: the distributions from which worlds are drawn, each with its source or reason.
//!
//! `docs/worlds.md` has them as a table, which a test compares with these.

use crate::simulate::scenario::Router;
use crate::study::worlds::distribution::{Choice, PriorDistribution};
use crate::study::worlds::recorded::{
    AZURE_CODE, AZURE_CONVERSATION, MOONCAKE, Recording, SERVEGEN_REASONING, SERVEGEN_SMALL,
};

/// The aspects in which worlds differ. The discriminant seeds the aspect's random numbers, and must
/// not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Aspect {
    Simulation = 1,
    Engine = 2,
    Seats = 3,
    TokenBudget = 4,
    PrefixHits = 5,
    Objectives = 6,
    Lengths = 7,
    Shape = 8,
    Burstiness = 9,
    Fleet = 10,
    Duration = 11,
    Startup = 12,
    Nodes = 13,
    Failures = 14,
    Rollout = 15,
    Variants = 16,
    Router = 17,
    Clients = 18,
    Scrape = 19,
    ScrapeLoss = 20,
    Autoscaler = 21,
    AutoscalerDelay = 22,
    Gateway = 23,
    Initial = 24,
    ApiServers = 25,
    Pipeline = 26,
    Speculation = 27,
    Noise = 28,
    Drift = 29,
    Silence = 30,
    FailedStarts = 31,
    Slowdown = 32,
    Batch = 33,
    Arguments = 34,
}

// === Engine ===

/// The percentage of worlds whose model is a mixture of experts.
pub(crate) const MIXTURES: u32 = 15;

/// The factor on each coefficient.
pub(crate) const COEFFICIENT: PriorDistribution =
    PriorDistribution::Lognormal { median: 1.0, sigma: 0.15, low: 0.6, high: 1.6 };

/// The share of the KV cache that other uses of the memory leave.
pub(crate) const MEMORY: PriorDistribution = PriorDistribution::Uniform { low: 0.8, high: 1.0 };

/// `None` draws from [`SEATS_OTHERS`].
pub(crate) const SEATS: Choice<Option<u32>> =
    Choice(&[(45, "256", Some(256)), (10, "1024", Some(1024)), (45, "others", None)]);

pub(crate) const SEATS_OTHERS: PriorDistribution =
    PriorDistribution::LogUniform { low: 8.0, high: 1024.0 };

/// `None` draws from [`BUDGET_OTHERS`].
pub(crate) const BUDGET: Choice<Option<u32>> =
    Choice(&[(40, "2048", Some(2048)), (30, "8192", Some(8192)), (30, "others", None)]);

pub(crate) const BUDGET_OTHERS: PriorDistribution =
    PriorDistribution::LogUniform { low: 512.0, high: 16_384.0 };

/// The presence of prefix cache hits, unless the requests are those of agents.
pub(crate) const HITS: Choice<bool> = Choice(&[(40, "none", false), (60, "some", true)]);

pub(crate) const HITS_SOME: PriorDistribution = PriorDistribution::Uniform { low: 0.05, high: 0.9 };

pub(crate) const HITS_AGENTS: PriorDistribution =
    PriorDistribution::Uniform { low: 0.5, high: 0.9 };

/// Whether the pod template shows the arguments of the engine.
pub(crate) const ARGUMENTS: Choice<bool> = Choice(&[(75, "readable", true), (25, "hidden", false)]);

pub(crate) const API_SERVERS: Choice<u32> =
    Choice(&[(60, "one", 1), (20, "two", 2), (12, "four", 4), (8, "eight", 8)]);

pub(crate) const STAGES: Choice<u32> = Choice(&[(85, "one", 1), (10, "two", 2), (5, "four", 4)]);

pub(crate) const SPECULATIONS: Choice<bool> = Choice(&[(75, "none", false), (25, "some", true)]);

/// Tokens that a step gives a request on average.
pub(crate) const TOKENS_PER_STEP: PriorDistribution =
    PriorDistribution::Uniform { low: 1.5, high: 3.5 };

/// Tokens that a step drafts, and their number from [`DRAFTS_MORE_FROM`] tokens per step on.
pub(crate) const DRAFTS: u32 = 3;
pub(crate) const DRAFTS_MORE: u32 = 5;
pub(crate) const DRAFTS_MORE_FROM: f64 = 2.5;

pub(crate) const NOISES: Choice<bool> = Choice(&[(40, "none", false), (60, "some", true)]);

/// The standard deviation of the logarithm of an iteration's time.
pub(crate) const NOISE: PriorDistribution = PriorDistribution::LogUniform { low: 0.02, high: 0.2 };

/// The engines that slow down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlowReplicas {
    None,
    One,
    All,
}

pub(crate) const SLOWDOWNS: Choice<SlowReplicas> = Choice(&[
    (95, "none", SlowReplicas::None),
    (2, "one replica", SlowReplicas::One),
    (3, "all", SlowReplicas::All),
]);

/// The factor on iteration times of a slow engine.
pub(crate) const SLOWNESS: PriorDistribution = PriorDistribution::Uniform { low: 1.2, high: 2.0 };

/// The start of a slowdown, as a share of the duration, and its minutes.
pub(crate) const SLOW_FROM: PriorDistribution = PriorDistribution::Uniform { low: 0.1, high: 0.7 };

pub(crate) const SLOW_MINUTES: PriorDistribution =
    PriorDistribution::LogUniform { low: 10.0, high: 120.0 };

// === Requests ===

/// In seconds.
pub(crate) const TTFT: PriorDistribution = PriorDistribution::LogUniform { low: 0.5, high: 10.0 };

/// In milliseconds.
pub(crate) const ITL: PriorDistribution = PriorDistribution::LogUniform { low: 20.0, high: 150.0 };

/// The smallest factor between an objective and the latency of a request that runs alone.
pub(crate) const ALONE: f64 = 1.3;

/// The tasks of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Chat,
    Classify,
    Agent,
}

pub(crate) const TASKS: Choice<Task> = Choice(&[
    (80, "chat", Task::Chat),
    (10, "classifier", Task::Classify),
    (10, "agent", Task::Agent),
]);

/// The median of prompts, by task.
pub(crate) const fn prompt_median(task: Task) -> PriorDistribution {
    match task {
        Task::Chat => PriorDistribution::LogUniform { low: 30.0, high: 12_000.0 },
        Task::Classify => PriorDistribution::LogUniform { low: 30.0, high: 3_000.0 },
        Task::Agent => PriorDistribution::LogUniform { low: 4_000.0, high: 12_000.0 },
    }
}

/// The median of answers, by task; a classifier's are from 1 to 5 tokens.
pub(crate) const fn output_median(task: Task) -> PriorDistribution {
    match task {
        Task::Chat => PriorDistribution::LogUniform { low: 10.0, high: 1_500.0 },
        Task::Classify => PriorDistribution::Uniform { low: 1.0, high: 5.0 },
        Task::Agent => PriorDistribution::LogUniform { low: 50.0, high: 500.0 },
    }
}

pub(crate) const PROMPT_SIGMA: PriorDistribution =
    PriorDistribution::Uniform { low: 0.3, high: 1.3 };

pub(crate) const OUTPUT_SIGMA: PriorDistribution =
    PriorDistribution::Uniform { low: 0.3, high: 1.2 };

/// The lengths that drift.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DriftKind {
    None,
    Prompts,
    Answers,
    Both,
}

pub(crate) const DRIFTS: Choice<DriftKind> = Choice(&[
    (60, "none", DriftKind::None),
    (15, "prompts", DriftKind::Prompts),
    (15, "answers", DriftKind::Answers),
    (10, "both", DriftKind::Both),
]);

/// The median after a drift relative to the median before it.
pub(crate) const DRIFT: PriorDistribution = PriorDistribution::LogUniform { low: 0.3, high: 4.0 };

/// The start of a drift, as a share of the duration, and its minutes.
pub(crate) const DRIFT_FROM: PriorDistribution = PriorDistribution::Uniform { low: 0.1, high: 0.6 };

pub(crate) const DRIFT_MINUTES: PriorDistribution =
    PriorDistribution::LogUniform { low: 5.0, high: 60.0 };

/// The times of batch work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchTimes {
    None,
    Always,
    Job,
}

pub(crate) const BATCHES: Choice<BatchTimes> = Choice(&[
    (85, "none", BatchTimes::None),
    (7, "all the time", BatchTimes::Always),
    (8, "one job", BatchTimes::Job),
]);

/// The mean need of batch work relative to that of the other requests.
pub(crate) const BATCH_SHARE: PriorDistribution =
    PriorDistribution::LogUniform { low: 0.1, high: 1.0 };

/// Medians of its prompts and answers, and their sigma.
pub(crate) const BATCH_PROMPT: PriorDistribution =
    PriorDistribution::LogUniform { low: 300.0, high: 6_000.0 };

pub(crate) const BATCH_OUTPUT: PriorDistribution =
    PriorDistribution::LogUniform { low: 30.0, high: 600.0 };

pub(crate) const BATCH_SIGMA: PriorDistribution =
    PriorDistribution::Uniform { low: 0.3, high: 0.8 };

/// The start and the length of a job, as shares of the duration.
pub(crate) const JOB_FROM: PriorDistribution = PriorDistribution::Uniform { low: 0.1, high: 0.5 };

pub(crate) const JOB_LASTS: PriorDistribution = PriorDistribution::Uniform { low: 0.1, high: 0.4 };

// === Arrivals ===

/// The shape of the arrival rate over time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ArrivalShape {
    Recorded(&'static Recording),
    Diurnal,
    Flat,
    Ramp,
    Steps,
    Square,
    Flash,
}

pub(crate) const SHAPES: Choice<ArrivalShape> = Choice(&[
    (10, "Azure conversation", ArrivalShape::Recorded(&AZURE_CONVERSATION)),
    (7, "Azure code", ArrivalShape::Recorded(&AZURE_CODE)),
    (8, "Mooncake", ArrivalShape::Recorded(&MOONCAKE)),
    (13, "ServeGen m-small", ArrivalShape::Recorded(&SERVEGEN_SMALL)),
    (12, "ServeGen deepseek-r1", ArrivalShape::Recorded(&SERVEGEN_REASONING)),
    (15, "diurnal", ArrivalShape::Diurnal),
    (10, "flat", ArrivalShape::Flat),
    (10, "ramp", ArrivalShape::Ramp),
    (5, "steps", ArrivalShape::Steps),
    (5, "square waves", ArrivalShape::Square),
    (5, "flash crowds", ArrivalShape::Flash),
]);

/// The speed at which a recorded day is played.
pub(crate) const COMPRESSION: PriorDistribution =
    PriorDistribution::LogUniform { low: 1.0, high: 24.0 };

/// The crest of a day relative to its trough, and the hours in which a day is played.
pub(crate) const NIGHT: PriorDistribution = PriorDistribution::LogUniform { low: 2.0, high: 20.0 };

pub(crate) const DAY_HOURS: PriorDistribution =
    PriorDistribution::LogUniform { low: 1.0, high: 6.0 };

/// The rate after a ramp relative to the rate before it, and the minutes of the ramp.
pub(crate) const RAMP: PriorDistribution = PriorDistribution::LogUniform { low: 2.0, high: 10.0 };

pub(crate) const RAMP_MINUTES: PriorDistribution =
    PriorDistribution::LogUniform { low: 5.0, high: 60.0 };

/// A step or the upper half of a square wave relative to the lower, and the minutes of a half.
pub(crate) const STEP: PriorDistribution = PriorDistribution::LogUniform { low: 1.5, high: 10.0 };

pub(crate) const HALF_MINUTES: PriorDistribution =
    PriorDistribution::LogUniform { low: 5.0, high: 60.0 };

/// A flash crowd relative to the usual rate, its minutes, and the minutes from one to the next.
pub(crate) const FLASH: PriorDistribution = PriorDistribution::LogUniform { low: 2.0, high: 5.0 };

pub(crate) const FLASH_MINUTES: PriorDistribution =
    PriorDistribution::LogUniform { low: 0.5, high: 5.0 };

pub(crate) const FLASH_EVERY_MINUTES: PriorDistribution =
    PriorDistribution::LogUniform { low: 15.0, high: 60.0 };

/// The coefficient of variation of the gaps between requests.
pub(crate) const VARIATION: PriorDistribution =
    PriorDistribution::Lognormal { median: 1.8, sigma: 0.7, low: 1.0, high: 8.0 };

// === Fleet ===

/// The mean need in replicas.
pub(crate) const NEED: PriorDistribution = PriorDistribution::LogUniform { low: 0.5, high: 100.0 };

/// The same with several variants.
pub(crate) const NEED_OF_SEVERAL: PriorDistribution =
    PriorDistribution::LogUniform { low: 0.5, high: 20.0 };

/// The initial utilization, relative to the capacity of the initial replicas for evenly spread
/// requests.
pub(crate) const UTILIZATION: PriorDistribution =
    PriorDistribution::Uniform { low: 0.35, high: 0.8 };

/// In hours.
pub(crate) const HOURS: PriorDistribution = PriorDistribution::LogUniform { low: 1.0, high: 6.0 };

/// The simulation budget of a world. The duration is cut first, and then the mean need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SimulationBudget {
    pub(crate) requests: f64,
    pub(crate) replica_hours: f64,
}

pub(crate) const BUDGET_OF_ONE: SimulationBudget =
    SimulationBudget { requests: 100_000.0, replica_hours: 60.0 };

/// The search for the cheapest fixed mix of several variants takes many more runs.
pub(crate) const BUDGET_OF_SEVERAL: SimulationBudget =
    SimulationBudget { requests: 30_000.0, replica_hours: 20.0 };

/// The number of replicas without a pipeline that take as long to simulate as one pipeline stage,
/// whose steps are computed one by one.
pub(crate) const STAGE_WORK: f64 = 2.0;

/// The duration in hours below which nothing is cut.
pub(crate) const HOURS_MIN: f64 = 1.0;

/// The mean need in replicas below which nothing is cut.
pub(crate) const NEED_MIN: f64 = 0.5;

/// In seconds, without waiting for a node.
pub(crate) const STARTUP: PriorDistribution =
    PriorDistribution::Lognormal { median: 120.0, sigma: 0.8, low: 20.0, high: 600.0 };

pub(crate) const STARTUP_SIGMA: PriorDistribution =
    PriorDistribution::Uniform { low: 0.1, high: 0.6 };

/// Shares of the phases of a start: image, load and warm-up.
pub(crate) const PHASES: [f64; 3] = [0.15, 0.5, 0.35];

/// True if nodes for some replicas are provisioned first.
pub(crate) const NODES: Choice<bool> = Choice(&[(60, "warm", false), (40, "provisioned", true)]);

/// Seconds until a node is available.
pub(crate) const NODE: PriorDistribution = PriorDistribution::LogUniform { low: 60.0, high: 600.0 };

/// Replicas with warm nodes, relative to the mean need.
pub(crate) const WARM: PriorDistribution = PriorDistribution::Uniform { low: 1.0, high: 1.5 };

/// The kinds of replica failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplicaFailure {
    None,
    Crash,
    Spot,
    SpotTogether,
}

pub(crate) const FAILURES: Choice<ReplicaFailure> = Choice(&[
    (60, "none", ReplicaFailure::None),
    (30, "crashes", ReplicaFailure::Crash),
    (5, "spot", ReplicaFailure::Spot),
    (5, "spot, several at once", ReplicaFailure::SpotTogether),
]);

/// Hours between two crashes of a replica.
pub(crate) const CRASH_HOURS: PriorDistribution =
    PriorDistribution::LogUniform { low: 2.0, high: 48.0 };

/// Hours until a spot node is reclaimed.
pub(crate) const SPOT_HOURS: PriorDistribution =
    PriorDistribution::LogUniform { low: 0.5, high: 4.0 };

/// The share of the other spot nodes that are reclaimed together with one.
pub(crate) const TOGETHER: PriorDistribution = PriorDistribution::Uniform { low: 0.1, high: 0.5 };

/// The presence of a replica that does not answer scrapes for a while.
pub(crate) const SILENCES: Choice<bool> = Choice(&[(85, "none", false), (15, "one", true)]);

/// The start of that time, as a share of the duration, and its minutes.
pub(crate) const SILENT_FROM: PriorDistribution =
    PriorDistribution::Uniform { low: 0.1, high: 0.8 };

pub(crate) const SILENT_MINUTES: PriorDistribution =
    PriorDistribution::LogUniform { low: 1.0, high: 30.0 };

pub(crate) const FAILED_STARTS: Choice<bool> = Choice(&[(50, "none", false), (50, "some", true)]);

/// The share of starts that fail.
pub(crate) const FAILED_SHARE: PriorDistribution =
    PriorDistribution::LogUniform { low: 0.01, high: 0.1 };

/// The price of a spot replica relative to one on demand.
pub(crate) const SPOT_PRICE: f64 = 0.4;

pub(crate) const ROLLOUTS: Choice<bool> = Choice(&[(80, "none", false), (20, "one", true)]);

/// `max_unavailable` of a rollout.
pub(crate) const UNAVAILABLE: Choice<f64> = Choice(&[(50, "0", 0.0), (50, "25%", 0.25)]);

pub(crate) const VARIANTS: Choice<usize> =
    Choice(&[(65, "one", 1), (28, "two", 2), (7, "three", 3)]);

/// The maximum replicas of a variant other than the first, relative to its need at the peak.
pub(crate) const OTHERS_MAX: PriorDistribution = PriorDistribution::Uniform { low: 0.3, high: 1.0 };

// === Surroundings ===

pub(crate) const ROUTERS: Choice<Router> = Choice(&[
    (45, "least requests", Router::LeastRequests),
    (20, "round robin", Router::RoundRobin),
    (15, "random", Router::Random),
    (10, "KV-aware", Router::KvAware),
    (10, "sticky sessions", Router::Sticky),
]);

/// Sessions per replica of the mean need, if sessions are sticky.
pub(crate) const SESSIONS: PriorDistribution =
    PriorDistribution::LogUniform { low: 50.0, high: 1_000.0 };

/// The patience of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    Patient,
    GiveUp,
    Retry,
}

pub(crate) const CLIENTS: Choice<Patience> = Choice(&[
    (70, "patient", Patience::Patient),
    (15, "give up", Patience::GiveUp),
    (15, "retry", Patience::Retry),
]);

/// Seconds for which clients wait.
pub(crate) const TIMEOUT: PriorDistribution =
    PriorDistribution::LogUniform { low: 5.0, high: 60.0 };

/// The scraper, and the seconds between two scrapes: `None` is the daemon itself, once per second.
pub(crate) const SCRAPES: Choice<Option<u64>> = Choice(&[
    (60, "direct", None),
    (20, "Prometheus 15 s", Some(15)),
    (20, "Prometheus 30 s", Some(30)),
]);

/// The delay of Prometheus' samples in seconds.
pub(crate) const RELAY: PriorDistribution = PriorDistribution::Uniform { low: 1.0, high: 10.0 };

pub(crate) const LOSSES: Choice<bool> = Choice(&[(60, "none", false), (40, "some", true)]);

pub(crate) const LOSS: PriorDistribution = PriorDistribution::Uniform { low: 0.0, high: 0.2 };

/// The component that follows the desired replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AutoscalerPreset {
    Recommended,
    Stock,
    Keda,
}

pub(crate) const FOLLOWERS: Choice<AutoscalerPreset> = Choice(&[
    (70, "HPA, recommended behavior", AutoscalerPreset::Recommended),
    (20, "HPA, stock behavior", AutoscalerPreset::Stock),
    (10, "KEDA", AutoscalerPreset::Keda),
]);

pub(crate) const DELAYS: Choice<bool> = Choice(&[(90, "none", false), (10, "some", true)]);

/// Seconds.
pub(crate) const DELAY: PriorDistribution = PriorDistribution::Uniform { low: 5.0, high: 30.0 };

/// The queue in front of replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueAccess {
    None,
    Readable,
    Unreadable,
}

pub(crate) const GATEWAYS: Choice<QueueAccess> = Choice(&[
    (75, "none", QueueAccess::None),
    (15, "readable", QueueAccess::Readable),
    (10, "unreadable", QueueAccess::Unreadable),
]);

/// Simultaneous requests that a gateway sends to a replica, relative to its seats.
pub(crate) const PER_REPLICA: PriorDistribution =
    PriorDistribution::LogUniform { low: 0.5, high: 2.0 };

// === impl Aspect ===

impl Aspect {
    /// The name of the aspect in tables.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Simulation => "simulation",
            Self::Engine => "engine",
            Self::Seats => "seats",
            Self::TokenBudget => "token budget",
            Self::PrefixHits => "prefix cache hits",
            Self::Objectives => "objectives",
            Self::Lengths => "lengths",
            Self::Shape => "arrivals",
            Self::Burstiness => "burstiness",
            Self::Fleet => "fleet size",
            Self::Duration => "duration",
            Self::Startup => "start-up",
            Self::Nodes => "nodes",
            Self::Failures => "failures",
            Self::Rollout => "rollouts",
            Self::Variants => "variants",
            Self::Router => "router",
            Self::Clients => "clients",
            Self::Scrape => "scrape interval",
            Self::ScrapeLoss => "lost scrapes",
            Self::Autoscaler => "autoscaler",
            Self::AutoscalerDelay => "autoscaler delay",
            Self::Gateway => "gateway",
            Self::Initial => "first replicas",
            Self::ApiServers => "API servers",
            Self::Pipeline => "pipeline stages",
            Self::Speculation => "speculation",
            Self::Noise => "iteration noise",
            Self::Drift => "drift of lengths",
            Self::Silence => "silent replica",
            Self::FailedStarts => "failed starts",
            Self::Slowdown => "slowdown",
            Self::Batch => "batch work",
            Self::Arguments => "engine arguments",
        }
    }
}
