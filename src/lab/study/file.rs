//! The scenario file: each key is declared once, with its default, range and description. Sections
//! that the simulator uses as written are declared in the simulator.

mod engine;

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::simulate::Micros;
use crate::simulate::scenario::{
    Admit, COOLDOWN, Client, FACTORS, Lifecycle, Outage, POLLING, Router, SPANS, SYNC, Signal, Slo,
    Startup, TOKEN_SPANS,
};
use crate::simulate::workload::rate::{Burst, PERIODS, RATES};
pub(crate) use crate::study::file::engine::{EngineKeys, ExpertKeys, FetchKeys, SpeculationKeys};
use plimsoll_core::fleet::Role;
use plimsoll_core::settings;
use plimsoll_core::settings::{Written, above_zero, hours, millis, secs, text};
use plimsoll_core::units::{CostPerHour, Fraction, Seconds};
use plimsoll_daemon::config::names::{
    DNS_LABEL, LABEL_TEXT, MODEL_NAME, VARIANT_NAME, is_dns_label, is_label_text, is_model_name,
    is_variant_name,
};
use plimsoll_daemon::config::{EXTERNAL_METRICS_HOLD, START_TIMES, WAKE_INTERVALS};

/// The longest span of a trace and of a scenario: a leap year.
pub(crate) const SPAN_MAX: Duration = Duration::from_hours(24 * 366);

/// Lengths of scenarios.
pub(crate) const LENGTHS: RangeInclusive<Duration> = secs(1)..=SPAN_MAX;

/// More than any cluster has.
pub(crate) const REPLICAS_MAX: u32 = 10_000;

/// Lengths of prompts and answers.
const TOKENS: RangeInclusive<u32> = 1..=100_000_000;

const COSTS: RangeInclusive<f64> = 0.0..=1e9;

/// The range of a controller's period.
const SYNCS: RangeInclusive<Duration> = millis(100)..=hours(1);

/// A scenario as written.
pub(crate) type File = Written<FileKeys>;

settings! {
    /// A scenario.
    pub(crate) struct FileKeys {
        /// What it is and where its traces are from, in a sentence or two.
        about: Option<String>;

        /// What its load is like, which the scoreboard holds its promises by; nothing else changes.
        kind: Option<Kind>;

        /// How long it lasts. Without it, as long as the longest trace.
        length: Option<Micros>, in LENGTHS;

        /// What all random numbers start from.
        seed: u32 = 1;

        /// Time between two samples of the series.
        sample: Option<Micros>, in millis(100)..=hours(24);

        /// The models.
        models: Vec<ModelKeys>, required;

        /// The variants.
        variants: Vec<VariantKeys>, required;

        /// What the daemon decides by, in the words of its own configuration.
        policy: Words;

        /// What lies between the replicas and the daemon.
        daemon: DaemonKeys;

        /// Values to try: for each path of this file a list. All combinations are run.
        sweep: Words;

        /// Who is compared where the command line names nobody, as there.
        compare: Option<Vec<String>>;
    }

    /// A model and its requests.
    pub(crate) struct ModelKeys {
        /// Its name.
        name: String, in text(is_model_name, MODEL_NAME), required;

        /// Its namespace.
        namespace: String = "default", in text(is_dns_label, DNS_LABEL);

        /// What a request must meet to count as served well.
        slo: Slo, required;

        /// Its requests: exactly one key.
        workload: WorkloadKeys, required;

        /// Batch work on the same replicas, which is counted apart.
        batch: Option<BatchKeys>;

        /// The `LoRA` adapters that they ask for; the others ask for the model itself.
        adapters: Vec<AdapterKeys>;

        /// Which replica a request goes to.
        router: Router = Router::LeastRequests;

        /// How often a router that looks at replicas looks.
        // The endpoint picker of the Gateway API's inference extension refreshes metrics at this
        // interval.
        router_refresh: Micros = millis(50), in millis(1)..=hours(1);

        /// Sessions that requests belong to, for a router that keeps those of one together. The
        /// sessions of a closed workload are its clients.
        sessions: u32 = 1000, in 1..=1_000_000;

        /// How long a prompt's cache takes from a replica that computes prompts to one that
        /// decodes.
        transfer: TransferKeys;

        /// What holds requests that no replica takes.
        gateway: GatewayKeys;

        /// How patient clients are.
        client: Client;
    }

    /// Batch work of a model: requests of another class, through the same gateway to the same
    /// replicas. Its clients wait as long as it takes.
    pub(crate) struct BatchKeys {
        /// What a request must meet to count as served well; without it, a full answer.
        slo: Option<Slo>;

        /// The requests, at a rate over time.
        drawn: Option<DrawnKeys>, required;
    }

    /// A `LoRA` adapter.
    pub(crate) struct AdapterKeys {
        /// Its name.
        name: Option<String>, in text(is_model_name, MODEL_NAME), required;

        /// The share of the model's requests that ask for it.
        share: Option<Fraction>, in above_zero(1.0), required;

        /// When that begins, in each period of the workload.
        from: Micros, in SPANS;

        /// When it ends, and its share goes to the others; without it, never.
        until: Option<Micros>, in SPANS;
    }

    /// The requests of a model.
    pub(crate) struct WorkloadKeys {
        /// As recorded.
        trace: Option<TraceKeys>;

        /// At a rate over time.
        drawn: Option<DrawnKeys>;

        /// By clients who wait for their answers.
        closed: Option<ClosedKeys>;
    }

    /// A recorded trace.
    pub(crate) struct TraceKeys {
        /// The file, or for `servegen` the folder.
        file: Option<PathBuf>, required;

        /// How it is written.
        format: Option<Format>, required;

        /// How many times as many requests.
        rate: f64 = 1.0, in above_zero(10_000.0);

        /// How far the copies of the trace that make more requests are shifted in time at most; a
        /// minute without it.
        spread: Option<Micros>, in SPANS;

        /// How many times as fast.
        speed: f64 = 1.0, in above_zero(1e6);

        /// How long prompts are of clients of `servegen` whose lengths are not in the folder.
        prompt: Option<LengthKeys>;

        /// How long answers are of the same.
        output: Option<LengthKeys>;

        /// Lengths of prompts and answers of the same together, as recorded.
        lengths: Option<RecordedKeys>;
    }

    /// Requests at a rate over time: exactly one of `rate`, `steps`, `points` and `wave`.
    pub(crate) struct DrawnKeys {
        /// Requests per second.
        rate: Option<f64>, in RATES;

        /// Rates that hold from a time on, the first one also before it.
        steps: Option<Vec<PointKeys>>;

        /// Rates at times, straight between them.
        points: Option<Vec<PointKeys>>;

        /// A cosine that starts in its trough.
        wave: Option<WaveKeys>;

        /// After how long steps or points begin again.
        period: Option<Duration>, in PERIODS;

        /// The coefficient of variation of the gaps between requests; 1 is a Poisson process.
        variation: f64 = 1.0, in 0.0..=20.0;

        /// How lengths change: factors at times, straight between them.
        drift: Option<Vec<DriftKeys>>;

        /// How long prompts are. Required, unless `lengths` is there.
        prompt: Option<LengthKeys>;

        /// How long answers are. Required, unless `lengths` is there.
        output: Option<LengthKeys>;

        /// Lengths of prompts and answers together, as recorded.
        lengths: Option<RecordedKeys>;
    }

    /// Factors on lengths at a time.
    #[derive(Copy)]
    pub(crate) struct DriftKeys {
        /// When, from the start.
        at: Micros, in SPANS, required;

        /// How many times as long prompts are.
        prompt: f64 = 1.0, in FACTORS;

        /// How many times as long answers are.
        output: f64 = 1.0, in FACTORS;
    }

    /// A rate at a time.
    pub(crate) struct PointKeys {
        /// When, from the start.
        at: Duration, required;

        /// Requests per second.
        rate: f64, in RATES, required;
    }

    /// A cosine that starts in its trough.
    pub(crate) struct WaveKeys {
        /// The lowest rate, in requests per second.
        trough: f64, in RATES, required;

        /// The highest.
        crest: f64, in RATES, required;

        /// From trough to trough.
        period: Duration, in PERIODS, required;

        /// More requests for a while, once in each period.
        burst: Option<Burst>;
    }

    /// Clients of which each has one request at a time.
    pub(crate) struct ClosedKeys {
        /// How many.
        clients: u32, in 1..=1_000_000, required;

        /// The mean time from an answer to the next request.
        // The time to read an answer.
        think: Micros = secs(10), in SPANS;

        /// How long prompts are. Required, unless `lengths` is there.
        prompt: Option<LengthKeys>;

        /// How long answers are. Required, unless `lengths` is there.
        output: Option<LengthKeys>;

        /// Lengths of prompts and answers together, as recorded.
        lengths: Option<RecordedKeys>;
    }

    /// A distribution of lengths in tokens: `fixed`; `min` and `max`; or `median` and `sigma`.
    pub(crate) struct LengthKeys {
        /// Always this.
        fixed: Option<u32>, in TOKENS;

        /// The shortest.
        min: Option<u32>, in TOKENS;

        /// The longest.
        max: Option<u32>, in TOKENS;

        /// The median of a lognormal distribution.
        median: Option<f64>, in above_zero(1e8);

        /// The standard deviation of its logarithm; 0.5 without it.
        sigma: Option<f64>, in 0.0..=5.0;
    }

    /// Lengths of prompts and answers together, as recorded.
    pub(crate) struct RecordedKeys {
        /// The file.
        file: Option<PathBuf>, required;

        /// How it is written.
        format: Option<Format>, required;
    }

    /// How long a prompt's cache takes from a replica that computes prompts to one that decodes.
    pub(crate) struct TransferKeys {
        /// Whatever its length.
        latency: Micros, in SPANS;

        /// For each token of the prompt.
        per_token: Duration, in TOKEN_SPANS;
    }

    /// What holds requests that no replica takes.
    pub(crate) struct GatewayKeys {
        /// Requests that it holds at most.
        // More requests than any client would wait behind.
        queue: usize = 100_000;

        /// Requests that it sends to one replica at a time; without it, all.
        per_replica: Option<u32>, in 1..=1_000_000;

        /// How often the daemon reads how many it holds; without it, never.
        read: Option<Micros>, in WAKE_INTERVALS;

        /// Rejects requests beyond the published admissible rate; without it, none.
        admit: Option<Admit>;
    }

    /// A variant.
    pub(crate) struct VariantKeys {
        /// Its name.
        name: String, in text(is_variant_name, VARIANT_NAME), required;

        /// The name of its model. Required, where there is more than one.
        model: Option<String>;

        /// What part of its requests it serves.
        role: Role = Role::Both;

        /// The kind of accelerator that it runs on.
        accelerator: Option<String>, in text(is_label_text, LABEL_TEXT);

        /// What one replica costs for an hour.
        cost: CostPerHour = 1.0, in COSTS;

        /// What it costs without a discount, such as that of spot nodes, where `cost` has one.
        list_price: Option<CostPerHour>, in COSTS;

        /// Factor on its score for something scarce that the model does not need.
        mismatch: Fraction = 1.0, in 1.0..=1000.0;

        /// What the daemon is told of how long a replica takes to serve, until it has measured
        /// starts.
        start_time: Option<Seconds>, in START_TIMES;

        /// How many replicas there may be, and are at the start.
        replicas: ReplicaCountKeys, required;

        /// Its engine.
        engine: EngineKeys, required;

        /// How its replicas start.
        startup: Startup;

        /// How they stop and fail.
        lifecycle: Lifecycle;

        /// When others take the place of all of them.
        rollout: Option<RolloutKeys>;

        /// Who changes their number.
        autoscaler: AutoscalerKeys;
    }

    /// How many replicas there may be.
    #[derive(Copy)]
    pub(crate) struct ReplicaCountKeys {
        /// The fewest.
        min: u32 = 1, in 0..=REPLICAS_MAX;

        /// The most.
        max: Option<u32>, in 1..=REPLICAS_MAX, required;

        /// Those that are ready at the start; without it, the fewest.
        initial: Option<u32>;
    }

    /// A change of the pod template, which replaces all replicas.
    // The portions are the defaults of a Deployment.
    #[derive(Copy)]
    pub(crate) struct RolloutKeys {
        /// When.
        at: Micros, in SPANS, required;

        /// Replicas beyond those asked for: a share below 1, or a whole number.
        max_surge: f64 = 0.25, in 0.0..=f64::from(REPLICAS_MAX);

        /// Replicas that need not be available: a share below 1, or a whole number.
        max_unavailable: f64 = 0.25, in 0.0..=f64::from(REPLICAS_MAX);
    }

    /// Who changes the number of replicas.
    pub(crate) struct AutoscalerKeys {
        /// What it is.
        kind: AutoscalerKind = AutoscalerKind::Hpa;

        /// What it follows.
        follows: Signal = Signal::Desired;

        /// The average for each replica that it aims at. Required, unless it follows `desired`.
        target: Option<f64>, in above_zero(1e9);

        /// Time between two syncs of the HPA.
        sync: Micros = SYNC.duration(), in SYNCS;

        /// How old the values are that it reads.
        delay: Micros, in SPANS;

        /// The HPA's `behavior`, as Kubernetes writes it.
        behavior: Option<BehaviorKeys>;

        /// KEDA's `pollingInterval`.
        polling: Micros = POLLING.duration(), in SYNCS;

        /// KEDA's `cooldownPeriod`.
        cooldown: Micros = COOLDOWN.duration(), in SPANS;

        /// The value above which KEDA scales from zero.
        activation: f64 = 0.0, in 0.0..=1e9;
    }

    /// The `behavior` of an HPA.
    pub(crate) struct BehaviorKeys {
        /// Towards more replicas.
        scale_up as "scaleUp": Option<DirectionKeys>;

        /// Towards fewer.
        scale_down as "scaleDown": Option<DirectionKeys>;
    }

    /// One direction of an HPA's `behavior`.
    pub(crate) struct DirectionKeys {
        /// How far from the target the value may be without a change, as a share.
        tolerance: Option<QuantityText>;

        /// The window whose highest recommendation holds, or whose lowest on the way up.
        window as "stabilizationWindowSeconds": Option<u32>, in 0..=3600;

        /// The policy that counts if there are several.
        select_policy as "selectPolicy": Option<SelectPolicy>;

        /// The policies.
        policies: Option<Vec<StepKeys>>;
    }

    /// How far the number may move in a period.
    #[derive(Copy)]
    pub(crate) struct StepKeys {
        /// What `value` counts.
        kind as "type": Option<PolicyType>, required;

        /// How far.
        value: u32, required;

        /// The period.
        period as "periodSeconds": u32 = 15, in 1..=1800;
    }

    /// What lies between the replicas and the daemon.
    pub(crate) struct DaemonKeys {
        /// The share of scrapes that fail.
        scrape_loss: Fraction = 0.0, in 0.0..=1.0;

        /// How old pages are when the daemon gets them, where a Prometheus scrapes.
        relay: Option<Micros>, in SPANS;

        /// Age up to which a decision is served.
        hold: Seconds = EXTERNAL_METRICS_HOLD, in SPANS;

        /// A time in which nobody can read what replicas say.
        outage: Option<Outage>;
    }
}

/// A mapping that is read elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub(crate) struct Words(pub(crate) Map<String, Value>);

/// What a load is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// It rises and falls no faster than replicas start, give or take its bursts.
    Smooth,
    /// It rises, or what serves it fails, faster than replicas start.
    Jumps,
}

/// How a trace is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Format {
    /// `TIMESTAMP,ContextTokens,GeneratedTokens`, as the Azure LLM inference traces of 2023.
    Azure,
    /// JSON lines with `timestamp` in milliseconds, `input_length` and `output_length`.
    Mooncake,
    /// `seconds,input_tokens,output_tokens`, with these names in the first line.
    Csv,
    /// JSON lines with `seconds`, `input_tokens` and `output_tokens`.
    Jsonl,
    /// Lengths alone: `num_prefill_tokens,num_decode_tokens,…`, as vidur's processed traces.
    Vidur,
    /// A folder of clients, of whom windows of ten minutes say how much they send, as `ServeGen`'s.
    Servegen,
}

/// Who changes the number of replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AutoscalerKind {
    /// Nobody.
    None,
    /// A stock HPA.
    Hpa,
    /// KEDA with the HPA that it keeps.
    Keda,
}

/// Which policy of a direction counts, as Kubernetes writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) enum SelectPolicy {
    /// The one that allows the largest change.
    Max,
    /// The one that allows the smallest.
    Min,
    /// None: the number does not move in this direction.
    Disabled,
}

/// What the value of a policy counts, as Kubernetes writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) enum PolicyType {
    /// Replicas.
    Pods,
    /// Percent of the replicas at the start of the period.
    Percent,
}

/// A quantity of Kubernetes: a number, or a text such as `100m`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum QuantityText {
    /// As a number.
    Number(f64),
    /// As a text.
    Text(String),
}

settings! { plain: Words; Kind; Format; AutoscalerKind; SelectPolicy; PolicyType; QuantityText; }
