//! The surroundings of a world's replicas: router, clients, gateway, scrapes and the autoscaler.

use rand::RngExt as _;

use crate::simulate::scenario::Router;
use crate::study::worlds::distribution::DrawnOption;
use crate::study::worlds::lot::Lot;
use crate::study::worlds::machines::Machine;
use crate::study::worlds::numbers::{count, digits};
use crate::study::worlds::priors::{
    Aspect, AutoscalerPreset, CLIENTS, DELAY, DELAYS, FOLLOWERS, GATEWAYS, LOSS, LOSSES,
    PER_REPLICA, Patience, QueueAccess, RELAY, ROUTERS, SCRAPES, SESSIONS, TIMEOUT,
};

/// The retries of clients that retry.
const RETRIES: std::ops::RangeInclusive<u32> = 1..=3;

/// The surroundings of replicas.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorldSurroundings {
    pub(crate) router: DrawnOption<Router>,
    /// Sessions per replica of the mean need, if the router keeps sessions together.
    pub(crate) sessions: f64,
    pub(crate) clients: DrawnOption<ClientPatience>,
    pub(crate) gateway: WorldGateway,
    pub(crate) observation: ObservationPath,
    pub(crate) follower: DrawnOption<AutoscalerPreset>,
    /// The age in seconds of the values that the autoscaler reads.
    pub(crate) delay: DrawnOption<Option<f64>>,
}

/// The patience of clients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientPatience {
    /// Seconds.
    pub(crate) timeout: Option<f64>,
    pub(crate) retries: Option<u32>,
}

/// The queue for requests that no replica takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorldGateway {
    pub(crate) name: &'static str,
    /// Simultaneous requests that a replica gets.
    pub(crate) per_replica: Option<u32>,
    pub(crate) is_read: bool,
}

/// The daemon's observations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObservationPath {
    pub(crate) name: &'static str,
    /// The interval of Prometheus' scrapes and the delay of its samples; `None` without a
    /// Prometheus.
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

// === impl WorldSurroundings ===

impl WorldSurroundings {
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
            gateway: WorldGateway::draw(lot, machines[0].engine.max_num_seqs),
            observation: ObservationPath::draw(lot),
            follower: FOLLOWERS.draw(&mut lot.of(Aspect::Autoscaler)),
            delay: DrawnOption { name: delay.name, value: delay.value.then_some(old) },
        }
    }
}

fn clients(lot: Lot) -> DrawnOption<ClientPatience> {
    let mut random = lot.of(Aspect::Clients);
    let DrawnOption { name, value } = CLIENTS.draw(&mut random);
    let timeout = TIMEOUT.draw(&mut random).round();
    let retries = random.random_range(RETRIES);
    let clients = ClientPatience {
        timeout: (value != Patience::Patient).then_some(timeout),
        retries: (value == Patience::Retry).then_some(retries),
    };

    DrawnOption { name, value: clients }
}

// === impl WorldGateway ===

impl WorldGateway {
    fn draw(lot: Lot, seats: u32) -> Self {
        let mut random = lot.of(Aspect::Gateway);
        let DrawnOption { name, value } = GATEWAYS.draw(&mut random);
        let drawn = count(f64::from(seats) * PER_REPLICA.draw(&mut random));
        let per_replica = (value != QueueAccess::None).then_some(drawn);
        Self { name, per_replica, is_read: value == QueueAccess::Readable }
    }

    /// Simultaneous requests that a replica gets.
    pub(crate) fn at_once(&self) -> u32 {
        self.per_replica.unwrap_or(u32::MAX)
    }
}

// === impl ObservationPath ===

impl ObservationPath {
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
