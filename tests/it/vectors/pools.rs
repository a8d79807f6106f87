//! Readers of Seldon Core 2's rules for servers that host several models.
//!
//! Every case is run by [`Rules::Seldon`]. What Seldon's arithmetic does that no type here can hold
//! (counts that wrap below zero, single precision), differs; the expectation is then computed from
//! the case in plain arithmetic. What [`Rules::Mended`] does otherwise is held by unit tests.

mod lifecycle;
mod scheduler;

use std::collections::{BTreeMap, BTreeSet};

use crate::reference::seldon::copies::{
    CopyState, ModelState, Version, Wanted, census, model_state,
};
use crate::reference::seldon::count::{
    Assigned, Coin, Host, Packing, Presence, Scaling, Service, Size, Statistics, scale_down,
    scale_up, statistics,
};
use crate::reference::seldon::drain::{Leaver, Waits};
use crate::reference::seldon::lag::{
    Direction, Ignored, Lags, Scalable, Thresholds, Trigger, VersionNumber, step,
};
use crate::reference::seldon::memory::{Capacity, Ledger};
use crate::reference::seldon::written::{Contradiction, Written, accept, normalize};
use crate::reference::seldon::{Bytes, Rules};
use jiff::{SignedDuration, Timestamp};
use plimsoll::decide::pools::Ordinal;
use plimsoll::fleet::{ModelName, VariantName};
use plimsoll::units::{Fraction, Replicas, Requests, Seconds};
use serde_json::{Value, json};

use super::Outcome;

pub(super) use lifecycle::{drain_time, lifecycle, placement};

const WRAP: &str = "a count never wraps";
const SINGLE: &str = "memory is counted in whole bytes";
const EVICTED: &str = "a load that cannot fit evicts nothing";
const NEGATIVE: &str = "a negative count is no count";
const PROBABILITY: &str = "a probability is between 0 and 1";
const LARGE: &str = "more than 1,000,000 replicas";

/// `server-scale-up`.
pub(super) fn up(case: &Value) -> Outcome {
    let input = &case["input"];
    let ours = scale_up(Rules::Seldon, size(input), stats(&input["stats"]));
    same_request(ours, case)
}

/// `server-scale-down`.
pub(super) fn down(case: &Value) -> Outcome {
    let input = &case["input"];
    let fraction = |name: &str| Fraction::new(input[name].as_f64().unwrap());
    let probability = fraction("packing_fraction");
    let coin =
        probability.map(|probability| Coin { probability, draw: fraction("random_draw").unwrap() });
    let Some(Ok(packing)) = coin.map(Coin::packing) else {
        let outside = !(0.0..=1.0).contains(&input["packing_fraction"].as_f64().unwrap());
        return differs(outside, PROBABILITY);
    };
    let ours = scale_down(Rules::Seldon, size(input), stats(&input["stats"]), packing);
    same_request(ours, case)
}

fn same_request(ours: Scaling, case: &Value) -> Outcome {
    let (input, output) = (&case["input"], &case["output"]);
    let sent = output["send_request"] == true;
    let theirs = sent.then(|| output["target_replicas"].as_u64().unwrap());
    if ours.target().map(|target| u64::from(target.count())) == theirs {
        return Outcome::Passed;
    }
    let large =
        |value: &Value| value.as_i64().is_some_and(|n| n > i64::from(Replicas::LIMIT.count()));
    if large(&input["expected_replicas"]) || large(&input["stats"]["max_desired_model_replicas"]) {
        return Outcome::NotRun(LARGE);
    }
    let empty = input["stats"]["empty_replicas"].as_i64().unwrap();
    let floor = input["min_replicas"].as_i64().unwrap().max(1);
    let wraps = empty > input["expected_replicas"].as_i64().unwrap();
    if wraps && ours.target().map(|target| i64::from(target.count())) == Some(floor) {
        return Outcome::Differs(WRAP);
    }
    failed(&format!("{ours:?}"), output)
}

/// `server-stats`.
pub(super) fn server_stats(case: &Value) -> Outcome {
    let (input, output) = (&case["input"], &case["output"]);
    let server = text(&input["server"]);
    let size = size(input);
    let stats = statistics(Rules::Seldon, &hosts(input), &assigned(input, server), size.expected);
    let request = |scaling: Scaling| scaling.target().map(|target| i64::from(target.count()));
    let down = |packing| request(scale_down(Rules::Seldon, size, Some(stats), packing));
    let ours = json!({
        "stats": {
            "empty_replicas": stats.empty.count(),
            "max_desired_model_replicas": stats.hosted.count(),
        },
        "request_on_scale_up_event": request(scale_up(Rules::Seldon, size, Some(stats))),
        "request_on_scale_down_event_without_packing": down(Packing::Refused),
        "request_on_scale_down_event_with_packing": down(Packing::Allowed),
    });
    if ours == *output {
        return Outcome::Passed;
    }
    let known = output["stats"] == ours["stats"]
        && size.expected.is_some_and(|expected| stats.empty > expected)
        && down(Packing::Refused) == Some(i64::from(size.min.max(Replicas::ONE).count()));
    if known { Outcome::Differs(WRAP) } else { failed(&ours.to_string(), output) }
}

/// The connected replicas, with what is on them.
fn hosts(input: &Value) -> Vec<Host> {
    list(&input["connected_replicas"])
        .iter()
        .map(|replica| {
            let index = replica["replica"].as_u64().unwrap().to_string();
            let placed = |model: &&Value| model["copies"][&index] == "LoadRequested";
            let models = list(&input["models"]).iter();
            let service =
                if replica["draining"] == true { Service::Draining } else { Service::Serving };
            Host {
                ordinal: ordinal(&replica["replica"]),
                service,
                resident: list(&replica["loaded_or_loading_models"]).iter().map(name).collect(),
                coming: models.filter(placed).map(|model| name(&model["name"])).collect(),
            }
        })
        .collect()
}

fn assigned(input: &Value, server: &str) -> Vec<Assigned> {
    list(&input["models"])
        .iter()
        .filter(|model| model["assigned_server"] == server)
        .map(|model| Assigned {
            desired: replicas(&model["desired_replicas"]),
            presence: presence(&model["deleted"]),
        })
        .collect()
}

/// `scaling-spec`.
pub(super) fn spec(case: &Value) -> Outcome {
    let output = &case["output"];
    let ours = match normalize(written(&case["input"])) {
        Ok(Size { expected, min, max }) => {
            let same = expected == Some(replicas(&output["replicas"]))
                && min == replicas(&output["min_replicas"])
                && max == ceiling(&output["max_replicas"]);
            return if same { Outcome::Passed } else { failed("other numbers", output) };
        }
        Err(Contradiction::BelowMin { .. }) => "replicas below min",
        Err(Contradiction::Negative { .. }) => "negative replicas below min",
        Err(Contradiction::Inverted { .. }) => "min above max",
        Err(Contradiction::AboveMax { .. }) => "replicas above max",
    };
    if output["error"] == ours { Outcome::Passed } else { failed(ours, output) }
}

/// `scaling-request`: what a message changes in an object.
pub(super) fn request(case: &Value) -> Outcome {
    let (input, output) = (&case["input"], &case["output"]);
    let spec = &input["server_spec"];
    let meta = input["message_has_kubernetes_meta"] == true;
    let kind = text(&input["message_type"]);
    let mut replicas = spec["replicas"].clone();
    let mut loaded = json!(0);
    let requested = input["requested_replicas"].as_i64().unwrap();
    if kind == "scaling-request" && meta {
        if let Ok(accepted) = accept(written(spec), requested) {
            replicas = json!(accepted.count());
        }
    } else if kind == "status-update"
        && meta
        && input["message_generation"] == input["server_generation"]
    {
        loaded = input["loaded_model_replicas"].clone();
    }
    let ours = json!({
        "spec_replicas_after": replicas,
        "status_loaded_models_after": loaded,
        "spec_changed": replicas != spec["replicas"],
    });
    if ours == *output {
        Outcome::Passed
    } else if requested < 0 && ours["spec_changed"] == false {
        Outcome::Differs(NEGATIVE)
    } else if requested > i64::from(Replicas::LIMIT.count()) {
        Outcome::NotRun(LARGE)
    } else {
        failed(&ours.to_string(), output)
    }
}

/// `model-status`.
pub(super) fn status(case: &Value) -> Outcome {
    let (input, output) = (&case["input"], &case["output"]);
    let copies: Vec<CopyState> = list(&input["copy_states"]).iter().map(copy).collect();
    let leaving = input["deleted"] == true || input["is_latest_version"] == false;
    let version = match text(&input["last_available_version"]) {
        _ if leaving => Version::Leaving,
        "another" => Version::Replacing,
        _ => Version::Only,
    };
    let wanted = (!input["desired_replicas"].is_null()).then(|| wanted(input));
    let census = census(&copies);
    let ours = json!({
        "model_state": state_name(model_state(Rules::Seldon, version, wanted, &copies)),
        "available_replicas": census.available.count(),
        "unavailable_replicas": census.unavailable.count(),
        "draining_replicas": census.draining.count(),
    });
    same(&ours, output)
}

/// `model-autoscale`.
pub(super) fn autoscale(case: &Value) -> Outcome {
    let (input, output) = (&case["input"], &case["output"]);
    let direction = if input["trigger"] == "scale-up" { Direction::Up } else { Direction::Down };
    let model = scalable(&input["model"]);
    let ours =
        step(Rules::Seldon, direction, version(&input["trigger_model_version"]), model.as_ref());
    let refused = match ours {
        Ok(desired) => {
            let same = output["new_desired_replicas"] == desired.count();
            let limit = desired == Replicas::LIMIT && output["new_desired_replicas"] == 0;
            return match (same, limit) {
                (true, _) => Outcome::Passed,
                (false, true) => Outcome::Differs(WRAP),
                (false, false) => failed(&format!("{desired}"), output),
            };
        }
        Err(Ignored::UnknownModel) => "unknown model",
        Err(Ignored::OldVersion { .. }) => "trigger version is not the latest",
        Err(Ignored::NotAvailable) => "not in a state that may scale",
        Err(Ignored::Unstable) => "state changed within the last 60 s",
        Err(Ignored::NotEnabled) => "neither min nor max is set",
        Err(Ignored::BelowMin(_)) => "below min or below 1",
        Err(Ignored::AboveMax(_)) => "above max",
    };
    if output["refused"] == refused { Outcome::Passed } else { failed(refused, output) }
}

fn scalable(model: &Value) -> Option<Scalable> {
    let versions = model["versions"].as_array()?;
    let latest = versions.last()?;
    let available = versions.iter().rev().find(|version| version["state"] == "ModelAvailable");
    Some(Scalable {
        presence: presence(&model["deleted"]),
        desired: replicas(&model["desired_replicas"]),
        min: replicas(&model["min_replicas"]),
        max: Some(replicas(&model["max_replicas"])).filter(|max| *max > Replicas::ZERO),
        latest: version(&latest["version"]),
        available: available.map(|available| version(&available["version"])),
        unchanged_for: Seconds::new(
            model["seconds_since_latest_version_changed_state"].as_f64().unwrap(),
        )
        .unwrap(),
    })
}

/// `lag-rounds`.
pub(super) fn lag(case: &Value) -> Outcome {
    let (input, output) = (&case["input"], &case["output"]);
    let thresholds = Thresholds {
        lag: Requests::new(input["lag_threshold_requests"].as_f64().unwrap()).unwrap(),
        idle: Seconds::new(input["inactive_threshold_seconds"].as_f64().unwrap()).unwrap(),
    };
    let mut lags = Lags::new(Rules::Seldon);
    let mut now = Timestamp::UNIX_EPOCH;
    let mut rounds = Vec::new();
    for operation in list(&input["operations"]) {
        let model = || name(&operation["model"]);
        let count = || Requests::new(operation["count"].as_f64().unwrap()).unwrap();
        match text(&operation["op"]) {
            "model_added" => lags.add(now, &model()),
            "model_deleted" => lags.remove(&model()),
            "requests_start" => lags.start(now, &model(), count()),
            "requests_end" => lags.end(now, &model(), count()),
            "advance" => now += SignedDuration::from_secs(operation["seconds"].as_i64().unwrap()),
            "round" => rounds.push(round(&mut lags, now, thresholds)),
            other => return Outcome::Failed(format!("unknown operation {other}")),
        }
    }
    let mut theirs = output["rounds"].clone();
    for round in theirs.as_array_mut().unwrap() {
        // The order of our triggers is that of the models.
        round["events"].as_array_mut().unwrap().sort_by_key(Value::to_string);
    }
    same(&Value::from(rounds), &theirs)
}

fn round(lags: &mut Lags, now: Timestamp, thresholds: Thresholds) -> Value {
    let mut events: Vec<Value> = lags
        .round(now, thresholds)
        .iter()
        .map(|trigger| match trigger {
            Trigger::Up { model, lag } => {
                json!({"trigger": "scale-up", "model": model.as_str(), "lag": whole(lag.requests())})
            }
            Trigger::Down { model, idle } => json!({
                "trigger": "scale-down", "model": model.as_str(), "idle_seconds": whole(idle.seconds()),
            }),
        })
        .collect();
    events.sort_by_key(Value::to_string);
    let lags: BTreeMap<_, _> = lags
        .lags()
        .map(|(model, lag)| (model.as_str().to_owned(), whole(lag.requests())))
        .collect();
    json!({"at_second": now.as_second(), "events": events, "lags_after": lags})
}

/// `drain-wait`.
pub(super) fn drain_wait(case: &Value) -> Outcome {
    let mut waits = Waits::default();
    let mut waiting: Vec<Leaver> = Vec::new();
    let mut released = Vec::new();
    let called = |leaver: &Leaver| format!("{}/{}", leaver.pool, leaver.ordinal);
    for operation in list(&case["input"]["operations"]) {
        let leaver = || Leaver {
            pool: VariantName::new(text(&operation["server"])).unwrap(),
            ordinal: ordinal(&operation["replica"]),
        };
        match text(&operation["op"]) {
            "register" => {
                let models = operation["models"].as_array();
                waits.register(leaver(), models.into_iter().flatten().map(name).collect());
            }
            "wait" => waiting.push(leaver()),
            "model_available" => waits.settled(&name(&operation["model"])),
            other => return Outcome::Failed(format!("unknown operation {other}")),
        }
        let (over, left): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|leaver| waits.is_over(leaver));
        let mut over: Vec<String> = over.iter().map(called).collect();
        over.sort();
        released.push(over);
        waiting = left;
    }
    let mut pending: Vec<String> = waiting.iter().map(called).collect();
    pending.sort();
    let ours = json!({
        "waits_released_after_each_operation": released,
        "waits_pending_at_end": pending,
    });
    same(&ours, &case["output"])
}

/// `overcommit-memory`.
pub(super) fn memory(case: &Value) -> Outcome {
    let (input, output) = (&case["input"], &case["output"]);
    let main = input["main_memory_bytes"].as_u64().unwrap();
    let percent = input["over_commit_percent"].as_u64().unwrap();
    let mut ledger = Ledger::new(Capacity {
        main: Bytes::new(main),
        over_commit_percent: u32::try_from(percent).unwrap(),
    });
    let mut differs = None;
    for (operation, theirs) in list(&input["operations"]).iter().zip(list(&output["steps"])) {
        let model = name(&operation["model"]);
        let needs = || {
            let instances = u32::try_from(operation["instances"].as_u64().unwrap()).unwrap();
            Bytes::new(operation["memory_bytes"].as_u64().unwrap()).times(instances)
        };
        let before = ledger.resident().to_vec();
        let result = match text(&operation["op"]) {
            "load" => ledger.load(&model, needs()),
            "request" => ledger.request(&model),
            "unload" => {
                ledger.unload(&model);
                Ok(())
            }
            other => return Outcome::Failed(format!("unknown operation {other}")),
        };
        let ours = ledger_step(&ledger, result.is_err());
        if ours == *theirs {
            continue;
        }
        let without = |step: &Value| {
            let mut step = step.clone();
            step.as_object_mut().unwrap().remove("reported_available_bytes");
            step
        };
        let exact = main * percent / 100;
        let registered = ledger.registered().bytes();
        let expected = if registered > main {
            exact.saturating_sub(registered - main)
        } else {
            ledger.free().bytes() + exact
        };
        if without(&ours) == without(theirs) && ledger.available().bytes() == expected {
            differs = differs.or(Some(SINGLE));
        } else if theirs["refused"] == true && result.is_err() && before == ledger.resident() {
            // From here on the two hold other models.
            return Outcome::Differs(EVICTED);
        } else {
            return failed(&ours.to_string(), theirs);
        }
    }
    differs.map_or(Outcome::Passed, Outcome::Differs)
}

fn ledger_step(ledger: &Ledger, refused: bool) -> Value {
    let resident: BTreeSet<&str> = ledger.resident().iter().map(ModelName::as_str).collect();
    json!({
        "refused": refused,
        "models_in_main_memory": resident,
        "registered_bytes": ledger.registered().bytes(),
        "free_main_bytes": ledger.free().bytes(),
        "reported_available_bytes": ledger.available().bytes(),
    })
}

// === reading values ===

fn size(input: &Value) -> Size {
    Size {
        expected: u32::try_from(input["expected_replicas"].as_i64().unwrap())
            .ok()
            .map(Replicas::saturating),
        min: replicas(&input["min_replicas"]),
        max: ceiling(&input["max_replicas"]),
    }
}

/// A maximum; the largest number stands for none, and an absent one is 0.
fn ceiling(value: &Value) -> Option<Replicas> {
    (value.as_u64() != Some(u64::from(u32::MAX))).then(|| replicas(value))
}

fn stats(value: &Value) -> Option<Statistics> {
    (!value.is_null()).then(|| Statistics {
        empty: replicas(&value["empty_replicas"]),
        hosted: replicas(&value["max_desired_model_replicas"]),
    })
}

fn wanted(value: &Value) -> Wanted {
    Wanted { desired: replicas(&value["desired_replicas"]), min: replicas(&value["min_replicas"]) }
}

fn written(value: &Value) -> Written {
    let number = |name: &str| value[name].as_i64().map(|number| i32::try_from(number).unwrap());
    Written {
        replicas: number("replicas"),
        min: number("min_replicas"),
        max: number("max_replicas"),
    }
}

fn replicas(value: &Value) -> Replicas {
    Replicas::saturating(u32::try_from(value.as_u64().unwrap_or_default()).unwrap())
}

fn ordinal(value: &Value) -> Ordinal {
    Ordinal::new(u32::try_from(value.as_u64().unwrap()).unwrap())
}

fn version(value: &Value) -> VersionNumber {
    VersionNumber(u32::try_from(value.as_u64().unwrap()).unwrap())
}

fn presence(deleted: &Value) -> Presence {
    if *deleted == true { Presence::Deleted } else { Presence::Wanted }
}

fn name(value: &Value) -> ModelName {
    ModelName::new(text(value)).unwrap()
}

fn copy(value: &Value) -> CopyState {
    STATES.iter().find(|(_, state)| *value == *state).unwrap_or_else(|| panic!("{value}")).0
}

fn copy_name(state: CopyState) -> &'static str {
    STATES.iter().find(|(known, _)| *known == state).unwrap().1
}

const STATES: [(CopyState, &str); 13] = [
    (CopyState::Unknown, "ModelReplicaStateUnknown"),
    (CopyState::LoadRequested, "LoadRequested"),
    (CopyState::Loading, "Loading"),
    (CopyState::Loaded, "Loaded"),
    (CopyState::Available, "Available"),
    (CopyState::LoadedUnavailable, "LoadedUnavailable"),
    (CopyState::LoadFailed, "LoadFailed"),
    (CopyState::Draining, "Draining"),
    (CopyState::UnloadEnvoyRequested, "UnloadEnvoyRequested"),
    (CopyState::UnloadRequested, "UnloadRequested"),
    (CopyState::Unloading, "Unloading"),
    (CopyState::Unloaded, "Unloaded"),
    (CopyState::UnloadFailed, "UnloadFailed"),
];

fn state_name(state: ModelState) -> &'static str {
    match state {
        ModelState::Unknown => "ModelStateUnknown",
        ModelState::Available => "ModelAvailable",
        ModelState::Progressing => "ModelProgressing",
        ModelState::Failed => "ModelFailed",
        ModelState::ScaledDown => "ModelScaledDown",
        ModelState::ScheduleFailed => "ScheduleFailed",
        ModelState::Terminating => "ModelTerminating",
        ModelState::Terminated => "ModelTerminated",
        ModelState::TerminateFailed => "ModelTerminateFailed",
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

#[expect(clippy::cast_possible_truncation, reason = "counts are whole")]
fn whole(number: f64) -> i64 {
    number as i64
}

fn same(ours: &Value, theirs: &Value) -> Outcome {
    if ours == theirs { Outcome::Passed } else { failed(&ours.to_string(), theirs) }
}

fn differs(known: bool, class: &'static str) -> Outcome {
    if known { Outcome::Differs(class) } else { Outcome::Failed(class.to_owned()) }
}

fn failed(ours: &str, theirs: &Value) -> Outcome {
    Outcome::Failed(format!("ours {ours}, theirs {theirs}"))
}
