//! The address of a target, and the URL of its metrics.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::collect::targets::endpoint::{Endpoint, Scheme};
use plimsoll_core::fleet::ReplicaName;

/// The address of a target: a host, and optionally a port, a scheme and a path that override those
/// of its variant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    host: Host,
    port: Option<u16>,
    scheme: Option<Scheme>,
    path: Option<String>,
}

/// A host that is valid in a URL.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Host {
    V4(Ipv4Addr),
    V6(Ipv6Addr),
    /// A name in lower case, without a trailing dot.
    Name(String),
}

/// The reason why a text is not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The host is missing.
    #[error("there is no host")]
    NoHost,
    /// It is a URL.
    #[error("it is a URL; use HOST:PORT")]
    Url,
    /// The host is neither an IP address nor a name.
    #[error("{0:?} is neither an IP address nor a host name")]
    Host(String),
    /// The port is not a number from 1 to 65535.
    #[error("{0:?} is not a port")]
    Port(String),
    /// The scheme is neither `http` nor `https`.
    #[error("{0:?} is neither http nor https")]
    Scheme(String),
    /// The path does not begin with a slash, or has a character that must be escaped.
    #[error("{0:?} is not a URL path")]
    Path(String),
}

// === impl Address ===

impl Address {
    /// Creates the address of a host by its IP address.
    #[must_use]
    pub const fn from_ip(ip: IpAddr, port: Option<u16>) -> Self {
        let host = match ip {
            IpAddr::V4(ip) => Host::V4(ip),
            IpAddr::V6(ip) => Host::V6(ip),
        };
        Self { host, port, scheme: None, path: None }
    }

    /// Creates the address of a host by its name or IP address.
    ///
    /// # Errors
    ///
    /// The host is neither.
    pub fn from_host(host: &str, port: Option<u16>) -> Result<Self, AddressError> {
        Ok(Self { host: host.parse()?, port, scheme: None, path: None })
    }

    /// Returns the same address with its own scheme.
    ///
    /// # Errors
    ///
    /// The scheme is neither `http` nor `https`.
    pub fn with_scheme(self, scheme: &str) -> Result<Self, AddressError> {
        match scheme {
            "http" => Ok(Self { scheme: Some(Scheme::Http), ..self }),
            "https" => Ok(Self { scheme: Some(Scheme::Https), ..self }),
            _ => Err(AddressError::Scheme(scheme.to_owned())),
        }
    }

    /// Returns the same address with its own path.
    ///
    /// # Errors
    ///
    /// The path does not begin with a slash or has a character that must be escaped.
    pub fn with_path(self, path: &str) -> Result<Self, AddressError> {
        if Endpoint::is_path(path) {
            Ok(Self { path: Some(path.to_owned()), ..self })
        } else {
            Err(AddressError::Path(path.to_owned()))
        }
    }

    /// The name of the replica at this address: `HOST:PORT`.
    #[must_use]
    #[expect(clippy::missing_panics_doc, reason = "no name with a colon is empty")]
    pub fn replica(&self, endpoint: &Endpoint) -> ReplicaName {
        let port = self.port.unwrap_or(endpoint.port);
        ReplicaName::new(&format!("{}:{port}", self.host)).expect("there is at least a colon")
    }

    /// The URL of the metrics at this address.
    #[must_use]
    pub fn url(&self, endpoint: &Endpoint) -> String {
        let scheme = self.scheme.unwrap_or(endpoint.scheme).label();
        let port = self.port.unwrap_or(endpoint.port);
        let path = self.path.as_deref().unwrap_or(&endpoint.path);
        let slash = if path.starts_with('/') { "" } else { "/" };
        format!("{scheme}://{}:{port}{slash}{path}", self.host)
    }
}

impl FromStr for Address {
    type Err = AddressError;

    /// Parses `HOST:PORT` or `HOST`. An IPv6 address may be in brackets, and must be if a port
    /// follows.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        if text.contains("://") {
            return Err(AddressError::Url);
        }
        if let Some(rest) = text.strip_prefix('[') {
            let (inside, after) =
                rest.split_once(']').ok_or_else(|| AddressError::Host(text.to_owned()))?;
            let ip: Ipv6Addr = inside.parse().map_err(|_| AddressError::Host(inside.to_owned()))?;
            let port = match after.strip_prefix(':') {
                Some(number) => Some(parse_port(number)?),
                None if after.is_empty() => None,
                None => return Err(AddressError::Port(after.to_owned())),
            };
            return Ok(Self::from_ip(ip.into(), port));
        }

        if let Ok(ip) = text.parse::<Ipv6Addr>() {
            return Ok(Self::from_ip(ip.into(), None));
        }
        match text.split_once(':') {
            Some((host, port)) => Self::from_host(host, Some(parse_port(port)?)),
            None => Self::from_host(text, None),
        }
    }
}

fn parse_port(text: &str) -> Result<u16, AddressError> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let port = text.parse().ok().filter(|&number| number > 0 && digits);
    port.ok_or_else(|| AddressError::Port(text.to_owned()))
}

// === impl Host ===

impl FromStr for Host {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        match text.parse() {
            Ok(IpAddr::V4(ip)) => return Ok(Self::V4(ip)),
            Ok(IpAddr::V6(ip)) => return Ok(Self::V6(ip)),
            Err(_) => {}
        }

        let name = text.strip_suffix('.').unwrap_or(text);
        if name.is_empty() {
            return Err(AddressError::NoHost);
        }

        // Names of services contain underscores. If the last label were only digits, URL parsers
        // would read the name as an invalid IPv4 address.
        let last = name.rsplit('.').next();
        let is_numeric = last.is_some_and(|label| label.bytes().all(|byte| byte.is_ascii_digit()));
        if is_numeric || name.len() > 253 || !name.split('.').all(is_label) {
            return Err(AddressError::Host(text.to_owned()));
        }

        Ok(Self::Name(name.to_ascii_lowercase()))
    }
}

fn is_label(label: &str) -> bool {
    !label.is_empty()
        && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}

impl fmt::Display for Host {
    /// Writes the host as in a URL, with an IPv6 address in brackets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V4(ip) => ip.fmt(f),
            Self::V6(ip) => write!(f, "[{ip}]"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint() -> Endpoint {
        Endpoint { scheme: Scheme::Http, port: 8000, path: "/metrics".to_owned() }
    }

    #[test]
    fn an_address_becomes_the_url_of_its_page() {
        let cases = [
            ("10.0.0.1:9000", "http://10.0.0.1:9000/metrics"),
            ("10.0.0.1", "http://10.0.0.1:8000/metrics"),
            ("[fd00::1]:9000", "http://[fd00::1]:9000/metrics"),
            ("[FD00:0::1]", "http://[fd00::1]:8000/metrics"),
            ("fd00::1", "http://[fd00::1]:8000/metrics"),
            ("vLLM-0.vllm.llm.svc:9000", "http://vllm-0.vllm.llm.svc:9000/metrics"),
            ("a_b.example.", "http://a_b.example:8000/metrics"),
            ("localhost", "http://localhost:8000/metrics"),
        ];

        for (text, want) in cases {
            assert_eq!(text.parse::<Address>().unwrap().url(&endpoint()), want, "{text}");
        }
    }

    fn host(text: &str) -> AddressError {
        AddressError::Host(text.to_owned())
    }

    fn port(text: &str) -> AddressError {
        AddressError::Port(text.to_owned())
    }

    #[test]
    fn what_is_no_address_is_refused_with_its_reason() {
        let cases = [
            ("", AddressError::NoHost),
            (":8000", AddressError::NoHost),
            ("http://10.0.0.1:8000", AddressError::Url),
            ("10.0.0.1:0", port("0")),
            ("10.0.0.1:65536", port("65536")),
            ("10.0.0.1:+80", port("+80")),
            ("10.0.0.1:", port("")),
            ("10.0.0.1:8000/metrics", port("8000/metrics")),
            ("10.0.0.256:80", host("10.0.0.256")),
            ("10.0.0.1/metrics", host("10.0.0.1/metrics")),
            ("user@host:80", host("user@host")),
            ("a..b", host("a..b")),
            ("a b", host("a b")),
            ("[fd00::1", host("[fd00::1")),
            ("[fe80::1%eth0]:80", host("fe80::1%eth0")),
            ("[fd00::1]80", port("80")),
        ];

        for (text, want) in cases {
            assert_eq!(text.parse::<Address>(), Err(want), "{text}");
        }
    }

    #[test]
    fn scheme_and_path_of_an_address_win_over_the_endpoints() {
        let address: Address = "a:1".parse().unwrap();
        let own = address.clone().with_scheme("https").unwrap().with_path("/m?x=1").unwrap();
        assert_eq!(own.url(&endpoint()), "https://a:1/m?x=1");
        assert_eq!(own.replica(&endpoint()), address.replica(&endpoint()));
        assert_eq!(own.replica(&endpoint()).as_str(), "a:1");

        assert!(address.clone().with_scheme("ftp").is_err());
        assert!(address.clone().with_path("metrics").is_err());
        assert!(address.clone().with_path("/a b").is_err());
        assert!(address.with_path("/m?a<b").is_err());
    }
}
