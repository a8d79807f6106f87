//! Routers: which replica a request goes to.

use rand::RngExt;

use crate::simulate::Micros;
use crate::simulate::random::mix;
use crate::simulate::replica::adapters::{AdapterId, Holds};
use crate::simulate::run::Simulation;
use crate::simulate::run::pods::{Crowd, Pod, State};
use crate::simulate::run::traffic::Part;
use crate::simulate::scenario::{Model, Router};

impl Simulation<'_> {
    /// The replica that the router sends a request to; `None` when none takes it.
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

    /// The turn of a request among pods that take turns; whether they have room is known then.
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

    /// Advances pods whose requests are counted, because there is a limit.
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

    /// The first of the pods with room that have the fewest requests for their seats.
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

    /// The first of the pods with room that have the fewest requests for their seats, those counted as
    /// more that have to load the adapter.
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

    /// Advances a pod of which a router may not know how many requests it has.
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

impl Pod {
    /// Its requests for each seat, and more where it has to load an adapter.
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

/// How near a session is to a pod: it goes to the nearest, and when a pod comes or goes no session moves
/// that is nearer to another (rendezvous hashing; Thaler and Ravishankar, 1998).
const fn affinity(session: u32, pod: usize) -> u64 {
    mix(mix(session as u64) ^ pod as u64)
}

/// The replica with the most free cache and the shortest queue of those that have room, by what was
/// last seen. Both count from 0 to 1, the queue by the longest there is; equals take turns.
fn best_view(
    pods: &[Pod],
    ready: &[usize],
    turn: usize,
    room: impl Fn(&usize) -> bool,
) -> Option<usize> {
    let open = |pod: &&usize| room(pod) && pods[**pod].state == State::Ready;
    let longest = ready.iter().map(|&pod| pods[pod].seen.waiting).max().unwrap_or(0);
    let score = |pod: usize| {
        let seen = pods[pod].seen;
        let queue = if longest == 0 { 0.0 } else { f64::from(seen.waiting) / f64::from(longest) };
        seen.kv_usage + queue
    };
    let least = ready.iter().filter(open).map(|&pod| score(pod)).fold(f64::INFINITY, f64::min);
    let equal: Vec<usize> =
        ready.iter().filter(open).copied().filter(|&pod| score(pod) <= least + 1e-9).collect();
    equal.get(turn % equal.len().max(1)).copied()
}
