//! One model's requests: those to come, those in transit, and the pods that take them.

use std::collections::VecDeque;

use rand_pcg::Pcg64;

use crate::simulate::Micros;
use crate::simulate::random::{Purpose, generator};
use crate::simulate::replica::adapters::AdapterId;
use crate::simulate::replica::prefix::PromptId;
use crate::simulate::run::traffic::bucket::TokenBucket;
use crate::simulate::scenario::{Model, Scenario};
use crate::simulate::workload::load::{Arrivals, RequestArrival, Size};

/// The class of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// A request of the model's workload.
    Interactive,
    /// A request of the model's batch work.
    Batch,
}

/// The future requests of one class.
struct Stream {
    arrivals: Arrivals,
    next: Option<RequestArrival>,
}

/// One model's requests.
pub(crate) struct Traffic {
    interactive: Stream,
    batch: Option<Stream>,
    /// Requests in the order of their arrival, from the oldest open one on.
    pub(super) open: VecDeque<Open>,
    /// The number of the first request in `open`.
    pub(super) first: u64,
    /// Attempts that have reached the gateway.
    pub(crate) asked: u64,
    /// Requests that the gateway has sent to replicas, by adapter.
    pub(crate) routed: Vec<u64>,
    /// The bucket that limits the gateway's admission.
    pub(crate) bucket: TokenBucket,
    /// Requests that the gateway holds, oldest first.
    pub(crate) held: VecDeque<u64>,
    /// Requests whose prompts are computed, but which no replica decodes yet; oldest first.
    pub(super) handed: VecDeque<u64>,
    /// Client deadlines in ascending order: the time, the request, and the attempt.
    pub(super) deadlines: VecDeque<(Micros, u64, u32)>,
    /// True if separate pods compute prompts and decode.
    pub(super) apart: bool,
    /// Pods that take whole requests, or prompts only.
    pub(super) first_pool: PodPool,
    /// Pods that decode requests whose prompts other pods have computed.
    pub(super) second_pool: PodPool,
    /// The next planned release of requests that wait.
    pub(super) release: Option<Micros>,
    pub(super) thoughts: Pcg64,
    pub(super) sizes: Pcg64,
    pub(super) adapters: Pcg64,
    pub(super) sessions: Pcg64,
    pub(super) routes: Pcg64,
}

/// Pods that take the same part of requests.
#[derive(Default)]
pub(super) struct PodPool {
    pub(super) ready: Vec<usize>,
    pub(super) turn: usize,
    pub(super) looked: Option<Micros>,
}

/// The part of a request that a pod takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The prompt; or the whole request, unless other pods decode.
    First,
    /// The answer, after another pod has computed the prompt.
    Second,
}

/// A request that has arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    pub(super) class: Class,
    pub(super) arrived: Micros,
    /// The time of its first token, even if the attempt has failed since.
    pub(super) first_token: Option<Micros>,
    /// True if the present attempt has its first token.
    pub(super) answers: bool,
    pub(super) size: Size,
    pub(super) prompt: Option<PromptId>,
    pub(super) adapter: Option<AdapterId>,
    pub(super) place: RequestPlace,
    pub(super) attempts: u32,
    pub(super) client: u32,
    pub(super) session: u32,
}

/// The location of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestPlace {
    /// With its client, which will retry.
    Client,
    /// Held by the gateway.
    Held,
    /// In an engine.
    Pod(usize),
    /// On the way from a prefill pod to a decode pod.
    Moving,
    /// Moved, but not sent to a decode pod yet.
    Handed,
    /// Ended.
    Nowhere,
}

// === impl Traffic ===

impl Traffic {
    pub(crate) fn new(scenario: &Scenario, seed: u64, model: usize) -> Self {
        let Model { load, batch, adapters, .. } = &scenario.models[model];
        Self {
            interactive: Stream::new(load.arrivals(seed, model)),
            batch: batch.as_ref().map(|batch| Stream::new(batch.arrivals(seed, model))),
            open: VecDeque::new(),
            first: 0,
            asked: 0,
            routed: vec![0; adapters.len()],
            bucket: TokenBucket::full(),
            held: VecDeque::new(),
            handed: VecDeque::new(),
            deadlines: VecDeque::new(),
            apart: scenario.is_disaggregated(model),
            first_pool: PodPool::default(),
            second_pool: PodPool::default(),
            release: None,
            thoughts: generator(seed, Purpose::Thoughts, model),
            sizes: generator(seed, Purpose::Lengths, model),
            adapters: generator(seed, Purpose::Adapters, model),
            sessions: generator(seed, Purpose::Sessions, model),
            routes: generator(seed, Purpose::Routes, model),
        }
    }

    /// The time and class of the next request.
    pub(super) fn next_stream(&self) -> Option<(Micros, Class)> {
        let interactive = self.interactive.next.map(|next| (next.at, Class::Interactive));
        let batch = self.batch.as_ref().and_then(|stream| stream.next.as_ref());
        match (interactive, batch) {
            (Some((at, _)), Some(next)) if next.at < at => Some((next.at, Class::Batch)),
            (None, Some(next)) => Some((next.at, Class::Batch)),
            (interactive, _) => interactive,
        }
    }

    /// Takes the next request of a class.
    pub(super) fn take(&mut self, class: Class) -> Option<RequestArrival> {
        let stream = match class {
            Class::Interactive => &mut self.interactive,
            Class::Batch => self.batch.as_mut()?,
        };
        std::mem::replace(&mut stream.next, stream.arrivals.next())
    }

    pub(super) fn pool(&mut self, part: Part) -> &mut PodPool {
        match part {
            Part::First => &mut self.first_pool,
            Part::Second => &mut self.second_pool,
        }
    }

    /// Pods that take requests, in either pool.
    pub(super) fn ready(&self) -> impl Iterator<Item = usize> {
        self.first_pool.ready.iter().chain(&self.second_pool.ready).copied()
    }

    pub(super) fn get(&mut self, id: u64) -> Option<&mut Open> {
        let at = usize::try_from(id.checked_sub(self.first)?).ok()?;
        self.open.get_mut(at)
    }

    /// Removes a request and returns its client, unless it was batch work.
    pub(super) fn end(&mut self, id: u64) -> Option<u32> {
        let open = self.get(id).filter(|it| it.place != RequestPlace::Nowhere)?;
        open.place = RequestPlace::Nowhere;
        let client = (open.class == Class::Interactive).then_some(open.client);

        while self.open.front().is_some_and(|open| open.place == RequestPlace::Nowhere) {
            self.open.pop_front();
            self.first += 1;
        }
        client
    }
}

// === impl Stream ===

impl Stream {
    fn new(mut arrivals: Arrivals) -> Self {
        Self { next: arrivals.next(), arrivals }
    }
}
