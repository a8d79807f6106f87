//! The part of a Kubernetes API server that a daemon with static targets asks: the front proxy's
//! authority, and permissions. Everyone may read every metric.

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Collected, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::external_metrics_harness::config_map;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A running API server. Dropping it ends it.
pub(crate) struct ApiServer {
    pub(crate) address: SocketAddr,
    _serving: JoinSet<()>,
}

impl ApiServer {
    /// Starts one whose front proxy has certificates of this authority.
    pub(crate) async fn start(front_proxy: &str) -> Self {
        let trust = json!({
            "metadata": {"name": "extension-apiserver-authentication", "resourceVersion": "1"},
            "data": config_map(front_proxy, r#"["front-proxy-client"]"#),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();

        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let trust = trust.clone();
                let service = service_fn(move |request| answer(request, trust.clone()));
                connections.spawn(async move {
                    let builder = auto::Builder::new(TokioExecutor::new());
                    let _ended = builder.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { address, _serving: serving }
    }
}

async fn answer(request: Request<Incoming>, trust: Value) -> Result<Response<Body>, Infallible> {
    let path = request.uri().path().to_owned();
    let watches = request.uri().query().is_some_and(|query| query.contains("watch=true"));
    if watches {
        let silence = StreamBody::new(stream::pending::<Result<Frame<Bytes>, Infallible>>());
        return Ok(Response::new(silence.boxed_unsync()));
    }
    if request.method() == Method::POST {
        let body = request.into_body().collect().await.map(Collected::to_bytes);
        let mut review: Value =
            serde_json::from_slice(&body.unwrap_or_default()).unwrap_or_default();
        review["status"] = json!({"allowed": true});
        return Ok(document(StatusCode::CREATED, &review));
    }

    let items = match path.rsplit('/').next() {
        Some("configmaps") => json!([trust]),
        Some(_) | None => json!([]),
    };
    let list = json!({"kind": "List", "apiVersion": "v1", "items": items,
                      "metadata": {"resourceVersion": "1"}});
    Ok(document(StatusCode::OK, &list))
}

fn document(status: StatusCode, value: &Value) -> Response<Body> {
    let mut response = Response::new(Full::new(Bytes::from(value.to_string())).boxed_unsync());
    *response.status_mut() = status;
    let json = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}
