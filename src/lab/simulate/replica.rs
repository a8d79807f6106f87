//! One simulated engine, at the level of its iterations.
//!
//! A [`Replica`] takes requests with their arrival times and gives back when each was first
//! computed, when its first token came, and when it ended. Between those it does what vLLM's
//! scheduler does: continuous batching, chunked prefill within one token budget, a first-come
//! first-served queue, a KV cache in blocks, and preemption of the request that was admitted last.
//!
//! # Model
//!
//! A step takes `alpha + beta * prefill tokens + delta * decodes + gamma * KV tokens read`, cut
//! off to whole microseconds and at least one of them. It starts when the step before it ends, or
//! at an arrival when the engine is idle; an arrival at the instant at which a step starts belongs
//! to that step. What a step computes exists at its end.
//!
//! Building a batch: running requests in the order of their admission get one token each, or the
//! next chunk of their prompt; whoever finds no free block preempts the last one in the batch, until
//! it fits or is itself the victim. If nothing was preempted, waiting requests follow from the head
//! of the queue while there is budget, a seat and room in the cache; the head of the line blocks.
//!
//! # Why it is fast
//!
//! A step in which nobody starts, ends or is preempted costs the same for 1 and for 1000 requests:
//! decodes advance a common clock, and what depends on a single request — the step in which it
//! needs a new block, and the one in which it ends — is counted by phase and filed in a wheel. This
//! rests on the budget being at least the number of seats (vLLM refuses anything else): decodes are
//! never left out, and at most one request is in the middle of its prefill, the one admitted last.
//! The batch is a linked list, so whoever ends leaves it without a search. Histograms, which are a
//! seventh of the work, are kept where somebody reads the page.
//!
//! # Limits
//!
//! There is no time between steps, and prefill does not get slower with the length of the prompt.
//! What the prefix cache finds is a given share of each prompt ([`Replica::with_prefix_hits`]), with
//! the blocks that are found held by each request alone; or it is what it has of prompts that are
//! known ([`Replica::with_prefix_cache`]). The limits of a pipeline, of speculation and of fetched
//! caches ([`Replica::with_options`]) are beside their rules.

pub mod adapters;
pub mod arrivals;
mod blocks;
mod coast;
mod decodes;
mod end;
mod leave;
mod look;
mod noise;
mod pace;
mod pipeline;
pub mod prefix;
mod rings;
mod servers;
pub mod settings;
pub mod speculation;
pub mod stats;

use std::collections::VecDeque;

use rand_pcg::Pcg64;

use crate::simulate::Micros;
use crate::simulate::random;
use crate::simulate::replica::adapters::Adapters;
use crate::simulate::replica::arrivals::{Arrival, Fetch};
use crate::simulate::replica::decodes::{Decodes, Phase};
use crate::simulate::replica::noise::Noise;
use crate::simulate::replica::pace::Pace;
use crate::simulate::replica::pipeline::Pipeline;
use crate::simulate::replica::prefix::{Found, PrefixCache, Return};
use crate::simulate::replica::rings::Batch;
use crate::simulate::replica::servers::ApiServers;
use crate::simulate::replica::settings::{Admission, Options, Settings, SettingsError};
use crate::simulate::replica::speculation::{Speculated, Speculator};
use crate::simulate::replica::stats::Counters;
use plimsoll_core::units::Fraction;

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// How the caller tells it from others.
    pub id: u64,
    /// Tokens of its prompt; at least one.
    pub prompt: u32,
    /// Tokens that it generates; at least one.
    pub output: u32,
}

/// A request that no replica with these settings can ever finish: it has no tokens, or more than
/// the cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request does not fit this engine")]
pub struct Unservable;

/// What happened to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Its first token came; a client sees this once, whatever is preempted later.
    FirstToken {
        /// Which request.
        id: u64,
        /// When.
        at: Micros,
        /// The time since it arrived.
        ttft: Micros,
    },
    /// It had to leave the batch.
    Preempted {
        /// Which request.
        id: u64,
        /// When.
        at: Micros,
    },
    /// Its last token came.
    Finished(Finished),
}

/// A request's life, once it is over. All spans count from its arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// What was asked for.
    pub request: Request,
    /// When it arrived.
    pub arrived: Micros,
    /// When its last token came.
    pub at: Micros,
    /// To the start of the first step that computed it.
    pub queue: Micros,
    /// To the end of the prefill that its answer rests on: the last one when a preemption discards
    /// the answer, else the first.
    pub ttft: Micros,
    /// To the end of the first prefill.
    pub first_ever: Micros,
    /// To the last token.
    pub e2e: Micros,
    /// How often it was preempted.
    pub preemptions: u32,
}

impl Finished {
    /// The mean time between tokens; `None` for an answer of one token.
    #[must_use]
    pub fn itl_mean(&self) -> Option<Micros> {
        let gaps = u64::from(self.request.output).checked_sub(1).filter(|&gaps| gaps > 0)?;
        Some(Micros::new(self.e2e.since(self.ttft).micros() / gaps))
    }
}

/// One engine.
#[derive(Clone, Debug)]
pub struct Replica {
    settings: Settings,
    pace: Pace,
    /// The share of each prompt that the prefix cache has.
    prefix_hits: Fraction,
    prefill_at: PrefillAt,
    fetch: Option<Fetch>,
    now: Micros,
    /// When the last step ended.
    ready: Micros,
    /// Requests that were submitted and whose time has not come.
    arrivals: VecDeque<Arrival>,
    /// Requests that are neither finished nor still to arrive, with holes.
    lives: Vec<Life>,
    holes: Vec<usize>,
    waiting: VecDeque<usize>,
    /// The batch, in the order of admission.
    running: Batch,
    decodes: Decodes,
    kv_blocks_used: u32,
    /// The step that is being computed.
    step: Option<Step>,
    /// Requests whose prefill is complete at its end, in the order of admission.
    prefilled: Vec<usize>,
    counters: Counters,
    histograms: Histograms,
    /// Boxed, because few engines have any.
    adapters: Option<Box<Adapters>>,
    /// Boxed for the same reason, as is all that follows.
    prefix: Option<Box<PrefixCache>>,
    /// Several API servers; without them, one counts all steps.
    servers: Option<Box<ApiServers>>,
    speculator: Option<Box<Speculator>>,
    noise: Option<Box<Noise>>,
    /// The batches of a pipeline that are not in hand.
    pipeline: Option<Box<Pipeline>>,
    /// Free blocks that steps in flight take before they end.
    promised: u32,
}

/// Who computes prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PrefillAt {
    /// The engine itself.
    Here,
    /// Another engine, whose cache arrives with the request.
    Elsewhere,
}

/// Whether an engine keeps the histograms of its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Histograms {
    Kept,
    /// They stay empty.
    Left,
}

/// A request between its arrival and its end.
#[derive(Clone, Debug)]
struct Life {
    request: Request,
    arrived: Micros,
    /// When it came into the queue: after that, if the cache of its prompt was fetched.
    queued: Micros,
    /// When a step first computed it.
    scheduled: Option<Micros>,
    first_ever: Option<Micros>,
    first_token: Option<Micros>,
    last_token: Micros,
    preemptions: u32,
    /// Prompt tokens that a cache had when a step first computed it.
    cached: u32,
    /// Answer tokens that exist and are not counted by a [`Phase::Decode`].
    kept: u32,
    phase: Phase,
}

/// A step.
#[derive(Clone, Copy, Debug)]
struct Step {
    start: Micros,
    end: Micros,
    prefill_tokens: u32,
    decodes: u32,
    /// Tokens that it gives each request that decodes.
    tokens: u32,
    /// Blocks of [`Replica::promised`] that are its own.
    promised: u32,
}

// === impl Replica ===

impl Replica {
    /// An idle engine at the start of time.
    ///
    /// # Errors
    ///
    /// The settings are refused when vLLM would refuse them, or no step could be timed.
    pub fn new(settings: Settings) -> Result<Self, SettingsError> {
        settings.check()?;
        Ok(Self {
            settings,
            pace: Pace::new(settings.step, settings.max_num_seqs),
            prefix_hits: Fraction::ZERO,
            prefill_at: PrefillAt::Here,
            fetch: None,
            now: Micros::ZERO,
            ready: Micros::ZERO,
            arrivals: VecDeque::new(),
            lives: Vec::new(),
            holes: Vec::new(),
            waiting: VecDeque::new(),
            running: Batch::new(),
            decodes: Decodes::new(settings.block_size),
            kv_blocks_used: 0,
            step: None,
            prefilled: Vec::new(),
            counters: Counters::default(),
            histograms: Histograms::Kept,
            adapters: None,
            prefix: None,
            servers: None,
            speculator: None,
            noise: None,
            pipeline: None,
            promised: 0,
        })
    }

    /// The same engine with a prefix cache that has this share of every prompt, in whole blocks and
    /// without the last token, which is always computed.
    #[must_use]
    pub fn with_prefix_hits(self, share: Fraction) -> Self {
        Self { prefix_hits: share, ..self }
    }

    /// The same engine for requests whose prompts another has computed: only the last token of each
    /// is computed here, as a step must compute something, until a preemption discards the rest.
    #[must_use]
    pub fn for_computed_prompts(self) -> Self {
        Self { prefill_at: PrefillAt::Elsewhere, ..self }
    }

    /// The same engine, whose histograms stay empty: to keep them is a good part of the work, and where
    /// nobody reads its page nobody knows.
    #[must_use]
    pub fn without_histograms(self) -> Self {
        Self { histograms: Histograms::Left, ..self }
    }

    /// The same engine with these options, whose random numbers start from `random`.
    #[must_use]
    pub fn with_options(self, options: Options, mut random: Pcg64) -> Self {
        let Options { api_servers, stages, speculation, noise, fetch } = options;
        let block_size = self.settings.block_size;
        let noise = (noise > 0.0).then(|| Box::new(Noise::new(noise, random::fork(&mut random))));
        let servers = (api_servers > 1).then(|| Box::new(ApiServers::new(api_servers)));
        Self {
            pipeline: (stages > 1)
                .then(|| Box::new(Pipeline::new(stages, block_size, servers.as_deref()))),
            speculator: speculation.map(|it| Box::new(Speculator::new(it, random))),
            noise,
            fetch,
            servers,
            ..self
        }
    }

    /// Makes each step that begins from now on take so many times as long as the settings say.
    pub fn set_slowness(&mut self, factor: f64) {
        self.pace = Pace::new(self.settings.step.slowed(factor), self.settings.max_num_seqs);
    }

    /// Ends every step that ends at or before `until` and begins every step that begins before it,
    /// appending what happened to `events`.
    ///
    /// A step that would begin exactly at `until` does not begin yet, because requests that arrive
    /// at that instant belong to it and may still be submitted.
    pub fn advance_to(&mut self, until: Micros, events: &mut Vec<Event>) {
        self.advance_steps(until, events);
        self.now = self.now.max(until);
        if self.has_arrived(self.now) {
            self.take_arrivals(self.now);
        }
    }

    fn advance_steps(&mut self, until: Micros, events: &mut Vec<Event>) {
        if self.pipeline.is_some() {
            return self.advance_pipeline(until, events);
        }
        loop {
            if let Some(step) = self.step {
                if step.end > until {
                    break;
                }
                self.end_step(step, events);
            }
            let Some(start) = self.next_start().filter(|start| *start < until) else { break };
            if !self.coast(start, until) {
                self.begin_step(start, events);
            }
        }
    }

    /// When the next step ends, or begins if none is being computed; `None` when there is nothing
    /// to do. Advancing to just after this time makes progress.
    #[must_use]
    pub fn next_change(&self) -> Option<Micros> {
        if self.pipeline.is_some() {
            return self.next_pipeline_change();
        }
        self.step.map(|step| step.end).or_else(|| self.next_start())
    }

    /// Requests that were submitted and have not finished.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.arrivals.len() + self.waiting.len() + self.batched() as usize
    }

    /// Requests in all batches.
    fn batched(&self) -> u32 {
        self.running.len() + self.pipeline.as_ref().map_or(0, |pipeline| pipeline.running())
    }

    fn next_start(&self) -> Option<Micros> {
        if self.running.len() > 0 {
            return Some(self.ready);
        }
        let head = match self.waiting.front() {
            Some(&index) => self.lives[index].queued,
            None => self.arrivals.front()?.queued,
        };
        Some(head.max(self.ready))
    }

    fn begin_step(&mut self, start: Micros, events: &mut Vec<Event>) {
        if self.has_arrived(start) {
            self.take_arrivals(start);
        }
        let preemptions = self.counters.preemptions;
        self.grow_decodes(start, events);
        let decodes = self.decodes.count();
        let Speculated { tokens, promised } = self.speculate();
        let left = self.budget_beside(decodes);
        let mut budget = left;
        self.continue_prefill(&mut budget, start, events);
        if self.counters.preemptions == preemptions {
            self.admit(&mut budget, start);
        }

        let prefill_tokens = left - budget;
        let kv_tokens = self.decodes.stored() + u64::from(decodes);
        let length = self.length(prefill_tokens, decodes, kv_tokens);
        let end = start + length + self.loading();
        self.step = Some(Step { start, end, prefill_tokens, decodes, tokens, promised });
    }

    /// Tokens of a step's budget that so many decoding requests leave, each of which has its drafts
    /// verified.
    fn budget_beside(&self, decodes: u32) -> u32 {
        let each = self.speculator.as_ref().map_or(1, |speculator| speculator.most());
        self.settings.max_num_batched_tokens.saturating_sub(decodes * each)
    }

    /// How long a step takes this time.
    fn length(&mut self, prefill_tokens: u32, decodes: u32, kv_tokens: u64) -> Micros {
        let length = self.pace.of(prefill_tokens, decodes, kv_tokens);
        match &mut self.noise {
            Some(noise) => noise.stretch(length),
            None => length,
        }
    }

    /// Gives every decoding request room for one more token, by preemption where there is none.
    fn grow_decodes(&mut self, now: Micros, events: &mut Vec<Event>) {
        let needed = self.decodes.blocks_needed();
        if needed <= self.free() {
            self.take(needed);
            return;
        }
        let mut before = None;
        while let Some(index) = self.running.after(before) {
            if self.lives[index].phase != Phase::Decode {
                break;
            }
            if self.decodes.needs_block(index) {
                while self.free() == 0 {
                    if self.preempt_last(now, events) == Some(index) {
                        return;
                    }
                }
                self.take(1);
            }
            before = Some(index);
        }
    }

    /// Computes the next chunk of the one request that is in the middle of its prompt. It is the
    /// last of the batch, so if there is no room for the chunk it is its own victim.
    fn continue_prefill(&mut self, budget: &mut u32, now: Micros, events: &mut Vec<Event>) {
        if self.running.len() == self.decodes.count() {
            return;
        }
        let Some(index) = self.running.last() else { return };
        let Phase::Prefill { computed } = self.lives[index].phase else { return };
        let target = self.lives[index].prefill_target();
        let after = computed + (target - computed).min(*budget);
        let blocks = self.settings.blocks(after) - self.settings.blocks(computed);
        if blocks > self.free() {
            self.preempt_last(now, events);
            return;
        }
        self.occupy(index, computed, after);
        *budget -= after - computed;
        self.lives[index].phase = Phase::Prefill { computed: after };
        if after == target {
            self.prefilled.push(index);
        }
    }

    fn admit(&mut self, budget: &mut u32, now: Micros) {
        while *budget > 0 && self.batched() < self.settings.max_num_seqs {
            let Some(place) = self.next_to_admit() else { return };
            let index = self.waiting[place];
            let target = self.lives[index].prefill_target();
            let prompt = self.lives[index].request.prompt;
            let Found { tokens: cached, held } = self.cached(index);
            let computed = cached + (target - cached).min(*budget);
            let room = match self.settings.admission {
                Admission::WholePrompt => self.settings.blocks(target),
                Admission::FirstChunk => self.settings.blocks(computed),
            };
            if room - held > self.free() {
                return;
            }
            if place == 0 {
                self.waiting.pop_front()
            } else {
                self.waiting.remove(place)
            };
            self.running.push(index);
            if let Some(adapters) = &mut self.adapters {
                adapters.enter(self.lives[index].request.id);
            }
            self.occupy(index, 0, computed);
            *budget -= computed - cached;
            if self.prefix_hits > Fraction::ZERO || self.prefix.is_some() {
                self.counters.prefix_queries += u64::from(prompt);
                self.counters.prefix_hits += u64::from(cached);
            }
            let life = &mut self.lives[index];
            if life.scheduled.is_none() {
                life.scheduled = Some(now);
                life.cached = cached;
            }
            life.phase = Phase::Prefill { computed };
            if computed == target {
                self.prefilled.push(index);
            }
        }
    }

    /// Sends the last request of the batch back to the head of the queue.
    fn preempt_last(&mut self, now: Micros, events: &mut Vec<Event>) -> Option<usize> {
        let index = self.running.last()?;
        self.running.remove(index);
        let held = match self.lives[index].phase {
            Phase::Prefill { computed } => computed,
            Phase::Decode => {
                let left = self.leave_decodes(index);
                let life = &mut self.lives[index];
                // The request has had a token in every step so far.
                life.last_token = now;
                life.kept = life.request.output.saturating_sub(left.missing);
                left.stored
            }
        };
        let life = &mut self.lives[index];
        let request = life.request;
        if self.settings.admission == Admission::FirstChunk {
            life.kept = 0;
            life.first_token = None;
        }
        life.phase = Phase::Prefill { computed: 0 };
        life.preemptions += 1;
        self.counters.preemptions += 1;
        if let Some(adapters) = &mut self.adapters {
            adapters.leave(request.id);
        }
        self.give_back(request.id, held, Return::Later);
        events.push(Event::Preempted { id: request.id, at: now });
        self.waiting.push_front(index);
        Some(index)
    }
}

// === impl Life ===

impl Life {
    const fn prefill_target(&self) -> u32 {
        self.request.prompt + self.kept
    }
}

fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
