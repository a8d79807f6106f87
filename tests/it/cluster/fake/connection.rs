//! Connections of the fake API server: with TLS, and such that can fall silent.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

/// What a server with TLS needs, and what its clients trust.
pub(crate) struct Tls {
    pub(crate) acceptor: TlsAcceptor,
    pub(crate) certificate: CertificateDer<'static>,
}

impl Tls {
    pub(crate) fn new() -> Self {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let certificate = made.cert.der().clone();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], key)
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Self { acceptor: TlsAcceptor::from(Arc::new(config)), certificate }
    }
}

/// The connections so far, and how many of them have fallen silent.
#[derive(Default)]
pub(crate) struct Freeze {
    accepted: AtomicUsize,
    frozen: AtomicUsize,
}

impl Freeze {
    pub(crate) fn accept(self: &Arc<Self>, stream: TcpStream) -> Frozen {
        let number = self.accepted.fetch_add(1, Ordering::SeqCst);
        Frozen { stream, number, freeze: Arc::clone(self) }
    }

    pub(crate) fn freeze(&self) {
        self.frozen.store(self.accepted.load(Ordering::SeqCst), Ordering::SeqCst);
    }
}

/// A connection that neither reads nor writes once it has fallen silent. It is not closed either.
pub(crate) struct Frozen {
    stream: TcpStream,
    number: usize,
    freeze: Arc<Freeze>,
}

impl Frozen {
    fn is_silent(&self) -> bool {
        self.number < self.freeze.frozen.load(Ordering::SeqCst)
    }
}

impl AsyncRead for Frozen {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_silent() {
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Frozen {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.is_silent() {
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_silent() {
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_silent() {
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
