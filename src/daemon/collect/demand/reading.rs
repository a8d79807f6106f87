//! Readings of signals: the amounts that they report.

use std::collections::BTreeMap;

use jiff::Timestamp;

use plimsoll_core::fleet::ModelName;
use plimsoll_core::observe::routed::RoutedCounts;
use plimsoll_core::units::Requests;

/// The last reading of a signal.
#[derive(Clone, Debug, PartialEq)]
pub struct SignalReading {
    /// The time of the reading.
    pub at: Timestamp,
    /// The amounts.
    pub amounts: SignalAmounts,
}

/// The amounts that a signal reports.
#[derive(Clone, Debug, PartialEq)]
pub enum SignalAmounts {
    /// One amount; `None` if it is missing.
    One(Option<Requests>),
    /// One amount per model.
    ByModel {
        /// The named models, with `None` if a value is not a number.
        models: BTreeMap<String, Option<Requests>>,
        /// The amount for all other models.
        rest: UnnamedAmount,
    },
    /// The requests that a gateway has routed so far. None of them waits.
    Routed(RoutedCounts),
}

/// The amount for models that are not named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnnamedAmount {
    /// They have no queued requests.
    Nothing,
    /// Their queued requests are unknown.
    Unknown,
}

/// The last readings of all signals, by name. A signal that was never read has no entry.
pub type SignalReadings = BTreeMap<String, SignalReading>;

// === impl SignalAmounts ===

impl SignalAmounts {
    /// Returns true if the model is named, whatever its amount.
    pub(super) fn name(&self, model: &ModelName) -> bool {
        match self {
            Self::One(_) => true,
            Self::ByModel { models, .. } => models.contains_key(model.as_str()),
            Self::Routed(_) => false,
        }
    }

    /// Returns the requests that a gateway has routed; `None` for the amounts of a wake signal.
    #[must_use]
    pub const fn routed(&self) -> Option<&RoutedCounts> {
        match self {
            Self::Routed(counts) => Some(counts),
            Self::One(_) | Self::ByModel { .. } => None,
        }
    }

    /// Returns the model's queued requests; `None` if they are unknown.
    #[must_use]
    pub fn of(&self, model: &ModelName) -> Option<Requests> {
        match self {
            Self::One(amount) => *amount,
            Self::Routed(_) => None,
            Self::ByModel { models, rest } => match (models.get(model.as_str()), rest) {
                (Some(amount), _) => *amount,
                (None, UnnamedAmount::Nothing) => Some(Requests::ZERO),
                (None, UnnamedAmount::Unknown) => None,
            },
        }
    }
}
