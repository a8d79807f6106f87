//! Every page in a folder can be read, and the pages of this repository say what they say.
//!
//! `PLIMSOLL_PAGES=DIR cargo test --test it pages` reads the `*.txt` and `*.txt.gz` files in `DIR`
//! instead of those in `tests/data/pages`, and shows what was read.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write as _};
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use jiff::{SignedDuration, Timestamp};
use plimsoll::analyze::foresight::lesson::IterationSampler;
use plimsoll::collect::exposition::read;
use plimsoll::fleet::ModelName;
use plimsoll::observe::engine::Engine;
use plimsoll::observe::engine::lora::Slots;
use plimsoll::observe::histogram::Histogram;
use plimsoll::observe::stride::Odometer;
use plimsoll::observe::{FinishedReading, HttpReading, RankReading, Reading};
use plimsoll::units::{Fraction, Requests, Tokens};

const PAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/pages");

/// The bytes of a page in this repository; `.gz` is decompressed.
pub(crate) fn page(name: &str) -> Vec<u8> {
    load(&Path::new(PAGES).join(name))
}

/// The names of the pages in this repository.
pub(crate) fn names() -> Vec<String> {
    let pages = pages_in(Path::new(PAGES));
    let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
    pages.iter().map(name).collect()
}

fn load(path: &Path) -> Vec<u8> {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    if path.extension().is_none_or(|extension| extension != "gz") {
        return bytes;
    }
    let mut body = Vec::new();
    GzDecoder::new(bytes.as_slice()).read_to_end(&mut body).expect("the page is gzip");
    body
}

/// The content type that the server of such a page sends.
pub(crate) fn content_type(body: &[u8]) -> &'static str {
    if body.ends_with(b"# EOF\n") {
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    } else {
        "text/plain; version=1.0.0; charset=utf-8"
    }
}

pub(crate) fn reading(name: &str) -> Reading {
    let body = page(name);
    read(&body, Some(content_type(&body))).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn requests(count: f64) -> Option<Requests> {
    Requests::new(count)
}

fn tokens(count: f64) -> Option<Tokens> {
    Tokens::new(count)
}

fn share(of_one: f64) -> Option<Fraction> {
    Fraction::new(of_one)
}

/// Sum and count, which is what most histograms are asked for.
fn totals(histogram: Option<&Histogram>) -> Option<(f64, f64)> {
    histogram.map(|histogram| (histogram.sum, histogram.count))
}

fn pages_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut pages: Vec<_> = entries
        .map(|entry| entry.expect("the folder can be listed").path())
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.ends_with(".txt") || name.ends_with(".txt.gz")
        })
        .collect();
    pages.sort();
    pages
}

/// A number, or a dash where the page says nothing.
fn shown(number: Option<f64>) -> String {
    number.map_or_else(|| "-".to_owned(), |number| number.to_string())
}

fn describe(reading: &Reading) -> String {
    let models: Vec<_> = reading.models.iter().map(ToString::to_string).collect();
    let started = reading.started.map_or_else(|| "-".to_owned(), |at| at.to_string());
    let HttpReading { success, success_series: _, client_error, server_error } = reading.http;
    let http = [success, client_error, server_error]
        .map(|count| shown(count.map(Requests::requests)))
        .join("/");
    let mut text = format!(
        "{} models={} started={started} http={http} rejected={}",
        reading.engine.label(),
        models.join(","),
        shown(reading.rejected.map(Requests::requests)),
    );
    for rank in &reading.ranks {
        let count = |count: Option<Requests>| shown(count.map(Requests::requests));
        let mean = |of: &Option<Histogram>| shown(of.as_ref().and_then(Histogram::mean));
        write!(
            text,
            "\n  rank={} running={} waiting={} capacity={} deferred={} kv={} kv_tokens={} \
             preemptions={} prompt={} generated={} ttft={} itl={}",
            rank.rank,
            count(rank.running),
            count(rank.waiting),
            count(rank.waiting_capacity),
            count(rank.waiting_deferred),
            shown(rank.kv_usage.map(Fraction::fraction)),
            shown(rank.kv_capacity.map(Tokens::tokens)),
            count(rank.preemptions),
            shown(rank.prompt_tokens.map(Tokens::tokens)),
            shown(rank.generation_tokens.map(Tokens::tokens)),
            mean(&rank.ttft),
            mean(&rank.itl),
        )
        .expect("a string takes text");
    }
    text
}

#[test]
fn every_page_in_the_folder_can_be_read() {
    let folder = std::env::var_os("PLIMSOLL_PAGES").map_or_else(|| PAGES.into(), PathBuf::from);
    let pages = pages_in(&folder);
    assert!(!pages.is_empty(), "no *.txt or *.txt.gz in {}", folder.display());
    let mut failures = Vec::new();
    for path in pages {
        let body = load(&path);
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let line = match read(&body, Some(content_type(&body))) {
            Ok(reading) => format!("{name}: {}", describe(&reading)),
            Err(error) => {
                let source = std::error::Error::source(&error);
                let source = source.map(|source| format!(": {source}")).unwrap_or_default();
                failures.push(format!("{name}: {error}{source}"));
                format!("{name}: FAILED: {error}{source}")
            }
        };
        // Written past the harness, which would show it only for failures.
        writeln!(std::io::stdout(), "{line}").expect("stdout takes a line");
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn a_single_engine_is_rank_zero_and_every_signal_is_found() {
    let reading = reading("vllm-0.33.0-dp1-single.txt.gz");
    assert_eq!(reading.engine, Engine::Vllm);
    assert_eq!(reading.started.unwrap().as_second(), 1_795_225_006);
    assert_eq!(
        reading.models.iter().map(ModelName::as_str).collect::<Vec<_>>(),
        ["meta-llama/Llama-3.1-8B-Instruct"]
    );
    assert_eq!(
        reading.http,
        HttpReading {
            success: requests(21.0),
            success_series: Some(2),
            client_error: None,
            server_error: None
        }
    );
    assert_eq!(reading.rejected, requests(0.0));
    let [rank] = reading.ranks.as_slice() else { panic!("one rank") };
    let RankReading {
        ttft,
        itl,
        e2e,
        queue_time,
        prompt_length,
        generation_length,
        step_tokens,
        ..
    } = rank;
    assert_eq!(rank.rank, 0);
    assert_eq!(rank.running, requests(14.0));
    assert_eq!(rank.waiting, requests(1.0));
    assert_eq!(rank.waiting_capacity, requests(1.0));
    assert_eq!(rank.waiting_deferred, requests(0.0));
    assert_eq!(rank.kv_usage, share(0.284_163_292_211_795_1));
    assert_eq!(rank.kv_capacity, tokens(439_248.0));
    assert_eq!(rank.asleep, Some(false));
    assert_eq!(rank.prompt_tokens, tokens(680_888.0));
    assert_eq!(rank.generation_tokens, tokens(61_331.0));
    assert_eq!(rank.prefix_queries, tokens(680_888.0));
    assert_eq!(rank.prefix_hits, tokens(272_182.0));
    assert_eq!(rank.preemptions, requests(0.0));
    assert_eq!(
        rank.finished,
        FinishedReading {
            stop: requests(77.0),
            length: requests(81.0),
            abort: requests(0.0),
            error: requests(0.0),
            other: requests(0.0),
        }
    );
    assert_eq!(totals(ttft.as_ref()), Some((55.494_722_844_623_82, 443.0)));
    assert_eq!(totals(itl.as_ref()), Some((859.227_890_266_028_7, 61_331.0)));
    assert_eq!(totals(e2e.as_ref()), Some((834.965_266_255_424_7, 158.0)));
    assert_eq!(totals(queue_time.as_ref()), Some((8.478_463_133_694_744, 158.0)));
    assert_eq!(totals(prompt_length.as_ref()), Some((230_177.0, 158.0)));
    assert_eq!(totals(generation_length.as_ref()), Some((62_485.0, 158.0)));
    assert_eq!(totals(step_tokens.as_ref()), Some((470_037.0, 3000.0)));
    let ttft = ttft.as_ref().unwrap();
    assert_eq!(ttft.buckets.len(), 23);
    assert_eq!(ttft.buckets[0], (0.001, 0.0));
    assert_eq!(ttft.buckets[22], (f64::INFINITY, 443.0));
    assert!(ttft.buckets.is_sorted_by(|one, next| one.0 < next.0 && one.1 <= next.1));
}

#[test]
fn every_data_parallel_rank_has_its_own_numbers() {
    let two = reading("vllm-0.33.0-dp2-multi.txt.gz");
    let expected = [
        (0, 16.0, 3.0, 0.315_908_598_269_702_9, 683_804.0, 61_979.0, 78.0),
        (1, 3.0, 1.0, 0.223_020_394_126_441_03, 670_983.0, 60_453.0, 72.0),
    ];
    assert_eq!(two.ranks.len(), expected.len());
    for (rank, (number, running, waiting, kv, prompt, generated, stop)) in
        two.ranks.iter().zip(expected)
    {
        assert_eq!(rank.rank, number);
        assert_eq!(rank.running, requests(running), "rank {number}");
        assert_eq!(rank.waiting, requests(waiting), "rank {number}");
        assert_eq!(rank.waiting_capacity, requests(waiting), "rank {number}");
        assert_eq!(rank.kv_usage, share(kv), "rank {number}");
        assert_eq!(rank.kv_capacity, tokens(439_248.0), "rank {number}");
        assert_eq!(rank.prompt_tokens, tokens(prompt), "rank {number}");
        assert_eq!(rank.generation_tokens, tokens(generated), "rank {number}");
        assert_eq!(rank.finished.stop, requests(stop), "rank {number}");
    }
    assert_eq!(two.started, None, "several processes share the page");

    let eight = reading("vllm-0.33.0-dp8-multi.txt.gz");
    let expected = [
        (6.0, 2.0, 0.587_821_972_868_286_5, 663_958.0),
        (12.0, 1.0, 0.210_047_142_971_529_04, 663_517.0),
        (7.0, 2.0, 0.390_647_553_441_701_43, 622_182.0),
        (37.0, 1.0, 0.505_654_355_470_738, 698_161.0),
        (23.0, 3.0, 0.524_068_449_730_574_9, 722_484.0),
        (38.0, 1.0, 0.375_515_880_561_242_3, 639_683.0),
        (26.0, 1.0, 0.206_060_824_873_836_6, 650_325.0),
        (31.0, 2.0, 0.546_101_252_161_528_8, 653_227.0),
    ];
    assert_eq!(eight.ranks.len(), expected.len());
    for (number, (rank, (running, waiting, kv, prompt))) in
        eight.ranks.iter().zip(expected).enumerate()
    {
        assert_eq!(usize::try_from(rank.rank), Ok(number));
        assert_eq!(rank.running, requests(running), "rank {number}");
        assert_eq!(rank.waiting, requests(waiting), "rank {number}");
        assert_eq!(rank.kv_usage, share(kv), "rank {number}");
        assert_eq!(rank.prompt_tokens, tokens(prompt), "rank {number}");
        assert_eq!(rank.ttft.as_ref().map(|ttft| ttft.buckets.len()), Some(23), "rank {number}");
    }
}

#[test]
fn the_open_metrics_page_says_the_same_as_the_text_page() {
    let text = reading("vllm-0.33.0-dp1-single.txt.gz");
    let mut open = reading("vllm-0.33.0-openmetrics.txt.gz");
    // The two pages are of two processes that did the same.
    assert!(open.started.is_some() && open.started != text.started);
    open.started = text.started;
    assert_eq!(open, text);
}

#[test]
fn a_saturated_server_and_one_over_its_adapter_budget_show_their_queues() {
    let saturated = reading("vllm-0.32.0-saturated.txt.gz");
    assert_eq!(saturated.ranks[0].running, requests(16.0));
    assert_eq!(saturated.ranks[0].waiting, requests(210.0));
    assert_eq!(saturated.ranks[0].kv_usage, share(0.905_660_377_358_490_6));
    assert_eq!(saturated.ranks[0].kv_capacity, tokens(5120.0));

    let deferred = reading("vllm-0.32.0-lora-deferred.txt.gz");
    assert_eq!(deferred.ranks[0].waiting, requests(26.0));
    assert_eq!(deferred.ranks[0].waiting_capacity, requests(21.0));
    assert_eq!(deferred.ranks[0].waiting_deferred, requests(5.0));
    assert_eq!(deferred.models.len(), 1, "adapters are no models");
    let lora = deferred.lora.unwrap();
    let names: Vec<&str> = lora.running.iter().map(ModelName::as_str).collect();
    assert_eq!(names, ["ad1", "ad2"], "the newest of nine series counts");
    assert_eq!((lora.waiting, lora.slots), (lora.running, Slots::new(2)));
    assert_eq!(saturated.lora, None);
}

#[test]
fn a_release_with_both_names_of_a_metric_counts_it_once() {
    let both = reading("vllm-0.11.0-both-names.txt.gz");
    assert_eq!(totals(both.ranks[0].itl.as_ref()), Some((0.446_326_376_999_422_8, 57.0)));
    assert_eq!(both.ranks[0].kv_usage, share(0.0));
    assert_eq!(both.ranks[0].prefix_queries, tokens(0.0));
    assert_eq!(both.http.success, requests(3.0), "summed over handlers that are POSTed to");
}

#[test]
fn an_idle_server_reads_zero_where_it_says_zero() {
    let idle = reading("vllm-0.32.0-idle.txt.gz");
    assert_eq!(idle.ranks[0].running, requests(0.0));
    assert_eq!(idle.ranks[0].ttft.as_ref().and_then(Histogram::mean), None);
    assert_eq!(
        idle.http,
        HttpReading { success_series: Some(0), ..HttpReading::default() },
        "there are no samples before the first answer"
    );
}

#[test]
fn the_rust_front_end_is_read_like_the_python_one() {
    let reading = reading("vllm-rust-front-end-dp2.txt");
    assert_eq!(reading.started, None);
    assert_eq!(reading.http, HttpReading { success_series: Some(0), ..HttpReading::default() });
    let [first, second] = reading.ranks.as_slice() else { panic!("two ranks") };
    assert_eq!((first.running, second.running), (requests(14.0), requests(9.0)));
    assert_eq!(first.kv_capacity, None, "it has no cache_config_info");
    assert_eq!(
        first.ttft,
        Some(Histogram {
            sum: 55.494_722_844_623_82,
            count: 443.0,
            buckets: vec![(0.001, 0.0), (0.1, 214.0), (f64::INFINITY, 443.0)],
        })
    );
    assert_eq!(totals(second.ttft.as_ref()), Some((40.25, 400.0)));
    assert_eq!(second.preemptions, requests(2.0));
    assert_eq!(second.finished.length, requests(75.0));
}

#[test]
fn ranks_that_have_not_served_yet_are_idle_if_a_counter_proves_it() {
    let reading = reading("vllm-dp2-before-first-request.txt");
    assert_eq!(reading.ranks.len(), 2);
    for rank in &reading.ranks {
        assert_eq!(rank.kv_capacity, tokens(54_906.0 * 16.0 / 2.0), "blocks are of both ranks");
        assert_eq!(rank.prompt_tokens, tokens(0.0));
        assert_eq!((rank.running, rank.waiting), (requests(0.0), requests(0.0)));
        assert_eq!(rank.kv_usage, share(0.0));
    }
    let page = String::from_utf8(page("vllm-dp2-before-first-request.txt")).unwrap();
    for unproved in [page.replace("} 0.0\n", "} 7.0\n"), page.replace("prompt_tokens", "prompts")] {
        let reading = read(unproved.as_bytes(), Some(content_type(unproved.as_bytes()))).unwrap();
        let gauges = |rank: &RankReading| (rank.running, rank.waiting, rank.kv_usage);
        assert!(reading.ranks.iter().all(|rank| gauges(rank) == (None, None, None)));
    }
}

#[test]
fn v0_has_old_names_and_no_engine_label() {
    let reading = reading("vllm-v0.txt");
    let [rank] = reading.ranks.as_slice() else { panic!("one rank") };
    assert_eq!(rank.rank, 0);
    assert_eq!(rank.kv_usage, share(0.625));
    assert_eq!(rank.kv_capacity, tokens(160_000.0));
    assert_eq!(totals(rank.itl.as_ref()), Some((150.5, 7148.0)));
    assert_eq!(rank.finished.stop, requests(40.0));
    assert_eq!(rank.asleep, None);
}

#[test]
fn two_pages_of_sglang_say_what_an_iteration_takes() {
    let before = reading("sglang-0.5.23-dp2-tp2.txt");
    let mut after = before.clone();
    let rank = &mut after.ranks[0];
    let add = |histogram: &mut Option<Histogram>, sum: f64, count: f64| {
        let histogram = histogram.as_mut().unwrap();
        histogram.sum += sum;
        histogram.count += count;
    };
    add(&mut rank.ttft, 5.0, 20.0);
    add(&mut rank.itl, 39.6, 1980.0);
    rank.prompt_tokens = tokens(60_000.0);
    rank.generation_tokens = tokens(22_000.0);

    let (mut odometer, at) = (Odometer::default(), Timestamp::UNIX_EPOCH);
    assert_eq!(odometer.take(at, &before), None);
    let stride = odometer.take(at + SignedDuration::from_secs(20), &after).unwrap();
    let lesson = IterationSampler::default().take(&stride).unwrap();

    assert_eq!(stride.prompt_moments, Some([0.0; 2]), "no request has finished");
    assert!((lesson.seconds - 0.02).abs() < 1e-9, "{lesson:?}");
    // Of each of two ranks: 250 prompt tokens a second, and one request and a part of another.
    assert!((lesson.prompt - 250.0 * 0.02).abs() < 1e-9, "{lesson:?}");
    assert!((1.0..2.0).contains(&lesson.batch), "{lesson:?}");
}

#[test]
fn two_pages_say_how_much_prompts_differ() {
    let before = reading("vllm-0.33.0-dp1-single.txt.gz");
    let mut after = before.clone();
    let lengths = after.ranks[0].prompt_length.as_mut().unwrap();
    // Ten of up to 200 tokens and ten of up to 1,000.
    for (edge, count) in &mut lengths.buckets {
        *count += if *edge >= 1000.0 {
            20.0
        } else if *edge >= 200.0 {
            10.0
        } else {
            0.0
        };
    }

    let mut odometer = Odometer::default();
    assert_eq!(odometer.take(Timestamp::UNIX_EPOCH, &before), None);
    let at = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(20);
    let [sum, squares] = odometer.take(at, &after).unwrap().prompt_moments.unwrap();
    let short = f64::sqrt(100.0 * 200.0);
    let long = f64::sqrt(500.0 * 1000.0);
    assert!((sum - 10.0 * (short + long)).abs() < 1e-6, "{sum}");
    assert!((squares - 10.0 * (short * short + long * long)).abs() < 1e-3, "{squares}");
}

#[test]
fn sglang_ranks_are_not_summed_over_tensor_parallel_ranks() {
    let reading = reading("sglang-0.5.23-dp2-tp2.txt");
    assert_eq!(reading.engine, Engine::Sglang);
    let [first, second] = reading.ranks.as_slice() else { panic!("two ranks") };
    assert_eq!((first.running, second.running), (requests(7.0), requests(4.0)));
    assert_eq!(first.waiting_capacity, requests(5.0));
    assert_eq!(first.waiting_deferred, requests(2.0), "those that wait for a grammar");
    assert_eq!((first.waiting, second.waiting), (requests(7.0), requests(0.0)));
    assert_eq!((first.kv_usage, second.kv_usage), (share(0.83), share(0.41)));
    assert_eq!(first.kv_capacity, tokens(120_000.0));
    assert_eq!(second.kv_capacity, tokens(118_000.0));
    assert_eq!(first.prompt_tokens, tokens(50_000.0), "streaming and not streaming");
    assert_eq!(first.generation_tokens, tokens(20_000.0));
    assert_eq!(second.prompt_tokens, None, "request metrics have no rank and are on the first");
    assert_eq!(first.finished.other, requests(200.0));
    assert_eq!(first.finished.abort, requests(3.0));
    assert_eq!(totals(first.ttft.as_ref()), Some((73.75, 200.0)));
    assert_eq!(first.ttft.as_ref().unwrap().buckets[0], (0.1, 25.0));
    assert_eq!(totals(first.queue_time.as_ref()), Some((31.0, 200.0)));
    assert_eq!(totals(first.prompt_length.as_ref()), Some((50_000.0, 200.0)));
    assert_eq!(totals(first.generation_length.as_ref()), Some((20_000.0, 200.0)));
}
