//! Requests on their way: clients, the gateway, the router.

mod adapters;
mod admit;
mod note;
mod route;

use std::collections::VecDeque;

use rand::RngExt;
use rand_pcg::Pcg64;

use crate::simulate::Micros;
use crate::simulate::random::{self, Purpose, generator};
use crate::simulate::replica::Request;
use crate::simulate::replica::adapters::AdapterId;
use crate::simulate::replica::prefix::PromptId;
use crate::simulate::run::traffic::admit::TokenBucket;
use crate::simulate::run::{Happening, Simulation};
use crate::simulate::scenario::{Model, Scenario};
use crate::simulate::score::Service;
use crate::simulate::workload::Load;
use crate::simulate::workload::load::{Arrival, Arrivals, Size};
use plimsoll_core::fleet::Role;

/// Clients of a closed loop do not all begin in the same instant, but within this time.
const CLIENTS_BEGIN: Micros = Micros::from_secs(1);

/// Which requests of a model one is among.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Those of its workload.
    Interactive,
    /// Its batch work.
    Batch,
}

/// Requests of one class that are still to come.
struct Stream {
    arrivals: Arrivals,
    next: Option<Arrival>,
}

/// One model's requests.
pub(crate) struct Traffic {
    interactive: Stream,
    batch: Option<Stream>,
    /// Requests from the oldest that has not ended on, in the order of their arrival.
    open: VecDeque<Open>,
    /// The number of the first of them.
    first: u64,
    /// Attempts that have come to the gateway.
    pub(crate) asked: u64,
    /// What the gateway admits.
    pub(crate) bucket: TokenBucket,
    /// Requests that the gateway holds, oldest first.
    pub(crate) held: VecDeque<u64>,
    /// Requests whose prompts are computed and that no replica decodes yet, oldest first.
    handed: VecDeque<u64>,
    /// When clients give up an attempt, in order: the request, and which attempt it is.
    deadlines: VecDeque<(Micros, u64, u32)>,
    /// Whether other pods decode than compute prompts.
    apart: bool,
    /// Pods that take requests, or the first part of them.
    first_pool: Pool,
    /// Pods that take what others have begun.
    second_pool: Pool,
    /// The next [`Happening::Release`] that is planned.
    release: Option<Micros>,
    thoughts: Pcg64,
    sizes: Pcg64,
    adapters: Pcg64,
    sessions: Pcg64,
    routes: Pcg64,
}

/// Pods that take the same part of requests.
#[derive(Default)]
struct Pool {
    ready: Vec<usize>,
    turn: usize,
    looked: Option<Micros>,
}

/// Which part of a request a pod takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Its prompt, and where nobody else decodes, all of it.
    First,
    /// Its answer, where another has computed its prompt.
    Second,
}

/// What a request asks for that arrives now.
struct Inquiry {
    class: Class,
    size: Size,
    prompt: Option<PromptId>,
    client: u32,
}

/// A request that has arrived.
#[derive(Clone, Copy, Debug)]
struct Open {
    class: Class,
    arrived: Micros,
    first_token: Option<Micros>,
    size: Size,
    prompt: Option<PromptId>,
    adapter: Option<AdapterId>,
    place: Place,
    attempts: u32,
    client: u32,
    session: u32,
}

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// With its client, who will try again.
    Client,
    /// In the gateway.
    Held,
    /// In an engine.
    Pod(usize),
    /// On the way from one that has computed its prompt to one that decodes.
    Moving,
    /// At the end of that way, where nobody decodes it yet.
    Handed,
    /// It has ended.
    Nowhere,
}

/// Why an attempt came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    Rejected,
    TimedOut,
    Cut,
}

// === impl Traffic ===

impl Traffic {
    pub(crate) fn new(scenario: &Scenario, seed: u64, model: usize) -> Self {
        let Model { load, batch, .. } = &scenario.models[model];
        Self {
            interactive: Stream::new(load.arrivals(seed, model)),
            batch: batch.as_ref().map(|batch| Stream::new(batch.arrivals(seed, model))),
            open: VecDeque::new(),
            first: 0,
            asked: 0,
            bucket: TokenBucket::full(),
            held: VecDeque::new(),
            handed: VecDeque::new(),
            deadlines: VecDeque::new(),
            apart: scenario.is_disaggregated(model),
            first_pool: Pool::default(),
            second_pool: Pool::default(),
            release: None,
            thoughts: generator(seed, Purpose::Thoughts, model),
            sizes: generator(seed, Purpose::Lengths, model),
            adapters: generator(seed, Purpose::Adapters, model),
            sessions: generator(seed, Purpose::Sessions, model),
            routes: generator(seed, Purpose::Routes, model),
        }
    }

    /// The class of the request that arrives next, with its stream.
    fn next_stream(&self) -> Option<(Micros, Class)> {
        let interactive = self.interactive.next.map(|next| (next.at, Class::Interactive));
        let batch = self.batch.as_ref().and_then(|stream| stream.next.as_ref());
        match (interactive, batch) {
            (Some((at, _)), Some(next)) if next.at < at => Some((next.at, Class::Batch)),
            (None, Some(next)) => Some((next.at, Class::Batch)),
            (interactive, _) => interactive,
        }
    }

    /// Takes the next request of a class.
    fn take(&mut self, class: Class) -> Option<Arrival> {
        let stream = match class {
            Class::Interactive => &mut self.interactive,
            Class::Batch => self.batch.as_mut()?,
        };
        std::mem::replace(&mut stream.next, stream.arrivals.next())
    }

    fn pool(&mut self, part: Part) -> &mut Pool {
        match part {
            Part::First => &mut self.first_pool,
            Part::Second => &mut self.second_pool,
        }
    }

    /// Pods that take requests, whatever part.
    fn ready(&self) -> impl Iterator<Item = usize> {
        self.first_pool.ready.iter().chain(&self.second_pool.ready).copied()
    }

    fn get(&mut self, id: u64) -> Option<&mut Open> {
        let at = usize::try_from(id.checked_sub(self.first)?).ok()?;
        self.open.get_mut(at)
    }

    /// Forgets a request, and returns whose it was, unless it was batch work.
    fn end(&mut self, id: u64) -> Option<u32> {
        let open = self.get(id).filter(|open| open.place != Place::Nowhere)?;
        open.place = Place::Nowhere;
        let client = (open.class == Class::Interactive).then_some(open.client);
        while self.open.front().is_some_and(|open| open.place == Place::Nowhere) {
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

// === impl Simulation ===

impl Simulation<'_> {
    pub(crate) fn begin_traffic(&mut self) {
        let scenario = self.scenario;
        for (index, model) in scenario.models.iter().enumerate() {
            let Load::Closed(closed) = &model.load else { continue };
            for client in 0..closed.clients {
                let share = random::uniform(&mut self.traffic[index].thoughts);
                let at = Micros::from_secs_f64(CLIENTS_BEGIN.seconds() * share);
                self.plan(at, Happening::Ask(index, client));
            }
        }
    }

    /// The next open-loop arrival, with its model.
    pub(crate) fn next_arrival(&self) -> Option<(Micros, usize)> {
        let next = self.traffic.iter().enumerate().filter_map(|(model, traffic)| {
            let (at, _) = traffic.next_stream()?;
            Some((at, model))
        });
        next.min()
    }

    pub(crate) fn arrive(&mut self, model: usize) {
        let traffic = &mut self.traffic[model];
        let Some((_, class)) = traffic.next_stream() else { return };
        let Some(Arrival { size, prompt, .. }) = traffic.take(class) else { return };
        self.receive(model, &Inquiry { class, size, prompt, client: 0 });
    }

    /// A client of a closed loop asks.
    pub(crate) fn ask(&mut self, model: usize, client: u32) {
        if self.now >= self.scenario.length {
            return;
        }
        if let Load::Closed(closed) = &self.scenario.models[model].load {
            let size = closed.sizes.draw(&mut self.traffic[model].sizes);
            let class = Class::Interactive;
            self.receive(model, &Inquiry { class, size, prompt: None, client });
        }
    }

    /// The counts of the requests of a class.
    fn service(&mut self, model: usize, class: Class) -> &mut Service {
        match class {
            Class::Interactive => &mut self.services[model],
            Class::Batch => &mut self.batches[model],
        }
    }

    fn receive(&mut self, model: usize, inquiry: &Inquiry) {
        let Inquiry { class, size, prompt, client } = *inquiry;
        let arrived = self.now;
        let Model { adapters: shares, load, sessions, .. } = &self.scenario.models[model];
        let within = load.rate().map_or(arrived, |rate| rate.within(arrived));
        let traffic = &mut self.traffic[model];
        let id = traffic.first + traffic.open.len() as u64;
        let place = Place::Client;
        let adapter = adapters::draw(shares, within, &mut traffic.adapters);
        let session = match load {
            Load::Closed(_) => client,
            Load::Replay(_) | Load::Drawn(_) | Load::Described(_) => {
                traffic.sessions.random_range(0..*sessions)
            }
        };
        traffic.open.push_back(Open {
            class,
            arrived,
            first_token: None,
            size,
            prompt,
            adapter,
            place,
            attempts: 0,
            client,
            session,
        });
        self.service(model, class).arrived += 1;
        self.dispatch(model, id);
    }

    /// Sends a request to a replica, or lets it wait for one.
    pub(crate) fn dispatch(&mut self, model: usize, id: u64) {
        let client = self.scenario.models[model].client;
        let queue = self.scenario.models[model].gateway.queue;
        self.traffic[model].asked += 1;
        let Some(open) = self.traffic[model].get(id) else { return };
        open.attempts += 1;
        open.place = Place::Held;
        let (attempt, class) = (open.attempts, open.class);
        if !self.admits(model) {
            return self.fail(model, id, Failure::Rejected);
        }
        if let Some(timeout) = client.timeout.filter(|_| class == Class::Interactive) {
            let deadlines = &mut self.traffic[model].deadlines;
            deadlines.push_back((self.now + timeout, id, attempt));
            if deadlines.len() == 1 {
                self.plan(self.now + timeout, Happening::Deadline(model));
            }
        }
        if self.traffic[model].held.is_empty()
            && let Some(pod) = self.choose(model, id, Part::First)
        {
            self.send(model, id, pod);
        } else if self.traffic[model].held.len() < queue {
            self.traffic[model].held.push_back(id);
            self.await_release(model);
        } else {
            self.fail(model, id, Failure::Rejected);
        }
    }

    fn send(&mut self, model: usize, id: u64, pod: usize) {
        let Some(open) = self.traffic[model].get(id) else { return };
        open.place = Place::Pod(pod);
        let Open { class, arrived, size: Size { prompt, output }, .. } = *open;
        let adapter = open.adapter;
        let shared = self.scenario.models[model].adapters.is_empty();
        let known = open.prompt;
        let known = known.map(|it| if shared { it } else { adapters::apart(it, adapter) });
        let taken = &mut self.pods[pod];
        let output = match self.scenario.variants[taken.variant].spec.role {
            Role::Both | Role::Decode => output,
            // Whoever computes a prompt makes one token, which nobody sees.
            Role::Prefill => 1,
        };
        let Some(replica) = &mut taken.replica else { return };
        let request = Request { id, prompt, output };
        let submitted = match known {
            Some(known) => replica.submit_prompt(self.now, request, known),
            None => replica.submit(self.now, request),
        };
        if submitted.is_ok() {
            if let Some(adapter) = adapter {
                replica.ask_for(id, adapter);
            }
            taken.crowd.outstanding += 1;
            taken.quiet = replica.quiet_until();
            let variant = taken.variant;
            self.crews[variant].sent += 1;
            self.await_release(model);
        } else {
            self.service(model, class).refuse(arrived);
            self.end(model, id);
        }
    }

    /// Lets the gateway's requests go to replicas that take them.
    pub(crate) fn release(&mut self, model: usize) {
        if self.traffic[model].release.is_some_and(|at| at <= self.now) {
            self.traffic[model].release = None;
        }
        for pod in self.traffic[model].ready().collect::<Vec<_>>() {
            self.catch_up(pod);
        }
        while let Some(&id) = self.traffic[model].held.front() {
            let Some(pod) = self.choose(model, id, Part::First) else { break };
            self.traffic[model].held.pop_front();
            self.send(model, id, pod);
        }
        while let Some(&id) = self.traffic[model].handed.front() {
            let Some(pod) = self.choose(model, id, Part::Second) else { break };
            self.traffic[model].handed.pop_front();
            self.send(model, id, pod);
        }
        self.await_release(model);
    }

    /// Plans to look again when a request may have finished, if anybody waits for that.
    fn await_release(&mut self, model: usize) {
        let closed = matches!(self.scenario.models[model].load, Load::Closed(_));
        let limited = self.scenario.models[model].gateway.per_replica.is_some();
        let traffic = &self.traffic[model];
        let waits = || !traffic.held.is_empty() || !traffic.handed.is_empty();
        if closed || traffic.apart || limited && waits() {
            self.plan_release(model);
        }
    }

    fn plan_release(&mut self, model: usize) {
        let traffic = &self.traffic[model];
        let quiet = traffic.ready().map(|pod| self.pods[pod].quiet).min();
        let Some(at) = quiet.filter(|at| *at < Micros::new(u64::MAX)) else { return };
        // What is computed at an instant is there just after it at the latest.
        let at = at.max(self.now + Micros::new(1));
        if self.traffic[model].release.is_none_or(|planned| at < planned) {
            self.traffic[model].release = Some(at);
            self.plan(at, Happening::Release(model));
        }
    }

    /// Ends the attempts whose clients have waited long enough, and gives their room to others.
    pub(crate) fn give_up(&mut self, model: usize) {
        while let Some(&(at, id, attempt)) = self.traffic[model].deadlines.front() {
            let waits = self.traffic[model].get(id).filter(|open| {
                matches!(open.place, Place::Held | Place::Pod(_) | Place::Moving | Place::Handed)
                    && open.attempts == attempt
                    && open.first_token.is_none()
            });
            let place = waits.map(|open| open.place);
            if place.is_some() && at > self.now {
                self.plan(at, Happening::Deadline(model));
                break;
            }
            self.traffic[model].deadlines.pop_front();
            if let Some(place) = place {
                self.abandon(model, id, place);
            }
        }
        if !self.traffic[model].held.is_empty() || !self.traffic[model].handed.is_empty() {
            self.release(model);
        }
    }

    /// The client of an attempt has waited long enough.
    fn abandon(&mut self, model: usize, id: u64, place: Place) {
        if let Place::Pod(pod) = place {
            self.advance(pod);
            let Some(open) = self.traffic[model].get(id).filter(|it| it.first_token.is_none())
            else {
                return;
            };
            // Its prompt may have been computed by now.
            if open.place == place {
                let replica = self.pods[pod].replica.as_mut();
                if !replica.is_some_and(|replica| replica.abort(id)) {
                    return;
                }
                self.pods[pod].refresh();
            }
        } else {
            self.traffic[model].held.retain(|&held| held != id);
            self.traffic[model].handed.retain(|&handed| handed != id);
        }
        self.fail(model, id, Failure::TimedOut);
    }

    /// The cache of a prompt is where the request can be decoded.
    pub(crate) fn hand_over(&mut self, model: usize, id: u64, attempt: u32) {
        let moved = |open: &&mut Open| open.place == Place::Moving && open.attempts == attempt;
        let Some(open) = self.traffic[model].get(id).filter(moved) else { return };
        open.place = Place::Handed;
        if self.traffic[model].handed.is_empty()
            && let Some(pod) = self.choose(model, id, Part::Second)
        {
            self.send(model, id, pod);
        } else {
            self.traffic[model].handed.push_back(id);
            self.await_release(model);
        }
    }

    /// An attempt has come to nothing; the client tries again or gives up.
    fn fail(&mut self, model: usize, id: u64, failure: Failure) {
        let client = self.scenario.models[model].client;
        let Some(open) = self.traffic[model].get(id) else { return };
        let Open { class, arrived, attempts, .. } = *open;
        if attempts <= client.retries {
            open.place = Place::Client;
            self.service(model, class).retries += 1;
            self.plan(self.now + client.backoff, Happening::Retry(model, id));
            return;
        }
        let service = self.service(model, class);
        match failure {
            Failure::Rejected => service.rejected += 1,
            Failure::TimedOut => service.timed_out += 1,
            Failure::Cut => service.failed += 1,
        }
        service.judge(arrived, false);
        self.end(model, id);
    }

    /// Forgets a request, and lets the client of a closed loop think about the next.
    fn end(&mut self, model: usize, id: u64) {
        let traffic = &mut self.traffic[model];
        let Some(client) = traffic.end(id) else { return };
        if let Load::Closed(closed) = &self.scenario.models[model].load {
            let think = closed.think.seconds() * random::exponential(&mut traffic.thoughts);
            let at = self.now + Micros::from_secs_f64(think);
            self.plan(at, Happening::Ask(model, client));
        }
    }

    /// Everything that was in a replica has lost its connection.
    pub(crate) fn cut_off(&mut self, model: usize, pod: usize) {
        let traffic = &self.traffic[model];
        let cut: Vec<u64> = traffic
            .open
            .iter()
            .zip(traffic.first..)
            .filter(|(open, _)| open.place == Place::Pod(pod))
            .map(|(_, id)| id)
            .collect();
        for id in cut {
            self.fail(model, id, Failure::Cut);
        }
    }

    /// Adds a pod to those that take requests.
    pub(crate) fn open(&mut self, pod: usize) {
        if !self.become_ready(pod) {
            return;
        }
        let (model, part) = self.part_of(pod);
        self.traffic[model].pool(part).ready.push(pod);
        self.release(model);
        // A roll-out waits for that.
        let variant = self.pods[pod].variant;
        if self.crews[variant].revision > 0 {
            self.reconcile(variant);
        }
    }

    /// Takes a pod from those that take requests.
    pub(crate) fn close(&mut self, pod: usize) {
        let (model, part) = self.part_of(pod);
        self.traffic[model].pool(part).ready.retain(|&other| other != pod);
    }

    /// The model that a pod serves, and which part of its requests.
    fn part_of(&self, pod: usize) -> (usize, Part) {
        let described = &self.scenario.variants[self.pods[pod].variant];
        match described.spec.role {
            Role::Both | Role::Prefill => (described.model, Part::First),
            Role::Decode => (described.model, Part::Second),
        }
    }
}
