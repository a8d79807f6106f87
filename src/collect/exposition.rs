//! Exposition pages: Prometheus text 0.0.4 and 1.0.0, and `OpenMetrics` 1.0.

use crate::observe::{Reading, ScrapeFailure};

/// Why a page gives no reading.
#[derive(Debug, thiserror::Error)]
#[error("stub")]
pub struct PageError;

impl PageError {
    /// The class of failure that the core and the metrics know.
    #[must_use]
    pub fn failure(&self) -> ScrapeFailure {
        ScrapeFailure::Malformed
    }
}

/// Reads a page. `content_type` is the header's value, which decides the format.
///
/// # Errors
///
/// The page is truncated, not metrics, has a broken line, or is no known engine's. No partial
/// reading is ever returned.
pub fn read(_body: &[u8], _content_type: Option<&str>) -> Result<Reading, PageError> {
    Err(PageError)
}
