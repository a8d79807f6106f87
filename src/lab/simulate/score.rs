//! The outcome of a run: how well requests were served, the cost of the replicas, and the
//! decisions.

use std::iter;
use std::slice;
use std::sync::Arc;

use crate::simulate::Micros;
use crate::simulate::scenario::slo::Slo;
use plimsoll_core::analyze::foresight::card::Card;
use plimsoll_core::decide::Decision;
use plimsoll_core::decide::enforce::ScalingDirection;
use plimsoll_core::decide::sized::{CapacityEstimate, DemandForecast};
use plimsoll_core::units::Replicas;

/// Bits of a value that determine its bucket in a [`QuantileHistogram`].
const MANTISSA: u32 = 7;

/// The length of the spans from which the worst is reported.
pub const MINUTE: Micros = Micros::from_secs(60);

/// The most changes of decisions to keep with their reasons. One change every ten seconds gives
/// 8,640 per day. More changes mean flapping, which the counts also show.
pub const CHANGES_MAX: usize = 10_000;

/// The outcome of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The time at which the simulation ended.
    pub ended: Micros,
    /// True if that is the end of the scenario, false after an interruption.
    pub complete: bool,
    /// Each model's requests, in the scenario's order.
    pub models: Vec<Service>,
    /// Each model's batch work, which `models` does not include.
    pub batches: Vec<Service>,
    /// Each variant's replicas, in the scenario's order.
    pub variants: Vec<VariantScore>,
    /// The samples over time.
    pub series: Vec<FleetSample>,
    /// The first [`CHANGES_MAX`] changes of decisions, in order of time.
    pub changes: Vec<DecisionChange>,
    /// The number of changes beyond these.
    pub changes_left_out: u64,
    /// Ticks whose decisions broke an invariant.
    pub violations: u64,
    /// The engine capacities that the daemon has learned.
    pub cards: Vec<Arc<Card>>,
}

/// The outcome of one model's requests. Every request that arrived is in exactly one of `finished`,
/// `rejected`, `timed_out`, `failed`, `unservable`, `overdue` and `open`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Service {
    /// Requests that arrived, each counted once regardless of retries.
    pub arrived: u64,
    /// Requests that were answered in full.
    pub finished: u64,
    /// Finished requests that met both objectives.
    pub good: u64,
    /// Finished requests whose first token was in time.
    pub in_time: u64,
    /// Finished requests that met the objective for the time between tokens.
    pub at_pace: u64,
    /// Requests that the gateway's full queue rejected and the client did not retry.
    pub rejected: u64,
    /// Requests whose client gave up for good.
    pub timed_out: u64,
    /// Requests that a crash or the end of a replica cut off for good.
    pub failed: u64,
    /// Requests that the chosen engine refuses at once, because its KV cache could never hold them.
    /// A larger engine might have served them.
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
    pub ttft: QuantileHistogram,
    /// Mean time between tokens of each finished request.
    pub itl: QuantileHistogram,
    /// Time to the last token.
    pub e2e: QuantileHistogram,
    /// The outcome by minute of arrival.
    pub minutes: Vec<Minute>,
}

/// Requests that arrived in one minute and have been judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Minute {
    /// All judged requests.
    pub judged: u32,
    /// Requests served well.
    pub good: u32,
    /// Requests that an engine could not hold, regardless of the replica count.
    pub unservable: u32,
}

/// The objectives that a request met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetObjectives {
    /// True if it met the objective for its first token.
    pub ttft: bool,
    /// True if it met the objective for the time between tokens.
    pub itl: bool,
}

/// The replicas of a variant over a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VariantScore {
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
    /// Changes in the direction opposite to the previous change.
    pub flips: u32,
    /// Crashes.
    pub crashes: u32,
    /// Nodes that were taken back.
    pub interruptions: u32,
    /// The direction of the last change.
    pub(crate) last: Option<ScalingDirection>,
}

/// The state of a run at one instant.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetSample {
    /// The time.
    pub at: Micros,
    /// The sample of each model.
    pub models: Vec<ModelSample>,
    /// The sample of each variant.
    pub variants: Vec<VariantSample>,
}

/// The state of a model since the previous sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelSample {
    /// Requests that arrived.
    pub arrived: u64,
    /// Requests that the gateway holds now.
    pub held: u64,
    /// Requests that were judged.
    pub judged: u64,
    /// Judged requests that were served well.
    pub good: u64,
    /// The 95th percentile of the times to first token; `None` without a first token.
    pub ttft_p95: Option<Micros>,
    /// The 95th percentile of the times between tokens; `None` without a finished request.
    pub itl_p95: Option<Micros>,
}

/// A variant at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct VariantSample {
    /// The desired replicas that the daemon publishes, if any.
    pub desired: Option<Replicas>,
    /// Replicas that are asked for.
    pub wanted: u32,
    /// Replicas that serve.
    pub ready: u32,
    /// Replicas that do not serve yet.
    pub starting: u32,
    /// Replicas that finish their requests before they end.
    pub draining: u32,
    /// Requests in batches.
    pub running: u32,
    /// Requests in the engines' queues.
    pub waiting: u32,
    /// The mean share of KV caches in use; 0 without replicas.
    pub kv: f64,
    /// Requests ever sent to its replicas.
    pub sent: u64,
    /// Adapter loads of its existing replicas.
    pub adapter_loads: u64,
    /// The basis of the daemon's last decision.
    pub belief: ForesightEstimate,
}

/// The estimates of `foresight` at its last decision; unknown if another policy decides.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ForesightEstimate {
    /// The capacity of one replica.
    pub carries: Option<CapacityEstimate>,
    /// The load that the variants of its role must handle.
    pub required: Option<Required>,
}

/// Loads in requests/s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Required {
    /// The current load.
    pub arriving: f64,
    /// The load at the time when replicas requested now become ready.
    pub need: f64,
    /// The largest `need` within the holding time.
    pub held: f64,
}

/// A decision that differs from the previous one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionChange {
    /// The time.
    pub at: Micros,
    /// The index of the variant.
    pub variant: usize,
    /// The desired replicas before; `None` for the first decision.
    pub before: Option<Replicas>,
    /// The desired replicas after.
    pub after: Replicas,
    /// The reason of the step that made the change, as a sentence.
    pub why: String,
}

/// A histogram of values. Its buckets grow with the value, so a percentile has a relative error of
/// at most 0.4%, for any number of values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuantileHistogram {
    counts: Vec<u64>,
    total: u64,
    sum: u128,
}

// === impl MetObjectives ===

impl MetObjectives {
    /// Both objectives are met, or there are none.
    pub(crate) const ALL: Self = Self { ttft: true, itl: true };
}

// === impl ForesightEstimate ===

impl ForesightEstimate {
    /// The estimates behind a decision.
    pub(crate) fn of(decision: &Decision) -> Self {
        let Some(sizing) = &decision.sizing else { return Self::default() };
        let required = sizing.foreseen.as_ref().map(|DemandForecast { need, held, .. }| Required {
            arriving: need.arriving,
            need: need.total,
            held: *held,
        });
        Self { carries: sizing.carries, required }
    }
}

// === impl QuantileHistogram ===

impl QuantileHistogram {
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

    /// The number of values.
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

    /// The same quantile over the values counted since `earlier`, an earlier state of this
    /// histogram.
    #[must_use]
    pub fn quantile_since(&self, earlier: &Self, share: f64) -> Option<Micros> {
        // Buckets are never removed.
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

    /// The values counted since `earlier`, an earlier state of this histogram.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let before = earlier.counts.iter().copied().chain(std::iter::repeat(0));
        let counts = self.counts.iter().zip(before);
        Self {
            counts: counts.map(|(count, before)| count.saturating_sub(before)).collect(),
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

/// The middle of a bucket's values.
fn middle(bucket: usize) -> u64 {
    let place = bucket as u64;
    let exponent = (place >> MANTISSA).saturating_sub(1);
    let mantissa = place - (exponent << MANTISSA);
    (mantissa << exponent) + ((1 << exponent) >> 1)
}

/// A share of the judged requests of models; `None` if none is judged.
#[must_use]
pub fn share(services: &[Service], of: fn(&Service) -> u64) -> Option<f64> {
    let judged: u64 = services.iter().map(Service::judged).sum();
    let count: u64 = services.iter().map(of).sum();
    (judged > 0).then(|| count as f64 / judged as f64)
}

// === impl Service ===

impl Service {
    /// Requests that were judged: ended requests, well served or not, and overdue ones.
    #[must_use]
    pub const fn judged(&self) -> u64 {
        self.finished + self.not_served() + self.overdue
    }

    /// Requests that ended without an answer.
    #[must_use]
    pub const fn not_served(&self) -> u64 {
        self.rejected + self.timed_out + self.failed + self.unservable
    }

    /// The share of judged requests that were served well; `None` if none is judged.
    #[must_use]
    pub fn attainment(&self) -> Option<f64> {
        share(slice::from_ref(self), |service| service.good)
    }

    /// Counts the objectives that a finished request met, and judges it.
    pub(crate) fn finish(&mut self, arrived: Micros, met: MetObjectives) {
        let MetObjectives { ttft, itl } = met;
        self.finished += 1;
        self.in_time += u64::from(ttft);
        self.at_pace += u64::from(itl);
        self.judge(arrived, ttft && itl);
    }

    /// The minute of arrival with the smallest share of requests served well, and that share. On a
    /// tie, the earliest minute.
    #[must_use]
    pub fn worst_minute(&self) -> Option<(usize, f64)> {
        let judged = self.minutes.iter().enumerate().filter(|(_, minute)| minute.judged > 0);
        let shares =
            judged.map(|(at, minute)| (at, f64::from(minute.good) / f64::from(minute.judged)));
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
    /// The objectives that these times meet for a prompt of this many tokens. An answer of a single
    /// token has no time between tokens.
    #[must_use]
    pub fn met(&self, prompt: u32, ttft: Micros, itl: Option<Micros>) -> MetObjectives {
        MetObjectives {
            ttft: ttft <= self.ttft_of(prompt),
            itl: itl.is_none_or(|itl| itl <= self.itl),
        }
    }
}

// === impl VariantScore ===

impl VariantScore {
    /// The time that replicas existed, in hours.
    #[must_use]
    pub fn replica_hours(&self) -> f64 {
        self.replica_time.seconds() / 3600.0
    }

    /// Counts a change of the desired replicas.
    pub(crate) fn turn(&mut self, direction: ScalingDirection) {
        match direction {
            ScalingDirection::Up => self.ups += 1,
            ScalingDirection::Down => self.downs += 1,
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
        let mut spread = QuantileHistogram::default();
        for value in 1..=1_000_000 {
            spread.observe(Micros::new(value));
        }
        for share in [0.5, 0.9, 0.95, 0.99, 1.0] {
            let exact = share * 1e6;
            let got = spread.quantile(share).unwrap().micros() as f64;
            assert!((got / exact - 1.0).abs() < 0.004, "{got} for {exact}");
        }

        assert_eq!(spread.mean(), Some(Micros::new(500_000)));
        assert_eq!(QuantileHistogram::default().quantile(0.5), None);
    }

    #[test]
    fn a_percentile_since_is_that_of_the_values_since() {
        let mut all = QuantileHistogram::default();
        let mut later = QuantileHistogram::default();
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
