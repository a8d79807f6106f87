//! What the clients of one server saw, as the numbers that Plimsoll derives from pages.

use crate::recordings::recording::{End, Request};

/// The clients of one server.
pub(crate) struct Clients {
    requests: Vec<Seen>,
}

/// One request that reached the engine.
struct Seen {
    completions: f64,
    sent: f64,
    ended: f64,
    /// When its first token was there; `None` when it got none. Of a request that was not streamed
    /// it is what its last token and the time between tokens of its neighbours make likely.
    first: Option<f64>,
    streamed: bool,
    prompt_tokens: f64,
    tokens: f64,
    gaps: (f64, f64),
}

/// A stretch of time, open at its start and closed at its end, in seconds of Unix time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) from: f64,
    pub(crate) to: f64,
}

impl Span {
    pub(crate) fn length(self) -> f64 {
        self.to - self.from
    }

    fn holds(self, instant: f64) -> bool {
        self.from < instant && instant <= self.to
    }

    /// The share of `from..to` that lies in this span.
    fn share(self, from: f64, to: f64) -> f64 {
        if to <= from {
            return f64::from(u8::from(self.holds(to)));
        }
        ((self.to.min(to) - self.from.max(from)) / (to - from)).max(0.0)
    }
}

impl Clients {
    /// The requests that reached the engine: neither refused connections nor wrong requests, which
    /// are answered before the engine sees them.
    pub(crate) fn new(requests: &[&Request]) -> Self {
        let reached = requests.iter().filter(|request| request.sound && request.end != End::Lost);
        let seen = |request: &&&Request| Seen {
            completions: request.completions,
            sent: request.sent,
            ended: request.ended,
            first: request.first.or_else(|| likely_first(request, requests)),
            streamed: request.first.is_some(),
            prompt_tokens: request.prompt_tokens * request.completions,
            tokens: request.tokens,
            gaps: request.gaps,
        };
        Self { requests: reached.filter(|it| it.ended > it.sent).map(|it| seen(&it)).collect() }
    }

    /// Requests that were sent, each completion counted.
    pub(crate) fn arrivals(&self, span: Span) -> f64 {
        let sent = self.requests.iter().filter(|request| span.holds(request.sent));
        sent.map(|request| request.completions).sum()
    }

    /// Requests that were open at an instant, each completion counted.
    pub(crate) fn open(&self, instant: f64) -> f64 {
        let open = |request: &&Seen| request.sent <= instant && instant < request.ended;
        self.requests.iter().filter(open).map(|request| request.completions).sum()
    }

    /// Tokens of the prompts whose first token came.
    pub(crate) fn prompt_tokens(&self, span: Span) -> f64 {
        let first = self.requests.iter().filter(|it| it.first.is_some_and(|it| span.holds(it)));
        first.map(|request| request.prompt_tokens).sum()
    }

    /// Tokens that came, a request's spread evenly over the time between its first and its last.
    pub(crate) fn tokens(&self, span: Span) -> f64 {
        let tokens =
            |request: &Seen| Some(request.tokens * span.share(request.first?, request.ended));
        self.requests.iter().filter_map(tokens).sum()
    }

    /// The mean time to first token of the streamed requests whose first token came, and of how
    /// many requests it is the mean.
    pub(crate) fn ttft(&self, span: Span) -> (Option<f64>, f64) {
        let times: Vec<f64> = self
            .requests
            .iter()
            .filter(|request| request.streamed)
            .filter_map(|request| Some((request.first?, request.sent)))
            .filter(|(first, _)| span.holds(*first))
            .map(|(first, sent)| first - sent)
            .collect();
        let count = times.len() as f64;
        ((count > 0.0).then(|| times.iter().sum::<f64>() / count), count)
    }

    /// The mean time between tokens of the streamed requests, each weighing as many gaps as it
    /// likely had.
    pub(crate) fn itl(&self, span: Span) -> Option<f64> {
        let (mut number, mut total) = (0.0, 0.0);
        for request in self.requests.iter().filter(|request| request.streamed) {
            let share = span.share(request.first?, request.ended);
            number += request.gaps.0 * share;
            total += request.gaps.1 * share;
        }
        (number > 0.0).then(|| total / number)
    }
}

/// When a request that was not streamed likely had its first token. One that was hung up may not
/// have had any, and nobody knows.
fn likely_first(request: &Request, all: &[&Request]) -> Option<f64> {
    if request.end != End::Complete || request.tokens == 0.0 {
        return None;
    }
    let beside = |other: &&&Request| {
        other.first.is_some_and(|first| first <= request.ended && other.ended >= request.sent)
    };
    let (number, total) = all
        .iter()
        .filter(beside)
        .fold((0.0, 0.0), |(number, total), it| (number + it.later_tokens(), total + it.gaps.1));
    let gap = if number > 0.0 { total / number } else { 0.0 };
    let first = request.ended - request.tokens / request.completions * gap;
    Some(first.max(request.sent))
}
