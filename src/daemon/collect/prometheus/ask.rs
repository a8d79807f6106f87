//! A single value from a user's query expression.
//!
//! The expression is evaluated as a subquery over a few seconds, so that the answer is a matrix
//! like all other answers. NaN counts as no value.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::collect::prometheus::client::{PrometheusClient, Question};
use crate::collect::prometheus::decode::decode;
use crate::collect::prometheus::failure::{QueryFailure, QueryOutcome};
use crate::collect::prometheus::settings::PrometheusSettings;

/// Interval at which the files with certificates and tokens are checked for changes.
const CREDENTIALS_REFRESH: Duration = Duration::from_secs(10);

/// The subquery around an expression. Points are at multiples of the second duration, and the first
/// duration holds at least two of them.
const SUBQUERY: &str = "[10s:5s]";

/// Queries single values.
#[derive(Debug)]
pub struct Asker {
    client: PrometheusClient,
    series_limit: usize,
}

impl Asker {
    /// Creates an asker for the server in the settings.
    #[must_use]
    pub fn new(settings: PrometheusSettings) -> Self {
        let series_limit = settings.series_limit;
        Self {
            client: PrometheusClient::new(Arc::new(settings), CREDENTIALS_REFRESH),
            series_limit,
        }
    }

    /// Returns the sum of an expression's series at their latest points, and the earliest of these
    /// instants. Returns `None` if there is no series, or if one has no number. `elapsed` is the
    /// monotonic time.
    ///
    /// # Errors
    ///
    /// The query API did not return a complete answer in time.
    pub async fn sum(
        &self,
        expression: &str,
        now: Timestamp,
        elapsed: Duration,
    ) -> Result<Option<(f64, Timestamp)>, QueryFailure> {
        let question = Question { query: format!("({expression}){SUBQUERY}"), at: now };
        let body = self.client.ask(&question, elapsed).await?;
        let mut total = 0.0;
        let mut oldest = i64::MAX;
        let answer = decode(&body, self.series_limit, &mut |_, points| {
            if let Some((at, value)) = points.last() {
                total += value;
                oldest = oldest.min(*at);
            }
        })?;

        if answer.is_partial || !answer.warnings.is_empty() {
            let detail = answer.warnings.join("; ");
            return Err(QueryFailure::new(QueryOutcome::Partial, &detail));
        }

        let at = Timestamp::from_millisecond(oldest).ok();
        Ok(at.filter(|_| total.is_finite()).map(|at| (total, at)))
    }
}
