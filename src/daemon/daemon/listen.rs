//! Listeners of the daemon's servers.

use std::io;
use std::net::SocketAddr;

use anyhow::Context;
use tokio::net::{TcpListener, TcpSocket};

/// Connections that wait to be accepted. A burst above it delays a probe until its SYN is sent again.
/// The kernel's own limit (`net.core.somaxconn`) is 4,096 by default.
const BACKLOG: u32 = 4096;

/// Listens on the address of a configuration key.
pub(crate) fn listen(address: SocketAddr, key: &str) -> anyhow::Result<TcpListener> {
    bind(address).with_context(|| format!("{key}: cannot listen on {address}"))
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}
