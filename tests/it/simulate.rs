//! The simulator against reference runs and against its own rules.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod engines;
mod reference;

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use jiff::{SignedDuration, Timestamp};
use plimsoll::collect::exposition;
use plimsoll::fleet::ModelName;
use plimsoll::simulate::Micros;
use plimsoll::simulate::page::{CONTENT_TYPE, EngineIdentity, render};
use plimsoll::simulate::random::{Purpose, generator};
use plimsoll::simulate::reading::{Names, read as read_directly};
use plimsoll::simulate::replica::adapters::{AdapterId, AdapterSettings};
use plimsoll::simulate::replica::arrivals::Fetch;
use plimsoll::simulate::replica::settings::{Admission, Options, Settings, StepTime};
use plimsoll::simulate::replica::speculation::Speculation;
use plimsoll::simulate::replica::stats::Counters;
use plimsoll::simulate::replica::{EngineEvent, Finished, Replica, Request};
use plimsoll::units::Fraction;
use proptest::prelude::*;
use serde_json::Value;

/// What a reference run says of one request.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    id: u64,
    replica: usize,
    queue: Option<u64>,
    ttft: Option<u64>,
    e2e: Option<u64>,
    preemptions: u64,
    first_ever: Option<u64>,
}

fn read(path: &Path) -> String {
    if let Ok(text) = fs::read_to_string(path) {
        return text;
    }
    let packed = PathBuf::from(format!("{}.gz", path.display()));
    let bytes = fs::read(&packed).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut text = String::new();
    GzDecoder::new(&bytes[..]).read_to_string(&mut text).unwrap();
    text
}

fn rows(text: &str) -> impl Iterator<Item = Vec<Option<u64>>> {
    text.lines().skip(1).map(|line| line.split(',').map(|field| field.parse().ok()).collect())
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a whole number"))
}

fn settings(config: &Value) -> Settings {
    let step = |index: usize| config["step_us"][index].as_f64().unwrap();
    let small = |name: &str| u32::try_from(number(&config[name])).unwrap();
    let whole = config["reserve_full_input"] == Value::Bool(true);
    assert_eq!(config["preemption_keeps_tokens"], Value::Bool(whole), "the profiles couple these");
    Settings {
        step: StepTime::dense(step(0), step(1), step(2), 0.0),
        max_num_seqs: small("max_num_seqs"),
        max_num_batched_tokens: small("max_num_batched_tokens"),
        block_size: small("block_size"),
        kv_blocks: small("kv_blocks"),
        admission: if whole { Admission::WholePrompt } else { Admission::FirstChunk },
    }
}

fn expected(directory: &Path, name: &str) -> Vec<Row> {
    rows(&read(&directory.join(format!("runs/{name}.requests.csv"))))
        .map(|row| {
            let [id, replica, queue, ttft, e2e, ref rest @ ..] = row[..] else { panic!("{row:?}") };
            Row {
                id: id.unwrap(),
                replica: usize::try_from(replica.unwrap()).unwrap(),
                queue,
                ttft,
                e2e,
                preemptions: rest.first().copied().flatten().unwrap_or(0),
                first_ever: rest.get(1).copied().unwrap_or(ttft),
            }
        })
        .collect()
}

fn check_totals(counters: &Counters, totals: &Value, stop: Option<u64>) -> Result<(), String> {
    for (what, ours, theirs) in [
        ("steps", counters.steps, &totals["steps"]),
        ("busy_us", counters.busy.micros(), &totals["busy_us"]),
        ("prefill", counters.prefill_tokens, &totals["prefill_tokens_computed"]),
        ("preemptions", counters.preemptions, &totals["preemptions"]),
        ("finished", counters.finished, &totals["finished"]),
    ] {
        // A stopped run counts the busy time only up to the stop.
        if ours != number(theirs) && (what != "busy_us" || stop.is_none()) {
            return Err(format!("{what} is {ours}, not {theirs}"));
        }
    }
    Ok(())
}

/// Replays one run and says what differs; `Ok` holds the number of requests that were compared.
fn replay(directory: &Path, name: &str) -> Result<usize, String> {
    let run: Value =
        serde_json::from_str(&read(&directory.join(format!("runs/{name}.json")))).unwrap();
    let (config, results) = (&run["config"], &run["results"]);
    let arrivals = rows(&read(&directory.join(config["arrivals"].as_str().unwrap())))
        .map(|row| row.into_iter().map(Option::unwrap).collect::<Vec<_>>())
        .collect::<Vec<_>>();
    let expected = expected(directory, name);
    let stop = Some(number(&config["stop_us"])).filter(|&stop| stop > 0);

    let replicas = usize::try_from(number(&config["replicas"])).unwrap();
    let mut fleet = vec![Replica::new(settings(config)).unwrap(); replicas];
    for row in &expected {
        let arrival = &arrivals[usize::try_from(row.id).unwrap()];
        let request = Request {
            id: row.id,
            prompt: u32::try_from(arrival[1]).unwrap(),
            output: u32::try_from(arrival[2]).unwrap(),
        };
        fleet[row.replica].submit(Micros::new(arrival[0]), request).unwrap();
    }

    let mut finished = vec![None; expected.len()];
    let mut first_tokens = vec![None; expected.len()];
    let mut preemptions = vec![0; expected.len()];
    for (index, replica) in fleet.iter_mut().enumerate() {
        let mut events = Vec::new();
        if let Some(stop) = stop {
            replica.advance_to(Micros::new(stop + 1), &mut events);
            // The step that is being computed runs to its end; none begins after it.
            if let Some(end) = replica.next_change() {
                replica.advance_to(end, &mut events);
            }
        } else {
            replica.advance_to(Micros::new(u64::MAX), &mut events);
            assert_eq!(replica.snapshot().kv_blocks_used, 0, "an empty engine holds nothing");
        }
        for event in events {
            match event {
                EngineEvent::FirstToken { id, ttft, .. } => {
                    first_tokens[usize::try_from(id).unwrap()] = Some(ttft.micros());
                }
                EngineEvent::Preempted { id, .. } => preemptions[usize::try_from(id).unwrap()] += 1,
                EngineEvent::Finished(life) => {
                    finished[usize::try_from(life.request.id).unwrap()] = Some(life);
                }
            }
        }
        check_totals(replica.counters(), &results["replicas"][index], stop)
            .map_err(|difference| format!("replica {index}: {difference}"))?;
    }
    for (index, theirs) in expected.iter().enumerate() {
        let life: Option<Finished> = finished[index];
        let ours = Row {
            id: theirs.id,
            replica: theirs.replica,
            // What did not finish before a stop reports nothing but its first token.
            queue: life.map_or(theirs.queue, |life| Some(life.queue.micros())),
            ttft: life.map_or(first_tokens[index], |life| Some(life.ttft.micros())),
            e2e: life.map(|life| life.e2e.micros()),
            preemptions: preemptions[index],
            first_ever: first_tokens[index],
        };
        if ours != *theirs {
            return Err(format!("{ours:?} should be {theirs:?}"));
        }
    }
    Ok(expected.len())
}

/// A linear percentile, as numpy's default.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let place = share * (sorted.len() - 1) as f64;
    let (below, above) = (place.floor(), place.ceil());
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rank")]
    let at = |rank: f64| sorted[rank as usize];
    at(below) + (at(above) - at(below)) * (place - below)
}

/// Replays a run of the unmodified original and compares what its README says can be compared:
/// means within 2%, medians and 90th percentiles within 3%, 99th within 5%, and twice that for a
/// fleet whose router sees otherwise. `Ok` says how far off the worst is.
fn replay_stock(directory: &Path, name: &str) -> Result<String, String> {
    let run: Value =
        serde_json::from_str(&read(&directory.join(format!("runs/{name}.json")))).unwrap();
    let (config, results) = (&run["config"], &run["results"]);
    let arrivals: Vec<Vec<Option<u64>>> =
        rows(&read(&directory.join(config["arrivals"].as_str().unwrap()))).collect();
    let count = usize::try_from(number(&config["replicas"])).unwrap();
    assert_eq!(config["prefix_cache"], Value::Bool(true), "its preempted requests find blocks");
    let mut fleet = vec![Replica::new(settings(config)).unwrap().with_prefix_cache(None); count];
    for row in expected(directory, name) {
        let [at, prompt, output] = arrivals[usize::try_from(row.id).unwrap()][..] else {
            panic!("{row:?}")
        };
        let [prompt, output] = [prompt, output].map(|it| u32::try_from(it.unwrap()).unwrap());
        let request = Request { id: row.id, prompt, output };
        fleet[row.replica].submit(Micros::new(at.unwrap()), request).unwrap();
    }
    let mut events = Vec::new();
    for replica in &mut fleet {
        replica.advance_to(Micros::new(u64::MAX), &mut events);
        assert_eq!(replica.snapshot().kv_blocks_used, 0, "an empty engine holds nothing");
    }
    let lives: Vec<Finished> = events
        .into_iter()
        .filter_map(|event| if let EngineEvent::Finished(life) = event { Some(life) } else { None })
        .collect();
    let allowed = if count > 1 { 2.0 } else { 1.0 };
    let times = |of: fn(&Finished) -> Micros| -> Vec<f64> {
        let mut times: Vec<f64> = lives.iter().map(|it| of(it).seconds() * 1e3).collect();
        times.sort_by(f64::total_cmp);
        times
    };
    let mut tokens: Vec<f64> =
        lives.iter().filter_map(Finished::itl_mean).map(|itl| itl.seconds() * 1e3).collect();
    tokens.sort_by(f64::total_cmp);
    let mut compared = Vec::new();
    for (what, sorted) in
        [("ttft_ms", times(|it| it.ttft)), ("tpot_ms", tokens), ("e2e_ms", times(|it| it.e2e))]
    {
        let mean = sorted.iter().sum::<f64>() / sorted.len() as f64;
        for (key, ours, share) in [
            ("mean", mean, 0.02),
            ("p50", percentile(&sorted, 0.5), 0.03),
            ("p90", percentile(&sorted, 0.9), 0.03),
            ("p99", percentile(&sorted, 0.99), 0.05),
        ] {
            compared.push((format!("{what} {key}"), ours, &results[what][key], share));
        }
    }
    let mut worst = (0.0, String::new());
    for (what, ours, theirs, share) in compared {
        let off = (ours / theirs.as_f64().unwrap() - 1.0).abs();
        if off > share * allowed {
            return Err(format!("{what} is {ours}, not {theirs} as in the original"));
        }
        if off > worst.0 {
            worst = (off, what);
        }
    }
    let (off, what) = worst;
    Ok(format!("{} requests, at most {:.2}% off ({what})", lives.len(), off * 100.0))
}

/// How many runs of a directory came out as they should.
#[derive(Debug, Default, PartialEq, Eq)]
struct Replayed {
    /// Of the two exact profiles.
    exact: usize,
    requests: usize,
    /// Of the unmodified original.
    within_tolerances: usize,
}

/// Replays all runs in a directory, and says of each how it came out.
fn replay_all(directory: &Path, mut say: impl FnMut(String)) -> Replayed {
    let mut names = fs::read_dir(directory.join("runs"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect::<Vec<_>>();
    names.sort();
    let mut replayed = Replayed::default();
    let mut wrong = Vec::new();
    for name in names {
        let run: Value =
            serde_json::from_str(&read(&directory.join(format!("runs/{name}.json")))).unwrap();
        let profile = run["config"]["profile"].as_str().unwrap();
        let outcome = if profile == "stock" {
            replay_stock(directory, &name).inspect(|_| replayed.within_tolerances += 1)
        } else {
            replay(directory, &name).map(|requests| {
                replayed.exact += 1;
                replayed.requests += requests;
                format!("{requests} requests, all equal to the microsecond")
            })
        };
        let said = format!("{name} ({profile}): {}", outcome.as_ref().unwrap_or_else(|it| it));
        if outcome.is_err() {
            wrong.push(said.clone());
        }
        say(said);
    }
    say(format!("{replayed:?}, {} differ", wrong.len()));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    replayed
}

#[test]
fn engine_vectors_are_reproduced_to_the_microsecond_or_within_their_tolerances() {
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/engine");
    let replayed = replay_all(&committed, |_| ());
    assert_eq!((replayed.exact, replayed.within_tolerances), (6, 2), "every run is replayed");
    if let Some(vectors) = std::env::var_os("PLIMSOLL_VECTORS") {
        let vectors = Path::new(&vectors);
        let engine = vectors.join("engine");
        let directory = if engine.is_dir() { engine.as_path() } else { vectors };
        // To the stream itself, because the harness keeps what a test that passes prints.
        let mut shown = io::stderr();
        let replayed = replay_all(directory, |line| writeln!(shown, "{line}").unwrap());
        assert!(replayed.exact > 0, "there are runs to replay");
    }
}

pub(crate) fn conversation_engine() -> Replica {
    Replica::new(Settings {
        step: StepTime::dense(7400.0, 15.6, 11.0, 0.042),
        max_num_seqs: 64,
        max_num_batched_tokens: 2048,
        block_size: 16,
        kv_blocks: 2000,
        admission: Admission::WholePrompt,
    })
    .unwrap()
}

/// A page after ten requests of 1000 and 100 tokens, one every 100 ms.
fn page_of_ten() -> String {
    let mut replica = conversation_engine();
    for id in 0..10 {
        let request = Request { id, prompt: 1000, output: 100 };
        replica.submit(Micros::new(id * 100_000), request).unwrap();
    }
    replica.advance_to(Micros::from_secs(60), &mut Vec::new());
    let identity = EngineIdentity {
        model: "meta-llama/Llama-3.1-8B-Instruct".to_owned(),
        started: "2026-11-21T08:00:00Z".parse().unwrap(),
        ready: "2026-11-21T08:01:00.25Z".parse().unwrap(),
    };
    render(&identity, &replica.snapshot())
}

#[test]
fn the_page_has_the_series_of_vllm_in_their_order() {
    let page = page_of_ten();
    let ours = page
        .lines()
        .filter(|line| !line.starts_with("# HELP"))
        .map(|line| match line.rsplit_once(' ') {
            Some((series, _)) if series.starts_with("vllm:cache_config_info") => {
                // What the cache is like is not part of the format.
                let names = series.split('"').step_by(2).collect::<Vec<_>>();
                names.join("\"\"")
            }
            Some((series, _)) if !line.starts_with('#') => series.to_owned(),
            Some(_) | None => line.to_owned(),
        })
        .collect::<Vec<_>>();
    let recorded =
        read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/engine/vllm-0.33-series.txt"));
    for (index, (ours, theirs)) in ours.iter().zip(recorded.lines()).enumerate() {
        assert_eq!(ours, theirs, "series {index}");
    }
    assert_eq!(ours.len(), recorded.lines().count());
    assert!(page.ends_with('\n'), "the last line is whole");
}

#[test]
fn the_page_says_what_the_engine_counted() {
    let page = page_of_ten();
    let labels = "engine=\"0\",model_name=\"meta-llama/Llama-3.1-8B-Instruct\"";
    for (series, value) in [
        (format!("vllm:num_requests_running{{{labels}}}"), "0.0"),
        (format!("vllm:prompt_tokens_total{{{labels}}}"), "10000.0"),
        (format!("vllm:generation_tokens_total{{{labels}}}"), "1000.0"),
        (format!("vllm:time_to_first_token_seconds_count{{{labels}}}"), "10.0"),
        (format!("vllm:inter_token_latency_seconds_count{{{labels}}}"), "990.0"),
        (format!("vllm:request_prompt_tokens_sum{{{labels}}}"), "10000.0"),
        (
            "vllm:request_success_total{engine=\"0\",finished_reason=\"stop\",\
             model_name=\"meta-llama/Llama-3.1-8B-Instruct\"}"
                .to_owned(),
            "10.0",
        ),
        (
            "http_requests_total{handler=\"/v1/chat/completions\",method=\"POST\",status=\"2xx\"}"
                .to_owned(),
            "10.0",
        ),
        (format!("vllm:prompt_tokens_created{{{labels}}}"), "1.79524806025e+09"),
        ("process_start_time_seconds".to_owned(), "1.795248e+09"),
    ] {
        assert!(page.lines().any(|line| line == format!("{series} {value}")), "{series} {value}");
    }
    assert_eq!(page, page_of_ten(), "one state has one page");
}

#[test]
fn a_reading_is_what_the_page_says() {
    let model = ModelName::new("meta-llama/Llama-3.1-8B-Instruct").unwrap();
    let started: Timestamp = "2026-11-21T08:00:00Z".parse().unwrap();
    let ready = "2026-11-21T08:01:00Z".parse().unwrap();
    let identity = EngineIdentity { model: model.as_str().to_owned(), started, ready };
    let adapters = ["sql", "chat", "code"].map(|name| ModelName::new(name).unwrap());
    let names = Names { models: vec![model], adapters: adapters.to_vec() };
    let written: Vec<String> = adapters.iter().map(ToString::to_string).collect();
    let hits = Fraction::new(0.4).unwrap();
    let plain = conversation_engine().with_prefix_hits(hits);
    let slots = AdapterSettings { slots: 2, load: Micros::new(5_000) };
    let options = Options {
        api_servers: 2,
        stages: 2,
        speculation: Some(Speculation::with_mean(3, 2.5)),
        noise: 0.1,
        fetch: Some(Fetch { share: hits, latency: Micros::new(300_000), per_token: 100.0 }),
    };
    let harsh = plain.clone().with_options(options, generator(1, Purpose::Steps, 0));
    for mut replica in [plain.clone(), plain.with_adapters(slots), harsh] {
        for id in 0..400 {
            let request = Request { id, prompt: 900, output: 1 + u32::try_from(id).unwrap() };
            let at = Micros::new(id * 30_000);
            // Every fourth asks for the model itself.
            replica.submit(at, request).unwrap();
            if let Some(adapter) = AdapterId::new((id % 4) as u8).filter(|it| it.place() < 3) {
                replica.ask_for(id, adapter);
            }
        }
        for half_second in 0..240_i64 {
            let until = Micros::new(u64::try_from(half_second).unwrap() * 500_000);
            replica.advance_to(until, &mut Vec::new());
            if half_second == 9 {
                assert!(replica.abort(140));
            }
            let now = started + SignedDuration::from_millis(half_second * 500);
            let said = replica.adapters().map(|said| said.page(now, &written));
            let page = render(&identity, &replica.snapshot()) + &said.unwrap_or_default();
            let told = exposition::read(page.as_bytes(), Some(CONTENT_TYPE)).unwrap();
            let read = read_directly(&names, started, now, &replica);
            assert_eq!(read, told, "after {half_second}/2 s");
        }
        assert_eq!(replica.outstanding(), 0);
    }
}

#[test]
fn a_request_that_leaves_takes_nothing_with_it() {
    let mut replica = conversation_engine();
    for id in 0..200 {
        replica.submit(Micros::ZERO, Request { id, prompt: 500, output: 300 }).unwrap();
    }
    let mut events = Vec::new();
    for step in 0..100 {
        replica.advance_to(Micros::new(step * 37_777), &mut events);
        replica.abort(step * 2);
    }
    assert!(!replica.abort(10_000), "nobody knows this one");
    replica.advance_to(Micros::from_secs(1_000), &mut events);
    assert_eq!((replica.outstanding(), replica.snapshot().kv_blocks_used), (0, 0));
    let finished = events.iter().filter(|event| matches!(event, EngineEvent::Finished(_))).count();
    let left = usize::try_from(replica.counters().aborted).unwrap();
    assert_eq!(finished + left, 200);
}

#[test]
fn nothing_finishes_while_an_engine_says_that_it_is_quiet() {
    let mut replica = conversation_engine();
    for id in 0..300 {
        let output = 100 + 50 * u32::try_from(id % 4).unwrap();
        replica.submit(Micros::ZERO, Request { id, prompt: 700, output }).unwrap();
    }
    let (mut events, mut now, mut looks) = (Vec::new(), Micros::ZERO, 0);
    while replica.outstanding() > 0 {
        let quiet = replica.quiet_until();
        looks += 1;
        let before = Micros::new(quiet.micros().max(now.micros() + 1) - 1);
        events.clear();
        replica.advance_to(before, &mut events);
        assert!(
            before < now || !events.iter().any(|event| matches!(event, EngineEvent::Finished(_))),
            "{events:?} before {quiet}"
        );
        now = quiet.max(Micros::new(now.micros() + 1));
        replica.advance_to(now, &mut events);
    }
    assert!(looks < 4 * replica.counters().steps / 5, "{looks} of {}", replica.counters().steps);
}

#[test]
fn a_prefix_that_is_cached_is_not_computed_again() {
    let run = |share| {
        let hits = Fraction::new(share).unwrap();
        let mut replica = conversation_engine().with_prefix_hits(hits);
        replica.submit(Micros::ZERO, Request { id: 0, prompt: 1600, output: 10 }).unwrap();
        replica.advance_to(Micros::from_secs(60), &mut Vec::new());
        let counters = replica.counters();
        (counters.prefill_tokens, counters.prefix_hits, counters.prompt_tokens)
    };
    assert_eq!(run(0.0), (1600, 0, 1600));
    assert_eq!(run(0.5), (800, 800, 1600));
    assert_eq!(run(1.0), (16, 1584, 1600), "the last block is computed for its last token");
}

#[test]
fn a_request_that_can_never_fit_is_refused_and_a_busy_engine_never_holds_more_than_it_has() {
    let mut replica = conversation_engine();
    for (prompt, output) in [(0, 1), (1, 0), (32_000, 2), (u32::MAX, u32::MAX)] {
        assert!(replica.submit(Micros::ZERO, Request { id: 0, prompt, output }).is_err());
    }
    for id in 0..400 {
        replica.submit(Micros::ZERO, Request { id, prompt: 900, output: 700 }).unwrap();
    }
    let mut events = Vec::new();
    let mut preempted_at_most = 0;
    for second in 1..2_000 {
        replica.advance_to(Micros::from_secs(second), &mut events);
        let stats = replica.snapshot();
        assert!(stats.kv_blocks_used <= stats.kv_blocks, "{stats:?}");
        assert!(stats.running <= 64, "{stats:?}");
        preempted_at_most = stats.counters.preemptions;
    }
    assert!(preempted_at_most > 0, "the cache was too small for the batch");
    let finished = events.iter().filter(|event| matches!(event, EngineEvent::Finished(_))).count();
    assert_eq!((finished, replica.outstanding()), (400, 0));
    assert_eq!(replica.next_change(), None, "an idle engine waits for nothing");
}

#[test]
fn stepping_in_small_spans_and_in_one_gives_the_same_events() {
    let mut whole = conversation_engine();
    for index in 0..50_u32 {
        let id = u64::from(index);
        let request = Request { id, prompt: 1 + (index * 37) % 3000, output: 1 + index };
        whole.submit(Micros::new(id * 40_000), request).unwrap();
    }
    let mut small = whole.clone();
    let (mut at_once, mut in_spans) = (Vec::new(), Vec::new());
    whole.advance_to(Micros::from_secs(100), &mut at_once);
    for span in 0..=100_000 {
        small.advance_to(Micros::new(span * 1000), &mut in_spans);
    }
    assert_eq!(at_once, in_spans);
    assert_eq!(whole.snapshot(), small.snapshot());
}

fn any_settings() -> impl Strategy<Value = Settings> {
    let admission = prop_oneof![Just(Admission::WholePrompt), Just(Admission::FirstChunk)];
    // The budget is at least the seats, and the cache at least one request: 40 + 40 - 1 tokens.
    (1..12_u32, 0..60_u32, 1..9_u32, 0..60_u32, 0..2_u32, admission).prop_map(
        |(seats, more, block_size, blocks, gamma, admission)| Settings {
            step: StepTime::dense(7_050.0, 19.5, 25.4, f64::from(gamma)),
            max_num_seqs: seats,
            max_num_batched_tokens: seats + more,
            block_size,
            kv_blocks: 80_u32.div_ceil(block_size) + blocks,
            admission,
        },
    )
}

proptest! {
    #[test]
    fn the_engine_does_what_the_plain_rules_say(
        settings in any_settings(),
        requests in prop::collection::vec((0..40_000_u64, 1..40_u32, 1..40_u32), 1..60),
    ) {
        let mut now = 0;
        let arrivals = requests.into_iter().zip(0..).map(|((gap, prompt, output), id)| {
            now += gap;
            (Micros::new(now), Request { id, prompt, output })
        }).collect::<Vec<_>>();
        let expected = reference::run(&settings, &arrivals);

        let mut replica = Replica::new(settings).unwrap();
        for &(at, request) in &arrivals {
            replica.submit(at, request).unwrap();
        }
        let mut events = Vec::new();
        replica.advance_to(Micros::new(u64::MAX), &mut events);
        let mut times = vec![reference::Times::default(); arrivals.len()];
        for event in events {
            if let EngineEvent::Finished(Finished { request, queue, ttft, e2e, preemptions, .. }) = event {
                times[usize::try_from(request.id).unwrap()] =
                    reference::Times { queue, ttft, e2e, preemptions };
            }
        }
        prop_assert_eq!(times, expected);
        prop_assert_eq!(replica.snapshot().kv_blocks_used, 0);
    }
}
