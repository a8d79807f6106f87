//! Certificates that Plimsoll makes for itself, and the order in which they are replaced.
//!
//! One Secret holds an authority with its key, and the serving certificate that it has signed. The
//! `caBundle` of the `APIService` holds the authority. [`plan`] compares both with the clock and
//! says what to do next; [`issue`] makes what is to be written. Neither does any IO, so every
//! replica plans for itself, and whoever writes first is right: the others read what was written.
//!
//! # Order
//!
//! A serving certificate is replaced after two thirds of its life by one of the same authority,
//! which nobody else needs to know. An authority is replaced after two thirds of its life in four
//! steps, and no connection fails in between:
//!
//! 1. The Secret gets a new authority in front of the old one. The old one's key is gone from there
//!    on, and what it has signed is still served.
//! 2. The `caBundle` gets both.
//! 3. When the API servers have had [`Policy::settle`] to see that, the Secret gets a serving
//!    certificate of the new authority.
//! 4. When all replicas have had the same time to load it, the old authority leaves the Secret, and
//!    then the `caBundle`.
//!
//! A certificate that is not valid at all is replaced at once: there is nothing left to lose.

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

/// API servers see a change of the `APIService` by a watch, and replicas look at the Secret every
/// ten seconds: a minute is several times what either needs.
const SETTLE_MAX: Duration = Duration::from_mins(1);

/// How far the clocks of two machines may be apart.
const SKEW_MAX: Duration = Duration::from_mins(5);

/// For whom certificates are, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The Service that the API server calls.
    pub service: String,
    /// Its namespace.
    pub namespace: String,
    /// How long a serving certificate is valid.
    pub leaf_lifetime: Duration,
    /// How long an authority is valid.
    pub ca_lifetime: Duration,
}

/// What the Secret holds.
#[derive(Clone, PartialEq, Eq)]
pub struct Held {
    /// Newest first; never empty.
    authorities: Vec<Certificate>,
    authority_key: String,
    leaf: Certificate,
    leaf_key: String,
    /// The place in `authorities` of the one that has signed the leaf.
    signer: usize,
}

#[derive(Clone, PartialEq, Eq)]
struct Certificate {
    der: CertificateDer<'static>,
    not_before: Timestamp,
    not_after: Timestamp,
    names: BTreeSet<String>,
}

/// Why what a Secret holds cannot be used. It is never overwritten then.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// It holds something else.
    #[error("it has no {0}, but other keys; name a Secret of its own, or remove all of its data")]
    Missing(&'static str),
    /// A value is not PEM.
    #[error(
        "{key} is not PEM with what belongs there; remove all of its data to have it made anew"
    )]
    Pem {
        /// Under which key.
        key: &'static str,
        /// What is wrong with it.
        #[source]
        source: PemError,
    },
    /// A certificate is not X.509.
    #[error("{0} holds no X.509 certificate; remove all of its data to have it made anew")]
    Malformed(&'static str),
    /// A key belongs to another certificate.
    #[error(
        "{0} is not the key of the certificate beside it; remove all of its data to have it made anew"
    )]
    Key(&'static str),
    /// The serving certificate is of another authority.
    #[error(
        "no authority of ca.crt has signed tls.crt; remove all of its data to have it made anew"
    )]
    Unsigned,
}

/// What the `APIService` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Registered {
    /// The API server does not tell.
    Unknown,
    /// There is none, or it leads to another Service: nobody checks our certificate.
    Elsewhere,
    /// It leads to us.
    Here {
        /// Its `caBundle`, which is PEM.
        bundle: Vec<u8>,
        /// For how long the newest authority has been seen in it; `None` while it is not there.
        trusted_for: Option<Duration>,
    },
}

/// What the Secret is to hold next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// An authority and a serving certificate.
    Everything,
    /// A new authority in front of the others.
    Authority,
    /// A new serving certificate.
    Leaf,
    /// Only the newest authority.
    Retirement,
}

/// What to do next. Both parts may be done in either order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Plan {
    /// What the Secret is to hold.
    pub secret: Option<Change>,
    /// What the `caBundle` is to be, as PEM.
    pub bundle: Option<Vec<u8>>,
}

/// Says what to do next about what the Secret holds (`None`: nothing yet) and the `APIService`.
pub fn plan(now: Timestamp, policy: &Policy, held: Option<&Held>, registered: &Registered) -> Plan {
    let Some(held) = held else {
        return Plan { secret: Some(Change::Everything), bundle: None };
    };
    let bundle = match registered {
        Registered::Here { bundle, .. } => {
            let wanted = held.authorities.iter().map(|ca| ca.der.as_ref().to_vec()).collect();
            (authorities(bundle) != wanted).then(|| held.bundle())
        }
        Registered::Unknown | Registered::Elsewhere => None,
    };
    Plan { secret: next(now, policy, held, registered), bundle }
}

fn next(now: Timestamp, policy: &Policy, held: &Held, registered: &Registered) -> Option<Change> {
    let Held { authorities, leaf, signer, .. } = held;
    let newest = authorities.first()?;
    if newest.is_due(now) {
        return Some(Change::Authority);
    }
    let fits = leaf.names == policy.names() && leaf.is_valid(now);
    if *signer > 0 {
        let trusted = match registered {
            Registered::Here { trusted_for, .. } => {
                trusted_for.is_some_and(|time| time >= policy.settle())
            }
            Registered::Elsewhere => true,
            Registered::Unknown => false,
        };
        return (trusted || !fits).then_some(Change::Leaf);
    }
    if !fits || leaf.is_due(now) {
        return Some(Change::Leaf);
    }
    let served_since = leaf.not_before + skew(policy.leaf_lifetime);
    let loaded = now >= served_since + policy.settle();
    (loaded && authorities.len() > 1).then_some(Change::Retirement)
}

/// Makes what the Secret is to hold after a change.
///
/// # Errors
///
/// The machine has no randomness, or a lifetime ends beyond what a certificate can say.
pub fn issue(
    now: Timestamp,
    policy: &Policy,
    change: Change,
    held: Option<&Held>,
) -> Result<Held, IssueError> {
    let (Some(held), false) = (held, change == Change::Everything) else {
        let (authority, key) = new_authority(now, policy)?;
        return signed(now, policy, vec![authority], key);
    };
    match change {
        Change::Everything | Change::Leaf => {
            signed(now, policy, held.authorities.clone(), held.authority_key.clone())
        }
        Change::Authority => {
            let (authority, authority_key) = new_authority(now, policy)?;
            let mut authorities = held.authorities.clone();
            // What has expired vouches for nothing; the leaf's signer stays, so that this is found.
            let mut place = 0;
            authorities.retain(|ca| {
                let keep = place == held.signer || ca.is_valid(now);
                place += 1;
                keep
            });
            authorities.insert(0, authority);
            let signer = &held.authorities[held.signer].der;
            let signer = authorities.iter().position(|ca| ca.der == *signer).unwrap_or_default();
            Ok(Held { authorities, authority_key, signer, ..held.clone() })
        }
        Change::Retirement => {
            let mut held = held.clone();
            held.authorities.truncate(1);
            Ok(held)
        }
    }
}

/// Why no certificate could be made.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// The library refuses, or there is no randomness.
    #[error("cannot make a certificate")]
    Refused(#[from] rcgen::Error),
    /// The lifetime ends too far in the future.
    #[error("the certificate would expire too late to be written")]
    TooLate,
    /// What was made cannot be read.
    #[error("cannot read the certificate that was made")]
    Unreadable(#[from] SecretError),
}

// === impl Change ===

impl Change {
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

// === impl Policy ===

impl Policy {
    /// What others are given to see a change before the next one builds on it.
    #[must_use]
    pub fn settle(&self) -> Duration {
        // A serving certificate cannot be replaced while its authority is, and has a third of its
        // life left then: of that, both waits together take a half.
        SETTLE_MAX.min(self.leaf_lifetime / 12)
    }

    fn names(&self) -> BTreeSet<String> {
        let Self { service, namespace, .. } = self;
        let name = format!("{service}.{namespace}.svc");
        // API servers ask for the first; the others are for people who look.
        [format!("{name}.cluster.local"), name].into()
    }
}

// === impl Held ===

impl std::fmt::Debug for Held {
    /// Shows no key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held")
            .field("authorities", &self.authorities.len())
            .field("signer", &self.signer)
            .field("not_after", &self.leaf.not_after)
            .finish_non_exhaustive()
    }
}

impl Held {
    /// Reads what a Secret holds; `None` when it is empty.
    ///
    /// # Errors
    ///
    /// It holds something that [`issue`] has not made.
    pub fn read<B: AsRef<[u8]>>(values: &BTreeMap<String, B>) -> Result<Option<Self>, SecretError> {
        if values.values().all(|value| value.as_ref().is_empty()) {
            return Ok(None);
        }
        let value =
            |key: &'static str| values.get(key).map(AsRef::as_ref).ok_or(SecretError::Missing(key));
        let authorities = certificates(CA_CERT, value(CA_CERT)?)?;
        let [leaf] = &certificates(CERT, value(CERT)?)?[..] else {
            return Err(SecretError::Malformed(CERT));
        };
        let authority_key = private_key(CA_KEY, value(CA_KEY)?, &authorities[0])?;
        let leaf_key = private_key(KEY, value(KEY)?, leaf)?;
        let signer = authorities.iter().position(|ca| has_signed(ca, leaf));
        let signer = signer.ok_or(SecretError::Unsigned)?;
        Ok(Some(Self { authorities, authority_key, leaf: leaf.clone(), leaf_key, signer }))
    }

    /// What a Secret is to hold.
    #[must_use]
    pub fn write(&self) -> BTreeMap<String, Vec<u8>> {
        let value = |key: &str, value: Vec<u8>| (key.to_owned(), value);
        [
            value(CA_CERT, self.bundle()),
            value(CA_KEY, self.authority_key.clone().into_bytes()),
            value(CERT, self.certificate()),
            value(KEY, self.leaf_key.clone().into_bytes()),
        ]
        .into()
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

    /// Whether a `caBundle` has the newest authority.
    #[must_use]
    pub fn is_trusted_by(&self, bundle: &[u8]) -> bool {
        self.authorities.first().is_some_and(|ca| authorities(bundle).contains(ca.der.as_ref()))
    }

    /// The newest authority, which tells it from others.
    #[must_use]
    pub fn newest(&self) -> Vec<u8> {
        self.authorities.first().map(|ca| ca.der.as_ref().to_vec()).unwrap_or_default()
    }

    /// When the newest authority expires.
    #[must_use]
    pub fn authority_not_after(&self) -> Option<Timestamp> {
        self.authorities.first().map(|ca| ca.not_after)
    }
}

// === impl Certificate ===

impl Certificate {
    fn read(der: CertificateDer<'static>) -> Option<Self> {
        let (_, parsed) = X509Certificate::from_der(&der).ok()?;
        let instant = |seconds| Timestamp::from_second(seconds).ok();
        let not_before = instant(parsed.validity().not_before.timestamp())?;
        let not_after = instant(parsed.validity().not_after.timestamp())?;
        let names = parsed.subject_alternative_name().ok()?;
        let names = names.iter().flat_map(|names| &names.value.general_names);
        let names = names.filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            _ => None,
        });
        let names = names.collect();
        Some(Self { der, not_before, not_after, names })
    }

    fn is_valid(&self, now: Timestamp) -> bool {
        (self.not_before..self.not_after).contains(&now)
    }

    /// Whether two thirds of its life are over.
    fn is_due(&self, now: Timestamp) -> bool {
        let lifetime = self.not_after.duration_since(self.not_before);
        now >= self.not_after - lifetime / 3
    }
}

/// The certificates of a value, which are at least one.
fn certificates(key: &'static str, value: &[u8]) -> Result<Vec<Certificate>, SecretError> {
    let ders: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(value).collect();
    let ders =
        ders.and_then(|all| if all.is_empty() { Err(PemError::NoItemsFound) } else { Ok(all) });
    let ders = ders.map_err(|source| SecretError::Pem { key, source })?;
    let all: Option<Vec<_>> = ders.into_iter().map(Certificate::read).collect();
    all.ok_or(SecretError::Malformed(key))
}

/// The authorities in a `caBundle`. What is not PEM has none, so that it is written anew.
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

/// Whether the signature is right; when it was or will be valid does not matter here.
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

/// How far back the validity starts, for machines whose clock is late.
fn skew(lifetime: Duration) -> Duration {
    SKEW_MAX.min(lifetime / 10)
}

fn new_authority(now: Timestamp, policy: &Policy) -> Result<(Certificate, String), IssueError> {
    // Each has a name of its own, so that clients need not try one after the other.
    let name = format!("plimsoll-ca-{:016x}", rand::random::<u64>());
    let mut params = valid(now, policy.ca_lifetime, &name, Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate()?;
    let der = params.self_signed(&key)?.der().clone();
    let certificate = Certificate::read(der).ok_or(SecretError::Malformed(CA_CERT))?;
    Ok((certificate, key.serialize_pem()))
}

/// A new serving certificate by the newest authority, whose key this is.
fn signed(
    now: Timestamp,
    policy: &Policy,
    authorities: Vec<Certificate>,
    authority_key: String,
) -> Result<Held, IssueError> {
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
    Ok(Held { authorities, authority_key, leaf, leaf_key: key.serialize_pem(), signer: 0 })
}

fn issuer(authority: &Certificate, key: &str) -> Result<Issuer<'static, KeyPair>, IssueError> {
    let (_, parsed) =
        X509Certificate::from_der(&authority.der).map_err(|_| SecretError::Malformed(CA_CERT))?;
    let name = parsed.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
    let name = name.ok_or(SecretError::Malformed(CA_CERT))?;
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
    let instant = |at: Result<Timestamp, jiff::Error>| {
        let seconds = at.map_err(|_| IssueError::TooLate)?.as_second();
        OffsetDateTime::from_unix_timestamp(seconds).map_err(|_| IssueError::TooLate)
    };
    params.not_before = instant(now.checked_sub(skew(lifetime)))?;
    params.not_after = instant(now.checked_add(lifetime))?;
    Ok(params)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);
    const DAY: Duration = Duration::from_hours(24);

    fn start() -> Timestamp {
        "2026-11-21T10:00:00Z".parse().unwrap()
    }

    fn years() -> Policy {
        Policy {
            service: "plimsoll".to_owned(),
            namespace: "ml".to_owned(),
            leaf_lifetime: 365 * DAY,
            ca_lifetime: 3650 * DAY,
        }
    }

    fn minutes() -> Policy {
        Policy { leaf_lifetime: MINUTE, ca_lifetime: 3 * MINUTE, ..years() }
    }

    fn fresh(policy: &Policy) -> Held {
        issue(start(), policy, Change::Everything, None).unwrap()
    }

    fn here(bundle: Vec<u8>, trusted_for: Option<Duration>) -> Registered {
        Registered::Here { bundle, trusted_for }
    }

    /// What is planned for the Secret, and whether the `caBundle` is to hold what the Secret does.
    fn next_step(
        policy: &Policy,
        now: Timestamp,
        held: &Held,
        registered: &Registered,
    ) -> (Option<Change>, bool) {
        let Plan { secret, bundle } = plan(now, policy, Some(held), registered);
        assert!(
            bundle.iter().all(|bundle| *bundle == held.bundle()),
            "only what is held is written"
        );
        (secret, bundle.is_some())
    }

    #[test]
    fn an_empty_secret_is_filled_whoever_is_registered() {
        for registered in [Registered::Unknown, Registered::Elsewhere, here(Vec::new(), None)] {
            let planned = plan(start(), &years(), None, &registered);
            assert_eq!(planned, Plan { secret: Some(Change::Everything), bundle: None });
        }
    }

    #[test]
    fn the_ca_bundle_is_written_only_where_it_leads_to_us_and_is_another() {
        let (policy, now) = (years(), start() + 30 * DAY);
        let (ours, others) = (fresh(&policy), fresh(&policy));
        for (registered, written) in [
            (Registered::Unknown, false),
            (Registered::Elsewhere, false),
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
        let renamed = Policy { service: "other".to_owned(), ..policy.clone() };
        let leaf = Some(Change::Leaf);
        for registered in
            [Registered::Unknown, Registered::Elsewhere, here(held.bundle(), Some(DAY))]
        {
            let next = |policy, days| next_step(policy, start() + days * DAY, &held, &registered).0;
            assert_eq!(next(&policy, 242), None);
            assert_eq!(next(&policy, 244), leaf);
            assert_eq!(next(&policy, 400), leaf, "it has expired");
            assert_eq!(next(&renamed, 1), leaf);
        }
    }

    #[test]
    fn an_authority_is_replaced_in_four_steps_each_of_which_waits_for_the_one_before() {
        let policy = years();
        let due = start() + 2440 * DAY;
        let one = issue(due - 30 * DAY, &policy, Change::Leaf, Some(&fresh(&policy))).unwrap();
        let seen = |held: &Held, time| here(held.bundle(), Some(time));
        let next = |now, held, registered| next_step(&policy, now, held, &registered);
        let almost = Duration::from_secs(59);

        assert_eq!(next(due - 30 * DAY, &one, seen(&one, DAY)), (None, false));
        assert_eq!(next(due, &one, seen(&one, DAY)), (Some(Change::Authority), false));

        let two = issue(due, &policy, Change::Authority, Some(&one)).unwrap();
        assert_eq!(next(due, &two, here(one.bundle(), None)), (None, true));
        assert_eq!(next(due, &two, Registered::Unknown), (None, false));
        assert_eq!(next(due, &two, seen(&two, almost)), (None, false));
        let leaf = (Some(Change::Leaf), false);
        assert_eq!(next(due, &two, seen(&two, MINUTE)), leaf);
        assert_eq!(next(due, &two, Registered::Elsewhere), leaf, "nobody checks it");
        assert_eq!(next(due + 400 * DAY, &two, Registered::Unknown), leaf, "it has expired");

        let moved = issue(due, &policy, Change::Leaf, Some(&two)).unwrap();
        assert_eq!(next(due + almost, &moved, seen(&moved, DAY)), (None, false));
        let retirement = (Some(Change::Retirement), false);
        assert_eq!(next(due + MINUTE, &moved, seen(&moved, DAY)), retirement);

        let last = issue(due, &policy, Change::Retirement, Some(&moved)).unwrap();
        assert_eq!(next(due + MINUTE, &last, seen(&moved, DAY)), (None, true));
        assert_eq!(next(due + DAY, &last, seen(&last, DAY)), (None, false));
    }

    /// Plays what a cluster does over three generations of authorities, and holds what the
    /// slowest API server trusts against what the fastest and the slowest replica serve.
    #[test]
    fn nobody_is_ever_shown_a_certificate_that_they_do_not_trust_yet() {
        let policy = minutes();
        let (look, settle) = (policy.settle() / 2, policy.settle());
        let lag = usize::try_from(settle.as_millis() / look.as_millis()).unwrap();
        let mut held = fresh(&policy);
        let mut bundle = held.bundle();
        let mut trusted_since = Some((held.newest(), 0));
        let mut past: Vec<(Held, Vec<u8>)> = vec![(held.clone(), bundle.clone()); lag + 1];
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
            let seen = |ago: usize| &past[past.len() - 1 - ago];
            for (serves, trusts) in [(0, 0), (0, lag), (lag, 0), (lag, lag)] {
                let (leaf, trusted) = (&seen(serves).0.leaf, authorities(&seen(trusts).1));
                assert!(leaf.is_valid(now), "step {step}: an expired certificate is served");
                let signer = held_signer(&seen(serves).0);
                assert!(trusted.contains(&signer), "step {step}: {serves} {trusts} {changes:?}");
            }
        }
        let count = |wanted| changes.iter().filter(|change| **change == wanted).count();
        assert!(count(Change::Authority) >= 3, "{changes:?}");
        assert_eq!(count(Change::Everything), 0);
        assert!(count(Change::Retirement) >= count(Change::Authority) - 1, "{changes:?}");
    }

    fn held_signer(held: &Held) -> Vec<u8> {
        held.authorities[held.signer].der.as_ref().to_vec()
    }

    #[test]
    fn what_is_written_is_read_again() {
        let policy = years();
        let first = fresh(&policy);
        let two = issue(start() + 2440 * DAY, &policy, Change::Authority, Some(&first)).unwrap();
        for held in [first, two] {
            assert_eq!(Held::read(&held.write()).unwrap(), Some(held.clone()), "{held:?}");
        }
        assert_eq!(Held::read(&BTreeMap::<String, Vec<u8>>::new()).unwrap(), None);
    }

    #[test]
    fn a_secret_with_something_else_is_refused_with_the_remedy() {
        let (ours, others) = (fresh(&years()).write(), fresh(&years()).write());
        let with = |key: &str, value: &[u8]| {
            let mut values = ours.clone();
            values.insert(key.to_owned(), value.to_vec());
            values
        };
        let without = |key: &str| {
            let mut values = ours.clone();
            values.remove(key);
            values
        };
        for (values, begins) in [
            ([("password".to_owned(), b"x".to_vec())].into(), "it has no ca.crt, but other keys"),
            (without("ca.key"), "it has no ca.key"),
            (with("ca.crt", b"x"), "ca.crt is not PEM"),
            (with("tls.crt", b""), "tls.crt is not PEM"),
            (
                with("tls.crt", &[ours["tls.crt"].clone(), ours["ca.crt"].clone()].concat()),
                "tls.crt holds no",
            ),
            (with("tls.key", &others["tls.key"]), "tls.key is not the key"),
            (with("ca.key", b"x"), "ca.key is not the key"),
            (
                [with("tls.crt", &others["tls.crt"]), with("tls.key", &others["tls.key"])]
                    .into_iter()
                    .reduce(|mut one, other| {
                        one.insert("tls.key".to_owned(), other["tls.key"].clone());
                        one
                    })
                    .unwrap(),
                "no authority of ca.crt has signed tls.crt",
            ),
        ] {
            let problem = Held::read(&values).unwrap_err().to_string();
            assert!(problem.starts_with(begins), "{problem}");
            assert!(problem.contains("remove all of its data"), "no remedy in: {problem}");
        }
    }

    #[test]
    fn a_certificate_never_outlives_its_authority() {
        let policy = Policy { leaf_lifetime: 365 * DAY, ca_lifetime: 365 * DAY, ..years() };
        let late = start() + 200 * DAY;
        let held = issue(late, &policy, Change::Leaf, Some(&fresh(&policy))).unwrap();
        assert_eq!(held.leaf.not_after, held.authorities[0].not_after);
    }

    #[test]
    fn keys_are_not_shown() {
        assert!(!format!("{:?}", fresh(&years())).contains("PRIVATE"));
    }
}
