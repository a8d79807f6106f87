//! Authentication of callers by front-proxy identities.
//!
//! The API server of a cluster authenticates a user, and then calls Plimsoll on the user's behalf.
//! It proves that it is the API server with a client certificate from the *front-proxy* authority,
//! and names the user in request headers. [`identify`] accepts those headers if and only if the
//! certificate chains to that authority, is in its validity period, and has an allowed name. No
//! other way exists: no tokens, no other certificates, no anonymous users.
//!
//! The [`TrustAnchor`] is read from the `ConfigMap` in which every cluster publishes it,
//! `kube-system/extension-apiserver-authentication`. Without an anchor every caller is refused.
//!
//! # Source
//!
//! `apiserver/pkg/authentication/request/headerrequest` and
//! `apiserver/pkg/authentication/group/authenticated_group_adder.go`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use jiff::{SignedDuration, Timestamp};
use percent_encoding::percent_decode_str;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{self, CertificateDer, UnixTime};
use x509_parser::prelude::{FromDer, X509Certificate};

/// The time for which the verdict on a connection's certificate is reused, because verifying costs
/// more than answering. An expired certificate is noticed at most this late.
const VERIFIED_MAX: SignedDuration = SignedDuration::from_secs(10);

/// The group of every authenticated user.
const AUTHENTICATED: &str = "system:authenticated";

/// The group of anonymous users.
const UNAUTHENTICATED: &str = "system:unauthenticated";

/// The name of the anonymous user.
const ANONYMOUS: &str = "system:anonymous";

/// The header names that every API server strips from its users' requests.
const USUAL_HEADERS: [&str; 4] =
    ["x-remote-user", "x-remote-group", "x-remote-extra-", "x-remote-uid"];

/// The user on whose behalf a request is made.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct UserIdentity {
    /// The user's name.
    pub user: String,
    /// The user's groups, in the order in which they were named.
    pub groups: Vec<String>,
    /// The user's unique id, if the cluster assigns one.
    pub uid: Option<String>,
    /// Further attributes from the authenticator.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// The trusted front proxies, and the headers in which they name users.
#[derive(Clone, Debug)]
pub struct TrustAnchor {
    roots: Vec<pki_types::TrustAnchor<'static>>,
    allowed_names: BTreeSet<String>,
    user_headers: Vec<HeaderName>,
    group_headers: Vec<HeaderName>,
    uid_headers: Vec<HeaderName>,
    extra_prefixes: Vec<String>,
}

/// The reason that a `ConfigMap` cannot be used as a trust anchor.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// A key is missing: the cluster's aggregation layer is off.
    #[error("{0} is missing, so the aggregation layer of this cluster is not configured")]
    Missing(&'static str),
    /// A bundle of certificates is not PEM.
    #[error("{key} is not a PEM bundle of certificates")]
    Pem {
        /// The key of the bundle.
        key: &'static str,
        /// The PEM error.
        #[source]
        source: pem::Error,
    },
    /// A bundle holds something that cannot be an authority.
    #[error("certificate {place} of requestheader-client-ca-file cannot be an authority: {reason}")]
    Authority {
        /// Its place in the bundle, from 1.
        place: usize,
        /// The reason.
        reason: String,
    },
    /// A list of names is not a JSON array of strings.
    #[error("{key} is not a JSON array of strings")]
    Json {
        /// The key of the list.
        key: &'static str,
        /// The JSON error.
        #[source]
        source: serde_json::Error,
    },
    /// A name that is not valid as a header name.
    #[error("{key} holds {name:?}, which is no header name")]
    HeaderName {
        /// The key of the list.
        key: &'static str,
        /// The name.
        name: String,
    },
    /// Any client with a certificate of the cluster could claim to be any user.
    #[error(
        "requestheader-allowed-names is empty and the front proxy's authority also signs the \
         certificates of users"
    )]
    AnyUserIsProxy,
}

const KEY_CLIENT_CA: &str = "client-ca-file";
const KEY_CA: &str = "requestheader-client-ca-file";
const KEY_NAMES: &str = "requestheader-allowed-names";
const KEY_USER: &str = "requestheader-username-headers";
const KEY_GROUP: &str = "requestheader-group-headers";
const KEY_UID: &str = "requestheader-uid-headers";
const KEY_EXTRA: &str = "requestheader-extra-headers-prefix";

impl TrustAnchor {
    /// Reads the data of `kube-system/extension-apiserver-authentication`.
    ///
    /// # Errors
    ///
    /// The data is missing or malformed, or would let any user of the cluster claim to be any
    /// other.
    pub fn from_config_map(data: &BTreeMap<String, String>) -> Result<Self, TrustError> {
        let bundle = certificates(data, KEY_CA)?;
        if bundle.is_empty() {
            return Err(TrustError::Missing(KEY_CA));
        }

        let allowed_names: BTreeSet<String> = list(data, KEY_NAMES)?.into_iter().collect();
        let client = certificates(data, KEY_CLIENT_CA)?;
        if allowed_names.is_empty() && bundle.iter().any(|root| client.contains(root)) {
            return Err(TrustError::AnyUserIsProxy);
        }

        let user_headers = header_names(data, KEY_USER)?;
        if user_headers.is_empty() {
            return Err(TrustError::Missing(KEY_USER));
        }

        let extra_prefixes =
            header_names(data, KEY_EXTRA)?.iter().map(|name| name.as_str().to_owned()).collect();
        Ok(Self {
            roots: authorities(&bundle)?,
            allowed_names,
            user_headers,
            group_headers: header_names(data, KEY_GROUP)?,
            uid_headers: header_names(data, KEY_UID)?,
            extra_prefixes,
        })
    }

    /// Accepted header names that API servers do not strip from their users' requests. A user can
    /// send such a header through to Plimsoll, so the operator should be warned.
    #[must_use]
    pub fn smuggled_headers(&self) -> Vec<&str> {
        let Self { user_headers, group_headers, uid_headers, extra_prefixes, .. } = self;

        [user_headers, group_headers, uid_headers]
            .into_iter()
            .flatten()
            .map(HeaderName::as_str)
            .chain(extra_prefixes.iter().map(String::as_str))
            .filter(|name| !USUAL_HEADERS.contains(name))
            .collect()
    }
}

fn certificates(
    data: &BTreeMap<String, String>,
    key: &'static str,
) -> Result<Vec<CertificateDer<'static>>, TrustError> {
    let Some(text) = data.get(key) else { return Ok(Vec::new()) };
    CertificateDer::pem_slice_iter(text.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|source| TrustError::Pem { key, source })
}

fn authorities(
    bundle: &[CertificateDer<'static>],
) -> Result<Vec<pki_types::TrustAnchor<'static>>, TrustError> {
    bundle
        .iter()
        .zip(1..)
        .map(|(der, place)| {
            webpki::anchor_from_trusted_cert(der)
                .map(|anchor| anchor.to_owned())
                .map_err(|error| TrustError::Authority { place, reason: format!("{error:?}") })
        })
        .collect()
}

fn list(data: &BTreeMap<String, String>, key: &'static str) -> Result<Vec<String>, TrustError> {
    let Some(text) = data.get(key) else { return Ok(Vec::new()) };
    serde_json::from_str(text).map_err(|source| TrustError::Json { key, source })
}

fn header_names(
    data: &BTreeMap<String, String>,
    key: &'static str,
) -> Result<Vec<HeaderName>, TrustError> {
    list(data, key)?
        .into_iter()
        .map(|name| name.parse().map_err(|_| TrustError::HeaderName { key, name }))
        .collect()
}

/// The other end of a connection: the client certificates whose key it holds.
#[derive(Debug, Default)]
pub struct ConnectionPeer {
    certificates: Vec<CertificateDer<'static>>,
    verified: Mutex<Option<PeerVerdict>>,
}

/// A verdict on the certificates, with its trust anchor and time.
#[derive(Debug)]
struct PeerVerdict {
    anchor: Arc<TrustAnchor>,
    at: Timestamp,
    verdict: Result<(), IdentityRefusal>,
}

impl ConnectionPeer {
    /// A peer that presented these certificates, its own first.
    #[must_use]
    pub fn new(certificates: Vec<CertificateDer<'static>>) -> Self {
        Self { certificates, verified: Mutex::new(None) }
    }

    /// Checks that this is the front proxy.
    pub(crate) fn check(
        &self,
        now: Timestamp,
        anchor: &Arc<TrustAnchor>,
    ) -> Result<(), IdentityRefusal> {
        // A poisoned lock holds a whole verdict: it is only ever replaced.
        let mut verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(PeerVerdict { anchor: trusted, at, verdict }) = &*verified
            && Arc::ptr_eq(trusted, anchor)
            && (SignedDuration::ZERO..VERIFIED_MAX).contains(&now.duration_since(*at))
        {
            return verdict.clone();
        }

        let verdict = verify(now, &self.certificates, anchor);
        *verified =
            Some(PeerVerdict { anchor: Arc::clone(anchor), at: now, verdict: verdict.clone() });
        verdict
    }

    /// Returns true if the last check of the certificates accepted this peer.
    pub(crate) fn is_accepted(&self) -> bool {
        let verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        verified.as_ref().is_some_and(|last| last.verdict.is_ok())
    }
}

/// The reason that a request has no accepted identity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityRefusal {
    /// The client presented no certificate.
    #[error("no client certificate was presented; only the cluster's API server may send requests")]
    NoCertificate,
    /// The client's certificate is not the front proxy's.
    #[error("the client certificate (CN {name:?}) is not accepted: {reason}")]
    Untrusted {
        /// The common name of the certificate.
        name: String,
        /// The reason.
        reason: String,
    },
    /// The certificate is from the front proxy's authority, but its name is not allowed.
    #[error("the client certificate's CN {name:?} is not one of the allowed names ({allowed})")]
    NotAllowed {
        /// The common name of the certificate.
        name: String,
        /// The allowed names.
        allowed: String,
    },
    /// The front proxy names no user.
    #[error("the request names no user ({0})")]
    NoUser(String),
    /// A header that names the user occurs more than once, so that it names several users.
    #[error("the header {0} is repeated")]
    Ambiguous(HeaderName),
    /// A header that names the user is not text.
    #[error("the header {0} is not UTF-8")]
    NotText(HeaderName),
}

/// Returns the identity in a request's headers, if the sender is the front proxy.
///
/// # Errors
///
/// The sender is not the front proxy, or the identity is missing or ambiguous.
pub fn identify(
    now: Timestamp,
    headers: &HeaderMap,
    peer: &ConnectionPeer,
    anchor: &Arc<TrustAnchor>,
) -> Result<UserIdentity, IdentityRefusal> {
    peer.check(now, anchor)?;
    let user = single(headers, &anchor.user_headers)?
        .ok_or_else(|| IdentityRefusal::NoUser(names(&anchor.user_headers)))?;
    let mut groups = Vec::new();
    for name in &anchor.group_headers {
        for value in headers.get_all(name) {
            let group = text(name, value)?;
            if !group.is_empty() {
                groups.push(group);
            }
        }
    }

    let is_known = groups.iter().any(|it| it == AUTHENTICATED || it == UNAUTHENTICATED);
    if user != ANONYMOUS && !is_known {
        groups.push(AUTHENTICATED.to_owned());
    }

    let uid = single(headers, &anchor.uid_headers)?;
    let extra = extra(headers, &anchor.extra_prefixes)?;
    Ok(UserIdentity { user, groups, uid, extra })
}

/// The first of these headers that is not empty.
fn single(headers: &HeaderMap, names: &[HeaderName]) -> Result<Option<String>, IdentityRefusal> {
    for name in names {
        let mut values = headers.get_all(name).iter();
        let Some(value) = values.next() else { continue };
        if values.next().is_some() {
            return Err(IdentityRefusal::Ambiguous(name.clone()));
        }

        let written = text(name, value)?;
        if !written.is_empty() {
            return Ok(Some(written));
        }
    }

    Ok(None)
}

/// The headers with one of the prefixes; the rest of their names is the key, percent-encoded.
fn extra(
    headers: &HeaderMap,
    prefixes: &[String],
) -> Result<BTreeMap<String, Vec<String>>, IdentityRefusal> {
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for prefix in prefixes {
        for (name, value) in headers {
            let Some(encoded) = name.as_str().strip_prefix(prefix.as_str()) else { continue };
            let decoded = percent_decode_str(encoded).decode_utf8();
            let key = decoded.map_or_else(|_| encoded.to_owned(), std::borrow::Cow::into_owned);
            extra.entry(key).or_default().push(text(name, value)?);
        }
    }

    Ok(extra)
}

fn text(name: &HeaderName, value: &HeaderValue) -> Result<String, IdentityRefusal> {
    std::str::from_utf8(value.as_bytes())
        .map(str::to_owned)
        .map_err(|_| IdentityRefusal::NotText(name.clone()))
}

fn names(headers: &[HeaderName]) -> String {
    headers.iter().map(HeaderName::as_str).collect::<Vec<_>>().join(", ")
}

fn verify(
    now: Timestamp,
    certificates: &[CertificateDer<'_>],
    anchor: &TrustAnchor,
) -> Result<(), IdentityRefusal> {
    let [leaf, intermediates @ ..] = certificates else {
        return Err(IdentityRefusal::NoCertificate);
    };
    let name = common_name(leaf);
    if let Err(error) = verify_chain(now, leaf, intermediates, anchor) {
        return Err(IdentityRefusal::Untrusted { name, reason: explain(&error) });
    }
    if anchor.allowed_names.is_empty() || anchor.allowed_names.contains(&name) {
        return Ok(());
    }

    let allowed = anchor.allowed_names.iter().cloned().collect::<Vec<_>>().join(", ");
    Err(IdentityRefusal::NotAllowed { name, allowed })
}

/// Checks that the certificates lead from the leaf to an authority of the anchor.
fn verify_chain(
    now: Timestamp,
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    anchor: &TrustAnchor,
) -> Result<(), webpki::Error> {
    let seconds = now.as_second().try_into().unwrap_or_default();
    let time = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
    let usage = webpki::KeyUsage::client_auth();
    let algorithms = webpki::ALL_VERIFICATION_ALGS;

    webpki::EndEntityCert::try_from(leaf)?
        .verify_for_usage(algorithms, &anchor.roots, intermediates, time, usage, None, None)
        .map(drop)
}

/// The last common name of the subject, as Go reads it; empty if there is none.
fn common_name(certificate: &CertificateDer<'_>) -> String {
    X509Certificate::from_der(certificate)
        .ok()
        .and_then(|(_, parsed)| {
            let name = parsed.subject().iter_common_name().last()?.as_str().ok()?;
            Some(name.to_owned())
        })
        .unwrap_or_default()
}

/// Explains the error in a certificate chain to the person who must fix it.
fn explain(error: &webpki::Error) -> String {
    match error {
        webpki::Error::CertExpired { not_after, .. } => {
            format!("it expired at {}", instant(*not_after))
        }
        webpki::Error::CertNotValidYet { not_before, .. } => {
            format!("it is not valid before {}", instant(*not_before))
        }
        webpki::Error::UnknownIssuer => {
            "it does not chain to requestheader-client-ca-file".to_owned()
        }
        webpki::Error::RequiredEkuNotFoundContext(_) => {
            "it may not be used for client authentication".to_owned()
        }
        webpki::Error::CaUsedAsEndEntity => "it is an authority's own certificate".to_owned(),
        other => format!("{other:?}"),
    }
}

fn instant(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).ok();
    let at = seconds.and_then(|seconds| Timestamp::from_second(seconds).ok());
    at.map_or_else(|| "an unknown time".to_owned(), |at| at.to_string())
}
