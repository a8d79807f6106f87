//! Readers of sequences of operations on a scheduler.

use std::collections::{BTreeMap, BTreeSet};

use crate::reference::seldon::copies::{CopyState, ModelState};
use crate::reference::seldon::count::{
    Packing, Presence, Scaling, Service, Size, scale_down, scale_up,
};
use crate::reference::seldon::drain::{GATHERING, Leaver, Told, Waits, leaves_at};
use crate::reference::seldon::placement::{Capability, Sharing};
use crate::reference::seldon::{Bytes, Rules};
use jiff::{SignedDuration, Timestamp};
use plimsoll::decide::pools::Ordinal;
use plimsoll::fleet::{ModelName, VariantName};
use plimsoll::units::Replicas;
use serde_json::{Map, Value, json};

use super::scheduler::{Event, EventKind, Machine, Machines, Model, Scheduler};
use super::{
    WRAP, copy, copy_name, differs, failed, list, name, ordinal, presence, size, state_name, text,
    wanted,
};
use crate::vectors::Outcome;

const FLOAT: &str = "free memory is compared in whole bytes";

/// `lifecycle`.
pub(in crate::vectors) fn lifecycle(case: &Value) -> Outcome {
    let mut scheduler = Scheduler::default();
    let mut wrapped = false;
    let steps = list(&case["output"]["steps"]);
    for (at, (operation, theirs)) in
        list(&case["input"]["operations"]).iter().zip(steps).enumerate()
    {
        let ours = run(&mut scheduler, operation);
        if ours == *theirs {
            continue;
        }
        if !differs_by_wraps(&scheduler, &ours, theirs) {
            return failed(&format!("at {at} {operation}: {ours}"), theirs);
        }
        wrapped = true;
    }
    if wrapped { Outcome::Differs(WRAP) } else { Outcome::Passed }
}

/// Whether all that differs is what is asked for where more replicas are empty than are asked for.
/// Ours is then the least that the server may have.
fn differs_by_wraps(scheduler: &Scheduler, ours: &Value, theirs: &Value) -> bool {
    let without_requests = |step: &Value| {
        let mut step = step.clone();
        for event in step["events"].as_array_mut().unwrap() {
            event.as_object_mut().unwrap().retain(|key, _| !key.starts_with("request"));
        }
        step
    };
    let mut events = list(&ours["events"]).iter().zip(list(&theirs["events"]));
    without_requests(ours) == without_requests(theirs)
        && events.all(|(ours, theirs)| {
            let server = VariantName::new(text(&ours["server"])).unwrap();
            let Size { expected, min, .. } = scheduler.servers[&server].size;
            let empty = ours["stats"]["empty_replicas"].as_u64().unwrap();
            let wraps = expected.is_some_and(|expected| empty > u64::from(expected.count()));
            let floor = min.max(Replicas::ONE).count();
            let asks = |key: &str| ours[key] == floor;
            let least = asks("request_without_packing") && asks("request_with_packing");
            ours == theirs || wraps && least
        })
}

fn run(scheduler: &mut Scheduler, operation: &Value) -> Value {
    let server = || VariantName::new(text(&operation["server"])).unwrap();
    let model = || name(&operation["model"]);
    let replica = || ordinal(&operation["replica"]);
    let mut step = Map::new();
    match text(&operation["op"]) {
        "server_spec" => tell(scheduler, &server(), size(operation)),
        "connect" => scheduler.connect(&server(), replica(), bytes(&operation["memory_bytes"])),
        "disconnect" => scheduler.disconnect(&server(), replica()),
        "put_model" => {
            if let Some(why) = put(scheduler, operation) {
                step.insert("update_rejected".to_owned(), json!(why));
            }
        }
        "remove_model" => {
            if let Some(found) = scheduler.models.get_mut(&model()) {
                found.presence = Presence::Deleted;
                scheduler.schedule(&model());
            }
        }
        "settle" => scheduler.settle(),
        "fail_load" => scheduler.set(&model(), replica(), CopyState::LoadFailed),
        "drain" => {
            for affected in scheduler.mark_draining(&server(), replica()) {
                scheduler.schedule(&affected);
            }
        }
        other => panic!("unknown operation {other}"),
    }
    if !scheduler.errors.is_empty() {
        let errors: Vec<_> = scheduler.errors.drain(..).map(|name| name.to_string()).collect();
        step.insert("schedule_errors".to_owned(), json!(errors));
    }
    let events: Vec<Value> = scheduler.events.drain(..).map(|event| event_value(&event)).collect();
    step.insert("events".to_owned(), Value::from(events));
    step.insert("stats".to_owned(), stats(scheduler));
    step.insert("copies".to_owned(), copies(scheduler));
    let states = scheduler
        .models
        .iter()
        .map(|(name, model)| (name.to_string(), state_name(model.state).into()));
    step.insert("model_states".to_owned(), Value::Object(states.collect()));
    Value::Object(step)
}

fn tell(scheduler: &mut Scheduler, server: &VariantName, size: Size) {
    let machines = scheduler.servers.entry(server.clone()).or_insert_with(Machines::untold);
    machines.size = size;
    if size.expected == Some(Replicas::ZERO) {
        let replicas = machines.replicas.values();
        let affected: BTreeSet<ModelName> =
            replicas.flat_map(|machine| machine.resident.iter().cloned()).collect();
        for name in affected {
            scheduler.schedule(&name);
        }
    }
}

/// Creates or changes a model; says why it may not.
fn put(scheduler: &mut Scheduler, operation: &Value) -> Option<&'static str> {
    let name = name(&operation["model"]);
    let asks_for = VariantName::new(text(&operation["server"]));
    match scheduler.models.get_mut(&name) {
        Some(model) if model.presence == Presence::Deleted => {
            if !model.is_gone() {
                return Some("still being deleted");
            }
            *model = new_model(operation, asks_for);
        }
        Some(model) => {
            model.wanted = wanted(operation);
            model.memory = bytes(&operation["memory_bytes"]);
            model.asks_for = asks_for;
        }
        None => {
            scheduler.models.insert(name.clone(), new_model(operation, asks_for));
        }
    }
    scheduler.schedule(&name);
    None
}

fn new_model(from: &Value, asks_for: Option<VariantName>) -> Model {
    Model {
        wanted: wanted(from),
        memory: bytes(&from["memory_bytes"]),
        requirements: list(&from["requirements"])
            .iter()
            .map(|it| Capability::new(text(it)))
            .collect(),
        asks_for,
        presence: Presence::Wanted,
        assigned: None,
        copies: BTreeMap::new(),
        older: Vec::new(),
        state: ModelState::Unknown,
        replacing: false,
    }
}

fn event_value(event: &Event) -> Value {
    let Event { kind, server, stats, size } = event;
    let mut value = Map::new();
    let up = *kind == EventKind::Up;
    value.insert("event".to_owned(), json!(if up { "scale-up" } else { "scale-down" }));
    value.insert("server".to_owned(), json!(server.as_str()));
    let stats_value = stats.map(|stats| {
        json!({
            "empty_replicas": stats.empty.count(),
            "max_desired_model_replicas": stats.hosted.count(),
        })
    });
    value.insert("stats".to_owned(), stats_value.unwrap_or(Value::Null));
    let mut request = |key: &str, scaling: Scaling| {
        if let Some(target) = scaling.target() {
            value.insert(key.to_owned(), json!(target.count()));
        }
    };
    if let Some(size) = *size {
        if up {
            request("request", scale_up(Rules::Seldon, size, *stats));
        } else {
            let down = |packing| scale_down(Rules::Seldon, size, *stats, packing);
            request("request_without_packing", down(Packing::Refused));
            request("request_with_packing", down(Packing::Allowed));
        }
    }
    Value::Object(value)
}

fn stats(scheduler: &Scheduler) -> Value {
    let stats = scheduler.servers.keys().filter_map(|server| {
        let stats = scheduler.statistics(server)?;
        let value = json!({
            "empty_replicas": stats.empty.count(),
            "max_desired_model_replicas": stats.hosted.count(),
        });
        Some((server.to_string(), value))
    });
    Value::Object(stats.collect())
}

fn copies(scheduler: &Scheduler) -> Value {
    let models = scheduler.models.iter().map(|(name, model)| (name.to_string(), copies_of(model)));
    Value::Object(models.collect())
}

fn copies_of(model: &Model) -> Value {
    let copies =
        model.copies.iter().map(|(ordinal, state)| (ordinal.to_string(), copy_name(*state).into()));
    Value::Object(copies.collect())
}

fn bytes(value: &Value) -> Bytes {
    Bytes::new(value.as_u64().unwrap())
}

/// `placement`: one attempt to schedule one model.
pub(in crate::vectors) fn placement(case: &Value) -> Outcome {
    let (input, output) = (&case["input"], &case["output"]);
    let name = ModelName::new("m").unwrap();
    let from = &input["model"];
    let mut scheduler = Scheduler::default();
    let mut model = new_model(from, VariantName::new(text(&from["requested_server"])));
    model.presence = presence(&from["deleted"]);
    for from in list(&input["servers"]) {
        let server = VariantName::new(text(&from["name"])).unwrap();
        let (machines, copies) = machines(from);
        if !copies.is_empty() {
            model.assigned = Some(server.clone());
            model.copies = copies;
        }
        scheduler.servers.insert(server, machines);
    }
    let has_copies = !model.copies.is_empty();
    scheduler.models.insert(name.clone(), model);
    if has_copies {
        scheduler.refresh(&name);
    }
    scheduler.schedule(&name);

    let model = &scheduler.models[&name];
    let assigned = model.assigned.as_ref().map_or("", VariantName::as_str);
    let error = scheduler.errors.first().map(|_| {
        if scheduler.willing {
            "not enough suitable replicas"
        } else {
            "no server passes the filters"
        }
    });
    let ours = json!({
        "error": error,
        "assigned_server": assigned,
        "copies": copies_of(model),
        "model_state": state_name(model.state),
        "scale_up_event_for_server": scheduler.events.first().map(|event| event.server.as_str()),
    });
    if ours == *output {
        return Outcome::Passed;
    }
    if !text(&case["note"]).contains("float64") {
        return failed(&ours.to_string(), output);
    }
    let coming = model.copies.iter().filter(|(_, state)| state.is_coming());
    let on: BTreeSet<u64> = coming.map(|(ordinal, _)| u64::from(ordinal.number())).collect();
    let server = list(&input["servers"]).iter().find(|server| server["name"] == assigned);
    differs(server.is_some_and(|server| on == most_suitable(server, from)), FLOAT)
}

/// The replicas of a server that should have a model, in plain arithmetic on whole bytes.
fn most_suitable(server: &Value, model: &Value) -> BTreeSet<u64> {
    let number = |value: &Value| value.as_u64().unwrap();
    let mut order: Vec<(bool, std::cmp::Reverse<u64>, u64)> = list(&server["connected_replicas"])
        .iter()
        .filter(|replica| replica["draining"] == false)
        .map(|replica| {
            let free = number(&replica["available_memory_bytes"]);
            let left = free.saturating_sub(number(&replica["reserved_memory_bytes"]));
            let absent = replica["holds_model"] == false;
            (absent, std::cmp::Reverse(left), number(&replica["replica"]))
        })
        .filter(|(absent, left, _)| !absent || number(&model["memory_bytes"]) <= left.0)
        .collect();
    order.sort_unstable();
    let desired = usize::try_from(number(&model["desired_replicas"])).unwrap();
    order.into_iter().take(desired).map(|(_, _, replica)| replica).collect()
}

/// A server, and the copies on it.
fn machines(from: &Value) -> (Machines, BTreeMap<Ordinal, CopyState>) {
    let mut copies = BTreeMap::new();
    let mut replicas = BTreeMap::new();
    for replica in list(&from["connected_replicas"]) {
        let at = ordinal(&replica["replica"]);
        let draining = replica["draining"] == true;
        if replica["holds_model"] == true {
            copies.insert(at, if draining { CopyState::Draining } else { CopyState::Loaded });
        }
        let service = if draining { Service::Draining } else { Service::Serving };
        let free = bytes(&replica["available_memory_bytes"]);
        let reserved = bytes(&replica["reserved_memory_bytes"]);
        replicas.insert(at, Machine { service, reserved, ..Machine::serving(free) });
    }
    let capabilities: BTreeSet<Capability> =
        list(&from["capabilities"]).iter().map(|it| Capability::new(text(it))).collect();
    let expected = u32::try_from(from["expected_replicas"].as_i64().unwrap()).ok();
    let machines = Machines {
        size: Size { expected: expected.map(Replicas::saturating), min: Replicas::ZERO, max: None },
        sharing: if from["shared"] == true { Sharing::Shared } else { Sharing::Private },
        capabilities,
        replicas,
    };
    (machines, copies)
}

/// `drain-time`: when calls to drain return.
pub(in crate::vectors) fn drain_time(case: &Value) -> Outcome {
    let (input, output) = (&case["input"], &case["output"]);
    let mut run = Draining::new(input);
    run.run(list(&input["drain_calls"]));
    let copies: Map<String, Value> = run
        .scheduler
        .models
        .iter()
        .map(|(name, model)| (name.to_string(), copies_of(model)))
        .collect();
    let ours = json!({
        "drain_call_returned_at_ms": run.returned,
        "copies_after_all_drains": copies,
        "scale_up_events": run.scheduler.events.len(),
    });
    super::same(&ours, output)
}

/// Drains replicas in simulated time.
struct Draining {
    scheduler: Scheduler,
    server: VariantName,
    /// When copies of a model that are requested by then become available.
    available_at: BTreeMap<ModelName, Option<i64>>,
    waits: Waits,
    /// Calls that have not returned: when they were made.
    open: BTreeMap<Ordinal, i64>,
    returned: BTreeMap<String, i64>,
}

/// What happens at an instant, in this order.
enum Moment {
    Called(Ordinal),
    Rescheduled(Vec<ModelName>),
    Available(ModelName),
}

impl Draining {
    fn new(input: &Value) -> Self {
        let server = VariantName::new("server").unwrap();
        let mut scheduler = Scheduler::default();
        let mut machines = Machines::untold();
        let mut available_at = BTreeMap::new();
        for (key, from) in input["models"].as_object().unwrap() {
            let key = ModelName::new(key).unwrap();
            available_at.insert(key.clone(), from["new_copies_available_at_ms"].as_i64());
            let mut model = new_model(from, None);
            model.assigned = Some(server.clone());
            scheduler.models.insert(key, model);
        }
        for replica in list(&input["replicas"]) {
            let at = ordinal(&replica["replica"]);
            let free = bytes(&replica["available_memory_bytes"]);
            let mut machine = Machine::serving(free);
            for held in list(&replica["copies"]) {
                let model = scheduler.models.get_mut(&name(&held["model"])).unwrap();
                model.copies.insert(at, copy(&held["state"]));
                machine.resident.insert(name(&held["model"]));
            }
            machines.replicas.insert(at, machine);
        }
        scheduler.servers.insert(server.clone(), machines);
        Self {
            scheduler,
            server,
            available_at,
            waits: Waits::default(),
            open: BTreeMap::new(),
            returned: BTreeMap::new(),
        }
    }

    fn run(&mut self, calls: &[Value]) {
        let mut moments: Vec<(i64, usize, Moment)> = Vec::new();
        for call in calls {
            let moment = Moment::Called(ordinal(&call["replica"]));
            moments.push((call["at_ms"].as_i64().unwrap(), moments.len(), moment));
        }
        for (model, at) in &self.available_at {
            if let Some(at) = at {
                moments.push((*at, moments.len(), Moment::Available(model.clone())));
            }
        }
        while let Some(next) = (0..moments.len()).min_by_key(|i| (moments[*i].0, moments[*i].1)) {
            let (now, order, moment) = moments.swap_remove(next);
            let calls = moments.iter().any(|(_, _, left)| !matches!(left, Moment::Available(_)));
            let over = self.open.is_empty() && !calls && matches!(moment, Moment::Available(_));
            if over && self.returned.values().all(|returned| *returned < now) {
                break;
            }
            match moment {
                Moment::Called(replica) => {
                    if let Some(models) = self.call(now, replica) {
                        let gathered = now + i64::try_from(GATHERING.as_millis()).unwrap();
                        let again = Moment::Rescheduled(models);
                        moments.push((gathered, order, again));
                    }
                }
                Moment::Rescheduled(models) => self.reschedule(&models),
                Moment::Available(model) => self.become_available(&model),
            }
            self.release(now);
        }
    }

    /// Marks a replica as draining; an unknown one is done at once.
    fn call(&mut self, now: i64, replica: Ordinal) -> Option<Vec<ModelName>> {
        if !self.scheduler.servers[&self.server].replicas.contains_key(&replica) {
            self.returned.insert(replica.to_string(), now);
            return None;
        }
        let models = self.scheduler.mark_draining(&self.server, replica);
        self.waits.register(self.leaver(replica), models.iter().cloned().collect());
        self.open.insert(replica, now);
        Some(models)
    }

    fn reschedule(&mut self, models: &[ModelName]) {
        for model in models {
            let failures = self.scheduler.errors.len();
            self.scheduler.schedule(model);
            let failed = self.scheduler.errors.len() > failures;
            let copies = &self.scheduler.models[model].copies;
            if failed || copies.values().any(|state| *state == CopyState::Available) {
                self.waits.settled(model);
            }
        }
    }

    fn become_available(&mut self, model: &ModelName) {
        let copies: Vec<(Ordinal, CopyState)> =
            self.scheduler.models[model].copies.iter().map(|(at, it)| (*at, *it)).collect();
        for (ordinal, state) in copies {
            if state == CopyState::LoadRequested {
                self.scheduler.set(model, ordinal, CopyState::Available);
            }
        }
        let copies = &self.scheduler.models[model].copies;
        if copies.values().any(|state| *state == CopyState::Available) {
            self.waits.settled(model);
        }
    }

    fn release(&mut self, now: i64) {
        let at = |ms: i64| Timestamp::UNIX_EPOCH + SignedDuration::from_millis(ms);
        let over: Vec<(Ordinal, i64)> = self
            .open
            .iter()
            .filter(|(replica, _)| self.waits.is_over(&self.leaver(**replica)))
            .map(|(replica, told)| (*replica, *told))
            .collect();
        for (replica, told) in over {
            self.open.remove(&replica);
            let leaves = leaves_at(Told(at(told)), at(now)).as_millisecond();
            self.returned.insert(replica.to_string(), leaves);
        }
    }

    fn leaver(&self, replica: Ordinal) -> Leaver {
        Leaver { pool: self.server.clone(), ordinal: replica }
    }
}
