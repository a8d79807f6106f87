//! Addresses that servers listen on by default.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// All addresses of the machine with a port.
pub(super) const fn any(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port)
}
