//! Every number and the steps that made it, as JSON.
//!
//! # Shape
//!
//! ```json
//! {"generation":812,"variants":[{
//!   "namespace":"shop","variant":"llama-l4","model":"meta/llama","accelerator":"L4","role":"both",
//!   "desired":3,"unconstrained":3,"current":2,"ready":2,"pending":0,"min":1,"max":8,
//!   "basis":"fresh","at":"2026-11-21T09:30:00Z","age_seconds":0.4,
//!   "because":"analyze: 2 -> 3, KV spare low (0.045 < 0.100)",
//!   "steps":[{"stage":"analyze","before":2,"after":3,"reason":"spare_low","text":"KV spare low …"}],
//!   "replicas":[{"replica":"llama-l4-0","freshness":"fresh","age_seconds":0.4,
//!                "failure":null,"failure_detail":null,"kv_cache_usage":0.75,"waiting":1,"running":9}]}]}
//! ```
//!
//! A field whose value is not known is `null`, never 0. `basis` is `fresh`, `held` (kept for want
//! of data) or `none`, in which case `because` says what is missing. `failure` is the class of the
//! last failed scrape and `failure_detail` what exactly was wrong, with line and column for a page.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::decide::{Basis, Decision, Step};
use crate::fleet::{Accelerator, ReplicaKey};
use crate::observe::{Freshness, ReplicaObservation, ScrapeFailure};
use crate::publish::{Published, PublishedVariant};
use crate::units::{Fraction, Replicas, Requests, Seconds};

#[derive(Serialize)]
struct Document<'a> {
    generation: u64,
    variants: Vec<VariantLine<'a>>,
}

#[derive(Serialize)]
struct VariantLine<'a> {
    namespace: &'a str,
    variant: &'a str,
    model: &'a str,
    accelerator: Option<&'a str>,
    role: &'static str,
    desired: Option<u32>,
    unconstrained: Option<u32>,
    current: Option<u32>,
    ready: Option<u32>,
    pending: u32,
    min: u32,
    max: Option<u32>,
    basis: &'static str,
    at: Option<String>,
    age_seconds: Option<f64>,
    because: String,
    steps: Vec<StepLine>,
    replicas: Vec<ReplicaLine<'a>>,
}

#[derive(Serialize)]
struct StepLine {
    stage: &'static str,
    before: u32,
    after: u32,
    reason: &'static str,
    text: String,
}

#[derive(Serialize)]
struct ReplicaLine<'a> {
    replica: &'a str,
    freshness: &'static str,
    age_seconds: Option<f64>,
    failure: Option<&'static str>,
    failure_detail: Option<&'a str>,
    kv_cache_usage: Option<f64>,
    waiting: Option<f64>,
    running: Option<f64>,
}

/// What exactly was wrong with the last scrape of each replica that could not be read.
pub type Details = BTreeMap<ReplicaKey, String>;

/// The document, at the monotonic instant `now`.
#[must_use]
pub fn document(published: &Published, details: &Details, now: Duration) -> String {
    let variants = published.variants.values().map(|it| variant(it, details, now)).collect();
    let document = Document { generation: published.generation, variants };
    serde_json::to_string(&document).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
}

fn variant<'a>(
    published: &'a PublishedVariant,
    details: &'a Details,
    now: Duration,
) -> VariantLine<'a> {
    let PublishedVariant { spec, observation, report: _, decided, undecided } = published;
    let decision = decided.as_ref().map(|decided| &decided.decision);
    let because = decision.and_then(Decision::because).map(ToString::to_string);
    let missing = undecided.as_ref().map(|undecided| undecided.0.to_string());
    VariantLine {
        namespace: spec.key.namespace.as_str(),
        variant: spec.key.variant.as_str(),
        model: spec.model.as_str(),
        accelerator: spec.accelerator.as_ref().map(Accelerator::as_str),
        role: spec.role.label(),
        desired: decision.map(|decision| decision.desired().count()),
        unconstrained: decision.map(|decision| decision.unconstrained().count()),
        current: observation.current.map(Replicas::count),
        ready: observation.ready.map(Replicas::count),
        pending: observation.pending.count(),
        min: published.bounds().min().count(),
        max: published.bounds().max().map(Replicas::count),
        basis: match decision.map(|decision| decision.basis) {
            Some(Basis::Fresh) => "fresh",
            Some(Basis::Held) => "held",
            None => "none",
        },
        at: decided.as_ref().map(|decided| decided.at.to_string()),
        age_seconds: decided
            .as_ref()
            .map(|decided| now.saturating_sub(decided.elapsed).as_secs_f64()),
        because: because.or(missing).unwrap_or_default(),
        steps: decision.map(|it| it.steps.iter().map(step).collect()).unwrap_or_default(),
        replicas: observation.replicas.iter().map(|it| replica(it, details)).collect(),
    }
}

fn step(step: &Step) -> StepLine {
    let Step { stage, before, after, reason } = step;
    StepLine {
        stage: stage.label(),
        before: before.count(),
        after: after.count(),
        reason: reason.label(),
        text: reason.to_string(),
    }
}

fn replica<'a>(replica: &'a ReplicaObservation, details: &'a Details) -> ReplicaLine<'a> {
    let (freshness, age, failure) = match replica.freshness {
        Freshness::Fresh { age } => ("fresh", Some(age), None),
        Freshness::Stale { age, why } => ("stale", Some(age), why),
        Freshness::Never { why } => ("never", None, why),
    };
    ReplicaLine {
        replica: replica.replica.replica.as_str(),
        freshness,
        age_seconds: age.map(Seconds::seconds),
        failure: failure.map(ScrapeFailure::label),
        failure_detail: details.get(&replica.replica).map(String::as_str),
        kv_cache_usage: replica.kv_usage.map(|it| Fraction::fraction(it.last)),
        waiting: replica.waiting.map(|it| Requests::requests(it.last)),
        running: replica.running.map(|it| Requests::requests(it.last)),
    }
}
