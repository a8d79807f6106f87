//! Access to the plain HTTP port.
//!
//! The port has neither TLS nor users, and anything in the cluster may read it. Two kinds of requests
//! are refused:
//!
//! - Requests that change the daemon (`/-/…`), unless they come from its own host or pod, as those
//!   of `kubectl port-forward` do, or have the bearer token of a file. A proxy in front of the
//!   port, such as the sidecar of a service mesh, connects from the same host. So a forwarded
//!   request needs the token.
//! - Requests that a foreign website makes a browser send. A website whose name resolves to the
//!   port's address after its first load (DNS rebinding) counts as the same origin and could read
//!   every answer, but the `Host` header still has its name. So browsers must use an address or a
//!   name that nobody else can own. Changes are never accepted from a website.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use hyper::Request;
use hyper::header::{
    ACCEPT_LANGUAGE, AUTHORIZATION, FORWARDED, HOST, HeaderMap, HeaderName, ORIGIN, REFERER, VIA,
};
use hyper::http::uri::Authority;
use tokio::fs::File;
use tokio::io::AsyncReadExt;

/// The length of a token file that is read.
const TOKEN_FILE_MAX: u64 = 4096;

/// The length of a host name, which bounds a message that repeats it.
const HOST_MAX: usize = 253;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Headers that show a browser. A script of a website can remove none of them from all of its
/// requests: every `fetch` has `Accept-Language`.
const OF_BROWSERS: [HeaderName; 4] = [ACCEPT_LANGUAGE, ORIGIN, REFERER, SEC_FETCH_SITE];

/// Prefixes of headers that proxies add.
const OF_PROXIES: [&str; 4] = ["x-forwarded-", "x-envoy-", "x-real-ip", "l5d-"];

/// The access rules of the port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessPolicy {
    /// True if the daemon can be changed over HTTP.
    pub admin_enabled: bool,
    /// The file with the bearer token that permits changes from other hosts.
    pub token_file: Option<PathBuf>,
    /// Host names of the port, in addition to those that are always allowed.
    pub allowed_hosts: Vec<String>,
}

/// The reason that a request is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AccessRefusal {
    #[error(
        "the host name {host:?} is not allowed: use the address, localhost or the name of the \
         Service (NAME.NAMESPACE.svc), or add the name to server.allowed_hosts"
    )]
    ForeignHost { host: String },
    #[error(
        "a web page may not change the daemon: use curl or another client that sends neither \
         Origin nor Sec-Fetch-Site"
    )]
    WebPage,
    #[error(
        "server.admin_enabled is false, so HTTP requests can't change the daemon: edit the \
         configuration file, which is reloaded on its own, or restart with another --log"
    )]
    Disabled,
    #[error(
        "the request came from {peer}, and without a token only requests from the daemon's own \
         host or pod are accepted: use kubectl port-forward, or set server.admin_token_file and \
         send `Authorization: Bearer TOKEN`"
    )]
    ForeignPeer { peer: IpAddr },
    #[error(
        "the request was forwarded by a proxy, so its sender is not known: use kubectl \
         port-forward, or set server.admin_token_file and send `Authorization: Bearer TOKEN`"
    )]
    Forwarded,
    #[error("the bearer token is not the one in server.admin_token_file")]
    WrongToken,
    #[error("the file of server.admin_token_file {0}")]
    TokenFile(String),
}

// === impl AccessPolicy ===

impl AccessPolicy {
    /// Checks a request that reads.
    pub(crate) fn check_read<B>(&self, request: &Request<B>) -> Result<(), AccessRefusal> {
        if OF_BROWSERS.iter().any(|name| request.headers().contains_key(name)) {
            self.check_host(request)?;
        }

        Ok(())
    }

    /// Checks a request that changes the daemon.
    pub(crate) async fn check_change<B>(
        &self,
        peer: IpAddr,
        request: &Request<B>,
    ) -> Result<(), AccessRefusal> {
        let headers = request.headers();
        if !self.admin_enabled {
            return Err(AccessRefusal::Disabled);
        }
        if headers.contains_key(ORIGIN) || headers.contains_key(SEC_FETCH_SITE) {
            return Err(AccessRefusal::WebPage);
        }

        self.check_host(request)?;
        let refusal = match (is_own(peer), is_forwarded(headers)) {
            (true, false) => return Ok(()),
            (true, true) => AccessRefusal::Forwarded,
            (false, _) => AccessRefusal::ForeignPeer { peer },
        };

        match (&self.token_file, bearer_token(headers)) {
            (Some(file), Some(given)) => {
                let token = read_token(file).await.map_err(AccessRefusal::TokenFile)?;
                verify_slices_are_equal(&token, given).map_err(|_| AccessRefusal::WrongToken)
            }
            (Some(_) | None, _) => Err(refusal),
        }
    }

    /// Checks every host name that a request has. A request without one is not from a browser.
    fn check_host<B>(&self, request: &Request<B>) -> Result<(), AccessRefusal> {
        let target = request.uri().authority().map(|authority| authority.as_str().as_bytes());
        let headers = request.headers().get_all(HOST).iter().map(AsRef::as_ref);
        let refused = target.into_iter().chain(headers).find(|host| !self.allows(host));

        match refused {
            None => Ok(()),
            Some(host) => {
                let name = String::from_utf8_lossy(host).chars().take(HOST_MAX).collect();
                Err(AccessRefusal::ForeignHost { host: name })
            }
        }
    }

    /// Returns true if a host is an address, or a name that no website can have.
    fn allows(&self, host: &[u8]) -> bool {
        let Ok(authority) = Authority::try_from(host) else { return false };
        let name = authority.host().trim_end_matches('.').to_ascii_lowercase();
        let address = name.trim_start_matches('[').trim_end_matches(']');

        address.parse::<IpAddr>().is_ok()
            || is_private_name(&name)
            || self.allowed_hosts.iter().any(|allowed| allowed.eq_ignore_ascii_case(&name))
    }
}

/// Returns true if a name is outside the public DNS: one label, the machine itself, or a Service.
fn is_private_name(name: &str) -> bool {
    let one_label = !name.is_empty() && !name.contains('.');
    one_label || [".localhost", ".svc", ".svc.cluster.local"].iter().any(|end| name.ends_with(end))
}

/// Returns true if a peer is on the daemon's own host or in its pod. Other addresses of the loopback
/// network are of proxies: 127.0.0.6 is the source of all that Istio's sidecar lets in.
fn is_own(peer: IpAddr) -> bool {
    let address = peer.to_canonical();
    address == Ipv4Addr::LOCALHOST || address == Ipv6Addr::LOCALHOST
}

fn is_forwarded(headers: &HeaderMap) -> bool {
    headers.contains_key(FORWARDED)
        || headers.contains_key(VIA)
        || headers.keys().any(|name| OF_PROXIES.iter().any(|it| name.as_str().starts_with(it)))
}

fn bearer_token(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}

/// Reads the token, or returns the problem with the file.
async fn read_token(path: &Path) -> Result<Vec<u8>, String> {
    let mut text = Vec::new();
    let file = File::open(path).await.map_err(|error| format!("cannot be read: {error}"))?;
    let read = file.take(TOKEN_FILE_MAX + 1).read_to_end(&mut text).await;
    read.map_err(|error| format!("cannot be read: {error}"))?;
    if text.len() as u64 > TOKEN_FILE_MAX {
        return Err(format!("has more than {TOKEN_FILE_MAX} bytes"));
    }

    let token = text.trim_ascii();
    if token.is_empty() { Err("is empty".to_owned()) } else { Ok(token.to_vec()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAR: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 1, 2, 3));

    fn policy() -> AccessPolicy {
        let allowed_hosts = vec!["plimsoll.example.com".to_owned()];
        AccessPolicy { admin_enabled: true, token_file: None, allowed_hosts }
    }

    fn request(headers: &[(&str, &str)]) -> Request<()> {
        let start = Request::builder().uri("/api/v1/status");
        let built = headers.iter().fold(start, |it, (name, value)| it.header(*name, *value));
        built.body(()).unwrap()
    }

    #[test]
    fn a_browser_reads_only_under_a_name_that_no_website_can_have() {
        for host in [
            "127.0.0.1:8080",
            "10.1.2.3",
            "[fd00::1]:8080",
            "localhost:18080",
            "plimsoll.localhost",
            "plimsoll-metrics",
            "plimsoll-metrics.scaling.svc:8080",
            "plimsoll-metrics.scaling.svc.cluster.local.",
            "Plimsoll.Example.com:8080",
        ] {
            let read = request(&[("host", host), ("accept-language", "en")]);
            assert_eq!(policy().check_read(&read), Ok(()), "{host}");
        }
        for host in
            ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "x@y.z", ":1", ""]
        {
            let read = request(&[("host", host), ("accept-language", "")]);
            assert!(policy().check_read(&read).is_err(), "{host}");
        }
    }

    #[test]
    fn each_header_of_a_browser_has_the_host_checked() {
        for name in ["accept-language", "origin", "referer", "sec-fetch-site"] {
            let read = request(&[("host", "evil.example"), (name, "")]);
            assert!(policy().check_read(&read).is_err(), "{name}");
        }
        let scrape = request(&[("host", "plimsoll.scaling:8080"), ("user-agent", "Prometheus")]);
        assert_eq!(policy().check_read(&scrape), Ok(()), "other clients may use any name");
    }

    #[test]
    fn a_second_host_does_not_hide_the_first() {
        let two = request(&[("host", "evil.example"), ("host", "localhost"), ("origin", "null")]);
        assert!(policy().check_read(&two).is_err());
        let mut absolute = request(&[("host", "localhost"), ("origin", "null")]);
        *absolute.uri_mut() = "http://evil.example/api".parse().unwrap();
        assert!(policy().check_read(&absolute).is_err());
    }

    #[tokio::test]
    async fn a_change_comes_from_the_same_host_and_from_no_proxy_or_web_page() {
        let check = async |peer, headers: &[(&str, &str)]| {
            policy().check_change(peer, &request(headers)).await
        };
        let mapped = IpAddr::V6(Ipv4Addr::LOCALHOST.to_ipv6_mapped());
        for peer in [NEAR, IpAddr::V6(Ipv6Addr::LOCALHOST), mapped] {
            assert_eq!(check(peer, &[("host", "localhost:8080")]).await, Ok(()), "{peer}");
        }

        let istio = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 6));
        for peer in [FAR, istio] {
            assert_eq!(check(peer, &[]).await, Err(AccessRefusal::ForeignPeer { peer }));
        }
        for header in ["x-forwarded-for", "forwarded", "via", "x-envoy-attempt-count"] {
            assert_eq!(check(NEAR, &[(header, "")]).await, Err(AccessRefusal::Forwarded));
        }
        for header in ["origin", "sec-fetch-site"] {
            let page = [("host", "localhost"), (header, "same-origin")];
            assert_eq!(check(NEAR, &page).await, Err(AccessRefusal::WebPage));
        }
        let host = "evil.example".to_owned();
        let rebound = check(NEAR, &[("host", "evil.example")]).await;
        assert_eq!(rebound, Err(AccessRefusal::ForeignHost { host }));
    }

    #[tokio::test]
    async fn a_change_from_elsewhere_needs_the_token_that_the_file_has_at_that_time() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let policy = AccessPolicy { token_file: Some(file.clone()), ..policy() };
        let check = async |value: &str| {
            policy.check_change(FAR, &request(&[("authorization", value)])).await
        };

        assert!(matches!(check("Bearer a").await, Err(AccessRefusal::TokenFile(_))));
        std::fs::create_dir(&file).unwrap();
        let Err(AccessRefusal::TokenFile(why)) = check("Bearer a").await else {
            panic!("a folder is no file")
        };
        assert!(why.starts_with("cannot be read: "), "{why}");
        std::fs::remove_dir(&file).unwrap();
        std::fs::write(&file, " \n").unwrap();
        assert_eq!(check("Bearer ").await, Err(AccessRefusal::TokenFile("is empty".into())));
        std::fs::write(&file, "first\n").unwrap();
        assert_eq!(check("Bearer first").await, Ok(()));
        assert_eq!(check("bearer first").await, Ok(()));
        for wrong in ["Bearer firs", "Bearer first2", "Bearer ", "first"] {
            assert!(check(wrong).await.is_err(), "{wrong}");
        }

        std::fs::write(&file, "second").unwrap();
        assert_eq!(check("Bearer first").await, Err(AccessRefusal::WrongToken));
        assert_eq!(check("Bearer second").await, Ok(()));
        let longest = "x".repeat(4096);
        std::fs::write(&file, &longest).unwrap();
        assert_eq!(check(&format!("Bearer {longest}")).await, Ok(()));
        std::fs::write(&file, "x".repeat(4097)).unwrap();
        assert!(matches!(check("Bearer x").await, Err(AccessRefusal::TokenFile(_))));
    }

    #[tokio::test]
    async fn disabled_changes_are_refused_wherever_they_come_from() {
        let policy = AccessPolicy { admin_enabled: false, ..policy() };
        let refused = policy.check_change(NEAR, &request(&[])).await;
        assert_eq!(refused, Err(AccessRefusal::Disabled));
    }
}
