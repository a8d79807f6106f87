//! One rank's samples, combined.

use crate::observe::engine::family::{MetricFamily, SampleKind, SamplePosition};
use crate::observe::engine::number::{cumulative, gauge, number};
use crate::observe::engine::signal::{Distribution, RankValue};
use crate::observe::engine::unreadable::{BUCKETS_MAX, SampleError, Unreadable};
use crate::observe::engine::value_position::ValuePosition;
use crate::observe::histogram::Histogram;
use crate::observe::reading::{FinishedReading, RankReading};
use crate::units::{Fraction, Requests, Tokens};

/// The largest value that is accepted as a share of the KV cache. Engines report 0 to 1, and
/// rounding may add a little. A value of 37 probably means percent, but the reader does not guess.
const KV_USAGE_MAX: f64 = 1.01;

/// The samples of one rank. A rank has some twenty numbers and nine histograms, so both are
/// searched linearly.
#[derive(Clone, Debug)]
pub(super) struct RankDraft {
    rank: u32,
    numbers: Vec<SeriesNumber>,
    distributions: Vec<DistributionDraft>,
    finished_other: Option<f64>,
}

/// One series' number; `None` if the response has an unusable value.
#[derive(Clone, Debug)]
struct SeriesNumber {
    of: RankValue,
    spelling: u8,
    class: u8,
    shard: u64,
    value: Option<f64>,
}

/// One series' histogram, as read so far.
#[derive(Clone, Debug)]
struct DistributionDraft {
    of: Distribution,
    family: &'static MetricFamily,
    class: u8,
    sum: Sum,
    count: Option<f64>,
    buckets: Vec<(f64, f64)>,
}

#[derive(Clone, Copy, Debug)]
enum Sum {
    Missing,
    Unusable,
    Usable(f64),
}

impl RankDraft {
    pub(super) fn new(rank: u32) -> Self {
        /// Capacity for the metrics of a vLLM rank.
        const USUAL: (usize, usize) = (24, 8);
        let numbers = Vec::with_capacity(USUAL.0);
        let distributions = Vec::with_capacity(USUAL.1);
        Self { rank, numbers, distributions, finished_other: None }
    }

    pub(super) const fn rank(&self) -> u32 {
        self.rank
    }

    /// Sets one number and returns its spot. If shards repeat the number, the lowest shard's stays.
    pub(super) fn set(
        &mut self,
        of: RankValue,
        spelling: u8,
        place: &SamplePosition<'_>,
        value: f64,
    ) -> Result<ValuePosition, SampleError> {
        let accepted = of.accept(value)?;
        let &SamplePosition { class, shard, .. } = place;
        let known = self
            .numbers
            .iter()
            .position(|it| it.of == of && it.spelling == spelling && it.class == class);

        let number = SeriesNumber { of, spelling, class, shard, value: accepted };
        let Some(at) = known else {
            self.numbers.push(number);
            return Ok(ValuePosition::at(ValuePosition::Number, self.numbers.len() - 1));
        };

        match &mut self.numbers[at] {
            known if known.shard == shard => Err(SampleError::Duplicate),
            known if known.shard > shard => {
                *known = number;
                Ok(ValuePosition::at(ValuePosition::Number, at))
            }
            _ if of.is_cumulative() => Ok(ValuePosition::Checked),
            _ => Ok(ValuePosition::PassedOver),
        }
    }

    /// Stores another value of the same series in its spot.
    ///
    /// # Errors
    ///
    /// The value is impossible for the series.
    #[inline]
    pub(super) fn put(&mut self, spot: ValuePosition, value: f64) -> Result<(), SampleError> {
        match spot {
            ValuePosition::Number(at) => {
                let number = &mut self.numbers[usize::from(at)];
                number.value = number.of.accept(value)?;
            }
            ValuePosition::Bucket(at, bucket) => {
                let draft = &mut self.distributions[usize::from(at)];
                draft.buckets[usize::from(bucket)].1 = cumulative(value)?;
            }
            ValuePosition::Count(at) => {
                self.distributions[usize::from(at)].count = Some(cumulative(value)?);
            }
            ValuePosition::Sum(at) => self.distributions[usize::from(at)].sum = Sum::of(value),
            ValuePosition::FinishedOther => {
                let sum = self.finished_other.unwrap_or(0.0);
                self.finished_other = Some(sum + cumulative(value)?);
            }
            ValuePosition::PassedOver
            | ValuePosition::Checked
            | ValuePosition::Started
            | ValuePosition::Http(_)
            | ValuePosition::Rejected
            | ValuePosition::Lora
            | ValuePosition::Unsteady => {}
        }

        Ok(())
    }

    /// Clears the sums that values are added to, so that they can be added again.
    pub(super) fn clear_sums(&mut self) {
        self.finished_other = None;
    }

    /// Sets the number in a label, if it is a whole number above zero.
    pub(super) fn set_from_label(
        &mut self,
        of: RankValue,
        label: &[u8],
    ) -> Result<(), SampleError> {
        let number = std::str::from_utf8(label).ok().and_then(|text| text.parse::<u64>().ok());
        let value = number.filter(|&number| number > 0).map(|number| number as f64);
        if self.has(of) {
            return Err(SampleError::Duplicate);
        }
        self.numbers.push(SeriesNumber { of, spelling: 0, class: 0, shard: 0, value });
        Ok(())
    }

    /// Takes one sample of a histogram. Returns the histogram's position and the spot in it.
    pub(super) fn observe(
        &mut self,
        of: Distribution,
        family: &'static MetricFamily,
        part: SampleKind,
        place: &SamplePosition<'_>,
        value: f64,
    ) -> Result<(usize, ValuePosition), SampleError> {
        let known = self.distributions.iter().rposition(|draft| {
            draft.of == of && draft.family.spelling == family.spelling && draft.class == place.class
        });
        let at = known.unwrap_or_else(|| {
            self.distributions.push(DistributionDraft::new(of, family, place.class));
            self.distributions.len() - 1
        });
        let draft = &mut self.distributions[at];
        let spot = match (part, place.detail) {
            (SampleKind::Bucket, Some(le)) => {
                draft.set_bucket(at, edge(le)?, cumulative(value)?)?
            }
            (SampleKind::Count, _) if draft.count.is_none() => {
                draft.count = Some(cumulative(value)?);
                ValuePosition::at(ValuePosition::Count, at)
            }
            (SampleKind::Sum, _) if matches!(draft.sum, Sum::Missing) => {
                draft.sum = Sum::of(value);
                ValuePosition::at(ValuePosition::Sum, at)
            }
            (SampleKind::Count | SampleKind::Sum, _) => return Err(SampleError::Duplicate),
            (SampleKind::Bucket, None) | (SampleKind::Whole, _) => ValuePosition::PassedOver,
        };

        Ok((at, spot))
    }

    /// Takes another bucket of the histogram at `at` and returns its spot.
    #[inline]
    pub(super) fn observe_next(
        &mut self,
        at: usize,
        le: &[u8],
        value: f64,
    ) -> Result<ValuePosition, SampleError> {
        self.distributions[at].set_bucket(at, edge(le)?, cumulative(value)?)
    }

    /// Returns true if the response has the number, usable or not.
    pub(super) fn has(&self, of: RankValue) -> bool {
        self.numbers.iter().any(|number| number.of == of)
    }

    /// The number in the preferred spelling, its classes added up.
    pub(super) fn value(&self, of: RankValue) -> Option<f64> {
        let mut best: Option<(u8, Option<f64>)> = None;
        for number in self.numbers.iter().filter(|number| number.of == of) {
            best = match best {
                Some((spelling, _)) if spelling < number.spelling => continue,
                Some((spelling, sum)) if spelling == number.spelling => {
                    let both = sum.zip(number.value);
                    Some((spelling, both.map(|(sum, value)| sum + value)))
                }
                // Adding zero makes the two zeros one.
                Some(_) | None => Some((number.spelling, number.value.map(|value| value + 0.0))),
            };
        }

        best?.1
    }

    fn requests(&self, of: RankValue) -> Option<Requests> {
        self.value(of).and_then(Requests::new)
    }

    fn tokens(&self, of: RankValue) -> Option<Tokens> {
        self.value(of).and_then(Tokens::new)
    }

    /// Takes the histogram in the preferred spelling, its classes added up.
    fn distribution(&mut self, of: Distribution) -> Option<Histogram> {
        let spellings = self.distributions.iter().filter(|draft| draft.of == of);
        let spelling = spellings.map(|draft| draft.family.spelling).min()?;
        self.distributions
            .iter_mut()
            .filter(|draft| draft.of == of && draft.family.spelling == spelling)
            .map(DistributionDraft::take)
            .reduce(|one, other| Some(one?.plus(&other?)))?
    }

    /// The size of this rank's KV cache: as the engine reports it, otherwise blocks times block
    /// size.
    ///
    /// vLLM reports the blocks of all engines of the process on each of them. On models that mix
    /// kinds of layers, the block size is only the smallest of several, and the product is wrong.
    /// The reader skips such models if the response identifies them (`vllm::take_cache_config`).
    fn kv_capacity(&self, engines: usize) -> Option<Tokens> {
        let told = self.value(RankValue::KvTokens).filter(|&tokens| tokens > 0.0);
        told.or_else(|| {
            let blocks = self.value(RankValue::KvBlocks)?;
            let tokens = blocks * self.value(RankValue::KvBlockSize)? / engines as f64;
            (tokens > 0.0).then_some(tokens)
        })
        .and_then(Tokens::new)
    }

    /// The sleep state, if the engine reports a known one.
    fn asleep(&self) -> Option<bool> {
        if self.is_on(RankValue::Offloaded) || self.is_on(RankValue::Discarded) {
            Some(true)
        } else {
            self.is_on(RankValue::Awake).then_some(false)
        }
    }

    fn is_on(&self, state: RankValue) -> bool {
        self.value(state).is_some_and(|value| value > 0.0)
    }

    /// The reading of this rank, one of `engines` in its response.
    pub(super) fn reading(&mut self, engines: usize) -> Result<RankReading, Unreadable> {
        for draft in &self.distributions {
            if let Some(missing) = draft.missing() {
                let family = draft.family.name;
                return Err(Unreadable::CutHistogram { family, rank: self.rank, missing });
            }
        }

        let kv_usage = self.value(RankValue::KvUsage).filter(|&share| share <= KV_USAGE_MAX);
        let parts = [self.value(RankValue::FinishedAny), self.finished_other];
        let other = parts.into_iter().flatten().reduce(|one, two| one + two);
        Ok(RankReading {
            rank: self.rank,
            running: self.requests(RankValue::Running),
            waiting: self.requests(RankValue::Waiting),
            waiting_capacity: self.requests(RankValue::WaitingCapacity),
            waiting_deferred: self.requests(RankValue::WaitingDeferred),
            kv_usage: kv_usage.and_then(Fraction::new),
            kv_capacity: self.kv_capacity(engines),
            asleep: self.asleep(),
            prompt_tokens: self.tokens(RankValue::PromptTokens),
            generation_tokens: self.tokens(RankValue::GenerationTokens),
            prefix_queries: self.tokens(RankValue::PrefixQueries),
            prefix_hits: self.tokens(RankValue::PrefixHits),
            preemptions: self.requests(RankValue::Preemptions),
            finished: FinishedReading {
                stop: self.requests(RankValue::FinishedStop),
                length: self.requests(RankValue::FinishedLength),
                abort: self.requests(RankValue::FinishedAbort),
                error: self.requests(RankValue::FinishedError),
                other: other.and_then(Requests::new),
            },
            ttft: self.distribution(Distribution::Ttft),
            itl: self.distribution(Distribution::Itl),
            e2e: self.distribution(Distribution::E2e),
            queue_time: self.distribution(Distribution::QueueTime),
            inference_time: self.distribution(Distribution::InferenceTime),
            prefill_time: self.distribution(Distribution::PrefillTime),
            prompt_length: self.distribution(Distribution::PromptLength),
            computed_length: self.distribution(Distribution::ComputedLength),
            generation_length: self.distribution(Distribution::GenerationLength),
            completions_asked: self.distribution(Distribution::CompletionsAsked),
            step_tokens: self.distribution(Distribution::StepTokens),
        })
    }
}

impl Sum {
    fn of(value: f64) -> Self {
        gauge(value).map_or(Self::Unusable, Self::Usable)
    }
}

impl DistributionDraft {
    fn new(of: Distribution, family: &'static MetricFamily, class: u8) -> Self {
        /// Capacity for the buckets of any of vLLM's histograms.
        const USUAL: usize = 24;
        let buckets = Vec::with_capacity(USUAL);
        Self { of, family, class, sum: Sum::Missing, count: None, buckets }
    }

    /// Adds a bucket in order of its edge. Responses list edges in ascending order, so this is
    /// nearly always at the end. `own` is the position of this histogram in its rank.
    #[inline]
    fn set_bucket(
        &mut self,
        own: usize,
        edge: f64,
        count: f64,
    ) -> Result<ValuePosition, SampleError> {
        if self.buckets.len() >= BUCKETS_MAX {
            return match self.place_of(edge) {
                Ok(_) => Err(SampleError::Duplicate),
                Err(_) => Err(SampleError::TooManyBuckets),
            };
        }

        if self.buckets.last().is_none_or(|&(last, _)| last < edge) {
            self.buckets.push((edge, count));
            return Ok(ValuePosition::bucket(own, self.buckets.len() - 1));
        }

        let at = self.place_of(edge).err().ok_or(SampleError::Duplicate)?;
        self.buckets.insert(at, (edge, count));
        // The buckets after it have moved.
        Ok(ValuePosition::Unsteady)
    }

    /// The position of the bucket with this edge, or the position to insert it at.
    fn place_of(&self, edge: f64) -> Result<usize, usize> {
        self.buckets.binary_search_by(|(known, _)| known.total_cmp(&edge))
    }

    /// The part of a complete histogram that this one lacks.
    fn missing(&self) -> Option<&'static str> {
        if self.count.is_none() {
            Some("_count")
        } else if matches!(self.sum, Sum::Missing) {
            Some("_sum")
        } else if self.buckets.last().is_some_and(|&(edge, _)| edge < f64::INFINITY) {
            Some("bucket le=\"+Inf\"")
        } else {
            None
        }
    }

    fn take(&mut self) -> Option<Histogram> {
        let (Sum::Usable(sum), Some(count)) = (self.sum, self.count) else { return None };
        Some(Histogram { sum, count, buckets: std::mem::take(&mut self.buckets) })
    }
}

/// A bucket's upper edge. Adding zero makes the two zeros one edge.
#[inline]
fn edge(le: &[u8]) -> Result<f64, SampleError> {
    if le == b"+Inf" {
        return Ok(f64::INFINITY);
    }
    number(le)
        .filter(|edge| !edge.is_nan())
        .map(|edge| edge + 0.0)
        .ok_or_else(|| SampleError::bad_label("le", le, "a number or \"+Inf\""))
}
