//! The document in which the leader shares its decisions: desired replicas with their ages and
//! reasons.
//!
//! Unlike the state file, it contains everything that the surfaces show of a decision. So every
//! replica shows the same.
//!
//! # Shape
//!
//! ```json
//! {"version":2,"generation":812,"written":"2026-11-21T09:30:01Z","decisions":[{
//!   "variant":{"namespace":"shop","variant":"llama-l4"},"model":"meta/llama",
//!   "at":"2026-11-21T09:30:00Z","age":0.4,"basis":"fresh","current":2,"bounds":{"min":1,"max":8},
//!   "steps":[{"stage":"analyze","before":2,"after":3,"code":"spare_low",
//!             "reason":{"load":{"spare_low":{"kv":[0.045,0.1],"queue":null}}}}]}]}
//! ```
//!
//! If this release does not know a stage or a reason, the decision remains usable. An unknown stage
//! is replaced by the stage before it, and its name moves to the text. If only the code of a reason
//! is readable, the text names the replica that decided.
//!
//! A decision may also contain the `memory` of its variant, from which a newly started replica
//! continues. It has the shape of the state file, without the observations behind the learned
//! coefficients.
//!
//! If the document is too large, these parts are left out one after another:
//!
//! 1. the rankings of variants,
//! 2. the learned coefficients,
//! 3. all memories,
//! 4. the data of the reasons. Their codes always remain.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::publish::PublishedDecision;
use crate::publish::state::DecodedMemory;
use plimsoll_core::decide::limited::LimitedReason;
use plimsoll_core::decide::{Basis, Decision, Reason, ReasonCode, RemoteReason, Stage, Step};
use plimsoll_core::fleet::{Bounds, ModelKey, ModelName, VariantKey};
use plimsoll_core::pipeline::saved::{MemoryLength, VariantMemory};
use plimsoll_core::units::{Replicas, Seconds};

/// The version of the document's format. Other versions are rejected.
const VERSION: u32 = 2;

/// The decisions of a document.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SharedDecisions {
    /// The generation of the decisions.
    pub generation: u64,
    /// The age of the document when it arrived. The desired replicas were in effect when it was
    /// written.
    pub lain: Duration,
    /// The decisions, with their ages on this replica's monotonic clock.
    pub decided: BTreeMap<VariantKey, PublishedDecision>,
    /// The memories of the writer.
    pub memories: SharedMemories,
    /// Names that only the writer's release knows: words in its memories, and stages and reasons in
    /// its steps. `memories` does not contain these words.
    pub strange: BTreeSet<String>,
}

/// The memory of each variant, with its model.
pub type SharedMemories = BTreeMap<VariantKey, (ModelKey, VariantMemory)>;

/// The circumstances in which a document arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DocumentReceipt<'a> {
    /// The time of arrival on this replica's monotonic clock.
    pub elapsed: Duration,
    /// The time of arrival on the wall clock.
    pub now: Timestamp,
    /// The delay between write and arrival.
    pub arrival: DocumentArrival,
    /// The replica that wrote it.
    pub holder: &'a str,
}

/// Tells whether a document arrived as soon as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DocumentArrival {
    /// It arrived immediately. Its ages are taken as written, even if the clocks of the two
    /// machines differ.
    Prompt,
    /// It may have been written long ago. Its ages increase by the time since then, according to
    /// the wall clocks.
    Late,
}

/// An error from writing or reading a document.
#[derive(Debug, thiserror::Error)]
pub enum SharedError {
    /// The document is too large.
    #[error("the decisions of {variants} variants take {bytes} bytes, of which {bytes_max} fit")]
    TooLarge {
        /// The number of variants with a decision.
        variants: usize,
        /// The size with only the codes of reasons, in bytes.
        bytes: usize,
        /// The maximum size, in bytes.
        bytes_max: usize,
    },
    /// The text is not such a document.
    #[error("the decisions that are shared are not a document of version {VERSION}")]
    Shape(#[source] serde_json::Error),
    /// The document has another version or contains an invalid value.
    #[error("the decisions that are shared: {0}")]
    Content(String),
}

#[derive(Serialize, Deserialize)]
struct SharedDocument {
    version: u32,
    generation: u64,
    written: Timestamp,
    decisions: Vec<SharedLine>,
}

#[derive(Serialize, Deserialize)]
struct SharedLine {
    variant: VariantKey,
    model: ModelName,
    at: Timestamp,
    age: Seconds,
    basis: Basis,
    #[serde(skip_serializing_if = "Option::is_none")]
    current: Option<Replicas>,
    bounds: Bounds,
    steps: Vec<SharedStep>,
    /// Any JSON value, because another release may remember more. A memory that this release cannot
    /// read must not invalidate the desired replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    memory: Option<Value>,
}

#[derive(Serialize, Deserialize)]
struct SharedStep {
    stage: Readable<Stage, String>,
    before: Replicas,
    after: Replicas,
    code: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<Readable<Reason, Value>>,
}

/// A value that another release may represent differently.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Readable<T, Other> {
    Known(T),
    Foreign(Other),
}

// === writing ===

/// The memory length and the reason detail to try, in this order, until the document fits.
const LENGTHS: [(Option<MemoryLength>, ReasonDetail); 5] = [
    (Some(MemoryLength::Conclusions), ReasonDetail::Ranked),
    (Some(MemoryLength::Conclusions), ReasonDetail::Facts),
    (Some(MemoryLength::Windows), ReasonDetail::Facts),
    (None, ReasonDetail::Facts),
    (None, ReasonDetail::Code),
];

/// The part of a reason that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReasonDetail {
    /// The whole reason.
    Ranked,
    /// Everything except the ranking of the other variants, whose size grows with the square of
    /// their number.
    Facts,
    /// Only the code.
    Code,
}

/// Writes the decisions at `now` on the wall clock and `elapsed` on the monotonic clock. Includes
/// the memories of the variants and the data of the reasons, as far as they fit.
///
/// # Errors
///
/// The decisions do not fit into `bytes_max` even without memories and reason data.
pub fn encode<'a>(
    now: Timestamp,
    elapsed: Duration,
    generation: u64,
    decided: impl IntoIterator<Item = (&'a PublishedDecision, Option<&'a VariantMemory>)>,
    bytes_max: usize,
) -> Result<String, SharedError> {
    let variants: Vec<_> = decided.into_iter().collect();
    let mut bytes = 0;

    for (length, detail) in LENGTHS {
        let mut decisions = Vec::with_capacity(variants.len());
        for (decided, known) in &variants {
            let told =
                length.zip(*known).map(|(length, memory)| DecodedMemory::new(memory, length));
            let memory = told.map(serde_json::to_value).transpose().map_err(SharedError::Shape)?;
            decisions.push(SharedLine { memory, ..SharedLine::new(elapsed, decided, detail) });
        }

        let document = SharedDocument { version: VERSION, generation, written: now, decisions };
        let text = serde_json::to_string(&document).map_err(SharedError::Shape)?;
        if text.len() <= bytes_max {
            return Ok(text);
        }

        bytes = text.len();
    }

    Err(SharedError::TooLarge { variants: variants.len(), bytes, bytes_max })
}

impl SharedLine {
    fn new(elapsed: Duration, decided: &PublishedDecision, detail: ReasonDetail) -> Self {
        let PublishedDecision { decision, at, elapsed: decided_at } = decided;
        let Decision { variant, model, current, bounds, steps, inputs_at: _, basis } = decision;
        let age = elapsed.saturating_sub(*decided_at).as_secs_f64();

        Self {
            variant: variant.clone(),
            model: model.model.clone(),
            at: *at,
            age: Seconds::new(age).unwrap_or_default(),
            basis: *basis,
            current: *current,
            bounds: *bounds,
            steps: steps.iter().map(|step| SharedStep::new(step, detail)).collect(),
            memory: None,
        }
    }
}

impl SharedStep {
    fn new(step: &Step, detail: ReasonDetail) -> Self {
        let Step { stage, before, after, reason } = step;
        let code = reason.label().to_owned();
        let mut shown = Some(reason.clone());

        match (&mut shown, detail) {
            (Some(Reason::Told(_)), _) | (_, ReasonDetail::Code) => shown = None,
            (Some(Reason::Sized(sized)), ReasonDetail::Facts) => sized.rank = None,
            (Some(Reason::Limited(LimitedReason::Instead { rank, .. })), ReasonDetail::Facts) => {
                *rank = None;
            }
            (_, ReasonDetail::Ranked | ReasonDetail::Facts) => {}
        }

        Self {
            stage: Readable::Known(*stage),
            before: *before,
            after: *after,
            code,
            reason: shown.map(Readable::Known),
        }
    }
}

// === reading ===

/// Reads the decisions.
///
/// # Errors
///
/// The text is not such a document, or contains an invalid decision. In that case none of it is
/// used.
pub fn decode(text: &str, receipt: DocumentReceipt<'_>) -> Result<SharedDecisions, SharedError> {
    let document: SharedDocument = serde_json::from_str(text).map_err(SharedError::Shape)?;
    let SharedDocument { version, generation, written, decisions } = document;
    if version != VERSION {
        return Err(SharedError::Content(format!("version {version}, not {VERSION}")));
    }
    let lain = match receipt.arrival {
        DocumentArrival::Prompt => Duration::ZERO,
        // If the writer's clock is ahead, the difference is negative and counts as zero.
        DocumentArrival::Late => {
            Duration::try_from(receipt.now.duration_since(written)).unwrap_or_default()
        }
    };

    let mut shared = SharedDecisions { generation, lain, ..SharedDecisions::default() };
    for (index, mut line) in decisions.into_iter().enumerate() {
        let read: Option<DecodedMemory> =
            line.memory.take().and_then(|value| serde_json::from_value(value).ok());
        let memory = read.map(|told| {
            shared.strange.extend(told.strange);
            told.memory
        });
        shared.strange.extend(line.steps.iter().flat_map(SharedStep::strange));

        let decided = line.decided(receipt, lain).ok_or_else(|| {
            SharedError::Content(format!("decisions[{index}] has no steps or an impossible age"))
        })?;
        let Decision { variant, model, .. } = &decided.decision;
        shared.memories.extend(memory.map(|memory| (variant.clone(), (model.clone(), memory))));
        shared.decided.insert(variant.clone(), decided);
    }

    Ok(shared)
}

impl SharedLine {
    fn decided(self, receipt: DocumentReceipt<'_>, lain: Duration) -> Option<PublishedDecision> {
        let mut steps: Vec<Step> = Vec::with_capacity(self.steps.len());
        for step in self.steps {
            let before = steps.last().map_or(Stage::Analyze, |step| step.stage);
            steps.push(step.step(receipt.holder, before));
        }

        if steps.is_empty() {
            return None;
        }

        let age = Duration::try_from_secs_f64(self.age.seconds()).ok()?;
        let namespace = self.variant.namespace.clone();
        let decision = Decision {
            variant: self.variant,
            model: ModelKey { namespace, model: self.model },
            current: self.current,
            bounds: self.bounds,
            steps,
            inputs_at: self.at,
            basis: self.basis,
        };

        let elapsed = receipt.elapsed.saturating_sub(age).saturating_sub(lain);
        Some(PublishedDecision { decision, at: self.at, elapsed })
    }
}

impl SharedStep {
    /// Returns the names in the step that this release does not know.
    fn strange(&self) -> impl Iterator<Item = String> {
        let stage = match &self.stage {
            Readable::Known(_) => None,
            Readable::Foreign(name) => Some(name.clone()),
        };
        let reason = match &self.reason {
            None | Some(Readable::Known(_)) => None,
            Some(Readable::Foreign(_)) => Some(self.code.clone()),
        };

        stage.into_iter().chain(reason)
    }

    /// Decodes the step, which follows a step of the stage `last`. Steps are ordered by stage, so
    /// an unknown stage is replaced by `last`.
    fn step(self, holder: &str, last: Stage) -> Step {
        let Self { stage, before, after, code, reason: read } = self;
        let known = ReasonCode::ALL.iter().find(|it| it.label() == code);
        let reason = match (read, known) {
            (Some(Readable::Known(whole)), _) => whole,
            (_, Some(code)) => told(*code, format!("decided by {holder}")),
            (_, None) => told(ReasonCode::Told, format!("{code}, decided by {holder}")),
        };

        match stage {
            Readable::Known(stage) => Step { stage, before, after, reason },
            Readable::Foreign(stage) => {
                let text = format!("{stage}: {reason}");
                Step { stage: last, before, after, reason: told(reason.code(), text) }
            }
        }
    }
}

fn told(code: ReasonCode, text: String) -> Reason {
    Reason::Told(RemoteReason { code, text })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use crate::publish::Published;
    use crate::publish::PublishedVariant;
    use plimsoll_core::decide::NoData;
    use plimsoll_core::observe::Observation;
    use plimsoll_core::pipeline::saved::{
        OutputLength, Recommendation, SavedAnalyzers, SavedHistory, SavedKnowledge, SavedLimit,
    };
    use plimsoll_core::units::Tokens;

    const NOW: Duration = Duration::from_secs(5000);

    fn n(count: u32) -> Replicas {
        Replicas::saturating(count)
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn step(stage: Stage, before: u32, after: u32, reason: Reason) -> Step {
        Step { stage, before: n(before), after: n(after), reason }
    }

    fn published_variant(index: u32) -> PublishedVariant {
        let spec = fixtures::variant(&format!("variant-{index}"));
        let decision = Decision {
            variant: spec.key.clone(),
            model: spec.model_key(),
            current: Some(n(2)),
            bounds: spec.bounds,
            steps: vec![
                step(Stage::Hold, 2, 2, Reason::NoData(NoData::NoFreshReplica)),
                step(Stage::Bounds, 2, 3, Reason::BelowMin(n(3))),
            ],
            inputs_at: at(-7),
            basis: Basis::Held,
        };

        let elapsed = NOW.saturating_sub(Duration::from_secs(7));
        let decided = Some(PublishedDecision { decision, at: at(-7), elapsed });
        let observation = Observation::of_nothing(spec.bounds);
        PublishedVariant { spec, observation, report: None, decided, undecided: None }
    }

    fn published(count: u32) -> Published {
        let variants = (0..count)
            .map(published_variant)
            .map(|variant| (variant.spec.key.clone(), variant))
            .collect();
        Published { generation: 12, variants, ..Published::default() }
    }

    /// Decodes a document that arrives at once.
    fn read(text: &str) -> SharedDecisions {
        decode(text, receipt(DocumentArrival::Prompt, 0)).unwrap()
    }

    fn receipt(arrival: DocumentArrival, clock: i64) -> DocumentReceipt<'static> {
        DocumentReceipt { elapsed: Duration::from_hours(25), now: at(clock), arrival, holder: "a" }
    }

    fn said(decision: &Decision) -> Vec<(String, &'static str)> {
        decision.steps.iter().map(|it| (it.to_string(), it.reason.label())).collect()
    }

    /// Encodes all decisions without memories.
    fn written(published: &Published, bytes_max: usize) -> Result<String, SharedError> {
        let variants = published.variants.values();
        let decided = variants.filter_map(|variant| Some((variant.decided.as_ref()?, None)));
        encode(at(0), NOW, published.generation, decided, bytes_max)
    }

    #[test]
    fn what_is_read_shows_what_was_written() {
        let before = published(3);
        let text = written(&before, usize::MAX).unwrap();
        let shared = decode(&text, receipt(DocumentArrival::Prompt, 0)).unwrap();
        assert_eq!((shared.generation, shared.decided.len()), (12, 3));

        for (key, decided) in &shared.decided {
            let original = before.variants[key].decided.as_ref().unwrap();
            let read = &decided.decision;
            let wrote = &original.decision;
            assert_eq!(read.desired(), wrote.desired());
            assert_eq!(read.unconstrained(), wrote.unconstrained());
            assert_eq!((read.basis, read.bounds), (wrote.basis, wrote.bounds));
            assert_eq!((read.current, read.inputs_at), (wrote.current, wrote.inputs_at));
            assert_eq!((decided.at, said(read)), (original.at, said(wrote)));
        }
    }

    /// Returns the age, in seconds, of the first decision in the document.
    fn age(text: &str, arrival: DocumentArrival, clock: i64) -> u64 {
        let receipt = receipt(arrival, clock);
        let shared = decode(text, receipt).unwrap();
        let decided = shared.decided.into_values().next().unwrap();
        receipt.elapsed.saturating_sub(decided.elapsed).as_secs()
    }

    #[test]
    fn an_age_never_depends_on_two_clocks_when_the_document_came_at_once() {
        let text = written(&published(1), usize::MAX).unwrap();
        for clock in [-3600, 0, 3600] {
            assert_eq!(
                age(&text, DocumentArrival::Prompt, clock),
                7,
                "our clock is {clock} s ahead"
            );
        }

        assert_eq!(
            age(&text, DocumentArrival::Late, 600),
            607,
            "it has lain there for ten minutes"
        );
        assert_eq!(age(&text, DocumentArrival::Late, -600), 7, "an age is never made smaller");
    }

    #[test]
    fn what_is_too_large_loses_all_but_the_codes_of_reasons_and_is_then_refused() {
        let fleet = published(100);
        let whole = written(&fleet, usize::MAX).unwrap();
        let short = written(&fleet, whole.len() - 1).unwrap();
        assert!(short.len() < whole.len());

        let shared = decode(&short, receipt(DocumentArrival::Prompt, 0)).unwrap();
        let decided = shared.decided.values().next().unwrap();
        let because = decided.decision.because().unwrap();
        assert_eq!(because.to_string(), "bounds: 2 -> 3, decided by a");
        assert_eq!(because.reason.label(), "below_min");

        let refused = written(&fleet, short.len() - 1).unwrap_err().to_string();
        assert!(refused.contains("100 variants"), "{refused}");

        // The sizes that docs/high-availability.md states.
        let bytes_whole = whole.len() / 100;
        let bytes_short = short.len() / 100;
        assert!(bytes_whole < 400 && bytes_short < 300, "{bytes_whole}, {bytes_short}");
    }

    fn memory() -> VariantMemory {
        let mut pieces = Vec::new();
        for second in 0..10 {
            pieces.push((at(second), Tokens::new(1000.5).unwrap()));
        }

        let accelerator = None;
        let gpus = None;
        let output = OutputLength::Short;
        let limit = SavedLimit { accelerator, gpus, output, pieces };
        let span = Recommendation { first: at(-300), last: at(-7), replicas: n(2) };
        VariantMemory {
            history: SavedHistory { recommended: vec![span], ..SavedHistory::default() },
            learned: SavedAnalyzers {
                tokens: Some(SavedKnowledge { record: None, limits: vec![limit] }),
                ..SavedAnalyzers::default()
            },
            ..VariantMemory::default()
        }
    }

    /// Encodes all decisions, each with this memory.
    fn written_with(published: &Published, memory: &VariantMemory, bytes_max: usize) -> String {
        let variants = published.variants.values();
        let decided = variants.filter_map(|it| Some((it.decided.as_ref()?, Some(memory))));
        encode(at(0), NOW, 1, decided, bytes_max).unwrap()
    }

    fn known(shared: &SharedDecisions) -> Option<VariantMemory> {
        shared.memories.values().next().map(|(_, it)| it.clone())
    }

    #[test]
    fn what_is_remembered_is_shared_and_left_out_before_anything_that_is_shown() {
        let published = published(20);
        let memory = memory();
        let whole = written_with(&published, &memory, usize::MAX);
        assert_eq!(known(&read(&whole)), Some(memory.clone()));

        let windows = written_with(&published, &memory, whole.len() - 1);
        assert_eq!(known(&read(&windows)), Some(memory.clone().told(MemoryLength::Windows)));

        let none = written_with(&published, &memory, windows.len() - 1);
        assert_eq!(known(&read(&none)), None);
        assert_eq!(
            none,
            written(&published, usize::MAX).unwrap().replacen(
                "\"generation\":12",
                "\"generation\":1",
                1
            )
        );
        // Another release may remember something else; the desired replicas stay the same.
        let foreign = whole.replace("\"recommended\"", "\"foreseen\"");
        let shared = read(&foreign);
        let mut rest = memory.clone();
        rest.history.recommended.clear();
        assert_eq!((shared.decided.len(), known(&shared)), (20, Some(rest)));
        assert_eq!(shared.strange, ["foreseen".to_owned()].into());
        let impossible = whole.replace("\"recommended\":[{", "\"recommended\":[-1e99,{");
        let shared = read(&impossible);
        assert_eq!((shared.decided.len(), known(&shared)), (20, None));
    }

    #[test]
    fn what_only_another_release_knows_costs_no_number_and_is_shown_as_it_is() {
        let before = published(1);
        let text = written(&before, usize::MAX)
            .unwrap()
            .replacen("\"stage\":\"bounds\"", "\"stage\":\"quota\"", 1)
            .replacen("\"code\":\"below_min\"", "\"code\":\"over_quota\"", 1)
            .replacen("{\"below_min\":3}", "{\"over_quota\":[3]}", 1)
            .replacen("\"generation\"", "\"added\":[1],\"generation\"", 1);

        let shared = decode(&text, receipt(DocumentArrival::Prompt, 0)).unwrap();
        assert_eq!(shared.strange, ["over_quota".to_owned(), "quota".to_owned()].into());
        let decided = shared.decided.into_values().next().unwrap();
        assert_eq!(decided.decision.desired(), n(3));
        let said = said(&decided.decision);
        let (quota, label) = said.last().unwrap();
        assert_eq!(quota, "hold: 2 -> 3, quota: over_quota, decided by a");
        assert_eq!(*label, "told");

        let first = text.replacen("\"stage\":\"hold\"", "\"stage\":\"sense\"", 1);
        let shared = decode(&first, receipt(DocumentArrival::Prompt, 0)).unwrap();
        let decided = shared.decided.into_values().next().unwrap();
        assert!(decided.decision.because().is_some());
        assert_eq!(decided.decision.desired(), n(3));
    }

    #[test]
    fn what_cannot_be_is_refused_as_a_whole() {
        let good = written(&published(2), usize::MAX).unwrap();
        let bad = [
            "{}".to_owned(),
            "[".to_owned(),
            good.replacen("\"version\":2", "\"version\":1", 1),
            good.replacen("\"after\":3", "\"after\":3000000", 1),
            good.replacen("\"age\":7.0", "\"age\":-7.0", 1),
            good.replacen("\"min\":1", "\"min\":9", 1),
        ];

        for text in bad {
            assert_ne!(text, good, "the test has changed something");
            assert!(decode(&text, receipt(DocumentArrival::Prompt, 0)).is_err(), "{text}");
        }
    }
}
