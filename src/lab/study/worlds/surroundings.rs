//! What is around the replicas of a world: router, clients, gateway, scrapes and the autoscaler.

use rand::RngExt as _;

use crate::simulate::scenario::Router;
use crate::study::worlds::course::digits;
use crate::study::worlds::lot::{Chosen, Lot};
use crate::study::worlds::machines::{Machine, count};
use crate::study::worlds::priors::{
    Aspect, CLIENTS, DELAY, DELAYS, FOLLOWERS, Follower, GATEWAYS, LOSS, LOSSES, PER_REPLICA,
    Patience, Queue, RELAY, ROUTERS, SCRAPES, SESSIONS, TIMEOUT,
};

/// How often clients try again that do.
const RETRIES: std::ops::RangeInclusive<u32> = 1..=3;

/// What is around replicas.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Surroundings {
    pub(crate) router: Chosen<Router>,
    /// Sessions for each replica of the mean need, where the router keeps them together.
    pub(crate) sessions: f64,
    pub(crate) clients: Chosen<Clients>,
    pub(crate) gateway: Gateway,
    pub(crate) observation: Observation,
    pub(crate) follower: Chosen<Follower>,
    /// How many seconds old the values are that the autoscaler reads.
    pub(crate) delay: Chosen<Option<f64>>,
}

/// How patient clients are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clients {
    /// Seconds.
    pub(crate) timeout: Option<f64>,
    pub(crate) retries: Option<u32>,
}

/// What holds requests that no replica takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gateway {
    pub(crate) name: &'static str,
    /// Requests that a replica gets at once.
    pub(crate) per_replica: Option<u32>,
    pub(crate) is_read: bool,
}

/// What the daemon sees.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observation {
    pub(crate) name: &'static str,
    /// Seconds from one scrape of Prometheus to the next, and that its samples are late.
    pub(crate) prometheus: Option<Prometheus>,
    pub(crate) losses: &'static str,
    /// The share of scrapes that are lost.
    pub(crate) loss: f64,
}

/// A Prometheus between replicas and the daemon.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prometheus {
    /// Seconds.
    pub(crate) interval: u64,
    /// Seconds.
    pub(crate) late: f64,
}

// === impl Surroundings ===

impl Surroundings {
    pub(crate) fn draw(lot: Lot, machines: &[Machine]) -> Self {
        let mut random = lot.of(Aspect::AutoscalerDelay);
        let delay = DELAYS.draw(&mut random);
        let old = DELAY.draw(&mut random).round();
        let mut random = lot.of(Aspect::Router);
        let router = ROUTERS.draw(&mut random);
        Self {
            router,
            sessions: SESSIONS.draw(&mut random),
            clients: clients(lot),
            gateway: Gateway::draw(lot, machines[0].engine.max_num_seqs),
            observation: Observation::draw(lot),
            follower: FOLLOWERS.draw(&mut lot.of(Aspect::Autoscaler)),
            delay: Chosen { name: delay.name, value: delay.value.then_some(old) },
        }
    }
}

fn clients(lot: Lot) -> Chosen<Clients> {
    let mut random = lot.of(Aspect::Clients);
    let Chosen { name, value } = CLIENTS.draw(&mut random);
    let timeout = TIMEOUT.draw(&mut random).round();
    let retries = random.random_range(RETRIES);
    let value = Clients {
        timeout: (value != Patience::Patient).then_some(timeout),
        retries: (value == Patience::Retry).then_some(retries),
    };
    Chosen { name, value }
}

// === impl Gateway ===

impl Gateway {
    fn draw(lot: Lot, seats: u32) -> Self {
        let mut random = lot.of(Aspect::Gateway);
        let Chosen { name, value } = GATEWAYS.draw(&mut random);
        let per_replica = count(f64::from(seats) * PER_REPLICA.draw(&mut random));
        let per_replica = (value != Queue::None).then_some(per_replica);
        Self { name, per_replica, is_read: value == Queue::Readable }
    }

    /// Requests that a replica gets at once.
    pub(crate) fn at_once(&self) -> u32 {
        self.per_replica.unwrap_or(u32::MAX)
    }
}

// === impl Observation ===

impl Observation {
    fn draw(lot: Lot) -> Self {
        let mut random = lot.of(Aspect::Scrape);
        let scrapes = SCRAPES.draw(&mut random);
        let late = RELAY.draw(&mut random).round();
        let prometheus = scrapes.value.map(|interval| Prometheus { interval, late });

        let mut random = lot.of(Aspect::ScrapeLoss);
        let losses = LOSSES.draw(&mut random);
        let loss = if losses.value { digits(LOSS.draw(&mut random), 2) } else { 0.0 };
        Self { name: scrapes.name, prometheus, losses: losses.name, loss }
    }
}
