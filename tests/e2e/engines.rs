//! Engines: an HTTP server on the address of every pod, with the page of a vLLM replica.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::live::Live;
use crate::page;

/// The port of every engine.
pub(crate) const PORT: u16 = 8000;

/// How often the pods are looked at.
const LOOK: Duration = Duration::from_millis(200);

/// What a namespace's engines are doing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Play {
    /// The load of all of them together, in replicas that it would fill.
    pub(crate) load: f64,
    /// The requests a second that come to all of them together, and are really served; without it,
    /// the load is what gauges show.
    pub(crate) rate: Option<f64>,
    /// Whether they accept connections and never answer.
    pub(crate) wedged: bool,
    ready: u32,
}

/// All engines.
#[derive(Clone, Default)]
pub(crate) struct Engines {
    plays: Arc<Mutex<BTreeMap<String, Play>>>,
}

impl Engines {
    /// Sets the load of a namespace, which its ready pods share.
    pub(crate) fn load(&self, namespace: &str, load: f64) {
        self.plays.lock().unwrap().entry(namespace.to_owned()).or_default().load = load;
    }

    /// Sets the requests a second of a namespace, which its ready pods share and serve.
    pub(crate) fn serve_requests(&self, namespace: &str, rate: f64) {
        self.plays.lock().unwrap().entry(namespace.to_owned()).or_default().rate = Some(rate);
    }

    /// Has the engines of a namespace hang, or answer again.
    pub(crate) fn wedge(&self, namespace: &str, wedged: bool) {
        self.plays.lock().unwrap().entry(namespace.to_owned()).or_default().wedged = wedged;
    }

    /// The ready pods that share the load of a namespace.
    pub(crate) fn ready(&self, namespace: &str) -> u32 {
        self.play(namespace).ready
    }

    fn play(&self, namespace: &str) -> Play {
        self.plays.lock().unwrap().get(namespace).copied().unwrap_or_default()
    }

    /// Serves, for every running pod, for as long as it runs.
    pub(crate) async fn serve(self, client: Client) {
        let api: Api<Pod> = Api::all(client);
        let labels = ListParams::default().labels("app=llama");
        let mut engines: BTreeMap<(String, IpAddr), JoinSet<()>> = BTreeMap::new();
        loop {
            // While the API server is away the pods go on as they are.
            if let Ok(pods) = api.list(&labels).await {
                let running: BTreeSet<(String, IpAddr)> =
                    pods.items.iter().filter_map(running).collect();
                self.share(&pods.items);
                engines.retain(|pod, _| running.contains(pod));
                for pod in running {
                    let (namespace, address) = pod.clone();
                    engines.entry(pod).or_insert_with(|| {
                        let mut engine = JoinSet::new();
                        engine.spawn(self.clone().engine(namespace, address));
                        engine
                    });
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Counts the ready pods of each namespace.
    fn share(&self, pods: &[Pod]) {
        let mut plays = self.plays.lock().unwrap();
        plays.values_mut().for_each(|play| play.ready = 0);
        for pod in pods.iter().filter(|pod| is_ready(pod)) {
            let namespace = pod.metadata.namespace.clone().unwrap_or_default();
            plays.entry(namespace).or_default().ready += 1;
        }
    }

    async fn engine(self, namespace: String, address: IpAddr) {
        // The address may be that of a pod that has just gone.
        let listener = loop {
            match TcpListener::bind((address, PORT)).await {
                Ok(listener) => break listener,
                Err(_) => tokio::time::sleep(LOOK).await,
            }
        };
        let live = Arc::new(Mutex::new(Live::start()));
        let mut connections = JoinSet::new();
        loop {
            let Ok((stream, _)) = listener.accept().await else { continue };
            let (engines, namespace, live) = (self.clone(), namespace.clone(), live.clone());
            connections.spawn(async move {
                let service = service_fn(move |request| {
                    engines.clone().answer(namespace.clone(), live.clone(), request)
                });
                let io = TokioIo::new(stream);
                let _ =
                    hyper::server::conn::http1::Builder::new().serve_connection(io, service).await;
            });
            while connections.try_join_next().is_some() {}
        }
    }

    async fn answer(
        self,
        namespace: String,
        live: Arc<Mutex<Live>>,
        _: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let play = self.play(&namespace);
        if play.wedged {
            std::future::pending::<()>().await;
        }
        let engines = f64::from(play.ready.max(1));
        let page = match play.rate {
            Some(rate) => live.lock().unwrap().page(rate / engines),
            None => page::render(play.load / engines),
        };
        let mut response = Response::new(Full::from(page));
        response.headers_mut().insert("content-type", page::CONTENT_TYPE.parse().unwrap());
        Ok(response)
    }
}

/// Serves the pages of engines that never change: each of a model, at a quarter of its load.
pub(crate) async fn serve_models(engines: Vec<(IpAddr, String)>) {
    let mut serving = JoinSet::new();
    for (address, model) in engines {
        let listener = TcpListener::bind((address, PORT)).await.unwrap();
        let page = Bytes::from(page::render_of(&model, 0.25));
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                let page = page.clone();
                let service = service_fn(move |_| {
                    let mut response = Response::new(Full::<Bytes>::from(page.clone()));
                    let content_type = page::CONTENT_TYPE.parse().unwrap();
                    response.headers_mut().insert("content-type", content_type);
                    std::future::ready(Ok::<_, Infallible>(response))
                });
                let http = hyper::server::conn::http1::Builder::new();
                connections.spawn(http.serve_connection(TokioIo::new(stream), service));
                while connections.try_join_next().is_some() {}
            }
        });
    }
    while serving.join_next().await.is_some() {}
}

/// Where a pod that runs has its engine.
pub(crate) fn running(pod: &Pod) -> Option<(String, IpAddr)> {
    let status = pod.status.as_ref()?;
    let runs = status.phase.as_deref() == Some("Running");
    let address = status.pod_ip.as_ref().filter(|_| runs)?.parse().ok()?;
    Some((pod.metadata.namespace.clone()?, address))
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = |all: &Vec<_>| {
        all.iter().any(|is: &k8s_openapi::api::core::v1::PodCondition| {
            is.type_ == "Ready" && is.status == "True"
        })
    };
    pod.metadata.deletion_timestamp.is_none() && conditions.is_some_and(ready)
}
