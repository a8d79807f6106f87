//! Responses of /metrics.
//!
//! The reader has shortcuts for lines that resemble the previous one, and does not parse the labels
//! of unused lines. The shortcuts must not change the reading.

use plimsoll::collect::exposition::{LayoutMemory, read};
use plimsoll::observe::Reading;

/// The prefix of an input in `OpenMetrics` format.
const OPEN: &[u8] = b"openmetrics\n";

/// Reads a response in several ways that must give the same result.
pub fn check(input: &[u8]) {
    let (body, content_type) = match input.strip_prefix(OPEN) {
        Some(body) => (body, Some("application/openmetrics-text; version=1.0.0")),
        None => (input, None),
    };
    let reading = |body: &[u8]| read(body, content_type).ok();
    let whole = reading(body);
    assert!(whole == reading(body), "reading a page twice gives two readings");
    if let Err(error) = read(body, content_type) {
        assert!(!error.to_string().is_empty());
    }
    let apart = reading(&with_lines_between(body));
    assert!(
        without_counts(apart) == without_counts(whole.clone()),
        "shortcuts show in the reading"
    );
    after_another(body, content_type, whole.as_ref());
    if whole.is_some() && content_type.is_none() {
        cut(body, reading);
    }
}

/// Reads the response after itself, after one half of it, and after itself with other lines.
fn after_another(body: &[u8], content_type: Option<&str>, whole: Option<&Reading>) {
    let mut lines: Vec<&[u8]> = body.split_inclusive(|byte| *byte == b'\n').collect();
    let half = lines[..lines.len() / 2].concat();
    if let [_, _, ..] = lines[..] {
        lines.rotate_left(1);
    }
    for before in [body, &half, &lines.concat(), &with_lines_between(body)] {
        let mut memory = LayoutMemory::default();
        let _ = memory.read(before, content_type);
        let after = memory.read(body, content_type).ok();
        assert!(after.as_ref() == whole, "the page before shows in the reading");
    }
}

/// The response with an unused line before each line, so that no line resembles the previous one.
fn with_lines_between(body: &[u8]) -> Vec<u8> {
    let mut apart = Vec::with_capacity(2 * body.len());
    let mut is_ended = body.trim_ascii().is_empty();
    for line in body.split_inclusive(|byte| *byte == b'\n') {
        is_ended |= line.trim_ascii() == b"# EOF";
        if !is_ended && line.ends_with(b"\n") {
            apart.extend_from_slice(b"zz_nobody_wants_this 1\n");
        }
        apart.extend_from_slice(line);
    }
    apart
}

/// The reading without its sample count.
fn without_counts(reading: Option<Reading>) -> Option<Reading> {
    reading.map(|reading| Reading { samples: 0, ..reading })
}

/// A response that ends inside a line must be rejected.
fn cut(body: &[u8], reading: impl Fn(&[u8]) -> Option<Reading>) {
    let Some(newline) = body.iter().rposition(|byte| *byte == b'\n') else { return };
    let start = body[..newline].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    for end in [newline, (start + newline).div_ceil(2), start + 1] {
        if (start + 1..=newline).contains(&end) {
            assert!(reading(&body[..end]).is_none(), "a page that is cut inside a line was read");
        }
    }
}
