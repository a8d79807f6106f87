//! The scrape settings: the global section, and the variants' sections that are merged over it.

use std::path::PathBuf;
use std::sync::Arc;

use crate::collect::scrape::{ClientIdentity, ClientSettings, ScrapeSettings};
use crate::collect::targets::{Endpoint, Scheme};
use crate::config::check::Checks;
use crate::config::effective::ScrapeDefaults;
use crate::config::file::{ClientTlsKeys, ScrapeKeys, VariantScrapeKeys};
use plimsoll_core::settings::problem::join;
use plimsoll_core::settings::written::WrittenDuration;
use plimsoll_core::settings::{self, Written};

type ClientTls = Written<ClientTlsKeys>;
type GlobalScrape = Written<ScrapeKeys>;
type VariantScrape = Written<VariantScrapeKeys>;

/// A section of scrape settings, and the resolved settings.
pub(crate) struct ResolvedScrape {
    pub(crate) keys: VariantScrapeKeys,
    pub(crate) scrape: ScrapeDefaults,
}

impl ResolvedScrape {
    fn of(keys: VariantScrapeKeys) -> Self {
        let VariantScrapeKeys { interval, timeout, scheme, port, ref path, .. } = keys;
        let client = client(&keys.tls, keys.bearer_token_file.as_ref());
        let body_limit = usize::try_from(keys.body_limit.0).unwrap_or(usize::MAX);
        let settings = Arc::new(ScrapeSettings { interval, timeout, body_limit, client });
        let endpoint = Endpoint { scheme, port, path: path.clone() };
        Self { keys, scrape: ScrapeDefaults { endpoint, settings } }
    }
}

/// Resolves the global section.
pub(crate) fn resolve(
    section: Option<&Written<ScrapeKeys>>,
    checks: &mut Checks<'_>,
) -> ResolvedScrape {
    let default = ResolvedScrape::of(VariantScrapeKeys::default());
    overlay("scrape", &default, &shared(section), checks)
}

/// The keys that variants also have.
fn shared(section: Option<&Written<ScrapeKeys>>) -> VariantScrape {
    let GlobalScrape {
        interval,
        timeout,
        concurrency: _,
        credentials_for: _,
        credentials_ports: _,
        body_limit,
        scheme,
        port,
        path,
        tls,
        bearer_token_file,
    } = section.cloned().unwrap_or_default();

    VariantScrape { interval, timeout, body_limit, scheme, port, path, tls, bearer_token_file }
}

/// Merges the keys at a path over a section. Without any key, both share their settings.
pub(crate) fn overlay(
    at: &str,
    below: &ResolvedScrape,
    written: &VariantScrape,
    checks: &mut Checks<'_>,
) -> ResolvedScrape {
    let VariantScrape { interval, timeout, scheme, tls, bearer_token_file, .. } = written;
    let keys = settings::resolve_over(Some(written), &below.keys, at, &mut checks.problems);
    let token = bearer_token_file.as_ref();
    check_client(at, tls.as_ref(), token, checks);

    let interval_path = join(at, "interval");
    // Problems of inherited values have been noted at the global section.
    if keys.timeout > keys.interval && (interval.is_some() || timeout.is_some() || at == "scrape") {
        let rule = format!(
            "must not be longer than {interval_path}, which is {}",
            WrittenDuration(keys.interval)
        );
        checks.problems.error(join(at, "timeout"), rule, WrittenDuration(keys.timeout));
    }

    let mut scraped = ResolvedScrape::of(keys);
    let settings = &mut scraped.scrape.settings;
    let written_here = tls.is_some() || token.is_some() || scheme.is_some();
    if written_here {
        warn_of_client(at, scraped.scrape.endpoint.scheme, &settings.client, checks);
    }
    if *settings == below.scrape.settings {
        *settings = Arc::clone(&below.scrape.settings);
    }

    scraped
}

/// The client settings that result from these keys.
pub(crate) fn client(tls: &ClientTlsKeys, bearer_token_file: Option<&PathBuf>) -> ClientSettings {
    let ClientTlsKeys { ca_file, cert_file, key_file, insecure_skip_verify } = tls.clone();
    let identity = cert_file.zip(key_file);

    ClientSettings {
        ca_file,
        identity: identity.map(|(cert_file, key_file)| ClientIdentity { cert_file, key_file }),
        insecure_skip_verify,
        bearer_token_file: bearer_token_file.cloned(),
    }
}

/// Checks the files of a client. A certificate and its key belong together, so a variant replaces
/// both or neither.
pub(crate) fn check_client(
    at: &str,
    tls: Option<&ClientTls>,
    bearer_token_file: Option<&PathBuf>,
    checks: &mut Checks<'_>,
) {
    checks.file(&join(at, "bearer_token_file"), bearer_token_file);
    let Some(tls) = tls else { return };
    let [ca_path, cert_path, key_path] =
        ["ca_file", "cert_file", "key_file"].map(|key| format!("{at}.tls.{key}"));

    checks.file(&ca_path, tls.ca_file.as_ref());
    let cert = checks.file(&cert_path, tls.cert_file.as_ref());
    let key = checks.file(&key_path, tls.key_file.as_ref());
    if cert.is_some() && key.is_none() {
        checks.problems.missing(key_path, "is missing: a certificate needs its key");
    } else if cert.is_none() && key.is_some() {
        checks.problems.missing(cert_path, "is missing: a key needs its certificate");
    }
}

pub(crate) fn warn_of_client(
    at: &str,
    scheme: Scheme,
    client: &ClientSettings,
    checks: &mut Checks<'_>,
) {
    let ClientSettings { ca_file, identity, insecure_skip_verify, bearer_token_file } = client;
    match scheme {
        Scheme::Http => {
            if ca_file.is_some() || identity.is_some() || *insecure_skip_verify {
                let rule = format!("has no effect, because {} is http", join(at, "scheme"));
                checks.problems.warning(join(at, "tls"), rule);
            }

            if bearer_token_file.is_some() {
                let rule =
                    format!("sends the token unencrypted, because {} is http", join(at, "scheme"));
                checks.problems.warning(join(at, "bearer_token_file"), rule);
            }
        }
        Scheme::Https => {
            if *insecure_skip_verify {
                let rule = "lets any server pose as a replica";
                checks.problems.warning(join(&join(at, "tls"), "insecure_skip_verify"), rule);
            }
        }
    }
}
