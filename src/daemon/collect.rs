//! Collection: turns all external input into [`plimsoll_core::observe::Inputs`].

pub mod cluster;
pub mod demand;
pub mod exposition;
mod file;
pub mod prometheus;
pub mod scrape;
pub mod targets;

use tokio::sync::watch;

/// Replaces the value of a channel. Receivers are notified only if the value differs.
pub(crate) fn replace<T: PartialEq>(channel: &watch::Sender<T>, new: T) {
    channel.send_if_modified(|known| {
        let differs = *known != new;
        if differs {
            *known = new;
        }
        differs
    });
}

/// Formats an error and its sources on one line.
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
