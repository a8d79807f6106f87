//! The arrival of a document on this replica.

use std::time::Duration;

use jiff::Timestamp;

/// The circumstances in which a document arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DocumentReceipt<'a> {
    /// The time of arrival on this replica's monotonic clock.
    pub elapsed: Duration,
    /// The time of arrival on the wall clock.
    pub now: Timestamp,
    /// The delay between write and arrival.
    pub arrival: DocumentArrival,
    /// The replica that wrote it.
    pub holder: &'a str,
}

/// Tells whether a document arrived as soon as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DocumentArrival {
    /// It arrived immediately. Its ages are taken as written, even if the clocks of the two
    /// machines differ.
    Prompt,
    /// It may have been written long ago. Its ages increase by the time since then, according to
    /// the wall clocks.
    Late,
}
