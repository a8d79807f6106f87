//! Packing: the conditions for scale-down of a pool.
//!
//! Removing an empty replica moves nothing. Packing moves copies that are in use, which costs loads
//! and makes the remaining replicas busier. If it is done too readily, the pool scales up again.
//! [`lower`] therefore scales down only after fewer replicas have been needed for a whole window.
//! It packs only while nothing else moves, rarely, and not too much at once.
//!
//! Seldon packs at random instead: each removal of a copy packs with a probability. That may pack
//! at once, whatever was needed a second ago. It never packs if no copy is removed.
//!
//! # Model
//!
//! ```text
//! needed = largest need at any tick of the window
//! given  = needed < replicas ? max(needed, replicas - empty) : replicas
//! packed = needed, if packing is safe
//! ```
//!
//! While a replica is starting or leaving, nothing is packed, because its copies are not in their
//! final place. A replica is also leaving while an earlier scale-down has not been carried out.

use std::collections::VecDeque;
use std::fmt;

use derive_more::Display;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::observe::PAUSE_MAX;
use crate::units::{NounCount, Replicas, Seconds};

/// Maximum number of needs in a window, which covers more than an hour at a tick per second. Only
/// needs that may still become the largest are kept, so there are rarely more than a handful.
const WINDOW_MAX: usize = 4096;

/// The conditions for scale-down of a pool.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PackingPolicy {
    /// Time for which fewer replicas must have been needed.
    pub window: Seconds,
    /// Minimum time between two packings; `None` never packs.
    pub interval: Option<Seconds>,
    /// Copies that one packing may move.
    pub moved_max: Replicas,
}

impl Default for PackingPolicy {
    /// The window is five minutes, like that of an HPA. Packing happens at most every half hour, an
    /// interval that justifies a few dozen loads of seconds each. It moves no more copies than an
    /// engine loads in a minute.
    fn default() -> Self {
        Self {
            window: Seconds::literal(300),
            interval: Some(Seconds::literal(1800)),
            moved_max: Replicas::saturating(16),
        }
    }
}

/// The needs that a pool remembers.
#[derive(Clone, Debug, Default)]
pub struct PackedNeeds {
    /// Start of the record without a gap.
    since: Option<Timestamp>,
    /// The needs, largest first; a later and larger need removes earlier ones.
    needs: VecDeque<(Timestamp, Replicas)>,
    /// The time of the last packing.
    packed: Option<Timestamp>,
}

/// The replicas of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolReplicas {
    /// Replicas that are asked for.
    pub asked: Replicas,
    /// Replicas without work for the whole window.
    pub empty: Replicas,
    /// Replicas that are starting or leaving.
    pub moving: Replicas,
    /// Copies that would have to be loaded elsewhere if only the needed replicas were left.
    pub moved: Replicas,
}

/// The result of the check for scale-down.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lowering {
    /// All current replicas, or more, are needed.
    Needed(Replicas),
    /// Fewer replicas are needed, but not for long enough.
    Waiting {
        /// Current replicas.
        asked: Replicas,
        /// Needed replicas.
        needed: Replicas,
        /// The remaining time.
        remaining: Seconds,
    },
    /// Empty replicas are removed.
    Emptied {
        /// Remaining replicas.
        left: Replicas,
        /// Needed replicas.
        needed: Replicas,
        /// Replicas that host nothing.
        empty: Replicas,
        /// The reason why it is not packed, if that would leave fewer.
        unpacked: Option<NoPacking>,
    },
    /// Copies are moved so that the needed replicas are enough.
    Packed {
        /// Replicas before packing.
        asked: Replicas,
        /// Remaining replicas.
        left: Replicas,
        /// Copies that have to be moved.
        moved: Replicas,
    },
    /// Fewer replicas are needed, no replica is empty, and packing is off or not possible now.
    Kept {
        /// Current replicas.
        asked: Replicas,
        /// Needed replicas.
        needed: Replicas,
        /// The reason why it is not packed.
        unpacked: NoPacking,
    },
}

/// The reason why a pool is not packed.
#[derive(Clone, Copy, Debug, Display, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoPacking {
    /// Packing is off.
    #[display("packing is off")]
    Off,
    /// Replicas are starting or leaving.
    #[display("{} starting or leaving", NounCount(_0.count(), "replica is", "replicas are"))]
    Moving(Replicas),
    /// The last packing is too recent.
    #[display("packing is possible in {:.0} s at the earliest", remaining.seconds().ceil())]
    Recent {
        /// Time until the next packing is allowed.
        remaining: Seconds,
    },
    /// Too many copies would have to be moved.
    #[display("copies that would have to move: {moved}, and at most {max} may")]
    TooMany {
        /// Copies that would have to be moved.
        moved: Replicas,
        /// Copies that may be moved.
        max: Replicas,
    },
}

impl Lowering {
    /// Returns the replicas to ask for.
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
            Self::Needed(needed) => write!(f, "{} needed", needed.counted()),
            Self::Waiting { asked, needed, remaining } => write!(
                f,
                "{needed} of {asked} replicas needed; scale-down waits another {:.0} s",
                remaining.seconds().ceil()
            ),
            Self::Emptied { left, needed, empty, unpacked } => {
                write!(f, "{} left: {empty} empty, {needed} needed", left.counted())?;
                unpacked.map_or(Ok(()), |why| write!(f, ", not packed: {why}"))
            }
            Self::Packed { asked, left, moved } => {
                let copies = NounCount(moved.count(), "copy", "copies");
                write!(f, "{left} of {asked} replicas needed after moving {copies}")
            }
            Self::Kept { asked, needed, unpacked } => {
                write!(f, "{needed} of {asked} replicas needed, not packed: {unpacked}")
            }
        }
    }
}

/// Returns the allowed scale-down, given the need at this tick. A packing counts only after
/// [`PackedNeeds::carried_out`].
pub fn lower(
    now: Timestamp,
    memory: &mut PackedNeeds,
    needed: Replicas,
    present: PoolReplicas,
    policy: &PackingPolicy,
) -> Lowering {
    memory.remember(now, needed, policy.window);
    let PoolReplicas { asked, empty, .. } = present;
    if needed >= asked {
        return Lowering::Needed(needed);
    }

    let seen = memory.since.map_or(Seconds::ZERO, |since| Seconds::between(since, now));
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

impl PackedNeeds {
    /// Records that a packing is in effect since `at`, so that the next one waits for its interval.
    pub fn carried_out(&mut self, at: Timestamp) {
        self.packed = self.packed.max(Some(at));
    }

    /// The time of the last packing.
    #[must_use]
    pub const fn packed(&self) -> Option<Timestamp> {
        self.packed
    }

    /// Adds the need at this tick. The window restarts if the clock goes back. It also restarts
    /// after a gap of two minutes, or of a quarter of the window if that is longer: the needs in
    /// between are unknown.
    fn remember(&mut self, now: Timestamp, needed: Replicas, window: Seconds) {
        let latest = self.needs.back().map(|(at, _)| *at);
        let back = latest.max(self.packed).is_some_and(|at| at > now);
        let gap = latest.is_some_and(|at| {
            Seconds::between(at, now).seconds() > PAUSE_MAX.max(window.seconds() / 4.0)
        });

        if back || gap {
            *self = Self { packed: self.packed.map(|packed| packed.min(now)), ..Self::default() };
        }

        self.since.get_or_insert(now);
        while self.needs.back().is_some_and(|(_, earlier)| *earlier <= needed) {
            self.needs.pop_back();
        }

        self.needs.push_back((now, needed));
        while self.needs.len() > WINDOW_MAX
            || self
                .needs
                .front()
                .is_some_and(|(at, _)| Seconds::between(*at, now) >= window && *at < now)
        {
            self.needs.pop_front();
        }
    }

    /// Returns the largest need in the window.
    fn largest(&self) -> Replicas {
        self.needs.front().map_or(Replicas::ZERO, |(_, needed)| *needed)
    }

    /// Returns the time until less than `asked` has been needed for the window.
    fn remaining(&self, now: Timestamp, asked: Replicas, window: Seconds) -> Seconds {
        let high = self.needs.iter().rev().find(|(_, needed)| *needed >= asked).map(|(at, _)| *at);
        let from = high.max(self.since).unwrap_or(now);
        Seconds::new(window.seconds() - Seconds::between(from, now).seconds()).unwrap_or_default()
    }

    /// Checks whether copies that are in use may be moved.
    fn may_pack(
        &self,
        now: Timestamp,
        present: PoolReplicas,
        policy: &PackingPolicy,
    ) -> Result<(), NoPacking> {
        if present.moving > Replicas::ZERO {
            return Err(NoPacking::Moving(present.moving));
        }

        // Only load is spread over fewer replicas, as in any other scale-down.
        if present.moved == Replicas::ZERO {
            return Ok(());
        }

        let interval = policy.interval.ok_or(NoPacking::Off)?;
        if let Some(packed) = self.packed {
            let left = Seconds::new(interval.seconds() - Seconds::between(packed, now).seconds());
            if let Some(remaining) = left.filter(|left| *left > Seconds::ZERO) {
                return Err(NoPacking::Recent { remaining });
            }
        }

        if present.moved > policy.moved_max {
            return Err(NoPacking::TooMany { moved: present.moved, max: policy.moved_max });
        }

        Ok(())
    }
}

#[cfg(test)]
mod tests;
