//! Engines that are less regular than one batch after the other: what they do, and what they count.

use std::collections::BTreeMap;

use plimsoll::simulate::Micros;
use plimsoll::simulate::random::{Purpose, exponential, generator};
use plimsoll::simulate::replica::arrivals::Fetch;
use plimsoll::simulate::replica::settings::{Admission, Options, Settings, StepTime};
use plimsoll::simulate::replica::speculation::Speculation;
use plimsoll::simulate::replica::stats::Counters;
use plimsoll::simulate::replica::{EngineEvent, Replica, Request};
use plimsoll::units::Fraction;
use proptest::prelude::*;

use crate::simulate::conversation_engine;

/// The engine of a conversation with these options.
fn engine(options: Options) -> Replica {
    conversation_engine().with_options(options, generator(1, Purpose::Steps, 0))
}

/// Gives an engine requests at once, and lets it finish them.
fn finish(mut replica: Replica, requests: u64, prompt: u32, output: u32) -> Counters {
    for id in 0..requests {
        replica.submit(Micros::ZERO, Request { id, prompt, output }).unwrap();
    }
    replica.advance_to(Micros::from_secs(10_000), &mut Vec::new());
    assert_eq!((replica.outstanding(), replica.snapshot().kv_blocks_used), (0, 0));
    replica.counters().clone()
}

/// Gives an engine requests of 100 and 200 tokens at a steady rate, and lets it finish them.
fn at_rate(mut replica: Replica, gap: u64) -> Counters {
    for id in 0..2_000 {
        let request = Request { id, prompt: 100, output: 200 };
        replica.submit(Micros::new(id * gap), request).unwrap();
    }
    replica.advance_to(Micros::from_secs(10_000), &mut Vec::new());
    assert_eq!((replica.outstanding(), replica.snapshot().kv_blocks_used), (0, 0));
    replica.counters().clone()
}

#[test]
fn an_iteration_is_the_answers_of_a_step_and_the_prompts_that_it_completes() {
    let alone = finish(conversation_engine(), 1, 5_000, 3);
    assert_eq!(alone.steps, 5, "three for the prompt, and two more for the answer");
    assert_eq!(alone.iteration_tokens.count(), 3, "two compute a piece of the prompt");
    assert_eq!(alone.iteration_tokens.sum(), 5_003);
    let up_to: Vec<u64> = alone.iteration_tokens.cumulative().collect();
    assert_eq!((up_to[0], up_to[10], up_to[11]), (2, 2, 3), "the prompt counts as a whole");

    let crowd = finish(conversation_engine(), 200, 900, 700);
    assert!(crowd.preemptions > 0 && crowd.prefill_tokens > 200 * 900);
    assert_eq!(crowd.iteration_tokens.sum(), 200 * (900 + 700), "nothing counts again");
}

#[test]
fn prompt_tokens_are_computed_or_cached_or_transferred() {
    let split = |replica: Replica| {
        let counters = finish(replica, 10, 1_000, 5);
        let computed = counters.prompt_computed;
        assert_eq!(counters.iteration_tokens.sum(), computed + 10 * 5);
        assert_eq!(counters.computed_length.sum(), computed);
        assert_eq!(counters.prompt_tokens, 10_000, "whatever was computed of them");
        (computed, counters.prompt_transferred)
    };
    assert_eq!(split(conversation_engine()), (10_000, 0));
    let half = Fraction::new(0.5).unwrap();
    assert_eq!(split(conversation_engine().with_prefix_hits(half)), (10 * (1_000 - 496), 0));
    assert_eq!(split(conversation_engine().for_computed_prompts()), (10, 10 * 999));
}

#[test]
fn each_api_server_counts_the_steps_that_have_a_request_of_its_own() {
    let one = finish(engine(Options::default()), 64, 100, 300);
    for api_servers in [2, 4] {
        let options = Options { api_servers, ..Options::default() };
        let alone = finish(engine(options), 1, 100, 300);
        assert_eq!(alone.iteration_tokens.count(), alone.steps);

        let many = finish(engine(options), 64, 100, 300);
        assert_eq!(many.itl, one.itl, "an interval is counted once");
        assert_eq!(many.iteration_tokens.sum(), one.iteration_tokens.sum(), "so is a token");
        let times = many.iteration_tokens.count() as f64 / one.iteration_tokens.count() as f64;
        assert!((times / f64::from(api_servers) - 1.0).abs() < 0.01, "{times}");
    }
}

/// The rates of a recorded engine with two stages, in requests per second, and from when to when.
const PHASES: [(f64, f64, f64); 3] = [(0.7, 0.0, 30.0), (1.75, 30.0, 62.0), (7.0, 62.0, 90.0)];

/// Counted steps in an interval between tokens in each of these phases, of an engine whose steps take
/// what those of the recorded one did.
fn pipeline(seed: u64) -> [f64; 3] {
    let settings = Settings {
        step: StepTime::dense(45_000.0, 100.0, 1_700.0, 0.0),
        max_num_seqs: 32,
        max_num_batched_tokens: 1_024,
        block_size: 32,
        kv_blocks: 800,
        admission: Admission::WholePrompt,
    };
    let random = generator(seed, Purpose::Steps, 0);
    let options = Options { stages: 2, ..Options::default() };
    let mut replica = Replica::new(settings).unwrap().with_options(options, random);
    let mut gaps = generator(seed, Purpose::Times, 0);
    let mut ids = 0..;
    PHASES.map(|(rate, from, until)| {
        let before = replica.counters().clone();
        let mut at = from + exponential(&mut gaps) / rate;
        while at < until {
            let request = Request { id: ids.next().unwrap(), prompt: 180, output: 105 };
            replica.submit(Micros::from_secs_f64(at), request).unwrap();
            at += exponential(&mut gaps) / rate;
        }
        replica.advance_to(Micros::from_secs_f64(until), &mut Vec::new());

        let counters = replica.counters();
        let between = (counters.itl.sum() - before.itl.sum()) as f64 / 1e6;
        let intervals = (counters.itl.count() - before.itl.count()) as f64;
        let steps = counters.iteration_tokens.count() - before.iteration_tokens.count();
        steps as f64 * between / intervals / (until - from)
    })
}

#[test]
fn a_pipeline_has_few_requests_in_one_batch_and_many_in_two() {
    let runs: Vec<[f64; 3]> = (0..40).map(pipeline).collect();
    // What one run of vLLM 0.32 with two stages had: 3.5, some 10 and 32 requests were running. When
    // the first request comes between two looks is chance, and one run is one draw of it.
    for (phase, recorded) in [1.0, 1.64, 1.98].into_iter().enumerate() {
        let mean = runs.iter().map(|run| run[phase]).sum::<f64>() / runs.len() as f64;
        assert!((mean - recorded).abs() < 0.2, "{mean} in phase {phase}, not {recorded}");
    }
}

#[test]
fn speculation_gives_a_request_several_tokens_in_a_step() {
    let speculation = Some(Speculation::with_mean(3, 3.5));
    let options = Options { speculation, ..Options::default() };
    let (plain, fast) =
        (at_rate(engine(Options::default()), 50_000), at_rate(engine(options), 50_000));
    assert_eq!(fast.generation_tokens, plain.generation_tokens);
    assert_eq!(fast.iteration_tokens.sum(), plain.iteration_tokens.sum());
    let tokens = (fast.generation_tokens - fast.ttft.count()) as f64 / fast.itl.count() as f64;
    // The last step of an answer is cut, of 57 steps.
    assert!((tokens / 3.5 - 1.0).abs() < 0.02, "{tokens}");
}

#[test]
fn noise_keeps_the_mean_time_of_a_step() {
    let plain = finish(engine(Options::default()), 1, 100, 30_000);
    let noisy = finish(engine(Options { noise: 0.5, ..Options::default() }), 1, 100, 30_000);
    assert_eq!(noisy.steps, plain.steps);
    let times = noisy.busy.seconds() / plain.busy.seconds();
    // The standard error is 0.3 per cent, and the clip takes 0.1 per cent off.
    assert!((times - 1.0).abs() < 0.015, "{times}");
    let buckets = |counters: &Counters| counters.itl.cumulative().next();
    assert!(buckets(&noisy) < buckets(&plain), "some steps are longer");
}

#[test]
fn a_request_waits_as_deferred_until_the_cache_of_its_prompt_is_there() {
    let share = Fraction::new(0.9).unwrap();
    let fetch = Fetch { share, latency: Micros::from_secs(1), per_token: 1_000.0 };
    let mut replica = engine(Options { fetch: Some(fetch), ..Options::default() });
    // 896 of its tokens are in whole blocks, and come after 1.896 s; of the other 0 tokens, after 1 s.
    replica.submit(Micros::ZERO, Request { id: 0, prompt: 1_000, output: 10 }).unwrap();
    replica.submit(Micros::new(500_000), Request { id: 1, prompt: 15, output: 100 }).unwrap();
    let mut events = Vec::new();
    for (at, waiting, running) in [(400_000, 1, 0), (1_000_000, 2, 0), (1_600_000, 1, 1)] {
        replica.advance_to(Micros::new(at), &mut events);
        let stats = replica.snapshot();
        assert_eq!((stats.waiting, stats.deferred, stats.running), (waiting, waiting, running));
    }
    replica.advance_to(Micros::from_secs(10), &mut events);
    let finished = events.iter().filter_map(|event| match event {
        EngineEvent::Finished(life) => Some((life.request.id, life.queue)),
        EngineEvent::FirstToken { .. } | EngineEvent::Preempted { .. } => None,
    });
    let queues: BTreeMap<u64, Micros> = finished.collect();
    assert_eq!(queues[&1], Micros::from_secs(1), "the queue time has the fetch in it");
    let behind = queues[&0].since(Micros::new(1_896_000)).micros();
    assert!(behind < 10_000, "{behind} is less than a step");
    let counters = replica.counters();
    assert_eq!((counters.prompt_tokens, counters.prompt_transferred), (1_015, 896));
    assert_eq!(counters.iteration_tokens.sum(), 1_015 - 896 + 110);
}

fn any_options() -> impl Strategy<Value = Options> {
    let speculation = prop_oneof![
        Just(None),
        (1..4_u32, 0.0..1.0).prop_map(|(drafts, share)| {
            Some(Speculation::with_mean(drafts, 1.0 + share * f64::from(drafts)))
        }),
    ];
    (1..4_u32, 1..4_u32, speculation, prop_oneof![Just(0.0), Just(0.3)]).prop_map(
        |(api_servers, stages, speculation, noise)| Options {
            api_servers,
            stages,
            speculation,
            noise,
            fetch: None,
        },
    )
}

proptest! {
    #[test]
    fn whatever_the_options_all_requests_end_and_all_tokens_count(
        options in any_options(),
        seats in 1..8_u32,
        spare_blocks in 0..30_u32,
        requests in prop::collection::vec((0..40_000_u64, 1..40_u32, 1..40_u32), 1..60),
    ) {
        let settings = Settings {
            step: StepTime::dense(7_050.0, 19.5, 25.4, 1.0),
            max_num_seqs: seats,
            max_num_batched_tokens: seats * 4 + 10,
            block_size: 4,
            kv_blocks: 20 + spare_blocks,
            admission: Admission::WholePrompt,
        };
        let mut whole = Replica::new(settings).unwrap()
            .with_options(options, generator(1, Purpose::Steps, 0));
        let (mut now, mut tokens) = (0, 0);
        for (id, &(gap, prompt, output)) in requests.iter().enumerate() {
            now += gap;
            tokens += u64::from(prompt) + u64::from(output);
            let request = Request { id: id as u64, prompt, output };
            whole.submit(Micros::new(now), request).unwrap();
        }
        let mut small = whole.clone();
        let (mut at_once, mut in_spans) = (Vec::new(), Vec::new());
        whole.advance_to(Micros::from_secs(1_000), &mut at_once);
        let mut looked = Micros::ZERO;
        while small.outstanding() > 0 {
            let quiet = small.quiet_until();
            let before = in_spans.len();
            looked = Micros::new((looked.micros() + 3_001).min(quiet.micros().max(looked.micros() + 1)));
            small.advance_to(looked, &mut in_spans);
            let finished = in_spans[before..].iter().any(|it| matches!(it, EngineEvent::Finished(_)));
            prop_assert!(!finished || looked >= quiet, "a request ended before {quiet}");
            let stats = small.snapshot();
            prop_assert!(stats.running <= seats && stats.kv_blocks_used <= stats.kv_blocks);
        }
        small.advance_to(Micros::from_secs(1_000), &mut in_spans);
        prop_assert_eq!(at_once, in_spans);
        prop_assert_eq!(whole.snapshot(), small.snapshot());
        prop_assert_eq!((whole.outstanding(), whole.snapshot().kv_blocks_used), (0, 0));
        let counters = whole.counters();
        prop_assert_eq!(counters.finished, requests.len() as u64);
        prop_assert_eq!(counters.iteration_tokens.sum(), tokens);
    }
}
