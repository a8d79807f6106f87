//! Self-issued serving certificates and their rotation.
//!
//! One Secret holds an authority with its key, and the serving certificate that the authority
//! signed. The `caBundle` of the `APIService` holds the authority. [`plan`] compares both with the
//! clock and returns the next change; [`issue`] makes the Secret's new content. Neither does any
//! IO. Every replica plans on its own, the first write wins, and the other replicas read its
//! result.
//!
//! # Order
//!
//! After two thirds of its life, a serving certificate is replaced by a new certificate of the same
//! authority. No client has to learn about that. An authority is replaced after two thirds of its
//! life in four steps, and no connection fails in between:
//!
//! 1. The Secret gets a new authority in front of the old one. From then on the old authority's key
//!    is gone, and the serving certificate that it signed stays in use.
//! 2. The `caBundle` gets both authorities.
//! 3. When the API servers have had [`CertificatePolicy::settle`] to see both, the Secret gets a
//!    serving certificate of the new authority.
//! 4. When all replicas have had the same time to load that certificate, the old authority leaves
//!    the Secret, and then the `caBundle`.
//!
//! A certificate that is not valid is replaced at once, because no client accepts it anyway.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, UnixTime};
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// The keys of the Secret: the authorities, newest first, and the key of the newest.
const CA_CERT: &str = "ca.crt";
const CA_KEY: &str = "ca.key";
/// The serving certificate and its key, under the names of a Secret of the type kubernetes.io/tls.
const CERT: &str = "tls.crt";
const KEY: &str = "tls.key";

/// API servers see a change of the `APIService` through a watch, and replicas read the Secret every
/// ten seconds. A minute is several times the time that either needs.
const SETTLE_MAX: Duration = Duration::from_mins(1);

/// The largest clock difference to expect between two machines.
const SKEW_MAX: Duration = Duration::from_mins(5);

/// The subject and the lifetimes of certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificatePolicy {
    /// The Service that the API server calls.
    pub service: String,
    /// Its namespace.
    pub namespace: String,
    /// The validity period of a serving certificate.
    pub leaf_lifetime: Duration,
    /// The validity period of an authority.
    pub ca_lifetime: Duration,
}

/// The content of the Secret.
#[derive(Clone, PartialEq, Eq)]
pub struct CertificateSecret {
    /// Newest first; never empty.
    authorities: Vec<Certificate>,
    authority_key: String,
    leaf: Certificate,
    leaf_key: String,
    /// The index in `authorities` of the authority that signed the leaf.
    signer: usize,
}

#[derive(Clone, PartialEq, Eq)]
struct Certificate {
    der: CertificateDer<'static>,
    not_before: Timestamp,
    not_after: Timestamp,
    names: BTreeSet<String>,
}

/// The reason that the content of a Secret cannot be used. Such a Secret is never overwritten.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// A key is missing: the Secret holds something else.
    #[error("it has other keys, but no {0}; name a dedicated Secret, or remove all of its data")]
    Missing(&'static str),
    /// A value is not PEM.
    #[error(
        "{key} is not PEM with the expected content; remove all of its data to have it recreated"
    )]
    Pem {
        /// The key of the value.
        key: &'static str,
        /// The PEM error.
        #[source]
        source: PemError,
    },
    /// A certificate is not X.509.
    #[error("{0} holds no X.509 certificate; remove all of its data to have it recreated")]
    Malformed(&'static str),
    /// A key belongs to a different certificate.
    #[error("{0} does not match its certificate; remove all of its data to have it recreated")]
    Key(&'static str),
    /// The serving certificate was signed by a different authority.
    #[error(
        "no authority of ca.crt has signed tls.crt; remove all of its data to have it recreated"
    )]
    Unsigned,
}

/// The state of the `APIService`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiServiceState {
    /// The API server does not return it.
    Unknown,
    /// There is none, or it points to another Service: no client checks Plimsoll's certificate.
    Elsewhere,
    /// It points to Plimsoll's Service.
    Here {
        /// Its `caBundle`, as PEM.
        bundle: Vec<u8>,
        /// The time for which the newest authority has been in the bundle; `None` while it is not
        /// there.
        trusted_for: Option<Duration>,
    },
}

/// The next change of the Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretChange {
    /// An authority and a serving certificate.
    Everything,
    /// A new authority in front of the others.
    Authority,
    /// A new serving certificate.
    Leaf,
    /// Only the newest authority.
    Retirement,
}

/// The next changes. They may be made in either order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct CertificatePlan {
    /// The next change of the Secret.
    pub secret: Option<SecretChange>,
    /// The next `caBundle`, as PEM.
    pub bundle: Option<Vec<u8>>,
}

/// Plans the next changes from the content of the Secret (`None`: empty) and the `APIService`.
pub fn plan(
    now: Timestamp,
    policy: &CertificatePolicy,
    held: Option<&CertificateSecret>,
    registered: &ApiServiceState,
) -> CertificatePlan {
    let Some(held) = held else {
        return CertificatePlan { secret: Some(SecretChange::Everything), bundle: None };
    };
    let bundle = match registered {
        ApiServiceState::Here { bundle: current, .. } => {
            let wanted = held.authorities.iter().map(|ca| ca.der.as_ref().to_vec()).collect();
            (authorities(current) != wanted).then(|| held.bundle())
        }
        ApiServiceState::Unknown | ApiServiceState::Elsewhere => None,
    };

    CertificatePlan { secret: next(now, policy, held, registered), bundle }
}

fn next(
    now: Timestamp,
    policy: &CertificatePolicy,
    held: &CertificateSecret,
    registered: &ApiServiceState,
) -> Option<SecretChange> {
    let CertificateSecret { authorities, leaf, signer, .. } = held;
    let newest = authorities.first()?;
    if newest.is_due(now) || !newest.is_valid(now) {
        return Some(SecretChange::Authority);
    }

    let fits = leaf.names == policy.names() && leaf.is_valid(now);
    if *signer > 0 {
        let trusted = match registered {
            ApiServiceState::Here { trusted_for, .. } => {
                trusted_for.is_some_and(|time| time >= policy.settle())
            }
            ApiServiceState::Elsewhere => true,
            ApiServiceState::Unknown => false,
        };

        return (trusted || !fits).then_some(SecretChange::Leaf);
    }

    if !fits || leaf.is_due(now) {
        return Some(SecretChange::Leaf);
    }

    let served_since = leaf.not_before + skew(policy.leaf_lifetime);
    let loaded = now >= served_since + policy.settle();
    (loaded && authorities.len() > 1).then_some(SecretChange::Retirement)
}

/// Makes the content of the Secret after a change.
///
/// # Errors
///
/// The machine has no randomness, or a lifetime ends later than a certificate can express.
pub fn issue(
    now: Timestamp,
    policy: &CertificatePolicy,
    change: SecretChange,
    held: Option<&CertificateSecret>,
) -> Result<CertificateSecret, IssueError> {
    let (Some(held), false) = (held, change == SecretChange::Everything) else {
        let (authority, key) = new_authority(now, policy)?;
        return signed(now, policy, vec![authority], key);
    };

    match change {
        SecretChange::Everything | SecretChange::Leaf => {
            signed(now, policy, held.authorities.clone(), held.authority_key.clone())
        }
        SecretChange::Authority => {
            let (authority, authority_key) = new_authority(now, policy)?;
            let mut authorities = held.authorities.clone();

            // Drops expired authorities, but keeps the signer of the leaf, so that `signer` can
            // find it.
            let mut place = 0;
            authorities.retain(|ca| {
                let keep = place == held.signer || ca.is_valid(now);
                place += 1;
                keep
            });
            authorities.insert(0, authority);

            let kept = &held.authorities[held.signer].der;
            let signer = authorities.iter().position(|ca| ca.der == *kept).unwrap_or_default();
            Ok(CertificateSecret { authorities, authority_key, signer, ..held.clone() })
        }
        SecretChange::Retirement => {
            let mut last = held.clone();
            last.authorities.truncate(1);
            Ok(last)
        }
    }
}

/// The reason that no certificate could be made.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// The library fails, or the machine has no randomness.
    #[error("cannot make a certificate")]
    Refused(#[from] rcgen::Error),
    /// The lifetime ends too far in the future.
    #[error("the certificate's expiry is too far in the future")]
    TooLate,
    /// The new certificate cannot be read back.
    #[error("cannot read the created certificate")]
    Unreadable(#[from] SecretError),
}

// === impl SecretChange ===

impl SecretChange {
    /// The change as a label value.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Everything => "everything",
            Self::Authority => "authority",
            Self::Leaf => "certificate",
            Self::Retirement => "retirement",
        }
    }
}

// === impl CertificatePolicy ===

impl CertificatePolicy {
    /// The time that clients and replicas get to see a change before the next one builds on it.
    #[must_use]
    pub fn settle(&self) -> Duration {
        // A serving certificate is not renewed while its authority is replaced, and has a third of
        // its life left then. Both waits together take half of that.
        SETTLE_MAX.min(self.leaf_lifetime / 12)
    }

    fn names(&self) -> BTreeSet<String> {
        let Self { service, namespace, .. } = self;
        let name = format!("{service}.{namespace}.svc");
        // API servers check the first name; the second is for people who connect by hand.
        [format!("{name}.cluster.local"), name].into()
    }
}

// === impl CertificateSecret ===

impl std::fmt::Debug for CertificateSecret {
    /// Hides the keys.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CertificateSecret")
            .field("authorities", &self.authorities.len())
            .field("signer", &self.signer)
            .field("not_after", &self.leaf.not_after)
            .finish_non_exhaustive()
    }
}

impl CertificateSecret {
    /// Reads the content of a Secret; `None` if it is empty.
    ///
    /// # Errors
    ///
    /// The Secret holds something that [`issue`] did not make.
    pub fn read<B: AsRef<[u8]>>(values: &BTreeMap<String, B>) -> Result<Option<Self>, SecretError> {
        if values.values().all(|value| value.as_ref().is_empty()) {
            return Ok(None);
        }

        let authorities = certificates(CA_CERT, value(values, CA_CERT)?)?;
        let [leaf] = &certificates(CERT, value(values, CERT)?)?[..] else {
            return Err(SecretError::Malformed(CERT));
        };

        let authority_key = private_key(CA_KEY, value(values, CA_KEY)?, &authorities[0])?;
        let leaf_key = private_key(KEY, value(values, KEY)?, leaf)?;
        let place = authorities.iter().position(|ca| has_signed(ca, leaf));
        let signer = place.ok_or(SecretError::Unsigned)?;
        Ok(Some(Self { authorities, authority_key, leaf: leaf.clone(), leaf_key, signer }))
    }

    /// Returns the content for the Secret.
    #[must_use]
    pub fn write(&self) -> BTreeMap<String, Vec<u8>> {
        let values = [
            (CA_CERT, self.bundle()),
            (CA_KEY, self.authority_key.clone().into_bytes()),
            (CERT, self.certificate()),
            (KEY, self.leaf_key.clone().into_bytes()),
        ];

        values.map(|(key, value)| (key.to_owned(), value)).into()
    }

    /// The serving certificate, as PEM.
    #[must_use]
    pub fn certificate(&self) -> Vec<u8> {
        pem_of(&self.leaf).into_bytes()
    }

    /// The serving certificate's key, as PEM.
    #[must_use]
    pub fn key(&self) -> Vec<u8> {
        self.leaf_key.clone().into_bytes()
    }

    /// All authorities, as PEM.
    #[must_use]
    pub fn bundle(&self) -> Vec<u8> {
        self.authorities.iter().map(pem_of).collect::<String>().into_bytes()
    }

    /// Returns true if a `caBundle` holds the newest authority.
    #[must_use]
    pub fn is_trusted_by(&self, bundle: &[u8]) -> bool {
        self.authorities.first().is_some_and(|ca| authorities(bundle).contains(ca.der.as_ref()))
    }

    /// The newest authority as DER, which identifies it.
    #[must_use]
    pub fn newest(&self) -> Vec<u8> {
        self.authorities.first().map(|ca| ca.der.as_ref().to_vec()).unwrap_or_default()
    }

    /// The expiry time of the newest authority.
    #[must_use]
    pub fn authority_not_after(&self) -> Option<Timestamp> {
        self.authorities.first().map(|ca| ca.not_after)
    }
}

// === impl Certificate ===

impl Certificate {
    fn read(der: CertificateDer<'static>) -> Option<Self> {
        let (_, parsed) = X509Certificate::from_der(&der).ok()?;
        let validity = parsed.validity();
        let not_before = Timestamp::from_second(validity.not_before.timestamp()).ok()?;
        let not_after = Timestamp::from_second(validity.not_after.timestamp()).ok()?;

        let alternatives = parsed.subject_alternative_name().ok()?;
        let mut names = BTreeSet::new();
        for name in alternatives.iter().flat_map(|it| &it.value.general_names) {
            if let GeneralName::DNSName(dns) = name {
                names.insert((*dns).to_owned());
            }
        }

        Some(Self { der, not_before, not_after, names })
    }

    fn is_valid(&self, now: Timestamp) -> bool {
        (self.not_before..self.not_after).contains(&now)
    }

    /// Returns true if two thirds of the certificate's life are over.
    fn is_due(&self, now: Timestamp) -> bool {
        let lifetime = self.not_after.duration_since(self.not_before);
        now >= self.not_after - lifetime / 3
    }
}

/// The value of a key that must be there.
fn value<'a, B: AsRef<[u8]>>(
    values: &'a BTreeMap<String, B>,
    key: &'static str,
) -> Result<&'a [u8], SecretError> {
    values.get(key).map(AsRef::as_ref).ok_or(SecretError::Missing(key))
}

/// The certificates of a value; at least one.
fn certificates(key: &'static str, value: &[u8]) -> Result<Vec<Certificate>, SecretError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(value).collect();
    let ders = read.map_err(|source| SecretError::Pem { key, source })?;
    if ders.is_empty() {
        return Err(SecretError::Pem { key, source: PemError::NoItemsFound });
    }

    let all: Option<Vec<_>> = ders.into_iter().map(Certificate::read).collect();
    all.ok_or(SecretError::Malformed(key))
}

/// The authorities in a `caBundle`. An invalid bundle has none, so that it is replaced.
fn authorities(bundle: &[u8]) -> BTreeSet<Vec<u8>> {
    CertificateDer::pem_slice_iter(bundle).flatten().map(|der| der.as_ref().to_vec()).collect()
}

fn private_key(
    key: &'static str,
    value: &[u8],
    certificate: &Certificate,
) -> Result<String, SecretError> {
    let text = String::from_utf8_lossy(value).into_owned();
    let pair = KeyPair::from_pem(&text).map_err(|_| SecretError::Key(key))?;
    let parsed = X509Certificate::from_der(&certificate.der);
    let belongs = parsed.is_ok_and(|(_, parsed)| {
        parsed.public_key().subject_public_key.data.as_ref() == pair.public_key_raw()
    });
    if belongs { Ok(text) } else { Err(SecretError::Key(key)) }
}

/// Returns true if the authority's signature on the leaf is valid, at any time in the leaf's life.
fn has_signed(authority: &Certificate, leaf: &Certificate) -> bool {
    let Ok(anchor) = webpki::anchor_from_trusted_cert(&authority.der) else { return false };
    let Ok(end_entity) = webpki::EndEntityCert::try_from(&leaf.der) else { return false };

    let middle = leaf.not_before + leaf.not_after.duration_since(leaf.not_before) / 2;
    let at = UnixTime::since_unix_epoch(Duration::from_secs(middle.as_second().unsigned_abs()));

    let usage = webpki::KeyUsage::server_auth();
    end_entity
        .verify_for_usage(webpki::ALL_VERIFICATION_ALGS, &[anchor], &[], at, usage, None, None)
        .is_ok()
}

fn pem_of(certificate: &Certificate) -> String {
    let lines = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    pem::encode_config(&pem::Pem::new("CERTIFICATE", certificate.der.as_ref()), lines)
}

/// The time by which the validity starts early, for machines whose clock is behind.
fn skew(lifetime: Duration) -> Duration {
    SKEW_MAX.min(lifetime / 10)
}

fn new_authority(
    now: Timestamp,
    policy: &CertificatePolicy,
) -> Result<(Certificate, String), IssueError> {
    // Each authority has its own name, so that clients need not try one after the other.
    let name = format!("plimsoll-ca-{:016x}", rand::random::<u64>());
    let mut params = valid(now, policy.ca_lifetime, &name, Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];

    let key = KeyPair::generate()?;
    let der = params.self_signed(&key)?.der().clone();
    let certificate = Certificate::read(der).ok_or(SecretError::Malformed(CA_CERT))?;
    Ok((certificate, key.serialize_pem()))
}

/// A new serving certificate, signed by the newest authority with `authority_key`.
fn signed(
    now: Timestamp,
    policy: &CertificatePolicy,
    authorities: Vec<Certificate>,
    authority_key: String,
) -> Result<CertificateSecret, IssueError> {
    let authority = &authorities[0];
    let left = now.duration_until(authority.not_after).unsigned_abs();
    let names: Vec<String> = policy.names().into_iter().collect();
    let mut params = valid(
        now,
        policy.leaf_lifetime.min(left),
        &format!("{}.{}", policy.service, policy.namespace),
        names,
    )?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;

    let issuer = issuer(authority, &authority_key)?;
    let key = KeyPair::generate()?;
    let der = params.signed_by(&key, &issuer)?.der().clone();
    let leaf = Certificate::read(der).ok_or(SecretError::Malformed(CERT))?;
    Ok(CertificateSecret {
        authorities,
        authority_key,
        leaf,
        leaf_key: key.serialize_pem(),
        signer: 0,
    })
}

fn issuer(authority: &Certificate, key: &str) -> Result<Issuer<'static, KeyPair>, IssueError> {
    let (_, parsed) =
        X509Certificate::from_der(&authority.der).map_err(|_| SecretError::Malformed(CA_CERT))?;
    let first = parsed.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
    let name = first.ok_or(SecretError::Malformed(CA_CERT))?;
    Ok(Issuer::new(named(name, Vec::new())?, KeyPair::from_pem(key)?))
}

fn named(name: &str, hosts: Vec<String>) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(hosts)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(params)
}

fn valid(
    now: Timestamp,
    lifetime: Duration,
    name: &str,
    hosts: Vec<String>,
) -> Result<CertificateParams, IssueError> {
    let mut params = named(name, hosts)?;
    let starts = now.checked_sub(skew(lifetime)).map_err(|_| IssueError::TooLate)?;
    params.not_before = instant(starts)?;

    let ends = now.checked_add(lifetime).map_err(|_| IssueError::TooLate)?;
    params.not_after = instant(ends)?;
    Ok(params)
}

fn instant(at: Timestamp) -> Result<OffsetDateTime, IssueError> {
    OffsetDateTime::from_unix_timestamp(at.as_second()).map_err(|_| IssueError::TooLate)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);
    const DAY: Duration = Duration::from_hours(24);

    fn start() -> Timestamp {
        "2026-11-21T10:00:00Z".parse().unwrap()
    }

    fn years() -> CertificatePolicy {
        CertificatePolicy {
            service: "plimsoll".to_owned(),
            namespace: "ml".to_owned(),
            leaf_lifetime: 365 * DAY,
            ca_lifetime: 3650 * DAY,
        }
    }

    fn minutes() -> CertificatePolicy {
        CertificatePolicy { leaf_lifetime: MINUTE, ca_lifetime: 3 * MINUTE, ..years() }
    }

    fn fresh(policy: &CertificatePolicy) -> CertificateSecret {
        issue(start(), policy, SecretChange::Everything, None).unwrap()
    }

    fn here(bundle: Vec<u8>, trusted_for: Option<Duration>) -> ApiServiceState {
        ApiServiceState::Here { bundle, trusted_for }
    }

    fn trusted(held: &CertificateSecret, time: Duration) -> ApiServiceState {
        here(held.bundle(), Some(time))
    }

    /// The planned change of the Secret, and whether the `caBundle` is set to the Secret's
    /// authorities.
    fn next_step(
        policy: &CertificatePolicy,
        now: Timestamp,
        held: &CertificateSecret,
        registered: &ApiServiceState,
    ) -> (Option<SecretChange>, bool) {
        let CertificatePlan { secret, bundle } = plan(now, policy, Some(held), registered);
        assert!(
            bundle.iter().all(|bundle| *bundle == held.bundle()),
            "only held certificates are written"
        );
        (secret, bundle.is_some())
    }

    fn next_of_years(
        now: Timestamp,
        held: &CertificateSecret,
        registered: &ApiServiceState,
    ) -> (Option<SecretChange>, bool) {
        next_step(&years(), now, held, registered)
    }

    #[test]
    fn an_empty_secret_is_filled_under_any_registration() {
        for registered in
            [ApiServiceState::Unknown, ApiServiceState::Elsewhere, here(Vec::new(), None)]
        {
            let planned = plan(start(), &years(), None, &registered);
            assert_eq!(
                planned,
                CertificatePlan { secret: Some(SecretChange::Everything), bundle: None }
            );
        }
    }

    #[test]
    fn an_authority_from_a_clock_that_was_ahead_is_replaced() {
        let policy = years();
        let held = issue(start() + DAY, &policy, SecretChange::Everything, None).unwrap();
        let registered = trusted(&held, DAY);
        let planned = next_step(&policy, start(), &held, &registered);
        assert_eq!(planned, (Some(SecretChange::Authority), false));

        let next = issue(start(), &policy, SecretChange::Authority, Some(&held)).unwrap();
        let planned = next_step(&policy, start(), &next, &trusted(&next, DAY));
        assert_eq!(planned, (Some(SecretChange::Leaf), false));
    }

    #[test]
    fn the_ca_bundle_is_written_only_where_it_leads_to_us_and_is_another() {
        let policy = years();
        let now = start() + 30 * DAY;
        let ours = fresh(&policy);
        let others = fresh(&policy);

        for (registered, written) in [
            (ApiServiceState::Unknown, false),
            (ApiServiceState::Elsewhere, false),
            (here(ours.bundle(), Some(DAY)), false),
            (here(Vec::new(), None), true),
            (here(b"?".to_vec(), None), true),
            (here(others.bundle(), None), true),
            (here([ours.bundle(), others.bundle()].concat(), Some(DAY)), true),
        ] {
            assert_eq!(next_step(&policy, now, &ours, &registered), (None, written));
        }
    }

    #[test]
    fn a_certificate_is_renewed_after_two_thirds_of_its_life_and_for_another_name() {
        let policy = years();
        let held = fresh(&policy);
        let renamed = CertificatePolicy { service: "other".to_owned(), ..policy.clone() };
        let leaf = Some(SecretChange::Leaf);

        for registered in
            [ApiServiceState::Unknown, ApiServiceState::Elsewhere, trusted(&held, DAY)]
        {
            // After 400 days it has expired.
            for (policy, days, expected) in [
                (&policy, 242, None),
                (&policy, 244, leaf),
                (&policy, 400, leaf),
                (&renamed, 1, leaf),
            ] {
                let (change, _) = next_step(policy, start() + days * DAY, &held, &registered);
                assert_eq!(change, expected, "after {days} days");
            }
        }
    }

    #[test]
    fn an_authority_is_replaced_in_four_steps_each_of_which_waits_for_the_one_before() {
        let policy = years();
        let due = start() + 2440 * DAY;
        let one =
            issue(due - 30 * DAY, &policy, SecretChange::Leaf, Some(&fresh(&policy))).unwrap();
        let almost = Duration::from_secs(59);
        let nothing = (None, false);
        let bundle = (None, true);
        let authority = (Some(SecretChange::Authority), false);
        assert_eq!(next_of_years(due - 30 * DAY, &one, &trusted(&one, DAY)), nothing);
        assert_eq!(next_of_years(due, &one, &trusted(&one, DAY)), authority);

        let two = issue(due, &policy, SecretChange::Authority, Some(&one)).unwrap();
        let leaf = (Some(SecretChange::Leaf), false);
        let expired = due + 400 * DAY;
        assert_eq!(next_of_years(due, &two, &here(one.bundle(), None)), bundle);
        assert_eq!(next_of_years(due, &two, &ApiServiceState::Unknown), nothing);
        assert_eq!(next_of_years(due, &two, &trusted(&two, almost)), nothing);
        assert_eq!(next_of_years(due, &two, &trusted(&two, MINUTE)), leaf);
        assert_eq!(next_of_years(due, &two, &ApiServiceState::Elsewhere), leaf, "nobody checks it");
        assert_eq!(next_of_years(expired, &two, &ApiServiceState::Unknown), leaf, "it has expired");

        let moved = issue(due, &policy, SecretChange::Leaf, Some(&two)).unwrap();
        let retirement = (Some(SecretChange::Retirement), false);
        assert_eq!(next_of_years(due + almost, &moved, &trusted(&moved, DAY)), nothing);
        assert_eq!(next_of_years(due + MINUTE, &moved, &trusted(&moved, DAY)), retirement);

        let last = issue(due, &policy, SecretChange::Retirement, Some(&moved)).unwrap();
        assert_eq!(next_of_years(due + MINUTE, &last, &trusted(&moved, DAY)), bundle);
        assert_eq!(next_of_years(due + DAY, &last, &trusted(&last, DAY)), nothing);
    }

    /// Simulates a cluster over three generations of authorities. Compares the authorities that the
    /// slowest API server trusts with the certificates that the fastest and the slowest replica
    /// serve.
    #[test]
    fn no_client_is_ever_shown_a_certificate_that_it_does_not_trust_yet() {
        let policy = minutes();
        let look = policy.settle() / 2;
        let settle = policy.settle();
        let lag = usize::try_from(settle.as_millis() / look.as_millis()).unwrap();
        let mut held = fresh(&policy);
        let mut bundle = held.bundle();
        let mut trusted_since = Some((held.newest(), 0));
        let mut past: Vec<(CertificateSecret, Vec<u8>)> =
            vec![(held.clone(), bundle.clone()); lag + 1];
        let mut changes = Vec::new();
        for step in 0..400_u32 {
            let now = start() + step * look;
            let trusted_for = trusted_since.as_ref().map(|(_, since)| (step - since) * look);
            let planned = plan(now, &policy, Some(&held), &here(bundle.clone(), trusted_for));
            if let Some(next) = planned.bundle {
                bundle = next;
            }
            if let Some(change) = planned.secret {
                held = issue(now, &policy, change, Some(&held)).unwrap();
                changes.push(change);
            }

            trusted_since = match trusted_since {
                _ if !held.is_trusted_by(&bundle) => None,
                Some((newest, since)) if newest == held.newest() => Some((newest, since)),
                _ => Some((held.newest(), step)),
            };
            past.push((held.clone(), bundle.clone()));
            let last = past.len() - 1;
            for (serves, trusts) in [(0, 0), (0, lag), (lag, 0), (lag, lag)] {
                let (served, _) = &past[last - serves];
                let (_, seen) = &past[last - trusts];
                let trusted = authorities(seen);
                assert!(served.leaf.is_valid(now), "step {step}: an expired certificate is served");
                let signer = held_signer(served);
                assert!(trusted.contains(&signer), "step {step}: {serves} {trusts} {changes:?}");
            }
        }

        let replaced = count(&changes, SecretChange::Authority);
        assert!(replaced >= 3, "{changes:?}");
        assert_eq!(count(&changes, SecretChange::Everything), 0);
        assert!(count(&changes, SecretChange::Retirement) >= replaced - 1, "{changes:?}");
    }

    fn count(changes: &[SecretChange], wanted: SecretChange) -> usize {
        changes.iter().filter(|change| **change == wanted).count()
    }

    fn held_signer(held: &CertificateSecret) -> Vec<u8> {
        held.authorities[held.signer].der.as_ref().to_vec()
    }

    #[test]
    fn what_is_written_is_read_again() {
        let policy = years();
        let first = fresh(&policy);
        let two =
            issue(start() + 2440 * DAY, &policy, SecretChange::Authority, Some(&first)).unwrap();
        for held in [first, two] {
            assert_eq!(
                CertificateSecret::read(&held.write()).unwrap(),
                Some(held.clone()),
                "{held:?}"
            );
        }
        assert_eq!(CertificateSecret::read(&BTreeMap::<String, Vec<u8>>::new()).unwrap(), None);
    }

    type Values = BTreeMap<String, Vec<u8>>;

    fn with(values: &Values, key: &str, value: &[u8]) -> Values {
        let mut changed = values.clone();
        changed.insert(key.to_owned(), value.to_vec());
        changed
    }

    fn without(values: &Values, key: &str) -> Values {
        let mut changed = values.clone();
        changed.remove(key);
        changed
    }

    #[test]
    fn a_secret_with_something_else_is_refused_with_the_remedy() {
        let ours = fresh(&years()).write();
        let others = fresh(&years()).write();
        let two = [ours["tls.crt"].clone(), ours["ca.crt"].clone()].concat();
        let of_others = with(&ours, "tls.crt", &others["tls.crt"]);

        for (values, begins) in [
            ([("password".to_owned(), b"x".to_vec())].into(), "it has other keys, but no ca.crt"),
            (without(&ours, "ca.key"), "it has other keys, but no ca.key"),
            (with(&ours, "ca.crt", b"x"), "ca.crt is not PEM"),
            (with(&ours, "tls.crt", b""), "tls.crt is not PEM"),
            (with(&ours, "tls.crt", &two), "tls.crt holds no"),
            (with(&ours, "tls.key", &others["tls.key"]), "tls.key does not match its certificate"),
            (with(&ours, "ca.key", b"x"), "ca.key does not match its certificate"),
            (
                with(&of_others, "tls.key", &others["tls.key"]),
                "no authority of ca.crt has signed tls.crt",
            ),
        ] {
            let problem = CertificateSecret::read(&values).unwrap_err().to_string();
            assert!(problem.starts_with(begins), "{problem}");
            assert!(problem.contains("remove all of its data"), "no remedy in: {problem}");
        }
    }

    #[test]
    fn a_replacement_drops_what_has_expired_and_keeps_the_signer_of_what_is_served() {
        let policy = minutes();
        let ders = |held: &CertificateSecret| -> Vec<Vec<u8>> {
            held.authorities.iter().map(|ca| ca.der.as_ref().to_vec()).collect()
        };
        let first = fresh(&policy);
        assert_eq!(first.authority_not_after(), Some(start() + policy.ca_lifetime));
        let second =
            issue(start() + 2 * MINUTE, &policy, SecretChange::Authority, Some(&first)).unwrap();
        assert_eq!((second.signer, second.authorities.len()), (1, 2));
        assert_eq!(held_signer(&second), first.newest());
        let signed =
            issue(start() + 2 * MINUTE, &policy, SecretChange::Leaf, Some(&second)).unwrap();
        assert_eq!((signed.signer, ders(&signed)), (0, ders(&second)));

        let later = start() + 4 * MINUTE;
        let third = issue(later, &policy, SecretChange::Authority, Some(&signed)).unwrap();
        assert_eq!(ders(&third)[1..], [second.newest()], "the first one has expired");
        assert_eq!(held_signer(&third), second.newest());

        // Nobody has signed a leaf again, though both authorities have expired.
        let late = start() + 9 * MINUTE;
        let fourth = issue(late, &policy, SecretChange::Authority, Some(&second)).unwrap();
        assert_eq!(ders(&fourth)[1..], [first.newest()]);
        assert_eq!(held_signer(&fourth), first.newest());
        assert_eq!(fourth.authority_not_after(), Some(late + policy.ca_lifetime));
    }

    #[test]
    fn the_serving_certificate_is_for_servers_and_its_authority_for_certificates() {
        let held = fresh(&years());
        let (_, leaf) = X509Certificate::from_der(&held.leaf.der).unwrap();
        let usage = leaf.extended_key_usage().unwrap().unwrap().value;
        assert!(usage.server_auth && !usage.client_auth && !usage.any);
        let usage = leaf.key_usage().unwrap().unwrap().value;
        assert!(usage.digital_signature() && !usage.key_cert_sign());
        assert!(!leaf.is_ca());

        let (_, authority) = X509Certificate::from_der(&held.authorities[0].der).unwrap();
        assert!(authority.is_ca());
        let usage = authority.key_usage().unwrap().unwrap().value;
        assert!(usage.key_cert_sign() && usage.crl_sign() && !usage.digital_signature());
        assert_eq!(
            authority.basic_constraints().unwrap().unwrap().value.path_len_constraint,
            Some(0)
        );
    }

    #[test]
    fn a_change_settles_for_a_twelfth_of_a_life_and_a_minute_at_most() {
        assert_eq!(minutes().settle(), Duration::from_secs(5));
        assert_eq!(years().settle(), MINUTE);
        let leaf = fresh(&years()).leaf;
        let due = leaf.not_after - leaf.not_after.duration_since(leaf.not_before) / 3;
        assert!(leaf.is_due(due) && !leaf.is_due(due - Duration::from_secs(1)));
        let skewed = |lifetime| skew(lifetime).as_secs();
        assert_eq!([skewed(MINUTE), skewed(DAY)], [6, SKEW_MAX.as_secs()]);
    }

    #[test]
    fn a_certificate_never_outlives_its_authority() {
        let policy =
            CertificatePolicy { leaf_lifetime: 365 * DAY, ca_lifetime: 365 * DAY, ..years() };
        let late = start() + 200 * DAY;
        let held = issue(late, &policy, SecretChange::Leaf, Some(&fresh(&policy))).unwrap();
        assert_eq!(held.leaf.not_after, held.authorities[0].not_after);
    }

    #[test]
    fn keys_are_not_shown() {
        assert!(!format!("{:?}", fresh(&years())).contains("PRIVATE"));
    }
}
