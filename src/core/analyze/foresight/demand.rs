//! The demand at the instant at which a replica requested now is ready.
//!
//! A replica that is asked for now carries load a start-up time later. So the need is not the
//! present rate but the forecast for then, from the past of the same load. The forecast has a
//! [`DemandTerm`] for each of these, in requests per second: past growth over such a time, a ramp,
//! bursts, and the backlog.
//!
//! # Model
//!
//! `a` is the present rate, `a_k` are the rates of strides of 15 s, and `h` is the horizon in
//! strides. While the lengths of requests [drift](crate::analyze::foresight), each `a_k` counts by
//! the work of its requests:
//!
//! ```text
//! jump     = the rate of the last seconds, once a likelihood ratio is certain of a jump
//! b        = max(a, jump)
//! growth   = min(b + max(0, q90 of a_k - a_(k-h) over 15 min), max(peak of 15 min, 1.1 b))
//!            and at most max(b, 1.1 today * ahead), if the schedule is known
//! ramp     = b + h * min(slope, 1.5 * slope of the second half), at most 2.5 b
//!            or b * exp(h * slope of ln a_k) if it certainly gets steeper, and that is more
//! unevenness = 0.5 * rms of a_k less the mean of the three before
//! schedule = min(today, 1) * ahead
//! young    = 0.9 * sqrt(load in replicas), while less than three horizons are known
//! bursts   = max over w of  E_w / (w + 0.6 TTFT),    w = 1, 2, 4, 8, 15, 30, 60 s
//! backlog  = sum of min(mu, waiting / 30 s)    over replicas with more than four waiting requests
//! gateway  = min(queued at the gateway / 30 s, max(a, mu))
//! expected = max(max(b, growth, ramp) + unevenness, schedule)
//! steady   = max((expected + young) / u, bursts)
//! error_budget = raised * steady
//! present  = steady + error_budget + backlog + gateway
//! absences = k mu, the least k with P(Poisson(L s present / mu) > k) <= 1%
//! need     = present + absences
//! ```
//!
//! `L` are the losses per second of a replica, and `s` the seconds until another serves.
//!
//! `ahead` and `today` come from the [`schedule`](crate::analyze::foresight::schedule), which has
//! no forecast before it has seen two days. `raised` comes from the [error
//! budget](crate::analyze::foresight::budget), which is off by default.
//!
//! The constants are those of the default [`ForesightPolicy`], each of which is a setting. A term
//! that is switched off adds nothing.
//!
//! These windows of bursts apply if the batch's tokens bind the capacity per replica: prompts of a
//! burst wait for one another. If places, the cache or the time between tokens bind, the number of
//! requests present at once counts. These are the requests that came within the time that one
//! stays. So only windows of that time and longer count then, without the 0.6 TTFT.
//!
//! `E_w` is the number of requests in a window of `w` seconds that 95% of requests do not exceed,
//! over a minute. A replica that works off its queue is no capacity for new requests.
//!
//! Jumps count in `unevenness`, on purpose: a load that has jumped in the last quarter of an hour
//! may do so again. The capacity for that stays for as long as the jump is within that time.
//!
//! Without replicas and arrivals, only `gateway` and `ahead` count. The other forecasts wait for
//! the first request.
//!
//! A ramp counts if three conditions hold over the last horizon or the last three. Its slope is
//! more than 2.5 times its standard error. No single stride makes half of the rise (that is a jump,
//! which `growth` answers once and not again). The second half still rises. The ramp gets steeper
//! if both halves rise, and their slopes differ by 2.5 standard errors.
//!
//! # Source
//!
//! Found and pruned by simulation over recorded and synthetic workloads.
//! `docs/foresight-reference.md` has the benefit of each term.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::analyze::foresight::arrivals::{ArrivalHistory, STRIDE, quantile};
use crate::analyze::foresight::gateway;
use crate::analyze::foresight::jump::jump;
use crate::analyze::foresight::policy::{Backlog, Bursts, ForesightPolicy, Growth, Schedule};
use crate::analyze::foresight::ramp::ramp;
use crate::analyze::foresight::schedule::ScheduleForecast;

/// Windows for bursts, in seconds.
const WINDOWS: [i64; 7] = [1, 2, 4, 8, 15, 30, 60];

/// A replica with a queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplicaQueue {
    /// Requests that wait at it.
    pub waiting: f64,
    /// Its capacity in requests per second.
    pub carries: f64,
}

/// The required capacity in requests per second, with its terms. A term that is switched off or not
/// known is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RequiredCapacity {
    /// The present rate of arrivals.
    pub arriving: f64,
    /// The rate of the last seconds, after a jump within them; `None` if none is certain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jump: Option<f64>,
    /// The work of a request now, relative to the work when a replica that serves now was
    /// requested. `None` if lengths have not changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drift: Option<f64>,
    /// The rate after growth as in the past; `None` without replicas and arrivals.
    pub growth: Option<f64>,
    /// Further growth without running replicas, because standby starts in time. `None` without
    /// standby.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserve: Option<f64>,
    /// The rate if a ramp continues; `None` without a ramp.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ramp: Option<f64>,
    /// The addition for strides that differ; `None` without replicas and arrivals.
    #[serde(alias = "spread")]
    pub unevenness: Option<f64>,
    /// The addition while little is known yet; `None` once enough is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub young: Option<f64>,
    /// The rate that bursts need. `None` if scrapes are too far apart to show bursts.
    #[serde(alias = "burst", skip_serializing_if = "Option::is_none")]
    pub bursts: Option<BurstDemand>,
    /// The addition for waiting requests; `None` if no replica reports them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backlog: Option<f64>,
    /// The queue at a gateway, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<gateway::GatewayBacklog>,
    /// The rate at this time of earlier days or weeks, if it is known.
    #[serde(alias = "usual", skip_serializing_if = "Option::is_none")]
    pub schedule: Option<f64>,
    /// The addition because too many first tokens come late.
    #[serde(alias = "budget", skip_serializing_if = "Option::is_none")]
    pub error_budget: Option<f64>,
    /// The addition for replicas that will be lost; `None` if none is expected to be absent.
    #[serde(alias = "absent", skip_serializing_if = "Option::is_none")]
    pub absences: Option<f64>,
    /// The sum of all terms.
    pub total: f64,
}

/// The rate that bursts need.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "WrittenBursts", into = "WrittenBursts")]
pub struct BurstDemand {
    /// Requests per second.
    pub rate: f64,
    /// The window in seconds in which bursts need it.
    pub window: i64,
}

/// The rate and the window as files have them: a list of two numbers.
#[derive(Serialize, Deserialize)]
struct WrittenBursts(f64, i64);

impl From<WrittenBursts> for BurstDemand {
    fn from(WrittenBursts(rate, window): WrittenBursts) -> Self {
        Self { rate, window }
    }
}

impl From<BurstDemand> for WrittenBursts {
    fn from(BurstDemand { rate, window }: BurstDemand) -> Self {
        Self(rate, window)
    }
}

/// Declares the terms in the order in which they are computed: name, label, part, words and value.
macro_rules! terms {
    ($($name:ident $label:literal, $part:ident, $words:literal: |$need:ident| $value:expr;)*) => {
        /// A term of a need.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum DemandTerm {
            $(#[doc = $words] $name,)*
        }

        impl DemandTerm {
            /// The term as a label value.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self {
                    $(Self::$name => $label,)*
                }
            }

            /// The term in words, as they follow a rate.
            #[must_use]
            pub const fn words(self) -> &'static str {
                match self {
                    $(Self::$name => $words,)*
                }
            }

            /// The part of the term in the need.
            pub(super) const fn part(self) -> TermPart {
                match self {
                    $(Self::$name => TermPart::$part,)*
                }
            }
        }

        impl RequiredCapacity {
            /// The terms that have a value, each with its requests per second.
            pub fn terms(&self) -> impl Iterator<Item = (DemandTerm, f64)> {
                let all = [$((DemandTerm::$name, { let $need = self; $value })),*];
                all.into_iter().filter_map(|(term, value)| Some((term, value?)))
            }
        }
    };
}

terms! {
    Arriving "arriving", Lead, "arrive now": |need| Some(need.arriving);
    Jump "jump", Lead, "after a jump": |need| need.jump;
    Growth "growth", Lead, "with growth": |need| need.growth;
    Reserve "reserve", Aside, "for growth that standby covers in time": |need| need.reserve;
    Ramp "ramp", Lead, "if the rise continues": |need| need.ramp;
    Unevenness "unevenness", Even, "for unevenness": |need| need.unevenness;
    Schedule "schedule", Lead, "usual at this time": |need| need.schedule;
    Young "young", Even, "while little is known": |need| need.young;
    Bursts "bursts", Lead, "in bursts": |need| need.bursts.map(|it| it.rate);
    Backlog "backlog", Added, "to drain the queue": |need| need.backlog;
    ErrorBudget "error_budget", Added, "because too many first tokens were late":
        |need| need.error_budget;
    Gateway "gateway", Aside, "for requests at the gateway":
        |need| need.gateway.map(|it| it.adds);
    Absences "absences", Added, "for lost replicas": |need| need.absences;
}

/// The part of a term in a need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TermPart {
    /// It may decide the need.
    Lead,
    /// An addition to the rate of arrivals.
    Even,
    /// An addition to the capacity for arrivals.
    Added,
    /// It has an explanation of its own.
    Aside,
}

/// The inputs of a need in addition to arrivals.
#[derive(Clone, Copy, Debug)]
pub struct DemandInputs<'a> {
    /// The instant up to which arrivals are known.
    pub through: Timestamp,
    /// Seconds until what is asked for now carries load.
    pub horizon: f64,
    /// The replicas that start sooner than that.
    pub reserve: Option<Reserve>,
    /// The mean capacity per replica, in requests per second.
    pub carries: f64,
    /// The work of a request at each point of the arrivals, relative to a present request. Empty if
    /// it has not changed.
    pub work: &'a [f64],
    /// The parameters of all terms.
    pub policy: &'a ForesightPolicy,
    /// Replicas with their queues.
    pub queues: &'a [ReplicaQueue],
    /// The queue at a gateway.
    pub gateway: Option<gateway::GatewayBacklog>,
    /// True if there is no replica.
    pub at_zero: bool,
    /// The mechanism that evens out unequal arrivals.
    pub smoothing: Smoothing,
    /// The schedule's forecast.
    pub ahead: Option<ScheduleForecast>,
    /// The addition for the error budget, as a share of the need.
    pub raised: f64,
    /// The share of time in which a replica is absent because it was lost.
    pub absent: f64,
}

/// The mechanism that evens out unequal arrivals, which decides the bursts that count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Smoothing {
    /// Requests wait for one another up to the target for the first token. All bursts count.
    Queue,
    /// Requests are at a replica together for this many seconds. Shorter bursts do not count.
    Stay(f64),
}

/// The replicas that may still start, sooner than the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reserve {
    /// Seconds until they serve.
    pub horizon: f64,
    /// Requests per second that they may still add.
    pub room: f64,
}

impl RequiredCapacity {
    /// The forecast of arrivals at the end of the horizon, in requests per second: the largest of
    /// the terms that are rates of arrivals. Additions and bursts are not part of it.
    #[must_use]
    pub fn forecast_arrivals(&self) -> f64 {
        let Self { arriving, jump, growth, ramp, schedule, .. } = *self;
        [jump, growth, ramp, schedule].into_iter().flatten().fold(arriving, f64::max)
    }

    /// The required capacity; `None` while no arrivals are known.
    #[must_use]
    pub fn of(arrivals: &ArrivalHistory, setting: &DemandInputs<'_>) -> Option<Self> {
        let DemandInputs { through, horizon, reserve, policy, .. } = *setting;
        let DemandInputs { queues, gateway, ahead, raised, .. } = *setting;
        let arriving = arrivals.rate(through)?;
        let jumped = policy.jump.and_then(|it| jump(arrivals, through, it));
        let jump = jumped.filter(|rate| *rate > arriving);
        let latest = jump.unwrap_or(arriving);
        let asleep = setting.at_zero && latest <= 0.0;

        let rates = if asleep { Vec::new() } else { rates_of_work(arrivals, setting.work) };
        let steps = strides(horizon);
        let back = strides(policy.look_back.seconds());
        let weekly = policy.schedule.zip(ahead);
        let likely = growth(latest, &rates, steps, back, policy.growth);
        let grown = weekly.map_or(likely, |(it, ahead)| bound(latest, likely, &it, &ahead));
        // Likely growth needs no running replicas if standby starts in time for it.
        let covered = reserve.map(|it| {
            let soon = growth(latest, &rates, strides(it.horizon), back, policy.growth);
            (grown - soon.min(grown)).min(it.room)
        });
        let growth = grown - covered.unwrap_or(0.0);

        let ramp = policy.ramp.and_then(|it| ramp(latest, &rates, steps, &it));
        let uneven = policy.unevenness.filter(|_| !asleep);
        let unevenness = uneven.map(|it| it.deviations.fraction() * roughness(&rates, back));
        let looked_back = latest.max(growth).max(ramp.unwrap_or(0.0)) + unevenness.unwrap_or(0.0);
        let schedule = weekly.map(|(it, ahead)| it.share.fraction() * ahead.rise());
        let expected = looked_back.max(schedule.unwrap_or(0.0));

        let young = setting.young(arrivals.history(through), expected);
        let awake = policy.bursts.filter(|_| !asleep);
        let bursts = awake.and_then(|it| setting.bursts(arrivals, &it));
        let drains = policy.backlog.filter(|_| !queues.is_empty());
        let backlog = drains.map(|it| backlog(queues, &it));

        let used = policy.used.fraction().max(f64::MIN_POSITIVE);
        let even = (expected + young.unwrap_or(0.0)) / used;
        let steady = even.max(bursts.map_or(0.0, |it| it.rate));
        let error_budget = policy.error_budget.map(|_| raised * steady);
        let more = [backlog, error_budget, gateway.map(|it| it.adds)];
        let present = more.iter().fold(steady, |sum, it| sum + it.unwrap_or_default());
        let absences = setting.lost(present);
        let total = present + absences.unwrap_or(0.0);

        Some(Self {
            arriving,
            jump,
            drift: heavier(setting.work, steps),
            growth: policy.growth.filter(|_| !asleep).map(|_| growth),
            reserve: policy.growth.and(covered),
            ramp,
            unevenness,
            young,
            bursts,
            backlog,
            gateway,
            schedule,
            error_budget,
            absences,
            total,
        })
    }

    /// The present rate, after a jump if there was one.
    fn latest(&self) -> f64 {
        self.jump.unwrap_or(self.arriving)
    }

    /// The part that is soon gone: the backlog of replicas, and a jump that does not last.
    pub(super) fn passing(&self) -> f64 {
        self.backlog.unwrap_or(0.0) + self.latest() - self.arriving
    }

    /// The need for the load that has already arrived, without forecasts.
    pub(crate) fn present(&self, policy: &ForesightPolicy) -> f64 {
        let used = policy.used.fraction().max(f64::MIN_POSITIVE);
        let bursts = self.bursts.map_or(0.0, |it| it.rate);
        let queued = self.gateway.map_or(0.0, |it| it.adds);
        (self.latest() / used).max(bursts) + self.backlog.unwrap_or(0.0) + queued
    }

    /// The term that decides it.
    #[must_use]
    pub fn decided_by(&self) -> DemandTerm {
        let Self { ramp, unevenness, bursts, schedule, .. } = *self;
        let latest = self.latest();
        let growth = self.growth.unwrap_or(latest);
        let queued = self.gateway.map_or(0.0, |it| it.adds);
        let added = self.terms().filter(|(term, _)| term.part() == TermPart::Added);
        let in_addition: f64 = added.map(|(_, value)| value).sum::<f64>() + queued;
        let looked_back = latest.max(growth).max(ramp.unwrap_or(0.0)) + unevenness.unwrap_or(0.0);

        if bursts.is_some_and(|it| it.rate + in_addition >= self.total) {
            DemandTerm::Bursts
        } else if schedule.is_some_and(|schedule| schedule > looked_back) {
            DemandTerm::Schedule
        } else if ramp.is_some_and(|ramp| ramp >= growth.max(latest)) {
            DemandTerm::Ramp
        } else if growth > latest {
            DemandTerm::Growth
        } else if self.jump.is_some() {
            DemandTerm::Jump
        } else {
            DemandTerm::Arriving
        }
    }
}

// === impl DemandInputs ===

impl DemandInputs<'_> {
    /// The addition to an expected rate while arrivals are known for only these seconds.
    fn young(&self, history: f64, expected: f64) -> Option<f64> {
        let Self { horizon, carries, .. } = *self;
        let young = self.policy.young?;
        let is_young = history < young.horizons.fraction() * horizon && carries > 0.0;
        is_young.then(|| young.margin.fraction() * (expected / carries).sqrt() * carries)
    }

    /// The rate that bursts need.
    fn bursts(&self, arrivals: &ArrivalHistory, policy: &Bursts) -> Option<BurstDemand> {
        let grace = policy.ttft_share.fraction() * self.policy.ttft.seconds();
        bursts(arrivals, self.through, policy, self.smoothing, grace)
    }

    /// The addition for replicas that will be lost, given the need for all others.
    fn lost(&self, present: f64) -> Option<f64> {
        let Self { carries, absent, .. } = *self;
        let losses = self.policy.absences.filter(|_| carries > 0.0)?;
        let spares = spares((present / carries).ceil() * absent, losses.share.fraction());
        Some(spares * carries).filter(|it| *it > 0.0)
    }
}

/// The rates of strides, scaled down if their requests were less work than now.
fn rates_of_work(arrivals: &ArrivalHistory, work: &[f64]) -> Vec<f64> {
    let mut rates: Vec<f64> = arrivals.points().iter().map(|point| point.rate).collect();
    for (rate, work) in rates.iter_mut().zip(work) {
        *rate *= work;
    }
    rates
}

/// The work of a present request, relative to a request this many strides ago.
fn heavier(work: &[f64], strides: usize) -> Option<f64> {
    let before =
        work.len().checked_sub(strides + 1).map_or_else(|| work.first(), |at| work.get(at));
    before.filter(|work| **work > 0.0).map(|work| 1.0 / work)
}

/// The most replicas that are kept ready for absent ones.
const SPARES_MAX: f64 = 100.0;

/// The smallest replica count that absent replicas exceed for at most this share of the time, given
/// their mean.
fn spares(mean: f64, share: f64) -> f64 {
    let mut probability = (-mean).exp();
    let mut below = probability;
    let mut spares = 0.0;
    while 1.0 - below > share && spares < SPARES_MAX {
        spares += 1.0;
        probability *= mean / spares;
        below += probability;
    }

    spares
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a horizon is some seconds, and is bounded before"
)]
pub(super) fn strides(seconds: f64) -> usize {
    (seconds / STRIDE as f64).round().max(1.0) as usize
}

/// The rate after growth as in past times of the same length. Both times, ahead and back, are in
/// strides. If less than twice that length is known, growth over half of the known time counts: it
/// is less, but not nothing. Without a policy, nothing grows.
fn growth(arriving: f64, rates: &[f64], ahead: usize, back: usize, policy: Option<Growth>) -> f64 {
    let Some(policy) = policy else { return arriving };
    let oldest = rates.len().saturating_sub(back);
    let span = ahead.min(rates.len() / 2);
    let peak = rates[oldest..].iter().copied().fold(0.0, f64::max);
    let from = oldest.max(span);
    let mut growths: Vec<f64> = (from..rates.len()).map(|k| rates[k] - rates[k - span]).collect();
    growths.sort_by(f64::total_cmp);

    let likely = quantile(&growths, policy.quantile.fraction()).unwrap_or(0.0).max(0.0);
    (arriving + likely).min(peak.max(policy.cap.fraction() * arriving)).max(arriving)
}

/// The growth, limited by the schedule's highest rate at this time.
fn bound(arriving: f64, growth: f64, policy: &Schedule, ahead: &ScheduleForecast) -> f64 {
    ahead.bound().map_or(growth, |most| growth.min((policy.cap.fraction() * most).max(arriving)))
}

/// The root mean square difference between a stride and the mean of those before it.
fn roughness(rates: &[f64], back: usize) -> f64 {
    let recent = &rates[rates.len().saturating_sub(back + 3)..];
    let off = recent.windows(4).map(|four| four[3] - (four[0] + four[1] + four[2]) / 3.0);
    let squares: Vec<f64> = off.map(|off| off.powi(2)).collect();
    if squares.is_empty() {
        return 0.0;
    }
    (squares.iter().sum::<f64>() / squares.len() as f64).sqrt()
}

/// The rate that bursts need, in the most demanding window that counts. Requests that wait for one
/// another have the time of the window and some grace.
fn bursts(
    arrivals: &ArrivalHistory,
    through: Timestamp,
    policy: &Bursts,
    smoothing: Smoothing,
    grace: f64,
) -> Option<BurstDemand> {
    let (shortest, added) = match smoothing {
        Smoothing::Queue => (0.0, grace),
        Smoothing::Stay(seconds) => (seconds, 0.0),
    };

    let over = i64::try_from(strides(policy.over.seconds())).unwrap_or(i64::MAX);
    WINDOWS
        .into_iter()
        .filter(|window| *window as f64 >= shortest)
        .filter_map(|window| {
            let mut counts = arrivals.windows(through, window, over.saturating_mul(STRIDE));
            counts.sort_by(f64::total_cmp);
            let most = weighted_quantile(&counts, policy.quantile.fraction())?;
            Some(BurstDemand { rate: most / (window as f64 + added), window })
        })
        .max_by(|a, b| a.rate.total_cmp(&b.rate).then(b.window.cmp(&a.window)))
}

/// The capacity of replicas that work off a queue.
fn backlog(queues: &[ReplicaQueue], policy: &Backlog) -> f64 {
    let usual = policy.usual.requests();
    let seconds = policy.drain.seconds();
    let blocked = queues.iter().filter(|queue| queue.waiting > usual);
    blocked.map(|queue| queue.carries.min(queue.waiting / seconds)).sum()
}

/// The smallest of the ordered counts, up to which the counts hold at least this share of their
/// sum.
fn weighted_quantile(ordered: &[f64], share: f64) -> Option<f64> {
    let all: f64 = ordered.iter().sum();
    let mut sum = 0.0;
    ordered.iter().copied().find(|count| {
        sum += count;
        sum >= share * all
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::analyze::foresight::policy::Ramp;

    /// Arrivals of consecutive seconds, and the end of the last one.
    fn arrived(each_second: impl Iterator<Item = f64>) -> (Timestamp, ArrivalHistory) {
        let mut arrivals = ArrivalHistory::default();
        let mut now = Timestamp::from_second(1_795_000_005).unwrap();
        for came in each_second {
            now += jiff::SignedDuration::from_secs(1);
            arrivals.add(now, crate::units::Seconds::literal(1), came);
        }

        arrivals.close(now);
        (now, arrivals)
    }

    /// Growth in the two minutes ahead, as in a quarter of an hour back.
    fn grown(now: f64, rates: &[f64]) -> f64 {
        growth(now, rates, 9, 60, Some(Growth::default()))
    }

    /// Replicas that carry two requests per second, without anything that adds to the need.
    fn setting(through: Timestamp, horizon: f64, policy: &ForesightPolicy) -> DemandInputs<'_> {
        DemandInputs {
            through,
            horizon,
            reserve: None,
            carries: 2.0,
            work: &[],
            policy,
            queues: &[],
            gateway: None,
            at_zero: false,
            smoothing: Smoothing::Queue,
            ahead: None,
            raised: 0.0,
            absent: 0.0,
        }
    }

    #[test]
    fn a_steady_load_needs_what_arrives() {
        let rates = vec![10.0; 80];
        assert!((grown(10.0, &rates) - 10.0).abs() < 1e-9);
        assert_eq!(ramp(10.0, &rates, 9, &Ramp::default()), None);
        assert!(roughness(&rates, 60) < 1e-12);
    }

    #[test]
    fn a_ramp_is_extrapolated_over_the_horizon() {
        let rates: Vec<f64> = (0..40).map(|k| 10.0 + 0.5 * f64::from(k)).collect();
        let now = rates[39];
        assert!((ramp(now, &rates, 9, &Ramp::default()).unwrap() - (now + 4.5)).abs() < 1e-9);
    }

    #[test]
    fn a_jump_is_no_ramp_and_is_not_expected_again_beyond_its_peak() {
        let rates: Vec<f64> = (0..40).map(|k| if k < 35 { 10.0 } else { 40.0 }).collect();
        assert_eq!(ramp(40.0, &rates, 9, &Ramp::default()), None);
        assert!(grown(40.0, &rates) <= 44.0 + 1e-9);
    }

    #[test]
    fn bursts_within_a_stay_do_not_matter() {
        // Thirty requests in one second of ten.
        let each_second = (0..300).map(|second| if second % 10 == 0 { 30.0 } else { 0.0 });
        let (now, arrivals) = arrived(each_second);

        for (smoothing, expected) in [
            (Smoothing::Stay(0.5), Some(BurstDemand { rate: 30.0, window: 1 })),
            // Two of them.
            (Smoothing::Stay(15.0), Some(BurstDemand { rate: 4.0, window: 15 })),
            (Smoothing::Stay(61.0), None),
            // A second more to serve them in.
            (Smoothing::Queue, Some(BurstDemand { rate: 15.0, window: 1 })),
        ] {
            let found = bursts(&arrivals, now, &Bursts::default(), smoothing, 1.0);
            assert_eq!(found, expected, "{smoothing:?}");
        }
    }

    /// The need if two minutes of four requests per second and two of ten follow one another, and
    /// the last were of four.
    fn need(horizon: f64, room: Option<f64>) -> RequiredCapacity {
        let each_second = (0..1320).map(|second| if second / 120 % 2 == 0 { 4.0 } else { 10.0 });
        let (now, arrivals) = arrived(each_second);
        let reserve = room.map(|room| Reserve { horizon: 15.0, room });
        let policy = ForesightPolicy::default();
        RequiredCapacity::of(&arrivals, &DemandInputs { reserve, ..setting(now, horizon, &policy) })
            .unwrap()
    }

    #[test]
    fn growth_that_something_starts_in_time_for_need_not_run() {
        let without = need(60.0, None);
        let most = without.growth.unwrap();
        let least = need(15.0, None).growth.unwrap();
        assert!(most > least + 0.5, "{most} {least}");
        assert_eq!(without.reserve, None);

        let all = need(60.0, Some(100.0));
        let growth = all.growth.unwrap();
        assert!((growth - least).abs() < 1e-9, "{all:?}");
        assert!((growth + all.reserve.unwrap() - most).abs() < 1e-9, "{all:?}");

        let some = need(60.0, Some(0.5));
        assert!((some.growth.unwrap() + 0.5 - most).abs() < 1e-9, "{some:?}");
    }

    #[test]
    fn a_queue_counts_as_lost_capacity() {
        for (waiting, expected) in [
            (&[4.0, 0.0][..], 0.0),
            (&[30.0], 1.0),
            // No more than both have.
            (&[3000.0, 64.0], 4.0),
        ] {
            let queues = waiting.iter().map(|&waiting| ReplicaQueue { waiting, carries: 2.0 });
            let lost = backlog(&queues.collect::<Vec<_>>(), &Backlog::default());
            assert!((lost - expected).abs() < 1e-9, "{lost} for {waiting:?}");
        }
    }

    #[test]
    fn the_weighted_quantile_is_that_of_requests_and_not_of_windows() {
        assert_eq!(weighted_quantile(&[0.0, 0.0, 0.0, 100.0], 0.95), Some(100.0));
        assert_eq!(weighted_quantile(&[1.0, 1.0, 1.0, 97.0], 0.03), Some(1.0));
    }

    /// The rate that is expected of a load that has reached this rate.
    fn expected(now: f64, rates: &[f64]) -> f64 {
        let ramp = ramp(now, rates, 9, &Ramp::default());
        grown(now, rates).max(ramp.unwrap_or(0.0)) + 0.5 * roughness(rates, 60)
    }

    #[test]
    fn a_longer_look_ahead_expects_no_less_growth_while_little_is_known() {
        let rates: Vec<f64> = (0..20).map(|k| 10.0 + f64::from(k)).collect();
        let in_strides = |ahead| growth(29.0, &rates, ahead, 60, Some(Growth::default()));
        assert!(in_strides(10) > 29.0);
        for ahead in 11..40 {
            assert!(in_strides(ahead) >= in_strides(10), "{ahead} strides ahead");
        }
    }

    #[test]
    fn one_stride_of_more_hides_a_ramp_in_one_horizon_but_not_in_three() {
        let rates: Vec<f64> = (0..60).map(|k| 10.0 + 0.5 * f64::from(k)).collect();
        let mut more = rates.clone();
        more[55] = 39.4;
        let now = rates[59];
        let short = ramp(now, &more[50..], 9, &Ramp::default());
        assert_eq!(short, None, "a rise of which one stride makes half is no ramp");

        let with = expected(now, &more);
        let without = expected(now, &rates);
        assert!(with >= without, "{with} {without}");
    }

    /// The need of a load with these rates in consecutive strides.
    fn total(rates: &[f64], horizon: f64, queues: &[ReplicaQueue]) -> f64 {
        let each_second = rates.iter().flat_map(|rate| (0..STRIDE).map(move |_| *rate));
        let (through, arrivals) = arrived(each_second);
        let policy = ForesightPolicy::default();
        RequiredCapacity::of(
            &arrivals,
            &DemandInputs { queues, ..setting(through, horizon, &policy) },
        )
        .unwrap()
        .total
    }

    proptest! {
        #[test]
        fn a_load_that_is_larger_throughout_never_needs_less(
            rates in proptest::collection::vec(0.1_f64..20.0, 4..80),
            times in 1.0_f64..5.0,
            horizon in 15.0_f64..300.0,
            waiting in proptest::collection::vec(0.0_f64..40.0, 0..4),
        ) {
            let queues: Vec<ReplicaQueue> =
                waiting.into_iter().map(|waiting| ReplicaQueue { waiting, carries: 2.0 }).collect();
            let larger: Vec<f64> = rates.iter().map(|rate| rate * times).collect();

            let less = total(&rates, horizon, &queues);
            let more = total(&larger, horizon, &queues);
            prop_assert!(more >= less * (1.0 - 1e-9), "{less} {more}");
        }
    }
}
