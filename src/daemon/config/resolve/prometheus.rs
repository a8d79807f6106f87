//! The section about queries to Prometheus.

use std::collections::BTreeMap;
use std::path::PathBuf;

use reqwest::Url;
use reqwest::header::{HeaderName, HeaderValue};

use crate::collect::prometheus::{BasicAuth, PrometheusSettings, Secret};
use crate::collect::scrape::ClientSettings;
use crate::collect::targets::Scheme;
use crate::config::check::Checks;
use crate::config::file::PrometheusKeys;
use crate::config::names;
use crate::config::resolve::scrape::{check_client, client, warn_of_client};
use plimsoll_core::settings::Written;
use plimsoll_core::settings::problem::join;
use plimsoll_core::settings::written::WrittenDuration;

const SECTION: &str = "prometheus";

/// Headers for credentials, which belong in a file or have their own key.
const SECRET_HEADERS: [&str; 3] = ["authorization", "proxy-authorization", "cookie"];

/// The replacement for a header value, which may be secret.
const HIDDEN: &str = "(hidden)";

/// Parameters that Plimsoll sets itself.
const OWN_PARAMETERS: [&str; 4] = ["query", "time", "timeout", "limit"];

/// Resolves the section, and completes it. Header values may be secret, so they are removed from
/// it.
pub(crate) fn resolve(
    section: &Written<PrometheusKeys>,
    keys: &mut PrometheusKeys,
    checks: &mut Checks<'_>,
) -> PrometheusSettings {
    let url = url(section.url.as_deref(), checks);
    let client = client_of(section, keys, url.as_ref(), checks);
    keys.url = url.map(|url| url.as_str().trim_end_matches('/').to_owned()).unwrap_or_default();
    check_basic_auth(section, keys, checks);

    let headers = headers(&mut keys.headers, checks);
    let header_files = header_files(section, checks);
    let shown = header_files.iter().map(|(name, file)| (name.clone(), Some(file.clone())));
    keys.header_files = shown.collect();
    let parameters = parameters(&keys.parameters, checks);
    let matched = matched_labels(&join(SECTION, "match"), &keys.matched, checks);
    let PrometheusKeys {
        interval,
        stale_after,
        lookback,
        method,
        timeout,
        series_limit,
        body_limit,
        ..
    } = *keys;

    if stale_after < interval.saturating_mul(2) {
        let twice = WrittenDuration(interval.saturating_mul(2));
        let rule = format!("must be at least {twice}, twice prometheus.interval");
        checks.problems.error(join(SECTION, "stale_after"), rule, WrittenDuration(stale_after));
    }

    if lookback < stale_after {
        let rule = format!(
            "must not be shorter than prometheus.stale_after, which is {}",
            WrittenDuration(stale_after)
        );
        checks.problems.error(join(SECTION, "lookback"), rule, WrittenDuration(lookback));
    }

    PrometheusSettings {
        url: keys.url.clone(),
        interval,
        stale_after,
        lookback,
        method,
        timeout,
        series_limit,
        body_limit: usize::try_from(body_limit.0).unwrap_or(usize::MAX),
        client,
        basic_auth: keys.basic_auth.clone(),
        headers,
        header_files,
        parameters,
        matched,
        labels: keys.labels.clone(),
    }
}

/// The labels that series must have. Each must be the name of a label with a value.
pub(crate) fn matched_labels(
    path: &str,
    written: &BTreeMap<String, Option<String>>,
    checks: &mut Checks<'_>,
) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    for (name, text) in written {
        let at = join(path, name);
        if !names::is_prometheus_label(name) {
            checks.problems.error_at(&at, names::PROMETHEUS_LABEL);
        }

        let Some(value) = text.as_ref().filter(|text| !text.is_empty()) else {
            checks.problems.error_at(&at, "must not be empty: it would match other targets");
            continue;
        };
        labels.insert(name.clone(), value.clone());
    }

    labels
}

/// The URL. Problems are noted without the URL itself, which may contain a password.
fn url(written: Option<&str>, checks: &mut Checks<'_>) -> Option<Url> {
    let path = join(SECTION, "url");
    let text = written?;
    let url = Url::parse(text).ok().filter(Url::has_host);
    let Some(url) = url.filter(|url| ["http", "https"].contains(&url.scheme())) else {
        let rule = "must be a URL with http or https, such as http://prometheus:9090";
        checks.problems.error_at(path, rule);
        return None;
    };
    if !url.username().is_empty() || url.password().is_some() {
        let rule = "must not have credentials, which logs would show; use prometheus.basic_auth \
                    with username and password_file";
        checks.problems.error_at(path, rule);
        return None;
    }

    if url.query().is_some() || url.fragment().is_some() {
        let rule = "must have neither `?` nor `#`; parameters belong in prometheus.parameters";
        checks.problems.error_at(path, rule);
        return None;
    }

    if url.path().trim_end_matches('/').contains("/api/v1") {
        let rule = "must end before /api/v1, which is added";
        checks.problems.error(path, rule, text);
        return None;
    }

    Some(url)
}

fn client_of(
    section: &Written<PrometheusKeys>,
    keys: &PrometheusKeys,
    url: Option<&Url>,
    checks: &mut Checks<'_>,
) -> ClientSettings {
    let tls = section.tls.as_ref();
    let token = section.bearer_token_file.as_ref();
    check_client(SECTION, tls, token, checks);
    let client = client(&keys.tls, keys.bearer_token_file.as_ref());
    let scheme = url.map(|url| if url.scheme() == "https" { Scheme::Https } else { Scheme::Http });
    if let Some(scheme) = scheme {
        warn_of_client(SECTION, scheme, &client, checks);
        if scheme == Scheme::Http && section.basic_auth.is_some() {
            let rule = "sends the password unencrypted, because prometheus.url is http";
            checks.problems.warning(join(SECTION, "basic_auth"), rule);
        }
    }

    client
}

fn check_basic_auth(
    section: &Written<PrometheusKeys>,
    keys: &PrometheusKeys,
    checks: &mut Checks<'_>,
) {
    let Some(BasicAuth { password_file, .. }) = &keys.basic_auth else { return };
    let path = join(SECTION, "basic_auth");
    if section.bearer_token_file.is_some() {
        let rule = "must not be set with prometheus.bearer_token_file: both set the same header";
        checks.problems.error_at(&path, rule);
    }

    let written = section.basic_auth.as_ref().is_some_and(|it| it.password_file.is_some());
    checks.file(&join(&path, "password_file"), Some(password_file).filter(|_| written));
}

/// The headers; hides their written values.
fn headers(
    written: &mut BTreeMap<String, Option<String>>,
    checks: &mut Checks<'_>,
) -> BTreeMap<String, Secret> {
    let mut headers = BTreeMap::new();
    for (name, written) in written {
        let value = written.replace(HIDDEN.to_owned()).unwrap_or_default();
        let path = join(&join(SECTION, "headers"), name);
        header_name(&path, name, checks);
        if SECRET_HEADERS.contains(&name.to_lowercase().as_str()) {
            let rule = "has credentials, so its value belongs in a file: use \
                prometheus.header_files, basic_auth or bearer_token_file";
            checks.problems.error_at(path, rule);
            continue;
        }

        // The value may be a secret, so it is not repeated.
        if value.is_empty() || HeaderValue::from_str(&value).is_err() {
            checks.problems.error_at(path, "must be a valid header value");
            continue;
        }

        headers.insert(name.clone(), Secret::new(value));
    }

    headers
}

fn header_files(
    section: &Written<PrometheusKeys>,
    checks: &mut Checks<'_>,
) -> BTreeMap<String, PathBuf> {
    let mut files = BTreeMap::new();
    for (name, file) in section.header_files.iter().flatten() {
        let path = join(&join(SECTION, "header_files"), name);
        header_name(&path, name, checks);
        if section.headers.as_ref().is_some_and(|headers| headers.contains_key(name)) {
            checks.problems.error_at(&path, "is also in prometheus.headers");
        }
        if let Some(file) = checks.file(&path, file.as_ref()) {
            files.insert(name.clone(), file);
        }
    }

    files
}

fn header_name(path: &str, name: &str, checks: &mut Checks<'_>) {
    if HeaderName::try_from(name).is_err() {
        checks.problems.error_at(path, "is not a valid header name");
    }
}

fn parameters(
    written: &BTreeMap<String, Option<String>>,
    checks: &mut Checks<'_>,
) -> BTreeMap<String, String> {
    let mut parameters = BTreeMap::new();
    for (name, value) in written {
        if name.is_empty() || OWN_PARAMETERS.contains(&name.as_str()) {
            let path = join(&join(SECTION, "parameters"), name);
            checks.problems.error_at(path, "is set by Plimsoll itself");
        }
        parameters.insert(name.clone(), value.clone().unwrap_or_default());
    }

    parameters
}
