//! A network path that can be cut. Connections stay open, and nothing gets through, as when packets
//! are dropped.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::stage::Stage;

/// A path from an address to another. It ends with the stage.
pub(crate) struct Wire(Arc<Path>);

struct Path {
    whole: watch::Sender<bool>,
}

impl Wire {
    pub(crate) fn new(stage: &Stage, from: SocketAddr, to: SocketAddr) -> Self {
        let path = Arc::new(Path { whole: watch::Sender::new(true) });
        let listener = stage.run(TcpListener::bind(from)).unwrap();
        stage.spawn(Arc::clone(&path).carry(listener, to));
        Self(path)
    }

    /// Lets nothing through.
    pub(crate) fn cut(&self) {
        self.0.whole.send_replace(false);
    }

    /// Lets everything through, also the bytes that were sent meanwhile.
    pub(crate) fn mend(&self) {
        self.0.whole.send_replace(true);
    }
}

impl Path {
    async fn carry(self: Arc<Self>, listener: TcpListener, to: SocketAddr) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    let Ok((near, _)) = accepted else { continue };
                    connections.spawn(Arc::clone(&self).exchange(near, to));
                }
                Some(_) = connections.join_next() => {}
            }
        }
    }

    async fn exchange(self: Arc<Self>, near: TcpStream, to: SocketAddr) {
        let _ = self.whole.subscribe().wait_for(|whole| *whole).await;
        let Ok(far) = TcpStream::connect(to).await else { return };
        let _ = (near.set_nodelay(true), far.set_nodelay(true));
        let (near_read, near_write) = near.into_split();
        let (far_read, far_write) = far.into_split();
        tokio::join!(self.pump(near_read, far_write), self.pump(far_read, near_write));
    }

    /// Takes bytes from one end to the other while the path is whole.
    async fn pump(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
        let mut whole = self.whole.subscribe();
        let mut bytes = vec![0; 16 * 1024];
        loop {
            let read = from.read(&mut bytes).await;
            if whole.wait_for(|whole| *whole).await.is_err() {
                return;
            }
            let count = read.unwrap_or(0);
            if count == 0 || to.write_all(&bytes[..count]).await.is_err() {
                let _ = to.shutdown().await;
                return;
            }
        }
    }
}
