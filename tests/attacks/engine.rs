//! Engines: listeners that answer every request with the same bytes, honest or not.

use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use flate2::read::GzDecoder;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// The model in the /metrics response of an honest engine.
pub(crate) const MODEL: &str = "meta-llama/Llama-3.1-8B-Instruct";

/// A response: its head, and a body that consists of equal parts.
#[derive(Clone)]
pub(crate) struct EngineResponse {
    pub(crate) head: Vec<u8>,
    pub(crate) part: Bytes,
    pub(crate) parts: usize,
    /// The time between two parts.
    pub(crate) pause: Duration,
    pub(crate) end: ResponseEnd,
}

/// The fate of a connection after a response.
#[derive(Clone, Copy)]
pub(crate) enum ResponseEnd {
    /// It takes the next request.
    KeepAlive,
    /// It closes.
    Close,
    /// It stays open and sends nothing more.
    Hold,
}

/// A listener on every address of the loopback network. Dropping it ends it.
pub(crate) struct Engine {
    pub(crate) port: u16,
    _serving: JoinSet<()>,
}

impl Engine {
    pub(crate) async fn start(response: EngineResponse) -> Self {
        let listener = TcpListener::bind(SocketAddr::from(([0, 0, 0, 0], 0))).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                connections.spawn(serve(stream, response.clone()));
                while connections.try_join_next().is_some() {}
            }
        });
        Self { port, _serving: serving }
    }
}

impl EngineResponse {
    /// The metrics of a real vLLM server.
    pub(crate) fn honest() -> Self {
        let folder = env!("CARGO_MANIFEST_DIR");
        let path = format!("{folder}/tests/data/pages/vllm-0.33.0-dp1-single.txt.gz");
        let mut text = String::new();
        GzDecoder::new(File::open(path).unwrap()).read_to_string(&mut text).unwrap();
        Self::whole(text)
    }

    /// A complete response with this text.
    pub(crate) fn whole(text: impl Into<Bytes>) -> Self {
        let part = text.into();
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n\
             Content-Length: {}\r\n\r\n",
            part.len()
        );
        let head = head.into_bytes();
        Self { head, part, parts: 1, pause: Duration::ZERO, end: ResponseEnd::KeepAlive }
    }

    /// A response of unknown length that repeats its text until the client has enough.
    pub(crate) fn endless(headers: &str, part: impl Into<Bytes>) -> Self {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n{headers}\r\n");
        let head = head.into_bytes();
        let part = part.into();
        let parts = usize::MAX;
        Self { head, part, parts, pause: Duration::ZERO, end: ResponseEnd::Close }
    }
}

async fn serve(mut stream: TcpStream, response: EngineResponse) {
    loop {
        if read_head(&mut stream).await.is_none() || write(&mut stream, &response).await.is_none() {
            return;
        }

        match response.end {
            ResponseEnd::KeepAlive => {}
            ResponseEnd::Close => return,
            ResponseEnd::Hold => std::future::pending().await,
        }
    }
}

/// Reads the head of a request. None: the client is gone.
pub(crate) async fn read_head(stream: &mut TcpStream) -> Option<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let read = stream.read_buf(&mut head).await.ok()?;
        if read == 0 || head.len() > 1 << 20 {
            return None;
        }
    }

    Some(())
}

/// Writes a response. None: the client is gone.
pub(crate) async fn write(stream: &mut TcpStream, response: &EngineResponse) -> Option<()> {
    stream.write_all(&response.head).await.ok()?;
    for _ in 0..response.parts {
        stream.write_all(&response.part).await.ok()?;
        if !response.pause.is_zero() {
            sleep(response.pause).await;
        }
    }

    Some(())
}
