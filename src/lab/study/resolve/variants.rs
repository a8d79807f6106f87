//! Variants: engines, starts, failures, and autoscalers.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::simulate::Micros;
use crate::simulate::replica::arrivals::Fetch;
use crate::simulate::replica::settings::{Admission, Experts, Options, Settings, StepTime};
use crate::simulate::replica::speculation::Speculation;
use crate::simulate::scaler::{self, MilliValue, Rules, ScalingPolicy};
use crate::simulate::scenario::{
    Actuator, Hpa, Keda, Lifecycle, Model, Portion, Prefix, Rollout, Signal, Startup, Variant,
};
use crate::simulate::workload::load::{Load, ReplayLoad};
use crate::study::file::{
    AutoscalerKeys, AutoscalerKind, BehaviorKeys, DirectionKeys, EngineKeys, ExpertKeys, FetchKeys,
    File, PolicyType, QuantityText, REPLICAS_MAX, ReplicaCountKeys, RolloutKeys, SelectPolicy,
    SpeculationKeys, StepKeys, VariantKeys,
};
use crate::study::resolve::adapters;
use plimsoll_core::decide::enforce::{Amount, Select};
use plimsoll_core::fleet::{Bounds, VariantSpec};
use plimsoll_core::observe::template::{Container, PodTemplate};
use plimsoll_core::settings::Written;
use plimsoll_core::units::{Fraction, Replicas};
use plimsoll_daemon::config::check::Checks;
use plimsoll_daemon::publish::quantity::Quantity;

/// The default of vLLM's V1 engine for an online server on accelerators of less than 70 GB.
const BATCH_TOKENS: u32 = 2_048;
/// Keys of a variant that the daemon reads as written.
const SHARED: [&str; 7] =
    ["name", "role", "accelerator", "cost", "list_price", "mismatch", "start_time"];

/// One variant as written, with its path.
struct VariantResolver<'a, 'b, 'c> {
    path: &'a str,
    checks: &'b mut Checks<'c>,
}

/// The models of a scenario, in the order of the file.
#[derive(Default)]
pub(crate) struct Models {
    /// The name of each, if it has one.
    pub(crate) names: Vec<Option<String>>,
    /// Each resolved model, if it has no problem.
    pub(crate) resolved: Vec<Option<Model>>,
}

impl Models {
    /// The model that a variant with this model name serves.
    pub(crate) fn of(&self, written: Option<&str>) -> Option<usize> {
        match written {
            Some(written) => self.names.iter().position(|name| name.as_deref() == Some(written)),
            None => (self.names.len() == 1).then_some(0),
        }
    }

    fn get(&self, model: usize) -> Option<&Model> {
        self.resolved.get(model)?.as_ref()
    }
}

/// The variants of known models, as the daemon's configuration lists them.
pub(crate) fn listed(file: &File, keys: &[VariantKeys], models: &Models) -> Vec<Value> {
    let written = file.variants.iter().flatten().flatten();
    let known = written.zip(keys).filter_map(|(written, keys)| {
        let model = models.get(models.of(keys.model.as_deref())?)?;
        Some((written, keys, &model.key))
    });
    let words = known.enumerate().map(|(at, (written, keys, key))| {
        let mut listing = json!({
            "namespace": key.namespace.as_str(),
            "model": key.model.as_str(),
            "replicas": {"min": keys.replicas.min, "max": keys.replicas.max},
            // The simulated daemon does not scrape this address, but the configuration requires
            // targets.
            "targets": {"static": [format!("simulated-{at}:8000")]},
        });

        let given = json!(written);
        for key in SHARED.into_iter().filter(|key| !given[key].is_null()) {
            listing[key] = given[key].clone();
        }

        listing
    });

    words.collect()
}

/// Resolves a variant from the daemon's specification of it; notes all problems.
pub(crate) fn resolve(
    path: &str,
    written: &Written<VariantKeys>,
    keys: &VariantKeys,
    models: &Models,
    spec: Option<&VariantSpec>,
    checks: &mut Checks<'_>,
) -> Option<Variant> {
    let VariantKeys { replicas, engine, startup, lifecycle, autoscaler, .. } = keys;
    let mut one = VariantResolver { path, checks };
    let model = one.model(keys.model.as_deref(), models);
    let served = model.and_then(|model| models.get(model));
    let (bounds, initial) = one.counts(*replicas);
    let settings = one.engine(engine);
    let options = one.options(engine, &settings);
    let template = engine.arguments.then(|| Arc::new(template(&settings, &options)));
    let has_hits = written.engine.as_ref().is_some_and(|engine| engine.prefix_hits.is_some());
    let prefix = one.prefix(engine, has_hits, served);
    let slots_path = one.at("engine.adapters");
    let adapters = adapters::slots(&slots_path, engine.adapters, served, &mut one.checks.problems);

    let rollout = keys.rollout.and_then(|it| one.rollout(it));
    one.nodes(*startup);
    let actuator = one.autoscaler(autoscaler, bounds, initial);
    Some(Variant {
        spec: spec?.clone(),
        model: model?,
        initial,
        engine: settings,
        options,
        template,
        prefix,
        adapters,
        startup: *startup,
        lifecycle: Lifecycle {
            crash_every: lifecycle.crash_every.filter(|it| is_some_time(*it)),
            interrupt_every: lifecycle.interrupt_every.filter(|it| is_some_time(*it)),
            ..*lifecycle
        },
        rollout,
        actuator,
    })
}

/// The pod template of an engine, with what its command line says.
fn template(settings: &Settings, options: &Options) -> PodTemplate {
    let Settings { max_num_seqs, max_num_batched_tokens, block_size, .. } = *settings;
    let Options { api_servers, stages, .. } = *options;
    let flags = [
        ("max-num-seqs", max_num_seqs),
        ("max-num-batched-tokens", max_num_batched_tokens),
        ("block-size", block_size),
        ("api-server-count", api_servers),
        ("pipeline-parallel-size", stages),
    ];

    let engine = Container {
        image: "vllm/vllm-openai".to_owned(),
        args: flags.map(|(flag, value)| format!("--{flag}={value}")).to_vec(),
        ..Container::default()
    };
    PodTemplate { containers: vec![engine], ..PodTemplate::default() }
}

impl VariantResolver<'_, '_, '_> {
    fn at(&self, key: &str) -> String {
        format!("{}.{key}", self.path)
    }

    fn model(&mut self, written: Option<&str>, models: &Models) -> Option<usize> {
        let path = self.at("model");
        let known = models.of(written);
        match written {
            None if models.names.len() > 1 => {
                self.checks.problems.missing(path, "is required, because there are several models");
            }
            // If a model has no name, the variant may mean that model.
            Some(written) if known.is_none() && models.names.iter().all(Option::is_some) => {
                let rule = "must be the name of a model";
                self.checks.problems.error(path, rule, format!("{written:?}"));
            }
            Some(_) | None => {}
        }

        known
    }

    fn counts(&mut self, keys: ReplicaCountKeys) -> (Bounds, Replicas) {
        let ReplicaCountKeys { min, max: written_max, initial: written_initial } = keys;
        let max = written_max.unwrap_or(REPLICAS_MAX);
        if min > max {
            let rule = format!("must not be below replicas.min, which is {min}");
            self.checks.problems.error(self.at("replicas.max"), rule, max);
        }

        let path = self.at("replicas.initial");
        let initial = self.checks.number(&path, written_initial, &(0..=max));
        let [min, max, initial] = [min, max, initial.unwrap_or(min)].map(Replicas::saturating);
        (Bounds::new(min, Some(max)).unwrap_or_default(), initial)
    }

    fn engine(&mut self, keys: &EngineKeys) -> Settings {
        let EngineKeys { alpha, beta, delta, gamma, .. } = keys;
        let EngineKeys { kv_tokens, seats, batch_tokens, block_size: block, .. } = *keys;
        let batch = batch_tokens.unwrap_or(BATCH_TOKENS.max(seats));
        if batch < seats && !self.checks.problems.refused(&self.at("engine.seats")) {
            let rule = format!("must not be below engine.seats, which is {seats}");
            self.checks.problems.error(self.at("engine.batch_tokens"), rule, batch);
        }

        if let Some(tokens) = kv_tokens.filter(|tokens| *tokens < block) {
            let rule = format!("must be at least one block of {block} tokens");
            self.checks.problems.error(self.at("engine.kv_tokens"), rule, tokens);
        }

        let experts = keys.experts.map(|ExpertKeys { tokens, per_token }| Experts {
            tokens,
            per_token: micros(per_token),
        });
        Settings {
            step: StepTime {
                alpha: micros(*alpha),
                beta: micros(*beta),
                delta: micros(*delta),
                gamma: micros(*gamma),
                experts: experts.unwrap_or(Experts::NONE),
            },
            max_num_seqs: seats,
            max_num_batched_tokens: batch,
            block_size: block,
            kv_blocks: kv_tokens.unwrap_or_default() / block,
            admission: Admission::WholePrompt,
        }
    }

    fn options(&mut self, keys: &EngineKeys, settings: &Settings) -> Options {
        if keys.fetch.is_some() && (keys.prefix_caching || keys.prefix_hits > Fraction::ZERO) {
            let rule = "must not be set with engine.prefix_hits or engine.prefix_caching: only \
                one of them can apply to a prompt";
            self.checks.problems.error_at(self.at("engine.fetch"), rule);
        }

        let EngineKeys { api_servers, pipeline_stages, noise, .. } = *keys;
        let speculation = keys.speculation.map(|it| self.speculation(it, settings));
        let fetch = keys.fetch.map(|FetchKeys { share, latency, per_token }| Fetch {
            share,
            latency,
            per_token: micros(per_token),
        });
        Options { api_servers, stages: pipeline_stages, speculation, noise, fetch }
    }

    fn speculation(&mut self, keys: SpeculationKeys, settings: &Settings) -> Speculation {
        let SpeculationKeys { drafts, tokens } = keys;
        let speculation = Speculation::with_mean(drafts, tokens);
        let most = speculation.most();
        if tokens > f64::from(most) && !self.checks.problems.refused_below(&self.at("engine")) {
            let rule = format!("must not be above {most}, one more than engine.speculation.drafts");
            self.checks.problems.error(self.at("engine.speculation.tokens"), rule, tokens);
        }

        let Settings { max_num_seqs: seats, max_num_batched_tokens: batch, .. } = *settings;
        let needed = seats.saturating_mul(most);
        if batch < needed && !self.checks.problems.refused_below(&self.at("engine")) {
            let rule =
                format!("must not be below {needed}, {most} tokens for each of engine.seats");
            self.checks.problems.error(self.at("engine.batch_tokens"), rule, batch);
        }

        speculation
    }

    fn prefix(&mut self, keys: &EngineKeys, has_hits: bool, model: Option<&Model>) -> Prefix {
        if !keys.prefix_caching {
            return Prefix::Share(keys.prefix_hits);
        }

        let path = self.at("engine.prefix_caching");
        if has_hits {
            let rule = "must not be true with engine.prefix_hits, which sets the hits";
            self.checks.problems.error_at(path, rule);
            return Prefix::Blocks;
        }

        match model.map(|model| &model.load) {
            None => {}
            Some(Load::Replay(ReplayLoad { prompts: Some(prompts), .. })) => {
                let block = keys.block_size;
                let page = prompts.page_tokens();
                if !page.is_multiple_of(block) {
                    let rule =
                        format!("must divide the {page} tokens of one of the trace's hash_ids");
                    self.checks.problems.error(self.at("engine.block_size"), rule, block);
                }
            }
            Some(Load::Replay(_) | Load::Drawn(_) | Load::Closed(_) | Load::Described(_)) => {
                let rule = "only finds blocks of preempted requests, because prompts are unknown: \
                    use a trace with hash_ids";
                self.checks.problems.warning(path, rule);
            }
        }

        Prefix::Blocks
    }

    fn rollout(&mut self, keys: RolloutKeys) -> Option<Rollout> {
        let max_surge = self.portion("rollout.max_surge", keys.max_surge);
        let max_unavailable = self.portion("rollout.max_unavailable", keys.max_unavailable);
        if max_surge == Some(Portion::NONE) && max_unavailable == Some(Portion::NONE) {
            let rule = "must not be 0 if rollout.max_unavailable is 0, because then no replica can be \
                 replaced";
            self.checks.problems.error(self.at("rollout.max_surge"), rule, 0);
        }

        Some(Rollout { at: keys.at, max_surge: max_surge?, max_unavailable: max_unavailable? })
    }

    /// A share below 1, or a whole number.
    fn portion(&mut self, key: &str, number: f64) -> Option<Portion> {
        if number < 1.0 && number > 0.0 {
            return Fraction::new(number).map(Portion::Share);
        }

        let whole = (0..=REPLICAS_MAX).find(|count| f64::from(*count).total_cmp(&number).is_eq());
        if whole.is_none() {
            let rule = "must be a share below 1, or a whole number of replicas";
            self.checks.problems.error(self.at(key), rule, number);
        }

        whole.map(Portion::Replicas)
    }

    /// Warns about a node start time that has no effect.
    fn nodes(&mut self, startup: Startup) {
        if startup.warm_nodes.is_none() && is_some_time(startup.node) {
            let rule = "has no effect without startup.warm_nodes, because every replica has a \
                node; 0 makes each replica wait for one";
            self.checks.problems.warning(self.at("startup.node"), rule);
        }
    }

    fn autoscaler(&mut self, keys: &AutoscalerKeys, bounds: Bounds, initial: Replicas) -> Actuator {
        let AutoscalerKeys { kind, polling, cooldown, activation, .. } = *keys;
        let mut hpa = self.hpa(keys, bounds);
        if kind != AutoscalerKind::None
            && hpa.signal.needs_replicas()
            && [bounds.min(), initial].contains(&Replicas::ZERO)
        {
            let rule = "cannot bring the variant back from zero replicas, because only replicas \
                report it; rate counts requests at the gateway";
            self.checks.problems.warning(self.at("autoscaler.follows"), rule);
        }

        match kind {
            AutoscalerKind::None => Actuator::Fixed,
            AutoscalerKind::Hpa => Actuator::Hpa(hpa),
            AutoscalerKind::Keda => {
                let to_zero = hpa.settings.min == Replicas::ZERO;
                hpa.settings.min = hpa.settings.min.max(Replicas::ONE);
                Actuator::Keda(Keda {
                    hpa,
                    to_zero,
                    polling,
                    cooldown,
                    activation: milli(activation),
                })
            }
        }
    }

    fn hpa(&mut self, keys: &AutoscalerKeys, bounds: Bounds) -> Hpa {
        let AutoscalerKeys { follows: signal, target, sync, delay, .. } = *keys;
        let behavior = keys.behavior.clone().unwrap_or_default();
        let min = bounds.min();
        let max = bounds.max().unwrap_or(min);
        let mut settings = if signal == Signal::Desired {
            scaler::ScalerSettings::following(min, max)
        } else {
            if target.is_none() {
                let rule = "is required, unless follows is desired";
                self.checks.problems.missing(self.at("autoscaler.target"), rule);
            }

            let settings = match keys.behavior {
                Some(_) => scaler::ScalerSettings::with_behavior,
                None => scaler::ScalerSettings::new,
            };
            settings(min, max, MilliValue(1000))
        };

        settings.target = target.map_or(settings.target, milli);
        let BehaviorKeys { scale_up, scale_down } = behavior;
        for (key, keys, rules) in
            [("scaleUp", scale_up, &mut settings.up), ("scaleDown", scale_down, &mut settings.down)]
        {
            let Some(keys) = keys else { continue };
            let path = self.at(&format!("autoscaler.behavior.{key}.tolerance"));
            rules.tolerance =
                self.tolerance(path, keys.tolerance.as_ref()).unwrap_or(rules.tolerance);
            resolve_rules(&keys, rules);
        }

        Hpa { signal, settings, sync, delay }
    }

    /// The tolerance as a share, if there is one.
    fn tolerance(&mut self, path: String, written: Option<&QuantityText>) -> Option<f64> {
        let number = match written? {
            QuantityText::Number(value) => Some(*value),
            QuantityText::Text(text) => {
                text.parse::<Quantity>().ok().map(|it| it.milli() as f64 / 1000.0)
            }
        };

        let share = number.filter(|it| (0.0..=1.0).contains(it));
        if share.is_none() {
            let found = serde_json::to_value(written).unwrap_or_default();
            self.checks.problems.error(path, "must be a quantity from 0 to 1", found);
        }

        share
    }
}

/// Applies the written keys over the default rules. Policies without a type have been rejected.
fn resolve_rules(keys: &DirectionKeys, rules: &mut Rules) {
    let DirectionKeys { window, select_policy, policies, .. } = keys;
    rules.window = window.map_or(rules.window, seconds);
    rules.select = match select_policy {
        Some(SelectPolicy::Max) => Select::Max,
        Some(SelectPolicy::Min) => Select::Min,
        Some(SelectPolicy::Disabled) => Select::Disabled,
        None => rules.select,
    };

    if let Some(policies) = policies {
        rules.policies = policies.iter().filter_map(policy).collect();
    }
}

fn policy(keys: &StepKeys) -> Option<ScalingPolicy> {
    let amount = match keys.kind? {
        PolicyType::Pods => Amount::Pods(keys.value),
        PolicyType::Percent => Amount::Percent(keys.value),
    };
    Some(ScalingPolicy { amount, period: seconds(keys.period) })
}

/// Returns true if this is a real span, rather than the 0 that stands for never.
pub(super) fn is_some_time(span: Micros) -> bool {
    span > Micros::ZERO
}

fn seconds(count: u32) -> Micros {
    Micros::from_secs(u64::from(count))
}

fn micros(span: Duration) -> f64 {
    span.as_secs_f64() * 1e6
}

#[expect(clippy::cast_possible_truncation, reason = "the numbers are bounded")]
fn milli(value: f64) -> MilliValue {
    MilliValue((value * 1000.0).round() as i64)
}
