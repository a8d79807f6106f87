//! Replicas of a pool of `LoRA` adapters: enough for copies, for slots and for load.
//!
//! [`copies`] says how many replicas should have an adapter loaded, [`need`] how many replicas that
//! takes, and [`desired`] what may be asked for.
//!
//! # Model
//!
//! A replica holds at most one copy of an adapter, and serves at most `M` adapters in one step
//! (`--max-loras`). With `d_a` the copies that adapter `a` wants:
//!
//! ```text
//! copies  = max_a d_a              each copy needs a replica of its own
//! slots   = ceil(sum_a d_a / M)    no replica serves more than M
//! load    = what the analyzers ask for, whatever the adapters are
//! desired = clamp(max(copies, slots, load), min, max)
//! ```
//!
//! `R = max(copies, slots)` replicas are enough and not one too many: deal the copies out in turn,
//! adapter by adapter. Since `d_a <= R` no replica gets an adapter twice, and since
//! `sum d_a <= M * R` none gets more than `M`. [`plan`] finds such a placement with the fewest loads.
//!
//! # Units
//!
//! Copies, slots and replicas are counts; arrival rates are requests a second.
//!
//! # Source
//!
//! Seldon Core 2 knows the first bound alone. With 9 copies of 5 adapters, 3 of one of them, and two
//! slots it is content with 3 replicas, on which 9 copies share 6 slots and evict each other.
//!
//! # Domain
//!
//! Slots of equal size. Where adapters have different ranks a slot holds the largest, so the count
//! is right; for models of different sizes on one server it is a lower bound.
//!
//! [`plan`]: crate::decide::pools::plan

use std::fmt;

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::fleet::{Bounds, ModelName};
use crate::observe::engine::lora::Slots;
use crate::units::{Fraction, Replicas, RequestRate};

/// What is known of one adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    /// Its name, which requests ask for as a model.
    pub name: ModelName,
    /// How few and how many copies it may have.
    pub bounds: Bounds,
    /// How many copies somebody declares that it needs.
    pub declared: Option<Replicas>,
    /// What is asked of it, where a gateway counts that.
    pub traffic: Option<Traffic>,
    /// Whether it has been seen at work.
    pub seen: Seen,
}

/// What is asked of an adapter.
#[derive(Clone, Copy, Debug, Display, PartialEq)]
#[display(
    "{arriving:.3} requests/s arrive, of which a replica takes {:.0} % of {per_replica:.3}",
    target.fraction() * 100.0
)]
pub struct Traffic {
    /// Requests that arrive for it.
    pub arriving: RequestRate,
    /// Requests like these that one replica serves.
    pub per_replica: RequestRate,
    /// The share of that which a replica may be used to.
    pub target: Fraction,
}

/// Whether an adapter has been seen at work in the window.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq)]
pub enum Seen {
    /// Nobody has looked: not every replica has been read.
    #[display("not every replica has been read, and it wanted {before} before")]
    Unknown {
        /// Copies that it wanted when somebody last did.
        before: Replicas,
    },
    /// Not once, on replicas that have all been read.
    #[display("it has had no requests")]
    Idle,
    /// It has had requests.
    #[display("it has had requests")]
    Busy,
    /// It has had requests, and those of its replicas had no slot for it for most of the window.
    #[display("none of the {hosts} replicas that it works on had a slot for it")]
    Starved {
        /// Replicas that it has worked on.
        hosts: Replicas,
    },
}

/// How many copies an adapter wants, and who says so.
#[derive(Clone, Debug, Display, PartialEq)]
#[display(
    "{adapter} wants {wanted} {}: {source}",
    if *wanted == Replicas::ONE { "copy" } else { "copies" }
)]
pub struct Copies {
    /// The adapter.
    pub adapter: ModelName,
    /// How many it wants, within its bounds.
    pub wanted: Replicas,
    /// Who says so.
    pub source: Source,
}

/// Where a number of copies comes from; the first that is known counts.
#[derive(Clone, Copy, Debug, Display, PartialEq)]
pub enum Source {
    /// It is declared.
    #[display("{_0} are declared")]
    Declared(Replicas),
    /// It follows from what is asked of it.
    Traffic(Traffic),
    /// It follows from where it has been seen.
    Seen(Seen),
}

/// How many copies an adapter wants. Traffic counts only where a replica's share of it is known.
#[must_use]
pub fn copies(adapter: &Adapter) -> Copies {
    let (wanted, source) = if let Some(declared) = adapter.declared {
        (declared, Source::Declared(declared))
    } else if let Some((wanted, traffic)) = adapter.traffic.and_then(Traffic::copies) {
        (wanted, Source::Traffic(traffic))
    } else {
        let wanted = match adapter.seen {
            Seen::Unknown { before } => before,
            Seen::Idle => Replicas::ZERO,
            Seen::Busy => Replicas::ONE,
            Seen::Starved { hosts } => hosts.up(),
        };
        (wanted, Source::Seen(adapter.seen))
    };
    Copies { adapter: adapter.name.clone(), wanted: adapter.bounds.clamp(wanted), source }
}

impl Traffic {
    /// Copies that carry it; `None` when a replica carries nothing, so that none would be enough.
    fn copies(self) -> Option<(Replicas, Self)> {
        let carried = self.per_replica.requests_per_second() * self.target.fraction();
        let copies = self.arriving.requests_per_second() / carried;
        (carried > 0.0 && copies.is_finite()).then(|| (whole(copies.ceil()), self))
    }
}

/// The number of replicas nearest to a whole number that is not negative.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "casts saturate")]
fn whole(number: f64) -> Replicas {
    Replicas::saturating(number as u32)
}

/// How many replicas a pool needs, by each bound.
#[must_use]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Need {
    /// The adapter that wants the most copies, and how many; `None` when none wants any.
    pub copies: Option<(ModelName, Replicas)>,
    /// What the slots ask for.
    pub slots: SlotNeed,
    /// What the load asks for; `None` when nobody can say.
    pub load: Option<Replicas>,
}

/// How many replicas the slots ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotNeed {
    /// So many.
    Known {
        /// Copies of all adapters together.
        copies: Replicas,
        /// Slots of a replica.
        slots: Slots,
        /// Replicas that have slots for all of them.
        replicas: Replicas,
    },
    /// Nobody knows how many slots a replica has.
    Unknown,
}

/// Which bound asks for the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Binding {
    /// None asks for anything.
    Nothing,
    /// The adapter with the most copies.
    Copies,
    /// All copies together.
    Slots,
    /// The load.
    Load,
}

/// How many replicas these copies and this load need. Where replicas have different numbers of
/// slots, the fewest count.
pub fn need(copies: &[Copies], slots: Option<Slots>, load: Option<Replicas>) -> Need {
    let most = copies
        .iter()
        .filter(|copies| copies.wanted > Replicas::ZERO)
        .min_by_key(|copies| (std::cmp::Reverse(copies.wanted), &copies.adapter));
    let total: Replicas = copies.iter().map(|copies| copies.wanted).sum();
    let slots = slots.map_or(SlotNeed::Unknown, |slots| SlotNeed::Known {
        copies: total,
        slots,
        replicas: Replicas::saturating(total.count().div_ceil(slots.number())),
    });
    Need { copies: most.map(|most| (most.adapter.clone(), most.wanted)), slots, load }
}

impl Need {
    /// The most that a bound asks for.
    #[must_use]
    pub fn replicas(&self) -> Replicas {
        self.bounds().into_iter().map(|(replicas, _)| replicas).max().unwrap_or_default()
    }

    /// The bound that asks for the most; of several the first, in the order of [`Binding`].
    #[must_use]
    pub fn binding(&self) -> Binding {
        let most = self.replicas();
        let bound = self.bounds().into_iter().find(|(replicas, _)| *replicas == most);
        bound.filter(|_| most > Replicas::ZERO).map_or(Binding::Nothing, |(_, binding)| binding)
    }

    /// Whether every bound is known. Unless they are, the pool may need more than they say.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.load.is_some() && matches!(self.slots, SlotNeed::Known { .. })
    }

    fn bounds(&self) -> [(Replicas, Binding); 3] {
        let slots = match self.slots {
            SlotNeed::Known { replicas, .. } => replicas,
            SlotNeed::Unknown => Replicas::ZERO,
        };
        [
            (self.copies.as_ref().map_or(Replicas::ZERO, |(_, copies)| *copies), Binding::Copies),
            (slots, Binding::Slots),
            (self.load.unwrap_or_default(), Binding::Load),
        ]
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { copies, slots, load } = self;
        match copies {
            Some((adapter, copies)) => write!(f, "{copies} for the copies of {adapter}")?,
            None => f.write_str("none for copies")?,
        }
        match slots {
            SlotNeed::Known { copies, slots, replicas } => {
                write!(f, ", {replicas} for {copies} copies at {slots} slots a replica")?;
            }
            SlotNeed::Unknown => f.write_str(", and nobody knows for slots")?,
        }
        match load {
            Some(load) => write!(f, ", {load} for the load"),
            None => f.write_str(", and nobody knows for the load"),
        }
    }
}

/// Whether a pool that nobody needs may have no replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Idle {
    /// It keeps one.
    #[default]
    KeepsOne,
    /// It may go to zero.
    GoesToZero,
}

/// What a pool should ask for.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub struct Desired {
    /// Replicas to ask for.
    pub replicas: Replicas,
    /// What they are needed for.
    pub need: Need,
    /// Replicas that are needed beyond the maximum.
    pub unmet: Replicas,
}

impl fmt::Display for Desired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { replicas, need, unmet } = self;
        write!(f, "{replicas} replicas: {need}")?;
        if *unmet > Replicas::ZERO {
            write!(f, "; {unmet} more are needed than the maximum allows")?;
        }
        Ok(())
    }
}

/// What a pool with `in_force` replicas should ask for. While a bound is unknown, it is not less than
/// that.
pub fn desired(need: Need, bounds: Bounds, idle: Idle, in_force: Replicas) -> Desired {
    let needed = need.replicas();
    let known = if need.is_complete() { needed } else { needed.max(in_force) };
    let floor = match idle {
        Idle::KeepsOne => Replicas::ONE,
        Idle::GoesToZero => Replicas::ZERO,
    };
    let replicas = bounds.clamp(known.max(floor));
    Desired { replicas, unmet: needed.beyond(replicas), need }
}

#[cfg(test)]
mod tests;
