use std::num::NonZeroU32;

use jiff::SignedDuration;
use proptest::prelude::*;

use super::*;
use crate::analyze::engine_args::EngineArguments;
use crate::analyze::sharing::CardSharing;
use crate::analyze::tokens::capacity::{compute_bound, memory_bound, tokens_of_request};
use crate::analyze::tokens::knowledge::{PIECES_MIN, RecordSource};
use crate::fleet::{Accelerator, Namespace};
use crate::observe::GaugeSummary;
use crate::observe::engine::Engine;
use crate::units::{Seconds, TokenRate};

fn tokens_of(number: f64) -> Tokens {
    Tokens::new(number).unwrap()
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds)
}

fn n(count: u32) -> Replicas {
    Replicas::saturating(count)
}

fn model() -> ModelKey {
    VariantSpec::example("a").model_key()
}

fn steady<Q: Copy>(value: Q) -> GaugeSummary<Q> {
    GaugeSummary { last: value, mean: value, peak: value, age: Seconds::ZERO }
}

/// A replica with 16,000 tokens of cache, of which `used` are in use, and `waiting` requests of
/// 500 and 100 tokens.
fn load(used: f64, waiting: f64) -> TokenReplicaLoad {
    TokenReplicaLoad {
        kv_usage: Fraction::new(used / 16_000.0).map(steady),
        kv_capacity: Some(tokens_of(16_000.0)),
        waiting: Requests::new(waiting).map(steady),
        running: Requests::new(4.0).map(steady),
        generation_rate: TokenRate::new(80.0),
        requests: RequestShape {
            prompt: Some(tokens_of(500.0)),
            output: Some(tokens_of(100.0)),
            prefix_hits: None,
        },
    }
}

/// One variant through time, and the knowledge learned from it.
struct Bench {
    spec: VariantSpec,
    arguments: Option<EngineArguments>,
    knowledge: Knowledge,
    queue: Option<SchedulerQueue>,
    policy: TokenPolicy,
}

impl Bench {
    fn new() -> Self {
        let accelerator = Accelerator::new("H100");
        Self {
            spec: VariantSpec { accelerator, ..VariantSpec::example("a") },
            arguments: None,
            knowledge: Knowledge::default(),
            queue: None,
            policy: TokenPolicy::default(),
        }
    }

    fn analyze(
        &mut self,
        now: Timestamp,
        current: u32,
        replicas: &[TokenReplicaLoad],
    ) -> TokenAnalysis {
        let variant = TokenVariantLoad {
            spec: &self.spec,
            gpus: NonZeroU32::new(1),
            current: n(current),
            pending: Replicas::ZERO,
            leaving: Replicas::ZERO,
            arguments: self.arguments.as_ref(),
            replicas,
        };

        analyze(now, &self.policy, &model(), &[variant], self.queue, &mut self.knowledge)
    }

    fn capacity(&mut self, now: Timestamp, load: TokenReplicaLoad) -> Tokens {
        let analysis = self.analyze(now, 1, &[load]);
        analysis.variants[0].capacity.unwrap()
    }
}

/// Compute binds from `seconds` on, with 3,000 tokens in use.
fn bound_by_compute(bench: &mut Bench, seconds: i64) {
    for reading in (0..).step_by(20).take(PIECES_MIN) {
        bench.capacity(at(seconds + reading), load(3_000.0, 20.0));
    }
}

// The worked example of docs/models.md.
#[test]
fn the_worked_example_holds() {
    let arguments = EngineArguments {
        step_tokens: Some(tokens_of(2_048.0)),
        sequences: Requests::new(32.0),
        ..EngineArguments::default_of(Engine::Vllm)
    };
    let shape = load(0.0, 0.0).requests;

    assert_eq!(
        memory_bound(tokens_of(16_000.0), TokenPolicy::default().kv_threshold),
        tokens_of(12_800.0)
    );
    assert_eq!(compute_bound(&arguments, &shape, TokenRules::Plimsoll), Some(tokens_of(17_600.0)));

    let cached = RequestShape { prefix_hits: Fraction::new(0.8), ..shape };
    assert_eq!(tokens_of_request(&shape, Role::Both), Some(tokens_of(550.0)));
    let each = tokens_of_request(&cached, Role::Both).unwrap();
    assert!((each.tokens() - 150.0).abs() < 1e-6, "{each:?}");

    let mut bench = Bench::new();
    bench.arguments = Some(arguments);
    let analysis = bench.analyze(at(0), 2, &[load(9_000.0, 4.0), load(11_000.0, 10.0)]);
    assert_eq!(
        analysis.variants[0].to_string(),
        "capacity per replica 12800 KV tokens, from the KV-cache size; 20000 in use and 14 \
         requests wait for 7700, so the demand on 2 replicas is 27700"
    );
    assert_eq!(analysis.report.to_string(), "demand 27700 of 25600 KV tokens, 6988 short");
}

#[test]
fn a_queue_spike_does_not_collapse_capacity() {
    let mut bench = Bench::new();
    assert_eq!(bench.capacity(at(0), load(300.0, 600.0)), tokens_of(12_800.0));
    assert_eq!(bench.capacity(at(5), load(300.0, 600.0)), tokens_of(12_800.0));
    assert_eq!(bench.capacity(at(10), load(4_000.0, 0.0)), tokens_of(12_800.0));
    assert_eq!(bench.capacity(at(3_600), load(4_000.0, 0.0)), tokens_of(12_800.0));
}

#[test]
fn capacity_is_what_is_in_use_while_compute_is_the_limit_for_a_minute() {
    let mut bench = Bench::new();
    bound_by_compute(&mut bench, 0);
    let analysis = bench.analyze(at(60), 1, &[load(3_000.0, 20.0)]);
    assert_eq!(analysis.variants[0].source, CapacitySource::Learned);
    assert_eq!(analysis.variants[0].capacity, Some(tokens_of(3_000.0)));
}

#[test]
fn a_queue_before_a_full_cache_or_a_stuck_engine_teaches_nothing_of_compute() {
    let stuck = TokenReplicaLoad { generation_rate: TokenRate::new(0.0), ..load(3_000.0, 20.0) };
    let mute = TokenReplicaLoad { generation_rate: None, ..load(3_000.0, 20.0) };

    for load in [load(15_000.0, 20.0), stuck, mute] {
        let mut bench = Bench::new();
        for seconds in (0..600).step_by(20) {
            assert_eq!(bench.capacity(at(seconds), load.clone()), tokens_of(12_800.0));
        }
    }
}

#[test]
fn a_replica_that_carries_more_without_a_queue_refutes_what_was_learned() {
    let mut bench = Bench::new();
    bound_by_compute(&mut bench, 0);
    assert_eq!(bench.capacity(at(60), load(2_000.0, 0.0)), tokens_of(3_000.0));
    assert_eq!(bench.capacity(at(65), load(6_000.0, 0.0)), tokens_of(12_800.0));
}

#[test]
fn what_was_learned_fades_and_is_forgotten() {
    let mut bench = Bench::new();
    bound_by_compute(&mut bench, 0);
    let idle = load(1_000.0, 0.0);
    let half_an_hour = 1_840;
    let hour = 3_600;

    assert_eq!(bench.capacity(at(half_an_hour), idle.clone()), tokens_of(3_000.0));
    let doubled = bench.capacity(at(half_an_hour + hour), idle.clone());
    assert!((doubled.tokens() - 6_000.0).abs() < 1e-6, "{doubled:?}");
    assert_eq!(bench.capacity(at(half_an_hour + 3 * hour), idle), tokens_of(12_800.0));

    bench.knowledge.forget(at(8 * 24 * hour));
    assert_eq!(bench.knowledge, Knowledge::default());
}

#[test]
fn what_is_learned_depends_on_the_engines_arguments_and_crosses_namespaces_only_if_allowed() {
    let arguments = EngineArguments::default_of(Engine::Vllm);
    for (sharing, elsewhere) in
        [(CardSharing::Namespace, 12_800.0), (CardSharing::Cluster, 3_000.0)]
    {
        let mut bench = Bench::new();
        bench.policy.sharing = sharing;
        bench.arguments = Some(arguments.clone());
        bound_by_compute(&mut bench, 0);

        let home = bench.spec.key.clone();
        bench.spec.key = VariantSpec::example("b").key;
        assert_eq!(bench.capacity(at(60), load(1_000.0, 0.0)), tokens_of(3_000.0), "{sharing:?}");
        bench.spec.key.namespace = Namespace::new("elsewhere").unwrap();
        assert_eq!(bench.capacity(at(60), load(1_000.0, 0.0)), tokens_of(elsewhere));

        let saved = bench.knowledge.save(&model().model, &bench.spec.key);
        assert_eq!(saved.limits.is_empty(), sharing == CardSharing::Namespace);
        let other = EngineArguments { kv_tokens: Some(tokens_of(9e5)), ..arguments.clone() };
        bench.spec.key = home;
        bench.arguments = Some(other);
        assert_eq!(bench.capacity(at(60), load(1_000.0, 0.0)), tokens_of(12_800.0));
    }
}

#[test]
fn data_parallel_ranks_make_one_replica() {
    let mut bench = Bench::new();
    let arguments = EngineArguments {
        sequences: Requests::new(8.0),
        ..EngineArguments::default_of(Engine::Vllm)
    };
    let one = compute_bound(&arguments, &load(0.0, 0.0).requests, TokenRules::Plimsoll);
    assert_eq!(one, Some(tokens_of(4_400.0)));

    let mut spread = arguments;
    spread.parallel.data = NonZeroU32::new(2).unwrap();
    bench.arguments = Some(spread);
    assert_eq!(bench.capacity(at(0), load(3_000.0, 0.0)), tokens_of(8_800.0));
    let analysis = bench.analyze(at(0), 1, &[load(3_000.0, 0.0)]);
    assert_eq!(analysis.report.variants[0].replicas, n(1));
}

#[test]
fn a_silent_replica_carries_what_the_others_carry_and_nothing_is_spare() {
    let mut bench = Bench::new();
    let analysis = bench.analyze(at(0), 4, &[load(6_000.0, 0.0), load(2_000.0, 0.0)]);

    let capacity = &analysis.report.variants[0];
    assert_eq!((capacity.replicas, capacity.demand), (n(4), amount(16_000.0)));
    assert_eq!(analysis.report.total.spare, Amount::ZERO);
    assert_eq!(analysis.spare_withheld, Some(SpareWithheld::Silent(bench.spec.key.clone())));
    assert!(
        analysis.variants[0]
            .to_string()
            .ends_with("; 2 of them are not reporting and count like the others")
    );
}

#[test]
fn a_replica_that_lacks_a_series_is_silent_and_not_idle() {
    for lacking in [
        TokenReplicaLoad { kv_usage: None, ..load(9_000.0, 1.0) },
        TokenReplicaLoad { waiting: None, ..load(9_000.0, 1.0) },
    ] {
        let analysis = Bench::new().analyze(at(0), 1, &[lacking]);
        assert_eq!(analysis.variants[0].silent, n(1));
        assert_eq!(analysis.report.total.spare, Amount::ZERO);
    }
}

#[test]
fn the_size_of_a_cache_is_remembered_when_its_series_is_lost() {
    let mut bench = Bench::new();
    bench.capacity(at(0), load(8_000.0, 0.0));
    let sizeless = TokenReplicaLoad { kv_capacity: None, ..load(8_000.0, 0.0) };
    let analysis = bench.analyze(at(15), 1, &[sizeless]);
    let replica = analysis.variants[0].replicas[0];
    assert_eq!((replica.memory, replica.in_use), (tokens_of(12_800.0), tokens_of(8_000.0)));
}

#[test]
fn waiting_requests_of_unknown_length_count_like_running_ones_and_else_withhold_spare() {
    let mut young = load(8_000.0, 2.0);
    young.requests = RequestShape::default();
    let analysis = Bench::new().analyze(at(0), 1, std::slice::from_ref(&young));
    assert_eq!(analysis.variants[0].demand, tokens_of(12_000.0));

    let mut blank = load(0.0, 2.0);
    blank.requests = RequestShape::default();
    let analysis = Bench::new().analyze(at(0), 2, &[blank.clone(), blank]);
    assert_eq!(analysis.spare_withheld, Some(SpareWithheld::DemandUnknown));
    assert_eq!(analysis.report.total.spare, Amount::ZERO);
}

#[test]
fn a_variant_without_replicas_carries_what_it_carried_and_never_what_a_step_computes() {
    let mut bench = Bench::new();
    bench.arguments = Some(EngineArguments::default_of(Engine::Vllm));
    let analysis = bench.analyze(at(0), 0, &[]);
    assert_eq!(analysis.variants[0].capacity, None);
    assert_eq!(
        analysis.variants[0].to_string(),
        "capacity per replica unknown: no replica has ever been measured"
    );

    bench.capacity(at(15), load(8_000.0, 0.0));
    let analysis = bench.analyze(at(30), 0, &[]);
    assert_eq!(analysis.variants[0].capacity, Some(tokens_of(12_800.0)));
    assert_eq!(analysis.variants[0].source, CapacitySource::Remembered);
}

#[test]
fn a_variant_without_replicas_is_known_by_one_that_is_started_alike() {
    let mut bench = Bench::new();
    bench.arguments = Some(EngineArguments::default_of(Engine::Vllm));
    bench.capacity(at(0), load(8_000.0, 0.0));

    bench.spec.key = VariantSpec::example("b").key;
    let analysis = bench.analyze(at(15), 0, &[]);
    assert_eq!(analysis.variants[0].source, CapacitySource::Declared);
    assert_eq!(analysis.variants[0].capacity, Some(tokens_of(12_800.0)));
    assert_eq!(analysis.report.variants[0].confidence, Confidence::Assumed);
}

#[test]
fn a_variant_of_another_namespace_that_is_started_alike_counts_only_if_allowed() {
    for (sharing, counts) in [(CardSharing::Namespace, false), (CardSharing::Cluster, true)] {
        let mut bench = Bench::new();
        bench.policy.sharing = sharing;
        bench.arguments = Some(EngineArguments::default_of(Engine::Vllm));
        bench.capacity(at(0), load(8_000.0, 0.0));

        bench.spec.key.namespace = Namespace::new("elsewhere").unwrap();
        let analysis = bench.analyze(at(15), 0, &[]);
        assert_eq!(analysis.variants[0].capacity.is_some(), counts, "{sharing:?}");
    }
}

#[test]
fn what_is_started_alike_on_unknown_accelerators_says_nothing_of_another() {
    let mut bench = Bench::new();
    bench.spec.accelerator = None;
    bench.arguments = Some(EngineArguments::default_of(Engine::Vllm));
    bound_by_compute(&mut bench, 0);
    assert_eq!(bench.capacity(at(60), load(1_000.0, 0.0)), tokens_of(3_000.0));

    bench.spec.key = VariantSpec::example("b").key;
    assert_eq!(bench.analyze(at(75), 0, &[]).variants[0].capacity, None);
    assert_eq!(bench.capacity(at(80), load(1_000.0, 0.0)), tokens_of(12_800.0));
}

#[test]
fn unset_arguments_bound_nothing() {
    let shape = load(0.0, 0.0).requests;
    let untold = EngineArguments::default_of(Engine::Vllm);
    assert_eq!(compute_bound(&untold, &shape, TokenRules::Plimsoll), None);
    assert_eq!(compute_bound(&untold, &shape, TokenRules::Wva), Some(tokens_of(140_800.0)));
    let stepped = EngineArguments { step_tokens: Some(tokens_of(600.0)), ..untold };
    assert_eq!(compute_bound(&stepped, &shape, TokenRules::Plimsoll), Some(tokens_of(55_000.0)));
}

#[test]
fn what_was_learned_before_the_arguments_were_known_goes_on_with_them_and_over_a_restart() {
    let mut bench = Bench::new();
    bound_by_compute(&mut bench, 0);
    bench.arguments = Some(EngineArguments::default_of(Engine::Vllm));
    assert_eq!(bench.capacity(at(60), load(1_000.0, 0.0)), tokens_of(3_000.0));

    let model = bench.spec.model.clone();
    let key = bench.spec.key.clone();
    let saved = bench.knowledge.save(&model, &key);
    assert_eq!(saved.limits.len(), 1);

    bench.knowledge = Knowledge::default();
    bench.knowledge.recall(&model, &key, &saved);
    assert_eq!(bench.capacity(at(75), load(1_000.0, 0.0)), tokens_of(3_000.0));
}

#[test]
fn a_measured_record_that_is_read_late_replaces_a_derived_one_and_no_newer_measurement() {
    let mut bench = Bench::new();
    bench.arguments = Some(EngineArguments::default_of(Engine::Vllm));
    let measured = bench.capacity(at(0), load(1_000.0, 0.0));
    let model = bench.spec.model.clone();
    let key = bench.spec.key.clone();
    let saved = bench.knowledge.save(&model, &key);

    // A tick without replicas derives a record from the arguments.
    bench.knowledge = Knowledge::default();
    assert_eq!(bench.analyze(at(15), 0, &[]).variants[0].capacity, None);
    bench.knowledge.recall(&model, &key, &saved);
    assert_eq!(bench.analyze(at(30), 0, &[]).variants[0].capacity, Some(measured));

    bench.capacity(at(45), load(1_000.0, 0.0));
    bench.knowledge.recall(&model, &key, &saved);
    let record = bench.knowledge.save(&model, &key).record.unwrap();
    assert_eq!(record.source, RecordSource::Measured(at(45)));
}

#[test]
fn more_evidence_that_is_read_late_replaces_less() {
    let mut bench = Bench::new();
    bound_by_compute(&mut bench, 0);
    let model = bench.spec.model.clone();
    let key = bench.spec.key.clone();
    let saved = bench.knowledge.save(&model, &key);

    bench.knowledge = Knowledge::default();
    assert_eq!(bench.capacity(at(60), load(3_000.0, 20.0)), tokens_of(12_800.0));
    bench.knowledge.recall(&model, &key, &saved);
    assert_eq!(bench.capacity(at(75), load(1_000.0, 0.0)), tokens_of(3_000.0));
}

#[test]
fn an_engine_that_is_started_otherwise_is_another_engine() {
    let mut bench = Bench::new();
    bench.arguments = Some(EngineArguments::default_of(Engine::Vllm));
    bench.capacity(at(0), load(8_000.0, 0.0));
    bench.arguments = Some(EngineArguments::default_of(Engine::Sglang));
    assert_eq!(bench.analyze(at(15), 0, &[]).variants[0].capacity, None);
}

#[test]
fn what_waits_in_the_scheduler_is_asked_of_prefill_as_prompts_and_of_decode_whole() {
    let mut bench = Bench::new();
    bench.spec.role = Role::Prefill;
    let requests = Requests::new(10.0).unwrap();
    bench.queue = Some(SchedulerQueue { requests, prompt: tokens_of(10_000.0) });

    let analysis = bench.analyze(at(0), 1, &[load(0.0, 0.0)]);
    assert_eq!(analysis.report.roles[&Role::Prefill].demand, amount(10_000.0));
    assert_eq!(analysis.report.total.demand, amount(10_500.0));
    assert_eq!(
        analysis.queue.unwrap().to_string(),
        "10 queued requests need 10000 KV tokens for prompts and 500 for output"
    );
}

proptest! {
    #[test]
    fn more_load_never_requires_less(
        used in prop::collection::vec((0.0..16_000.0, 0.0..40.0), 1..5),
        more in (0.0..4_000.0, 0.0..40.0),
        which in 0_usize..5,
    ) {
        let loads: Vec<TokenReplicaLoad> =
            used.iter().map(|(used, waiting)| load(*used, *waiting)).collect();
        let mut more_used = used.clone();
        let index = which % used.len();
        more_used[index].0 = f64::min(more_used[index].0 + more.0, 16_000.0);
        more_used[index].1 += more.1;
        let heavier: Vec<TokenReplicaLoad> =
            more_used.iter().map(|(used, waiting)| load(*used, *waiting)).collect();

        let current = u32::try_from(used.len()).unwrap();
        let light = Bench::new().analyze(at(0), current, &loads).report.total;
        let heavy = Bench::new().analyze(at(0), current, &heavier).report.total;
        prop_assert!(heavy.required >= light.required);
        prop_assert!(heavy.spare <= light.spare);
    }

    #[test]
    fn a_prefix_cache_never_makes_a_request_larger(
        prompt in 0.0..1e5, output in 0.0..1e4, hits in 0.0..1.0,
    ) {
        let uncached = RequestShape {
            prompt: Tokens::new(prompt), output: Tokens::new(output), prefix_hits: None,
        };
        let cached = RequestShape { prefix_hits: Fraction::new(hits), ..uncached };

        for role in [Role::Both, Role::Prefill, Role::Decode] {
            let without = tokens_of_request(&uncached, role).unwrap();
            prop_assert!(tokens_of_request(&cached, role).unwrap() <= without);
        }
    }
}
