//! Log filters: which lines are written.
//!
//! A filter is a list of directives as in `RUST_LOG`. It can be set over HTTP while the daemon runs,
//! so reading and applying it is cheap whatever it is. Field values are compared as literals: as
//! regular expressions, which they are by default, a hundred bytes can ask for more memory than the
//! machine has.

use tracing_subscriber::EnvFilter;

/// The directives of a filter. Each is compared with every span and every place that logs, and an
/// operator needs a handful.
pub(crate) const DIRECTIVES_MAX: usize = 64;

/// An error in the log setup.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The text is not a valid log filter.
    #[error("{filter:?} is not a log filter; use for example info, or plimsoll=debug,warn")]
    Filter {
        /// The text.
        filter: String,
        /// The error from the filter parser.
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    /// The filter has so many directives that logging becomes expensive.
    #[error("the log filter has {count} directives; use at most {DIRECTIVES_MAX}")]
    TooManyDirectives {
        /// The number of directives.
        count: usize,
    },
    /// Logging is already initialized, or the subscriber no longer exists.
    #[error("the log subscriber cannot be set")]
    Subscriber,
}

/// Reads a filter.
///
/// # Errors
///
/// The text is not a filter, or has too many directives.
pub fn parse(filter: &str) -> Result<EnvFilter, LogError> {
    // The parser takes places in the trimmed directive for places in the text before it: with a space
    // after the comma, it cuts names short and panics inside a character of several bytes.
    let directives: Vec<_> =
        filter.split(',').map(str::trim).filter(|directive| !directive.is_empty()).collect();
    let count = directives.len();
    if count > DIRECTIVES_MAX {
        return Err(LogError::TooManyDirectives { count });
    }

    EnvFilter::builder()
        .with_regex(false)
        .parse(directives.join(","))
        .map_err(|source| LogError::Filter { filter: filter.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tracing::{Event, Subscriber};
    use tracing_subscriber::layer::{Context, SubscriberExt};
    use tracing_subscriber::{Layer, Registry};

    use super::*;

    #[test]
    fn a_bad_filter_is_named() {
        let error = parse("plimsoll=loud").unwrap_err();
        assert!(error.to_string().contains("\"plimsoll=loud\""), "{error}");
    }

    #[test]
    fn spaces_around_directives_change_nothing() {
        assert_eq!(
            parse(" warn, plimsoll=debug ").unwrap().to_string(),
            parse("warn,plimsoll=debug").unwrap().to_string()
        );
        assert_eq!(parse(" ").unwrap().to_string(), parse("").unwrap().to_string());
        assert!(parse("u, tel: ext\u{3cf}=====").is_err());
    }

    #[test]
    fn a_field_value_of_a_filter_is_a_literal_and_never_compiled() {
        assert_eq!(lines_of_a_span("[scrape{target=(}]=debug", "("), 1, "no regular expression");
        assert_eq!(lines_of_a_span("[scrape{target=a.c}]=debug", "a.c"), 1);
        assert_eq!(lines_of_a_span("[scrape{target=a.c}]=debug", "abc"), 0);

        // As a regular expression, this needs a table of 2^40 states.
        let pattern = format!("(x|y)*x{}", "(x|y)".repeat(40));
        assert!(parse(&format!("[scrape{{target={pattern}}}]=debug")).is_ok());
    }

    #[test]
    fn a_filter_of_too_many_directives_is_refused_with_the_limit() {
        assert!(parse(&"plimsoll=debug,".repeat(DIRECTIVES_MAX)).is_ok());
        let error = parse(&"[{a}],".repeat(DIRECTIVES_MAX + 1)).unwrap_err();
        assert_eq!(error.to_string(), "the log filter has 65 directives; use at most 64");
    }

    /// The lines that a filter lets through from a span with this target.
    fn lines_of_a_span(filter: &str, target: &str) -> usize {
        let lines = CountingLayer::default();
        let seen = Arc::clone(&lines.0);
        let subscriber = Registry::default().with(parse(filter).unwrap()).with(lines);

        tracing::subscriber::with_default(subscriber, || {
            let _span = tracing::info_span!("scrape", %target).entered();
            tracing::debug!("A line");
        });
        seen.load(Ordering::Relaxed)
    }

    /// Counts lines.
    #[derive(Default)]
    struct CountingLayer(Arc<AtomicUsize>);

    impl<S: Subscriber> Layer<S> for CountingLayer {
        fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}
