//! Which adapter a request asks for.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use crate::demo::scenario::{Adapter, Adapters};
use crate::simulate::replica::adapters::AdapterId;

/// Tells this generator from those of the arrivals, under one seed.
const ADAPTERS: u64 = 4;

/// Draws adapters by their weights. Draws of one seed do not depend on how replicas are scaled,
/// because requests arrive in the same order.
#[derive(Clone, Debug)]
pub(super) struct Choice(Pcg64);

impl Choice {
    pub(super) fn new(seed: u64, model: usize) -> Self {
        let seed = seed.wrapping_mul(1_000).wrapping_add(model as u64);
        Self(Pcg64::seed_from_u64(seed ^ ADAPTERS))
    }

    /// The adapter of the next request at this turn of the wave; `None` where there is none.
    pub(super) fn draw(&mut self, adapters: Option<&Adapters>, turn: f64) -> Option<AdapterId> {
        let Adapters { all, .. } = adapters?;
        let weight = |it: &Adapter| {
            if (it.from..it.until).contains(&turn) { it.weight } else { 0.0 }
        };
        let total: f64 = all.iter().map(weight).sum();
        let mut left = self.0.random::<f64>() * total;
        let chosen = all.iter().position(|it| {
            left -= weight(it);
            left < 0.0
        });
        AdapterId::new(u8::try_from(chosen?).ok()?)
    }
}
