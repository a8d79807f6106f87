//! Routers, which choose the replica for a request.

use rand::RngExt;

use crate::simulate::Micros;
use crate::simulate::random::mix;
use crate::simulate::replica::adapters::{AdapterId, Holds};
use crate::simulate::replica::stats::Gauges;
use crate::simulate::run::Simulation;
use crate::simulate::run::pods::{Crowd, PodState, SimulatedPod};
use crate::simulate::run::traffic::requests::Part;
use crate::simulate::scenario::{Model, Router};

impl Simulation<'_> {
    /// The replica that the router sends a request to; `None` if none has room.
    pub(super) fn choose(&mut self, model: usize, id: u64, part: Part) -> Option<usize> {
        let Model { router, router_refresh, gateway, .. } = &self.scenario.models[model];
        let limit = gateway.per_replica;
        let ready = std::mem::take(&mut self.traffic[model].pool(part).ready);
        let chosen = match *router {
            Router::LeastRequests => self.least_loaded(&ready, limit),
            Router::LoraAffinity => {
                let adapter = self.traffic[model].get(id).and_then(|open| open.adapter);
                self.nearest(&ready, limit, adapter)
            }
            Router::RoundRobin => {
                let turn = self.take_turn(model, part, &ready, limit);
                let order = (0..ready.len()).map(|step| ready[(turn + step) % ready.len()]);
                order.into_iter().find(|&pod| self.pods[pod].has_room(limit))
            }
            Router::Random => {
                let open = self.with_room(&ready, limit);
                let routes = &mut self.traffic[model].routes;
                (!open.is_empty()).then(|| open[routes.random_range(0..open.len())])
            }
            Router::Sticky => {
                let open = self.with_room(&ready, limit);
                let session = self.traffic[model].get(id).map(|open| open.session);
                open.into_iter().max_by_key(|&pod| affinity(session.unwrap_or_default(), pod))
            }
            Router::KvAware => {
                let turn = self.take_turn(model, part, &ready, limit);
                self.refresh_view(model, part, &ready, *router_refresh);
                best_view(&self.pods, &ready, turn, |&pod| self.pods[pod].has_room(limit))
            }
        };

        self.traffic[model].pool(part).ready = ready;
        chosen
    }

    /// Returns the next turn of pods that take turns, and makes sure that their room is known.
    fn take_turn(
        &mut self,
        model: usize,
        part: Part,
        ready: &[usize],
        limit: Option<u32>,
    ) -> usize {
        self.catch_up_limited(ready, limit);
        let turn = &mut self.traffic[model].pool(part).turn;
        std::mem::replace(turn, turn.wrapping_add(1))
    }

    /// Advances the pods if a limit requires their current request counts.
    fn catch_up_limited(&mut self, ready: &[usize], limit: Option<u32>) {
        if limit.is_some() {
            for &pod in ready {
                self.catch_up(pod);
            }
        }
    }

    /// The pods that have room.
    fn with_room(&mut self, ready: &[usize], limit: Option<u32>) -> Vec<usize> {
        self.catch_up_limited(ready, limit);
        ready.iter().copied().filter(|&pod| self.pods[pod].has_room(limit)).collect()
    }

    /// The first of the pods with room and the fewest requests per seat.
    fn least_loaded(&mut self, ready: &[usize], limit: Option<u32>) -> Option<usize> {
        let mut best: Option<(usize, Crowd)> = None;
        for &place in ready {
            self.catch_up(place);
            let pod = &self.pods[place];
            let less = best.is_none_or(|(_, least)| pod.crowd.is_less_than(least));
            if less && pod.has_room(limit) {
                best = Some((place, pod.crowd));
            }
        }

        best.map(|(pod, _)| pod)
    }

    /// The first of the pods with room and the fewest requests per seat. Pods that have to load the
    /// adapter get a penalty.
    fn nearest(
        &mut self,
        ready: &[usize],
        limit: Option<u32>,
        adapter: Option<AdapterId>,
    ) -> Option<usize> {
        for &pod in ready {
            self.advance(pod);
        }
        let open = ready.iter().filter(|&&pod| self.pods[pod].has_room(limit));
        let loads = open.map(|&pod| (self.pods[pod].load_with(adapter), pod));
        loads.min_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, pod)| pod)
    }

    /// Advances a pod if its request count may be out of date.
    pub(super) fn catch_up(&mut self, pod: usize) {
        if self.pods[pod].quiet <= self.now {
            self.advance(pod);
        }
    }

    fn refresh_view(&mut self, model: usize, part: Part, ready: &[usize], refresh: Micros) {
        let looked = &mut self.traffic[model].pool(part).looked;
        if looked.is_some_and(|at| self.now.since(at) < refresh) {
            return;
        }

        *looked = Some(self.now);
        for &pod in ready {
            self.advance(pod);
            if !self.is_silent(pod) {
                self.pods[pod].look();
            }
        }
    }
}

impl SimulatedPod {
    /// Its requests per seat, plus a penalty if it has to load an adapter.
    fn load_with(&self, adapter: Option<AdapterId>) -> f64 {
        let held = self.replica.as_ref().zip(adapter).and_then(|(replica, it)| replica.holds(it));
        let detour = match held {
            Some(Holds::Loaded) | None => 0.0,
            Some(Holds::Free) => 0.1,
            Some(Holds::Others) => 0.5,
        };
        self.crowd.share() + detour
    }
}

/// The affinity of a session to a pod: the session goes to the pod with the largest value. When a
/// pod comes or goes, only sessions for which it has the largest value move (rendezvous hashing;
/// Thaler and Ravishankar, 1998).
const fn affinity(session: u32, pod: usize) -> u64 {
    mix(mix(session as u64) ^ pod as u64)
}

/// The replica with room that has the most free cache and the shortest queue, as of the last
/// refresh. Both terms range from 0 to 1; the queue is relative to the longest one. Ties take
/// turns.
fn best_view(
    pods: &[SimulatedPod],
    ready: &[usize],
    turn: usize,
    room: impl Fn(&usize) -> bool,
) -> Option<usize> {
    let longest = ready.iter().map(|&pod| pods[pod].seen.waiting).max().unwrap_or(0);
    let open = ready.iter().copied().filter(|pod| room(pod) && pods[*pod].state == PodState::Ready);
    let scores = open.map(|pod| (pod, score(pods[pod].seen, longest)));

    let least = scores.clone().map(|(_, score)| score).fold(f64::INFINITY, f64::min);
    let best = scores.filter(|(_, score)| *score <= least + 1e-9);
    let equal: Vec<usize> = best.map(|(pod, _)| pod).collect();
    equal.get(turn % equal.len().max(1)).copied()
}

/// The use of a replica's cache, and its queue as a share of the longest one.
fn score(seen: Gauges, longest: u32) -> f64 {
    let queue = if longest == 0 { 0.0 } else { f64::from(seen.waiting) / f64::from(longest) };
    seen.kv_usage + queue
}
