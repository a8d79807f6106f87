//! One number, as an expression of somebody's says.
//!
//! The expression is asked for as a subquery over a few seconds, so that the answer is a matrix, as
//! all answers that are read here are. A value that is no number is no value.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::collect::prometheus::Settings;
use crate::collect::prometheus::client::{Client, Question};
use crate::collect::prometheus::decode::decode;
use crate::collect::prometheus::failure::{Failure, Outcome};

/// How often the files with certificates and tokens are looked at again.
const CREDENTIALS_REFRESH: Duration = Duration::from_secs(10);

/// The subquery that is laid around an expression: points at whole multiples of its second part, of
/// which the first part holds at least two.
const SUBQUERY: &str = "[10s:5s]";

/// Asks for numbers.
#[derive(Debug)]
pub struct Asker {
    client: Client,
    series_limit: usize,
}

impl Asker {
    /// Asks the server in the settings.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let series_limit = settings.series_limit;
        Self { client: Client::new(Arc::new(settings), CREDENTIALS_REFRESH), series_limit }
    }

    /// The sum of an expression's series at their latest points, and the earliest instant of these.
    /// `None` where there is no series, or one has no number. `elapsed` is the monotonic time.
    ///
    /// # Errors
    ///
    /// There is no whole answer of the query API in time.
    pub async fn sum(
        &self,
        expression: &str,
        now: Timestamp,
        elapsed: Duration,
    ) -> Result<Option<(f64, Timestamp)>, Failure> {
        let question = Question { query: format!("({expression}){SUBQUERY}"), at: now };
        let body = self.client.ask(&question, elapsed).await?;
        let (mut total, mut oldest) = (0.0, i64::MAX);
        let answer = decode(&body, self.series_limit, &mut |_, points| {
            if let Some((at, value)) = points.last() {
                total += value;
                oldest = oldest.min(*at);
            }
        })?;
        if answer.is_partial || !answer.warnings.is_empty() {
            let detail = answer.warnings.join("; ");
            return Err(Failure::new(Outcome::Partial, &detail));
        }
        let at = Timestamp::from_millisecond(oldest).ok();
        Ok(at.filter(|_| total.is_finite()).map(|at| (total, at)))
    }
}
