//! The configuration file as written.
//!
//! Every key is optional here, so that a file with mistakes can still be read for all of them. The
//! doc comments are the descriptions in the JSON Schema. Elements of lists are optional for the
//! same reason: an element that cannot be read leaves a hole, and the others keep their index.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::analyze::saturation::Saturation;
use crate::config::written::{WrittenDuration, WrittenSize};
use crate::decide::enforce::Behavior;
use crate::observe::policy::Observe;
use crate::settings::Written;

macro_rules! sections {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident: $ty:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct $name {
            $($(#[$field_meta])* pub(crate) $field: Option<$ty>,)*
        }
    )*};
}

macro_rules! choices {
    ($($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        pub(crate) enum $name {
            $($(#[$variant_doc])* #[serde(rename = $text)] $variant,)*
        }
    )*};
}

mod capacity;
mod cards;
mod leader_election;
mod limits;
mod pools;
mod targets;
mod trace;
mod zero;

pub(crate) use crate::config::file::capacity::{Capacity, Slo};
pub(crate) use crate::config::file::cards::{
    Card, CardEngine, CardEngineName, CardFile, CardGeneration, CardIteration, CardLessons,
    CardRequests, CardShown,
};
pub(crate) use crate::config::file::leader_election::LeaderElection;
pub(crate) use crate::config::file::limits::{Limits, NamespaceLimits, Standing};
pub(crate) use crate::config::file::pools::{Adapter, Copies, Packing, Pool};
pub(crate) use crate::config::file::targets::{
    DnsTargets, FileTargets, PrometheusTargets, ScaleTarget, Targets,
};
pub(crate) use crate::config::file::trace::{Shadow, Trace};
pub(crate) use crate::config::file::zero::{ScaleToZero, WakeSignal, ZeroRule};

/// A list whose unreadable elements are holes.
pub(crate) type Items<T> = Vec<Option<T>>;

sections! {
    /// Every key is optional but the name, the model and the targets of each variant.
    #[expect(clippy::struct_field_names, reason = "the field is the key")]
    File {
        /// Time between two decisions.
        tick_interval: WrittenDuration,
        /// The plain HTTP server: `/metrics`, `/livez`, `/readyz`.
        server: Server,
        /// The Kubernetes external metrics API, served over TLS. Not served without this section.
        external_metrics: ExternalMetrics,
        /// How the process ends.
        shutdown: Shutdown,
        /// The connection to a cluster.
        kubernetes: Kubernetes,
        /// Names that other programs know.
        compatibility: Compatibility,
        /// File in which the last decisions survive a restart. Without it they do not.
        state_file: PathBuf,
        /// What the pipeline gets and decides, written for `plimsoll backtest`. Off without this
        /// section.
        trace: Trace,
        /// How values over time are seen.
        observe: Written<Observe>,
        /// When a replica is saturated, and how much spare capacity a model keeps.
        saturation: Written<Saturation>,
        /// What decides how many replicas a model needs: `capacity`, unless thresholds are given in
        /// `saturation` or `compatibility.wva_config`.
        analysis: Analysis,
        /// Analyzers that size a model, and what they judge by; used with `analysis: capacity`.
        capacity: Capacity,
        /// How fast published numbers may move.
        enforce: Written<Behavior>,
        /// Which models may have no replicas, and when.
        scale_to_zero: ScaleToZero,
        /// Variants whose replicas each serve several adapters, by `NAMESPACE/VARIANT`.
        pools: BTreeMap<String, Option<Pool>>,
        /// What all variants together may use.
        limits: Limits,
        /// Policies that are evaluated beside the one in force, and only shown.
        #[schemars(with = "Option<Vec<Shadow>>")]
        shadow: Items<Shadow>,
        /// How replicas are scraped.
        scrape: Scrape,
        /// A Prometheus, or what speaks its API, that has scraped the replicas already.
        prometheus: Prometheus,
        /// The variants: scalable workloads, each serving one model. May be empty only where
        /// `kubernetes.discovery` finds them.
        #[schemars(with = "Option<Vec<Variant>>")]
        variants: Items<Variant>,
    }

    /// The plain HTTP server.
    Server {
        /// Address and port to listen on.
        listen: String,
    }

    /// The Kubernetes external metrics API.
    ExternalMetrics {
        /// Whether it is served.
        enabled: bool,
        /// Address and port to listen on.
        listen: String,
        /// The certificate that the server presents. Required.
        tls: ServerTls,
        /// Who may ask.
        authorization: Authorization,
        /// Age up to which a decision is served as it is.
        fresh: WrittenDuration,
        /// Age up to which a decision is still served while nothing newer exists; beyond it the
        /// metric is absent and the HPA keeps its replicas.
        hold: WrittenDuration,
    }

    /// A server's certificate.
    ServerTls {
        /// PEM certificate chain, read again as it rotates.
        cert_file: PathBuf,
        /// PEM key, read again as it rotates.
        key_file: PathBuf,
        /// PEM bundle of the authorities that signed the certificate. With it, a foreign `caBundle`
        /// in the `APIService` is noticed.
        ca_file: PathBuf,
        /// A certificate that Plimsoll makes and renews itself, instead of files.
        #[serde(skip_serializing_if = "Option::is_none")]
        self_managed: SelfManaged,
    }

    /// A certificate that Plimsoll makes and renews itself, with an authority of its own. It is kept
    /// in a Secret, and the authority is written into the `APIService`.
    SelfManaged {
        /// The Secret. Required; it may be empty.
        secret: String,
        /// The Service that the API server calls. Required.
        service: String,
        /// Namespace of both; without it, that of the pod.
        namespace: String,
        /// How long a certificate is valid. It is renewed after two thirds of that.
        leaf_lifetime: WrittenDuration,
        /// How long an authority is valid. It is replaced after two thirds of that.
        ca_lifetime: WrittenDuration,
    }

    /// How the process ends.
    Shutdown {
        /// Time to go on serving after the signal, until load balancers have noticed.
        delay: WrittenDuration,
        /// Time that open requests have to finish.
        drain: WrittenDuration,
    }

    /// The connection to a cluster.
    Kubernetes {
        /// Whether there is a cluster.
        enabled: bool,
        /// The kubeconfig file; without it, the pod's service account or the default kubeconfig.
        kubeconfig: PathBuf,
        /// The context in the kubeconfig; without it, its current context.
        context: String,
        /// Whether changes of decisions are written as Kubernetes Events.
        events: bool,
        /// Variants by the annotations of HPAs, `ScaledObject`s and workloads.
        discovery: Discovery,
        /// Several replicas, of which one decides.
        leader_election: LeaderElection,
    }

    /// Variants by the annotations of HPAs, `ScaledObject`s and workloads.
    Discovery {
        /// Whether the cluster is looked through for annotations.
        enabled: bool,
        /// The namespaces that are looked through. An empty list is all of them.
        #[schemars(with = "Option<Vec<String>>")]
        namespaces: Items<String>,
        /// A label selector; objects that it does not match are left alone.
        selector: String,
        /// Whether annotations for the workload variant autoscaler count too.
        wva: bool,
    }

    /// Names that other programs know.
    Compatibility {
        /// Whether the gauges of the workload variant autoscaler are published too.
        wva_metrics: bool,
        /// Folder in which its `ConfigMap` with the saturation thresholds is mounted; what
        /// `saturation` says wins.
        wva_config: PathBuf,
    }

    /// How replicas are scraped.
    Scrape {
        /// Time between two scrapes of one replica.
        interval: WrittenDuration,
        /// Time after which a scrape is given up.
        timeout: WrittenDuration,
        /// Scrapes at the same time, all variants together.
        concurrency: u32,
        /// Largest page that is read, after decompression.
        body_limit: WrittenSize,
        /// The scheme of a page's URL.
        scheme: Scheme,
        /// The port of replicas whose address has none.
        port: u16,
        /// The path of a page's URL.
        path: String,
        /// TLS of scrapes; needs `scheme: https`.
        tls: ClientTls,
        /// File with a bearer token, read again as it rotates.
        bearer_token_file: PathBuf,
    }

    /// How the replicas of one variant are scraped; what is absent comes from `scrape`.
    VariantScrape {
        /// Time between two scrapes of one replica.
        interval: WrittenDuration,
        /// Time after which a scrape is given up.
        timeout: WrittenDuration,
        /// Largest page that is read, after decompression.
        body_limit: WrittenSize,
        /// The scheme of a page's URL.
        scheme: Scheme,
        /// The port of replicas whose address has none.
        port: u16,
        /// The path of a page's URL.
        path: String,
        /// TLS of scrapes; needs `scheme: https`.
        tls: ClientTls,
        /// File with a bearer token, read again as it rotates.
        bearer_token_file: PathBuf,
    }

    /// TLS of scrapes.
    ClientTls {
        /// PEM bundle of the authorities that are trusted instead of the system's.
        ca_file: PathBuf,
        /// PEM certificate chain to present.
        cert_file: PathBuf,
        /// PEM key to present.
        key_file: PathBuf,
        /// Skips the check of the replica's certificate.
        insecure_skip_verify: bool,
    }

    /// A Prometheus, or what speaks its API, that has scraped the replicas already.
    Prometheus {
        /// The URL below which `/api/v1/query` is. Required.
        url: String,
        /// How queries are sent.
        method: Method,
        /// Time between two rounds of queries.
        interval: WrittenDuration,
        /// Time after which a query is given up.
        timeout: WrittenDuration,
        /// How far back samples are asked for at most, and how long an instance that is found by
        /// its labels counts as there without samples.
        lookback: WrittenDuration,
        /// Age from which data from Prometheus is too old to act on.
        stale_after: WrittenDuration,
        /// The most series that one answer may have.
        series_limit: u32,
        /// Largest answer that is read, after decompression.
        body_limit: WrittenSize,
        /// Headers of every query, such as the tenant.
        headers: BTreeMap<String, Option<String>>,
        /// Headers of every query whose values are in files, read again for each.
        header_files: BTreeMap<String, Option<PathBuf>>,
        /// A user and the file with the password.
        basic_auth: BasicAuth,
        /// File with a bearer token, read again as it rotates.
        bearer_token_file: PathBuf,
        /// TLS; needs a URL with `https`.
        tls: ClientTls,
        /// Parameters of every query, such as `dedup`.
        parameters: BTreeMap<String, Option<String>>,
        /// The labels by which replicas are found.
        labels: LabelNames,
    }

    /// A user and the file with the password.
    BasicAuth {
        /// The user.
        username: String,
        /// The file with the password, read again for each query.
        password_file: PathBuf,
    }

    /// The labels by which replicas are found.
    LabelNames {
        /// The namespace of a pod.
        namespace: String,
        /// The name of a pod.
        pod: String,
        /// The address that was scraped.
        instance: String,
    }

    /// A variant: one scalable workload that serves one model.
    Variant {
        /// Its name, unique in its namespace. Required.
        name: String,
        /// The Kubernetes namespace; without Kubernetes, any name that groups variants.
        namespace: String,
        /// The model that it serves, as its engines call it. Required.
        model: String,
        /// Other names under which the engines' pages may know the model.
        #[schemars(with = "Option<Vec<String>>")]
        model_aliases: Items<String>,
        /// The kind of accelerator that it runs on.
        accelerator: String,
        /// Accelerators that one replica takes, all of its pods together.
        gpus: u32,
        /// What part of a request it serves.
        role: Role,
        /// What one replica costs for an hour, in any currency that all variants share.
        cost: f64,
        /// What one replica costs for an hour without a discount, such as that of spot nodes, where
        /// `cost` has one; for `capacity.optimizer: rank`.
        list_price: f64,
        /// Factor on its score, from 1, where it has something scarce that the model does not need,
        /// such as much memory for a small model; for `capacity.optimizer: rank`.
        mismatch: f64,
        /// How long one of its replicas takes from being asked for to serving, from 1 s, until its
        /// own starts were measured; `capacity.start_time` without it.
        start_time: WrittenDuration,
        /// The replica counts between which it may be scaled.
        replicas: ReplicaBounds,
        /// Where its replicas are listed. Required: exactly one key.
        targets: Targets,
        /// How its replicas are scraped; what is absent comes from the global section.
        scrape: VariantScrape,
        /// Who reads its replicas' metrics: `prometheus` where that section exists, else `scrape`.
        source: Source,
    }

    /// The replica counts between which a variant may be scaled, both included.
    ReplicaBounds {
        /// The smallest.
        min: u32,
        /// The largest; without it, nothing but the scale target's own bounds limits the variant.
        max: u32,
    }
}

choices! {
    /// What decides how many replicas a model needs.
    Analysis {
        /// Spare KV cache and queue move one replica at a time.
        Saturation = "saturation",
        /// Analyzers say how many it takes, and an optimizer which are the cheapest.
        Capacity = "capacity",
    }

    /// An analyzer that sizes a model.
    Analyzer {
        /// Tokens in the KV cache.
        Tokens = "tokens",
        /// Tokens generated in a second.
        Throughput = "throughput",
        /// Latency at a rate of requests, by a queueing model that is learned.
        Queueing = "queueing",
        /// Requests that will have arrived by the time that a new replica serves, against what a
        /// replica carries by the counters of its iterations.
        Foresight = "foresight",
    }

    /// Which variants are chosen for what is required.
    Optimizer {
        /// Those that cost least together, found by an exact search.
        LeastCost = "least_cost",
        /// By the rank of their price, best first.
        Rank = "rank",
    }

    /// Who may ask for external metrics.
    Authorization {
        /// Whom the cluster's API server allows, asked by a `SubjectAccessReview`.
        SubjectAccessReview = "subject_access_review",
        /// Everyone whom the cluster's front proxy has let through.
        TrustFrontProxy = "trust_front_proxy",
    }

    /// How queries are sent.
    Method {
        /// In the body of a POST, or by GET where the server refuses that.
        Post = "post",
        /// In the URL.
        Get = "get",
    }

    /// Who reads the metrics of a variant's replicas.
    Source {
        /// Plimsoll itself, from their pages.
        Scrape = "scrape",
        /// A Prometheus that has scraped them already.
        Prometheus = "prometheus",
    }

    /// The scheme of a page's URL.
    Scheme {
        /// Plain HTTP.
        Http = "http",
        /// HTTP over TLS.
        Https = "https",
    }

    /// What part of a request a variant serves.
    Role {
        /// Prefill and decode.
        Both = "both",
        /// Prefill only.
        Prefill = "prefill",
        /// Decode only.
        Decode = "decode",
    }

    /// A type of DNS record.
    RecordType {
        /// IPv4 addresses.
        A = "A",
        /// IPv6 addresses.
        Aaaa = "AAAA",
        /// Hosts and ports.
        Srv = "SRV",
    }
}
