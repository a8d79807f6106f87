//! A world as the scenario file that `plimsoll simulate` plays.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::simulate::scenario::{Client, Router, Startup};
use crate::study::file::{
    AutoscalerKeys, AutoscalerKind, BatchKeys, BehaviorKeys, DaemonKeys, DirectionKeys, DrawnKeys,
    File, FileKeys, GatewayKeys, Kind, ModelKeys, PointKeys, PolicyType, QuantityText,
    ReplicaCountKeys, RolloutKeys, SelectPolicy, StepKeys, VariantKeys, Words, WorkloadKeys,
};
use crate::study::worlds::arrivals::WorldArrivals;
use crate::study::worlds::course::Course;
use crate::study::worlds::draft::WorldDraft;
use crate::study::worlds::fleet::{Provisioned, ReplicaBounds, WorldRollout, WorldStartup};
use crate::study::worlds::machines::Machine;
use crate::study::worlds::numbers::{count, seconds};
use crate::study::worlds::priors::AutoscalerPreset;
use crate::study::worlds::surroundings::{
    ClientPatience, ObservationPath, Prometheus, WorldGateway, WorldSurroundings,
};
use plimsoll_core::settings::Written;
use plimsoll_core::settings::written::WrittenDuration;

/// The interval at which a gateway is read.
const GATEWAY_READ: Duration = Duration::from_secs(1);

/// The number of missed scrapes after which a replica is stale.
const STALE_AFTER: u64 = 4;

/// The surge of a rollout.
const SURGE: f64 = 0.25;

/// The file of a world.
pub(crate) fn file(draft: &WorldDraft, kind: Kind) -> File {
    let WorldDraft { lot, machines, surroundings, arrivals, .. } = draft;
    let variants = machines.iter().enumerate().map(|(at, it)| Some(variant(draft, at, it)));

    Written::<FileKeys> {
        about: Some(about(draft)),
        kind: Some(kind),
        length: Some(seconds(arrivals.length)),
        seed: Some(lot.simulation_seed()),
        models: Some(vec![Some(model(draft))]),
        variants: Some(variants.collect()),
        policy: policy(&surroundings.observation),
        daemon: daemon(&surroundings.observation),
        ..Default::default()
    }
}

/// A world as YAML.
pub(crate) fn value(file: &File) -> Value {
    let mut value = json!(file);
    prune(&mut value);
    value
}

/// Removes unset keys.
fn prune(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(prune);
        }
        Value::Array(list) => list.iter_mut().for_each(prune),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// A description of the world, in a sentence.
fn about(draft: &WorldDraft) -> String {
    let WorldDraft { lot, machines, requests, arrivals, fleet, .. } = draft;
    let names: Vec<&str> = machines.iter().map(|it| it.pair.accelerator).collect();

    format!(
        "World {} of seed {}: {} on {}, {} requests, arrivals {}, {:.1} replicas on average.",
        lot.number,
        lot.seed,
        machines[0].pair.model,
        names.join(" and "),
        requests.task,
        arrivals.shape,
        fleet.need,
    )
}

fn model(draft: &WorldDraft) -> Written<ModelKeys> {
    let WorldDraft { machines, requests, objectives, surroundings, arrivals, fleet, .. } = draft;
    let WorldSurroundings { router, sessions, clients, gateway, .. } = surroundings;
    let all_sessions = count(sessions * fleet.need.max(1.0));

    Written::<ModelKeys> {
        name: Some(machines[0].pair.model.to_owned()),
        slo: Some(objectives.written()),
        workload: Some(Written::<WorkloadKeys> {
            drawn: Some(Written::<DrawnKeys> {
                variation: Some(arrivals.variation),
                drift: arrivals.changes.drift.dated(arrivals.length).map(|it| it.written()),
                prompt: Some(requests.prompt.written()),
                output: Some(requests.output.written()),
                ..rate(&arrivals.course)
            }),
            ..Default::default()
        }),
        batch: batch(draft),
        router: Some(router.value),
        sessions: (router.value == Router::Sticky).then_some(all_sessions),
        gateway: gateway_keys(gateway),
        client: client(&clients.value),
        ..Default::default()
    }
}

fn batch(draft: &WorldDraft) -> Option<Written<BatchKeys>> {
    let WorldArrivals { batch, batch_course, .. } = &draft.arrivals;
    let drawn = batch_course.as_ref().map(|course| Written::<DrawnKeys> {
        prompt: Some(batch.requests.prompt.written()),
        output: Some(batch.requests.output.written()),
        ..rate(course)
    });
    drawn.map(|drawn| Written::<BatchKeys> { drawn: Some(drawn), ..Default::default() })
}

/// The keys of a rate over time.
fn rate(course: &Course) -> Written<DrawnKeys> {
    if let [(_, rate)] = course.points.as_slice() {
        return Written::<DrawnKeys> { rate: Some(*rate), ..Default::default() };
    }

    let points = course
        .points
        .iter()
        .map(|(at, rate)| Some(Written::<PointKeys> { at: Some(seconds(*at)), rate: Some(*rate) }));

    Written::<DrawnKeys> {
        points: Some(points.collect()),
        period: course.period.map(seconds),
        ..Default::default()
    }
}

fn gateway_keys(gateway: &WorldGateway) -> Option<Written<GatewayKeys>> {
    let read = gateway.is_read.then_some(WrittenDuration(GATEWAY_READ));
    gateway.per_replica.map(|per_replica| Written::<GatewayKeys> {
        per_replica: Some(per_replica),
        read,
        ..Default::default()
    })
}

fn client(clients: &ClientPatience) -> Option<Written<Client>> {
    clients.timeout.map(|timeout| Written::<Client> {
        timeout: Some(seconds(timeout)),
        retries: clients.retries,
        ..Default::default()
    })
}

fn variant(draft: &WorldDraft, at: usize, machine: &Machine) -> Written<VariantKeys> {
    let WorldDraft { requests, surroundings, arrivals, fleet, faults, .. } = draft;
    let ReplicaBounds { min, max, initial } = fleet.counts[at];
    let rollout = fleet.rollout.value.filter(|_| at == 0);

    Written::<VariantKeys> {
        name: Some(machine.name()),
        accelerator: Some(machine.pair.accelerator.to_owned()),
        cost: Some(machine.cost()),
        replicas: Some(Written::<ReplicaCountKeys> {
            min: Some(min),
            max: Some(max),
            initial: Some(initial),
        }),
        engine: Some(machine.written(requests.hits)),
        startup: Some(startup(&fleet.startup, faults.failed_starts.value)),
        lifecycle: match at {
            0 => faults.of_first(arrivals.slowed, initial),
            _ => faults.of_other(machine.tenure),
        },
        rollout: rollout.map(rollout_keys),
        autoscaler: autoscaler(surroundings),
        ..Default::default()
    }
}

fn startup(start: &WorldStartup, failures: f64) -> Written<Startup> {
    let [image, load, warmup] = start.phases().map(seconds);
    let (warm_nodes, node) = match start.provisioned {
        Some(Provisioned { warm, node }) => (Some(warm), Some(seconds(node))),
        None => (None, None),
    };

    Written::<Startup> {
        warm_nodes,
        node,
        image: Some(image),
        load: Some(load),
        warmup: Some(warmup),
        sigma: Some(start.sigma),
        failures: (failures > 0.0).then_some(failures),
    }
}

fn rollout_keys(rollout: WorldRollout) -> Written<RolloutKeys> {
    Written::<RolloutKeys> {
        at: Some(seconds(rollout.at)),
        max_surge: Some(SURGE),
        max_unavailable: Some(rollout.max_unavailable),
    }
}

fn autoscaler(surroundings: &WorldSurroundings) -> Option<Written<AutoscalerKeys>> {
    let mut keys = Written::<AutoscalerKeys> {
        delay: surroundings.delay.value.map(seconds),
        ..Default::default()
    };
    match surroundings.follower.value {
        AutoscalerPreset::Recommended => {}
        AutoscalerPreset::Keda => keys.kind = Some(AutoscalerKind::Keda),
        AutoscalerPreset::Stock => {
            // The defaults of the API server for an HPA without `behavior` (Kubernetes 1.36,
            // "Default Behavior").
            let up = [(PolicyType::Percent, 100), (PolicyType::Pods, 4)];
            keys.behavior = Some(Written::<BehaviorKeys> {
                scale_up: Some(direction(0, &up)),
                scale_down: Some(direction(300, &[(PolicyType::Percent, 100)])),
            });
        }
    }

    (keys != Written::<AutoscalerKeys>::default()).then_some(keys)
}

/// A direction with the API server's tolerance and period, and this window and these steps.
fn direction(window: u32, steps: &[(PolicyType, u32)]) -> Written<DirectionKeys> {
    let policies = steps.iter().map(|(kind, value)| {
        Some(Written::<StepKeys> { kind: Some(*kind), value: Some(*value), period: Some(15) })
    });

    Written::<DirectionKeys> {
        tolerance: Some(QuantityText::Number(0.1)),
        window: Some(window),
        select_policy: Some(SelectPolicy::Max),
        policies: Some(policies.collect()),
    }
}

/// The daemon's configuration for a Prometheus: a replica becomes stale after a few scrapes.
fn policy(observation: &ObservationPath) -> Option<Words> {
    let Prometheus { interval, .. } = observation.prometheus?;
    let mut words = Map::new();
    words.insert("scrape".to_owned(), json!({"interval": span(interval)}));
    words.insert("observe".to_owned(), json!({"stale_after": span(STALE_AFTER * interval)}));
    Some(Words(words))
}

fn span(seconds: u64) -> String {
    WrittenDuration(Duration::from_secs(seconds)).to_string()
}

fn daemon(observation: &ObservationPath) -> Option<Written<DaemonKeys>> {
    let ObservationPath { prometheus, loss, .. } = observation;
    let keys = Written::<DaemonKeys> {
        scrape_loss: (*loss > 0.0).then_some(*loss),
        relay: prometheus.map(|it| seconds(it.late)),
        ..Default::default()
    };
    (keys != Written::<DaemonKeys>::default()).then_some(keys)
}
