//! Packing: when a pool may have fewer replicas than it has.
//!
//! Giving back an empty replica moves nothing. Packing moves copies that are in use, which costs
//! loads and makes the replicas that stay busier; done too readily, it makes the pool grow again.
//! [`lower`] therefore asks for less only after what is needed has been less for a whole window, and
//! packs only while nothing else moves, seldom, and not too much at once.
//!
//! Seldon draws lots instead: each removal of a copy packs with a probability. That packs at once
//! when it is lucky, whatever was needed a second ago, and never when no copy is removed.
//!
//! # Model
//!
//! ```text
//! needed = the most that was needed at any tick of the window
//! given  = needed < replicas ? max(needed, replicas - empty) : replicas
//! packed = needed, where packing is safe
//! ```
//!
//! While a replica is starting or going, nothing is packed: what it holds is not where it will be.

use std::collections::VecDeque;
use std::fmt;

use derive_more::Display;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::units::{Replicas, Seconds};

/// Ticks that a window keeps at most, which with one a second is more than an hour. Only those count
/// that may still become the largest, so it is rarely more than a handful.
const WINDOW_MAX: usize = 4096;

/// When a pool may have fewer replicas.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PackingPolicy {
    /// For how long less must have been needed.
    pub window: Seconds,
    /// How long apart two packings are at least; `None` never packs.
    pub interval: Option<Seconds>,
    /// Copies that one packing may move.
    pub moved_max: Replicas,
}

impl Default for PackingPolicy {
    /// Five minutes, like the window of an HPA; packing at most every half hour, which is what a few
    /// dozen loads of seconds each are worth; and no more copies than an engine loads in a minute.
    fn default() -> Self {
        let seconds = |number| Seconds::new(number).unwrap_or_default();
        Self {
            window: seconds(300.0),
            interval: Some(seconds(1800.0)),
            moved_max: Replicas::saturating(16),
        }
    }
}

/// What a pool remembers of what it needed.
#[derive(Clone, Debug, Default)]
pub struct Packed {
    /// Since when it is remembered without a gap.
    since: Option<Timestamp>,
    /// What was needed, the largest first; what a later and larger need hides is gone.
    needs: VecDeque<(Timestamp, Replicas)>,
    /// When it was last packed.
    packed: Option<Timestamp>,
}

/// The replicas of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Present {
    /// Replicas that are asked for.
    pub asked: Replicas,
    /// Replicas that have hosted no work for the whole window.
    pub empty: Replicas,
    /// Replicas that are starting or going.
    pub moving: Replicas,
    /// Copies that would have to be loaded elsewhere with as few replicas as are needed.
    pub moved: Replicas,
}

/// What a pool may ask for.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lowering {
    /// At least what it has is needed.
    Needed(Replicas),
    /// Less is needed, and not for long enough.
    Waiting {
        /// What it has.
        asked: Replicas,
        /// What is needed.
        needed: Replicas,
        /// For how much longer.
        remaining: Seconds,
    },
    /// Empty replicas are given back.
    Emptied {
        /// What is left.
        left: Replicas,
        /// What is needed.
        needed: Replicas,
        /// Replicas that host nothing.
        empty: Replicas,
        /// Why it is not packed, if that would leave less.
        unpacked: Option<Unpacked>,
    },
    /// Copies are moved so that what is needed is enough.
    Packed {
        /// What it had.
        asked: Replicas,
        /// What is left.
        left: Replicas,
        /// Copies that have to be moved.
        moved: Replicas,
    },
    /// Less is needed, no replica is empty, and packing is not safe.
    Kept {
        /// What it has.
        asked: Replicas,
        /// What is needed.
        needed: Replicas,
        /// Why it is not packed.
        unpacked: Unpacked,
    },
}

/// Why a pool is not packed.
#[derive(Clone, Copy, Debug, Display, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unpacked {
    /// It never is.
    #[display("packing is off")]
    Off,
    /// Replicas are starting or going.
    #[display("{_0} replicas are starting or going")]
    Moving(Replicas),
    /// It was packed a while ago.
    #[display("the next packing is in {:.0} s at the earliest", remaining.seconds().ceil())]
    Recent {
        /// How long until it may be again.
        remaining: Seconds,
    },
    /// Too many copies would have to be moved.
    #[display("{moved} copies would have to move, and {max} may")]
    TooMany {
        /// How many.
        moved: Replicas,
        /// How many may be.
        max: Replicas,
    },
}

impl Lowering {
    /// Replicas to ask for.
    #[must_use]
    pub const fn replicas(self) -> Replicas {
        match self {
            Self::Needed(needed) => needed,
            Self::Waiting { asked, .. } | Self::Kept { asked, .. } => asked,
            Self::Emptied { left, .. } | Self::Packed { left, .. } => left,
        }
    }
}

impl fmt::Display for Lowering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Needed(needed) => write!(f, "{needed} replicas are needed"),
            Self::Waiting { asked, needed, remaining } => write!(
                f,
                "{needed} of {asked} replicas are needed, and must be for another {:.0} s",
                remaining.seconds().ceil()
            ),
            Self::Emptied { left, needed, empty, unpacked } => {
                write!(f, "{left} replicas stay: {empty} host nothing and {needed} are needed")?;
                unpacked.map_or(Ok(()), |why| write!(f, ", not packed: {why}"))
            }
            Self::Packed { asked, left, moved } => {
                write!(f, "{left} of {asked} replicas hold everything after {moved} copies move")
            }
            Self::Kept { asked, needed, unpacked } => {
                write!(f, "{needed} of {asked} replicas are needed, not packed: {unpacked}")
            }
        }
    }
}

/// What a pool may ask for, given what is needed at this tick. A packing that is asked for counts as
/// one only when it is [`Packed::carried_out`].
pub fn lower(
    now: Timestamp,
    memory: &mut Packed,
    needed: Replicas,
    present: Present,
    policy: &PackingPolicy,
) -> Lowering {
    memory.remember(now, needed, policy.window);
    let Present { asked, empty, .. } = present;
    if needed >= asked {
        return Lowering::Needed(needed);
    }
    let seen = memory.since.map_or(Seconds::ZERO, |since| span(since, now));
    let largest = memory.largest();
    if largest >= asked || seen < policy.window {
        let remaining = memory.remaining(now, asked, policy.window);
        return Lowering::Waiting { asked, needed, remaining };
    }
    match memory.may_pack(now, present, policy) {
        Ok(()) if asked.beyond(empty) > largest => {
            Lowering::Packed { asked, left: largest, moved: present.moved }
        }
        Ok(()) => Lowering::Emptied { left: largest, needed: largest, empty, unpacked: None },
        Err(unpacked) => {
            let left = asked.beyond(empty).max(largest);
            let unpacked_more = (left > largest).then_some(unpacked);
            if left < asked {
                Lowering::Emptied { left, needed: largest, empty, unpacked: unpacked_more }
            } else {
                Lowering::Kept { asked, needed: largest, unpacked }
            }
        }
    }
}

impl Packed {
    /// Notes that what was asked for is in force, so that the next packing takes its interval.
    pub fn carried_out(&mut self, now: Timestamp) {
        self.packed = Some(now);
    }

    /// Adds what is needed at this tick. A clock that goes back makes the window begin anew, and so
    /// does a gap of a quarter of it: what was needed in between is not known.
    fn remember(&mut self, now: Timestamp, needed: Replicas, window: Seconds) {
        let latest = self.needs.back().map(|(at, _)| *at);
        let back = latest.max(self.packed).is_some_and(|at| at > now);
        let gap = latest.is_some_and(|at| span(at, now).seconds() > window.seconds() / 4.0);
        if back || gap {
            *self = Self { packed: self.packed.map(|packed| packed.min(now)), ..Self::default() };
        }
        self.since.get_or_insert(now);
        while self.needs.back().is_some_and(|(_, earlier)| *earlier <= needed) {
            self.needs.pop_back();
        }
        self.needs.push_back((now, needed));
        while self.needs.len() > WINDOW_MAX
            || self.needs.front().is_some_and(|(at, _)| span(*at, now) >= window && *at < now)
        {
            self.needs.pop_front();
        }
    }

    /// The most that was needed in the window.
    fn largest(&self) -> Replicas {
        self.needs.front().map_or(Replicas::ZERO, |(_, needed)| *needed)
    }

    /// How long until less than `asked` has been needed for the window.
    fn remaining(&self, now: Timestamp, asked: Replicas, window: Seconds) -> Seconds {
        let high = self.needs.iter().rev().find(|(_, needed)| *needed >= asked).map(|(at, _)| *at);
        let from = high.max(self.since).unwrap_or(now);
        Seconds::new(window.seconds() - span(from, now).seconds()).unwrap_or_default()
    }

    /// Whether copies that are in use may be moved.
    fn may_pack(
        &self,
        now: Timestamp,
        present: Present,
        policy: &PackingPolicy,
    ) -> Result<(), Unpacked> {
        if present.moving > Replicas::ZERO {
            return Err(Unpacked::Moving(present.moving));
        }
        // What is to be spread over fewer replicas is load alone, as anywhere else.
        if present.moved == Replicas::ZERO {
            return Ok(());
        }
        let interval = policy.interval.ok_or(Unpacked::Off)?;
        if let Some(packed) = self.packed {
            let left = Seconds::new(interval.seconds() - span(packed, now).seconds());
            if let Some(remaining) = left.filter(|left| *left > Seconds::ZERO) {
                return Err(Unpacked::Recent { remaining });
            }
        }
        if present.moved > policy.moved_max {
            return Err(Unpacked::TooMany { moved: present.moved, max: policy.moved_max });
        }
        Ok(())
    }
}

fn span(from: Timestamp, to: Timestamp) -> Seconds {
    Seconds::from_span(to.duration_since(from)).unwrap_or_default()
}

#[cfg(test)]
mod tests;
