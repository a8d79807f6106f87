//! The certificates that a cluster would have, generated for one run and kept in memory.
//!
//! Two authorities, as in a cluster. One signs the serving certificate of the external metrics API.
//! The other is the front proxy's, whose client certificate lets its holder state the user of a
//! request. The demo's HPA uses that certificate, as the API server's aggregation layer does.

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};

/// The name in the front proxy's certificate.
pub const FRONT_PROXY: &str = "front-proxy-client";

/// Certificates and keys in PEM.
#[derive(Clone)]
pub struct Pki {
    /// The authority that signs the serving certificate.
    pub serving_authority: String,
    /// The serving certificate, for `localhost` and 127.0.0.1.
    pub serving_certificate: String,
    /// The private key.
    pub serving_key: String,
    /// The authority that signs the front proxy's certificate.
    pub proxy_authority: String,
    /// The front proxy's certificate, with the name [`FRONT_PROXY`].
    pub proxy_certificate: String,
    /// The private key.
    pub proxy_key: String,
}

impl std::fmt::Debug for Pki {
    /// Omits all keys.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pki").finish_non_exhaustive()
    }
}

impl Pki {
    /// Generates a new set.
    ///
    /// # Errors
    ///
    /// The machine has no randomness, or the library refuses its own parameters.
    pub fn generate() -> Result<Self, rcgen::Error> {
        let (serving_authority, serving_issuer) = authority("plimsoll-demo-serving-ca")?;
        let (proxy_authority, proxy_issuer) = authority("plimsoll-demo-front-proxy-ca")?;

        let hosts = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let server = ExtendedKeyUsagePurpose::ServerAuth;
        let (serving_certificate, serving_key) = leaf("plimsoll", hosts, server, &serving_issuer)?;
        let client = ExtendedKeyUsagePurpose::ClientAuth;
        let (proxy_certificate, proxy_key) = leaf(FRONT_PROXY, Vec::new(), client, &proxy_issuer)?;

        Ok(Self {
            serving_authority,
            serving_certificate,
            serving_key,
            proxy_authority,
            proxy_certificate,
            proxy_key,
        })
    }
}

fn authority(name: &str) -> Result<(String, Issuer<'static, KeyPair>), rcgen::Error> {
    let mut params = named(name, Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    Ok((certificate.pem(), Issuer::new(params, key)))
}

fn leaf(
    name: &str,
    hosts: Vec<String>,
    usage: ExtendedKeyUsagePurpose,
    issuer: &Issuer<'static, KeyPair>,
) -> Result<(String, String), rcgen::Error> {
    let mut params = named(name, hosts)?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![usage];
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, issuer)?;
    Ok((certificate.pem(), key.serialize_pem()))
}

fn named(name: &str, hosts: Vec<String>) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(hosts)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(params)
}
