//! The saturation analysis of prepared observations.

use std::hint::black_box;

use plimsoll::analyze::saturation::{
    self, Patience, ReplicaLoad, Thresholds, TransitionRule, VariantState,
};
use plimsoll::units::{Fraction, Replicas, Requests};

use crate::world::{REPLICAS, replicas, spec};

/// The loads and states of one model.
pub(crate) type Prepared = (Vec<ReplicaLoad>, VariantState);

/// What the analysis is given for each model, when everything has been measured.
pub(crate) fn prepared(variants: u32) -> Vec<Prepared> {
    let prepare = |index: u32| {
        let spec = spec(index);
        let loads = (0_u32..).zip(replicas(&spec.key)).map(|(place, replica)| ReplicaLoad {
            replica,
            kv: Fraction::new(0.3 + f64::from((index + 7 * place) % 60) / 100.0).expect("a share"),
            queue: Requests::new(f64::from((index + place) % 6)).expect("a number"),
        });
        let state = VariantState {
            key: spec.key.clone(),
            current: Replicas::saturating(REPLICAS),
            pending: Replicas::ZERO,
            desired: None,
            patience: Patience::Left,
            cost: spec.cost,
            bounds: spec.bounds,
        };
        (loads.collect(), state)
    };
    (0..variants).map(prepare).collect()
}

/// One decision for every model.
pub(crate) fn saturation(prepared: &[Prepared], thresholds: &Thresholds) {
    for (loads, state) in prepared {
        let analysis = saturation::analyze(loads, thresholds);
        let rule = TransitionRule::PendingOnly;
        black_box(saturation::targets(&analysis, std::slice::from_ref(state), rule));
    }
}
