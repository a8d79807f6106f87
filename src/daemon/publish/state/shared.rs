//! The decisions as one replica tells the others: the numbers with their ages and reasons.
//!
//! Unlike the file of a restart, it has everything that a surface shows of a decision, so that each
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
//! Stages and reasons that only another release knows cost nothing but their names: an unknown stage
//! becomes the one before it and stands in the text, and a reason of which nothing but the code can
//! be read says who decided.
//!
//! A decision may also have the `memory` of its variant, in the shape of the state file and without
//! the observations that something was learned from: a replica that has just begun goes on from it.
//! When everything is too large, the rankings of variants are left out, then what was learned, then
//! all memory, then the data of the reasons, so that their codes remain.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::publish::Decided;
use crate::publish::state::Remembered;
use plimsoll_core::decide::limited::Limited;
use plimsoll_core::decide::{Basis, Decision, Reason, ReasonCode, Stage, Step, Told};
use plimsoll_core::fleet::{Bounds, ModelKey, ModelName, VariantKey};
use plimsoll_core::pipeline::saved::{Length, Memory};
use plimsoll_core::units::{Replicas, Seconds};

/// The version of the document's shape; another one is refused.
const VERSION: u32 = 2;

/// The decisions of a document.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shared {
    /// The generation that they belong to.
    pub generation: u64,
    /// How long they have lain there since they were written, when their numbers were in force.
    pub lain: Duration,
    /// The decisions, with their ages on our monotonic clock.
    pub decided: BTreeMap<VariantKey, Decided>,
    /// What the writer remembers of them.
    pub memories: SharedMemories,
    /// What only the writer's release knows, by name: words of its memories, which are not in
    /// these, and stages and reasons of its steps.
    pub strange: BTreeSet<String>,
}

/// What is remembered of variants, with their models.
pub type SharedMemories = BTreeMap<VariantKey, (ModelKey, Memory)>;

/// How a document reached us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt<'a> {
    /// When, on our monotonic clock.
    pub elapsed: Duration,
    /// When, on the wall clock.
    pub now: Timestamp,
    /// Whether it came as soon as it was written.
    pub arrival: Arrival,
    /// Who wrote it.
    pub holder: &'a str,
}

/// Whether a document came as soon as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It did: its ages are as it says, whatever the clocks of two machines say.
    Prompt,
    /// It may have lain there for long: its ages are larger by what the clocks say.
    Late,
}

/// Why a document cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum SharedError {
    /// It is too large.
    #[error("the decisions of {variants} variants take {bytes} bytes, of which {bytes_max} fit")]
    TooLarge {
        /// How many variants have a decision.
        variants: usize,
        /// What they take with the codes of reasons alone.
        bytes: usize,
        /// What fits.
        bytes_max: usize,
    },
    /// It is something else.
    #[error("the decisions that are shared are not a document of version {VERSION}")]
    Shape(#[source] serde_json::Error),
    /// It is of another version, or says what cannot be.
    #[error("the decisions that are shared: {0}")]
    Content(String),
}

#[derive(Serialize, Deserialize)]
struct Document {
    version: u32,
    generation: u64,
    written: Timestamp,
    decisions: Vec<Line>,
}

#[derive(Serialize, Deserialize)]
struct Line {
    variant: VariantKey,
    model: ModelName,
    at: Timestamp,
    age: Seconds,
    basis: Basis,
    #[serde(skip_serializing_if = "Option::is_none")]
    current: Option<Replicas>,
    bounds: Bounds,
    steps: Vec<LineStep>,
    /// Of any shape, because another release may remember more: a memory that we do not understand
    /// must not cost a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    memory: Option<Value>,
}

#[derive(Serialize, Deserialize)]
struct LineStep {
    stage: Readable<Stage, String>,
    before: Replicas,
    after: Replicas,
    code: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<Readable<Reason, Value>>,
}

/// Something that another release may know otherwise.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Readable<T, Other> {
    Known(T),
    Foreign(Other),
}

// === writing ===

/// The length of the memories, and the detail of the reasons, of a document that is made smaller step
/// by step.
const LENGTHS: [(Option<Length>, Detail); 5] = [
    (Some(Length::Conclusions), Detail::Ranked),
    (Some(Length::Conclusions), Detail::Facts),
    (Some(Length::Windows), Detail::Facts),
    (None, Detail::Facts),
    (None, Detail::Code),
];

/// The part of a reason that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Detail {
    /// All of it.
    Ranked,
    /// All but the ranking of the other variants, which grows with their square.
    Facts,
    /// The code alone.
    Code,
}

/// Writes the decisions, at `now` on the wall clock and `elapsed` on the monotonic one, with what is
/// remembered of their variants and with the data of their reasons as far as there is room.
///
/// # Errors
///
/// They do not fit into `bytes_max` even without all that.
pub fn encode<'a>(
    now: Timestamp,
    elapsed: Duration,
    generation: u64,
    decided: impl IntoIterator<Item = (&'a Decided, Option<&'a Memory>)>,
    bytes_max: usize,
) -> Result<String, SharedError> {
    let decided: Vec<_> = decided.into_iter().collect();
    let mut bytes = 0;

    for (length, detail) in LENGTHS {
        let lines = decided.iter().map(|(decided, memory)| {
            let told = length.zip(*memory).map(|(length, memory)| Remembered::new(memory, length));
            let memory = told.map(serde_json::to_value);
            let memory = memory.transpose().map_err(SharedError::Shape)?;
            Ok(Line { memory, ..Line::new(elapsed, decided, detail) })
        });
        let decisions = lines.collect::<Result<_, SharedError>>()?;
        let document = Document { version: VERSION, generation, written: now, decisions };
        let text = serde_json::to_string(&document).map_err(SharedError::Shape)?;
        if text.len() <= bytes_max {
            return Ok(text);
        }
        bytes = text.len();
    }
    Err(SharedError::TooLarge { variants: decided.len(), bytes, bytes_max })
}

impl Line {
    fn new(elapsed: Duration, decided: &Decided, detail: Detail) -> Self {
        let Decided { decision, at, elapsed: decided_at } = decided;
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
            steps: steps.iter().map(|step| LineStep::new(step, detail)).collect(),
            memory: None,
        }
    }
}

impl LineStep {
    fn new(step: &Step, detail: Detail) -> Self {
        let Step { stage, before, after, reason } = step;
        let code = reason.label().to_owned();
        let mut shown = Some(reason.clone());

        match (&mut shown, detail) {
            (Some(Reason::Told(_)), _) | (_, Detail::Code) => shown = None,
            (Some(Reason::Sized(sized)), Detail::Facts) => sized.rank = None,
            (Some(Reason::Limited(Limited::Instead { rank, .. })), Detail::Facts) => *rank = None,
            (_, Detail::Ranked | Detail::Facts) => {}
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
/// The text is not such a document, or has a decision that cannot be. None of it is used then.
pub fn decode(text: &str, receipt: Receipt<'_>) -> Result<Shared, SharedError> {
    let document: Document = serde_json::from_str(text).map_err(SharedError::Shape)?;
    let Document { version, generation, written, decisions } = document;
    if version != VERSION {
        return Err(SharedError::Content(format!("version {version}, not {VERSION}")));
    }
    let lain = match receipt.arrival {
        Arrival::Prompt => Duration::ZERO,
        // Where the writer's clock is ahead, the difference is negative and means nothing.
        Arrival::Late => {
            Duration::try_from(receipt.now.duration_since(written)).unwrap_or_default()
        }
    };

    let mut shared = Shared { generation, lain, ..Shared::default() };
    for (index, mut line) in decisions.into_iter().enumerate() {
        let memory = line.memory.take().and_then(|memory| serde_json::from_value(memory).ok());
        let memory = memory.map(|told: Remembered| {
            shared.strange.extend(told.strange);
            told.memory
        });
        shared.strange.extend(line.steps.iter().flat_map(LineStep::strange));
        let decided = line.decided(receipt, lain).ok_or_else(|| {
            SharedError::Content(format!("decisions[{index}] has no steps or an impossible age"))
        })?;
        let Decision { variant, model, .. } = &decided.decision;
        shared.memories.extend(memory.map(|memory| (variant.clone(), (model.clone(), memory))));
        shared.decided.insert(variant.clone(), decided);
    }
    Ok(shared)
}

impl Line {
    fn decided(self, receipt: Receipt<'_>, lain: Duration) -> Option<Decided> {
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
        Some(Decided { decision, at: self.at, elapsed })
    }
}

impl LineStep {
    /// The names in it that are not known here.
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

    /// The step, which follows one of the stage `last`. Stages come in their order, so one that is
    /// unknown here belongs next to it.
    fn step(self, holder: &str, last: Stage) -> Step {
        let Self { stage, before, after, code, reason } = self;
        let known = ReasonCode::ALL.iter().find(|known| known.label() == code);
        let reason = match (reason, known) {
            (Some(Readable::Known(reason)), _) => reason,
            (_, Some(code)) => told(*code, format!("decided by {holder}")),
            (_, None) => told(ReasonCode::Told, format!("{code}, decided by {holder}")),
        };
        match stage {
            Readable::Known(stage) => Step { stage, before, after, reason },
            Readable::Foreign(stage) => {
                let reason = told(reason.code(), format!("{stage}: {reason}"));
                Step { stage: last, before, after, reason }
            }
        }
    }
}

fn told(code: ReasonCode, text: String) -> Reason {
    Reason::Told(Told { code, text })
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

    fn published(variants: u32) -> Published {
        let variant = |index: u32| {
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
            let decided = Some(Decided { decision, at: at(-7), elapsed });
            let observation = Observation::of_nothing(spec.bounds);
            let key = spec.key.clone();
            let variant =
                PublishedVariant { spec, observation, report: None, decided, undecided: None };
            (key, variant)
        };
        let variants = (0..variants).map(variant).collect();
        Published { generation: 12, variants, ..Published::default() }
    }

    fn receipt(arrival: Arrival, clock: i64) -> Receipt<'static> {
        Receipt { elapsed: Duration::from_hours(25), now: at(clock), arrival, holder: "a" }
    }

    fn said(decision: &Decision) -> Vec<(String, &'static str)> {
        decision.steps.iter().map(|it| (it.to_string(), it.reason.label())).collect()
    }

    /// What is written of all that is decided.
    fn written(published: &Published, bytes_max: usize) -> Result<String, SharedError> {
        let decided = published.variants.values().filter_map(|variant| variant.decided.as_ref());
        let decided = decided.map(|decided| (decided, None));
        encode(at(0), NOW, published.generation, decided, bytes_max)
    }

    #[test]
    fn what_is_read_shows_what_was_written() {
        let before = published(3);
        let text = written(&before, usize::MAX).unwrap();
        let shared = decode(&text, receipt(Arrival::Prompt, 0)).unwrap();
        assert_eq!((shared.generation, shared.decided.len()), (12, 3));
        for (key, decided) in &shared.decided {
            let original = before.variants[key].decided.as_ref().unwrap();
            let (read, wrote) = (&decided.decision, &original.decision);
            assert_eq!(read.desired(), wrote.desired());
            assert_eq!(read.unconstrained(), wrote.unconstrained());
            assert_eq!((read.basis, read.bounds), (wrote.basis, wrote.bounds));
            assert_eq!((read.current, read.inputs_at), (wrote.current, wrote.inputs_at));
            assert_eq!((decided.at, said(read)), (original.at, said(wrote)));
        }
    }

    #[test]
    fn an_age_never_depends_on_two_clocks_when_the_document_came_at_once() {
        let text = written(&published(1), usize::MAX).unwrap();
        let age = |arrival, clock| {
            let receipt = receipt(arrival, clock);
            let shared = decode(&text, receipt).unwrap();
            let decided = shared.decided.into_values().next().unwrap();
            receipt.elapsed.saturating_sub(decided.elapsed).as_secs()
        };
        for clock in [-3600, 0, 3600] {
            assert_eq!(age(Arrival::Prompt, clock), 7, "our clock is {clock} s ahead");
        }
        assert_eq!(age(Arrival::Late, 600), 607, "it has lain there for ten minutes");
        assert_eq!(age(Arrival::Late, -600), 7, "an age is never made smaller");
    }

    #[test]
    fn what_is_too_large_loses_all_but_the_codes_of_reasons_and_is_then_refused() {
        let fleet = published(100);
        let whole = written(&fleet, usize::MAX).unwrap();
        let short = written(&fleet, whole.len() - 1).unwrap();
        assert!(short.len() < whole.len());
        let shared = decode(&short, receipt(Arrival::Prompt, 0)).unwrap();
        let decided = shared.decided.values().next().unwrap();
        let because = decided.decision.because().unwrap();
        assert_eq!(because.to_string(), "bounds: 2 -> 3, decided by a");
        assert_eq!(because.reason.label(), "below_min");
        let refused = written(&fleet, short.len() - 1).unwrap_err().to_string();
        assert!(refused.contains("100 variants"), "{refused}");
        // What docs/high-availability.md says of the size.
        let (whole, short) = (whole.len() / 100, short.len() / 100);
        assert!(whole < 400 && short < 300, "{whole}, {short}");
    }

    fn memory() -> Memory {
        let mut pieces = Vec::new();
        for second in 0..10 {
            pieces.push((at(second), Tokens::new(1000.5).unwrap()));
        }
        let (accelerator, gpus, output) = (None, None, OutputLength::Short);
        let limit = SavedLimit { accelerator, gpus, output, pieces };
        let span = Recommendation { first: at(-300), last: at(-7), replicas: n(2) };
        Memory {
            history: SavedHistory { recommended: vec![span], ..SavedHistory::default() },
            learned: SavedAnalyzers {
                tokens: Some(SavedKnowledge { record: None, limits: vec![limit] }),
                ..SavedAnalyzers::default()
            },
            ..Memory::default()
        }
    }

    #[test]
    fn what_is_remembered_is_shared_and_left_out_before_anything_that_is_shown() {
        let published = published(20);
        let memory = memory();
        let encode = |bytes_max| {
            let decided = published.variants.values().filter_map(|it| it.decided.as_ref());
            let decided = decided.map(|decided| (decided, Some(&memory)));
            super::encode(at(0), NOW, 1, decided, bytes_max).unwrap()
        };
        let read = |text: &str| decode(text, receipt(Arrival::Prompt, 0)).unwrap();
        let whole = encode(usize::MAX);
        let known = |shared: &Shared| shared.memories.values().next().map(|(_, it)| it.clone());
        assert_eq!(known(&read(&whole)), Some(memory.clone()));
        let windows = encode(whole.len() - 1);
        assert_eq!(known(&read(&windows)), Some(memory.clone().told(Length::Windows)));
        let none = encode(windows.len() - 1);
        assert_eq!(known(&read(&none)), None);
        assert_eq!(
            none,
            written(&published, usize::MAX).unwrap().replacen(
                "\"generation\":12",
                "\"generation\":1",
                1
            )
        );
        // Another release may remember something else; the numbers are the same.
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
        let text = written(&before, usize::MAX).unwrap();
        let text = text
            .replacen("\"stage\":\"bounds\"", "\"stage\":\"quota\"", 1)
            .replacen("\"code\":\"below_min\"", "\"code\":\"over_quota\"", 1)
            .replacen("{\"below_min\":3}", "{\"over_quota\":[3]}", 1)
            .replacen("\"generation\"", "\"added\":[1],\"generation\"", 1);
        let shared = decode(&text, receipt(Arrival::Prompt, 0)).unwrap();
        assert_eq!(shared.strange, ["over_quota".to_owned(), "quota".to_owned()].into());
        let decided = shared.decided.into_values().next().unwrap();
        assert_eq!(decided.decision.desired(), n(3));
        let said = said(&decided.decision);
        let (quota, label) = said.last().unwrap();
        assert_eq!(quota, "hold: 2 -> 3, quota: over_quota, decided by a");
        assert_eq!(*label, "told");
        let first = text.replacen("\"stage\":\"hold\"", "\"stage\":\"sense\"", 1);
        let shared = decode(&first, receipt(Arrival::Prompt, 0)).unwrap();
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
            assert!(decode(&text, receipt(Arrival::Prompt, 0)).is_err(), "{text}");
        }
    }
}
