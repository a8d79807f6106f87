//! What the object of a server or a model says about its replicas, and which requests it accepts.
//!
//! [`normalize`] turns the three optional numbers of an object into those that are in effect.
//! [`accept`] says whether a number that somebody asks for may be written into it.

use std::fmt;

use crate::reference::seldon::count::Size;
use plimsoll::units::Replicas;

/// The three numbers as they are written in an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Written {
    /// `replicas`.
    pub(crate) replicas: Option<i32>,
    /// `minReplicas`; not positive is none.
    pub(crate) min: Option<i32>,
    /// `maxReplicas`; not positive is none.
    pub(crate) max: Option<i32>,
}

/// Why the numbers of an object contradict each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contradiction {
    /// Fewer replicas are written than the minimum.
    BelowMin {
        /// Replicas in effect.
        replicas: Replicas,
        /// The minimum.
        min: Replicas,
    },
    /// A negative number of replicas is written, and there is a minimum.
    Negative {
        /// The minimum.
        min: Replicas,
    },
    /// The minimum is above the maximum.
    Inverted {
        /// The minimum.
        min: Replicas,
        /// The maximum.
        max: Replicas,
    },
    /// More replicas are written, or stand by default, than the maximum.
    AboveMax {
        /// Replicas in effect.
        replicas: Replicas,
        /// The maximum.
        max: Replicas,
    },
}

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BelowMin { replicas, min } => {
                write!(f, "{replicas} replicas are below the minimum of {min}")
            }
            Self::Negative { min } => {
                write!(f, "negative replicas are below the minimum of {min}")
            }
            Self::Inverted { min, max } => {
                write!(f, "the minimum of {min} is above the maximum of {max}")
            }
            Self::AboveMax { replicas, max } => {
                write!(f, "{replicas} replicas are above the maximum of {max}")
            }
        }
    }
}

impl std::error::Error for Contradiction {}

/// The numbers in effect: one replica, no minimum and no maximum unless something is written, and
/// the minimum where only that is.
///
/// # Errors
///
/// The numbers contradict each other.
pub(crate) fn normalize(written: Written) -> Result<Size, Contradiction> {
    let min = positive(written.min);
    let max = positive(written.max);
    let replicas = match (written.replicas.map(u32::try_from), min) {
        (Some(Ok(wanted)), _) => wanted,
        (Some(Err(_)), Some(min)) => {
            return Err(Contradiction::Negative { min: Replicas::saturating(min) });
        }
        (None, Some(min)) => min,
        (Some(Err(_)) | None, None) => 1,
    };

    // The numbers are compared as they are written, which may be above what a count holds here.
    let size = Size {
        expected: Some(Replicas::saturating(replicas)),
        min: Replicas::saturating(min.unwrap_or_default()),
        max: max.map(Replicas::saturating),
    };
    contradiction(replicas, min.unwrap_or_default(), max).map_or(Ok(size), Err)
}

/// The first contradiction between the numbers in effect.
fn contradiction(replicas: u32, min: u32, max: Option<u32>) -> Option<Contradiction> {
    let max = max.unwrap_or(u32::MAX);
    let [counted, least, most] = [replicas, min, max].map(Replicas::saturating);
    if replicas < min {
        Some(Contradiction::BelowMin { replicas: counted, min: least })
    } else if min > max {
        Some(Contradiction::Inverted { min: least, max: most })
    } else if replicas > max {
        Some(Contradiction::AboveMax { replicas: counted, max: most })
    } else {
        None
    }
}

fn positive(written: Option<i32>) -> Option<u32> {
    written.and_then(|number| u32::try_from(number).ok()).filter(|number| *number > 0)
}

/// Why a number that was asked for is not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The numbers of the object contradict each other.
    Invalid(Contradiction),
    /// It is no count of replicas. Seldon writes a negative one where there is no maximum.
    NotACount(i64),
    /// It is outside the minimum and maximum.
    OutOfBounds {
        /// What was asked for.
        requested: Replicas,
        /// The numbers in effect.
        size: Size,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(contradiction) => contradiction.fmt(f),
            Self::NotACount(number) => write!(f, "{number} is no number of replicas"),
            Self::OutOfBounds { requested, size: Size { min, max, .. } } => match max {
                Some(max) => write!(f, "{requested} replicas are not between {min} and {max}"),
                None => write!(f, "{requested} replicas are below the minimum of {min}"),
            },
        }
    }
}

impl std::error::Error for Refusal {}

/// The number to write into an object for a request, whatever generation of the object the request
/// was made for: a count is no less meant because something else in the object has changed.
///
/// # Errors
///
/// The request or the object is refused.
pub(crate) fn accept(written: Written, requested: i64) -> Result<Replicas, Refusal> {
    let size = normalize(written).map_err(Refusal::Invalid)?;
    let count = u32::try_from(requested).ok().and_then(Replicas::new);
    let requested = count.ok_or(Refusal::NotACount(requested))?;
    if requested < size.min || size.max.is_some_and(|max| requested > max) {
        return Err(Refusal::OutOfBounds { requested, size });
    }
    Ok(requested)
}
