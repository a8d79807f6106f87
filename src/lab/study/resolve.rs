//! From a scenario file to a scenario: defaults, ranges, traces, and what must fit together.

mod adapters;
mod objectives;
mod variants;
mod workload;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::simulate::Micros;
use crate::simulate::peers::Peer;
use crate::simulate::scenario::{
    Allowance, Client, Control, Gateway, Model, Outage, Router, Scenario, Slo, Transfer,
};
use crate::study::file::{self, File};
use crate::study::resolve::variants::{Drafted, Models};
use crate::study::resolve::workload::Loaded;
use crate::study::traces::SPAN_MAX;
use plimsoll_core::fleet::{ModelKey, ModelName, Namespace, Role};
use plimsoll_core::units::{Fraction, Seconds};
use plimsoll_daemon::config;
use plimsoll_daemon::config::check::{Checks, Durations};
pub(super) use plimsoll_daemon::config::problem::{Problem, Problems, Severity, join};
use plimsoll_daemon::config::written::WrittenDuration;
use plimsoll_daemon::config::{
    Config, EXTERNAL_METRICS_HOLD, Files, LoadError, Surroundings, layers, names,
};

const NAMESPACE: &str = "default";
const LENGTHS: Durations = Duration::from_secs(1)..=SPAN_MAX;
/// The length of a scenario without traces that does not say its length.
const LENGTH: Duration = Duration::from_hours(1);
const LATENCIES: Durations = Duration::from_micros(1)..=Duration::from_hours(24);
const SPANS: Durations = Duration::ZERO..=Duration::from_hours(24 * 366);
const SAMPLES: Durations = Duration::from_millis(100)..=Duration::from_hours(24);
/// Samples of a series that says no time between them: as many as a chart has room for.
const SAMPLES_WANTED: u64 = 480;
/// As the endpoint picker of the Gateway API's inference extension refreshes metrics.
const ROUTER_REFRESH: Duration = Duration::from_millis(50);
const REFRESHES: Durations = Duration::from_millis(1)..=Duration::from_hours(1);
/// More than any client would wait behind.
const QUEUE: u32 = 100_000;
/// A prompt is long from here on, where more time is allowed for each token of it.
const LONG_PROMPT: u32 = 4_000;
const PER_TOKEN: Durations = Duration::ZERO..=Duration::from_secs(1);
const BACKOFF: Duration = Duration::from_secs(1);

/// A scenario and the seed that its file names.
#[derive(Clone, Debug)]
pub(crate) struct Resolved {
    pub(crate) scenario: Scenario,
    pub(crate) seed: u64,
    /// The configuration of the daemon, as YAML.
    pub(crate) config: String,
    pub(crate) warnings: Vec<Problem>,
}

/// Which part of the requests of which model a variant serves, and where it is written.
struct Served {
    place: usize,
    model: usize,
    role: Role,
}

/// Resolves a value that was read from a file, or says everything that is wrong with it.
pub(crate) fn resolve(mut value: Value, base: &Path) -> Result<Resolved, Vec<Problem>> {
    let surroundings = Surroundings {
        origin: String::new(),
        base: base.to_owned(),
        environment: BTreeMap::new(),
        files: Files::MustExist,
    };
    let mut checks = Checks::new(&surroundings);
    if let Some(map) = value.as_object_mut() {
        check_sweep(map.shift_remove("sweep").as_ref(), &mut checks.problems);
    } else {
        checks.problems.error_at("", "the file must be a mapping of keys to values");
        value = json!({});
    }
    let file: File = layers::read(value, &mut checks.problems);
    let resolved = resolve_file(&file, &mut checks);
    let (errors, warnings) = checks.problems.split();
    match resolved {
        Some((scenario, seed, config)) if errors.is_empty() => {
            Ok(Resolved { scenario, seed, config: config.print(), warnings })
        }
        Some(_) | None => Err(errors),
    }
}

/// Everything is checked before anything that is not there ends it, so that all that is wrong is
/// said at once.
fn resolve_file(file: &File, checks: &mut Checks<'_>) -> Option<(Scenario, u64, Config)> {
    check_compared(file.compare.as_deref().unwrap_or_default(), checks);
    let (models, longest) = resolve_models(file, checks);
    let drafted = resolve_variants(file, &models, checks);
    let length = length(file.length, longest, checks);
    let sample = checks.duration("sample", file.sample, &SAMPLES).map(Micros::from_duration);
    let second = Micros::from_secs(1);
    let default = Micros::new(length.micros() / SAMPLES_WANTED).max(second);
    let seen = seen(&file.daemon.clone().unwrap_or_default(), checks);
    let words = objectives::shared(file.policy.clone().unwrap_or_default(), &models, checks);
    let words = woken(words, &models.resolved);
    let config = policy(words, &drafted, checks)?;
    let specs = config.variants.iter().map(|variant| variant.spec.clone());
    let variants = drafted.into_iter().zip(specs).map(|(draft, spec)| draft.with(spec)).collect();
    let control = seen.with(&config);
    let models = models.resolved.into_iter().collect::<Option<_>>()?;
    let scenario =
        Scenario { length, models, variants, control, sample: sample.unwrap_or(default) };
    Some((scenario, u64::from(file.seed.unwrap_or(1)), config))
}

/// A policy to which the gateways of these models are the signals that wake: where one is read, none
/// is missing.
fn woken(mut words: Map<String, Value>, models: &[Option<Model>]) -> Map<String, Value> {
    let read = models.iter().flatten().any(|model| model.gateway.read.is_some());
    if let Some(Value::Object(zero)) = words.get_mut("scale_to_zero").filter(|_| read) {
        zero.entry("wake").or_insert_with(|| json!([]));
    }
    words
}

/// How long a scenario lasts whose longest trace lasts so long.
fn length(
    written: Option<WrittenDuration>,
    longest: Option<Micros>,
    checks: &mut Checks<'_>,
) -> Micros {
    let length = checks.duration("length", written, &LENGTHS).map(Micros::from_duration);
    let allowed = Micros::from_duration(*LENGTHS.start())..=Micros::from_duration(*LENGTHS.end());
    if let Some(longest) = longest.filter(|longest| !allowed.contains(longest))
        && written.is_none()
    {
        let rule = format!(
            "must be given, from {} to {}, because the longest trace lasts {longest}",
            WrittenDuration(*LENGTHS.start()),
            WrittenDuration(*LENGTHS.end())
        );
        checks.problems.error_at("length", rule);
    }
    length.or(longest).unwrap_or(Micros::from_duration(LENGTH))
}

/// What a sweep tries must be lists by their paths.
fn check_sweep(written: Option<&Value>, problems: &mut Problems) {
    match written {
        None | Some(Value::Null) => {}
        Some(Value::Object(sweep)) => {
            for (path, values) in sweep {
                if values.as_array().is_none_or(Vec::is_empty) {
                    let rule = "must be a list of values to try";
                    problems.error(join("sweep", path), rule, values);
                }
            }
        }
        Some(other) => {
            let rule = "must be a mapping of paths to lists of values to try";
            problems.error("sweep", rule, other);
        }
    }
}

fn check_compared(written: &[Option<String>], checks: &mut Checks<'_>) {
    for (at, text) in written.iter().enumerate() {
        let Some(text) = text else { continue };
        if let Err(unknown) = Peer::parse(text) {
            checks.problems.error(format!("compare[{at}]"), unknown.to_string(), text);
        }
    }
}

/// The models, and the longest trace among them.
fn resolve_models(file: &File, checks: &mut Checks<'_>) -> (Models, Option<Micros>) {
    let written = file.models.as_deref().unwrap_or_default();
    if written.is_empty() {
        checks.problems.missing("models", "must have at least one model");
    }
    let mut models = Models::default();
    let mut longest: Option<Micros> = None;
    for (at, model) in written.iter().enumerate() {
        let name = model.as_ref().and_then(|model| model.name.clone());
        if name.is_some() && models.names.contains(&name) {
            checks.problems.error_at(format!("models[{at}].name"), "is the name of another model");
        }
        models.names.push(name);
        let model = model.as_ref();
        let resolved =
            model.and_then(|written| resolve_model(&format!("models[{at}]"), written, checks));
        longest = longest.max(resolved.as_ref().and_then(|(_, span)| *span));
        models.resolved.push(resolved.map(|(model, _)| model));
    }
    (models, longest)
}

/// The variants of which something could be made.
fn resolve_variants(file: &File, models: &Models, checks: &mut Checks<'_>) -> Vec<Drafted> {
    let written = file.variants.as_deref().unwrap_or_default();
    if written.is_empty() {
        checks.problems.missing("variants", "must have at least one variant");
    }
    let mut drafted = Vec::new();
    let mut names: Vec<&String> = Vec::new();
    let mut served: Vec<Served> = Vec::new();
    for (place, variant) in written.iter().enumerate() {
        let Some(variant) = variant else { continue };
        let path = format!("variants[{place}]");
        if let Some(name) = &variant.name {
            if names.contains(&name) {
                checks.problems.error_at(join(&path, "name"), "is the name of another variant");
            }
            names.push(name);
        }
        let role = variants::role(variant.role);
        let model = models.of(variant.model.as_deref());
        served.extend(model.map(|model| Served { place, model, role }));
        drafted.extend(variants::resolve(&path, variant, models, checks));
    }
    check_roles(models, &served, checks);
    for (at, name) in models.names.iter().enumerate() {
        if let Some(name) = name
            && !served.iter().any(|variant| variant.model == at)
            && !served.is_empty()
        {
            let rule = format!("has no variant: nothing serves {name}");
            checks.problems.warning(format!("models[{at}]"), rule);
        }
    }
    drafted
}

fn resolve_model(
    path: &str,
    written: &file::Model,
    checks: &mut Checks<'_>,
) -> Option<(Model, Option<Micros>)> {
    let at = |key: &str| join(path, key);
    let name = written.name.as_deref();
    if name.is_none() {
        checks.problems.missing(at("name"), "is required");
    }
    let name = checks.text(&at("name"), name, names::is_model_name, names::MODEL_NAME);
    let namespace = written.namespace.as_deref().unwrap_or(NAMESPACE);
    let namespace =
        checks.text(&at("namespace"), Some(namespace), names::is_dns_label, names::DNS_LABEL);
    let adapters = adapters::shares(&at("adapters"), written.adapters.as_deref(), name, checks);
    let slo = written.slo.clone().unwrap_or_default();
    let mut latency = |key: &str, written| {
        let path = format!("{path}.slo.{key}");
        let latency = checks.duration(&path, written, &LATENCIES).map(Micros::from_duration);
        if latency.is_none() {
            checks.problems.missing(path, "is required");
        }
        latency
    };
    let (ttft, itl) = (latency("ttft", slo.ttft), latency("itl", slo.itl));
    let allowance = allowance(&at("slo"), &slo, checks);
    let refresh = checks.duration(&at("router_refresh"), written.router_refresh, &REFRESHES);
    let refresh = Micros::from_duration(refresh.unwrap_or(ROUTER_REFRESH));
    let router = match written.router {
        Some(file::Router::RoundRobin) => Router::RoundRobin,
        Some(file::Router::LeastRequests) | None => Router::LeastRequests,
        Some(file::Router::KvAware) => Router::KvAware { refresh },
    };
    if written.router_refresh.is_some() && written.router != Some(file::Router::KvAware) {
        let rule = "has no effect, because router is not kv_aware";
        checks.problems.warning(at("router_refresh"), rule);
    }
    let transfer = transfer(path, &written.transfer.clone().unwrap_or_default(), checks);
    let gateway = written.gateway.clone().unwrap_or_default();
    let queue = usize::try_from(gateway.queue.unwrap_or(QUEUE)).unwrap_or(usize::MAX);
    let limit =
        checks.number(&join(&at("gateway"), "per_replica"), gateway.per_replica, &(1..=1_000_000));
    let read =
        checks.duration(&join(&at("gateway"), "read"), gateway.read, &config::WAKE_INTERVALS);
    let read = read.map(Micros::from_duration);
    let client = written.client.clone().unwrap_or_default();
    let mut span = |key: &str, written| {
        checks.duration(&format!("{path}.client.{key}"), written, &SPANS).map(Micros::from_duration)
    };
    let timeout = span("timeout", client.timeout).filter(|timeout| *timeout > Micros::ZERO);
    let backoff = span("backoff", client.backoff).unwrap_or(Micros::from_duration(BACKOFF));
    let retries =
        checks.number(&join(&at("client"), "retries"), client.retries, &(0..=100)).unwrap_or(0);
    let loaded = workload::resolve(&at("workload"), written.workload.as_ref(), checks);
    let Loaded { load, span } = loaded?;
    let key = ModelKey { namespace: Namespace::new(namespace?)?, model: ModelName::new(name?)? };
    let model = Model {
        key,
        slo: Slo { ttft: ttft?, itl: itl?, allowance },
        load,
        adapters,
        router,
        transfer,
        gateway: Gateway { queue, per_replica: limit, read },
        client: Client { timeout, retries, backoff },
    };
    Some((model, span))
}

fn allowance(path: &str, written: &file::Slo, checks: &mut Checks<'_>) -> Allowance {
    let at = |key: &str| join(path, key);
    let per_token = checks.duration(&at("ttft_per_token"), written.ttft_per_token, &PER_TOKEN);
    let beyond = checks.number(&at("long_prompt"), written.long_prompt, &(0..=100_000_000));
    if written.long_prompt.is_some() && written.ttft_per_token.is_none() {
        let rule = format!("has no effect without {}", at("ttft_per_token"));
        checks.problems.warning(at("long_prompt"), rule);
    }
    Allowance {
        per_token: per_token.map(Micros::from_duration).unwrap_or_default(),
        beyond: beyond.unwrap_or(LONG_PROMPT),
    }
}

fn transfer(path: &str, written: &file::Transfer, checks: &mut Checks<'_>) -> Transfer {
    let file::Transfer { latency, per_token } = *written;
    let at = |key: &str| format!("{path}.transfer.{key}");
    let latency = checks.duration(&at("latency"), latency, &SPANS);
    let per_token = checks.duration(&at("per_token"), per_token, &PER_TOKEN);
    Transfer {
        latency: latency.map(Micros::from_duration).unwrap_or_default(),
        per_token: per_token.unwrap_or_default().as_secs_f64() * 1e6,
    }
}

/// Where one variant computes prompts, another must decode, and none do both.
fn check_roles(models: &Models, served: &[Served], checks: &mut Checks<'_>) {
    for (at, name) in models.names.iter().enumerate() {
        let of_model = || served.iter().filter(|variant| variant.model == at);
        let has = |role| of_model().any(|variant| variant.role == role);
        if !has(Role::Prefill) && !has(Role::Decode) {
            continue;
        }
        let name = name.as_deref().unwrap_or("its model");
        for Served { place, role, .. } in of_model() {
            let wrong = match role {
                Role::Both => format!("must be prefill or decode, as of another variant of {name}"),
                Role::Prefill if has(Role::Decode) => continue,
                Role::Decode if has(Role::Prefill) => continue,
                Role::Prefill => format!("is prefill, and no variant of {name} is decode"),
                Role::Decode => format!("is decode, and no variant of {name} is prefill"),
            };
            checks.problems.missing(format!("variants[{place}].role"), wrong);
        }
    }
}

fn outage(written: Option<&file::Outage>, checks: &mut Checks<'_>) -> Option<Outage> {
    let file::Outage { at, length } = written?;
    let mut span = |key: &str, written| {
        let path = format!("daemon.outage.{key}");
        let span = checks.duration(&path, written, &SPANS).map(Micros::from_duration);
        if span.is_none() {
            checks.problems.missing(path, "is required");
        }
        span
    };
    let (from, length) = (span("at", *at), span("length", *length));
    Some(Outage { from: from?, length: length? })
}

/// What lies between the replicas and the daemon.
struct Seen {
    scrape_loss: Fraction,
    relay: Option<Micros>,
    hold: Seconds,
    outage: Option<Outage>,
}

impl Seen {
    /// The same, and what the daemon does.
    fn with(self, config: &Config) -> Control {
        let Self { scrape_loss, relay, hold, outage } = self;
        Control {
            policy: config.policy.clone(),
            tick: Micros::from_duration(config.tick_interval),
            scrape: Micros::from_duration(config.scrape.settings.interval),
            scrape_loss,
            relay,
            hold,
            outage,
        }
    }
}

fn seen(section: &file::Daemon, checks: &mut Checks<'_>) -> Seen {
    let loss = checks.number("daemon.scrape_loss", section.scrape_loss, &(0.0..=1.0));
    let relay = checks.duration("daemon.relay", section.relay, &SPANS);
    let hold =
        checks.duration("daemon.hold", section.hold, &SPANS).unwrap_or(EXTERNAL_METRICS_HOLD);
    Seen {
        scrape_loss: loss.and_then(Fraction::new).unwrap_or(Fraction::ZERO),
        relay: relay.map(Micros::from_duration),
        hold: Seconds::new(hold.as_secs_f64()).unwrap_or_default(),
        outage: outage(section.outage.as_ref(), checks),
    }
}

/// Sections of the daemon's configuration that say nothing about what it decides.
pub(crate) const NO_POLICY: [&str; 8] = [
    "server",
    "external_metrics",
    "shutdown",
    "kubernetes",
    "compatibility",
    "state_file",
    "prometheus",
    "variants",
];

/// The daemon's configuration with these words and these variants, made by the daemon's own code.
fn policy(
    mut words: Map<String, Value>,
    variants: &[Drafted],
    checks: &mut Checks<'_>,
) -> Option<Config> {
    for key in NO_POLICY {
        if words.shift_remove(key).is_some() {
            let rule = "says nothing about what is decided, and has no place in a scenario";
            checks.problems.error_at(join("policy", key), rule);
        }
    }
    let listed = variants.iter().enumerate().map(|(at, variant)| {
        let mut listed = variant.words.clone();
        // Nobody asks there; the configuration wants to know where replicas are.
        listed["targets"] = json!({"static": [format!("simulated-{at}:8000")]});
        listed
    });
    words.insert("variants".to_owned(), listed.collect());
    let surroundings = Surroundings {
        origin: "policy".to_owned(),
        base: checks.base().to_owned(),
        environment: BTreeMap::new(),
        files: Files::OfPolicy,
    };
    let problems = match config::parse(&Value::Object(words).to_string(), &surroundings) {
        Ok(config::Loaded { config, warnings }) => {
            report(&warnings, checks);
            return Some(config);
        }
        Err(LoadError::Invalid { problems, .. }) => problems,
        Err(other) => {
            checks.problems.error("policy", "cannot be read", other);
            return None;
        }
    };
    report(&problems, checks);
    None
}

fn report(problems: &[Problem], checks: &mut Checks<'_>) {
    for Problem { severity, path, rule, found } in problems {
        // The variants are ours: what is wrong with them has been said where they are written.
        if path.starts_with("variants") {
            continue;
        }
        let path = if path.is_empty() { "policy".to_owned() } else { format!("policy.{path}") };
        match (severity, found) {
            (Severity::Warning, _) => checks.problems.warning(path, rule.as_str()),
            (Severity::Error, Some(found)) => checks.problems.error(path, rule.as_str(), found),
            (Severity::Error, None) => checks.problems.error_at(path, rule.as_str()),
        }
    }
}
