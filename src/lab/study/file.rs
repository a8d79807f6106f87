//! The scenario file as written. Every key is optional here, so that a file with mistakes can still
//! be read for all of them.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use plimsoll_daemon::config::written::WrittenDuration;

macro_rules! sections {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident: $ty:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct $name {
            $($(#[$field_meta])* pub(crate) $field: Option<$ty>,)*
        }
    )*};
}

macro_rules! choices {
    ($($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "snake_case")]
        pub(crate) enum $name {
            $($(#[$variant_doc])* $variant,)*
        }
    )*};
}

/// A list whose unreadable elements are holes.
pub(crate) type Items<T> = Vec<Option<T>>;

sections! {
    /// A scenario.
    File {
        /// What it is and where its traces are from, in a sentence or two.
        about: String,
        /// What its load is like, which the scoreboard holds its promises by; nothing else changes.
        kind: Kind,
        /// How long it lasts. Without it, as long as the longest trace.
        length: WrittenDuration,
        /// What all random numbers start from.
        seed: u32,
        /// Time between two samples of the series.
        sample: WrittenDuration,
        /// The models. Required.
        #[schemars(with = "Option<Vec<Model>>")]
        models: Items<Model>,
        /// The variants. Required.
        #[schemars(with = "Option<Vec<Variant>>")]
        variants: Items<Variant>,
        /// What the daemon decides by, in the words of its own configuration.
        policy: Map<String, Value>,
        /// What lies between the replicas and the daemon.
        daemon: Daemon,
        /// Values to try: for each path of this file a list. All combinations are run.
        sweep: Map<String, Value>,
        /// Who is compared where the command line names nobody, as there.
        #[schemars(with = "Option<Vec<String>>")]
        compare: Items<String>,
    }

    /// A model and its requests.
    Model {
        /// Its name. Required.
        name: String,
        /// Its namespace.
        namespace: String,
        /// What a request must meet to count as served well. Required.
        slo: Slo,
        /// Its requests. Required: exactly one key.
        workload: Workload,
        /// The `LoRA` adapters that they ask for; the others ask for the model itself.
        #[schemars(with = "Option<Vec<Adapter>>")]
        adapters: Items<Adapter>,
        /// Which replica a request goes to.
        router: Router,
        /// How often a router that looks at replicas looks.
        router_refresh: WrittenDuration,
        /// How long a prompt's cache takes from a replica that computes prompts to one that decodes.
        transfer: Transfer,
        /// What holds requests that no replica takes.
        gateway: Gateway,
        /// How patient clients are.
        client: Client,
    }

    /// What a request must meet to count as served well.
    Slo {
        /// The longest time to the first token. Required.
        ttft: WrittenDuration,
        /// The longest mean time between its tokens. Required.
        itl: WrittenDuration,
        /// How much later the first token may be for each token of the prompt beyond `long_prompt`.
        ttft_per_token: WrittenDuration,
        /// Tokens of a prompt from which it is long.
        long_prompt: u32,
    }

    /// A `LoRA` adapter.
    Adapter {
        /// Its name. Required.
        name: String,
        /// The share of the model's requests that ask for it. Required.
        share: f64,
    }

    /// The requests of a model.
    Workload {
        /// As recorded.
        trace: Trace,
        /// At a rate over time.
        drawn: Drawn,
        /// By clients who wait for their answers.
        closed: Closed,
    }

    /// A recorded trace.
    Trace {
        /// The file, or for `servegen` the folder. Required.
        file: PathBuf,
        /// How it is written. Required.
        format: Format,
        /// How many times as many requests.
        rate: f64,
        /// How far the copies of the trace that make more requests are shifted in time at most.
        spread: WrittenDuration,
        /// How many times as fast.
        speed: f64,
        /// How long prompts are of clients of `servegen` whose lengths are not in the folder.
        prompt: Lengths,
        /// How long answers are of the same.
        output: Lengths,
        /// Lengths of prompts and answers of the same together, as recorded.
        lengths: Recorded,
    }

    /// Requests at a rate over time: exactly one of `rate`, `steps`, `points` and `wave`.
    Drawn {
        /// Requests per second.
        rate: f64,
        /// Rates that hold from a time on.
        #[schemars(with = "Option<Vec<Point>>")]
        steps: Items<Point>,
        /// Rates at times, straight between them.
        #[schemars(with = "Option<Vec<Point>>")]
        points: Items<Point>,
        /// A cosine that starts in its trough.
        wave: Wave,
        /// After how long steps or points begin again.
        period: WrittenDuration,
        /// The coefficient of variation of the gaps between requests; 1 is a Poisson process.
        variation: f64,
        /// How long prompts are. Required, unless `lengths` is there.
        prompt: Lengths,
        /// How long answers are. Required, unless `lengths` is there.
        output: Lengths,
        /// Lengths of prompts and answers together, as recorded.
        lengths: Recorded,
    }

    /// A rate at a time.
    Point {
        /// When, from the start.
        at: WrittenDuration,
        /// Requests per second.
        rate: f64,
    }

    /// A cosine that starts in its trough.
    Wave {
        /// The lowest rate, in requests per second.
        trough: f64,
        /// The highest.
        crest: f64,
        /// From trough to trough.
        period: WrittenDuration,
    }

    /// Clients of which each has one request at a time.
    Closed {
        /// How many. Required.
        clients: u32,
        /// The mean time from an answer to the next request.
        think: WrittenDuration,
        /// How long prompts are. Required, unless `lengths` is there.
        prompt: Lengths,
        /// How long answers are. Required, unless `lengths` is there.
        output: Lengths,
        /// Lengths of prompts and answers together, as recorded.
        lengths: Recorded,
    }

    /// A distribution of lengths in tokens: `fixed`; `min` and `max`; or `median` and `sigma`.
    Lengths {
        /// Always this.
        fixed: u32,
        /// The shortest.
        min: u32,
        /// The longest.
        max: u32,
        /// The median of a lognormal distribution.
        median: f64,
        /// The standard deviation of its logarithm.
        sigma: f64,
    }

    /// Lengths of prompts and answers together, as recorded.
    Recorded {
        /// The file. Required.
        file: PathBuf,
        /// How it is written. Required.
        format: Format,
    }

    /// How long a prompt's cache takes from a replica that computes prompts to one that decodes.
    Transfer {
        /// Whatever its length.
        latency: WrittenDuration,
        /// For each token of the prompt.
        per_token: WrittenDuration,
    }

    /// What holds requests that no replica takes.
    Gateway {
        /// Requests that it holds at most.
        queue: u32,
        /// Requests that it sends to one replica at a time; without it, all.
        per_replica: u32,
        /// How often the daemon reads how many it holds, from 200ms to 10s; without it, never.
        read: WrittenDuration,
    }

    /// How patient clients are.
    Client {
        /// How long they wait for a first token; without it, for ever.
        timeout: WrittenDuration,
        /// How often they try again after a failure.
        retries: u32,
        /// How long they wait before that.
        backoff: WrittenDuration,
    }

    /// A variant.
    Variant {
        /// Its name. Required.
        name: String,
        /// The name of its model. Required, where there is more than one.
        model: String,
        /// What part of its requests it serves.
        role: Role,
        /// The kind of accelerator that it runs on.
        accelerator: String,
        /// What one replica costs for an hour.
        cost: f64,
        /// What it costs without a discount, such as that of spot nodes, where `cost` has one.
        list_price: f64,
        /// Factor on its score for something scarce that the model does not need.
        mismatch: f64,
        /// What the daemon is told of how long a replica takes to serve, until it has measured starts.
        start_time: WrittenDuration,
        /// How many replicas there may be, and are at the start.
        replicas: ReplicaCounts,
        /// Its engine. Required.
        engine: Engine,
        /// How its replicas start.
        startup: Startup,
        /// How they stop and fail.
        lifecycle: Lifecycle,
        /// When others take the place of all of them.
        rollout: Rollout,
        /// Who changes their number.
        autoscaler: Autoscaler,
    }

    /// How many replicas there may be.
    ReplicaCounts {
        /// The fewest.
        min: u32,
        /// The most. Required.
        max: u32,
        /// Those that are ready at the start; without it, the fewest.
        initial: u32,
    }

    /// An engine.
    Engine {
        /// The time of a step by itself. Required.
        alpha: WrittenDuration,
        /// The time for each token of a prompt. Required.
        beta: WrittenDuration,
        /// The time for each request that decodes a token. Required.
        delta: WrittenDuration,
        /// The time for each token of the KV cache that is read.
        gamma: WrittenDuration,
        /// What a mixture of experts takes beside that.
        experts: Experts,
        /// The size of the KV cache in tokens. Required.
        kv_tokens: u32,
        /// Requests in a batch: `max_num_seqs`.
        seats: u32,
        /// Tokens that a step may compute: `max_num_batched_tokens`.
        batch_tokens: u32,
        /// Tokens in a block of the cache.
        block_size: u32,
        /// The share of each prompt that its prefix cache has.
        prefix_hits: f64,
        /// Whether its prefix cache has what it has computed, by the `hash_ids` of the trace.
        prefix_caching: bool,
        /// How it serves `LoRA` adapters. Required where requests ask for some.
        adapters: Adapters,
    }

    /// How an engine serves `LoRA` adapters.
    Adapters {
        /// Adapters that one step serves: `max_loras`.
        slots: u32,
        /// How much longer a step takes in which one is loaded.
        load: WrittenDuration,
    }

    /// What a mixture of experts takes until all of them are awake.
    Experts {
        /// Tokens of a step by which all are. Required.
        tokens: u32,
        /// The time for each of these tokens. Required.
        per_token: WrittenDuration,
    }

    /// How replicas start. Each phase is a lognormal span with this median.
    Startup {
        /// Replicas for which there is room without waiting for a node; without it, any number.
        warm_nodes: u32,
        /// Until there is a node, where there is none.
        node: WrittenDuration,
        /// Until the image is there.
        image: WrittenDuration,
        /// Until the weights are loaded.
        load: WrittenDuration,
        /// Until the engine answers.
        warmup: WrittenDuration,
        /// The standard deviation of the logarithm of each.
        sigma: f64,
    }

    /// How replicas stop and fail.
    Lifecycle {
        /// How long a replica may finish what it has.
        grace: WrittenDuration,
        /// The mean time between crashes of one replica; without it, there are none.
        crash_every: WrittenDuration,
        /// The mean time until a replica's node is taken back; without it, none is.
        interrupt_every: WrittenDuration,
        /// How long before that the replica is told.
        notice: WrittenDuration,
    }

    /// A change of the pod template, which replaces all replicas.
    Rollout {
        /// When. Required.
        at: WrittenDuration,
        /// Replicas beyond those asked for: a share below 1, or a whole number.
        max_surge: f64,
        /// Replicas that need not be available: a share below 1, or a whole number.
        max_unavailable: f64,
    }

    /// Who changes the number of replicas.
    Autoscaler {
        /// What it is.
        kind: AutoscalerKind,
        /// What it follows.
        follows: Signal,
        /// The average for each replica that it aims at. Required, unless it follows `desired`.
        target: f64,
        /// Time between two syncs of the HPA.
        sync: WrittenDuration,
        /// How old the values are that it reads.
        delay: WrittenDuration,
        /// `behavior.scaleUp`.
        scale_up: Direction,
        /// `behavior.scaleDown`.
        scale_down: Direction,
        /// KEDA's `pollingInterval`.
        polling: WrittenDuration,
        /// KEDA's `cooldownPeriod`.
        cooldown: WrittenDuration,
        /// The value above which KEDA scales from zero.
        activation: f64,
    }

    /// One direction of an HPA's `behavior`.
    Direction {
        /// How far from the target the value may be without a change, as a share.
        tolerance: f64,
        /// `stabilizationWindowSeconds`.
        stabilization_window: WrittenDuration,
        /// `selectPolicy`.
        select_policy: SelectPolicy,
        /// The policies.
        #[schemars(with = "Option<Vec<StepPolicy>>")]
        policies: Items<StepPolicy>,
    }

    /// How far the number may move in a period.
    StepPolicy {
        /// What `value` counts.
        r#type: StepType,
        /// How far.
        value: u32,
        /// The period.
        period: WrittenDuration,
    }

    /// What lies between the replicas and the daemon.
    Daemon {
        /// The share of scrapes that fail.
        scrape_loss: f64,
        /// How old pages are when the daemon gets them, where a Prometheus scrapes.
        relay: WrittenDuration,
        /// Age up to which a decision is served.
        hold: WrittenDuration,
        /// A time in which nobody can read what replicas say.
        outage: Outage,
    }

    /// A time in which nobody can read what replicas say: neither the daemon nor another autoscaler.
    Outage {
        /// When it begins. Required.
        at: WrittenDuration,
        /// How long it lasts. Required.
        length: WrittenDuration,
    }
}

choices! {
    /// What a load is like.
    Kind {
        /// It rises and falls no faster than replicas start, give or take its bursts.
        Smooth,
        /// It rises, or what serves it fails, faster than replicas start.
        Jumps,
    }

    /// How a trace is written.
    Format {
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

    /// Which replica a request goes to.
    Router {
        /// One after the other.
        RoundRobin,
        /// The one with the fewest requests for the seats that it has.
        LeastRequests,
        /// The one with the most free KV cache and the shortest queue.
        KvAware,
    }

    /// What part of a request a variant serves.
    Role {
        /// All of it.
        Both,
        /// Its prompt.
        Prefill,
        /// Its answer.
        Decode,
    }

    /// Who changes the number of replicas.
    AutoscalerKind {
        /// Nobody.
        None,
        /// A stock HPA.
        Hpa,
        /// KEDA with the HPA that it keeps.
        Keda,
    }

    /// What an autoscaler follows.
    Signal {
        /// The number that Plimsoll publishes.
        Desired,
        /// Waiting requests.
        Waiting,
        /// Waiting and running requests.
        InFlight,
        /// The share of the KV cache in use.
        KvUsage,
        /// Requests a second of the model that come to its gateway.
        Rate,
        /// Requests a second that are sent to the replicas.
        Sent,
    }

    /// Which policy wins.
    SelectPolicy {
        /// The one that allows the largest change.
        Max,
        /// The one that allows the smallest change.
        Min,
        /// No change in this direction.
        Disabled,
    }

    /// What a policy counts.
    StepType {
        /// Replicas.
        Pods,
        /// Per cent of the replicas at the period's start.
        Percent,
    }
}
