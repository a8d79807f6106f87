//! The outcomes of a query. Each outcome that needs a different fix is distinct.

use crate::collect::chain;

/// The longest error text that is kept, in bytes. Part of it comes from the server.
const DETAIL_MAX: usize = 400;

/// The maximum number of bytes that are shown of a body that is not an answer.
const SHOWN_MAX: usize = 200;

/// The outcome of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum QueryOutcome {
    /// A complete answer.
    Answered,
    /// A complete answer without any series.
    Empty,
    /// An answer without the data that some part of the database could not provide.
    Partial,
    /// The histograms are native ones, which have no buckets to read.
    NativeHistograms,
    /// No server listens.
    Refused,
    /// The complete answer did not arrive in time.
    Timeout,
    /// TLS failed.
    Tls,
    /// The name could not be resolved, or the connection broke.
    Connection,
    /// A file with credentials cannot be used.
    Credentials,
    /// 401: credentials are missing or wrong, or the tenant is missing.
    Unauthorized,
    /// 403: the credentials do not allow it.
    Forbidden,
    /// 404: there is no query API at this URL.
    NotFound,
    /// 3xx: the API is elsewhere.
    Redirected,
    /// 429: too many queries.
    RateLimited,
    /// Any other 4xx: the query itself was refused.
    Rejected,
    /// 5xx: the server, or its backend, has failed.
    ServerError,
    /// 422, or `status: error` in an answer with a success status. The query was valid but could
    /// not be computed, for example because it loads too many samples.
    QueryError,
    /// The body is not JSON, for example a proxy's error or a login form.
    NotJson,
    /// The body ends early.
    Truncated,
    /// The body is larger than `body_limit`.
    TooLarge,
    /// There are more series than `series_limit`.
    TooManySeries,
    /// The JSON is not a response of the query API.
    Malformed,
    /// The answer's type is not a matrix.
    WrongType,
}

impl QueryOutcome {
    /// All outcomes, in the order of their documentation.
    pub const ALL: [Self; 23] = [
        Self::Answered,
        Self::Empty,
        Self::Partial,
        Self::NativeHistograms,
        Self::Refused,
        Self::Timeout,
        Self::Tls,
        Self::Connection,
        Self::Credentials,
        Self::Unauthorized,
        Self::Forbidden,
        Self::NotFound,
        Self::Redirected,
        Self::RateLimited,
        Self::Rejected,
        Self::ServerError,
        Self::QueryError,
        Self::NotJson,
        Self::Truncated,
        Self::TooLarge,
        Self::TooManySeries,
        Self::Malformed,
        Self::WrongType,
    ];

    /// The outcome as a label value.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Answered => "ok",
            Self::Empty => "empty",
            Self::Partial => "partial",
            Self::NativeHistograms => "native_histograms",
            Self::Refused => "refused",
            Self::Timeout => "timeout",
            Self::Tls => "tls",
            Self::Connection => "connection",
            Self::Credentials => "credentials",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::NotFound => "not_found",
            Self::Redirected => "redirected",
            Self::RateLimited => "rate_limited",
            Self::Rejected => "rejected",
            Self::ServerError => "server_error",
            Self::QueryError => "query_error",
            Self::NotJson => "not_json",
            Self::Truncated => "truncated",
            Self::TooLarge => "too_large",
            Self::TooManySeries => "too_many_series",
            Self::Malformed => "malformed",
            Self::WrongType => "wrong_type",
        }
    }

    /// Returns true if the answer was complete and can be fully read.
    #[must_use]
    pub const fn is_whole(self) -> bool {
        matches!(self, Self::Answered | Self::NativeHistograms)
    }
}

/// The reason why a query returned no usable answer: the class, and a detail for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryFailure {
    /// The class.
    pub outcome: QueryOutcome,
    /// The exact problem and its fix, in at most 400 bytes.
    pub detail: String,
}

impl QueryFailure {
    /// Creates a failure, and makes its detail printable and cuts it to the limit.
    #[must_use]
    pub fn new(outcome: QueryOutcome, detail: &str) -> Self {
        Self { outcome, detail: cut(detail, DETAIL_MAX) }
    }

    /// Creates a failure with an error and its sources as its detail.
    pub(crate) fn from_error(outcome: QueryOutcome, error: &dyn std::error::Error) -> Self {
        Self::new(outcome, &chain(error))
    }
}

/// Returns the start of a body that is not an answer, on one line.
pub(crate) fn shown(body: &[u8]) -> String {
    let start = &body[..body.len().min(SHOWN_MAX)];
    let text = String::from_utf8_lossy(start);
    let words: Vec<&str> = text.split_whitespace().collect();
    let mark = if body.len() > SHOWN_MAX { "..." } else { "" };
    format!("{}{mark}", words.join(" "))
}

/// Replaces control characters in a text, and cuts it to `most` bytes.
pub(crate) fn cut(text: &str, most: usize) -> String {
    let start = text.chars().take(most + 1);
    let printable: String = start.map(|c| if c.is_control() { ' ' } else { c }).collect();
    let end = printable.floor_char_boundary(most);
    let mark = if end < printable.len() { "..." } else { "" };
    format!("{}{mark}", &printable[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_outcome_has_a_label_of_its_own() {
        let labels: BTreeSet<_> = QueryOutcome::ALL.map(QueryOutcome::label).into();
        assert_eq!(labels.len(), QueryOutcome::ALL.len());
    }

    #[test]
    fn what_a_server_wrote_is_shown_short_and_printable() {
        let page = format!("<html>\n\t<title>\u{1b}[31mLogin</title>{}", "x".repeat(500));
        let said = QueryFailure::new(QueryOutcome::NotJson, &shown(page.as_bytes())).detail;
        assert!(said.starts_with("<html> <title> [31mLogin</title>xxx"), "{said}");
        assert!(said.ends_with("...") && said.len() < 210, "{said}");
        assert_eq!(cut(&"é".repeat(300), 401), format!("{}...", "é".repeat(200)));
    }
}
