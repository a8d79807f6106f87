//! From a scenario file to a scenario: defaults, ranges, traces, and keys that must fit together.

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
    Client, Control, Gateway, Model, Router, Scenario, Transfer, Variant,
};
use crate::study::file::{
    DaemonKeys, File, FileKeys, GatewayKeys, LENGTHS, ModelKeys, TransferKeys, VariantKeys,
};
use crate::study::resolve::variants::{Models, is_some_time};
use crate::study::resolve::workload::ScenarioLoad;
use plimsoll_core::fleet::{ModelKey, ModelName, Namespace, Role};
use plimsoll_core::settings::{self, Written};
use plimsoll_daemon::config;
use plimsoll_daemon::config::check::Checks;
pub(super) use plimsoll_daemon::config::problem::{Problem, Problems, join};
use plimsoll_daemon::config::written::WrittenDuration;
use plimsoll_daemon::config::{Config, Files, LoadError, Surroundings, layers};

/// The length of a scenario without traces whose length is not set.
const LENGTH: Duration = Duration::from_hours(1);
/// The samples of a series whose interval is not set: the number that fits on a chart.
const SAMPLES_WANTED: u64 = 480;

/// A scenario and the seed that its file names.
#[derive(Clone, Debug)]
pub(crate) struct ResolvedScenario {
    pub(crate) scenario: Scenario,
    pub(crate) seed: u64,
    /// The configuration of the daemon, as YAML.
    pub(crate) config: String,
    pub(crate) warnings: Vec<Problem>,
}

/// The place of a variant in the file, its model, and the part of the model's requests that it
/// serves.
struct VariantAssignment {
    place: usize,
    model: usize,
    role: Role,
}

/// Resolves a value that was read from a file, or returns all of its problems.
pub(crate) fn resolve(mut value: Value, base: &Path) -> Result<ResolvedScenario, Vec<Problem>> {
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

    let mut file: File = layers::read(value, &mut checks.problems);
    fill_holes(&mut file);
    let resolved = resolve_file(&file, &mut checks);
    let (errors, warnings) = checks.problems.split();
    match resolved {
        Some((scenario, seed, config)) if errors.is_empty() => {
            Ok(ResolvedScenario { scenario, seed, config: config.print(), warnings })
        }
        Some(_) | None => Err(errors),
    }
}

/// Adds empty sections in place of invalid ones, so that the others keep their places. Their keys
/// are not reported as missing, because the sections have been rejected.
fn fill_holes(file: &mut File) {
    let File { models, variants, .. } = file;
    for model in models.iter_mut().flatten() {
        let adapters = &mut model.get_or_insert_default().adapters;
        for adapter in adapters.iter_mut().flatten() {
            adapter.get_or_insert_default();
        }
    }

    for variant in variants.iter_mut().flatten() {
        variant.get_or_insert_default();
    }
}

/// Resolves the file. All checks run before a missing part ends it, so that all problems are
/// reported at once.
fn resolve_file(file: &File, checks: &mut Checks<'_>) -> Option<(Scenario, u64, Config)> {
    let keys: FileKeys = settings::resolve(Some(file), "", &mut checks.problems);
    check_compared(file.compare.as_deref().unwrap_or_default(), checks);
    let (models, longest) = resolve_models(file, keys.models, checks);
    let length = resolve_length(keys.length, longest, checks);

    let shared = objectives::shared(keys.policy.0, &models, checks);
    let words = woken(shared, &models.resolved);
    let resolved = policy(words, variants::listed(file, &keys.variants, &models), checks);
    let variants = resolve_variants(file, &keys.variants, &models, resolved.as_ref(), checks);

    let config = resolved?;
    let second = Micros::from_secs(1);
    let default = Micros::new(length.micros() / SAMPLES_WANTED).max(second);
    let scenario = Scenario {
        length,
        models: models.resolved.into_iter().collect::<Option<_>>()?,
        variants: variants?,
        control: control(&keys.daemon, &config),
        sample: keys.sample.unwrap_or(default),
    };

    Some((scenario, u64::from(keys.seed), config))
}

/// A policy in which the models' gateways count as wake signals. If the daemon reads a gateway, no
/// wake signal is missing.
fn woken(mut words: Map<String, Value>, models: &[Option<Model>]) -> Map<String, Value> {
    let read = models.iter().flatten().any(|model| model.gateway.read.is_some());
    if let Some(Value::Object(zero)) = words.get_mut("scale_to_zero").filter(|_| read) {
        zero.entry("wake").or_insert_with(|| json!([]));
    }
    words
}

/// The length of a scenario whose longest trace has this length.
fn resolve_length(
    written: Option<Micros>,
    longest: Option<Micros>,
    checks: &mut Checks<'_>,
) -> Micros {
    if let Some(longest) = longest.filter(|longest| !LENGTHS.contains(&longest.duration()))
        && written.is_none()
    {
        let rule = format!(
            "must be given, from {} to {}, because the longest trace lasts {longest}",
            WrittenDuration(*LENGTHS.start()),
            WrittenDuration(*LENGTHS.end())
        );
        checks.problems.missing("length", rule);
    }

    written.or(longest).unwrap_or(Micros::from_duration(LENGTH))
}

/// Checks that a sweep has a list of values per path.
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

/// The models, and the length of the longest trace.
fn resolve_models(
    file: &File,
    keys: Vec<ModelKeys>,
    checks: &mut Checks<'_>,
) -> (Models, Option<Micros>) {
    if keys.is_empty() {
        checks.problems.missing("models", "must have at least one model");
    }

    let mut models = Models::default();
    let mut longest: Option<Micros> = None;
    let written = file.models.iter().flatten().flatten();
    for (at, (written, keys)) in written.zip(keys).enumerate() {
        let path = format!("models[{at}]");
        if written.name.is_some() && models.names.contains(&written.name) {
            checks.problems.error_at(join(&path, "name"), "is the name of another model");
        }

        models.names.push(written.name.clone());
        let resolved = resolve_model(&path, written, keys, checks);
        longest = longest.max(resolved.as_ref().and_then(|(_, span)| *span));
        models.resolved.push(resolved.map(|(model, _)| model));
    }

    (models, longest)
}

/// The variants; `None` if one lacks a part.
fn resolve_variants(
    file: &File,
    keys: &[VariantKeys],
    models: &Models,
    config: Option<&Config>,
    checks: &mut Checks<'_>,
) -> Option<Vec<Variant>> {
    if keys.is_empty() {
        checks.problems.missing("variants", "must have at least one variant");
    }

    let mut resolved = Vec::new();
    let mut names: Vec<&String> = Vec::new();
    let mut served: Vec<VariantAssignment> = Vec::new();
    let written = file.variants.iter().flatten().flatten();
    for (place, (written, keys)) in written.zip(keys).enumerate() {
        let path = format!("variants[{place}]");
        if let Some(name) = &written.name {
            if names.contains(&name) {
                checks.problems.error_at(join(&path, "name"), "is the name of another variant");
            }
            names.push(name);
        }

        let model = models.of(written.model.as_deref());
        served.extend(model.map(|model| VariantAssignment { place, model, role: keys.role }));
        let known = config.into_iter().flat_map(|config| &config.variants);
        let mut specs = known.map(|variant| &variant.spec);
        let spec = specs.find(|it| it.key.variant.as_str() == keys.name);
        resolved.push(variants::resolve(&path, written, keys, models, spec, checks));
    }

    check_roles(models, &served, checks);
    for (at, name) in models.names.iter().enumerate() {
        if let Some(name) = name
            && !served.iter().any(|variant| variant.model == at)
            && !served.is_empty()
        {
            let rule = format!("has no variant: no replica serves {name}");
            checks.problems.warning(format!("models[{at}]"), rule);
        }
    }

    resolved.into_iter().collect()
}

fn resolve_model(
    path: &str,
    written: &Written<ModelKeys>,
    keys: ModelKeys,
    checks: &mut Checks<'_>,
) -> Option<(Model, Option<Micros>)> {
    let ModelKeys { name, namespace, slo, workload, router, router_refresh, .. } = keys;
    let TransferKeys { latency, per_token } = keys.transfer;
    let GatewayKeys { queue, per_replica, read, admit } = keys.gateway;
    let allowance = written.slo.as_ref().filter(|slo| slo.ttft_per_token.is_none());
    if allowance.is_some_and(|slo| slo.long_prompt.is_some()) {
        let rule = format!("has no effect without {}", join(path, "slo.ttft_per_token"));
        checks.problems.warning(join(path, "slo.long_prompt"), rule);
    }

    if written.router_refresh.is_some() && router != Router::KvAware {
        let rule = "has no effect, because router is not kv_aware";
        checks.problems.warning(join(path, "router_refresh"), rule);
    }

    if written.sessions.is_some() && router != Router::Sticky {
        let rule = "has no effect, because router is not sticky";
        checks.problems.warning(join(path, "sessions"), rule);
    }

    let adapters_path = join(path, "adapters");
    let adapters = adapters::shares(&adapters_path, &keys.adapters, &name, &mut checks.problems);
    let loaded = workload::resolve(&join(path, "workload"), &workload, checks);
    let has_batch = keys.batch.is_some();
    let batch =
        keys.batch.and_then(|it| workload::resolve_batch(&join(path, "batch"), &it, checks));

    if checks.problems.refused_below(&join(path, "slo")) || has_batch != batch.is_some() {
        return None;
    }

    let ScenarioLoad { load, span } = loaded?;
    let key = ModelKey { namespace: Namespace::new(&namespace)?, model: ModelName::new(&name)? };
    let model = Model {
        key,
        slo,
        load,
        batch,
        adapters,
        router,
        router_refresh,
        sessions: keys.sessions,
        transfer: Transfer { latency, per_token: per_token.as_secs_f64() * 1e6 },
        gateway: Gateway { queue, per_replica, read, admit },
        client: Client {
            timeout: keys.client.timeout.filter(|it| is_some_time(*it)),
            ..keys.client
        },
    };

    Some((model, span))
}

/// Checks the roles of a model's variants: if one computes prompts, another must decode, and none
/// may do both.
fn check_roles(models: &Models, served: &[VariantAssignment], checks: &mut Checks<'_>) {
    for (at, written_name) in models.names.iter().enumerate() {
        let of_model: Vec<&VariantAssignment> =
            served.iter().filter(|variant| variant.model == at).collect();
        let has_prefill = of_model.iter().any(|variant| variant.role == Role::Prefill);
        let has_decode = of_model.iter().any(|variant| variant.role == Role::Decode);
        if !has_prefill && !has_decode {
            continue;
        }

        let name = written_name.as_deref().unwrap_or("its model");
        for VariantAssignment { place, role, .. } in of_model {
            let wrong = match role {
                Role::Both => format!("must be prefill or decode, as of another variant of {name}"),
                Role::Prefill if has_decode => continue,
                Role::Decode if has_prefill => continue,
                Role::Prefill => format!("is prefill, and no variant of {name} is decode"),
                Role::Decode => format!("is decode, and no variant of {name} is prefill"),
            };

            checks.problems.missing(format!("variants[{place}].role"), wrong);
        }
    }
}

/// The settings of the simulated daemon.
fn control(keys: &DaemonKeys, config: &Config) -> Control {
    let DaemonKeys { scrape_loss, relay, hold, outage } = *keys;

    Control {
        policy: config.policy.clone(),
        tick: Micros::from_duration(config.keys.tick_interval),
        scrape: Micros::from_duration(config.scrape.settings.interval),
        scrape_loss,
        relay,
        hold,
        outage,
    }
}

/// Sections of the daemon's configuration that do not affect its decisions.
pub(crate) const NO_POLICY: [&str; 11] = [
    "server",
    "external_metrics",
    "external_scaler",
    "shadow",
    "shutdown",
    "trace",
    "kubernetes",
    "compatibility",
    "state_file",
    "prometheus",
    "variants",
];

/// The daemon's configuration with these keys and these variants, resolved by the daemon's own
/// code.
fn policy(
    mut words: Map<String, Value>,
    variants: Vec<Value>,
    checks: &mut Checks<'_>,
) -> Option<Config> {
    for key in NO_POLICY {
        if words.shift_remove(key).is_some() {
            let rule = "does not affect decisions, so a scenario can't have it";
            checks.problems.error_at(join("policy", key), rule);
        }
    }

    words.insert("variants".to_owned(), Value::Array(variants));
    let surroundings = Surroundings {
        origin: "policy".to_owned(),
        base: checks.base().to_owned(),
        environment: BTreeMap::new(),
        files: Files::OfPolicy,
    };

    let problems = match config::parse(&Value::Object(words).to_string(), &surroundings) {
        Ok(config::LoadedConfig { config, warnings }) => {
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
    // The study generates the variants, and their problems have been reported at their own place.
    for problem in problems.iter().filter(|problem| !problem.path.starts_with("variants")) {
        let path = match problem.path.as_str() {
            "" => "policy".to_owned(),
            key => format!("policy.{key}"),
        };
        checks.problems.take_over(Problem { path, ..problem.clone() });
    }
}
