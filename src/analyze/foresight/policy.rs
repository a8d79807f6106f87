//! By what foresight judges: each of its constants, with the reason for its value.
//!
//! Terms that are `None` are switched off. The values were found together, by simulation over
//! recorded and synthetic workloads; `docs/scoreboard.md` has what half and twice of each does.

use serde::{Deserialize, Serialize};

use crate::units::{Fraction, Requests, Seconds};

/// The target for the time to first token where none is given: that of `MLPerf` Inference for large
/// language models in its server scenario (Llama 2 70B, since v4.0).
const USUAL_TTFT: Seconds = Seconds::literal(2);

/// By what a fleet is judged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// The target for the time to first token.
    pub ttft: Seconds,
    /// The target for the mean time between tokens of a request; `None` for the
    /// [usual one](crate::analyze::foresight::capacity::usual_itl).
    pub itl: Option<Seconds>,
    /// The share of what a replica carries that load may use. Bursts have a share of their own, so
    /// this is one where nothing else is known.
    pub used: Fraction,
    /// How long a replica takes from being asked for to carrying load, where it was not measured.
    pub startup: Seconds,
    /// How long it takes until a number is acted on: a tick, and an HPA's sync period of 15 s.
    pub reaction: Seconds,
    /// Places in a batch, where no engine showed more, or that it has fewer.
    pub seats: Requests,
    /// Tokens of an iteration, where no engine showed more.
    pub budget: f64,
    /// The share of each limit of an engine that may be used: a random batch needs some above its
    /// mean.
    pub limit_share: Fraction,
    /// Time in which growth, the peak that caps it, and unevenness are looked for.
    pub look_back: Seconds,
    /// What the load has grown by before.
    pub growth: Option<Growth>,
    /// A load that rises steadily.
    pub ramp: Option<Ramp>,
    /// Strides that differ.
    pub unevenness: Option<Unevenness>,
    /// What is held ready while little is known.
    pub young: Option<Young>,
    /// Requests that come close together.
    pub bursts: Option<Bursts>,
    /// What waits.
    pub backlog: Option<Backlog>,
    /// What queues at a gateway, where somebody says so.
    pub gateway: Option<Gateway>,
    /// More, while too many first tokens come late.
    pub error_budget: Option<ErrorBudget>,
    /// What has come at this time of the day and of the week.
    pub schedule: Option<Schedule>,
    /// How long a need is held.
    pub hold: Option<Hold>,
    /// How much must be known at least before anything is spare.
    pub history_min: Seconds,
    /// How needs become whole replicas.
    pub rounding: Rounding,
    /// A fleet of which nothing is known but its queues.
    pub cold_start: Option<ColdStart>,
    /// How fast what was seen is forgotten.
    pub memory: Memory,
    /// How an iteration is learned.
    pub learning: Learning,
}

/// What the load has grown by, in the time that a start takes, is expected again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Growth {
    /// The share of past growths that the expected one is not below.
    pub quantile: Fraction,
    /// How far above the present rate it may go where the past has no higher peak. After a jump the
    /// past has grown by all of it, and would have it grow by as much again.
    pub cap: Fraction,
}

/// A load that rises steadily goes on to do so.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ramp {
    /// Standard errors that a slope must exceed. Chance alone exceeds 2.5 once in fifty.
    pub certainty: Fraction,
    /// The share of a rise that a single stride may make: beyond half, it is a jump.
    pub jump: Fraction,
    /// The share of the slope with which the second half must still rise.
    pub still_rising: Fraction,
    /// How much steeper than its second half a ramp is extrapolated at most.
    pub bend: Fraction,
    /// How far it is extrapolated at most, as a multiple of the present rate.
    pub cap: Fraction,
}

/// Strides of 15 s differ, and the next may be a large one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unevenness {
    /// Standard deviations that are held ready. What bursts need is counted apart.
    pub deviations: Fraction,
}

/// Little is known yet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Young {
    /// What is held ready, in square roots of the load in replicas.
    pub margin: Fraction,
    /// Start-up times of history below which little is known.
    pub horizons: Fraction,
}

/// Requests come in bursts, and each is served in its own time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bursts {
    /// The share of requests whose burst is served in time.
    pub quantile: Fraction,
    /// Time in which bursts are looked for: longer, and a jump that is over is one.
    pub over: Seconds,
    /// What the first tokens of a burst may take beyond its own length, as a share of the target for
    /// the time to first token. The rest is what a prompt takes by itself.
    pub ttft_share: Fraction,
}

/// A queue is worked off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backlog {
    /// Requests that wait at a replica as a matter of course, between two iterations.
    pub usual: Requests,
    /// Time in which what waits should be worked off.
    pub drain: Seconds,
    /// The share of the present rate that this may ask for in addition: a queue is gone by the time
    /// that many more replicas would be ready.
    pub cap: Fraction,
}

/// What queues at a gateway is worked off by new replicas, as it is bound to none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gateway {
    /// Time in which what queues should be worked off.
    pub drain: Seconds,
    /// The share of the present rate, or of what a replica carries, that this may ask for in
    /// addition.
    pub cap: Fraction,
}

/// More is asked for while too many first tokens come late.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ErrorBudget {
    /// The share of requests that may miss the target for the first token.
    pub share: Fraction,
    /// The share of the need that is asked for in addition for each 15 s in which more do.
    pub step: Fraction,
    /// That is forgotten to a third in this time.
    pub decay: Seconds,
    /// The most that is asked for in addition: what half as many replicas again do not mend is not
    /// for want of replicas.
    pub cap: Fraction,
}

/// What has come at this time of the day and of the week comes again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// Of a rise that the past has seen, the share that is prepared for.
    pub share: Fraction,
    /// How far growth may exceed what the past has seen at this time, as a multiple of it.
    pub cap: Fraction,
}

/// What was needed once is held: a replica that is given up and needed again costs its start, and
/// what its start lets down.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hold {
    /// How long, in start-up times: ski rental says one, and what a start lets down counts as much.
    pub starts: Fraction,
    /// How long at least: less would follow every wave of a minute.
    pub min: Seconds,
    /// For how long of that it is the largest number of replicas that counts, and not the largest
    /// need: one that stays about a whole number would turn that number with each look.
    pub jitter: Seconds,
    /// Whether the window of `enforce.scale_down` is waited for beside it.
    pub window: Window,
}

/// Whether a lower number waits for a stabilisation window, too, where foresight alone sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Window {
    /// It does not: what was needed has been held already.
    #[default]
    Replaced,
    /// It does.
    Waited,
}

/// How needs become whole replicas.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rounding {
    /// How much of a replica a need may exceed a whole number by.
    pub excess: Fraction,
    /// How much of a replica must be spare beside the one that goes, so that a load between two
    /// numbers changes nothing.
    pub spare: Fraction,
}

/// A fleet of which nothing is known but its queues grows by what is in flight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ColdStart {
    /// Requests that wait at each replica from which it does.
    pub waiting: Requests,
    /// What it is given, as a multiple of what it has in flight.
    pub margin: Fraction,
    /// The most that it grows to at once, as a multiple of what it is.
    pub times: Fraction,
}

/// How fast what was seen is forgotten.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Memory {
    /// Half of the lengths of requests is forgotten in this time: some hundred requests at one a
    /// second, and soon enough where the mix changes by the hour.
    pub lengths: Seconds,
    /// KV tokens of running requests are forgotten to a third in this time.
    pub kv: Seconds,
}

/// How an iteration is learned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Learning {
    /// Mean number of generated tokens an iteration below which an engine is too idle to learn from.
    pub batch_min: Fraction,
    /// How far a mean of many iterations is off, as a share of it.
    pub noise: Fraction,
    /// How far a coefficient drifts from one lesson to the next, as a share of it: lengths, contexts
    /// and what is cached change what it stands for.
    pub drift: Fraction,
    /// Standard deviations beyond which a lesson counts as that far away only.
    pub clip: Fraction,
}

impl Policy {
    /// How much must be known before anything is spare, where replicas take so long to start.
    pub(crate) fn settles_after(&self, startup: Seconds) -> Seconds {
        let starts = self.hold.map_or(0.0, |hold| hold.starts.fraction());
        Seconds::new(starts * startup.seconds()).unwrap_or_default().max(self.history_min)
    }
}

/// A literal as a quantity, for constants.
fn of(value: f64) -> Fraction {
    Fraction::new(value).unwrap_or_default()
}

fn requests(count: f64) -> Requests {
    Requests::new(count).unwrap_or_default()
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            ttft: USUAL_TTFT,
            itl: None,
            used: Fraction::ONE,
            startup: Seconds::literal(120),
            reaction: Seconds::literal(22),
            // vLLM's own defaults on the smaller accelerators.
            seats: requests(256.0),
            budget: 2048.0,
            limit_share: of(0.92),
            look_back: Seconds::literal(900),
            growth: Some(Growth::default()),
            ramp: Some(Ramp::default()),
            unevenness: Some(Unevenness::default()),
            young: Some(Young::default()),
            bursts: Some(Bursts::default()),
            backlog: Some(Backlog::default()),
            gateway: Some(Gateway::default()),
            error_budget: None,
            schedule: Some(Schedule::default()),
            hold: Some(Hold::default()),
            history_min: Seconds::literal(120),
            rounding: Rounding::default(),
            cold_start: Some(ColdStart::default()),
            memory: Memory::default(),
            learning: Learning::default(),
        }
    }
}

impl Default for Growth {
    fn default() -> Self {
        Self { quantile: of(0.9), cap: of(1.1) }
    }
}

impl Default for Ramp {
    fn default() -> Self {
        Self {
            certainty: of(2.5),
            jump: of(0.5),
            still_rising: of(0.3),
            bend: of(1.5),
            cap: of(2.5),
        }
    }
}

impl Default for Unevenness {
    fn default() -> Self {
        Self { deviations: of(0.5) }
    }
}

impl Default for Young {
    fn default() -> Self {
        Self { margin: of(0.3), horizons: of(3.0) }
    }
}

impl Default for Bursts {
    fn default() -> Self {
        Self { quantile: of(0.95), over: Seconds::literal(60), ttft_share: of(0.6) }
    }
}

impl Default for Backlog {
    fn default() -> Self {
        Self { usual: requests(4.0), drain: Seconds::literal(30), cap: of(0.25) }
    }
}

impl Default for Gateway {
    fn default() -> Self {
        Self { drain: Seconds::literal(30), cap: of(1.0) }
    }
}

impl Default for ErrorBudget {
    fn default() -> Self {
        Self { share: of(0.01), step: of(0.05), decay: Seconds::literal(900), cap: of(0.5) }
    }
}

impl Default for Schedule {
    fn default() -> Self {
        Self { share: Fraction::ONE, cap: of(1.1) }
    }
}

impl Default for Hold {
    fn default() -> Self {
        Self {
            starts: of(2.0),
            min: Seconds::literal(180),
            jitter: Seconds::literal(30),
            window: Window::default(),
        }
    }
}

impl Default for Rounding {
    fn default() -> Self {
        Self { excess: of(0.05), spare: of(0.2) }
    }
}

impl Default for ColdStart {
    fn default() -> Self {
        Self { waiting: requests(8.0), margin: of(1.3), times: of(4.0) }
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self { lengths: Seconds::literal(180), kv: Seconds::literal(120) }
    }
}

impl Default for Learning {
    fn default() -> Self {
        Self { batch_min: of(4.0), noise: of(0.05), drift: of(0.002), clip: of(4.0) }
    }
}
