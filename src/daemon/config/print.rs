//! The effective configuration: from a [`Config`] back to a file that says everything.
//!
//! What is printed is what is used, not what was written: it is made of the resolved values alone,
//! so a default that is printed here is the default that holds.

pub(crate) mod cards;
mod limits;
mod pools;
mod trace;

use std::sync::Arc;

use schemars::generate::SchemaSettings;
use serde_json::Value;

use crate::collect::demand::{self, Signal};
use crate::collect::prometheus;
use crate::collect::targets::Source;
use crate::config::file::{
    BasicAuthKeys, CapacityKeys, CompatibilityKeys, DiscoveryKeys, DnsTargetKeys,
    ExternalMetricsKeys, File, FileKeys, FileTargetKeys, KubernetesKeys, Optimizer, PrometheusKeys,
    PrometheusTargetKeys, ReplicaBoundKeys, ScaleTargetKeys, ScaleToZeroKeys, ScrapeKeys,
    SelfManagedKeys, ServerKeys, ServerTlsKeys, SloKeys, TargetKeys, VariantKeys,
    VariantScrapeKeys, WakeSignalKeys, ZeroKeys,
};
use crate::config::problem::join;
use crate::config::resolve::scrape::client_keys;
use crate::config::{
    Config, Discovery, ExternalMetrics, Kubernetes, ScaleTarget, Scrape, SelfManaged,
    ServerCertificate, Targets, Variant, yaml,
};
use plimsoll_core::analyze::ballot::Analyzer;
use plimsoll_core::analyze::queueing::{self, Statistic};
use plimsoll_core::analyze::saturation::{Saturation, Thresholds};
use plimsoll_core::decide::optimize;
use plimsoll_core::decide::rank;
use plimsoll_core::decide::zero::ZeroPolicy;
use plimsoll_core::fleet::VariantSpec;
use plimsoll_core::observe::Counts;
use plimsoll_core::pipeline::Policy;
use plimsoll_core::pipeline::sizing::Sizing;
use plimsoll_core::pipeline::zero::{Rule, Zero};
use plimsoll_core::settings::values::Bytes;
use plimsoll_core::settings::{RESTART, Setting, Written};
use plimsoll_core::units::Replicas;

/// Sections whose absent keys come from another section, so that they have no defaults of their
/// own.
const OVERLAYS: [&str; 3] = [
    "/properties/saturation/properties/overrides/additionalProperties",
    "/properties/scale_to_zero/properties/overrides/additionalProperties",
    "/properties/variants/items/properties/scrape",
];

/// The configuration as YAML.
pub(crate) fn print(config: &Config) -> String {
    yaml::write(&value(config)).expect("writing to memory does not fail")
}

/// The configuration as a file says it.
pub(crate) fn value(config: &Config) -> Value {
    serde_json::to_value(file(config)).expect("a file has text keys and finite numbers")
}

/// Adds the keys below a path that need a restart and differ.
pub(crate) fn restart_keys(schema: &Value, path: &str, files: [&Value; 2], keys: &mut Vec<String>) {
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flatten() {
        let path = join(path, name);
        let [old, new] = files.map(|file| file.get(name).unwrap_or(&Value::Null));
        if property.get(RESTART).is_none() {
            restart_keys(property, &path, [old, new], keys);
        } else if old != new {
            keys.push(path);
        }
    }
}

/// The JSON Schema of the file, with the defaults of the global sections.
pub(crate) fn schema() -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    // Without references, a section has the defaults of the place where it is.
    settings.inline_subschemas = true;
    let mut schema = settings.into_generator().into_root_schema_for::<File>().to_value();
    if let Some(root) = schema.as_object_mut() {
        root.insert("title".to_owned(), "Configuration of Plimsoll".into());
    }
    for pointer in OVERLAYS {
        schema.pointer_mut(pointer).into_iter().for_each(remove_defaults);
    }
    schema
}

/// Removes the defaults of a section.
fn remove_defaults(schema: &mut Value) {
    if let Some(keywords) = schema.as_object_mut() {
        keywords.shift_remove("default");
    }
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    properties.into_iter().flat_map(|it| it.values_mut()).for_each(remove_defaults);
}

fn file(config: &Config) -> File {
    let Config {
        tick_interval,
        listen,
        external_metrics,
        shutdown,
        kubernetes,
        wva_metrics,
        wva_config,
        state_file,
        trace,
        policy,
        card_files,
        shadows,
        scrape_concurrency,
        scrape,
        prometheus,
        wake,
        variants,
    } = config;
    let keys = FileKeys {
        tick_interval: *tick_interval,
        server: ServerKeys { listen: *listen },
        external_metrics: external_metrics.as_ref().map(external_metrics_keys),
        shutdown: *shutdown,
        kubernetes: kubernetes_keys(kubernetes.as_ref()),
        compatibility: CompatibilityKeys {
            wva_metrics: *wva_metrics,
            wva_config: wva_config.clone(),
        },
        state_file: state_file.clone(),
        trace: trace.as_ref().map(trace::section),
        observe: trace::observe(policy),
        saturation: saturation_keys(policy),
        analysis: Some(trace::analysis(policy)),
        enforce: policy.behavior.clone(),
        scale_to_zero: zero_keys(&policy.zero),
        pools: (!policy.pools.is_empty()).then(|| pools::section(&policy.pools)),
        limits: limits::section(&policy.limits),
        prometheus: prometheus.as_ref().map(prometheus_keys),
        ..FileKeys::default()
    };
    let mut file = keys.written().unwrap_or_default();
    if external_metrics.is_none() {
        let off = Written::<ExternalMetricsKeys> { enabled: Some(false), ..Default::default() };
        file.external_metrics = Some(off);
    }
    if let Some(section) = file.kubernetes.as_mut().filter(|_| kubernetes.is_none()) {
        section.events = None;
        section.leader_election = None;
    }
    file.capacity = policy.sizing.as_ref().map(|sizing| Written::<CapacityKeys> {
        card_files: cards::files(card_files),
        ..capacity_section(sizing)
    });
    if let Some(zero) = &mut file.scale_to_zero {
        zero.wake = Some(wake.iter().map(|signal| signal_keys(signal).written()).collect());
    }
    file.shadow =
        (!shadows.is_empty()).then(|| shadows.iter().map(|one| Some(trace::shadow(one))).collect());
    file.scrape = Some(scrape_section(scrape, *scrape_concurrency));
    file.variants = Some(variants.iter().map(|variant| Some(variant_section(variant))).collect());
    file
}

fn tls_keys(certificate: ServerCertificate) -> ServerTlsKeys {
    match certificate {
        ServerCertificate::Files { cert_file, key_file, ca_file } => ServerTlsKeys {
            cert_file: Some(cert_file),
            key_file: Some(key_file),
            ca_file,
            self_managed: None,
        },
        ServerCertificate::SelfManaged(own) => {
            let SelfManaged { secret, service, namespace, leaf_lifetime, ca_lifetime } = own;
            let (secret, service) = (Some(secret), Some(service));
            let own = SelfManagedKeys { secret, service, namespace, leaf_lifetime, ca_lifetime };
            ServerTlsKeys { self_managed: Some(own), ..ServerTlsKeys::default() }
        }
    }
}

fn external_metrics_keys(served: &ExternalMetrics) -> ExternalMetricsKeys {
    let ExternalMetrics { listen, certificate, authorization, fresh, hold } = served;
    ExternalMetricsKeys {
        enabled: true,
        listen: *listen,
        tls: Some(tls_keys(certificate.clone())),
        authorization: *authorization,
        fresh: *fresh,
        hold: *hold,
    }
}

fn kubernetes_keys(kubernetes: Option<&Kubernetes>) -> KubernetesKeys {
    let Some(Kubernetes { kubeconfig, context, events, discovery, leader_election }) =
        kubernetes.cloned()
    else {
        return KubernetesKeys::default();
    };
    let discovery = discovery.map(|Discovery { namespaces, selector, wva }| {
        let namespaces = namespaces.iter().map(ToString::to_string).collect();
        DiscoveryKeys { enabled: true, namespaces, selector, wva }
    });
    KubernetesKeys {
        enabled: true,
        kubeconfig,
        context,
        events,
        discovery: discovery.unwrap_or_default(),
        leader_election: leader_election.unwrap_or_default(),
    }
}

pub(super) fn saturation_keys(policy: &Policy) -> Saturation {
    let Thresholds { kv_cache, queue_length, kv_spare, queue_spare } = policy.thresholds;
    let overrides = policy.overrides.iter();
    Saturation {
        kv_cache,
        queue_length,
        kv_spare,
        queue_spare,
        transition: policy.transition,
        transition_patience: policy.transition_patience,
        overrides: overrides.map(|(key, it)| (key.to_string(), it.written())).collect(),
    }
}

pub(super) fn capacity_section(sizing: &Sizing) -> Written<CapacityKeys> {
    let Sizing { analyzers, tokens, queueing, foresight, cards, optimizer, .. } = sizing;
    let (rule, rank) = match &optimizer.rule {
        optimize::Rule::LeastCost => (Optimizer::LeastCost, rank::Policy::default()),
        optimize::Rule::Ranked(policy) => (Optimizer::Rank, *policy),
    };
    let queueing::Targets { ttft, itl } = queueing.targets;
    let ttft_percentile = ttft.and_then(|ttft| match ttft.of {
        Statistic::Mean => None,
        Statistic::Percentile(percentile) => Some(percentile.share().fraction() * 100.0),
    });
    let ttft = ttft.map(|ttft| ttft.limit);
    let slo = SloKeys { ttft, ttft_percentile, itl };
    let keys = CapacityKeys {
        analyzers: analyzers.clone(),
        scale_up_threshold: tokens.utilisation.grow,
        scale_down_boundary: tokens.utilisation.shrink,
        slo: (ttft.is_some() || itl.is_some()).then_some(slo),
        optimizer: rule,
        rank,
        start_cost: optimizer.switching.start,
        drain_cost: optimizer.switching.drain,
        utilisation: foresight.used,
        start_time: foresight.startup,
        foresight: *foresight,
        cards: None,
        card_files: None,
    };
    let written = keys.written().unwrap_or_default();
    let foresight = written.foresight.filter(|_| analyzers.contains(&Analyzer::Foresight));
    Written::<CapacityKeys> { foresight, cards: cards::list(cards), ..written }
}

/// The keys that give these rules, without signals.
pub(super) fn zero_keys(zero: &Zero) -> ScaleToZeroKeys {
    let ZeroKeys { enabled, awake_for, .. } = rule_keys(zero.default);
    let overrides = zero.overrides.iter();
    ScaleToZeroKeys {
        enabled,
        // What objects allow that name no time has this one, whether models may by themselves or
        // not.
        after: zero.after,
        awake_for,
        overrides: overrides
            .map(|(model, it)| (model.to_string(), rule_keys(*it).written()))
            .collect(),
        wake: Some(Vec::new()),
    }
}

fn signal_keys(signal: &Signal) -> WakeSignalKeys {
    let Signal { name, models, source, interval, counts } = signal.clone();
    let keys = WakeSignalKeys {
        name: Some(name),
        models: Some(models.iter().map(ToString::to_string).collect()),
        interval: Some(interval),
        counts_requests: Some(counts == Counts::Requests),
        ..WakeSignalKeys::default()
    };
    let (page, metric, labels) = match source {
        demand::Source::Query(query) => return WakeSignalKeys { query: Some(query), ..keys },
        demand::Source::EndpointPicker(page) => (page, None, None),
        demand::Source::Metric { page, metric, labels } => {
            let labels = labels.into_iter().map(|(name, value)| (name, Some(value)));
            (page, Some(metric), Some(labels.collect()))
        }
    };
    let demand::Page { url, client } = page;
    WakeSignalKeys {
        url: Some(url),
        metric,
        labels,
        tls: Some(client_keys(&client)),
        bearer_token_file: client.bearer_token_file,
        ..keys
    }
}

fn rule_keys(rule: Rule) -> ZeroKeys {
    let Rule { policy, awake_min: awake_for } = rule;
    match policy {
        ZeroPolicy::KeepOne => ZeroKeys { enabled: false, awake_for, ..ZeroKeys::default() },
        ZeroPolicy::AfterIdle(after) => ZeroKeys { enabled: true, after, awake_for },
    }
}

fn scrape_section(scrape: &Scrape, concurrency: usize) -> Written<ScrapeKeys> {
    let VariantScrapeKeys {
        interval,
        timeout,
        body_limit,
        scheme,
        port,
        path,
        tls,
        bearer_token_file,
    } = scrape.keys();
    let keys = ScrapeKeys {
        interval,
        timeout,
        concurrency,
        body_limit,
        scheme,
        port,
        path,
        tls,
        bearer_token_file,
    };
    keys.written().unwrap_or_default()
}

/// What stands for the value of a header, which may be a secret.
const HIDDEN: &str = "(hidden)";

fn prometheus_keys(settings: &prometheus::Settings) -> PrometheusKeys {
    let prometheus::Settings {
        url,
        method,
        interval,
        timeout,
        lookback,
        stale_after,
        series_limit,
        body_limit,
        client,
        basic_auth,
        headers,
        header_files,
        parameters,
        labels,
    } = settings.clone();
    PrometheusKeys {
        url: Some(url),
        method,
        interval,
        timeout,
        lookback,
        stale_after,
        series_limit,
        body_limit: Bytes(body_limit as u64),
        headers: headers.into_keys().map(|name| (name, Some(HIDDEN.to_owned()))).collect(),
        header_files: header_files.into_iter().map(|(name, it)| (name, Some(it))).collect(),
        basic_auth: basic_auth.map(|prometheus::BasicAuth { username, password_file }| {
            BasicAuthKeys { username: Some(username), password_file: Some(password_file) }
        }),
        tls: client_keys(&client),
        bearer_token_file: client.bearer_token_file,
        parameters: parameters.into_iter().map(|(name, it)| (name, Some(it))).collect(),
        labels,
    }
}

fn variant_section(variant: &Variant) -> Written<VariantKeys> {
    let Variant { spec, aliases, targets, endpoint, scrape, read_by } = variant;
    let VariantSpec { key, model, accelerator, gpus, role, cost, list_price, .. } = spec;
    let VariantSpec { mismatch, start_time, bounds, .. } = spec;
    let scrape = Scrape { endpoint: endpoint.clone(), settings: Arc::clone(scrape) };
    let keys = VariantKeys {
        name: Some(key.variant.to_string()),
        namespace: key.namespace.to_string(),
        model: Some(model.to_string()),
        model_aliases: aliases.iter().map(ToString::to_string).collect(),
        accelerator: accelerator.as_ref().map(ToString::to_string),
        gpus: *gpus,
        role: *role,
        cost: *cost,
        list_price: *list_price,
        mismatch: *mismatch,
        start_time: *start_time,
        replicas: ReplicaBoundKeys {
            min: bounds.min().count(),
            max: bounds.max().map(Replicas::count),
        },
        targets: Some(target_keys(targets)),
        scrape: scrape.keys(),
        source: Some(*read_by),
    };
    keys.written().unwrap_or_default()
}

fn target_keys(targets: &Targets) -> TargetKeys {
    let none = TargetKeys::default();
    match targets.clone() {
        Targets::Listed(Source::Static(addresses)) => {
            TargetKeys { addresses: Some(addresses), ..none }
        }
        Targets::Listed(Source::File { paths, refresh }) => {
            TargetKeys { file: Some(FileTargetKeys { paths, refresh }), ..none }
        }
        Targets::Listed(Source::Dns { names, record, port, refresh }) => {
            TargetKeys { dns: Some(DnsTargetKeys { names, record, port, refresh }), ..none }
        }
        Targets::ScaleTarget(ScaleTarget { api_version, kind, name }) => {
            let (api_version, kind, name) = (Some(api_version), Some(kind), Some(name));
            let scale_target = Some(ScaleTargetKeys { api_version, kind, name });
            TargetKeys { scale_target, ..none }
        }
        Targets::Selector(selector) => TargetKeys { selector: Some(selector), ..none },
        Targets::Prometheus(labels) => {
            let labels = labels.into_iter().map(|(name, it)| (name, Some(it)));
            let prometheus = Some(PrometheusTargetKeys { labels: Some(labels.collect()) });
            TargetKeys { prometheus, ..none }
        }
    }
}
