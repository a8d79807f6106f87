//! What a run came to: how requests were served, what the replicas cost, and what was decided.

use std::iter;
use std::slice;
use std::sync::Arc;

use crate::simulate::Micros;
use crate::simulate::scenario::Slo;
use plimsoll_core::analyze::foresight::card::Card;
use plimsoll_core::decide::enforce::Direction;
use plimsoll_core::decide::sized::{Estimate, Foreseen};
use plimsoll_core::decide::{Decision, Reason};
use plimsoll_core::units::Replicas;

/// Bits of a value that tell the buckets of a [`Spread`] apart.
const MANTISSA: u32 = 7;

/// Length of the spans of which the worst is named.
pub const MINUTE: Micros = Micros::from_secs(60);

/// Changes of decisions that are kept with their reasons. A day of a change every ten seconds has
/// 8,640; more say that something flaps, which the counts say too.
pub const CHANGES_MAX: usize = 10_000;

/// What a run came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Up to when it was simulated.
    pub ended: Micros,
    /// Whether that is the end of the scenario, rather than an interruption.
    pub complete: bool,
    /// Each model's requests, in the scenario's order.
    pub models: Vec<Service>,
    /// Each model's batch work, which is not among these.
    pub batches: Vec<Service>,
    /// Each variant's replicas, in the scenario's order.
    pub variants: Vec<Crew>,
    /// What was seen over time.
    pub series: Vec<Sample>,
    /// Changes of decisions, in order of time; the first [`CHANGES_MAX`] of them.
    pub changes: Vec<Change>,
    /// How many more there were.
    pub changes_left_out: u64,
    /// Ticks whose decisions broke an invariant.
    pub violations: u64,
    /// What the daemon has learned of engines.
    pub cards: Vec<Arc<Card>>,
}

/// How the requests of one model fared. Every request that arrived is in exactly one of `finished`,
/// `rejected`, `timed_out`, `failed`, `unservable`, `overdue` and `open`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Service {
    /// Requests that arrived, each counted once however often it was tried.
    pub arrived: u64,
    /// Requests that were answered in full.
    pub finished: u64,
    /// Of those, the ones that met both objectives.
    pub good: u64,
    /// Of those that were answered in full, the ones whose first token was in time.
    pub in_time: u64,
    /// Of those that were answered in full, the ones whose tokens followed each other in time.
    pub at_pace: u64,
    /// Requests that the gateway's full queue turned away for good.
    pub rejected: u64,
    /// Requests whose client gave up for good.
    pub timed_out: u64,
    /// Requests that a crash or the end of a replica cut off for good.
    pub failed: u64,
    /// Requests that the KV cache of the engine that the router chose could never hold, which it
    /// refuses at once. A larger engine might have served them.
    pub unservable: u64,
    /// Requests without a first token at the end although the objective for it has passed.
    pub overdue: u64,
    /// Requests that were being answered in time at the end.
    pub open: u64,
    /// Attempts after the first.
    pub retries: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Prompt tokens of finished requests.
    pub prompt_tokens: u64,
    /// Generated tokens of finished requests.
    pub output_tokens: u64,
    /// Times that an engine loaded an adapter.
    pub adapter_loads: u64,
    /// Time to first token.
    pub ttft: Spread,
    /// Mean time between tokens of each finished request.
    pub itl: Spread,
    /// Time to the last token.
    pub e2e: Spread,
    /// By minute of arrival.
    pub minutes: Vec<Minute>,
}

/// Requests that arrived in one minute and have been judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Minute {
    /// All of them.
    pub judged: u32,
    /// Those that were served well.
    pub good: u32,
    /// Those that an engine could not hold, which no number of replicas would have changed.
    pub unservable: u32,
}

/// Which objectives a request met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Met {
    /// That for its first token.
    pub ttft: bool,
    /// That for the time between its tokens.
    pub itl: bool,
}

/// What became of a variant's replicas.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Crew {
    /// The time that replicas existed on a node, starts and drains included.
    pub replica_time: Micros,
    /// The most that existed at once.
    pub peak: u32,
    /// Replicas that were created after the start.
    pub starts: u32,
    /// Times that their number was raised.
    pub ups: u32,
    /// Times that it was lowered.
    pub downs: u32,
    /// Times that a change went the other way than the one before it.
    pub flips: u32,
    /// Crashes.
    pub crashes: u32,
    /// Nodes that were taken back.
    pub interruptions: u32,
    /// The direction of the last change.
    pub(crate) last: Option<Direction>,
}

/// What is seen at one instant.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// When.
    pub at: Micros,
    /// Each model.
    pub models: Vec<ModelSample>,
    /// Each variant.
    pub variants: Vec<VariantSample>,
}

/// A model since the sample before.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelSample {
    /// Requests that arrived.
    pub arrived: u64,
    /// Requests that the gateway holds now.
    pub held: u64,
    /// Requests that were judged.
    pub judged: u64,
    /// Of those, the ones that were served well.
    pub good: u64,
    /// The 95th percentile of the times to first token; `None` without a first token.
    pub ttft_p95: Option<Micros>,
    /// The 95th percentile of the times between tokens; `None` without a finished request.
    pub itl_p95: Option<Micros>,
}

/// A variant at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct VariantSample {
    /// The number that the daemon publishes, if there is one.
    pub desired: Option<Replicas>,
    /// Replicas that are asked for.
    pub wanted: u32,
    /// Replicas that serve.
    pub ready: u32,
    /// Replicas that do not serve yet.
    pub starting: u32,
    /// Replicas that finish what they have.
    pub draining: u32,
    /// Requests in batches.
    pub running: u32,
    /// Requests in the engines' queues.
    pub waiting: u32,
    /// The mean share of KV caches in use; 0 without replicas.
    pub kv: f64,
    /// Requests that were ever sent to its replicas.
    pub sent: u64,
    /// Adapters that its replicas have loaded, those that are gone left out.
    pub adapter_loads: u64,
    /// The basis of the daemon's last decision.
    pub belief: Belief,
}

/// The estimates of `foresight` at its last decision; unknown where others decide.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Belief {
    /// The capacity of one replica.
    pub carries: Option<Estimate>,
    /// The load that the variants of its role must carry.
    pub required: Option<Required>,
}

/// Loads, in requests a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Required {
    /// The present one.
    pub arriving: f64,
    /// The one when replicas that are asked for now are ready.
    pub need: f64,
    /// The largest need of the holding time.
    pub held: f64,
}

/// A decision that differs from the one before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// When.
    pub at: Micros,
    /// The index of the variant.
    pub variant: usize,
    /// The number before; `None` for the first.
    pub before: Option<Replicas>,
    /// The number since.
    pub after: Replicas,
    /// The step that made it, as a sentence.
    pub why: String,
}

/// How values are spread: counts in buckets that grow with the value, so that a percentile is right
/// to within 0.4 % of itself however many there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    counts: Vec<u64>,
    total: u64,
    sum: u128,
}

// === impl Met ===

impl Met {
    /// Both objectives, or there are none.
    pub(crate) const ALL: Self = Self { ttft: true, itl: true };
}

// === impl Belief ===

impl Belief {
    /// The estimates that a decision rests on.
    pub(crate) fn of(decision: &Decision) -> Self {
        let mut belief = Self::default();
        for step in &decision.steps {
            let Reason::Sized(sized) = &step.reason else { continue };
            belief.carries = sized.carries.or(belief.carries);
            if let Some(Foreseen { need, held, .. }) = sized.foreseen.as_deref() {
                let required = Required { arriving: need.arriving, need: need.total, held: *held };
                belief.required = Some(required);
            }
        }
        belief
    }
}

// === impl Spread ===

impl Spread {
    /// Counts a value.
    pub fn observe(&mut self, value: Micros) {
        let bucket = bucket(value.micros());
        if bucket >= self.counts.len() {
            self.reach(bucket);
        }
        self.counts[bucket] += 1;
        self.total += 1;
        self.sum += u128::from(value.micros());
    }

    /// Makes room for a bucket.
    #[cold]
    fn reach(&mut self, bucket: usize) {
        self.counts.resize(bucket + 1, 0);
    }

    /// How many values there are.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.total
    }

    /// The mean; `None` without values.
    #[must_use]
    pub fn mean(&self) -> Option<Micros> {
        let mean = self.sum.checked_div(u128::from(self.total))?;
        u64::try_from(mean).ok().map(Micros::new)
    }

    /// The value that this share of all values does not exceed; `None` without values.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<Micros> {
        Self::of_counts(self.counts.iter().copied(), self.total, share)
    }

    /// The same of the values that were counted since another, which was this one at an earlier time.
    #[must_use]
    pub fn quantile_since(&self, earlier: &Self, share: f64) -> Option<Micros> {
        // Buckets are only ever added.
        let before = earlier.counts.iter().copied().chain(iter::repeat(0));
        let counts = self.counts.iter().zip(before).map(|(now, before)| now - before);
        Self::of_counts(counts, self.total - earlier.total, share)
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a count is a rank, and the cast saturates"
    )]
    fn of_counts(counts: impl Iterator<Item = u64>, total: u64, share: f64) -> Option<Micros> {
        let rank = ((share * total as f64).ceil() as u64).clamp(1, total.max(1));
        let mut below = 0;
        for (bucket, count) in counts.enumerate() {
            below += count;
            if below >= rank {
                return Some(Micros::new(middle(bucket)));
            }
        }
        None
    }

    /// The values that were counted since another, which was this one at an earlier time.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |at: usize| earlier.counts.get(at).copied().unwrap_or(0);
        let left = |(at, count): (usize, &u64)| count.saturating_sub(before(at));
        Self {
            counts: self.counts.iter().enumerate().map(left).collect(),
            total: self.total.saturating_sub(earlier.total),
            sum: self.sum.saturating_sub(earlier.sum),
        }
    }
}

fn bucket(value: u64) -> usize {
    let exponent = (u64::BITS - value.leading_zeros()).saturating_sub(MANTISSA + 1);
    let bucket = (u64::from(exponent) << MANTISSA) + (value >> exponent);
    usize::try_from(bucket).unwrap_or(usize::MAX)
}

/// The middle of the values of a bucket.
fn middle(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let exponent = (bucket >> MANTISSA).saturating_sub(1);
    let mantissa = bucket - (exponent << MANTISSA);
    (mantissa << exponent) + ((1 << exponent) >> 1)
}

/// A share of the judged requests of models; `None` when none is judged.
#[must_use]
pub fn share(services: &[Service], of: fn(&Service) -> u64) -> Option<f64> {
    let judged: u64 = services.iter().map(Service::judged).sum();
    let count: u64 = services.iter().map(of).sum();
    (judged > 0).then(|| count as f64 / judged as f64)
}

// === impl Service ===

impl Service {
    /// Requests that were judged: those that ended, well or not, and those that are overdue.
    #[must_use]
    pub const fn judged(&self) -> u64 {
        self.finished + self.not_served() + self.overdue
    }

    /// Requests that ended without an answer.
    #[must_use]
    pub const fn not_served(&self) -> u64 {
        self.rejected + self.timed_out + self.failed + self.unservable
    }

    /// The share of judged requests that were served well; `None` when none is judged.
    #[must_use]
    pub fn attainment(&self) -> Option<f64> {
        share(slice::from_ref(self), |service| service.good)
    }

    /// Notes which objectives a finished request met, and judges it.
    pub(crate) fn finish(&mut self, arrived: Micros, met: Met) {
        let Met { ttft, itl } = met;
        self.finished += 1;
        self.in_time += u64::from(ttft);
        self.at_pace += u64::from(itl);
        self.judge(arrived, ttft && itl);
    }

    /// The minute of arrival with the smallest share of requests served well, with that share. The
    /// first of several.
    #[must_use]
    pub fn worst_minute(&self) -> Option<(usize, f64)> {
        let shares = self.minutes.iter().enumerate().filter(|(_, minute)| minute.judged > 0);
        let shares =
            shares.map(|(at, minute)| (at, f64::from(minute.good) / f64::from(minute.judged)));
        shares.reduce(|worst, next| if next.1 < worst.1 { next } else { worst })
    }

    /// Judges a request that arrived at `arrived`.
    pub(crate) fn judge(&mut self, arrived: Micros, good: bool) {
        let minute = self.minute(arrived);
        minute.judged += 1;
        minute.good += u32::from(good);
        self.good += u64::from(good);
    }

    /// Judges a request that an engine could not hold.
    pub(crate) fn refuse(&mut self, arrived: Micros) {
        self.unservable += 1;
        self.judge(arrived, false);
        self.minute(arrived).unservable += 1;
    }

    fn minute(&mut self, arrived: Micros) -> &mut Minute {
        let minute = usize::try_from(arrived.micros() / MINUTE.micros()).unwrap_or(usize::MAX);
        if minute >= self.minutes.len() {
            self.minutes.resize(minute + 1, Minute::default());
        }
        &mut self.minutes[minute]
    }
}

impl Slo {
    /// Which objectives these times meet for a prompt of so many tokens; a single token has no time
    /// between tokens.
    #[must_use]
    pub fn met(&self, prompt: u32, ttft: Micros, itl: Option<Micros>) -> Met {
        Met { ttft: ttft <= self.ttft_of(prompt), itl: itl.is_none_or(|itl| itl <= self.itl) }
    }
}

// === impl Crew ===

impl Crew {
    /// The time that replicas existed, in hours.
    #[must_use]
    pub fn replica_hours(&self) -> f64 {
        self.replica_time.seconds() / 3600.0
    }

    /// Notes that the number that is asked for changed.
    pub(crate) fn turn(&mut self, direction: Direction) {
        match direction {
            Direction::Up => self.ups += 1,
            Direction::Down => self.downs += 1,
        }
        self.flips += u32::from(self.last.is_some_and(|last| last != direction));
        self.last = Some(direction);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_right_to_within_four_in_a_thousand() {
        let mut spread = Spread::default();
        for value in 1..=1_000_000 {
            spread.observe(Micros::new(value));
        }
        for share in [0.5, 0.9, 0.95, 0.99, 1.0] {
            let exact = share * 1e6;
            let got = spread.quantile(share).unwrap().micros() as f64;
            assert!((got / exact - 1.0).abs() < 0.004, "{got} for {exact}");
        }
        assert_eq!(spread.mean(), Some(Micros::new(500_000)));
        assert_eq!(Spread::default().quantile(0.5), None);
    }

    #[test]
    fn a_percentile_since_is_that_of_the_values_since() {
        let (mut all, mut later) = (Spread::default(), Spread::default());
        for value in 1..=100 {
            all.observe(Micros::new(value * 10));
        }
        let before = all.clone();
        for value in 1..=1_000 {
            all.observe(Micros::new(value * 77));
            later.observe(Micros::new(value * 77));
        }
        for share in [0.01, 0.5, 0.95, 1.0] {
            assert_eq!(all.quantile_since(&before, share), later.quantile(share));
        }
        assert_eq!(all.quantile_since(&all, 0.5), None);
    }

    #[test]
    fn every_value_is_in_a_bucket_whose_middle_is_near() {
        for value in [0, 1, 127, 128, 255, 256, 257, 1_000_003, u64::MAX / 3, u64::MAX] {
            let middle = middle(bucket(value));
            let off = middle.abs_diff(value) as f64;
            assert!(off <= value as f64 * 0.004 + 0.5, "{middle} for {value}");
        }
    }

    #[test]
    fn the_worst_minute_is_the_first_with_the_smallest_share() {
        let mut service = Service::default();
        for (second, good) in [(0, true), (61, true), (62, false), (130, false), (200, false)] {
            service.judge(Micros::from_secs(second), good);
        }
        assert_eq!(service.worst_minute(), Some((2, 0.0)));
    }
}
