//! Requests in transit: clients, the gateway and the router.

mod adapters;
mod admit;
mod bucket;
mod note;
pub(super) mod requests;
mod route;

use rand::RngExt;

use crate::simulate::Micros;
use crate::simulate::random;
use crate::simulate::replica::Request;
use crate::simulate::replica::prefix::PromptId;
use crate::simulate::run::traffic::requests::{Class, Open, Part, RequestPlace};
use crate::simulate::run::{Happening, Simulation};
use crate::simulate::scenario::Model;
use crate::simulate::score::Service;
use crate::simulate::workload::Load;
use crate::simulate::workload::load::{RequestArrival, Size};
use plimsoll_core::fleet::Role;

/// Clients of a closed loop start at random times within this span.
const CLIENTS_BEGIN: Micros = Micros::from_secs(1);

/// The contents of a request that arrives now.
struct Inquiry {
    class: Class,
    size: Size,
    prompt: Option<PromptId>,
    client: u32,
}

/// The reason why an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttemptFailure {
    Rejected,
    TimedOut,
    Cut,
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
        let Some(RequestArrival { size, prompt, .. }) = traffic.take(class) else { return };
        self.receive(model, &Inquiry { class, size, prompt, client: 0 });
    }

    /// A client of a closed loop sends a request.
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

    /// The statistics of a class's requests.
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
        let place = RequestPlace::Client;
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
            answers: false,
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

    /// Sends a request to a replica, or holds it until one has room.
    pub(crate) fn dispatch(&mut self, model: usize, id: u64) {
        let client = self.scenario.models[model].client;
        let queue = self.scenario.models[model].gateway.queue;
        self.traffic[model].asked += 1;
        let Some(open) = self.traffic[model].get(id) else { return };
        open.attempts += 1;
        open.place = RequestPlace::Held;
        let attempt = open.attempts;
        let class = open.class;
        if !self.admits(model) {
            return self.fail(model, id, AttemptFailure::Rejected);
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
            self.fail(model, id, AttemptFailure::Rejected);
        }
    }

    fn send(&mut self, model: usize, id: u64, pod: usize) {
        let Some(open) = self.traffic[model].get(id) else { return };
        open.place = RequestPlace::Pod(pod);
        let Open { class, arrived, size: Size { prompt, output }, .. } = *open;
        let adapter = open.adapter;
        let shared = self.scenario.models[model].adapters.is_empty();
        let prompt_id = open.prompt;
        let known = prompt_id.map(|it| if shared { it } else { adapters::apart(it, adapter) });

        let taken = &mut self.pods[pod];
        let generated = match self.scenario.variants[taken.variant].spec.role {
            Role::Both | Role::Decode => output,
            // A prefill engine generates one token, which clients do not see.
            Role::Prefill => 1,
        };
        let Some(replica) = &mut taken.replica else { return };
        let request = Request { id, prompt, output: generated };
        let submitted = match known {
            Some(known) => replica.submit_prompt(self.now, request, known),
            None => replica.submit(self.now, request),
        };
        if submitted.is_ok() {
            if let Some(adapter) = adapter {
                replica.ask_for(id, adapter);
                self.traffic[model].routed[usize::from(adapter.place())] += 1;
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

    /// Sends the gateway's requests to replicas that have room.
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

    /// Plans a release for the time at which a request may finish, if other requests or clients
    /// wait for that.
    fn await_release(&mut self, model: usize) {
        let closed = matches!(self.scenario.models[model].load, Load::Closed(_));
        let limited = self.scenario.models[model].gateway.per_replica.is_some();
        let traffic = &self.traffic[model];
        let waits = !traffic.held.is_empty() || !traffic.handed.is_empty();
        if closed || traffic.apart || limited && waits {
            self.plan_release(model);
        }
    }

    fn plan_release(&mut self, model: usize) {
        let traffic = &self.traffic[model];
        let quiet = traffic.ready().map(|pod| self.pods[pod].quiet).min();
        let Some(soonest) = quiet.filter(|at| *at < Micros::new(u64::MAX)) else { return };

        // The results of an instant exist just after it at the latest.
        let at = soonest.max(self.now + Micros::new(1));
        if self.traffic[model].release.is_none_or(|planned| at < planned) {
            self.traffic[model].release = Some(at);
            self.plan(at, Happening::Release(model));
        }
    }

    /// Ends the attempts whose clients have timed out, and gives their room to other requests.
    pub(crate) fn give_up(&mut self, model: usize) {
        while let Some(&(at, id, attempt)) = self.traffic[model].deadlines.front() {
            let waits = self.traffic[model].get(id).filter(|open| {
                matches!(
                    open.place,
                    RequestPlace::Held
                        | RequestPlace::Pod(_)
                        | RequestPlace::Moving
                        | RequestPlace::Handed
                ) && open.attempts == attempt
                    && !open.answers
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

    /// The client of an attempt has timed out.
    fn abandon(&mut self, model: usize, id: u64, place: RequestPlace) {
        if let RequestPlace::Pod(pod) = place {
            self.advance(pod);
            let Some(open) = self.traffic[model].get(id).filter(|it| !it.answers) else { return };
            // Its prompt may already have been computed.
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

        self.fail(model, id, AttemptFailure::TimedOut);
    }

    /// The KV cache of a prompt has reached the decode pods.
    pub(crate) fn hand_over(&mut self, model: usize, id: u64, attempt: u32) {
        let Some(open) = self.traffic[model].get(id) else { return };
        if open.place != RequestPlace::Moving || open.attempts != attempt {
            return;
        }

        open.place = RequestPlace::Handed;
        if self.traffic[model].handed.is_empty()
            && let Some(pod) = self.choose(model, id, Part::Second)
        {
            self.send(model, id, pod);
        } else {
            self.traffic[model].handed.push_back(id);
            self.await_release(model);
        }
    }

    /// An attempt has failed; the client retries or gives up.
    fn fail(&mut self, model: usize, id: u64, failure: AttemptFailure) {
        let client = self.scenario.models[model].client;
        let Some(open) = self.traffic[model].get(id) else { return };
        let Open { class, arrived, attempts, .. } = *open;
        if attempts <= client.retries {
            open.place = RequestPlace::Client;
            open.answers = false;
            self.service(model, class).retries += 1;
            self.plan(self.now + client.backoff, Happening::Retry(model, id));
            return;
        }

        let service = self.service(model, class);
        match failure {
            AttemptFailure::Rejected => service.rejected += 1,
            AttemptFailure::TimedOut => service.timed_out += 1,
            AttemptFailure::Cut => service.failed += 1,
        }

        service.judge(arrived, false);
        self.end(model, id);
    }

    /// Removes a request, and starts the think time of its closed-loop client.
    fn end(&mut self, model: usize, id: u64) {
        let traffic = &mut self.traffic[model];
        let Some(client) = traffic.end(id) else { return };
        if let Load::Closed(closed) = &self.scenario.models[model].load {
            let think = closed.think.seconds() * random::exponential(&mut traffic.thoughts);
            let at = self.now + Micros::from_secs_f64(think);
            self.plan(at, Happening::Ask(model, client));
        }
    }

    /// All requests in a replica have lost their connections.
    pub(crate) fn cut_off(&mut self, model: usize, pod: usize) {
        let traffic = &self.traffic[model];
        let cut: Vec<u64> = traffic
            .open
            .iter()
            .zip(traffic.first..)
            .filter(|(open, _)| open.place == RequestPlace::Pod(pod))
            .map(|(_, id)| id)
            .collect();

        for id in cut {
            self.fail(model, id, AttemptFailure::Cut);
        }
    }

    /// Adds a pod to the pool that takes requests.
    pub(crate) fn open(&mut self, pod: usize) {
        if !self.become_ready(pod) {
            return;
        }

        let (model, part) = self.part_of(pod);
        self.traffic[model].pool(part).ready.push(pod);
        self.release(model);
        // A rollout waits for ready replicas.
        let variant = self.pods[pod].variant;
        if self.crews[variant].revision > 0 {
            self.reconcile(variant);
        }
    }

    /// Removes a pod from the pool that takes requests.
    pub(crate) fn close(&mut self, pod: usize) {
        let (model, part) = self.part_of(pod);
        self.traffic[model].pool(part).ready.retain(|&other| other != pod);
    }

    /// The model that a pod serves, and the part of its requests that the pod takes.
    fn part_of(&self, pod: usize) -> (usize, Part) {
        let described = &self.scenario.variants[self.pods[pod].variant];
        match described.spec.role {
            Role::Both | Role::Prefill => (described.model, Part::First),
            Role::Decode => (described.model, Part::Second),
        }
    }
}
