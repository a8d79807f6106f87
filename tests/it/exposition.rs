//! What a page may look like, and what is refused.

use std::fmt::Write;

use plimsoll::collect::exposition::{LINE_MAX, PageError, SAMPLES_MAX, read};
use plimsoll::observe::engine::{BUCKETS_MAX, RANKS_MAX, SampleError};
use plimsoll::observe::histogram::Histogram;
use plimsoll::observe::{RankReading, Reading, ScrapeFailure};
use plimsoll::units::{Fraction, Requests, Tokens};
use proptest::prelude::*;

use crate::pages::{content_type, page, reading};

const TEXT: Option<&str> = Some("text/plain; version=0.0.4; charset=utf-8");
const OPEN: Option<&str> = Some("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// A small page that can be read; tests add to it.
const BASE: &str = "vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 3\n";

fn text(page: &str) -> Result<Reading, PageError> {
    read(page.as_bytes(), TEXT)
}

fn sound(page: &str) -> Reading {
    text(page).unwrap_or_else(|error| panic!("{page}\n{error}: {error:?}"))
}

fn refused(page: &str) -> PageError {
    match text(page) {
        Err(error) => error,
        Ok(reading) => panic!("{page}\nwas read as {reading:?}"),
    }
}

/// The only rank of a page made of these lines.
fn rank(lines: &str) -> RankReading {
    let mut ranks = sound(lines).ranks;
    assert_eq!(ranks.len(), 1, "{lines}");
    ranks.remove(0)
}

/// Where and why a page is refused.
fn verdict(error: &PageError) -> (usize, usize, String) {
    match error {
        PageError::Syntax { line, column, found, expected } => {
            (*line, *column, format!("found {found}, expected {expected}"))
        }
        PageError::Truncated { line, column, expected } => {
            (*line, *column, format!("expected {expected}"))
        }
        PageError::Sample { line, column, name, source } => {
            (*line, *column, format!("{name}: {source}"))
        }
        other => (0, 0, other.to_string()),
    }
}

fn requests(count: f64) -> Option<Requests> {
    Requests::new(count)
}

// What a page may look like.

#[test]
fn order_of_labels_and_blanks_make_no_difference() {
    for line in [
        "vllm:num_requests_running{engine=\"2\",model_name=\"m\"} 3.0\n",
        "vllm:num_requests_running{model_name=\"m\",engine=\"2\"} 3\n",
        "vllm:num_requests_running { model_name = \"m\" , engine = \"2\" , }\t3e0\n",
        "  vllm:num_requests_running{engine=\"2\",model_name=\"m\",x=\"}\"} 3 1795224934000\n",
        "vllm:num_requests_running{engine=\"2\",model_name=\"m\"} 3.0 -1\r\n",
        "{\"vllm:num_requests_running\",engine=\"2\",model_name=\"m\"} 3\n",
        "{\"vllm:num_requests_running\", \"engine\"=\"2\", \"model_name\"=\"m\"} 3\n",
        "vllm_num_requests_running{engine=\"2\",model_name=\"m\"} +3\n",
        "\n# a comment\n#\n# TYPE vllm:num_requests_running histogram\n\
         vllm:num_requests_running{engine=\"2\",model_name=\"m\"} 3\n\n",
    ] {
        let reading = sound(line);
        assert_eq!(reading.ranks.len(), 1, "{line}");
        assert_eq!(reading.ranks[0].rank, 2, "{line}");
        assert_eq!(reading.ranks[0].running, requests(3.0), "{line}");
        assert_eq!(reading.models[0].as_str(), "m", "{line}");
    }
}

#[test]
fn escapes_in_label_values_are_undone() {
    let page = r#"vllm:num_requests_running{engine="0",model_name="a\\b\"c\nd}"} 1"#.to_owned();
    assert_eq!(sound(&(page + "\n")).models[0].as_str(), "a\\b\"c\nd}");
    let page = "vllm:num_requests_running{model_name=\"模型\"} 1\n";
    assert_eq!(sound(page).models[0].as_str(), "模型");
}

#[test]
fn open_metrics_takes_exemplars_and_times_in_seconds() {
    let page = "# TYPE vllm:time_to_first_token_seconds histogram\n\
        vllm:time_to_first_token_seconds_bucket{le=\"0.5\"} 2 # {trace_id=\"a}b\"} 0.4 1795224934.5\n\
        vllm:time_to_first_token_seconds_bucket{le=\"+Inf\"} 3 1795224934.25 # {} 0.7\n\
        vllm:time_to_first_token_seconds_count 3 1795224934.25\n\
        vllm:time_to_first_token_seconds_sum 1.5\n\
        vllm:time_to_first_token_seconds_created 1795224900.5\n\
        other_total{a=\"b\"} 5 # {trace_id=\"x\"} 1\n\
        # EOF\n";
    let histogram =
        Histogram { sum: 1.5, count: 3.0, buckets: vec![(0.5, 2.0), (f64::INFINITY, 3.0)] };
    let ranks = read(page.as_bytes(), OPEN).unwrap().ranks;
    assert_eq!(ranks[0].ttft, Some(histogram));
    let without_newline = page.trim_end();
    assert_eq!(read(without_newline.as_bytes(), OPEN).unwrap().ranks, ranks);
}

#[test]
fn families_and_parts_of_histograms_may_come_in_any_order() {
    let name = "page.txt";
    let whole = page("vllm-v0.txt");
    let whole = String::from_utf8(whole).unwrap();
    let mut lines: Vec<&str> = whole.lines().filter(|line| !line.starts_with('#')).collect();
    let expected = sound(&whole);
    lines.reverse();
    assert_eq!(sound(&(lines.join("\n") + "\n")), expected, "{name} backwards, without comments");
    lines.sort_unstable();
    assert_eq!(sound(&(lines.join("\r\n") + "\r\n")), expected, "{name} sorted, with CRLF");
}

#[test]
fn both_spellings_of_the_prefix_are_the_same() {
    let whole = String::from_utf8(page("vllm-v0.txt")).unwrap();
    assert_eq!(sound(&whole.replace("vllm:", "vllm_")), sound(&whole));
    let whole = String::from_utf8(page("sglang-0.5.23-dp2-tp2.txt")).unwrap();
    assert_eq!(sound(&whole.replace("sglang:", "sglang_")), sound(&whole));
}

#[test]
fn created_series_and_longer_names_are_not_mistaken_for_the_metric() {
    let read = rank(
        "vllm:prompt_tokens_total 5\nvllm:prompt_tokens_created 1.79e9\n\
         vllm:prompt_tokens_by_source_total{source=\"local_compute\"} 3\n\
         vllm:prompt_tokens_cached_total 2\nvllm:num_requests_running_max 9\n",
    );
    assert_eq!(read.prompt_tokens, Tokens::new(5.0));
    assert_eq!(read.running, None);
}

#[test]
fn content_types_decide_the_format() {
    for plain in [
        None,
        Some(""),
        Some("text/plain"),
        Some("text/plain; version=1.0.0; charset=utf-8"),
        Some("Text/Plain;version=0.0.4"),
    ] {
        assert!(read(BASE.as_bytes(), plain).is_ok(), "{plain:?}");
    }
    for other in ["text/html; charset=utf-8", "application/json", "application/octet-stream"] {
        let error = read(BASE.as_bytes(), Some(other)).unwrap_err();
        assert!(matches!(&error, PageError::ContentType { found } if found == other), "{error}");
        assert_eq!(error.failure(), ScrapeFailure::Malformed);
    }
}

// What engines mean.

#[test]
fn a_gauge_that_means_nothing_is_absent_and_never_idle() {
    for value in ["NaN", "+Inf", "-Inf", "-1", "-0.5"] {
        let read = rank(&format!(
            "vllm:num_requests_running 3\nvllm:num_requests_waiting {value}\n\
             vllm:kv_cache_usage_perc {value}\nvllm:gpu_cache_usage_perc 0.3\n"
        ));
        assert_eq!(read.running, requests(3.0), "{value}");
        assert_eq!(read.waiting, None, "{value}");
        assert_eq!(read.kv_usage, None, "an older name is no substitute for {value}");
    }
    let per_cent = rank("vllm:kv_cache_usage_perc 37\n");
    assert_eq!(per_cent.kv_usage, None, "per cent are not guessed at");
    assert_eq!(rank("vllm:kv_cache_usage_perc 1\n").kv_usage, Some(Fraction::ONE));
}

#[test]
fn a_counter_that_cannot_have_been_counted_makes_the_page_unreadable() {
    for line in [
        "vllm:prompt_tokens_total{engine=\"0\"} NaN\n",
        "vllm:prompt_tokens_total{engine=\"0\"} -1\n",
        "vllm:num_preemptions_total +Inf\n",
        "vllm:request_success_total{finished_reason=\"stop\"} NaN\n",
        "vllm:request_success_total{finished_reason=\"new\"} NaN\n",
        "vllm:admission_rejections_total{reason=\"x\"} -1\n",
        "http_requests_total{handler=\"/\",status=\"2xx\"} NaN\n",
        "vllm:time_to_first_token_seconds_count NaN\n",
        "vllm:time_to_first_token_seconds_bucket{le=\"1\"} -2\n",
        "sglang:prompt_tokens_total NaN\n",
    ] {
        let page =
            if line.starts_with("sglang") { line.to_owned() } else { format!("{BASE}{line}") };
        let error = refused(&page);
        assert!(
            matches!(&error, PageError::Sample { source: SampleError::NotCumulative { .. }, .. }),
            "{line}{error}"
        );
        assert_eq!(error.failure(), ScrapeFailure::Malformed);
    }
    let (line, column, what) =
        verdict(&refused(&format!("{BASE}vllm:prompt_tokens_total{{engine=\"0\"}} NaN\n")));
    assert_eq!((line, column), (2, 38));
    assert_eq!(
        what,
        "vllm:prompt_tokens_total: a cumulative value cannot be NaN; it must be finite and at least 0"
    );
}

#[test]
fn a_histogram_whose_sum_means_nothing_is_absent() {
    let read = rank(
        "vllm:num_requests_running 3\nvllm:inter_token_latency_seconds_sum NaN\n\
         vllm:inter_token_latency_seconds_count 4\n",
    );
    assert_eq!(read.itl, None);
    assert_eq!(read.running, requests(3.0));
}

#[test]
fn the_newer_name_wins_in_either_order_and_is_not_added() {
    let new = "vllm:kv_cache_usage_perc 0.5\nvllm:prefix_cache_hits_total 10\n\
               vllm:inter_token_latency_seconds_sum 1\nvllm:inter_token_latency_seconds_count 2\n";
    let old = "vllm:gpu_cache_usage_perc 0.4\nvllm:gpu_prefix_cache_hits_total 7\n\
               vllm:time_per_output_token_seconds_sum 3\nvllm:time_per_output_token_seconds_count 4\n";
    for page in [format!("{new}{old}"), format!("{old}{new}")] {
        let read = rank(&page);
        assert_eq!(read.kv_usage, Fraction::new(0.5));
        assert_eq!(read.prefix_hits, Tokens::new(10.0));
        assert_eq!(read.itl, Some(Histogram { sum: 1.0, count: 2.0, buckets: vec![] }));
    }
    let read = rank(old);
    assert_eq!(read.kv_usage, Fraction::new(0.4));
    assert_eq!(read.prefix_hits, Tokens::new(7.0));
    assert_eq!(read.itl, Some(Histogram { sum: 3.0, count: 4.0, buckets: vec![] }));
}

#[test]
fn the_cache_has_the_size_that_the_engine_says_or_blocks_by_block_size() {
    for (labels, expected) in [
        ("block_size=\"16\",num_gpu_blocks=\"100\",kv_cache_size_tokens=\"1500\"", Some(1500.0)),
        ("block_size=\"16\",num_gpu_blocks=\"100\",kv_cache_size_tokens=\"None\"", Some(1600.0)),
        ("block_size=\"16\",num_gpu_blocks=\"100\",kv_cache_size_tokens=\"0\"", Some(1600.0)),
        ("block_size=\"16\",num_gpu_blocks=\"100\"", Some(1600.0)),
        ("block_size=\"16\",num_gpu_blocks=\"None\"", None),
        ("block_size=\"None\",num_gpu_blocks=\"100\"", None),
        ("block_size=\"16\",num_gpu_blocks=\"0\"", None),
        ("block_size=\"16\",num_gpu_blocks=\"-3\"", None),
        ("block_size=\"16\",num_gpu_blocks=\"many\"", None),
        ("block_size=\"16\",mamba_page_size_padded=\"None\",num_gpu_blocks=\"100\"", Some(1600.0)),
        ("block_size=\"16\",mamba_page_size_padded=\"65536\",num_gpu_blocks=\"100\"", None),
        ("cache_dtype=\"auto\"", None),
    ] {
        let read = rank(&format!("vllm:cache_config_info{{{labels}}} 1\n"));
        assert_eq!(read.kv_capacity, expected.and_then(Tokens::new), "{labels}");
    }
    let two = sound(
        "vllm:cache_config_info{engine=\"0\",block_size=\"16\",num_gpu_blocks=\"100\"} 1\n\
         vllm:cache_config_info{engine=\"1\",block_size=\"16\",num_gpu_blocks=\"100\"} 1\n",
    );
    assert!(two.ranks.iter().all(|rank| rank.kv_capacity == Tokens::new(800.0)));
}

#[test]
fn a_sleeping_engine_is_not_an_idle_one() {
    let state = |awake: u8, offloaded: u8, discarded: u8| {
        rank(&format!(
            "vllm:engine_sleep_state{{sleep_state=\"awake\"}} {awake}\n\
             vllm:engine_sleep_state{{sleep_state=\"weights_offloaded\"}} {offloaded}\n\
             vllm:engine_sleep_state{{sleep_state=\"discard_all\"}} {discarded}\n"
        ))
        .asleep
    };
    assert_eq!(state(1, 0, 0), Some(false));
    assert_eq!(state(0, 1, 0), Some(true));
    assert_eq!(state(0, 0, 1), Some(true));
    assert_eq!(state(0, 0, 0), None);
    assert_eq!(rank(BASE).asleep, None);
}

#[test]
fn answers_and_rejections_are_summed_over_their_labels() {
    let reading = sound(&format!(
        "{BASE}\
         http_requests_total{{handler=\"/a\",method=\"POST\",status=\"2xx\"}} 5\n\
         http_requests_total{{handler=\"/b\",method=\"POST\",status=\"2xx\"}} 2\n\
         http_requests_total{{handler=\"/b\",method=\"POST\",status=\"200\"}} 1\n\
         http_requests_total{{handler=\"/v1/models\",method=\"GET\",status=\"2xx\"}} 99\n\
         http_requests_total{{handler=\"/a\",method=\"POST\",status=\"4xx\"}} 3\n\
         http_requests_total{{handler=\"/a\",method=\"POST\",status=\"5xx\"}} 4\n\
         http_requests_total{{handler=\"/a\",method=\"POST\",status=\"3xx\"}} 9\n\
         vllm:admission_rejections_total{{model_name=\"m\",reason=\"max_num_queued_reqs\"}} 6\n\
         vllm:admission_rejections_total{{model_name=\"m\",reason=\"max_num_queued_tokens\"}} 7\n\
         vllm:request_success_total{{finished_reason=\"repetition\"}} 1\n\
         vllm:request_success_total{{finished_reason=\"new\"}} 2\n"
    ));
    assert_eq!(reading.http.success, requests(8.0));
    assert_eq!(reading.http.client_error, requests(3.0));
    assert_eq!(reading.http.server_error, requests(4.0));
    assert_eq!(reading.rejected, requests(13.0));
    assert_eq!(reading.ranks[0].finished.other, requests(3.0));
    assert_eq!(sound(BASE).rejected, None, "no such metric is not zero rejections");
}

#[test]
fn sglang_totals_are_not_mixed_with_their_parts() {
    let read = rank(
        "sglang:num_running_reqs{priority=\"1\",tp_rank=\"0\"} 2\n\
         sglang:num_running_reqs{priority=\"\",tp_rank=\"0\"} 5\n\
         sglang:num_running_reqs{priority=\"2\",tp_rank=\"0\"} 3\n\
         sglang:num_queue_reqs{tp_rank=\"1\"} 4\nsglang:num_queue_reqs{tp_rank=\"0\"} 4\n\
         sglang:num_decode_prealloc_queue_reqs 6\nsglang:num_decode_transfer_queue_reqs 1\n",
    );
    assert_eq!(read.running, requests(5.0));
    assert_eq!(read.waiting, requests(11.0));
    assert_eq!(read.waiting_deferred, requests(7.0));
    let unsure = rank("sglang:num_queue_reqs 4\nsglang:num_grammar_queue_reqs NaN\n");
    assert_eq!(unsure.waiting, None, "an unknown queue is not an empty one");
    assert_eq!(unsure.waiting_capacity, requests(4.0));
}

#[test]
fn a_page_of_another_engine_is_not_an_idle_engine() {
    for (page, expected) in [
        ("unknown_queue_size 0\nunknown_batch_current_size 0\n", &["unknown_"][..]),
        ("# TYPE unknown_num_requests_running gauge\n", &["unknown_"]),
        ("python_info{version=\"3\"} 1\nunknown:num_requests_running 0\n", &["unknown:"]),
        ("process_cpu_seconds_total 1\npython_info 1\n", &["process_", "python_"]),
        ("vllm:router_queue 0\nup 1\n", &["vllm:", "up"]),
        ("process_start_time_seconds 1\n", &[]),
        ("# just a comment\n", &[]),
    ] {
        match refused(page) {
            error @ PageError::UnknownEngine { .. } => {
                assert_eq!(error.failure(), ScrapeFailure::UnknownEngine);
                let PageError::UnknownEngine { prefixes } = error else { unreachable!() };
                assert_eq!(prefixes, expected, "{page}");
            }
            other => panic!("{page}{other}"),
        }
    }
    let error = refused("unknown_queue_size 0\nnv_inference_count 1\n").to_string();
    let (found, expected) = error.split_once("; ").unwrap();
    assert_eq!(found, "no metrics of a known engine, but metrics that start with unknown_, nv_");
    assert!(expected.starts_with("expected vllm: or sglang:"), "{error}");
}

// What is refused.

#[test]
fn what_is_no_page_is_refused_with_the_place_and_the_reason() {
    for (page, line, column, what) in [
        ("<!DOCTYPE html>\n", 1, 1, "found `<`, expected `#`, `{` or a metric name"),
        ("<html></html>", 1, 1, "found `<`, expected `#`, `{` or a metric name"),
        ("[1]\n", 1, 1, "found `[`, expected `#`, `{` or a metric name"),
        ("{\"a\": 1}\n", 1, 5, "found `:`, expected `,` or `}` after the metric name"),
        ("{\"a\":1}", 1, 5, "found `:1`, expected `,` or `}` after the metric name"),
        ("{\n  \"a\": 1\n}\n", 1, 2, "found the end of the line, expected a metric name in quotes"),
        ("{\"\"} 1\n", 1, 2, "found `\\\"`, expected a metric name that is not empty"),
        ("Not found\n", 1, 5, "found `found`, expected a number"),
        ("1 2\n", 1, 1, "found `1`, expected `#`, `{` or a metric name"),
        ("up\n", 1, 3, "found the end of the line, expected `{` or a blank after the metric name"),
        ("up-1 2\n", 1, 3, "found `-1`, expected `{` or a blank after the metric name"),
        ("up \n", 1, 4, "found the end of the line, expected a number"),
        ("up{a=\"b\"}1e\n", 1, 10, "found `1e`, expected a number"),
        ("up{a=\"b\" 1\n", 1, 10, "found `1`, expected `,` or `}` after the label value"),
        ("up{a=\"b} x\n", 1, 11, "found the end of the line, expected a closing `\"`"),
        ("up{a=\"\\t\"} x\n", 1, 8, "found `t`, expected `\\`, `\"` or `n` after a backslash"),
        ("up{a=b} x\n", 1, 6, "found `b`, expected a label value in quotes"),
        ("up{a} x\n", 1, 5, "found `}`, expected `=` after the label name"),
        ("up{a:b=\"c\"} x\n", 1, 5, "found `:b`, expected `=` after the label name"),
        ("up{,} x\n", 1, 4, "found `,`, expected a label name or `}`"),
        ("up 1 x\n", 1, 6, "found `x`, expected a time in milliseconds, or the end of the line"),
        (
            "up 1 1.5\n",
            1,
            6,
            "found `1.5`, expected a time in milliseconds, or the end of the line",
        ),
        ("up 1 2 3\n", 1, 8, "found `3`, expected the end of the line"),
        ("up 1 # x\n", 1, 8, "found `x`, expected `{` of an exemplar"),
        ("up 1 # {} x\n", 1, 11, "found `x`, expected an exemplar's value"),
        ("up 1\nüp 1\n", 2, 1, "found `üp`, expected `#`, `{` or a metric name"),
        ("up{a=\"ü\",b} x\n", 1, 11, "found `}`, expected `=` after the label name"),
        (
            "vllm:num_requests_running{engine=\"0\",engine=\"1\"} 1\n",
            1,
            38,
            "found `engine`, expected a label name that is not repeated",
        ),
        ("vllm:num_requests_running 0x1\n", 1, 27, "found `0x1`, expected a number"),
        ("vllm:num_requests_running 1_0\n", 1, 27, "found `1_0`, expected a number"),
    ] {
        let error = refused(page);
        assert_eq!(verdict(&error), (line, column, what.to_owned()), "{page}");
        assert_eq!(error.failure(), ScrapeFailure::Malformed, "{page}");
    }
    for empty in ["", "\n", " \r\n\n"] {
        assert!(matches!(refused(empty), PageError::Empty), "{empty:?}");
        assert_eq!(refused(empty).failure(), ScrapeFailure::Malformed);
    }
    let error = read(b"up 1\nup{a=\"\xff\"} 1\n", TEXT).unwrap_err();
    assert_eq!(verdict(&error), (2, 7, "found the byte 0xff, expected UTF-8".to_owned()));
}

#[test]
fn a_page_that_is_half_something_else_is_refused() {
    let whole = String::from_utf8(page("vllm-v0.txt")).unwrap();
    for garbage in [
        "502 Bad Gateway\n",
        "Traceback (most recent call last):\n",
        "upstream connect error\n",
        "</body>\n",
        "{\"detail\":\"Not Found\"}\n",
        "foo bar 3\n",
        "vllm:something{a=\"b\"}\n",
        "vllm:something{a=\"b\"} \n",
        "vllm:something{a=\"b\" 3\n",
        "vllm:something 1 2 3\n",
    ] {
        let page = format!("{whole}{garbage}{BASE}");
        let error = refused(&page);
        assert_eq!(error.failure(), ScrapeFailure::Malformed, "{garbage}");
        assert_eq!(verdict(&error).0, whole.lines().count() + 1, "{garbage}");
    }
}

#[test]
fn a_truncated_page_is_refused() {
    for (page, content_type, line, column, expected) in [
        ("vllm:num_requests_running 1", TEXT, 1, 28, "expected the end of the line"),
        ("up 1\nvllm:num_requests_running 1", TEXT, 2, 28, "expected the end of the line"),
        ("up 1\n# HEL", TEXT, 2, 6, "expected the end of the line"),
        ("up 1\nvllm:num_requests_running{eng", TEXT, 2, 30, "expected the end of the line"),
        ("up 1\n", OPEN, 2, 1, "expected `# EOF`"),
        ("up 1\n# EO", OPEN, 2, 5, "expected the end of the line"),
    ] {
        let error = read(page.as_bytes(), content_type).unwrap_err();
        assert_eq!(verdict(&error), (line, column, expected.to_owned()), "{page}");
        assert_eq!(error.failure(), ScrapeFailure::Truncated, "{page}");
    }
}

#[test]
fn nothing_may_follow_the_end_mark() {
    for (after, line, found) in [
        ("\nup 1\n", 4, "`up`"),
        ("vllm:num_requests_running{engine=\"1\"} 3\n", 3, "`vllm:num_requests_running`"),
        ("# EOF\n", 3, "`#`"),
        ("x", 3, "`x`"),
    ] {
        let page = format!("{BASE}# EOF\n{after}");
        let error = read(page.as_bytes(), OPEN).unwrap_err();
        let what = format!("found {found}, expected nothing after `# EOF`");
        assert_eq!(verdict(&error), (line, 1, what));
    }
    assert!(text(&format!("{BASE}# EOF\nup 1\n")).is_ok(), "in text it is a comment");
}

#[test]
fn a_histogram_that_lacks_a_part_is_a_cut_page() {
    let bucket = "vllm:time_to_first_token_seconds_bucket{le=\"1\"} 1\n";
    let sum = "vllm:time_to_first_token_seconds_sum 1\n";
    let count = "vllm:time_to_first_token_seconds_count 1\n";
    for (lines, lacks) in [
        (format!("{bucket}{sum}"), "_count"),
        (format!("{bucket}{count}"), "_sum"),
        (format!("{bucket}{sum}{count}"), "bucket le=\"+Inf\""),
        (sum.to_owned(), "_count"),
    ] {
        let error = refused(&lines);
        assert!(
            matches!(error, PageError::CutHistogram { missing, .. } if missing == lacks),
            "{lines}{error}"
        );
        assert_eq!(error.failure(), ScrapeFailure::Truncated);
    }
    assert!(rank(&format!("{sum}{count}")).ttft.is_some(), "dropped buckets are no cut");
}

#[test]
fn two_series_for_one_number_are_refused() {
    for (first, second) in [
        ("vllm:num_requests_running{engine=\"0\"} 1", "vllm:num_requests_running{engine=\"0\"} 1"),
        ("vllm:num_requests_running{engine=\"0\"} 1", "vllm_num_requests_running{engine=\"0\"} 1"),
        (
            "vllm:num_requests_running{engine=\"0\",model_name=\"a\"} 1",
            "vllm:num_requests_running{engine=\"0\",model_name=\"b\"} 1",
        ),
        ("vllm:prompt_tokens_total 1", "vllm:prompt_tokens_total 2"),
        (
            "vllm:time_to_first_token_seconds_bucket{le=\"1\"} 1",
            "vllm:time_to_first_token_seconds_bucket{le=\"1.0\"} 1",
        ),
        ("vllm:time_to_first_token_seconds_sum 1", "vllm:time_to_first_token_seconds_sum NaN"),
        ("vllm:time_to_first_token_seconds_count 1", "vllm:time_to_first_token_seconds_count 1"),
        (
            "http_requests_total{handler=\"/\",status=\"2xx\"} 1",
            "http_requests_total{status=\"2xx\",handler=\"/\"} 1",
        ),
        (
            "vllm:admission_rejections_total{reason=\"a\"} 1",
            "vllm:admission_rejections_total{reason=\"a\"} 1",
        ),
        (
            "vllm:request_success_total{finished_reason=\"x\"} 1",
            "vllm:request_success_total{finished_reason=\"x\"} 1",
        ),
        (
            "vllm:cache_config_info{block_size=\"16\"} 1",
            "vllm:cache_config_info{block_size=\"32\"} 1",
        ),
        ("process_start_time_seconds 5", "process_start_time_seconds 5"),
    ] {
        let error = refused(&format!("{first}\nup 1\n{second}\n"));
        assert!(
            matches!(&error, PageError::Sample { line: 3, source: SampleError::Duplicate, .. }),
            "{second}: {error}"
        );
    }
}

#[test]
fn labels_that_mean_nothing_are_refused() {
    for (page, column, what) in [
        (
            "vllm:num_requests_running{engine=\"one\"} 1\n",
            27,
            "vllm:num_requests_running: the label engine is \"one\", expected a rank such as \"0\"",
        ),
        (
            "vllm:time_to_first_token_seconds_bucket{le=\"x\"} 1\n",
            41,
            "vllm:time_to_first_token_seconds_bucket: the label le is \"x\", expected a number or \
             \"+Inf\"",
        ),
        (
            "vllm:time_to_first_token_seconds_bucket 1\n",
            1,
            "vllm:time_to_first_token_seconds_bucket: the label le is missing",
        ),
        (
            "vllm:request_success_total 1\n",
            1,
            "vllm:request_success_total: the label finished_reason is missing",
        ),
        ("http_requests_total 1\n", 1, "http_requests_total: the label status is missing"),
    ] {
        assert_eq!(verdict(&refused(page)), (1, column, what.to_owned()));
    }
}

// Bounds.

#[test]
fn a_line_has_a_bound() {
    let longest = format!("other{{a=\"{}\"}} 1", "x".repeat(LINE_MAX - 13));
    assert_eq!(longest.len(), LINE_MAX);
    assert!(text(&format!("{BASE}{longest}\n")).is_ok());
    for long in [format!("{longest} \n"), format!("# {longest}\n"), "x".repeat(8 * LINE_MAX)] {
        let error = refused(&format!("{BASE}{long}"));
        assert!(
            matches!(error, PageError::LineTooLong { line: 2, limit: LINE_MAX, .. }),
            "{error}"
        );
        assert_eq!(error.failure(), ScrapeFailure::TooLarge);
    }
}

#[test]
fn a_wanted_family_with_too_many_label_values_is_an_error_and_not_memory() {
    const VALUES: usize = 100_000;
    let lines = |name: &str, label: &str| {
        let mut page = String::new();
        for value in 0..VALUES {
            writeln!(page, "{name}{{{label}=\"{value}\"}} 1").unwrap();
        }
        page
    };
    const { assert!(VALUES > SAMPLES_MAX) };
    for (name, label) in [
        ("http_requests_total", "status"),
        ("vllm:admission_rejections_total", "reason"),
        ("vllm:num_requests_waiting_by_reason", "reason"),
    ] {
        let error = refused(&lines(name, label));
        assert!(
            matches!(error, PageError::TooManySamples { limit: SAMPLES_MAX, .. }),
            "{name}: {error}"
        );
        assert_eq!(error.failure(), ScrapeFailure::TooLarge);
    }
    let error = refused(&lines("vllm:num_requests_running", "engine"));
    assert_eq!(verdict(&error).0, RANKS_MAX + 1, "{error}");
    let error = refused(&lines("vllm:time_to_first_token_seconds_bucket", "le"));
    assert_eq!(verdict(&error).0, BUCKETS_MAX + 1, "{error}");
}

#[test]
fn a_hundred_megabytes_of_unwanted_lines_are_read_past() {
    let adapters = "adapter-of-a-customer,".repeat(50);
    let line = format!("vllm:request_prompt_tokens_info{{text=\"{adapters}\"}} 1.795e+09\n");
    let other = "some_other_family_total{a=\"b\"} 1\n";
    let mut page = String::with_capacity(100_000_000 + BASE.len());
    while page.len() < 100_000_000 {
        page.push_str(&line);
        page.push_str(other);
    }
    page.push_str(BASE);
    assert_eq!(rank(&page).running, requests(3.0));
}

// Properties.

/// Whether everything that `part` says is said by `whole`: absent, or the same.
fn is_part_of(part: &RankReading, whole: &RankReading) -> bool {
    macro_rules! same {
        ($part:expr, $whole:expr; $($field:ident)*) => {
            true $(&& ($part.$field.is_none() || $part.$field == $whole.$field))*
        };
    }
    same!(part, whole;
        running waiting waiting_capacity waiting_deferred kv_usage kv_capacity asleep prompt_tokens
        generation_tokens prefix_queries prefix_hits preemptions
    ) && same!(part.finished, whole.finished; stop length abort error other)
        && [
            (&part.ttft, &whole.ttft),
            (&part.itl, &whole.itl),
            (&part.e2e, &whole.e2e),
            (&part.queue_time, &whole.queue_time),
            (&part.inference_time, &whole.inference_time),
            (&part.prefill_time, &whole.prefill_time),
            (&part.prompt_length, &whole.prompt_length),
            (&part.generation_length, &whole.generation_length),
            (&part.step_tokens, &whole.step_tokens),
        ]
        .into_iter()
        .all(|(part, whole)| match (part, whole) {
            (None, _) => true,
            (Some(_), None) => false,
            // A page that lists edges from the top can lose the lower ones.
            (Some(part), Some(whole)) => {
                (part.sum, part.count) == (whole.sum, whole.count)
                    && part.buckets.iter().all(|bucket| whole.buckets.contains(bucket))
            }
        })
}

#[test]
fn a_page_cut_inside_a_line_is_refused_wherever_it_is_cut() {
    let whole = page("vllm-0.33.0-dp1-single.txt.gz");
    for end in (1..whole.len()).filter(|&end| whole[end - 1] != b'\n').step_by(97) {
        let error = read(&whole[..end], TEXT).unwrap_err();
        assert_eq!(error.failure(), ScrapeFailure::Truncated, "cut after {end} bytes: {error}");
    }
    let whole = page("vllm-0.33.0-openmetrics.txt.gz");
    let last = whole.len() - "\n".len();
    for end in (1..last).step_by(97).chain(last - 30..last) {
        let error = read(&whole[..end], Some(content_type(&whole))).unwrap_err();
        assert_eq!(error.failure(), ScrapeFailure::Truncated, "cut after {end} bytes: {error}");
    }
}

/// Text has no end mark: a page that ends between two families looks complete. What it then says
/// of a rank is still true, and the rest is absent; only sums over labels can be too small.
#[test]
fn a_text_page_cut_between_lines_says_nothing_that_is_not_so() {
    for name in ["vllm-0.33.0-dp1-single.txt.gz", "vllm-0.33.0-dp2-multi.txt.gz"] {
        let (body, whole) = (page(name), reading(name));
        for end in (1..body.len()).filter(|&end| body[end - 1] == b'\n') {
            let Ok(part) = read(&body[..end], TEXT) else { continue };
            for rank in &part.ranks {
                let whole = &whole.ranks[rank.rank as usize];
                assert!(is_part_of(rank, whole), "{name} after {end} bytes: {rank:?}");
            }
            assert!(part.started.is_none() || part.started == whole.started);
            assert!(part.rejected <= whole.rejected);
            assert!(part.http.success <= whole.http.success);
        }
    }
}

/// A page that is about to be written, and what it says.
#[derive(Clone, Debug)]
struct Drawn {
    model: String,
    ranks: Vec<(u32, u32, f64, Vec<u32>)>,
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// How a page is laid out; none of it may matter.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a choice of its own")]
struct Layout {
    reversed: bool,
    rank_first: bool,
    comments: bool,
    crlf: bool,
    exponents: bool,
    quoted: bool,
}

impl Drawn {
    fn page(&self, layout: Layout) -> String {
        let model = escaped(&self.model);
        let mut lines = Vec::new();
        let mut sample = |name: &str, rank: u32, extra: &str, value: f64| {
            let value = if layout.exponents { format!("{value:e}") } else { value.to_string() };
            let labels = if layout.rank_first {
                format!("engine=\"{rank}\",{extra}model_name=\"{model}\"")
            } else {
                format!("model_name=\"{model}\",{extra}engine=\"{rank}\"")
            };
            lines.push(if layout.quoted {
                format!("{{\"{name}\",{labels}}} {value}")
            } else {
                format!("{name}{{{labels}}} {value}")
            });
        };
        for (rank, running, usage, buckets) in &self.ranks {
            sample("vllm:num_requests_running", *rank, "", f64::from(*running));
            sample("vllm:unwanted_total", *rank, "a=\"}\",", f64::from(*running));
            sample("vllm:kv_cache_usage_perc", *rank, "", *usage);
            let mut total = 0.0;
            for (edge, count) in buckets.iter().enumerate() {
                total += f64::from(*count);
                let le = format!("le=\"{edge}\",");
                sample("vllm:e2e_request_latency_seconds_bucket", *rank, &le, total);
            }
            sample("vllm:e2e_request_latency_seconds_bucket", *rank, "le=\"+Inf\",", total);
            sample("vllm:e2e_request_latency_seconds_sum", *rank, "", total * usage);
            sample("vllm:e2e_request_latency_seconds_count", *rank, "", total);
        }
        if layout.reversed {
            lines.reverse();
        }
        if layout.comments {
            lines = lines.into_iter().flat_map(|l| ["# HELP x y".to_owned(), l]).collect();
        }
        let end = if layout.crlf { "\r\n" } else { "\n" };
        lines.iter().flat_map(|line| [line.as_str(), end]).collect()
    }
}

prop_compose! {
    fn layouts()(
        reversed: bool, rank_first: bool, comments: bool, crlf: bool, exponents: bool, quoted: bool,
    ) -> Layout {
        Layout { reversed, rank_first, comments, crlf, exponents, quoted }
    }
}

prop_compose! {
    fn drawn()(
        model in "[ -~üß\n]{1,20}",
        ranks in prop::collection::btree_map(
            0_u32..100,
            (0_u32..1000, 0.0..=1.0_f64, prop::collection::vec(0_u32..1000, 0..6)),
            1..4,
        ),
    ) -> Drawn {
        let ranks = ranks.into_iter().map(|(rank, (running, usage, buckets))| {
            (rank, running, usage, buckets)
        });
        Drawn { model, ranks: ranks.collect() }
    }
}

proptest! {
    #[test]
    fn a_page_that_is_written_is_read_back(drawn in drawn(), layout in layouts()) {
        let page = drawn.page(layout);
        let reading = text(&page).map_err(|e| TestCaseError::fail(format!("{page}\n{e}")))?;
        prop_assert_eq!(reading.models.len(), 1);
        prop_assert_eq!(reading.models[0].as_str(), drawn.model);
        prop_assert_eq!(reading.ranks.len(), drawn.ranks.len());
        for (read, (rank, running, usage, buckets)) in reading.ranks.iter().zip(&drawn.ranks) {
            let total: f64 = buckets.iter().map(|&count| f64::from(count)).sum();
            prop_assert_eq!(read.rank, *rank);
            prop_assert_eq!(read.running, Requests::new(f64::from(*running)));
            prop_assert_eq!(read.kv_usage, Fraction::new(*usage));
            let e2e = read.e2e.as_ref().expect("the histogram is on the page");
            prop_assert_eq!((e2e.sum, e2e.count), (total * usage, total));
            prop_assert_eq!(e2e.buckets.len(), buckets.len() + 1);
            prop_assert_eq!(e2e.buckets.last(), Some(&(f64::INFINITY, total)));
        }
    }

    #[test]
    fn a_cut_page_never_says_something_else(
        drawn in drawn(), layout in layouts(), at in any::<prop::sample::Index>(),
    ) {
        let page = drawn.page(layout).into_bytes();
        let end = at.index(page.len());
        if let Ok(part) = read(&page[..end], TEXT) {
            prop_assert_eq!(page[end - 1], b'\n', "only a cut between lines can look complete");
            let whole = read(&page, TEXT).expect("the whole page is sound");
            for rank in &part.ranks {
                let whole = whole.ranks.iter().find(|whole| whole.rank == rank.rank);
                prop_assert!(whole.is_some_and(|whole| is_part_of(rank, whole)));
            }
        }
        let mut open = page.clone();
        open.extend_from_slice(b"# EOF\n");
        prop_assert!(read(&open, OPEN).is_ok());
        prop_assert!(read(&open[..at.index(open.len() - 1)], OPEN).is_err());
    }

    #[test]
    fn bytes_of_any_kind_never_panic(body in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = read(&body, TEXT);
        let _ = read(&body, OPEN);
    }

    #[test]
    fn text_that_is_nearly_a_page_never_panics(
        lines in prop::collection::vec(
            "(vllm:num_requests_running|\\{\"up\"|up|# TYPE|)[{} ,=\"\\\\#\tna0-9.+-]{0,24}",
            0..6,
        ),
    ) {
        for format in [TEXT, OPEN] {
            if let Err(error) = read((lines.join("\n") + "\n").as_bytes(), format) {
                prop_assert!(!error.to_string().is_empty());
            }
        }
    }
}
