//! Signals that wake models.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::Url;

use crate::collect::demand::{Page, Signal, Source};
use crate::collect::targets::Scheme;
use crate::config::Variant;
use crate::config::check::Checks;
use crate::config::file::WakeSignalKeys;
use crate::config::resolve::Around;
use crate::config::resolve::saturation::model_key;
use crate::config::resolve::scrape::{check_client, client, warn_of_client};
use plimsoll_core::fleet::ModelKey;
use plimsoll_core::observe::Counts;
use plimsoll_core::settings::{self, Written};

/// A signal as written.
type WakeSignal = Written<WakeSignalKeys>;

const LIST: &str = "scale_to_zero.wake";

/// The request waits, so a page is read as often as those of replicas.
const INTERVAL: Duration = Duration::from_secs(1);
/// Prometheus has nothing new more often.
const QUERY_INTERVAL: Duration = Duration::from_secs(5);

/// Resolves the list.
pub(crate) fn resolve(
    written: Option<&[Option<WakeSignal>]>,
    around: &Around<'_>,
    checks: &mut Checks<'_>,
) -> Vec<(WakeSignalKeys, Signal)> {
    let mut signals: Vec<(WakeSignalKeys, Signal)> = Vec::new();
    for (at, signal) in written.unwrap_or_default().iter().enumerate() {
        let Some(signal) = signal else { continue };
        let path = format!("{LIST}[{at}]");
        let Some(resolved) = resolve_one(&path, signal, around, checks) else { continue };
        let name = &resolved.1.name;
        if signals.iter().any(|(_, known)| known.name == *name) {
            let rule = "must be unique: another signal has this name";
            checks.problems.error(format!("{path}.name"), rule, name);
            continue;
        }
        signals.push(resolved);
    }
    signals
}

fn resolve_one(
    path: &str,
    signal: &WakeSignal,
    around: &Around<'_>,
    checks: &mut Checks<'_>,
) -> Option<(WakeSignalKeys, Signal)> {
    let at = |key: &str| format!("{path}.{key}");
    let mut keys: WakeSignalKeys = settings::resolve(Some(signal), path, &mut checks.problems);
    let models = models(&at("models"), signal, around, checks);
    let source = source(path, signal, &mut keys, around, checks);
    let one = matches!(source, Some(Source::Metric { .. } | Source::Query(_)));
    if one && models.is_empty() && !checks.problems.refused(&at("models")) {
        let rule = "is missing: this signal is one number, and does not say of which model";
        checks.problems.missing(at("models"), rule);
    }
    let source = source.filter(|_| signal.name.is_some())?;
    let usual = if signal.query.is_some() { QUERY_INTERVAL } else { INTERVAL };
    let interval = *keys.interval.get_or_insert(usual);
    let is_picker = matches!(source, Source::EndpointPicker(_));
    let is_counting = *keys.counts_requests.get_or_insert(is_picker);
    let counts = match (keys.counts_rejected, is_counting) {
        (true, _) => Counts::Rejected,
        (false, true) => Counts::Requests,
        (false, false) => Counts::Something,
    };
    if keys.counts_rejected && is_counting {
        let rule = "is for one number that does not count waiting requests, neither by \
                    counts_requests nor as an endpoint picker's";
        checks.problems.error_at(at("counts_rejected"), rule);
    }
    keys.models = Some(models.iter().map(ToString::to_string).collect());
    let name = keys.name.clone();
    Some((keys, Signal { name, models, source, interval, counts }))
}

fn source(
    path: &str,
    signal: &WakeSignal,
    keys: &mut WakeSignalKeys,
    around: &Around<'_>,
    checks: &mut Checks<'_>,
) -> Option<Source> {
    let at = |key: &str| format!("{path}.{key}");
    let WakeSignal { url, metric, labels, query, tls, bearer_token_file, .. } = signal;
    let of_page = [
        ("metric", metric.is_some()),
        ("labels", labels.is_some()),
        ("tls", tls.is_some()),
        ("bearer_token_file", bearer_token_file.is_some()),
    ];
    match (url, query) {
        (None, None) => {
            let rule = "needs a url of a page of metrics, or a query for Prometheus";
            checks.problems.error_at(path, rule);
            None
        }
        (Some(_), Some(_)) => {
            checks.problems.error_at(path, "must have either url or query, not both");
            None
        }
        (None, Some(query)) => {
            for (key, _) in of_page.iter().filter(|(_, written)| *written) {
                checks.problems.error_at(at(key), "is for a signal with a url");
            }
            if around.relayed.is_none() {
                let rule = "needs the section prometheus, which says whom to ask";
                checks.problems.error_at(at("query"), rule);
            }
            let rule = "must be an expression, such as sum(gateway_queued_requests)";
            let is_there = |text: &str| !text.trim().is_empty();
            let query = checks.text(&at("query"), Some(query), is_there, rule)?;
            Some(Source::Query(query.to_owned()))
        }
        (Some(url), None) => {
            let scheme = page_scheme(&at("url"), url, checks)?;
            check_client(path, tls.as_ref(), bearer_token_file.as_ref(), checks);
            let tls = keys.tls.get_or_insert_default();
            let client = client(tls, keys.bearer_token_file.as_ref());
            warn_of_client(path, scheme, &client, checks);
            let page = Page { url: url.clone(), client };
            let Some(metric) = metric else {
                if labels.is_some() {
                    let rule = "needs metric: without it, the page is an endpoint picker's";
                    checks.problems.error_at(at("labels"), rule);
                }
                return Some(Source::EndpointPicker(page));
            };
            let rule = "must be the name of a metric";
            let metric = checks.text(&at("metric"), Some(metric), is_metric, rule)?.to_owned();
            let labels: BTreeMap<String, String> = labels
                .iter()
                .flatten()
                .map(|(name, value)| (name.clone(), value.clone().unwrap_or_default()))
                .collect();
            let shown = labels.iter().map(|(name, value)| (name.clone(), Some(value.clone())));
            keys.labels = Some(shown.collect());
            Some(Source::Metric { page, metric, labels })
        }
    }
}

/// The scheme of a page's URL; `None` where it is none.
fn page_scheme(path: &str, written: &str, checks: &mut Checks<'_>) -> Option<Scheme> {
    let url = Url::parse(written).ok().filter(Url::has_host);
    let scheme = url.as_ref().and_then(|url| match url.scheme() {
        "http" => Some(Scheme::Http),
        "https" => Some(Scheme::Https),
        _ => None,
    });
    let has_secret = url.is_some_and(|url| !url.username().is_empty() || url.password().is_some());
    if scheme.is_none() {
        let rule = "must be a URL with http or https, such as http://epp.llm-d:9090/metrics";
        checks.problems.error_at(path, rule);
    } else if has_secret {
        let rule = "must not have credentials, which logs would show; use bearer_token_file";
        checks.problems.error_at(path, rule);
        return None;
    }
    scheme
}

fn models(
    path: &str,
    signal: &WakeSignal,
    around: &Around<'_>,
    checks: &mut Checks<'_>,
) -> Vec<ModelKey> {
    let mut models = Vec::new();
    for (at, written) in signal.models.as_deref().unwrap_or_default().iter().enumerate() {
        let path = format!("{path}[{at}]");
        let Some(name) = written else { continue };
        let Some(key) = model_key(name) else {
            let rule = "must be MODEL#NAMESPACE, such as \"meta/llama-70b#production\"";
            checks.problems.error(path, rule, format!("{name:?}"));
            continue;
        };
        let serves = |variant: &Variant| variant.spec.model_key() == key;
        if around.known.is_some_and(|variants| !variants.iter().any(serves)) {
            checks.problems.warning(path, "has no effect, because no variant serves this model");
        }
        models.push(key);
    }
    models
}

fn is_metric(text: &str) -> bool {
    let begins = text.starts_with(|c: char| c.is_ascii_alphabetic() || "_:".contains(c));
    begins && text.chars().all(|c| c.is_ascii_alphanumeric() || "_:".contains(c))
}
