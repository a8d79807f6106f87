//! The explanation of one variant's number: its inputs, its steps, and what would change it.
//!
//! The numbers of an explanation come from one tick that is decided again
//! ([`repeat`](plimsoll_core::pipeline::repeat)). Values come first as data, and each part has the
//! same in words, so that no reader has to write sentences of its own.

pub mod autoscaler;
mod counterfactuals;
mod inputs;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use crate::publish::explain::{FailureDetails, Variant, whole_variant};
use crate::publish::explanation::autoscaler::Autoscaler;
use crate::publish::explanation::counterfactuals::{ChangeLine, LoadLine};
use crate::publish::explanation::inputs::InputLine;
use crate::publish::{Published, PublishedDecision, PublishedVariant};
use plimsoll_core::decide::limit::LimitReport;
use plimsoll_core::decide::{Basis, Decision, Step};
use plimsoll_core::fleet::VariantKey;
use plimsoll_core::observe::Inputs;
use plimsoll_core::pipeline::counterfactual::{self, Counterfactuals};
use plimsoll_core::pipeline::repeat::TickScene;
use plimsoll_core::units::Replicas;

/// Why a variant has its number, and what would change it.
#[derive(Serialize, JsonSchema)]
pub struct Explanation<'a> {
    /// The daemon's clock when it answered; of a trace, the time of the tick.
    now: String,
    /// The variant, as in `/api/v1/decisions`.
    variant: Variant<'a>,
    /// The data behind the decision, with its ages.
    inputs: Vec<InputLine>,
    /// The binding step; null without a decision.
    binding: Option<BindingLine>,
    /// The desired replicas once every wait has ended, if the load stays as it is; null if unknown.
    settled: Option<u32>,
    /// The loads at which the settled number differs from `desired`; null if they are not
    /// known.
    load: Option<LoadLine>,
    /// Other inputs that would change the settled number, and a pin or a pause.
    changes: Vec<ChangeLine>,
    /// Reaction of the variant's autoscaler; null if no cluster is watched.
    autoscaler: Option<Autoscaler>,
    /// Unknown parts and the reasons, as sentences.
    unknown: Vec<String>,
    /// Decisions that were made to find the answers.
    solves: u32,
    /// False if the search for answers was cut short.
    complete: bool,
    /// The answers in words, the most important first.
    summary: Vec<String>,
}

/// The step that binds a number.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Binding")]
struct BindingLine {
    /// The stage, as in `steps`.
    stage: &'static str,
    /// The code of the reason.
    reason: &'static str,
    /// The step in at most 80 characters.
    headline: String,
    /// Why, as a sentence.
    text: String,
}

/// The facts about a variant that are explained.
pub struct ExplainedVariant<'a> {
    /// The published state that has the variant.
    pub published: &'a Published,
    /// The variant.
    pub variant: &'a PublishedVariant,
    /// The inputs of the last tick.
    pub inputs: &'a Inputs,
    /// The exact error of each replica's last failed scrape.
    pub details: &'a FailureDetails,
    /// What the autoscaler does; `None` if no cluster is watched.
    pub autoscaler: Option<Autoscaler>,
    /// The wall clock.
    pub now: Timestamp,
    /// The monotonic clock.
    pub elapsed: Duration,
}

// === impl Explanation ===

impl<'a> Explanation<'a> {
    /// Creates the document.
    #[must_use]
    pub fn new(explained: ExplainedVariant<'a>, answers: &Counterfactuals) -> Self {
        let ExplainedVariant { published, variant, inputs, details, autoscaler, now, elapsed } =
            explained;
        let decision = variant.decided.as_ref().map(|decided| &decided.decision);
        let load = answers.load.as_ref().ok().map(LoadLine::new);
        let changes: Vec<ChangeLine> = answers.changes.iter().map(ChangeLine::new).collect();
        let unknown = unknown(variant, answers, autoscaler.as_ref());
        let limits: &[LimitReport] = &published.limits;

        let mut summary = Vec::new();
        summary.push(number(variant, answers));
        summary.extend(changes.iter().map(|change| change.text.clone()));
        summary.extend(load.as_ref().map(|load| load.text.clone()));
        summary.extend(autoscaler.as_ref().map(|it| it.text.clone()));

        Self {
            now: now.to_string(),
            variant: whole_variant(published, variant, details, elapsed),
            inputs: inputs::lines(now, variant, inputs, limits),
            binding: decision.and_then(Decision::because).map(BindingLine::new),
            settled: answers.settled.map(Replicas::count),
            load,
            changes,
            autoscaler,
            unknown,
            solves: answers.solves,
            complete: answers.complete,
            summary,
        }
    }
}

impl BindingLine {
    fn new(step: &Step) -> Self {
        Self {
            stage: step.stage.label(),
            reason: step.reason.label(),
            headline: step.headline(),
            text: step.reason.to_string(),
        }
    }
}

/// The number in a sentence, with the number once every wait has ended.
fn number(variant: &PublishedVariant, answers: &Counterfactuals) -> String {
    let key = &variant.spec.key;
    let Some(decided) = &variant.decided else {
        let why = variant.undecided.as_ref().map(|why| why.0.to_string());
        return format!("{key} has no desired replicas: {}", why.unwrap_or_default());
    };

    let decision = &decided.decision;
    let desired = decision.desired();
    let headline = decision.because().map(Step::headline).unwrap_or_default();
    match answers.settled {
        Some(settled) if settled != desired => format!(
            "{desired}, because {headline}; {settled} once every wait has ended, if the load stays \
             as it is"
        ),
        Some(_) | None => format!("{desired}, because {headline}"),
    }
}

/// What is not known, as sentences.
fn unknown(
    variant: &PublishedVariant,
    answers: &Counterfactuals,
    autoscaler: Option<&Autoscaler>,
) -> Vec<String> {
    let mut unknown = Vec::new();
    match &variant.decided {
        None => {
            let why = variant.undecided.as_ref().map(|why| why.0.to_string());
            unknown.push(format!("the number: {}", why.unwrap_or_default()));
        }
        Some(PublishedDecision { decision, .. }) if decision.basis == Basis::Held => {
            let why = decision.because().map(|step| step.reason.to_string());
            unknown.push(format!("the load: {}", why.unwrap_or_default()));
        }
        Some(_) => {}
    }

    if let Some(why) = &variant.observation.scale_unknown {
        unknown.push(format!("the existing replicas: {why}"));
    }
    if let Err(why) = &answers.load {
        unknown.push(format!(
            "the load that would change desired replicas: {}",
            counterfactuals::why(why)
        ));
    }
    if !answers.complete {
        unknown.push(format!("other changes: {}", counterfactuals::CUT_SHORT));
    }
    if autoscaler.is_none() {
        unknown.push("the autoscaler's reaction: no cluster is watched".to_owned());
    }

    unknown
}

// === answers ===

/// Decides a tick again and finds the answers about one variant. `goes_on` is asked before each
/// decision. `None` if the tick has no such variant.
#[must_use]
pub fn answers(
    scene: &TickScene,
    key: &VariantKey,
    goes_on: &dyn Fn() -> bool,
) -> Option<Counterfactuals> {
    let model = scene.inputs.fleet.get(key)?.model_key();
    let (tick, found) = scene.clone().decided(&model);
    let decision = found.decisions.iter().find(|decision| decision.variant == *key);
    Some(counterfactual::answer(&tick, key, decision, goes_on))
}

/// The published state of a tick outside of a daemon, such as a tick of a trace. Ages are those at
/// the tick. `elapsed` is the monotonic clock at the tick.
#[must_use]
pub fn published(scene: TickScene, elapsed: Duration) -> Published {
    let now = scene.now;
    let fleet = Arc::clone(&scene.inputs.fleet);
    let mut pipeline = scene.pipeline;
    let found = match &scene.follows {
        Some(numbers) => pipeline.follow(now, &scene.inputs, numbers),
        None => pipeline.tick(now, &scene.inputs),
    };

    Published::of(0, &fleet, found, |_, decision| {
        let at = decision.inputs_at;
        let age = Duration::try_from(now.duration_since(at)).unwrap_or_default();
        PublishedDecision { decision, at, elapsed: elapsed.saturating_sub(age) }
    })
}
