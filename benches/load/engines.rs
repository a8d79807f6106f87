//! A thousand engines: one listener that responds on every address of 127.0.0.0/8 with the metrics
//! of a real vLLM server. Part of the path selects the KV cache usage.

use std::convert::Infallible;
use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use bytes::Bytes;
use flate2::read::GzDecoder;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, header};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;

/// The model name in the /metrics response.
pub(crate) const MODEL: &str = "meta-llama/Llama-3.1-8B-Instruct";

fn page() -> Result<String> {
    let folder = env!("CARGO_MANIFEST_DIR");
    let path = format!("{folder}/tests/data/pages/vllm-0.33.0-dp1-single.txt.gz");
    let mut page = String::new();
    GzDecoder::new(File::open(path)?).read_to_string(&mut page)?;
    Ok(page)
}

/// The /metrics response with a different KV cache usage.
fn with_kv_usage(page: &str, usage: &str) -> Result<String> {
    const NAME: &str = "\nvllm:kv_cache_usage_perc{";
    let start = page.find(NAME).context("no KV cache usage")?;
    let value = start + page[start..].find("} ").context("no value")? + 2;
    let end = value + page[value..].find('\n').context("no end")?;
    Ok(format!("{}{usage}{}", &page[..value], &page[end..]))
}

/// Engines, of which the first ones by the number in their path are full.
pub(crate) struct Engines {
    pub(crate) port: u16,
    pub(crate) full: Arc<AtomicUsize>,
    _tasks: TaskTracker,
}

impl Engines {
    pub(crate) async fn start() -> Result<Self> {
        let (idle, busy) = (with_kv_usage(&page()?, "0.30")?, with_kv_usage(&page()?, "0.95")?);
        let (idle, busy) = (Bytes::from(idle), Bytes::from(busy));
        let listener = TcpListener::bind("0.0.0.0:0").await?;
        let port = listener.local_addr()?.port();
        let (tasks, full) = (TaskTracker::new(), Arc::new(AtomicUsize::new(0)));
        let (connections, seen) = (tasks.clone(), Arc::clone(&full));
        tasks.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (idle, busy, seen) = (idle.clone(), busy.clone(), Arc::clone(&seen));
                let service = service_fn(move |request: Request<Incoming>| {
                    let number = request.uri().path().strip_prefix("/metrics/");
                    let number = number.and_then(|number| number.parse::<usize>().ok());
                    let is_full = number.is_some_and(|it| it < seen.load(Ordering::SeqCst));
                    let body = if is_full { busy.clone() } else { idle.clone() };
                    let mut answer = Response::new(Full::new(body));
                    let kind = header::HeaderValue::from_static("text/plain; version=0.0.4");
                    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
                    async move { Ok::<_, Infallible>(answer) }
                });
                let http = hyper::server::conn::http1::Builder::new();
                let connection = http.serve_connection(TokioIo::new(stream), service);
                connections.spawn(async move {
                    let _ended = connection.await;
                });
            }
        });
        Ok(Self { port, full, _tasks: tasks })
    }
}

/// Prints the port, and serves until standard input ends.
pub(crate) async fn serve() -> Result<()> {
    let engines = Engines::start().await?;
    println!("{}", engines.port);
    for_each_line(|| ()).await
}

/// Calls `act` for each line of standard input, until the parent process closes it.
pub(crate) async fn for_each_line(act: impl Fn() + Send + 'static) -> Result<()> {
    let read = move || std::io::stdin().lines().map_while(Result::ok).for_each(|_| act());
    Ok(tokio::task::spawn_blocking(read).await?)
}
