//! Routers: which replica a request goes to.

use crate::simulate::Micros;
use crate::simulate::run::Simulation;
use crate::simulate::run::pods::{Pod, State};
use crate::simulate::run::traffic::Part;
use crate::simulate::scenario::Router;

impl Simulation<'_> {
    /// The replica that the router sends the next request to; `None` when none takes it.
    pub(super) fn choose(&mut self, model: usize, part: Part) -> Option<usize> {
        let router = self.scenario.models[model].router;
        let limit = self.scenario.models[model].gateway.per_replica;
        let ready = std::mem::take(&mut self.traffic[model].pool(part).ready);
        if limit.is_some() || router == Router::LeastRequests {
            for &pod in &ready {
                if self.pods[pod].quiet <= self.now {
                    self.advance(pod);
                }
            }
        }
        if let Router::KvAware { refresh } = router {
            self.refresh_view(model, part, &ready, refresh);
        }
        let turn = self.traffic[model].pool(part).turn;
        let pods = &self.pods;
        let room = |&pod: &usize| limit.is_none_or(|limit| pods[pod].outstanding < limit);
        let chosen = match router {
            Router::RoundRobin => {
                let order = (0..ready.len()).map(|step| ready[(turn + step) % ready.len()]);
                order.into_iter().find(|pod| room(pod))
            }
            Router::LeastRequests => ready.iter().copied().filter(room).reduce(|best, pod| {
                if pods[pod].is_less_loaded_than(&pods[best]) { pod } else { best }
            }),
            Router::KvAware { .. } => best_view(pods, &ready, turn, room),
        };
        let pool = self.traffic[model].pool(part);
        pool.ready = ready;
        pool.turn = turn.wrapping_add(1);
        chosen
    }

    fn refresh_view(&mut self, model: usize, part: Part, ready: &[usize], refresh: Micros) {
        let looked = &mut self.traffic[model].pool(part).looked;
        if looked.is_some_and(|at| self.now.since(at) < refresh) {
            return;
        }
        *looked = Some(self.now);
        for &pod in ready {
            self.advance(pod);
            self.pods[pod].look();
        }
    }
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
