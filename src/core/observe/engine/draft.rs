//! One rank's samples, put together.

use crate::observe::engine::family::{Family, Part, Place};
use crate::observe::engine::number::{cumulative, gauge, number};
use crate::observe::engine::page::Spot;
use crate::observe::engine::{BUCKETS_MAX, SampleError, Unreadable};
use crate::observe::histogram::Histogram;
use crate::observe::{FinishedReading, RankReading};
use crate::units::{Fraction, Requests, Tokens};

/// The largest share of the KV cache that is taken for one. Engines report 0 to 1, and rounding
/// may add a little; a page that says 37 means per cent, and guessing so would be a guess.
const KV_USAGE_MAX: f64 = 1.01;

/// One number of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Running,
    Waiting,
    WaitingCapacity,
    WaitingDeferred,
    /// Requests of `SGLang` that wait for a grammar to be compiled.
    QueueGrammar,
    /// Requests of `SGLang` that a prefill server has not connected to a decode server yet.
    QueueBootstrap,
    /// Requests of `SGLang` that a decode server has no room for yet.
    QueuePrealloc,
    /// Requests of `SGLang` whose KV cache is on its way to a decode server.
    QueueTransfer,
    KvUsage,
    KvTokens,
    KvBlocks,
    KvBlockSize,
    Awake,
    Offloaded,
    Discarded,
    PromptTokens,
    GenerationTokens,
    PrefixQueries,
    PrefixHits,
    Preemptions,
    FinishedStop,
    FinishedLength,
    FinishedAbort,
    FinishedError,
    /// Finished for a reason that the engine does not tell.
    FinishedAny,
}

impl Value {
    /// The value as it is kept; `None` for a gauge that means nothing.
    fn accept(self, value: f64) -> Result<Option<f64>, SampleError> {
        if self.is_cumulative() { cumulative(value).map(Some) } else { Ok(gauge(value)) }
    }

    /// Whether the number only ever grows while the process lives.
    const fn is_cumulative(self) -> bool {
        match self {
            Self::PromptTokens
            | Self::GenerationTokens
            | Self::PrefixQueries
            | Self::PrefixHits
            | Self::Preemptions
            | Self::FinishedStop
            | Self::FinishedLength
            | Self::FinishedAbort
            | Self::FinishedError
            | Self::FinishedAny => true,
            Self::Running
            | Self::Waiting
            | Self::WaitingCapacity
            | Self::WaitingDeferred
            | Self::QueueGrammar
            | Self::QueueBootstrap
            | Self::QueuePrealloc
            | Self::QueueTransfer
            | Self::KvUsage
            | Self::KvTokens
            | Self::KvBlocks
            | Self::KvBlockSize
            | Self::Awake
            | Self::Offloaded
            | Self::Discarded => false,
        }
    }
}

/// One histogram of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Distribution {
    Ttft,
    Itl,
    E2e,
    QueueTime,
    InferenceTime,
    PromptLength,
    GenerationLength,
    CompletionsAsked,
    StepTokens,
}

/// What has been read of one rank. A rank has some twenty numbers and nine histograms, so both
/// are looked up by walking a list.
#[derive(Clone, Debug)]
pub(super) struct RankDraft {
    rank: u32,
    numbers: Vec<Number>,
    distributions: Vec<DistributionDraft>,
    finished_other: Option<f64>,
}

/// One series' number; `None` when the page has it but it means nothing.
#[derive(Clone, Debug)]
struct Number {
    of: Value,
    spelling: u8,
    class: u8,
    shard: u64,
    value: Option<f64>,
}

/// One series' histogram, as far as it has been read.
#[derive(Clone, Debug)]
struct DistributionDraft {
    of: Distribution,
    family: &'static Family,
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
        /// Room for what a vLLM rank reports.
        const USUAL: (usize, usize) = (24, 8);
        let (numbers, distributions) = (Vec::with_capacity(USUAL.0), Vec::with_capacity(USUAL.1));
        Self { rank, numbers, distributions, finished_other: None }
    }

    pub(super) const fn rank(&self) -> u32 {
        self.rank
    }

    /// Sets one number, and says where that is. Of shards that repeat it, the lowest stays.
    pub(super) fn set(
        &mut self,
        of: Value,
        spelling: u8,
        place: &Place<'_>,
        value: f64,
    ) -> Result<Spot, SampleError> {
        let value = of.accept(value)?;
        let &Place { class, shard, .. } = place;
        let known = self
            .numbers
            .iter()
            .position(|known| known.of == of && known.spelling == spelling && known.class == class);
        let number = Number { of, spelling, class, shard, value };
        let Some(at) = known else {
            self.numbers.push(number);
            return Ok(Spot::at(Spot::Number, self.numbers.len() - 1));
        };
        match &mut self.numbers[at] {
            known if known.shard == shard => Err(SampleError::Duplicate),
            known if known.shard > shard => {
                *known = number;
                Ok(Spot::at(Spot::Number, at))
            }
            _ if of.is_cumulative() => Ok(Spot::Checked),
            _ => Ok(Spot::PassedOver),
        }
    }

    /// Puts another value where one of the same series went.
    ///
    /// # Errors
    ///
    /// The value is nothing that the series can mean.
    #[inline]
    pub(super) fn put(&mut self, spot: Spot, value: f64) -> Result<(), SampleError> {
        match spot {
            Spot::Number(at) => {
                let number = &mut self.numbers[usize::from(at)];
                number.value = number.of.accept(value)?;
            }
            Spot::Bucket(at, bucket) => {
                let draft = &mut self.distributions[usize::from(at)];
                draft.buckets[usize::from(bucket)].1 = cumulative(value)?;
            }
            Spot::Count(at) => {
                self.distributions[usize::from(at)].count = Some(cumulative(value)?);
            }
            Spot::Sum(at) => self.distributions[usize::from(at)].sum = Sum::of(value),
            Spot::FinishedOther => {
                let sum = self.finished_other.unwrap_or(0.0);
                self.finished_other = Some(sum + cumulative(value)?);
            }
            Spot::PassedOver
            | Spot::Checked
            | Spot::Started
            | Spot::Http(_)
            | Spot::Rejected
            | Spot::Lora
            | Spot::Unsteady => {}
        }
        Ok(())
    }

    /// Forgets the sums that values are added to, so that they can be added again.
    pub(super) fn clear_sums(&mut self) {
        self.finished_other = None;
    }

    /// Sets what a label says, where it is a whole number above zero.
    pub(super) fn set_from_label(&mut self, of: Value, label: &[u8]) -> Result<(), SampleError> {
        let number = std::str::from_utf8(label).ok().and_then(|text| text.parse::<u64>().ok());
        let value = number.filter(|&number| number > 0).map(|number| number as f64);
        if self.has(of) {
            return Err(SampleError::Duplicate);
        }
        self.numbers.push(Number { of, spelling: 0, class: 0, shard: 0, value });
        Ok(())
    }

    /// Takes one sample of a histogram, and says which histogram that is and where in it.
    pub(super) fn observe(
        &mut self,
        of: Distribution,
        family: &'static Family,
        part: Part,
        place: &Place<'_>,
        value: f64,
    ) -> Result<(usize, Spot), SampleError> {
        let known = self.distributions.iter().rposition(|draft| {
            draft.of == of && draft.family.spelling == family.spelling && draft.class == place.class
        });
        let at = known.unwrap_or_else(|| {
            self.distributions.push(DistributionDraft::new(of, family, place.class));
            self.distributions.len() - 1
        });
        let draft = &mut self.distributions[at];
        let spot = match (part, place.detail) {
            (Part::Bucket, Some(le)) => draft.set_bucket(at, edge(le)?, cumulative(value)?)?,
            (Part::Count, _) if draft.count.is_none() => {
                draft.count = Some(cumulative(value)?);
                Spot::at(Spot::Count, at)
            }
            (Part::Sum, _) if matches!(draft.sum, Sum::Missing) => {
                draft.sum = Sum::of(value);
                Spot::at(Spot::Sum, at)
            }
            (Part::Count | Part::Sum, _) => return Err(SampleError::Duplicate),
            (Part::Bucket, None) | (Part::Whole, _) => Spot::PassedOver,
        };
        Ok((at, spot))
    }

    /// Takes another bucket of the histogram that is there, and says where that is.
    #[inline]
    pub(super) fn observe_next(
        &mut self,
        at: usize,
        le: &[u8],
        value: f64,
    ) -> Result<Spot, SampleError> {
        self.distributions[at].set_bucket(at, edge(le)?, cumulative(value)?)
    }

    /// Whether the page has the number, usable or not.
    pub(super) fn has(&self, of: Value) -> bool {
        self.numbers.iter().any(|number| number.of == of)
    }

    /// The number in the spelling that counts, its classes added up.
    pub(super) fn value(&self, of: Value) -> Option<f64> {
        let mut best: Option<(u8, Option<f64>)> = None;
        for number in self.numbers.iter().filter(|number| number.of == of) {
            best = match best {
                Some((spelling, _)) if spelling < number.spelling => continue,
                Some((spelling, sum)) if spelling == number.spelling => {
                    let sum = sum.zip(number.value).map(|(sum, value)| sum + value);
                    Some((spelling, sum))
                }
                // Adding zero makes the two zeros one.
                Some(_) | None => Some((number.spelling, number.value.map(|value| value + 0.0))),
            };
        }
        best?.1
    }

    fn requests(&self, of: Value) -> Option<Requests> {
        self.value(of).and_then(Requests::new)
    }

    fn tokens(&self, of: Value) -> Option<Tokens> {
        self.value(of).and_then(Tokens::new)
    }

    /// The histogram in the spelling that counts, its classes added up; it is handed over.
    fn distribution(&mut self, of: Distribution) -> Option<Histogram> {
        let spellings = self.distributions.iter().filter(|draft| draft.of == of);
        let spelling = spellings.map(|draft| draft.family.spelling).min()?;
        self.distributions
            .iter_mut()
            .filter(|draft| draft.of == of && draft.family.spelling == spelling)
            .map(DistributionDraft::take)
            .reduce(|one, other| Some(one?.plus(&other?)))?
    }

    /// The size of this rank's KV cache: as the engine says, or else blocks times block size.
    ///
    /// vLLM reports the blocks of all engines of the process on each of them. On models that mix
    /// kinds of layers the block size is only the smallest of several, and the product is wrong;
    /// such models are left out where the page shows it (`vllm::take_cache_config`).
    fn kv_capacity(&self, engines: usize) -> Option<Tokens> {
        let told = self.value(Value::KvTokens).filter(|&tokens| tokens > 0.0);
        told.or_else(|| {
            let blocks = self.value(Value::KvBlocks)?;
            let tokens = blocks * self.value(Value::KvBlockSize)? / engines as f64;
            (tokens > 0.0).then_some(tokens)
        })
        .and_then(Tokens::new)
    }

    /// Whether the engine sleeps, if it says so: a state that is none of the known ones does not.
    fn asleep(&self) -> Option<bool> {
        let is_on = |state| self.value(state).is_some_and(|value| value > 0.0);
        if is_on(Value::Offloaded) || is_on(Value::Discarded) {
            Some(true)
        } else {
            is_on(Value::Awake).then_some(false)
        }
    }

    /// What this rank reports, one of `engines` on its page.
    pub(super) fn reading(&mut self, engines: usize) -> Result<RankReading, Unreadable> {
        for draft in &self.distributions {
            if let Some(missing) = draft.missing() {
                let family = draft.family.name;
                return Err(Unreadable::CutHistogram { family, rank: self.rank, missing });
            }
        }
        let kv_usage = self.value(Value::KvUsage).filter(|&share| share <= KV_USAGE_MAX);
        let other = [self.value(Value::FinishedAny), self.finished_other];
        let other = other.into_iter().flatten().reduce(|one, other| one + other);
        Ok(RankReading {
            rank: self.rank,
            running: self.requests(Value::Running),
            waiting: self.requests(Value::Waiting),
            waiting_capacity: self.requests(Value::WaitingCapacity),
            waiting_deferred: self.requests(Value::WaitingDeferred),
            kv_usage: kv_usage.and_then(Fraction::new),
            kv_capacity: self.kv_capacity(engines),
            asleep: self.asleep(),
            prompt_tokens: self.tokens(Value::PromptTokens),
            generation_tokens: self.tokens(Value::GenerationTokens),
            prefix_queries: self.tokens(Value::PrefixQueries),
            prefix_hits: self.tokens(Value::PrefixHits),
            preemptions: self.requests(Value::Preemptions),
            finished: FinishedReading {
                stop: self.requests(Value::FinishedStop),
                length: self.requests(Value::FinishedLength),
                abort: self.requests(Value::FinishedAbort),
                error: self.requests(Value::FinishedError),
                other: other.and_then(Requests::new),
            },
            ttft: self.distribution(Distribution::Ttft),
            itl: self.distribution(Distribution::Itl),
            e2e: self.distribution(Distribution::E2e),
            queue_time: self.distribution(Distribution::QueueTime),
            inference_time: self.distribution(Distribution::InferenceTime),
            prompt_length: self.distribution(Distribution::PromptLength),
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
    fn new(of: Distribution, family: &'static Family, class: u8) -> Self {
        /// Room for the buckets of any of vLLM's histograms.
        const USUAL: usize = 24;
        let buckets = Vec::with_capacity(USUAL);
        Self { of, family, class, sum: Sum::Missing, count: None, buckets }
    }

    /// Adds a bucket in order of its edge. Pages list edges ascending, so this is nearly always
    /// at the end. `own` is the place of this histogram in its rank.
    #[inline]
    fn set_bucket(&mut self, own: usize, edge: f64, count: f64) -> Result<Spot, SampleError> {
        if self.buckets.len() >= BUCKETS_MAX {
            return match self.place_of(edge) {
                Ok(_) => Err(SampleError::Duplicate),
                Err(_) => Err(SampleError::TooManyBuckets),
            };
        }
        if self.buckets.last().is_none_or(|&(last, _)| last < edge) {
            self.buckets.push((edge, count));
            return Ok(Spot::bucket(own, self.buckets.len() - 1));
        }
        let at = self.place_of(edge).err().ok_or(SampleError::Duplicate)?;
        self.buckets.insert(at, (edge, count));
        // The buckets behind it have moved.
        Ok(Spot::Unsteady)
    }

    /// Where the bucket with this edge is, or else where it belongs.
    fn place_of(&self, edge: f64) -> Result<usize, usize> {
        self.buckets.binary_search_by(|(known, _)| known.total_cmp(&edge))
    }

    /// What every complete histogram has and this one lacks.
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
