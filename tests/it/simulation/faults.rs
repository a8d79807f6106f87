//! Replicas that are slow, die again and again or are silent, and routers that spread requests badly.

use plimsoll::observe::{Inputs, ScrapeFailure};
use plimsoll::pipeline::Decisions;
use plimsoll::simulate::Micros;
use plimsoll::simulate::run::{Simulation, run_with};
use plimsoll::simulate::scaler;
use plimsoll::simulate::scenario::{
    Actuator, Client, CrashLoop, Router, Scenario, Signal, Silence, Slowdown, Startup,
};
use plimsoll::simulate::workload::load::{Lengths, Load, RateLoad, Sizes};
use plimsoll::simulate::workload::rate::Rate;
use plimsoll::units::Fraction;

use crate::simulation::{accounted, drawn, follow, n, play, scenario, secs};

/// Ten minutes at a steady rate on so many replicas, whose starts take 25 s.
fn steady(rate: f64, replicas: u32) -> Scenario {
    let mut scenario = scenario(drawn(Rate::constant(rate).unwrap()));
    scenario.variants[0].actuator = Actuator::Fixed;
    scenario.variants[0].initial = n(replicas);
    scenario.variants[0].startup =
        Startup { load: secs(15), warmup: secs(10), ..Startup::default() };
    scenario
}

/// The 95th percentiles of the time between tokens from one sample to another.
fn intervals(scenario: &Scenario, from: usize, to: usize) -> f64 {
    let outcome = play(scenario, 1);
    let samples = &outcome.series[from..to];
    let seen = samples.iter().filter_map(|sample| sample.models[0].itl_p95);
    seen.map(Micros::seconds).sum::<f64>() / samples.len() as f64
}

#[test]
fn engines_are_slow_from_one_time_to_another() {
    let plain = steady(2.0, 2);
    let mut slow = plain.clone();
    let (from, until) = (secs(200), Some(secs(400)));
    slow.variants[0].lifecycle.slowdown =
        Some(Slowdown { from, until, factor: 3.0, replica: None });
    // While they are slow more requests run, which makes a step longer still.
    for ((from, to), times) in [((2, 20), 0.99..1.01), ((26, 40), 3.0..3.7), ((46, 60), 0.9..1.1)] {
        let seen = intervals(&slow, from, to) / intervals(&plain, from, to);
        assert!(times.contains(&seen), "{seen} from {from}0 s");
    }

    let mut one = plain.clone();
    one.variants[0].lifecycle.slowdown =
        Some(Slowdown { from, until: None, factor: 3.0, replica: Some(2) });
    let times = intervals(&one, 26, 60) / intervals(&plain, 26, 60);
    assert!(times > 2.5, "the slowest of twenty answers is from the slow one: {times}");
    let mean = |scenario| play(scenario, 1).models[0].itl.mean().unwrap().seconds();
    assert!(mean(&one) < mean(&slow) * 1.2, "the other one is as it was");
}

#[test]
fn a_replica_that_dies_again_and_again_waits_longer_each_time() {
    let mut scenario = steady(4.0, 2);
    let crash_loop =
        CrashLoop { from: secs(100), until: None, serves: Micros::ZERO, replica: Some(1) };
    // It starts at once, then after 10, 20, 40, 80 and 160 s, and each start takes 25 s.
    for (serves, until, deaths) in [
        (secs(0), None, vec![100, 125, 160, 205, 270, 375, 560]),
        (secs(20), None, vec![100, 145, 200, 265, 350, 475]),
        (secs(20), Some(secs(250)), vec![100, 145, 200]),
    ] {
        let crash_loop = CrashLoop { serves, until, ..crash_loop };
        scenario.variants[0].lifecycle.crash_loop = Some(crash_loop);
        let outcome = play(&scenario, 1);
        assert_eq!(outcome.variants[0].crashes as usize, deaths.len(), "{crash_loop:?}");
        for (at, sample) in (0..).step_by(10).zip(&outcome.series) {
            let died = deaths.iter().rfind(|died| **died < at);
            let ready = if died.is_some_and(|died| at - died < 25) { 1 } else { 2 };
            if deaths.iter().all(|died| *died != at) && serves > Micros::ZERO {
                assert!(sample.variants[0].ready <= ready, "{} at {at}", sample.variants[0].ready);
            }
        }
        assert_eq!(accounted(&outcome.models[0]), outcome.models[0].arrived);
    }
    let forever = CrashLoop { from: Micros::ZERO, replica: None, ..crash_loop };
    scenario.variants[0].lifecycle.crash_loop = Some(forever);
    assert_eq!(play(&scenario, 1).models[0].finished, 0, "none ever serves");
}

#[test]
fn a_client_whose_answer_was_cut_waits_for_the_first_token_of_its_next_attempt_as_for_any() {
    let mut scenario = steady(0.5, 1);
    // Answers take about 20 s. After its death, the replica loads for 200 s.
    let (prompt, output) = (Lengths::Fixed(100), Lengths::Fixed(800));
    let rate = Rate::constant(0.5).unwrap();
    let sizes = Sizes::Apart { prompt, output };
    let load = RateLoad { rate, variation: 1.0, sizes, drift: None };
    scenario.models[0].load = Load::Drawn(load);
    scenario.models[0].client = Client { timeout: Some(secs(5)), retries: 1, backoff: secs(1) };
    scenario.variants[0].startup.load = secs(200);
    let (from, until) = (Micros::new(100_500_000), Some(secs(101)));
    scenario.variants[0].lifecycle.crash_loop =
        Some(CrashLoop { from, until, serves: Micros::ZERO, replica: None });

    let outcome = play(&scenario, 1);
    let service = &outcome.models[0];
    assert_eq!((outcome.variants[0].crashes, accounted(service)), (1, service.arrived));
    assert!(service.timed_out > 50 && service.finished > 100, "{service:?}");
    let longest = service.e2e.quantile(0.99).unwrap();
    assert!(longest < secs(60), "{longest:?}");
}

#[test]
fn replicas_crash_as_often_after_a_crash_loop_as_without_one() {
    let mut scenario = steady(0.05, 10);
    scenario.length = secs(12 * 3600);
    (scenario.control.tick, scenario.control.scrape) = (secs(10), secs(10));
    scenario.variants[0].lifecycle.crash_every = Some(secs(1800));
    let without = f64::from(play(&scenario, 1).variants[0].crashes);
    let (from, until) = (secs(1800), Some(secs(1801)));
    scenario.variants[0].lifecycle.crash_loop =
        Some(CrashLoop { from, until, serves: Micros::ZERO, replica: None });
    let with = f64::from(play(&scenario, 1).variants[0].crashes);
    // Ten replicas crash 24 times each; the standard deviation is 15.
    assert!((180.0..300.0).contains(&without), "{without}");
    assert!((with / without - 1.0).abs() < 0.3, "{with} with the loop, {without} without");
}

#[test]
fn a_start_that_fails_is_tried_again_after_the_back_off() {
    let mut scenario = steady(0.01, 1);
    scenario.variants[0].actuator =
        Actuator::Hpa(follow(Signal::Desired, scaler::ScalerSettings::following(n(40), n(40))));
    let failures = |scenario: &mut Scenario, share| {
        scenario.variants[0].startup.failures = Fraction::new(share).unwrap();
        play(scenario, 1)
    };
    assert_eq!(failures(&mut scenario, 0.0).variants[0].crashes, 0);
    let some = failures(&mut scenario, 0.2);
    // Of 39 starts a fifth fails, as of those that follow: 9.75 with a standard deviation of 3.5.
    assert!((1..=24).contains(&some.variants[0].crashes), "{}", some.variants[0].crashes);
    assert_eq!(some.series.last().unwrap().variants[0].ready, 40, "all serve in the end");
    let all = failures(&mut scenario, 1.0);
    assert!(all.series.iter().all(|sample| sample.variants[0].ready <= 1), "only the first serves");
    // Starts of 25 s after 0, 0, 10, 20, 40, 80 and 160 s; the eighth ends after ten minutes.
    assert!(all.variants[0].crashes >= 39 * 6, "{}", all.variants[0].crashes);
}

#[test]
fn nodes_that_are_taken_back_together_take_their_share_of_the_others() {
    let interruptions = |together| -> Vec<u32> {
        let mut scenario = steady(4.0, 20);
        scenario.variants[0].lifecycle.interrupt_every = Some(secs(60_000));
        scenario.variants[0].lifecycle.interrupt_together = Fraction::new(together).unwrap();
        let counts = (1..=40).map(|seed| play(&scenario, seed).variants[0].interruptions);
        counts.filter(|count| *count > 0).collect()
    };
    let alone = interruptions(0.0);
    assert!(alone.iter().all(|count| *count <= 2), "{alone:?}");
    assert!(interruptions(1.0).iter().all(|count| *count >= 20), "all of them");
    let half = interruptions(0.5);
    let mean = f64::from(half.iter().sum::<u32>()) / half.len() as f64;
    // One of 20 and half of the others, a tenth of the time twice.
    assert!((8.0..16.0).contains(&mean), "{half:?}");
}

#[test]
fn a_silent_replica_serves_and_cannot_be_scraped() {
    let mut scenario = scenario(drawn(Rate::constant(4.0).unwrap()));
    scenario.variants[0].initial = n(2);
    let silence = Silence { from: secs(200), length: secs(100), replica: Some(2) };
    scenario.variants[0].lifecycle.silence = Some(silence);
    let mut wrong = Vec::new();
    let mut failed = 0;
    let mut tick = 0;
    let mut ledger = |_, inputs: Inputs, _: &Decisions| {
        for scrape in &inputs.scrapes {
            let silent = (200..300).contains(&tick) && scrape.replica.replica.as_str() == "v-2";
            let timed_out = matches!(scrape.outcome, Err(ScrapeFailure::Timeout));
            failed += u32::from(timed_out);
            if silent != timed_out {
                wrong.push(tick);
            }
        }
        tick += 1;
    };
    let mut goes_on = |_: Micros| true;
    let outcome = run_with(&scenario, 1, &mut goes_on, Some(&mut ledger)).unwrap();
    assert_eq!((wrong, failed), (vec![], 100), "one scrape per second");
    assert!(outcome.series.iter().all(|sample| sample.variants[0].ready >= 2));
    assert_eq!(outcome.models[0].not_served(), 0, "{:?}", outcome.models[0]);
}

/// The shares of three replicas of what they have answered together.
fn shares(router: Router, sessions: u32) -> [f64; 3] {
    let mut scenario = steady(4.0, 3);
    scenario.models[0].router = router;
    scenario.models[0].sessions = sessions;
    let mut simulation = Simulation::new(&scenario, 1).unwrap();
    simulation.advance_to(secs(600));
    let answered = |pod: usize| {
        let page = simulation.page(pod, jiff::Timestamp::UNIX_EPOCH).unwrap();
        let samples = page.lines().filter(|line| line.starts_with("vllm:request_success_total"));
        let counts = samples.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap());
        counts.sum::<f64>()
    };
    let answered = [0, 1, 2].map(answered);
    let total: f64 = answered.iter().sum();
    assert!(total > 2_000.0);
    answered.map(|count| count / total)
}

#[test]
fn requests_go_to_any_replica_or_always_to_that_of_their_session() {
    let random = shares(Router::Random, 1);
    // A third of 2,400 has a standard deviation of 23; the bound is four of those.
    assert!(random.iter().all(|share| (share - 1.0 / 3.0).abs() < 0.04), "{random:?}");

    let one = shares(Router::Sticky, 1);
    assert_eq!(one.iter().filter(|share| **share > 0.0).count(), 1, "{one:?}");
    let few = shares(Router::Sticky, 12);
    assert!(few.iter().any(|share| (share - 1.0 / 3.0).abs() > 0.04), "{few:?}");
    let many = shares(Router::Sticky, 100_000);
    assert!(many.iter().all(|share| (share - 1.0 / 3.0).abs() < 0.04), "{many:?}");
}
