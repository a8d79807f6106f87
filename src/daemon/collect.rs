//! Collection: turns all external input into [`plimsoll_core::observe::Inputs`].

pub mod cluster;
pub mod demand;
pub mod exposition;
mod file;
pub mod prometheus;
pub mod scrape;
pub mod targets;

use std::error::Error;
use std::io;

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
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    for source in sources(error) {
        let next = source.to_string();
        // Some libraries repeat the source in the error's own text.
        if !text.ends_with(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
    }

    text
}

/// Returns the kind of the innermost I/O error, from the operating system or from a stream.
pub(crate) fn io_kind(error: &dyn Error) -> Option<io::ErrorKind> {
    sources(error).filter_map(|source| source.downcast_ref()).last().map(io::Error::kind)
}

/// Returns the causes of an error, outermost first.
pub(crate) fn sources<'a>(error: &'a dyn Error) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(error.source(), |&source| source.source())
}
