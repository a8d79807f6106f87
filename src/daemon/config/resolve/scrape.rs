//! How replicas are scraped: the global section, and what a variant lays over it.

use std::path::PathBuf;
use std::sync::Arc;

use crate::collect::scrape::{Client, Identity, Settings};
use crate::collect::targets::{Endpoint, Scheme};
use crate::config::Scrape;
use crate::config::check::Checks;
use crate::config::file::{ClientTlsKeys, ScrapeKeys, VariantScrapeKeys};
use crate::config::problem::join;
use crate::config::written::WrittenDuration;
use plimsoll_core::settings::values::Bytes;
use plimsoll_core::settings::{self, Written};

type ClientTls = Written<ClientTlsKeys>;
type GlobalScrape = Written<ScrapeKeys>;
type VariantScrape = Written<VariantScrapeKeys>;

/// The global section.
pub(crate) struct Scraped {
    /// What variants use where they do not say otherwise.
    pub(crate) scrape: Scrape,
    /// Scrapes at the same time.
    pub(crate) concurrency: usize,
}

impl Scrape {
    /// The keys that give this.
    pub(crate) fn keys(&self) -> VariantScrapeKeys {
        let Self { endpoint: Endpoint { scheme, port, path }, settings } = self;
        let Settings { interval, timeout, body_limit, client } = &**settings;
        VariantScrapeKeys {
            interval: *interval,
            timeout: *timeout,
            body_limit: Bytes(*body_limit as u64),
            scheme: *scheme,
            port: *port,
            path: path.clone(),
            tls: client_keys(client),
            bearer_token_file: client.bearer_token_file.clone(),
        }
    }

    /// What the keys give, with the client that they are used with.
    fn of(keys: VariantScrapeKeys, client: Client) -> Self {
        let VariantScrapeKeys { interval, timeout, body_limit, scheme, port, path, .. } = keys;
        let body_limit = usize::try_from(body_limit.0).unwrap_or(usize::MAX);
        let settings = Arc::new(Settings { interval, timeout, body_limit, client });
        Self { endpoint: Endpoint { scheme, port, path }, settings }
    }
}

/// Resolves the global section.
pub(crate) fn resolve(section: Option<&Written<ScrapeKeys>>, checks: &mut Checks<'_>) -> Scraped {
    let ScrapeKeys { concurrency, .. } = settings::resolve(section, "scrape", &mut checks.problems);
    let default = Scrape::of(VariantScrapeKeys::default(), Client::default());
    let scrape = overlay("scrape", &default, &shared(section), checks);
    Scraped { scrape, concurrency }
}

/// The keys that variants have as well.
fn shared(section: Option<&Written<ScrapeKeys>>) -> VariantScrape {
    let GlobalScrape {
        interval,
        timeout,
        concurrency: _,
        body_limit,
        scheme,
        port,
        path,
        tls,
        bearer_token_file,
    } = section.cloned().unwrap_or_default();
    VariantScrape { interval, timeout, body_limit, scheme, port, path, tls, bearer_token_file }
}

/// Lays what is written at a path over a section. Without anything written, both share settings.
pub(crate) fn overlay(
    at: &str,
    below: &Scrape,
    written: &VariantScrape,
    checks: &mut Checks<'_>,
) -> Scrape {
    let VariantScrape { interval, timeout, scheme, tls, bearer_token_file, .. } = written;
    let keys = settings::resolve_over(Some(written), &below.keys(), at, &mut checks.problems);
    let (tls, token) = (tls.as_ref(), bearer_token_file.as_ref());
    let client = overlay_client(at, &below.settings.client, tls, token, checks);
    let Scrape { endpoint, settings: resolved } = Scrape::of(keys, client);
    let interval_path = join(at, "interval");
    let timeout_path = join(at, "timeout");
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
    let written_here = tls.is_some() || token.is_some() || scheme.is_some();
    if written_here {
        warn_of_client(at, endpoint.scheme, &resolved.client, checks);
    }
    let settings = if resolved == below.settings { Arc::clone(&below.settings) } else { resolved };
    Scrape { endpoint, settings }
}

pub(crate) fn overlay_client(
    at: &str,
    below: &Client,
    tls: Option<&ClientTls>,
    bearer_token_file: Option<&PathBuf>,
    checks: &mut Checks<'_>,
) -> Client {
    let ClientTls { ca_file, cert_file, key_file, insecure_skip_verify } =
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

/// The keys of TLS that give a client.
pub(crate) fn client_keys(client: &Client) -> ClientTlsKeys {
    let Client { ca_file, identity, insecure_skip_verify, .. } = client;
    let identity = identity.clone();
    let identity = identity.map(|Identity { cert_file, key_file }| (cert_file, key_file));
    let (cert_file, key_file) = identity.unzip();
    let insecure_skip_verify = *insecure_skip_verify;
    ClientTlsKeys { ca_file: ca_file.clone(), cert_file, key_file, insecure_skip_verify }
}
