//! The table of `plimsoll top`, drawn to a buffer.

use std::ops::ControlFlow;
use std::time::Duration;

use plimsoll::cli::args::TopSort;
use plimsoll::cli::top::table::{Key, TopTable, lines_of};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier};
use serde_json::{Value, json};

const WIDTH: u16 = 132;

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn drawn(table: &TopTable, now: Duration) -> Buffer {
    let area = Rect::new(0, 0, WIDTH, 8);
    let mut buffer = Buffer::empty(area);
    table.draw(now, area, &mut buffer);
    buffer
}

fn shown(table: &TopTable, now: Duration) -> String {
    lines_of(&drawn(table, now)).join("\n")
}

/// Names of the variants from the top.
fn names(table: &TopTable) -> Vec<String> {
    let lines = lines_of(&drawn(table, at(1)));
    let rows = lines[3..7].iter().filter(|line| !line.is_empty());
    rows.map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

fn new() -> TopTable {
    TopTable::new("http://127.0.0.1:8080".to_owned(), TopSort::Name, String::new())
}

fn press(table: &mut TopTable, keys: &str) {
    for key in keys.chars() {
        assert_eq!(table.press(Key::Letter(key)), ControlFlow::Continue(()), "{key}");
    }
}

fn document() -> Value {
    json!({"decided_by": "plimsoll-0", "variants": [
        {"namespace": "shop", "variant": "llama", "model": "meta/llama", "desired": 3, "current": 2,
         "ready": 2, "min": 1, "max": 8, "arrivals_per_second": 38.14, "kv_cache_usage": 0.754,
         "waiting": 2.0, "cost_per_hour": 5.2, "age_seconds": 0.4, "basis": "fresh",
         "override": null, "headline": "Scale up 2 -> 3: demand exceeds capacity"},
        {"namespace": "shop", "variant": "qwen", "model": "qwen", "desired": 6, "current": 6,
         "ready": 6, "min": 1, "max": null, "arrivals_per_second": 4.0, "kv_cache_usage": 0.1,
         "waiting": 0.0, "cost_per_hour": 12.0, "age_seconds": 0.6, "basis": "fresh",
         "override": {"kind": "pin"}, "headline": "Scale up 2 -> 6: pinned to 6 replicas"},
        {"namespace": "lab", "variant": "new", "model": "m", "desired": null, "current": null,
         "ready": null, "min": 0, "max": 4, "arrivals_per_second": null, "kv_cache_usage": null,
         "waiting": null, "cost_per_hour": null, "age_seconds": null, "basis": "none",
         "override": null, "headline": null, "because": "no replica has fresh data"},
    ]})
}

#[test]
fn variants_are_drawn_with_what_is_known_and_a_dash_for_the_rest() {
    let mut table = new();
    table.show(at(10), Ok(document()));
    insta::assert_snapshot!(shown(&table, at(11)));
}

#[test]
fn rows_are_sorted_by_each_key_reversed_and_filtered_and_unknown_values_come_last() {
    let mut table = new();
    table.show(at(1), Ok(document()));
    assert_eq!(names(&table), ["lab/new", "shop/llama", "shop/qwen"]);
    for (key, first) in
        [("d", "shop/qwen"), ("l", "shop/llama"), ("k", "shop/llama"), ("c", "shop/qwen")]
    {
        press(&mut table, key);
        assert_eq!((names(&table)[0].as_str(), names(&table)[2].as_str()), (first, "lab/new"));
    }
    press(&mut table, "r");
    assert_eq!(names(&table)[0], "lab/new");

    press(&mut table, "rn/SHOP pin");
    assert_eq!(names(&table), ["shop/qwen"], "words in any order and case, also of the state");
    assert_eq!(table.press(Key::Enter), ControlFlow::Continue(()));
    assert_eq!(table.press(Key::Letter('q')), ControlFlow::Break(()));
    press(&mut table, "/");
    assert_eq!(table.press(Key::Backspace), ControlFlow::Continue(()));
    assert_eq!(table.press(Key::Escape), ControlFlow::Continue(()), "clears the filter");
    assert_eq!(names(&table).len(), 3);
    assert_eq!(table.press(Key::Escape), ControlFlow::Break(()));
    assert_eq!(table.press(Key::Interrupt), ControlFlow::Break(()));
}

#[test]
fn scrolling_ends_at_the_last_row() {
    let mut table = new();
    table.show(at(1), Ok(document()));
    for key in [Key::PageDown, Key::Down] {
        let _ = table.press(key);
    }
    assert_eq!(names(&table), ["shop/qwen"]);
    let _ = table.press(Key::PageUp);
    assert_eq!(names(&table).len(), 3);
}

#[test]
fn a_daemon_that_does_not_answer_leaves_the_rows_dimmed_with_their_age_and_the_reason() {
    let mut table = new();
    assert!(shown(&table, at(0)).contains("connecting"));
    table.show(at(1), Err("connection refused".to_owned()));
    assert!(shown(&table, at(2)).contains("not connected: connection refused; trying again"));

    table.show(at(10), Ok(document()));
    assert!(shown(&table, at(12)).contains("live, 2 s ago"));
    table.show(at(40), Err("timed out".to_owned()));
    table.show(at(43), Err("timed out".to_owned()));
    let buffer = drawn(&table, at(50));
    let lines = lines_of(&buffer);
    assert!(lines[0].contains("not connected, data of 40 s ago: timed out"), "{}", lines[0]);
    assert!(lines[4].starts_with("shop/llama"), "{lines:?}");
    assert!(buffer[(0, 4)].modifier.contains(Modifier::DIM), "old data is dimmed");
    assert_eq!(buffer[(0, 3)].fg, Color::Yellow, "a variant without a number is marked");
}
