//! What can become of a query, each told apart because each is mended in another place.

use crate::collect::chain;

/// The longest text that is kept of an error, in bytes. Part of it comes from the server.
const DETAIL_MAX: usize = 400;

/// How much of a body that is no answer is shown.
const SHOWN_MAX: usize = 200;

/// What became of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// A whole answer.
    Answered,
    /// A whole answer without a series.
    Empty,
    /// An answer that lacks what some part of the database could not be asked for.
    Partial,
    /// Histograms that are kept as native ones, which have no buckets to read.
    NativeHistograms,
    /// Nothing listens.
    Refused,
    /// There was no whole answer in time.
    Timeout,
    /// TLS failed.
    Tls,
    /// The name could not be resolved, or the connection broke.
    Connection,
    /// A file with credentials cannot be used.
    Credentials,
    /// 401: there are no credentials, or wrong ones, or no tenant.
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
    /// 5xx: the server, or what is behind it, has failed.
    ServerError,
    /// 422, or `status: error` in an answer that HTTP calls a success: the query was understood and
    /// could not be computed, such as one that loads too many samples.
    QueryError,
    /// The body is no JSON: a page of a proxy or of a login.
    NotJson,
    /// The body ends early.
    Truncated,
    /// The body is larger than `body_limit`.
    TooLarge,
    /// There are more series than `series_limit`.
    TooManySeries,
    /// JSON that is not an answer of the query API.
    Malformed,
    /// An answer of another type than a matrix.
    WrongType,
}

impl Outcome {
    /// Every outcome, in the order in which they are documented.
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

    /// Whether the answer was whole and can be read in full.
    #[must_use]
    pub const fn is_whole(self) -> bool {
        matches!(self, Self::Answered | Self::NativeHistograms)
    }
}

/// Why a query gave nothing that can be used: the class, and the detail that a person needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The class.
    pub outcome: Outcome,
    /// What exactly happened and how to mend it, in at most 400 bytes.
    pub detail: String,
}

impl Failure {
    /// A failure whose detail is made printable and cut to its limit.
    #[must_use]
    pub fn new(outcome: Outcome, detail: &str) -> Self {
        Self { outcome, detail: cut(detail, DETAIL_MAX) }
    }

    /// A failure whose detail is an error and its sources.
    pub(crate) fn from_error(outcome: Outcome, error: &dyn std::error::Error) -> Self {
        Self::new(outcome, &chain(error))
    }
}

/// The start of a body that is no answer, on one line.
pub(crate) fn shown(body: &[u8]) -> String {
    let start = &body[..body.len().min(SHOWN_MAX)];
    let text = String::from_utf8_lossy(start);
    let words: Vec<&str> = text.split_whitespace().collect();
    let mark = if body.len() > SHOWN_MAX { "..." } else { "" };
    format!("{}{mark}", words.join(" "))
}

/// Text without control characters, of at most so many bytes.
pub(crate) fn cut(text: &str, most: usize) -> String {
    let printable = |c: char| if c.is_control() { ' ' } else { c };
    let text: String = text.chars().take(most + 1).map(printable).collect();
    let end = text.floor_char_boundary(most);
    let mark = if end < text.len() { "..." } else { "" };
    format!("{}{mark}", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_outcome_has_a_label_of_its_own() {
        let labels: BTreeSet<_> = Outcome::ALL.map(Outcome::label).into();
        assert_eq!(labels.len(), Outcome::ALL.len());
    }

    #[test]
    fn what_a_server_wrote_is_shown_short_and_printable() {
        let page = format!("<html>\n\t<title>\u{1b}[31mLogin</title>{}", "x".repeat(500));
        let said = Failure::new(Outcome::NotJson, &shown(page.as_bytes())).detail;
        assert!(said.starts_with("<html> <title> [31mLogin</title>xxx"), "{said}");
        assert!(said.ends_with("...") && said.len() < 210, "{said}");
        assert_eq!(cut(&"é".repeat(300), 401), format!("{}...", "é".repeat(200)));
    }
}
