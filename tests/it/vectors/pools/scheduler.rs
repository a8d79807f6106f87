//! A scheduler that does nothing but what the library's rules say.
//!
//! Seldon's scheduler keeps models, servers and the states of copies, and asks its rules at each
//! event. This one keeps the same, so that sequences of operations can be compared. Every choice is
//! the library's: where copies go, what state a model is in, what a server counts and asks for.

use std::collections::{BTreeMap, BTreeSet};

use crate::reference::seldon::copies::{
    CopyState, ModelState, Version, Wanted, census, model_state,
};
use crate::reference::seldon::count::{
    Assigned, Host, Presence, Service, Size, Statistics, statistics,
};
use crate::reference::seldon::placement::{
    Capability, Guest, Holding, Placement, Room, Server, Sharing, place,
};
use crate::reference::seldon::{Bytes, Rules};
use plimsoll::decide::pools::Ordinal;
use plimsoll::fleet::{ModelName, VariantName};
use plimsoll::units::Replicas;

/// Everything that is scheduled, and where it is.
#[derive(Default)]
pub(super) struct Scheduler {
    pub(super) servers: BTreeMap<VariantName, Machines>,
    pub(super) models: BTreeMap<ModelName, Model>,
    /// What has happened since it was last asked.
    pub(super) events: Vec<Event>,
    /// Models that could not be scheduled since it was last asked.
    pub(super) errors: Vec<ModelName>,
    /// Whether a server would have taken the model that could not be scheduled last.
    pub(super) willing: bool,
}

/// A server as it is told and connected.
pub(super) struct Machines {
    pub(super) size: Size,
    pub(super) sharing: Sharing,
    pub(super) capabilities: BTreeSet<Capability>,
    pub(super) replicas: BTreeMap<Ordinal, Machine>,
}

/// One connected replica.
pub(super) struct Machine {
    pub(super) service: Service,
    pub(super) free: Bytes,
    pub(super) reserved: Bytes,
    /// Models that it has loaded or is loading.
    pub(super) resident: BTreeSet<ModelName>,
}

/// A model with the copies of its latest version, and those of older ones that still go.
pub(super) struct Model {
    pub(super) wanted: Wanted,
    pub(super) memory: Bytes,
    pub(super) requirements: BTreeSet<Capability>,
    pub(super) asks_for: Option<VariantName>,
    pub(super) presence: Presence,
    pub(super) assigned: Option<VariantName>,
    pub(super) copies: BTreeMap<Ordinal, CopyState>,
    pub(super) older: Vec<(VariantName, BTreeMap<Ordinal, CopyState>)>,
    pub(super) state: ModelState,
    pub(super) replacing: bool,
}

/// Something that makes a server think about its size.
pub(super) struct Event {
    pub(super) kind: EventKind,
    pub(super) server: VariantName,
    pub(super) stats: Option<Statistics>,
    pub(super) size: Option<Size>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum EventKind {
    Up,
    Down,
}

impl Model {
    /// Leads requests away from the copies on other replicas, except those that drain, and says
    /// whether there was one.
    fn lead_away(&mut self, on: &BTreeSet<Ordinal>) -> bool {
        let mut led_away = false;
        for (ordinal, state) in &mut self.copies {
            let goes = !is_going_or_gone(*state) && *state != CopyState::Draining;
            if goes && !on.contains(ordinal) {
                *state = CopyState::UnloadEnvoyRequested;
                led_away = true;
            }
        }
        led_away
    }

    /// Whether the state is found anew although no copy has changed.
    fn is_reported_again(&self) -> bool {
        let copies: Vec<CopyState> = self.copies.values().copied().collect();
        match self.state {
            ModelState::ScheduleFailed | ModelState::Progressing => true,
            ModelState::Available => assigned_copies(&copies) < self.wanted.desired,
            ModelState::Unknown
            | ModelState::Failed
            | ModelState::ScaledDown
            | ModelState::Terminating
            | ModelState::Terminated
            | ModelState::TerminateFailed => false,
        }
    }

    /// Whether nothing of the latest version is left, so that its name may be used again.
    pub(super) fn is_gone(&self) -> bool {
        self.copies.values().all(|state| match state {
            CopyState::Unknown
            | CopyState::LoadFailed
            | CopyState::Unloaded
            | CopyState::UnloadFailed => true,
            CopyState::LoadRequested
            | CopyState::Loading
            | CopyState::Loaded
            | CopyState::Available
            | CopyState::LoadedUnavailable
            | CopyState::Draining
            | CopyState::UnloadEnvoyRequested
            | CopyState::UnloadRequested
            | CopyState::Unloading => false,
        })
    }
}

const fn is_going_or_gone(state: CopyState) -> bool {
    state.is_leaving() || matches!(state, CopyState::Unloaded | CopyState::Unknown)
}

/// The copies that requests are sent to; those that drain count where there are no others.
fn assigned_copies(copies: &[CopyState]) -> Replicas {
    let reachable = copies.iter().filter(|state| state.is_reachable());
    let (draining, staying): (Vec<CopyState>, Vec<CopyState>) =
        reachable.partition(|state| **state == CopyState::Draining);
    let number = if staying.is_empty() { draining.len() } else { staying.len() };
    Replicas::saturating(u32::try_from(number).unwrap())
}

impl Machines {
    pub(super) fn untold() -> Self {
        let size = Size { expected: None, min: Replicas::ZERO, max: Some(Replicas::ZERO) };
        Self {
            size,
            sharing: Sharing::Shared,
            capabilities: BTreeSet::new(),
            replicas: BTreeMap::new(),
        }
    }
}

impl Machine {
    pub(super) fn serving(free: Bytes) -> Self {
        let resident = BTreeSet::new();
        Self { service: Service::Serving, free, reserved: Bytes::ZERO, resident }
    }
}

impl Scheduler {
    pub(super) fn statistics(&self, server: &VariantName) -> Option<Statistics> {
        let machines = self.servers.get(server)?;
        let hosts: Vec<Host> = machines
            .replicas
            .iter()
            .map(|(ordinal, machine)| Host {
                ordinal: *ordinal,
                service: machine.service,
                resident: machine.resident.clone(),
                coming: BTreeSet::new(),
            })
            .collect();
        let assigned: Vec<Assigned> = self
            .models
            .values()
            .filter(|model| model.assigned.as_ref() == Some(server))
            .map(|model| Assigned { desired: model.wanted.desired, presence: model.presence })
            .collect();
        Some(statistics(Rules::Seldon, &hosts, &assigned, machines.size.expected))
    }

    fn emit(&mut self, kind: EventKind, server: &VariantName) {
        let stats = self.statistics(server);
        let size = self.servers.get(server).map(|machines| machines.size);
        self.events.push(Event { kind, server: server.clone(), stats, size });
    }

    /// Tries to give a model its copies.
    pub(super) fn schedule(&mut self, name: &ModelName) {
        if self.models[name].presence == Presence::Deleted {
            return self.unload(name);
        }
        let model = &self.models[name];
        let before = model.assigned.clone();
        let guest = Guest {
            wanted: model.wanted,
            memory: model.memory,
            requirements: model.requirements.clone(),
            asks_for: model.asks_for.clone(),
            assigned: before.clone(),
        };
        let placement = place(Rules::Seldon, &self.server_rooms(model), &guest);
        match placement.place() {
            Some(place) => {
                let on: BTreeSet<Ordinal> = place.on.iter().copied().collect();
                self.assign(name, &place.server.clone(), &on);
            }
            None => self.fail(name, &placement),
        }
        if placement.wants_more()
            && let Some(server) = before
        {
            self.emit(EventKind::Up, &server);
        }
    }

    fn server_rooms(&self, model: &Model) -> Vec<Server> {
        self.servers
            .iter()
            .map(|(name, machines)| Server {
                name: name.clone(),
                sharing: machines.sharing,
                expected: machines.size.expected,
                capabilities: machines.capabilities.clone(),
                rooms: machines
                    .replicas
                    .iter()
                    .map(|(ordinal, machine)| {
                        let here = model.assigned.as_ref() == Some(name);
                        let copy = model.copies.get(ordinal).filter(|_| here);
                        let holding = match copy {
                            Some(state) if state.is_there() => Holding::There,
                            Some(state) if state.is_coming() => Holding::Coming,
                            Some(_) | None => Holding::Absent,
                        };
                        Room {
                            ordinal: *ordinal,
                            service: machine.service,
                            free: machine.free,
                            reserved: machine.reserved,
                            holding,
                        }
                    })
                    .collect(),
            })
            .collect()
    }

    fn fail(&mut self, name: &ModelName, placement: &Placement) {
        self.willing = *placement != Placement::NoServer;
        self.errors.push(name.clone());
        let model = self.models.get_mut(name).unwrap();
        model.state = ModelState::ScheduleFailed;

        // A copy that only loads holds the server where there was one to be asked.
        let live = model.copies.values().any(|state| state.is_reachable());
        let loading = self.willing && model.copies.values().any(|state| state.is_there());
        if !live && !loading {
            model.assigned = None;
        }
    }

    /// Gives a model these replicas of a server and takes those away that it has beside them. Copies
    /// of a version stay known while it has no server.
    fn assign(&mut self, name: &ModelName, server: &VariantName, on: &BTreeSet<Ordinal>) {
        self.leave_another_server(name, server);
        let requested = self.request(name, server, on);
        let model = self.models.get_mut(name).unwrap();
        let led_away = model.lead_away(on);
        if !requested && !led_away && !model.is_reported_again() {
            return;
        }

        model.assigned = Some(server.clone());
        for copies in model.older.iter_mut().map(|(_, copies)| copies) {
            for state in copies.values_mut().filter(|state| state.is_coming()) {
                *state = CopyState::UnloadRequested;
            }
        }
        self.refresh(name);
    }

    /// On another server a model begins with a new version, which has no copies.
    fn leave_another_server(&mut self, name: &ModelName, server: &VariantName) {
        let model = self.models.get_mut(name).unwrap();
        let Some(before) = model.assigned.take_if(|before| before != server) else { return };
        let copies = std::mem::take(&mut model.copies);
        model.older.push((before, copies));
        model.replacing = model.state == ModelState::Available;
        model.state = ModelState::Unknown;
    }

    /// Requests a copy on each of these replicas that has none, and says whether there was one. A
    /// copy that is only requested is requested again, and reserves its memory again.
    fn request(&mut self, name: &ModelName, server: &VariantName, on: &BTreeSet<Ordinal>) -> bool {
        let model = self.models.get_mut(name).unwrap();
        let replicas = &mut self.servers.get_mut(server).unwrap().replicas;
        let mut requested = false;
        for ordinal in on {
            let state = model.copies.entry(*ordinal).or_insert(CopyState::Unknown);
            if !state.is_there() {
                *state = CopyState::LoadRequested;
                let machine = replicas.get_mut(ordinal).unwrap();
                machine.reserved = machine.reserved.plus(model.memory);
                requested = true;
            }
        }
        requested
    }

    /// Takes a deleted model's copies away: at once those of a version that requests reach, and
    /// else the latest's after requests were led away. Without a server nobody is told.
    fn unload(&mut self, name: &ModelName) {
        let model = self.models.get_mut(name).unwrap();
        let older = model.older.iter_mut().map(|(_, copies)| copies);
        for copies in older.chain([&mut model.copies]) {
            if copies.values().any(|state| state.is_reachable()) {
                for state in copies.values_mut().filter(|state| !is_going_or_gone(**state)) {
                    *state = CopyState::UnloadRequested;
                }
            }
        }

        if self.has_known_server(name) {
            self.models.get_mut(name).unwrap().lead_away(&BTreeSet::new());
        }
        self.refresh(name);
    }

    /// Finds the state of a model anew.
    pub(super) fn refresh(&mut self, name: &ModelName) {
        let model = self.models.get_mut(name).unwrap();
        let version = match model.presence {
            Presence::Deleted => Version::Leaving,
            Presence::Wanted if model.replacing => Version::Replacing,
            Presence::Wanted => Version::Only,
        };
        let copies: Vec<CopyState> = model.copies.values().copied().collect();
        model.state = model_state(Rules::Seldon, version, Some(model.wanted), &copies);
        if model.state == ModelState::Available {
            model.replacing = false;
        }
    }

    /// Tries again what could not be scheduled or has fewer copies than it wants; nobody is told.
    pub(super) fn retry(&mut self) {
        let failed: Vec<ModelName> = self
            .models
            .iter()
            .filter(|(_, model)| {
                let copies: Vec<CopyState> = model.copies.values().copied().collect();
                let few = census(&copies).available < model.wanted.desired;
                match model.state {
                    ModelState::ScheduleFailed | ModelState::Failed => true,
                    ModelState::Available | ModelState::Progressing => few,
                    ModelState::Unknown
                    | ModelState::ScaledDown
                    | ModelState::Terminating
                    | ModelState::Terminated
                    | ModelState::TerminateFailed => false,
                }
            })
            .map(|(name, _)| name.clone())
            .collect();
        let (events, errors) = (self.events.len(), self.errors.len());
        for name in failed {
            self.schedule(&name);
        }
        self.events.truncate(events);
        self.errors.truncate(errors);
    }

    pub(super) fn connect(&mut self, server: &VariantName, ordinal: Ordinal, free: Bytes) {
        let machines = self.servers.entry(server.clone()).or_insert_with(Machines::untold);
        let machine = Machine::serving(free);
        machines.replicas.insert(ordinal, machine);
        self.retry();
    }

    pub(super) fn disconnect(&mut self, server: &VariantName, ordinal: Ordinal) {
        let affected = self.models_on(server, ordinal);
        let machines = self.servers.get_mut(server).unwrap();
        let gone = machines.replicas.remove(&ordinal).unwrap();
        if machines.replicas.is_empty() {
            self.servers.remove(server);
        }
        for (name, model) in &mut self.models {
            if model.assigned.as_ref() == Some(server) && gone.resident.contains(name) {
                match model.presence {
                    Presence::Deleted => model.copies.insert(ordinal, CopyState::Unloaded),
                    Presence::Wanted => model.copies.remove(&ordinal),
                };
            }
            for (at, copies) in &mut model.older {
                if at == server {
                    copies.remove(&ordinal);
                }
            }
        }
        for name in affected {
            match self.models[&name].presence {
                Presence::Deleted => self.refresh(&name),
                Presence::Wanted => self.schedule(&name),
            }
        }
        self.retry();
    }

    /// The models that a replica has loaded or is loading in their latest version.
    fn models_on(&self, server: &VariantName, ordinal: Ordinal) -> Vec<ModelName> {
        let resident = self.servers[server].replicas[&ordinal].resident.iter();
        let here = |name: &&ModelName| self.models[*name].assigned.as_ref() == Some(server);
        resident.filter(here).cloned().collect()
    }

    /// Marks a replica as draining, and says which models have to go elsewhere.
    pub(super) fn mark_draining(
        &mut self,
        server: &VariantName,
        ordinal: Ordinal,
    ) -> Vec<ModelName> {
        let affected = self.models_on(server, ordinal);
        let machine = self.servers.get_mut(server).unwrap().replicas.get_mut(&ordinal).unwrap();
        machine.service = Service::Draining;
        for name in &affected {
            let model = self.models.get_mut(name).unwrap();
            model.copies.insert(ordinal, CopyState::Draining);
        }
        affected
    }

    /// Brings one copy of the latest version into a state, with what that does to memory. Without a
    /// server there is nobody to tell of it.
    pub(super) fn set(&mut self, name: &ModelName, ordinal: Ordinal, state: CopyState) {
        let model = self.models.get_mut(name).unwrap();
        let Some(server) = model.assigned.clone() else { return };
        let before = model.copies.insert(ordinal, state).unwrap_or(CopyState::Unknown);
        let memory = model.memory;
        self.account(&server, ordinal, (name, memory), (before, state));
        self.refresh(name);
        let goes = matches!(state, CopyState::Unloaded | CopyState::LoadFailed);
        if goes && self.is_connected(name, ordinal) {
            self.emit(EventKind::Down, &server);
        }
    }

    /// Whether a model has a server that is still known.
    fn has_known_server(&self, name: &ModelName) -> bool {
        let server = self.models[name].assigned.as_ref();
        server.is_some_and(|server| self.servers.contains_key(server))
    }

    /// Whether this replica of a model's server is connected.
    fn is_connected(&self, name: &ModelName, ordinal: Ordinal) -> bool {
        let server = self.models[name].assigned.as_ref();
        let machines = server.and_then(|server| self.servers.get(server));
        machines.is_some_and(|machines| machines.replicas.contains_key(&ordinal))
    }

    fn account(
        &mut self,
        server: &VariantName,
        ordinal: Ordinal,
        (name, memory): (&ModelName, Bytes),
        (before, after): (CopyState, CopyState),
    ) {
        let Some(machine) =
            self.servers.get_mut(server).and_then(|it| it.replicas.get_mut(&ordinal))
        else {
            return;
        };
        match after {
            CopyState::Available if before == CopyState::LoadRequested => {
                machine.reserved = machine.reserved.beyond(memory);
                machine.free = machine.free.beyond(memory);
                machine.resident.insert(name.clone());
            }
            CopyState::LoadFailed => {
                machine.reserved = machine.reserved.beyond(memory);
                machine.resident.remove(name);
            }
            CopyState::Unloaded if machine.resident.remove(name) => {
                machine.free = machine.free.plus(memory);
            }
            _ => {}
        }
    }

    /// Carries out everything that has been requested.
    pub(super) fn settle(&mut self) {
        let names: Vec<ModelName> = self.models.keys().cloned().collect();
        for name in names {
            for index in 0..self.models[&name].older.len() {
                self.settle_older(&name, index);
            }
            if !self.has_known_server(&name) {
                continue;
            }
            let copies: Vec<(Ordinal, CopyState)> =
                self.models[&name].copies.iter().map(|(at, state)| (*at, *state)).collect();
            for (ordinal, state) in copies {
                if state == CopyState::LoadRequested {
                    // A replica that is not connected loads nothing.
                    if self.is_connected(&name, ordinal) {
                        self.set(&name, ordinal, CopyState::Available);
                    }
                } else if state.is_leaving() {
                    self.set(&name, ordinal, CopyState::Unloaded);
                }
            }
        }
    }

    fn settle_older(&mut self, name: &ModelName, index: usize) {
        let model = &self.models[name];
        let (server, copies) = model.older[index].clone();
        let memory = model.memory;
        for (ordinal, state) in copies.into_iter().filter(|(_, state)| state.is_leaving()) {
            let model = self.models.get_mut(name).unwrap();
            model.older[index].1.insert(ordinal, CopyState::Unloaded);
            self.account(&server, ordinal, (name, memory), (state, CopyState::Unloaded));
            self.emit(EventKind::Down, &server);
        }
    }
}
