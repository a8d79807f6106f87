//! The simulated fleet: replicas that start, serve and drain, and the router before them.
//!
//! Pure and in order of time: everything that happened up to an instant is computed when somebody
//! asks for that instant. The demo asks with the time of the wall clock, so engines are neither
//! faster nor slower than real ones; the comparison at the end asks once, for the whole run.

use std::collections::{BTreeMap, VecDeque};
use std::iter::Peekable;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::demo::choice::Choice;
use crate::demo::scenario::{Scenario, Variant};
use crate::demo::score::Score;
use crate::simulate::Micros;
use crate::simulate::page::{self, Identity};
use crate::simulate::replica::adapters::{AdapterId, Holds};
use crate::simulate::replica::settings::SettingsError;
use crate::simulate::replica::stats::Gauges;
use crate::simulate::replica::{Event, Replica, Request};
use crate::simulate::scaler::Scale;
use crate::simulate::workload::Arrivals;
use plimsoll_core::units::Replicas;

/// Bits of a request's number that the load's own numbering uses; the model's index is above them.
const ID_BITS: u32 = 48;

/// All replicas of all variants, and the load that they carry.
#[derive(Clone, Debug)]
pub struct Fleet {
    scenario: Arc<Scenario>,
    epoch: Timestamp,
    now: Micros,
    loads: Vec<Load>,
    /// In the scenario's order of variants.
    variants: Vec<Crew>,
    /// Requests that have arrived and have no first token: when they arrived.
    unserved: BTreeMap<u64, Micros>,
    score: Score,
    events: Vec<Event>,
}

/// One model's requests on their way to its replicas.
#[derive(Clone, Debug)]
struct Load {
    arrivals: Peekable<Arrivals>,
    /// Requests that arrived while no replica was ready.
    held: VecDeque<Asked>,
    /// Which adapter the next one asks for.
    choice: Choice,
    /// The indices of the model's variants.
    variants: std::ops::Range<usize>,
}

/// A request, and the adapter that it asks for, if any.
#[derive(Clone, Copy, Debug)]
struct Asked {
    request: Request,
    adapter: Option<AdapterId>,
}

#[derive(Clone, Debug)]
struct Crew {
    members: Vec<Member>,
    created: u32,
    routed: u64,
}

#[derive(Clone, Debug)]
struct Member {
    name: String,
    created: Micros,
    state: State,
    replica: Replica,
}

/// Where a replica is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Its process loads the model; connections are refused until the time that this holds.
    Starting(Micros),
    /// It serves, since the time that this holds.
    Ready(Micros),
    /// It finishes what it has and takes nothing new; connections are refused.
    Draining,
}

/// What is seen of a variant from outside.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct VariantView {
    /// Replicas that serve.
    pub ready: u32,
    /// Replicas that do not serve yet.
    pub starting: u32,
    /// Replicas that finish what they have.
    pub draining: u32,
    /// Requests in the batches of ready replicas.
    pub running: u32,
    /// Requests in their queues.
    pub waiting: u32,
    /// Mean share of their KV caches in use.
    pub kv: f64,
    /// Requests that were ever sent to this variant.
    pub routed: u64,
    /// Adapters that its replicas have loaded, those that are gone left out.
    pub loads: u64,
}

// === impl Fleet ===

impl Fleet {
    /// A fleet with the smallest number of replicas of each variant, all ready at its start.
    ///
    /// # Errors
    ///
    /// An engine of the scenario has settings that no engine can have.
    pub fn new(scenario: Arc<Scenario>, epoch: Timestamp) -> Result<Self, SettingsError> {
        let mut fleet = Self {
            loads: loads(&scenario),
            variants: scenario
                .variants()
                .map(|_| Crew { members: Vec::new(), created: 0, routed: 0 })
                .collect(),
            score: Score::new(&scenario),
            unserved: BTreeMap::new(),
            events: Vec::new(),
            now: Micros::ZERO,
            epoch,
            scenario,
        };
        let scenario = Arc::clone(&fleet.scenario);
        for (index, (_, variant)) in scenario.variants().enumerate() {
            for _ in 0..variant.min.count() {
                fleet.create(index, State::Ready(Micros::ZERO))?;
            }
        }
        Ok(fleet)
    }

    /// The time up to which everything has happened.
    #[must_use]
    pub const fn now(&self) -> Micros {
        self.now
    }

    /// What it plays.
    #[must_use]
    pub fn scenario(&self) -> &Arc<Scenario> {
        &self.scenario
    }

    /// Lets everything happen that happens up to `now`.
    pub fn advance_to(&mut self, now: Micros) {
        while let Some(at) = self.next_change().filter(|&at| at <= now) {
            self.pass_to(at);
            self.open_ready();
            for model in 0..self.loads.len() {
                while let Some((_, request)) =
                    self.loads[model].arrivals.next_if(|(arrival, _)| *arrival <= at)
                {
                    self.receive(model, request);
                }
            }
        }
        self.pass_to(now);
    }

    /// Asks for this many replicas of a variant, as a deployment's controller would carry it out:
    /// new ones start, and of those that are too many the youngest go first, unready before ready.
    ///
    /// # Errors
    ///
    /// The variant's engine has settings that no engine can have.
    pub fn scale(&mut self, index: usize, wanted: Replicas) -> Result<(), SettingsError> {
        let wanted = wanted.count() as usize;
        let startup = self.scenario.startup;
        while self.variants[index].existing() < wanted {
            self.create(index, State::Starting(self.now + startup))?;
        }
        while self.variants[index].existing() > wanted {
            self.variants[index].retire();
        }
        Ok(())
    }

    /// The scale subresource of a variant.
    #[must_use]
    pub fn scale_of(&self, index: usize) -> Scale {
        let existing = u32::try_from(self.variants[index].existing()).unwrap_or(u32::MAX);
        let count = Replicas::saturating(existing);
        Scale { spec: count, status: count }
    }

    /// The names and states of a variant's replicas, oldest first.
    pub fn members(&self, index: usize) -> impl Iterator<Item = (&str, State)> {
        self.variants[index].members.iter().map(|member| (member.name.as_str(), member.state))
    }

    /// The metrics page of a replica; `None` unless it serves.
    #[must_use]
    pub fn page(&self, name: &str) -> Option<String> {
        let (index, member) = self.variants.iter().enumerate().find_map(|(index, variant)| {
            variant.members.iter().find(|member| member.name == name).map(|member| (index, member))
        })?;
        let State::Ready(since) = member.state else { return None };
        let (model, _) = self.scenario.variants().nth(index)?;
        let identity = Identity {
            model: model.name.as_str().to_owned(),
            started: self.at(member.created),
            ready: self.at(since),
        };
        let mut text = page::render(&identity, &member.replica.snapshot());
        if let (Some(said), Some(adapters)) = (member.replica.adapters(), &model.adapters) {
            let names: Vec<String> = adapters.all.iter().map(|it| it.name.to_owned()).collect();
            text += &said.page(self.at(self.now), &names);
        }
        Some(text)
    }

    /// What is seen of each variant, in the scenario's order.
    #[must_use]
    pub fn view(&self) -> Vec<VariantView> {
        self.variants.iter().map(Crew::view).collect()
    }

    /// What the run has come to so far.
    #[must_use]
    pub fn score(&self) -> Score {
        let mut score = self.score.clone();
        for (&id, &arrived) in &self.unserved {
            let overdue = self.now.since(arrived) > self.scenario.slo.ttft;
            score.models[model_of(id)].stuck += u64::from(overdue);
        }
        score
    }

    fn next_change(&mut self) -> Option<Micros> {
        let arrivals =
            self.loads.iter_mut().filter_map(|load| load.arrivals.peek().map(|(at, _)| *at));
        let ready =
            self.variants.iter().flat_map(|variant| &variant.members).filter_map(|member| {
                match member.state {
                    State::Starting(ready) => Some(ready),
                    State::Ready(_) | State::Draining => None,
                }
            });
        arrivals.chain(ready).min()
    }

    /// Lets time pass in which nobody arrives and no replica becomes ready.
    fn pass_to(&mut self, now: Micros) {
        let passed = now.since(self.now);
        for (variant, time) in self.variants.iter_mut().zip(&mut self.score.replica_time) {
            *time += Micros::new(passed.micros() * variant.members.len() as u64);
            for member in &mut variant.members {
                member.replica.advance_to(now, &mut self.events);
            }
            variant.members.retain(|member| {
                member.state != State::Draining || member.replica.outstanding() > 0
            });
        }
        self.now = self.now.max(now);
        for event in self.events.drain(..) {
            match event {
                Event::FirstToken { id, .. } => {
                    self.unserved.remove(&id);
                }
                Event::Preempted { .. } => {}
                Event::Finished(finished) => {
                    let model = model_of(finished.request.id);
                    self.score.models[model].count(self.scenario.slo, &finished);
                }
            }
        }
    }

    fn open_ready(&mut self) {
        for variant in &mut self.variants {
            for member in &mut variant.members {
                if let State::Starting(ready) = member.state
                    && ready <= self.now
                {
                    member.state = State::Ready(ready);
                }
            }
        }
        for model in 0..self.loads.len() {
            while let Some(asked) = self.loads[model].held.pop_front() {
                if !self.route(model, asked) {
                    self.loads[model].held.push_front(asked);
                    break;
                }
            }
        }
    }

    fn receive(&mut self, model: usize, request: Request) {
        let request = Request { id: ((model as u64) << ID_BITS) | request.id, ..request };
        self.score.models[model].arrived += 1;
        self.unserved.insert(request.id, self.now);
        let scenario = Arc::clone(&self.scenario);
        let turn = scenario.models[model].shape.turn(self.now);
        let adapters = scenario.models[model].adapters.as_ref();
        let adapter = self.loads[model].choice.draw(adapters, turn);
        let asked = Asked { request, adapter };
        if !self.route(model, asked) {
            self.loads[model].held.push_back(asked);
        }
    }

    /// Sends a request to the ready replica with the fewest requests for the seats that it has; one
    /// for an adapter to a replica that has it loaded, or else a slot for it, unless that is much
    /// busier than others.
    fn route(&mut self, model: usize, asked: Asked) -> bool {
        let Asked { request, adapter } = asked;
        let scenario = Arc::clone(&self.scenario);
        let variants = self.loads[model].variants.clone();
        let seats = scenario.variants().map(|(_, variant)| variant.engine.max_num_seqs);
        let best = self
            .variants
            .iter_mut()
            .zip(seats)
            .skip(variants.start)
            .take(variants.len())
            .filter_map(|(variant, seats)| {
                let routed = &mut variant.routed;
                variant
                    .members
                    .iter_mut()
                    .filter(|member| matches!(member.state, State::Ready(_)))
                    .map(move |member| {
                        let load = member.replica.outstanding() as f64 / f64::from(seats);
                        (load + detour(&member.replica, adapter), member)
                    })
                    .min_by(|(a, _), (b, _)| a.total_cmp(b))
                    .map(|(load, member)| (load, member, routed))
            })
            .min_by(|(a, ..), (b, ..)| a.total_cmp(b));
        let Some((_, member, routed)) = best else { return false };
        *routed += 1;
        // The scenario's lengths are far below any engine's cache.
        let _ = match adapter {
            Some(adapter) => member.replica.submit_for(self.now, request, adapter),
            None => member.replica.submit(self.now, request),
        };
        true
    }

    fn create(&mut self, index: usize, state: State) -> Result<(), SettingsError> {
        let Some((model, variant)) = self.scenario.variants().nth(index) else { return Ok(()) };
        let replica = Replica::new(variant.engine)?;
        let replica = match &model.adapters {
            Some(adapters) => replica.with_adapters(adapters.engine),
            None => replica,
        };
        let members = &mut self.variants[index];
        let name = format!("{}-{}", variant.key.variant, members.created);
        members.created += 1;
        members.members.push(Member { name, created: self.now, state, replica });
        Ok(())
    }

    fn at(&self, time: Micros) -> Timestamp {
        let span = SignedDuration::try_from(time.duration()).unwrap_or_default();
        self.epoch.checked_add(span).unwrap_or(self.epoch)
    }
}

/// What a fleet that never changes would have come to, with `choose` replicas of each variant, under
/// the same requests.
///
/// # Errors
///
/// An engine of the scenario has settings that no engine can have.
pub fn static_fleet(
    scenario: &Scenario,
    until: Micros,
    choose: impl Fn(&Variant) -> Replicas,
) -> Result<Score, SettingsError> {
    let mut scenario = scenario.clone();
    for variant in scenario.models.iter_mut().flat_map(|model| &mut model.variants) {
        variant.min = choose(variant);
    }
    let mut fleet = Fleet::new(Arc::new(scenario), Timestamp::UNIX_EPOCH)?;
    fleet.advance_to(until);
    Ok(fleet.score())
}

// === impl Crew ===

impl Crew {
    fn existing(&self) -> usize {
        self.members.iter().filter(|member| member.state != State::Draining).count()
    }

    /// Lets one replica go: the youngest that is not ready, else the youngest.
    fn retire(&mut self) {
        let unready = |member: &Member| matches!(member.state, State::Starting(_));
        let ready = |member: &Member| matches!(member.state, State::Ready(_));
        if let Some(index) = self.members.iter().rposition(unready) {
            self.members.remove(index);
        } else if let Some(index) = self.members.iter().rposition(ready) {
            self.members[index].state = State::Draining;
        }
    }

    fn view(&self) -> VariantView {
        let mut view = VariantView { routed: self.routed, ..VariantView::default() };
        for member in &self.members {
            match member.state {
                State::Starting(_) => view.starting += 1,
                State::Draining => view.draining += 1,
                State::Ready(_) => {
                    let Gauges { running, waiting, kv_usage } = member.replica.gauges();
                    view.ready += 1;
                    view.running += running;
                    view.waiting += waiting;
                    view.kv += kv_usage;
                    view.loads += member.replica.adapters().map_or(0, |adapters| adapters.loads);
                }
            }
        }
        view.kv /= f64::from(view.ready.max(1));
        view
    }
}

fn loads(scenario: &Scenario) -> Vec<Load> {
    let mut first = 0;
    let mut loads = Vec::new();
    for (index, model) in scenario.models.iter().enumerate() {
        let variants = first..first + model.variants.len();
        first = variants.end;
        let arrivals = model.arrivals(scenario.seed, index).peekable();
        let choice = Choice::new(scenario.seed, index);
        loads.push(Load { arrivals, held: VecDeque::new(), choice, variants });
    }
    loads
}

/// What it counts against a replica that it has to load an adapter, as a share of its seats.
fn detour(replica: &Replica, adapter: Option<AdapterId>) -> f64 {
    match adapter.and_then(|adapter| replica.holds(adapter)) {
        Some(Holds::Loaded) | None => 0.0,
        Some(Holds::Free) => 0.1,
        Some(Holds::Others) => 0.5,
    }
}

fn model_of(id: u64) -> usize {
    usize::try_from(id >> ID_BITS).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario() -> Scenario {
        let mut scenario = Scenario::standard(seconds(180), 1).unwrap();
        scenario.startup = seconds(10);
        scenario
    }

    fn fleet() -> Fleet {
        Fleet::new(Arc::new(scenario()), Timestamp::UNIX_EPOCH).unwrap()
    }

    fn seconds(seconds: u64) -> Micros {
        Micros::from_secs(seconds)
    }

    fn n(count: u32) -> Replicas {
        Replicas::saturating(count)
    }

    #[test]
    fn a_replica_starts_serves_and_drains_before_it_goes() {
        let mut fleet = fleet();
        fleet.advance_to(seconds(20));
        fleet.scale(1, n(2)).unwrap();
        fleet.advance_to(seconds(29));
        assert_eq!((fleet.view()[1].ready, fleet.view()[1].starting), (1, 1));
        assert_eq!(fleet.page("llama-h100-1"), None, "it does not serve yet");
        fleet.advance_to(seconds(30));
        assert_eq!((fleet.view()[1].ready, fleet.view()[1].starting), (2, 0));
        assert!(fleet.page("llama-h100-1").is_some());

        fleet.advance_to(seconds(60));
        fleet.scale(1, n(1)).unwrap();
        assert_eq!((fleet.view()[1].ready, fleet.view()[1].draining), (1, 1));
        assert_eq!(fleet.page("llama-h100-1"), None, "it does not serve any more");
        fleet.advance_to(seconds(180));
        assert_eq!(fleet.view()[1].draining, 0, "what it had has long been answered");
    }

    #[test]
    fn of_too_many_the_youngest_go_first_and_unready_before_ready() {
        let mut fleet = fleet();
        fleet.scale(0, n(2)).unwrap();
        fleet.advance_to(seconds(15));
        fleet.scale(0, n(4)).unwrap();
        fleet.scale(0, n(3)).unwrap();
        let names = |fleet: &Fleet| {
            let live = fleet.members(0).filter(|(_, state)| *state != State::Draining);
            live.map(|(name, _)| name.to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names(&fleet), ["llama-l40s-0", "llama-l40s-1", "llama-l40s-2"]);
        fleet.scale(0, n(1)).unwrap();
        assert_eq!(names(&fleet), ["llama-l40s-0"]);
        fleet.scale(0, n(2)).unwrap();
        assert_eq!(names(&fleet), ["llama-l40s-0", "llama-l40s-4"], "no name comes back");
    }

    #[test]
    fn no_request_is_lost_whatever_is_scaled() {
        let mut fleet = fleet();
        let waves = [3, 1, 4, 2, 0, 0, 3, 1, 2, 4];
        for (step, count) in waves.into_iter().cycle().take(60).enumerate() {
            fleet.advance_to(seconds(3 * step as u64));
            for index in 0..3 {
                fleet.scale(index, n(count)).unwrap();
            }
        }
        let arrived: u64 = fleet.score().models.iter().map(|model| model.arrived).sum();
        let held: usize = fleet.loads.iter().map(|load| load.held.len()).sum();
        let inside: usize = fleet
            .variants
            .iter()
            .flat_map(|crew| &crew.members)
            .map(|member| member.replica.outstanding())
            .sum();
        let finished = usize::try_from(fleet.score().finished()).unwrap();
        assert_eq!(usize::try_from(arrived).unwrap(), finished + inside + held);
    }

    #[test]
    fn requests_follow_the_seats_that_replicas_have() {
        let mut fleet = fleet();
        let mut running = [0, 0];
        for second in 20..40 {
            fleet.advance_to(seconds(second));
            let views = fleet.view();
            running = [running[0] + views[0].running, running[1] + views[1].running];
        }
        let share = f64::from(running[1]) / f64::from(running[0]);
        // 384 seats against 128; requests that end between two arrivals move it a little.
        assert!((2.5..=3.5).contains(&share), "{share}");
    }

    #[test]
    fn the_same_seed_gives_the_same_run_in_any_steps() {
        let (mut once, mut often) = (fleet(), fleet());
        once.advance_to(seconds(100));
        for step in 0..=1_000 {
            often.advance_to(Micros::new(step * 100_000));
        }
        assert_eq!(once.view(), often.view());
        for (once, often) in once.score().models.iter().zip(&often.score().models) {
            // Requests that end between two arrivals are counted in another order.
            assert_eq!((once.finished, once.good), (often.finished, often.good));
            assert_eq!(once.ttft_quantile(0.9), often.ttft_quantile(0.9));
            assert_eq!(once.itl_quantile(0.9), often.itl_quantile(0.9));
        }
    }

    #[test]
    fn the_wave_needs_more_than_the_smallest_fleet_and_less_than_the_largest() {
        let scenario = scenario();
        let run = |choose: fn(&Variant) -> Replicas| {
            static_fleet(&scenario, seconds(180), choose).unwrap()
        };
        let (smallest, largest) = (run(|v| v.min), run(|v| v.max));
        assert!(smallest.attainment().unwrap() < 0.5, "{:?}", smallest.attainment());
        assert!(largest.attainment().unwrap() > 0.99, "{:?}", largest.attainment());
        assert!(largest.cost(&scenario) > 3.0 * smallest.cost(&scenario));
        let arrived = |score: &Score| score.models.iter().map(|m| m.arrived).collect::<Vec<_>>();
        assert_eq!(arrived(&smallest), arrived(&largest), "both meet the same requests");
    }

    #[test]
    fn an_overdue_request_counts_against_the_service() {
        let mut fleet = fleet();
        fleet.scale(2, Replicas::ZERO).unwrap();
        fleet.advance_to(seconds(30));
        let service = &fleet.score().models[1];
        assert!(service.stuck > 0, "nobody serves this model");
        assert!(service.attainment().unwrap() < 0.5);
    }
}
