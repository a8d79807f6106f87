//! The lifecycle of replicas: how they start, stop and fail, and when their metrics can't be read.

use std::ops::RangeInclusive;
use std::time::Duration;

use rand_pcg::Pcg64;

use crate::simulate::Micros;
use crate::simulate::random::normal;
use crate::simulate::scenario::ranges::{FACTORS, SPANS};
use plimsoll_core::settings;
use plimsoll_core::settings::{minutes, secs};
use plimsoll_core::units::Fraction;

/// `terminationGracePeriodSeconds`.
const GRACE: Duration = secs(30);

/// Replica numbers, in the order in which the replicas were created.
const NUMBERS: RangeInclusive<u32> = 1..=1_000_000;

settings! {
    /// How replicas start. The phases follow each other, and each is a lognormal span with this
    /// median.
    #[derive(Copy)]
    pub struct Startup {
        /// Replicas for which there is room without waiting for a node; without it, any number.
        warm_nodes: Option<u32>;

        /// Until there is a node, where there is none.
        node: Micros, in SPANS;

        /// Until the image is there.
        image: Micros, in SPANS;

        /// Until the weights are loaded.
        load: Micros, in SPANS;

        /// Until the engine has compiled and captured what it needs, and answers.
        warmup: Micros, in SPANS;

        /// The standard deviation of the logarithm of each.
        sigma: f64 = 0.0, in 0.0..=3.0;

        /// The share of starts that fail: the process ends when it could serve, and starts again as
        /// after a crash.
        failures: Fraction = 0.0, in 0.0..=1.0;
    }

    /// How replicas stop and fail.
    #[derive(Copy)]
    pub struct Lifecycle {
        /// How long a replica that is taken away may finish what it has.
        grace: Micros = GRACE, in SPANS;

        /// The mean time between crashes of one replica, which then starts again where it is;
        /// without it, there are none.
        crash_every: Option<Micros>, in SPANS;

        /// The mean time until a replica is told that its node is taken back; without it, none is.
        interrupt_every: Option<Micros>, in SPANS;

        /// The share of the variant's other replicas whose nodes are taken back at the same time.
        interrupt_together: Fraction = 0.0, in 0.0..=1.0;

        /// How long the replica may drain before its node is gone; it ends sooner once it is empty.
        // The notice that the large clouds give before a spot instance ends.
        notice: Micros = minutes(2), in SPANS;

        /// When its engines slow down; without it, they do not.
        slowdown: Option<Slowdown>;

        /// When replicas begin to die again and again; without it, none does.
        crash_loop: Option<CrashLoop>;

        /// When the metrics of replicas that serve cannot be read; without it, they can.
        silence: Option<Silence>;
    }

    /// A time in which steps of engines take longer.
    #[derive(Copy)]
    pub struct Slowdown {
        /// When it begins.
        from as "at": Micros, in SPANS, required;

        /// When it ends; without it, never.
        until: Option<Micros>, in SPANS;

        /// How many times as long a step takes.
        factor: f64, in FACTORS, required;

        /// Whose engine it is: the first replica that was created is 1. Without it, all are.
        replica: Option<u32>, in NUMBERS;
    }

    /// A time in which replicas die again and again. Each starts again where it is, after a
    /// back-off that doubles from ten seconds to five minutes.
    #[derive(Copy, Eq)]
    pub struct CrashLoop {
        /// When it begins.
        from as "at": Micros, in SPANS, required;

        /// When it ends, and replicas live; without it, never.
        until: Option<Micros>, in SPANS;

        /// How long a replica serves before it dies; without it, it dies when it could serve.
        serves: Micros, in SPANS;

        /// Which replica it is: the first that was created is 1. Without it, all are.
        replica: Option<u32>, in NUMBERS;
    }

    /// A time in which the metrics of replicas cannot be read, while they serve.
    #[derive(Copy, Eq)]
    pub struct Silence {
        /// When it begins.
        from as "at": Micros, in SPANS, required;

        /// How long it lasts.
        length: Micros, in SPANS, required;

        /// Which replica it is: the first that was created is 1. Without it, all are.
        replica: Option<u32>, in NUMBERS;
    }

    /// A time in which the metrics of replicas can't be read, neither by the daemon nor by another
    /// autoscaler.
    #[derive(Copy, Eq)]
    pub struct Outage {
        /// When it begins.
        from as "at": Micros, in SPANS, required;

        /// How long it lasts.
        length: Micros, in SPANS, required;
    }
}

// === impl Startup ===

impl Startup {
    /// Draws the duration of a start-up phase with this median.
    pub fn draw(&self, median: Micros, random: &mut Pcg64) -> Micros {
        if self.sigma <= 0.0 {
            return median;
        }
        Micros::from_secs_f64(median.seconds() * (self.sigma * normal(random)).exp())
    }

    /// Returns true if the last of this many replicas need not wait for a node.
    pub(crate) fn has_warm_node(&self, replicas: usize) -> bool {
        self.warm_nodes.is_none_or(|nodes| replicas <= nodes as usize)
    }
}

// === impl Slowdown, CrashLoop, Silence ===

impl Slowdown {
    /// Returns true if the fault affects the replica with this number at a time.
    #[must_use]
    pub fn covers(&self, at: Micros, number: u32) -> bool {
        let lasts = self.until.is_none_or(|until| at < until);
        self.from <= at && lasts && self.replica.is_none_or(|replica| replica == number)
    }
}

impl CrashLoop {
    /// Returns true if the fault affects the replica with this number at a time.
    #[must_use]
    pub fn covers(&self, at: Micros, number: u32) -> bool {
        let lasts = self.until.is_none_or(|until| at < until);
        self.from <= at && lasts && self.replica.is_none_or(|replica| replica == number)
    }
}

impl Silence {
    /// Returns true if the fault affects the replica with this number at a time.
    #[must_use]
    pub fn covers(&self, at: Micros, number: u32) -> bool {
        let lasts = (self.from..self.from + self.length).contains(&at);
        lasts && self.replica.is_none_or(|replica| replica == number)
    }
}

// === impl Outage ===

impl Outage {
    /// Returns true if the outage is active at a time.
    #[must_use]
    pub fn covers(&self, at: Micros) -> bool {
        (self.from..self.from + self.length).contains(&at)
    }
}
