//! What is known of one variant: its pace, and what its requests look like.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::analyze::engine_args::EngineArguments;
use crate::analyze::foresight::VariantStrides;
use crate::analyze::foresight::batch::{Around, Full, Maxima, per_rank};
use crate::analyze::foresight::capacity::Requested;
use crate::analyze::foresight::card::{self, Card, Learned};
use crate::analyze::foresight::dispersion::Dispersion;
use crate::analyze::foresight::lengths::{Lengths, Work};
use crate::analyze::foresight::lesson::{Lesson, Lessons};
use crate::analyze::foresight::outlier::{OUTLYING, Ratios, Slowest};
use crate::analyze::foresight::pace::{Iteration, Pace, SETTLED, SavedPace};
use crate::analyze::foresight::policy::Memory;
use crate::analyze::foresight::rollout::Rollout;
use crate::analyze::foresight::saturated::Throughput;
use crate::analyze::foresight::saved::are_amounts;
use crate::fleet::ReplicaKey;
use crate::observe::stride::Stride;
use crate::units::{Replicas, Requests, Seconds, Tokens};

/// What is known of one variant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) pace: Pace,
    lengths: Lengths,
    work: Work,
    held: f64,
    held_by: f64,
    ranks: u32,
    kv: Option<Tokens>,
    maxima: Maxima,
    throughput: Option<Throughput>,
    counts_time: bool,
    rollout: Rollout,
    pub(super) dispersion: Dispersion,
    replicas: BTreeMap<ReplicaKey, Gathered>,
    card: Begun,
}

/// What became of the card that a variant could begin from.
#[derive(Clone, Debug, Default)]
enum Begun {
    /// None was there yet.
    #[default]
    Without,
    /// It counts, since this first load.
    With(Arc<Card>, Option<Timestamp>),
    /// It counts no more.
    Over,
}

/// What one replica did since it was last learned from.
#[derive(Clone, Debug, Default)]
struct Gathered {
    lessons: Lessons,
    last: Option<Lesson>,
    full: Full,
    ratios: Ratios,
}

/// What is known of one variant, in plain numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedSeen {
    /// What an iteration takes.
    pub iteration: Option<SavedPace>,
    /// Prompt tokens, output tokens and finished requests, the recent ones first.
    pub lengths: [f64; 3],
    /// What they were to engines.
    #[serde(default)]
    pub work: Work,
    /// KV tokens that were held, and by how many requests.
    pub held: [f64; 2],
    /// Data-parallel ranks of a replica.
    pub ranks: u32,
    /// The size of a replica's KV cache.
    pub kv: Option<Tokens>,
    /// The most requests that a rank ran.
    pub most_running: f64,
    /// What a rank ran when its batch was full.
    pub full_at: Option<f64>,
    /// The most tokens of an iteration.
    pub busiest: f64,
}

impl SavedSeen {
    /// Whether all of it can be.
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
        let Work { prompt, computed, decoded, outputs, begun, prompts, answers } = *work;
        iteration.is_none_or(|iteration| iteration.is_sound())
            && are_amounts(lengths)
            && are_amounts(&[prompt, computed, decoded, outputs, begun])
            && are_amounts(&prompts.numbers())
            && are_amounts(&answers.numbers())
            && are_amounts(held)
            && are_amounts(&[*most_running, *busiest, full_at.unwrap_or_default()])
    }

    pub(crate) fn restore(&self) -> Seen {
        let Self { iteration, lengths, work, held, ranks, kv, most_running, full_at, busiest } =
            self.clone();
        Seen {
            pace: iteration.map(Pace::of).unwrap_or_default(),
            lengths: Lengths::of(lengths),
            work,
            held: held[0],
            held_by: held[1],
            ranks,
            kv,
            maxima: Maxima { most_running, full_at, busiest },
            throughput: None,
            counts_time: iteration.is_some(),
            rollout: Rollout::default(),
            dispersion: Dispersion::default(),
            replicas: BTreeMap::new(),
            card: Begun::Without,
        }
    }
}

impl Seen {
    /// What is known, if it can be told. What a card says is not: it is of another variant.
    pub(crate) fn save(&self) -> Option<SavedSeen> {
        if self.card().is_some() {
            return None;
        }
        let Self { pace, lengths, work, held, held_by, ranks, kv, maxima, .. } = self;
        let Maxima { most_running, full_at, busiest } = *maxima;
        let saved = SavedSeen {
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

    /// Takes in the replicas that are there and the arguments of new ones, and forgets those that are
    /// gone.
    pub(crate) fn meet(&mut self, variant: &VariantStrides<'_>) {
        let replicas = || variant.replicas.iter().map(|it| it.replica);
        self.rollout.take(variant.arguments, replicas());
        self.replicas.retain(|key, _| replicas().any(|it| it == key));
    }

    pub(crate) fn take(&mut self, replica: &ReplicaKey, stride: &Stride, around: Around<'_>) {
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
        let full = if around.is_full(stride, gathered.last) {
            gathered.full.take(running)
        } else {
            gathered.full = Full::default();
            None
        };
        self.maxima.take(running, full);

        if let Some(lesson) = gathered.lessons.take(stride) {
            gathered.last = Some(lesson);
            self.learn(replica, lesson, around);
        }
    }

    /// Learns from a lesson of a replica.
    fn learn(&mut self, replica: &ReplicaKey, lesson: Lesson, around: Around<'_>) {
        if self.rollout.starts_over_with(replica) {
            self.start_over(&lesson);
        }
        let by_card = matches!(self.card, Begun::With(..));
        if by_card && self.pace.is_contradicted(&lesson, card::CONTRADICTED) {
            self.pace = Pace::default();
            self.card = Begun::Over;
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
        // A slow replica queues before its peers do, and is not what they carry.
        let full = lesson.full.filter(|_| ratio.is_some_and(|ratio| ratio < OUTLYING));
        if let Some((full, lengths)) = full.zip(self.lengths.telling()) {
            self.throughput = Throughput::add(self.throughput, full, lengths);
        }
        if !lesson.is_short {
            self.maxima.busiest = self.maxima.busiest.max(lesson.tokens);
        }
    }

    /// Starts over with everything that depends on the arguments of engines. The former pace is where
    /// learning starts, as a card is, unless the first lesson contradicts it.
    fn start_over(&mut self, first: &Lesson) {
        let former = self.pace.iteration();
        let near = former.filter(|_| !self.pace.is_contradicted(first, card::CONTRADICTED));
        self.pace = near.map_or_else(Pace::default, |near| Pace::starting_from(near, card::DOUBT));

        self.maxima = Maxima::default();
        self.throughput = None;
        self.work.start_over();
        self.card = Begun::Without;
        for gathered in self.replicas.values_mut() {
            gathered.full = Full::default();
            gathered.ratios = Ratios::default();
        }
    }

    /// The KV tokens of a running request, by what all of them hold.
    fn take_held(&mut self, stride: &Stride) {
        let (Some(usage), Some(kv), Some(running)) =
            (stride.kv_usage, stride.kv_capacity, stride.running)
        else {
            return;
        };
        let seconds = stride.elapsed.seconds();
        self.held += usage.fraction() * kv.tokens() * seconds;
        self.held_by += running.requests() * seconds;
    }

    /// Lets time pass.
    pub(crate) fn age(&mut self, elapsed: Seconds, memory: &Memory) {
        self.lengths.age(elapsed, memory);
        self.work.age(elapsed, memory);
        self.maxima.age(elapsed);
        if let Some(throughput) = &mut self.throughput {
            throughput.age(elapsed);
        }
        let kept = (-elapsed.seconds() / memory.kv.seconds()).exp();
        self.held *= kept;
        self.held_by *= kept;
    }

    /// What its requests look like, or those of the model while it has finished few.
    pub(crate) fn requested(&self, shared: &Lengths) -> Option<Requested> {
        let own = self.lengths.telling().or_else(|| shared.means());
        let (prompt, output) = own.or_else(|| self.lengths.means())?;
        let held = if self.held_by > 0.0 && self.held > 0.0 {
            self.held / self.held_by
        } else {
            prompt + output / 2.0
        };
        Some(Requested {
            prompt: Tokens::new(prompt)?,
            computed: Tokens::new(prompt * self.work.computed())?,
            output: Tokens::new(output)?,
            prompt_squares: self.work.prompts.squares(),
            answer_squares: self.work.answers.squares(),
            pieces: self.work.pieces(),
            held: Tokens::new(held)?,
        })
    }

    /// Places in the batch of a rank, where so many are told or usual.
    pub(crate) fn seats(&self, usual: f64) -> f64 {
        self.maxima.seats(usual, self.card().map(|card| &card.learned))
    }

    /// The throughput of its full replicas; `None` while none was full.
    pub(super) const fn throughput(&self) -> Option<&Throughput> {
        self.throughput.as_ref()
    }

    /// The slowest of its replicas, while there are enough to compare it with.
    pub(crate) fn slowest(&self) -> Option<Slowest> {
        Slowest::of(self.replicas.iter().map(|(key, it)| (&key.replica, &it.ratios)))
    }

    /// The arguments of the engines that taught; `None` where they are not known.
    pub(crate) const fn taught_by(&self) -> Option<&Arc<EngineArguments>> {
        self.rollout.taught_by()
    }

    /// Whether its engines say how long outputs take, without which they teach nothing.
    pub(crate) const fn counts_time(&self) -> bool {
        self.counts_time
    }

    pub(crate) fn ranks(&self) -> u32 {
        self.ranks.max(1)
    }

    pub(crate) fn kv_of_a_rank(&self) -> Option<Tokens> {
        Tokens::new(self.kv?.tokens() / f64::from(self.ranks()))
    }

    /// The most tokens that an iteration was seen to have, on average over a lesson.
    pub(crate) fn busiest(&self) -> f64 {
        self.maxima.busiest.max(self.card().map_or(0.0, |card| card.learned.busiest.tokens()))
    }

    /// What an iteration takes: by its own lessons, or by a card until there are enough.
    pub(crate) fn iteration(&self) -> Option<Iteration> {
        self.pace.iteration().or_else(|| self.card().map(|_| self.pace.assumed()))
    }

    // === cards ===

    /// The card that counts for it.
    pub(crate) const fn card(&self) -> Option<&Arc<Card>> {
        match &self.card {
            Begun::With(card, _) => Some(card),
            Begun::Without | Begun::Over => None,
        }
    }

    /// Whether it goes by a card and has had no load.
    pub(crate) const fn awaits_load(&self) -> bool {
        matches!(self.card, Begun::With(_, None))
    }

    /// Whether a card would say more than is known.
    pub(crate) const fn lacks_card(&self) -> bool {
        matches!(self.card, Begun::Without) && self.pace.lessons() < SETTLED
    }

    /// Begins from a card, unless the requests of its model are known to be of another mix.
    pub(crate) fn begin(&mut self, card: &Arc<Card>, shared: &Lengths) {
        let known = self.lengths.telling().or_else(|| shared.telling());
        if known.is_some_and(|known| !card.is_of(known)) {
            return;
        }
        let Learned { iteration, prompt, output, held, .. } = card.learned;
        self.pace = Pace::starting_from(iteration, card::DOUBT);
        self.lengths.add(card::LENGTHS_WEIGHT, prompt, output);
        if let Some(held) = held {
            self.held += card::HELD_WEIGHT * held.tokens();
            self.held_by += card::HELD_WEIGHT;
        }
        self.card = Begun::With(Arc::clone(card), None);
    }

    /// Puts the card aside once its own lessons say more, once requests are of another mix, or when
    /// there has been load for so long and nothing was learned. Without any replica, all begins anew.
    pub(crate) fn judge_card(&mut self, now: Timestamp, patience: Seconds, replicas: Replicas) {
        let staffed = replicas > Replicas::ZERO;
        let over = match &mut self.card {
            Begun::Without => return,
            Begun::Over => {
                if !staffed && self.pace.lessons() < SETTLED {
                    self.card = Begun::Without;
                }
                return;
            }
            Begun::With(card, since) => {
                if !staffed {
                    *since = None;
                } else if since.is_none() && self.maxima.most_running > 0.0 {
                    *since = Some(now);
                }
                let passed = since.and_then(|since| Seconds::from_span(now.duration_since(since)));
                self.pace.lessons() >= SETTLED
                    || passed.is_some_and(|passed| passed > patience)
                    || self.lengths.telling().is_some_and(|known| !card.is_of(known))
            }
        };
        if over {
            self.card = Begun::Over;
        }
    }

    /// What a card says of it; `None` while too little was learned here.
    pub(crate) fn learned(&self, shared: &Lengths) -> Option<Learned> {
        let iteration = self.pace.iteration()?;
        let Requested { prompt, output, .. } = self.requested(shared)?;
        let held = (self.held_by > 0.0 && self.held > 0.0).then(|| self.held / self.held_by);
        Some(Learned {
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
