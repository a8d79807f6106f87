//! The scraper against servers with certificates.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hyper::{Request, Response, Version};
use plimsoll::collect::scrape::{ClientIdentity, ClientSettings, ScrapeSettings};
use plimsoll::observe::ScrapeFailure;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;

use crate::scrape::server::{Body, Server, page};
use crate::scrape::{
    Bench, failure, model, outcome, patient_target, reading, slow_settings, target,
};

/// A certificate authority.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key, signed by an authority.
struct Signed {
    certificate: rcgen::Certificate,
    key: KeyPair,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        Self { issuer: CertifiedIssuer::self_signed(params, key).unwrap() }
    }

    fn sign(&self, names: &[&str]) -> Signed {
        let names = names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(names).unwrap();
        Signed { certificate: params.signed_by(&key, &self.issuer).unwrap(), key }
    }

    fn write(&self, folder: &Path, name: &str) -> PathBuf {
        write(folder, name, &self.issuer.pem())
    }

    fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        Arc::new(roots)
    }
}

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn identity(folder: &Path, signed: &Signed) -> ClientIdentity {
    ClientIdentity {
        cert_file: write(folder, "client.pem", &signed.certificate.pem()),
        key_file: write(folder, "client.key", &signed.key.serialize_pem()),
    }
}

/// A server's side of TLS, which asks for certificates of `clients` if there is one.
fn config(signed: &Signed, clients: Option<&Authority>, alpn: &[&str]) -> ServerConfig {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let roots = authority.roots();
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        }
    };
    let chain: Vec<CertificateDer<'static>> = vec![signed.certificate.der().clone()];
    let key = PrivateKeyDer::try_from(signed.key.serialize_der()).unwrap();
    let mut config = builder.with_single_cert(chain, key).unwrap();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    config
}

/// Says which version of HTTP was spoken, as the name of the model.
async fn say_version<B>(request: Request<B>) -> Response<Body> {
    match request.version() {
        Version::HTTP_2 => page("model h2\n"),
        _ => page("model h1\n"),
    }
}

#[tokio::test]
async fn a_configured_authority_is_trusted_and_the_newest_common_http_is_spoken() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let client = ClientSettings {
        ca_file: Some(authority.write(folder.path(), "ca.pem")),
        ..ClientSettings::default()
    };
    for (alpn, want) in [(&["h2", "http/1.1"][..], "h2"), (&["http/1.1"], "h1"), (&[], "h1")] {
        let signed = authority.sign(&["127.0.0.1"]);
        let server = Server::https(config(&signed, None, alpn), say_version).await;
        let (outcome, detail) = outcome(patient_target(&server.tls_url(), client.clone())).await;
        assert_eq!(outcome, Ok(reading(model(want))), "{detail}");
    }
}

#[tokio::test]
async fn an_unknown_authority_or_a_wrong_name_is_a_broken_connection() {
    let folder = tempfile::tempdir().unwrap();
    let (authority, stranger) = (Authority::new(), Authority::new());
    let client = ClientSettings {
        ca_file: Some(authority.write(folder.path(), "ca.pem")),
        ..ClientSettings::default()
    };
    for signed in [stranger.sign(&["127.0.0.1"]), authority.sign(&["127.0.0.2"])] {
        let server = Server::https(config(&signed, None, &[]), say_version).await;
        let (class, detail) = failure(patient_target(&server.tls_url(), client.clone())).await;
        assert_eq!(class, ScrapeFailure::Connection);
        assert!(detail.contains("invalid peer certificate"), "{detail}");
        let insecure = ClientSettings { insecure_skip_verify: true, ..client.clone() };
        let (outcome, detail) = outcome(patient_target(&server.tls_url(), insecure)).await;
        assert_eq!(outcome, Ok(reading(model("h1"))), "{detail}");
    }
}

#[tokio::test]
async fn a_client_certificate_is_presented_where_one_is_required() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let server_side = config(&authority.sign(&["127.0.0.1"]), Some(&authority), &["h2"]);
    let server = Server::https(server_side, say_version).await;
    let anonymous = ClientSettings {
        ca_file: Some(authority.write(folder.path(), "ca.pem")),
        ..ClientSettings::default()
    };
    let (class, detail) = failure(patient_target(&server.tls_url(), anonymous.clone())).await;
    assert_eq!(class, ScrapeFailure::Connection, "{detail}");
    let identity = Some(identity(folder.path(), &authority.sign(&["plimsoll"])));
    let named = ClientSettings { identity, ..anonymous };
    let (outcome, detail) = outcome(patient_target(&server.tls_url(), named)).await;
    assert_eq!(outcome, Ok(reading(model("h2"))), "{detail}");
}

#[tokio::test]
async fn certificates_follow_their_files() {
    let folder = tempfile::tempdir().unwrap();
    let (authority, stranger) = (Authority::new(), Authority::new());
    let server_side = config(&authority.sign(&["127.0.0.1"]), Some(&authority), &[]);
    let server = Server::https(server_side, say_version).await;
    let client = ClientSettings {
        ca_file: Some(stranger.write(folder.path(), "ca.pem")),
        identity: Some(identity(folder.path(), &stranger.sign(&["plimsoll"]))),
        ..ClientSettings::default()
    };
    let settings = ScrapeSettings { client, ..slow_settings() };
    let mut bench = Bench::new(vec![target("a", &server.tls_url(), settings)]);
    bench.until_failed(ScrapeFailure::Connection).await;
    authority.write(folder.path(), "ca.pem");
    identity(folder.path(), &authority.sign(&["plimsoll"]));
    bench.until_answered().await;
}
