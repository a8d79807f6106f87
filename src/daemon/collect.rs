//! Collecting: everything that arrives from outside, turned into [`plimsoll_core::observe::Inputs`].

pub mod cluster;
pub mod demand;
pub mod exposition;
mod file;
pub mod prometheus;
pub mod scrape;
pub mod targets;

use tokio::sync::watch;

/// Replaces the value of a channel, and tells nobody when it is the same.
pub(crate) fn replace<T: PartialEq>(channel: &watch::Sender<T>, new: T) {
    channel.send_if_modified(|known| {
        let differs = *known != new;
        if differs {
            *known = new;
        }
        differs
    });
}

/// An error and its sources in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let next = error.to_string();
        // Some libraries repeat the source in the error's own text.
        if !text.ends_with(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        source = error.source();
    }
    text
}
