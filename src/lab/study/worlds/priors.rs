//! The priors: from which distributions worlds are drawn, each with its source or reason.
//!
//! `docs/worlds.md` has them as a table, which a test compares with these.

use crate::simulate::scenario::Router;
use crate::study::worlds::lot::{Choice, Spread};
use crate::study::worlds::recorded::{
    AZURE_CODE, AZURE_CONVERSATION, MOONCAKE, Recording, SERVEGEN_REASONING, SERVEGEN_SMALL,
};

/// What a world differs in from others. The number is what its random numbers come from, and must
/// stay.
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
}

// === Engine ===

/// Worlds of a hundred whose model is a mixture of experts.
pub(crate) const MIXTURES: u32 = 15;

/// The factor on each coefficient.
pub(crate) const COEFFICIENT: Spread =
    Spread::Lognormal { median: 1.0, sigma: 0.15, low: 0.6, high: 1.6 };

/// The share of the KV cache that other uses of the memory leave.
pub(crate) const MEMORY: Spread = Spread::Uniform { low: 0.8, high: 1.0 };

/// `None` draws from [`SEATS_OTHERS`].
pub(crate) const SEATS: Choice<Option<u32>> =
    Choice(&[(45, "256", Some(256)), (10, "1024", Some(1024)), (45, "others", None)]);

pub(crate) const SEATS_OTHERS: Spread = Spread::LogUniform { low: 8.0, high: 1024.0 };

/// `None` draws from [`BUDGET_OTHERS`].
pub(crate) const BUDGET: Choice<Option<u32>> =
    Choice(&[(40, "2048", Some(2048)), (30, "8192", Some(8192)), (30, "others", None)]);

pub(crate) const BUDGET_OTHERS: Spread = Spread::LogUniform { low: 512.0, high: 16_384.0 };

/// Whether a prefix cache finds anything, unless requests are those of agents.
pub(crate) const HITS: Choice<bool> = Choice(&[(40, "none", false), (60, "some", true)]);

pub(crate) const HITS_SOME: Spread = Spread::Uniform { low: 0.05, high: 0.9 };

pub(crate) const HITS_AGENTS: Spread = Spread::Uniform { low: 0.5, high: 0.9 };

pub(crate) const API_SERVERS: Choice<u32> =
    Choice(&[(60, "one", 1), (20, "two", 2), (12, "four", 4), (8, "eight", 8)]);

pub(crate) const STAGES: Choice<u32> = Choice(&[(85, "one", 1), (10, "two", 2), (5, "four", 4)]);

pub(crate) const SPECULATIONS: Choice<bool> = Choice(&[(75, "none", false), (25, "some", true)]);

/// Tokens that a step gives a request on average.
pub(crate) const TOKENS_PER_STEP: Spread = Spread::Uniform { low: 1.5, high: 3.5 };

/// Tokens that a step drafts, and how many from [`DRAFTS_MORE_FROM`] tokens per step on.
pub(crate) const DRAFTS: u32 = 3;
pub(crate) const DRAFTS_MORE: u32 = 5;
pub(crate) const DRAFTS_MORE_FROM: f64 = 2.5;

pub(crate) const NOISES: Choice<bool> = Choice(&[(40, "none", false), (60, "some", true)]);

/// The standard deviation of the logarithm of an iteration's time.
pub(crate) const NOISE: Spread = Spread::LogUniform { low: 0.02, high: 0.2 };

/// Which engines slow down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slow {
    None,
    One,
    All,
}

pub(crate) const SLOWDOWNS: Choice<Slow> =
    Choice(&[(95, "none", Slow::None), (2, "one replica", Slow::One), (3, "all", Slow::All)]);

/// How many times as long iterations of a slow engine take.
pub(crate) const SLOWNESS: Spread = Spread::Uniform { low: 1.2, high: 2.0 };

/// When engines slow down, as a share of the duration, and for how many minutes.
pub(crate) const SLOW_FROM: Spread = Spread::Uniform { low: 0.1, high: 0.7 };

pub(crate) const SLOW_MINUTES: Spread = Spread::LogUniform { low: 10.0, high: 120.0 };

// === Requests ===

/// In seconds.
pub(crate) const TTFT: Spread = Spread::LogUniform { low: 0.5, high: 10.0 };

/// In milliseconds.
pub(crate) const ITL: Spread = Spread::LogUniform { low: 20.0, high: 150.0 };

/// Objectives are at least this many times what a request gets alone.
pub(crate) const ALONE: f64 = 1.3;

/// What requests ask for.
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
pub(crate) const fn prompt_median(task: Task) -> Spread {
    match task {
        Task::Chat => Spread::LogUniform { low: 30.0, high: 12_000.0 },
        Task::Classify => Spread::LogUniform { low: 30.0, high: 3_000.0 },
        Task::Agent => Spread::LogUniform { low: 4_000.0, high: 12_000.0 },
    }
}

/// The median of answers, by task; a classifier's are from 1 to 5 tokens.
pub(crate) const fn output_median(task: Task) -> Spread {
    match task {
        Task::Chat => Spread::LogUniform { low: 10.0, high: 1_500.0 },
        Task::Classify => Spread::Uniform { low: 1.0, high: 5.0 },
        Task::Agent => Spread::LogUniform { low: 50.0, high: 500.0 },
    }
}

pub(crate) const PROMPT_SIGMA: Spread = Spread::Uniform { low: 0.3, high: 1.3 };

pub(crate) const OUTPUT_SIGMA: Spread = Spread::Uniform { low: 0.3, high: 1.2 };

/// Which lengths drift.
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

/// The median after a drift over that before it.
pub(crate) const DRIFT: Spread = Spread::LogUniform { low: 0.3, high: 4.0 };

/// When a drift begins, as a share of the duration, and the minutes that it takes.
pub(crate) const DRIFT_FROM: Spread = Spread::Uniform { low: 0.1, high: 0.6 };

pub(crate) const DRIFT_MINUTES: Spread = Spread::LogUniform { low: 5.0, high: 60.0 };

/// When there is batch work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    None,
    Always,
    Job,
}

pub(crate) const BATCHES: Choice<Work> = Choice(&[
    (85, "none", Work::None),
    (7, "all the time", Work::Always),
    (8, "one job", Work::Job),
]);

/// The mean need of batch work over that of the other requests.
pub(crate) const BATCH_SHARE: Spread = Spread::LogUniform { low: 0.1, high: 1.0 };

/// Medians of its prompts and answers, and their sigma.
pub(crate) const BATCH_PROMPT: Spread = Spread::LogUniform { low: 300.0, high: 6_000.0 };

pub(crate) const BATCH_OUTPUT: Spread = Spread::LogUniform { low: 30.0, high: 600.0 };

pub(crate) const BATCH_SIGMA: Spread = Spread::Uniform { low: 0.3, high: 0.8 };

/// When a job begins and for how long it lasts, as shares of the duration.
pub(crate) const JOB_FROM: Spread = Spread::Uniform { low: 0.1, high: 0.5 };

pub(crate) const JOB_LASTS: Spread = Spread::Uniform { low: 0.1, high: 0.4 };

// === Arrivals ===

/// How the rate of arrivals runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shape {
    Recorded(&'static Recording),
    Diurnal,
    Flat,
    Ramp,
    Steps,
    Square,
    Flash,
}

pub(crate) const SHAPES: Choice<Shape> = Choice(&[
    (10, "Azure conversation", Shape::Recorded(&AZURE_CONVERSATION)),
    (7, "Azure code", Shape::Recorded(&AZURE_CODE)),
    (8, "Mooncake", Shape::Recorded(&MOONCAKE)),
    (13, "ServeGen m-small", Shape::Recorded(&SERVEGEN_SMALL)),
    (12, "ServeGen deepseek-r1", Shape::Recorded(&SERVEGEN_REASONING)),
    (15, "diurnal", Shape::Diurnal),
    (10, "flat", Shape::Flat),
    (10, "ramp", Shape::Ramp),
    (5, "steps", Shape::Steps),
    (5, "square waves", Shape::Square),
    (5, "flash crowds", Shape::Flash),
]);

/// How many times as fast a recorded day is played.
pub(crate) const COMPRESSION: Spread = Spread::LogUniform { low: 1.0, high: 24.0 };

/// The crest of a day over its trough, and in how many hours a day is played.
pub(crate) const NIGHT: Spread = Spread::LogUniform { low: 2.0, high: 20.0 };

pub(crate) const DAY_HOURS: Spread = Spread::LogUniform { low: 1.0, high: 6.0 };

/// The rate after a ramp over that before it, and the minutes that it takes.
pub(crate) const RAMP: Spread = Spread::LogUniform { low: 2.0, high: 10.0 };

pub(crate) const RAMP_MINUTES: Spread = Spread::LogUniform { low: 5.0, high: 60.0 };

/// A step or the upper half of a square wave over the lower, and the minutes of a half.
pub(crate) const STEP: Spread = Spread::LogUniform { low: 1.5, high: 10.0 };

pub(crate) const HALF_MINUTES: Spread = Spread::LogUniform { low: 5.0, high: 60.0 };

/// A flash crowd over what is usual, its minutes, and the minutes from one to the next.
pub(crate) const FLASH: Spread = Spread::LogUniform { low: 2.0, high: 5.0 };

pub(crate) const FLASH_MINUTES: Spread = Spread::LogUniform { low: 0.5, high: 5.0 };

pub(crate) const FLASH_EVERY_MINUTES: Spread = Spread::LogUniform { low: 15.0, high: 60.0 };

/// The coefficient of variation of the gaps between requests.
pub(crate) const VARIATION: Spread =
    Spread::Lognormal { median: 1.8, sigma: 0.7, low: 1.0, high: 8.0 };

// === Fleet ===

/// The mean need in replicas.
pub(crate) const NEED: Spread = Spread::LogUniform { low: 0.5, high: 100.0 };

/// The same with several variants.
pub(crate) const NEED_OF_SEVERAL: Spread = Spread::LogUniform { low: 0.5, high: 20.0 };

/// The utilization of the replicas that there are at the start, of what they carry of evenly spread
/// requests.
pub(crate) const UTILIZATION: Spread = Spread::Uniform { low: 0.35, high: 0.8 };

/// In hours.
pub(crate) const HOURS: Spread = Spread::LogUniform { low: 1.0, high: 6.0 };

/// The most that is simulated of a world. The duration is cut for it, and then the mean need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub(crate) requests: f64,
    pub(crate) replica_hours: f64,
}

pub(crate) const BUDGET_OF_ONE: Budget = Budget { requests: 100_000.0, replica_hours: 60.0 };

/// The search for the cheapest fixed mix of several variants takes many more runs.
pub(crate) const BUDGET_OF_SEVERAL: Budget = Budget { requests: 30_000.0, replica_hours: 20.0 };

/// Replicas without a pipeline that take as long to simulate as a stage of a pipeline, whose steps are
/// computed one by one.
pub(crate) const STAGE_WORK: f64 = 2.0;

/// Hours below which no duration is cut.
pub(crate) const HOURS_MIN: f64 = 1.0;

/// Replicas below which no mean need is cut.
pub(crate) const NEED_MIN: f64 = 0.5;

/// In seconds, without waiting for a node.
pub(crate) const STARTUP: Spread =
    Spread::Lognormal { median: 120.0, sigma: 0.8, low: 20.0, high: 600.0 };

pub(crate) const STARTUP_SIGMA: Spread = Spread::Uniform { low: 0.1, high: 0.6 };

/// Shares of the phases of a start: image, load and warm-up.
pub(crate) const PHASES: [f64; 3] = [0.15, 0.5, 0.35];

/// Whether nodes are there for all replicas.
pub(crate) const NODES: Choice<bool> = Choice(&[(60, "warm", true), (40, "provisioned", false)]);

/// Seconds until there is a node.
pub(crate) const NODE: Spread = Spread::LogUniform { low: 60.0, high: 600.0 };

/// Replicas for which there are warm nodes, over the mean need.
pub(crate) const WARM: Spread = Spread::Uniform { low: 1.0, high: 1.5 };

/// How replicas fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    None,
    Crash,
    Spot,
    SpotTogether,
}

pub(crate) const FAILURES: Choice<Failure> = Choice(&[
    (60, "none", Failure::None),
    (30, "crashes", Failure::Crash),
    (5, "spot", Failure::Spot),
    (5, "spot, several at once", Failure::SpotTogether),
]);

/// Hours between two crashes of a replica.
pub(crate) const CRASH_HOURS: Spread = Spread::LogUniform { low: 2.0, high: 48.0 };

/// Hours until a spot node is taken back.
pub(crate) const SPOT_HOURS: Spread = Spread::LogUniform { low: 0.5, high: 4.0 };

/// The share of the other spot nodes that are taken back with one, where several are.
pub(crate) const TOGETHER: Spread = Spread::Uniform { low: 0.1, high: 0.5 };

/// Whether one replica does not answer scrapes for a while.
pub(crate) const SILENCES: Choice<bool> = Choice(&[(85, "none", false), (15, "one", true)]);

/// When that begins, as a share of the duration, and for how many minutes.
pub(crate) const SILENT_FROM: Spread = Spread::Uniform { low: 0.1, high: 0.8 };

pub(crate) const SILENT_MINUTES: Spread = Spread::LogUniform { low: 1.0, high: 30.0 };

pub(crate) const FAILED_STARTS: Choice<bool> = Choice(&[(50, "none", false), (50, "some", true)]);

/// The share of starts that fail.
pub(crate) const FAILED_SHARE: Spread = Spread::LogUniform { low: 0.01, high: 0.1 };

/// What a spot replica costs of one on demand.
pub(crate) const SPOT_PRICE: f64 = 0.4;

pub(crate) const ROLLOUTS: Choice<bool> = Choice(&[(80, "none", false), (20, "one", true)]);

/// `max_unavailable` of a rollout.
pub(crate) const UNAVAILABLE: Choice<f64> = Choice(&[(50, "0", 0.0), (50, "25%", 0.25)]);

pub(crate) const VARIANTS: Choice<usize> =
    Choice(&[(65, "one", 1), (28, "two", 2), (7, "three", 3)]);

/// The most replicas of another variant than the first, over what the peak takes of it.
pub(crate) const OTHERS_MAX: Spread = Spread::Uniform { low: 0.3, high: 1.0 };

// === Surroundings ===

pub(crate) const ROUTERS: Choice<Router> = Choice(&[
    (45, "least requests", Router::LeastRequests),
    (20, "round robin", Router::RoundRobin),
    (15, "random", Router::Random),
    (10, "KV-aware", Router::KvAware),
    (10, "sticky sessions", Router::Sticky),
]);

/// Sessions for each replica of the mean need, where they are sticky.
pub(crate) const SESSIONS: Spread = Spread::LogUniform { low: 50.0, high: 1_000.0 };

/// How patient clients are.
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

/// Seconds for which clients wait, but no less than the objective of the first token.
pub(crate) const TIMEOUT: Spread = Spread::LogUniform { low: 5.0, high: 60.0 };

/// Who scrapes, and seconds between two scrapes: `None` is the daemon itself, each second.
pub(crate) const SCRAPES: Choice<Option<u64>> = Choice(&[
    (60, "direct", None),
    (20, "Prometheus 15 s", Some(15)),
    (20, "Prometheus 30 s", Some(30)),
]);

/// Seconds that Prometheus' samples are late.
pub(crate) const RELAY: Spread = Spread::Uniform { low: 1.0, high: 10.0 };

pub(crate) const LOSSES: Choice<bool> = Choice(&[(60, "none", false), (40, "some", true)]);

pub(crate) const LOSS: Spread = Spread::Uniform { low: 0.0, high: 0.2 };

/// Who follows the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Follower {
    Recommended,
    Stock,
    Keda,
}

pub(crate) const FOLLOWERS: Choice<Follower> = Choice(&[
    (70, "HPA, recommended behavior", Follower::Recommended),
    (20, "HPA, stock behavior", Follower::Stock),
    (10, "KEDA", Follower::Keda),
]);

pub(crate) const DELAYS: Choice<bool> = Choice(&[(90, "none", false), (10, "some", true)]);

/// Seconds.
pub(crate) const DELAY: Spread = Spread::Uniform { low: 5.0, high: 30.0 };

/// What holds requests before replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    None,
    Readable,
    Unreadable,
}

pub(crate) const GATEWAYS: Choice<Queue> = Choice(&[
    (75, "none", Queue::None),
    (15, "readable", Queue::Readable),
    (10, "unreadable", Queue::Unreadable),
]);

/// Requests that a gateway sends to a replica at once, over its seats.
pub(crate) const PER_REPLICA: Spread = Spread::LogUniform { low: 0.5, high: 2.0 };

// === impl Aspect ===

impl Aspect {
    /// As tables name it.
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
        }
    }
}
