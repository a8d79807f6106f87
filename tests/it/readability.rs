//! How easy the source is to read, in figures that may only improve.
//!
//! Each measure has a limit, which well-kept projects keep. Lower one as the source improves, and
//! never raise one. Everything is counted by pattern, so a figure is good to a few percent. Tests do
//! not count.
//!
//! `cargo test --test it readability:: -- --nocapture` prints the figures.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use regex::Regex;

/// A measure, and the most that the test allows.
struct Measure {
    name: &'static str,
    value: f64,
    limit: f64,
}

/// The counts of one or all files.
#[derive(Default)]
struct Counts {
    functions: f64,
    body_lines: f64,
    blank_lines: f64,
    tuple_parameters: f64,
    named_closures: f64,
    rebindings: f64,
    tuple_lets: f64,
    doc_comments: f64,
    questions: f64,
    comment_words: f64,
    whats: f64,
    nobodies: f64,
    archaisms: f64,
}

/// The source of a file, taken apart.
pub(crate) struct Source {
    text: String,
    /// The text with comments and literals blanked out.
    code: String,
    comments: String,
    /// The literals with text.
    pub(crate) strings: Vec<String>,
}

#[test]
fn the_source_stays_as_easy_to_read_as_it_is() {
    let mut all = Counts::default();
    let mut owners: BTreeMap<String, u32> = BTreeMap::new();
    for path in sources() {
        let source = Source::read(&path);
        all.add(&source);
        for name in source.types() {
            *owners.entry(name).or_default() += 1;
        }
    }

    let mut failed = Vec::new();
    for Measure { name, value, limit } in measures(&all, &owners) {
        writeln!(io::stderr(), "{value:>8.2}  {name} (limit {limit})").unwrap();
        if value > limit {
            failed.push(format!("{name}: {value:.2} is more than {limit}"));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn code_is_told_from_comments_and_literals() {
    let source =
        Source::of("let a = \"// what\"; // what\nlet b = r#\"fn \"x\" what\"#; let c = '\"';\n");
    assert_eq!(source.comments, "// what\n");
    assert_eq!(source.strings, ["\"// what\"", "r#\"fn \"x\" what\"#"]);
    assert_eq!(source.code.matches("let").count(), 3);
    assert!(!source.code.contains("what") && !source.code.contains("fn"), "{}", source.code);
}

#[test]
fn each_habit_is_counted() {
    let mut counts = Counts::default();
    counts.add(&Source::of(
        "/// What it does, for nobody, anew.\n\
         fn one((a, b): (u8, u8)) -> u8 {\n    let double = |x: u8| 2 * x;\n\n    \
         let a = a + 1;\n    let (c, d) = (a, b);\n    double(c) + d\n}\n",
    ));
    let Counts { functions, tuple_parameters, named_closures, rebindings, tuple_lets, .. } = counts;
    assert!((functions - 1.0).abs() < 1e-9 && (tuple_parameters - 1.0).abs() < 1e-9);
    assert!((named_closures - 1.0).abs() < 1e-9 && (rebindings - 1.0).abs() < 1e-9);
    assert!((tuple_lets - 1.0).abs() < 1e-9 && (counts.blank_lines - 1.0).abs() < 1e-9);
    assert!((counts.questions - 1.0).abs() < 1e-9 && (counts.whats - 1.0).abs() < 1e-9);
    assert!((counts.nobodies - 1.0).abs() < 1e-9 && (counts.archaisms - 1.0).abs() < 1e-9);
}

/// Names of types that are no nouns.
const PARTICIPLES: &str = "Agreed Asked Began Begun Bridged Chosen Closed Counted Decided Declared \
     Discovered Drafted Drawn Excluded Expected Filtered Followed Foreseen Found Full Gone Granted \
     Grouped Grown Heard Held Ignored Imported Informed Judged Kept Known Learned Left Limited \
     Listed Loaded Made Marked Met Moved Named Observed Packed Parsed Passed Planned Played Pooled \
     Published Queued Ranked Read Recalled Recorded Requested Resolved Said Saved Scaled Seen Sent \
     Served Settled Shared Shown Sized Sorted Stopped Taken Taught Told Tried Unheard Unmet Unset \
     Unsure Usable Used Usual Wanted Watched Woken Worn Written Young Ahead Apart Behind Beside";

fn measures(all: &Counts, owners: &BTreeMap<String, u32>) -> [Measure; 11] {
    let participles = PARTICIPLES.split(' ').filter(|name| owners.contains_key(*name)).count();
    let functions = all.functions / 100.0;
    let words = all.comment_words / 10_000.0;
    let types: u32 = owners.values().sum();
    let shared: u32 = owners.values().filter(|count| **count > 1).sum();
    [
        Measure::new(
            "lines of function bodies for each blank line",
            all.body_lines / all.blank_lines.max(1.0),
            33.0,
        ),
        Measure::new("named closures in 100 functions", all.named_closures / functions, 3.0),
        Measure::new(
            "rebindings of a variable by itself in 100 functions",
            all.rebindings / functions,
            15.0,
        ),
        Measure::new("tuples of variables in 100 functions", all.tuple_lets / functions, 1.0),
        Measure::new("types named by a participle or an adverb", participles as f64, 20.0),
        Measure::new("functions with tuple parameters", all.tuple_parameters, 0.0),
        Measure::new(
            "types in 100 whose name another file uses",
            100.0 * f64::from(shared) / f64::from(types.max(1)),
            15.0,
        ),
        Measure::new(
            "doc comments in 100 that begin with What, How ...",
            100.0 * all.questions / all.doc_comments,
            3.0,
        ),
        Measure::new("\"what\" in 10,000 words of comments", all.whats / words, 10.0),
        Measure::new(
            "\"whoever, nobody ...\" in 10,000 words of comments",
            all.nobodies / words,
            2.0,
        ),
        Measure::new(
            "\"anew, beside, mend ...\" in 10,000 words of comments",
            all.archaisms / words,
            1.0,
        ),
    ]
}

/// The files of the program and its crates without those of tests.
pub(crate) fn sources() -> Vec<PathBuf> {
    let mut pending = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut found = Vec::new();
    while let Some(folder) = pending.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() {
                if !matches!(name, "tests" | "target") {
                    pending.push(path);
                }
            } else if path.extension().is_some_and(|it| it == "rs") && !name.ends_with("tests.rs") {
                found.push(path);
            }
        }
    }
    found
}

/// Returns true if an expression names a variable, and not a field, a call or a path.
fn names_variable(expression: &str, name: &str) -> bool {
    expression.match_indices(name).any(|(at, _)| {
        let before = &expression[..at];
        let after = &expression[at + name.len()..];
        let is_word = |it: char| it.is_alphanumeric() || it == '_';
        let begins = !before.ends_with(|it| is_word(it) || it == '.' || it == ':');
        let ends = !after.starts_with(is_word);
        let is_other = after.trim_start().starts_with(['(', ':']) || after.starts_with("!(");
        (begins || before.ends_with("..")) && ends && !is_other
    })
}

fn count(pattern: &str, text: &str) -> f64 {
    Regex::new(pattern).unwrap().find_iter(text).count() as f64
}

// === impl Measure ===

impl Measure {
    const fn new(name: &'static str, value: f64, limit: f64) -> Self {
        Self { name, value, limit }
    }
}

// === impl Source ===

impl Source {
    pub(crate) fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap();
        let tests = Regex::new(r"(?m)^#\[cfg\((all\()?test\b[^{;]*\bmod \w+ \{").unwrap();
        Self::of(tests.split(&text).next().unwrap_or_default())
    }

    fn of(text: &str) -> Self {
        let token = Regex::new(
            r###"(?s)//[^\n]*|\br"[^"]*"|\br#".*?"#|\br##".*?"##|"(?:[^"\\]|\\.)*"|'(?:\\.[^']*|[^\\'])'"###,
        );
        let mut code = String::new();
        let mut comments = String::new();
        let mut strings = Vec::new();
        let mut end = 0;
        for found in token.unwrap().find_iter(text) {
            code.push_str(&text[end..found.start()]);
            // One for each byte, so that positions in the code are positions in the text.
            code.extend(found.as_str().bytes().map(|it| if it == b'\n' { '\n' } else { ' ' }));
            if found.as_str().starts_with("//") {
                comments.push_str(found.as_str());
                comments.push('\n');
            } else if !found.as_str().starts_with('\'') {
                strings.push(found.as_str().to_owned());
            }
            end = found.end();
        }
        code.push_str(&text[end..]);
        Self { text: text.to_owned(), code, comments, strings }
    }

    /// The names of types at the top of the file.
    fn types(&self) -> Vec<String> {
        let declared =
            Regex::new(r"(?m)^(?:pub(?:\([^)]*\))? )?(?:struct|enum|trait|type|union) (\w+)")
                .unwrap();
        declared.captures_iter(&self.code).map(|it| it[1].to_owned()).collect()
    }

    /// The position of the bracket that closes the one at a position.
    fn closing(&self, opening: usize) -> Option<usize> {
        let mut depth = 0;
        for (at, byte) in self.code.bytes().enumerate().skip(opening) {
            match byte {
                b'(' | b'[' | b'{' => depth += 1,
                b')' | b']' | b'}' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return Some(at);
            }
        }
        None
    }
}

// === impl Counts ===

impl Counts {
    fn add(&mut self, source: &Source) {
        self.add_functions(source);
        self.add_lets(&source.code);
        self.add_comments(source);
    }

    fn add_functions(&mut self, source: &Source) {
        let function = Regex::new(r"\bfn\s+\w+\s*(?:<(?:->|[^<>]|<[^<>]*>)*>)?\s*\(").unwrap();
        let tuple = Regex::new(r"(?:^|,)\s*\([^()]*\)\s*:[^:]").unwrap();
        let mut outer_end = 0;
        for start in function.find_iter(&source.code) {
            let Some(parameters_end) = source.closing(start.end() - 1) else { continue };
            let Some(body) = source.code[parameters_end..].find(['{', ';']) else { continue };
            let body = parameters_end + body;
            if source.code.as_bytes()[body] != b'{' {
                continue;
            }

            let Some(body_end) = source.closing(body) else { continue };
            self.functions += 1.0;
            let parameters = &source.code[start.end()..parameters_end];
            self.tuple_parameters += f64::from(u8::from(tuple.is_match(parameters)));
            if start.start() > outer_end {
                outer_end = body_end;
                self.add_body(&source.text[body..body_end]);
            }
        }
    }

    /// The lines of a function between its braces, which stand on lines of their own.
    fn add_body(&mut self, body: &str) {
        let lines: Vec<&str> = body.lines().skip(1).collect();
        let inside = &lines[..lines.len().saturating_sub(1)];
        self.body_lines += inside.len() as f64;
        self.blank_lines += inside.iter().filter(|line| line.trim().is_empty()).count() as f64;
    }

    fn add_lets(&mut self, code: &str) {
        self.named_closures +=
            count(r"\blet (?:mut )?\w+(?:: [^=;]+)? =\s*(?:move |async )*\|", code);
        self.tuple_lets += count(
            r"\blet \([^=;]*?\)(?:: [^=;]+)? =\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\);",
            code,
        );
        let simple = Regex::new(r"\blet (?:mut )?(\w+)(?:: [^=;]+)? =([^;]*)").unwrap();
        for found in simple.captures_iter(code) {
            self.rebindings += f64::from(u8::from(names_variable(&found[2], &found[1])));
        }
    }

    fn add_comments(&mut self, source: &Source) {
        let docs = Regex::new(r"(?m)(?:^[ \t]*//[/!][^\n]*\n)+").unwrap();
        let question =
            Regex::new(r"(?i)^\s*//[/!]\W*(?:what|whether|how|who|where|which)\b").unwrap();
        for doc in docs.find_iter(&source.text) {
            self.doc_comments += 1.0;
            self.questions += f64::from(u8::from(question.is_match(doc.as_str())));
        }
        self.comment_words += count(r"[A-Za-z']+", &source.comments);
        self.whats += count(r"(?i)\bwhat\b", &source.comments);
        self.nobodies += count(r"(?i)\bwhoever|\b(?:no|some|every)body\b", &source.comments);
        self.archaisms += count(r"(?i)\b(?:anew|beside|mend\w*|for want of)\b", &source.comments);
    }
}
