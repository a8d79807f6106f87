//! A TCP proxy in front of the API server: a daemon's own way to it, which can be cut.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// The state of the way to the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Open,
    /// Nothing passes, and nothing is closed: packets are lost.
    Lost,
    /// Connections are closed as soon as they are there.
    Closed,
    /// Every piece of data takes this long.
    Slow(Duration),
}

/// The proxy. Dropping it ends it.
pub(crate) struct Gate {
    pub(crate) address: SocketAddr,
    way: watch::Sender<Way>,
    _serving: JoinSet<()>,
}

impl Gate {
    pub(crate) async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let way = watch::channel(Way::Open).0;
        let sender = way.clone();
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                connections.spawn(forward(stream, server, sender.subscribe()));
                while connections.try_join_next().is_some() {}
            }
        });
        Self { address, way, _serving: serving }
    }

    pub(crate) fn set(&self, way: Way) {
        self.way.send_replace(way);
    }
}

async fn forward(client: TcpStream, server: SocketAddr, way: watch::Receiver<Way>) {
    if *way.borrow() == Way::Closed {
        return;
    }
    let mut closing = way.clone();
    let Ok(server) = TcpStream::connect(server).await else { return };
    let (client_reads, client_writes) = client.into_split();
    let (server_reads, server_writes) = server.into_split();
    tokio::select! {
        _ = closing.wait_for(|way| *way == Way::Closed) => {}
        () = copy(client_reads, server_writes, way.clone()) => {}
        () = copy(server_reads, client_writes, way) => {}
    }
}

async fn copy(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    mut way: watch::Receiver<Way>,
) {
    let mut piece = vec![0; 64 << 10];
    loop {
        let Ok(read) = from.read(&mut piece).await else { return };
        let Ok(now) = way.wait_for(|way| *way != Way::Lost).await.map(|way| *way) else { return };
        if let Way::Slow(time) = now {
            sleep(time).await;
        }
        if read == 0 || to.write_all(&piece[..read]).await.is_err() {
            return;
        }
    }
}
