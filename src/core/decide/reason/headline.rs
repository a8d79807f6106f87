//! Headlines: a reason in at most [`LENGTH_MAX`] characters, for tables, lists and notifications.
//!
//! # Templates
//!
//! `{name}` stands for the fact of that name, with its unit. A part in square brackets is left out
//! unless the reason states all its facts. Of several parts separated by `|`, the first complete
//! part is used.

use std::cmp::Ordering;

use crate::decide::decision::{Stage, Step};
use crate::decide::reason::{Reason, ReasonFact};

/// The maximum length of a headline in characters, so that it fits into a table cell.
const LENGTH_MAX: usize = 80;

impl Reason {
    /// Returns the reason in a few words.
    #[must_use]
    pub fn headline(&self) -> String {
        fill(self.code().template(), &self.facts())
    }
}

impl Step {
    /// Returns the step in at most 80 characters, such as `Scale up 2 -> 3: demand 37.6 req/s
    /// exceeds capacity 29.3 req/s`.
    #[must_use]
    pub fn headline(&self) -> String {
        let Self { before, after, reason, stage } = self;
        let action = match (after.cmp(before), stage) {
            (Ordering::Equal, _) => format!("Keep {after}"),
            (Ordering::Greater, it) if it.only_keeps() => format!("Keep {after}, not {before}"),
            // These stages change the result of earlier stages, whatever exists.
            (Ordering::Greater, Stage::Bounds) => format!("Need {after}, not {before}"),
            (Ordering::Greater, Stage::StepLimit)
            | (Ordering::Less, Stage::StepLimit | Stage::Bounds | Stage::Limit) => {
                format!("Allow {after}, not {before}")
            }
            (Ordering::Greater, _) => format!("Scale up {before} -> {after}"),
            (Ordering::Less, _) => format!("Scale down {before} -> {after}"),
        };

        shortened(format!("{action}: {}", reason.headline()))
    }
}

/// Returns the template with its facts.
fn fill(template: &str, facts: &[ReasonFact]) -> String {
    let mut filled = String::new();
    let mut rest = template;

    while let Some((before, bracket)) = rest.split_once('[') {
        let (optional, after) = bracket.split_once(']').unwrap_or((bracket, ""));
        filled += &complete(before, facts).unwrap_or_default();
        filled += &optional.split('|').find_map(|part| complete(part, facts)).unwrap_or_default();
        rest = after;
    }

    filled + &complete(rest, facts).unwrap_or_default()
}

/// Returns the part with its facts; `None` if one of them is not stated.
fn complete(part: &str, facts: &[ReasonFact]) -> Option<String> {
    let mut filled = String::new();
    let mut rest = part;

    while let Some((before, brace)) = rest.split_once('{') {
        let (name, after) = brace.split_once('}')?;
        let fact = facts.iter().find(|it| it.name == name)?;
        filled += before;
        filled += &fact.to_string();
        rest = after;
    }

    Some(filled + rest)
}

/// Returns the text, shortened if it is too long.
fn shortened(text: String) -> String {
    match text.char_indices().nth(LENGTH_MAX) {
        None => text,
        Some(_) => text.chars().take(LENGTH_MAX - 1).chain(['\u{2026}']).collect(),
    }
}
