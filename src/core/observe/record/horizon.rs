//! The lengths of time and the level of detail of a record.

use crate::units::Seconds;

/// Lengths of time that the record depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Horizon {
    /// Length of the window over which peaks, means and rates are taken.
    pub window: Seconds,
    /// Age from which the data of a scraped replica is too old to act on.
    pub stale_after: Seconds,
    /// The level of detail that is recorded.
    pub detail: RecordDetail,
}

/// The level of detail that is recorded of each replica. Unread windows would cost memory and time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecordDetail {
    /// Its load.
    #[default]
    Load,
    /// Its load, and statistics about its requests.
    Work,
}
