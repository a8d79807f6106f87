//! The table of `plimsoll top`, drawn to a buffer.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::ops::ControlFlow;
use std::process::Command;
use std::time::Duration;

use plimsoll::cli::args::TopSort;
use plimsoll::cli::top::table::{Key, TopTable, lines_of};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier};
use rustix::pty::{self, OpenptFlags};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::{Value, json};

use crate::daemon::{Engine, Running, text};

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
fn text_has_a_line_for_each_of_many_variants() {
    let mut all = document();
    let rows = all["variants"].as_array_mut().unwrap();
    let first = rows[0].clone();
    rows.resize(3000, first);

    let mut table = new();
    table.show(at(1), Ok(all));
    assert_eq!(table.text(at(1)).lines().count(), 3001);
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

/// The lines of a table of this size.
fn sized(table: &TopTable, width: u16, height: u16) -> Vec<String> {
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    table.draw(at(1), area, &mut buffer);
    lines_of(&buffer)
}

#[test]
fn a_narrow_terminal_shows_fewer_columns_and_never_part_of_a_number() {
    let mut document = document();
    let large = &mut document["variants"][1];
    large["arrivals_per_second"] = json!(12_345.6);
    large["cost_per_hour"] = json!(1_234_567.8);
    large["waiting"] = json!(123_456.0);
    large["age_seconds"] = json!(86_400.0);
    large["max"] = json!(250_000);
    let mut table = new();
    table.show(at(1), Ok(document));

    let shown: Vec<String> =
        [132, 100, 80, 60, 40, 20, 5].map(|width| sized(&table, width, 7)[2..6].join("\n")).into();
    insta::assert_snapshot!(shown.join("\n\n"));
}

#[test]
fn long_names_keep_their_ends_and_many_rows_show_their_place() {
    let variants = (0..200).map(|it| {
        let name = format!("llama-3-1-70b-instruct-fp8-tensorrt-{it:03}");
        json!({"namespace": "a-namespace-of-a-whole-department", "variant": name, "basis": "fresh"})
    });
    let mut table = new();
    table.show(at(1), Ok(json!({"variants": variants.collect::<Vec<_>>()})));
    let lines = sized(&table, 80, 24);
    assert_eq!(lines[1], "200 of 200 variants, rows 1-20, by name");
    assert!(lines[3].starts_with("a-na") && lines[3].contains("…"), "{}", lines[3]);
    let place = |line: &str| line.split(' ').next().unwrap().ends_with("003");
    assert!(place(&lines[6]), "{}", lines[6]);

    let _ = table.press(Key::End);
    assert_eq!(sized(&table, 80, 24)[1], "200 of 200 variants, rows 200-200, by name");
    let _ = table.press(Key::Home);
    assert_eq!(sized(&table, 80, 24), lines);
}

/// A terminal of 80 columns with a running `top`.
#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_shows_the_table_without_colors_if_asked_and_is_restored_at_the_end() {
    let engine = Engine::start().await;
    let daemon = Running::start(&text(&[("llama", engine.address)], "")).await;
    daemon.until_desired("llama", Some(1.0)).await;
    let url = format!("http://{}", daemon.daemon.admin());

    let played = tokio::task::spawn_blocking(move || {
        let controller = pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        pty::grantpt(&controller).unwrap();
        pty::unlockpt(&controller).unwrap();
        let size = Winsize { ws_col: 80, ws_row: 24, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&controller, size).unwrap();
        let path = pty::ptsname(&controller, Vec::new()).unwrap();
        let path = path.to_str().unwrap().to_owned();
        let terminal = || OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
            .args(["top", "--url", &url])
            .env_clear()
            .envs([("TERM", "xterm-256color"), ("NO_COLOR", "1")])
            .stdin(terminal())
            .stdout(terminal())
            .stderr(terminal())
            .spawn()
            .unwrap();

        let mut controller = File::from(controller);
        let mut seen = Vec::new();
        let mut buffer = [0; 4096];
        let mut asked = false;
        // Reading fails once the last descriptor of the terminal is closed.
        while let Ok(length @ 1..) = controller.read(&mut buffer) {
            seen.extend_from_slice(&buffer[..length]);
            if !asked && String::from_utf8_lossy(&seen).contains("default/llama") {
                controller.write_all(b"q").unwrap();
                asked = true;
            }
        }
        (child.wait().unwrap(), String::from_utf8_lossy(&seen).into_owned())
    });
    let (status, seen) =
        tokio::time::timeout(Duration::from_mins(1), played).await.unwrap().unwrap();
    assert!(status.success(), "{status} {seen:?}");
    for words in ["VARIANT", "variants,", "default/llama", "fresh", "\x1b[?1049l", "\x1b[?25h"] {
        assert!(seen.contains(words), "{words:?} is not in {seen:?}");
    }
    assert!(!seen.contains("\x1b[38;"), "NO_COLOR is set: {seen:?}");
    drop(daemon.end().await);
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
