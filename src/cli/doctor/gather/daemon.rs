//! A running daemon: its status, its decisions and its metrics.

use std::time::Duration;

use jiff::Timestamp;
use reqwest::StatusCode;
use serde_json::Value;

use crate::cli::args::DAEMON_URL;
use crate::cli::ask;
use crate::cli::doctor::evidence::DaemonEvidence;
use crate::cli::doctor::gather::causes::chain;
use plimsoll_daemon::clock::Clock;
use plimsoll_daemon::collect::exposition::samples;

/// A daemon answers in milliseconds.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Asks the daemon at a URL, or at the usual one.
pub(super) async fn gather(named: Option<&str>) -> DaemonEvidence {
    let url = named.unwrap_or(DAEMON_URL);
    let clock = Clock::start();
    let timed = async { (get(url, "/api/v1/status").await, clock.now()) };
    let ((status, answered), decisions, metrics) =
        tokio::join!(timed, get(url, "/api/v1/decisions"), get(url, "/metrics"));
    let status = json(status);
    // Without an answer there is one reason, and not one for each path.
    let unread = status.as_ref().err().cloned();
    let or_unread = |text: Result<String, String>| match unread.clone() {
        Some(reason) => Err(reason),
        None => text,
    };

    let shown = status.as_ref().ok().and_then(|status| status["now"].as_str());
    let shown: Option<Timestamp> = shown.and_then(|now| now.parse().ok());

    DaemonEvidence {
        url: url.to_owned(),
        is_named: named.is_some(),
        ahead_seconds: shown.map(|shown| answered.duration_since(shown).as_secs_f64()),
        status: status.into(),
        decisions: json(or_unread(decisions)).into(),
        metrics: or_unread(metrics)
            .and_then(|text| {
                let read = samples::samples(text.as_bytes(), None, &|_| true);
                read.map_err(|error| format!("{url}/metrics: {error}"))
            })
            .into(),
    }
}

async fn get(url: &str, path: &str) -> Result<String, String> {
    let answered = ask::fetch(url, path, TIMEOUT).await;
    let (status, text) = answered.map_err(|error| chain(&error))?;
    if status == StatusCode::OK {
        Ok(text)
    } else {
        Err(refusal(&format!("{url}{path} answers with {status}"), &text))
    }
}

/// An answer that is not the expected one, with the cause that the daemon gives, if it gives one.
fn refusal(answer: &str, text: &str) -> String {
    let read: Value = serde_json::from_str(text).unwrap_or_default();
    match read["error"].as_str() {
        Some(cause) => format!("{answer}: {cause}"),
        None => answer.to_owned(),
    }
}

fn json(text: Result<String, String>) -> Result<Value, String> {
    serde_json::from_str(&text?).map_err(|error| {
        format!(
            "the daemon's response is not JSON: \
        {error}"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_cause_that_the_daemon_gives() {
        let answer = "http://daemon.example/api/v1/status answers with 403 Forbidden";
        let cause = r#"{"error": "the host name \"daemon.example\" is not allowed"}"#;
        let expected = format!("{answer}: the host name \"daemon.example\" is not allowed");
        assert_eq!(refusal(answer, cause), expected);
        for text in ["", "<html>", "{}", "[1]"] {
            assert_eq!(refusal(answer, text), answer);
        }
    }
}
