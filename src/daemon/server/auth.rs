//! Who is asking: front-proxy identities.
//!
//! The API server of a cluster authenticates a user, and then asks us on the user's behalf. It
//! proves that it is the API server with a client certificate from the *front-proxy* authority,
//! and names the user in request headers. [`identify`] believes those headers if and only if the
//! certificate chains to that authority, is in its period of validity, and carries an allowed
//! name. There is no other way in: no tokens, no other certificates, nobody is anonymous.
//!
//! What to trust is a [`TrustAnchor`], read from the `ConfigMap` in which every cluster publishes
//! it, `kube-system/extension-apiserver-authentication`. Without one nobody is trusted.
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

/// How long the verdict on a connection's certificate counts. Verifying costs more than answering;
/// a certificate that expires is noticed this late.
const VERIFIED_MAX: SignedDuration = SignedDuration::from_secs(10);

/// The group that everybody who is somebody belongs to.
const AUTHENTICATED: &str = "system:authenticated";

/// The group that replaces it for nobody.
const UNAUTHENTICATED: &str = "system:unauthenticated";

/// The user that is nobody.
const ANONYMOUS: &str = "system:anonymous";

/// The header names that API servers strip from their users' requests whatever the configuration.
const USUAL_HEADERS: [&str; 4] =
    ["x-remote-user", "x-remote-group", "x-remote-extra-", "x-remote-uid"];

/// The user on whose behalf a request is made.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// The user's name.
    pub user: String,
    /// The user's groups, in the order in which they were named.
    pub groups: Vec<String>,
    /// The user's unique id, where the cluster has one.
    pub uid: Option<String>,
    /// Whatever else the authenticator knows.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// Whom to believe, and under which headers.
#[derive(Clone, Debug)]
pub struct TrustAnchor {
    roots: Vec<pki_types::TrustAnchor<'static>>,
    allowed_names: BTreeSet<String>,
    user_headers: Vec<HeaderName>,
    group_headers: Vec<HeaderName>,
    uid_headers: Vec<HeaderName>,
    extra_prefixes: Vec<String>,
}

/// Why a `ConfigMap` says nothing that could be trusted.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// A key is missing: the cluster's aggregation layer is off.
    #[error("{0} is missing, so the aggregation layer of this cluster is not configured")]
    Missing(&'static str),
    /// A bundle of certificates is not PEM.
    #[error("{key} is not a PEM bundle of certificates")]
    Pem {
        /// Which.
        key: &'static str,
        /// What is wrong with it.
        #[source]
        source: pem::Error,
    },
    /// A bundle holds something that cannot be an authority.
    #[error("certificate {place} of requestheader-client-ca-file cannot be an authority: {reason}")]
    Authority {
        /// Its place in the bundle, from 1.
        place: usize,
        /// Why.
        reason: String,
    },
    /// A list of names is not a JSON array of texts.
    #[error("{key} is not a JSON array of strings")]
    Json {
        /// Which.
        key: &'static str,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// A header name that no request can carry.
    #[error("{key} holds {name:?}, which is no header name")]
    HeaderName {
        /// Which list.
        key: &'static str,
        /// The name.
        name: String,
    },
    /// Anybody with a certificate of the cluster could claim to be anybody.
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
    /// When the data is missing or malformed, and when it would let any user of the cluster claim
    /// to be any other.
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

    /// Header names that are believed and that API servers do not strip from their users'
    /// requests. A user can put such a header through to us, so somebody should be told.
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

/// The other end of a connection: the certificates that it has shown and holds the key of.
#[derive(Debug, Default)]
pub struct Peer {
    certificates: Vec<CertificateDer<'static>>,
    verified: Mutex<Option<Verified>>,
}

/// A verdict on the certificates, and what it rests on.
#[derive(Debug)]
struct Verified {
    anchor: Arc<TrustAnchor>,
    at: Timestamp,
    verdict: Result<(), Refusal>,
}

impl Peer {
    /// The end of a connection on which these certificates were shown, the client's own first.
    #[must_use]
    pub fn new(certificates: Vec<CertificateDer<'static>>) -> Self {
        Self { certificates, verified: Mutex::new(None) }
    }

    /// Checks that this is the front proxy.
    fn check(&self, now: Timestamp, anchor: &Arc<TrustAnchor>) -> Result<(), Refusal> {
        // A poisoned lock holds a whole verdict: it is only ever replaced.
        let mut verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Verified { anchor: trusted, at, verdict }) = &*verified
            && Arc::ptr_eq(trusted, anchor)
            && (SignedDuration::ZERO..VERIFIED_MAX).contains(&now.duration_since(*at))
        {
            return verdict.clone();
        }
        let verdict = verify(now, &self.certificates, anchor);
        let anchor = Arc::clone(anchor);
        *verified = Some(Verified { anchor, at: now, verdict: verdict.clone() });
        verdict
    }
}

/// Why nobody is known to be asking.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no certificate.
    #[error("no client certificate was presented; only the cluster's API server may ask")]
    NoCertificate,
    /// There is one, but it is not the front proxy's.
    #[error("the client certificate (CN {name:?}) is not accepted: {reason}")]
    Untrusted {
        /// The common name on it.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// It is one of the front proxy's authority, but not of an allowed name.
    #[error("the client certificate's CN {name:?} is not one of the allowed names ({allowed})")]
    NotAllowed {
        /// The common name on it.
        name: String,
        /// The names that are allowed.
        allowed: String,
    },
    /// The front proxy does not say on whose behalf it asks.
    #[error("the request names no user ({0})")]
    NoUser(String),
    /// A header that names the user is there more than once, so that it names several.
    #[error("the header {0} is there more than once")]
    Ambiguous(HeaderName),
    /// A header that names the user is not text.
    #[error("the header {0} is not UTF-8")]
    NotText(HeaderName),
}

/// The identity that a request carries, if its sender may say so.
///
/// # Errors
///
/// When the sender is not the front proxy, and when the identity is missing or ambiguous.
pub fn identify(
    now: Timestamp,
    headers: &HeaderMap,
    peer: &Peer,
    anchor: &Arc<TrustAnchor>,
) -> Result<Identity, Refusal> {
    peer.check(now, anchor)?;
    let user = single(headers, &anchor.user_headers)?
        .ok_or_else(|| Refusal::NoUser(names(&anchor.user_headers)))?;
    let mut groups = Vec::new();
    for name in &anchor.group_headers {
        for value in headers.get_all(name) {
            let group = text(name, value)?;
            if !group.is_empty() {
                groups.push(group);
            }
        }
    }
    let known = |group: &String| group == AUTHENTICATED || group == UNAUTHENTICATED;
    if user != ANONYMOUS && !groups.iter().any(known) {
        groups.push(AUTHENTICATED.to_owned());
    }
    let uid = single(headers, &anchor.uid_headers)?;
    let extra = extra(headers, &anchor.extra_prefixes)?;
    Ok(Identity { user, groups, uid, extra })
}

/// The value of the first of these headers that has one.
fn single(headers: &HeaderMap, names: &[HeaderName]) -> Result<Option<String>, Refusal> {
    for name in names {
        let mut values = headers.get_all(name).iter();
        let Some(value) = values.next() else { continue };
        if values.next().is_some() {
            return Err(Refusal::Ambiguous(name.clone()));
        }
        let value = text(name, value)?;
        if !value.is_empty() {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

/// The headers with one of the prefixes; the rest of their names is the key, percent-encoded.
fn extra(
    headers: &HeaderMap,
    prefixes: &[String],
) -> Result<BTreeMap<String, Vec<String>>, Refusal> {
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

fn text(name: &HeaderName, value: &HeaderValue) -> Result<String, Refusal> {
    std::str::from_utf8(value.as_bytes())
        .map(str::to_owned)
        .map_err(|_| Refusal::NotText(name.clone()))
}

fn names(headers: &[HeaderName]) -> String {
    headers.iter().map(HeaderName::as_str).collect::<Vec<_>>().join(", ")
}

fn verify(
    now: Timestamp,
    certificates: &[CertificateDer<'_>],
    anchor: &TrustAnchor,
) -> Result<(), Refusal> {
    let [leaf, intermediates @ ..] = certificates else { return Err(Refusal::NoCertificate) };
    let name = common_name(leaf);
    let refuse = |reason| Refusal::Untrusted { name: name.clone(), reason };
    let end_entity =
        webpki::EndEntityCert::try_from(leaf).map_err(|error| refuse(explain(&error)))?;
    let time = UnixTime::since_unix_epoch(Duration::from_secs(
        now.as_second().try_into().unwrap_or_default(),
    ));
    end_entity
        .verify_for_usage(
            webpki::ALL_VERIFICATION_ALGS,
            &anchor.roots,
            intermediates,
            time,
            webpki::KeyUsage::client_auth(),
            None,
            None,
        )
        .map_err(|error| refuse(explain(&error)))?;
    if anchor.allowed_names.is_empty() || anchor.allowed_names.contains(&name) {
        return Ok(());
    }
    let allowed = anchor.allowed_names.iter().cloned().collect::<Vec<_>>().join(", ");
    Err(Refusal::NotAllowed { name, allowed })
}

/// The last common name of the subject, which is the one that Go reads; empty without one.
fn common_name(certificate: &CertificateDer<'_>) -> String {
    X509Certificate::from_der(certificate)
        .ok()
        .and_then(|(_, parsed)| {
            let name = parsed.subject().iter_common_name().last()?.as_str().ok()?;
            Some(name.to_owned())
        })
        .unwrap_or_default()
}

/// What is wrong with a chain, for the person who must mend it.
fn explain(error: &webpki::Error) -> String {
    let instant = |time: &UnixTime| {
        i64::try_from(time.as_secs())
            .ok()
            .and_then(|seconds| Timestamp::from_second(seconds).ok())
            .map_or_else(|| "an unknown time".to_owned(), |at| at.to_string())
    };
    match error {
        webpki::Error::CertExpired { not_after, .. } => {
            format!("it expired at {}", instant(not_after))
        }
        webpki::Error::CertNotValidYet { not_before, .. } => {
            format!("it is not valid before {}", instant(not_before))
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
