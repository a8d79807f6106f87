//! Replicas of a pool of `LoRA` adapters: enough for copies, for slots and for load.
//!
//! [`copies`] returns the number of replicas that should have an adapter loaded. [`need`] returns
//! the replicas that this takes, and [`desired`] the replicas to ask for.
//!
//! # Model
//!
//! A replica holds at most one copy of an adapter, and serves at most `M` adapters in one step
//! (`--max-loras`). With `d_a` the copies that adapter `a` needs:
//!
//! ```text
//! copies  = max_a d_a              each copy needs a replica of its own
//! slots   = ceil(sum_a d_a / M)    no replica serves more than M
//! load    = replicas that the analyzers ask for, independent of adapters
//! desired = clamp(max(copies, slots, load), min, max)
//! ```
//!
//! `R = max(copies, slots)` replicas are exactly enough: deal the copies out in turn, adapter by
//! adapter. Since `d_a <= R`, no replica gets an adapter twice. Since `sum d_a <= M * R`, none gets
//! more than `M`. [`plan`] finds such a placement with the fewest loads.
//!
//! # Units
//!
//! Copies, slots and replicas are counts; arrival rates are requests/s.
//!
//! # Source
//!
//! Seldon Core 2 uses the first bound alone. With 9 copies of 5 adapters, 3 of one of them, and two
//! slots it asks for 3 replicas. On these, 9 copies share 6 slots and evict each other.
//!
//! # Domain
//!
//! Slots of equal size. If adapters have different ranks, a slot holds the largest, so the count is
//! right. For models of different sizes on one server, the count is a lower bound.
//!
//! [`plan`]: crate::decide::pools::plan

use std::fmt;

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::fleet::{Bounds, ModelName};
use crate::observe::engine::lora::Slots;
use crate::units::{Fraction, NounCount, Replicas, RequestRate};

/// The data about one adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    /// Its name, which requests use as the model.
    pub name: ModelName,
    /// The minimum and maximum of its copies.
    pub bounds: Bounds,
    /// The copies that are declared for it.
    pub declared: Option<Replicas>,
    /// Its traffic, if a gateway counts it.
    pub traffic: Option<AdapterTraffic>,
    /// Its activity in the window.
    pub seen: AdapterActivity,
}

/// The traffic of an adapter.
#[derive(Clone, Copy, Debug, Display, PartialEq)]
#[display(
    "{arriving:.3} requests/s arrive, and a replica serves {:.0}% of {per_replica:.3}",
    target.fraction() * 100.0
)]
pub struct AdapterTraffic {
    /// Requests that arrive for it.
    pub arriving: RequestRate,
    /// The rate of such requests that one replica serves.
    pub per_replica: RequestRate,
    /// The share of that rate that may be used.
    pub target: Fraction,
}

/// The activity of an adapter in the window.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq)]
pub enum AdapterActivity {
    /// It has had requests, and the gateway's count of them is unknown.
    #[display("its requests at the gateway are not known, and it needed {before} before")]
    Uncounted {
        /// Copies that it needed before.
        before: Replicas,
    },
    /// It is unknown, because not every replica has been read.
    #[display("not all replicas have been read, and it needed {before} before")]
    Unknown {
        /// Copies that it needed when every replica was last read.
        before: Replicas,
    },
    /// It has had no requests, and all replicas have been read.
    #[display("it has had no requests")]
    Idle,
    /// It has had requests.
    #[display("it has had requests")]
    Busy,
    /// It has had requests, and its replicas had no slot for it for all of the window.
    #[display("none of its replicas had a free slot ({hosts})")]
    Starved {
        /// Replicas that it has run on.
        hosts: Replicas,
    },
}

/// The copies that an adapter needs, and their source.
#[derive(Clone, Debug, Display, PartialEq)]
#[display(
    "{adapter} wants {wanted} {}: {source}",
    if *wanted == Replicas::ONE { "copy" } else { "copies" }
)]
pub struct Copies {
    /// The adapter.
    pub adapter: ModelName,
    /// The copies, within its bounds.
    pub wanted: Replicas,
    /// The source.
    pub source: CopiesSource,
}

/// The source of a number of copies. A declaration counts alone, and otherwise the source of more
/// copies.
#[derive(Clone, Copy, Debug, Display, PartialEq)]
pub enum CopiesSource {
    /// The copies are declared.
    #[display("{_0} are declared")]
    Declared(Replicas),
    /// The copies follow from the traffic.
    Traffic(AdapterTraffic),
    /// The copies follow from the activity.
    Seen(AdapterActivity),
}

/// Returns the copies that an adapter needs. Traffic counts only if a replica's share of it is
/// known. Requests may also arrive past the gateway, so traffic never gives fewer copies than
/// activity.
#[must_use]
pub fn copies(adapter: &Adapter) -> Copies {
    let (wanted, source) = if let Some(declared) = adapter.declared {
        (declared, CopiesSource::Declared(declared))
    } else {
        let seen = adapter.seen.copies();
        match adapter.traffic.and_then(AdapterTraffic::copies) {
            Some((wanted, traffic)) if wanted >= seen => (wanted, CopiesSource::Traffic(traffic)),
            Some(_) | None => (seen, CopiesSource::Seen(adapter.seen)),
        }
    };

    Copies { adapter: adapter.name.clone(), wanted: adapter.bounds.clamp(wanted), source }
}

impl AdapterActivity {
    const fn copies(self) -> Replicas {
        match self {
            Self::Unknown { before } => before,
            Self::Uncounted { before } if before.count() > 0 => before,
            Self::Idle => Replicas::ZERO,
            Self::Uncounted { .. } | Self::Busy => Replicas::ONE,
            Self::Starved { hosts } => hosts.up(),
        }
    }
}

impl AdapterTraffic {
    /// Returns the copies that serve the traffic; `None` if a replica serves nothing, so that no
    /// number is enough.
    fn copies(self) -> Option<(Replicas, Self)> {
        let carried = self.per_replica.requests_per_second() * self.target.fraction();
        let copies = self.arriving.requests_per_second() / carried;
        (carried > 0.0 && copies.is_finite()).then(|| (whole(copies.ceil()), self))
    }
}

/// Converts a whole number that is not negative to replicas.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "casts saturate")]
fn whole(number: f64) -> Replicas {
    Replicas::saturating(number as u32)
}

/// The replicas that a pool needs, by each bound.
#[must_use]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolNeed {
    /// The adapter that needs the most copies, and their number; `None` if none needs any.
    pub copies: Option<(ModelName, Replicas)>,
    /// The replicas that the slots require.
    pub slots: SlotNeed,
    /// The replicas that the load requires; `None` if unknown.
    pub load: Option<Replicas>,
}

/// The replicas that the slots require.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotNeed {
    /// The number is known.
    Known {
        /// Copies of all adapters together.
        copies: Replicas,
        /// Slots per replica.
        slots: Slots,
        /// Replicas with slots for all of them.
        replicas: Replicas,
    },
    /// The slots per replica are unknown.
    Unknown,
    /// Replicas have no slots: a copy takes a share of a replica that is not counted.
    Uncounted,
}

/// The bound that requires the most replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BindingNeed {
    /// No bound requires a replica.
    Nothing,
    /// The adapter with the most copies.
    Copies,
    /// All copies together.
    Slots,
    /// The load.
    Load,
}

/// Returns the replicas that these copies and this load need. If replicas have different numbers of
/// slots, `slots` is the fewest.
pub fn need(copies: &[Copies], slots: Option<Slots>, load: Option<Replicas>) -> PoolNeed {
    let most = copies
        .iter()
        .filter(|copies| copies.wanted > Replicas::ZERO)
        .min_by_key(|copies| (std::cmp::Reverse(copies.wanted), &copies.adapter));
    let total: Replicas = copies.iter().map(|copies| copies.wanted).sum();
    let by_slots = slots.map_or(SlotNeed::Unknown, |slots| SlotNeed::Known {
        copies: total,
        slots,
        replicas: Replicas::saturating(total.count().div_ceil(slots.number())),
    });

    PoolNeed { copies: most.map(|most| (most.adapter.clone(), most.wanted)), slots: by_slots, load }
}

impl PoolNeed {
    /// Returns the replicas that the largest bound requires.
    #[must_use]
    pub fn replicas(&self) -> Replicas {
        self.bounds().into_iter().map(|(replicas, _)| replicas).max().unwrap_or_default()
    }

    /// Returns the bound that requires the most; of several, the first in the order of
    /// [`BindingNeed`].
    #[must_use]
    pub fn binding(&self) -> BindingNeed {
        let most = self.replicas();
        let bound = self.bounds().into_iter().find(|(replicas, _)| *replicas == most);
        bound.filter(|_| most > Replicas::ZERO).map_or(BindingNeed::Nothing, |(_, binding)| binding)
    }

    /// Returns true if every bound is known. Otherwise the pool may need more than the known
    /// bounds.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.load.is_some() && !matches!(self.slots, SlotNeed::Unknown)
    }

    fn bounds(&self) -> [(Replicas, BindingNeed); 3] {
        let slots = match self.slots {
            SlotNeed::Known { replicas, .. } => replicas,
            SlotNeed::Unknown | SlotNeed::Uncounted => Replicas::ZERO,
        };

        [
            (
                self.copies.as_ref().map_or(Replicas::ZERO, |(_, copies)| *copies),
                BindingNeed::Copies,
            ),
            (slots, BindingNeed::Slots),
            (self.load.unwrap_or_default(), BindingNeed::Load),
        ]
    }
}

impl fmt::Display for PoolNeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { copies, slots, load } = self;
        match copies {
            Some((adapter, copies)) => write!(f, "{copies} for the copies of {adapter}")?,
            None => f.write_str("none for copies")?,
        }

        match slots {
            SlotNeed::Known { copies, slots, replicas } => {
                let demand = NounCount(copies.count(), "copy", "copies");
                let room = NounCount(slots.number(), "slot", "slots");
                write!(f, ", {replicas} for {demand} at {room} per replica")?;
            }
            SlotNeed::Unknown => f.write_str(", unknown for slots")?,
            SlotNeed::Uncounted => return Ok(()),
        }

        match load {
            Some(load) => write!(f, ", {load} for the load"),
            None => f.write_str(", unknown for the load"),
        }
    }
}

/// The policy for scaling an unused pool to zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdlePoolPolicy {
    /// It keeps one.
    #[default]
    KeepsOne,
    /// It may go to zero.
    GoesToZero,
}

/// The desired replicas of a pool.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub struct DesiredPool {
    /// Replicas to ask for.
    pub replicas: Replicas,
    /// The replicas that it needs, by each bound.
    pub need: PoolNeed,
    /// Replicas that are needed beyond the maximum.
    pub unmet: Replicas,
}

impl fmt::Display for DesiredPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { replicas, need, unmet } = self;
        write!(f, "{}: {need}", replicas.counted())?;
        if *unmet > Replicas::ZERO {
            let more = NounCount(unmet.count(), "more is needed", "more are needed");
            write!(f, "; {more}, above the maximum")?;
        }
        Ok(())
    }
}

/// Returns the desired replicas of a pool with `in_force` replicas in effect. While a bound is
/// unknown, the result is not less than that.
pub fn desired(
    need: PoolNeed,
    bounds: Bounds,
    idle: IdlePoolPolicy,
    in_force: Replicas,
) -> DesiredPool {
    let needed = need.replicas();
    let known = if need.is_complete() { needed } else { needed.max(in_force) };
    let floor = match idle {
        IdlePoolPolicy::KeepsOne => Replicas::ONE,
        IdlePoolPolicy::GoesToZero => Replicas::ZERO,
    };

    let replicas = bounds.clamp(known.max(floor));
    DesiredPool { replicas, unmet: needed.beyond(replicas), need }
}

#[cfg(test)]
mod tests;
