//! A network path that can be cut. Connections stay open, and nothing gets through, as when packets
//! are dropped.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

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
    /// Counts the times that all connections were closed.
    resets: watch::Sender<u64>,
    open: AtomicUsize,
    /// The bytes that may still come back before the path is cut.
    allowance: AtomicI64,
}

impl Wire {
    pub(crate) fn new(stage: &Stage, from: SocketAddr, to: SocketAddr) -> Self {
        let path = Arc::new(Path {
            whole: watch::Sender::new(true),
            resets: watch::Sender::new(0),
            open: AtomicUsize::new(0),
            allowance: AtomicI64::new(i64::MAX),
        });
        let listener = stage.run(TcpListener::bind(from)).unwrap();
        stage.spawn(Arc::clone(&path).carry(listener, to));
        Self(path)
    }

    /// Lets nothing through.
    pub(crate) fn cut(&self) {
        self.0.whole.send_replace(false);
    }

    /// Lets nothing through once so many bytes have come back.
    pub(crate) fn cut_after(&self, bytes: i64) {
        self.0.allowance.store(bytes, Ordering::Relaxed);
    }

    /// Returns true if nothing gets through.
    pub(crate) fn is_cut(&self) -> bool {
        !*self.0.whole.borrow()
    }

    /// Lets everything through, also the bytes that were sent meanwhile.
    pub(crate) fn restore(&self) {
        self.0.allowance.store(i64::MAX, Ordering::Relaxed);
        self.0.whole.send_replace(true);
    }

    /// Closes all connections.
    pub(crate) fn reset(&self) {
        self.0.resets.send_modify(|count| *count += 1);
    }

    /// The connections that are open.
    pub(crate) fn open(&self) -> usize {
        self.0.open.load(Ordering::Relaxed)
    }
}

impl Path {
    async fn carry(self: Arc<Self>, listener: TcpListener, to: SocketAddr) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    let Ok((near, _)) = accepted else { continue };
                    connections.spawn(Arc::clone(&self).connection(near, to));
                }
                Some(_) = connections.join_next() => {}
            }
        }
    }

    async fn connection(self: Arc<Self>, near: TcpStream, to: SocketAddr) {
        self.open.fetch_add(1, Ordering::Relaxed);
        let mut resets = self.resets.subscribe();
        tokio::select! {
            () = self.exchange(near, to) => {}
            _ = resets.changed() => {}
        }
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    async fn exchange(&self, near: TcpStream, to: SocketAddr) {
        let _ = self.whole.subscribe().wait_for(|whole| *whole).await;
        let Ok(far) = TcpStream::connect(to).await else { return };
        let _ = (near.set_nodelay(true), far.set_nodelay(true));
        let (near_read, near_write) = near.into_split();
        let (far_read, far_write) = far.into_split();
        tokio::join!(self.pump(near_read, far_write, false), self.pump(far_read, near_write, true));
    }

    /// Takes bytes from one end to the other while the path is whole.
    async fn pump(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, is_back: bool) {
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
            if is_back && self.spend(count) {
                self.whole.send_replace(false);
            }
        }
    }

    /// Returns true if these bytes are the last that may come back.
    fn spend(&self, bytes: usize) -> bool {
        let spent = i64::try_from(bytes).unwrap_or(i64::MAX);
        let before = self.allowance.fetch_sub(spent, Ordering::Relaxed);
        before > 0 && before <= spent
    }
}
