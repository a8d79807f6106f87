//! How the age of a decision decides what is served.
//!
//! An HPA controller never looks at a value's timestamp: it acts on a value from six years ago. So
//! the age must be judged here. A decision is served as it is while it is [`State::Fresh`]; for
//! some time after that it is held, so that restarts and gaps in the data make no noise and a
//! change that has begun completes; then it is an error, on which the controller keeps what is
//! running.

use std::time::Duration;

use plimsoll_core::units::Replicas;

/// The ages at which what is served changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ages {
    /// Up to this age a decision is served as it is.
    pub fresh: Duration,
    /// Up to this age it is held.
    pub hold: Duration,
}

/// What a decision's age makes of it. A variant that is gone has no state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing was ever decided.
    Cold,
    /// Served as it is.
    Fresh {
        /// Its age.
        age: Duration,
    },
    /// Served as it was, with the timestamp of its data.
    Hold {
        /// Its age.
        age: Duration,
    },
    /// Not served.
    Expired {
        /// Its age.
        age: Duration,
    },
}

impl State {
    /// The state at `now` of a decision whose data was current at `decided`, both on the monotonic
    /// clock. A decision from the future is new.
    #[must_use]
    pub fn at(now: Duration, decided: Option<Duration>, ages: Ages) -> Self {
        let Some(decided) = decided else { return Self::Cold };
        let age = now.saturating_sub(decided);
        if age <= ages.fresh {
            Self::Fresh { age }
        } else if age <= ages.hold {
            Self::Hold { age }
        } else {
            Self::Expired { age }
        }
    }

    /// The number to serve; `None` when there is none. It is the number that the gauge shows: two
    /// surfaces that disagree would be worse than either.
    #[must_use]
    pub const fn serves(self, desired: Replicas) -> Option<Replicas> {
        match self {
            Self::Fresh { .. } | Self::Hold { .. } => Some(desired),
            Self::Cold | Self::Expired { .. } => None,
        }
    }

    /// The age, if anything was ever decided.
    #[must_use]
    pub const fn age(self) -> Option<Duration> {
        match self {
            Self::Cold => None,
            Self::Fresh { age } | Self::Hold { age } | Self::Expired { age } => Some(age),
        }
    }

    /// The state as people see it.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::Fresh { .. } => "fresh",
            Self::Hold { .. } => "hold",
            Self::Expired { .. } => "expired",
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const AGES: Ages = Ages { fresh: Duration::from_secs(45), hold: Duration::from_mins(5) };

    #[test]
    fn the_state_changes_just_after_each_limit() {
        let decided = Duration::from_secs(100);
        let at = |age_ms: u64| {
            State::at(decided + Duration::from_millis(age_ms), Some(decided), AGES).label()
        };
        for (age_ms, label) in [
            (0, "fresh"),
            (45_000, "fresh"),
            (45_001, "hold"),
            (300_000, "hold"),
            (300_001, "expired"),
        ] {
            assert_eq!(at(age_ms), label, "{age_ms} ms");
        }
        assert_eq!(State::at(decided, None, AGES), State::Cold);
    }

    #[test]
    fn a_held_decision_is_served_as_it_was_and_an_expired_one_not_at_all() {
        let two = Replicas::saturating(2);
        let age = Duration::ZERO;
        for (state, served) in [
            (State::Fresh { age }, Some(two)),
            (State::Hold { age }, Some(two)),
            (State::Expired { age }, None),
            (State::Cold, None),
        ] {
            assert_eq!(state.serves(two), served, "{state:?}");
        }
    }

    proptest! {
        #[test]
        fn a_decision_only_ever_gets_older(
            decided in 0_u64..1000, now in 0_u64..1000, later in 0_u64..1000,
            fresh in 0_u64..500, hold in 0_u64..500,
        ) {
            let ages = Ages {
                fresh: Duration::from_secs(fresh), hold: Duration::from_secs(hold.max(fresh)),
            };
            let rank = |now: u64| {
                let decided = Some(Duration::from_secs(decided));
                match State::at(Duration::from_secs(now), decided, ages) {
                    State::Cold => 0,
                    State::Fresh { .. } => 1,
                    State::Hold { .. } => 2,
                    State::Expired { .. } => 3,
                }
            };
            prop_assert!(rank(now) >= 1 && rank(now) <= rank(now + later));
        }
    }
}
