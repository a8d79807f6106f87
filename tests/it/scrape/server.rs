//! Servers to scrape: a sound HTTP server that counts, and raw sockets that misbehave.

use std::convert::Infallible;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::{CancellationToken, DropGuard};

pub(crate) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A server that runs until it is dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    connections: Arc<AtomicUsize>,
    _stop: DropGuard,
}

impl Server {
    /// Answers every request with what `answer` makes of it.
    pub(crate) async fn http<F, R>(answer: F) -> Self
    where
        F: Fn(Request<Incoming>) -> R + Clone + Send + Sync + 'static,
        R: Future<Output = Response<Body>> + Send + 'static,
    {
        Self::raw(move |stream| serve(stream, answer.clone())).await
    }

    /// Answers over TLS.
    pub(crate) async fn https<F, R>(config: rustls::ServerConfig, answer: F) -> Self
    where
        F: Fn(Request<Incoming>) -> R + Clone + Send + Sync + 'static,
        R: Future<Output = Response<Body>> + Send + 'static,
    {
        let acceptor = TlsAcceptor::from(Arc::new(config));
        Self::raw(move |stream| {
            let (acceptor, answer) = (acceptor.clone(), answer.clone());
            async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    serve(stream, answer).await;
                }
            }
        })
        .await
    }

    /// Gives every connection to `handle`.
    pub(crate) async fn raw<F, R>(handle: F) -> Self
    where
        F: Fn(TcpStream) -> R + Send + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let stop = CancellationToken::new();
        let counter = Arc::clone(&connections);
        let accept = async move {
            let mut tasks = tokio::task::JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                counter.fetch_add(1, Ordering::SeqCst);
                tasks.spawn(handle(stream));
            }
        };
        let tasks = tokio_util::task::TaskTracker::new();
        tasks.spawn(stop.clone().run_until_cancelled_owned(accept));
        Self { address, connections, _stop: stop.drop_guard() }
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/metrics", self.address)
    }

    pub(crate) fn tls_url(&self) -> String {
        format!("https://{}/metrics", self.address)
    }
}

async fn serve<S, F, R>(stream: S, answer: F)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Fn(Request<Incoming>) -> R + Send + Sync + 'static,
    R: Future<Output = Response<Body>> + Send + 'static,
{
    let service = service_fn(|request| {
        let response = answer(request);
        async move { Ok::<_, Infallible>(response.await) }
    });
    // A client that hangs up is part of some tests.
    let builder = auto::Builder::new(TokioExecutor::new());
    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
}

/// A response of status 200 with this text.
pub(crate) fn page(text: &str) -> Response<Body> {
    Response::new(full(text.as_bytes()))
}

pub(crate) fn full(bytes: &[u8]) -> Body {
    Full::new(Bytes::copy_from_slice(bytes)).boxed_unsync()
}

/// Reads the head of a request, up to its empty line.
pub(crate) async fn read_request(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8(head).unwrap()
}
