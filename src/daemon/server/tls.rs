//! TLS: certificates that are read again as they rotate.
//!
//! A [`ServingCertificate`] is a pair of files and what they last held that was good. The files are
//! read again on a period and compared by content, because mounted secrets change by a swap of
//! symbolic links, which watches on the file miss. A new pair is checked before it replaces the
//! old one: key and certificate belong together, it is in its period of validity, and it names
//! somebody. A pair that fails is refused and the old one stays. A pair that is in no file can be
//! handed over instead; until one has been, no handshake succeeds.
//!
//! Client certificates are requested, and accepted whoever has signed them, provided that the
//! client holds the key. The chain is judged for each request (see [`crate::server::auth`]), as Go
//! servers do, for two reasons: a refused client gets an answer that says why instead of a TLS
//! alert, and a rotated authority counts for connections that are already open.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError as RustlsCertificateError, DigitallySignedStruct, DistinguishedName,
    ServerConfig, SignatureScheme,
};
use tokio::io::AsyncReadExt;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::clock::Clock;

/// The protocol identifier of HTTP/2.
pub const ALPN_H2: &[u8] = b"h2";

const ALPN_HTTP1: &[u8] = b"http/1.1";

/// How often the files are read again unless something else is wanted. Kubelets need about a
/// minute to bring a new secret to its mount, so a shorter period finds nothing sooner.
pub const RELOAD_INTERVAL: Duration = Duration::from_secs(10);

/// No chain of certificates and no key is larger.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Where the serving certificate is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// PEM file with the certificate and the intermediates that it needs.
    pub cert_file: PathBuf,
    /// PEM file with the private key, as PKCS#8, PKCS#1 or SEC1.
    pub key_file: PathBuf,
}

/// Why a serving certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file is too large to be what it should be.
    #[error("{} is larger than {FILE_BYTES_MAX} bytes", .0.display())]
    TooLarge(PathBuf),
    /// A file is not PEM, or holds nothing of the wanted kind.
    #[error("{} is not a PEM file with a {wanted}", path.display())]
    Pem {
        /// Which file.
        path: PathBuf,
        /// What it should hold.
        wanted: &'static str,
        /// What is wrong with it.
        #[source]
        source: pem::Error,
    },
    /// The key is of an unknown kind, or belongs to another certificate.
    #[error("the private key does not fit the certificate")]
    Key(#[source] rustls::Error),
    /// The certificate is not X.509.
    #[error("the certificate cannot be read")]
    Malformed,
    /// The certificate's time is over.
    #[error("the certificate expired at {0}")]
    Expired(Timestamp),
    /// The certificate's time has not come.
    #[error("the certificate is not valid before {0}")]
    NotYetValid(Timestamp),
    /// API servers compare only alternative names, and there are none.
    #[error("the certificate has no subject alternative name")]
    Nameless,
}

/// What reading the files again has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    /// They hold what they held.
    Unchanged,
    /// New connections use a new certificate.
    Replaced,
}

/// A serving certificate that can be replaced while it is in use.
#[derive(Debug)]
pub struct ServingCertificate {
    settings: Settings,
    loaded: watch::Sender<Option<Arc<Loaded>>>,
}

#[derive(Debug)]
struct Loaded {
    files: Files,
    key: Arc<CertifiedKey>,
    not_after: Timestamp,
}

#[derive(Debug, PartialEq, Eq)]
struct Files {
    cert: Vec<u8>,
    key: Vec<u8>,
}

impl ServingCertificate {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// When they cannot be read, or do not hold a certificate that clients could accept at `now`.
    pub async fn load(now: Timestamp, settings: Settings) -> Result<Self, CertificateError> {
        let loaded = check(now, &settings, read(&settings).await?)?;
        Ok(Self { settings, loaded: watch::Sender::new(Some(Arc::new(loaded))) })
    }

    /// Of a certificate that is handed over by [`ServingCertificate::replace`]. The settings say
    /// what messages call its parts.
    #[must_use]
    pub fn awaited(settings: Settings) -> Self {
        Self { settings, loaded: watch::Sender::new(None) }
    }

    /// When the certificate in use expires; `None` while there is none.
    #[must_use]
    pub fn not_after(&self) -> Option<Timestamp> {
        self.loaded.borrow().as_ref().map(|loaded| loaded.not_after)
    }

    /// The names that the certificate in use is for.
    #[must_use]
    pub fn dns_names(&self) -> Vec<String> {
        let loaded = self.loaded.borrow();
        let leaf = loaded.as_ref().and_then(|loaded| loaded.key.cert.first());
        let Some(Ok((_, leaf))) = leaf.map(|leaf| X509Certificate::from_der(leaf)) else {
            return Vec::new();
        };
        let Ok(Some(names)) = leaf.subject_alternative_name() else { return Vec::new() };
        let dns = names.value.general_names.iter().filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            _ => None,
        });
        dns.collect()
    }

    /// Reads the files again, and uses what they hold if it has changed and is good.
    ///
    /// # Errors
    ///
    /// As [`ServingCertificate::load`]; the certificate in use stays.
    pub async fn reload(&self, now: Timestamp) -> Result<Reload, CertificateError> {
        let Files { cert, key } = read(&self.settings).await?;
        self.replace(now, cert, key)
    }

    /// Uses this PEM from now on, if it is another than before and good.
    ///
    /// # Errors
    ///
    /// It is not a certificate that clients could accept at `now`; the one in use stays.
    pub fn replace(
        &self,
        now: Timestamp,
        cert: Vec<u8>,
        key: Vec<u8>,
    ) -> Result<Reload, CertificateError> {
        let files = Files { cert, key };
        if self.loaded.borrow().as_ref().is_some_and(|loaded| loaded.files == files) {
            return Ok(Reload::Unchanged);
        }
        let loaded = check(now, &self.settings, files)?;
        self.loaded.send_replace(Some(Arc::new(loaded)));
        Ok(Reload::Replaced)
    }

    /// Reads the files again each `interval` until `cancel`, and reports each outcome.
    pub async fn follow(
        &self,
        clock: Clock,
        interval: Duration,
        cancel: CancellationToken,
        report: impl Fn(&Result<Reload, CertificateError>),
    ) {
        while cancel.run_until_cancelled(tokio::time::sleep(interval)).await.is_some() {
            let outcome = self.reload(clock.now()).await;
            match &outcome {
                Ok(Reload::Unchanged) => {}
                Ok(Reload::Replaced) => {
                    info!(
                        not_after = self.not_after().map(tracing::field::display),
                        "The serving certificate was replaced"
                    );
                }
                Err(error) => warn!(
                    error = error as &dyn std::error::Error,
                    not_after = self.not_after().map(tracing::field::display),
                    "The new serving certificate is refused and the old one stays"
                ),
            }
            report(&outcome);
        }
    }
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.loaded.borrow().as_ref().map(|loaded| Arc::clone(&loaded.key))
    }
}

async fn read(settings: &Settings) -> Result<Files, CertificateError> {
    let Settings { cert_file, key_file } = settings;
    Ok(Files { cert: read_file(cert_file).await?, key: read_file(key_file).await? })
}

async fn read_file(path: &Path) -> Result<Vec<u8>, CertificateError> {
    let failed = |source| CertificateError::Read { path: path.to_owned(), source };
    let file = tokio::fs::File::open(path).await.map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).await.map_err(failed)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(CertificateError::TooLarge(path.to_owned()));
    }
    Ok(bytes)
}

fn check(now: Timestamp, settings: &Settings, files: Files) -> Result<Loaded, CertificateError> {
    let pem_error = |path: &Path, wanted| {
        let path = path.to_owned();
        move |source| CertificateError::Pem { path, wanted, source }
    };
    let chain = CertificateDer::pem_slice_iter(&files.cert)
        .collect::<Result<Vec<_>, _>>()
        .and_then(|chain| if chain.is_empty() { Err(pem::Error::NoItemsFound) } else { Ok(chain) })
        .map_err(pem_error(&settings.cert_file, "certificate"))?;
    let key = PrivateKeyDer::from_pem_slice(&files.key)
        .map_err(pem_error(&settings.key_file, "private key"))?;
    let not_after = check_leaf(now, &chain[0])?;
    let key = CertifiedKey::from_der(chain, key, &provider()).map_err(CertificateError::Key)?;
    Ok(Loaded { files, key: Arc::new(key), not_after })
}

/// Checks what clients will check of the certificate itself; returns when it expires.
fn check_leaf(now: Timestamp, leaf: &CertificateDer<'_>) -> Result<Timestamp, CertificateError> {
    let (_, leaf) = X509Certificate::from_der(leaf).map_err(|_| CertificateError::Malformed)?;
    let instant =
        |seconds| Timestamp::from_second(seconds).map_err(|_| CertificateError::Malformed);
    let not_before = instant(leaf.validity().not_before.timestamp())?;
    let not_after = instant(leaf.validity().not_after.timestamp())?;
    if now < not_before {
        return Err(CertificateError::NotYetValid(not_before));
    }
    if now > not_after {
        return Err(CertificateError::Expired(not_after));
    }
    match leaf.subject_alternative_name() {
        Ok(Some(names)) if !names.value.general_names.is_empty() => Ok(not_after),
        Ok(_) => Err(CertificateError::Nameless),
        Err(_) => Err(CertificateError::Malformed),
    }
}

/// The one provider of cryptography. It is passed everywhere by hand, because a process-wide
/// default panics when two are linked.
fn provider() -> CryptoProvider {
    aws_lc_rs::default_provider()
}

/// The server's side of TLS: 1.2 and 1.3, HTTP/2 before HTTP/1.1, client certificates requested.
///
/// # Errors
///
/// When the provider of cryptography does not support these versions.
pub fn server_config(
    certificate: Arc<ServingCertificate>,
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let provider = Arc::new(provider());
    let verifier = DeferredVerifier { algorithms: provider.signature_verification_algorithms };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(certificate);
    config.alpn_protocols = vec![ALPN_H2.to_vec(), ALPN_HTTP1.to_vec()];
    Ok(Arc::new(config))
}

/// Accepts any client certificate whose key the client holds.
#[derive(Debug)]
struct DeferredVerifier {
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for DeferredVerifier {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    /// None, so that a client whose authority is not the expected one still shows its certificate.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        webpki::EndEntityCert::try_from(end_entity)
            .map(|_| ClientCertVerified::assertion())
            .map_err(|_| RustlsCertificateError::BadEncoding.into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
