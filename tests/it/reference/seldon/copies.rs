//! Copies: the states that one copy of a model goes through, and what they say of the model.

use std::fmt;

use crate::reference::seldon::Rules;
use plimsoll::units::Replicas;

/// Where one copy of a model is between being asked for and being gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CopyState {
    /// Nothing is known of it.
    Unknown,
    /// It has been placed, and its replica has not been told yet.
    LoadRequested,
    /// Its replica is loading it.
    Loading,
    /// Its replica has loaded it, and nothing is sent there yet.
    Loaded,
    /// It answers requests.
    Available,
    /// It is loaded and does not answer.
    LoadedUnavailable,
    /// It could not be loaded.
    LoadFailed,
    /// It answers until its replica is gone.
    Draining,
    /// It is to go, and requests are led away from it first.
    UnloadEnvoyRequested,
    /// It is to go, and its replica has not been told yet.
    UnloadRequested,
    /// Its replica is unloading it.
    Unloading,
    /// It is gone.
    Unloaded,
    /// It could not be unloaded.
    UnloadFailed,
}

impl CopyState {
    /// Whether a placement has it where it is: loading, loaded or answering, but not merely placed.
    #[must_use]
    pub(crate) const fn is_there(self) -> bool {
        matches!(self, Self::Loading | Self::Loaded | Self::Available | Self::LoadedUnavailable)
    }

    /// Whether it is there or on its way.
    #[must_use]
    pub(crate) const fn is_coming(self) -> bool {
        matches!(self, Self::LoadRequested) || self.is_there()
    }

    /// Whether requests may reach it.
    #[must_use]
    pub(crate) const fn is_reachable(self) -> bool {
        matches!(self, Self::Loaded | Self::Available | Self::LoadedUnavailable | Self::Draining)
    }

    /// Whether it has been asked to go and has not gone yet.
    #[must_use]
    pub(crate) const fn is_leaving(self) -> bool {
        matches!(self, Self::UnloadEnvoyRequested | Self::UnloadRequested | Self::Unloading)
    }

    /// Whether a model that goes is not gone because of it. A copy that drains goes with its replica,
    /// and one that does not answer is as good as gone.
    const fn keeps_terminating(self) -> bool {
        let unavailable = matches!(self, Self::LoadedUnavailable);
        self.is_leaving() || self.is_coming() && !unavailable
    }
}

/// How many copies of a model there are, by what they are good for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Census {
    /// Copies that answer.
    pub(crate) available: Replicas,
    /// Copies that are there or coming and do not answer, and those that failed to.
    pub(crate) unavailable: Replicas,
    /// Copies that answer until their replica is gone.
    pub(crate) draining: Replicas,
}

/// Counts the copies of one version of a model.
#[must_use]
pub(crate) fn census(copies: &[CopyState]) -> Census {
    let count = |is: fn(CopyState) -> bool| {
        let number = copies.iter().filter(|state| is(**state)).count();
        Replicas::saturating(u32::try_from(number).unwrap_or(u32::MAX))
    };
    Census {
        available: count(|state| state == CopyState::Available),
        unavailable: count(|state| {
            state == CopyState::LoadFailed || state.is_coming() && state != CopyState::Available
        }),
        draining: count(|state| state == CopyState::Draining),
    }
}

/// How many copies a model wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Copies that it wants.
    pub(crate) desired: Replicas,
    /// Copies with which it is content while there is no room for more; none when zero.
    pub(crate) min: Replicas,
}

/// Whether a version of a model is the one that should answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// It is the latest, and no other was available before.
    Only,
    /// It is the latest, and an older one was available until it is.
    Replacing,
    /// It has been replaced or deleted, and goes.
    Leaving,
}

/// What state a version of a model is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ModelState {
    /// It has not been scheduled yet.
    Unknown,
    /// It answers with as many copies as it must.
    Available,
    /// It has fewer copies than it must, and more are coming.
    Progressing,
    /// A copy has failed.
    Failed,
    /// It wants no copies and has none.
    ScaledDown,
    /// No room was found for it.
    ScheduleFailed,
    /// Its copies are going.
    Terminating,
    /// Its copies are gone.
    Terminated,
    /// A copy could not be unloaded.
    TerminateFailed,
}

impl ModelState {
    /// The state in words.
    #[must_use]
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Available => "available",
            Self::Progressing => "progressing",
            Self::Failed => "failed",
            Self::ScaledDown => "scaled down",
            Self::ScheduleFailed => "without room",
            Self::Terminating => "terminating",
            Self::Terminated => "terminated",
            Self::TerminateFailed => "not terminated",
        }
    }
}

impl fmt::Display for ModelState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// The state of a version with these copies; `wanted` is `None` when nobody says what it wants.
///
/// By Seldon's rules a model is available when it has *exactly* the copies that it wants, so that one
/// with more is progressing, and one that wants none but must have some is available without any.
#[must_use]
pub(crate) fn model_state(
    rules: Rules,
    version: Version,
    wanted: Option<Wanted>,
    copies: &[CopyState],
) -> ModelState {
    if version == Version::Leaving {
        return leaving_state(copies);
    }
    if copies.contains(&CopyState::LoadFailed) || copies.contains(&CopyState::LoadedUnavailable) {
        return ModelState::Failed;
    }
    let available = census(copies).available;
    let some = available > Replicas::ZERO;
    let zero = Wanted { desired: Replicas::ZERO, min: Replicas::ZERO };
    if wanted == Some(zero) && !some {
        return ModelState::ScaledDown;
    }
    let enough = wanted.is_some_and(|Wanted { desired, min }| match rules {
        Rules::Seldon => available == desired || min > Replicas::ZERO && available >= min,
        Rules::Mended => {
            let needed = if min > Replicas::ZERO { min } else { desired };
            some && desired > Replicas::ZERO && available >= needed.min(desired)
        }
    });
    if enough || some && version == Version::Replacing {
        ModelState::Available
    } else {
        ModelState::Progressing
    }
}

fn leaving_state(copies: &[CopyState]) -> ModelState {
    if copies.contains(&CopyState::UnloadFailed) {
        ModelState::TerminateFailed
    } else if copies.iter().any(|state| state.keeps_terminating()) {
        ModelState::Terminating
    } else {
        ModelState::Terminated
    }
}
