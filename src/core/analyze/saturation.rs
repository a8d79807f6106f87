//! Saturation analysis: KV-cache headroom and queue headroom.
//!
//! [`analyze`] turns the peaks of a model's replicas into a [`SaturationAnalysis`]: the headroom of
//! the KV cache and of the queue, whether it is too low, and whether it would suffice with one
//! replica less. [`targets()`] turns the analysis and the state of each variant into one
//! [`SaturationTarget`] per variant. Both are pure, and neither depends on the order of its input.
//!
//! One call covers the variants of one model that have one [`Role`](crate::fleet::Role). A model
//! with separate prefill and decode is analyzed once for each role: `both`, then `decode`, then
//! `prefill`. The reason is that an idle decoder adds no headroom for prompts.
//!
//! # Model
//!
//! A replica is saturated when its KV cache usage or its queue has reached its threshold. The
//! headroom of a replica that is not saturated is the distance to the thresholds. A saturated
//! replica has none and is excluded from the means. The model needs one more replica if either mean
//! headroom is below its trigger.
//!
//! One replica less is safe when, with `N` the number of replicas that are not saturated,
//!
//! ```text
//! N >= 2
//! load   = (threshold - mean spare) * N / (N - 1)
//! threshold - load >= trigger            for the KV cache and for the queue
//! ```
//!
//! so the load of the removed replica is spread evenly over the remaining replicas. Saturated
//! replicas are excluded here also: the other replicas can't take over their load, and they have no
//! room.
//!
//! # Units
//!
//! The KV cache is a share of the whole, the queue is requests. Both are peaks over the window, so
//! the peaks of two replicas may be at different times, and the model overestimates the load.
//!
//! # Source
//!
//! The saturation analyzer of llm-d's Workload Variant Autoscaler. `docs/decisions.md` explains
//! each intentional difference.

mod analysis;
mod explain;
mod targets;

#[cfg(test)]
mod tests;

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::BTreeMap;

use crate::fleet::{ReplicaKey, VariantKey};
use crate::settings;
use crate::settings::{Written, above_zero, hours, minutes, secs};
use crate::units::{Fraction, Replicas, Requests, Seconds};

pub use crate::analyze::saturation::analysis::{
    ByVariant, SaturationAnalysis, SpareCapacity, VariantAnalysis,
};
pub use crate::analyze::saturation::explain::{
    NoMeasurement, SCALE_DOWN_MIN, SaturationOutcome, ScaleDown, SpareEnough, SpareKept, SpareLow,
    SpareTight, TightLoad, Transition,
};
pub use crate::analyze::saturation::targets::{
    SaturationTarget, SaturationVariant, TransitionPatience, TransitionRule, targets,
};

/// More waiting requests than any engine holds.
const QUEUE_LENGTH_MAX: f64 = 1e6;

/// Declares sections that each have the keys of thresholds, and further keys.
macro_rules! with_thresholds {
    ($($(#[$($meta:tt)*])* pub struct $name:ident { $($more:tt)* })*) => {
        settings! {$(
            $(#[$($meta)*])*
            pub struct $name {
                /// KV cache usage from which a replica is saturated, as a share of the cache.
                kv_cache as "kv_cache_threshold": Fraction = 0.80, in above_zero(1.0);

                /// Waiting requests from which a replica is saturated.
                queue_length as "queue_length_threshold": Requests = 5.0,
                    in above_zero(QUEUE_LENGTH_MAX);

                /// Mean KV-cache headroom below which the model scales up, as a share of the cache.
                kv_spare as "kv_spare_trigger": Fraction = 0.10, in above_zero(1.0);

                /// Mean queue headroom below which the model scales up, in requests.
                queue_spare as "queue_spare_trigger": Requests = 3.0,
                    in above_zero(QUEUE_LENGTH_MAX);

                $($more)*
            }
        )*}
    };
}

with_thresholds! {
    /// Saturation thresholds of replicas, and the headroom that a model keeps.
    #[derive(Copy)]
    pub struct Thresholds {}

    /// Saturation thresholds of replicas, and the headroom that a model keeps.
    pub struct Saturation {
        /// Unfinished earlier decisions that block new ones.
        transition: TransitionRule = TransitionRule::PendingOnly;

        /// Time after which an unactuated earlier decision stops blocking, or twice the variant's
        /// `start_time` if that is longer. Once three starts were measured, twice their 90th
        /// percentile counts instead.
        // The time that a replica of a large model takes to start.
        transition_patience: Seconds = minutes(5), in secs(1)..=hours(24);

        /// Thresholds of single models, by `MODEL#NAMESPACE`, over those above.
        overrides: BTreeMap<String, Option<Written<Thresholds>>>;
    }
}

/// The peak load of one replica.
///
/// Leave out a replica that does not report both values: its load is unknown. A zero in its place
/// would mean that it is idle.
#[derive(Clone, Debug, PartialEq)]
pub struct SaturationReplicaLoad<K = ReplicaKey> {
    /// The replica, or a reference to it.
    pub replica: K,
    /// The peak KV cache usage, as a share of the cache.
    pub kv: Fraction,
    /// The peak number of waiting requests.
    pub queue: Requests,
}

/// Analyzes the replicas of one model and role.
pub fn analyze<K: Borrow<ReplicaKey>>(
    replicas: &[SaturationReplicaLoad<K>],
    thresholds: &Thresholds,
) -> SaturationAnalysis {
    // The last digits of a sum depend on the order of its terms, and a comparison with a trigger
    // may depend on the last digit.
    let variants = if replicas.is_sorted_by(|a, b| order(a, b).is_le()) {
        analyze_variants::<K, _>(replicas, thresholds)
    } else {
        let mut sorted: Vec<&SaturationReplicaLoad<K>> = replicas.iter().collect();
        sorted.sort_unstable_by(|a, b| order(a, b));
        analyze_variants::<K, _>(&sorted, thresholds)
    };

    let measured = variants.values().map(|variant| variant.measured).sum();
    let non_saturated = variants.values().map(|variant| variant.non_saturated).sum();
    let spare = mean_spare(&variants, non_saturated);
    let scale_up = if measured == Replicas::ZERO { None } else { spare_low(spare, thresholds) };
    let scale_down = without_one(spare, non_saturated, thresholds);
    SaturationAnalysis { variants, measured, non_saturated, spare, scale_up, scale_down }
}

fn order<K: Borrow<ReplicaKey>>(
    a: &SaturationReplicaLoad<K>,
    b: &SaturationReplicaLoad<K>,
) -> Ordering {
    (a.replica.borrow().cmp(b.replica.borrow()))
        .then(a.kv.compare(b.kv))
        .then(a.queue.compare(b.queue))
}

/// Analyzes the replicas of each variant, in key order.
fn analyze_variants<K: Borrow<ReplicaKey>, L: Borrow<SaturationReplicaLoad<K>>>(
    sorted: &[L],
    thresholds: &Thresholds,
) -> ByVariant {
    let by_variant = sorted.chunk_by(|a, b| variant::<K>(a.borrow()) == variant::<K>(b.borrow()));
    ByVariant::from_sorted(by_variant.filter_map(|loads| {
        let first = variant::<K>(loads.first()?.borrow());
        Some((first.clone(), analyze_variant::<K, L>(loads, thresholds)))
    }))
}

fn variant<K: Borrow<ReplicaKey>>(load: &SaturationReplicaLoad<K>) -> &VariantKey {
    &load.replica.borrow().variant
}

/// Analyzes the replicas of one variant in their order. There is at least one.
fn analyze_variant<K: Borrow<ReplicaKey>, L: Borrow<SaturationReplicaLoad<K>>>(
    loads: &[L],
    thresholds: &Thresholds,
) -> VariantAnalysis {
    let measured = Replicas::capped(loads.len());
    let mut saturated = Vec::new();
    let mut rest = 0;
    let mut spare_kv = Fraction::ZERO;
    let mut spare_queue = Requests::ZERO;
    let mut kv_sum = Fraction::ZERO;
    let mut kv_max = Fraction::ZERO;
    let mut queue_max = Requests::ZERO;

    for load in loads.iter().map(Borrow::<SaturationReplicaLoad<K>>::borrow) {
        kv_sum += load.kv;
        kv_max = kv_max.max(load.kv);
        queue_max = queue_max.max(load.queue);
        if is_saturated(load, thresholds) {
            saturated.push(load.replica.borrow().clone());
        } else {
            rest += 1;
            spare_kv += fraction(thresholds.kv_cache.fraction() - load.kv.fraction());
            spare_queue += requests(thresholds.queue_length.requests() - load.queue.requests());
        }
    }

    let non_saturated = Replicas::capped(rest);
    VariantAnalysis {
        measured,
        saturated,
        non_saturated,
        spare: SpareCapacity {
            kv: fraction(mean(spare_kv.fraction(), non_saturated)),
            queue: requests(mean(spare_queue.requests(), non_saturated)),
        },
        kv_max,
        kv_mean: fraction(mean(kv_sum.fraction(), measured)),
        queue_max,
    }
}

/// Returns true if a replica has reached either threshold, both included.
fn is_saturated<K>(load: &SaturationReplicaLoad<K>, thresholds: &Thresholds) -> bool {
    load.kv >= thresholds.kv_cache || load.queue >= thresholds.queue_length
}

/// The mean headroom over all replicas that are not saturated, each with the same weight.
fn mean_spare(variants: &ByVariant, non_saturated: Replicas) -> SpareCapacity {
    let kv: Fraction = variants
        .values()
        .map(|variant| fraction(variant.spare.kv.fraction() * weight(variant)))
        .sum();
    let queue: Requests = variants
        .values()
        .map(|variant| requests(variant.spare.queue.requests() * weight(variant)))
        .sum();

    SpareCapacity {
        kv: fraction(mean(kv.fraction(), non_saturated)),
        queue: requests(mean(queue.requests(), non_saturated)),
    }
}

fn weight(variant: &VariantAnalysis) -> f64 {
    f64::from(variant.non_saturated.count())
}

/// The mean headroom below its trigger, if any; headroom equal to its trigger is sufficient.
fn spare_low(spare: SpareCapacity, thresholds: &Thresholds) -> Option<SpareLow> {
    let kv = (spare.kv < thresholds.kv_spare).then_some((spare.kv, thresholds.kv_spare));
    let queue =
        (spare.queue < thresholds.queue_spare).then_some((spare.queue, thresholds.queue_spare));
    (kv.is_some() || queue.is_some()).then_some(SpareLow { kv, queue })
}

/// The verdict on one replica less; headroom equal to its trigger is sufficient.
fn without_one(
    spare: SpareCapacity,
    non_saturated: Replicas,
    thresholds: &Thresholds,
) -> ScaleDown {
    if non_saturated < SCALE_DOWN_MIN {
        return ScaleDown::TooFew { non_saturated };
    }

    let staying = f64::from(non_saturated.down().count());
    let growth = f64::from(non_saturated.count()) / staying;
    let kv_load = (thresholds.kv_cache.fraction() - spare.kv.fraction()) * growth;
    let queue_load = (thresholds.queue_length.requests() - spare.queue.requests()) * growth;
    let kv_left = thresholds.kv_cache.fraction() - kv_load;
    let queue_left = thresholds.queue_length.requests() - queue_load;

    let kv = (kv_left < thresholds.kv_spare.fraction()).then(|| TightLoad {
        load: fraction(kv_load),
        threshold: thresholds.kv_cache,
        trigger: thresholds.kv_spare,
    });
    let queue = (queue_left < thresholds.queue_spare.requests()).then(|| TightLoad {
        load: requests(queue_load),
        threshold: thresholds.queue_length,
        trigger: thresholds.queue_spare,
    });

    if kv.is_some() || queue.is_some() {
        ScaleDown::Unsafe(SpareTight { kv, queue })
    } else {
        ScaleDown::Safe(SpareEnough { kv: fraction(kv_left), queue: requests(queue_left) })
    }
}

/// The mean of `number` terms with this sum; zero if there are none.
fn mean(sum: f64, number: Replicas) -> f64 {
    if number == Replicas::ZERO { 0.0 } else { sum / f64::from(number.count()) }
}

/// The closest valid share: rounding may yield a value just below zero, and a product may be
/// infinite.
fn fraction(value: f64) -> Fraction {
    Fraction::new(value.clamp(0.0, f64::MAX)).unwrap_or_default()
}

/// The closest valid number of requests, as for [`fraction`].
fn requests(value: f64) -> Requests {
    Requests::new(value.clamp(0.0, f64::MAX)).unwrap_or_default()
}
