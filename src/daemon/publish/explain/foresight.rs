//! The forecast demand and the capacity per replica, as JSON.

use schemars::JsonSchema;
use serde::Serialize;

use plimsoll_core::decide::sized::{
    CapacityBound, CapacityEstimate, DemandForecast, DemandTerm, SlowestReplica,
};
use plimsoll_core::fleet::Role;
use plimsoll_core::units::Fraction;

/// What will be asked of the variants of one role when a new replica serves.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Foreseen")]
pub(super) struct ForeseenLine {
    /// The role: `both`, `prefill` or `decode`. All variants of the model and role have the same.
    role: &'static str,
    /// The terms of the need. A term that is off or has no result is not listed.
    terms: Vec<TermLine>,
    /// The share of the capacity that load may use.
    used: f64,
    /// Current need, in requests per second: the terms together, by the formula under the table of
    /// terms.
    total_per_second: f64,
    /// The highest need that is held, in requests per second, which `foresight` compares with the
    /// capacity.
    held_per_second: f64,
    /// Since when that is held.
    held_since: String,
    /// Mean capacity of the measured replicas of the role, in requests per second;
    /// `least_per_second` while none is measured.
    carries_per_second: f64,
    /// Capacity of a replica of the weakest variant, in requests per second.
    least_per_second: f64,
    /// The share of the capacity of their engines that the router leaves unused, because it fills
    /// another variant first.
    unused: f64,
    /// The work of a request now, over that of one `horizon_seconds` ago; null without a clear
    /// change of the lengths of requests.
    drift: Option<f64>,
    /// The limit of the variant with the most measured capacity: `itl` (the time between tokens),
    /// `ttft` (the time to first token), `seats` (places in the batch), `kv` (the KV cache) or
    /// `budget` (tokens in an iteration); null if it is unknown.
    bound_by: Option<&'static str>,
    /// Start-up time plus reaction time, in seconds, at most 3600.
    horizon_seconds: f64,
    /// True if enough is known for scale-down.
    mature: bool,
    /// Start-up time of standby, in seconds; null without standby.
    standby_seconds: Option<f64>,
    /// Load of standby replicas until the others serve, in requests per second, not part of the
    /// need; null without standby.
    bridge_per_second: Option<f64>,
}

/// One term of a need.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Term")]
pub(super) struct TermLine {
    /// Its name in the table below. A reserve is not a part of the need.
    term: &'static str,
    /// The same in words, as they follow a rate.
    words: &'static str,
    /// How much, in requests a second.
    per_second: f64,
    /// Whether the need, without additions, comes from this term.
    decides: bool,
    /// The window in which a burst is the tightest, in seconds; null of every other term.
    window_seconds: Option<i64>,
}

/// What one replica of a variant carries, as `foresight` knows it.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Carries")]
pub(super) struct CarriesLine {
    /// The rate that its engine handles, in requests a second.
    per_second: f64,
    /// The share of it that the router lets a replica get, and that decisions count on; 0 if the
    /// variant is not to be used.
    usable: f64,
    /// The lower end of the interval in which the rate lies in 95 of 100 cases, in requests a
    /// second; null where the doubt is beyond all numbers.
    low_per_second: Option<f64>,
    /// The upper end of it, in requests a second; null where the doubt is beyond all numbers.
    high_per_second: Option<f64>,
    /// Source: its `replicas`, by measurement, or a `card` before that.
    said_by: &'static str,
    /// The limiting factor: `itl`, `ttft`, `seats`, `kv` or `budget`.
    bound_by: &'static str,
}

/// The slowest replica of a variant, compared with the others.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Slowest")]
pub(super) struct SlowestLine {
    /// The name of the replica.
    replica: String,
    /// The time that an iteration takes on it, over the time that it takes on its peers.
    times: f64,
    /// The replicas that it is compared with.
    peers: u32,
    /// Whether it is so slow that it is named in the reason: 1.3 times or more.
    is_outlier: bool,
}

impl SlowestLine {
    pub(super) fn new(slowest: &SlowestReplica) -> Self {
        let SlowestReplica { replica, factor, peers } = slowest;
        Self {
            replica: replica.as_str().to_owned(),
            times: factor.fraction(),
            peers: *peers,
            is_outlier: slowest.is_outlier(),
        }
    }
}

impl ForeseenLine {
    pub(super) fn new(foreseen: &DemandForecast) -> Self {
        let DemandForecast { held, since, least, carries, unused, bound, horizon, relief, .. } =
            foreseen;

        Self {
            role: Role::label(foreseen.role),
            terms: terms(foreseen),
            used: Fraction::fraction(foreseen.used),
            total_per_second: foreseen.need.total,
            held_per_second: *held,
            held_since: since.to_string(),
            carries_per_second: *carries,
            least_per_second: *least,
            unused: *unused,
            drift: foreseen.need.drift,
            bound_by: bound.map(CapacityBound::label),
            horizon_seconds: *horizon,
            mature: foreseen.mature,
            standby_seconds: relief.map(|it| it.startup),
            bridge_per_second: relief.map(|it| it.bridge),
        }
    }
}

/// Returns the terms that have a value, in the order in which they are computed.
fn terms(foreseen: &DemandForecast) -> Vec<TermLine> {
    let need = &foreseen.need;
    let decided_by = need.decided_by();

    need.terms()
        .map(|(term, per_second)| TermLine {
            term: term.label(),
            words: term.words(),
            per_second,
            decides: term == decided_by,
            window_seconds: need.bursts.filter(|_| term == DemandTerm::Bursts).map(|it| it.window),
        })
        .collect()
}

impl CarriesLine {
    pub(super) fn new(estimate: &CapacityEstimate) -> Self {
        let CapacityEstimate { rate, usable, interval, bound, said_by } = estimate;

        Self {
            per_second: rate.requests_per_second(),
            usable: usable.fraction(),
            low_per_second: interval.map(|it| it.low.requests_per_second()),
            high_per_second: interval.map(|it| it.high.requests_per_second()),
            said_by: said_by.label(),
            bound_by: bound.label(),
        }
    }
}
