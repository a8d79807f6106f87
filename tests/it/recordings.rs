//! Recordings of real engines, replayed through the whole of Plimsoll.
//!
//! `PLIMSOLL_RECORDINGS=DIR cargo test --test it recordings -- --nocapture` replays `DIR`, or each
//! of its sub-folders, if it holds `events.csv`, `pages*.txt.zst`, `series*.csv` and
//! `requests*.csv`; without the variable it replays the copies in tests/data/recordings. The pages
//! are what the servers said, the requests what their clients saw: two accounts of one thing, of
//! which only the first is ever known to Plimsoll. What each test holds the two to is written
//! beside it, and `docs/recordings.md` sums it up.

mod agreement;
mod capacity;
mod clients;
mod counts;
mod decisions;
mod engine;
mod recording;
mod replay;
mod serving;

use std::fmt::Write as _;
use std::io::{self, Write as _};

use plimsoll::observe::{RankReading, Reading};
use plimsoll::units::{Fraction, Requests, Tokens};

use crate::recordings::recording::{Row, is_foreign, recordings};

/// A column of the series, and the same number in a reading.
type Column = (&'static str, fn(&Reading, &RankReading) -> Option<f64>);

/// Every column that a page decides.
const COLUMNS: &[Column] = &[
    ("running", |_, rank| rank.running.map(Requests::requests)),
    ("waiting", |_, rank| rank.waiting.map(Requests::requests)),
    ("waiting_capacity", |_, rank| rank.waiting_capacity.map(Requests::requests)),
    ("waiting_deferred", |_, rank| rank.waiting_deferred.map(Requests::requests)),
    ("kv_usage", |_, rank| rank.kv_usage.map(Fraction::fraction)),
    ("preemptions", |_, rank| rank.preemptions.map(Requests::requests)),
    ("prompt_tokens", |_, rank| rank.prompt_tokens.map(Tokens::tokens)),
    ("generation_tokens", |_, rank| rank.generation_tokens.map(Tokens::tokens)),
    ("prefix_queries", |_, rank| rank.prefix_queries.map(Tokens::tokens)),
    ("prefix_hits", |_, rank| rank.prefix_hits.map(Tokens::tokens)),
    ("finished_stop", |_, rank| rank.finished.stop.map(Requests::requests)),
    ("finished_length", |_, rank| rank.finished.length.map(Requests::requests)),
    ("finished_abort", |_, rank| rank.finished.abort.map(Requests::requests)),
    ("finished_error", |_, rank| rank.finished.error.map(Requests::requests)),
    ("rejected", |page, _| page.rejected.map(Requests::requests)),
    ("ttft_count", |_, rank| rank.ttft.as_ref().map(|it| it.count)),
    ("ttft_sum", |_, rank| rank.ttft.as_ref().map(|it| it.sum)),
    ("itl_count", |_, rank| rank.itl.as_ref().map(|it| it.count)),
    ("itl_sum", |_, rank| rank.itl.as_ref().map(|it| it.sum)),
    ("e2e_count", |_, rank| rank.e2e.as_ref().map(|it| it.count)),
    ("e2e_sum", |_, rank| rank.e2e.as_ref().map(|it| it.sum)),
    ("queue_count", |_, rank| rank.queue_time.as_ref().map(|it| it.count)),
    ("inference_count", |_, rank| rank.inference_time.as_ref().map(|it| it.count)),
    ("inference_sum", |_, rank| rank.inference_time.as_ref().map(|it| it.sum)),
    ("prefill_count", |_, rank| rank.prefill_time.as_ref().map(|it| it.count)),
    ("prefill_sum", |_, rank| rank.prefill_time.as_ref().map(|it| it.sum)),
    ("queue_sum", |_, rank| rank.queue_time.as_ref().map(|it| it.sum)),
    ("iter_count", |_, rank| rank.step_tokens.as_ref().map(|it| it.count)),
    ("iter_sum", |_, rank| rank.step_tokens.as_ref().map(|it| it.sum)),
    ("req_prompt_count", |_, rank| rank.prompt_length.as_ref().map(|it| it.count)),
    ("req_prompt_sum", |_, rank| rank.prompt_length.as_ref().map(|it| it.sum)),
    ("req_gen_count", |_, rank| rank.generation_length.as_ref().map(|it| it.count)),
    ("req_gen_sum", |_, rank| rank.generation_length.as_ref().map(|it| it.sum)),
    ("http_2xx", |page, _| page.http.success.map(Requests::requests)),
    ("http_4xx", |page, _| page.http.client_error.map(Requests::requests)),
    ("http_5xx", |page, _| page.http.server_error.map(Requests::requests)),
];

/// Columns about the scrape and not about the page, and the one that is compared as an instant.
const OTHER_COLUMNS: &[&str] =
    &["t", "scrape_ms", "status", "health", "server_load", "engine", "process_start"];

/// How far a number may be off because some series are written with six decimals.
const ROUNDED: f64 = 1e-6;

/// Columns of which Plimsoll has no use.
const UNREAD_COLUMNS: &[&str] = &[
    "prompt_cached",
    "prompt_local_compute",
    "prompt_local_cache_hit",
    "prompt_external",
    "spec_drafts",
    "spec_draft_tokens",
    "spec_accepted",
    "prefill_count",
    "prefill_sum",
    "decode_count",
    "decode_sum",
    "req_computed_count",
    "req_computed_sum",
];

/// How far a start time may be off: a `f64` holds it to a quarter of a microsecond.
const INSTANT: f64 = 1e-6;

#[test]
fn every_recorded_number_is_read_exactly_and_what_is_not_on_a_page_is_absent() {
    let mut report = String::from("\nrun  server     pages  refused  numbers  absent\n");
    for recording in recordings() {
        for server in &recording.servers {
            let (mut numbers, mut absent, mut refused) = (0, 0, 0);
            let mut rows = server.rows.iter().peekable();
            for page in &server.pages {
                let Ok(reading) = &page.outcome else {
                    let row = rows.next().unwrap();
                    assert_eq!((row.text("t"), row.text("running")), (&*page.stamp, ""));
                    refused += 1;
                    continue;
                };
                for rank in &reading.ranks {
                    let row = rows.next().unwrap();
                    let place = format!("{} {} t={}", recording.name, server.name, page.stamp);
                    assert_eq!(row.text("t"), page.stamp, "{place}");
                    assert_eq!(row.text("engine"), rank.rank.to_string(), "{place}");
                    // What the page says of the server as a whole may have a row of its own.
                    let own = rows.next_if(|row| {
                        row.text("t") == page.stamp && row.text("engine").is_empty()
                    });
                    let (compared, missing) = compare(&place, row, own, reading, rank);
                    numbers += compared;
                    absent += missing;
                }
            }
            assert!(rows.next().is_none(), "{}: a row has no page", recording.name);
            writeln!(
                report,
                "{:4} {:10} {:5} {refused:8} {numbers:8} {absent:7}",
                recording.name,
                server.name,
                server.pages.len()
            )
            .unwrap();
        }
    }
    show(&report);
}

/// How many numbers of the row are on the page, and how many are on neither.
fn compare(
    place: &str,
    row: &Row,
    of_server: Option<&Row>,
    reading: &Reading,
    rank: &RankReading,
) -> (usize, usize) {
    let known = |name: &&str| {
        OTHER_COLUMNS.contains(name)
            || UNREAD_COLUMNS.contains(name)
            || COLUMNS.iter().any(|(column, _)| column == name)
    };
    let unknown: Vec<_> = row.names().filter(|name| !known(name)).collect();
    assert!(unknown.is_empty() || is_foreign(), "{place}: nobody compares {unknown:?}");
    let (mut compared, mut absent) = (0, 0);
    for (column, value) in COLUMNS.iter().filter(|(column, _)| row.names().any(|it| it == *column))
    {
        let expected = row.number(column).or_else(|| of_server?.number(column));
        let read = value(reading, rank);
        let same = match (read, expected) {
            (Some(read), Some(expected)) => (read - expected).abs() < ROUNDED,
            (read, expected) => read == expected,
        };
        assert!(same, "{place}: {column}: {read:?} is not {expected:?}");
        *(if expected.is_some() { &mut compared } else { &mut absent }) += 1;
    }
    let started = reading.started.map(|it| it.as_duration().as_secs_f64());
    let process_start = row.number("process_start").or_else(|| of_server?.number("process_start"));
    match (started, process_start) {
        (Some(read), Some(expected)) => {
            assert!((read - expected).abs() < INSTANT, "{place}: {read} is not {expected}");
            compared += 1;
        }
        (None, None) => absent += 1,
        differ => panic!("{place}: process_start is {differ:?}"),
    }
    (compared, absent)
}

/// Writes where the test harness lets it through: a comparison that nobody sees is none.
fn show(report: &str) {
    io::stderr().write_all(report.as_bytes()).unwrap();
}
