//! How much must be carried when what is started now is ready.
//!
//! A replica that is asked for now carries load a start-up time later. So what counts is not the
//! present rate but what it will be then, as far as the past of the same load tells: how much it has
//! grown in that time before, whether it is on a ramp, how it bursts, and what has queued up
//! already. Each is a [`Term`], in requests a second.
//!
//! # Model
//!
//! With `a` the present rate, `a_k` those of strides of 15 s, `h` the horizon in strides. While the lengths
//! of requests [drift](crate::analyze::foresight), each `a_k` counts by the work of its requests:
//!
//! ```text
//! jump     = the rate of the last seconds, once a likelihood ratio is certain of a jump
//! b        = max(a, jump)
//! growth   = min(b + max(0, q90 of a_k - a_(k-h) over 15 min), max(peak of 15 min, 1.1 b))
//!            and at most max(b, 1.1 today * ahead), where the schedule is known
//! ramp     = b + h * min(slope, 1.5 * slope of the second half), at most 2.5 b
//!            or b * exp(h * slope of ln a_k) where it certainly gets steeper, if that is more
//! spread   = 0.5 * rms of a_k less the mean of the three before
//! young    = 0.6 * sqrt(load in replicas), while less than three horizons are known
//! burst    = max over w of  E_w / (w + 0.6 TTFT),    w = 1, 2, 4, 8, 15, 30, 60 s
//! backlog  = sum of min(mu, waiting / 30 s)    over replicas with more than four waiting requests
//! gateway  = min(queued at the gateway / 30 s, max(a, mu))
//! expected = max(max(b, growth, ramp) + spread, min(today, 1) * ahead)
//! steady   = max((expected + young) / u, burst)
//! present  = steady + raised * steady + backlog + gateway
//! absent   = k mu, the least k with P(Poisson(L s present / mu) > k) <= 1 %
//! need     = present + absent
//! ```
//!
//! `L` are the losses of a replica in a second, and `s` the seconds until another serves.
//!
//! `ahead` and `today` are of the [`schedule`](crate::analyze::foresight::schedule), which knows
//! nothing before it has seen two days; `raised` is of the
//! [error budget](crate::analyze::foresight::budget), which is off unless it is asked for.
//!
//! The numbers are those of the default [`Policy`], each of which is a setting; a term that is
//! switched off adds nothing.
//!
//! Those are the windows where the batch's tokens bind what a replica carries: prompts of a burst
//! wait for one another. Where places, the cache or the time between tokens bind, what counts is how
//! many requests are there at once, which are those that came within the time that one stays. So
//! only windows of that time and more count there, without the 0.6 TTFT.
//!
//! `E_w` is the number of requests in a window of `w` seconds that 95 % of requests do not exceed,
//! over a minute. A replica that works off its queue is no capacity for new requests.
//!
//! Jumps count in `spread`, on purpose: a load that has jumped in the last quarter of an hour may do
//! so again, and what is held ready for that is held for as long as anybody remembers it.
//!
//! While there is no replica and nothing arrives, only `gateway` and `ahead` count: what the past
//! says of more to come waits for the first request.
//!
//! A ramp is believed when the slope is more than 2.5 times its standard error, no single stride
//! makes half of the rise (that is a jump, which `growth` answers once and not again), and the
//! second half still rises. It gets steeper if both halves rise, and their slopes differ by 2.5
//! standard errors.
//!
//! # Source
//!
//! Found and pruned by simulation over recorded and synthetic workloads;
//! `docs/foresight-reference.md` has what each term is worth.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::analyze::foresight::arrivals::{Arrivals, STRIDE, quantile};
use crate::analyze::foresight::gateway;
use crate::analyze::foresight::jump::jump;
use crate::analyze::foresight::policy::{Backlog, Bursts, Growth, Policy, Ramp, Schedule, Young};
use crate::analyze::foresight::schedule::Ahead;

/// The fewest strides that a slope is fitted to.
const RAMP_STRIDES: usize = 4;

/// Windows in seconds in which bursts are looked for.
const WINDOWS: [i64; 7] = [1, 2, 4, 8, 15, 30, 60];

/// A replica with a queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Queue {
    /// Requests that wait at it.
    pub waiting: f64,
    /// Requests a second that it carries.
    pub carries: f64,
}

/// What must be carried, in requests a second, and of what it is made. A term that is switched off,
/// or of which nothing is known, is `None`; one that is there and asks for nothing is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Need {
    /// What arrives now.
    pub arriving: f64,
    /// The rate of the last seconds, after a jump within them; `None` if none is certain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jump: Option<f64>,
    /// The work of a request now, over that of one when a replica that serves now was asked for;
    /// `None` where lengths have not changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drift: Option<f64>,
    /// What it grows to by its own past; `None` while there is no replica and nothing arrives.
    pub growth: Option<f64>,
    /// Growth beyond that, for which nothing runs because something starts in time; `None` without
    /// such.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserve: Option<f64>,
    /// What it grows to if it goes on rising; `None` when it is on no ramp.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ramp: Option<f64>,
    /// In addition, because strides differ; `None` while there is no replica and nothing arrives.
    pub spread: Option<f64>,
    /// In addition, because little is known yet; `None` once enough is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub young: Option<f64>,
    /// What bursts take, and the window in seconds in which they are the tightest; `None` where
    /// pages are too far apart to see any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<(f64, i64)>,
    /// In addition, for what waits; `None` where no replica says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backlog: Option<f64>,
    /// What queues at a gateway, where anything does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<gateway::Held>,
    /// What came at this time of the day or the week before, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usual: Option<f64>,
    /// In addition, because too many first tokens come late.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<f64>,
    /// In addition, for replicas that will be lost; `None` where none is expected to be absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub absent: Option<f64>,
    /// All together.
    pub total: f64,
}

/// Which part of a need decides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Term {
    /// What arrives now.
    Arriving,
    /// A jump of the last seconds.
    Jump,
    /// Its growth.
    Growth,
    /// Its ramp.
    Ramp,
    /// Its bursts.
    Burst,
    /// What came at this time before.
    Schedule,
}

/// What a need depends on beside arrivals.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    /// Up to when arrivals are known.
    pub through: Timestamp,
    /// Seconds until what is asked for now carries load.
    pub horizon: f64,
    /// What starts sooner than that.
    pub reserve: Option<Reserve>,
    /// Requests a second that a replica carries; the mean, where they differ.
    pub carries: f64,
    /// The work of a request at each point of the arrivals, as a share of that of one now; none where it
    /// has not changed.
    pub work: &'a [f64],
    /// Which terms count, and by what.
    pub policy: &'a Policy,
    /// Replicas and what waits at them.
    pub queues: &'a [Queue],
    /// What queues at a gateway.
    pub gateway: Option<gateway::Held>,
    /// Whether there is no replica.
    pub at_zero: bool,
    /// What evens out how requests come.
    pub smoothing: Smoothing,
    /// What came at this time before.
    pub ahead: Option<Ahead>,
    /// The share of the need that is asked for in addition for the error budget.
    pub raised: f64,
    /// The share of the time in which a replica is absent because it was lost.
    pub absent: f64,
}

/// What evens out how requests come, and so which of their bursts matter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Smoothing {
    /// They wait for one another for as long as a first token may take: all bursts matter.
    Queue,
    /// They are there together for so many seconds: bursts within less do not matter.
    Stay(f64),
}

/// What may still start that is there sooner than the rest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reserve {
    /// Seconds until it carries load.
    pub horizon: f64,
    /// Requests a second that it may still add.
    pub room: f64,
}

impl Need {
    /// What must be carried; `None` while no arrivals are known.
    #[must_use]
    pub fn of(arrivals: &Arrivals, setting: &Setting<'_>) -> Option<Self> {
        let Setting { through, horizon, reserve, carries, policy, .. } = *setting;
        let Setting { queues, gateway, ahead, raised, .. } = *setting;
        let arriving = arrivals.rate(through)?;
        let jump = policy.jump.and_then(|it| jump(arrivals, through, it));
        let jump = jump.filter(|rate| *rate > arriving);
        let latest = jump.unwrap_or(arriving);
        let asleep = setting.at_zero && latest <= 0.0;
        let rates = if asleep { Vec::new() } else { rates_of_work(arrivals, setting.work) };
        let (steps, back) = (strides(horizon), strides(policy.look_back.seconds()));
        let grown = |steps: usize| {
            policy.growth.map_or(latest, |it| growth(latest, &rates, (steps, back), &it))
        };
        let growth = grown(steps);
        let known = policy.schedule.zip(ahead);
        let growth = known.map_or(growth, |(it, ahead)| bound(latest, growth, &it, &ahead));
        // What is only likely need not run where something starts in time for it.
        let covered =
            reserve.map(|it| (growth - grown(strides(it.horizon)).min(growth)).min(it.room));
        let growth = growth - covered.unwrap_or(0.0);
        let ramp = policy.ramp.and_then(|it| ramp(latest, &rates, steps, &it));
        let uneven = policy.unevenness.filter(|_| !asleep);
        let spread = uneven.map(|it| it.deviations.fraction() * roughness(&rates, back));
        let expected = latest.max(growth).max(ramp.unwrap_or(0.0)) + spread.unwrap_or(0.0);
        let usual = known.map(|(it, ahead)| it.share.fraction() * ahead.rise());
        let expected = expected.max(usual.unwrap_or(0.0));
        let known = arrivals.history(through);
        let is_young = |it: &Young| known < it.horizons.fraction() * horizon && carries > 0.0;
        let young = policy
            .young
            .filter(is_young)
            .map(|young| young.margin.fraction() * (expected / carries).sqrt() * carries);
        let bursts = policy.bursts.filter(|_| !asleep);
        let grace = |it: &Bursts| it.ttft_share.fraction() * policy.ttft.seconds();
        let burst =
            bursts.and_then(|it| burst(arrivals, through, &it, setting.smoothing, grace(&it)));
        let drains = policy.backlog.filter(|_| !queues.is_empty());
        let backlog = drains.map(|it| backlog(queues, &it));
        let used = policy.used.fraction().max(f64::MIN_POSITIVE);
        let steady = (expected + young.unwrap_or(0.0)) / used;
        let steady = steady.max(burst.map_or(0.0, |(rate, _)| rate));
        let budget = policy.error_budget.map(|_| raised * steady);
        let beside = [backlog, budget, gateway.map(|it| it.adds)].map(Option::unwrap_or_default);
        let present = beside.iter().fold(steady, |sum, it| sum + it);
        let losses = policy.absences.filter(|_| carries > 0.0);
        let spares = losses.map_or(0.0, |it| {
            spares((present / carries).ceil() * setting.absent, it.share.fraction())
        });
        let absent = Some(spares * carries).filter(|it| *it > 0.0);
        let total = present + absent.unwrap_or(0.0);
        Some(Self {
            arriving,
            jump,
            drift: heavier(setting.work, steps),
            growth: policy.growth.filter(|_| !asleep).map(|_| growth),
            reserve: policy.growth.and(covered),
            ramp,
            spread,
            young,
            burst,
            backlog,
            gateway,
            usual,
            budget,
            absent,
            total,
        })
    }

    /// The present rate, after a jump if there was one.
    fn latest(&self) -> f64 {
        self.jump.unwrap_or(self.arriving)
    }

    /// The part that is gone soon: the queue that replicas work off, and a jump that does not last.
    pub(super) fn passing(&self) -> f64 {
        self.backlog.unwrap_or(0.0) + self.latest() - self.arriving
    }

    /// What has come already, whatever may come.
    pub(crate) fn present(&self, policy: &Policy) -> f64 {
        let used = policy.used.fraction().max(f64::MIN_POSITIVE);
        let burst = self.burst.map_or(0.0, |(rate, _)| rate);
        let queued = self.gateway.map_or(0.0, |it| it.adds);
        (self.latest() / used).max(burst) + self.backlog.unwrap_or(0.0) + queued
    }

    /// What decides it.
    #[must_use]
    pub fn decided_by(&self) -> Term {
        let Self { growth, ramp, spread, burst, backlog, budget, absent, usual, .. } = *self;
        let latest = self.latest();
        let growth = growth.unwrap_or(latest);
        let queued = self.gateway.map_or(0.0, |it| it.adds);
        let in_addition: f64 =
            [backlog, budget, absent].into_iter().flatten().sum::<f64>() + queued;
        let looked_back = latest.max(growth).max(ramp.unwrap_or(0.0)) + spread.unwrap_or(0.0);
        if burst.is_some_and(|(rate, _)| rate + in_addition >= self.total) {
            Term::Burst
        } else if usual.is_some_and(|usual| usual > looked_back) {
            Term::Schedule
        } else if ramp.is_some_and(|ramp| ramp >= growth.max(latest)) {
            Term::Ramp
        } else if growth > latest {
            Term::Growth
        } else if self.jump.is_some() {
            Term::Jump
        } else {
            Term::Arriving
        }
    }
}

/// The rates of strides, those of less work than now by so much less.
fn rates_of_work(arrivals: &Arrivals, work: &[f64]) -> Vec<f64> {
    let mut rates: Vec<f64> = arrivals.points().iter().map(|point| point.rate).collect();
    for (rate, work) in rates.iter_mut().zip(work) {
        *rate *= work;
    }
    rates
}

/// The work of a request now over that of one so many strides ago.
fn heavier(work: &[f64], strides: usize) -> Option<f64> {
    let before =
        work.len().checked_sub(strides + 1).map_or_else(|| work.first(), |at| work.get(at));
    before.filter(|work| **work > 0.0).map(|work| 1.0 / work)
}

/// The most replicas that are to be ready for others that are absent.
const SPARES_MAX: f64 = 100.0;

/// The number of replicas than which more are absent only in this share of the time, if so many are
/// on average.
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

/// What the rate grows to, if it grows as it has done in as much time before. What is looked back to
/// and ahead is in strides.
fn growth(arriving: f64, rates: &[f64], (ahead, back): (usize, usize), policy: &Growth) -> f64 {
    let oldest = rates.len().saturating_sub(back);
    let peak = rates[oldest..].iter().copied().fold(0.0, f64::max);
    let from = oldest.max(ahead);
    let mut growths: Vec<f64> = (from..rates.len()).map(|k| rates[k] - rates[k - ahead]).collect();
    growths.sort_by(f64::total_cmp);
    let likely = quantile(&growths, policy.quantile.fraction()).unwrap_or(0.0).max(0.0);
    (arriving + likely).min(peak.max(policy.cap.fraction() * arriving)).max(arriving)
}

/// What is left of growth where the past has seen less at this time.
fn bound(arriving: f64, growth: f64, policy: &Schedule, ahead: &Ahead) -> f64 {
    ahead.bound().map_or(growth, |most| growth.min((policy.cap.fraction() * most).max(arriving)))
}

/// What the rate grows to, if it goes on rising; `None` when it does not rise steadily.
fn ramp(arriving: f64, rates: &[f64], ahead: usize, policy: &Ramp) -> Option<f64> {
    let Ramp { certainty, jump, bend, cap } = *policy;
    let count = ahead.max(RAMP_STRIDES);
    let recent = rates.get(rates.len().checked_sub(count)?..)?;
    let (slope, error) = slope(recent)?;
    if slope <= certainty.fraction() * error || slope <= 0.0 {
        return None;
    }
    let rise = recent.last()? - recent.first()?;
    let largest = recent.windows(2).map(|pair| pair[1] - pair[0]).fold(0.0, f64::max);
    if largest >= jump.fraction() * rise {
        return None;
    }
    let (late, _) = self::slope(&recent[recent.len() / 2..])?;
    if late <= 0.0 {
        return None;
    }

    let ahead = ahead as f64;
    let line = arriving + ahead * slope.min(bend.fraction() * late);
    let curve =
        growth_rate(recent, certainty.fraction()).map(|rate| arriving * (ahead * rate).exp());
    Some(line.max(curve.unwrap_or(0.0)).min(cap.fraction() * arriving))
}

/// The share by which rates grow from one to the next, if they certainly rise faster and faster.
fn growth_rate(rates: &[f64], certainty: f64) -> Option<f64> {
    let (early, late) = rates.split_at(rates.len() / 2);
    if early.len() < RAMP_STRIDES {
        return None;
    }

    let (early, early_error) = slope(early)?;
    let (late, late_error) = slope(late)?;
    let rises = early > certainty * early_error;
    let is_steeper = late - early > certainty * early_error.hypot(late_error);
    if !(rises && is_steeper) {
        return None;
    }
    let logarithms: Vec<f64> = rates.iter().map(|rate| rate.max(f64::MIN_POSITIVE).ln()).collect();
    slope(&logarithms).map(|(slope, _)| slope)
}

/// The slope of a line through values that are one apart, and its standard error.
fn slope(values: &[f64]) -> Option<(f64, f64)> {
    let count = values.len() as f64;
    if values.len() < 2 {
        return None;
    }
    let middle = (count - 1.0) / 2.0;
    let mean = values.iter().sum::<f64>() / count;
    let offsets =
        || values.iter().enumerate().map(|(at, value)| (at as f64 - middle, value - mean));
    let width: f64 = offsets().map(|(x, _)| x * x).sum();
    let slope = offsets().map(|(x, y)| x * y).sum::<f64>() / width;
    let left: f64 = offsets().map(|(x, y)| (y - slope * x).powi(2)).sum();
    let freedom = (count - 2.0).max(1.0);
    Some((slope, (left / freedom / width).sqrt()))
}

/// How far a stride is from those before it: the root of the mean square.
fn roughness(rates: &[f64], back: usize) -> f64 {
    let recent = &rates[rates.len().saturating_sub(back + 3)..];
    let off = |four: &[f64]| four[3] - (four[0] + four[1] + four[2]) / 3.0;
    let squares: Vec<f64> = recent.windows(4).map(|four| off(four).powi(2)).collect();
    if squares.is_empty() {
        return 0.0;
    }
    (squares.iter().sum::<f64>() / squares.len() as f64).sqrt()
}

/// What bursts take, in the window in which they are the tightest of those that matter. Requests that
/// wait for one another have the time of the window and some grace.
fn burst(
    arrivals: &Arrivals,
    through: Timestamp,
    policy: &Bursts,
    smoothing: Smoothing,
    grace: f64,
) -> Option<(f64, i64)> {
    let (shortest, grace) = match smoothing {
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
            Some((most / (window as f64 + grace), window))
        })
        .max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)))
}

/// The capacity of replicas that work off a queue.
fn backlog(queues: &[Queue], policy: &Backlog) -> f64 {
    let (usual, seconds) = (policy.usual.requests(), policy.drain.seconds());
    let blocked = queues.iter().filter(|queue| queue.waiting > usual);
    blocked.map(|queue| queue.carries.min(queue.waiting / seconds)).sum()
}

/// The smallest of ordered counts so that no larger ones hold more than the rest of their sum.
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

    /// Arrivals of seconds that follow each other, and when the last ended.
    fn arrived(each_second: impl Iterator<Item = f64>) -> (Timestamp, Arrivals) {
        let mut arrivals = Arrivals::default();
        let mut now = Timestamp::from_second(1_795_000_005).unwrap();
        for came in each_second {
            now += jiff::SignedDuration::from_secs(1);
            arrivals.add(now, crate::units::Seconds::literal(1), came);
        }
        arrivals.close(now);
        (now, arrivals)
    }

    /// Two minutes ahead, a quarter of an hour back.
    const NEAR: (usize, usize) = (9, 60);

    #[test]
    fn a_steady_load_needs_what_arrives() {
        let rates = vec![10.0; 80];
        assert!((growth(10.0, &rates, NEAR, &Growth::default()) - 10.0).abs() < 1e-9);
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
        assert!(growth(40.0, &rates, NEAR, &Growth::default()) <= 44.0 + 1e-9);
    }

    #[test]
    fn bursts_within_a_stay_do_not_matter() {
        // Thirty requests in one second of ten.
        let each_second = (0..300).map(|second| if second % 10 == 0 { 30.0 } else { 0.0 });
        let (now, arrivals) = arrived(each_second);
        let policy = Bursts::default();
        let takes = |smoothing| burst(&arrivals, now, &policy, smoothing, 1.0);

        assert_eq!(takes(Smoothing::Stay(0.5)), Some((30.0, 1)));
        assert_eq!(takes(Smoothing::Stay(15.0)), Some((4.0, 15)), "two of them");
        assert_eq!(takes(Smoothing::Stay(61.0)), None);
        assert_eq!(takes(Smoothing::Queue), Some((15.0, 1)), "a second more to serve them in");
    }

    #[test]
    fn growth_that_something_starts_in_time_for_need_not_run() {
        // Two minutes of four and two of ten, again and again; the last were of four.
        let each_second = (0..1320).map(|second| if second / 120 % 2 == 0 { 4.0 } else { 10.0 });
        let (now, arrivals) = arrived(each_second);
        let policy = Policy::default();
        let need = |horizon, room: Option<f64>| {
            let reserve = room.map(|room| Reserve { horizon: 15.0, room });
            let setting = Setting {
                through: now,
                horizon,
                reserve,
                carries: 2.0,
                work: &[],
                policy: &policy,
                queues: &[],
                gateway: None,
                at_zero: false,
                smoothing: Smoothing::Queue,
                ahead: None,
                raised: 0.0,
                absent: 0.0,
            };
            Need::of(&arrivals, &setting).unwrap()
        };
        let (without, soon) = (need(60.0, None), need(15.0, None));
        let growth = |need: &Need| need.growth.unwrap();
        assert!(growth(&without) > growth(&soon) + 0.5, "{without:?} {soon:?}");
        assert_eq!(without.reserve, None);
        let all = need(60.0, Some(100.0));
        assert!((growth(&all) - growth(&soon)).abs() < 1e-9, "{all:?}");
        let (reserve, most) = (all.reserve.unwrap(), growth(&without));
        assert!((growth(&all) + reserve - most).abs() < 1e-9, "{all:?}");
        let some = need(60.0, Some(0.5));
        assert!((growth(&some) + 0.5 - most).abs() < 1e-9, "{some:?}");
    }

    #[test]
    fn a_ramp_that_gets_steeper_is_a_curve_and_one_that_does_not_is_a_line() {
        let grown = |rates: &[f64]| {
            let now = rates[rates.len() - 1];
            ramp(now, rates, 20, &Ramp::default()).unwrap() / now
        };
        let doubling: Vec<f64> = (0..60).map(|k| 10.0 * (f64::from(k) / 20.0).exp2()).collect();
        assert!((grown(&doubling) - 2.0).abs() < 0.01, "{}", grown(&doubling));
        let straight: Vec<f64> = (0..60).map(|k| 10.0 + f64::from(k)).collect();
        assert!((grown(&straight) - 89.0 / 69.0).abs() < 0.01, "{}", grown(&straight));
    }

    #[test]
    fn a_ramp_that_has_ended_is_no_ramp() {
        let rates: Vec<f64> = (0..40).map(|k| 10.0 + f64::from((k - 30).clamp(0, 5))).collect();
        assert_eq!(ramp(15.0, &rates, 9, &Ramp::default()), None);
    }

    #[test]
    fn a_queue_counts_as_lost_capacity() {
        let queue = |waiting| Queue { waiting, carries: 2.0 };
        let backlog = |queues: &[Queue]| backlog(queues, &Backlog::default());
        assert!(backlog(&[queue(4.0), queue(0.0)]) < 1e-12);
        assert!((backlog(&[queue(30.0)]) - 1.0).abs() < 1e-9);
        assert!(
            (backlog(&[queue(3000.0), queue(64.0)]) - 4.0).abs() < 1e-9,
            "no more than both have"
        );
    }

    #[test]
    fn the_weighted_quantile_is_that_of_requests_and_not_of_windows() {
        assert_eq!(weighted_quantile(&[0.0, 0.0, 0.0, 100.0], 0.95), Some(100.0));
        assert_eq!(weighted_quantile(&[1.0, 1.0, 1.0, 97.0], 0.03), Some(1.0));
    }

    #[test]
    fn one_stride_of_more_makes_a_jump_of_a_ramp_and_is_believed_less() {
        // Why more load may ask for less: a rise that one stride makes half of is no ramp.
        let rates: Vec<f64> = (0..60).map(|k| 10.0 + 0.5 * f64::from(k)).collect();
        let mut more = rates.clone();
        more[55] = 39.4;
        let now = rates[59];
        let expected = |rates: &[f64]| {
            growth(now, rates, NEAR, &Growth::default())
                .max(ramp(now, rates, 9, &Ramp::default()).unwrap_or(0.0))
                + 0.5 * roughness(rates, 60)
        };
        assert!(
            ramp(now, &rates, 9, &Ramp::default()).is_some()
                && ramp(now, &more, 9, &Ramp::default()).is_none()
        );
        assert!(expected(&more) < expected(&rates), "{} {}", expected(&more), expected(&rates));
    }

    proptest! {
        #[test]
        fn a_load_that_is_larger_throughout_never_needs_less(
            rates in proptest::collection::vec(0.1_f64..20.0, 4..80),
            times in 1.0_f64..5.0,
            horizon in 15.0_f64..300.0,
            waiting in proptest::collection::vec(0.0_f64..40.0, 0..4),
        ) {
            let queues: Vec<Queue> =
                waiting.into_iter().map(|waiting| Queue { waiting, carries: 2.0 }).collect();
            let need = |times: f64| {
                let each_second = rates.iter().flat_map(|rate| (0..STRIDE).map(move |_| rate * times));
                let (now, arrivals) = arrived(each_second);
                let through = now;
                let policy = Policy::default();
                let setting = Setting {
                    through,
                    horizon,
                    reserve: None,
                    carries: 2.0,
                    work: &[],
                    policy: &policy,
                    queues: &queues,
                    gateway: None,
                    at_zero: false,
                    smoothing: Smoothing::Queue,
                    ahead: None,
                    raised: 0.0,
                    absent: 0.0,
                };
                Need::of(&arrivals, &setting).unwrap().total
            };
            let (less, more) = (need(1.0), need(times));
            prop_assert!(more >= less * (1.0 - 1e-9), "{less} {more}");
        }
    }
}
