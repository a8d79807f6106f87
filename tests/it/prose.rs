//! The language of documents and of the program's own texts, in figures that may only improve.
//!
//! Each habit has a limit. Lower one as the texts improve, and never raise one. Code, links and
//! comments in documents don't count.
//!
//! `cargo test --test it prose:: -- --nocapture` prints the figures and the sentences that are too
//! long.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use regex::Regex;

use crate::readability::{Source, sources};

/// A habit that makes texts hard to read.
struct Habit {
    name: &'static str,
    pattern: &'static str,
    /// The most matches in all documents.
    in_documents: usize,
    /// The most matches in all strings.
    in_strings: usize,
}

const HABITS: [Habit; 10] = [
    Habit::new("\"what\": name the thing", r"\bwhat\b", 10, 1),
    Habit::new("\"nobody\": name the actor", r"\bwhoever|\b(?:no|some|every)body\b", 0, 0),
    Habit::new("\"anew, beside\"", r"\b(?:anew|beside|mend\w*|for want of)\b", 0, 0),
    Habit::new("\"carry\": handle, capacity", r"\bcarr(?:y|ies|ied|ying)\b", 2, 0),
    Habit::new("\"say\": report, show", r"\b(?:say|says|said)\b", 0, 0),
    Habit::new("\"one that\": repeat the noun", r"\b(?:one|those) that\b", 0, 0),
    Habit::new("\"the number\": desired replicas", r"\bthe number\b", 0, 0),
    Habit::new("\"Where\" for \"if\"", r"(?:^|[.!?:;|])[^\w\n]*(?-i:W)here\b", 0, 0),
    Habit::new("\"Who\" as a subject", r"(?:^|[.!?:;|])[^\w\n]*(?-i:W)ho(?:ever)?\b", 0, 0),
    Habit::new("British spelling", BRITISH, 0, 0),
];

const BRITISH: &str = r"(?x: \b(?:
    \w*(?:bilis|malis|tilis|rialis|tialis|ognis|ptimis|horis|maris)(?:e|ed|es|ing|ation)
    | licences? | colours? | \w*behaviours? | honours? | favours? | neighbours?
    | modell(?:ed|ing) | labelled | cancelled | grey | roll-outs? | side-cars?
    )\b)";

/// The most words of a sentence in documents.
const WORDS_MAX: usize = 25;

/// The highest average of words in a sentence or fragment of a document.
const WORDS_MEAN: f64 = 10.6;

#[test]
fn texts_stay_as_plain_as_they_are() {
    let documents: Vec<String> = documents().values().map(|text| prose(text)).collect();
    let escape = Regex::new(r"\{[^}]*\}|\\(?:\s+|.)").unwrap();
    let literals = sources().into_iter().flat_map(|path| Source::read(&path).strings);
    let words = literals.map(|literal| escape.replace_all(&literal, " ").into_owned());
    let strings: Vec<String> = words.filter(|text| text.split_whitespace().count() >= 4).collect();

    let mut failed = Vec::new();
    for Habit { name, pattern, in_documents, in_strings } in HABITS {
        let found = (count(pattern, &documents), count(pattern, &strings));
        writeln!(io::stderr(), "{found:?} {name} (limits {in_documents}, {in_strings})").unwrap();
        if found.0 > in_documents || found.1 > in_strings {
            failed.push(format!("{name}: {found:?} is more than {in_documents}, {in_strings}"));
        }
    }
    assert!(failed.is_empty(), "in documents and in strings:\n{}", failed.join("\n"));
}

#[test]
fn sentences_of_documents_stay_short() {
    let mut long = 0;
    let mut lengths = Vec::new();
    for (path, text) in documents() {
        for sentence in sentences(&prose(&text)) {
            let length = sentence.split_whitespace().count();
            if length > WORDS_MAX {
                long += 1;
                writeln!(io::stderr(), "{}: {length}: {sentence}", path.display()).unwrap();
            }
            lengths.push(length);
        }
    }

    let mean = lengths.iter().sum::<usize>() as f64 / lengths.len() as f64;
    writeln!(io::stderr(), "{long} long sentences, {mean:.2} words on average").unwrap();
    assert_eq!(long, 0, "sentences with more than {WORDS_MAX} words");
    assert!(mean <= WORDS_MEAN, "a sentence has {mean:.2} words on average");
}

#[test]
fn code_tables_and_links_are_not_prose() {
    let text = "# What\n\nOne `what` [link](what.md).\n\n```\nwhat\n```\n<!-- what -->\n| what |\n";
    assert_eq!(count(r"(?i)\bwhat\b", &[prose(text)]), 2);
    assert_eq!(sentences(&prose(text)), ["One X link."]);
}

/// The documents for users, by their path.
fn documents() -> BTreeMap<PathBuf, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    ["", "docs", "docs/alerts", "charts/plimsoll"]
        .iter()
        .flat_map(|folder| fs::read_dir(root.join(folder)).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|it| it == "md"))
        .map(|path| (path.clone(), fs::read_to_string(&path).unwrap()))
        .collect()
}

/// A document without fenced blocks, comments, inline code and the targets of links.
fn prose(text: &str) -> String {
    let mut kept = text.to_owned();
    for (pattern, instead) in [
        (r"(?ms)^ *```.*?^ *```[^\n]*$", ""),
        (r"(?s)<!--.*?-->", ""),
        (r"`[^`]*`", "X"),
        (r"!?\[([^\]]*)\]\([^)]*\)", "$1"),
    ] {
        kept = Regex::new(pattern).unwrap().replace_all(&kept, instead).into_owned();
    }
    kept
}

/// The sentences of a document outside of tables and headings.
fn sentences(prose: &str) -> Vec<String> {
    let tables = Regex::new(r"(?m)^\s*[|#].*$").unwrap();
    let blocks = Regex::new(r"\n\s*\n|\n\s*(?:[-*+]|\d+\.)\s").unwrap();
    let ends = Regex::new(r#"[.!?:][)*"]*\s+"#).unwrap();
    let text = tables.replace_all(prose, "\n");
    let mut all = Vec::new();
    for block in blocks.split(&text) {
        let mut begin = 0;
        for end in ends.find_iter(block).map(|it| it.end()).chain([block.len()]) {
            let sentence: Vec<&str> = block[begin..end].split_whitespace().collect();
            if !sentence.is_empty() {
                all.push(sentence.join(" "));
            }
            begin = end;
        }
    }
    all
}

/// The matches of a pattern, without "the number of".
fn count(pattern: &str, texts: &[String]) -> usize {
    let pattern = Regex::new(&format!("(?im){pattern}")).unwrap();
    let counts = texts.iter().map(|text| {
        let followed = |end: usize| text[end..].trim_start().starts_with("of ");
        pattern
            .find_iter(text)
            .filter(|it| !(it.as_str().ends_with("number") && followed(it.end())))
            .count()
    });
    counts.sum()
}

// === impl Habit ===

impl Habit {
    const fn new(
        name: &'static str,
        pattern: &'static str,
        in_documents: usize,
        in_strings: usize,
    ) -> Self {
        Self { name, pattern, in_documents, in_strings }
    }
}
