//! The discovered variants that may be scraped with the operator's credentials.
//!
//! A tenant who can annotate an object chooses the scheme, port and path of a scrape, and one who
//! can create pods receives it. A bearer token or a client certificate therefore goes only where
//! the operator lets it: to namespaces and ports of the configuration, and never in plain text
//! where the configuration says TLS. A scrape elsewhere is made without credentials, so a variant
//! that needs none works, and the owner of the object is told.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use crate::collect::scrape::{ClientSettings, ScrapeSettings};
use crate::collect::targets::{Endpoint, Scheme};
use plimsoll_core::fleet::Namespace;

/// The key of the configuration that lists namespaces.
const NAMESPACES_KEY: &str = "scrape.credentials_for";
/// The key of the configuration that lists ports.
const PORTS_KEY: &str = "scrape.credentials_ports";

/// The namespaces that may receive credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TrustedNamespaces {
    /// All of the cluster.
    All,
    /// The listed ones.
    Listed(BTreeSet<Namespace>),
}

/// The endpoints that may receive credentials, and the settings with and without them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CredentialScope {
    namespaces: TrustedNamespaces,
    /// The scheme of the configuration.
    scheme: Scheme,
    ports: BTreeSet<u16>,
    full: Arc<ScrapeSettings>,
    /// The same settings without credentials; `None` if there are none.
    bare: Option<Arc<ScrapeSettings>>,
}

/// The rule that keeps credentials from a variant's replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CredentialRefusal {
    /// The namespace may not receive them.
    Namespace,
    /// The configuration says `https`, and an annotation says `http`.
    PlainText,
    /// The port is none of the configuration.
    Port(u16),
}

// === impl CredentialScope ===

impl CredentialScope {
    /// Creates the scope for these settings and ports. The endpoint is that of the configuration,
    /// whose port is always one of the ports.
    pub(crate) fn new(
        settings: &Arc<ScrapeSettings>,
        usual: &Endpoint,
        namespaces: TrustedNamespaces,
        more_ports: impl IntoIterator<Item = u16>,
    ) -> Self {
        let client =
            ClientSettings { identity: None, bearer_token_file: None, ..settings.client.clone() };
        let bare = ScrapeSettings { client, ..ScrapeSettings::clone(settings) };
        let has_credentials = bare != **settings;

        Self {
            namespaces,
            scheme: usual.scheme,
            ports: more_ports.into_iter().chain([usual.port]).collect(),
            full: Arc::clone(settings),
            bare: has_credentials.then(|| Arc::new(bare)),
        }
    }

    /// Returns the settings for replicas in a namespace at an endpoint, and the rule that keeps
    /// credentials from them.
    pub(crate) fn settings(
        &self,
        namespace: &Namespace,
        endpoint: &Endpoint,
    ) -> (&Arc<ScrapeSettings>, Option<CredentialRefusal>) {
        let Some(bare) = &self.bare else { return (&self.full, None) };

        match self.refusal(namespace, endpoint) {
            Some(refusal) => (bare, Some(refusal)),
            None => (&self.full, None),
        }
    }

    fn refusal(&self, namespace: &Namespace, endpoint: &Endpoint) -> Option<CredentialRefusal> {
        let trusted = match &self.namespaces {
            TrustedNamespaces::All => true,
            TrustedNamespaces::Listed(listed) => listed.contains(namespace),
        };

        if !trusted {
            Some(CredentialRefusal::Namespace)
        } else if self.scheme == Scheme::Https && endpoint.scheme == Scheme::Http {
            Some(CredentialRefusal::PlainText)
        } else if !self.ports.contains(&endpoint.port) {
            Some(CredentialRefusal::Port(endpoint.port))
        } else {
            None
        }
    }
}

// === impl CredentialRefusal ===

impl fmt::Display for CredentialRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the replicas are scraped without the credentials of the configuration, ")?;

        match self {
            Self::Namespace => write!(
                f,
                "because their namespace may not receive them; if it should, list it in \
                 {NAMESPACES_KEY}"
            ),
            Self::PlainText => f.write_str(
                "because the annotation plimsoll.dev/scheme is http where scrape.scheme is https; \
                 remove it, or serve the metrics over TLS",
            ),
            Self::Port(port) => write!(
                f,
                "because the annotation plimsoll.dev/port is {port}, which may not receive them; \
                 if it should, list it in {PORTS_KEY}"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::collect::scrape::ClientIdentity;

    fn settings(token: Option<&str>, certificate: Option<&str>) -> Arc<ScrapeSettings> {
        let identity = certificate
            .map(|name| ClientIdentity { cert_file: name.into(), key_file: name.into() });
        let client = ClientSettings {
            identity,
            bearer_token_file: token.map(Into::into),
            ca_file: Some("ca.pem".into()),
            insecure_skip_verify: false,
        };

        Arc::new(ScrapeSettings {
            interval: Duration::from_secs(1),
            timeout: Duration::from_secs(1),
            body_limit: 1,
            client,
        })
    }

    fn endpoint(scheme: Scheme, port: u16) -> Endpoint {
        Endpoint { scheme, port, path: "/metrics".to_owned() }
    }

    fn shop() -> Namespace {
        Namespace::new("shop").unwrap()
    }

    fn trusting_shop() -> TrustedNamespaces {
        TrustedNamespaces::Listed([shop()].into())
    }

    #[test]
    fn credentials_go_to_listed_namespaces_and_ports_and_never_over_a_weaker_scheme() {
        let full = settings(Some("token"), Some("client.pem"));
        let other = Namespace::new("other").unwrap();
        let usual = endpoint(Scheme::Https, 8000);
        let scope = CredentialScope::new(&full, &usual, trusting_shop(), [9000]);

        for (namespace, at, refusal) in [
            (shop(), endpoint(Scheme::Https, 8000), None),
            (shop(), endpoint(Scheme::Https, 9000), None),
            (shop(), endpoint(Scheme::Https, 22), Some(CredentialRefusal::Port(22))),
            (shop(), endpoint(Scheme::Http, 8000), Some(CredentialRefusal::PlainText)),
            (other, endpoint(Scheme::Https, 8000), Some(CredentialRefusal::Namespace)),
        ] {
            let (given, why) = scope.settings(&namespace, &at);
            assert_eq!(why, refusal, "{namespace} {at:?}");

            let ClientSettings { ca_file, identity, bearer_token_file, .. } = &given.client;
            assert_eq!(bearer_token_file.is_some(), refusal.is_none(), "{namespace} {at:?}");
            assert_eq!(identity.is_some(), refusal.is_none(), "{namespace} {at:?}");
            assert!(ca_file.is_some(), "trust is no secret");
        }
    }

    #[test]
    fn a_configuration_that_says_http_may_send_its_token_in_plain_text_and_tls_is_no_weaker() {
        let full = settings(Some("token"), None);
        let usual = endpoint(Scheme::Http, 8000);
        let scope = CredentialScope::new(&full, &usual, trusting_shop(), []);
        assert_eq!(scope.settings(&shop(), &usual), (&full, None));
        assert_eq!(scope.settings(&shop(), &endpoint(Scheme::Https, 8000)), (&full, None));
    }

    #[test]
    fn nothing_is_withheld_where_there_is_no_credential_or_all_namespaces_are_trusted() {
        let other = Namespace::new("other").unwrap();
        let usual = endpoint(Scheme::Http, 8000);
        let open = settings(None, None);
        let scope = CredentialScope::new(&open, &usual, trusting_shop(), []);
        assert_eq!(scope.settings(&other, &endpoint(Scheme::Http, 1)), (&open, None));

        let full = settings(None, Some("client.pem"));
        let scope = CredentialScope::new(&full, &usual, TrustedNamespaces::All, []);
        assert_eq!(scope.settings(&other, &usual), (&full, None));
    }
}
