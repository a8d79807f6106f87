//! The effective configuration: from a [`Config`] back to a file that says everything.
//!
//! What is printed is what is used, not what was written: it is made of the resolved values alone,
//! so a default that is printed here is the default that holds.

pub(crate) mod cards;
mod limits;
mod pools;
mod trace;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use schemars::generate::SchemaSettings;
use serde_json::Value;

use crate::analyze::ballot::Analyzer;
use crate::analyze::queueing::{self, Statistic};
use crate::analyze::saturation::{Saturation, Thresholds};
use crate::collect::demand::{self, Signal};
use crate::collect::prometheus;
use crate::collect::scrape::{Client, Identity, Settings};
use crate::collect::targets::{Endpoint, Record, Scheme, Source};
use crate::config::file::{self, File};
use crate::config::resolve::zero::AFTER;
use crate::config::written::{WrittenDuration, WrittenSize};
use crate::config::{
    Authorization, Config, Discovery, ExternalMetrics, Files, Kubernetes, LeaderElection, ReadBy,
    ScaleTarget, Scrape, SelfManaged, ServerCertificate, Shutdown, Surroundings, Targets, Variant,
    yaml,
};
use crate::decide::optimize;
use crate::decide::rank;
use crate::decide::zero::ZeroPolicy;
use crate::fleet::{ModelKey, VariantSpec};
use crate::observe::Counts;
use crate::pipeline::Policy;
use crate::pipeline::sizing::Sizing;
use crate::pipeline::zero::{Rule, Zero};
use crate::settings::{Setting, Written};
use crate::units::{CostPerHour, Gpus, Replicas, Seconds};

/// The smallest configuration, whose effective form shows the defaults of everything global.
const SMALLEST: &str = "\
external_metrics: {tls: {cert_file: /tls/tls.crt, key_file: /tls/tls.key}}
kubernetes: {enabled: true}
prometheus: {url: \"http://prometheus:9090\"}
variants: [{name: any, model: any, targets: {static: [\"127.0.0.1:8000\"]}}]
";

/// Sections of [`SMALLEST`] that are not defaults.
const NOT_DEFAULTS: [&str; 4] = ["variants", "tls", "enabled", "url"];

/// The configuration as YAML.
pub(crate) fn print(config: &Config) -> String {
    let value =
        serde_json::to_value(file(config)).expect("a file has text keys and finite numbers");
    yaml::write(&value).expect("writing to memory does not fail")
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
    if let Some(defaults) = defaults() {
        add_defaults(&mut schema, &defaults);
    }
    schema
}

fn defaults() -> Option<Value> {
    let surroundings = Surroundings {
        origin: "the smallest configuration".to_owned(),
        base: "/".into(),
        environment: BTreeMap::new(),
        files: Files::NotChecked,
    };
    let loaded = crate::config::parse(SMALLEST, &surroundings).ok()?;
    serde_json::to_value(file(&loaded.config)).ok()
}

/// Adds the values of the defaults to the properties of the same name.
fn add_defaults(schema: &mut Value, defaults: &Value) {
    let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else {
        return;
    };
    for (name, property) in properties {
        let Some(default) = defaults.get(name) else { continue };
        if NOT_DEFAULTS.contains(&name.as_str()) || default.is_null() {
            continue;
        }
        if property.get("properties").is_some() {
            add_defaults(property, default);
        } else if let Some(property) = property.as_object_mut() {
            property.insert("default".to_owned(), default.clone());
        }
    }
}

fn file(config: &Config) -> File {
    let Config {
        tick_interval,
        listen,
        external_metrics,
        shutdown: Shutdown { delay, drain },
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
    File {
        tick_interval: Some(WrittenDuration(*tick_interval)),
        server: Some(file::Server { listen: Some(listen.to_string()) }),
        external_metrics: Some(external_metrics_section(external_metrics.as_ref())),
        shutdown: Some(file::Shutdown {
            delay: Some(WrittenDuration(*delay)),
            drain: Some(WrittenDuration(*drain)),
        }),
        kubernetes: Some(kubernetes_section(kubernetes.as_ref())),
        compatibility: Some(file::Compatibility {
            wva_metrics: Some(*wva_metrics),
            wva_config: wva_config.clone(),
        }),
        state_file: state_file.clone(),
        trace: trace.as_ref().map(trace::section),
        observe: trace::observe(policy),
        saturation: saturation_section(policy),
        analysis: Some(trace::analysis(policy)),
        capacity: policy.sizing.as_ref().map(|sizing| file::Capacity {
            card_files: cards::files(card_files),
            ..capacity_section(sizing)
        }),
        enforce: policy.behavior.written(),
        scale_to_zero: Some(zero_section(&policy.zero, wake)),
        pools: (!policy.pools.is_empty()).then(|| pools::section(&policy.pools)),
        limits: Some(limits::section(&policy.limits)),
        shadow: (!shadows.is_empty())
            .then(|| shadows.iter().map(|one| Some(trace::shadow(one))).collect()),
        scrape: Some(scrape_section(scrape, *scrape_concurrency)),
        prometheus: prometheus.as_ref().map(prometheus_section),
        variants: Some(variants.iter().map(|variant| Some(variant_section(variant))).collect()),
    }
}

fn tls_section(certificate: ServerCertificate) -> file::ServerTls {
    match certificate {
        ServerCertificate::Files { cert_file, key_file, ca_file } => file::ServerTls {
            cert_file: Some(cert_file),
            key_file: Some(key_file),
            ca_file,
            self_managed: None,
        },
        ServerCertificate::SelfManaged(own) => {
            let SelfManaged { secret, service, namespace, leaf_lifetime, ca_lifetime } = own;
            let self_managed = file::SelfManaged {
                secret: Some(secret),
                service: Some(service),
                namespace,
                leaf_lifetime: Some(WrittenDuration(leaf_lifetime)),
                ca_lifetime: Some(WrittenDuration(ca_lifetime)),
            };
            file::ServerTls { self_managed: Some(self_managed), ..file::ServerTls::default() }
        }
    }
}

fn external_metrics_section(served: Option<&ExternalMetrics>) -> file::ExternalMetrics {
    let Some(served) = served else {
        return file::ExternalMetrics { enabled: Some(false), ..Default::default() };
    };
    let ExternalMetrics { listen, certificate, authorization, fresh, hold } = served;
    file::ExternalMetrics {
        enabled: Some(true),
        listen: Some(listen.to_string()),
        tls: Some(tls_section(certificate.clone())),
        authorization: Some(match authorization {
            Authorization::SubjectAccessReview => file::Authorization::SubjectAccessReview,
            Authorization::TrustFrontProxy => file::Authorization::TrustFrontProxy,
        }),
        fresh: Some(WrittenDuration(*fresh)),
        hold: Some(WrittenDuration(*hold)),
    }
}

fn kubernetes_section(kubernetes: Option<&Kubernetes>) -> file::Kubernetes {
    let Some(Kubernetes { kubeconfig, context, events, discovery, leader_election }) =
        kubernetes.cloned()
    else {
        return file::Kubernetes {
            enabled: Some(false),
            discovery: Some(discovery_section(None)),
            ..Default::default()
        };
    };
    file::Kubernetes {
        enabled: Some(true),
        kubeconfig,
        context,
        events: Some(events),
        discovery: Some(discovery_section(discovery)),
        leader_election: Some(leader_election_section(leader_election)),
    }
}

fn discovery_section(discovery: Option<Discovery>) -> file::Discovery {
    let enabled = Some(discovery.is_some());
    let none = || Discovery { namespaces: Vec::new(), selector: None, wva: true };
    let Discovery { namespaces, selector, wva } = discovery.unwrap_or_else(none);
    let namespaces = namespaces.iter().map(|name| Some(name.to_string())).collect();
    file::Discovery { enabled, namespaces: Some(namespaces), selector, wva: Some(wva) }
}

fn leader_election_section(election: Option<LeaderElection>) -> file::LeaderElection {
    let enabled = Some(election.is_some());
    let LeaderElection { namespace, name, identity, lease_duration, renew_deadline, retry_period } =
        election.unwrap_or_default();
    file::LeaderElection {
        enabled,
        namespace,
        name: Some(name),
        identity,
        lease_duration: Some(WrittenDuration(lease_duration)),
        renew_deadline: Some(WrittenDuration(renew_deadline)),
        retry_period: Some(WrittenDuration(retry_period)),
    }
}

pub(super) fn saturation_section(policy: &Policy) -> Option<Written<Saturation>> {
    let Thresholds { kv_cache, queue_length, kv_spare, queue_spare } = policy.thresholds;
    let overrides = policy.overrides.iter();
    let section = Saturation {
        kv_cache,
        queue_length,
        kv_spare,
        queue_spare,
        transition: policy.transition,
        transition_patience: policy.transition_patience,
        overrides: overrides.map(|(key, it)| (key.to_string(), it.written())).collect(),
    };
    section.written()
}

fn capacity_section(sizing: &Sizing) -> file::Capacity {
    let Sizing { analyzers, tokens, queueing, foresight, cards, optimizer, .. } = sizing;
    let (rule, rank) = match &optimizer.rule {
        optimize::Rule::LeastCost => (file::Optimizer::LeastCost, rank::Policy::default()),
        optimize::Rule::Ranked(policy) => (file::Optimizer::Rank, *policy),
    };
    let queueing::Targets { ttft, itl } = queueing.targets;
    let percentile = ttft.and_then(|ttft| match ttft.of {
        Statistic::Mean => None,
        Statistic::Percentile(percentile) => Some(percentile.share().fraction() * 100.0),
    });
    let analyzer = |analyzer: &Analyzer| match analyzer {
        Analyzer::Tokens => file::Analyzer::Tokens,
        Analyzer::Throughput => file::Analyzer::Throughput,
        Analyzer::Queueing => file::Analyzer::Queueing,
        Analyzer::Foresight => file::Analyzer::Foresight,
    };
    file::Capacity {
        analyzers: Some(analyzers.iter().map(|one| Some(analyzer(one))).collect()),
        scale_up_threshold: Some(tokens.utilisation.grow.fraction()),
        scale_down_boundary: Some(tokens.utilisation.shrink.fraction()),
        slo: (ttft.is_some() || itl.is_some()).then(|| file::Slo {
            ttft: ttft.map(|ttft| written(ttft.limit)),
            ttft_percentile: percentile,
            itl: itl.map(written),
        }),
        optimizer: Some(rule),
        rank: rank.written(),
        start_cost: Some(optimizer.switching.start.fraction()),
        drain_cost: Some(optimizer.switching.drain.fraction()),
        utilisation: Some(foresight.used.fraction()),
        start_time: Some(written(foresight.startup)),
        foresight: analyzers.contains(&Analyzer::Foresight).then(|| foresight.written()).flatten(),
        cards: cards::list(cards),
        card_files: None,
    }
}

fn zero_section(zero: &Zero, wake: &[Signal]) -> file::ScaleToZero {
    let file::ZeroRule { enabled, after, awake_for } = zero_rule_section(zero.default);
    // What objects allow that name no time has this one, whether models may by themselves or not.
    let after = after.map(|_| written(zero.after));
    let rule =
        |(model, rule): (&ModelKey, &Rule)| (model.to_string(), Some(zero_rule_section(*rule)));
    let overrides = Some(zero.overrides.iter().map(rule).collect());
    let wake = Some(wake.iter().map(|signal| Some(signal_section(signal))).collect());
    file::ScaleToZero { enabled, after, awake_for, overrides, wake }
}

fn signal_section(signal: &Signal) -> file::WakeSignal {
    let Signal { name, models, source, interval, counts } = signal.clone();
    let mut section = file::WakeSignal {
        name: Some(name),
        models: Some(models.iter().map(|model| Some(model.to_string())).collect()),
        interval: Some(WrittenDuration(interval)),
        counts_requests: Some(counts == Counts::Requests),
        ..file::WakeSignal::default()
    };
    let page = match source {
        demand::Source::Query(query) => {
            section.query = Some(query);
            return section;
        }
        demand::Source::EndpointPicker(page) => page,
        demand::Source::Metric { page, metric, labels } => {
            section.metric = Some(metric);
            section.labels =
                Some(labels.into_iter().map(|(name, value)| (name, Some(value))).collect());
            page
        }
    };
    let demand::Page { url, client } = page;
    let (tls, bearer_token_file) = client_sections(client);
    file::WakeSignal { url: Some(url), tls: Some(tls), bearer_token_file, ..section }
}

fn zero_rule_section(rule: Rule) -> file::ZeroRule {
    let Rule { policy, awake_min } = rule;
    let (enabled, after) = match policy {
        ZeroPolicy::KeepOne => (false, WrittenDuration(AFTER)),
        ZeroPolicy::AfterIdle(after) => (true, written(after)),
    };
    let awake_for = Some(written(awake_min));
    file::ZeroRule { enabled: Some(enabled), after: Some(after), awake_for }
}

fn scrape_section(scrape: &Scrape, concurrency: usize) -> file::Scrape {
    let Scrape { endpoint, settings } = scrape;
    let file::VariantScrape {
        interval,
        timeout,
        body_limit,
        scheme,
        port,
        path,
        tls,
        bearer_token_file,
    } = variant_scrape_section(endpoint, settings);
    file::Scrape {
        interval,
        timeout,
        concurrency: Some(u32::try_from(concurrency).unwrap_or(u32::MAX)),
        body_limit,
        scheme,
        port,
        path,
        tls,
        bearer_token_file,
    }
}

fn variant_scrape_section(endpoint: &Endpoint, settings: &Settings) -> file::VariantScrape {
    let Endpoint { scheme, port, path } = endpoint;
    let Settings { interval, timeout, body_limit, client } = settings;
    let (tls, bearer_token_file) = client_sections(client.clone());
    file::VariantScrape {
        interval: Some(WrittenDuration(*interval)),
        timeout: Some(WrittenDuration(*timeout)),
        body_limit: Some(WrittenSize(*body_limit as u64)),
        scheme: Some(match scheme {
            Scheme::Http => file::Scheme::Http,
            Scheme::Https => file::Scheme::Https,
        }),
        port: Some(*port),
        path: Some(path.clone()),
        tls: Some(tls),
        bearer_token_file,
    }
}

/// What stands for the value of a header, which may be a secret.
const HIDDEN: &str = "(hidden)";

fn prometheus_section(settings: &prometheus::Settings) -> file::Prometheus {
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
        labels: prometheus::LabelNames { namespace, pod, instance },
    } = settings.clone();
    let (tls, bearer_token_file) = client_sections(client);
    file::Prometheus {
        url: Some(url),
        method: Some(match method {
            prometheus::Method::Post => file::Method::Post,
            prometheus::Method::Get => file::Method::Get,
        }),
        interval: Some(WrittenDuration(interval)),
        timeout: Some(WrittenDuration(timeout)),
        lookback: Some(WrittenDuration(lookback)),
        stale_after: Some(WrittenDuration(stale_after)),
        series_limit: Some(u32::try_from(series_limit).unwrap_or(u32::MAX)),
        body_limit: Some(WrittenSize(body_limit as u64)),
        headers: Some(headers.into_keys().map(|name| (name, Some(HIDDEN.to_owned()))).collect()),
        header_files: Some(header_files.into_iter().map(|(name, it)| (name, Some(it))).collect()),
        basic_auth: basic_auth.map(|prometheus::BasicAuth { username, password_file }| {
            let (username, password_file) = (Some(username), Some(password_file));
            file::BasicAuth { username, password_file }
        }),
        bearer_token_file,
        tls: Some(tls),
        parameters: Some(parameters.into_iter().map(|(name, it)| (name, Some(it))).collect()),
        labels: Some(file::LabelNames {
            namespace: Some(namespace),
            pod: Some(pod),
            instance: Some(instance),
        }),
    }
}

fn client_sections(client: Client) -> (file::ClientTls, Option<PathBuf>) {
    let Client { ca_file, identity, insecure_skip_verify, bearer_token_file } = client;
    let identity = identity.map(|Identity { cert_file, key_file }| (cert_file, key_file));
    let (cert_file, key_file) = identity.unzip();
    let insecure_skip_verify = Some(insecure_skip_verify);
    (file::ClientTls { ca_file, cert_file, key_file, insecure_skip_verify }, bearer_token_file)
}

fn variant_section(variant: &Variant) -> file::Variant {
    let Variant { spec, aliases, targets, endpoint, scrape, read_by } = variant;
    let VariantSpec { key, model, accelerator, gpus, role, cost, list_price, .. } = spec;
    let VariantSpec { mismatch, start_time, bounds, .. } = spec;
    file::Variant {
        name: Some(key.variant.to_string()),
        namespace: Some(key.namespace.to_string()),
        model: Some(model.to_string()),
        model_aliases: Some(aliases.iter().map(|alias| Some(alias.to_string())).collect()),
        accelerator: accelerator.as_ref().map(ToString::to_string),
        gpus: gpus.map(Gpus::count),
        role: Some(cards::role(*role)),
        cost: Some(cost.per_hour()),
        list_price: list_price.map(CostPerHour::per_hour),
        mismatch: Some(mismatch.fraction()),
        start_time: start_time.map(written),
        replicas: Some(file::ReplicaBounds {
            min: Some(bounds.min().count()),
            max: bounds.max().map(Replicas::count),
        }),
        targets: Some(targets_section(targets)),
        scrape: Some(variant_scrape_section(endpoint, scrape)),
        source: Some(match read_by {
            ReadBy::Scrape => file::Source::Scrape,
            ReadBy::Prometheus => file::Source::Prometheus,
        }),
    }
}

fn targets_section(targets: &Targets) -> file::Targets {
    let none = file::Targets::default();
    match targets.clone() {
        Targets::Listed(Source::Static(addresses)) => {
            file::Targets { r#static: Some(addresses.into_iter().map(Some).collect()), ..none }
        }
        Targets::Listed(Source::File { paths, refresh }) => file::Targets {
            file: Some(file::FileTargets {
                paths: Some(paths.into_iter().map(Some).collect()),
                refresh: Some(WrittenDuration(refresh)),
            }),
            ..none
        },
        Targets::Listed(Source::Dns { names, record, port, refresh }) => file::Targets {
            dns: Some(file::DnsTargets {
                names: Some(names.into_iter().map(Some).collect()),
                r#type: Some(match record {
                    Record::A => file::RecordType::A,
                    Record::Aaaa => file::RecordType::Aaaa,
                    Record::Srv => file::RecordType::Srv,
                }),
                port,
                refresh: Some(WrittenDuration(refresh)),
            }),
            ..none
        },
        Targets::ScaleTarget(ScaleTarget { api_version, kind, name }) => file::Targets {
            scale_target: Some(file::ScaleTarget {
                api_version: Some(api_version),
                kind: Some(kind),
                name: Some(name),
            }),
            ..none
        },
        Targets::Selector(selector) => file::Targets { selector: Some(selector), ..none },
        Targets::Prometheus(labels) => file::Targets {
            prometheus: Some(file::PrometheusTargets {
                r#match: Some(labels.into_iter().map(|(name, it)| (name, Some(it))).collect()),
            }),
            ..none
        },
    }
}

/// A length of time of the models as the file writes it. Configured ones are whole nanoseconds
/// and far from the limits of either type, so nothing is lost.
fn written(seconds: Seconds) -> WrittenDuration {
    WrittenDuration(Duration::try_from_secs_f64(seconds.seconds()).unwrap_or(Duration::MAX))
}
