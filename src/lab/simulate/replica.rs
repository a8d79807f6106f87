//! A simulated engine, at the level of its iterations.
//!
//! A [`Replica`] takes requests with their arrival times. It returns the times of each request's
//! first computation, first token and end. In between it follows vLLM's scheduler: continuous
//! batching, chunked prefill within one token budget, and a first-come first-served queue. It also
//! has a KV cache in blocks, and preempts the request that was admitted last.
//!
//! # Model
//!
//! A step takes `alpha + beta * prefill tokens + delta * decodes + gamma * KV tokens read`,
//! truncated to whole microseconds, at least one. It starts at the end of the previous step, or at
//! an arrival if the engine is idle. A request that arrives at the instant at which a step starts
//! belongs to that step. The results of a step exist at its end.
//!
//! Building a batch starts with the running requests, in the order of their admission. Each gets
//! one token or the next chunk of its prompt. A request that finds no free block preempts the last
//! one in the batch, until it fits or is itself the victim. If nothing was preempted, waiting
//! requests follow from the head of the queue while there is budget, a seat and room in the cache.
//! The head of the queue blocks the rest.
//!
//! # Why it is fast
//!
//! A step in which no request starts, ends or is preempted costs the same for 1 and for 1000
//! requests, because decodes advance a common clock. Two facts depend on a single request: the step
//! in which it needs a new block, and the step in which it ends. Both are counted by phase and
//! filed in a wheel.
//!
//! This requires a budget of at least the number of seats (vLLM refuses anything else). Then
//! decodes are never left out, and at most one request is in the middle of its prefill, the one
//! admitted last. The batch is a linked list, so a request leaves it without a search. Histograms
//! are a seventh of the work, so they are kept only if the /metrics response is read.
//!
//! # Limits
//!
//! There is no time between steps, and prefill does not slow down with the length of the prompt.
//! The prefix cache has two modes. With [`Replica::with_prefix_hits`] it holds a given share of
//! each prompt, and each request holds its own copy of the cached blocks. With
//! [`Replica::with_prefix_cache`] it tracks the blocks of known prompts. The limits of a pipeline,
//! of speculation and of fetched caches ([`Replica::with_options`]) are documented with their
//! rules.

pub mod adapters;
pub mod arrivals;
mod blocks;
mod coast;
mod decodes;
mod end;
mod lanes;
mod leave;
mod look;
mod noise;
mod pace;
mod pipeline;
pub mod prefix;
mod request;
mod rings;
mod servers;
pub mod settings;
mod slots;
pub mod speculation;
pub mod stats;
mod submit;

use std::collections::VecDeque;
use std::sync::Arc;

use rand_pcg::Pcg64;

use crate::simulate::Micros;
use crate::simulate::random;
use crate::simulate::replica::adapters::Adapters;
use crate::simulate::replica::arrivals::{Fetch, SubmittedRequest};
use crate::simulate::replica::decodes::{Decodes, RequestPhase};
use crate::simulate::replica::lanes::StagePipeline;
use crate::simulate::replica::noise::Noise;
use crate::simulate::replica::pace::{EngineStep, StepDurations};
use crate::simulate::replica::prefix::{CachedPrefix, PrefixCache, Prompts, Return};
pub use crate::simulate::replica::request::{EngineEvent, Finished, Request, Unservable};
use crate::simulate::replica::rings::DecodeBatch;
use crate::simulate::replica::servers::ApiServers;
use crate::simulate::replica::settings::{Admission, Options, Settings, SettingsError};
use crate::simulate::replica::speculation::{Speculated, Speculator};
use crate::simulate::replica::stats::Counters;
use plimsoll_core::units::Fraction;

/// A simulated engine.
#[derive(Clone, Debug)]
pub struct Replica {
    settings: Settings,
    pace: StepDurations,
    /// The share of each prompt that the prefix cache has.
    prefix_hits: Fraction,
    prefill_at: PrefillAt,
    fetch: Option<Fetch>,
    now: Micros,
    /// The end of the last step.
    ready: Micros,
    /// Submitted requests that have not arrived yet.
    arrivals: VecDeque<SubmittedRequest>,
    /// Requests that have arrived and are not finished, with holes.
    lives: Vec<Life>,
    holes: Vec<usize>,
    waiting: VecDeque<usize>,
    /// The batch, in the order of admission.
    running: DecodeBatch,
    decodes: Decodes,
    kv_blocks_used: u32,
    /// The step in progress.
    step: Option<EngineStep>,
    /// Requests whose prefill is complete at the end of `step`, in the order of admission.
    prefilled: Vec<usize>,
    counters: Counters,
    histograms: Histograms,
    /// Boxed, because few engines have any.
    adapters: Option<Box<Adapters>>,
    /// Boxed for the same reason, as are the optional fields below.
    prefix: Option<Box<PrefixCache>>,
    /// Set with several API servers; otherwise one server counts all steps.
    servers: Option<Box<ApiServers>>,
    speculator: Option<Box<Speculator>>,
    noise: Option<Box<Noise>>,
    /// The pipeline's batches other than the current one.
    pipeline: Option<Box<StagePipeline>>,
    /// Free blocks that steps in flight take before they end.
    promised: u32,
}

/// The engine that computes prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PrefillAt {
    /// This engine.
    Here,
    /// Another engine, whose KV cache arrives with the request.
    Elsewhere,
}

/// The handling of an engine's histograms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Histograms {
    Kept,
    /// The histograms stay empty.
    Left,
}

/// A request between its arrival and its end.
#[derive(Clone, Debug)]
struct Life {
    request: Request,
    arrived: Micros,
    /// The time at which it entered the queue, which is after `arrived` if the cache of its prompt
    /// was fetched.
    queued: Micros,
    /// The time at which a step first computed it.
    scheduled: Option<Micros>,
    first_ever: Option<Micros>,
    first_token: Option<Micros>,
    last_token: Micros,
    preemptions: u32,
    /// Prompt tokens that a cache held when a step first computed it.
    cached: u32,
    /// Answer tokens that exist and are not counted by a [`RequestPhase::Decode`].
    kept: u32,
    phase: RequestPhase,
}

// === impl Replica ===

impl Replica {
    /// An idle engine at the start of time.
    ///
    /// # Errors
    ///
    /// vLLM would refuse the settings, or no step could be timed.
    pub fn new(settings: Settings) -> Result<Self, SettingsError> {
        settings.check()?;
        Ok(Self {
            settings,
            pace: StepDurations::new(settings.step, settings.max_num_seqs),
            prefix_hits: Fraction::ZERO,
            prefill_at: PrefillAt::Here,
            fetch: None,
            now: Micros::ZERO,
            ready: Micros::ZERO,
            arrivals: VecDeque::new(),
            lives: Vec::new(),
            holes: Vec::new(),
            waiting: VecDeque::new(),
            running: DecodeBatch::new(),
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

    /// The same engine with a prefix cache that holds this share of every prompt. The share is
    /// rounded to whole blocks and excludes the last token, which is always computed.
    #[must_use]
    pub fn with_prefix_hits(self, share: Fraction) -> Self {
        Self { prefix_hits: share, ..self }
    }

    /// The same engine with a prefix cache, for requests with these known prompts.
    #[must_use]
    pub fn with_prefix_cache(self, prompts: Option<Arc<Prompts>>) -> Self {
        let cache = PrefixCache::new(prompts, self.settings.block_size, self.settings.kv_blocks);
        Self { prefix: Some(Box::new(cache)), ..self }
    }

    /// The same engine for requests whose prompts another engine has computed. It computes only the
    /// last token of each prompt, because a step must compute something. After a preemption it has
    /// to compute the rest also, because the transferred cache is gone.
    #[must_use]
    pub fn for_computed_prompts(self) -> Self {
        Self { prefill_at: PrefillAt::Elsewhere, ..self }
    }

    /// The same engine, whose histograms stay empty. Histograms are a considerable part of the
    /// work, and only the /metrics response shows them.
    #[must_use]
    pub fn without_histograms(self) -> Self {
        Self { histograms: Histograms::Left, ..self }
    }

    /// The same engine with these options, whose random numbers start from `random`.
    #[must_use]
    pub fn with_options(self, options: Options, mut random: Pcg64) -> Self {
        let Options { api_servers, stages, speculation, noise: spread, fetch } = options;
        let block_size = self.settings.block_size;
        let noise = (spread > 0.0).then(|| Box::new(Noise::new(spread, random::fork(&mut random))));
        let servers = (api_servers > 1).then(|| Box::new(ApiServers::new(api_servers)));

        Self {
            pipeline: (stages > 1)
                .then(|| Box::new(StagePipeline::new(stages, block_size, servers.as_deref()))),
            speculator: speculation.map(|it| Box::new(Speculator::new(it, random))),
            noise,
            fetch,
            servers,
            ..self
        }
    }

    /// Multiplies the duration of each step that begins from now on by `factor`, relative to the
    /// settings.
    pub fn set_slowness(&mut self, factor: f64) {
        self.pace =
            StepDurations::new(self.settings.step.slowed(factor), self.settings.max_num_seqs);
    }

    /// Ends every step that ends at or before `until` and begins every step that begins before it.
    /// Appends the resulting events to `events`.
    ///
    /// A step that would begin exactly at `until` does not begin yet. Requests that arrive at that
    /// instant belong to it and may still be submitted.
    pub fn advance_to(&mut self, until: Micros, events: &mut Vec<EngineEvent>) {
        self.advance_steps(until, events);
        self.now = self.now.max(until);
        if self.has_arrived(self.now) {
            self.take_arrivals(self.now);
        }
    }

    fn advance_steps(&mut self, until: Micros, events: &mut Vec<EngineEvent>) {
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

    /// The end of the current step, or the start of the next one if none is in progress; `None`
    /// when the engine is idle. Advancing to just after this time makes progress.
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

    fn begin_step(&mut self, start: Micros, events: &mut Vec<EngineEvent>) {
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
        self.step = Some(EngineStep { start, end, prefill_tokens, decodes, tokens, promised });
    }

    /// Draws the number of tokens that the step under construction gives each decoding request.
    /// Reserves the blocks for the tokens after the first one.
    fn speculate(&mut self) -> Speculated {
        let Some(speculator) = &mut self.speculator else { return Speculated::NOTHING };

        let tokens = speculator.draw();
        let promised = self.decodes.blocks_needed_later(tokens);
        if promised > self.free() {
            return Speculated::NOTHING;
        }

        self.promised += promised;
        Speculated { tokens, promised }
    }

    /// The tokens of a step's budget that this many decoding requests leave, with their drafts
    /// verified.
    fn budget_beside(&self, decodes: u32) -> u32 {
        let each = self.speculator.as_ref().map_or(1, |speculator| speculator.most());
        self.settings.max_num_batched_tokens.saturating_sub(decodes * each)
    }

    /// The duration of this step.
    fn length(&mut self, prefill_tokens: u32, decodes: u32, kv_tokens: u64) -> Micros {
        let length = self.pace.of(prefill_tokens, decodes, kv_tokens);
        match &mut self.noise {
            Some(noise) => noise.stretch(length),
            None => length,
        }
    }

    /// Gives every decoding request room for one more token, by preemption if there is no free
    /// block.
    fn grow_decodes(&mut self, now: Micros, events: &mut Vec<EngineEvent>) {
        let needed = self.decodes.blocks_needed();
        if needed <= self.free() {
            self.take(needed);
            return;
        }

        let mut before = None;
        while let Some(index) = self.running.after(before) {
            if self.lives[index].phase != RequestPhase::Decode {
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
    /// last of the batch, so it preempts itself if there is no room for the chunk.
    fn continue_prefill(&mut self, budget: &mut u32, now: Micros, events: &mut Vec<EngineEvent>) {
        if self.running.len() == self.decodes.count() {
            return;
        }

        let Some(index) = self.running.last() else { return };
        let RequestPhase::Prefill { computed } = self.lives[index].phase else { return };
        let target = self.lives[index].prefill_target();
        let after = computed + (target - computed).min(*budget);
        let blocks = self.settings.blocks(after) - self.settings.blocks(computed);
        if blocks > self.free() {
            self.preempt_last(now, events);
            return;
        }

        self.occupy(index, computed, after);
        *budget -= after - computed;
        self.lives[index].phase = RequestPhase::Prefill { computed: after };
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
            let CachedPrefix { tokens: cached, held } = self.cached(index);
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
            // vLLM does not count the lookups of preempted requests.
            let life = &mut self.lives[index];
            if life.scheduled.is_none() {
                life.scheduled = Some(now);
                life.cached = cached;
                if self.prefix_hits > Fraction::ZERO || self.prefix.is_some() {
                    self.counters.prefix_queries += u64::from(prompt);
                    self.counters.prefix_hits += u64::from(cached);
                }
            }

            life.phase = RequestPhase::Prefill { computed };
            if computed == target {
                self.prefilled.push(index);
            }
        }
    }

    /// Preempts the last request of the batch, which returns to the head of the queue.
    fn preempt_last(&mut self, now: Micros, events: &mut Vec<EngineEvent>) -> Option<usize> {
        let index = self.running.last()?;
        self.running.remove(index);
        let held = match self.lives[index].phase {
            RequestPhase::Prefill { computed } => computed,
            RequestPhase::Decode => {
                let left = self.leave_decodes(index);
                let life = &mut self.lives[index];
                // The request has received a token in every step so far.
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

        life.phase = RequestPhase::Prefill { computed: 0 };
        life.preemptions += 1;
        self.counters.preemptions += 1;
        if let Some(adapters) = &mut self.adapters {
            adapters.leave(request.id);
        }

        self.give_back(request.id, held, Return::Later);
        events.push(EngineEvent::Preempted { id: request.id, at: now });
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
