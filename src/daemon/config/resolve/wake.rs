//! Signals that wake models.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::Url;

use crate::collect::demand::{MetricsEndpoint, ReadSettings, SignalSettings, SignalSource};
use crate::collect::targets::Scheme;
use crate::config::check::Checks;
use crate::config::file::WakeSignalKeys;
use crate::config::resolve::policy_context::PolicyContext;
use crate::config::resolve::saturation::{model_key, warn_of_unserved};
use crate::config::resolve::scrape::{check_client, client, warn_of_client};
use plimsoll_core::fleet::{ModelKey, Namespace};
use plimsoll_core::observe::SignalQuantity;
use plimsoll_core::settings::problem::join;
use plimsoll_core::settings::{self, Written};

/// A signal as written.
type WakeSignal = Written<WakeSignalKeys>;

const LIST: &str = "scale_to_zero.wake";

/// The request waits, so the endpoint is scraped as often as the replicas.
const INTERVAL: Duration = Duration::from_secs(1);
/// Prometheus has no newer data more often.
const QUERY_INTERVAL: Duration = Duration::from_secs(5);

/// Resolves the list.
pub(crate) fn resolve(
    written: Option<&[Option<WakeSignal>]>,
    around: &PolicyContext<'_>,
    checks: &mut Checks<'_>,
) -> Vec<(WakeSignalKeys, SignalSettings)> {
    let mut signals: Vec<(WakeSignalKeys, SignalSettings)> = Vec::new();
    for (at, signal) in written.unwrap_or_default().iter().enumerate() {
        let Some(signal) = signal else { continue };
        let path = format!("{LIST}[{at}]");
        let Some(resolved) = resolve_one(&path, signal, around, checks) else { continue };
        let name = &resolved.1.read.name;
        if signals.iter().any(|(_, known)| known.read.name == *name) {
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
    around: &PolicyContext<'_>,
    checks: &mut Checks<'_>,
) -> Option<(WakeSignalKeys, SignalSettings)> {
    let mut keys: WakeSignalKeys = settings::resolve(Some(signal), path, &mut checks.problems);
    let models_path = join(path, "models");
    let models = models(&models_path, signal, around, checks);
    let found = source(path, signal, &mut keys, around, checks);
    let one = matches!(found, Some(SignalSource::Metric { .. } | SignalSource::Query(_)));
    if one && models.is_empty() && !checks.problems.refused(&models_path) {
        let rule = "is missing: this signal is a single number, so name its model";
        checks.problems.missing(models_path, rule);
    }

    let source = found.filter(|_| signal.name.is_some())?;
    let usual = if signal.query.is_some() { QUERY_INTERVAL } else { INTERVAL };
    let interval = *keys.interval.get_or_insert(usual);
    let is_picker = matches!(source, SignalSource::EndpointPicker(_));
    let is_counting = *keys.counts_requests.get_or_insert(is_picker);
    let counts = match (keys.counts_rejected, is_counting) {
        (true, _) => SignalQuantity::Rejected,
        (false, true) => SignalQuantity::Requests,
        (false, false) => SignalQuantity::Something,
    };
    if keys.counts_rejected && is_counting {
        let rule = "is only for a single number that does not count waiting requests, by \
            counts_requests or as an endpoint picker";
        checks.problems.error_at(join(path, "counts_rejected"), rule);
    }

    let listed = keys.namespaces.iter().flatten();
    let namespaces = listed.filter_map(|name| Namespace::new(name)).collect();
    keys.models = Some(models.iter().map(ToString::to_string).collect());
    let read = ReadSettings { name: keys.name.clone(), source, interval };
    Some((keys, SignalSettings { read, models, namespaces, counts }))
}

fn source(
    path: &str,
    signal: &WakeSignal,
    keys: &mut WakeSignalKeys,
    around: &PolicyContext<'_>,
    checks: &mut Checks<'_>,
) -> Option<SignalSource> {
    let WakeSignal { url, metric, labels, query, tls, bearer_token_file, .. } = signal;
    let of_page = [
        ("metric", metric.is_some()),
        ("labels", labels.is_some()),
        ("tls", tls.is_some()),
        ("bearer_token_file", bearer_token_file.is_some()),
    ];

    match (url, query) {
        (None, None) => {
            let rule = "needs a url of metrics, or a query for Prometheus";
            checks.problems.error_at(path, rule);
            None
        }
        (Some(_), Some(_)) => {
            checks.problems.error_at(path, "must have either url or query, not both");
            None
        }
        (None, Some(query)) => {
            for (key, _) in of_page.iter().filter(|(_, written)| *written) {
                checks.problems.error_at(join(path, key), "is only for a signal with a url");
            }
            if around.relayed.is_none() {
                let rule = "needs the section prometheus, which names the server";
                checks.problems.error_at(join(path, "query"), rule);
            }

            let rule = "must be an expression, such as sum(gateway_queued_requests)";
            let expression = checks.text(&join(path, "query"), Some(query), is_there, rule)?;
            Some(SignalSource::Query(expression.to_owned()))
        }
        (Some(url), None) => {
            let scheme = page_scheme(&join(path, "url"), url, checks)?;
            check_client(path, tls.as_ref(), bearer_token_file.as_ref(), checks);
            let tls = keys.tls.get_or_insert_default();
            let client = client(tls, keys.bearer_token_file.as_ref());
            warn_of_client(path, scheme, &client, checks);
            let page = MetricsEndpoint { url: url.clone(), client };
            let Some(metric) = metric else {
                if labels.is_some() {
                    let rule = "needs metric: without it, the url is an endpoint picker's";
                    checks.problems.error_at(join(path, "labels"), rule);
                }
                return Some(SignalSource::EndpointPicker(page));
            };

            let rule = "must be the name of a metric";
            let name = checks.text(&join(path, "metric"), Some(metric), is_metric, rule)?;
            let mut wanted = BTreeMap::new();
            for (label, value) in labels.iter().flatten() {
                wanted.insert(label.clone(), value.clone().unwrap_or_default());
            }

            let shown = wanted.iter().map(|(label, value)| (label.clone(), Some(value.clone())));
            keys.labels = Some(shown.collect());
            Some(SignalSource::Metric { page, metric: name.to_owned(), labels: wanted })
        }
    }
}

/// The scheme of a metrics URL; `None` if the URL is not valid.
pub(super) fn page_scheme(path: &str, written: &str, checks: &mut Checks<'_>) -> Option<Scheme> {
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
    around: &PolicyContext<'_>,
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

        warn_of_unserved(path, &key, around.known, &mut checks.problems);
        models.push(key);
    }

    models
}

fn is_there(text: &str) -> bool {
    !text.trim().is_empty()
}

fn is_metric(text: &str) -> bool {
    let begins = text.starts_with(|c: char| c.is_ascii_alphabetic() || "_:".contains(c));
    begins && text.chars().all(|c| c.is_ascii_alphanumeric() || "_:".contains(c))
}
