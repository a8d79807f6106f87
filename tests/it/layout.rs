//! A page that is laid out like the one before is read as if there had been none before.

use std::fmt::Write;
use std::sync::Arc;

use plimsoll::collect::exposition::{LayoutMemory, Layouts, read};
use plimsoll::observe::Reading;
use proptest::prelude::*;

use crate::pages::{content_type, page};

/// The reading of a page that comes after another, whose layout must have been learned.
fn after(first: &[u8], second: &[u8]) -> Option<Reading> {
    let mut memory = LayoutMemory::default();
    memory.read(first, None).expect("the first page is sound");
    assert!(memory.layout().is_some(), "the first page has a layout");
    memory.read(second, None).ok()
}

/// Whether the second page was read by the layout of the first, which then stays.
fn fits(first: &[u8], second: &[u8]) -> bool {
    let mut memory = LayoutMemory::default();
    memory.read(first, None).expect("the first page is sound");
    let before = memory.layout().cloned().expect("the first page has a layout");
    let reading = memory.read(second, None).expect("the second page is sound");
    assert_eq!(Some(&reading), read(second, None).ok().as_ref());
    memory.layout().is_some_and(|after| Arc::ptr_eq(&before, after))
}

const PAGES: [&str; 3] = [
    "vllm-0.33.0-dp1-single.txt.gz",
    "vllm-0.33.0-dp2-multi.txt.gz",
    "vllm-0.33.0-dp8-multi.txt.gz",
];

/// The page some time later: all values are others.
fn later(page: &[u8]) -> Vec<u8> {
    let page = std::str::from_utf8(page).expect("pages are text");
    let mut later = String::with_capacity(page.len());
    for (index, line) in (0_u32..).zip(page.lines()) {
        match line.rsplit_once(' ') {
            Some((head, value)) if !line.starts_with('#') => {
                let value: f64 = value.parse().expect("a value is a number");
                writeln!(later, "{head} {:?}", value * 1.5 + f64::from(index % 7)).unwrap();
            }
            Some(_) | None => writeln!(later, "{line}").unwrap(),
        }
    }
    later.into_bytes()
}

#[test]
fn other_values_fit_and_give_their_own_reading() {
    for name in PAGES {
        let page = page(name);
        let later = later(&page);
        assert!(fits(&page, &page), "{name} fits itself");
        assert!(fits(&page, &later), "{name} fits itself with other values");
        assert_ne!(read(&page, None).ok(), read(&later, None).ok(), "{name}");
    }
}

#[test]
fn comments_and_unread_series_may_differ() {
    let page = page(PAGES[0]);
    let text = std::str::from_utf8(&page).unwrap();
    let more = "vllm:num_preemptions_created{engine=\"0\",model_name=\"x\"} 1.5\n";
    let with = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        text.replace(from, to).into_bytes()
    };
    assert!(fits(&page, &with("# HELP vllm:num_requests_waiting ", "# HELP another ")));
    assert!(fits(&page, &with("# TYPE vllm:num_preemptions_created gauge\n", "")));
    let at = "# TYPE vllm:num_preemptions_created gauge\n";
    assert!(fits(&page, &with(at, &format!("{at}{more}{more}"))));
    assert!(fits(
        &page,
        &with("vllm:num_preemptions_created{", "vllm:num_preemptions_created{a=\"}\",")
    ));
    let broken = with("vllm:request_success_created{", "vllm:request_success_created ");
    assert_eq!(after(&page, &broken), None, "a line that nobody wants is still checked");
}

#[test]
fn whatever_line_is_missing_doubled_or_cut_the_answer_is_that_of_the_page_alone() {
    let page = page(PAGES[0]);
    let lines: Vec<&[u8]> = page.split_inclusive(|byte| *byte == b'\n').collect();
    for at in (0..lines.len()).step_by(7).chain(lines.len() - 3..lines.len()) {
        let without = [&lines[..at], &lines[at + 1..]].concat().concat();
        let doubled = [&lines[..=at], &lines[at..]].concat().concat();
        let half = &lines[at][..lines[at].len() / 2];
        let halved = [&lines[..at], &[half, b"\n"], &lines[at + 1..]].concat().concat();
        let cut = [&lines[..at], &[half]].concat().concat();
        let ended = lines[..=at].concat();
        for changed in [without, doubled, halved, cut, ended] {
            assert_eq!(after(&page, &changed), read(&changed, None).ok(), "line {}", at + 1);
        }
    }
}

#[test]
fn a_comment_that_names_another_engine_first_is_heard() {
    let sample = "vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 3\n";
    let page = format!("# HELP up x\nup 1\n{sample}");
    for changed in [
        format!("# HELP sglang:num_running_reqs x\nup 1\n{sample}"),
        format!("# HELP up x\n# HELP sglang:num_running_reqs x\nup 1\n{sample}"),
        format!("# HELP up x\nup 1\n# HELP sglang:num_running_reqs x\n{sample}"),
        format!("# HELP up x\nup 1\n{sample}# HELP sglang:num_running_reqs x\n"),
        format!("# HELP up x\nsglang:num_running_reqs 1\n{sample}"),
        format!("# HELP up x\n{sample}"),
        sample.to_owned(),
    ] {
        let (page, changed) = (page.as_bytes(), changed.as_bytes());
        assert_eq!(after(page, changed), read(changed, None).ok());
    }
}

#[test]
fn a_value_that_means_nothing_is_as_good_and_as_bad_as_on_a_first_page() {
    let page = page(PAGES[0]);
    let text = std::str::from_utf8(&page).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    for value in ["NaN", "-1", "+Inf", "x", "", "1e3", "3 1795224934000", "3 x", "3\r", "3 "] {
        for at in (0..lines.len()).filter(|at| !lines[*at].starts_with('#')).step_by(17) {
            let (head, _) = lines[at].rsplit_once(' ').unwrap();
            let line = format!("{head} {value}");
            let changed = [&lines[..at], &[&line], &lines[at + 1..], &[""]].concat().join("\n");
            let alone = read(changed.as_bytes(), None).ok();
            // What is read can be NaN nowhere, so equal readings are equal.
            assert_eq!(after(&page, changed.as_bytes()), alone, "line {}: {line}", at + 1);
        }
    }
}

#[test]
fn adapters_are_read_anew_from_each_page() {
    let name = "vllm-0.32.0-lora-deferred.txt.gz";
    let page = page(name);
    let text = std::str::from_utf8(&page).unwrap();
    let line = text.lines().rfind(|line| line.starts_with("vllm:lora_requests_info")).unwrap();
    let newer = "vllm:lora_requests_info{max_lora=\"2\",running_lora_adapters=\"new\",\
                 waiting_lora_adapters=\"\"} 1.9e+09";
    let more = text.replace(line, &format!("{line}\n{newer}")).into_bytes();
    let none: String = text.split_inclusive('\n').filter(|at| !at.contains("lora_req")).collect();
    assert!(fits(&page, &page) && fits(&page, &more) && fits(&more, &page));
    assert!(fits(&page, none.as_bytes()), "there may be none");
    assert_ne!(read(&page, None).ok(), read(&more, None).ok());
    let broken = text.replace(line, &line.replace("max_lora=", "max_lora"));
    assert_eq!(after(&page, broken.as_bytes()), None);
}

#[test]
fn a_layout_of_text_is_not_used_for_open_metrics() {
    let (text, open) = (page(PAGES[0]), page("vllm-0.33.0-openmetrics.txt.gz"));
    let mut memory = LayoutMemory::default();
    memory.read(&text, None).expect("the page is sound");
    let kind = Some(content_type(&open));
    assert_eq!(memory.read(&open, kind).ok(), read(&open, kind).ok());
    assert!(memory.read(&open[..open.len() - 6], kind).is_err(), "`# EOF` is missing");
}

#[test]
fn replicas_with_equal_pages_share_one_layout() {
    let layouts = Arc::new(Layouts::default());
    let learn = |body: &[u8]| {
        let mut memory = LayoutMemory::new(Arc::clone(&layouts));
        memory.read(body, None).expect("the page is sound");
        memory.layout().cloned().expect("the page has a layout")
    };
    let (page, other) = (page(PAGES[0]), page(PAGES[1]));
    let (one, same, third) = (learn(&page), learn(&later(&page)), learn(&other));
    assert!(Arc::ptr_eq(&one, &same));
    assert!(!Arc::ptr_eq(&one, &third));
}

prop_compose! {
    /// A line of a small page.
    fn line()(
        name in prop::sample::select(vec![
            "vllm:num_requests_running", "vllm:request_success_total", "http_requests_total",
            "vllm:e2e_request_latency_seconds_bucket", "vllm:e2e_request_latency_seconds_sum",
            "vllm:e2e_request_latency_seconds_count", "vllm:other_total", "up",
            "sglang:num_running_reqs", "vllm:lora_requests_info", "process_start_time_seconds", "# HELP up", "# HELP sglang:token_usage",
        ]),
        labels in prop::sample::select(vec![
            "", "{engine=\"0\"}", "{engine=\"1\"}", "{le=\"1\"}", "{le=\"+Inf\"}", "{le=\"0.5\"}",
            "{finished_reason=\"stop\"}", "{finished_reason=\"new\"}", "{status=\"200\"}", "{a=\"}\"}",
        ]),
        value in prop::sample::select(vec!["1", "2.5", "NaN", "-1", "1e9", "3 4", ""]),
    ) -> String {
        if name.starts_with('#') { format!("{name} x\n") } else { format!("{name}{labels} {value}\n") }
    }
}

proptest! {
    #[test]
    fn a_page_is_read_the_same_after_any_other(
        first in prop::collection::vec(line(), 0..12),
        others in prop::collection::vec(line(), 0..4),
        at in any::<prop::sample::Index>(),
        taken in 0_usize..3,
    ) {
        let base = "vllm:num_requests_waiting{engine=\"0\"} 3\n";
        let page = |lines: &[String]| [&lines.concat(), base].concat();
        let at = at.index(first.len() + 1);
        let second = [&first[..at], &others, first.get(at + taken..).unwrap_or_default()].concat();
        let (first, second) = (page(&first), page(&second));
        let mut memory = LayoutMemory::default();
        let _ = memory.read(first.as_bytes(), None);
        // As text, in which a number that is none is equal to itself.
        let shown = |reading: Option<Reading>| format!("{reading:?}");
        prop_assert_eq!(
            shown(memory.read(second.as_bytes(), None).ok()),
            shown(read(second.as_bytes(), None).ok()),
            "{}\nafter\n{}", second, first
        );
    }
}
