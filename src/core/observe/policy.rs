//! The policy for observed values: their window and their maximum age.

use crate::settings;
use crate::settings::{hours, millis, minutes, secs};
use crate::units::Seconds;

settings! {
    /// Windows and ages of observed values.
    #[derive(Copy)]
    pub struct Observe {
        /// Length of the window over which peaks, means and rates are taken.
        window: Seconds = minutes(1), in secs(1)..=hours(1);

        /// Age from which the data of a scraped replica is too old to act on.
        // Ten missed scrapes at the default interval.
        stale_after: Seconds = secs(10), in millis(100)..=hours(1);
    }
}
