//! Answers of the programs that Plimsoll learns from, computed by those programs themselves.
//!
//! `PLIMSOLL_VECTORS=DIR cargo test --test it vectors` runs every `*.jsonl` and `*.jsonl.gz` in
//! `DIR/wva`, `DIR/cluster-autoscaler` and `DIR/seldon` for which there is a reader; without the
//! variable it runs the copies in tests/data/vectors. What was run, and what was not, is written to
//! standard error for each file.
//!
//! A reader may find that we differ on purpose. It must then know the class of the difference from
//! the input or the note of the case, hold our answer against an expectation of its own, and the
//! case must be one in which the original is known to be wrong. Everything else is a failure.

mod ballot;
mod engine_args;
mod expanders;
mod fields;
mod limit;
mod optimize;
mod pipeline;
mod pools;
mod prices;
mod queueing;
mod rank;
mod saturation;
mod throughput;
mod tokens;
mod zero;

use std::collections::BTreeMap;
use std::env;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write as _};
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use serde_json::Value;

/// What came of one case.
pub(crate) enum Outcome {
    /// Our answer is the expected one.
    Passed,
    /// Our answer is another one on purpose; says which defect we do not share.
    Differs(&'static str),
    /// Something that the case needs does not exist here; says what. The rest of it agrees.
    NotRun(&'static str),
    /// Our answer is wrong.
    Failed(String),
}

/// Runs one case.
type Reader = fn(&Value) -> Outcome;

/// The folders that vectors come in, one for each original.
const ORIGINALS: [&str; 3] = ["wva", "cluster-autoscaler", "seldon"];

/// Each file that can be run, by folder and name without extension.
const READERS: &[(&str, &str, Reader)] = &[
    ("cluster-autoscaler", "node-price", prices::node),
    ("cluster-autoscaler", "other-expanders", expanders::survivors),
    ("cluster-autoscaler", "pod-price", prices::pod),
    ("cluster-autoscaler", "preferred-node", rank::preferred),
    ("cluster-autoscaler", "price-score", rank::scores),
    ("cluster-autoscaler", "price-score-gce", rank::scores),
    ("cluster-autoscaler", "unfitness", rank::unfitness),
    ("seldon", "drain-time", pools::drain_time),
    ("seldon", "drain-wait", pools::drain_wait),
    ("seldon", "lag-rounds", pools::lag),
    ("seldon", "lifecycle", pools::lifecycle),
    ("seldon", "model-autoscale", pools::autoscale),
    ("seldon", "model-status", pools::status),
    ("seldon", "overcommit-memory", pools::memory),
    ("seldon", "placement", pools::placement),
    ("seldon", "scaling-request", pools::request),
    ("seldon", "scaling-spec", pools::spec),
    ("seldon", "server-scale-down", pools::down),
    ("seldon", "server-scale-up", pools::up),
    ("seldon", "server-stats", pools::server_stats),
    ("wva", "ballot", ballot::ballot),
    ("wva", "ekf_tuner", queueing::tuner),
    ("wva", "enforcer", zero::enforcer),
    ("wva", "engine_args", engine_args::containers),
    ("wva", "limiter", limit::targets),
    ("wva", "optimizer_cost_aware", optimize::cost_aware_rule),
    ("wva", "optimizer_greedy", optimize::greedy),
    ("wva", "pipeline_v1", saturation::pipeline),
    ("wva", "pipeline_v2", pipeline::decisions),
    ("wva", "queue_solver", queueing::solver),
    ("wva", "queueing_model_analyzer", queueing::analyzer),
    ("wva", "rescale_targets", optimize::shares),
    ("wva", "saturation_v1", saturation::analyzer),
    ("wva", "saturation_v2_model", tokens::cycles),
    ("wva", "saturation_v2_replica", tokens::replica),
    ("wva", "scale_from_zero", zero::scale_from_zero),
    ("wva", "throughput", throughput::steps),
];

/// More failures than this say nothing new.
const SHOWN: usize = 5;

/// What came of the cases of one file.
#[derive(Default)]
struct Tally {
    cases: usize,
    passed: usize,
    differing: BTreeMap<&'static str, usize>,
    not_run: BTreeMap<&'static str, usize>,
    failures: Vec<String>,
}

impl Tally {
    fn add(&mut self, case: &Value, outcome: Outcome) {
        let id = case["id"].as_str().unwrap_or("a case without an id");
        let may_differ = case["normative"] == false || case["may_differ"] == true;
        self.cases += 1;
        match outcome {
            Outcome::Passed => self.passed += 1,
            Outcome::Differs(class) if may_differ => {
                *self.differing.entry(class).or_default() += 1;
            }
            Outcome::Differs(class) => {
                self.failures.push(format!("{id}: must be matched, but differs: {class}"));
            }
            Outcome::NotRun(what) => *self.not_run.entry(what).or_default() += 1,
            Outcome::Failed(why) => self.failures.push(format!("{id}: {why}")),
        }
    }

    fn line(&self) -> String {
        let Self { cases, passed, differing, not_run, failures } = self;
        let mut line = format!("{cases} cases, {passed} passed");
        for (heading, classes) in [("differ knowingly", differing), ("not run", not_run)] {
            let total: usize = classes.values().sum();
            if total > 0 {
                let named: Vec<_> =
                    classes.iter().map(|(class, number)| format!("{class}: {number}")).collect();
                write!(line, ", {total} {heading} ({})", named.join(", ")).unwrap();
            }
        }
        if !failures.is_empty() {
            write!(line, ", {} FAILED", failures.len()).unwrap();
        }
        line
    }
}

/// The vectors in a folder, sorted by name; none if there is no such folder.
fn files_in(folder: &Path) -> Vec<(String, PathBuf)> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<_> = entries
        .filter_map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name()?.to_str()?;
            let stem = name.strip_suffix(".gz").unwrap_or(name).strip_suffix(".jsonl")?;
            Some((stem.to_owned(), path))
        })
        .collect();
    files.sort();
    files
}

fn cases_of(path: &Path) -> impl Iterator<Item = Value> {
    let file = File::open(path).unwrap();
    let text: Box<dyn Read> = if path.extension().is_some_and(|extension| extension == "gz") {
        Box::new(GzDecoder::new(file))
    } else {
        Box::new(file)
    };
    BufReader::new(text).lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap())
}

#[test]
fn vectors_of_the_originals_are_met_or_differ_knowingly() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/vectors");
    let root = env::var_os("PLIMSOLL_VECTORS").map_or(own, PathBuf::from);
    let mut report = String::new();
    let mut failures = Vec::new();
    let mut cases = 0;
    for original in ORIGINALS {
        for (name, path) in files_in(&root.join(original)) {
            let reader = READERS.iter().find(|reader| (reader.0, reader.1) == (original, &name));
            let Some((_, _, read)) = reader else {
                writeln!(report, "{original}/{name}: no reader, not run").unwrap();
                continue;
            };
            let mut tally = Tally::default();
            for case in cases_of(&path) {
                let outcome = read(&case);
                tally.add(&case, outcome);
            }
            writeln!(report, "{original}/{name}: {}", tally.line()).unwrap();
            cases += tally.cases;
            failures.extend(tally.failures.iter().map(|why| format!("{original}/{name} {why}")));
        }
    }
    // The test harness keeps what is printed; a count that nobody sees is no count.
    io::stderr()
        .write_all(format!("\nvectors in {}\n{report}", root.display()).as_bytes())
        .unwrap();
    assert!(cases > 0, "there are no vectors with a reader in {}", root.display());
    let shown = &failures[..failures.len().min(SHOWN)];
    assert!(failures.is_empty(), "{} failed, such as\n{}", failures.len(), shown.join("\n"));
}

#[test]
fn every_reader_has_its_vectors_in_the_repository() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/vectors");
    for (original, name, _) in READERS {
        let found = files_in(&own.join(original)).iter().any(|(file, _)| file == name);
        assert!(found, "{original}/{name}");
    }
}

#[test]
fn a_case_that_must_be_matched_may_not_differ() {
    let mut tally = Tally::default();
    tally.add(&serde_json::json!({"id": "a", "normative": true}), Outcome::Differs("defect"));
    tally.add(&serde_json::json!({"id": "b"}), Outcome::Differs("defect"));
    tally.add(&serde_json::json!({"id": "c", "normative": false}), Outcome::Differs("defect"));
    tally.add(&serde_json::json!({"id": "d", "may_differ": true}), Outcome::Differs("defect"));
    assert_eq!(tally.failures.len(), 2, "{:?}", tally.failures);
    assert_eq!(tally.line(), "4 cases, 0 passed, 2 differ knowingly (defect: 2), 2 FAILED");
}
