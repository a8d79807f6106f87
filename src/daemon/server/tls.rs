//! TLS: certificates that are read again as they rotate.
//!
//! A [`ServingCertificate`] is a pair of files and their last valid content. The files are read
//! again periodically and compared by content. Mounted secrets change by a swap of symbolic links,
//! which watches on the file miss. A new pair is checked before it replaces the old one: key and
//! certificate belong together, and the certificate is currently valid and has a subject
//! alternative name. An invalid pair is rejected and the old one stays. A pair that is in no file
//! can be handed over instead; until then, every handshake fails.
//!
//! Client certificates are requested, and any signer is accepted, provided that the client holds
//! the key. The chain is verified per request (see [`crate::server::auth`]), as Go servers do, for
//! two reasons. A refused client gets an answer with the reason instead of a TLS alert, and a
//! rotated authority applies to open connections.

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
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
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

/// The default interval at which the files are read again. Kubelets need about a minute to bring a
/// new secret to its mount, so a shorter interval finds nothing sooner.
pub const RELOAD_INTERVAL: Duration = Duration::from_secs(10);

/// The size limit of a file. Every certificate chain and key is smaller.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// The location of the serving certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSettings {
    /// PEM file with the certificate and the intermediates that it needs.
    pub cert_file: PathBuf,
    /// PEM file with the private key, as PKCS#8, PKCS#1 or SEC1.
    pub key_file: PathBuf,
}

/// The reason that a serving certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        #[source]
        source: io::Error,
    },
    /// A file is larger than any certificate chain or key.
    #[error("{} is larger than {FILE_BYTES_MAX} bytes", .0.display())]
    TooLarge(PathBuf),
    /// A file is not PEM, or does not hold the expected kind of item.
    #[error("{} is not a PEM file with a {wanted}", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// The expected item.
        wanted: &'static str,
        /// The PEM error.
        #[source]
        source: pem::Error,
    },
    /// The key is of an unknown kind, or belongs to a different certificate.
    #[error("the private key does not match the certificate")]
    Key(#[source] rustls::Error),
    /// The certificate is not X.509.
    #[error("the certificate cannot be read")]
    Malformed,
    /// The certificate has expired.
    #[error("the certificate expired at {0}")]
    Expired(Timestamp),
    /// The certificate's validity has not started.
    #[error("the certificate is not valid before {0}")]
    NotYetValid(Timestamp),
    /// The certificate has no alternative name, and API servers compare only those.
    #[error("the certificate has no subject alternative name")]
    Nameless,
}

/// The result of reading the files again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateReload {
    /// Their content is the same.
    Unchanged,
    /// New connections use the new certificate.
    Replaced,
}

/// A serving certificate that can be replaced while it is in use.
#[derive(Debug)]
pub struct ServingCertificate {
    settings: TlsSettings,
    loaded: watch::Sender<Option<Arc<LoadedCertificate>>>,
}

#[derive(Debug)]
struct LoadedCertificate {
    files: CertificateFiles,
    key: Arc<CertifiedKey>,
    not_after: Timestamp,
}

#[derive(Debug, PartialEq, Eq)]
struct CertificateFiles {
    cert: Vec<u8>,
    key: Vec<u8>,
}

impl ServingCertificate {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// The files cannot be read, or hold no certificate that clients would accept at `now`.
    pub async fn load(now: Timestamp, settings: TlsSettings) -> Result<Self, CertificateError> {
        let loaded = check(now, &settings, read(&settings).await?)?;
        Ok(Self { settings, loaded: watch::Sender::new(Some(Arc::new(loaded))) })
    }

    /// A certificate that [`ServingCertificate::replace`] provides later. The settings are the
    /// names of its parts in messages.
    #[must_use]
    pub fn awaited(settings: TlsSettings) -> Self {
        Self { settings, loaded: watch::Sender::new(None) }
    }

    /// The expiry time of the certificate in use; `None` if there is none.
    #[must_use]
    pub fn not_after(&self) -> Option<Timestamp> {
        self.loaded.borrow().as_ref().map(|loaded| loaded.not_after)
    }

    /// The DNS names in the certificate in use.
    #[must_use]
    pub fn dns_names(&self) -> Vec<String> {
        let loaded = self.loaded.borrow();
        let leaf = loaded.as_ref().and_then(|loaded| loaded.key.cert.first());
        let Some(Ok((_, parsed))) = leaf.map(|leaf| X509Certificate::from_der(leaf)) else {
            return Vec::new();
        };
        let Ok(Some(names)) = parsed.subject_alternative_name() else { return Vec::new() };

        let dns = names.value.general_names.iter().filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            _ => None,
        });
        dns.collect()
    }

    /// Reads the files again, and uses their content if it has changed and is valid.
    ///
    /// # Errors
    ///
    /// As [`ServingCertificate::load`]; the certificate in use stays.
    pub async fn reload(&self, now: Timestamp) -> Result<CertificateReload, CertificateError> {
        let CertificateFiles { cert, key } = read(&self.settings).await?;
        self.replace(now, cert, key)
    }

    /// Uses this PEM from now on, if it differs from the current one and is valid.
    ///
    /// # Errors
    ///
    /// It is not a certificate that clients would accept at `now`; the certificate in use stays.
    pub fn replace(
        &self,
        now: Timestamp,
        cert: Vec<u8>,
        key: Vec<u8>,
    ) -> Result<CertificateReload, CertificateError> {
        let files = CertificateFiles { cert, key };
        if self.loaded.borrow().as_ref().is_some_and(|loaded| loaded.files == files) {
            return Ok(CertificateReload::Unchanged);
        }
        let loaded = check(now, &self.settings, files)?;
        self.loaded.send_replace(Some(Arc::new(loaded)));
        Ok(CertificateReload::Replaced)
    }

    /// Reads the files again every `interval` until `cancel`, and reports each result.
    pub async fn follow(
        &self,
        clock: Clock,
        interval: Duration,
        cancel: CancellationToken,
        report: impl Fn(&Result<CertificateReload, CertificateError>),
    ) {
        while cancel.run_until_cancelled(tokio::time::sleep(interval)).await.is_some() {
            let outcome = self.reload(clock.now()).await;
            match &outcome {
                Ok(CertificateReload::Unchanged) => {}
                Ok(CertificateReload::Replaced) => {
                    info!(
                        not_after = self.not_after().map(tracing::field::display),
                        "The serving certificate was replaced"
                    );
                }
                Err(error) => warn!(
                    error = error as &dyn std::error::Error,
                    not_after = self.not_after().map(tracing::field::display),
                    "The new serving certificate is rejected; the old one stays in use"
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

async fn read(settings: &TlsSettings) -> Result<CertificateFiles, CertificateError> {
    let TlsSettings { cert_file, key_file } = settings;
    Ok(CertificateFiles { cert: read_file(cert_file).await?, key: read_file(key_file).await? })
}

/// Reads a file of certificates or keys.
pub(super) async fn read_file(path: &Path) -> Result<Vec<u8>, CertificateError> {
    let read = read_bounded(path).await;
    let bytes = read.map_err(|source| CertificateError::Read { path: path.to_owned(), source })?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(CertificateError::TooLarge(path.to_owned()));
    }
    Ok(bytes)
}

/// The content of a file, up to one byte more than it may have.
async fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let file = tokio::fs::File::open(path).await?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).await?;
    Ok(bytes)
}

fn check(
    now: Timestamp,
    settings: &TlsSettings,
    files: CertificateFiles,
) -> Result<LoadedCertificate, CertificateError> {
    let chain = CertificateDer::pem_slice_iter(&files.cert)
        .collect::<Result<Vec<_>, _>>()
        .and_then(|all| if all.is_empty() { Err(pem::Error::NoItemsFound) } else { Ok(all) })
        .map_err(|source| pem_error(&settings.cert_file, "certificate", source))?;
    let key = PrivateKeyDer::from_pem_slice(&files.key)
        .map_err(|source| pem_error(&settings.key_file, "private key", source))?;

    let not_after = check_leaf(now, &chain[0])?;
    let certified =
        CertifiedKey::from_der(chain, key, &provider()).map_err(CertificateError::Key)?;
    Ok(LoadedCertificate { files, key: Arc::new(certified), not_after })
}

fn pem_error(path: &Path, wanted: &'static str, source: pem::Error) -> CertificateError {
    CertificateError::Pem { path: path.to_owned(), wanted, source }
}

/// Checks the parts of a certificate that clients check; returns its expiry time.
fn check_leaf(now: Timestamp, leaf: &CertificateDer<'_>) -> Result<Timestamp, CertificateError> {
    let (_, parsed) = X509Certificate::from_der(leaf).map_err(|_| CertificateError::Malformed)?;
    let not_before = instant(parsed.validity().not_before.timestamp())?;
    let not_after = instant(parsed.validity().not_after.timestamp())?;
    if now < not_before {
        return Err(CertificateError::NotYetValid(not_before));
    }
    if now > not_after {
        return Err(CertificateError::Expired(not_after));
    }

    match parsed.subject_alternative_name() {
        Ok(Some(names)) if !names.value.general_names.is_empty() => Ok(not_after),
        Ok(_) => Err(CertificateError::Nameless),
        Err(_) => Err(CertificateError::Malformed),
    }
}

fn instant(seconds: i64) -> Result<Timestamp, CertificateError> {
    Timestamp::from_second(seconds).map_err(|_| CertificateError::Malformed)
}

/// The only cryptography provider. It is passed explicitly, because a process-wide default panics
/// when two are linked.
fn provider() -> CryptoProvider {
    aws_lc_rs::default_provider()
}

/// The TLS settings of the server: 1.2 and 1.3, HTTP/2 before HTTP/1.1, client certificates
/// requested.
///
/// # Errors
///
/// The cryptography provider does not support these versions.
pub fn server_config(
    certificate: Arc<ServingCertificate>,
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let algorithms = provider().signature_verification_algorithms;
    let config = config_with(certificate, Arc::new(DeferredVerifier { algorithms }))?;
    Ok(Arc::new(config))
}

/// The TLS settings of a server whose clients are verified by `clients` during the handshake.
///
/// # Errors
///
/// The cryptography provider does not support these versions.
pub fn mutual_config(
    certificate: Arc<ServingCertificate>,
    clients: Arc<dyn ClientCertVerifier>,
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let mut config = config_with(certificate, clients)?;
    // A resumed session is not verified again. A client whose certificate is no longer trusted must
    // not get in by one.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

fn config_with(
    certificate: Arc<ServingCertificate>,
    clients: Arc<dyn ClientCertVerifier>,
) -> Result<ServerConfig, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider()))
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(clients)
        .with_cert_resolver(certificate);

    config.alpn_protocols = vec![ALPN_H2.to_vec(), ALPN_HTTP1.to_vec()];
    Ok(config)
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

    /// Empty, so that a client with a certificate of another authority still presents it.
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
