//! `explain`: the number of one variant, the steps to it, and what would change it.
//!
//! A daemon, a trace and a state file give the same document, as far as they have the data. This
//! module writes it for people.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::{Timestamp, Unit};
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::cli::args::{ExplainArgs, OutputFormat};
use crate::cli::ask::{self, AskError};
use plimsoll_core::fleet::VariantKey;
use plimsoll_daemon::publish::explanation::{self, ExplainedVariant, Explanation};
use plimsoll_daemon::publish::state::{self, SavedDecision, StateError};
use plimsoll_lab::backtest::scene;
use plimsoll_lab::output::print;

/// The width of the first column.
const LABEL: usize = 14;

/// The reason that `explain` has no answer, or an answer without a number.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExplainError {
    /// The variant has no number.
    #[error("{key} has no desired replicas")]
    NoNumber {
        /// The variant.
        key: VariantKey,
    },
    /// There is no such variant.
    #[error("{why}")]
    Unknown {
        /// Why, and where the variants are listed.
        why: String,
    },
    /// The daemon computes other explanations, or does not decide.
    #[error("{why}")]
    Busy {
        /// The answer of the daemon.
        why: String,
    },
}

/// Runs the command.
///
/// # Errors
///
/// The daemon does not answer, a file cannot be read, there is no such variant, or it has no number.
pub(crate) fn run(args: &ExplainArgs) -> anyhow::Result<()> {
    let ExplainArgs { variant: key, url, trace, at, state, output } = args;
    let document = match (state, at) {
        (Some(file), _) => of_state(key, file)?,
        (None, Some(at)) => of_trace(key, trace, *at)?,
        (None, None) => of_daemon(key, url)?,
    };

    let text = match output {
        OutputFormat::Json => serde_json::to_string_pretty(&document)? + "\n",
        OutputFormat::Text => words(key, &document),
    };
    print(&text)?;

    if document["variant"]["desired"].is_null() {
        return Err(ExplainError::NoNumber { key: key.clone() }.into());
    }
    Ok(())
}

fn of_daemon(key: &VariantKey, url: &str) -> anyhow::Result<Value> {
    let path = format!("/api/v1/explain?{}", ask::of_variant(key));
    let (status, text) = ask::get(url, &path)?;

    let answer: Value = serde_json::from_str(&text).unwrap_or_default();
    let why = answer["error"].as_str().map(str::to_owned);
    match (status, why) {
        (StatusCode::OK, _) => Ok(answer),
        (StatusCode::NOT_FOUND, Some(why)) => Err(ExplainError::Unknown { why }.into()),
        (StatusCode::SERVICE_UNAVAILABLE, Some(why)) => Err(ExplainError::Busy { why }.into()),
        (status, _) => Err(AskError::answer(url, status.to_string()).into()),
    }
}

fn of_trace(key: &VariantKey, trace: &[PathBuf], at: Timestamp) -> anyhow::Result<Value> {
    let scene = scene::at(trace, at)?;
    let unknown = || {
        let known: Vec<String> =
            scene.inputs.fleet.variants().map(|spec| spec.key.to_string()).collect();
        let why = format!("the trace has no variant {key} at {at}; it has {}", known.join(", "));
        ExplainError::Unknown { why }
    };
    let answers = explanation::answers(&scene, key, &|| true).ok_or_else(unknown)?;

    // Any instant on the monotonic clock that is later than the age of all data.
    let elapsed = Duration::from_hours(24 * 365);
    let published = explanation::published(scene.clone(), elapsed);
    let variant = published.variants.get(key).ok_or_else(unknown)?;
    let explained = ExplainedVariant {
        published: &published,
        variant,
        inputs: &scene.inputs,
        details: &BTreeMap::default(),
        autoscaler: None,
        now: scene.now,
        elapsed,
    };
    Ok(serde_json::to_value(Explanation::new(explained, &answers))?)
}

fn of_state(key: &VariantKey, file: &Path) -> anyhow::Result<Value> {
    let _there = std::fs::metadata(file).map_err(|source| StateError::Io {
        path: file.to_owned(),
        action: "read",
        source,
    })?;
    let saved = state::load(file)?;
    let Some(decision) = saved.iter().find(|saved| saved.variant == *key) else {
        let known: Vec<String> = saved.iter().map(|saved| saved.variant.to_string()).collect();
        let why = format!("{} has no variant {key}; it has {}", file.display(), known.join(", "));
        return Err(ExplainError::Unknown { why }.into());
    };

    let SavedDecision { variant, model, desired, at, written, memory, .. } = decision;
    let unknown = [
        "the inputs and the steps: a state file has only decisions and learned values",
        "the changes: they need inputs, which a state file does not have",
    ];
    let summary = format!(
        "{desired}, on data of {at:.0}, in effect until {written:.0}{}",
        if memory.is_some() { "; its windows and learned values are saved" } else { "" }
    );
    Ok(json!({
        "now": written.to_string(),
        "variant": {
            "namespace": variant.namespace.as_str(),
            "variant": variant.variant.as_str(),
            "model": model.model.as_str(),
            "desired": desired.count(),
            "at": at.to_string(),
        },
        "unknown": unknown,
        "summary": [summary],
    }))
}

// === words ===

/// The document for people.
fn words(key: &VariantKey, document: &Value) -> String {
    let mut text = String::new();
    let variant = &document["variant"];
    let _infallible = writeln!(text, "{key}: {}", counts(variant));
    if let Some(model) = variant["model"].as_str() {
        line(&mut text, "Model", model);
    }
    if let Some(now) = document["now"].as_str().and_then(|now| now.parse::<Timestamp>().ok()) {
        line(&mut text, "Time", &now.round(Unit::Millisecond).unwrap_or(now).to_string());
    }
    if let Some(age) = variant["age_seconds"].as_f64() {
        let basis = variant["basis"].as_str().unwrap_or_default();
        line(&mut text, "Data", &format!("{basis}, {age:.1} s old"));
    }
    if let Some(headline) = document["binding"]["headline"].as_str() {
        line(&mut text, "Binding", headline);
    }

    section(&mut text, "Inputs", &document["inputs"], input);
    section(&mut text, "Steps", &variant["steps"], step);
    options(&mut text, &variant["steps"]);
    section(&mut text, "Changes", &document["changes"], sentence);
    if let Some(load) = document["load"]["text"].as_str() {
        if list(&document["changes"]).is_empty() {
            text.push_str("\nChanges\n");
        }
        let _infallible = writeln!(text, "  {load}");
    }
    if let Some(now) = variant["desired"].as_u64()
        && let Some(settled) = document["settled"].as_u64().filter(|settled| *settled != now)
    {
        let _infallible =
            writeln!(text, "  {settled} once every wait has ended, if the load stays as it is");
    }

    if let Some(reaction) = document["autoscaler"]["text"].as_str() {
        let _infallible = writeln!(text, "\nAutoscaler\n  {reaction}");
        for problem in list(&document["autoscaler"]["problems"]) {
            let _infallible = writeln!(text, "  {}", problem.as_str().unwrap_or_default());
        }
        for remedy in document["autoscaler"]["remedy"].as_str().iter().flat_map(|it| it.lines()) {
            let _infallible = writeln!(text, "    {remedy}");
        }
    }

    section(&mut text, "Not known", &document["unknown"], |unknown| {
        unknown.as_str().unwrap_or_default().to_owned()
    });
    if document["inputs"].is_null() {
        section(&mut text, "Known", &document["summary"], |line| {
            line.as_str().unwrap_or_default().to_owned()
        });
    }

    text
}

/// The replica counts of a variant in one line.
fn counts(variant: &Value) -> String {
    let count = |name: &str| variant[name].as_u64();
    let mut parts = vec![match count("desired") {
        Some(desired) => format!("{desired} desired"),
        None => "no number".to_owned(),
    }];
    for (name, word) in [("current", "exist"), ("ready", "ready"), ("pending", "pending")] {
        parts.extend(count(name).map(|count| format!("{count} {word}")));
    }
    parts.extend(count("min").map(|min| match count("max") {
        Some(max) => format!("{min} to {max} allowed"),
        None => format!("at least {min} allowed"),
    }));

    parts.join(", ")
}

fn line(text: &mut String, label: &str, value: &str) {
    let _infallible = writeln!(text, "  {label:<LABEL$}{value}");
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn section(text: &mut String, title: &str, value: &Value, write: impl Fn(&Value) -> String) {
    let entries = list(value);
    if entries.is_empty() {
        return;
    }

    let _infallible = writeln!(text, "\n{title}");
    for entry in entries {
        let _infallible = writeln!(text, "  {}", write(entry));
    }
}

fn sentence(entry: &Value) -> String {
    entry["text"].as_str().unwrap_or_default().to_owned()
}

fn input(entry: &Value) -> String {
    let state = entry["state"].as_str().unwrap_or_default();
    format!("{state:<8}{}", sentence(entry))
}

fn step(entry: &Value) -> String {
    let stage = entry["stage"].as_str().unwrap_or_default();
    let before = entry["before"].as_u64().unwrap_or_default();
    let after = entry["after"].as_u64().unwrap_or_default();
    let counts = if before == after { after.to_string() } else { format!("{before} -> {after}") };
    format!("{stage:<LABEL$}{counts:<10}{}", sentence(entry))
}

/// The ranked options of all steps, with their prices.
fn options(text: &mut String, steps: &Value) {
    let ranked: Vec<&Value> = list(steps).iter().flat_map(|step| list(&step["ranking"])).collect();
    if ranked.is_empty() {
        return;
    }

    text.push_str("\nOptions\n");
    for option in ranked {
        let name = option["variant"].as_str().unwrap_or_default();
        let verdict = if option["taken"] == true { "taken" } else { "rejected" };
        let price = match (option["replicas"].as_u64(), option["cost_per_hour"].as_f64()) {
            (Some(replicas), Some(cost)) => format!("{replicas} more for {cost:.2} per hour"),
            _ => option["dropped"].as_str().unwrap_or_default().to_owned(),
        };
        let score = option["score"].as_f64();
        let score = score.map(|score| format!(", score {score:.3}")).unwrap_or_default();
        let _infallible = writeln!(text, "  {verdict:<10}{name}: {price}{score}");
    }
}
