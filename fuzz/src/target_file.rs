//! Files that list targets.

use std::path::Path;

use hyper::Uri;
use plimsoll::collect::targets::{Address, Endpoint, Scheme, listed_in};

/// Reads a list of targets as JSON and as YAML; every address must be scrapable.
pub fn check(input: &[u8]) {
    let endpoint = Endpoint { scheme: Scheme::Http, port: 8000, path: "/metrics".to_owned() };
    for name in ["targets.json", "targets.yaml"] {
        match listed_in(Path::new(name), input) {
            Ok(addresses) => addresses.iter().for_each(|address| scraped(address, &endpoint)),
            Err(error) => assert!(!error.is_empty()),
        }
    }
}

fn scraped(address: &Address, endpoint: &Endpoint) {
    let url = address.url(endpoint);
    let uri: Uri = url.parse().unwrap_or_else(|error| panic!("{url:?} is no URL: {error}"));
    let authority = uri.authority().unwrap_or_else(|| panic!("{url:?} has no host"));
    assert!(!authority.host().is_empty() && authority.port_u16().is_some(), "{url:?}");
    let replica = address.replica(endpoint);
    assert_eq!(replica.as_str(), authority.as_str(), "{url:?} is scraped under another name");
}
