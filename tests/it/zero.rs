//! To zero and back, through the pipeline: nothing goes to zero on what nobody saw, and what was
//! woken is not sent back.

use plimsoll::analyze::ballot::Analyzer;
use plimsoll::decide::zero::{Move, ZeroPolicy};
use plimsoll::decide::{Reason, Stage};
use plimsoll::fleet::{Fleet, Role, VariantSpec, ZeroPermission, ZeroPreference};
use plimsoll::observe::engine::Engine;
use plimsoll::observe::{
    DemandSignal, FinishedReading, Inputs, Naming, RankReading, Reading, ScrapeFailure,
    SignalQuantity, SignalValue,
};
use plimsoll::pipeline::zero::{Zero, ZeroRule};
use plimsoll::pipeline::{Decisions, Policy};
use plimsoll::units::{Requests, Seconds};

use crate::limits::{limited, on, quota};
use crate::pipeline::{BUSY, IDLE, World, at, desired, known, of, policy, spec};
use crate::sizing::sized;

/// For how long nothing must have happened.
const AFTER: i64 = 60;
/// For how long what was woken stays in any case.
const AWAKE: i64 = 120;

fn seconds(seconds: i64) -> Seconds {
    Seconds::new(seconds as f64).unwrap()
}

fn opted_in(policy: Policy) -> Policy {
    let default =
        ZeroRule { policy: ZeroPolicy::AfterIdle(seconds(AFTER)), awake_min: seconds(AWAKE) };
    Policy { zero: Zero { default, ..Zero::default() }, ..policy }
}

/// A shop whose replicas say what they have done.
struct Shop {
    world: World,
    finished: Option<f64>,
    in_flight: f64,
    /// What the signals say; an empty list means that there are none.
    demand: Vec<(&'static str, Option<f64>)>,
}

impl Shop {
    fn new(specs: Vec<VariantSpec>) -> Self {
        Self::with(opted_in(policy()), specs)
    }

    fn with(policy: Policy, specs: Vec<VariantSpec>) -> Self {
        let world = World::with(policy, specs);
        Self { world, finished: Some(7.0), in_flight: 0.0, demand: Vec::new() }
    }

    /// One variant with these replicas, which have nothing to do.
    fn idle(replicas: u32) -> Self {
        let mut shop = Self::new(vec![spec("a", 1.0, (0, 9))]);
        shop.world.set("a", replicas, IDLE);
        shop
    }

    fn inputs(&self) -> Inputs {
        let mut inputs = self.world.inputs();
        for scrape in &mut inputs.scrapes {
            if let Ok(reading) = &mut scrape.outcome {
                self.write(reading);
            }
        }
        let now = at(self.world.second);
        for spec in self.world.fleet.variants() {
            let demand = self.demand.iter().map(|(signal, amount)| DemandSignal {
                signal: (*signal).to_owned(),
                seen: amount
                    .and_then(Requests::new)
                    .map_or(SignalValue::Never, |amount| SignalValue::Number(amount, now)),
                counts: SignalQuantity::Something,
                naming: Naming::Named,
            });
            inputs.demand.insert(spec.model_key(), demand.collect());
        }
        inputs
    }

    fn write(&self, reading: &mut Reading) {
        let rank = &mut reading.ranks[0];
        rank.running = Requests::new(self.in_flight);
        let stop = self.finished.and_then(Requests::new);
        rank.finished = FinishedReading { stop, ..FinishedReading::default() };
    }

    fn tick(&mut self) -> Decisions {
        let inputs = self.inputs();
        let decisions = self.world.pipeline.tick(at(self.world.second), &inputs);
        assert_eq!(decisions.violation, None);
        self.world.second += 1;
        decisions
    }

    fn run(&mut self, seconds: i64) -> Decisions {
        let mut last = self.tick();
        for _ in 1..seconds {
            last = self.tick();
        }
        last
    }

    /// Does what an autoscaler does with the numbers, at once; what is new starts.
    fn obey(&mut self, decisions: &Decisions) {
        for decision in &decisions.decisions {
            let (name, count) = (decision.variant.variant.as_str(), decision.desired().count());
            let variant = self.world.variants.get_mut(name).unwrap();
            let ready = variant.listed.min(count);
            variant.listed = ready;
            variant.scale = known(count, ready);
        }
    }

    /// Lets this variant's new replicas answer.
    fn ready(&mut self, name: &str, count: u32) {
        let variant = self.world.variants.get_mut(name).unwrap();
        variant.listed = count;
        variant.scale = known(count, count);
    }

    /// A shop that has been idle long enough and whose replicas are gone.
    fn asleep(specs: Vec<VariantSpec>) -> Self {
        Self::asleep_with(opted_in(policy()), specs)
    }

    fn asleep_with(policy: Policy, specs: Vec<VariantSpec>) -> Self {
        let names: Vec<String> = specs.iter().map(|it| it.key.variant.to_string()).collect();
        let mut shop = Self::with(policy, specs);
        for name in &names {
            shop.world.set(name, 1, IDLE);
        }
        shop.demand = vec![("the gateway", Some(0.0))];
        let decisions = shop.run(AFTER + 15);
        for name in &names {
            assert_eq!(desired(&decisions, name), 0, "{name}");
        }
        shop.obey(&decisions);
        let _ = shop.run(5);
        shop
    }
}

fn wish(may: Option<ZeroPermission>, after: Option<i64>) -> ZeroPreference {
    ZeroPreference { may, after: after.map(seconds) }
}

#[test]
fn objects_say_whether_their_model_may_have_no_replicas_and_the_configuration_says_it_last() {
    let (yes, no) = (Some(ZeroPermission::Allowed), Some(ZeroPermission::Forbidden));
    let off = Zero { after: seconds(AFTER), ..Zero::default() };
    let on = opted_in(policy()).zero;
    let idle = |after| ZeroPolicy::AfterIdle(seconds(after));
    let key = spec("a", 1.0, (0, 9)).model_key();
    let rule = |zero: &Zero, wishes: &[ZeroPreference]| {
        let wishes = wishes.iter().map(|wish| (key.clone(), *wish));
        zero.in_fleet(&Fleet::new([spec("a", 1.0, (0, 9))]).wishing(wishes), &key).policy
    };
    for (zero, wishes, want) in [
        (&off, vec![], ZeroPolicy::KeepOne),
        (&off, vec![wish(yes, None)], idle(AFTER)),
        (&off, vec![wish(yes, Some(30)), wish(None, Some(90))], idle(90)),
        (&off, vec![wish(yes, None), wish(no, None)], ZeroPolicy::KeepOne),
        (&off, vec![wish(None, Some(30))], ZeroPolicy::KeepOne),
        (&on, vec![wish(None, Some(30))], idle(30)),
        (&on, vec![wish(no, None)], ZeroPolicy::KeepOne),
    ] {
        assert_eq!(rule(zero, &wishes), want, "{wishes:?}");
    }
    let overrides = [(key.clone(), ZeroRule::default())].into();
    let written = Zero { overrides, ..on };
    assert_eq!(rule(&written, &[wish(yes, None)]), ZeroPolicy::KeepOne, "what is written for it");
}

#[test]
fn a_model_whose_object_allows_it_goes_to_zero_where_the_configuration_says_nothing() {
    let specs = || vec![spec("a", 1.0, (0, 9))];
    let off = Zero { after: seconds(AFTER), ..Zero::default() };
    for (wishes, want) in [(vec![], 1), (vec![wish(Some(ZeroPermission::Allowed), None)], 0)] {
        let mut shop = Shop::with(Policy { zero: off.clone(), ..policy() }, specs());
        let model = specs()[0].model_key();
        let wishes = wishes.into_iter().map(|wish| (model.clone(), wish));
        shop.world.fleet = Fleet::new(specs()).wishing(wishes);
        shop.world.set("a", 1, IDLE);
        assert_eq!(desired(&shop.run(AFTER + 15), "a"), want);
    }
}

fn whys(decisions: &Decisions, variant: &str) -> String {
    of(decisions, variant).because().unwrap().to_string()
}

#[test]
fn a_model_that_had_nothing_to_do_for_the_retention_goes_to_zero_and_says_what_proves_it() {
    for policy in [policy(), sized(&[Analyzer::Tokens])] {
        let mut shop = Shop::with(opted_in(policy), vec![spec("a", 1.0, (0, 9))]);
        shop.world.set("a", 1, IDLE);
        let early = shop.run(AFTER);
        assert_eq!(desired(&early, "a"), 1);
        let said = whys(&early, "a");
        assert!(
            said.contains("not scaled to zero: may not be idle: quiet for 59 of 60 s"),
            "{said}"
        );
        let decisions = shop.run(2);
        assert_eq!(desired(&decisions, "a"), 0);
        assert_eq!(
            whys(&decisions, "a"),
            "zero: 1 -> 0, idle: no request has finished, run, waited or queued for 60 s, according to 61 scrapes of 1 replica"
        );
    }
}

#[test]
fn an_idle_replica_with_several_ranks_goes_to_zero_where_only_the_first_counts_requests() {
    for (engine, want) in [(Engine::Sglang, 0), (Engine::Vllm, 1)] {
        let mut shop = Shop::idle(1);
        let mut last = None;
        for _ in 0..AFTER + 15 {
            let mut inputs = shop.inputs();
            for scrape in &mut inputs.scrapes {
                let Ok(reading) = &mut scrape.outcome else { panic!("it answers") };
                let first = reading.ranks[0].clone();
                let finished = FinishedReading::default();
                reading.engine = engine;
                reading.ranks.push(RankReading { rank: 1, finished, ..first });
            }
            let decisions = shop.world.pipeline.tick(at(shop.world.second), &inputs);
            shop.world.second += 1;
            last = Some(desired(&decisions, "a"));
        }
        assert_eq!(last, Some(want), "{engine:?}");
    }
}

#[test]
fn a_model_that_has_not_opted_in_keeps_a_replica() {
    for policy in [policy(), sized(&[Analyzer::Tokens])] {
        let mut shop = Shop::with(policy, vec![spec("a", 1.0, (0, 9))]);
        shop.world.set("a", 1, IDLE);
        assert_eq!(desired(&shop.run(600), "a"), 1);
    }
}

#[test]
fn a_minimum_of_the_autoscaler_holds() {
    let mut shop = Shop::new(vec![spec("a", 1.0, (1, 9))]);
    shop.world.set("a", 1, IDLE);
    let decisions = shop.run(600);
    assert_eq!(desired(&decisions, "a"), 1);
    assert!(of(&decisions, "a").steps.iter().all(|step| step.stage != Stage::Zero));
}

#[test]
fn missing_data_never_sends_to_zero() {
    type Break = fn(&mut Shop);
    let breaks: [(&str, Break); 6] = [
        ("no page", |shop| shop.world.variants.get_mut("a").unwrap().silent = vec![0]),
        ("all pages fail", |shop| {
            let failing = [(0, ScrapeFailure::Timeout), (1, ScrapeFailure::Refused)];
            shop.world.variants.get_mut("a").unwrap().failing = failing.into();
        }),
        ("no counter", |shop| shop.finished = None),
        ("an unreadable signal", |shop| shop.demand = vec![("the gateway", None)]),
        ("one of two signals", |shop| {
            shop.demand = vec![("one", Some(0.0)), ("the other", None)];
        }),
        ("a replica that starts", |shop| {
            shop.world.variants.get_mut("a").unwrap().scale = known(3, 2);
        }),
    ];
    for (what, hurt) in breaks {
        let mut shop = Shop::idle(2);
        hurt(&mut shop);
        for _ in 0..AFTER * 4 {
            let decisions = shop.tick();
            let desired = decisions.decisions.first().map_or(1, |it| it.desired().count());
            assert!(desired > 0, "{what}");
        }
    }
}

#[test]
fn a_gap_begins_the_retention_anew() {
    let mut shop = Shop::idle(1);
    let _ = shop.run(AFTER - 5);
    shop.world.variants.get_mut("a").unwrap().silent = vec![0];
    let _ = shop.run(5);
    shop.world.variants.get_mut("a").unwrap().silent.clear();
    assert_eq!(desired(&shop.run(AFTER - 1), "a"), 1);
    assert_eq!(desired(&shop.run(5), "a"), 0);
}

#[test]
fn a_pause_of_the_process_begins_the_retention_anew() {
    let mut shop = Shop::idle(1);
    let _ = shop.run(AFTER - 5);
    shop.world.second += 1_000;
    assert_eq!(desired(&shop.run(AFTER - 1), "a"), 1);
}

#[test]
fn a_request_that_takes_longer_than_the_retention_keeps_its_replica() {
    let mut shop = Shop::idle(1);
    shop.in_flight = 1.0;
    assert_eq!(desired(&shop.run(AFTER * 5), "a"), 1);
}

#[test]
fn one_request_between_two_pages_is_seen_by_its_counter() {
    let mut shop = Shop::idle(1);
    let _ = shop.run(AFTER - 5);
    shop.finished = Some(8.0);
    assert_eq!(desired(&shop.run(AFTER - 1), "a"), 1);
    assert_eq!(desired(&shop.run(5), "a"), 0);
}

#[test]
fn a_replica_that_left_while_it_was_quiet_leaves_no_gap() {
    let mut shop = Shop::idle(2);
    let _ = shop.run(AFTER - 20);
    shop.ready("a", 1);
    assert_eq!(desired(&shop.run(22), "a"), 0);
}

#[test]
fn a_number_of_zero_that_is_not_actuated_does_not_outlive_its_proof() {
    let mut shop = Shop::idle(1);
    assert_eq!(desired(&shop.run(AFTER + 5), "a"), 0);
    // The autoscaler waits, and nobody sees the replica any more.
    shop.world.variants.get_mut("a").unwrap().silent = vec![0];
    assert_eq!(desired(&shop.run(10), "a"), 1);
}

#[test]
fn replicas_that_leave_before_their_scale_target_says_so_do_not_wake_the_model() {
    let mut shop = Shop::idle(1);
    assert_eq!(desired(&shop.run(AFTER + 5), "a"), 0);
    // The autoscaler has acted: the pod is gone, and the Deployment still shows one replica.
    shop.world.variants.get_mut("a").unwrap().listed = 0;
    for _ in 0..5 {
        assert_eq!(desired(&shop.tick(), "a"), 0);
    }
}

#[test]
fn the_cheapest_variant_wakes_and_is_not_sent_back() {
    let specs = vec![spec("dear", 9.0, (0, 9)), spec("cheap", 2.0, (0, 9))];
    let mut shop = Shop::asleep(specs);
    shop.demand = vec![("the gateway", Some(3.0))];
    let decisions = shop.tick();
    assert_eq!((desired(&decisions, "cheap"), desired(&decisions, "dear")), (1, 0));
    assert_eq!(whys(&decisions, "cheap"), "zero: 0 -> 1, woken: the gateway reports 3");
    // The queue is empty again before the replica is ready: its requests were given up.
    shop.obey(&decisions);
    shop.demand = vec![("the gateway", Some(0.0))];
    for _ in 0..AFTER * 2 {
        assert_eq!(desired(&shop.tick(), "cheap"), 1, "its replica is starting");
    }
    shop.ready("cheap", 1);
    shop.finished = Some(0.0);
    for second in 0..AFTER - 1 {
        assert_eq!(desired(&shop.tick(), "cheap"), 1, "{second} s after it was ready");
    }
    let decisions = shop.run(10);
    assert_eq!(desired(&decisions, "cheap"), 0, "idle is proved anew");
}

#[test]
fn the_cheapest_variant_with_room_in_every_limit_wakes() {
    for (h100s, want) in [(4, 1), (0, 0)] {
        let policy = limited(opted_in(policy()), vec![quota(&[("L4", 2), ("H100", h100s)])]);
        let specs = vec![
            on("sleepy-l4", "sleepy", "L4", 1.0),
            on("sleepy-h100", "sleepy", "H100", 9.0),
            on("busy", "busy", "L4", 1.0),
        ];
        let mut shop = Shop::asleep_with(policy, specs);
        shop.world.set("busy", 2, BUSY);
        shop.demand = vec![("the gateway", Some(3.0))];
        for _ in 0..3 {
            let decisions = shop.tick();
            let sleepy = (desired(&decisions, "sleepy-l4"), desired(&decisions, "sleepy-h100"));
            assert_eq!(sleepy, (0, want), "{h100s}");
            if want == 0 {
                let said = whys(&decisions, "sleepy-l4");
                assert!(said.contains("limited by quota"), "{said}");
            }
        }
    }
}

#[test]
fn prefill_and_decode_wake_only_where_both_have_room() {
    for (gpus, want) in [(1, [1, 0, 0]), (2, [0, 1, 1]), (0, [0, 0, 0])] {
        let policy = limited(opted_in(policy()), vec![quota(&[("L4", gpus)])]);
        let part = |name: &str, role| VariantSpec { role, ..on(name, "sleepy", "L4", 1.0) };
        let single = on("whole", "sleepy", "L4", 9.0);
        let specs = vec![single, part("prefill", Role::Prefill), part("decode", Role::Decode)];
        let mut shop = Shop::asleep_with(policy, specs);
        shop.demand = vec![("the gateway", Some(3.0))];

        for _ in 0..3 {
            let decisions = shop.tick();
            let found = ["whole", "prefill", "decode"].map(|name| desired(&decisions, name));
            assert_eq!(found, want, "{gpus} free");
            if gpus == 0 {
                let said = whys(&decisions, "prefill");
                assert!(said.contains("limited by quota"), "{said}");
            }
        }
    }
}

#[test]
fn a_woken_variant_that_leaves_the_fleet_keeps_no_other_awake() {
    let (cheap, dear) = (spec("cheap", 2.0, (0, 9)), spec("dear", 9.0, (0, 9)));
    let mut shop = Shop::asleep(vec![cheap, dear.clone()]);
    shop.demand = vec![("the gateway", Some(3.0))];
    assert_eq!(desired(&shop.tick(), "cheap"), 1);

    shop.world.fleet = Fleet::new([dear]);
    shop.demand = vec![("the gateway", Some(0.0))];
    shop.ready("dear", 1);
    shop.finished = Some(0.0);
    let decisions = shop.run(AWAKE + AFTER + 15);
    assert_eq!(desired(&decisions, "dear"), 0, "{}", whys(&decisions, "dear"));
}

#[test]
fn a_woken_number_leads_until_it_is_actuated() {
    let mut shop = Shop::asleep(vec![spec("a", 1.0, (0, 9))]);
    shop.demand = vec![("the gateway", Some(1.0))];
    assert_eq!(desired(&shop.tick(), "a"), 1);
    shop.demand = vec![("the gateway", Some(0.0))];
    let decisions = shop.run(AWAKE * 2);
    assert_eq!(desired(&decisions, "a"), 1, "the scale target has no replica yet");
    assert!(matches!(
        of(&decisions, "a").steps.last().unwrap().reason,
        Reason::Zero(Move::KeptAwake { .. })
    ));
}

#[test]
fn a_wake_signal_that_is_unreadable_changes_nothing() {
    let mut shop = Shop::asleep(vec![spec("a", 1.0, (0, 9))]);
    for demand in [vec![("the gateway", None)], vec![]] {
        shop.demand = demand;
        assert_eq!(desired(&shop.run(50), "a"), 0);
    }
    shop.demand = vec![("broken", None), ("the gateway", Some(0.2))];
    assert_eq!(desired(&shop.tick(), "a"), 1, "another signal speaks for itself");
}

#[test]
fn every_signal_must_be_zero_for_the_proof_and_any_of_them_wakes() {
    let mut shop = Shop::idle(1);
    shop.demand = vec![("one", Some(0.0)), ("the other", Some(0.5))];
    assert_eq!(desired(&shop.run(AFTER * 2), "a"), 1);
    shop.demand = vec![("one", Some(0.0)), ("the other", Some(0.0))];
    assert_eq!(desired(&shop.run(AFTER - 1), "a"), 1, "the retention begins with the last queue");
    let decisions = shop.run(5);
    assert_eq!(desired(&decisions, "a"), 0);

    shop.obey(&decisions);
    assert_eq!(desired(&shop.run(5), "a"), 0);
    shop.demand = vec![("one", Some(2.0)), ("the other", Some(5.0)), ("broken", None)];
    let said = whys(&shop.tick(), "a");
    assert_eq!(said, "zero: 0 -> 1, woken: the other reports 5", "the longest queue is named");
}

#[test]
fn a_variant_that_does_not_start_hands_on_to_the_next() {
    let specs = vec![spec("dear", 9.0, (0, 9)), spec("cheap", 2.0, (0, 9))];
    let mut shop = Shop::asleep(specs);
    shop.demand = vec![("the gateway", Some(3.0))];
    let decisions = shop.tick();
    shop.obey(&decisions);
    // Twice the patience of five minutes.
    let decisions = shop.run(590);
    assert_eq!((desired(&decisions, "cheap"), desired(&decisions, "dear")), (1, 0));
    let decisions = shop.run(20);
    assert_eq!((desired(&decisions, "cheap"), desired(&decisions, "dear")), (1, 1));
}

fn parts() -> Vec<VariantSpec> {
    let role = |name: &str, role| VariantSpec { role, ..spec(name, 1.0, (0, 4)) };
    vec![role("prefill", Role::Prefill), role("decode", Role::Decode)]
}

#[test]
fn both_parts_of_a_model_go_to_zero_and_wake_together() {
    for policy in [policy(), sized(&[Analyzer::Tokens])] {
        let mut shop = Shop::asleep_with(opted_in(policy), parts());
        shop.demand = vec![("the gateway", Some(1.0))];
        let decisions = shop.tick();
        assert_eq!((desired(&decisions, "prefill"), desired(&decisions, "decode")), (1, 1));
    }
}

#[test]
fn a_part_stays_while_the_other_half_must_have_replicas() {
    let mut specs = parts();
    specs[0] = VariantSpec { role: Role::Prefill, ..spec("prefill", 1.0, (1, 4)) };
    let mut shop = Shop::new(specs);
    shop.world.set("prefill", 1, IDLE);
    shop.world.set("decode", 1, IDLE);
    let decisions = shop.run(AFTER * 2);
    assert_eq!((desired(&decisions, "prefill"), desired(&decisions, "decode")), (1, 1));
    let said = whys(&decisions, "decode");
    assert!(said.contains("prefill keeps 1 and needs this variant"), "{said}");
}

/// Another daemon, which knows what this one has saved, after some seconds.
fn restarted(shop: &Shop, seconds: i64) -> Shop {
    let policy = opted_in(policy());
    let mut world = shop.world.clone();
    world.pipeline = plimsoll::pipeline::Pipeline::new(policy);
    world.second += seconds;
    let now = at(world.second);
    for spec in shop.world.fleet.variants() {
        let memory = shop.world.pipeline.memory(&spec.model_key(), &spec.key).unwrap();
        let desired = plimsoll::units::Replicas::ONE;
        world.pipeline.restore(now, spec.key.clone(), desired, at(shop.world.second));
        world.pipeline.recall(now, &spec.model_key(), &spec.key, &memory);
    }
    let Shop { finished, in_flight, demand, .. } = shop;
    Shop { world, finished: *finished, in_flight: *in_flight, demand: demand.clone() }
}

/// After how many seconds it goes to zero.
fn seconds_to_zero(shop: &mut Shop) -> Option<i64> {
    (0..2 * AFTER).find(|_| desired(&shop.tick(), "a") == 0)
}

#[test]
fn a_restart_keeps_the_proof_where_the_counters_go_on_from_where_they_were() {
    let mut shop = Shop::idle(1);
    let _ = shop.run(40);
    let mut again = restarted(&shop, 5);
    // The replica must be measured for a window before anything is lowered.
    let took = seconds_to_zero(&mut again).unwrap();
    assert!(took <= AFTER - 40, "{took}");
    // A cluster takes a moment to say what there is.
    let mut late = restarted(&shop, 5);
    let variants = std::mem::take(&mut late.world.variants);
    let _ = late.run(4);
    late.world.variants = variants;
    let took = seconds_to_zero(&mut late).unwrap();
    assert!(took <= AFTER - 40, "{took}");
    let cold = seconds_to_zero(&mut Shop::idle(1));
    assert!(cold.is_none_or(|cold| cold >= AFTER - 1), "{cold:?}");
}

#[test]
fn a_restart_begins_the_proof_anew_where_something_may_have_happened() {
    let mut shop = Shop::idle(1);
    let _ = shop.run(40);
    let anew = |changed: fn(&mut Shop), pause: i64| {
        let mut again = restarted(&shop, pause);
        changed(&mut again);
        seconds_to_zero(&mut again).unwrap_or(2 * AFTER)
    };
    for (what, changed) in [
        ("a request has finished", (|it| it.finished = Some(8.0)) as fn(&mut Shop)),
        ("the engine has started anew", |it| it.finished = Some(0.0)),
        ("its counter is gone", |it| it.finished = None),
    ] {
        let took = anew(changed, 5);
        assert!(took >= AFTER - 2, "{what}: {took}");
    }
    assert!(anew(|_| {}, 200) >= AFTER - 2, "nobody was there for minutes");
    let lost = anew(|it| it.world.variants.get_mut("a").unwrap().listed = 0, 5);
    assert_eq!(lost, 2 * AFTER, "the replica that was heard is not there");
}
