//! What is simulated: models, the load on them, the variants that carry it, and who scales them.
//!
//! Everything here is resolved: there is nothing to look up, and the file that a person writes is
//! read elsewhere. Sections of that file that need no more than their defaults and ranges are
//! declared here as they are used. What Kubernetes and KEDA do unless they are told otherwise is here,
//! because several resolve to it.

mod covers;

use std::ops::RangeInclusive;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::simulate::Micros;
use crate::simulate::peers::law::Rule;
use crate::simulate::replica::adapters::AdapterSettings;
use crate::simulate::replica::settings::{Options, Settings};
use crate::simulate::scaler;
use crate::simulate::workload::Load;
use crate::simulate::workload::load::Arrivals;
use plimsoll_core::fleet::{ModelKey, ModelName, Role, VariantSpec};
use plimsoll_core::pipeline::Policy;
use plimsoll_core::settings;
use plimsoll_core::settings::{hours, minutes, secs};
use plimsoll_core::units::{Fraction, Replicas, Seconds};

/// The period of the HPA's controller.
pub const SYNC: Micros = Micros::from_secs(15);

/// KEDA's `pollingInterval`.
pub const POLLING: Micros = Micros::from_secs(30);

/// KEDA's `cooldownPeriod`.
pub const COOLDOWN: Micros = Micros::from_secs(300);

/// `terminationGracePeriodSeconds`.
const GRACE: Duration = secs(30);

/// Spans of time that may be none; the longest is a leap year.
pub const SPANS: RangeInclusive<Duration> = Duration::ZERO..=hours(24 * 366);

/// More than a minute would let a whole spike through.
const ADMIT_BURSTS: RangeInclusive<Duration> = Duration::ZERO..=minutes(1);

/// Objectives of latencies.
const LATENCIES: RangeInclusive<Duration> = Duration::from_micros(1)..=hours(24);

/// How many times as long or as slow something becomes.
pub const FACTORS: RangeInclusive<f64> = 0.01..=100.0;

/// Replicas in the order in which they were created.
const NUMBERS: RangeInclusive<u32> = 1..=1_000_000;

/// Spans of time for each token.
pub const TOKEN_SPANS: RangeInclusive<Duration> = Duration::ZERO..=secs(1);

/// A scenario.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// How long it lasts.
    pub length: Micros,
    /// The models.
    pub models: Vec<Model>,
    /// The variants.
    pub variants: Vec<Variant>,
    /// How the daemon looks and decides.
    pub control: Control,
    /// Time between two samples of the series.
    pub sample: Micros,
}

/// A model, its requests, and what stands between these and the replicas.
#[derive(Clone, Debug)]
pub struct Model {
    /// Its name.
    pub key: ModelKey,
    /// What a request must meet to count as served well.
    pub slo: Slo,
    /// Its requests.
    pub load: Load,
    /// Requests of another class, which are counted apart; `None` without any.
    pub batch: Option<Batch>,
    /// The adapters that they ask for, at most as many as an engine can tell apart; those beyond the
    /// shares ask for the model itself.
    pub adapters: Vec<AdapterShare>,
    /// Which replica a request goes to.
    pub router: Router,
    /// Time between two looks of a router that looks at replicas.
    pub router_refresh: Micros,
    /// Sessions that requests belong to, each as likely as any other. Those of a closed workload are
    /// its clients.
    pub sessions: u32,
    /// How long the KV cache of a prompt takes from a replica that computes prompts to one that
    /// decodes, where the variants have these roles.
    pub transfer: Transfer,
    /// What holds requests that no replica takes.
    pub gateway: Gateway,
    /// How patient clients are.
    pub client: Client,
}

/// Batch work of a model: requests through the same gateway to the same replicas, whose clients wait as
/// long as it takes.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The requests.
    pub load: Load,
    /// What a request must meet to count as served well; without it, a full answer.
    pub slo: Option<Slo>,
}

/// An adapter of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterShare {
    /// Its name.
    pub name: ModelName,
    /// The share of the model's requests that ask for it.
    pub share: Fraction,
    /// When that begins, in each period of the model's rate.
    pub from: Micros,
    /// When it ends; its share then goes to the others.
    pub until: Micros,
}

settings! {
    /// What a request must meet to count as served well.
    #[derive(Copy, Eq)]
    pub struct Slo {
        /// The longest time to the first token, from the client's first attempt.
        ttft: Micros, in LATENCIES, required;

        /// The longest mean time between its tokens.
        itl: Micros, in LATENCIES, required;

        /// How much later the first token may be for each token of the prompt beyond `long_prompt`.
        ttft_per_token: Micros, in TOKEN_SPANS;

        /// Tokens of a prompt from which it is long.
        long_prompt: u32 = 4_000, in 0..=100_000_000;
    }

    /// A gateway's token bucket, filled at the published admissible rate.
    #[derive(Copy)]
    pub struct Admit {
        /// Share of the admissible rate that it admits.
        share: Fraction = 1.0, in 0.01..=10.0;

        /// Time in which an empty bucket fills.
        // One that holds a single request rejects one of two that come together.
        burst: Micros = secs(2), in ADMIT_BURSTS;
    }

    /// How patient clients are.
    #[derive(Copy, Eq)]
    pub struct Client {
        /// How long they wait for the first token of an attempt; without it, for ever.
        timeout: Option<Micros>, in SPANS;

        /// How often they try again after a failure.
        retries: u32 = 0, in 0..=100;

        /// How long they wait before that.
        backoff: Micros = secs(1), in SPANS;
    }

    /// How replicas start. The phases follow each other, and each is a lognormal span with this median.
    #[derive(Copy)]
    pub struct Startup {
        /// Replicas for which there is room without waiting for a node; without it, any number.
        warm_nodes: Option<u32>;

        /// Until there is a node, where there is none.
        node: Micros, in SPANS;

        /// Until the image is there.
        image: Micros, in SPANS;

        /// Until the weights are loaded.
        load: Micros, in SPANS;

        /// Until the engine has compiled and captured what it needs, and answers.
        warmup: Micros, in SPANS;

        /// The standard deviation of the logarithm of each.
        sigma: f64 = 0.0, in 0.0..=3.0;

        /// The share of starts that fail: the process ends when it could serve, and starts again as
        /// after a crash.
        failures: Fraction = 0.0, in 0.0..=1.0;
    }

    /// How replicas stop and fail.
    #[derive(Copy)]
    pub struct Lifecycle {
        /// How long a replica that is taken away may finish what it has.
        grace: Micros = GRACE, in SPANS;

        /// The mean time between crashes of one replica, which then starts anew where it is; without
        /// it, there are none.
        crash_every: Option<Micros>, in SPANS;

        /// The mean time until a replica's node is taken back; without it, none is.
        interrupt_every: Option<Micros>, in SPANS;

        /// The share of the variant's other replicas whose nodes are taken back at the same time.
        interrupt_together: Fraction = 0.0, in 0.0..=1.0;

        /// How long before that the replica is told.
        // What the large clouds give before a spot instance ends.
        notice: Micros = minutes(2), in SPANS;

        /// When its engines slow down; without it, they do not.
        slowdown: Option<Slowdown>;

        /// When replicas begin to die again and again; without it, none does.
        crash_loop: Option<CrashLoop>;

        /// When the metrics of replicas that serve cannot be read; without it, they can.
        silence: Option<Silence>;
    }

    /// A time in which steps of engines take longer.
    #[derive(Copy)]
    pub struct Slowdown {
        /// When it begins.
        from as "at": Micros, in SPANS, required;

        /// When it ends; without it, never.
        until: Option<Micros>, in SPANS;

        /// How many times as long a step takes.
        factor: f64, in FACTORS, required;

        /// Whose engine it is: the first replica that was created is 1. Without it, all are.
        replica: Option<u32>, in NUMBERS;
    }

    /// A time in which replicas die again and again. Each starts again where it is, after a back-off
    /// that doubles from ten seconds to five minutes.
    #[derive(Copy, Eq)]
    pub struct CrashLoop {
        /// When it begins.
        from as "at": Micros, in SPANS, required;

        /// When it ends, and replicas live; without it, never.
        until: Option<Micros>, in SPANS;

        /// How long a replica serves before it dies; without it, it dies when it could serve.
        serves: Micros, in SPANS;

        /// Which replica it is: the first that was created is 1. Without it, all are.
        replica: Option<u32>, in NUMBERS;
    }

    /// A time in which the metrics of replicas cannot be read, while they serve.
    #[derive(Copy, Eq)]
    pub struct Silence {
        /// When it begins.
        from as "at": Micros, in SPANS, required;

        /// How long it lasts.
        length: Micros, in SPANS, required;

        /// Which replica it is: the first that was created is 1. Without it, all are.
        replica: Option<u32>, in NUMBERS;
    }

    /// A time in which nobody can read what replicas say: neither the daemon nor another autoscaler.
    #[derive(Copy, Eq)]
    pub struct Outage {
        /// When it begins.
        from as "at": Micros, in SPANS, required;

        /// How long it lasts.
        length: Micros, in SPANS, required;
    }
}

/// Which of the ready replicas a request goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Router {
    /// One after the other.
    RoundRobin,
    /// The one with the fewest requests for the seats that it has.
    LeastRequests,
    /// The same, and one that has the request's adapter loaded, or else a slot for it, unless that is
    /// much busier than others.
    LoraAffinity,
    /// The one with the most free KV cache and the shortest queue, as of the last look.
    KvAware,
    /// Any.
    Random,
    /// The one that its session's requests go to, by a hash of the session.
    Sticky,
}

/// How long the KV cache of a prompt takes from one replica to another.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Transfer {
    /// Whatever its length.
    pub latency: Micros,
    /// For each token of the prompt, in microseconds.
    pub per_token: f64,
}

/// What holds requests that no replica takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gateway {
    /// Requests that it holds at most; more are rejected.
    pub queue: usize,
    /// Requests that it sends to one replica at a time; `None` for all.
    pub per_replica: Option<u32>,
    /// How often the daemon reads how many it holds; `None` for never.
    pub read: Option<Micros>,
    /// The share of the admissible rate that it admits; `None` for all requests.
    pub admit: Option<Admit>,
}

/// A variant.
#[derive(Clone, Debug)]
pub struct Variant {
    /// What the daemon knows of it.
    pub spec: VariantSpec,
    /// The index of its model.
    pub model: usize,
    /// Replicas that are ready at the start.
    pub initial: Replicas,
    /// Its engine.
    pub engine: Settings,
    /// What makes that less regular.
    pub options: Options,
    /// What its prefix caches have.
    pub prefix: Prefix,
    /// How it serves adapters; `None` where it serves none.
    pub adapters: Option<AdapterSettings>,
    /// How its replicas start.
    pub startup: Startup,
    /// How they stop and fail.
    pub lifecycle: Lifecycle,
    /// When others take the place of all of them.
    pub rollout: Option<Rollout>,
    /// Who changes their number.
    pub actuator: Actuator,
}

/// What the prefix cache of an engine has of a prompt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Prefix {
    /// The same share of each.
    Share(Fraction),
    /// The blocks that it has computed and not handed out since, where the workload says what
    /// prompts consist of; and those of preempted requests.
    Blocks,
}

/// A change of the pod template, which a Deployment carries out by its strategy `RollingUpdate`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rollout {
    /// When.
    pub at: Micros,
    /// Replicas that there may be beyond those that are asked for.
    pub max_surge: Portion,
    /// Replicas that need not be available of those that are asked for.
    pub max_unavailable: Portion,
}

/// A part of a number of replicas.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Portion {
    /// So many, whatever the number.
    Replicas(u32),
    /// A share of it.
    Share(Fraction),
}

/// Who changes the number of a variant's replicas.
#[derive(Clone, Debug, PartialEq)]
pub enum Actuator {
    /// Nobody.
    Fixed,
    /// A stock HPA.
    Hpa(Hpa),
    /// An HPA that KEDA keeps, with KEDA itself between zero and one.
    Keda(Keda),
    /// An autoscaler that writes the scale itself.
    Law(Rule),
}

/// A stock HPA.
#[derive(Clone, Debug, PartialEq)]
pub struct Hpa {
    /// What it follows.
    pub signal: Signal,
    /// The object.
    pub settings: scaler::Settings,
    /// Time between two syncs.
    pub sync: Micros,
    /// How old the value is that it reads.
    pub delay: Micros,
}

/// A `ScaledObject`.
#[derive(Clone, Debug, PartialEq)]
pub struct Keda {
    /// The HPA that KEDA keeps; its minimum is at least one.
    pub hpa: Hpa,
    /// Whether KEDA may scale to zero.
    pub to_zero: bool,
    /// `pollingInterval`.
    pub polling: Micros,
    /// `cooldownPeriod`.
    pub cooldown: Micros,
    /// The value above which KEDA scales from zero, in thousandths.
    pub activation: scaler::MilliValue,
}

/// What an autoscaler follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Signal {
    /// The number that Plimsoll publishes.
    Desired,
    /// Requests that wait in the engines, all replicas together.
    Waiting,
    /// Requests that wait or run in the engines, all replicas together.
    InFlight,
    /// The sum of the shares of KV caches in use, so that the average is that of a replica.
    KvUsage,
    /// Requests a second of the model that came to its gateway in the last minute, whatever became
    /// of them.
    Rate,
    /// Requests a second that were sent to the replicas in the last minute.
    Sent,
}

settings! { plain: Router; Signal; }

impl Signal {
    /// Whether only replicas say it, so that nobody knows it where there is none.
    #[must_use]
    pub const fn needs_replicas(self) -> bool {
        match self {
            Self::Desired | Self::Rate => false,
            Self::Waiting | Self::InFlight | Self::KvUsage | Self::Sent => true,
        }
    }
}

/// How the daemon looks and decides.
#[derive(Clone, Debug)]
pub struct Control {
    /// What it decides by.
    pub policy: Policy,
    /// Time between two decisions.
    pub tick: Micros,
    /// Time between two scrapes of a replica; a multiple of `tick` in effect.
    pub scrape: Micros,
    /// The share of scrapes that fail.
    pub scrape_loss: Fraction,
    /// How old pages are when the daemon gets them, where a Prometheus scrapes.
    pub relay: Option<Micros>,
    /// Age up to which a decision is served.
    pub hold: Seconds,
    /// While nobody can read what replicas say.
    pub outage: Option<Outage>,
}

// === impl Scenario, Transfer ===

impl Scenario {
    /// Whether anybody follows what the daemon publishes; otherwise it need not decide, and nobody
    /// reads the pages of replicas.
    #[must_use]
    pub fn is_followed(&self) -> bool {
        self.variants
            .iter()
            .any(|variant| variant.actuator.hpa().is_some_and(|hpa| hpa.signal == Signal::Desired))
    }

    /// Whether other replicas decode the requests of a model than compute their prompts.
    #[must_use]
    pub fn is_disaggregated(&self, model: usize) -> bool {
        let mut of_model = self.variants.iter().filter(|variant| variant.model == model);
        of_model.any(|variant| variant.spec.role != Role::Both)
    }
}

impl Transfer {
    /// For a prompt of so many tokens.
    #[must_use]
    pub fn of(&self, prompt: u32) -> Micros {
        self.latency + Micros::from_secs_f64(self.per_token * 1e-6 * f64::from(prompt))
    }
}

// === impl Batch ===

impl Batch {
    /// The arrivals of a seed, apart from those of the workload of the same model.
    pub(crate) fn arrivals(&self, seed: u64, model: usize) -> Arrivals {
        // No scenario has as many models.
        const FIRST: usize = 1 << 30;
        self.load.arrivals(seed, FIRST + model)
    }
}

// === impl AdapterShare ===

impl AdapterShare {
    /// Whether requests ask for it, so long after the model's rate last began.
    #[must_use]
    pub fn is_asked_for(&self, within: Micros) -> bool {
        (self.from..self.until).contains(&within)
    }
}

// === impl Actuator ===

impl Actuator {
    /// The HPA, where there is one.
    pub(crate) const fn hpa(&self) -> Option<&Hpa> {
        match self {
            Self::Fixed | Self::Law(_) => None,
            Self::Hpa(hpa) | Self::Keda(Keda { hpa, .. }) => Some(hpa),
        }
    }
}

// === impl Slo ===

impl Slo {
    /// Objectives that are the same for all prompts.
    #[must_use]
    pub fn new(ttft: Micros, itl: Micros) -> Self {
        Self { ttft, itl, ..Self::default() }
    }

    /// The longest time to the first token for a prompt of so many tokens.
    #[must_use]
    pub fn ttft_of(&self, prompt: u32) -> Micros {
        let long = u64::from(prompt.saturating_sub(self.long_prompt));
        self.ttft + Micros::new(self.ttft_per_token.micros().saturating_mul(long))
    }
}

// === impl Rollout, Portion ===

impl Portion {
    /// Nobody.
    pub const NONE: Self = Self::Replicas(0);
}

impl Rollout {
    /// Of so many replicas that are asked for, how many more there may be and how many need not be
    /// available: shares are rounded up for the first and down for the second, and if neither leaves
    /// room one need not be available (`ResolveFenceposts` of Kubernetes' deployment controller).
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a count is not negative, and the cast saturates"
    )]
    pub fn room(&self, wanted: u32) -> (u32, u32) {
        let part = |portion, round: fn(f64) -> f64| match portion {
            Portion::Replicas(replicas) => replicas,
            Portion::Share(share) => round(share.fraction() * f64::from(wanted)) as u32,
        };
        let surge = part(self.max_surge, f64::ceil);
        let unavailable = part(self.max_unavailable, f64::floor);
        (surge, if surge == 0 { unavailable.max(1) } else { unavailable })
    }
}
