//! The state of a decision by its age, which determines the served value. A stale decision is
//! refused to the HPA.
//!
//! An HPA controller ignores the timestamp of a value: it would act on a six-year-old value. So
//! Plimsoll checks the age. While a decision is [`DecisionState::Fresh`], it is served as it is.
//! After that it is held for some time, so restarts and data gaps cause no changes, and a started
//! change completes. After that it is too old: the response is an error, and the controller keeps
//! the current replicas. The limits are `external_metrics.fresh` and `external_metrics.hold`.

use std::time::Duration;

use plimsoll_core::units::Replicas;

/// The ages at which the state changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecisionAges {
    /// The maximum age of a decision that is served as it is.
    pub fresh: Duration,
    /// The maximum age of a decision that is held.
    pub hold: Duration,
}

/// The state of a decision by its age. A variant that no longer exists has no state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecisionState {
    /// No decision exists yet, or none that may be shown.
    Cold,
    /// The decision is served as it is.
    Fresh {
        /// The age of the decision.
        age: Duration,
    },
    /// The last decision is still served, with the timestamp of its data.
    Hold {
        /// The age of the decision.
        age: Duration,
    },
    /// The decision is too old to be served.
    Expired {
        /// The age of the decision.
        age: Duration,
    },
}

impl DecisionState {
    /// Returns the state at `now` of a decision whose data was current at `decided`, both on the
    /// monotonic clock. A decision from the future counts as new.
    #[must_use]
    pub fn at(now: Duration, decided: Option<Duration>, ages: DecisionAges) -> Self {
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

    /// Returns the desired replicas to serve; `None` if there are none. The gauge still shows expired
    /// ones, with their age: to a trigger that takes a missing series for 0, their absence would
    /// mean scale-down.
    #[must_use]
    pub const fn serves(self, desired: Replicas) -> Option<Replicas> {
        match self {
            Self::Fresh { .. } | Self::Hold { .. } => Some(desired),
            Self::Cold | Self::Expired { .. } => None,
        }
    }

    /// Returns the age, if a decision exists.
    #[must_use]
    pub const fn age(self) -> Option<Duration> {
        match self {
            Self::Cold => None,
            Self::Fresh { age } | Self::Hold { age } | Self::Expired { age } => Some(age),
        }
    }

    /// Returns the name of the state for users.
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

    const AGES: DecisionAges =
        DecisionAges { fresh: Duration::from_secs(45), hold: Duration::from_mins(5) };

    #[test]
    fn the_state_changes_just_after_each_limit() {
        let decided = Duration::from_secs(100);
        for (age_ms, label) in [
            (0, "fresh"),
            (45_000, "fresh"),
            (45_001, "hold"),
            (300_000, "hold"),
            (300_001, "expired"),
        ] {
            let now = decided + Duration::from_millis(age_ms);
            assert_eq!(DecisionState::at(now, Some(decided), AGES).label(), label, "{age_ms} ms");
        }

        assert_eq!(DecisionState::at(decided, None, AGES), DecisionState::Cold);
    }

    #[test]
    fn a_held_decision_is_served_as_it_was_and_an_expired_one_not_at_all() {
        let two = Replicas::saturating(2);
        let age = Duration::ZERO;

        for (state, served) in [
            (DecisionState::Fresh { age }, Some(two)),
            (DecisionState::Hold { age }, Some(two)),
            (DecisionState::Expired { age }, None),
            (DecisionState::Cold, None),
        ] {
            assert_eq!(state.serves(two), served, "{state:?}");
        }
    }

    fn rank(state: DecisionState) -> u32 {
        match state {
            DecisionState::Cold => 0,
            DecisionState::Fresh { .. } => 1,
            DecisionState::Hold { .. } => 2,
            DecisionState::Expired { .. } => 3,
        }
    }

    proptest! {
        #[test]
        fn a_decision_only_ever_gets_older(
            decided in 0_u64..1000, now in 0_u64..1000, later in 0_u64..1000,
            fresh in 0_u64..500, hold in 0_u64..500,
        ) {
            let ages = DecisionAges {
                fresh: Duration::from_secs(fresh), hold: Duration::from_secs(hold.max(fresh)),
            };
            let at = Some(Duration::from_secs(decided));
            let first = rank(DecisionState::at(Duration::from_secs(now), at, ages));
            let second = rank(DecisionState::at(Duration::from_secs(now + later), at, ages));

            prop_assert!(first >= 1 && first <= second);
        }
    }
}
