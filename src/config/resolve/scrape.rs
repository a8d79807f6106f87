//! How replicas are scraped: the global section, and what a variant lays over it.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::collect::scrape::{Client, Identity, Settings};
use crate::collect::targets::{Endpoint, Scheme};
use crate::config::Scrape;
use crate::config::check::{Checks, Durations};
use crate::config::file;
use crate::config::problem::join;
use crate::config::written::WrittenDuration;

const INTERVAL: Duration = Duration::from_secs(1);
/// Engines write their gauges a few times a second at most.
const INTERVALS: Durations = Duration::from_millis(100)..=Duration::from_mins(5);
/// Below the interval by what a slow answer needs to be given up before the next scrape.
const TIMEOUT: Duration = Duration::from_millis(900);
const TIMEOUTS: Durations = Duration::from_millis(10)..=Duration::from_mins(5);
const CONCURRENCY: u32 = 128;
/// Each scrape has a connection, and processes have a limit of open files.
const CONCURRENCIES: RangeInclusive<u32> = 1..=10_000;
/// Ten times the page of an engine with many ranks and adapters.
const BODY_LIMIT: usize = 8 << 20;
const BODY_LIMITS: RangeInclusive<u64> = (1 << 10)..=(1 << 30);
/// The port of vLLM's API server.
const PORT: u16 = 8000;
const PATH: &str = "/metrics";

/// The global section.
pub(crate) struct Scraped {
    /// What variants use where they do not say otherwise.
    pub(crate) scrape: Scrape,
    /// Scrapes at the same time.
    pub(crate) concurrency: usize,
}

/// Resolves the global section.
pub(crate) fn resolve(section: Option<&file::Scrape>, checks: &mut Checks<'_>) -> Scraped {
    let file::Scrape {
        interval,
        timeout,
        concurrency,
        body_limit,
        scheme,
        port,
        path,
        tls,
        bearer_token_file,
    } = section.cloned().unwrap_or_default();
    let concurrency =
        checks.number("scrape.concurrency", concurrency, &CONCURRENCIES).unwrap_or(CONCURRENCY);
    let written = file::VariantScrape {
        interval,
        timeout,
        body_limit,
        scheme,
        port,
        path,
        tls,
        bearer_token_file,
    };
    let default = Scrape {
        endpoint: Endpoint { scheme: Scheme::Http, port: PORT, path: PATH.to_owned() },
        settings: Arc::new(Settings {
            interval: INTERVAL,
            timeout: TIMEOUT,
            body_limit: BODY_LIMIT,
            client: Client::default(),
        }),
    };
    let scrape = overlay("scrape", &default, &written, checks);
    Scraped { scrape, concurrency: usize::try_from(concurrency).unwrap_or(usize::MAX) }
}

/// Lays what is written at a path over a section. Without anything written, both share settings.
pub(crate) fn overlay(
    at: &str,
    below: &Scrape,
    written: &file::VariantScrape,
    checks: &mut Checks<'_>,
) -> Scrape {
    let file::VariantScrape {
        interval,
        timeout,
        body_limit,
        scheme,
        port,
        path,
        tls,
        bearer_token_file,
    } = written;
    let Scrape {
        endpoint: Endpoint { scheme: scheme_below, port: port_below, path: path_below },
        settings,
    } = below;
    let port = checks.number(&join(at, "port"), *port, &(1..=u16::MAX)).unwrap_or(*port_below);
    let rule = "must start with `/` and have neither spaces nor a fragment";
    let path = checks.text(&join(at, "path"), path.as_deref(), is_path, rule);
    let endpoint = Endpoint {
        scheme: match scheme {
            Some(file::Scheme::Http) => Scheme::Http,
            Some(file::Scheme::Https) => Scheme::Https,
            None => *scheme_below,
        },
        port,
        path: path.unwrap_or(path_below).to_owned(),
    };
    let interval_path = join(at, "interval");
    let timeout_path = join(at, "timeout");
    let resolved = Settings {
        interval: checks
            .duration(&interval_path, *interval, &INTERVALS)
            .unwrap_or(settings.interval),
        timeout: checks.duration(&timeout_path, *timeout, &TIMEOUTS).unwrap_or(settings.timeout),
        body_limit: checks
            .size(&join(at, "body_limit"), *body_limit, &BODY_LIMITS)
            .unwrap_or(settings.body_limit),
        client: overlay_client(
            at,
            &settings.client,
            tls.as_ref(),
            bearer_token_file.as_ref(),
            checks,
        ),
    };
    // What a variant inherits as a whole has been reported at the global section.
    if resolved.timeout > resolved.interval
        && (interval.is_some() || timeout.is_some() || at == "scrape")
    {
        let rule = format!(
            "must not be longer than {interval_path}, which is {}",
            WrittenDuration(resolved.interval)
        );
        checks.problems.error(timeout_path, rule, WrittenDuration(resolved.timeout));
    }
    let written_here = tls.is_some() || bearer_token_file.is_some() || scheme.is_some();
    if written_here {
        warn_of_client(at, endpoint.scheme, &resolved.client, checks);
    }
    let settings = if resolved == **settings { Arc::clone(settings) } else { Arc::new(resolved) };
    Scrape { endpoint, settings }
}

pub(crate) fn overlay_client(
    at: &str,
    below: &Client,
    tls: Option<&file::ClientTls>,
    bearer_token_file: Option<&PathBuf>,
    checks: &mut Checks<'_>,
) -> Client {
    let file::ClientTls { ca_file, cert_file, key_file, insecure_skip_verify } =
        tls.cloned().unwrap_or_default();
    let tls_path = join(at, "tls");
    let below = below.clone();
    let ca_file = checks.file(&join(&tls_path, "ca_file"), ca_file.as_ref()).or(below.ca_file);
    let bearer_token_file =
        checks.file(&join(at, "bearer_token_file"), bearer_token_file).or(below.bearer_token_file);
    // A certificate and its key belong together, so a variant replaces both or none.
    let cert_path = join(&tls_path, "cert_file");
    let key_path = join(&tls_path, "key_file");
    let cert = checks.file(&cert_path, cert_file.as_ref());
    let key = checks.file(&key_path, key_file.as_ref());
    let identity = match (cert, key) {
        (Some(cert_file), Some(key_file)) => Some(Identity { cert_file, key_file }),
        (Some(_), None) => {
            checks.problems.missing(key_path, "is missing: a certificate needs its key");
            None
        }
        (None, Some(_)) => {
            checks.problems.missing(cert_path, "is missing: a key needs its certificate");
            None
        }
        (None, None) => below.identity,
    };
    Client {
        ca_file,
        identity,
        insecure_skip_verify: insecure_skip_verify.unwrap_or(below.insecure_skip_verify),
        bearer_token_file,
    }
}

pub(crate) fn warn_of_client(at: &str, scheme: Scheme, client: &Client, checks: &mut Checks<'_>) {
    let Client { ca_file, identity, insecure_skip_verify, bearer_token_file } = client;
    match scheme {
        Scheme::Http => {
            if ca_file.is_some() || identity.is_some() || *insecure_skip_verify {
                let rule = format!("has no effect, because {} is http", join(at, "scheme"));
                checks.problems.warning(join(at, "tls"), rule);
            }
            if bearer_token_file.is_some() {
                let rule =
                    format!("sends the token in the clear, because {} is http", join(at, "scheme"));
                checks.problems.warning(join(at, "bearer_token_file"), rule);
            }
        }
        Scheme::Https => {
            if *insecure_skip_verify {
                let rule = "lets anyone answer in a replica's place";
                checks.problems.warning(join(&join(at, "tls"), "insecure_skip_verify"), rule);
            }
        }
    }
}

fn is_path(text: &str) -> bool {
    text.starts_with('/') && text.chars().all(|c| c.is_ascii_graphic() && c != '#')
}
