//! The authority that a server requires clients to have a certificate from, read again as it
//! rotates.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::server::tls::{CertificateError, read_file};

/// The reason that a file of authorities cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] CertificateError),
    /// The file is not PEM.
    #[error("{} is not a PEM file with certificates", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// The PEM error.
        #[source]
        source: pem::Error,
    },
    /// A certificate in the file is not an authority.
    #[error("a certificate of {} cannot be used as an authority", path.display())]
    Certificate {
        /// The file.
        path: PathBuf,
        /// The error of the certificate.
        #[source]
        source: rustls::Error,
    },
    /// The file has no certificates.
    #[error("{} has no certificates", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// The error of the verifier.
        #[source]
        source: VerifierBuilderError,
    },
}

/// Verifies client certificates against the authorities of a file.
#[derive(Debug)]
pub struct ClientAuthority {
    file: PathBuf,
    loaded: watch::Sender<LoadedAuthority>,
}

#[derive(Clone, Debug)]
struct LoadedAuthority {
    bytes: Vec<u8>,
    verifier: Arc<dyn ClientCertVerifier>,
}

// === impl ClientAuthority ===

impl ClientAuthority {
    /// Reads the file.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or has no authorities.
    pub async fn load(file: PathBuf) -> Result<Self, AuthorityError> {
        let bytes = read_file(&file).await?;
        let loaded = watch::Sender::new(parse(&file, bytes)?);
        Ok(Self { file, loaded })
    }

    /// Reads the file again every `interval` until `cancel`. If it cannot be used, the authorities
    /// in use stay.
    pub async fn follow(&self, interval: Duration, cancel: CancellationToken) {
        while cancel.run_until_cancelled(tokio::time::sleep(interval)).await.is_some() {
            match self.reload().await {
                Ok(false) => {}
                Ok(true) => info!(file = %self.file.display(), "The client authority was replaced"),
                Err(error) => warn!(
                    error = &error as &dyn std::error::Error,
                    "The new client authority is rejected; the old one stays in use"
                ),
            }
        }
    }

    /// Reads the file again; returns true if it has changed.
    async fn reload(&self) -> Result<bool, AuthorityError> {
        let bytes = read_file(&self.file).await?;
        if self.loaded.borrow().bytes == bytes {
            return Ok(false);
        }

        self.loaded.send_replace(parse(&self.file, bytes)?);
        Ok(true)
    }

    fn verifier(&self) -> Arc<dyn ClientCertVerifier> {
        Arc::clone(&self.loaded.borrow().verifier)
    }
}

fn parse(file: &Path, bytes: Vec<u8>) -> Result<LoadedAuthority, AuthorityError> {
    let mut roots = RootCertStore::empty();
    for read in CertificateDer::pem_slice_iter(&bytes) {
        let certificate =
            read.map_err(|source| AuthorityError::Pem { path: file.to_owned(), source })?;
        roots
            .add(certificate)
            .map_err(|source| AuthorityError::Certificate { path: file.to_owned(), source })?;
    }

    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|source| AuthorityError::Empty { path: file.to_owned(), source })?;
    Ok(LoadedAuthority { bytes, verifier })
}

impl ClientCertVerifier for ClientAuthority {
    /// Empty, so that a client with a certificate of another authority still presents it.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.verifier().verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier().verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier().verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier().supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, IsCa, KeyPair};

    use super::*;

    fn authority() -> String {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
    }

    #[tokio::test]
    async fn a_file_is_read_again_when_it_changes_and_what_cannot_be_used_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.crt");
        let (first, second) = (authority(), authority());
        std::fs::write(&file, &first).unwrap();
        let authority = ClientAuthority::load(file.clone()).await.unwrap();
        let mut loaded = authority.loaded.subscribe();
        assert!(!authority.reload().await.unwrap());
        assert!(!loaded.has_changed().unwrap());

        std::fs::write(&file, &second).unwrap();
        assert!(authority.reload().await.unwrap());
        assert_eq!(loaded.borrow_and_update().bytes, second.as_bytes());
        for broken in
            ["", "no certificate", "-----BEGIN CERTIFICATE-----\nbm8=\n-----END CERTIFICATE-----\n"]
        {
            std::fs::write(&file, broken).unwrap();
            assert!(authority.reload().await.is_err(), "{broken}");
        }
        std::fs::remove_file(&file).unwrap();
        assert!(authority.reload().await.is_err());
        assert!(!loaded.has_changed().unwrap());
        assert_eq!(loaded.borrow().bytes, second.as_bytes());
    }

    #[tokio::test]
    async fn a_file_is_followed_until_it_is_cancelled() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.crt");
        std::fs::write(&file, self::authority()).unwrap();
        let authority = ClientAuthority::load(file.clone()).await.unwrap();
        let mut loaded = authority.loaded.subscribe();
        let cancel = CancellationToken::new();
        std::fs::write(&file, self::authority()).unwrap();
        tokio::select! {
            () = authority.follow(Duration::from_millis(1), cancel.clone()) => panic!("it ended"),
            changed = loaded.changed() => changed.unwrap(),
        }
        cancel.cancel();
        authority.follow(Duration::from_hours(1), cancel).await;
    }
}
