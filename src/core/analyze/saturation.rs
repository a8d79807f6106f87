//! Saturation in per cent: spare KV cache and spare queue.
//!
//! [`analyze`] turns the peaks of a model's replicas into an [`Analysis`]: how much of the KV cache
//! and of the queue is spare, whether that is too little, and whether it would still be enough
//! with one replica less. [`targets`] turns the analysis and the state of each variant into one
//! [`Target`] a variant. Both are pure, and neither depends on the order of its input.
//!
//! One call looks at the variants of one model that have one [`Role`](crate::fleet::Role). A model
//! with separate prefill and decode is analysed once for each role (`both`, then `decode`, then
//! `prefill`), because an idle decoder is no spare capacity for prompts.
//!
//! # Model
//!
//! A replica is saturated when its KV cache usage or its queue has reached its threshold. The spare
//! of a replica that is not saturated is what is left up to the thresholds; a saturated replica has
//! none and does not enter the means. The model needs a replica more when either mean spare is
//! below its trigger.
//!
//! One replica less is safe when, with `N` the number of replicas that are not saturated,
//!
//! ```text
//! N >= 2
//! load   = (threshold - mean spare) * N / (N - 1)
//! threshold - load >= trigger            for the KV cache and for the queue
//! ```
//!
//! so the load of the one that goes is spread evenly over those that stay. A saturated replica is
//! left out here as well: it is load that none of the others can take over, and room that does not
//! exist.
//!
//! # Units
//!
//! The KV cache is a share of the whole, the queue is requests. Both are peaks over the window, so
//! the peaks of two replicas need not have been at one time, and the model errs towards more.
//!
//! # Source
//!
//! The saturation analyzer of llm-d's Workload Variant Autoscaler. Where this module answers
//! otherwise on purpose, `docs/decisions.md` says why.

mod by_variant;
mod explain;
mod targets;

#[cfg(test)]
mod tests;

use std::borrow::Borrow;
use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::fleet::ReplicaKey;
use crate::settings;
use crate::settings::{Written, above_zero, hours, minutes, secs};
use crate::units::{Fraction, Replicas, Requests, Seconds};

pub use crate::analyze::saturation::by_variant::ByVariant;
pub use crate::analyze::saturation::explain::{
    Outcome, ScaleDown, SpareEnough, SpareKept, SpareLow, SpareTight, Tight, Transition, Unmeasured,
};
pub use crate::analyze::saturation::targets::{Patience, Target, VariantState, targets};

/// Replicas with spare capacity that there must be before one may go: the load of the last one
/// could be spread over nobody.
pub const SCALE_DOWN_MIN: Replicas = Replicas::ONE.up();

/// More waiting requests than any engine holds.
const QUEUE_LENGTH_MAX: f64 = 1e6;

/// Declares sections of which each has the keys of thresholds, and some more.
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

        /// Time after which an earlier decision that is not carried out stops blocking.
        // The time in which a replica of a large model starts.
        transition_patience: Seconds = minutes(5), in secs(1)..=hours(24);

        /// Thresholds of single models, by `MODEL#NAMESPACE`, over those above.
        overrides: BTreeMap<String, Option<Written<Thresholds>>>;
    }
}

/// What blocks new decisions while an earlier one is being carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TransitionRule {
    /// One variant whose replicas are not what was decided, or do not all report, blocks every
    /// variant of the model.
    ModelWide,
    /// A variant whose replicas are not what was decided keeps that decision; the others go on.
    PerVariant,
    /// The model waits while any of its variants has replicas that are not ready yet.
    // A wish that is not carried out blocks as well, if the caller states one. The pipeline states
    // none under this rule, because the rule needs no memory: a target is the present number, one
    // more or one less, so asking twice asks for the same.
    #[default]
    PendingOnly,
}

settings! { plain: TransitionRule; }

/// What one replica carries at its peak.
///
/// A replica that does not report both numbers has no load that could be stated here. Leaving it
/// out says that it is unknown; a zero in its place would say that it is idle.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicaLoad {
    /// Which replica.
    pub replica: ReplicaKey,
    /// The largest share of its KV cache that was in use.
    pub kv: Fraction,
    /// The largest number of requests that waited.
    pub queue: Requests,
}

/// Spare capacity: what is left up to the thresholds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spare {
    /// Of the KV cache.
    pub kv: Fraction,
    /// Of the queue.
    pub queue: Requests,
}

/// What the replicas of one variant say.
#[derive(Clone, Debug, PartialEq)]
pub struct VariantAnalysis {
    /// Replicas that were measured.
    pub measured: Replicas,
    /// Those of them that are saturated, in the order of their keys.
    pub saturated: Vec<ReplicaKey>,
    /// Those of them that are not.
    pub non_saturated: Replicas,
    /// Mean spare of the replicas that are not saturated; nothing when there are none.
    pub spare: Spare,
    /// Largest KV cache usage of any replica.
    pub kv_max: Fraction,
    /// Mean KV cache usage of all replicas.
    pub kv_mean: Fraction,
    /// Longest queue of any replica.
    pub queue_max: Requests,
}

/// What the replicas of a model say.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub struct Analysis {
    /// Each variant of which at least one replica was measured.
    pub variants: ByVariant,
    /// Replicas that were measured.
    pub measured: Replicas,
    /// Those of them that are not saturated.
    pub non_saturated: Replicas,
    /// Mean spare of the replicas that are not saturated; nothing when there are none.
    pub spare: Spare,
    /// Which spare is low; `None` when neither is, or when nothing was measured.
    pub scale_up: Option<SpareLow>,
    /// Whether enough would be left without one replica. It is answered even when spare is low,
    /// where low spare comes first.
    pub scale_down: ScaleDown,
}

/// Analyses the replicas of one model and role.
pub fn analyze(replicas: &[ReplicaLoad], thresholds: &Thresholds) -> Analysis {
    // The last digits of a sum depend on the order of its terms, and a comparison with a trigger
    // may depend on the last digit.
    let order = |a: &ReplicaLoad, b: &ReplicaLoad| {
        (a.replica.cmp(&b.replica)).then(a.kv.compare(b.kv)).then(a.queue.compare(b.queue))
    };
    let variants = if replicas.is_sorted_by(|a, b| order(a, b).is_le()) {
        analyze_variants(replicas, thresholds)
    } else {
        let mut sorted: Vec<&ReplicaLoad> = replicas.iter().collect();
        sorted.sort_unstable_by(|a, b| order(a, b));
        analyze_variants(&sorted, thresholds)
    };

    let measured = variants.values().map(|variant| variant.measured).sum();
    let non_saturated = variants.values().map(|variant| variant.non_saturated).sum();
    let spare = mean_spare(&variants, non_saturated);
    let scale_up = if measured == Replicas::ZERO { None } else { spare_low(spare, thresholds) };
    let scale_down = without_one(spare, non_saturated, thresholds);
    Analysis { variants, measured, non_saturated, spare, scale_up, scale_down }
}

/// Analyses the replicas of each variant, in the order of their keys.
fn analyze_variants<L: Borrow<ReplicaLoad>>(sorted: &[L], thresholds: &Thresholds) -> ByVariant {
    let is_one = |a: &L, b: &L| a.borrow().replica.variant == b.borrow().replica.variant;
    ByVariant::from_sorted(sorted.chunk_by(is_one).filter_map(|loads| {
        let variant = loads.first()?.borrow().replica.variant.clone();
        Some((variant, analyze_variant(loads, thresholds)))
    }))
}

/// Analyses the replicas of one variant, of which there is at least one, in their order.
fn analyze_variant<L: Borrow<ReplicaLoad>>(
    loads: &[L],
    thresholds: &Thresholds,
) -> VariantAnalysis {
    let measured = count(loads.len());
    let (mut saturated, mut rest) = (Vec::new(), 0);
    let (mut spare_kv, mut spare_queue) = (Fraction::ZERO, Requests::ZERO);
    let (mut kv_sum, mut kv_max, mut queue_max) = (Fraction::ZERO, Fraction::ZERO, Requests::ZERO);
    for load in loads {
        let load: &ReplicaLoad = load.borrow();
        kv_sum += load.kv;
        kv_max = kv_max.max(load.kv);
        queue_max = queue_max.max(load.queue);
        if is_saturated(load, thresholds) {
            saturated.push(load.replica.clone());
        } else {
            rest += 1;
            spare_kv += fraction(thresholds.kv_cache.fraction() - load.kv.fraction());
            spare_queue += requests(thresholds.queue_length.requests() - load.queue.requests());
        }
    }
    let non_saturated = count(rest);
    VariantAnalysis {
        measured,
        saturated,
        non_saturated,
        spare: Spare {
            kv: fraction(mean(spare_kv.fraction(), non_saturated)),
            queue: requests(mean(spare_queue.requests(), non_saturated)),
        },
        kv_max,
        kv_mean: fraction(mean(kv_sum.fraction(), measured)),
        queue_max,
    }
}

/// Whether a replica has reached one of the thresholds, both included.
fn is_saturated(load: &ReplicaLoad, thresholds: &Thresholds) -> bool {
    load.kv >= thresholds.kv_cache || load.queue >= thresholds.queue_length
}

/// The mean spare over all replicas that are not saturated, each weighing the same.
fn mean_spare(variants: &ByVariant, non_saturated: Replicas) -> Spare {
    let weight = |variant: &VariantAnalysis| f64::from(variant.non_saturated.count());
    let kv: Fraction = variants
        .values()
        .map(|variant| fraction(variant.spare.kv.fraction() * weight(variant)))
        .sum();
    let queue: Requests = variants
        .values()
        .map(|variant| requests(variant.spare.queue.requests() * weight(variant)))
        .sum();
    Spare {
        kv: fraction(mean(kv.fraction(), non_saturated)),
        queue: requests(mean(queue.requests(), non_saturated)),
    }
}

/// Which mean spare is below its trigger; a spare that equals its trigger is enough.
fn spare_low(spare: Spare, thresholds: &Thresholds) -> Option<SpareLow> {
    let kv = (spare.kv < thresholds.kv_spare).then_some((spare.kv, thresholds.kv_spare));
    let queue =
        (spare.queue < thresholds.queue_spare).then_some((spare.queue, thresholds.queue_spare));
    (kv.is_some() || queue.is_some()).then_some(SpareLow { kv, queue })
}

/// Whether enough would be left without one replica; a spare that equals its trigger is enough.
fn without_one(spare: Spare, non_saturated: Replicas, thresholds: &Thresholds) -> ScaleDown {
    if non_saturated < SCALE_DOWN_MIN {
        return ScaleDown::TooFew { non_saturated };
    }
    let staying = f64::from(non_saturated.down().count());
    let growth = f64::from(non_saturated.count()) / staying;
    let kv_load = (thresholds.kv_cache.fraction() - spare.kv.fraction()) * growth;
    let queue_load = (thresholds.queue_length.requests() - spare.queue.requests()) * growth;
    let kv_left = thresholds.kv_cache.fraction() - kv_load;
    let queue_left = thresholds.queue_length.requests() - queue_load;

    let kv = (kv_left < thresholds.kv_spare.fraction()).then(|| Tight {
        load: fraction(kv_load),
        threshold: thresholds.kv_cache,
        trigger: thresholds.kv_spare,
    });
    let queue = (queue_left < thresholds.queue_spare.requests()).then(|| Tight {
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

/// The mean of `number` terms with this sum; zero when there are none.
fn mean(sum: f64, number: Replicas) -> f64 {
    if number == Replicas::ZERO { 0.0 } else { sum / f64::from(number.count()) }
}

/// The share nearest to this value: rounding may end just below zero, a product above all numbers.
fn fraction(value: f64) -> Fraction {
    Fraction::new(value.clamp(0.0, f64::MAX)).unwrap_or_default()
}

/// The number of requests nearest to this value, as for [`fraction`].
fn requests(value: f64) -> Requests {
    Requests::new(value.clamp(0.0, f64::MAX)).unwrap_or_default()
}

/// A number of replicas in memory.
fn count(length: usize) -> Replicas {
    Replicas::saturating(u32::try_from(length).unwrap_or(u32::MAX))
}
