//! Standby: variants whose replicas serve much sooner than the others of their role.
//!
//! Engines that sleep with their weights in memory, or replicas on nodes that hold image and model,
//! serve seconds after they are asked for, and usually cost more while they run. They are good for
//! two things.
//!
//! - **A reserve.** Growth that is likely and not certain is prepared for by replicas that run
//!   beside the load. As far as standby may still start, it is there in time for what comes, and
//!   only the growth within its own start-up time must run already.
//! - **A bridge.** What has come already, and what the replicas that serve do not carry, cannot wait
//!   for variants that start slowly. Standby carries it until they serve. It is no part of the plan:
//!   what the load needs is asked for at the least cost as if the bridge were not there, so what
//!   starts slowly is ordered at once, and the bridge ends when it serves.
//!
//! # Model
//!
//! With `s` the longest start-up time of a role, those of its variants that take at most `s / 2` are
//! its standby, and `q` is the longest of theirs. A variant without replicas of which no start-up
//! time was measured or declared is no part of this: nobody waits for it, and it is no standby.
//!
//! ```text
//! growth  = max(growth in q, growth in s - what standby may still add)
//! bridge  = max(what arrives, burst) + backlog + gateway - what serves and is no standby
//! ```
//!
//! # Units
//!
//! Requests a second, seconds.

use std::collections::BTreeMap;

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::analyze::capacity::Counted;
use crate::analyze::foresight::policy::Policy;
use crate::analyze::foresight::{RATE_MIN, Side, VariantStrides};
use crate::fleet::VariantKey;
use crate::units::{Replicas, Seconds};

/// The share of the longest start-up time that standby takes at most. Of two that differ by less,
/// neither waits for the other.
const SHARE_MAX: f64 = 0.5;

/// What starts soon, beside what does not.
#[derive(Clone, Debug)]
pub(super) struct Standby<'a> {
    /// How long it takes to serve.
    pub(super) startup: Seconds,
    /// What it may still add.
    pub(super) room: f64,
    /// What serves beside it.
    pub(super) beside: f64,
    /// The share of a replica that may be missing without another.
    excess: f64,
    /// Its variants with what one replica carries, those first that cost the least for that.
    variants: Vec<(&'a VariantStrides<'a>, f64)>,
}

/// What standby does for a need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Relief {
    /// Seconds that it takes to serve.
    pub startup: f64,
    /// Growth that nothing runs for, because standby is there in time.
    pub reserve: f64,
    /// What standby carries until what starts slowly serves.
    pub bridge: f64,
}

/// What one variant of standby carries until others serve.
#[derive(Clone, Copy, Debug, Display, PartialEq, Serialize, Deserialize)]
#[display(
    "{missing:.2} requests/s are for standby, which starts in {startup:.0} s, until the rest \
     serves: {} of this variant",
    Counted(*replicas)
)]
pub struct Bridge {
    /// Replicas that it takes.
    pub replicas: Replicas,
    /// What all standby of its role carries until then, in requests a second.
    pub missing: f64,
    /// Seconds that standby takes to serve.
    pub startup: f64,
}

impl<'a> Standby<'a> {
    /// The standby of a role, where it has some.
    pub(super) fn of(side: &Side<'a>, policy: &Policy) -> Option<Self> {
        let longest = startup(side, policy);
        let takes = |it: &VariantStrides<'_>| takes(it, policy);
        let is_soon = |it: &VariantStrides<'_>| {
            tells(it) && takes(it).seconds() <= SHARE_MAX * longest.seconds()
        };
        let known = side.variants.iter().filter_map(|(variant, carried)| {
            let rate = carried.as_ref()?.counts();
            (rate > RATE_MIN).then_some((*variant, rate))
        });
        let (mut variants, others): (Vec<_>, Vec<_>) = known.partition(|(it, _)| is_soon(it));
        let startup = variants.iter().map(|(it, _)| takes(it)).reduce(Seconds::max)?;
        let price = |(it, rate): &(&VariantStrides<'_>, f64)| it.spec.cost.per_hour() / rate;
        variants.sort_by(|a, b| price(a).total_cmp(&price(b)));
        let times = |replicas: Replicas, rate: f64| f64::from(replicas.count()) * rate;
        let room = variants.iter().map(|(it, rate)| times(it.room, *rate)).sum();
        let serving = |it: &VariantStrides<'_>| it.current.beyond(it.pending);
        let beside = others.iter().map(|(it, rate)| times(serving(it), *rate)).sum();
        let excess = policy.rounding.excess.fraction();
        Some(Self { startup, room, beside, excess, variants })
    }

    /// Replicas that carry this much until others do.
    pub(super) fn bridge(&self, missing: f64) -> BTreeMap<VariantKey, Bridge> {
        let mut bridges = BTreeMap::new();
        let (startup, mut left) = (self.startup.seconds(), missing);
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

/// How long replicas of a variant take to serve: as was measured, else as was declared of it, else
/// as is usual; and no less than one has taken already.
pub(super) fn takes(variant: &VariantStrides<'_>, policy: &Policy) -> Seconds {
    let usual = variant.startup.or(variant.spec.start_time).unwrap_or(policy.startup);
    usual.max(variant.slowest_start.unwrap_or_default())
}

/// Whether a variant says how long its role takes to serve. One that has no replicas, that nobody has
/// seen start and of which nothing is declared may never be used: what is usual is no measure of it,
/// and beside it those that were measured would all be standby.
fn tells(variant: &VariantStrides<'_>) -> bool {
    let known = variant.startup.or(variant.spec.start_time);
    known.is_some() || variant.current > Replicas::ZERO
}

/// The longest that replicas of a role take to serve; as is usual while no variant tells.
pub(super) fn startup(side: &Side<'_>, policy: &Policy) -> Seconds {
    let told = side.variants.iter().map(|(variant, _)| *variant).filter(|it| tells(it));
    let all = told.map(|variant| takes(variant, policy));
    all.reduce(Seconds::max).unwrap_or(policy.startup)
}
