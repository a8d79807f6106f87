//! `pin`, `pause` and `resume`: overrides of one variant, by the daemon's plain HTTP port.

use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use jiff::SignedDuration;
use reqwest::Method;
use serde_json::{Value, json};

use crate::cli::args::{OverrideTarget, OverrideTime, PauseArgs, PinArgs};
use crate::cli::ask::{self, AskError, ChangeRequest};
use plimsoll_daemon::clock::Clock;

/// The reason why an override is not in effect.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OverrideError {
    /// The daemon refuses it.
    #[error("{0}")]
    Refused(String),
    /// The file of the token cannot be read.
    #[error("the token in {} cannot be read", path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// Pins a variant.
///
/// # Errors
///
/// The daemon does not answer, or refuses it.
pub(crate) fn pin(args: &PinArgs) -> anyhow::Result<()> {
    let PinArgs { target, replicas, time } = args;
    send(target, Some(json!({"pin": replicas, "until": until(time)?})))
}

/// Pauses a variant.
///
/// # Errors
///
/// The daemon does not answer, or refuses it.
pub(crate) fn pause(args: &PauseArgs) -> anyhow::Result<()> {
    let PauseArgs { target, time } = args;
    send(target, Some(json!({"pause": true, "until": until(time)?})))
}

/// Ends the pin or the pause of a variant.
///
/// # Errors
///
/// The daemon does not answer, or there is nothing to end.
pub(crate) fn resume(target: &OverrideTarget) -> anyhow::Result<()> {
    send(target, None)
}

/// The instant at which an override ends, in whole seconds.
fn until(time: &OverrideTime) -> anyhow::Result<String> {
    let end = match time {
        OverrideTime { until: Some(until), .. } => *until,
        OverrideTime { until: None, lasts } => {
            let length = SignedDuration::try_from(lasts.unwrap_or(Duration::ZERO))?;
            Clock::start().now().checked_add(length).context("the time is too long")?
        }
    };

    Ok(format!("{end:.0}"))
}

fn send(target: &OverrideTarget, body: Option<Value>) -> anyhow::Result<()> {
    let OverrideTarget { variant, url, token_file } = target;
    let token = token_file.as_ref().map(|path| {
        fs::read_to_string(path)
            .map_err(|source| OverrideError::Token { path: path.clone(), source })
    });
    let query = ask::of_variant(variant);
    let request = ChangeRequest {
        method: if body.is_some() { Method::PUT } else { Method::DELETE },
        path: format!("/-/override?{query}"),
        body: body.map(|body| body.to_string()).unwrap_or_default(),
        token: token.transpose()?.map(|token| token.trim().to_owned()),
    };

    let (status, text) = ask::change(url, &request)?;
    let answer: Value = serde_json::from_str(&text).unwrap_or_default();
    if status.is_success() {
        let mut out = io::stdout().lock();
        match (answer["override"].as_str(), answer["until"].as_str()) {
            (Some(kind), Some(until)) => writeln!(out, "{variant} has a {kind} until {until}")?,
            _ => writeln!(out, "{variant} follows its load again")?,
        }
        return Ok(out.flush()?);
    }

    match (status.is_client_error(), answer["error"].as_str()) {
        (true, Some(why)) => Err(OverrideError::Refused(why.to_owned()).into()),
        (true, None) if !text.trim().is_empty() => {
            Err(OverrideError::Refused(text.trim().to_owned()).into())
        }
        _ => Err(AskError::answer(url, status.to_string()).into()),
    }
}
