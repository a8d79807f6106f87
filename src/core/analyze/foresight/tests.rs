mod cards;
mod engines;
mod estimate;
mod recall;
mod routing;
mod standby;
mod terms;

use super::*;
use crate::analyze::engine_args::EngineArguments;
use crate::analyze::foresight::capacity::carried;
use crate::analyze::foresight::lengths::RequestLengths;
use crate::analyze::foresight::limits::{CapacityLimits, FirstToken};
use crate::analyze::foresight::pace::IterationCost;
use crate::analyze::foresight::request_profile::RequestProfile;
use crate::analyze::foresight::role_demand::RoleDemand;
use crate::fleet::{Incarnation, ReplicaKey, ReplicaName, VariantSpec};
use crate::observe::histogram::Histogram;
use crate::observe::stride::IntervalDelta;
use crate::units::{Amount, Replicas, Requests, Tokens};

const TRUTH: IterationCost =
    IterationCost { alpha: 0.007_05, beta: 0.000_019_5, delta: 0.000_025_4 };
const PROMPT: f64 = 1000.0;
const OUTPUT: f64 = 200.0;
const ITL: f64 = 0.03;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_795_000_000 + second).unwrap()
}

fn requests(count: f64) -> Option<Requests> {
    Requests::new(count)
}

/// The counters of a replica over a second at this arrival rate, by the model of [`capacity`].
fn second(now: i64, prompt: f64, rate: f64, waiting: f64) -> IntervalDelta {
    second_of(TRUTH, now, prompt, rate, waiting)
}

/// The same for an engine with these iterations.
fn second_of(of: IterationCost, now: i64, prompt: f64, rate: f64, waiting: f64) -> IntervalDelta {
    let work = of.beta * prompt + of.delta * (OUTPUT - 1.0);
    let time = (of.alpha + of.delta) / (1.0 - rate.min(0.95 / work) * work);
    let running = rate * (OUTPUT - 1.0) * time;

    IntervalDelta {
        arrived: requests(rate),
        lengths: Tokens::new(rate * prompt)
            .zip(Tokens::new(rate * OUTPUT))
            .zip(requests(rate))
            .map(|((prompts, answers), count)| (prompts, answers, count)),
        prompt: Tokens::new(rate * prompt),
        computed: Tokens::new(rate * prompt),
        generated: Tokens::new(rate * OUTPUT),
        begun: requests(rate),
        intervals: Seconds::new(running).zip(requests(rate * (OUTPUT - 1.0))),
        batched: Seconds::new(rate * OUTPUT * time).zip(requests(rate)),
        waiting: requests(waiting),
        running: requests(running),
        kv_usage: Fraction::new(running * (prompt + OUTPUT / 2.0) / 900_000.0),
        kv_capacity: Tokens::new(900_000.0),
        ..IntervalDelta::over(at(now), Seconds::literal(1))
    }
}

/// Iterations that take this multiple of the true time.
fn times_as_slow(factor: f64) -> IterationCost {
    let IterationCost { alpha, beta, delta } = TRUTH;
    IterationCost { alpha: factor * alpha, beta: factor * beta, delta: factor * delta }
}

impl<'a> VariantStrides<'a> {
    /// A variant without replicas, with all other values unknown.
    pub(in crate::analyze::foresight) fn example(spec: &'a VariantSpec) -> Self {
        Self {
            spec,
            gpus: spec.gpus,
            current: Replicas::ZERO,
            pending: Replicas::ZERO,
            leaving: Replicas::ZERO,
            silent: Replicas::ZERO,
            min: spec.bounds.min(),
            room: Replicas::LIMIT,
            startup: None,
            slowest_start: None,
            losses: 0.0,
            told: EngineLimits::default(),
            arguments: None,
            ttft: None,
            replicas: Vec::new(),
            unready: Vec::new(),
        }
    }
}

struct World {
    spec: VariantSpec,
    prompt: f64,
    foresight: Foresight,
    policy: ForesightPolicy,
    now: i64,
    replicas: u32,
    waiting: f64,
    queued: Option<f64>,
    gateway: gateway::GatewayQueue,
    ttft: Option<Histogram>,
    pending: u32,
    /// The mean square of the lengths of prompts over the square of their mean, if buckets show it.
    squares: Option<f64>,
    slowest_start: Option<Seconds>,
    told: EngineLimits,
    /// The only replica at which requests wait; `None` if they wait at all replicas.
    waits_at: Option<u32>,
    arguments: Option<Arc<EngineArguments>>,
    /// The incarnation of each replica, and the slowdown factor of its engine.
    engines: BTreeMap<u32, (u32, f64)>,
    /// True while replicas do not show how many requests arrive.
    uncounted: bool,
}

impl World {
    fn new(replicas: u32) -> Self {
        let policy = ForesightPolicy {
            itl: Seconds::new(ITL),
            startup: Seconds::literal(60),
            ..ForesightPolicy::default()
        };

        Self {
            spec: VariantSpec::example("a"),
            prompt: PROMPT,
            foresight: Foresight::default(),
            policy,
            now: 0,
            replicas,
            waiting: 0.0,
            queued: None,
            gateway: gateway::GatewayQueue::default(),
            ttft: None,
            pending: 0,
            squares: None,
            slowest_start: None,
            told: EngineLimits::default(),
            waits_at: None,
            arguments: None,
            engines: BTreeMap::new(),
            uncounted: false,
        }
    }

    /// The incarnation of a replica, and the slowdown factor of its engine.
    fn engine(&self, index: u32) -> (u32, f64) {
        self.engines.get(&index).copied().unwrap_or((0, 1.0))
    }

    /// A second in which the replicas share this rate.
    fn tick(&mut self, rate: f64) -> ForesightAnalysis {
        self.now += 1;
        let each = rate / f64::from(self.replicas.max(1));
        let sum = each * self.prompt;
        let prompt_moments = self.squares.map(|squares| [sum, squares * sum * self.prompt]);

        let mut keys = Vec::new();
        let mut strides = Vec::new();
        for index in 0..self.replicas {
            let (incarnation, slower) = self.engine(index);
            keys.push(ReplicaKey {
                variant: self.spec.key.clone(),
                replica: ReplicaName::new(&format!("r{index}")).unwrap(),
                incarnation: Incarnation::new(&incarnation.to_string()),
            });

            let waits = self.waits_at.is_none_or(|at| at == index);
            let waiting = if waits { self.waiting } else { 0.0 };
            let of = times_as_slow(slower);
            let stride = second_of(of, self.now, self.prompt, each, waiting);
            let arrived = stride.arrived.filter(|_| !self.uncounted);
            strides.push([IntervalDelta { arrived, prompt_moments, ..stride }]);
        }

        let replicas = keys
            .iter()
            .zip(&strides)
            .map(|(replica, stride)| ReplicaStrides {
                replica,
                strides: stride,
                waiting: stride[0].waiting,
                running: stride[0].running,
            })
            .collect();
        let variant = VariantStrides {
            current: Replicas::saturating(self.replicas),
            pending: Replicas::saturating(self.pending),
            slowest_start: self.slowest_start,
            told: self.told,
            arguments: self.arguments.as_ref(),
            ttft: self.ttft.as_ref(),
            replicas,
            ..VariantStrides::example(&self.spec)
        };

        let model = self.spec.model_key();
        let now = at(self.now);
        let queued = self
            .queued
            .map(|requests| QueueReading { requests: Requests::new(requests).unwrap(), at: now });
        let heard = queued.map(|queued| ("gateway".to_owned(), queued)).into_iter().collect();
        let grown = self.gateway.take(&heard);
        let front = GatewaySignals { queued, grown, ..GatewaySignals::UNSEEN };
        analyze(now, now, front, &self.policy, &model, &[variant], &mut self.foresight)
    }

    fn run(&mut self, seconds: u32, rate: f64) -> ForesightAnalysis {
        (1..seconds).for_each(|_| drop(self.tick(rate)));
        self.tick(rate)
    }
}

fn carries(analysis: &ForesightAnalysis) -> f64 {
    analysis.report.variants[0].per_replica.unwrap().amount()
}

fn truth() -> f64 {
    let policy = ForesightPolicy::default();
    let requested = RequestProfile {
        prompt: Tokens::new(PROMPT).unwrap(),
        computed: Tokens::new(PROMPT).unwrap(),
        output: Tokens::new(OUTPUT).unwrap(),
        prompt_squares: 2.0,
        computed_squares: 2.0,
        answer_squares: 2.0,
        pieces: 1.0,
        held: Tokens::new(PROMPT + OUTPUT / 2.0).unwrap(),
    };

    let limits = CapacityLimits {
        itl: Seconds::new(ITL),
        first: Some(FirstToken {
            within: policy.ttft,
            per_token: policy.ttft_per_token,
            long: policy.long_prompt,
        }),
        seats: 256.0,
        kv: Tokens::new(900_000.0),
        budget: 2048.0,
        share: policy.limit_share,
        shared: 2.0,
    };

    carried(TRUTH, &requested, &limits).unwrap().rate.requests_per_second()
}

#[test]
fn prompts_that_differ_leave_less_room_for_those_who_meet_the_long_ones() {
    let [alike, unknown, unlike] = [Some(1.0), None, Some(6.0)].map(|squares| {
        let mut world = World::new(4);
        world.squares = squares;
        carries(&world.run(300, 2.0 * truth()))
    });
    assert!(alike > 1.01 * unknown && unknown > 1.01 * unlike, "{alike} {unknown} {unlike}");
}

#[test]
fn a_start_that_goes_on_is_looked_ahead_for() {
    let starts = [None, Some(Seconds::literal(20)), Some(Seconds::literal(400))];
    let [usual, quick, slow] = starts.map(|slowest_start| {
        let mut world = World::new(4);
        world.slowest_start = slowest_start;
        world.run(300, 2.0 * truth()).foreseen[&Role::Both].horizon
    });
    assert!((quick - usual).abs() < 1e-9);
    assert!((slow - usual - 340.0).abs() < 1e-9, "60 s are usual");
}

#[test]
fn what_a_replica_carries_is_learned_from_a_load_that_is_never_near_it() {
    let mut world = World::new(4);
    for minute in 0..20 {
        drop(world.run(60, truth() * (1.0 + 0.15 * f64::from(minute % 8))));
    }
    let found = carries(&world.tick(2.0 * truth()));
    assert!((found / truth() - 1.0).abs() < 0.1, "{found} for {}", truth());
}

#[test]
fn a_steady_load_asks_for_what_carries_it_and_no_more() {
    let mut world = World::new(4);
    let found = world.run(600, 3.4 * truth());
    let need = found.foreseen[&Role::Both].need;
    assert!((need.total / (3.4 * truth()) - 1.0).abs() < 0.12, "{need:?}");
    assert_eq!(found.report.total.required, Amount::ZERO);
}

fn spare(analysis: &ForesightAnalysis) -> f64 {
    analysis.report.total.spare.amount()
}

#[test]
fn nothing_is_spare_before_enough_is_known_and_then_it_is() {
    let mut world = World::new(8);
    let early = world.run(100, 2.0 * truth());
    assert!(carries(&early) > 0.0 && spare(&early) <= 0.0);
    // One load gives little evidence about another, so the estimate is below the truth.
    assert!(spare(&world.run(200, 2.0 * truth())) > 3.0 * carries(&early));
}

#[test]
fn what_was_needed_is_held_for_the_time_of_the_hold_and_not_longer() {
    let mut world = World::new(8);
    drop(world.run(300, 6.0 * truth()));
    let soon = world.run(100, 1.0 * truth());
    assert!(soon.foreseen[&Role::Both].held > 5.5 * truth());
    // Peaks count for 15 minutes, but a load that fell has not grown since.
    let later = world.run(1200, 1.0 * truth());
    assert!(later.foreseen[&Role::Both].held < 1.5 * truth(), "{:?}", later.foreseen);
}

#[test]
fn a_load_that_rises_steadily_is_met_before_it_is_there() {
    let mut world = World::new(8);
    drop(world.run(300, 2.0 * truth()));

    let mut last = None;
    for step in 0..240 {
        last = Some(world.tick(truth() * (2.0 + 2.0 * f64::from(step) / 240.0)));
    }

    let need = last.unwrap().foreseen[&Role::Both].need;
    assert!(need.ramp.unwrap() > need.arriving * 1.1, "{need:?}");
}

#[test]
fn a_fleet_of_which_nothing_is_known_grows_by_what_it_has_in_flight() {
    let mut world = World::new(2);
    world.waiting = 100.0;
    let found = world.tick(1.0);
    let running = second(1, PROMPT, 0.5, 0.0).running.unwrap().requests().max(1.0);
    assert_eq!(found.report.unit, Unit::RequestsInFlight);
    assert!(found.report.variants[0].per_replica.is_none() || running >= 1.0);

    world.waiting = 0.0;
    let idle = World::new(2).tick(0.0);
    assert_eq!(idle.report.total.required, Amount::ZERO);
    assert!(idle.spare_withheld.is_some());
}

#[test]
fn a_cold_start_adds_replicas_of_the_role_whose_replicas_have_a_queue() {
    let specs = [("p", Role::Prefill), ("d", Role::Decode)]
        .map(|(name, role)| VariantSpec { role, ..VariantSpec::example(name) });
    let keys = specs.each_ref().map(|spec| ReplicaKey {
        variant: spec.key.clone(),
        replica: ReplicaName::new("r0").unwrap(),
        incarnation: None,
    });
    let strides = [100.0, 0.0].map(|waiting| [second(1, PROMPT, 20.0, waiting)]);
    let variants = [0, 1].map(|it| VariantStrides {
        current: Replicas::ONE,
        replicas: vec![ReplicaStrides {
            replica: &keys[it],
            strides: &strides[it],
            waiting: strides[it][0].waiting,
            running: strides[it][0].running,
        }],
        ..VariantStrides::example(&specs[it])
    });

    let mut foresight = Foresight::default();
    let policy = ForesightPolicy::default();
    let model = specs[0].model_key();
    let required = [Role::Prefill, Role::Decode].map(|role| {
        let front = GatewaySignals::UNSEEN;
        let found = analyze(at(1), at(1), front, &policy, &model, &variants, &mut foresight);
        assert_eq!(found.report.unit, Unit::RequestsInFlight);
        found.report.roles[&role].required
    });
    assert!(required[0] > Amount::ZERO, "{required:?}");
    assert_eq!(required[1], Amount::ZERO);
}

#[test]
fn a_target_that_nothing_meets_leaves_a_replica_without_a_rate() {
    let mut world = World::new(2);
    world.policy.itl = Seconds::new(0.005);
    let found = world.run(120, truth());
    assert_eq!(found.report.variants[0].per_replica, None);

    let floor = found.floors[&world.spec.key].to_string();
    assert!(
        floor.starts_with(
            "the ITL target of 5.0 ms (with 92% usable) is unreachable at any number of replicas: a \
             request alone on a replica takes about "
        ),
        "{floor}"
    );

    // A reachable target has no floor.
    world.policy.itl = Seconds::new(ITL);
    assert!(world.run(10, truth()).floors.is_empty());
}

#[test]
fn what_a_gateway_holds_has_arrived_and_asks_for_more_and_says_what_becomes_of_it() {
    let mut world = World::new(4);
    world.queued = Some(0.0);
    let before = world.run(300, 3.0 * truth()).foreseen[&Role::Both].need;
    assert_eq!(before.gateway, None, "an empty queue asks for nothing");

    // From now on the gateway holds half of the arrivals.
    let mut held = 0.0;
    for _ in 0..60 {
        held += 3.0 * truth();
        world.queued = Some(held);
        drop(world.tick(3.0 * truth()));
    }

    let found = world.tick(3.0 * truth());
    let seen = found.foreseen[&Role::Both];
    assert!((seen.need.arriving / (6.0 * truth()) - 1.0).abs() < 0.12, "{:?}", seen.need);

    let policy = world.policy.gateway.unwrap();
    let gateway = seen.need.gateway.unwrap();
    assert!(gateway.adds > 0.0 && gateway.adds <= policy.cap.fraction() * seen.need.arriving);

    let said = seen.to_string();
    assert!(said.contains(&format!("for {held:.0} requests in the gateway's queue")), "{said}");
    assert!(said.contains("all requests are late until it is empty"), "{said}");

    // Without the term, the held requests do not count.
    world.policy.gateway = None;
    let found = world.run(30, 3.0 * truth());
    let without = found.foreseen[&Role::Both];
    assert!(without.need.gateway.is_none() && without.need.arriving < 3.5 * truth());
}

/// One look at the variants of a model that no gateway queues for.
fn look(
    now: Timestamp,
    policy: &ForesightPolicy,
    variants: &[VariantStrides<'_>],
    foresight: &mut Foresight,
) -> ForesightAnalysis {
    let model = variants[0].spec.model_key();
    analyze(now, now, GatewaySignals::UNSEEN, policy, &model, variants, foresight)
}

/// The desired replicas for this analysis, as the optimizer would round them.
fn wanted(analysis: &ForesightAnalysis) -> f64 {
    let held = analysis.foreseen.get(&Role::Both).map_or(0.0, |found| found.held);
    analysis.report.variants[0].per_replica.map_or(0.0, |each| (held / each.amount() - 0.05).ceil())
}

/// The rate of a load that rises by one replica in two minutes.
fn rising(second: i64) -> f64 {
    truth() * (2.0 + second as f64 / 120.0)
}

#[test]
fn a_restart_on_a_ramp_asks_for_no_less_than_going_on_would_have() {
    let mut world = World::new(8);
    drop(world.run(300, rising(0)));
    (0..200).for_each(|second| drop(world.tick(rising(second))));

    let model = world.spec.model_key();
    let key = world.spec.key.clone();
    let mut saved = world.foresight.save(&model, &key).unwrap();
    assert!(saved.is_sound(), "{saved:?}");
    saved.shorten();

    let mut foresight = Foresight::default();
    foresight.recall(&model, &key, &saved);
    assert_eq!(foresight.save(&model, &key).map(|it| it.seen), Some(saved.seen.clone()));
    let mut again = World { foresight, spec: world.spec.clone(), ..World::new(8) };
    let mut cold = World { spec: world.spec.clone(), ..World::new(8) };

    // Half a minute without ticks. The first scrape of each replica gives no rate.
    (200..230).for_each(|second| drop(world.tick(rising(second))));
    (again.now, cold.now) = (world.now, world.now);

    let mut behind = 0;
    for second in 230..420 {
        let one = wanted(&world.tick(rising(second)));
        let other = wanted(&again.tick(rising(second)));
        // Until the second scrape of a replica no rate is known. After it, the need is held.
        if second > 231 {
            assert!(other >= one - 1.0, "{other} for {one} at {second}");
            behind += usize::from(other < one);
        }

        let unaware = wanted(&cold.tick(rising(second)));
        if (232..240).contains(&second) {
            assert!(unaware < other, "{unaware} for {other}: nothing is known without a memory");
        }
    }

    assert!(behind < 20, "a ramp that nobody saw for half a minute is met again: {behind}");
}

#[test]
fn needs_that_are_told_are_few_and_never_less() {
    let mut hold = HoldWindow::default();
    for second in 0..170 {
        let _ = hold.take(at(second), 1000.0 - second as f64, 180.0);
    }

    let mut demand = RoleDemand { hold: hold.clone(), ..RoleDemand::default() };
    for second in 0..60 {
        demand.arrivals.add(at(second), Seconds::literal(1), 3.0);
        demand.arrivals.close(at(second));
    }

    let mut foresight = Foresight::default();
    let model = VariantSpec::example("a").model_key();
    foresight.learned.insert(model.clone(), at(60));
    foresight.demands.insert((model.clone(), Role::Both), demand);
    let saved = foresight.save(&model, &VariantSpec::example("a").key).unwrap();
    assert!(saved.demands[0].needs.len() <= saved::NEEDS_MAX);
    let mut again = HoldWindow { needs: saved.demands[0].needs.iter().copied().collect() };
    for second in 170..360 {
        let ours = again.take(at(second), 1.0, 180.0).1;
        assert!(ours >= hold.take(at(second), 1.0, 180.0).1, "{second}");
    }
}

#[test]
fn nothing_is_asked_for_at_zero_until_a_request_comes() {
    let mut fleet = World::new(3);
    // A load that jumps up and down, with growth in its past.
    for _ in 0..4 {
        let _ = fleet.run(120, 5.0);
        let _ = fleet.run(120, 50.0);
    }

    assert!(fleet.run(60, 5.0).report.total.demand.amount() > 10.0);
    fleet.replicas = 0;
    // By then there are no arrivals, and the former need is still held.
    let asked: Vec<f64> =
        (0..900).map(|_| fleet.tick(0.0).report.total.required.amount()).skip(60).collect();
    assert!(asked.iter().all(|asked| *asked <= 0.0), "{asked:?}");
    fleet.queued = Some(1.0);
    let _ = fleet.tick(0.0);
    fleet.queued = Some(90.0);
    assert!(fleet.run(5, 0.0).report.total.required.amount() > 0.0);
}

#[test]
fn what_waits_is_needed_until_it_is_worked_off_and_no_longer() {
    let mut fleet = World::new(3);
    let steady = fleet.run(900, 20.0).report.total.demand.amount();

    fleet.waiting = 60.0;
    let queued = fleet.run(20, 20.0).report.total.demand.amount();
    assert!(queued > steady + 4.0, "{queued} {steady}");

    fleet.waiting = 0.0;
    let short = fleet.run(20, 20.0).report.total.demand.amount();
    assert!(short > steady + 4.0, "30 s are not over: {short} {steady}");
    let after = fleet.run(20, 20.0).report.total.demand.amount();
    assert!(after < steady + 0.1, "{after} {steady}");
}

/// The capacity after two minutes in which so many requests wait, and rates alternate.
fn carried_after(waiting: f64, rates: [f64; 2]) -> f64 {
    let mut world = World::new(1);
    let _ = world.run(120, 20.0);

    // Either prompts wait for their turn in an iteration, or requests wait for a place.
    world.waiting = waiting;
    for second in 0..120 {
        let _ = world.tick(rates[second % 2]);
    }

    carries(&world.tick(rates[1]))
}

#[test]
fn a_batch_is_full_where_as_many_run_on_page_after_page_and_not_where_their_number_changes() {
    let none = carried_after(0.0, [18.0, 22.0]);
    let turns = carried_after(5.0, [18.0, 22.0]);
    assert!((turns / none - 1.0).abs() < 0.01, "{turns} {none}");

    let free = carried_after(0.0, [20.0, 20.0]);
    let full = carried_after(5.0, [20.0, 20.0]);
    assert!(full < 0.75 * free, "{full} {free}");
}
