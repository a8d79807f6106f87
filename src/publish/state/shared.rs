//! The decisions as one replica tells the others: the numbers with their ages and reasons.
//!
//! Unlike the file of a restart, it has everything that a surface shows of a decision, so that each
//! replica shows the same.
//!
//! # Shape
//!
//! ```json
//! {"version":1,"generation":812,"written":"2026-11-21T09:30:01Z","decisions":[{
//!   "namespace":"shop","variant":"llama-l4","model":"meta/llama",
//!   "at":"2026-11-21T09:30:00Z","age":0.4,"basis":"fresh","current":2,"min":1,"max":8,
//!   "steps":[{"stage":"analyze","before":2,"after":3,"reason":"spare_low","text":"KV spare low (0.045 < 0.100)"}]}]}
//! ```
//!
//! Stages and reasons that only another release knows cost nothing but their names as labels: an
//! unknown stage becomes the one before it, stands in the text and is told by its name, and an
//! unknown reason is `told`.
//!
//! About 400 bytes a decision. A decision may also have the `memory` of its variant, in the shape of
//! the state file and without the observations that something was learned from: a replica that has
//! just begun goes on from it. When everything is too large, what was learned is left out, then all
//! memory, then the texts, which leaves about 300 bytes; the reason then says who decided.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::decide::{Basis, Decision, Reason, Stage, Step, Told};
use crate::fleet::{Bounds, ModelKey, ModelName, Namespace, VariantKey, VariantName};
use crate::pipeline::saved::{Length, Memory};
use crate::publish::Decided;
use crate::publish::state::Remembered;
use crate::units::Replicas;

/// The version of the document's shape; another one is refused.
const VERSION: u32 = 1;

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
    /// these, and stages of its steps.
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
        /// What they take without texts.
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
    namespace: String,
    variant: String,
    model: String,
    at: Timestamp,
    age: f64,
    basis: LineBasis,
    #[serde(skip_serializing_if = "Option::is_none")]
    current: Option<u32>,
    min: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    max: Option<u32>,
    steps: Vec<LineStep>,
    /// Of any shape, because another release may remember more: a memory that we do not understand
    /// must not cost a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    memory: Option<Value>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LineBasis {
    Fresh,
    Held,
}

#[derive(Serialize, Deserialize)]
struct LineStep {
    stage: String,
    before: u32,
    after: u32,
    reason: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    text: String,
}

// === writing ===

/// Writes the decisions, at `now` on the wall clock and `elapsed` on the monotonic one, with what is
/// remembered of their variants as far as there is room.
///
/// # Errors
///
/// They do not fit into `bytes_max` even without memory and texts.
pub fn encode<'a>(
    now: Timestamp,
    elapsed: Duration,
    generation: u64,
    decided: impl IntoIterator<Item = (&'a Decided, Option<&'a Memory>)>,
    bytes_max: usize,
) -> Result<String, SharedError> {
    let decided: Vec<_> = decided.into_iter().collect();
    let decisions = decided.iter().map(|(decided, _)| line(elapsed, decided)).collect();
    let mut document = Document { version: VERSION, generation, written: now, decisions };
    for length in [Some(Length::Conclusions), Some(Length::Windows), None] {
        for (line, (_, memory)) in document.decisions.iter_mut().zip(&decided) {
            let told = length.zip(*memory).map(|(length, memory)| Remembered::new(memory, length));
            let written = told.map(serde_json::to_value);
            line.memory = written.transpose().map_err(SharedError::Shape)?;
        }
        let whole = serde_json::to_string(&document).map_err(SharedError::Shape)?;
        if whole.len() <= bytes_max {
            return Ok(whole);
        }
    }
    for step in document.decisions.iter_mut().flat_map(|line| &mut line.steps) {
        step.text.clear();
    }
    let short = serde_json::to_string(&document).map_err(SharedError::Shape)?;
    let (variants, bytes) = (document.decisions.len(), short.len());
    if bytes <= bytes_max {
        Ok(short)
    } else {
        Err(SharedError::TooLarge { variants, bytes, bytes_max })
    }
}

fn line(elapsed: Duration, decided: &Decided) -> Line {
    let Decided { decision, at, elapsed: decided_at } = decided;
    let Decision { variant, model, current, bounds, steps, inputs_at: _, basis } = decision;
    Line {
        namespace: variant.namespace.as_str().to_owned(),
        variant: variant.variant.as_str().to_owned(),
        model: model.model.as_str().to_owned(),
        at: *at,
        age: elapsed.saturating_sub(*decided_at).as_secs_f64(),
        basis: match basis {
            Basis::Fresh => LineBasis::Fresh,
            Basis::Held => LineBasis::Held,
        },
        current: current.map(Replicas::count),
        min: bounds.min().count(),
        max: bounds.max().map(Replicas::count),
        steps: steps.iter().map(line_step).collect(),
        memory: None,
    }
}

fn line_step(step: &Step) -> LineStep {
    let Step { stage, before, after, reason } = step;
    LineStep {
        stage: stage.label().to_owned(),
        before: before.count(),
        after: after.count(),
        reason: reason.label().to_owned(),
        text: reason.to_string(),
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
    let impossible =
        |index| SharedError::Content(format!("decisions[{index}] says what cannot be"));
    let (mut all, mut memories) = (BTreeMap::new(), SharedMemories::new());
    let mut strange = BTreeSet::new();
    for (index, mut line) in decisions.into_iter().enumerate() {
        let memory = line.memory.take().and_then(|memory| serde_json::from_value(memory).ok());
        let memory = memory.map(|told: Remembered| {
            strange.extend(told.strange);
            told.memory
        });
        strange.extend(line.unknown_stages().map(str::to_owned));
        let decided = line.decided(receipt, lain).ok_or_else(|| impossible(index))?;
        let Decision { variant, model, .. } = &decided.decision;
        memories.extend(memory.map(|memory| (variant.clone(), (model.clone(), memory))));
        all.insert(variant.clone(), decided);
    }
    Ok(Shared { generation, lain, decided: all, memories, strange })
}

fn stage(label: &str) -> Option<Stage> {
    Stage::ALL.into_iter().find(|stage| stage.label() == label)
}

/// A count that may be missing.
fn count(count: Option<u32>) -> Result<Option<Replicas>, Impossible> {
    count.map(|count| Replicas::new(count).ok_or(Impossible)).transpose()
}

/// A count that is larger than any can be.
struct Impossible;

impl Line {
    fn unknown_stages(&self) -> impl Iterator<Item = &str> {
        let unknown = |step: &&LineStep| stage(&step.stage).is_none();
        self.steps.iter().filter(unknown).map(|step| step.stage.as_str())
    }

    fn decided(self, receipt: Receipt<'_>, lain: Duration) -> Option<Decided> {
        let namespace = Namespace::new(&self.namespace)?;
        let mut steps: Vec<Step> = Vec::with_capacity(self.steps.len());
        for step in self.steps {
            let before = steps.last().map_or(Stage::Analyze, |step| step.stage);
            steps.push(step.step(receipt.holder, before)?);
        }
        if steps.is_empty() {
            return None;
        }
        let age = Duration::try_from_secs_f64(self.age).ok()?;
        let decision = Decision {
            variant: VariantKey {
                namespace: namespace.clone(),
                variant: VariantName::new(&self.variant)?,
            },
            model: ModelKey { namespace, model: ModelName::new(&self.model)? },
            current: count(self.current).ok()?,
            bounds: Bounds::new(Replicas::new(self.min)?, count(self.max).ok()?)?,
            steps,
            inputs_at: self.at,
            basis: match self.basis {
                LineBasis::Fresh => Basis::Fresh,
                LineBasis::Held => Basis::Held,
            },
        };
        let elapsed = receipt.elapsed.saturating_sub(age).saturating_sub(lain);
        Some(Decided { decision, at: self.at, elapsed })
    }
}

impl LineStep {
    /// The step, which follows one of the stage `last`. Stages come in their order, so one that is
    /// unknown here belongs next to it.
    fn step(self, holder: &str, last: Stage) -> Option<Step> {
        let said = Some(self.text).filter(|text| !text.is_empty());
        let mut text = said.unwrap_or_else(|| format!("decided by {holder}"));
        let known = stage(&self.stage);
        if known.is_none() {
            text = format!("{}: {text}", self.stage);
        }
        Some(Step {
            stage: known.unwrap_or(last),
            before: Replicas::new(self.before)?,
            after: Replicas::new(self.after)?,
            reason: Reason::Told(Told::new(&self.reason, text)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::NoData;
    use crate::fleet::VariantSpec;
    use crate::observe::Observation;
    use crate::pipeline::saved::{
        OutputLength, SavedAnalyzers, SavedHistory, SavedKnowledge, SavedLimit, SavedSpan,
    };
    use crate::publish::Published;
    use crate::publish::PublishedVariant;
    use crate::units::Tokens;

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
            let spec = VariantSpec::example(&format!("variant-{index}"));
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
    fn what_is_too_large_loses_its_texts_first_and_is_then_refused() {
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
        let span = SavedSpan { first: at(-300), last: at(-7), replicas: n(2) };
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
            .replacen("\"reason\":\"below_min\"", "\"reason\":\"over_quota\"", 1)
            .replacen("\"generation\"", "\"added\":[1],\"generation\"", 1);
        let shared = decode(&text, receipt(Arrival::Prompt, 0)).unwrap();
        assert_eq!(shared.strange, ["quota".to_owned()].into());
        let decided = shared.decided.into_values().next().unwrap();
        assert_eq!(decided.decision.desired(), n(3));
        let said = said(&decided.decision);
        let (quota, label) = said.last().unwrap();
        assert_eq!(quota, "hold: 2 -> 3, quota: raised to the minimum of 3");
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
            good.replacen("\"version\":1", "\"version\":2", 1),
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
