//! The knowledge about one variant: its pace, and the lengths of its requests.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::analyze::capacity::are_amounts;
use crate::analyze::engine_args::EngineArguments;
use crate::analyze::experience::Experience;
use crate::analyze::foresight::batch::{FullBatch, Maxima, ReplicaContext, per_rank};
use crate::analyze::foresight::card::{self, Card, EngineProfile};
use crate::analyze::foresight::dispersion::Dispersion;
use crate::analyze::foresight::lengths::{RequestLengths, RequestWork};
use crate::analyze::foresight::lesson::{IterationSample, IterationSampler};
use crate::analyze::foresight::outlier::{OUTLYING, Ratios, SlowestReplica};
use crate::analyze::foresight::overlap::PromptOverlap;
use crate::analyze::foresight::pace::{IterationCost, PaceFilter, SETTLED, SavedPace};
use crate::analyze::foresight::policy::Memory;
use crate::analyze::foresight::prompt_lesson::{PromptSampler, PromptsAround};
use crate::analyze::foresight::request_profile::RequestProfile;
use crate::analyze::foresight::rollout::EngineRollout;
use crate::analyze::foresight::saturated::Throughput;
use crate::analyze::foresight::strides::VariantStrides;
use crate::fleet::ReplicaKey;
use crate::observe::stride::IntervalDelta;
use crate::units::{Replicas, Requests, Seconds, Tokens};

/// The knowledge about one variant.
#[derive(Clone, Debug, Default)]
pub(crate) struct VariantModel {
    pub(crate) pace: PaceFilter,
    lengths: RequestLengths,
    work: RequestWork,
    held: f64,
    held_by: f64,
    ranks: u32,
    kv: Option<Tokens>,
    maxima: Maxima,
    /// Places in the batch that the replicas of a variant on the same accelerator have shown.
    sibling_places: Option<f64>,
    throughput: Option<Throughput>,
    counts_time: bool,
    overlap: PromptOverlap,
    rollout: EngineRollout,
    pub(super) dispersion: Dispersion,
    /// Boxed, because a node of the map has room for eleven, and most variants have few replicas.
    replicas: BTreeMap<ReplicaKey, Box<ReplicaMeasurements>>,
    card: CardState,
}

/// The state of the card that a variant could start from.
#[derive(Clone, Debug, Default)]
enum CardState {
    /// No card was found yet.
    #[default]
    Without,
    /// The card counts, with the instant of the first load since then.
    With(Arc<Card>, Option<Timestamp>),
    /// The card no longer counts.
    Over,
}

/// The measurements of one replica since its last lesson.
#[derive(Clone, Debug, Default)]
struct ReplicaMeasurements {
    lessons: IterationSampler,
    prompts: PromptSampler,
    last: Option<IterationSample>,
    full: FullBatch,
    ratios: Ratios,
    /// The time between its last two scrapes.
    apart: Seconds,
}

/// The knowledge about one variant, in plain numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedVariantModel {
    /// The coefficients of an iteration's time.
    pub iteration: Option<SavedPace>,
    /// Prompt tokens, output tokens and finished requests, with recent ones weighted most.
    pub lengths: [f64; 3],
    /// The work of these requests for engines.
    #[serde(default)]
    pub work: RequestWork,
    /// KV tokens that requests held, and the number of these requests, both times seconds.
    pub held: [f64; 2],
    /// Data-parallel ranks of a replica.
    pub ranks: u32,
    /// The size of a replica's KV cache.
    pub kv: Option<Tokens>,
    /// The most requests that a rank ran.
    pub most_running: f64,
    /// Requests that a rank ran while its batch was full.
    pub full_at: Option<f64>,
    /// The most tokens of an iteration.
    pub busiest: f64,
}

impl SavedVariantModel {
    /// Returns true if all values are possible.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let Self {
            iteration,
            lengths,
            work,
            held,
            ranks: _,
            kv: _,
            most_running,
            full_at,
            busiest,
        } = self;
        let RequestWork { prompt, computed, decoded, outputs, begun, .. } = *work;
        let RequestWork { prompts, computed_prompts, answers, .. } = *work;

        iteration.is_none_or(|iteration| iteration.is_sound())
            && are_amounts(lengths)
            && are_amounts(&[prompt, computed, decoded, outputs, begun])
            && are_amounts(&prompts.numbers())
            && are_amounts(&computed_prompts.numbers())
            && are_amounts(&answers.numbers())
            && are_amounts(held)
            && are_amounts(&[*most_running, *busiest, full_at.unwrap_or_default()])
    }

    pub(crate) fn restore(&self) -> VariantModel {
        let Self { iteration, lengths, work, held, ranks, kv, most_running, full_at, busiest } =
            self.clone();

        VariantModel {
            pace: iteration.map(PaceFilter::of).unwrap_or_default(),
            lengths: RequestLengths::of(lengths),
            work,
            held: held[0],
            held_by: held[1],
            ranks,
            kv,
            maxima: Maxima { most_running, full_at, busiest },
            sibling_places: None,
            throughput: None,
            counts_time: iteration.is_some(),
            overlap: PromptOverlap::default(),
            rollout: EngineRollout::default(),
            dispersion: Dispersion::default(),
            replicas: BTreeMap::new(),
            card: CardState::Without,
        }
    }
}

impl Experience for VariantModel {
    /// Less was learned from fewer lessons, or without any from fewer requests. Measurements of the
    /// variant itself are better than the card of a similar variant.
    fn knows_less_than(&self, other: &Self) -> bool {
        let own = self.pace.lessons();
        let lessons = other.pace.lessons();
        let none = own == 0 && lessons == 0;

        self.card().is_some()
            || own < lessons
            || (none && self.lengths.count() < other.lengths.count())
    }
}

impl VariantModel {
    /// The knowledge to save; `None` if there is nothing sound. The values of a card are not saved,
    /// because they belong to another variant.
    pub(crate) fn save(&self) -> Option<SavedVariantModel> {
        if self.card().is_some() {
            return None;
        }

        let Self { pace, lengths, work, held, held_by, ranks, kv, maxima, .. } = self;
        let Maxima { most_running, full_at, busiest } = *maxima;
        let saved = SavedVariantModel {
            iteration: pace.save(),
            lengths: lengths.numbers(),
            work: *work,
            held: [*held, *held_by],
            ranks: *ranks,
            kv: *kv,
            most_running,
            full_at,
            busiest,
        };

        saved.is_sound().then_some(saved)
    }

    /// Takes in the present replicas and the arguments of new ones, and forgets replicas that are
    /// gone.
    pub(crate) fn meet(&mut self, variant: &VariantStrides<'_>) {
        let replicas = variant.replicas.iter().map(|it| it.replica);
        self.rollout.take(variant.arguments, replicas.clone());
        self.replicas.retain(|key, _| replicas.clone().any(|it| it == key));
    }

    pub(crate) fn take(
        &mut self,
        replica: &ReplicaKey,
        stride: &IntervalDelta,
        around: ReplicaContext<'_>,
    ) {
        // A scrape that lacks counters shows nothing.
        if stride.elapsed <= Seconds::ZERO {
            return;
        }

        self.lengths.take(stride);
        if self.rollout.is_over_for(replica) {
            return;
        }

        self.ranks = stride.ranks.max(1);
        self.kv = stride.kv_capacity.or(self.kv);
        self.counts_time |= stride.intervals.is_some() && stride.begun.is_some();
        self.work.take(stride);
        self.take_held(stride);

        let running = per_rank(stride.running, stride.ranks);
        let gathered = self.replicas.entry(replica.clone()).or_default();
        gathered.apart = stride.elapsed;
        let full = if around.is_full(stride, gathered.last) {
            gathered.full.take(running, stride.elapsed)
        } else {
            gathered.full = FullBatch::default();
            None
        };
        self.maxima.take(running, full);

        if let Some(lesson) = gathered.lessons.take(stride) {
            gathered.last = Some(lesson);
            self.learn(replica, lesson, around);
        }
        self.learn_prompts(replica, stride, around);
    }

    /// Learns from a lesson of a replica.
    fn learn(&mut self, replica: &ReplicaKey, lesson: IterationSample, around: ReplicaContext<'_>) {
        if self.rollout.starts_over_with(replica) {
            self.start_over(&lesson);
        }

        let by_card = matches!(self.card, CardState::With(..));
        if by_card && self.pace.is_contradicted(&lesson, card::CONTRADICTED) {
            self.pace = PaceFilter::default();
            self.card = CardState::Over;
        }

        let ratio = self.pace.iteration().map(|_| self.pace.ratio(&lesson));
        if let Some((ratio, gathered)) = ratio.zip(self.replicas.get_mut(replica)) {
            gathered.ratios.add(ratio);
        }

        let changes = self.pace.changes();
        self.pace.learn(&lesson, around.learning);
        if self.pace.changes() != changes {
            self.throughput = None;
        }

        // A slow replica queues before its peers do, and does not show their capacity.
        let full = lesson.full.filter(|_| ratio.is_some_and(|ratio| ratio < OUTLYING));
        if let Some((full, lengths)) = full.zip(self.lengths.telling()) {
            self.throughput = Throughput::add(self.throughput, full, lengths);
        }
        if !lesson.is_short {
            self.maxima.busiest = self.maxima.busiest.max(lesson.tokens);
        }
    }

    /// Learns from the first tokens of a replica whose iterations are known.
    fn learn_prompts(
        &mut self,
        replica: &ReplicaKey,
        stride: &IntervalDelta,
        around: ReplicaContext<'_>,
    ) {
        let Some(gathered) = self.replicas.get_mut(replica) else { return };
        let prompts = PromptsAround {
            budget: around.budget,
            computed_squares: self.work.computed_squares(),
            overlap: &mut self.overlap,
        };
        let lesson = gathered.prompts.take(stride, prompts);
        if let Some(lesson) = lesson.filter(|_| gathered.last.is_some()) {
            self.pace.learn_prompts(&lesson, around.learning);
        }
    }

    /// Starts over with everything that depends on the arguments of engines. Learning starts from
    /// the former pace, as from a card, unless the first lesson contradicts it.
    fn start_over(&mut self, first: &IterationSample) {
        let former = self.pace.iteration();
        let near = former.filter(|_| !self.pace.is_contradicted(first, card::CONTRADICTED));
        self.pace = near
            .map_or_else(PaceFilter::default, |near| PaceFilter::starting_from(near, card::DOUBT));

        self.maxima = Maxima::default();
        self.throughput = None;
        self.overlap = PromptOverlap::default();
        self.work.start_over();
        self.card = CardState::Without;
        for gathered in self.replicas.values_mut() {
            gathered.full = FullBatch::default();
            gathered.ratios = Ratios::default();
        }
    }

    /// Adds the KV tokens that all running requests hold.
    fn take_held(&mut self, stride: &IntervalDelta) {
        let (Some(usage), Some(kv), Some(running)) =
            (stride.kv_usage, stride.kv_capacity, stride.running)
        else {
            return;
        };

        let seconds = stride.elapsed.seconds();
        self.held += usage.fraction() * kv.tokens() * seconds;
        self.held_by += running.requests() * seconds;
    }

    /// Lets all values fade over this time.
    pub(crate) fn age(&mut self, elapsed: Seconds, memory: &Memory) {
        self.lengths.age(elapsed, memory);
        self.work.age(elapsed, memory);
        self.maxima.age(elapsed);
        self.overlap.age(elapsed);
        if let Some(throughput) = &mut self.throughput {
            throughput.age(elapsed);
        }

        let kept = (-elapsed.seconds() / memory.kv.seconds()).exp();
        self.held *= kept;
        self.held_by *= kept;
    }

    /// The lengths of its requests, or those of the model while it has finished few.
    pub(crate) fn requested(&self, shared: &RequestLengths) -> Option<RequestProfile> {
        let own = self.lengths.telling().or_else(|| shared.means());
        let (prompt, output) = own.or_else(|| self.lengths.means())?;
        let held = if self.held_by > 0.0 && self.held > 0.0 {
            self.held / self.held_by
        } else {
            prompt + output / 2.0
        };

        Some(RequestProfile {
            prompt: Tokens::new(prompt)?,
            computed: Tokens::new(prompt * self.work.computed())?,
            output: Tokens::new(output)?,
            prompt_squares: self.work.prompts.squares(),
            computed_squares: self.work.computed_squares(),
            answer_squares: self.work.answers.squares(),
            pieces: self.work.pieces(),
            held: Tokens::new(held)?,
        })
    }

    /// Places in the batch of a rank, given the configured places, if they are, and the usual ones.
    pub(crate) fn seats(&self, told: Option<Requests>, usual: f64) -> f64 {
        let assumed = self.sibling_places.map_or(usual, |places| places.min(usual));

        let places = told.map_or(assumed, Requests::requests);
        self.maxima.seats(places, self.card().map(|card| &card.learned))
    }

    /// The places that its own replicas have shown.
    pub(super) fn shown_places(&self) -> Option<f64> {
        self.maxima.shown()
    }

    /// Takes the places that the replicas of a variant on the same accelerator have shown.
    pub(super) const fn assume_places(&mut self, shown: Option<f64>) {
        self.sibling_places = shown;
    }

    /// The throughput of its full replicas; `None` while none was full.
    pub(super) const fn throughput(&self) -> Option<&Throughput> {
        self.throughput.as_ref()
    }

    /// The longest time between the last two scrapes of a replica; zero while none is known.
    pub(super) fn apart(&self) -> Seconds {
        self.replicas.values().map(|it| it.apart).fold(Seconds::ZERO, Seconds::max)
    }

    /// The slowest of its replicas; `None` while there are too few to compare.
    pub(crate) fn slowest(&self) -> Option<SlowestReplica> {
        SlowestReplica::of(self.replicas.iter().map(|(key, it)| (&key.replica, &it.ratios)))
    }

    /// The arguments of the engines that were learned from; `None` if they are not known.
    pub(crate) const fn taught_by(&self) -> Option<&Arc<EngineArguments>> {
        self.rollout.taught_by()
    }

    /// Returns true if its engines report the time of outputs. Without it there are no lessons.
    pub(crate) const fn counts_time(&self) -> bool {
        self.counts_time
    }

    pub(crate) fn ranks(&self) -> u32 {
        self.ranks.max(1)
    }

    pub(crate) fn kv_of_a_rank(&self) -> Option<Tokens> {
        Tokens::new(self.kv?.tokens() / f64::from(self.ranks()))
    }

    /// Tokens that an iteration may have, given the configured and the usual ones. If they are not
    /// configured, iterations that had more show it.
    pub(crate) fn budget(&self, told: Option<Tokens>, usual: f64) -> f64 {
        told.map_or_else(|| usual.max(self.busiest()), Tokens::tokens)
    }

    /// The most tokens of an iteration, on average over a lesson.
    pub(super) fn busiest(&self) -> f64 {
        self.maxima.busiest.max(self.card().map_or(0.0, |card| card.learned.busiest.tokens()))
    }

    /// The coefficients of an iteration's time, from its own lessons, or from a card until there
    /// are enough.
    pub(crate) fn iteration(&self) -> Option<IterationCost> {
        self.pace.iteration().or_else(|| self.card().map(|_| self.pace.assumed()))
    }

    // === cards ===

    /// The card that it uses.
    pub(crate) const fn card(&self) -> Option<&Arc<Card>> {
        match &self.card {
            CardState::With(card, _) => Some(card),
            CardState::Without | CardState::Over => None,
        }
    }

    /// Returns true if it uses a card and has had no load.
    pub(crate) const fn awaits_load(&self) -> bool {
        matches!(self.card, CardState::With(_, None))
    }

    /// Returns true if it has used no card yet, and has too few lessons of its own.
    pub(crate) const fn lacks_card(&self) -> bool {
        matches!(self.card, CardState::Without) && self.pace.lessons() < SETTLED
    }

    /// Starts from a card, unless the known requests of its model are of another mix.
    pub(crate) fn begin(&mut self, card: &Arc<Card>, shared: &RequestLengths) {
        let known = self.lengths.telling().or_else(|| shared.telling());
        if known.is_some_and(|(prompt, output)| !card.is_of(prompt, output)) {
            return;
        }

        let EngineProfile { iteration, prompt, output, held, .. } = card.learned;
        self.pace = PaceFilter::starting_from(iteration, card::DOUBT);
        self.lengths.add(card::LENGTHS_WEIGHT, prompt, output);
        if let Some(held) = held {
            self.held += card::HELD_WEIGHT * held.tokens();
            self.held_by += card::HELD_WEIGHT;
        }

        self.card = CardState::With(Arc::clone(card), None);
    }

    /// Drops the card once its own lessons are enough, or once requests are of another mix. It is
    /// also dropped after `patience` with load and too few lessons. Without replicas, a dropped
    /// card may be used again.
    pub(crate) fn judge_card(&mut self, now: Timestamp, patience: Seconds, replicas: Replicas) {
        let staffed = replicas > Replicas::ZERO;
        let over = match &mut self.card {
            CardState::Without => return,
            CardState::Over => {
                if !staffed && self.pace.lessons() < SETTLED {
                    self.card = CardState::Without;
                }

                return;
            }
            CardState::With(card, since) => {
                if !staffed {
                    *since = None;
                } else if since.is_none() && self.maxima.most_running > 0.0 {
                    *since = Some(now);
                }

                let passed = since.and_then(|since| Seconds::from_span(now.duration_since(since)));
                self.pace.lessons() >= SETTLED
                    || passed.is_some_and(|passed| passed > patience)
                    || self
                        .lengths
                        .telling()
                        .is_some_and(|(prompt, output)| !card.is_of(prompt, output))
            }
        };

        if over {
            self.card = CardState::Over;
        }
    }

    /// The content of a card for its kind; `None` while too little was learned.
    pub(crate) fn learned(&self, shared: &RequestLengths) -> Option<EngineProfile> {
        let iteration = self.pace.iteration()?;
        let RequestProfile { prompt, output, .. } = self.requested(shared)?;
        let held = (self.held_by > 0.0 && self.held > 0.0).then(|| self.held / self.held_by);

        Some(EngineProfile {
            iteration,
            lessons: self.pace.lessons(),
            content: self.pace.content(),
            prompt,
            output,
            held: held.and_then(Tokens::new),
            full_at: self.maxima.full_at.and_then(Requests::new),
            most_running: Requests::new(self.maxima.most_running)?,
            busiest: Tokens::new(self.maxima.busiest)?,
        })
    }
}
