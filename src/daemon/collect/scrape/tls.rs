//! The client's TLS configuration, built from the files in the settings.

use std::sync::Arc;

use rustls::client::WantsClientCert;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ConfigBuilder, DigitallySignedStruct, RootCertStore, SignatureScheme,
    WantsVerifier,
};
use rustls_platform_verifier::BuilderVerifierExt;

/// The reason why files do not make a TLS client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    /// The file with the authorities has none.
    #[error("there is no certificate in the file of authorities")]
    NoAuthority,
    /// The file with the authorities cannot be read as PEM.
    #[error("the file of authorities cannot be read as PEM")]
    AuthorityPem(#[source] pem::Error),
    /// A certificate among the authorities, or the system's authorities, cannot be used.
    #[error("the authorities cannot be used")]
    Authority(#[source] rustls::Error),
    /// The client's certificate or key cannot be read as PEM.
    #[error("the client's certificate and key cannot be read as PEM")]
    IdentityPem(#[source] pem::Error),
    /// The client's certificate and key make no identity.
    #[error("the client's certificate and key cannot be used")]
    Identity(#[source] rustls::Error),
}

/// The authorities whose certificates are trusted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Trust<'a> {
    /// None: no connection uses TLS.
    Nobody,
    /// The system's authorities.
    System,
    /// The authorities in this PEM bundle.
    Bundle(&'a [u8]),
    /// All certificates are trusted.
    Anyone,
}

/// Builds a configuration that trusts these authorities, and presents the PEM certificate chain and
/// key in `identity`. Connections use the newest HTTP version that both sides support.
///
/// # Errors
///
/// A file is not PEM, or its contents do not fit together.
pub(crate) fn config(trust: Trust<'_>, identity: Option<&[u8]>) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Authority)?;
    let trusting = trusting(builder, trust)?;
    let mut config = match identity {
        None => trusting.with_no_client_auth(),
        Some(pem) => {
            let certificates = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
            let chain = certificates.map_err(TlsError::IdentityPem)?;
            let key = PrivateKeyDer::from_pem_slice(pem).map_err(TlsError::IdentityPem)?;
            trusting.with_client_auth_cert(chain, key).map_err(TlsError::Identity)?
        }
    };

    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn trusting(
    builder: ConfigBuilder<ClientConfig, WantsVerifier>,
    trust: Trust<'_>,
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, TlsError> {
    match trust {
        Trust::Nobody => Ok(builder.with_root_certificates(RootCertStore::empty())),
        Trust::System => builder.with_platform_verifier().map_err(TlsError::Authority),
        Trust::Bundle(pem) => {
            let mut roots = RootCertStore::empty();
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let authority = certificate.map_err(TlsError::AuthorityPem)?;
                roots.add(authority).map_err(TlsError::Authority)?;
            }

            if roots.is_empty() {
                return Err(TlsError::NoAuthority);
            }

            Ok(builder.with_root_certificates(roots))
        }
        Trust::Anyone => {
            let schemes = builder.crypto_provider().signature_verification_algorithms;
            let verifier = Unchecked { schemes: schemes.supported_schemes() };
            Ok(builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier)))
        }
    }
}

/// Implements `insecure_skip_verify`: no part of a certificate is verified, not even that the
/// server has its key.
#[derive(Debug)]
struct Unchecked {
    schemes: Vec<SignatureScheme>,
}

impl ServerCertVerifier for Unchecked {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes.clone()
    }
}
