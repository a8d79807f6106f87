//! A simulated scenario: models, their load, the variants that serve it, and the autoscalers of
//! these variants.
//!
//! Everything in this module is resolved; the scenario file that users write is read elsewhere.
//! File sections that need only defaults and ranges are declared here in the form in which they are
//! used. The defaults of Kubernetes and KEDA are here, because several sections use them.

mod lifecycle;
pub(crate) mod ranges;
pub(crate) mod slo;

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::simulate::Micros;
use crate::simulate::peers::law::Rule;
use crate::simulate::replica::adapters::AdapterSettings;
use crate::simulate::replica::settings::{Options, Settings};
use crate::simulate::scaler;
pub use crate::simulate::scenario::lifecycle::{
    CrashLoop, Lifecycle, Outage, Silence, Slowdown, Startup,
};
pub use crate::simulate::scenario::ranges::{FACTORS, SPANS, TOKEN_SPANS};
pub use crate::simulate::scenario::slo::Slo;
use crate::simulate::workload::Load;
use crate::simulate::workload::load::Arrivals;
use plimsoll_core::fleet::{ModelKey, ModelName, Role, VariantSpec};
use plimsoll_core::observe::template::PodTemplate;
use plimsoll_core::pipeline::Policy;
use plimsoll_core::settings;
use plimsoll_core::settings::{minutes, secs};
use plimsoll_core::units::{Fraction, Replicas, Seconds};

/// The period of the HPA's controller.
pub const SYNC: Micros = Micros::from_secs(15);

/// KEDA's `pollingInterval`.
pub const POLLING: Micros = Micros::from_secs(30);

/// KEDA's `cooldownPeriod`.
pub const COOLDOWN: Micros = Micros::from_secs(300);

/// More than a minute would let a whole spike through.
const ADMIT_BURSTS: RangeInclusive<Duration> = Duration::ZERO..=minutes(1);

/// A scenario, fully resolved.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The length of the scenario.
    pub length: Micros,
    /// The models.
    pub models: Vec<Model>,
    /// The variants.
    pub variants: Vec<Variant>,
    /// The scraping and decisions of the daemon.
    pub control: Control,
    /// Time between two samples of the series.
    pub sample: Micros,
}

/// A model, its requests, and the components between these and the replicas.
#[derive(Clone, Debug)]
pub struct Model {
    /// Its name.
    pub key: ModelKey,
    /// The times within which a request counts as served well.
    pub slo: Slo,
    /// Its requests.
    pub load: Load,
    /// Requests of another class, which are counted separately; `None` if there are none.
    pub batch: Option<BatchTraffic>,
    /// The adapters that requests ask for, at most as many as an engine can distinguish. Requests
    /// beyond the shares ask for the model itself.
    pub adapters: Vec<AdapterShare>,
    /// Which replica a request goes to.
    pub router: Router,
    /// Time between two looks of a router that looks at replicas.
    pub router_refresh: Micros,
    /// Sessions that requests belong to, each as likely as any other. Those of a closed workload
    /// are its clients.
    pub sessions: u32,
    /// The transfer time of a prompt's KV cache from a prefill replica to a decode replica, if the
    /// variants have these roles.
    pub transfer: Transfer,
    /// The queue of requests that no replica takes.
    pub gateway: Gateway,
    /// The patience of clients.
    pub client: Client,
}

/// Batch work of a model: requests through the same gateway to the same replicas, whose clients
/// never give up.
#[derive(Clone, Debug)]
pub struct BatchTraffic {
    /// The batch requests.
    pub load: Load,
    /// The times within which a request counts as served well; without them, a full answer.
    pub slo: Option<Slo>,
}

/// An adapter of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterShare {
    /// Its name.
    pub name: ModelName,
    /// The share of the model's requests that ask for it.
    pub share: Fraction,
    /// The time at which its share begins, in each period of the model's rate.
    pub from: Micros,
    /// The time at which its share ends and goes to the other requests.
    pub until: Micros,
}

settings! {

    /// A gateway's token bucket, filled at the published admissible rate.
    #[derive(Copy)]
    pub struct Admit {
        /// Share of the admissible rate that it admits.
        share: Fraction = 1.0, in 0.01..=10.0;

        /// Time in which an empty bucket fills.
        // A bucket for a single request would reject one of two simultaneous requests.
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

}

/// Which of the ready replicas a request goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Router {
    /// One after the other.
    RoundRobin,
    /// The one with the fewest requests for the seats that it has.
    LeastRequests,
    /// The same, and one that has the request's adapter loaded, or else a slot for it, unless that
    /// is much busier than others.
    LoraAffinity,
    /// The one with the most free KV cache and the shortest queue, as of the last look.
    KvAware,
    /// Any.
    Random,
    /// The one that its session's requests go to, by a hash of the session.
    Sticky,
}

/// The transfer time of a prompt's KV cache from one replica to another.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Transfer {
    /// The part that does not depend on the prompt's length.
    pub latency: Micros,
    /// Microseconds per prompt token.
    pub per_token: f64,
}

/// The queue of requests that no replica takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gateway {
    /// The most requests that it holds; it rejects any more.
    pub queue: usize,
    /// The most requests that it sends to one replica at a time; `None` for no limit.
    pub per_replica: Option<u32>,
    /// The interval at which the daemon reads the count of held requests; `None` if it never does.
    pub read: Option<Micros>,
    /// The share of the admissible rate that it admits; `None` to admit all requests.
    pub admit: Option<Admit>,
}

/// A variant of a model.
#[derive(Clone, Debug)]
pub struct Variant {
    /// The part of the variant that the daemon knows.
    pub spec: VariantSpec,
    /// The index of its model.
    pub model: usize,
    /// Replicas that are ready at the start.
    pub initial: Replicas,
    /// Its engine.
    pub engine: Settings,
    /// Options that make the engine less regular.
    pub options: Options,
    /// The pod template that the daemon reads; `None` if it reads none.
    pub template: Option<Arc<PodTemplate>>,
    /// The contents of its prefix caches.
    pub prefix: Prefix,
    /// Its handling of adapters; `None` if it serves none.
    pub adapters: Option<AdapterSettings>,
    /// The start of its replicas.
    pub startup: Startup,
    /// How they stop and fail.
    pub lifecycle: Lifecycle,
    /// When others take the place of all of them.
    pub rollout: Option<Rollout>,
    /// The actuator that scales it.
    pub actuator: Actuator,
}

/// The part of a prompt that the prefix cache of an engine holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Prefix {
    /// The same share of each prompt.
    Share(Fraction),
    /// The blocks that the engine has computed and not reused since, if the workload describes the
    /// contents of prompts. Includes the blocks of preempted requests.
    Blocks,
}

/// A change of the pod template, which a Deployment applies with its strategy `RollingUpdate`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rollout {
    /// The time of the change.
    pub at: Micros,
    /// Replicas allowed beyond the desired ones.
    pub max_surge: Portion,
    /// Desired replicas that need not be available.
    pub max_unavailable: Portion,
}

/// A part of a replica count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Portion {
    /// A fixed number of replicas.
    Replicas(u32),
    /// A share of the replica count.
    Share(Fraction),
}

/// The actuator that scales a variant.
#[derive(Clone, Debug, PartialEq)]
pub enum Actuator {
    /// None.
    Fixed,
    /// A stock HPA.
    Hpa(Hpa),
    /// An HPA that KEDA manages, with KEDA itself between zero and one.
    Keda(Keda),
    /// An autoscaler that writes the scale directly.
    Law(Rule),
}

/// A stock HPA.
#[derive(Clone, Debug, PartialEq)]
pub struct Hpa {
    /// The signal that it follows.
    pub signal: Signal,
    /// The settings of the HPA object.
    pub settings: scaler::ScalerSettings,
    /// Time between two syncs.
    pub sync: Micros,
    /// The age of the value that it reads.
    pub delay: Micros,
}

/// A `ScaledObject` of KEDA.
#[derive(Clone, Debug, PartialEq)]
pub struct Keda {
    /// The HPA that KEDA manages; its minimum is at least one.
    pub hpa: Hpa,
    /// True if KEDA may scale to zero.
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
    /// Returns true if only replicas report the signal, so that it has no value without a replica.
    #[must_use]
    pub const fn needs_replicas(self) -> bool {
        match self {
            Self::Desired | Self::Rate => false,
            Self::Waiting | Self::InFlight | Self::KvUsage | Self::Sent => true,
        }
    }
}

/// The scraping and decisions of the daemon.
#[derive(Clone, Debug)]
pub struct Control {
    /// The policy of its decisions.
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
    /// A time in which replica metrics cannot be read.
    pub outage: Option<Outage>,
}

// === impl Scenario, Transfer ===

impl Scenario {
    /// Returns true if an actuator follows the daemon's desired replicas. Otherwise the daemon need
    /// not decide, and nothing scrapes the replicas.
    #[must_use]
    pub fn is_followed(&self) -> bool {
        self.variants
            .iter()
            .any(|variant| variant.actuator.hpa().is_some_and(|hpa| hpa.signal == Signal::Desired))
    }

    /// Returns true if separate replicas compute the prompts of a model and decode its requests.
    #[must_use]
    pub fn is_disaggregated(&self, model: usize) -> bool {
        let mut of_model = self.variants.iter().filter(|variant| variant.model == model);
        of_model.any(|variant| variant.spec.role != Role::Both)
    }
}

impl Transfer {
    /// The transfer time for a prompt of this many tokens.
    #[must_use]
    pub fn of(&self, prompt: u32) -> Micros {
        self.latency + Micros::from_secs_f64(self.per_token * 1e-6 * f64::from(prompt))
    }
}

// === impl BatchTraffic ===

impl BatchTraffic {
    /// The arrivals of a seed, independent of the model's other workload.
    pub(crate) fn arrivals(&self, seed: u64, model: usize) -> Arrivals {
        // No scenario has this many models.
        const FIRST: usize = 1 << 30;
        self.load.arrivals(seed, FIRST + model)
    }
}

// === impl AdapterShare ===

impl AdapterShare {
    /// Returns true if requests ask for it, at this time within a period of the model's rate.
    #[must_use]
    pub fn is_asked_for(&self, within: Micros) -> bool {
        (self.from..self.until).contains(&within)
    }
}

// === impl Actuator ===

impl Actuator {
    /// The HPA, if there is one.
    pub(crate) const fn hpa(&self) -> Option<&Hpa> {
        match self {
            Self::Fixed | Self::Law(_) => None,
            Self::Hpa(hpa) | Self::Keda(Keda { hpa, .. }) => Some(hpa),
        }
    }
}

// === impl Rollout, Portion ===

impl Portion {
    /// None.
    pub const NONE: Self = Self::Replicas(0);

    /// Its replicas of so many; a share is rounded.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a count is not negative, and the cast saturates"
    )]
    fn of(self, wanted: u32, round: fn(f64) -> f64) -> u32 {
        match self {
            Self::Replicas(replicas) => replicas,
            Self::Share(share) => round(share.fraction() * f64::from(wanted)) as u32,
        }
    }
}

impl Rollout {
    /// The surge and the unavailable replicas that are allowed with this many desired replicas.
    /// Shares are rounded up for the surge and down for the unavailable ones. If neither leaves
    /// room, one replica need not be available (`ResolveFenceposts` of Kubernetes' deployment
    /// controller).
    #[must_use]
    pub fn room(&self, wanted: u32) -> (u32, u32) {
        let surge = self.max_surge.of(wanted, f64::ceil);
        let unavailable = self.max_unavailable.of(wanted, f64::floor);
        (surge, if surge == 0 { unavailable.max(1) } else { unavailable })
    }
}
