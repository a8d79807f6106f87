//! By what foresight judges: each of its constants, with the reason for its value.
//!
//! Terms that are `None` are switched off. The values were found together, by simulation over
//! recorded and synthetic workloads; `docs/scoreboard.md` has what half and twice of each does.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::analyze::foresight::arrivals::HORIZON_MAX;
use crate::analyze::sharing::CardSharing;
use crate::settings;
use crate::settings::{hours, minutes, on, secs};
use crate::units::{Fraction, Requests, Seconds, Tokens};

/// The target for the time to first token where none is given: that of `MLPerf` Inference for large
/// language models in its server scenario (Llama 2 70B, since v4.0).
const USUAL_TTFT: Seconds = Seconds::literal(2);

/// A term that is off by more than this is no more than a large fixed number.
const FACTORS: RangeInclusive<f64> = 0.0..=10.0;
/// Below one, the capped value would be below the load that arrives already.
const CAPS: RangeInclusive<f64> = 1.0..=10.0;
const COUNTS: RangeInclusive<f64> = 0.0..=1000.0;
const DRAINS: RangeInclusive<Duration> = secs(1)..=minutes(10);
const MEMORIES: RangeInclusive<Duration> = secs(10)..=hours(24);

/// The longest `hold.jitter`; the history of a number remembers no longer.
pub const JITTER_MAX: Duration = minutes(2);

settings! {
    /// Parameters of `foresight`. The defaults were found together, by simulation over many
    /// workloads.
    #[derive(Copy)]
    pub struct ForesightPolicy {
        /// Usable share of the mean time between tokens, and of the tokens of an iteration; where a
        /// variant only decodes, also of places in the batch and of the KV cache. A random batch
        /// needs some above its mean.
        limit_share: Fraction = 0.92, in 0.05..=1.0;

        /// Time until a new number of replicas is acted on: a tick, and the sync period of an HPA.
        reaction_time: Seconds = secs(22), in Duration::ZERO..=minutes(10);

        /// Time in which growth, the peak that caps it, and unevenness are looked for.
        // Strides are kept for 75 minutes, the longest start-up time among them.
        look_back: Seconds = minutes(15), in minutes(1)..=hours(1);

        /// Expects the growth of the past, within one start-up time, to happen again.
        growth: Option<Growth> = on();

        /// Uses the rate of the last seconds once a jump is certain.
        jump: Option<Jump> = on();

        /// Counts past requests by the work that they would be now, where lengths change.
        drift: Option<WorkDrift> = on();

        /// Expects a load that rises steadily to go on rising.
        ramp: Option<Ramp> = on();

        /// Prepares for strides of 15 s that differ from each other.
        unevenness: Option<Unevenness> = on();

        /// Holds a margin ready while little is known about the load.
        young: Option<Young> = on();

        /// Serves requests that arrive close together within their own time.
        bursts: Option<Bursts> = on();

        /// Works off the queues of replicas.
        backlog: Option<Backlog> = on();

        /// Keeps replicas ready in place of those that are lost and start again.
        absences: Option<Absences> = on();

        /// Works off the queue of a gateway with new replicas, and counts it as arrived. Known by
        /// signals of `scale_to_zero.wake` that count requests.
        gateway: Option<Gateway> = on();

        /// Counts on no more of unlike variants than the router lets them get.
        routing: Option<Routing> = on();

        /// Asks for more while too many first tokens come late. Off without this section.
        error_budget: Option<ErrorBudget>;

        /// Expects the load of this time of the day and of the week to come again.
        schedule: Option<Schedule> = on();

        /// Holds a need for some start-up times.
        hold: Option<Hold> = on();

        /// Lets a higher number that foresight alone finds pass `enforce.scale_up.policies`. On by
        /// default, unless those or `select_policy` are written.
        // Step limits bound how far a guess may overshoot, and a sized number is none.
        replaces_steps: Steps = Steps::Unlimited;

        /// Least history before any replica counts as spare.
        // A fleet is not judged by its first seconds.
        history_min: Seconds = minutes(2), in secs(30)..=hours(1);

        /// Rounds needs to whole replicas.
        rounding: Rounding;

        /// Grows a fleet by its requests in flight while only its queues are known.
        cold_start: Option<ColdStart> = on();

        /// Time constants of forgetting.
        memory: Memory;

        /// Learns the time of an iteration.
        learning: Learning;

        ..

        /// The target for the time to first token.
        ttft: Seconds = USUAL_TTFT;

        /// How much later the first token may be for each token of the prompt beyond `long_prompt`.
        ttft_per_token: Seconds = Seconds::ZERO;

        /// Tokens of a prompt from which it is long: an engine computes fewer in about a second.
        long_prompt: Tokens = Tokens::new(4000.0).unwrap_or_default();

        /// The target for the mean time between tokens of a request; `None` for the
        /// [usual one](crate::analyze::foresight::capacity::usual_itl).
        itl: Option<Seconds> = None;

        /// The share of a replica's capacity that load may use. Bursts have a share of their own,
        /// so this is one where nothing else is known.
        used: Fraction = Fraction::ONE;

        /// The time from asking for a replica until it serves, where it was not measured.
        startup: Seconds = Seconds::literal(120);

        /// Places in a batch, where no engine showed more, or that it has fewer. The default is
        /// that of vLLM on the smaller accelerators, and so is the next.
        seats: Requests = Requests::new(256.0).unwrap_or_default();

        /// Tokens of an iteration, where no engine showed more.
        budget: f64 = 2048.0;

        /// The variants that start from the cards of others.
        share_cards: CardSharing = CardSharing::Namespace;
    }

    /// Expects the growth of the past, within one start-up time, to happen again.
    #[derive(Copy)]
    pub optional Growth {
        /// Share of past growths that the expected growth is not below.
        quantile: Fraction = 0.9, in 0.0..=1.0;

        /// Highest growth if the past has no higher peak, as a multiple of the present rate.
        // After a jump the past has grown by all of it, and would have it grow by as much again.
        cap: Fraction = 1.1, in CAPS;
    }

    /// Uses the rate of the last seconds once a jump is certain, instead of the mean of 15 s.
    #[derive(Copy)]
    pub optional Jump {
        /// Standard deviations that a jump must exceed.
        // Chance alone exceeds 4.5 once in days, but once an hour if gaps between requests vary.
        certainty: Fraction = 6.0, in FACTORS;
    }

    /// Counts past requests by the work that they would be now, where lengths change.
    #[derive(Copy)]
    pub optional WorkDrift {
        /// Standard deviations that a change of lengths must exceed.
        // Chance alone exceeds three once in 400.
        certainty: Fraction = 3.0, in FACTORS;
    }

    /// Expects a load that rises steadily to go on rising.
    #[derive(Copy)]
    pub optional Ramp {
        /// Standard errors that a slope must exceed.
        // Chance alone exceeds 2.5 once in fifty.
        certainty: Fraction = 2.5, in FACTORS;

        /// Share of a rise that a single stride may make; beyond it, the rise is a jump.
        jump: Fraction = 0.5, in FACTORS;

        /// Steepest straight extrapolation of a ramp, as a multiple of the slope of its second
        /// half.
        bend: Fraction = 1.5, in FACTORS;

        /// Highest extrapolation, as a multiple of the present rate.
        cap: Fraction = 2.5, in CAPS;
    }

    /// Prepares for strides of 15 s that differ from each other.
    #[derive(Copy)]
    pub optional Unevenness {
        /// Standard deviations that are held ready.
        // The margin of bursts is counted apart.
        deviations: Fraction = 0.5, in FACTORS;
    }

    /// Holds a margin ready while little is known about the load.
    #[derive(Copy)]
    pub optional Young {
        /// The margin, in square roots of the load in replicas.
        margin: Fraction = 0.9, in FACTORS;

        /// Start-up times, each with the reaction time, of history below which little is known.
        horizons: Fraction = 3.0, in COUNTS;
    }

    /// Serves requests that arrive close together within their own time.
    #[derive(Copy)]
    pub optional Bursts {
        /// Share of requests whose burst is served in time.
        quantile: Fraction = 0.95, in 0.0..=1.0;

        /// Time in which bursts are looked for.
        // Single seconds are kept for little more than five minutes, and over a longer time a jump
        // that is over would be a burst.
        over: Seconds = minutes(1), in minutes(1)..=minutes(5);

        /// Time of a burst's first tokens beyond its own length, as a share of `capacity.slo.ttft`.
        // The rest is the time of a prompt alone.
        ttft_share: Fraction = 0.6, in FACTORS;
    }

    /// Works off the queues of replicas.
    #[derive(Copy)]
    pub optional Backlog {
        /// Requests that usually wait at a replica, between two iterations.
        usual: Requests = 4.0, in COUNTS;

        /// Time to work off the waiting requests.
        drain: Seconds = secs(30), in DRAINS;
    }

    /// Works off the queue of a gateway, which is bound to no replica, with new replicas.
    #[derive(Copy)]
    pub optional Gateway {
        /// Time to work off the queued requests.
        drain: Seconds = secs(30), in DRAINS;

        /// Most that this term adds while a replica serves, as a share of the present rate, or of a
        /// replica's capacity if that is higher.
        cap: Fraction = 1.0, in FACTORS;
    }

    /// Counts on no more of unlike variants than the router lets them get.
    #[derive(Copy)]
    pub optional Routing {
        /// Requests that a variant may get, as a multiple of its share by capacity.
        // Bursts and late pages make it a tenth more for a while behind any router.
        even: Fraction = 1.1, in CAPS;

        /// Cost at which a variant is still used, as a multiple of that without it.
        // What is saved must be worth the exchange of a replica.
        worth: Fraction = 1.2, in CAPS;
    }

    /// Asks for more while too many first tokens come late.
    #[derive(Copy)]
    pub optional ErrorBudget {
        /// Share of requests that may miss `capacity.slo.ttft`.
        share: Fraction = 0.01, in 0.0..=1.0;

        /// Share of the need that each 15 s with more misses add.
        step: Fraction = 0.05, in 0.0..=1.0;

        /// Time in which an addition falls to 37%.
        // An addition that fades sooner than a replica starts is gone before it can help.
        decay: Seconds = minutes(15), in minutes(1)..=hours(24);

        /// Most that this term adds, as a share of the need.
        // Misses that half as many replicas again do not end have another cause.
        cap: Fraction = 0.5, in FACTORS;
    }

    /// Expects the load of this time of the day and of the week to come again.
    #[derive(Copy)]
    pub optional Schedule {
        /// Share of the usual rate at this time that is prepared for.
        share: Fraction = 1.0, in FACTORS;

        /// Most that growth may lead to, as a multiple of the usual load at this time, scaled to
        /// today.
        cap: Fraction = 1.1, in CAPS;
    }

    /// Holds a need for some start-up times: a replica that is given up and needed again costs its
    /// start, and the requests that it fails meanwhile.
    #[derive(Copy)]
    pub optional Hold {
        /// Holding time, in start-up times.
        // Ski rental says one, and the requests that a start fails count as much.
        starts: Fraction = 2.0, in FACTORS;

        /// Shortest holding time.
        // A shorter one would follow every wave of a minute.
        min: Seconds = minutes(3), in Duration::ZERO..=hours(24);

        /// Time for which the largest number of replicas is held rather than the largest need, so
        /// that a need close to a whole number does not change direction with each look.
        jitter: Seconds = secs(30), in Duration::ZERO..=JITTER_MAX;

        /// Lets a lower number that foresight alone finds pass
        /// `enforce.scale_down.stabilization_window`. On by default, unless that window is written.
        replaces_window: ScaleDownWindow = ScaleDownWindow::Replaced;
    }

    /// Rounds needs to whole replicas.
    #[derive(Copy, Serialize, Deserialize)]
    pub struct Rounding {
        /// Part of a replica by which a need may exceed a whole number.
        // More than half a replica is not rounded away.
        excess: Fraction = 0.05, in 0.0..=0.5;

        /// Part of a replica that must be spare in addition to the replica that goes, so that a
        /// load between two numbers changes nothing.
        // As a whole replica, it would be two that must be spare.
        spare: Fraction = 0.2, in 0.0..=1.0;
    }

    /// Keeps replicas ready in place of those that are lost and start again.
    #[derive(Copy)]
    pub optional Absences {
        /// Share of the time in which more may be absent.
        // One request in a hundred may come late.
        share: Fraction = 0.01, in 0.0001..=0.5;
    }

    /// Grows a fleet by its requests in flight while only its queues are known.
    #[derive(Copy)]
    pub optional ColdStart {
        /// Waiting requests per replica above which this term counts.
        waiting: Requests = 8.0, in COUNTS;

        /// Load to prepare for, as a multiple of the requests in flight.
        margin: Fraction = 1.3, in FACTORS;

        /// The same while fewer than 20 answers have ended, if that is more.
        // Twice a time that goes on is its median, where nothing is known of its scale.
        unended: Fraction = 2.0, in FACTORS;

        /// Most growth in a quarter of a minute, as a multiple of the replicas.
        times: Fraction = 4.0, in CAPS;
    }

    /// Time constants of forgetting.
    #[derive(Copy)]
    pub struct Memory {
        /// Longest time in which half of the lengths of requests is forgotten.
        // Some hundred requests at one a second, and soon enough where the mix changes by the hour.
        lengths: Seconds = minutes(3), in MEMORIES;

        /// Time in which the KV tokens of running requests are forgotten to 37%.
        kv: Seconds = minutes(2), in MEMORIES;
    }

    /// Learns the time of an iteration.
    #[derive(Copy)]
    pub struct Learning {
        /// Error of a mean over many iterations, as a share of it.
        // Without any, the last lesson alone would count.
        noise: Fraction = 0.05, in 0.001..=1.0;

        /// Drift of a coefficient from one lesson to the next, as a share of it.
        // Lengths, contexts and caches change its meaning.
        drift: Fraction = 0.002, in 0.0..=1.0;

        /// Standard deviations at which the distance of a lesson is cut off.
        clip: Fraction = 4.0, in CAPS;
    }
}

/// The stabilization window of a lower number, where foresight alone sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScaleDownWindow {
    /// Not waited for: the need has been held already.
    #[default]
    Replaced,
    /// Waited for.
    Waited,
}

settings! { switch: ScaleDownWindow, ScaleDownWindow::Replaced, ScaleDownWindow::Waited }

/// The steps by which a number may grow, where foresight alone sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Steps {
    /// Any: the need is known.
    #[default]
    Unlimited,
    /// Those of the policies for scaling up.
    Limited,
}

settings! { switch: Steps, Steps::Unlimited, Steps::Limited }

impl ForesightPolicy {
    /// Seconds until a replica handles load that is asked for now and takes so long to start.
    pub(super) fn horizon(&self, startup: f64) -> f64 {
        (startup + self.reaction_time.seconds()).min(HORIZON_MAX as f64)
    }

    /// How much must be known before anything is spare, where replicas take so long to start.
    pub(crate) fn settles_after(&self, startup: Seconds) -> Seconds {
        let starts = self.hold.map_or(0.0, |hold| hold.starts.fraction());
        let start = startup.seconds().min(HORIZON_MAX as f64);

        Seconds::new(starts * start).unwrap_or_default().max(self.history_min)
    }
}
