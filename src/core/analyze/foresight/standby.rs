//! Standby: variants whose replicas serve much sooner than the others of their role.
//!
//! Engines that sleep with their weights in memory, or replicas on nodes that hold image and model,
//! serve seconds after they are asked for, and usually cost more while they run. They have two
//! uses.
//!
//! - **A reserve.** Replicas in addition to the load prepare for growth that is likely but not
//!   certain. If standby may still start, it is ready in time for that growth. Only the growth
//!   within its own start-up time must already run.
//! - **A bridge.** The load that has arrived beyond the capacity of serving replicas cannot wait
//!   for variants that start slowly. Standby handles it until they serve. The bridge is not part of
//!   the plan: the need is met at the least cost as if there were no bridge. So the slow replicas
//!   are requested at once, and the bridge ends when they serve.
//!
//! # Model
//!
//! `s` is the longest start-up time of a role. Its variants that take at most `s / 2` are its
//! standby, and `q` is the longest of their start-up times. A variant without replicas counts in
//! neither if no start-up time was measured or declared for it.
//!
//! ```text
//! growth  = max(growth in q, growth in s - capacity that standby may still add)
//! bridge  = max(arrivals, burst) + backlog + gateway - capacity of other serving replicas
//! ```
//!
//! # Units
//!
//! Requests per second, seconds.

use std::collections::BTreeMap;

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::analyze::foresight::capacity::RATE_MIN;
use crate::analyze::foresight::policy::ForesightPolicy;
use crate::analyze::foresight::role_fleet::RoleFleet;
use crate::analyze::foresight::strides::VariantStrides;
use crate::fleet::VariantKey;
use crate::units::{Replicas, Seconds};

/// The highest start-up time of standby, as a share of the longest in its role. Between two
/// variants that differ by less, neither waits for the other.
const SHARE_MAX: f64 = 0.5;

/// The standby variants of a role, and the capacity of the others.
#[derive(Clone, Debug)]
pub(super) struct Standby<'a> {
    /// The time in which standby serves.
    pub(super) startup: Seconds,
    /// The capacity that standby may still add.
    pub(super) room: f64,
    /// The capacity of serving replicas that are no standby.
    pub(super) beside: f64,
    /// The share of a replica that may be missing without another replica.
    excess: f64,
    /// The standby variants with their capacity per replica, the cheapest per capacity first.
    variants: Vec<(&'a VariantStrides<'a>, f64)>,
}

/// The part of standby in a need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Relief {
    /// Seconds until standby serves.
    pub startup: f64,
    /// Growth without running replicas, because standby is ready in time.
    pub reserve: f64,
    /// The load that standby handles until replicas that start slowly serve.
    pub bridge: f64,
}

/// The load that one standby variant handles until others serve.
#[derive(Clone, Copy, Debug, Display, PartialEq, Serialize, Deserialize)]
#[display(
    "standby starts in {startup:.0} s and serves {missing:.2} requests/s until the other replicas \
     do: {} of this variant",
    replicas.counted()
)]
pub struct Bridge {
    /// Replicas that it needs.
    pub replicas: Replicas,
    /// The load of all standby of its role until then, in requests per second.
    pub missing: f64,
    /// Seconds until standby serves.
    pub startup: f64,
}

impl<'a> Standby<'a> {
    /// The standby of a role; `None` without any.
    pub(super) fn of(side: &RoleFleet<'a>, policy: &ForesightPolicy) -> Option<Self> {
        let soon = SHARE_MAX * startup(side, policy).seconds();
        let known = side.variants.iter().filter_map(|(variant, carried)| {
            let rate = carried.as_ref()?.counts();
            (rate > RATE_MIN).then_some((*variant, rate))
        });
        let (mut variants, others): (Vec<_>, Vec<_>) =
            known.partition(|(it, _)| tells(it) && takes(it, policy).seconds() <= soon);

        let startup = variants.iter().map(|(it, _)| takes(it, policy)).reduce(Seconds::max)?;
        variants
            .sort_by(|(a, rate_a), (b, rate_b)| price(a, *rate_a).total_cmp(&price(b, *rate_b)));

        let room = variants.iter().map(|(it, rate)| f64::from(it.room.count()) * rate).sum();
        let serving = others.iter().map(|(it, rate)| (it.current.beyond(it.pending), rate));
        let beside = serving.map(|(replicas, rate)| f64::from(replicas.count()) * rate).sum();
        let excess = policy.rounding.excess.fraction();
        Some(Self { startup, room, beside, excess, variants })
    }

    /// The replicas that handle this load until others do.
    pub(super) fn bridge(&self, missing: f64) -> BTreeMap<VariantKey, Bridge> {
        let mut bridges = BTreeMap::new();
        let startup = self.startup.seconds();
        let mut left = missing;

        for (variant, rate) in &self.variants {
            let most = variant.current + variant.room;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "it saturates, and there is less room than that"
            )]
            let wanted = (left / rate - self.excess).ceil().max(0.0) as u32;
            let replicas = Replicas::saturating(wanted).min(most);
            left -= f64::from(replicas.count()) * rate;
            if replicas > Replicas::ZERO {
                bridges.insert(variant.spec.key.clone(), Bridge { replicas, missing, startup });
            }
        }

        bridges
    }
}

/// The start-up time of a variant's replicas: the measured, the declared or the usual time, in this
/// order. It is at least as long as a start has taken so far.
pub(super) fn takes(variant: &VariantStrides<'_>, policy: &ForesightPolicy) -> Seconds {
    let usual = variant.startup.or(variant.spec.start_time).unwrap_or(policy.startup);
    usual.max(variant.slowest_start.unwrap_or_default())
}

/// The cost of a variant's replica per hour, for each request per second that it carries.
fn price(variant: &VariantStrides<'_>, rate: f64) -> f64 {
    variant.spec.cost.per_hour() / rate
}

/// Returns true if a variant's start-up time counts for its role. A variant without replicas, and
/// without a measured or declared time, may never be used. With the usual time for it, all measured
/// variants would be standby.
fn tells(variant: &VariantStrides<'_>) -> bool {
    let known = variant.startup.or(variant.spec.start_time);
    known.is_some() || variant.current > Replicas::ZERO
}

/// The longest start-up time of a role; the usual time while no variant's time counts.
pub(super) fn startup(side: &RoleFleet<'_>, policy: &ForesightPolicy) -> Seconds {
    let told = side.variants.iter().map(|(variant, _)| *variant).filter(|it| tells(it));
    let all = told.map(|variant| takes(variant, policy));
    all.reduce(Seconds::max).unwrap_or(policy.startup)
}
