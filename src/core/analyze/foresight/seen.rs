//! What is known of one variant: its pace, and what its requests look like.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::analyze::foresight::capacity::Requested;
use crate::analyze::foresight::card::{self, Card, Learned};
use crate::analyze::foresight::lesson::{Lesson, Lessons};
use crate::analyze::foresight::pace::{Iteration, Pace, SETTLED, SavedPace};
use crate::analyze::foresight::policy::{Learning, Memory};
use crate::analyze::foresight::saved::are_amounts;
use crate::analyze::foresight::{ReplicaStrides, Told};
use crate::fleet::ReplicaKey;
use crate::observe::stride::Stride;
use crate::units::{Replicas, Requests, Seconds, Tokens};

/// Finished requests from which a variant's own lengths count; below, those of the model.
const FINISHED_MIN: f64 = 20.0;

/// The mean square of an exponential distribution over the square of its mean; that of a lognormal one
/// with a sigma of 0.83. Azure's traces of 2023 have 1.92 (conversations) and 1.93 (code).
const EXPONENTIAL_SQUARES: f64 = 2.0;

/// The share of the KV cache below which a queue is not for lack of it.
const KV_ROOM: f64 = 0.9;

/// The share of the tokens that an iteration may have, below which a queue is not for lack of those.
const BUDGET_ROOM: f64 = 0.8;

/// Pages in a row that must show the same limit of the batch.
const FULL_PAGES: u32 = 5;

/// The share of a full batch by which what runs in it may differ, and at least one request: those
/// that end in an iteration leave their places to the next.
const FULL_SPREAD: f64 = 0.03;

/// Lengths of finished requests, the recent ones first.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Lengths {
    prompt: f64,
    output: f64,
    requests: f64,
}

/// What engines did for the requests whose answers they began, the recent ones first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Prompt tokens, those from caches included.
    pub prompt: f64,
    /// Those of them that were computed.
    pub computed: f64,
    /// Tokens of answers after their first.
    pub decoded: f64,
    /// Outputs that these came in.
    pub outputs: f64,
    /// Requests.
    pub begun: f64,
    /// Lengths of the prompts of finished requests.
    #[serde(default)]
    pub prompts: LengthMoments,
    /// Lengths of their answers.
    #[serde(default)]
    pub answers: LengthMoments,
}

/// How much lengths differ, as buckets tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LengthMoments {
    /// Their number.
    pub count: f64,
    /// Their sum.
    pub sum: f64,
    /// The sum of their squares.
    pub squares: f64,
}

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
    most_running: f64,
    full_at: Option<f64>,
    busiest: f64,
    counts_time: bool,
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
}

/// Pages in a row on which requests waited for a place, and how many requests ran meanwhile.
///
/// Where there is no place for one more, their number stays. Where a prompt waits for its turn in an
/// iteration, it goes up and down, and says nothing of places.
#[derive(Clone, Copy, Debug, Default)]
struct Full {
    pages: u32,
    least: f64,
    most: f64,
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
            most_running,
            full_at,
            busiest,
            counts_time: iteration.is_some(),
            replicas: BTreeMap::new(),
            card: Begun::Without,
        }
    }
}

impl Lengths {
    pub(crate) const fn numbers(&self) -> [f64; 3] {
        [self.prompt, self.output, self.requests]
    }

    pub(crate) const fn of([prompt, output, requests]: [f64; 3]) -> Self {
        Self { prompt, output, requests }
    }

    pub(crate) fn take(&mut self, stride: &Stride) {
        let Some((prompt, output, requests)) = stride.lengths else { return };
        self.prompt += prompt.tokens();
        self.output += output.tokens();
        self.requests += requests.requests();
    }

    /// Lets time pass.
    pub(crate) fn age(&mut self, elapsed: Seconds, memory: &Memory) {
        let kept = (-elapsed.seconds() / memory.lengths.seconds()).exp2();
        self.prompt *= kept;
        self.output *= kept;
        self.requests *= kept;
    }

    fn means(&self) -> Option<(f64, f64)> {
        let requests = self.requests;
        (requests > 0.0).then_some((self.prompt / requests, self.output / requests))
    }

    /// The means, if they are of enough requests to tell one mix from another.
    pub(super) fn telling(&self) -> Option<(f64, f64)> {
        self.means().filter(|_| self.requests >= FINISHED_MIN)
    }
}

impl Work {
    fn take(&mut self, stride: &Stride) {
        if let Some((_, _, finished)) = stride.lengths {
            self.prompts.take(finished, stride.prompt_moments);
            self.answers.take(finished, stride.answer_moments);
        }
        let (Some(prompt), Some(computed), Some(generated), Some(begun), Some((_, outputs))) =
            (stride.prompt, stride.computed, stride.generated, stride.begun, stride.intervals)
        else {
            return;
        };

        self.prompt += prompt.tokens();
        self.computed += computed.tokens();
        self.decoded += (generated.tokens() - begun.requests()).max(0.0);
        self.outputs += outputs.requests();
        self.begun += begun.requests();
    }

    /// Lets time pass.
    fn age(&mut self, elapsed: Seconds, memory: &Memory) {
        let kept = (-elapsed.seconds() / memory.lengths.seconds()).exp2();
        let Self { prompt, computed, decoded, outputs, begun, prompts, answers } = self;
        for sum in [prompt, computed, decoded, outputs, begun] {
            *sum *= kept;
        }
        for spread in [prompts, answers] {
            *spread = LengthMoments::of(spread.numbers().map(|number| kept * number));
        }
    }

    /// The share of prompts that was computed; all of them while little is known.
    fn computed(&self) -> f64 {
        if self.begun < FINISHED_MIN || self.prompt <= 0.0 {
            return 1.0;
        }
        (self.computed / self.prompt).min(1.0)
    }

    /// Tokens of an output; one while little is known.
    fn pieces(&self) -> f64 {
        if self.outputs < FINISHED_MIN {
            return 1.0;
        }
        (self.decoded / self.outputs).max(1.0)
    }
}

impl LengthMoments {
    fn take(&mut self, finished: Requests, moments: Option<[f64; 2]>) {
        if let Some([sum, squares]) = moments {
            self.count += finished.requests();
            self.sum += sum;
            self.squares += squares;
        }
    }

    const fn numbers(&self) -> [f64; 3] {
        [self.count, self.sum, self.squares]
    }

    const fn of([count, sum, squares]: [f64; 3]) -> Self {
        Self { count, sum, squares }
    }

    /// The mean square over the square of the mean; that of an exponential distribution while little
    /// is known.
    fn squares(&self) -> f64 {
        if self.count < FINISHED_MIN || self.sum <= 0.0 {
            return EXPONENTIAL_SQUARES;
        }
        (self.count * self.squares / (self.sum * self.sum)).max(1.0)
    }
}

impl Seen {
    /// What is known, if it can be told. What a card says is not: it is of another variant.
    pub(crate) fn save(&self) -> Option<SavedSeen> {
        if self.card().is_some() {
            return None;
        }
        let Self { pace, lengths, work, held, held_by, ranks, kv, .. } = self;
        let saved = SavedSeen {
            iteration: pace.save(),
            lengths: lengths.numbers(),
            work: *work,
            held: [*held, *held_by],
            ranks: *ranks,
            kv: *kv,
            most_running: self.most_running,
            full_at: self.full_at,
            busiest: self.busiest,
        };
        saved.is_sound().then_some(saved)
    }

    /// Forgets replicas that are gone.
    pub(crate) fn retain(&mut self, replicas: &[ReplicaStrides<'_>]) {
        self.replicas.retain(|key, _| replicas.iter().any(|it| it.replica == key));
    }

    pub(crate) fn take(&mut self, replica: &ReplicaKey, stride: &Stride, around: Around<'_>) {
        self.ranks = stride.ranks.max(1);
        self.kv = stride.kv_capacity.or(self.kv);
        self.counts_time |= stride.intervals.is_some() && stride.begun.is_some();
        self.lengths.take(stride);
        self.work.take(stride);
        self.take_held(stride);

        let running = per_rank(stride.running, stride.ranks);
        self.most_running = self.most_running.max(running);
        let gathered = self.replicas.entry(replica.clone()).or_default();
        if around.is_full(stride, gathered.last) {
            let full = gathered.full.take(running);
            self.full_at = full.or(self.full_at);
        } else {
            gathered.full = Full::default();
        }

        let Some(lesson) = gathered.lessons.take(stride) else { return };
        gathered.last = Some(lesson);
        let by_card = matches!(self.card, Begun::With(..));
        if by_card && self.pace.is_contradicted(&lesson, card::CONTRADICTED) {
            self.pace = Pace::default();
            self.card = Begun::Over;
        }
        self.pace.learn(&lesson, around.learning);
        if !lesson.is_short {
            self.busiest = self.busiest.max(lesson.tokens);
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

    /// Places in the batch of a rank: what it showed when requests waited though there was room in
    /// the cache, else the number that it was told or the usual one, or more where more ran.
    pub(crate) fn seats(&self, usual: f64) -> f64 {
        let card = self.card().map(|card| &card.learned);
        let ran = card.map_or(0.0, |learned| learned.most_running.requests());
        let full = card.and_then(|learned| learned.full_at).map(Requests::requests);
        match self.full_at {
            Some(full) if full >= self.most_running * 0.9 => full,
            Some(_) | None => match full {
                Some(full) if full >= self.most_running.max(ran) * 0.9 => full,
                Some(_) | None => usual.max(self.most_running).max(ran),
            },
        }
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
        self.busiest.max(self.card().map_or(0.0, |card| card.learned.busiest.tokens()))
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
        let weight = card::LENGTHS_WEIGHT;
        self.lengths.prompt += weight * prompt.tokens();
        self.lengths.output += weight * output.tokens();
        self.lengths.requests += weight;
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
                } else if since.is_none() && self.most_running > 0.0 {
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
            full_at: self.full_at.and_then(Requests::new),
            most_running: Requests::new(self.most_running)?,
            busiest: Tokens::new(self.busiest)?,
        })
    }
}

// === impl Full ===

impl Full {
    /// What ran on enough pages in a row.
    fn take(&mut self, running: f64) -> Option<f64> {
        let (least, most) = (self.least.min(running), self.most.max(running));
        *self = if self.pages > 0 && most - least <= (FULL_SPREAD * most).max(1.0) {
            Self { pages: self.pages + 1, least, most }
        } else {
            Self { pages: 1, least: running, most: running }
        };
        (self.pages >= FULL_PAGES).then_some(self.most)
    }
}

/// What is in front of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behind {
    /// Nothing that holds requests back.
    Nothing,
    /// A gateway that gives it no more than it has.
    FullGateway,
}

/// What is known of a replica beside what it counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Around<'a> {
    pub(crate) behind: Behind,
    pub(crate) told: Told,
    /// Tokens that an iteration may have.
    pub(crate) budget: f64,
    pub(crate) learning: &'a Learning,
}

impl Around<'_> {
    /// Whether requests wait for a place in the batch, or for one that a gateway allows, and for
    /// nothing else. Where the number of places was told, only a gateway's are not known.
    fn is_full(self, stride: &Stride, last: Option<Lesson>) -> bool {
        if self.behind == Behind::FullGateway {
            return has_room_in_cache(stride);
        }
        let waits = stride.waiting.is_some_and(|waiting| waiting.requests() >= 1.0);
        let is_told = self.told.seats.is_some();
        let has_tokens_left = last
            .is_some_and(|lesson| !lesson.is_short && lesson.tokens < BUDGET_ROOM * self.budget);
        waits && !is_told && has_tokens_left && has_room_in_cache(stride)
    }
}

fn has_room_in_cache(stride: &Stride) -> bool {
    stride.kv_usage.is_some_and(|usage| usage.fraction() < KV_ROOM)
}

fn per_rank(requests: Option<Requests>, ranks: u32) -> f64 {
    requests.map_or(0.0, Requests::requests) / f64::from(ranks.max(1))
}
